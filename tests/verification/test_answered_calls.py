"""A call is evidence only for what it answered, over every kind of tool and every outcome."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.json_types import Json
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.verification import places
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files

Args = dict[str, Json]
ASKING: list[tuple[str, Args]] = [
    ("read_file", {"path": "roof.txt"}),
    ("Read", {"file_path": "/repo/roof.txt"}),
    ("bash", {"command": "cat roof.txt"}),
    ("execute_bash", {"command": "head -n 3 ./roof.txt"}),
    ("grep", {"pattern": "red", "path": "roof.txt"}),
    ("glob", {"pattern": "**/roof.txt"}),
    ("find_file", {"name": "roof.txt"}),
    ("edit_file", {"path": "roof.txt", "old": "a", "new": "b"}),
    ("batch_read", {"paths": ["roof.txt"]}),
    ("fetch_url", {"url": "https://example.org/roof.txt"}),
    ("mcp__drive__get", {"document": "roof.txt"}),
    ("lookup", {"query": {"name": "roof.txt"}}),
]
NOTHING = [
    "",
    "[]",
    "null",
    "(no output)",
    "roof.txt: No such file or directory",
    "File not found",
    "No files matched **/roof.txt.",
    "Found 0 results for roof.txt",
    "exit_code: 1\nstdout: \ntruncated: false\nstderr:\ncat: roof.txt: No such file or directory\n",
    "exit_code: 0\nstdout: \ntruncated: false\nstderr:\ncat: roof.txt: No such file or directory\n",
    '{"exit_code": 1, "stdout": "", "stderr": "", "truncated": false, "seconds": 0.01}',
    '{"found": false, "name": "roof.txt"}',
    '{"query": "roof.txt", "results": []}',
    '{"error": "roof.txt is unknown", "status": 404}',
    "=== a.txt ===\nThe door is green.\n\n=== roof.txt ===\n[not read: roof.txt does not exist]",
]
ANSWERS = [
    "The roof is red. [roof.txt:1]",
    "`roof.txt:1` says that the roof is red.",
    NAMED := "The roof is red, as it says in roof.txt.",
    "The roof is red [roof.txt].",
]


@pytest.fixture
def house(tmp_path: Path) -> Files:
    """A workspace without the file that everybody asks for."""
    (tmp_path / "a.txt").write_text("The door is green.\n", encoding="utf-8")
    return Files(tmp_path)


def accused(house: Files, answer: str, *calls: AnsweredCall, goal: str = "What does roof.txt say?") -> bool:
    """Whether the checks say that something in an answer is not there."""
    subject = Subject(answer=answer, goal=goal, calls=calls, ground=house)
    return any(issue.check in ("files_exist", "citations_resolve") for issue in check_answer(subject))


def call(tool: str, args: Args, text: str, *, ok: bool = True, denied: str = "") -> AnsweredCall:
    """A call that was answered so."""
    return AnsweredCall(call="main.1.1", tool=tool, args=args, ok=ok, text=text, denied=denied)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(("tool", "args"), ASKING)
def test_a_call_that_failed_vouches_for_nothing(house: Files, tool: str, args: Args, answer: str) -> None:
    """A call that failed, was denied or has an unknown outcome is no evidence for the file that it asked for,
    whatever kind its tool is of; the goal, which names the file, is none, either.
    """
    if tool == "edit_file" and answer == NAMED:
        pytest.skip("a file that was to be edited, and that the goal names, may be spoken of")
    assert accused(house, answer, call(tool, args, "it went wrong", ok=False))
    assert accused(house, answer, call(tool, args, "no", ok=False, denied="denied by a rule"))
    assert accused(house, answer, call(tool, args, "its outcome is unknown", ok=False))


@pytest.mark.parametrize("text", NOTHING)
@pytest.mark.parametrize(("tool", "args"), [asking for asking in ASKING if asking[0] != "edit_file"])
def test_an_answer_that_nothing_is_there_vouches_for_nothing(
    house: Files, tool: str, args: Args, text: str
) -> None:
    """A call that succeeded and answered nothing, or that nothing is there, is no evidence for the file."""
    assert accused(house, ANSWERS[0], call(tool, args, text))


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize(("tool", "args"), ASKING)
def test_a_call_that_was_answered_vouches(house: Files, tool: str, args: Args, answer: str) -> None:
    """What a call got is evidence, although the file is not in the workspace any more."""
    assert not accused(house, answer, call(tool, args, "roof.txt:1: The roof is red."))


@pytest.mark.parametrize(
    "answer",
    [
        "roof.txt does not exist.",
        "I could not read `roof.txt`, so I cannot tell.",
        "I tried roof.txt:1, but the call failed.",
        "There is no file roof.txt. The colour would be in roof.txt.",
        "Reading roof.txt was denied. Without what is in roof.txt I know nothing.",
        "The call found no text at all [main.1.1].",
    ],
)
def test_an_answer_that_says_so_is_right(house: Files, answer: str) -> None:
    """An answer that tells that the file was not found or not read has no concern."""
    assert not accused(house, answer, call("read_file", {"path": "roof.txt"}, "not found", ok=False))


def test_what_the_goal_speaks_of_is_right(house: Files) -> None:
    """Lines that the goal gives, and a file that it wants, may be named although no call found them."""
    goal = 'Why does it fail? File "roof.py:12", in paint'
    assert not accused(house, "roof.py:12 paints it.", goal=goal)
    refused = call("write_file", {"path": "roof.txt"}, "no", ok=False, denied="denied by a rule")
    assert not accused(house, "The colour belongs in roof.txt.", refused, goal="Write roof.txt")


@pytest.mark.parametrize(
    ("shown", "right"),
    [
        (call("read_file", {"path": "a.txt"}, "gone", ok=False), False),
        (call("bash", {"command": "cat a.txt"}, "no", ok=False, denied="denied by a rule"), False),
        (call("grep", {"pattern": "roof"}, ""), False),
        (call("grep", {"pattern": "roof"}, "no matches"), False),
        (call("grep", {"pattern": "roof"}, "a.txt:1: The roof is red."), True),
    ],
)
def test_a_cited_call_shows_only_what_it_answered(house: Files, shown: AnsweredCall, *, right: bool) -> None:
    """A citation of a call that failed, was denied or found nothing is wrong."""
    assert accused(house, "The roof is red [main.1.1].", shown) is not right


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([call("fetch_url", {"url": "https://example.org/roof"}, "404", ok=False)], False),
        ([call("WebFetch", {"url": "https://example.org/roof/"}, "HTTP 404 Not Found")], False),
        ([call("fetch_url", {"url": "https://example.org/roof"}, "The roof is red.")], True),
        (
            [
                call("fetch_url", {"url": "https://example.org/roof"}, "timed out", ok=False),
                call("web_search", {"query": "roof"}, "Red roofs: https://example.org/roof"),
            ],
            True,
        ),
        ([], True),
    ],
)
def test_a_page_that_could_not_be_read_vouches_for_nothing(
    house: Files, calls: list[AnsweredCall], *, right: bool
) -> None:
    """A page that the run asked for and never got is not what a sentence rests on; of a page that nobody
    asked for nothing is known.
    """
    assert accused(house, "The roof is red (https://example.org/roof).", *calls) is not right


def test_the_mutant_that_believes_arguments_is_caught(house: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a check for which the arguments of a call are evidence, the untrue answer passes."""
    monkeypatch.setattr(places, "answered_for", lambda *_: True)
    assert not accused(house, ANSWERS[0], call("read_file", {"path": "roof.txt"}, "not found", ok=False))


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("read_file", {"path": "roof.txt"}),
        ("bash", {"command": "cat roof.txt; true"}),
        ("bash", {"command": "cat roof.txt 2>/dev/null || true"}),
        ("grep", {"pattern": "red", "path": "roof.txt"}),
        ("glob", {"pattern": "roof.txt"}),
        ("batch_read", {"paths": ["a.txt", "roof.txt"]}),
        ("edit_file", {"path": "roof.txt", "old": "a", "new": "b"}),
        ("no_such_tool", {"path": "roof.txt"}),
    ],
)
def test_a_run_whose_read_failed_has_a_concern(tmp_path: Path, tool: str, args: Args) -> None:
    """In a run, too: the answer that cites what its call did not find has a concern, also when it is checked
    again from the log.
    """
    (tmp_path / "a.txt").write_text("The door is green.\n", encoding="utf-8")
    lab = Lab(tmp_path / "home", env={})
    model = ScriptedModel([[(tool, args)], ANSWERS[0]])
    run = asyncio.run(lab.run("What does roof.txt say?", model=model, workspace=tmp_path, approve="auto"))
    assert [concern["check"] for concern in run.report.concerns] == ["files_exist"]
    lab.close()
