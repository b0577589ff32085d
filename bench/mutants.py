"""Change the package in a sample of places and see which changes the tests notice: `python -m bench.mutants
--out FOLDER`.

A mutant is a function of the package with one comparison, condition, boolean, sum or return value changed.
The tests that ran the changed statement when nothing was changed are asked, the quickest first. pytest
collects the tests once, and each mutant is tried in a fork of that process, in which the function is given
the changed code: a fifth of a second for most. What the tests run is recorded by coverage.py and kept in the
folder until the package or the test file changes. What tests start in another process is the package as it
is, so a mutant that only such tests would notice counts as missed. mutmut and cosmic-ray make every mutant of
a project; neither draws a sample of the whole.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from hashlib import sha256
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import pytest

from kestrel_lab.evals.stats.intervals_and_tests import wilson_interval

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "kestrel_lab"
PROMISES = ("eventlog", "mcp", "permissions", "runtime/approvals", "runtime/security", "evals/stats")
"""Packages on whose behaviour others rely: they have the higher goal."""
GOALS = {"promises": 85, "elsewhere": 75}
COMPARED = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
COUNTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*", ast.Div: "*", ast.Mod: "*"}
ENOUGH_S = 30.0
"""Tests of one mutant that take longer together are not all run."""
SLOWER = 3
"""So many times the seconds that its tests take otherwise a mutant may take, and half a minute more, before
it is out of time.
"""


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the bytes from `start` to `end` become `text`."""

    module: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    @property
    def group(self) -> str:
        """Which goal it counts towards."""
        return "promises" if self.module.startswith(tuple(f"{name}/" for name in PROMISES)) else "elsewhere"

    def made(self, source: bytes) -> bytes:
        """The module with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of a module; annotations and what is only for type checkers are left alone."""
    source = path.read_bytes()
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    module = str(path.relative_to(PACKAGE))

    def mutant(node: ast.expr, kind: str, text: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return Mutant(
            module,
            node.lineno,
            kind,
            lines[node.lineno - 1] + node.col_offset,
            lines[node.end_lineno - 1] + node.end_col_offset,
            text,
        )

    def said(node: ast.expr) -> str:
        return f"({ast.unparse(node)})"

    for node in nodes(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield mutant(node, "comparison", f"({said(left)} {COMPARED[type(op)]} {said(right)})")
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not isinstance(
                test, ast.Compare | ast.Constant
            ):
                yield mutant(test, "condition", f"(not {said(test)})")
            case ast.BoolOp(op=op, values=values):
                word = " or " if isinstance(op, ast.And) else " and "
                yield mutant(node, "boolean", f"({word.join(map(said, values))})")
            case ast.Constant(value=bool(value)):
                yield mutant(node, "boolean", str(not value))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in COUNTED and not texts(left, right):
                yield mutant(node, "arithmetic", f"({said(left)} {COUNTED[type(op)]} {said(right)})")
            case ast.Return(value=ast.expr() as value) if not (
                isinstance(value, ast.Constant) and value.value is None
            ):
                yield mutant(value, "return", "None")


def texts(*nodes: ast.expr) -> bool:
    """Whether one of them is certainly no number."""
    return any(
        isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.Constant)
        and not isinstance(getattr(node, "value", ""), int)
        for node in nodes
    )


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that do something when the module runs."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if (
                isinstance(child, ast.AST)
                and not isinstance(child, ast.Assert | ast.JoinedStr)
                and not for_checkers
            ):
                yield child
                yield from nodes(child)


def dotted(path: Path) -> str:
    """The name of a module of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def recorded(place: Path) -> Path:
    """Where it stands how long the tests took whose lines are at `place`; written last."""
    return place.with_suffix(".json")


def reaching(mutant: Mutant, reached: Iterable[Path]) -> set[str]:
    """The tests that ran the changed statement."""
    statement = ran(mutant)
    assert statement is not None
    tests: set[str] = set()
    for place in reached:
        data = coverage.CoverageData(basename=str(place))
        data.read()
        ran_by = data.contexts_by_lineno(str(PACKAGE / mutant.module))
        tests.update(test for line in statement for test in ran_by.get(line, ()))
        data.close()
    return tests


def ran(mutant: Mutant) -> range | None:
    """The lines of the changed statement, up to the change; none for import-time code."""
    source = (PACKAGE / mutant.module).read_bytes()
    last = mutant.line + source[mutant.start : mutant.end].count(b"\n")
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = [
        node
        for function in functions
        for body in function.body
        for node in ast.walk(body)
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= last <= (node.end_lineno or 0)
    ]
    return range(max(node.lineno for node in inside), last + 1) if inside else None


@cache
def functions(module: str) -> dict[str, list[CodeType]]:
    """The code of each function of a module as it stands in its file, by qualified name."""
    path = PACKAGE / module
    return codes(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))


def codes(code: CodeType) -> dict[str, list[CodeType]]:
    """The code of what is defined in `code`, by qualified name, in its order."""
    found: dict[str, list[CodeType]] = defaultdict(list)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found[inner.co_qualname].append(inner)
            for name, more in codes(inner).items():
                found[name] += more
    return found


def swap(mutant: Mutant, live: Sequence[FunctionType]) -> bool:
    """Give the functions of its module the changed code; `False` where none has the changed statement."""
    path = PACKAGE / mutant.module
    old, new = (
        functions(mutant.module),
        codes(compile(mutant.made(path.read_bytes()), str(path), "exec", dont_inherit=True)),
    )
    changed = False
    for function in live:
        name, line = function.__code__.co_qualname, function.__code__.co_firstlineno
        for was, now in zip(old.get(name, ()), new.get(name, ()), strict=True):
            if was.co_firstlineno == line and not same(was, now):
                function.__code__ = now
                changed = True
    return changed


def same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever they stand."""
    if (one.co_code, one.co_names, len(one.co_consts)) != (
        other.co_code,
        other.co_names,
        len(other.co_consts),
    ):
        return False
    return all(
        same(left, right)
        if isinstance(left, CodeType) and isinstance(right, CodeType)
        else (type(left), left) == (type(right), right)
        for left, right in zip(one.co_consts, other.co_consts, strict=True)
    )


class Trials:
    """A plugin of pytest that tries mutants instead of running the tests.

    `share` of `shares` is which part of the tests it records, and which of the mutants it tries: others do
    the rest at the same time.
    """

    def __init__(self, mutants: Sequence[Mutant], out: Path, share: int, shares: int) -> None:
        self._mutants, self._out, self._share, self._shares = mutants, out, share, shares
        self._failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed."""
        if report.failed:
            self._failed.append(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Record what the tests run, then try each mutant in a process of its own."""
        package = sha256()
        for path in sorted(
            [
                *PACKAGE.rglob("*.py"),
                *(path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")),
            ]
        ):
            package.update(path.read_bytes())
        files: dict[Path, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            files[item.path].append(item)
        (self._out / "reached").mkdir(exist_ok=True)
        reached = {
            self._out
            / "reached"
            / sha256(package.digest() + bytes(path) + path.read_bytes()).hexdigest(): path
            for path in files
        }
        mine = [
            place
            for number, place in enumerate(reached)
            if number % self._shares == self._share and not recorded(place).exists()
        ]
        if mine:
            os.waitpid(self._fork(lambda: self._record({place: files[reached[place]] for place in mine})), 0)
            if unfinished := [str(reached[place]) for place in mine if not recorded(place).exists()]:
                sys.exit(f"these tests ended the process that ran them: {unfinished[0]}")
        while not all(recorded(place).exists() for place in reached):
            time.sleep(1)
        for mutant in self._mutants:
            import_module(dotted(PACKAGE / mutant.module))
        gc.unfreeze()
        live: dict[str, list[FunctionType]] = defaultdict(list)
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename.startswith(str(PACKAGE)):
                live[str(Path(one.__code__.co_filename).relative_to(PACKAGE))].append(one)
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        took = {
            test: seconds
            for place in reached
            for test, seconds in json.loads(recorded(place).read_text()).items()
            if test in items
        }
        for number, mutant in enumerate(self._mutants):
            if number % self._shares == self._share:
                tests = sorted(
                    (test for test in reaching(mutant, reached) if test in took), key=lambda test: took[test]
                )
                end = self._tried(
                    mutant, live[mutant.module], {test: (items[test], took[test]) for test in tests}
                )
                with (self._out / "ends.jsonl").open("a") as file:
                    file.write(json.dumps([number, end]) + "\n")
                if end != "caught":
                    print(f"{end:7} {described(mutant)}", file=sys.__stderr__, flush=True)
        return True

    def _fork(self, work: Any) -> int:
        """Do `work` in a process of its own, which ends with what it returns, and with 1 where it fails.

        Returns the id of the process.
        """
        if pid := os.fork():
            return pid
        status = 1
        try:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(nowhere, number)
            status = int(work() or 0)
        finally:
            os._exit(status)

    def _run(self, items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
        """Run tests one after the other, and yield each when it has ended."""
        for item, following in pairwise([*items, None]):
            assert item is not None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item

    def _record(self, files: dict[Path, list[pytest.Item]]) -> None:
        """Record which lines each passing test runs, by test file, and how long it takes."""
        running = self._run([item for items in files.values() for item in items])
        for place, items in files.items():
            watch = coverage.Coverage(data_file=str(place), config_file=False, include=[f"{PACKAGE}/*"])
            watch.set_option("run:disable_warnings", ["no-data-collected", "trace-changed"])
            seconds: dict[str, float] = {}
            watch.start()
            for item in items:
                watch.switch_context(item.nodeid)
                since = time.monotonic()
                next(running)
                seconds[item.nodeid] = time.monotonic() - since
            watch.stop()
            watch.save()
            recorded(place).write_text(
                json.dumps({test: seconds[test] for test in seconds if test not in self._failed})
            )

    def _tried(
        self, mutant: Mutant, live: Sequence[FunctionType], tests: Mapping[str, tuple[pytest.Item, float]]
    ) -> str:
        """`caught`, `missed`, or `time` when its tests did not end in time."""
        chosen, takes = list[pytest.Item](), 0.0
        for item, seconds in tests.values():
            if not chosen or takes + seconds <= ENOUGH_S:
                chosen.append(item)
                takes += seconds
        if not chosen:
            return "missed"
        said = self._out / f"failed-{self._share}.txt"

        def notice(tests: Sequence[pytest.Item]) -> bool:
            noticed = swap(mutant, live) and any(self._failed for _ in self._run(tests))
            said.write_text(self._failed[0] if self._failed else "")
            return noticed

        # On a busy machine a test may fail once that the change has nothing to do with: it has to fail twice.
        said.write_text("")
        end = self._end(lambda: notice(chosen), takes)
        while (
            end == "caught"
            and (name := said.read_text())
            and (again := self._end(lambda: notice([tests[name][0]]), takes)) != "caught"
        ):
            chosen.remove(tests[name][0])
            end = again if again == "time" else self._end(lambda: notice(chosen), takes)
        return end

    def _end(self, work: Any, takes: float) -> str:
        """Return `caught` if `work` fails, `missed` if not, `time` if it takes far longer than `takes`."""
        until, pid = time.monotonic() + SLOWER * takes + 30, self._fork(work)
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return "caught" if status else "missed"
            time.sleep(0.005)
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return "time"


def described(mutant: Mutant) -> str:
    """Where a mutant is and what it changes."""
    source = (PACKAGE / mutant.module).read_bytes()
    was, now = (
        " ".join(text.split())[:80] for text in (source[mutant.start : mutant.end].decode(), mutant.text)
    )
    return f"{mutant.module}:{mutant.line} {mutant.kind}: {was} -> {now}"


def table(results: list[tuple[Mutant, str]], seed: int) -> str:
    """What was caught, by group and kind of change."""
    rows = [
        "| mutants of | sample | made | caught | missed | out of time | caught of those that ended (95 "
        "%) | goal |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group, goal in GOALS.items():
        ends = Counter(end for mutant, end in results if mutant.group == group)
        ended = ends["caught"] + ends["missed"]
        if not ended:
            continue
        low, high = wilson_interval(ends["caught"], ended)
        share = f"{ends['caught'] / ended:.0%} ({100 * low:.0f}–{100 * high:.0f})"
        counts = f"{sum(ends.values())} | {ends['caught']} | {ends['missed']} | {ends['time']}"
        rows.append(f"| {group} | seed {seed} | {counts} | {share} | {goal} % |")
    kinds = Counter((mutant.kind, end) for mutant, end in results)
    by_kind = ", ".join(
        f"{kind} {kinds[kind, 'caught']} of {kinds[kind, 'caught'] + kinds[kind, 'missed']}"
        for kind in sorted({kind for kind, _ in kinds})
    )
    return "\n".join([*rows, "", f"Caught by kind: {by_kind}."]) + "\n"


def main() -> None:
    """Make mutants, try them and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.mutants", description="See which changes of the package its tests notice."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/mutants"),
        help="folder for what was found (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=14, help="of the sample (default: %(default)s)")
    parser.add_argument(
        "--number", type=int, default=200, help="mutants of each of the two groups (default: %(default)s)"
    )
    parser.add_argument("--only", choices=GOALS, help="one group alone")
    parser.add_argument(
        "--modules", help="all mutants of these modules instead of a sample, such as 'permissions/*'"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once (default: %(default)s)"
    )
    given = parser.parse_args()
    paths = [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if fnmatch(str(path.relative_to(PACKAGE)), given.modules or "*")
    ]
    made = [mutant for path in paths for mutant in mutants_of(path) if ran(mutant) is not None]
    sample: list[Mutant] = []
    for group in (given.only,) if given.only else GOALS:
        of_group = [mutant for mutant in made if mutant.group == group]
        sample += (
            of_group
            if given.modules
            else random.Random(given.seed).sample(of_group, min(given.number, len(of_group)))
        )
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "ends.jsonl").unlink(missing_ok=True)
    # Others take longer than most tests.
    plugins = (
        "no:cacheprovider",
        "pytest_timeout",
        "_hypothesis_pytestplugin",
    )
    asked = [
        "-qq",
        "--no-header",
        *(f"-p{name}" for name in plugins),
        "-m",
        "not long and not browser",
        f"--rootdir={ROOT}",
        "tests",
    ]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(ROOT)
    jobs = []
    for share in range(given.jobs):
        if not (pid := os.fork()):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os._exit(pytest.main(asked, plugins=[Trials(sample, out, share, given.jobs)]))
        jobs.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in jobs]
    if any(statuses):
        sys.exit("the tests could not be collected: run them first")
    ends = dict(json.loads(line) for line in (out / "ends.jsonl").read_text().splitlines())
    print(f"\n{table([(mutant, ends[number]) for number, mutant in enumerate(sample)], given.seed)}")


if __name__ == "__main__":
    main()
