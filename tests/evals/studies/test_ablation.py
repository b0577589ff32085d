"""Ablation of a guidance file: what helps is found, what the budget does not decide is called so, and nothing
is run twice. All agents are scripted.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from result_pages import page_details, page_index

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.execution.runner import TrialsToRun
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.studies import ablation
from kestrel_lab.evals.studies.ablation import ablate_guidance
from kestrel_lab.evals.studies.ablation_result import Ablation
from kestrel_lab.lab import Lab

FILE = """\
# House rules

HELPS: write a test before the code.

HARMS: work fast & do <b>not</b> look twice.

LONG: tell at length what you did, for $5 or $6.

The office is on the second floor.
"""


def written(
    folder: Path, *, scenarios: int = 8, goal: str = "Task", more: str = "", git: bool = True
) -> Path:
    """Return a suite whose scripted agent works as AGENTS.md says."""
    shutil.copy(Path(__file__).parents[1] / "guided_agent.py", folder)
    (folder / "AGENTS.md").write_text(FILE)
    lines = [f"  - {{id: t{n}, goal: {goal} {n}, checks: [answer_equals: right]}}" for n in range(scenarios)]
    config = "configs: [{name: learner, model: 'scripted:guided_agent.py:learner', seed: 1}]"
    (folder / "suite.yaml").write_text("\n".join(["name: guided", config, more, "scenarios:", *lines, ""]))
    (folder / ".gitignore").write_text("home\nout\n__pycache__\n")
    if git:
        commit(folder)
    return folder / "suite.yaml"


def commit(folder: Path) -> None:
    """Commit everything."""
    who = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "commit.gpgsign=false",
    )
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def study(session: Lab, suite: Path, **options: Any) -> Ablation:
    """Return the ablation of AGENTS.md."""
    return asyncio.run(ablate_guidance(session, suite, options.pop("file", "AGENTS.md"), **options))


@pytest.mark.slow
def test_what_helps_and_what_harms_is_found(tmp_path: Path, session: Lab) -> None:
    """Of four paragraphs one raises the success rate, one lowers it and one takes tokens: each is told with
    its interval, the rest stays open.
    """
    found = study(session, written(tmp_path), budget=240)
    frame = found.frame
    assert list(frame["verdict"][:2]) == ["helps", "harms"]
    assert set(frame["verdict"][2:]) <= {"no difference", "no difference shown"}
    assert (frame["low"] <= frame["effect"]).all()
    assert (frame["effect"] <= frame["high"]).all()
    for part, truth in enumerate((0.45, -0.4, 0.0, 0.0)):
        assert frame["effect"].iloc[part] == pytest.approx(truth, abs=0.2)
    assert frame["tokens"].iloc[2] - frame["tokens"].iloc[3] == pytest.approx(80, abs=10)
    assert frame["cost"].isna().all()
    assert set(frame["heading"]) == {"House rules"}
    assert (len(found.trials), set(found.trials["model_kind"])) == (240, {"scripted"})
    text = str(found)
    assert "learner (scripted)" in found.headline
    assert "No real model answered for: learner (scripted)." in text
    assert "could not be decided" in text
    page = found.report(tmp_path / "out" / "page.html")
    index = page_index(page)
    assert index["verdict"] == f"{found.headline}."
    (plot,) = index["plots"]
    assert [row["tone"] for row in plot["rows"]][:2] == ["good", "bad"]
    effects, parts = (table for _, table in index["tables"])
    assert [row[1] for row in effects[1]] == [row[1] for row in parts[1]] == list(frame["verdict"])
    assert len(index["trials"]) == 240
    assert "with parts " in str(page_details(page)[0]["model"])
    for shown in (page.read_text(), found._repr_html_()):
        assert "<b>not</b>" not in shown
    axes = found.plot().axes
    assert [one.get_xlabel() for one in axes] == [
        "effect on the success rate, points, 95 % interval",
        "tokens per trial",
    ]
    assert len(axes[0].get_yticklabels()) == 4


def test_asked_again_it_goes_on(tmp_path: Path, session: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interruption only what is missing is run, a larger budget adds to what is there, and another
    text begins anew.
    """
    suite = written(tmp_path)
    made: list[int] = []
    usual = ablation.run_trials

    async def counting(work: TrialsToRun) -> list[EvalRow]:
        made.append(len(work.asks))
        return await usual(replace(work, asks=work.asks[:10] if len(made) == 1 else work.asks))

    monkeypatch.setattr(ablation, "run_trials", counting)
    cut_off = study(session, suite, budget=32)
    assert len(cut_off.pairs) == 5
    whole = study(session, suite, budget=32)
    assert (made, len(whole.pairs), whole.reused) == ([32, 22], 16, 10)
    again = study(session, suite, budget=32)
    assert again.frame.equals(whole.frame)
    assert study(session, suite, budget=40).reused == 32
    assert made == [32, 22, 8]
    (tmp_path / "AGENTS.md").write_text(FILE.replace("second", "third"))
    assert study(session, suite, budget=32).reused == 0


def test_outside_of_git_stored_trials_are_taken_on_demand(tmp_path: Path, session: Lab) -> None:
    """Nothing tells there whether the code changed, so it takes `resume`."""
    suite = written(tmp_path, git=False)
    study(session, suite, budget=16)
    assert study(session, suite, budget=16).reused == 0
    assert study(session, suite, budget=16, resume=True).reused == 16


def test_money_is_a_budget(tmp_path: Path, session: Lab) -> None:
    """No trial is begun that the money would not pay on average, and the result says what ended it."""
    found = study(session, written(tmp_path, goal="priced Task"), cost=1.0)
    spent = found.trials["cost_estimate"].sum()
    assert 0.9 <= spent <= 1.0
    assert found.ended == "$1.00 of $1.00 are spent and a pair of trials takes $0.02"
    assert "asked again with more it goes on" in str(found)
    more = study(session, tmp_path / "suite.yaml", cost=1.2)
    assert more.reused == len(found.trials)
    assert study(session, tmp_path / "suite.yaml", cost=50, budget=140).ended == ""


def test_a_cost_needs_prices(tmp_path: Path, session: Lab) -> None:
    """Trials that cost nothing would go on for ever."""
    with pytest.raises(UsageError, match="cost nothing, so a cost bounds nothing"):
        study(session, written(tmp_path), cost=1.0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "give a budget, in trials or US dollars: 4 parts take 16 trials at least"),
        ({"budget": 15}, "15 trials are too few to tell 4 parts apart: it takes 16"),
        ({"budget": 10**9}, "are more than 2,000 of each scenario"),
        ({"cost": 0}, "above 0, not 0"),
        ({"budget": 16, "file": "GONE.md"}, "there is no guidance file 'GONE.md'"),
        ({"budget": 16, "file": "GONE.md", "ref": "HEAD"}, "there is no guidance file 'GONE.md' at HEAD"),
        ({"budget": 16, "ref": "v9"}, "'v9' is not a commit"),
        ({"budget": 16, "file": "empty.md"}, "'empty.md' is empty"),
        ({"budget": 16, "file": "bare.md"}, "bare.md: there is no paragraph to leave out"),
        ({"budget": 16, "unit": "word"}, "not 'word'"),
        ({"budget": 16, "configs": ["leaner"]}, "did you mean 'learner'"),
        ({"budget": 16, "scenarios": ["x*"]}, "no scenario 'x\\*'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    tmp_path: Path, session: Lab, options: dict[str, Any], told: str
) -> None:
    """A budget that tells nothing, and a file that is not there or has no parts, are refused before a trial
    is run.
    """
    (tmp_path / "empty.md").write_text("\n")
    (tmp_path / "bare.md").write_text("# Title\n")
    with pytest.raises(UsageError, match=told):
        study(session, written(tmp_path), **options)
    assert session.store.query("SELECT count(*) FROM eval_runs") == [(0,)]


def test_one_configuration_at_a_time(tmp_path: Path, session: Lab) -> None:
    """A suite with several configurations is asked which one is meant; what its guidance names beside the
    file is in every trial.
    """
    suite = written(tmp_path, scenarios=1)
    text = suite.read_text()
    both = "configs:\n  - {name: bare, model: 'scripted:guided_agent.py:learner'}\n"
    both += (
        "  - {name: skilled, model: 'scripted:guided_agent.py:learner', guidance: {text: {CLAUDE.md: "
        "HELPS, AGENTS.md: HARMS}}}\n"
    )
    suite.write_text(both + text[text.index("scenarios:") :])
    with pytest.raises(UsageError, match="choose one of bare, skilled"):
        study(session, suite, budget=16)
    found = study(session, suite, budget=16, configs=["skilled"])
    assert [part.text for part in found.divided.parts] == ["HARMS"]
    assert all("CLAUDE.md" in config.guidance.files for config in found.suite.configs if config.guidance)
    assert found.trials["guidance"].nunique() == 2
    assert "speaks of these scenarios only" in str(found)


def test_broken_trials_are_counted_as_the_suite_says(tmp_path: Path, session: Lab) -> None:
    """A trial that broke counts as failed, or its pair is in no rate, and the result tells how many."""
    suite = written(tmp_path, scenarios=6, more="count_errors: exclude")
    agent = tmp_path / "guided_agent.py"
    agent.write_text(
        agent.read_text().replace(
            "chance = 0.5", 'assert "HARMS" not in told or "HELPS" in told\n    chance = 0.5'
        )
    )
    found = study(session, suite, budget=48)
    broke = (found.trials["outcome"] == "error").sum()
    assert 6 <= broke <= 18
    assert f"{broke} trials broke (counted in no rate)." in found.lines()


def test_the_progress_is_told_in_numbers(tmp_path: Path) -> None:
    """A reporter is called up to the last trial; a board of trials would have a column for each choice of
    paragraphs.
    """
    seen: list[tuple[int, int]] = []

    class Board:
        """A reporter that shows trials."""

        def __call__(self, done: int, of: int, _note: str) -> None:
            seen.append((done, of))

        def trial(self, _row: object) -> None:
            raise AssertionError

    with Lab(home=tmp_path / "home", env={}) as lab:
        found = lab.evals.ablate_sync(written(tmp_path), "AGENTS.md", budget=16, reporter=Board())
    assert len(found.pairs) == 8
    assert (seen[0], seen[-1]) == ((0, 16), (16, 16))
