"""Rules beside command lines: tools, paths, addresses and other values; which rule wins; what is wrong with a
file.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.calls import Call, Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.permissions.command_patterns import offered_pattern
from kestrel_lab.permissions.policy import Policy, Ruling
from kestrel_lab.permissions.rulebook import Rulebook, read_rulebook


def call(tool: str = "write_file", *, danger: Danger = Danger.HIGH, sandbox: str = "", **args: Any) -> Call:
    """A call of a tool."""
    return Call(id="c", kind="tool", target=tool, args=args, danger=danger, sandbox=sandbox)


def said(book: Rulebook, one: Call, root: Path | str = "/") -> str:
    """The verdict of the rules; `-` where none says anything."""
    ruling = book.ruling(one, str(root))
    return "-" if ruling is None else ruling.verdict


def rule(verdict: str = "allow", tool: str = "*", **more: Any) -> dict[str, Any]:
    """A rule as in a file."""
    return {"tool": tool, "verdict": verdict, **more}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace with links out of it and within it."""
    root = tmp_path / "work"
    for folder in ("docs/deep", "secret"):
        (root / folder).mkdir(parents=True)
    (root / "docs/out").symlink_to(tmp_path)
    (root / "docs/hidden").symlink_to(root / "secret")
    return root


@pytest.mark.parametrize(
    ("pattern", "path", "allow", "deny"),
    [
        ("docs/**", "docs/a.md", "allow", "deny"),
        ("docs/**", "docs/deep/../a.md", "allow", "deny"),
        ("docs/**", "./docs//deep/a.md", "allow", "deny"),
        ("docs/**", "ROOT/docs/a.md", "allow", "deny"),
        ("docs/**", "docs", "allow", "deny"),
        ("docs/", "docs/deep/x", "allow", "deny"),
        ("docs/**", "docs/../a.md", "-", "-"),
        ("docs/**", "docsx/a.md", "-", "-"),
        ("docs/**", "x/docs/a.md", "-", "-"),
        ("docs/**", "DOCS/a.md", "-", "deny"),
        ("docs/**", "docs/../../NAME/docs/a.md", "-", "deny"),  # it leaves the folder on its way
        ("docs/**", "docs/out/x", "-", "deny"),  # a link out of the workspace
        ("docs/**", "docs/hidden/x", "-", "deny"),  # a link to another folder of it
        ("secret/**", "docs/hidden/x", "-", "deny"),  # written elsewhere, it ends there
        ("docs/*", "docs/deep/x", "-", "-"),
        ("*.pem", "a/b/k.pem", "allow", "deny"),
        ("*.pem", "k.pem.txt", "-", "-"),
        ("docs/**", "docs/a\0b", "-", "-"),
        ("docs/**", {"of": "docs/a.md"}, "-", "ask"),
        ("docs/**", 3, "-", "-"),
        ("*.pem", "../k.pem", "-", "-"),
        ("**", "..", "-", "-"),
        ("/etc/**", "/etc/passwd", "allow", "deny"),
        ("/etc/**", "/usr/../etc/passwd", "allow", "deny"),
    ],
)
def test_paths_are_compared_by_where_they_lead(
    pattern: str, path: Any, allow: str, deny: str, place: Path
) -> None:
    """To be allowed a path must fit as it is written and where it leads; to be forbidden, either is enough.

    A table may hold any path.
    """
    one = call(
        path=path.replace("ROOT", str(place)).replace("NAME", place.name) if isinstance(path, str) else path
    )
    assert (
        said(read_rulebook([rule(path=pattern)]), one, place),
        said(read_rulebook([rule("deny", path=pattern)]), one, place),
    ) == (
        allow,
        deny,
    )


def test_of_several_values_all_are_allowed_or_one_forbidden(place: Path) -> None:
    """A list is allowed if every value is, and forbidden if one is; patterns of a rule are alternatives."""
    allow = read_rulebook([rule(path=["docs/**", "*.md"])])
    assert [said(allow, call(paths=paths), place) for paths in (["docs/a", "x.md"], ["docs/a", "b"], [])] == [
        "allow",
        "-",
        "-",
    ]
    deny = read_rulebook([rule("deny", path="*.pem")])
    assert [said(deny, call(paths=paths), place) for paths in (["a", "k.pem"], ["a"], [])] == [
        "deny",
        "-",
        "-",
    ]


@pytest.mark.parametrize(
    ("pattern", "url", "allow", "deny"),
    [
        ("example.org", "https://example.org/a?b", "allow", "deny"),
        ("example.org", "https://EXAMPLE.org./", "allow", "deny"),
        ("example.org", "https://example.org:8443/", "-", "deny"),
        ("example.org:8443", "https://example.org:8443/", "allow", "deny"),
        ("https://example.org", "http://example.org/", "-", "-"),
        ("*.example.org", "https://a.b.example.org/", "allow", "deny"),
        ("*.example.org", "https://example.org/", "-", "-"),
        ("*.example.org", "https://evilexample.org/", "-", "-"),
        ("*.example.org", "https://a.example.org.evil.net/", "-", "-"),
        ("example.org", "https://example.org@evil.net/", "-", "ask"),
        ("example.org", "https://evil.net/?https://example.org", "-", "-"),
        ("example.org", "https://evil.net\\@example.org/", "-", "ask"),
        ("example.org/api/**", "https://example.org/api/x/y", "allow", "deny"),
        ("example.org/api/**", "https://example.org/api/../x", "-", "deny"),
        ("example.org/x", "https://example.org/api/%2e%2e/x", "-", "deny"),
        ("example.org/api/**", "https://example.org/api/%2e%2e/x", "-", "deny"),
        ("example.org/api/**", "https://example.org/api/x?d=secret", "-", "deny"),
        ("example.org/api/**?q=*", "https://example.org/api/x?q=1", "allow", "deny"),
        ("example.org/api/*", "https://example.org/api/x/y", "-", "-"),
        ("*", "https://anything.net/", "allow", "deny"),
        ("example.org", "file:///etc/passwd", "-", "ask"),
    ],
)
def test_addresses_are_compared_by_their_parts(pattern: str, url: str, allow: str, deny: str) -> None:
    """Host, port, path and query are compared as they are asked; what can be read in two ways is never
    allowed.
    """
    one = call("http_get", url=url)
    assert (
        said(read_rulebook([rule(url=pattern)]), one),
        said(read_rulebook([rule("deny", url=pattern)]), one),
    ) == (allow, deny)


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("main", "main", True),
        ("main", "mainly", False),
        ("release-*", "release-3", True),
        ("<= 3", 3, True),
        ("<= 3", 3.5, False),
        ("<= 3", 3.0, True),
        ("< 3", 3, False),
        ("< 3", 2.5, True),
        ("> -1", 0, True),
        ("> 3", 3, False),
        (">= 3", 3, True),
        (">= 3", 2, False),
        ("<= 3", "3", False),
        ("<= 3", True, False),
        (3, 3, True),
        (1, True, False),
        (True, True, True),
        (["a", "b"], "b", True),
        (["a", "b"], ["a", "b"], True),
        ("a", None, False),
        ("a", {"a": 1}, False),
    ],
)
def test_other_values(pattern: Any, value: Any, fits: bool) -> None:
    """Texts are whole texts with stars, numbers are numbers, and an argument that is not there fits
    nothing.
    """
    for verdict in ("allow", "deny"):
        assert said(read_rulebook([rule(verdict, args={"x": pattern})]), call(x=value)) == (
            verdict if fits else "-"
        )
        assert said(read_rulebook([rule(verdict, args={"y": pattern})]), call(x=value)) == "-"


def test_a_rule_reads_as_it_was_written() -> None:
    """Its patterns by argument, texts in their own case, and yes and no as TOML has them."""
    (one,) = read_rulebook(
        [rule("ask", "bash", command="ls", args={"branch": "Main", "dry": True, "count": 3})]
    )
    assert str(one) == "ask bash `ls`, branch `Main`, dry `true`, count `3`"


def test_arguments_of_other_names_and_tools_of_servers() -> None:
    """A kind of pattern can be given for any argument; tools of servers are named with their server."""
    book = read_rulebook(
        [rule(tool="files:*", args={"source": {"path": "docs/**"}, "cmd": {"command": "git status"}})]
    )
    assert said(book, call("files:move", source="docs/a", cmd="git status"), "/w") == "allow"
    assert said(book, call("files:move", source="docs/a", cmd="git status; ls"), "/w") == "-"
    assert said(book, call("files:move", source="x", cmd="git status"), "/w") == "-"
    assert said(book, call("other:move", source="docs/a", cmd="git status"), "/w") == "-"


VERDICTS = st.lists(st.sampled_from(["allow", "ask", "deny"]), max_size=5)


@settings(max_examples=40, deadline=None)
@given(VERDICTS, VERDICTS, st.randoms())
def test_deny_wins_over_ask_over_allow(file: list[str], run: list[str], random: Any) -> None:
    """Whatever rules a file and a run have, in any order: the strictest verdict stands, so nothing added
    lifts it.
    """
    rules = [rule(verdict, tool=random.choice(["bash", "*", "b?sh"])) for verdict in (*file, *run)]
    random.shuffle(rules)
    strictest = next((verdict for verdict in ("deny", "ask", "allow") if verdict in (*file, *run)), "-")
    assert said(read_rulebook(rules), call("bash", command="ls")) == strictest
    assert said(read_rulebook(rules[:2]) + read_rulebook(rules[2:]), call("bash", command="ls")) == strictest


def test_a_mutant_in_which_the_last_rule_wins_is_caught() -> None:
    """The law above tells this book from one that takes the last rule that fits."""
    rules = [rule("deny"), rule("allow")]
    last = [one["verdict"] for one in rules][-1]
    assert (last, said(read_rulebook(rules), call())) == ("allow", "deny")


def test_no_rule_allows_a_command_without_a_sandbox() -> None:
    """A rule that allows a command was written for one that is held in; where none can be, the danger
    decides.
    """
    book = read_rulebook([rule(command="ls")])
    assert said(book, call("bash", command="ls", sandbox="S3")) == "allow"
    assert said(book, call("bash", command="ls", sandbox="S0: no sandbox works here")) == "-"


def test_rules_and_the_level_of_danger(tmp_path: Path) -> None:
    """The policy's level decides where no rule does; under `deny` nobody is asked, so what a rule wants asked
    is refused.
    """
    book = read_rulebook([rule("ask", tool="low"), rule("deny", tool="bad", reason="no"), rule(tool="good")])
    rules = book.within(tmp_path)

    def policy(text: str) -> Policy:
        read = Policy.parse(text)
        return Policy(allow=read.allow, otherwise=read.otherwise, text=text, rules=rules)

    ask, deny, auto = policy("ask"), policy("deny"), policy("auto")
    assert [ask.verdict(call(name, danger=Danger.LOW)) for name in ("low", "bad", "good", "other")] == [
        "ask",
        "deny",
        "allow",
        "allow",
    ]
    assert [deny.verdict(call(name, danger=Danger.CRITICAL)) for name in ("low", "bad", "good", "other")] == [
        "deny",
        "deny",
        "allow",
        "deny",
    ]
    assert [auto.verdict(call(name, danger=Danger.LOW)) for name in ("low", "bad", "good", "other")] == [
        "ask",
        "deny",
        "allow",
        "allow",
    ]
    assert ask.ruling(call("bad")) == Ruling("deny", "rule 2 of the rules given", "deny bad: no")
    assert auto.ruling(call("other")) == Ruling(
        "allow", "policy auto", "the approval policy is 'auto'", "policy"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[rules]]\ntool='bash'\nverdict='alow'",
            "rule 1 of rules.toml: unknown verdict 'alow'; did you mean 'allow'?",
        ),
        (
            "[[rules]]\ntool='bash'\nverdict='deny'\n[[rules]]\ntol='x'",
            "rule 2 of rules.toml: unknown key 'tol'",
        ),
        ("[[rules]]\nverdict='deny'", "rule 1 of rules.toml: key 'tool' must be there"),
        ("[[rules]]\ntool='bash'", "rule 1 of rules.toml: key 'verdict' must be there"),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\ncommand='a; b'",
            "rule 1 of rules.toml: key 'command': the pattern 'a; b' is for one command",
        ),
        ("[[rules]]\ntool='b'\nverdict='deny'\ncommand='... x'", "must begin with the name of a command"),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\ncommand=\"'a\"",
            'the pattern "\'a" cannot be read: no closing quotation',
        ),
        ("[[rules]]\ntool='b'\nverdict='allow'\ncommand='eval ...'", "eval can do anything"),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\ncommand=[]",
            "key 'command' must be a pattern, or a list of some",
        ),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\ncommand=' '",
            "key 'command' must be a pattern, or a list of some",
        ),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\npath=['a', 3]",
            "key 'path' must be a pattern, or a list of some",
        ),
        ("[[rules]]\ntool='b'\nverdict='deny'\nurl='a b://'", "is not a pattern of an address"),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\npath='[z-a]'",
            "key 'path': the pattern '[z-a]' cannot be read",
        ),
        ("[[rules]]\ntool='b'\nverdict='deny'\nargs=3", "key 'args' must be a table"),
        (
            "[[rules]]\ntool='b'\nverdict='deny'\nargs={x={pth='y'}}",
            "key 'args.x': write one of command, path, url with a pattern; did you mean 'path'?",
        ),
        ("[[rules]]\ntool='b'\nverdict='deny'\nargs={x=[]}", "key 'x' must be a text, a number"),
        ("[rules]\ntool='b'", "rules.toml: write rules as [[rules]] tables"),
        ("[[rule]]\ntool='b'", "rules.toml: unknown key 'rule'"),
        ("[[rules", "rules.toml is not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake in a file of rules names the file, the rule and the key."""
    monkeypatch.chdir(tmp_path)
    Path("rules.toml").write_text(text)
    with pytest.raises(UsageError) as failure:
        read_rulebook("rules.toml")
    assert message in str(failure.value).replace(": did you", "; did you")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A file of rules that cannot be read is an error, never an empty book."""
    with pytest.raises(UsageError, match="name a file with"):
        read_rulebook(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("git diff HEAD~1", "git diff ..."),
        ("cargo test -q", "cargo test ..."),
        ("git -C x diff", ""),
        ("git diff; ls", ""),
        ("git diff > x", ""),
        ("git diff 2>&1", ""),
        ("git diff $x", ""),
        ("git $(x)", ""),
        ("rm -rf x", ""),
        ("python x.py", ""),
        ("sudo git diff", ""),
        ("bash -c 'git diff'", ""),
        ("git", ""),
    ],
)
def test_what_is_offered_for_the_rest_of_a_run(line: str, pattern: str) -> None:
    """Only for one plain command of a program whose first word says what it does is more than the same call
    offered.
    """
    assert offered_pattern(call("bash", command=line)) == pattern
