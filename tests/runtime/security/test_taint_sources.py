"""Where words of others come from and how far they go: each way of taint between the steps of a run, with its
counterpart that taints nobody.
"""

from typing import Any

import pytest

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import (
    Event,
    FilesTainted,
    ModelAnswered,
    ModelCalled,
    PlanProposed,
    RunStarted,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.runtime.security.authority import open_stated_calls
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.tools.interaction import STATE_EFFECTS

TOOLS: list[Any] = [
    {"name": "page", "reads": ["untrusted"], "reaches": "address"},
    {"name": "file", "reads": ["workspace"], "reaches": "nothing"},
    {"name": "shell", "reads": ["workspace"], "reaches": "workspace"},
    {"name": "post", "reads": [], "reaches": "anything"},
    {"name": "add", "reads": [], "reaches": "nothing"},
    {"name": "contacts", "reads": ["private", "untrusted"], "reaches": "nothing", "own": ["mail", "name"]},
    {"name": STATE_EFFECTS, "reads": [], "reaches": "nothing"},
]
PAGE = {"url": "https://a.example"}


def after(*events: Event, strict: bool = False, **started: Any) -> Taint:
    """The taint of a run that offers these tools after these events."""
    taint = Taint(strict=strict)
    for event in (RunStarted(goal="go", workspace="/w", model="m", tools=TOOLS, **started), *events):
        taint.apply(event)
    return taint


def use(
    tool: str, step: str = "s", *, text: str = "text", value: Any = None, sandbox: str = "", **args: Any
) -> tuple[Event, Event]:
    """A call and its answer."""
    call = f"{step}.{tool}"
    made = ToolCalled(call=call, step=step, tool=tool, args=args, sandbox=sandbox)
    return made, ToolAnswered(call=call, step=step, tool=tool, text=text, value=value)


def read_in(taint: Taint, step: str = "s", call: str = "x") -> tuple[str, ...]:
    """What others wrote of which the author of a call in this step knows."""
    return taint.context(Call(id=call, kind="tool", target="t", step=step)).untrusted


@pytest.mark.parametrize(
    ("tool", "sandbox", "tainted"),
    [
        ("post", "", True),
        ("shell", "S2", True),
        ("shell", "S0", True),
        ("add", "", False),
        ("file", "", False),
        ("page", "", False),
    ],
)
def test_who_may_have_written_anywhere_taints_all_files(tool: str, sandbox: str, tainted: bool) -> None:
    """After a page, a call that reaches files without naming one may have put its words into any; one that
    reaches none cannot.
    """
    before, at_work = use("page", "a", **PAGE), use(tool, "a", sandbox=sandbox)
    for step in ("b", "c"):
        found = read_in(after(*before, *at_work, *use("file", step, path="x.txt")), step)
        assert bool(found) == tainted and (not tainted or f"files that {tool} may have written" in found[0])
    assert not read_in(after(*at_work, *use("file", "b", path="x.txt")), "b") or sandbox == "S0"


def test_a_command_outside_of_a_sandbox_reads_what_others_wrote() -> None:
    """With a network it may fetch anything; in a sandbox it reads the workspace, which nobody else wrote
    in.
    """
    assert read_in(after(*use("shell", sandbox="S0"))) == ("shell",)
    assert read_in(after(*use("shell", sandbox="S2"))) == ()
    assert read_in(after(*use("shell", sandbox="S2"), strict=True)) == ("shell",)


def test_a_sub_agent_gives_and_takes() -> None:
    """It begins with what its parent had read, its answer carries what it has read itself, and a clean one
    brings nothing.
    """
    begun = StepStarted(step="s/1", goal="g", parent="s", call="s.delegate")
    answered = ToolAnswered(call="s.delegate", step="s", tool="delegate", text="its words")
    asked = ToolCalled(call="s.delegate", step="s", tool="delegate", args={"goal": "look"})
    given = after(*use("page", **PAGE), asked, begun)
    assert read_in(given, "s/1") == ("page https://a.example",)
    taken = after(asked, begun, *use("page", "s/1", **PAGE), answered)
    assert read_in(taken)[0] == "page https://a.example"
    assert [(one.source, one.text, one.untrusted, one.private) for one in taken.passages][1] == (
        "delegate look after page https://a.example",
        "its words",
        True,
        False,
    )
    tools = [*TOOLS, {"name": "delegate", "reads": [], "reaches": "nothing"}]
    assert after(
        RunStarted(goal="go", workspace="/w", model="m", tools=tools),
        asked,
        begun,
        *use("add", "s/1"),
        answered,
    ).clean


@pytest.mark.parametrize(
    ("told", "tainted"),
    [
        ({"a": "${previous.content}"}, True),
        ({"a": [{"b": "${steps[0].content[1]}"}]}, True),
        ({"a": "x"}, False),
    ],
)
def test_a_call_that_refers_to_an_answer_knows_what_it_says(told: dict[str, Any], tainted: bool) -> None:
    """Its model had not read the answer when it wrote the call; the arguments hold it all the same."""
    calls: list[Any] = [{"id": "c1", "name": "post", "args": told}]
    taint = after(
        ModelCalled(call="m", step="s", model="m", cycle=1, messages=1),
        ModelAnswered(call="m", step="s", model="m", calls=calls),
        *use("page", **PAGE),
    )
    assert bool(read_in(taint, call="c1")) == tainted
    assert not read_in(taint, call="c2")


def test_an_answer_that_nothing_was_run_for_is_named_by_what_was_asked() -> None:
    """One that was kept from an earlier call, for example: the source names the call as the model wrote
    it.
    """
    calls: list[Any] = [{"id": "s.page", "name": "page", "args": PAGE}]
    told = ToolAnswered(call="s.page", step="s", tool="page", text="text")
    assert read_in(after(ModelAnswered(call="m", step="s", model="m", calls=calls), told)) == (
        "page https://a.example",
    )


def test_what_is_stated_before_anything_foreign_was_read_counts() -> None:
    """So many calls of each tool and their values; stated later it is worth nothing, and what was made is not
    left to do.
    """
    effects = [
        {"tool": "post", "times": 2, "arguments": {"to": ["bob", "ann"]}},
        {"tool": "add", "arguments": {"n": 5, "on": True}},
    ]
    stated = after(*use(STATE_EFFECTS, effects=effects))
    assert (stated.stated, stated.stated_values) == (
        {"post": 2, "add": 1},
        {"post": ["bob", "ann"], "add": [5]},
    )
    for event in use("post"):
        stated.apply(event)
    assert open_stated_calls(stated) == {"post": 1, "add": 1}
    for event in use("post", "t"):
        stated.apply(event)
    assert open_stated_calls(stated) == {"add": 1}
    assert after(*use("page", **PAGE), *use(STATE_EFFECTS, effects=effects)).stated == {}
    assert after(*use("add", effects=effects)).stated == {}


GUIDANCE: list[Any] = [
    {"path": "AGENTS.md", "at": [0, 3]},
    {"path": "sub/AGENTS.md", "at": [3, 6], "tainted": "a page"},
    {"path": "mine.md", "at": [6, 9], "own": True},
    {"path": "odd.md", "problem": "too long"},
]


def test_guidance_is_a_file_that_every_agent_has_read() -> None:
    """Of the workspace it is private and tainted as its file is, with `strict` in any case; the user's own is
    neither. A tool's step reads none.
    """
    plan: Any = {"steps": [{"id": "a", "goal": "g"}, {"id": "t", "tool": "add"}]}
    taint = after(system="onetwosix", guidance=GUIDANCE, plan=plan)
    assert [(one.text, one.private, one.untrusted) for one in taint.passages] == [
        ("one", True, False),
        ("two", True, True),
    ]
    assert (read_in(taint, "a"), read_in(taint, "t")) == (("sub/AGENTS.md in the prompt: a page",), ())
    assert taint.context(Call(id="x", kind="tool", target="t")).private == (
        "AGENTS.md in the prompt",
        "sub/AGENTS.md in the prompt: a page",
    )
    assert len(read_in(after(system="onetwosix", guidance=GUIDANCE, plan=plan, strict=True), "a")) == 2


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ([{"mail": "b@x.example", "name": "Bob", "note": "n"}], [{"mail": "b@x.example", "name": "Bob"}]),
        ({"mail": "b@x.example", "note": "n"}, [{"mail": "b@x.example", "name": None}]),
        (["b@x.example", None, 3], []),
        ("b@x.example", []),
    ],
)
def test_fields_that_others_cannot_write_are_kept_by_object(value: Any, kept: list[Any]) -> None:
    """Of one object or of several, and nothing of an answer that has none."""
    assert after(*use("contacts", value=value)).rows == {("mail", "name"): kept}
    assert after(*use("page", value=value)).rows == {}


def test_files_of_one_call_count_for_the_calls_that_ran_beside_it() -> None:
    """What is found at the end of several is told once; of the others it is known that nothing else is to
    come.
    """
    found = FilesTainted(call="a.shell", step="a", read="a page", began=1.0, also=["b.shell"])
    taint = after(
        *use("page", "b", **PAGE),
        found,
        *use("shell", "a"),
        *use("shell", "b", path="x.txt"),
        *use("file", "c", path="x.txt"),
    )
    assert (read_in(taint, "a"), read_in(taint, "c")) == (("shell: a page",), ())


def test_taint_flows_within_a_scope() -> None:
    """Equal names of artifacts in different parts of a workflow are different artifacts."""
    steps: list[Any] = [
        {"id": "a", "produces": ["x"], "scope": "one"},
        {"id": "b", "consumes": ["x"], "scope": "one"},
        {"id": "c", "consumes": ["x"], "scope": "two"},
        {"id": "d", "consumes": ["x"], "produces": ["x"], "scope": "two"},
    ]
    taint = after(
        PlanProposed(plan={"steps": steps}),
        *use("page", "a", **PAGE),
        *(StepStarted(step=name) for name in "bcd"),
    )
    assert {name: bool(read_in(taint, name)) for name in "bcd"} == {"b": True, "c": False, "d": False}
