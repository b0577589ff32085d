"""pytest for `make test`: what failed is run once more, alone, and what passes then is reported as unsteady
and does not fail the run.

    python tests/second_pass.py PYTEST_ARGUMENTS

A busy machine fails a test among thousands. A change must not wait a day for that, and the test must not be
forgotten: each is printed as `unsteady: NAME` with the traceback of its first failure. More than five
failures are not repeated, for then something is broken. Nor is a test with the marker `once`: it looks for a
rare event, which a second try would most likely miss.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

MOST = 5
"""Failures that are repeated; more than these fail the run."""


class Failure(TypedDict):
    """A test that failed, as `--failures-file` of conftest.py writes it."""

    test: str
    text: str
    once: bool


def main(arguments: list[str]) -> int:
    """Run pytest, and what failed once more. Return its exit code: 0 if everything passed in the end."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "failures.json"
        code = _pytest([*arguments, "--failures-file", str(file)])
        if code != 1:  # passed, or interrupted, misused, or nothing was found: not a failure of tests
            return code
        failures: list[Failure] = json.loads(file.read_text(encoding="utf-8"))
    if reason := _final(failures):
        print(f"second pass: none, {reason}")
        return 1
    print(f"second pass: {len(failures)} of the tests failed; each is run once more, alone")
    unsteady = [
        failure for failure in failures if _pytest(["-n", "0", "-m", "", "--no-header", failure["test"]]) == 0
    ]
    for failure in unsteady:
        print(
            f"\n{failure['text']}\nunsteady: {failure['test']} failed at first, as shown above, and "
            "passed alone"
        )
    failed = [failure for failure in failures if failure not in unsteady]
    for failure in failed:
        print(f"failed twice: {failure['test']}")
    return 1 if failed else 0


def _final(failures: list[Failure]) -> str:
    """Return why none of these may be repeated; empty if all may."""
    if not failures:
        return "pytest failed and names no test"
    if len(failures) > MOST:
        return f"{len(failures)} tests failed, more than the {MOST} that may be unsteady"
    if once := [failure["test"] for failure in failures if failure["once"]]:
        return f"{', '.join(once)}: marked `once`, so that one failure counts"
    return ""


def _pytest(arguments: list[str]) -> int:
    sys.stdout.flush()
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
