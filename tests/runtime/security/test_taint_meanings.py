"""What each event means for the taint of a run, one by one."""

from typing import Any

import pytest

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    FilesTainted,
    MemoryRecalled,
    ModelCalled,
    PlanExtended,
    PlanProposed,
    RunForked,
    RunStarted,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.messages import Message
from kestrel_lab.runtime.security.taint import Taint, call_label, texts_in

TOOLS: list[Any] = [
    {"name": "page", "reads": ["untrusted"], "reaches": "address"},
    {"name": "file", "reads": ["workspace"], "reaches": "nothing"},
    {"name": "save", "reads": [], "reaches": "workspace"},
    {"name": "own", "reads": ["private"], "reaches": "nothing"},
    {"name": "mine", "reads": ["run"], "reaches": "nothing"},
    {"name": "odd", "reads": ["private"], "reaches": "nothing", "unsaid": ["reads"]},
]
NEWS = "something that nobody has said before"


def after(*events: Event, strict: bool = False) -> Taint:
    """The taint of a run that offers these tools after these events."""
    taint = Taint(strict=strict)
    for event in (RunStarted(goal="look at a.txt", workspace="/w", model="m", tools=TOOLS), *events):
        taint.apply(event)
    return taint


def use(
    tool: str, step: str = "s", *, text: str = NEWS, error: Any = None, **args: Any
) -> tuple[Event, Event]:
    """A call and its answer."""
    call = f"{step}.{tool}"
    return (
        ToolCalled(call=call, step=step, tool=tool, args=args),
        ToolAnswered(call=call, step=step, tool=tool, text=text, error=error),
    )


def read_in(taint: Taint, step: str = "s") -> tuple[str, ...]:
    """What others wrote of which a step knows."""
    return taint.context(Call(id="x", kind="tool", target="t", step=step)).untrusted


def test_answers_taint_by_what_their_tool_reads() -> None:
    """Foreign ones the step, private ones the run; one that failed in our hands says nothing, one of the
    tool's own does.
    """
    page = after(*use("page", url="u"))
    assert (read_in(page), read_in(page, "other"), page.clean) == (("page u",), (), False)
    assert [(one.source, one.private, one.untrusted, one.tool) for one in page.passages] == [
        ("page u", False, True, "page")
    ]
    own = after(*use("own"))
    assert (own.clean, own.context(Call(id="x", kind="tool", target="t")).private) == (True, ("own",))
    assert [(one.private, one.untrusted) for one in own.passages] == [(True, False)]
    saved = after(*use("save", path="b.txt"))
    assert (saved.passages, saved.context(Call(id="x", kind="tool", target="t")).private) == ([], ())
    assert (
        after(*use("page", error={"kind": "denied"})).clean
        and not after(*use("page", error={"kind": "failed"})).clean
    )


def test_a_model_is_judged_by_what_it_had_read_when_it_was_asked() -> None:
    """A call of a macro, whose arguments hold earlier answers, by all that its step has read."""
    taint = after(ModelCalled(call="m", step="s", model="m", cycle=1, messages=1), *use("page"))
    assert read_in(taint) == ()
    assert taint.context(Call(id="s.1/2", kind="tool", target="t", step="s")).untrusted == ("page",)
    taint.apply(ModelCalled(call="m", step="s", model="m", cycle=2, messages=3))
    assert read_in(taint) == ("page",)


def test_files_of_an_old_log_stay_tainted_under_every_spelling() -> None:
    """What was written after a page holds its words, and folders above it; other files do not."""
    taint = after(*use("page"), *use("save", path="./Notes//b.txt"))
    for path, tainted in (
        ("notes/b.txt", True),
        ("/w/notes/b.txt", True),
        ("notes\\b.txt", True),
        ("notes", True),
        (".", True),
        ("", True),
        ("/w", True),
        ("notes/c.txt", False),
        ("note", False),
        ("/x/notes/b.txt", False),
    ):
        step = f"at {path}"
        for event in use("file", step, path=path):
            taint.apply(event)
        assert (path, bool(read_in(taint, step))) == (path, tainted)
    for event in use("file", "many", paths=["a.txt", "notes/b.txt"]):
        taint.apply(event)
    assert read_in(taint, "many") == ("file a.txt: a file written after page",)
    assert after(*use("save", path="b.txt"), *use("file", path="b.txt")).clean
    assert not after(*use("file", path="b.txt"), strict=True).clean


def test_a_call_that_was_looked_at_for_files_is_told_by_them() -> None:
    """What it read counts for it, and what it wrote is told elsewhere."""
    looked = FilesTainted(call="s.save", step="s", read="a page", began=1.0)
    taint = after(*use("page"), looked, *use("save", path="b.txt"), *use("file", "other", path="b.txt"))
    assert "save b.txt: a page" in read_in(taint) and read_in(taint, "other") == ()
    assert read_in(after(FilesTainted(call="", step="z", read="a page", began=1.0)), "z") == ("a page",)


@pytest.mark.parametrize(
    ("answer", "granted", "left", "later"),
    [
        ("yes", True, False, True),
        ("y", True, False, True),
        ("no", True, False, False),
        ("perhaps", True, True, True),
        ("no", False, True, True),
    ],
)
def test_what_a_person_says_of_a_tool_holds_for_its_answers(
    answer: str, granted: bool, left: bool, later: bool
) -> None:
    """A no clears what it answered before and will answer; a yes leaves both and the doubt goes; anything
    else changes nothing.
    """
    from kestrel_lab.runtime.security.tool_declarations import declaration_question

    options = declaration_question("odd", "reads", Call(id="c", kind="tool", target="odd")).args["options"]
    assert isinstance(options, list)
    words = {"no": str(options[0]), "yes": str(options[1])}.get(answer, answer)
    taint = after(*use("odd"))
    (source,) = read_in(taint)
    assert "nobody has said" in source and taint.doubts == {source: "odd"}
    taint.apply(ModelCalled(call="m", step="s", model="m", cycle=1, messages=1))
    taint.apply(
        ApprovalGiven(
            call="c?reads", question="c?reads:odd", granted=granted, by="p", how="click", answer=words
        )
    )
    assert (bool(taint.doubts), ("odd", "reads") in taint.put) == (left, True)
    assert bool(read_in(taint)) == (later or left)
    for event in use("odd", "next", text=f"{NEWS} again"):
        taint.apply(event)
    assert bool(read_in(taint, "next")) == later
    assert bool(taint.doubts) == left
    assert taint.passages[-1].private and taint.passages[-1].untrusted == later


def test_an_answer_that_says_nothing_new_holds_no_words_of_others() -> None:
    """Of a tool of which nobody has said what it reads: what it was told and what the user said is no
    news.
    """
    assert (
        after(*use("odd", text="look at a.txt ok")).clean
        and after(*use("odd", text="x" * 200, told="x" * 200)).clean
    )
    assert not after(*use("odd", text="wholly unheard of sentences")).clean
    assert (
        after(*use("odd", text="abcdefg, hijklmno")).clean
        and not after(*use("odd", text="abcdefg, hijklmnop")).clean
    )  # sixteen letters


def test_taint_goes_with_the_plan() -> None:
    """From who makes something to who consumes it, to operations that wait, to steps that were grown, and to
    those that read all.
    """
    steps: list[Any] = [
        {"id": "a", "produces": ["x"]},
        {"id": "b", "consumes": ["x"]},
        {"id": "c", "depends_on": ["a"]},
        {"id": "d", "operation": "gather", "depends_on": ["a"]},
        {"id": "e", "operation": "verify"},
        {"id": "f", "operation": "plan", "parent": "a"},
        {"id": "g", "consumes": ["y"]},
    ]
    taint = after(
        PlanProposed(plan={"steps": steps}),
        *use("page", "a"),
        PlanExtended(step="a", steps=[{"id": "h", "produces": ["y"]}]),
    )
    for step in "bcdefg":
        taint.apply(StepStarted(step=step, goal="g"))
    assert {step: bool(read_in(taint, step)) for step in "bcdefgh"} == {
        "b": True,
        "c": False,
        "d": True,
        "e": True,
        "f": True,
        "g": True,
        "h": True,
    }
    grown = after(
        PlanProposed(plan={"steps": steps}), PlanExtended(step="b", steps=[{"id": "h"}]), *use("page", "h")
    )
    grown.apply(PlanExtended(step="a", steps=[{"id": "b2"}]))
    assert read_in(grown, "b2") == ()
    mine = after(*use("page", "a"), *use("mine", "b"))
    assert read_in(mine, "b") == ("page",)


def test_notes_are_private_and_foreign_as_their_taint_says() -> None:
    """None that were given taint nothing."""
    taint = after(MemoryRecalled(step="s", notes=[{"id": "n1", "taint": "web_fetch"}, {"id": "n2"}]))
    assert [one.split(" (")[0] for one in read_in(taint)] == ["note n1"]
    assert taint.context(Call(id="x", kind="tool", target="t")).private == ("memory",)
    assert (
        after(MemoryRecalled(step="s", notes=[])).context(Call(id="x", kind="tool", target="t")).private == ()
    )


WANT = {"call": "d", "tool": "send", "args": {"to": "bob"}}


@pytest.mark.parametrize(
    ("how", "allowed", "agreed", "liked", "refused", "closed"),
    [
        ({}, True, 0, [], False, False),
        ({"scope": "same"}, True, 2, [], False, False),
        ({"scope": "run"}, True, 2, ["pay", "send"], False, False),
        ({"granted": False}, False, 0, [], True, False),
        ({"granted": False, "scope": "run"}, False, 0, [], True, True),
        ({"args": {"to": "joe"}}, False, 0, [], False, False),
        ({"how": "policy", "granted": False}, False, 0, [], False, False),
    ],
)
def test_one_answer_is_for_all_contained_calls_of_a_turn(
    how: dict[str, Any], allowed: bool, agreed: int, liked: list[str], refused: bool, closed: bool
) -> None:
    """As far as it says: for these, for the same, for all like them, or for none from here on; edited
    arguments say nothing of others.
    """
    asked = ApprovalAsked(
        call="c",
        step="s",
        tool="pay",
        args={"n": 1},
        danger="HIGH",
        key="k",
        contained={"untrusted": ["p"], "wants": [WANT]},
    )
    taint = after(asked, ApprovalGiven(**{"call": "c", "granted": True, "by": "p", "how": "click", **how}))
    assert (
        taint.allowed_together == {"d": Call(id="d", kind="tool", target="send", args={"to": "bob"}).key}
    ) == allowed
    assert (len(taint.agreed), sorted(taint.liked), taint.refused == {"d"}, taint.closed) == (
        agreed,
        liked,
        refused,
        closed,
    )
    plain = after(
        ApprovalAsked(call="c", step="s", tool="pay", args={}, danger="HIGH", key="k"),
        ApprovalGiven(**{"call": "c", "granted": True, "by": "p", "how": "click", **how}),
    )
    assert (plain.allowed_together, plain.agreed, plain.liked, plain.refused, plain.closed) == (
        {},
        set(),
        {},
        set(),
        False,
    )


def test_the_users_words_are_the_goal_the_plan_and_answers() -> None:
    """Without the punctuation around them; a no is none.

    Addresses that the user named tell nobody anything new.
    """
    taint = after(
        ApprovalGiven(call="q", granted=True, by="p", how="click", answer="See (https://a.example/x).")
    )
    assert {"look", "a.txt", "https://a.example/x"} <= taint.said
    assert "no" not in after(ApprovalGiven(call="q", granted=False, by="p", how="click", answer="no")).said
    assert taint.named_by_user({"url": "https://a.example/x"}) and not taint.named_by_user(
        {"url": "https://a.example/y"}
    )
    assert (
        not taint.named_by_user({"url": "look"})
        and not taint.named_by_user({})
        and not taint.named_by_user({"url": ""})
    )
    assert not taint.named_by_user({"url": "https://a.example/x", "body": "secret"})


def test_a_run_that_follows_takes_the_taint_along() -> None:
    """Sources, doubts, what is private, the user's words, and of the messages that are shown what is known of
    each.
    """
    first = after(*use("page"), *use("own", text="mine"), *use("odd", text=f"{NEWS}!"))
    shown = [
        Message(role="tool", text="mine", call_id="s.own"),
        Message(role="tool", text="else", call_id="z"),
        Message(role="user", text="mine"),
    ]
    kept: dict[str, Any] = first.carried(shown)
    assert (kept["private"], kept["words"], list(kept["sources"])) == (
        ["own", "odd"],
        ["look at a.txt"],
        ["s.own"],
    )
    assert len(kept["untrusted"]) == 2 and list(kept["doubts"].values()) == ["odd"]
    bodies: list[Any] = [{"role": "tool", "text": "mine", "call_id": "s.own"}]
    plan: dict[str, Any] = {"steps": [{"id": "only", "goal": "g"}]}
    second = Taint()
    second.apply(
        RunStarted(
            goal="and now",
            workspace="/w",
            model="m",
            tools=TOOLS,
            plan=plan,
            earlier={**kept, "messages": bodies},
        )
    )
    assert [(one.source, one.text, one.private) for one in second.passages] == [("own", "mine", True)]
    assert (second.clean, second.doubts) == (False, kept["doubts"]) and {"look", "now"} <= second.said
    assert second.carried([])["sources"] == kept["sources"]


def test_a_fork_has_the_tools_that_it_is_given() -> None:
    """Their flows take the place of the parent's."""
    quiet: list[Any] = [{"name": "page", "reads": [], "reaches": "nothing"}]
    assert after(RunForked(parent="r", at=1, model="m", tools=quiet), *use("page")).clean


def test_texts_have_places() -> None:
    """Also keys that a model chose, and numbers long enough to tell something."""
    value: Any = {"a": ["x", {"k": 12345, "l": 123, "m": True}], "b": None}
    assert list(texts_in(value)) == [
        ("a[0]", "x"),
        ("a[1].k (its name)", "k"),
        ("a[1].k", "12345"),
        ("a[1].l (its name)", "l"),
        ("a[1].m (its name)", "m"),
    ]
    assert (call_label("t", {"n": 1, "x": " ", "y": "text"}), call_label("t", {})) == ("t text", "t")
