"""On a full disk the log can be read, and each refusal says what is true and what helps."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_disk import can_mount, run_on_small_disk

pytestmark = pytest.mark.skipif(not can_mount(), reason="no namespaces of users, to mount a small disk in")

_LOG = """
import json
from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import Progress, RunStarted
from kestrel_lab.eventlog import connection, store as stores
from kestrel_lab.eventlog.store import SessionStore

def begin(store, run):
    store.create_run(run, RunStarted(goal=run, workspace="/w", model="m"))

def said(action):
    try:
        return action()
    except StoreError as error:
        return f"{type(error).__name__}: {error}"
"""


def outcome_of(folder: Path, code: str) -> Any:
    """What the code prints last, as JSON."""
    done = run_on_small_disk(folder, _LOG + code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


_READ = """
store = SessionStore(disk / "home" / "kestrel.db")
begin(store, "first")
if KILLED:
    store.flush()
    (disk / "home" / "copy").mkdir()
    for ending in ("", "-wal"):
        copied = Path(f"{store.path}{ending}").read_bytes()
        (disk / "home" / "copy" / f"kestrel.db{ending}").write_bytes(copied)
path = disk / "home" / "copy" / "kestrel.db" if KILLED else store.path
store.close()
MUTANT
fill_disk(LEAVE)
def read():
    store = SessionStore(path)
    found = [row.id for row in store.runs()], store.damage("first") is None, len(store.records("first"))
    written = said(lambda: begin(store, "second"))
    free_disk()
    begin(store, "third")
    store.flush()
    found = [*found, written, sorted(row.id for row in store.runs())]
    store.close()
    return found
print(json.dumps(said(read)))
"""


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
@pytest.mark.parametrize("leave", [0, 4_096, 16_384])
def test_a_log_is_read_on_a_full_disk(tmp_path: Path, leave: int, killed: bool) -> None:
    """With no room at all, also where a killed process left a write-ahead log; what is written is refused
    with the true reason, and written as soon as there is room.
    """
    code = _READ.replace("LEAVE", str(leave)).replace("KILLED", str(killed)).replace("MUTANT", "")
    runs, sound, events, refused, after = outcome_of(tmp_path, code)
    assert (runs, sound, events) == (["first"], True, 1)
    assert "StorageFull: no room on the disk for the log" in refused
    assert after == ["first", "third"]


def test_without_a_connection_that_needs_no_room_nothing_is_read(tmp_path: Path) -> None:
    """The mutant, which opens the log as if there was room."""
    mutant = "stores.connect_without_room = stores.connect_log"
    code = _READ.replace("LEAVE", "0").replace("KILLED", "False").replace("MUTANT", mutant)
    assert "StorageFull: no room on the disk for the log" in outcome_of(tmp_path, code)


_BEGIN = """
store = SessionStore(disk / "home" / "kestrel.db")
begin(store, "first")
store.flush()
fill_disk()
text = "x" * 200_000
store.create_run("second", RunStarted(goal=text, workspace="/w", model="m"))
refusals = [said(store.append("second", Progress(text="a")).result) for _ in range(10)]
free_disk()
refusals.append(said(store.append("second", Progress(text="a")).result))
print(json.dumps([refusals, [row.id for row in store.runs()]]))
store.close()
"""


def test_a_run_that_could_not_begin_belongs_to_nobody(tmp_path: Path) -> None:
    """Each event of a run whose first one found no room is refused for that reason, and by no other session:
    the run is to be started again.
    """
    refusals, runs = outcome_of(tmp_path, _BEGIN)
    assert set(refusals) == {
        "StorageFull: no room on the disk for run second, which has not begun; free some space, then start it "
        "again: nothing acknowledged was lost"
    }
    assert runs == ["first"]


def kestrel_on_small_disk(folder: Path, *commands: list[str]) -> list[tuple[int, str]]:
    """What commands say in a home on a disk that is full after the first one."""
    code = f"""
import json, subprocess
os.chdir(disk)
env = os.environ | {{"KESTREL_HOME": str(disk / "home"), "HOME": str(disk), "COLUMNS": "200"}}
(disk / "script.yaml").write_text("rules: [{{when: '', turns: [done]}}]")
said = []
for index, words in enumerate({json.dumps(commands)}):
    done = subprocess.run([sys.executable, "-m", "kestrel_lab", *words], env=env, capture_output=True, text=True)
    said.append([done.returncode, done.stdout + done.stderr])
    if not index:
        fill_disk()
print(json.dumps(said))
"""
    done = run_on_small_disk(folder, code)
    assert done.returncode == 0, done.stderr
    return [(status, text) for status, text in json.loads(done.stdout)]


RUN = ["run", "go", "--model", "scripted:script.yaml"]


@pytest.mark.slow
def test_commands_on_a_full_disk_read_and_say_what_helps(tmp_path: Path) -> None:
    """`kestrel runs` lists, `kestrel run` says that there is no room; no advice to move a sound log away."""
    begun, listed, refused = kestrel_on_small_disk(tmp_path, RUN, ["runs"], RUN)
    assert (begun[0], listed[0]) == (0, 0), (begun, listed)
    assert "COMPLETE" in listed[1] and "scripted:script.yaml" in listed[1]
    assert refused[0] != 0
    assert "no room on the disk" in refused[1] and "free some space" in refused[1]
    assert "move it away" not in refused[1] and "session" not in refused[1]
