"""Answers kept and used again, on a shelf that trusts nobody who can write its file."""

import asyncio
import pickle
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kestrel_lab.core.calls import Call, Problem, Result
from kestrel_lab.core.events import CacheHit
from kestrel_lab.middleware.cache import ToolCache
from kestrel_lab.middleware.compose import compose
from kestrel_lab.middleware.jsondisk import open_cache

CALL = Call(id="1", kind="tool", target="read", args={"path": "a"})


@dataclass
class Scene:
    """A cached call whose outside state can be changed."""

    shelf: dict[str, str] = field(default_factory=dict)
    state: str | None = "v1"
    runs: int = 0
    hits: list[CacheHit] = field(default_factory=list)
    result: Result = Result(value={"text": "\ud800"})  # noqa: RUF009  # frozen
    changes_while_running: bool = False

    async def run(self, _: Call) -> Result:
        """The real call."""
        self.runs += 1
        if self.changes_while_running:
            self.state = "v2"
        return self.result

    def call(self) -> Result:
        """Make the call through the cache."""
        layer = ToolCache(_Shelf(self.shelf), lambda _: self.state, self.hits.append)

        async def once() -> Result:
            return await compose(self.run, layer)(CALL)

        return asyncio.run(once())


@dataclass
class _Shelf:
    kept: dict[str, str]

    def get(self, key: str) -> str | None:
        return self.kept.get(key)

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value


def test_an_answer_is_used_again_while_nothing_changed() -> None:
    """The second equal call is answered from the shelf, is marked so and recorded; a changed state asks anew."""
    scene = Scene()
    assert scene.call() == scene.result
    assert scene.call() == Result(value={"text": "\ud800"}, cached=True)
    assert (scene.runs, scene.hits) == (1, [CacheHit(call="1", tool="read", key="v1")])
    scene.state = "v2"
    assert scene.call() == scene.result
    assert scene.runs == 2


def test_what_may_not_be_reused_is_not_kept() -> None:
    """No key, a failure, and a state that changed while the call ran each leave the shelf empty."""
    uncached, failing, changing = (
        Scene(state=None),
        Scene(result=Result(error=Problem(kind="failed", message="no"))),
        Scene(changes_while_running=True),
    )
    for scene in (uncached, failing, changing):
        assert scene.call() == scene.result
        assert scene.shelf == {}


def test_what_is_no_json_is_a_miss() -> None:
    """A kept text that nobody here wrote is replaced by a real answer."""
    scene = Scene(shelf={"v1": "{broken"})
    assert scene.call() == scene.result
    assert scene.call().cached
    assert (scene.runs, len(scene.hits)) == (1, 1)


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.mark,))


def test_a_shelf_keeps_text_for_the_next_session(tmp_path: Path) -> None:
    """What is set is there after closing and opening, for text of any kind; anything but text is refused."""
    shelf = open_cache(tmp_path / "cache")
    shelf.set("k", "v\0é" * 100_000)
    with pytest.raises(TypeError, match="cached values are text"):
        shelf.set("k2", b"bytes")
    with pytest.raises(TypeError, match="cache keys are text"):
        shelf.set(1, "v")
    shelf.close()
    again = open_cache(tmp_path / "cache")
    assert again.get("k") == "v\0é" * 100_000
    assert again.get("other") is None
    assert {path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir()} == {"cache.db"}
    again.close()


@pytest.mark.parametrize("attack", ["pickle", "file", "bytes", "number"])
def test_a_tampered_row_is_a_miss(attack: str, tmp_path: Path) -> None:
    """A row rewritten to hold a pickle or to point at a file runs nothing, reads nothing and deletes nothing; it is a miss with a warning."""
    mark, secret = tmp_path / "mark", tmp_path / "secret.txt"
    secret.write_text("secret")
    shelf = open_cache(tmp_path / "cache")
    shelf.set("k", "v")
    shelf.close()
    raw = sqlite3.connect(tmp_path / "cache" / "cache.db")
    value, mode, filename = {
        "pickle": (pickle.dumps(Trap(mark)), 4, None),
        "file": (None, 2, "../secret.txt"),
        "bytes": (b"bytes", 1, None),
        "number": (5, 1, None),
    }[attack]
    raw.execute("UPDATE Cache SET value = ?, mode = ?, filename = ?", (value, mode, filename))
    raw.commit()
    raw.close()

    shelf = open_cache(tmp_path / "cache")
    with pytest.warns(UserWarning, match="tampered with"):
        assert shelf.get("k") is None
    shelf.set("k", "new")
    assert shelf.get("k") == "new"
    shelf.clear()
    shelf.close()
    assert not mark.exists()
    assert secret.read_text() == "secret"


def test_a_tampered_key_is_not_unpickled(tmp_path: Path) -> None:
    """Listing the keys of a shelf runs nothing that was put there."""
    mark = tmp_path / "mark"
    shelf = open_cache(tmp_path / "cache")
    shelf.set("k", "v")
    shelf.close()
    raw = sqlite3.connect(tmp_path / "cache" / "cache.db")
    raw.execute("UPDATE Cache SET key = ?, raw = 0", (pickle.dumps(Trap(mark)),))
    raw.commit()
    raw.close()
    shelf = open_cache(tmp_path / "cache")
    assert list(shelf) == [""]
    shelf.close()
    assert not mark.exists()
