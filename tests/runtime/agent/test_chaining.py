"""Claims about calls that refer to the answers of the calls before them in their turn."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from reference import put_prefix

from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ToolAnswered, ToolCalled
from kestrel_lab.core.expressions.templates import is_chained, with_answers
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.decorator import tool


@tool(danger_level="safe", effect="pure", untrusted=True, reads=("untrusted",), reaches="nothing")
async def page(name: str) -> dict[str, Json]:
    """Read what others wrote."""
    if name == "gone":
        raise OSError("no such page")
    return {"title": name, "links": [f"{name}/1", f"{name}/2"], "text": "long " * 10_000}


@tool(danger_level="low", effect="idempotent", reads=(), reaches="others")
async def send(text: str, to: str = "me") -> str:
    """Send a text to others."""
    return f"sent {len(text)} characters to {to}"


def carried_out(session: Lab, calls: list[tuple[str, dict[str, Json]]], **options: Any) -> Run:
    model = ScriptedModel([calls, "done"])
    given = {"approve": "auto:critical", "approver": ScriptedApprover([True] * 5), **options}
    return asyncio.run(session.run("go", model=model, tools=[page, send], **given))


def args_of(run: Run, name: str) -> list[Mapping[str, Json]]:
    return [event.args for event in run.events() if isinstance(event, ToolCalled) and event.tool == name]


def test_a_call_is_given_what_an_earlier_one_of_its_turn_answered(session: Lab) -> None:
    """As a whole or a part, whatever was cut for the model; what is recorded, and asked about, is the
    value.
    """
    calls: list[tuple[str, dict[str, Json]]] = [
        ("page", {"name": "a"}),
        ("page", {"name": "${previous.content.links[1]}"}),
        ("send", {"text": "${previous.content.text}", "to": "${steps[0].content.title}"}),
    ]
    run = carried_out(session, calls)
    assert run.status is RunStatus.COMPLETE, run.reason
    assert args_of(run, "page") == [{"name": "a"}, {"name": "a/2"}]
    assert args_of(run, "send") == [{"text": "long " * 10_000, "to": "a"}]
    assert [event.text for event in run.events() if isinstance(event, ToolAnswered)][
        -1
    ] == "sent 50000 characters to a"


def test_texts_that_only_look_like_references_stay(session: Lab) -> None:
    """Code, and variables of a shell, may have the same signs."""
    texts: list[Json] = ["const a = `${previous.content}`", "${previous}", "${HOME}", "${steps.content}"]
    assert not is_chained(texts)
    assert with_answers(texts, {}) == texts
    run = carried_out(
        session,
        [("page", {"name": "a"}), ("send", {"text": "echo ${previous.content} x"})],
        containment="off",
    )
    assert args_of(run, "send")[0]["text"] == "echo ${previous.content} x"


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([("send", {"text": "${previous.content}"})], "there is none"),
        ([("page", {"name": "gone"}), ("send", {"text": "${previous.content}"})], "has no 'content'"),
        ([("page", {"name": "a"}), ("send", {"text": "${previous.content.txt}"})], "did you mean 'text'"),
        ([("page", {"name": "a"}), ("send", {"text": "${steps[1].content}"})], "has 1 items"),
    ],
)
def test_a_reference_to_nothing_is_answered_with_what_is_wrong(
    session: Lab, calls: list[tuple[str, dict[str, Json]]], message: str
) -> None:
    """The call is not made, the run goes on."""
    run = carried_out(session, calls)
    assert (run.status, args_of(run, "send")) == (RunStatus.COMPLETE, [])
    answer = next(event for event in run.events() if isinstance(event, ToolAnswered) and event.tool == "send")
    assert answer.error is not None
    assert answer.error["kind"] == "invalid_arguments"
    assert message in answer.text


@pytest.mark.parametrize(("lost", "asked"), [(False, ["send"]), (True, [])])
def test_what_is_put_in_counts_as_read(
    session: Lab, monkeypatch: pytest.MonkeyPatch, *, lost: bool, asked: list[str]
) -> None:
    """The model had read nothing when it wrote the call, its arguments are words of others all the same; a
    taint that forgets that would ask nobody.
    """
    if lost:  # the mutant: the author of the call had read what it had when it was asked

        def forgets(self: Taint, call: Call) -> Any:
            return self._seen.get(call.step) or self._context(call.step)

        monkeypatch.setattr(Taint, "context", forgets)
    run = carried_out(session, [("page", {"name": "a"}), ("send", {"text": "${previous.content.text}"})])
    assert [event.tool for event in run.events() if isinstance(event, ApprovalAsked)] == asked


def test_chained_calls_go_on_from_every_event(session: Lab, tmp_path: Path) -> None:
    """Cut at every event and resumed, each call has the same arguments."""
    calls: list[tuple[str, dict[str, Json]]] = [
        ("page", {"name": "a"}),
        ("page", {"name": "${previous.content.links[0]}"}),
    ]
    reference = carried_out(session, calls)
    records = reference.records()
    ended = next(record.seq for record in records if record.event.type == "run_finished")
    other = Lab(tmp_path / "other", env={}, tools=[page, send])
    for cut in range(1, ended):
        run = asyncio.run(other.resume(put_prefix(other, records, cut), model=ScriptedModel([calls, "done"])))
        made = {str(args) for args in args_of(run, "page")}
        assert (cut, run.status, made) == (cut, RunStatus.COMPLETE, {"{'name': 'a'}", "{'name': 'a/1'}"})
    other.close()


def test_a_reference_before_any_call_is_refused() -> None:
    """Whatever asks for it."""
    with pytest.raises(UsageError, match="there is none"):
        with_answers({"a": ["${previous.content}"]}, {})
