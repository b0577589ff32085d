"""Who decides on a call: tables of policies, rules in any order, and leave that was given before, each
against its definition.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.permissions.command_patterns import CommandPattern, offered_pattern, pattern_covers
from kestrel_lab.permissions.policy import Policy, Ruling
from kestrel_lab.permissions.rulebook import Rulebook, read_rulebook
from kestrel_lab.runtime.approvals.scope import decision_applies, decision_binding, is_allowed_for_run
from kestrel_lab.shell_syntax.parser import read_line
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Toolbox

LEVELS = tuple(Danger)


def bash(command: Any = "git status", **more: Any) -> Call:
    """A call of the shell."""
    return Call(id="c", kind="tool", target="bash", args={"command": command}, danger=Danger.HIGH, **more)


# Policies

TABLE = {
    "ask": (Danger.LOW, "ask", False),
    " ASK ": (Danger.LOW, "ask", False),
    "deny": (Danger.LOW, "deny", True),
    "auto": (Danger.HIGH, "ask", True),
    "Auto:medium": (Danger.MEDIUM, "ask", True),
    "auto:critical": (Danger.CRITICAL, "ask", True),
    "auto:safe": (Danger.SAFE, "ask", True),
}


@pytest.mark.parametrize("text", TABLE)
def test_a_policy_is_its_table(text: str) -> None:
    """Up to its level calls go on, beyond it they get its other verdict; code in the user's kernel always
    does.
    """
    level, otherwise, unattended = TABLE[text]
    policy = Policy.parse(text)
    assert (policy.unattended, policy.text) == (unattended, text)
    for danger in LEVELS:
        one = Call(id="c", kind="tool", target="t", danger=danger)
        assert policy.ruling(one) == Ruling(
            "allow" if danger <= level else otherwise,
            f"policy {text}",
            f"the approval policy is {text!r}",
            "policy",
        )
        assert (
            policy.verdict(
                Call(id="c", kind="tool", target="t", danger=danger, sandbox="kernel of the notebook")
            )
            == otherwise
        )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("atuo", "did you mean 'auto'"),
        ("ask:low", "only auto takes a level"),
        ("auto:hihg", "'HIGH'"),
        ("", "unknown"),
    ],
)
def test_a_policy_that_is_none_is_refused(text: str, told: str) -> None:
    """With what would be right."""
    with pytest.raises(UsageError, match=told):
        Policy.parse(text)


@pytest.mark.parametrize("text", ["ask", "auto", "deny"])
@pytest.mark.parametrize("verdict", ["allow", "ask", "deny"])
def test_a_rule_comes_before_the_level(text: str, verdict: Any) -> None:
    """Whatever the danger; only what it wants to be asked about is refused where nobody is asked."""
    ruling = Ruling(verdict, "rule 1", "because")
    policy = Policy(
        **{name: getattr(Policy.parse(text), name) for name in ("allow", "otherwise", "text")},
        rules=lambda _: ruling,
    )
    for danger in LEVELS:
        found = policy.ruling(Call(id="c", kind="tool", target="t", danger=danger))
        if (text, verdict) == ("deny", "ask"):
            assert (found.verdict, found.by, found.how) == ("deny", "rule 1", "rule")
            assert "because; and the approval policy is 'deny'" in found.why
        else:
            assert found == ruling


# Rules

TOOLS = ("bash", "b*", "?ash", "*", "write_file")
COMMANDS = (None, "git status", "git ...", "ls ...", "rm ...")
LINES = ("git status", "git status; ls", "rm -rf x", "ls | rm x", "git $x", "$x status", "ls; $x", "(")


def clear(line: str) -> list[list[str]] | None:
    """The commands of these lines; `None` where not all can be told."""
    known = {
        "git status": [["git", "status"]],
        "git status; ls": [["git", "status"], ["ls"]],
        "rm -rf x": [["rm", "-rf", "x"]],
    }
    return {**known, "ls | rm x": [["ls"], ["rm", "x"]]}.get(line)


def stands_for(pattern: str, words: list[str]) -> bool:
    """Whether the pattern describes exactly this command."""
    head, _, more = pattern.partition(" ")
    return words[0] == head and (more == "..." or words[1:] == more.split())


rules = st.lists(
    st.tuples(st.sampled_from(TOOLS), st.sampled_from(["allow", "ask", "deny"]), st.sampled_from(COMMANDS)),
    max_size=5,
)


@settings(max_examples=150)
@given(rules, st.sampled_from(LINES))
def test_the_strictest_rule_that_is_surely_or_maybe_about_it_stands(
    given_rules: list[tuple[str, str, str | None]], line: str
) -> None:
    """Denying, then asking, then what may be either; allowing only if each command of a clear line is allowed
    by some rule.
    """
    tables = [
        {"tool": tool, "verdict": verdict, **({} if command is None else {"command": command})}
        for tool, verdict, command in given_rules
    ]
    book = read_rulebook(tables)
    mine = [(verdict, command) for tool, verdict, command in given_rules if fnmatchcase("bash", tool)]
    ruling, commands = book.ruling(bash(line), "/w"), clear(line)
    sure = {
        verdict
        for verdict, command in mine
        if command is None or any(stands_for(command, one) for one in commands or [])
    }
    if "deny" in sure or (commands is not None and "ask" in sure):
        assert ruling is not None and ruling.verdict == ("deny" if "deny" in sure else "ask")
    elif commands is not None:
        allowing = [command for verdict, command in mine if verdict == "allow"]
        covered = None in allowing or (
            bool(allowing)
            and all(any(command and stands_for(command, one) for command in allowing) for one in commands)
        )
        assert (ruling.verdict if ruling else "-") == ("allow" if covered else "-")
    elif ruling is not None and ruling.verdict == "allow":
        assert ("allow", None) in mine  # a line that cannot be told is allowed by no pattern
    held_out = book.ruling(bash(line, sandbox="S0: none works here"), "/w")
    assert held_out is None or held_out.verdict != "allow"
    assert (ruling if ruling is None or ruling.verdict != "allow" else None) == held_out
    assert len(book) == len(list(book)) == len(given_rules)
    assert [row[0] for row in book.table()[1]] == sorted(
        (one for _, one, _ in given_rules), key=("deny", "ask", "allow").index
    )


def test_what_may_be_about_it_is_asked_about_with_the_reason() -> None:
    """A part that only running it would tell: the rule that may be meant is named, and a sure one comes
    before it.
    """
    maybe = read_rulebook([{"tool": "bash", "verdict": "deny", "command": "rm ...", "reason": "never"}])
    found = maybe.ruling(bash("$x -rf y"), "/w")
    assert found is not None and found.verdict == "ask"
    assert (
        found.why.endswith("it may be what the rule is about: deny bash `rm ...`: never")
        and found.by == "rule 1 of the rules given"
    )
    both = maybe + read_rulebook([{"tool": "*", "verdict": "ask"}], "more")
    found = both.ruling(bash("$x -rf y"), "/w")
    assert found is not None and (found.verdict, found.by) == ("ask", "rule 1 of more")


def test_several_rules_together_allow_a_line_and_name_what_all_of_them_name() -> None:
    """Each command by one of them: the ruling names them all, and only the arguments that each of them has a
    pattern for.
    """
    git = {"tool": "bash", "verdict": "allow", "command": "git ...", "args": {"folder": "a"}}
    ls = {"tool": "bash", "verdict": "allow", "command": "ls ...", "args": {"folder": "a", "who": "me"}}
    book = read_rulebook([git, ls])
    both = Call(
        id="c", kind="tool", target="bash", args={"command": "git status; ls", "folder": "a", "who": "me"}
    )
    assert book.ruling(both, "/w") == Ruling(
        "allow",
        "rule 1 of the rules given, rule 2 of the rules given",
        "allow bash `git ...`, folder `a`; allow bash `ls ...`, folder `a`, who `me`",
        args=frozenset({"command", "folder"}),
    )
    one = book.ruling(
        Call(id="c", kind="tool", target="bash", args={"command": "ls", "folder": "a", "who": "me"}), "/w"
    )
    assert one is not None and (one.by, one.args) == (
        "rule 2 of the rules given",
        frozenset({"command", "folder", "who"}),
    )
    assert (
        book.ruling(
            Call(
                id="c",
                kind="tool",
                target="bash",
                args={"command": "git status; ls", "folder": "a", "who": "you"},
            ),
            "/w",
        )
        is None
    )
    assert (
        book.ruling(
            Call(id="c", kind="tool", target="bash", args={"command": 3, "folder": "a", "who": "me"}), "/w"
        )
        is None
    )
    assert (
        book.ruling(
            Call(id="c", kind="tool", target="bash", args={"command": " ", "folder": "a", "who": "me"}), "/w"
        )
        is None
    )
    plain = read_rulebook([{"tool": "b*", "verdict": "allow", "args": {"who": "me"}}]).ruling(both, "/w")
    assert plain is not None and plain.args == frozenset({"who"})


def test_why_no_rule_can_allow_a_line() -> None:
    """It cannot be told, or a word is not what `...` stands for; of rules for other tools and lines without
    either nothing is said.
    """
    book = read_rulebook(
        [
            {"tool": "bash", "verdict": "allow", "command": "git diff ..."},
            {"tool": "bash", "verdict": "deny", "command": "rm ..."},
        ]
    )
    assert book.unclear(bash("(")) == read_line("(").unclear != ""
    assert "does not cover --output=x" in book.unclear(bash("git diff --stat; git diff --output=x"))
    assert book.unclear(bash("git diff --stat")) == book.unclear(bash("ls")) == book.unclear(bash(7)) == ""
    assert read_rulebook([{"tool": "zsh", "verdict": "allow", "command": "git ..."}]).unclear(bash("(")) == ""
    assert read_rulebook([{"tool": "bash", "verdict": "ask", "command": "git ..."}]).unclear(bash("(")) == ""
    assert "no rules" in repr(Rulebook()) and "no rules" not in repr(book)


# Leave that was given before


@given(
    st.sampled_from(["git", "cargo", "rm", "python", "npm"]),
    st.sampled_from(["diff", "Test", "-x", "run"]),
    st.sampled_from(["", "a", "--stat", "; ls", "> x"]),
)
def test_what_is_offered_covers_the_call_and_no_other_program(program: str, word: str, rest: str) -> None:
    """The pattern begins with the program and what it is to do, covers this line, and neither another one nor
    two.
    """
    line = " ".join(filter(None, (program, word, rest)))
    found = offered_pattern(bash(line))
    if program in ("rm", "python") or word in ("Test", "-x") or rest in ("; ls", "> x"):
        assert found == ""
        return
    pattern = CommandPattern.parse(f"{program} {word} ...")
    if not found:  # an option that may do more
        assert not pattern.allows((program, word, rest))
        return
    assert found == f"{program} {word} ..." and pattern_covers(pattern, bash(line))
    assert (
        pattern_covers(pattern, bash(f"{line}; {line}"))
        and not pattern_covers(pattern, bash(f"{line}; ls"))
        and not pattern_covers(pattern, bash("ls"))
    )
    assert not any(pattern_covers(pattern, bash(other)) for other in ("", "(", 3, f"{line} $(x)"))


def test_a_yes_is_for_the_call_that_it_was_given_for() -> None:
    """Bound to its key or, in logs of earlier versions, to the call; a no, an answer and an edit bind
    nobody.
    """
    one, given = bash(), ApprovalGiven(call="c", granted=True, by="p", how="click")
    state = RunState(decisions={"q": given}, bound={"q": "key"})
    assert decision_applies(state, "q", one, "key") and not decision_applies(state, "q", one, "another")
    assert decision_applies(RunState(decisions={"q": given}, bound={"q": one.key}), "q", one, "another")
    assert decision_applies(RunState(decisions={"q": given}), "q", one, "any") and decision_applies(
        state, "unknown", one, "another"
    )
    for other in ({"granted": False}, {"args": {"command": "ls"}}, {"answer": ["blue"]}):
        told = ApprovalGiven(**{"call": "c", "granted": True, "by": "p", "how": "click", **other})  # type: ignore[arg-type]
        assert decision_applies(RunState(decisions={"q": told}, bound={"q": "key"}), "q", one, "another")


def test_standing_approval_is_for_a_tool_a_call_or_calls_like_it() -> None:
    """Calls like it only while commands are held in; nothing that was said of another tool."""
    assert not is_allowed_for_run(RunState(), bash(), "key")
    assert is_allowed_for_run(RunState(always={"bash"}), bash(), "key") and not is_allowed_for_run(
        RunState(always={"zsh"}), bash(), "key"
    )
    assert is_allowed_for_run(RunState(same={"key"}), bash(), "key") and not is_allowed_for_run(
        RunState(same={"other"}), bash(), "key"
    )
    like = RunState(like={"bash": ["ls ...", "git status ..."]})
    assert is_allowed_for_run(like, bash(), "key") and not is_allowed_for_run(like, bash("git diff"), "key")
    assert not is_allowed_for_run(like, bash(sandbox="S0: none works here"), "key")
    assert not is_allowed_for_run(RunState(like={"zsh": ["git status ..."]}), bash(), "key")


def test_a_decision_is_bound_to_tool_version_arguments_folder_and_sandbox(tmp_path: Path) -> None:
    """Any of them makes another key; who asks, and how dangerous it is, does not.

    A tool that is not there has no version.
    """

    @tool(name="bash")
    def run(command: str) -> str:
        """Run it."""
        return command

    one, box, place = bash(), Toolbox([run]), Workspace(tmp_path)
    key = decision_binding(one, box, str(place.root))
    (tmp_path / "in").mkdir()
    others = [
        decision_binding(one, Toolbox([replace(run, version="another")]), str(place.root)),
        decision_binding(one, Toolbox([]), str(place.root)),
        decision_binding(bash("ls"), box, str(place.root)),
        decision_binding(one, box, str(tmp_path / "in")),
        decision_binding(bash(sandbox="S3"), box, str(place.root)),
    ]
    assert len({key, *others}) == 6
    assert (
        decision_binding(replace(one, id="d", step="s", danger=Danger.SAFE, attempt=2), box, str(place.root))
        == key
    )
