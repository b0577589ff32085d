"""What holds for every test: no model is asked over the network, and nobody's keys or settings are seen."""

import ipaddress
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from kestrel_lab.runtime.session import Session

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a script: what this process ignores its children would ignore too, and Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_KEPT = {"KESTREL_ARTIFACTS", "KESTREL_CUTS", "KESTREL_KILLS"}
_SECRET_ENDINGS = ("_API_KEY", "_API_BASE", "_AUTH_TOKEN", "_ACCESS_KEY")


class RealRequestError(AssertionError):
    """A test was about to talk to another machine."""


def _loopback(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost", "0.0.0.0", "::"):  # a server of the test's own asks for these
        return True
    try:
        return ipaddress.ip_address(str(name).partition("%")[0]).is_loopback
    except ValueError:
        return False


def _guard(event: str, args: tuple[object, ...]) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(args[1], tuple):  # a path otherwise: a Unix socket
        host = args[1][0]
    else:
        return
    if not _loopback(host):
        msg = f"a test wants to reach {host!r}: use a fake, a cassette or a server on this machine"
        raise RealRequestError(msg)


def pytest_configure() -> None:
    """Install the guard, which no code can get around or take away, and clean the environment."""
    temporary = Path(tempfile.gettempdir()).resolve()
    for place in (temporary, *temporary.parents):
        if (place / ".git").exists():  # it happened: every suite of a test was then part of that repository, and its trials "dirty"
            msg = f"{place} is a git repository, and tests make their folders in it: remove {place / '.git'}, or set TMPDIR"
            raise pytest.UsageError(msg)
    settings.register_profile("kestrel", deadline=None)  # a first import takes longer than any deadline
    settings.load_profile("kestrel")
    sys.addaudithook(_guard)
    for name in list(os.environ):
        if (
            name.endswith(_SECRET_ENDINGS)
            or name in ("MODEL_PROVIDER", "OLLAMA_HOST")
            or (name.startswith("KESTREL_") and name not in _KEPT)
        ):
            del os.environ[name]
    os.environ["KESTREL_TRUST"] = "all"  # tests write the settings of their projects themselves, as a user does
    # Whichever test imports litellm first: by itself it asks the internet for prices.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: one that begins last would keep all but one processor idle."""
    slow = {item.path for item in items if any(item.get_closest_marker(name) for name in ("slow", "browser", "long"))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: a good part of the time tests wait, for kernels, browsers, servers and disks."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty folder for runs to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """A session over a log of its own, with no model and no settings."""
    opened = Session(tmp_path / "home", env={})
    yield opened
    opened.close()
