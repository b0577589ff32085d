"""Stored trials judged again: from the log alone, with what cannot be judged said, and nothing passing
unseen.
"""

import asyncio
from dataclasses import replace

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.checks.behaviour import TurnsAtMost
from kestrel_lab.checks.files import FileAbsent, FileContains
from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.checks.parse import CHECKS
from kestrel_lab.checks.python_function import PythonCheck
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.commits.interleaved_trials import FIRST_OF_SEARCH
from kestrel_lab.evals.execution.reuse import reusable_rows
from kestrel_lab.evals.execution.runner import plan_trials, run_suite
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.stored.rescore import rescore_trials
from kestrel_lab.evals.stored.summary import summarise_stored
from kestrel_lab.evals.stored_trials import store_trial, stored_scores, stored_trials
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

FILE = FileContains(path="x.txt", text="hi")


class CountingModel(ScriptedModel):
    """Knows how often it was asked."""

    asked = 0

    async def __call__(self, request, on_delta):
        type(self).asked += 1
        return await super().__call__(request, on_delta)


def suite(*checks, name="demo", **more):
    """One scenario, judged by `checks`."""
    place = InlineFiles(files={"x.txt": "hi"})
    return Suite(
        name=name,
        scenarios=(Scenario(id="s", goal="talk", checks=checks, place=place, **more),),
        configs=(Config(name="c", model="m"),),
    )


@pytest.fixture
def lab(tmp_path):
    """A session with one stored trial that answered hello, judged by its answer and a file."""
    session = Lab(tmp_path / "home", env={})
    CountingModel.asked = 0
    asyncio.run(
        run_suite(
            session, suite(AnswerContains(texts=("bye",)), FILE), configs={"c": CountingModel(["hello"])}
        )
    )
    yield session
    session.close()


def outcome(found):
    """Outcome and reason of the one trial."""
    (row,) = found.result.rows
    return row.result["outcome"], row.result["reason"]


def test_the_new_checks_judge_the_old_run(lab):
    """A check that was wrong is put right: the outcome changes, no model is asked, old and new scores are
    both kept.
    """
    before = stored_trials(lab.store)
    found = asyncio.run(rescore_trials(lab, suite(AnswerContains(texts=("hello",)), TurnsAtMost(n=1), FILE)))
    assert outcome(found) == ("pass", "")
    assert [(c["before"], c["after"], c["scenario"]) for c in found.changes] == [("fail", "pass", "s")]
    assert CountingModel.asked == 1
    assert stored_trials(lab.store) == before
    (stored,) = stored_scores(lab.store, suite="demo", suite_hash=found.suite_hash)
    assert stored == found.result.rows[0]
    assert stored_scores(lab.store, suite="demo", suite_hash="other") == []
    assert "1 outcome changed" in repr(found)
    assert "fail" in found._repr_html_()


def test_what_needs_the_workspace_keeps_its_score_and_says_so(lab):
    """A file's check has its old score; one that was not there before makes the trial count as broken.

    It never passes unseen.
    """
    found = asyncio.run(rescore_trials(lab, suite(AnswerContains(texts=("hello",)), FILE)))
    told = "x.txt contains 'hi' cannot be re-scored: it needs the workspace; its old score stands"
    assert (outcome(found), dict(found.kept)) == (("pass", ""), {told: 1})
    assert [score.get("kept", False) for score in found.result.rows[0].result["scores"]] == [False, True]
    # On an empty folder this check would pass: the trap.
    assert asyncio.run(FileAbsent(path="x.txt")(trial_in_no_folder())).passed
    found = asyncio.run(
        rescore_trials(lab, suite(AnswerContains(texts=("hello",)), FileAbsent(path="x.txt")))
    )
    assert outcome(found)[0] == "error"
    assert (
        "cannot be re-scored: it needs the workspace, and there is no earlier score of it"
        in outcome(found)[1]
    )


def trial_in_no_folder():
    """What a check would see if it were run though the folder is gone."""
    from pathlib import Path

    from kestrel_lab.core.protocols import Trial

    return Trial(goal="g", answer="", records=(), workspace=Path("/nonexistent"))


def test_a_kept_folder_is_looked_at(tmp_path):
    """Trials run with `keep` can be judged by their files, too."""
    session = Lab(tmp_path / "home", env={})
    try:
        asyncio.run(run_suite(session, suite(FILE), configs={"c": ScriptedModel(["hello"])}, keep=True))
        found = asyncio.run(rescore_trials(session, suite(FileContains(path="x.txt", text="ho"))))
        assert outcome(found) == ("fail", "x.txt contains 'ho': it holds 'hi'")
        assert found.kept == {}
    finally:
        session.close()


def test_another_task_is_not_judged(lab):
    """A run under other limits, or of a scenario that is gone, says nothing of the suite as it is now."""
    found = asyncio.run(rescore_trials(lab, suite(AnswerContains(texts=("hello",)), limits={"cycles": 1})))
    assert found.result.rows == ()
    assert dict(found.left_out) == {
        "left out: its task changed (goal, workspace, tools, limits or approval): run it again": 1
    }
    gone = suite(FILE).model_copy(
        update={"scenarios": (suite(FILE).scenarios[0].model_copy(update={"id": "other"}),)}
    )
    assert list(asyncio.run(rescore_trials(lab, gone)).left_out) == [
        "left out: the suite has no such scenario any more"
    ]


def test_models_and_functions_are_not_asked(lab, tmp_path):
    """A graded check needs a model; a function needs the workspace unless it says that the log is enough."""
    (tmp_path / "judges.py").write_text(
        "def plain(trial):\n    return True\n\ndef logged(trial):\n    return 'hello' in "
        "trial.answer\n\nlogged.from_log = True\n"
    )
    asked = suite(ModelGraded(rubric="r"), PythonCheck(function="judges:plain")).model_copy(
        update={"path": tmp_path / "s.yaml", "root": tmp_path}
    )
    reason = outcome(asyncio.run(rescore_trials(lab, asked)))[1]
    assert "needs a model" in reason
    assert "judges:plain agrees cannot be re-scored: it needs the workspace" in reason
    assert outcome(
        asyncio.run(
            rescore_trials(
                lab,
                asked.model_copy(
                    update={"scenarios": suite(PythonCheck(function="judges:logged")).scenarios}
                ),
            )
        )
    ) == (
        "pass",
        "",
    )


def test_only_complete_scores_stand_for_a_trial(lab):
    """`--reuse` takes a trial judged again by all checks of now; one with a kept score, or of another task,
    is made again.
    """

    def reusable(now):
        asks = plan_trials(now, code="abc", git_sha="abc")
        return len(reusable_rows(lab.store, now, asks).rows)

    (row,) = stored_trials(lab.store)
    ask = plan_trials(suite(AnswerContains(texts=("bye",)), FILE), code="abc", git_sha="abc")[0]
    at_commit = replace(row, id="t2", git_sha="abc", key=ask.identity.key, created_at=row.created_at + 1)
    store_trial(
        lab.store, replace(at_commit, result={**row.result, "identity": ask.identity.as_json()})
    ).result()
    complete, partly = suite(AnswerContains(texts=("hello",))), suite(AnswerContains(texts=("hello",)), FILE)
    assert (reusable(complete), reusable(partly)) == (0, 0)
    for now in (complete, partly):
        asyncio.run(rescore_trials(lab, now, commit="abc"))
    assert (reusable(complete), reusable(partly)) == (1, 0)


def test_nothing_stored_is_said(lab):
    """A suite that was never run, or a commit without trials, is not an empty success."""
    with pytest.raises(UsageError, match=r"no trials of suite 'new' are stored"):
        asyncio.run(rescore_trials(lab, suite(FILE, name="new")))
    with pytest.raises(UsageError, match=r"at commit 'abcd' are stored; there are some of \(no commit\)"):
        asyncio.run(rescore_trials(lab, suite(FILE), commit="abcd"))


def test_checks_that_say_they_need_nothing_read_no_workspace():
    """Every built-in check declares what it needs; those of files and commands do not claim that the log is
    enough.
    """
    needing = {name for name, kind in CHECKS.items() if getattr(kind, "needs", "the workspace")}
    assert needing >= {
        "file_absent",
        "file_contains",
        "file_equals",
        "command_succeeds",
        "python_check",
        "graded",
    }
    assert not needing & {
        "answer_contains",
        "answer_equals",
        "tool_used",
        "cost_at_most",
        "trajectory_match",
        "answer_cites",
        "answer_schema",
    }


def test_a_check_of_ones_own_is_taken_to_need_the_workspace(lab):
    """A check that does not say otherwise is never run without the folder it may look at."""

    class Careless:
        label = "careless"

        async def __call__(self, trial):
            return Score(check=self.label, passed=True, value=1.0)

    assert outcome(asyncio.run(rescore_trials(lab, suite(Careless()))))[0] == "error"


def test_stored_trials_are_added_up_without_running(lab):
    """By configuration, family or scenario; mistakes are named."""
    found = summarise_stored(lab, suite(FILE), by="scenario", metrics=["tool_calls"])
    assert found.table() == (
        ["configuration", "scenario", "trials", "broke", "tool_calls (95 %)"],
        [["c (scripted)", "s", "1", "0", "0"]],
    )
    assert CountingModel.asked == 1
    for wrong in ({"by": "famly"}, {"metrics": ["tool_call"]}):
        with pytest.raises(UsageError):
            summarise_stored(lab, suite(FILE), **wrong)


def test_a_part_is_judged_under_the_name_of_the_whole(lab):
    """Scenarios are chosen by id, family and tag; the new scores stand where those of the whole suite do, the
    rest is not mentioned.
    """
    (row,) = stored_trials(lab.store)
    store_trial(lab.store, replace(row, id="other", scenario="t", created_at=row.created_at + 1, key=""))
    lab.store.flush()
    right = suite(AnswerContains(texts=("hello",)), FILE, family="f")
    both = right.model_copy(
        update={
            "scenarios": (
                *right.scenarios,
                right.scenarios[0].model_copy(update={"id": "t", "family": "g", "tags": ("slow",)}),
            )
        }
    )
    whole = asyncio.run(rescore_trials(lab, both))
    for part in ({"scenarios": ["s*"]}, {"families": ["f"]}):
        found = asyncio.run(rescore_trials(lab, both, **part))
        assert ([one.scenario for one in found.result.rows], dict(found.left_out), found.suite_hash) == (
            ["s"],
            {},
            whole.suite_hash,
        )
    for part, name in (({"tags": ["slow"]}, "t"), ({"families": ["f"]}, "s"), ({"scenarios": ["t"]}, "t")):
        assert [one["scenario"] for one in summarise_stored(lab, both, by="scenario", **part).records] == [
            name
        ]
    with pytest.raises(UsageError, match="no family 'h'"):
        summarise_stored(lab, both, families=["h"])


def test_searches_are_left_out_and_the_suites_order_kept(lab):
    """Trials of a search for a bad commit are no part of a summary or a re-scoring; configurations come in
    the suite's order.
    """
    (row,) = stored_trials(lab.store)
    for config, epoch in (("b", 1), ("b", FIRST_OF_SEARCH), ("a", 1)):
        store_trial(
            lab.store,
            replace(
                row, id=f"{config}{epoch}", config=config, epoch=epoch, created_at=row.created_at + 1, key=""
            ),
        )
    lab.store.flush()
    known = suite(AnswerContains(texts=("hello",)), FILE).model_copy(
        update={"configs": tuple(Config(name=name, model="m") for name in "bca")}
    )
    found = asyncio.run(rescore_trials(lab, known))
    assert [(one.config, one.epoch) for one in found.result.rows] == [("b", 1), ("c", 1), ("a", 1)]
    for by in ("config", "family"):
        assert [(one["config"], one["trials"]) for one in summarise_stored(lab, known, by=by).records] == [
            ("b", 1),
            ("c", 1),
            ("a", 1),
        ]
    assert [one["config"] for one in summarise_stored(lab, known, configs=["a"]).records] == ["a"]


def test_many_checks_that_keep_their_scores_are_told_briefly(lab):
    """A long suite does not fill the screen with one line per check."""
    found = replace(asyncio.run(rescore_trials(lab, suite(FILE))), kept={f"check {n}": 1 for n in range(30)})
    assert "check 4 (1 trial)" in repr(found)
    assert "check 5" not in repr(found)
    assert "and 25 more checks" in repr(found)
