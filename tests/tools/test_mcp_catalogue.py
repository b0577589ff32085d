"""Claims about catalogues, registries and the rubric: read with suspicion, judged in the open, and nothing
breaks the asker.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.mcp.registry.catalogue import (
    WORKSPACE,
    Package,
    named_package,
    read_catalogue,
    read_entries,
    read_entry,
)
from kestrel_lab.mcp.registry.client import Registry
from kestrel_lab.mcp.registry.scoring import imitated_name, score_entry
from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.json_api import Service


def server(name: str = "io.github.a/b", **package: Any) -> dict[str, Any]:
    """A `server.json` with one package."""
    given = {
        "registryType": "pypi",
        "identifier": "mcp-b",
        "version": "1.0",
        "transport": {"type": "stdio"},
        **package,
    }
    return {"name": name, "description": "Do b.", "version": "1.0", "packages": [given]}


def test_the_shipped_catalogue_is_whole() -> None:
    """Every entry is the protocol's own, with one exact version that can be installed, a repository and a
    licence.
    """
    entries = read_catalogue()
    assert len(entries) >= 7
    assert [
        entry.name for entry in entries if not entry.name.startswith("io.github.modelcontextprotocol/")
    ] == []
    assert [(entry.name, entry.problem) for entry in entries if entry.package is None] == []
    assert [
        entry.name
        for entry in entries
        if not (entry.repository and entry.licence and entry.tools) or entry.hidden
    ] == []
    assert [
        entry.name
        for entry in entries
        if entry.package and entry.package.kind == "pypi" and not entry.package.sha256
    ] == []


@pytest.mark.parametrize(
    ("package", "problem"),
    [
        ({"identifier": "npx evil && curl x"}, "is not a package name"),
        ({"identifier": "a;b"}, "is not a package name"),
        ({"identifier": "--proxy=http://x"}, "is not a package name"),
        ({"version": "latest"}, "is not one exact version"),
        ({"version": ">=1.0"}, "is not one exact version"),
        ({"version": ""}, "has no version"),
        ({"registryType": "oci"}, "only pypi and npm"),
        ({"fileSha256": "zz"}, "its hash is not a SHA-256 hash"),
        ({"transport": {"type": "sse", "url": "http://x"}}, "does not speak on standard input"),
        ({"environmentVariables": [{"name": "LD_PRELOAD", "value": "/tmp/x.so"}]}, "which is not its own"),
        ({"environmentVariables": [{"name": "PATH", "isRequired": True}]}, "which is not its own"),
        ({"environmentVariables": [{"name": "NODE_OPTIONS", "default": "-r x"}]}, "which is not its own"),
        ({"environmentVariables": [{"name": "a b", "isSecret": True}]}, "which is not its own"),
        (
            {"packageArguments": [{"type": "positional", "valueHint": "token", "isRequired": True}]},
            "which only you can give",
        ),
        ({"packageArguments": [{"type": "positional", "value": "{token}"}]}, "only you can fill"),
        ({"packageArguments": [{"type": "positional", "value": "a\u202eb"}]}, "hidden characters"),
    ],
)
def test_a_package_that_could_mean_something_else_is_not_installed(
    package: dict[str, Any], problem: str
) -> None:
    """The entry is read and shown; it says why there is nothing to install."""
    entry = read_entry(server(**package), "here")
    assert entry.package is None
    assert problem in entry.problem


def test_arguments_and_variables_are_words() -> None:
    """Fixed values as they are, flags beside them, a folder that has to be given is the run's, required
    variables by name alone.
    """
    entry = read_entry(
        server(
            packageArguments=[
                {"type": "named", "name": "--mode", "value": "a b; c"},
                {"type": "positional", "valueHint": "folder", "format": "filepath", "isRequired": True},
                {"type": "positional", "valueHint": "more"},
            ],
            environmentVariables=[
                {"name": "B_TOKEN", "isRequired": True, "isSecret": True},
                {"name": "B_MODE", "default": "x"},
                {"name": "B"},
            ],
        ),
        "here",
    )
    package = entry.package
    assert package is not None
    assert (package.args, package.variables, package.settings) == (
        ("--mode", "a b; c", WORKSPACE),
        ("B_TOKEN",),
        (("B_MODE", "x"),),
    )
    against = {point.criterion: point.why for point in score_entry(entry, "b").points if point.points < 0}
    assert against == {"secrets": "is given B_TOKEN of your environment; not set: B_TOKEN"}


def test_what_is_no_entry_is_left_out_or_named(tmp_path: Path) -> None:
    """A registry may hold anything; in a file of ours the line is named."""
    rubbish: list[Any] = [
        None,
        3,
        "x",
        [],
        {},
        {"name": "no namespace"},
        {"name": "a/b\n"},
        {"name": "../x"},
        {"server": {"name": 4}},
    ]
    assert (
        read_entries([*rubbish, {**server(), "description": "x" * 70_000}, {"server": server()}], "there")[
            0
        ].name
        == "io.github.a/b"
    )
    path = tmp_path / "catalogue.jsonl"
    path.write_text(json.dumps(server()) + "\n\n{oops\n")
    with pytest.raises(UsageError, match="line 3: this is not an entry"):
        read_catalogue(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_catalogue(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("mcp-server-time", ""),
        ("mcp-server-tlme", "mcp-server-time"),
        ("mcp-server-tim3", "mcp-server-time"),
        ("mcp_servertime", "mcp-server-time"),
        ("mcp-server-itme", "mcp-server-time"),
        ("mcp-serverr-time", "mcp-server-time"),
        ("weather-of-tomorrow", ""),
    ],
)
def test_a_name_that_is_nearly_a_known_one_is_told(name: str, near: str) -> None:
    """One letter more, less, other or swapped, a digit for a letter, another separator: a warning that costs
    half of all points.
    """
    assert imitated_name(name, ["mcp-server-git", "mcp-server-time"]) == near
    entry = read_entry(server(identifier=name), "here")
    assert (
        "name" in [point.criterion for point in score_entry(entry, "b", ["mcp-server-time"]).points]
    ) == bool(near)


def test_points_follow_from_the_entry_alone() -> None:
    """The whole rubric of one entry; a registry's word for a namespace counts less, a deprecated server much
    less.
    """
    entry = read_entry(server(name="io.github.modelcontextprotocol/b", fileSha256="a" * 64), "catalogue")
    judged = score_entry(entry, "do b")
    assert [(point.criterion, point.points, point.most) for point in judged.points] == [
        ("match", 30, 30),
        ("namespace", 20, 20),
        ("version", 15, 15),
        ("hash", 10, 10),
        ("repository", 0, 10),
        ("licence", 0, 5),
        ("package", 10, 10),
    ]
    assert (judged.score, judged.usable) == (85, True)
    told = {
        "server": server(),
        "_meta": {"io.modelcontextprotocol.registry/official": {"status": "deprecated"}},
    }
    again = score_entry(read_entry(told, "https://example.org/v0.1"), "do b")
    assert (again.score, again.warnings) == (15, ("the registry says that it is deprecated",))


class Answering(BaseHTTPRequestHandler):
    """A registry that answers as its path says."""

    asked: list[str] = []
    stop = threading.Event()

    def do_GET(self) -> None:
        where, query = urlsplit(self.path), parse_qs(urlsplit(self.path).query)
        how = where.path.split("/")[1]
        self.asked.append(self.path)
        if how == "slow":
            self.stop.wait(30)
        page = int(query.get("cursor", ["0"])[0])
        found = [{"server": server(f"io.github.a/{query['search'][0]}{page}")}, None]
        body = {
            "good": json.dumps({"servers": found, "metadata": {"nextCursor": str(page + 1)}}),
            "garbage": "<html>",
            "list": "[1, 2]",
            "deep": "[" * 100_000,
            "huge": json.dumps({"servers": [server()] * 40_000}),
        }.get(how, "{}")
        self.send_response(500 if how == "broken" else 302 if how == "moved" else 200)
        if how == "moved":
            self.send_header("Location", "http://127.0.0.1:1/secret")
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        try:
            self.wfile.write(body.encode())
        except OSError:  # the asker has heard enough
            pass

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the registry is."""
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.server_port}"
    Answering.stop.set()
    listening.shutdown()
    listening.server_close()


def test_a_registry_is_asked_word_by_word_and_page_by_page(address: str) -> None:
    """Its search looks at names only: each telling word is asked for, a bounded number of pages is read."""
    Answering.asked.clear()
    registry = Registry(Registry.at(f"{address}/good", Reach(env={})).service, seconds=PATIENCE_S)
    found = asyncio.run(registry.search("look at the git history"))
    assert [entry.name for entry in found] == [
        f"io.github.a/{word}{page}" for word in ("history", "look", "git") for page in (0, 1)
    ]
    assert Answering.asked[0] == "/good/v0.1/servers?search=history&limit=30&version=latest"
    Answering.asked.clear()
    asyncio.run(Registry.at(f"{address}/good/v0/", Reach(env={})).search("git"))
    assert Answering.asked[1] == "/good/v0/servers?search=git&limit=30&version=latest&cursor=1"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("garbage", "not JSON"),
        ("deep", "not JSON"),
        ("huge", "larger than"),
        ("broken", "500"),
        ("slow", "0.5 s"),
        ("moved", "302"),
    ],
)
def test_a_registry_that_makes_no_sense_is_told_of_and_breaks_nothing(
    address: str, how: str, why: str
) -> None:
    """Garbage, too much, errors, silence, a redirect elsewhere: one sentence with the reason, in bounded
    time.
    """
    registry = Registry(
        Registry.at(f"{address}/{how}", Reach(env={})).service, seconds=0.5 if how == "slow" else PATIENCE_S
    )
    with pytest.raises(ConnectionError, match=f"the registry at .* did not answer: .*{why}"):
        asyncio.run(registry.search("git"))


def test_a_registry_of_another_shape_is_an_error(address: str) -> None:
    """Other JSON than expected is not an answer without servers; an address that is none is a mistake of
    whoever wrote it.
    """
    with pytest.raises(ConnectionError, match="answered in another shape"):
        asyncio.run(Registry.at(f"{address}/list", Reach(env={})).search("git"))
    with pytest.raises(UsageError, match="mcp_registry is not an address"):
        Registry.at("ftp://x", Reach(env={}))


PACKAGES = {
    "mcp-b==1.0": ("pypi", "mcp-b", "1.0", "mcp-b"),
    "npm:b==1.0.0": ("npm", "b", "1.0.0", "b"),
    "npm:@scope/b==1.0.0-rc.1": ("npm", "@scope/b", "1.0.0-rc.1", "b"),
}


@pytest.mark.parametrize("pin", PACKAGES)
def test_a_package_is_read_as_it_is_written(pin: str) -> None:
    """As a pin and as an object, with all that belongs to it; its program is called as it is, unless it says
    otherwise.
    """
    package = named_package(pin)
    assert (package.kind, package.name, package.version, package.program) == PACKAGES[pin]
    assert package.pin == pin
    more: dict[str, Any] = {
        "sha256": "a" * 64,
        "command": "go",
        "args": ["-v"],
        "variables": ["A"],
        "settings": [["B", "c"]],
    }
    whole = Package.from_json({"package": pin, **more})
    assert (whole.program, whole.args, whole.variables, whole.settings, whole.pin) == (
        "go",
        ("-v",),
        ("A",),
        (("B", "c"),),
        pin,
    )
    assert Package.from_json(whole.as_json()) == whole
    assert Package.from_json(package.as_json()) == Package.from_json({"package": pin}) == package
    with pytest.raises(KeyError):
        Package.from_json({"name": "mcp-b"})


def test_a_version_may_be_so_long_and_no_longer() -> None:
    """64 letters."""
    assert named_package("b==1." + "0" * 62).version == "1." + "0" * 62
    with pytest.raises(UsageError, match="is not one exact version"):
        named_package("b==1." + "0" * 63)


def test_an_entry_and_a_catalogue_have_bounds(tmp_path: Path) -> None:
    """64,000 characters of an entry; of two entries of one name the first counts."""
    path = tmp_path / "catalogue.jsonl"

    def of_length(size: int) -> dict[str, Any]:
        return {**server(), "x": "x" * (size - len(json.dumps({**server(), "x": ""})))}

    path.write_text(
        f"{json.dumps(of_length(64_000))}\n{json.dumps({**server(), 'description': 'Another.'})}\n"
    )
    assert [entry.description for entry in read_catalogue(path)] == ["Do b."]
    assert len(read_entries([of_length(64_000)], "there")) == 1
    assert read_entries([of_length(64_001)], "there") == []
    path.write_text(json.dumps(of_length(64_001)))
    with pytest.raises(UsageError, match=r"line 1: .*it has more than 64,000 characters"):
        read_catalogue(path)


def test_the_first_package_that_can_be_installed_is_taken() -> None:
    """Where there is none, each says why; a server without packages is a service, or says nothing at all."""
    (good,) = server()["packages"]
    bad = {**good, "registryType": "oci"}
    assert read_entry({**server(), "packages": [None, bad, good]}, "h").package == named_package("mcp-b==1.0")
    two = read_entry({**server(), "packages": [bad, {**good, "version": "latest"}]}, "h").problem
    assert (
        two == "a package of type oci cannot be installed: only pypi and npm; 'latest' is not one exact "
        "version of mcp-b"
    )
    assert (
        read_entry({**server(), "packages": [], "remotes": [{}]}, "h").problem
        == "it is offered as a remote service only"
    )
    assert read_entry({**server(), "packages": 3}, "h").problem == "it names no package"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([{"type": "named", "name": "--quiet"}], ()),
        (
            [
                {"type": "named", "name": "--quiet", "value": "1"},
                {"type": "positional", "name": "x", "default": "d"},
            ],
            ("--quiet", "1", "d"),
        ),
        ([{"type": "named", "name": "--in", "isRequired": True, "format": "filepath"}], ("--in", WORKSPACE)),
        ([{"type": "positional", "value": "w" * 500}], ("w" * 500,)),
        ([{"type": "positional", "value": str(number)} for number in range(25)], tuple(map(str, range(20)))),
        ([None, {"value": "v"}], ("v",)),
        (
            [{"type": "positional", "value": "w" * 501}],
            "its arguments have hidden characters, or are too long",
        ),
        ([{"type": "positional", "value": "a\nb"}], "its arguments have hidden characters, or are too long"),
        (
            [{"type": "named", "name": "--key", "isRequired": True}],
            "it needs the argument --key, which only you can give",
        ),
        (
            [{"type": "named", "name": "--key", "valueHint": "key", "isRequired": True}],
            "it needs the argument key, which only you can give",
        ),
    ],
)
def test_arguments_are_taken_as_far_as_they_are_known(
    arguments: list[Any], words: tuple[str, ...] | str
) -> None:
    """Values and defaults with their flags, at most twenty; what is only possible is left out, what is
    missing is named.
    """
    entry = read_entry(server(packageArguments=arguments), "h")
    assert (entry.problem or (entry.package and entry.package.args)) == words


@pytest.mark.parametrize(
    ("variable", "wanted", "settings"),
    [
        ({"name": "A", "isRequired": True}, ("A",), ()),
        ({"name": "A", "isRequired": True, "value": "v"}, (), (("A", "v"),)),
        ({"name": "A", "isSecret": True}, (), ()),
        ({"name": "A", "isSecret": True, "default": "v"}, (), (("A", "v"),)),
        ({"name": "A", "value": "v" * 500}, (), (("A", "v" * 500),)),
        ({"name": "A", "value": "v" * 501}, (), ()),
        ({"name": "A", "value": "$HOME"}, (), ()),
        ({"name": "A", "value": "a\u202eb"}, (), ()),
        ({"name": "PATH"}, (), ()),
    ],
)
def test_variables_are_wanted_or_set(variable: dict[str, Any], wanted: Any, settings: Any) -> None:
    """What it needs and does not say is wanted of us; what it says is set, unless that could mean something
    else.
    """
    package = read_entry(server(environmentVariables=[None, variable]), "h").package
    assert package is not None
    assert (package.variables, package.settings) == (wanted, settings)


def test_the_status_of_an_entry_is_the_worst_that_is_said() -> None:
    """By itself or by its registry; what others say of it is nothing."""

    def status(meta: Any = None, **more: Any) -> str:
        return read_entry({"server": {**server(), **more}, "_meta": meta}, "h").status

    assert (status(), status(status="active"), status(status="deleted"), status(meta=3)) == (
        "active",
        "active",
        "deleted",
        "active",
    )
    assert status({"x/official": {"status": "deprecated"}}, status="active") == "deprecated"
    assert status({"x/other": {"status": "deprecated"}, "x/official": "deprecated"}) == "active"


def test_an_entry_is_found_by_its_name_its_words_and_its_tools() -> None:
    """And by the name of its package."""
    told = {
        "io.github.kestrel-lab/catalogue": {
            "tools": ["look: Look.", 3, "see: See."],
            "licence": "MIT",
            "command": "go",
        }
    }
    entry = read_entry({**server(), "_meta": told, "repository": {"url": "https://x"}}, "h")
    found = entry.described()
    assert (found.name, found.description, found.parameters, found.server) == (
        "io.github.a/b",
        "Do b.",
        "look: Look.  see: See.",
        "io.github.a/b mcp-b",
    )
    assert (entry.licence, entry.repository, entry.hidden) == ("MIT", "https://x", False)
    assert entry.package is not None and entry.package.program == "go"
    assert read_entry({**server(), "description": "two\r\nlines"}, "h").hidden is False
    assert read_entry({**server(), "description": "a\u200bb"}, "h").hidden is True


@pytest.mark.parametrize(("cursor", "pages"), [("", 1), (None, 1), ("c" * 1_000, 2), ("c" * 1_001, 1)])
def test_a_registry_is_read_on_where_it_says_so(cursor: str | None, pages: int) -> None:
    """Two pages at most, and not from a place that is named at length."""
    asked: list[str] = []

    class Scripted(Service):
        async def get(self, path: str, **query: str | int) -> Any:
            asked.append(str(query["cursor"]))
            return {"servers": [{"server": server()}], "metadata": {"nextCursor": cursor}}

    service = Scripted(name="the registry", base="https://r", reach=Reach(env={}), headers={})
    found = asyncio.run(Registry(service).search("git"))
    assert (len(found), asked) == (1, ["", cursor][:pages])


def test_a_registry_has_a_version() -> None:
    """Which is added where it is missing."""
    for address, base in (
        ("https://r/x", "https://r/x/v0.1"),
        ("https://r/v1/", "https://r/v1"),
        (" https://r/v2.3", "https://r/v2.3"),
    ):
        assert Registry.at(address, Reach(env={})).service.base == base
