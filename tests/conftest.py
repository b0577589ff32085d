"""What holds for every test: no model is asked over the network, and nobody's keys or settings are seen."""

import compileall
import gc
import ipaddress
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from folders import state_folder
from hypothesis import HealthCheck, settings
from outcomes import (
    pytest_addoption,  # noqa: F401
    pytest_runtest_logreport,  # noqa: F401
    pytest_sessionfinish,  # noqa: F401
    pytest_terminal_summary,  # noqa: F401
)  # hooks
from rewriting import rewrite_share

# Before numpy: threads of its linear algebra wait for each other, on a machine whose processors are taken a
# hundred times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host import programs
from kestrel_lab.host.homes import known_homes
from kestrel_lab.lab import Lab
from kestrel_lab.tools import skills as skill

if TYPE_CHECKING:
    from postgres_server import PostgresServer

if sys.dont_write_bytecode:
    # Half of what collection takes is the rewriting of assertions, in each process and each run where nothing
    # is kept of it; and hundreds of processes that tests start would compile the package anew. What those
    # write of the user's own is left as the environment says.
    sys.dont_write_bytecode = False
    if "PYTEST_XDIST_WORKER" not in os.environ:
        compileall.compile_dir(Path(__file__).parents[1] / "kestrel_lab", quiet=2)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a script: what this process ignores its children would ignore too, and
    # Ctrl-C is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)


_MEMORY = Path("/dev/shm")
_MEMORY_FREE = 4 * 1024**3
"""Bytes that have to be free there: a run of all tests makes one thousand megabytes, of which those of tests
that pass are removed at once.
"""
_FILES_IN_PARALLEL = 6
"""Test files that have to be in the folders asked for: what the processes take to start is as long as a few
files take.
"""
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
    elif event in ("socket.connect", "socket.sendto") and isinstance(
        args[1], tuple
    ):  # a path otherwise: a Unix socket
        host = args[1][0]
    else:
        return
    if not _loopback(host):
        msg = f"a test wants to reach {host!r}: use a fake, a cassette or a server on this machine"
        raise RealRequestError(msg)


def _in_memory() -> bool:
    try:
        return (
            os.path.ismount(_MEMORY)
            and os.access(_MEMORY, os.W_OK | os.X_OK)
            and shutil.disk_usage(_MEMORY).free >= _MEMORY_FREE
        )
    except OSError:
        return False


def pytest_configure() -> None:
    """Install the guard, which no code can get around or take away, and clean the environment."""
    if "TMPDIR" not in os.environ and _in_memory():
        # Logs are written with a flush for each commit, which on a disk is a seventh of a test's processor
        # time and more of its waiting.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    temporary = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()).resolve()
    for place in (temporary, *temporary.parents):
        if (place / ".git").exists():
            # it happened: every suite of a test was then part of that repository, and its trials "dirty"
            msg = (
                f"{place} is a git repository, and tests make their folders in it: remove "
                f"{place / '.git'}, or set TMPDIR"
            )
            raise pytest.UsageError(msg)
    # A first import takes longer than any deadline, and a busy machine longer for an example than hypothesis
    # thinks healthy. In CI each run tries the same examples: what a change breaks is red, and what others
    # find by chance is found at their desks.
    settings.register_profile(
        "kestrel",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=bool(os.environ.get("CI")),
    )
    settings.load_profile("kestrel")
    sys.addaudithook(_guard)
    for name in list(os.environ):
        if (
            name.endswith(_SECRET_ENDINGS)
            or name in ("MODEL_PROVIDER", "OLLAMA_HOST")
            or (name.startswith("KESTREL_") and name not in _KEPT)
        ):
            del os.environ[name]
    skill.OF_HOME = ()  # nobody's own skills are seen
    # Labs without a home keep their logs where nobody's own are.
    os.environ["XDG_STATE_HOME"] = str(state_folder(temporary))
    os.environ["KESTREL_TRUST"] = (
        "all"  # tests write the settings of their projects themselves, as a user does
    )
    # Whichever test imports litellm first: by itself it asks the internet for prices.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Let the files of a folder share the processors as in `make test`; a few files end sooner in one
    process, and `-n 0` keeps all in one.
    """
    option = config.option
    alone = (
        hasattr(config, "workerinput")
        or option.usepdb
        or option.trace
        or option.capture == "no"
        or option.collectonly
    )
    if not alone and getattr(option, "numprocesses", 0) is None and not option.tx:
        folders = [Path(config.invocation_params.dir, arg) for arg in config.args if "::" not in arg]
        if sum(1 for folder in folders for _ in folder.rglob("test_*.py")) >= _FILES_IN_PARALLEL:
            option.numprocesses, option.dist, option.loadscopereorder = "auto", "loadfile", False


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Share the rewriting of assertions, and let the garbage collector pass over what collection makes, while it is made and after: all of it stays
    until the end.

    It comes less often, too: as Python sets it, it took 7 % of the processor time of a third of the tests.
    """
    gc.disable()
    if session.config.option.markexpr == "not long":
        project = Path(__file__).parents[1]
        files = [*project.glob("tests/**/test_*.py"), *project.glob("kestrel_lab/**/*.py")]
        rewrite_share(session.config, sorted(files))
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_unconfigure() -> Iterator[None]:
    """Let the collector pass over everything on the way out: each shell of IPython collects once at exit,
    which took twice as long as its tests.
    """
    yield
    gc.freeze()
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m long` read only the files that name the marker, an eighth of them: each process of xdist spends
    six seconds on the others.
    """
    if config.option.markexpr != "long" or collection_path.suffix != ".py":
        return None
    return b"mark.long" not in collection_path.read_bytes() or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose slow tests may take the longest in all come first: one that begins last would keep all but
    one processor idle. Last of all hooks, since tests that are left out count for nothing.
    """
    longest: Counter[Path] = Counter()
    for item in items:
        if any(item.get_closest_marker(name) for name in ("slow", "browser", "long")):
            limit = item.get_closest_marker("timeout")
            longest[item.path] += limit.args[0] if limit else float(item.config.getini("timeout"))
    items.sort(key=lambda item: -longest[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two more than there are processors: a quarter of the time tests wait, for kernels, browsers, servers and
    disks. Of the long ones some wait for minutes, for processes that are killed again and again: three more.
    """
    return (os.cpu_count() or 1) + (3 if config.option.markexpr == "long" else 2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Leave nothing behind in what a process keeps for all of its sessions.

    Homes of workspaces that are gone go with them. The workspaces of a test are forgotten: in a folder around
    those of later tests no program would be found. Litellm keeps the clients that it caches for each event
    loop: it drops those of 10 minutes ago, whose loops have ended, unclosed, and whichever test came next
    would fail of a connection that is collected, only on machines that are slower than that.
    """
    yield
    for home in known_homes(os.environ):
        if home.lost:
            shutil.rmtree(home.folder, ignore_errors=True)
    if programs._workspaces:
        programs._workspaces.clear()
        programs._found.clear()
    if (cache := vars(sys.modules.get("litellm", sys)).get("in_memory_llm_clients_cache")) is not None:
        cache.max_size_in_memory, cache.default_ttl = sys.maxsize, sys.maxsize
        cache.ttl_dict.update(dict.fromkeys(cache.ttl_dict, sys.maxsize))
        cache.expiration_heap.clear()


@pytest.fixture(scope="session", autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where tests are run: runs that are told of no workspace work here.

    In the checkout each of them would look through thousands of files, each fork copy them, and what a model
    writes would be in the project.
    """
    folder = tmp_path_factory.mktemp("cwd")
    with chdir(folder):
        yield folder


@pytest.fixture(autouse=True)
def _emptied(empty_folder: Path) -> Iterator[None]:
    """What a test leaves where it is run does not reach the next one."""
    yield
    for left in os.scandir(empty_folder):
        if left.is_dir(follow_symlinks=False):
            shutil.rmtree(left, ignore_errors=True)  # a process that is about to end may still write there
        else:
            Path(left).unlink(missing_ok=True)


@pytest.fixture
def disk() -> Iterator[Path]:
    """An empty folder where temporary files are kept, for what differs there: `tmp_path` may be a place in
    memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty folder for runs to work in."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def empty_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log without runs, to be copied: making its tables is a fifth of the processor time of a short
    test.
    """
    path = tmp_path_factory.mktemp("empty") / "kestrel.db"
    SessionStore(path).close()
    return path


@pytest.fixture
def session(tmp_path: Path, empty_log: Path) -> Iterator[Lab]:
    """A session over a log of its own, with no model and no settings."""
    (home := tmp_path / "home").mkdir(mode=0o700)
    shutil.copy(empty_log, home)
    opened = Lab(home, env={})
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def warm_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Python that has the package imported, for this process's tests."""
    from warm_python import warm_python  # not there where a page for contributors is tried

    if sys.platform != "linux":  # its sockets are of Linux
        yield Path(sys.executable)
        return
    with warm_python(tmp_path_factory.mktemp("warm")) as program:
        yield program


@pytest.fixture(scope="module")
def warm(warm_program: Path) -> Iterator[None]:
    """What is started by `sys.executable` and is of the package, or a kernel, has everything imported when it
    begins.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(warm_program))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator["PostgresServer"]:
    """A PostgreSQL server that runs; who stops it has one of their own."""
    from postgres_server import PostgresServer  # not there where a page for contributors is tried

    server = PostgresServer()
    server.start()
    yield server
    server.close()
