"""`kestrel time` in a terminal: readings as tables, refusals as errors, options that settle what was not
sure.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.cli.main import main

AT = ("--reference", "2026-11-18T12:00:00", "--zone", "Europe/Vienna")
Kestrel = Callable[..., tuple[int, dict[str, str], str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs `kestrel time`; gives the exit code, the table and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, dict[str, str], str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["time", *words])
        told = capsys.readouterr()
        rows = dict(line.split("  ", 1) for line in told.out.splitlines() if "  " in line)
        assert list(tmp_path.iterdir()) == []  # nothing is opened, nothing is kept
        return (
            int(end.value.code or 0),
            {name.strip(): value.strip() for name, value in rows.items()},
            told.err,
        )

    return run


def test_an_expression_and_how_it_was_read(kestrel: Kestrel) -> None:
    """Words need no quotes; the table has the moment, how exact it is, the zone and where it came from, and
    what was not sure.
    """
    code, table, _ = kestrel("next", "Friday", "at", "15:30", *AT)
    assert (code, table) == (
        0,
        {
            "text": "next Friday at 15:30",
            "moment": "2026-11-27T15:30:00+01:00 (Fri)",
            "precision": "minute",
            "read as": "Friday of next week, at 15:30",
            "zone": "Europe/Vienna, from --zone",
            "relative to": "2026-11-18T12:00:00+01:00 (Wed)",
            "note": "read as the Friday of next week, weeks from Monday; the coming Friday is 2026-11-20",
        },
    )


def test_the_time_itself(kestrel: Kestrel) -> None:
    """Without an expression it is the handshake; a reference with an offset brings its own zone."""
    assert kestrel(*AT)[1] == {
        "now": "2026-11-18T12:00:00+01:00",
        "weekday": "Wednesday",
        "date": "2026-11-18",
        "ISO week": "2026-W47",
        "zone": "Europe/Vienna, from --zone",
        "from UTC": "UTC+01:00",
    }
    assert kestrel("--reference", "2026-11-18T12:00:00+05:30")[1]["zone"] == "UTC+05:30, from the time itself"
    assert kestrel()[1]["zone"].endswith("from this machine")
    assert kestrel("--reference", "2026-11-18")[1]["zone"].endswith("from this machine")


@pytest.mark.parametrize(
    ("words", "moment"),
    [
        (("3/4/2027", "--order", "DMY"), "2027-04-03T00:00:00+02:00 (Sat)"),
        (("Friday", "--prefer", "past"), "2026-11-13T00:00:00+01:00 (Fri)"),
        (("2026-10-25 02:30", "--disambiguate", "later"), "2026-10-25T02:30:00+01:00 (Sun)"),
        (("noon", "--to", "Asia/Kolkata"), "2026-11-18T16:30:00+05:30 (Wed)"),
        (("tomorrow", "--add", "+1 month"), "2026-12-19T00:00:00+01:00 (Sat)"),
        (("--add", "-90 minutes"), "2026-11-18T10:30:00+01:00 (Wed)"),
        (("--to", "UTC"), "2026-11-18T11:00:00+00:00 (Wed)"),
        (("vor 3 Tagen", "--language", "de"), "2026-11-15T00:00:00+01:00 (Sun)"),
        (("today", "--reference", "2026-11-18T02:00:00+05:00"), "2026-11-17T00:00:00+01:00 (Tue)"),
        (("--", "-2h"), "2026-11-18T10:00:00+01:00 (Wed)"),
    ],
)
def test_options_settle_what_was_not_sure(kestrel: Kestrel, words: tuple[str, ...], moment: str) -> None:
    """Each option does what it says."""
    code, table, errors = kestrel(*AT, *words)
    assert (code, table.get("moment") or table.get("from"), errors) == (0, moment, "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("3/4/2027",), "2027-03-04 00:00 or 2027-04-03 00:00"),
        (("3pm", "IST"), "Asia/Kolkata or Europe/Dublin or Asia/Jerusalem"),
        (("tomorrow", "--zone", "Europe/Viena"), "did you mean 'Europe/Vienna'"),
        (("tomorrow", "--zone", "CST"), "America/Chicago"),
        (("tomorrow", "--reference", "yesterday"), "is not an ISO 8601 time"),
        (("tomorrow", "--reference", "2026-03-29T02:30"), "does not exist"),
        (("tomorrow", "--to", "Asia/Tokyo"), "add a time of day"),
        (("next week", "--add", "1 day"), "counts on from a day or a moment"),
        (("tomorrow", "--prefer", "sideways"), "sideways"),
        (("tomorrow", "--add", "soon"), "as a distance in time"),
    ],
)
def test_refusals(kestrel: Kestrel, words: tuple[str, ...], error: str) -> None:
    """What cannot be told ends with 2 and one line that says what to write; nothing is printed as an
    answer.
    """
    code, table, errors = kestrel(*AT[2:], *AT[:2], *words)
    assert (code, table, error in errors, "Traceback" in errors) == (2, {}, True, False)


def test_nothing_is_loaded_that_is_not_used() -> None:
    """Telling what English words mean loads no dateparser; importing the package loads neither it nor the
    zone lookup.
    """
    code = (
        "import sys, kestrel_lab.lab, kestrel_lab.tools.builtin\n"
        "from datetime import datetime, UTC\n"
        "from kestrel_lab.tools.timeparse.parse import parse_relative\n"
        "print([name in sys.modules for name in ('dateparser', 'tzlocal', 'pytz')])\n"
        "parse_relative('next friday at 3pm', datetime.now(UTC))\n"
        "print('dateparser' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout == "[False, False, False]\nFalse\n"
