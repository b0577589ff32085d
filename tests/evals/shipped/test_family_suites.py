"""The shipped suites that measure searching, remembering and verifying by family, without a model that could
flatter them.
"""

import asyncio
from pathlib import Path

import pandas as pd
import pytest

from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab

pytestmark = pytest.mark.slow

SUITES = Path(__file__).parents[3] / "evals"
SMALL = {"httpx", "starlette", "jinja2", "trafilatura"}
"""Packages that are indexed in no time: the whole suite takes half a minute."""


def rates(frame: pd.DataFrame, *by: str, metric: str = "success") -> dict[object, float]:
    """The mean of a metric by what `by` names."""
    return frame.groupby(list(by) if len(by) > 1 else by[0])[metric].mean().to_dict()


def test_searches_find_files_of_installed_packages(tmp_path: Path) -> None:
    """At least forty questions in six families, no model; on the small packages searches find most files, and
    more than counting words does.
    """
    suite = load_suite(SUITES / "retrieval.yaml")
    assert len(suite.scenarios) >= 40
    assert {one.family for one in suite.scenarios} == {"feature", "bug", "symbol", "data", "several", "docs"}
    gated = {(gate.metric, gate.family) for gate in suite.gates}
    assert gated == {("recall@10", family) for family in ("", "feature", "bug", "symbol", "several", "docs")}
    small = suite.model_copy(
        update={
            "scenarios": tuple(one for one in suite.scenarios if getattr(one.place, "package", "") in SMALL)
        }
    )

    frame = Lab(tmp_path / "home", env={}).eval_sync(small).frame

    assert set(frame["outcome"]) <= {"pass", "fail"}
    assert set(frame["model"]) == {"none"}
    found = rates(frame, "config", metric="recall@10")
    assert found["search_code"] >= 0.9, frame[["scenario", "config", "reason"]].to_string()
    assert found["find_files"] >= 0.9
    assert found["search_code"] > found["words"]
    assert (frame["recall@5"] <= frame["recall@10"]).all()


def test_memory_gives_the_right_notes(tmp_path: Path) -> None:
    """Nearly all of the right notes come; none that is forgotten or expired does, and a note of others is not
    obeyed; without memory nothing passes.
    """
    exact = {"forgotten", "expired", "tainted", "preference"}
    families = [*exact, "contradiction", "pitfall"]
    frame = Lab(tmp_path / "home", env={}).eval_sync(SUITES / "memory.yaml", families=families).frame

    assert set(frame["outcome"]) == {"pass", "fail"}
    assert rates(frame, "config")["memory off"] == 0
    on = rates(frame[frame["config"] == "memory on"], "family")
    assert {family: on[family] for family in exact} == dict.fromkeys(exact, 1.0), frame["reason"].to_string()
    assert rates(frame, "config", metric="recall@5")["memory on"] >= 0.9


def test_a_note_of_others_is_obeyed_where_nothing_contains_it(tmp_path: Path) -> None:
    """Mutant: without containment the orders in notes of others have effects, and the family `tainted` fails
    but for the user's own words.
    """
    suite = load_suite(SUITES / "memory.yaml").select(families=["tainted"], configs=["memory on"])
    open_ = suite.model_copy(
        update={"scenarios": tuple(one.model_copy(update={"containment": "off"}) for one in suite.scenarios)}
    )
    frame = asyncio.run(Lab(tmp_path / "home", env={}).eval(open_)).frame
    assert rates(frame, "scenario") == {"tainted-file": 0, "tainted-answer": 0, "tainted-not": 1}


@pytest.mark.long
def test_made_up_answers_are_noticed_by_kind(tmp_path: Path) -> None:
    """Nobody looks in `off`, so all twenty made-up answers pass; `repair` puts most of each kind right and
    doubts nothing that is true.
    """
    frame = Lab(tmp_path / "home", env={}).eval_sync(SUITES / "made_up.yaml", configs=["off", "repair"]).frame

    assert set(frame["outcome"]) == {"pass", "fail"}
    assert set(frame["model_kind"]) == {"scripted"}
    kinds = {"file", "line", "quote", "deed"}
    found = rates(frame, "config", "family")
    assert {found["off", kind] for kind in kinds} == {0}
    assert (found["off", "true"], found["repair", "true"]) == (1, 1), frame["reason"].to_string()
    assert all(found["repair", kind] >= 0.6 for kind in kinds)


def test_a_warning_is_enough_not_to_be_misled(tmp_path: Path) -> None:
    """With `warn` a made-up answer comes out as it is, and is marked; the same answer unmarked fails."""
    result = Lab(tmp_path / "home", env={}).eval_sync(
        SUITES / "made_up.yaml", configs=["off", "warn"], scenarios=["file-digest"]
    )
    told = {
        row.config: (row.result["outcome"], "_digest.py" in str(row.result["answer"])) for row in result.rows
    }
    assert told == {"off": ("fail", True), "warn": ("pass", True)}
