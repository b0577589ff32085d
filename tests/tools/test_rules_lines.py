"""Command lines under rules: what is forbidden is found wherever it hides, what is not sure is never
allowed.
"""

import random
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules_table import LINES, PLAIN, RULES
from waits import PATIENCE_S

from kestrel_lab.core.calls import Call
from kestrel_lab.permissions.command_patterns import CommandPattern, Match
from kestrel_lab.permissions.rulebook import Rulebook, read_rulebook
from kestrel_lab.shell_syntax.parser import MAX_CHARS, Word, read_line

BOOK = read_rulebook(RULES)
Judge = Callable[[str], str]


def bash_call(line: str) -> Call:
    """A call of bash."""
    return Call(id="c", kind="tool", target="bash", args={"command": line})


def judged(line: str, book: Rulebook = BOOK) -> str:
    """The verdict of the rules; `-` where none says anything."""
    ruling = book.ruling(bash_call(line), "/")
    return "-" if ruling is None else ruling.verdict


def wrong(judge: Judge) -> list[tuple[str, str, str]]:
    """Lines of the table of which a judge says something else."""
    return [(line, verdict, said) for line, verdict in LINES if (said := judge(line)) != verdict]


def test_hostile_lines_get_their_verdict() -> None:
    """Each of more than 150 lines, quoted, joined, expanded and wrapped in every way, is judged as the table
    says.
    """
    assert len(LINES) > 150
    assert wrong(judged) == []


ALLOWED = [
    shlex.split(text)
    for rule in RULES
    if rule["verdict"] == "allow"
    for text in rule["command"]
    if "*" not in text
]


def by_substring(line: str) -> str:
    """A mutant: texts anywhere in the line."""
    if "rm" in line or re.search(r"git.*push.*--force", line):
        return "deny"
    if "curl" in line:
        return "ask"
    return "allow" if any(" ".join(words).removesuffix(" ...") in line for words in ALLOWED) else "-"


def by_words(line: str) -> str:
    """A mutant: `shlex.split` and the beginning of what it gives."""
    try:
        words = shlex.split(line)
    except ValueError:
        return "ask"
    return by_beginning(words)


def by_first_command(line: str) -> str:
    """A mutant: only the first simple command counts."""
    first = read_line(line).commands[:1]
    return by_beginning([word or "" for word in first[0]]) if first else "-"


def by_beginning(words: list[str]) -> str:
    """What the beginning of a command says."""
    if words[:1] == ["rm"] or (words[:2] == ["git", "push"] and "--force" in words):
        return "deny"
    if words[:1] == ["curl"]:
        return "ask"
    return (
        "allow"
        if any(words[: len(one)] == one for one in ([w for w in known if w != "..."] for known in ALLOWED))
        else "-"
    )


@pytest.mark.parametrize("mutant", [by_substring, by_words, by_first_command])
def test_simpler_readings_are_caught(mutant: Judge) -> None:
    """Matching parts of texts, splitting words without a parser, or looking at the first command only: each
    lets hostile lines through.
    """
    let_through = [line for line, verdict, said in wrong(mutant) if said == "allow" and verdict != "allow"]
    assert len(let_through) >= 5, let_through


WORD = st.text(st.sampled_from("abz01-_./ ;|&$`'\"\\*?{}~#!<>()=\n\té"), max_size=8)
GOOD = st.sampled_from(["git status", "pytest -q", "ls", "echo 'a; b'", 'echo "x|y"', "git diff HEAD"])
BAD = st.sampled_from(
    [
        "make",
        "touch x",
        "git push",
        "sh -c 'make'",
        "./x",
        "env make",
        "git statusx",
        "m\\ake",
        "'make'",
        "python -c 1",
    ]
)
FORBIDDEN = st.sampled_from(
    [
        "rm x",
        "r''m x",
        "/bin/rm x",
        "sudo rm x",
        "sh -c 'rm x'",
        "$'\\x72m' x",
        "eval rm x",
        "git push a --force",
    ]
)
JOIN = st.sampled_from([";", " ; ", "&&", " && ", "||", " | ", "|&", " & ", "\n", " \n ", ";\n"])
AROUND = st.sampled_from(
    [
        "{}",
        "({})",
        "{{ {}; }}",
        "if {}; then ls; fi",
        "echo $({})",
        "echo `{}`",
        "! {}",
        'echo "$({})"',
        "cat <({})",
    ]
)


@st.composite
def joined(draw: st.DrawFn, other: st.SearchStrategy[str]) -> str:
    """Allowed commands with another one among them."""
    before, after = draw(st.lists(GOOD, max_size=3)), draw(st.lists(GOOD, max_size=3))
    line = ""
    for part in [*before, draw(other), *after]:
        line += (draw(JOIN) if line else "") + part
    return line


@settings(max_examples=70, deadline=None)
@given(joined(BAD))
def test_an_allowed_line_has_allowed_commands_only(line: str) -> None:
    """Whatever allowed commands a command that is not allowed is put between, no rule allows the line."""
    assert judged(line) != "allow"


@settings(max_examples=70, deadline=None)
@given(st.data(), joined(GOOD))
def test_a_forbidden_command_is_found_anywhere(data: st.DataObject, line: str) -> None:
    """However it is wrapped and joined with allowed ones, a forbidden command makes the line forbidden;
    without it the line is allowed.
    """
    assert judged(line) == "allow"
    hidden = data.draw(AROUND).format(
        data.draw(FORBIDDEN.filter(lambda text: "'" not in text and "\\" not in text))
    )
    assert judged(f"{line}{data.draw(JOIN)}{hidden}") == "deny"
    assert judged(f"{data.draw(FORBIDDEN)}{data.draw(JOIN)}{line}") == "deny"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
        min_size=1,
        max_size=4,
    )
)
def test_quoted_words_are_the_words(words: list[str]) -> None:
    """Words that are quoted for a shell are read back as they are, whatever is in them."""
    line = read_line(f"echo {shlex.join(words)}")
    assert line.commands[0] == ("echo", *words)


@settings(max_examples=100, deadline=None)
@given(WORD.filter(str.strip))
def test_anything_can_be_read(text: str) -> None:
    """No text is an error, and none is allowed that is not made of the commands that are."""
    assert judged(text) in {"allow", "ask", "deny", "-"}
    if judged(text) == "allow":
        assert all(
            any(
                CommandPattern.parse(p).allows(one)
                for rule in BOOK
                for ps in rule.commands.values()
                for p in [q.text for q in ps]
            )
            for one in read_line(text).commands
        )


def test_words_are_read_as_bash_reads_them(tmp_path: Path) -> None:
    """Of each way to quote, bash makes the same word."""
    sources = [
        "a",
        "'a b'",
        '"a b"',
        "a\\ b",
        "a''b",
        "\"a\"'b'c",
        "$'\\x41\\t\\101\\u00e9\\n'",
        '"\\$x \\" \\\\ \\a"',
        "'\\n'",
        "a\\\nb",
        "$",
        "a$",
        "HEAD~1",
        "@{u}",
        "a{b}",
    ]
    told = subprocess.run(
        ["bash", "-c", "printf '%s\\0' " + " ".join(sources)], capture_output=True, check=True, cwd=tmp_path
    )
    assert [Word(source).value for source in sources] == told.stdout.decode().split("\0")[:-1]
    assert [
        Word(source).value
        for source in (
            "$x",
            '"$x"',
            "*",
            "~",
            "~/x",
            "{a,b}",
            "a=~",
            "`x`",
            "$(x)",
            "a{1..3}",
            "[ab]",
            "'a",
            '"a',
        )
    ] == [None] * 13


def test_long_and_deep_lines_are_not_clear() -> None:
    """A line too long or too deeply nested to be read is asked about at once."""
    deep = "echo x"
    for _ in range(12):
        deep = f"bash -c {shlex.quote(deep)}"
    for line in (
        "ls " + "a" * MAX_CHARS,
        deep,
        "(" * 3_000 + "ls" + ")" * 3_000,
        "ls;" * 6_000,
        "sudo " * 3_000 + "ls",
    ):
        assert judged(line) in {"ask", "-"}
        assert read_line(line).unclear


@pytest.mark.parametrize(
    ("pattern", "allowed", "concerned", "maybe", "neither"),
    [
        (
            "git status",
            ["git status"],
            ["git status", "git status -s", "/usr/bin/GIT status"],
            ["git $x"],
            ["git", "git statu", "gits status"],
        ),
        (
            "git diff *",
            ["git diff a"],
            ["git diff a", "git diff -x b"],
            ["git diff $x", "$x"],
            ["git diff", "git a diff"],
        ),
        ("git diff -*", ["git diff -w"], ["git diff --x"], ["git $x"], ["git diff a"]),
        ("pytest ...", ["pytest", "pytest -q x"], ["pytest", "pytest $x"], ["$x"], ["py"]),
        (
            "git ... push ... -f",
            ["git push -f", "git -C x push a -f"],
            ["git push -f a"],
            ["git push $x"],
            ["git push a"],
        ),
        ("rm", ["rm"], ["rm", "rm -rf x", "rm *"], ["$x"], ["rmdir x"]),
        ("echo 'a b'", ["echo 'a b'"], ["echo a\\ b"], [], ["echo a b"]),
    ],
)
def test_patterns_are_words(
    pattern: str, allowed: list[str], concerned: list[str], maybe: list[str], neither: list[str]
) -> None:
    """A pattern is compared word by word: to allow, the whole command must surely fit; to forbid, its
    beginning is enough.
    """
    read = CommandPattern.parse(pattern)

    def commands(lines: list[str]) -> list[tuple[str | None, ...]]:
        return [read_line(line).commands[0] for line in lines]

    assert [read.allows(one) for one in commands(allowed)] == [True] * len(allowed)
    assert [read.concerns(one) for one in commands(concerned)] == [Match.YES] * len(concerned)
    assert [read.concerns(one) for one in commands(maybe)] == [Match.MAYBE] * len(maybe)
    assert [read.concerns(one) for one in commands(neither)] == [Match.NO] * len(neither)
    assert not any(read.allows(one) for one in commands([*maybe, *neither]))


PIECES = [
    *(
        "good",
        "good",
        "fine",
        "evil",
        "x",
        " ",
        " ",
        " ",
        " ",
        ";",
        "&",
        "&&",
        "||",
        "|",
        "\n",
        "\t",
        "'",
        '"',
        "\\",
        "$",
        "(",
        ")",
        "{",
        "}",
    ),
    *(
        "`",
        "#",
        "<",
        ">",
        "!",
        "=",
        "*",
        "~",
        "[",
        "]",
        "$(",
        "<<E",
        "\nE\n",
        "A=1",
        "-c",
        "eval ",
        "env ",
        "$'",
        "\\x65vil",
        "if ",
        "then ",
    ),
    *(
        "fi",
        "do ",
        "done",
        "[[",
        "]]",
        "((",
        "))",
        "\r",
        "\u00a0",
        "${x}",
        "function ",
        "case ",
        "esac",
        "sh -c ",
        "xargs ",
    ),
]


def test_bash_runs_nothing_else(tmp_path: Path) -> None:
    """Of random lines, bash runs only allowed programs in those that are allowed, and no forbidden one in
    those that no rule is about.
    """
    for name in ("good", "fine", "evil", "x"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} >> "{tmp_path}/ran"\n')
        (tmp_path / name).chmod(0o755)
    book = read_rulebook(
        [
            {"tool": "bash", "verdict": "allow", "command": ["good ...", "fine ..."]},
            {"tool": "bash", "verdict": "deny", "command": "evil"},
        ]
    )
    chance = random.Random(20261122)
    tried = {"allow": 0, "-": 0}
    env = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    while min(tried.values()) < 40:
        line = "good " + "".join(chance.choice(PIECES) for _ in range(chance.randint(2, 8)))
        verdict = judged(line, book)
        if tried.get(verdict, 40) >= 40 or (verdict == "-" and "evil" not in line and "x65" not in line):
            continue
        tried[verdict] += 1
        (tmp_path / "ran").write_text("")
        subprocess.run(
            ["bash", "--noprofile", "--norc", "-c", line],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
        )
        ran = set((tmp_path / "ran").read_text().split())
        assert ran <= ({"good", "fine"} if verdict == "allow" else {"good", "fine", "x"}), line


@settings(max_examples=40, deadline=None)
@given(
    st.permutations(RULES), st.sampled_from([line for line, _ in PLAIN] + [line for line, _ in LINES[::5]])
)
def test_the_order_of_rules_does_not_matter(rules: list[dict[str, object]], line: str) -> None:
    """Rules in any order give the same verdict on a line."""
    assert judged(line, read_rulebook(rules)) == judged(line)
