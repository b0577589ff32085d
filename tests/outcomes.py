"""Hooks of pytest that keep what failed for `second_pass.py`, and count what was skipped by its reason."""

import json
from collections import Counter
from pathlib import Path

import pytest

_failed: dict[str, tuple[str, bool]] = {}
_skipped: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option by which `second_pass.py` learns what failed."""
    parser.addoption(
        "--failures-file", type=Path, help="write what failed into this file as JSON, for second_pass.py"
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep what failed, for `--failures-file`, and count what was skipped by its reason."""
    if report.failed:
        _failed.setdefault(report.nodeid, (report.longreprtext, "once" in report.keywords))
    elif report.skipped and isinstance(report.longrepr, tuple):  # an expected failure has another form
        _skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write `--failures-file`; the processes of xdist send what they know to the one that has the option's
    file.
    """
    place: Path | None = session.config.getoption("--failures-file")
    if place is not None and not hasattr(session.config, "workerinput"):
        failures = [{"test": name, "text": text, "once": once} for name, (text, once) in _failed.items()]
        place.write_text(json.dumps(failures), encoding="utf-8")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in a line per reason what was skipped, most first: on a bare machine there are hundreds of places
    and few reasons.
    """
    if _skipped:
        terminalreporter.section("skipped")
        for reason, count in _skipped.most_common():
            terminalreporter.line(f"{count:4} {' '.join(reason.split())}")
