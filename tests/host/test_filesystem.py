"""Which file system a path lies on, folders and files that only their owner reads, and locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.host.filesystem import (
    check_local,
    is_network,
    is_shared,
    kind_of_filesystem,
    private_file,
    private_folder,
    try_lock_file,
)


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    """The longest mount point that holds the path, of equal ones the last; escaped names and lines that
    cannot be read are no obstacle.
    """
    root = tmp_path.resolve()
    mounts = tmp_path / "mountinfo"
    spaced = root / "a b"
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/sda rw",
        f"2 1 8:1 / {root}/data rw - nfs4 host:/ rw",
        f"3 1 8:1 / {root}/data rw - xfs /dev/sdb rw",
        f"4 1 8:1 / {root}/dat rw - cifs host:/ rw",
        f"5 1 8:1 / {str(spaced).replace(' ', chr(92) + '040')} rw - btrfs /dev/sdc rw",
        "6 1 8:1 /",
        f"7 1 8:1 / {root}/data/deep rw",
        f"8 1 8:1 / {root}/short - tmpfs none rw",
    ]
    mounts.write_text("\n".join(lines))
    found = {
        name: kind_of_filesystem(tmp_path / name, mounts)
        for name in ("x", "data", "data/x", "data/deep", "database", "a b/x", "short")
    }
    assert found == {
        "x": "ext4",
        "data": "xfs",
        "data/x": "xfs",
        "data/deep": "xfs",
        "database": "ext4",
        "a b/x": "btrfs",
        "short": "tmpfs",
    }
    assert kind_of_filesystem(tmp_path, tmp_path / "missing") == ""


@pytest.mark.parametrize(
    ("kind", "network", "shared"),
    [
        ("ext4", False, False),
        ("nfs4", True, True),
        ("fuse.sshfs", True, True),
        ("fuse.mergerfs", False, True),
        ("9p", False, True),
        ("", False, False),
    ],
)
def test_network_and_shared_file_systems_are_told_apart(kind: str, network: bool, shared: bool) -> None:
    """A log may lie on what is only shared with a host, with doubts; on a network it is refused with what to
    do.
    """
    assert (is_network(kind), is_shared(kind)) == (network, shared)
    if network:
        with pytest.raises(UsageError, match=f"network file system \\({kind}\\).*KESTREL_HOME"):
            check_local(Path("/x"), kind)
    else:
        check_local(Path("/x"), kind)


def test_a_folder_becomes_private_with_all_that_is_in_it(tmp_path: Path) -> None:
    """Whether others could read it before is said; links are not followed."""
    outside = tmp_path / "outside"
    outside.write_text("")
    outside.chmod(0o644)
    assert private_folder(tmp_path / "deep" / "new") is False
    assert (tmp_path / "deep" / "new").stat().st_mode & 0o777 == 0o700
    open_one = tmp_path / "open"
    (open_one / "inner").mkdir(parents=True)
    for place in (open_one / "file", open_one / "inner" / "file"):
        place.write_text("")
        place.chmod(0o664)
    (open_one / "link").symlink_to(outside)
    open_one.chmod(0o755)
    (open_one / "inner").chmod(0o775)
    assert private_folder(open_one) is True
    assert [
        place.stat().st_mode & 0o777
        for place in (open_one, open_one / "inner", open_one / "file", open_one / "inner" / "file")
    ] == [
        0o700,
        0o700,
        0o600,
        0o600,
    ]
    assert outside.stat().st_mode & 0o777 == 0o644
    assert private_folder(open_one) is False


@pytest.mark.parametrize("place", ["work", "", "home"])
def test_folders_that_hold_more_than_the_log_are_left_as_they_are(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that somebody works in, the home, and what is above them."""
    for name in ("work", "home/inner"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in (tmp_path, tmp_path / "work", tmp_path / "home"):
        folder.chmod(0o755)
    assert private_folder(tmp_path / place) is False
    assert (tmp_path / place).stat().st_mode & 0o777 == 0o755
    everybodys = tmp_path / "tmp"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    assert private_folder(everybodys) is False
    assert everybodys.stat().st_mode & 0o7777 == 0o1777


def test_a_file_is_made_private_or_becomes_so(tmp_path: Path) -> None:
    """Its content stays; what is no file of ours is left alone."""
    umask = os.umask(0)
    try:
        private_file(tmp_path / "new")
    finally:
        os.umask(umask)
    (tmp_path / "old").write_text("kept")
    (tmp_path / "old").chmod(0o664)
    private_file(tmp_path / "old")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "old")] == [0o600, 0o600]
    assert (tmp_path / "old").read_text() == "kept"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "pipe").chmod(0o644)
    private_file(tmp_path / "pipe")
    assert (tmp_path / "pipe").stat().st_mode & 0o777 == 0o644


def test_one_holder_of_a_lock_at_a_time(tmp_path: Path) -> None:
    """The second is told that it has not got it, and leaving its block takes nothing from the first."""
    file = tmp_path / "folder" / "lock"
    with try_lock_file(file) as first:
        for _ in range(2):
            with try_lock_file(file) as second:
                assert (first, second) == (True, False)
    with try_lock_file(file) as again:
        assert again
