"""A check that takes a tool which nobody offers is told before the first trial, by what the check declares."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab, Scenario, Suite
from kestrel_lab.checks.composition import out_of_reach
from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.protocols import Trial, TrialStart
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.suite import Config
from kestrel_lab.testing import RecordingReporter, ScriptedModel

READING = TrialStart(tools={"read_file": "pure", "grep": "pure"}, files={"a.txt": "seven"})
WRITING = TrialStart(tools={"read_file": "pure", "notary": "opaque"}, files={"a.txt": "seven"})
NEEDS_WRITING: list[dict[str, Any]] = [
    {"file_contains": {"path": "b.txt", "text": "7"}},
    {"file_contains": {"path": "a.txt", "text": "eight"}},
    {"file_equals": {"path": "a.txt", "text": "eight"}},
    {"file_absent": "a.txt"},
    {"any_of": [{"file_absent": "a.txt"}, {"file_equals": {"path": "b.txt", "text": ""}}]},
    {"all_of": [{"answer_contains": "x"}, {"file_absent": "a.txt"}]},
    {"file_absent": "a.txt", "name": "gone", "weight": 2},
]
NEEDS_A_TOOL: list[dict[str, Any]] = [
    {"tool_used": "bash"},
    {"tool_used": {"kind": "command"}},
    {"tools_in_order": ["read_file", "bash"]},
    {"trajectory_match": {"calls": [{"kind": "command"}]}},
]
OPEN: list[dict[str, Any]] = [
    {"file_contains": {"path": "a.txt", "text": "seven"}},
    {"file_absent": "b.txt"},
    {"answer_contains": "7"},
    {"tool_used": "grep"},
    {"tool_used": {"kind": "read"}},
    {"tool_not_used": "bash"},
    {"not": {"tool_used": "bash"}},
    {"any_of": [{"tool_used": "bash"}, {"answer_contains": "7"}]},
    {"trajectory_match": {"calls": ["read_file", "bash"], "at_least": 0.5}},
    {"trajectory_match": {"calls": ["read_file", "bash"], "mode": "precision"}},
    {"tool_used": "bash", "weight": 0},
    {"command_succeeds": ["true"]},
]


@pytest.mark.parametrize("given", [*NEEDS_WRITING, *NEEDS_A_TOOL], ids=str)
def test_a_check_says_which_tool_it_takes(given: dict[str, Any]) -> None:
    """A check that no offered tool can make pass says so, also within others."""
    assert out_of_reach(parse_check(given), READING).startswith("it takes ")


@pytest.mark.parametrize("given", OPEN, ids=str)
def test_a_check_that_may_pass_says_nothing(given: dict[str, Any]) -> None:
    """What the files fulfil already, what asks for no tool, what decides nothing and shares are left open."""
    assert out_of_reach(parse_check(given), READING) == ""


@pytest.mark.parametrize("given", NEEDS_WRITING, ids=str)
def test_any_tool_with_an_effect_may_change_files(given: dict[str, Any]) -> None:
    """No list of names decides: a tool of one's own that has an effect may do it; nothing is said of files
    that are not known beforehand.
    """
    check = parse_check(given)
    assert out_of_reach(check, WRITING) == ""
    assert out_of_reach(check, TrialStart(tools=READING.tools)) == ""


@dataclass(frozen=True)
class Signed:
    """A check of one's own, which declares that it takes a tool."""

    label: str = "signed"

    def out_of_reach(self, start: TrialStart) -> str:
        """Say that it takes the tool `notary`."""
        return "" if "notary" in start.tools else "it takes the tool 'notary'"

    async def __call__(self, trial: Trial) -> Score:
        """Fail."""
        return Score(check=self.label, passed=False, value=0.0)


def told(tmp_path: Path, scenario: Scenario, *configs: Config) -> tuple[list[str], str]:
    """Run a suite; return what was told before the first trial, and what stands below the result."""
    reporter = RecordingReporter()
    suite = Suite(name="s", scenarios=(scenario,), configs=configs or (Config(name="m"),))
    with Lab(tmp_path / "home", model=ScriptedModel(lambda _: "done")) as lab:
        result = asyncio.run(run_suite(lab, suite, reporter=reporter))
        return [note for done, _, note in reporter.reports if not done], "; ".join(result.notes)


def test_it_is_told_before_the_first_trial(tmp_path: Path) -> None:
    """The report comes with scenario, configuration, check and offered tools, while no trial has ended; it
    stays with the result. A configuration that offers the tool is not named.
    """
    check = parse_check({"file_contains": {"path": "total.txt", "text": "7"}})
    scenario = Scenario(id="total", goal="Write 7 to total.txt.", checks=(check, Signed()))
    before, after = told(tmp_path, scenario, Config(name="bare"), Config(name="able", tools=("write_file",)))
    for text in ("scenario 'total' [bare]", "total.txt contains '7'", "change files", "read_file", "notary"):
        assert any(text in note for note in before), text
        assert text in after
    assert "[able]: the check 'total.txt" not in after


def test_a_suite_that_offers_what_it_takes_hears_nothing(tmp_path: Path) -> None:
    """With the tool under `tools` nothing is said."""
    check = parse_check({"file_contains": {"path": "total.txt", "text": "7"}})
    scenario = Scenario(id="total", goal="Write.", checks=(check,), tools=("write_file",))
    before, after = told(tmp_path, scenario)
    assert not any("cannot pass" in note for note in before)
    assert "cannot pass" not in after
