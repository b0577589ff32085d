"""The sentence of each event that has one: its text, how grave it is, and what belongs to it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kestrel_lab.core.events import union as e
from kestrel_lab.core.events.actions import Action, Outcome
from kestrel_lab.views.notices import (
    actions_done,
    claims_row,
    concerns_row,
    next_steps,
    notice_of,
    quality_line,
    quality_row,
    quality_rows,
    task_list,
)
from kestrel_lab.views.rows import NoticeRow

SHOWN = {"server": "maps", "source": "registry", "need": "routes"}
INSTALLED: dict[str, Any] = {
    "package": "maps-mcp 1.2",
    "server": "maps",
    "folder": "f",
    "lock": "l",
    "tree": "t",
}
VOTE: dict[str, Any] = {"council": "c", "step": "s", "member": "Ann", "round": 1}
COMPACTED: dict[str, Any] = {"step": "s", "window": 9_000, "before": 8_000, "after": 3_000}


@pytest.mark.parametrize(
    ("event", "level", "text", "items"),
    [
        (e.BudgetWarned(limit="tokens", message="80 % used"), "warning", "80 % used", []),
        (
            e.ContextCompacted(**COMPACTED, results={"c1": "x", "c2": "x"}, summary="so far"),
            "info",
            "context compacted: 2 results left out and what came before summarised; about 8,000 tokens "
            "were 3,000 of 9,000",
            [],
        ),
        (
            e.ContextCompacted(**COMPACTED, results={"c1": "x"}),
            "info",
            "context compacted: 1 result left out; about 8,000 tokens were 3,000 of 9,000",
            [],
        ),
        (
            e.ContextCompacted(**COMPACTED),
            "info",
            "context compacted: nothing could be left out; about 8,000 tokens were 3,000 of 9,000",
            [],
        ),
        (
            e.StepRetried(step="s", attempt=2, error_class="timeout", reason="slow"),
            "warning",
            "failed (timeout) and is tried again, attempt 2: slow",
            [],
        ),
        (
            e.BranchScored(step="s", candidate="b", text="idea", score=0.256),
            "info",
            "candidate b: score 0.26",
            ["idea"],
        ),
        (
            e.RetrievalStep(
                step="s",
                hits=[{"path": "a.py", "first": 2, "last": 2, "why": "w"}],
                coverage=0.5,
                stopped="enough",
            ),
            "info",
            "1 file found, covering 50% of the question (enough)",
            ["a.py:2 (w)"],
        ),
        (
            e.RetrievalStep(step="s", stopped="nothing"),
            "info",
            "0 files found, covering 0% of the question (nothing)",
            [],
        ),
        (
            e.VoteCast(**VOTE, position="", vote="Bob", reason="clearer"),
            "info",
            "Ann votes for the position of Bob: clearer",
            [],
        ),
        (
            e.VoteCast(
                **VOTE,
                position="wait",
                confidence=0.7,
                claims=[
                    {"claim": "late", "shown": 1, "evidence": ["p", "q"]},
                    {"claim": "dear", "evidence": []},
                ],
            ),
            "info",
            "Ann, 70% sure: wait",
            ["late – 1 of 2 pieces of evidence found", "dear – no evidence"],
        ),
        (
            e.CouncilDecided(
                step="s",
                decision="go",
                reason="most",
                votes={"Ann": 2, "Bob": 1},
                dissent=[{"member": "Cy", "vote": "Bob", "reason": "no"}],
            ),
            "info",
            "decided (Ann 2, Bob 1): go. most",
            ["Cy for Bob: no"],
        ),
        (
            e.CouncilDecided(step="s", decision="go", reason="lot", votes={"Ann": 1, "Bob": 1}, split=True),
            "warning",
            "decided on a split vote (Ann 1, Bob 1): go. lot",
            [],
        ),
        (
            e.ToolsAdded(tools=[{"name": "route"}]),
            "info",
            "1 tool of servers that were started for the first time",
            ["route"],
        ),
        (
            e.ToolsShown(tools=["a", "b"], need="routes"),
            "info",
            "offered 2 more tools for: routes",
            ["a", "b"],
        ),
        (e.ToolsShown(tools=["a"]), "info", "offered 1 more tool", ["a"]),
        (
            e.McpCandidateFound(**SHOWN, score=71, rubric=[{"criterion": "age", "points": 3, "why": "old"}]),
            "info",
            "server maps was found: 71 of 100 points",
            ["age: 3, old"],
        ),
        (e.McpCandidateFound(**SHOWN, problem="no wheel"), "info", "server maps cannot be had: no wheel", []),
        (
            e.McpInstalled(**INSTALLED, tools=[{"name": "route"}]),
            "good",
            "maps-mcp 1.2 is installed as maps",
            ["route"],
        ),
        (
            e.McpInstalled(**INSTALLED, allowed="maps*"),
            "good",
            "maps-mcp 1.2 is installed as maps, allowed by mcp_allow: maps*",
            [],
        ),
        (
            e.MemoryStored(step="s", note={"id": "n1", "kind": "pitfall", "text": "slow", "taint": "web"}),
            "info",
            "kept for later runs",
            ["pitfall n1 (from web): slow"],
        ),
        (
            e.MemoryRecalled(step="s", notes=[{"id": "n1"}, {"content": "plain"}, {"a": 1, "b": 2}]),
            "info",
            "3 notes of earlier runs recalled",
            ["note n1; its words: kestrel memory show n1", "plain", "a: 1, b: 2"],
        ),
    ],
)
def test_an_event_is_one_sentence(event: e.Event, level: str, text: str, items: list[str]) -> None:
    """What happened, to what, how much of it; a part that is not there is not mentioned."""
    row = notice_of(event)
    assert row is not None
    assert (row.level, row.text, row.items) == (level, text, items)


@pytest.mark.parametrize(
    "event",
    [
        e.BudgetWarned(limit="cost_usd", message="the price is not known"),
        e.RetrievalStep(step="s", found=3),
        e.ToolsShown(tools=[]),
        e.CheckpointSaved(seq=3, reason="x"),
    ],
)
def test_what_is_no_news_has_no_sentence(event: e.Event) -> None:
    """An unknown price, a search under way, no new tools and a checkpoint are not told."""
    assert notice_of(event) is None


def test_concerns_about_an_answer_warn_unless_all_are_minor() -> None:
    """Each concern says how bad it is, what and, where known, the place."""

    def row(*severities: str) -> NoticeRow | None:
        told: list[Any] = [
            {"severity": word, "what": "odd", "place": "a.py:3" if at else ""}
            for at, word in enumerate(severities)
        ]
        return concerns_row(e.RunFinished(outcome="complete", concerns=told))

    assert row() is None
    minor, major = row("minor"), row("minor", "major")
    assert minor is not None
    assert major is not None
    assert (minor.level, minor.text, minor.items) == ("info", "1 concern about the answer", ["minor: odd"])
    assert (major.level, major.text, major.items) == (
        "warning",
        "2 concerns about the answer",
        ["minor: odd", "major: odd — a.py:3"],
    )


def test_claims_warn_where_one_is_wrong_or_changed() -> None:
    """Each claim has its state, its text and what it cites."""
    cited = {
        "state": "cited",
        "text": "It is red.",
        "citations": [{"place": "a.py:1"}, {"place": "b.py:2", "why": "moved"}],
    }
    assert claims_row([]) is None
    for state, level in (
        ("wrong", "warning"),
        ("changed", "warning"),
        ("uncited", "info"),
        ("unknown", "info"),
    ):
        row = claims_row([cited, {"state": state, "text": "More."}])
        assert row is not None
        assert row.level == level
        assert row.items[0] == "✓ cited: It is red. — a.py:1; b.py:2 (moved)"
        assert row.items[1].endswith(f"{state}: More.")


def test_next_steps_are_lines_to_copy() -> None:
    """What can be done next has its reason as a comment; without any there is no row."""
    row = next_steps(
        e.RunFinished(
            outcome="complete",
            actions=[{"text": "make test", "why": "it changed"}, {"why": "nothing to type"}],
        )
    )
    assert row is not None
    assert (row.text, row.items) == ("next, if you like:", ["make test  # it changed"])
    assert next_steps(e.RunFinished(outcome="complete", actions=[{"why": "nothing to type"}])) is None


def test_what_the_calls_say_is_not_said_again() -> None:
    """Changed files and commands are told; calls that only ran stand for themselves."""

    def acted(*given: tuple[str, str, tuple[str, ...]]) -> list[object]:
        row = actions_done(
            [
                Action(
                    call=name,
                    tool=name,
                    args={},
                    outcome=cast("Outcome", outcome),
                    kind="change" if files else "other",
                    files=files,
                )
                for name, outcome, files in given
            ]
        )
        return [] if row is None else [row.level, row.text, row.items]

    assert acted() == acted(("look", "done", ())) == []
    assert acted(("w", "done", ("a.txt",))) == ["info", "what it did: changed a.txt", []]
    assert acted(("w", "done", ("a.txt",)), ("v", "failed", ("b.txt",)), ("x", "denied", ())) == [
        "warning",
        "what it did:",
        ["changed a.txt", "failed: changed b.txt"],
    ]


def test_the_task_list_counts_what_is_over() -> None:
    """Dropped tasks are over too; when all are the list is done."""

    def listed(*states: str) -> NoticeRow:
        return task_list(
            NoticeRow(id="tasks"),
            [
                e.TaskChanged(task=word, title=word, status=word, note="why" if word == "dropped" else "")
                for word in states
            ],
        )

    row = listed("todo", "doing", "done", "dropped")
    assert (row.text, row.level, row.state) == ("tasks: 2 of 4 done", "info", "running")
    assert row.items == ["☐ todo", "▶ doing", "☑ done", "☒ dropped: why"]
    row = listed("done", "dropped")
    assert (row.text, row.level, row.state) == ("tasks: 2 of 2 done", "good", "done")


REPORT = {
    "pass": False,
    "issues": [
        {"severity": "critical", "what": "wrong"},
        {"severity": "minor", "what": "dull", "place": "p"},
        {"severity": "minor", "what": "dry"},
    ],
    "missing_evidence": ["It is fast."],
}


def test_a_quality_report_is_a_table_with_its_verdict() -> None:
    """Issues by severity, then claims that cite nothing; only steps that report have one."""
    assert quality_line(REPORT) == "quality: did not pass, 1 critical, 2 minor, 1 claim without evidence"
    assert quality_line({"pass": True}) == "quality: passed, nothing found"
    assert [(row["severity"], row["place"], row["what"]) for row in quality_rows(REPORT)][1:] == [
        ("minor", "p", "dull"),
        ("minor", "", "dry"),
        ("no evidence", "It is fast.", "it cites nothing that shows it"),
    ]
    ended = e.StepFinished(step="s", ok=True, output=REPORT)  # type: ignore[arg-type]
    row = quality_row(ended, "quality")
    assert row is not None
    assert (row.level, len(row.table), row.table[0][0]) == ("bad", 5, "severity")
    assert quality_row(ended, "plan") is None
    assert quality_row(e.StepFinished(step="s", ok=True, output="text"), "quality") is None
    passed = quality_row(e.StepFinished(step="s", ok=True, output={"pass": True}), "quality")
    assert passed is not None
    assert (passed.level, passed.table) == ("good", [])
