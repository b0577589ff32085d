"""The barriers of `kestrel doctor`: each holds here, and each can fail."""

from pathlib import Path

import pytest

from kestrel_lab.cli import barriers as trying
from kestrel_lab.cli.barriers import barriers, log_place, secrets_hidden, web_closed
from kestrel_lab.core.filesystem import is_shared, kind_of_filesystem
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.lab import Lab


def test_every_barrier_holds_here(tmp_path: Path) -> None:
    """With secrets in the environment, which are counted and not shown."""
    lab = Lab(tmp_path / "home", env={"A_API_KEY": "xyzzy-plugh-9"})
    assert [(one.name, one.holds) for one in barriers(lab)] == [
        ("secrets", True),
        ("web tools", True),
        ("paths", True),
        ("log's disk", True),
    ]
    told = repr(barriers(lab))
    assert ("1 secret variable known; hidden in what tools say" in told, "xyzzy" in told) == (True, False)
    lab.close()


def test_a_barrier_that_does_not_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutants: a redactor that knows nothing, an address check that lets all pass or none, a log on a network disk."""
    lab = Lab(tmp_path / "home", env={"A_API_KEY": "xyzzy-plugh-9"})
    lab.redactor = Redactor()
    assert (secrets_hidden(lab).holds, secrets_hidden(lab).found) == (False, "1 secret variable known; 1 come through")
    monkeypatch.setattr(trying, "refusal", lambda address: "")
    assert web_closed().found.startswith("would reach 127.0.0.1, ")
    monkeypatch.setattr(trying, "refusal", lambda address: "no")
    assert not web_closed().holds
    monkeypatch.setattr(trying, "kind_of_filesystem", lambda path: "nfs4")
    assert (log_place(tmp_path).holds, "KESTREL_HOME" in log_place(tmp_path).advice) == (False, True)
    lab.close()


def test_the_innermost_mount_says_what_a_place_is_on(tmp_path: Path) -> None:
    """Names with blanks, later mounts over earlier ones, and a table that is not there."""
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n2 1 0:5 / /mnt\\040x rw - nfs4 host:/x rw\n3 2 0:6 / /mnt\\040x/in rw - fuse.sshfs y rw\n"
        "4 1 0:7 / /mnt\\040x/in rw - tmpfs t rw\ngarbage\n"
    )
    found = [kind_of_filesystem(Path(place), table) for place in ("/a", "/mnt x/deep/er", "/mnt x/in/z", "/mnt xy")]
    assert found == ["ext4", "nfs4", "tmpfs", "ext4"]
    assert (kind_of_filesystem(Path("/"), tmp_path / "gone"), [is_shared(kind) for kind in ("ext4", "fuse.sshfs", "cifs", "")]) == (
        "",
        [False, True, True, False],
    )
