"""The barriers of `kestrel doctor`: each holds here, and each can fail."""

from pathlib import Path

import pytest

from kestrel_lab.cli.commands import doctor as trying
from kestrel_lab.cli.commands.doctor import log_place, probe_barriers, probe_redaction, probe_web_barrier
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.eventlog.connection import connect_log
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.filesystem import is_shared, kind_of_filesystem
from kestrel_lab.lab import Lab


def test_every_barrier_holds_here(tmp_path: Path) -> None:
    """With secrets in the environment, which are counted and not shown."""
    lab = Lab(tmp_path / "home", env={"A_API_KEY": "xyzzy-plugh-9"})
    assert [(one.what.removeprefix("barrier: "), one.ok) for one in probe_barriers(lab)] == [
        ("secrets", True),
        ("web tools", True),
        ("paths", True),
        ("log's disk", True),
    ]
    told = repr(probe_barriers(lab))
    assert ("1 secret variable known; hidden in tool output" in told, "xyzzy" in told) == (True, False)
    lab.close()


def test_a_barrier_that_does_not_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants: a redactor that knows nothing, an address check that lets all pass or none, a log on a
    network disk.
    """
    lab = Lab(tmp_path / "home", env={"A_API_KEY": "xyzzy-plugh-9"})
    lab.redactor = Redactor()
    assert (probe_redaction(lab).ok, probe_redaction(lab).found) == (
        False,
        "1 secret variable known; 1 not hidden",
    )
    monkeypatch.setattr(trying, "address_refusal", lambda address: "")
    assert probe_web_barrier().found.startswith("would reach 127.0.0.1, ")
    monkeypatch.setattr(trying, "address_refusal", lambda address: "no")
    assert not probe_web_barrier().ok
    monkeypatch.setattr(trying, "kind_of_filesystem", lambda path: "nfs4")
    assert (log_place(tmp_path).ok, "KESTREL_HOME" in log_place(tmp_path).advice) == (False, True)
    lab.close()


def test_the_innermost_mount_says_what_a_place_is_on(tmp_path: Path) -> None:
    """Names with blanks, later mounts over earlier ones, and a table that is not there."""
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n2 1 0:5 / /mnt\\040x rw - nfs4 host:/x rw\n3 2 "
        "0:6 / /mnt\\040x/in rw - fuse.sshfs y rw\n"
        "4 1 0:7 / /mnt\\040x/in rw - tmpfs t rw\ngarbage\n"
    )
    found = [
        kind_of_filesystem(Path(place), table) for place in ("/a", "/mnt x/deep/er", "/mnt x/in/z", "/mnt xy")
    ]
    assert found == ["ext4", "nfs4", "tmpfs", "ext4"]
    assert (
        kind_of_filesystem(Path("/"), tmp_path / "gone"),
        [is_shared(kind) for kind in ("ext4", "fuse.sshfs", "cifs", "")],
    ) == (
        "",
        [False, True, True, False],
    )


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuse.drive", "fuse", "davfs"])
def test_a_log_on_a_network_disk_is_refused(kind: str, tmp_path: Path) -> None:
    """Before anything is written there, with the file, its file system and what to do; one who says so takes
    the risk.
    """
    place = tmp_path / "share" / "k.db"
    with pytest.raises(
        UsageError,
        match=rf"k\.db lies on a network file system \({kind}\).*set KESTREL_HOME.*KESTREL_NETWORK_HOME=true",
    ):
        SessionStore(place, filesystem=lambda path: kind)
    assert not place.parent.exists()
    SessionStore(place, network=True, filesystem=lambda path: kind).close()
    assert place.exists()


@pytest.mark.parametrize("kind", ["ext4", "overlay", "tmpfs", "", "fuse.fuse-overlayfs", "fuseblk", "9p"])
def test_a_log_on_a_local_disk_is_opened(kind: str, tmp_path: Path) -> None:
    """Containers, encrypted folders and disks that cannot be told are no network; the doctor warns of what is
    doubtful.
    """
    SessionStore(tmp_path / "k.db", filesystem=lambda path: kind).close()


def test_the_home_of_a_lab_may_be_allowed_on_a_network(tmp_path: Path) -> None:
    """The setting reaches the log, from the environment too."""
    lab = Lab(tmp_path / "home", env={"KESTREL_NETWORK_HOME": "true"})
    assert lab.settings["network_home"] is True
    lab.close()


@pytest.mark.parametrize(
    ("sqlite", "refused"),
    [
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.2", True),
    ]
    + [("3.51.3", False), ("3.54.1", False), ("4.0.0", False)],
)
def test_a_sqlite_that_damages_logs_is_refused(sqlite: str, refused: bool, tmp_path: Path) -> None:
    """Versions with the fault are not let near a log, and none is made; the one here is let through."""
    if not refused:
        connect_log(tmp_path / "k.db", sqlite).close()
        return
    with pytest.raises(StoreError, match=f"SQLite {sqlite} has a fault.*upgrade apsw"):
        connect_log(tmp_path / "k.db", sqlite)
    assert list(tmp_path.iterdir()) == []
