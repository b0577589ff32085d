"""When a run's tool call is answered from the cache, when it must not be, and what happens when the cache
itself is broken.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from waits import PATIENCE_S

from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import HealthChanged, ToolAnswered
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.metrics import measure_run
from kestrel_lab.lab import Lab
from kestrel_lab.middleware.postgres_cache import PostgresStore
from kestrel_lab.runtime.context.tool_cache import DEPENDENCY, KIND, cache_key, is_cacheable
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.fingerprints import CHANGING, PathFingerprint, contents_fingerprint
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Tool, ToolContext

BOX = native_tools()


def key(made: Tool, root: Path, args: dict[str, Any], run: str = "r", pin: str = "") -> str | None:
    """The key of a call, once what it reads has been left alone for a moment."""
    call = Call(id="c", kind="tool", target=made.name, args=made.validate(args))
    until = time.monotonic() + 20
    while True:
        place = asyncio.run(cache_key(made, call, ToolContext(workspace=Workspace(root), run_id=run), pin))
        if place is None or place.key or time.monotonic() > until:
            return None if place is None else place.key
        time.sleep(0.01)


def rewritten(path: Path) -> None:
    """Another content of the same size, with the times of the one before."""
    before = path.stat()
    path.write_text(path.read_text().replace("one", "two"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    """Another file of the same name, size and time."""
    other = path.with_name("other")
    shutil.copy2(path, other)
    other.write_text(path.read_text().replace("one", "two"))
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "edited": lambda root: (root / "src/a.py").write_text("edited"),
    "rewritten": lambda root: rewritten(root / "src/a.py"),
    "replaced": lambda root: replaced(root / "src/a.py"),
    "touched": lambda root: os.utime(root / "src/a.py"),
    "added": lambda root: (root / "src/deep/new.py").write_text("one"),
    "removed": lambda root: (root / "src/deep/b.py").unlink(),
    "renamed": lambda root: (root / "src/deep/b.py").rename(root / "src/deep/c.py"),
    "other kind": lambda root: ((root / "src/deep/b.py").unlink(), (root / "src/deep/b.py").mkdir()),
    "ignored": lambda root: (root / "src/.gitignore").write_text("deep/\n"),
    "elsewhere": lambda root: (root / "elsewhere.txt").write_text("new"),
}
_CONTENT = {"edited", "rewritten", "replaced", "touched"}
_NAMES = {"added", "removed", "renamed", "other kind", "ignored"}


@pytest.mark.parametrize(
    ("name", "args", "seen"),
    [
        ("read_file", {"path": "src/a.py"}, _CONTENT),
        (
            "batch_read",
            {"paths": ["src/deep/b.py", "src/a.py"]},
            _CONTENT | {"removed", "renamed", "other kind"},
        ),
        ("file_exists", {"path": "src/deep/new.py"}, {"added"}),
        ("list_directory", {"path": "src/deep"}, _NAMES - {"ignored"}),
        ("glob", {"pattern": "*.py", "path": "src"}, _NAMES),
        ("tree", {"path": "src"}, _NAMES),
        ("grep", {"pattern": "one", "path": "src"}, _CONTENT | _NAMES),
    ],
)
def test_a_change_of_what_was_read_is_a_miss(
    name: str, args: dict[str, Any], seen: set[str], tmp_path: Path
) -> None:
    """Each file tool has another key after every change that its answer may hang on, and the same key again
    for equal calls.
    """
    for change in CHANGES:
        (tmp_path / change / "src/deep").mkdir(parents=True)
        (tmp_path / change / "src/a.py").write_text("one\n")
        (tmp_path / change / "src/deep/b.py").write_text("one\n")
    before = {change: key(BOX.get(name), tmp_path / change, args) for change in CHANGES}
    assert before == {change: key(BOX.get(name), tmp_path / change, args) for change in CHANGES}
    assert all(before.values())
    for change, make in CHANGES.items():
        make(tmp_path / change)
    unseen = {change: key(BOX.get(name), tmp_path / change, args) == before[change] for change in CHANGES}
    assert {change for change, same in unseen.items() if not same} == seen


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("read_file", {"path": "src/a.py"}),
        ("batch_read", {"paths": ["src/a.py"]}),
        ("list_directory", {"path": "src"}),
        ("glob", {"pattern": "*.py", "path": "src"}),
        ("tree", {"path": "src"}),
        ("grep", {"pattern": "one", "path": "src"}),
    ],
)
def test_a_path_is_one_path_however_it_is_spelled(name: str, args: dict[str, Any], tmp_path: Path) -> None:
    """`./a`, `b/../a` and the absolute path are the key of `a`; a mutant that hashes the words has four
    keys.
    """
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("one\n")

    def spelled(how: str) -> dict[str, Any]:
        return {
            one: [how + path for path in value] if one == "paths" else how + value if one == "path" else value
            for one, value in args.items()
        }

    proper = BOX.get(name)
    assert isinstance(proper.fingerprint, PathFingerprint)
    mutant = replace(proper, fingerprint=proper.fingerprint.state)
    ways = ["", "./", "src/../", f"{tmp_path}/"]
    assert [len({key(made, tmp_path, spelled(how)) for how in ways}) for made in (proper, mutant)] == [1, 4]


def test_forgetting_what_was_read_is_caught(tmp_path: Path) -> None:
    """A mutant whose fingerprint looks at the size and time of a file alone takes a rewritten file for the
    one before.
    """
    (tmp_path / "a.py").write_text("one")

    def forgetful(args: dict[str, Any], ctx: ToolContext) -> str:
        status = (ctx.workspace.root / args["path"]).stat()
        return f"{status.st_size}:{status.st_mtime_ns}"

    proper, mutant = BOX.get("read_file"), replace(BOX.get("read_file"), fingerprint=forgetful)
    before = [key(made, tmp_path, {"path": "a.py"}) for made in (proper, mutant)]
    rewritten(tmp_path / "a.py")
    after = [key(made, tmp_path, {"path": "a.py"}) for made in (proper, mutant)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True]


def test_each_part_of_a_key_counts(tmp_path: Path) -> None:
    """Arguments, folder and definition make other keys; the run only where the scope is the run, the folder
    not where it is global.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()

    @tool(effect="pure", cache_ttl_seconds=60, cache_scope="workspace")
    def look(word: str, often: int = 1) -> str:
        """Look."""
        return word

    first = key(look, one, {"word": "a"})
    assert first == key(look, one, {"often": 1, "word": "a"}, run="other")
    others = [
        key(look, one, {"word": "b"}),
        key(look, two, {"word": "a"}),
        key(look, one, {"word": "a"}, pin="v2"),
    ]
    assert len({first, *others}) == 4
    shared = replace(look, cache_scope="global")
    assert key(shared, one, {"word": "a"}) == key(shared, two, {"word": "a"})
    single = replace(look, cache_scope="run")
    assert key(single, one, {"word": "a"}) != key(single, one, {"word": "a"}, run="other")
    one.rename(tmp_path / "before")
    one.mkdir()  # another folder of the same name
    assert key(look, one, {"word": "a"}) != first


def test_what_says_nothing_of_its_age_is_not_reused(tmp_path: Path) -> None:
    """A pure tool with neither fingerprint nor time is called each time, and so is one whose fingerprint
    fails, with a warning.
    """

    @tool(effect="pure")
    def bare() -> int:
        """Bare."""
        return 1

    def fails(args: dict[str, Any], ctx: ToolContext) -> str:
        raise KeyError("x")

    assert not is_cacheable(bare)
    assert not is_cacheable(BOX.get("write_file"))
    assert not is_cacheable(BOX.get("ask_user"))
    with pytest.warns(UserWarning, match="fingerprint failed"):
        assert key(replace(bare, fingerprint=fails), tmp_path, {}) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"effect": "idempotent", "cache_ttl_seconds": 5},
            "answers of a tool with effect 'idempotent' are never reused",
        ),
        ({"effect": "opaque", "fingerprint": lambda args, ctx: "x"}, "never reused"),
        ({"effect": "pure", "cache_ttl_seconds": 0}, "positive number of seconds"),
        ({"effect": "pure", "cache_ttl_seconds": float("inf")}, "positive number of seconds"),
        ({"effect": "pure", "cache_scope": "workspce"}, "did you mean 'workspace'"),
    ],
)
def test_wrong_caching_is_refused(options: dict[str, Any], message: str) -> None:
    """Only pure tools may say how long answers hold, and only for a time that there is."""

    def look() -> str:
        """Look."""
        return ""

    with pytest.raises(UsageError, match=message):
        tool(**options)(look)


def test_too_much_to_watch_is_not_watched(tmp_path: Path) -> None:
    """Where comparing would cost about what the call does, the call is made."""
    for number in range(2_001):
        (tmp_path / f"f{number}").touch()
    scope = ToolContext(workspace=Workspace(tmp_path))
    assert asyncio.run(contents_fingerprint({"path": "."}, scope)) is None  # type: ignore[arg-type]  # a coroutine
    (tmp_path / "f0").unlink()
    assert asyncio.run(contents_fingerprint({"path": "."}, scope)) is not None  # type: ignore[arg-type]


def told(run: Run) -> list[tuple[str, bool]]:
    """What the tools answered, and whether from the cache."""
    return [(event.text, event.cached) for event in run.events() if isinstance(event, ToolAnswered)]


def go(session: Lab, workspace: Path, *turns: Any, **options: Any) -> Run:
    """A run in which a script asks for calls."""
    return asyncio.run(
        session.run("go", model=ScriptedModel([*turns, "done"]), workspace=workspace, **options)
    )


def test_the_second_tree_is_a_hit(session: Lab, workspace: Path) -> None:
    """An equal call in another run is a hit; a new file makes it a call; the run says how many hits there
    were, and the metrics their rate.
    """
    (workspace / "a.txt").write_text("a")
    turn = [("tree", {})]
    first, second = (
        go(session, workspace, turn),
        go(session, workspace, turn, turn, [("bash", {"command": "true"})], approve="deny"),
    )
    assert told(first) == [("./\n  a.txt", False)]
    assert told(second)[:2] == [("./\n  a.txt", True)] * 2
    assert "3 tool calls · 2 of 2 from the cache" in repr(second.report)
    assert "from the cache" not in repr(first.report)
    assert "2 of 2 from the cache" in second._repr_html_()
    (workspace / "b.txt").write_text("b")
    third = go(session, workspace, turn, turn)
    assert [cached for _, cached in told(third)] == [False, True]
    rates = [measure_run(run.records()).get("cache_hit_rate") for run in (first, second, third)]
    assert rates == [0.0, 1.0, 0.5]


def test_a_read_sees_the_write_before_it(session: Lab, workspace: Path) -> None:
    """In one turn a read after a write reads what was written, though the text from before is in the
    cache.
    """
    path = workspace / "a.txt"
    path.write_text("old")
    assert key(BOX.get("read_file"), workspace, {"path": "a.txt"}) != CHANGING
    read = ("read_file", {"path": "a.txt"})
    run = go(
        session,
        workspace,
        [read],
        [read, ("write_file", {"path": "a.txt", "content": "new"}), read],
        approve="auto",
    )
    assert [text.splitlines()[0] for text, _ in told(run)] == [
        "old",
        "old",
        "replaced a.txt (1 line, 3 bytes)",
        "new",
    ]
    assert [cached for _, cached in told(run)] == [False, True, False, False]


def test_what_is_denied_is_not_answered_from_the_cache(session: Lab, workspace: Path) -> None:
    """A call that the policy refuses gets no stored answer either."""

    @tool(danger_level="medium", effect="pure", cache_ttl_seconds=60)
    def secret() -> str:
        """Tell."""
        return "the secret"

    allowed = go(session, workspace, [("secret", {})], tools=[secret], approve="auto")
    refused = go(session, workspace, [("secret", {})], tools=[secret], approve="deny")
    assert told(allowed) == [("the secret", False)]
    assert [(text[:33], cached) for text, cached in told(refused)] == [
        ("error: secret was denied by polic", False)
    ]


def test_modes_of_a_run_and_of_the_session(session: Lab, workspace: Path) -> None:
    """A run's own mode goes before the session's; a replay runs no pure tool and every other one."""
    ran: list[str] = []

    @tool(danger_level="safe", effect="pure", cache_ttl_seconds=60)
    def pure() -> str:
        """Look."""
        ran.append("pure")
        return f"answer {len(ran)}"

    @tool(danger_level="safe")
    def opaque() -> str:
        """Act."""
        ran.append("opaque")
        return "acted"

    both: Any = [("pure", {}), ("opaque", {})]
    options: dict[str, Any] = {"tools": [pure, opaque]}
    missed = go(session, workspace, both, cache="replay", **options)
    assert [text.partition(" for ")[0] for text, _ in told(missed)] == [
        "error: the cache is on replay and has no answer of pure",
        "acted",
    ]
    assert go(session, workspace, both, cache="off", **options).status is RunStatus.COMPLETE
    assert told(go(session, workspace, both, **options))[0] == ("answer 4", False)
    session.cache.mode = "replay"
    assert told(go(session, workspace, both, **options))[0] == ("answer 4", True)
    assert told(go(session, workspace, both, cache="refresh", **options))[0] == ("answer 7", False)
    assert told(go(session, workspace, both, **options))[0] == ("answer 7", True)
    with pytest.raises(UsageError, match="unknown cache mode"):
        go(session, workspace, both, cache="reply", **options)
    with pytest.raises(UsageError, match="unknown cache mode"):
        session.cache.mode = "reply"


@pytest.mark.parametrize("place", ["redis", "postgres", "folder"])
def test_a_broken_cache_harms_no_run(place: str, tmp_path: Path, workspace: Path) -> None:
    """With a server that is gone, or no folder to keep answers in, runs go on, are told once, and the table
    of health says what to do.
    """
    urls = {"redis": f"unix://{tmp_path}/no.sock", "postgres": f"postgresql:///db?host={tmp_path}"}
    if place in urls:
        pytest.importorskip({"redis": "redis", "postgres": "asyncpg"}[place])
    home = tmp_path / "home"
    home.mkdir()
    (home / "cache").write_text("in the way")
    session = Lab(home, env={}, cache_url=urls.get(place))
    turns = [[("tree", {})]] * 5
    with pytest.warns(UserWarning, match="starts empty") if place == "folder" else nullcontext():
        first = go(session, workspace, *turns)
    second = go(session, workspace, *turns)
    assert [cached for _, cached in told(first) + told(second)] == [False] * 10
    changes = [event for event in first.events() if isinstance(event, HealthChanged)]
    assert [(event.kind, event.dependency, event.target) for event in changes] == [
        (KIND, DEPENDENCY, "recovering")
    ]
    assert [event for event in second.events() if isinstance(event, HealthChanged)] == []
    watched = session.supervisor.get(DEPENDENCY)
    assert watched is not None
    assert "Runs go on without stored answers" in str(watched.error())
    session.close()


def test_sessions_share_answers_on_postgresql_and_outlive_it(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one session stored another is given; when the server dies in the middle of a run, the run goes on
    without stored answers.
    """
    pytest.importorskip("asyncpg")
    monkeypatch.setattr(
        PostgresStore.__init__, "__kwdefaults__", {"timeout_s": PATIENCE_S, "connect_s": PATIENCE_S}
    )
    server = PostgresServer()
    try:
        server.start()
        kept: list[int] = []

        @tool(cache_ttl_seconds=60, cache_scope="global", effect="pure")
        def twice(number: int) -> int:
            """Double a number."""
            kept.append(number)
            if number == 3:
                server.stop()
            return 2 * number

        def session(name: str) -> Lab:
            return Lab(tmp_path / name, env={}, cache_url=server.url())

        with session("a") as a, session("b") as b:
            first = go(a, workspace, [("twice", {"number": 1})], [("twice", {"number": 2})], tools=[twice])
            second = go(
                b,
                workspace,
                [("twice", {"number": 1})],
                [("twice", {"number": 3})],
                [("twice", {"number": 2})],
                tools=[twice],
            )
            assert told(first) == [("2", False), ("4", False)]
            assert told(second)[0] == ("2", True)
            assert [text for text, _ in told(second)] == ["2", "6", "4"]
            assert second.status is RunStatus.COMPLETE
            assert [event.target for event in second.events() if isinstance(event, HealthChanged)] == [
                "recovering"
            ]
            assert kept == [1, 2, 3, 2]
    finally:
        server.close()
