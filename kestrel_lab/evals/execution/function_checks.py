"""Python functions that judge trials, each run in a process of its own in the trial's sandbox.

A function may import, start or evaluate what the agent wrote. So it has neither our environment nor our
memory, and reads the suite's folder and repository without being able to change them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import sysconfig
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final, NoReturn

from kestrel_lab.checks.python_function import PythonCheck, score_of
from kestrel_lab.core.errors import CheckError, UsageError, error_text, stops_task
from kestrel_lab.core.events.union import Record, from_json, to_json
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.evals.suites.python_files import load_check
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.sandbox.select import run_sandboxed
from kestrel_lab.tools.shell.environment import clean_environment

SECONDS: Final = 600.0
"""The time limit of a function."""
_PACKAGE: Final = Path(__file__).resolve().parents[2]
_START: Final = """
import runpy, sys
from importlib.util import module_from_spec, spec_from_file_location
package = spec_from_file_location("kestrel_lab", sys.argv[1] + "/__init__.py", \
submodule_search_locations=[sys.argv[1]])
sys.modules["kestrel_lab"] = module_from_spec(package)
package.loader.exec_module(sys.modules["kestrel_lab"])
runpy.run_module(sys.argv[2], run_name="__main__", alter_sys=True)
"""
"""Load the package by its folder: at S1 the process may read that, but not list the folder above it, where
Python would look for it.
"""
_KEPT: Final = 1_000_000


def load_judge(reference: str, folder: Path | None, root: Path | None) -> Callable[[Trial], Awaitable[Score]]:
    """Return the function `module:function` of a suite in `folder`, as `PythonCheck` calls it; raises
    `UsageError` as `load_check` does.

    Its attributes are those of the function. A trial that has an environment is judged in this process, where
    its objects are: such a scenario's tools are Python functions, and its agent has no files.
    """
    function, check = load_check(reference, folder, root), PythonCheck(function=reference)

    @wraps(function, assigned=())
    async def judge(trial: Trial) -> Score:
        if trial.environment is not None:
            return await check(replace(trial, function=lambda _: function))
        with ExitStack() as stack:
            # A trial that is judged by its log alone may have no folder any more.
            place = (
                trial.workspace
                if trial.workspace.is_dir()
                else Path(stack.enter_context(TemporaryDirectory(prefix="kestrel-")))
            )
            return await _run_function(check, trial, folder, root, place)

    return judge


async def _run_function(
    check: PythonCheck, trial: Trial, folder: Path | None, root: Path | None, workspace: Path
) -> Score:
    """Run the function in its process and return its score; raises `CheckError` when it gives none."""
    mark = f"kestrel-opinion-{secrets.token_hex(16)}:"  # which programs that the function starts do not know
    said = bytearray()

    def keep(piece: bytes) -> bool:
        said.extend(piece)
        del said[:-_KEPT]
        return True

    read = [place.resolve() for place in (folder, root) if place is not None]
    with TemporaryFile() as order:
        order.write(
            dumps(
                {
                    "mark": mark,
                    "function": check.function,
                    "places": [_text(folder), _text(root)],
                    "trial": _trial_json(trial),
                }
            ).encode()
        )
        order.seek(0)
        try:
            ended, _ = await run_sandboxed(
                [sys.executable, "-P", "-c", _START, str(_PACKAGE), __name__],
                workspace=workspace,
                sandbox=trial.sandbox or Sandbox(),
                env=clean_environment()
                | {"PYTHONPATH": os.pathsep.join(map(str, _import_places())), "PYTHONDONTWRITEBYTECODE": "1"},
                output=keep,
                timeout_s=SECONDS,
                read=[*_outermost([*read, _PACKAGE, *_import_places()[1:]])],
                read_only=trial.read_only,
                stdin=order.fileno(),
            )
        except (OSError, UsageError) as error:
            raise CheckError(f"python_check {check.function} cannot be run: {error}") from error
    text = said.decode("utf-8", "replace")
    opinion = next(
        (line.removeprefix(mark) for line in reversed(split_lines(text)) if line.startswith(mark)), ""
    )
    return _score(check, opinion, text if not ended.stopped else f"no opinion after {SECONDS:g} s")


def _text(place: Path | None) -> str | None:
    return None if place is None else str(place)


def _trial_json(trial: Trial) -> dict[str, Json]:
    """Return the trial as JSON for the other process: all but models and the suite's functions, which only
    this process has.
    """
    events: list[Json] = [
        [record.run_id, record.seq, record.eid, record.at, record.event.type, to_json(record.event)]
        for record in trial.records
    ]
    return {
        "goal": trial.goal,
        "answer": trial.answer,
        "records": events,
        "workspace": str(trial.workspace),
        "expected": trial.expected,
        "read_only": trial.read_only,
    }


def _read(given: Mapping[str, Any], function: Callable[..., Any]) -> Trial:
    """Return the trial that `_trial_json` wrote, for `function` to judge."""
    records = tuple(
        Record(run_id=run_id, seq=seq, eid=eid, at=at, event=from_json(kind, body))
        for run_id, seq, eid, at, kind, body in given["records"]
    )
    return Trial(
        goal=given["goal"],
        answer=given["answer"],
        records=records,
        workspace=Path(given["workspace"]),
        expected=given["expected"],
        read_only=given["read_only"],
        grader=_no_grader,
        function=lambda _: function,
    )


def _score(check: PythonCheck, opinion: str, said: str) -> Score:
    """Return the score that the process wrote; anything in the process may have written it, so only the form
    of a score is accepted.
    """
    try:
        found = json.loads(opinion)
        if "problem" in found:
            raise CheckError(str(found["problem"]))
        value = float(found["value"])
        score = Score(
            check=str(found["check"]),
            passed=found["passed"] is True,
            value=value,
            reason=str(found["reason"]),
        )
        return score_of(score.check, score, check.function)
    except (ValueError, KeyError, TypeError) as error:
        msg = (
            f"python_check {check.function} ended without an opinion: "
            f"{one_line(said[-400:], 300) or 'it wrote nothing'}"
        )
        raise CheckError(msg) from error


def _import_places() -> list[Path]:
    """Return the folders in which the process finds this package, and what it and the suite import."""
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path]
    packages = [
        Path(place)
        for place in installed
        if Path(place).name in ("site-packages", "dist-packages") and Path(place).is_dir()
    ]
    return [_PACKAGE.parent, *dict.fromkeys(packages)]


def _outermost(places: Iterable[Path]) -> Iterable[Path]:
    whole = sorted(set(places))
    return (one for one in whole if not any(other in one.parents for other in whole))


def _no_grader(_: str) -> NoReturn:
    raise UsageError(
        "a python_check runs in a process of its own and cannot ask a model: use the check `graded` for that"
    )


def main() -> None:
    """Read which function judges which trial, and write its score; what the function prints is not taken for
    one.
    """
    order = json.loads(sys.stdin.buffer.read())
    reference, (folder, root) = (
        order["function"],
        (None if place is None else Path(place) for place in order["places"]),
    )
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reply: dict[str, Any]
    try:
        function = load_check(reference, folder, root)
        score = asyncio.run(PythonCheck(function=reference)(_read(order["trial"], function)))
        reply = asdict(replace(score, usage=None))
    except (CheckError, UsageError) as error:
        reply = {"problem": str(error)}
    except BaseException as error:
        if stops_task(error):
            raise
        reply = {"problem": f"the check {f'{reference} agrees'!r} failed: {error_text(error)}"}
    out.write(f"\n{order['mark']}{json.dumps(reply)}\n")
    out.flush()


if __name__ == "__main__":
    main()
