"""Points of servers and their configuration: each line of the rubric by itself, names that look alike, what
an approval is bound to.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.mcp.config import ServerConfig, Trust, read_server
from kestrel_lab.mcp.registry.catalogue import Entry, Package
from kestrel_lab.mcp.registry.scoring import FITTING, OFFERED, imitated_name, score_entry
from kestrel_lab.tools.sandbox.levels import Level

PLAIN = Package(kind="pypi", name="mcp-notes", version="1.0")
ENTRY = Entry(name="io.github.ann/notes", description="keeps notes", package=PLAIN)


def points(entry: Entry, need: str = "notes", **more: Any) -> dict[str, tuple[int, int, str]]:
    """Of each criterion the points, the most of them, and why."""
    return {one.criterion: (one.points, one.most, one.why) for one in score_entry(entry, need, **more).points}


@pytest.mark.parametrize(
    ("changes", "criterion", "told"),
    [
        ({"name": "io.modelcontextprotocol/x"}, "namespace", (20, 20, "the protocol's own namespace")),
        ({"name": "IO.github.ModelContextProtocol/x"}, "namespace", (20, 20, "the protocol's own namespace")),
        (
            {"name": "io.modelcontextprotocol/x", "source": "https://r"},
            "namespace",
            (15, 20, "the protocol's own namespace, as a registry says"),
        ),
        (
            {"repository": "https://github.com/Ann/notes"},
            "namespace",
            (10, 20, "the namespace is that of the repository's owner"),
        ),
        (
            {"repository": "https://github.com/Ann/n", "source": "https://r"},
            "namespace",
            (10, 20, "the namespace is that of the repository's owner"),
        ),
        (
            {"repository": "https://github.com/bob/notes"},
            "namespace",
            (0, 20, "nothing ties the namespace to the repository"),
        ),
        (
            {"repository": "https://github.com/ann"},
            "namespace",
            (10, 20, "the namespace is that of the repository's owner"),
        ),
        ({}, "namespace", (0, 20, "nothing ties the namespace to the repository")),
        ({}, "version", (15, 15, "exactly 1.0")),
        ({"package": None, "problem": "no pin"}, "version", (0, 15, "no pin")),
        ({"package": replace(PLAIN, sha256="a" * 64)}, "hash", (10, 10, "the entry has the file's hash")),
        ({}, "repository", (0, 10, "not known")),
        ({"repository": "http://x"}, "repository", (0, 10, "not known")),
        ({"repository": "https://x"}, "repository", (10, 10, "https://x")),
        ({}, "licence", (0, 5, "not known")),
        ({"licence": "MIT"}, "licence", (5, 5, "MIT")),
        ({"package": None}, "package", (0, 10, "there is none that could be installed")),
        ({}, "package", (10, 10, "pypi: wheels only, so nothing of it runs while it is installed")),
        (
            {"package": replace(PLAIN, kind="npm")},
            "package",
            (10, 10, "npm: scripts of packages are not run"),
        ),
        ({"hidden": True}, "text", (-50, 0, "its description has characters that cannot be seen")),
        ({"status": "deleted"}, "status", (-40, 0, "the registry says that it is deleted")),
    ],
)
def test_each_line_of_the_rubric(changes: dict[str, Any], criterion: str, told: tuple[int, int, str]) -> None:
    """Its points and why, whatever the other lines say."""
    assert points(replace(ENTRY, **changes))[criterion] == told


def test_the_match_is_the_share_of_the_need() -> None:
    """Words of its name, description and tools; without a need there is none."""
    assert points(ENTRY, "keep notes")["match"] == (30, 30, "2 of 2 words of the need")
    assert points(ENTRY, "keeps weather notes")["match"][0] == 20
    assert points(replace(ENTRY, tools=("weather: of today",)), "keeps weather notes")["match"][0] == 30
    assert points(ENTRY, "")["match"] == (0, 30, "nothing was asked for")
    assert 0 < FITTING < 30


def test_what_it_needs_of_the_environment_costs_points_and_is_named() -> None:
    """All variables, and those that are not set or empty; a package that needs none has no such line."""
    needs = replace(ENTRY, package=replace(PLAIN, variables=("A", "B")))
    assert points(needs, env={"A": "1", "B": ""})["secrets"] == (
        -10,
        0,
        "is given A, B of your environment; not set: B",
    )
    assert points(needs, env={"A": "1", "B": "2"})["secrets"][2] == "is given A, B of your environment"
    assert "secrets" not in points(ENTRY) and "secrets" not in points(replace(ENTRY, package=None))
    assert (
        points(ENTRY, known=["mcp-note5"])["name"][2]
        == "mcp-notes looks like mcp-note5, which the catalogue knows"
    )
    assert "name" not in points(replace(ENTRY, package=None), known=["mcp-note5"])


def test_a_server_is_offered_from_so_many_points_on() -> None:
    """And only if it can be installed; the score stays within 0 and 100, warnings are what subtracts."""
    best = replace(
        ENTRY,
        name="io.modelcontextprotocol/notes",
        package=replace(PLAIN, sha256="a"),
        repository="https://x",
        licence="MIT",
    )
    assert (
        score_entry(best, "notes").score,
        score_entry(best, "notes").usable,
        score_entry(best, "notes").warnings,
    ) == (100, True, ())
    worst = score_entry(replace(ENTRY, hidden=True, status="deleted"), "weather")
    assert (worst.score, worst.usable, len(worst.warnings)) == (0, False, 2)
    assert (
        score_entry(ENTRY, "weather notes").score == OFFERED == 40
        and score_entry(ENTRY, "weather notes").usable
    )
    assert (
        score_entry(ENTRY, "weather of tomorrow, notes").score < OFFERED
        and not score_entry(ENTRY, "weather of tomorrow, notes").usable
    )
    none = score_entry(replace(best, package=None), "notes")
    assert none.score >= OFFERED and not none.usable
    assert score_entry(best, "notes").match == 30
    headings, rows = score_entry(replace(ENTRY, status="old"), "notes").table()
    assert headings == ("criterion", "points", "why") and rows[0][1] == "30 of 30"
    assert rows[-2][:2] == ("status", "-40") and rows[-1][:2] == (
        "in all",
        f"{score_entry(replace(ENTRY, status='old'), 'notes').score} of 100",
    )


def apart(one: str, other: str) -> int:
    """How many letters are added, left out, changed or swapped with their neighbour."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        found = min(
            distance(i - 1, j) + 1,
            distance(i, j - 1) + 1,
            distance(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
        )
        if i > 1 and j > 1 and (one[i - 1], one[i - 2]) == (other[j - 2], other[j - 1]):
            found = min(found, distance(i - 2, j - 2) + 1)
        return found

    return distance(len(one), len(other))


@given(st.text("abc", min_size=1, max_size=14), st.text("abc", min_size=1, max_size=14))
def test_names_look_alike_up_to_so_many_changes(name: str, known: str) -> None:
    """One change of a short name, two of one of twelve letters or more; the known name itself imitates
    nothing, wherever it stands.
    """
    near = name != known and apart(name, known) <= (1 if len(known) < 12 else 2)
    assert imitated_name(name, [known]) == (known if near else "")
    assert imitated_name(name, ["xyz-very-different", known]) == (known if near else "")
    assert imitated_name(name, [known, name]) == ""
    assert imitated_name(f"{name}_-", [f"{name}xyzxyz", name]) == name  # separators do not make another name


def test_a_known_name_of_twelve_letters_may_have_two_changes() -> None:
    """One of eleven may not."""
    assert imitated_name("abcdefghijxy", ["abcdefghijkl"]) == "abcdefghijkl"
    assert imitated_name("abcdefghixy", ["abcdefghijk"]) == ""


def test_a_point_is_told_whole() -> None:
    """In the log and for programs."""
    assert score_entry(ENTRY, "notes").points[2].as_json() == {
        "criterion": "version",
        "points": 15,
        "most": 15,
        "why": "exactly 1.0",
    }


# Configuration

BASE = ServerConfig(name="a", command="x")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "b"},
        {"command": "y"},
        {"args": ("1",)},
        {"env": {"A": "b"}},
        {"cwd": "/"},
        {"url": "https://x"},
        {"headers": {"A": "b"}},
        {"network": True},
        {"read": ("/r",)},
        {"write": ("/r",)},
        {"trust": Trust(untrusted=False)},
        {"tools": {"t": Trust(untrusted=False)}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_approval_is_bound_to_all_that_counts(changes: dict[str, Any]) -> None:
    """Another program, other words, another folder or more freedom is another server."""
    assert replace(BASE, **changes).key != BASE.key


@pytest.mark.parametrize(
    "changes",
    [
        {"timeout_s": 1.0},
        {"start_timeout_s": 1.0},
        {"only": ("t",)},
        {"enabled": False},
        {"at_least": Level.S1},
        {"trust": Trust(danger=Danger.SAFE)},
        {"source": "f"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_approval_is_not_bound_to_what_takes_nothing(changes: dict[str, Any]) -> None:
    """Time limits, fewer tools and other words for danger leave it as it is."""
    assert replace(BASE, **changes).key == BASE.key


def test_a_command_with_a_path_is_bound_to_its_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program or a file that is found from where it is started is another one elsewhere; a name on the PATH
    is the same.
    """
    (tmp_path / "here").write_text("")
    keys = {}
    for folder in (tmp_path, tmp_path.parent):
        monkeypatch.chdir(folder)
        keys[folder] = [
            replace(BASE, **more).key
            for more in ({}, {"command": "./x"}, {"args": ("here",)}, {"args": ("a/b",)}, {"args": ("no",)})
        ]
    assert [one == other for one, other in zip(*keys.values(), strict=True)] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_a_server_is_shown_with_its_freedoms_and_without_secrets() -> None:
    """Words that need it are quoted; variables stay, values of what looks secret do not."""
    made = read_server(
        "a",
        {
            "command": "x",
            "args": ["a b", "c"],
            "env": {"API_KEY": "sk-1", "TOKEN": "${T}", "MODE": "fast"},
            "cwd": "/w",
        },
    )
    assert made.shown == 'API_KEY=… "TOKEN=${T}" MODE=fast x "a b" c  (in /w)'.replace(
        "API_KEY=…", '"API_KEY=…"'
    )
    free = read_server(
        "a", {"command": "x", "sandbox": "S0", "network": True, "read": ["/r", "/s"], "write": ["/t"]}
    )
    assert free.shown == "x  (without a sandbox; with network; reads /r, /s; writes /t)"
    assert (
        read_server("a", {"command": "x"}).shown == "x"
        and read_server("a", {"url": "https://x/"}).shown == "https://x/"
    )
    assert "without a sandbox" not in read_server("a", {"command": "x", "sandbox": "S1"}).shown


def test_variables_are_filled_in() -> None:
    """From our environment, else by the value behind `:-`; one that is neither is named."""
    made = read_server("a", {"url": "https://x/", "headers": {"h": "Bearer ${T}"}})
    assert made.filled_headers({"T": "1"}) == {"h": "Bearer 1"}
    with pytest.raises(UsageError, match="MCP server 'a' needs the environment variable T, which is not set"):
        made.filled_headers({})
    told = read_server("a", {"command": "x", "env": {"A": "${B:-c} and ${B:-d}"}})
    assert (told.environment({}), told.environment({"B": "1"})) == ({"A": "c and d"}, {"A": "1 and 1"})


@pytest.mark.parametrize("value", [0, -1, 1e6, True, "1", None])
def test_seconds_are_a_positive_number(value: Any) -> None:
    """Neither none nor so many that nobody waits."""
    with pytest.raises(UsageError, match="timeout_s: must be a positive number"):
        read_server("a", {"command": "x", "timeout_s": value})
    assert read_server("a", {"command": "x", "timeout_s": 999_999}).timeout_s == 999_999.0
