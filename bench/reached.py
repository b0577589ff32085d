"""Which lines of the package each test runs: a plugin of pytest, for `bench.mutants`.

With `BENCH_REACHED` and one test file it writes that file: how long each test took, whether it passed, and the tests that ran each
line. With `BENCH_CHOSEN` it runs the tests and test files that this file names, in that order, and adds those that fail to `BENCH_FAILED`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kestrel_lab"
WRITTEN, CHOSEN, FAILED = "BENCH_REACHED", "BENCH_CHOSEN", "BENCH_FAILED"


class Recorder:
    """Writes what each test ran. A test that starts Python, or traces itself, may run any line: those are kept apart."""

    def __init__(self, place: Path, file: Path) -> None:
        self._place, self._file = place, file
        self._coverage = coverage.Coverage(data_file=None, config_file=False, source=[str(PACKAGE)])
        self._coverage.set_option("run:disable_warnings", ["module-not-imported", "no-data-collected", "trace-changed", "already-imported"])
        self._now = ""
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._anywhere: set[str] = set()
        sys.addaudithook(self._heard)
        self._coverage.start()

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and "python" not in f"{args[0]} {args[1]}".lower() and "kestrel" not in f"{args[1]}":
            return
        traced = event == "sys.settrace" and threading.current_thread() is threading.main_thread()
        if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec") or traced:
            self._anywhere.add(self._now)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Count what runs from here on for this test."""
        self._now = item.nodeid
        self._coverage.switch_context(item.nodeid)
        begun = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.monotonic() - begun

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests fail as the package is."""
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write what was found."""
        self._coverage.stop()
        data = self._coverage.get_data()
        names = {name: at for at, name in enumerate(self._seconds)}
        lines: dict[str, dict[int, list[int]]] = {}
        for path in data.measured_files():
            ran = {line: sorted(names[test] for test in tests if test) for line, tests in data.contexts_by_lineno(path).items()}
            if ran := {line: tests for line, tests in ran.items() if tests}:
                lines[str(Path(path).relative_to(PACKAGE))] = ran
        digests = {module: sha256((PACKAGE / module).read_bytes()).hexdigest() for module in lines}
        found: dict[str, Any] = {"file": sha256(self._file.read_bytes()).hexdigest(), "modules": digests, "lines": lines}
        found |= {"seconds": self._seconds, "failed": sorted(self._failed), "anywhere": sorted(self._anywhere - {""})}
        self._place.write_text(json.dumps(found))


class Chooser:
    """Runs the chosen tests, and all tests of the chosen files, in the order given, and notes which failed."""

    def __init__(self, place: Path, failed: Path) -> None:
        given = json.loads(place.read_text())
        self._rank = {name: at for at, name in enumerate(given["run"])}
        self._but, self._failed = {*given["but"]}, failed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the others out."""
        ranks = {item: self._rank.get(item.nodeid, self._rank.get(item.nodeid.partition("::")[0])) for item in items}
        chosen = [item for item in items if ranks[item] is not None and item.nodeid not in self._but]
        items[:] = sorted(chosen, key=lambda item: ranks[item] or 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed."""
        if report.failed:
            with self._failed.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Do what the environment asks for."""
    if place := os.environ.pop(WRITTEN, ""):
        config.pluginmanager.register(Recorder(Path(place), Path(config.args[0])))
    if place := os.environ.pop(CHOSEN, ""):
        config.pluginmanager.register(Chooser(Path(place), Path(os.environ.pop(FAILED))))
