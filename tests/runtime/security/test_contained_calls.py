"""Which calls containment asks about, call by call: by what was read, what the call reaches, and whose values
it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.permissions.policy import Ruling
from kestrel_lab.runtime.security import authority
from kestrel_lab.runtime.security.containment import (
    TaintLog,
    contained_flows,
    read_mode,
    sends_arguments,
    undeclared_questions,
)
from kestrel_lab.runtime.security.taint import Taint
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.interaction import STATE_EFFECTS
from kestrel_lab.tools.sandbox.levels import Level
from kestrel_lab.tools.tool import Tool

GOAL = "Pay 1,250.50 to ann@firm.org and read https://firm.org/news on May 14th 2024"
FLOWS: list[Any] = [
    {"name": "page", "reads": ["untrusted"], "reaches": "address"},
    {"name": "notes", "reads": ["private"], "reaches": "nothing"},
    {"name": "people", "reads": ["untrusted"], "reaches": "nothing", "own": ["name", "mail", "number"]},
    {
        "name": "letters",
        "reads": ["private", "untrusted"],
        "reaches": "anything",
        "unsaid": ["reads", "reaches"],
    },
    {"name": STATE_EFFECTS, "reads": [], "reaches": "nothing"},
]


@tool(reads="", reaches="others", content="text")
def send(to: str, text: str = "hello", copies: int = 1) -> str:
    """Send a text."""
    return to + text * copies


@tool(reads="", reaches="address")
def visit(url: str) -> str:
    """Visit an address."""
    return url


@tool(reads="", reaches="workspace")
def save(path: str) -> str:
    """Save a file."""
    return path


@tool(reads="", reaches="nothing")
def count(of: str) -> str:
    """Count letters."""
    return of


@tool
def letters() -> str:
    """Read the letters."""
    return ""


@tool(reads="", reaches="others")
def draft(to: str, body: Annotated[str, Field(json_schema_extra={"contentMediaType": "text/plain"})]) -> str:
    """Draft a mail."""
    return to + body


ASK = replace(count, name="ask", asks=True)
PAGE: tuple[str, dict[str, Any]] = ("page", {"url": "https://else.example"})
NOTES: tuple[str, dict[str, Any]] = ("notes", {})


def call(made: Tool, /, sandbox: str = "", **args: Any) -> Call:
    """A call that the model makes now."""
    return Call(id="s.9", kind="tool", target=made.name, args=args, step="s", sandbox=sandbox)


def read(
    *uses: tuple[str, dict[str, Any]],
    goal: str = GOAL,
    text: str = "Something else.",
    value: Any = None,
    strict: bool = False,
) -> Taint:
    """The taint of a run that has made these calls."""
    taint = Taint(strict=strict)
    taint.apply(RunStarted(goal=goal, workspace="/w", model="m", tools=FLOWS))
    for number, (name, args) in enumerate(uses):
        taint.apply(ToolCalled(call=f"s.{number}", step="s", tool=name, args=args))
        taint.apply(ToolAnswered(call=f"s.{number}", step="s", tool=name, text=text, value=value))
    return taint


def found(
    taint: Taint,
    one: Call,
    of: Tool,
    root: Path = Path(__file__).parent,
    carried: Sequence[str] = (),
    **how: Any,
) -> list[Any]:
    """What met in a call, as private sources and effect; empty where nobody need be asked."""
    log = TaintLog(tuple, taint)
    told = contained_flows(one, of, log, Workspace(root), carried, **how)
    return [told["private"], str(told["effect"])[:12]] if told else []


@pytest.mark.parametrize(
    ("uses", "of", "args", "carried", "wanted"),
    [
        ((), send, {"to": "eve"}, (), []),
        ((NOTES,), send, {"to": "eve"}, (), []),
        ((PAGE,), send, {"to": "eve"}, (), [["what it may do in your name"], "it sends som"]),
        ((NOTES, PAGE), send, {"to": "eve"}, (), [["notes", "what it may do in your name"], "it sends som"]),
        ((PAGE,), visit, {"url": "https://else.example"}, (), []),
        ((NOTES, PAGE), visit, {"url": "https://else.example"}, (), [["notes"], "it asks an a"]),
        ((NOTES, PAGE), visit, {"url": "https://firm.org/news"}, (), []),
        ((NOTES, PAGE), count, {"of": "secret"}, ("notes",), []),
        ((NOTES, PAGE), ASK, {"of": "secret"}, ("notes",), [["notes"], "it tells a s"]),
        ((NOTES, PAGE), ASK, {"of": "weather"}, (), []),
        ((NOTES,), ASK, {"of": "secret"}, ("notes",), []),
    ],
)
def test_what_a_call_is_asked_about(
    uses: Any, of: Tool, args: dict[str, Any], carried: Sequence[str], wanted: list[Any]
) -> None:
    """Untrusted text, something private and an effect must meet; of a question to a service what it carries
    is what counts.
    """
    assert found(read(*uses), call(of, **args), of, carried=carried) == wanted


@pytest.mark.parametrize(
    ("text", "asked"), [("secret", True), ("pay ANN@firm.org", False), ("Pay secret", True)]
)
def test_strict_asks_about_all_but_the_users_words(text: str, asked: bool) -> None:
    """A model can say what it read in words of its own, so under `strict` a question may have the user's
    words only.
    """
    assert bool(found(read(NOTES, PAGE, strict=True), call(ASK, of=text), ASK)) is asked


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("new.md", False),
        ("docs/new.csv", False),
        ("NEW.TXT", False),
        ("there.md", True),
        ("link.md", True),
        ("new.py", True),
        ("Makefile", True),
        ("README.md", True),
        ("agents.md", True),
        ("requirements-dev.txt", True),
        (".hidden/new.md", True),
        (".new.md", True),
        ("../out.md", True),
        (3, True),
    ],
)
def test_only_a_new_plain_file_is_written_unasked(path: Any, asked: bool, tmp_path: Path) -> None:
    """One that is not there, within the workspace, that nothing executes and no program or agent acts on."""
    (tmp_path / "there.md").write_text("mine")
    (tmp_path / "link.md").symlink_to("nowhere")
    told = found(read(PAGE), call(save, path=path), save, tmp_path)
    assert told == ([["the files that are there"], "it changes f"] if asked else [])
    if (
        not asked
    ):  # with something private in mind a new file is asked about, too; so is whatever starts commands
        assert found(read(NOTES, PAGE), call(save, path=path), save, tmp_path)[0] == ["notes"]
        assert found(read(PAGE), call(save, path=path), replace(save, sandbox=Level.S1), tmp_path) != []


def test_a_question_names_five_sources_at_most() -> None:
    """Of more than five the first four, and how many are left; each once."""
    for number, shown in ((4, 5), (5, 5), (6, 5)):  # the last is what the call may do in the user's name
        private = found(
            read(*(("notes", {"of": f"n{one}"}) for one in range(number)), *[("notes", {"of": "n0"})], PAGE),
            call(send),
            send,
        )[0]
        assert len(private) == shown and (private[-1] == f"and {number - 3} more") is (number > 4)


def test_one_undeclared_tool_alone_has_not_met_anything() -> None:
    """It may be called again; another one, or after something else was read, it is asked about, with the
    questions that would decide.
    """
    alone, both = read(("letters", {})), read(("letters", {}), PAGE)
    assert found(alone, call(letters), letters) == []
    assert found(both, call(letters), letters)[1] == "nobody has s"
    assert found(alone, call(send, to="eve"), send) != []
    assert undeclared_questions(call(letters), letters, TaintLog(tuple, both)) == [("letters", "reaches")]
    assert undeclared_questions(call(letters), letters, TaintLog(tuple, alone)) == [
        ("letters", "reaches"),
        ("letters", "reads"),
    ]
    assert undeclared_questions(call(send), send, TaintLog(tuple, alone)) == [("letters", "reads")]
    alone.put.add(("letters", "reads"))
    assert undeclared_questions(call(send), send, TaintLog(tuple, alone)) == []


@pytest.mark.parametrize(("said", "asked"), [(True, "it sends som"), (False, "it can reach")])
def test_what_a_person_said_of_a_tool_counts(said: bool, asked: str) -> None:
    """A tool that reaches others is one that sends; what it starts stays as its definition has it."""
    taint = read(PAGE)
    taint.said_of["letters", "reaches"] = said
    of = replace(letters, reaches="anything")
    assert found(taint, call(of), of)[1] == asked


@pytest.mark.parametrize(
    ("of", "sandbox", "sends"),
    [
        (visit, "", True),
        (ASK, "", True),
        (count, "", False),
        (send, "", False),
        (replace(save, asks=True), "", False),
        (ASK, "S0", False),
    ],
)
def test_whose_arguments_tell_somebody_what_is_asked(of: Tool, sandbox: str, sends: bool) -> None:
    """A visit and a question to a service do; what reaches further is contained for what it does."""
    assert sends_arguments(call(of, sandbox=sandbox), of) is sends


@pytest.mark.parametrize(
    ("text", "mode"), [(" ON ", "on"), ("true", "on"), ("False", "off"), ("strict", "strict")]
)
def test_a_mode_has_usual_spellings(text: str, mode: str) -> None:
    """As settings, variables and arguments write it."""
    assert read_mode(text) == mode


def test_events_are_sought_for_orders_without_a_fold() -> None:
    """Answers of tools are looked at, and guidance or an earlier conversation counts as holding some;
    afterwards the passages are.
    """
    start = RunStarted(goal="DO", workspace="/w", model="m", tools=FLOWS)
    called, answered = (
        ToolCalled(call="c", step="s", tool="page", args={}),
        ToolAnswered(call="c", step="s", tool="page", text="DO it"),
    )

    def holds(*events: Event, later: Sequence[Event] = (), folded: bool = False) -> bool:
        log = TaintLog(lambda: events, Taint())
        for event in later:
            log.take(event)
        if folded:
            log.now()
        return log.answers_hold(lambda text: "DO" in text)

    for folded in (False, True):
        assert not holds(start, folded=folded) and not holds(
            start, called, replace_text(answered, "quiet"), folded=folded
        )
        assert holds(start, called, answered, folded=folded) and holds(
            start, later=(called, answered), folded=folded
        )
    guidance: Any = [{"path": "AGENTS.md", "at": [0, 1]}]
    assert holds(RunStarted(goal="g", workspace="/w", model="m", guidance=guidance))
    assert holds(RunStarted(goal="g", workspace="/w", model="m", earlier={"messages": []}))


def replace_text(event: ToolAnswered, text: str) -> ToolAnswered:
    """The same answer with another text."""
    return ToolAnswered(call=event.call, step=event.step, tool=event.tool, text=text)


# Authority: whose values a call has.


@pytest.mark.parametrize(
    ("value", "words", "said"),
    [
        ("ann@firm.org", GOAL, True),
        ("ANN@FIRM.ORG", GOAL, True),
        ("nn@firm.org", GOAL, False),
        ("https://firm.org/news/", GOAL, True),
        ("firm.org/news", GOAL, True),
        ("firm.org", GOAL, False),
        (1250.5, GOAL, True),
        (1250, GOAL, False),
        (50, GOAL, False),
        (14, GOAL, False),
        (3, "Take 3, or 40.", True),
        (40, "Take 3, or 40.", True),
        ("or", "this or that", False),
        ("tea", "Buy tea now.", True),
        ("2024", "In 2024.", False),
        ("the  board\nroom", "In the board room, please.", True),
        ("GB29NWBK60161331926819", "to GB29 NWBK 6016 1331 9268 19 today", True),
        ("2024-05-14", GOAL, True),
        ("2024-05-04", "on May 4th 2024", True),
        ("2024-05-14", "on 14 May", True),
        ("2024-05-14", "on the 14th of may", True),
        ("2024-05-14", "on 14 Mayor Street", False),
        ("2024-05-14", "on May 14th 2023", False),
        ("2024-05-14", "on May 14th 2023 and 2024", True),
        ("2024-12-14", "on Dec. 14", True),
        ("2024-14-14", "on January 14th 2024", False),
        ("2024-00-14", "on May 14th 2024", False),
        ("2024-05-00", "on May 0 2024", False),
        ("2024-05-14 09:30", "on 2024-05-14", True),
        ("2024-05-14 09:30", "on 2024-05-14 at 9:30", True),
        ("2024-05-14T09:30:00", "on 2024-05-14 at 10:30", False),
        ("2024-05-14", "on 2024-05-14 at 10:30", True),
    ],
)
def test_what_the_user_said(value: Any, words: str, said: bool) -> None:
    """Whole words, numbers as numbers, and days and hours in a usual spelling; what is too short to tell
    anything is nobody's.
    """
    assert authority.is_from_user(value, ["Hello.", words]) is said
    assert not authority.is_from_user(value, ["Hello."]) and not authority.is_from_user(value, [])


def test_the_addresses_in_a_text() -> None:
    """Of mail, of the web and hosts, in lower case, without the punctuation around them."""
    text = "(Eve@Evil.org), <https://x.example/a?b>; see www.site.net. Version 3.2 and e.g. nothing"
    assert authority.addresses_in(text) == ["eve@evil.org", "https://x.example/a?b", "www.site.net"]


def test_values_that_bear_authority() -> None:
    """Texts and numbers at any depth; not keys, nor nothing, yes and no.

    Content and what was left at its default bear none.
    """
    assert list(authority.values_of({"a": ["x", {"b": 3}], "c": None, "d": True, "e": "", "f": 0})) == [
        "x",
        3,
        0,
    ]
    assert authority.authority_arguments(call(send, to="a", text="b", copies=1), send) == {"to": "a"}
    assert authority.authority_arguments(call(send, to="a", copies=2), send) == {"to": "a", "copies": 2}
    assert authority.authority_arguments(call(save, path="b"), save) == {"path": "b"}
    assert authority.content_arguments(draft) == {"body"} and authority.content_arguments(send) == {"text"}


def test_what_was_stated_and_is_left() -> None:
    """By tool, what was stated less what was made; entries without a number count once."""
    told: dict[str, Any] = {
        "effects": [
            {"tool": "send", "times": 2, "arguments": {"to": "x"}},
            {"tool": "save"},
            {"tool": "visit", "times": 1},
        ]
    }
    assert list(authority.stated_effects(told)) == [("send", 2, ["x"]), ("save", 1, []), ("visit", 1, [])]
    assert list(authority.stated_effects({})) == []
    taint = read((STATE_EFFECTS, told), ("visit", {"url": "u"}))
    assert authority.open_stated_calls(taint) == {"send": 2, "save": 1}


ALLOW = Ruling("allow", "rule 1", "allow send", args=frozenset())


@pytest.mark.parametrize(
    ("ruling", "args", "passes"),
    [
        (ALLOW, {"to": "ann@firm.org"}, True),
        (ALLOW, {"to": "eve@evil.org"}, False),
        (replace(ALLOW, args=frozenset({"to"})), {"to": "eve@evil.org"}, True),
        (replace(ALLOW, args=frozenset({"to"})), {"to": "eve@evil.org", "text": "see www.evil.org"}, False),
        (replace(ALLOW, verdict="ask"), {"to": "ann@firm.org"}, False),
        (None, {"to": "ann@firm.org"}, False),
        (ALLOW, {"to": "ann@firm.org", "copies": 7}, False),
        (ALLOW, {"to": "ann@firm.org", "text": "Code 4711-XY, please"}, False),
        (ALLOW, {"to": "ann@firm.org", "text": "Nothing of it"}, True),
    ],
)
def test_a_rule_lets_the_users_values_pass_once(
    ruling: Ruling | None, args: dict[str, Any], passes: bool
) -> None:
    """With values of the user or of the rule, and no address or telling word of what was read in its text;
    the same call again is asked about.
    """
    taint, one = read(PAGE, text="Use code 4711-XY."), call(send, **args)
    assert authority.is_authorised(one, send, taint, ruling) is passes
    assert (
        authority.is_authorised(one, send, taint, ruling) is passes
    )  # the very same call: asked about twice, made once
    assert not authority.is_authorised(replace(one, id="s.10"), send, taint, ruling)


def test_an_object_that_the_user_names_gives_its_fields() -> None:
    """Its texts fit any argument and its numbers those of their name; not where two that are named differ, or
    it is named by a day.
    """
    ann = {"name": "Ann Lee", "mail": "ann@lee.org", "number": 7}
    bob = {"name": "Bob Roe", "mail": "bob@roe.org", "number": 8}

    def passes(goal: str, **args: Any) -> bool:
        return authority.is_authorised(
            call(send, **args), send, read(("people", {}), goal=goal, value=[ann, bob, "x"]), ALLOW
        )

    assert passes("Write to Ann Lee", to="ann@lee.org") and not passes("Write to Ann Lee", to="bob@roe.org")
    assert not passes("Write to Ann Lee and Bob Roe", to="ann@lee.org")
    assert not passes("Write to Ann", to="ann@lee.org") and not passes(
        "Write to Ann Lee", to="ann@lee.org", copies=7
    )
    assert not passes("Write to nobody", to="ann@lee.org")


def liked(taint: Taint, of: Tool, **args: Any) -> None:
    """A person allows all calls like this one."""
    asked = ApprovalAsked(
        call="q", step="s", tool=of.name, args=args, danger="HIGH", key="k", contained={"effect": "it sends"}
    )
    taint.apply(asked)
    taint.apply(ApprovalGiven(call="q", granted=True, by="ann", how="click", scope="run"))


def test_like_an_allowed_call_is_what_has_its_values_from_the_same_place() -> None:
    """The same field of an object, the value itself, the user's; for a call that reads also an address of the
    same text.
    """
    rows = [
        {"name": "Ann Lee", "mail": "ann@lee.org", "number": 1},
        {"name": "Bob Roe", "mail": "bob@roe.org", "number": 2},
    ]
    taint = read(
        ("people", {}), goal="Go, sue@firm.org.", text="Read a.example/1 and a.example/2", value=rows
    )
    liked(taint, send, to="ann@lee.org", text="Hi")
    liked(taint, visit, url="a.example/1")
    like = {
        name: authority.is_like_allowed(call(send, to=name), send, taint)
        for name in ("ann@lee.org", "bob@roe.org", "sue@firm.org", "Bob Roe", "eve@evil.org")
    }
    assert like == {
        "ann@lee.org": True,
        "bob@roe.org": True,
        "sue@firm.org": True,
        "Bob Roe": False,
        "eve@evil.org": False,
    }
    assert not authority.is_like_allowed(call(send, to="bob@roe.org", text="at www.evil.org"), send, taint)
    assert not authority.is_like_allowed(call(send, to="bob@roe.org", copies=2), send, taint)
    assert not authority.is_like_allowed(call(save, path="ann@lee.org"), save, taint)
    for reads in (False, True):
        assert authority.is_like_allowed(call(visit, url="a.example/2"), visit, taint, reads=reads) is reads
        assert not authority.is_like_allowed(call(visit, url="b.example"), visit, taint, reads=reads)
    assert found(taint, call(visit, url="a.example/2"), visit) == []
