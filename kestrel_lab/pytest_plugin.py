"""The plugin of pytest: the fixture `kestrel`, suites as test items, and one report at the end.

pytest imports this module in every session, so it imports nothing heavy: what measures is loaded with the
first item that needs it. With pytest-xdist each process runs its items, and stores their trials in the one
log; the process that pytest was started in reports on all of them.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import chdir
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from kestrel_lab.evals.suite_files import SUITE_ENDINGS

if TYPE_CHECKING:
    from kestrel_lab.evals.pytest_session import Kestrel, SessionTrials, SuiteReport
    from kestrel_lab.evals.reports.junit import Case
    from kestrel_lab.evals.suite import Suite
    from kestrel_lab.lab import Lab

_SUITE: Final = "kestrel.suite"
"""The property of a test report that says which suite, and which file of it, was measured."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("kestrel", "agents, measured by kestrel_lab")
    group.addoption(
        "--kestrel-record", action="store_true", help="Ask models, and record all of their answers anew."
    )
    group.addoption(
        "--kestrel-live",
        action="store_true",
        help="Ask models also where CI is set, where their recorded answers are replayed by default.",
    )
    group.addoption("--kestrel-epochs", type=int, metavar="N", help="Run each scenario of a suite N times.")
    group.addoption(
        "--kestrel-fail-on",
        choices=("worse", "uncertain", "any"),
        default="worse",
        help="What makes a session fail beside its tests: a violated gate, or what is shown to be worse than "
        "at the last green commit (worse); also what is uncertain; or any change of a rate.",
    )
    group.addoption(
        "--kestrel-report",
        metavar="DIR",
        help="Write the page of each suite into this folder; by default into that of pytest's cache.",
    )
    parser.addini(
        "kestrel_suites",
        type="args",
        default=[],
        help="Suite files, as patterns from the root folder, beside *.suite.yaml.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin a session."""
    config.pluginmanager.register(Session(config), "kestrel-session")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> SuiteFile | None:
    """Take a suite file for one of tests."""
    named = file_path.name.endswith(SUITE_ENDINGS)
    if not named and file_path.suffix in (".yaml", ".yml"):
        patterns = parent.config.getini("kestrel_suites")
        place = os.path.relpath(file_path, parent.config.rootpath).replace(os.sep, "/")
        named = any(fnmatch(place, pattern) for pattern in patterns)
    return SuiteFile.from_parent(parent, path=file_path) if named else None


class SuiteFile(pytest.File):
    """A suite: an item for each scenario and configuration."""

    suite: Suite

    def collect(self) -> Iterable[SuiteItem]:
        """Yield the items; tags and families of scenarios can be chosen by `-k`."""
        from kestrel_lab.core.errors import UsageError
        from kestrel_lab.evals.suites.loader import load_suite

        try:
            self.suite = load_suite(self.path)
        except UsageError as error:
            raise self.CollectError(str(error)) from error
        for scenario in self.suite.scenarios:
            for config in self.suite.configs:
                item = SuiteItem.from_parent(self, name=f"{scenario.id}[{config.name}]")
                item.asked = scenario.id, config.name
                item.extra_keyword_matches.update(filter(None, (*scenario.tags, scenario.family)))
                yield item


class SuiteItem(pytest.Item):
    """A scenario with a configuration, all epochs of it."""

    asked: tuple[str, str]

    def runtest(self) -> None:
        """Run the trials; fails where fewer passed than the suite asks."""
        from kestrel_lab.core.errors import TrialBroke

        assert isinstance(self.parent, SuiteFile)
        suite = self.parent.suite
        self.user_properties.append((_SUITE, [suite.name, str(self.path)]))
        case = session_of(self.config).case(self, suite)
        if case.outcome == "error":
            raise TrialBroke(f"{case.message}\n{case.text}")
        if case.outcome != "passed":
            raise AssertionError(f"{case.message}\n{case.text}")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return why it failed, without a traceback through kestrel_lab."""
        from kestrel_lab.core.errors import KestrelError

        if isinstance(excinfo.value, AssertionError | KestrelError):
            hint = "; with pytest: --kestrel-record" if "--cassette record" in str(excinfo.value) else ""
            return f"{excinfo.value}{hint}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return the place and the name that reports show."""
        return self.path, 0, self.name


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    """Count a trial that broke with the errors."""
    return ("error", "E", "ERROR") if report.when == _TRIAL else None


_FAILURE: Final = pytest.StashKey[str]()
_TRIAL: Final = "trial"
"""The phase in which a trial broke."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report what broke, or could not begin, as an error: it says nothing of what was tested."""
    report = yield
    if call.excinfo is not None and call.when == "call":
        from kestrel_lab.core.errors import KestrelError

        item.stash[_FAILURE] = f"the test failed: {call.excinfo.exconly().splitlines()[0]}"
        if isinstance(call.excinfo.value, KestrelError):
            # pytest counts an error in the phase "call" as a failure.
            report.when = _TRIAL  # type: ignore[assignment]
    return report


@pytest.fixture
def kestrel(request: pytest.FixtureRequest) -> Iterator[Kestrel]:
    """Run agents in a test, and check what they did: `run = kestrel.run("…")`, `kestrel.check(run, …)`."""
    import inspect

    from kestrel_lab.evals.pytest_session import Kestrel

    node = request.node
    suite = os.path.relpath(node.path, request.config.rootpath).replace(os.sep, "/")
    try:
        source = inspect.getsource(request.function)
    except OSError:
        # A function that was made without a file has no source.
        source = ""
    test = node.nodeid.partition("::")[2].replace("::", ".")
    given = Kestrel(session_of(request.config).trials, suite, test, Path(node.path), source)
    yield given
    if given.store(node.stash.get(_FAILURE, "")):
        node.user_properties.append((_SUITE, [suite, ""]))


def session_of(config: pytest.Config) -> Session:
    """Return the session of a process."""
    found = config.pluginmanager.get_plugin("kestrel-session")
    assert isinstance(found, Session)
    return found


class Session:
    """What is measured in one session of pytest, in this process and in those that it started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        given = getattr(config, "workerinput", {})
        self._name = given.get("kestrel_session") or f"e{os.urandom(6).hex()}"
        self._worker = bool(given)
        self._suites: dict[str, Path | None] = {}
        self._cases: dict[tuple[int, tuple[str, str]], Case] = {}
        """How items came out that were measured and not yet reported, by their file and what they ask."""
        self._reports: list[SuiteReport] = []
        self._pages: list[Path] = []

    @cached_property
    def lab(self) -> Lab:
        """The lab of the root folder, opened when it is first needed."""
        from kestrel_lab.lab import Lab

        # The folder where `kestrel` is typed by hand, so that the log is the same.
        with chdir(self._config.rootpath):
            return Lab()

    @cached_property
    def trials(self) -> SessionTrials:
        """Makes the trials."""
        from kestrel_lab.evals.pytest_session import SessionTrials

        option = self._config.getoption
        replays = bool(os.environ.get("CI")) and not option("kestrel_live")
        mode = "refresh" if option("kestrel_record") else "replay" if replays else None
        return SessionTrials(lab=self.lab, name=self._name, cassette=mode)

    def case(self, item: SuiteItem, suite: Suite) -> Case:
        """Return how an item came out. The items of its suite that are still to come run with it."""
        from kestrel_lab.core.errors import KestrelError

        place = id(item.parent)
        if (place, item.asked) not in self._cases:
            asked = self._together(item)
            epochs = self._config.getoption("kestrel_epochs")
            try:
                found = self.trials.cases(suite, asked, epochs)
            except KestrelError:
                if len(asked) == 1:
                    raise
                # What one of them lacks is said of that one.
                found = self.trials.cases(suite, [item.asked], epochs)
            self._cases |= {(place, pair): case for pair, case in found.items()}
        # Taken out: an item that is run again is measured again.
        return self._cases.pop((place, item.asked))

    @property
    def _fail_on(self) -> Any:
        return self._config.getoption("--kestrel-fail-on")

    def _together(self, item: SuiteItem) -> list[tuple[str, str]]:
        """Return what is measured with an item: all of its suite that was selected and is still to come.

        Alone where a process of pytest-xdist does not know which items it will be given. No more than may
        fail before pytest stops (`-x`, `--maxfail`): what is not to be run is not to be paid.
        """
        items = item.session.items
        ahead = [
            one.asked
            for one in items[items.index(item) :]
            if isinstance(one, SuiteItem) and one.parent is item.parent
        ]
        most = self._config.getoption("maxfail") or 0
        if self._worker:
            return [item.asked]
        return ahead[: max(1, most - item.session.testsfailed)] if most else ahead

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send a process of pytest-xdist the session that it is part of."""
        node.workerinput["kestrel_session"] = self._name

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which suites are measured, wherever that is done."""
        for name, value in report.user_properties:
            if name == _SUITE and isinstance(value, list | tuple):
                self._suites[value[0]] = Path(value[1]) if value[1] else None

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Decide gates and changes over all trials; what is violated or worse makes the session fail."""
        if self._suites and not self._worker:
            from kestrel_lab.evals.pytest_session import session_reports

            self._reports = session_reports(self.lab, self._name, self._suites, self._config.rootpath)
            if (folder := self._folder()) is not None:
                self._pages = [one.write(folder) for one in self._reports]
            if session.exitstatus == pytest.ExitCode.OK and any(
                report.fails(self._fail_on) for report in self._reports
            ):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if "lab" in vars(self):
            self.lab.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what was measured."""
        if not self._reports:
            return
        terminalreporter.section("kestrel")
        for report in self._reports:
            first, *rest = report.lines()
            terminalreporter.write_line(first, red=report.fails(self._fail_on), bold=True)
            for line in rest:
                terminalreporter.write_line(line)
        for page in self._pages:
            terminalreporter.write_line(f"page: {os.path.relpath(page, self._config.invocation_params.dir)}")

    def _folder(self) -> Path | None:
        if asked := self._config.getoption("kestrel_report"):
            return Path(self._config.invocation_params.dir, asked)
        cache = getattr(self._config, "cache", None)
        return None if cache is None else Path(cache.mkdir("kestrel"))
