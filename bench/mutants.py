"""Change the package in a sample of places and see which changes the tests notice: `python -m bench.mutants --out FOLDER`.

A mutant is the package with one comparison, condition, boolean, sum or return value changed. The ten test files nearest to the
changed module run on it, in a copy of the project: of their tests those that ran the changed statement when nothing was changed
(`bench.reached`), the quickest first. What was found is kept in FOLDER/mutants.jsonl, so a run that was stopped goes on; remove that after
the package or its tests have changed. mutmut and cosmic-ray make every mutant of a project and run one command on each; neither
draws a sample of the whole nor picks the tests of a module.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

import pytest

from bench.reached import CHOSEN, FAILED, WRITTEN
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
ENDED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
NEAREST = 3
"""So many test files are tried first, by themselves: most mutants are caught there."""


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
            module, node.lineno, kind, lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset, text
        )

    def said(node: ast.expr) -> str:
        return f"({ast.unparse(node)})"

    for node in nodes(ast.parse(source)):
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield mutant(node, "comparison", f"({said(left)} {COMPARED[type(op)]} {said(right)})")
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare | ast.Constant):
                yield mutant(test, "condition", f"(not {said(test)})")
            case ast.BoolOp(op=op, values=values):
                word = " or " if isinstance(op, ast.And) else " and "
                yield mutant(node, "boolean", f"({word.join(map(said, values))})")
            case ast.Constant(value=bool(value)):
                yield mutant(node, "boolean", str(not value))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in COUNTED and not texts(left, right):
                yield mutant(node, "arithmetic", f"({said(left)} {COUNTED[type(op)]} {said(right)})")
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield mutant(value, "return", "None")


def texts(*nodes: ast.expr) -> bool:
    """Whether one of them is certainly no number."""
    return any(
        isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.Constant) and not isinstance(getattr(node, "value", ""), int)
        for node in nodes
    )


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that do something when the module runs."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            if isinstance(child, ast.AST) and not isinstance(child, ast.Assert | ast.JoinedStr) and not for_checkers:
                yield child
                yield from nodes(child)


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, as dotted names; names imported of a package may be modules."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kestrel_lab"):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


class Covering:
    """Which test files are about a module: those that import it, and those that import what imports it, the nearest first."""

    def __init__(self) -> None:
        self._tests = {path: imported(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))}
        self._modules = {dotted(path): imported(path) for path in sorted(PACKAGE.rglob("*.py"))}

    def of(self, module: str, most: int = 10) -> list[str]:
        """So many test files: a module that is always used through another one is tested by the tests of that."""
        wanted = {dotted(PACKAGE / module)}
        steps: dict[Path, int] = {}
        for step in range(4):
            for path, names in self._tests.items():
                if names & wanted:
                    steps.setdefault(path, step)
            wanted = {name for name, names in self._modules.items() if names & wanted}
        place, words = Path(module).parts[0], set(re.split(r"\W|_", module.removesuffix(".py")))

        def distance(path: Path) -> tuple[bool, int, bool, int, int]:
            shared = len(words & set(path.stem.split("_")))
            return steps[path] > 0, -shared, place not in path.parts, steps[path], len(self._tests[path])

        return [str(path.relative_to(ROOT)) for path in sorted(steps, key=distance)[:most]]


def dotted(path: Path) -> str:
    """The name of a module of the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def ran(mutant: Mutant) -> range | None:
    """The lines of the changed statement, up to the change; none for what runs when the module is imported."""
    source = (PACKAGE / mutant.module).read_bytes()
    last = mutant.line + source[mutant.start : mutant.end].count(b"\n")
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = [
        node
        for function in functions
        for body in function.body
        for node in ast.walk(body)
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= last <= (node.end_lineno or 0)
    ]
    return range(max(node.lineno for node in inside), last + 1) if inside else None


class Copy:
    """A copy of the project in which tests run."""

    def __init__(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        ignored = shutil.ignore_patterns(".git", ".venv", "out", "*_cache", "__pycache__", "node_modules")
        shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
        # tests that fail without a repository would seem to notice anything
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        self.folder = folder.absolute()

    def pytest(self, *given: str, seconds: float, **environment: str) -> int:
        """Run tests, and return the exit code. Raises `subprocess.TimeoutExpired` when they do not end in time."""
        plugins = ("no:cacheprovider", "pytest_timeout", "_hypothesis_pytestplugin", "bench.reached")  # others take longer than most tests
        command = [sys.executable, "-m", "pytest", "-q", *(f"-p{name}" for name in plugins), "-m", "not long and not browser"]
        alone = {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env = {**os.environ, **alone, **environment}
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            [*command, *given], cwd=self.folder, env=env, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        ) as process:
            try:
                return process.wait(seconds)
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


class Reached:
    """Which tests of a file ran which lines of the unchanged package: recorded when it is asked for again, and kept in a folder.

    To record a file takes longer than to run it once. A record is made again when the test file or the module in question has changed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._asked = set[str]()
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)

    def tests(self, file: str, module: str, lines: range | None, copy: Copy) -> dict[str, float] | None:
        """The tests that may notice a change of these lines, and how long each takes; `None` while nothing is recorded: any of the file.

        Those that start Python may run any line; those that fail anyway notice nothing.
        """
        kept = self._folder.absolute() / f"{file.replace('/', '.')}.json"
        now = [sha256(path.read_bytes()).hexdigest() for path in (ROOT / file, PACKAGE / module)]
        with self._locks[file]:
            if not kept.exists() or [(found := json.loads(kept.read_text()))["file"], found["modules"].get(module, now[1])] != now:
                if file not in self._asked:
                    self._asked.add(file)
                    return None
                copy.pytest(file, seconds=1800, **{WRITTEN: str(kept)})
            found = json.loads(kept.read_text())
            names, of_module = list(found["seconds"]), found["lines"].get(module, {})
        chosen = set(names)
        if lines is not None:
            chosen = {*found["anywhere"], *(names[at] for line in lines for at in of_module.get(str(line), ()))}
        return {name: found["seconds"][name] for name in chosen - set(found["failed"])}


def tried(mutant: Mutant, files: list[str], copy: Copy, reached: Reached, seconds: float) -> str:
    """`caught`, `missed`, or `time` when its tests did not end in time."""
    place = copy.folder / "kestrel_lab" / mutant.module
    source, lines = (PACKAGE / mutant.module).read_bytes(), ran(mutant)
    for some in (files[:NEAREST], files[NEAREST:]):
        tests = {file: reached.tests(file, mutant.module, lines, copy) for file in some}
        taken = {name: time for by_name in tests.values() for name, time in (by_name or {}).items()}
        chosen = [*sorted(taken, key=lambda name: taken[name]), *(file for file in some if tests[file] is None)]
        put(place, mutant.made(source))
        try:
            if chosen and notice(chosen, copy, seconds):
                return "caught"
        except subprocess.TimeoutExpired:
            return "time"
        finally:
            put(place, source)
    return "missed"


def notice(chosen: list[str], copy: Copy, seconds: float) -> bool:
    """Whether one of these tests or test files fails twice: on a busy machine a test may fail once that the change has nothing to do with."""
    order, failed = copy.folder / "chosen.json", copy.folder / "failed.txt"
    doubtful = list[str]()
    while True:
        order.write_text(json.dumps({"run": chosen, "but": doubtful}))
        failed.write_text("")
        files = dict.fromkeys(name.partition("::")[0] for name in chosen)
        if copy.pytest("-x", *files, seconds=seconds, **{CHOSEN: str(order), FAILED: str(failed)}) in ENDED:
            return False
        if not (name := failed.read_text().partition("\n")[0]):  # the module cannot even be imported
            return True
        order.write_text(json.dumps({"run": [name], "but": []}))
        if copy.pytest(name.partition("::")[0], seconds=seconds, **{CHOSEN: str(order), FAILED: str(failed)}) not in ENDED:
            return True
        doubtful.append(name)


def put(place: Path, source: bytes) -> None:
    """Replace a module, and forget what it was compiled to: two changes in one second look alike. The others stay compiled."""
    place.write_bytes(source)
    for compiled in (place.parent / "__pycache__").glob(f"{place.stem}.*"):
        compiled.unlink()


def table(results: list[tuple[Mutant, str]], seed: int) -> str:
    """What was caught, by group and kind of change."""
    rows = [
        "| mutants of | sample | made | caught | missed | out of time | caught of those that ended (95 %) | goal |",
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
        f"{kind} {kinds[kind, 'caught']} of {kinds[kind, 'caught'] + kinds[kind, 'missed']}" for kind in sorted({kind for kind, _ in kinds})
    )
    return "\n".join([*rows, "", f"Caught by kind: {by_kind}."]) + "\n"


def main() -> None:
    """Make mutants, try them and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.mutants", description="See which changes of the package its tests notice.")
    parser.add_argument(
        "--out", type=Path, default=Path("out/mutants"), help="folder for what was found and for copies (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=14, help="of the sample (default: %(default)s)")
    parser.add_argument("--number", type=int, default=100, help="mutants of each of the two groups (default: %(default)s)")
    parser.add_argument("--only", choices=GOALS, help="one group alone")
    parser.add_argument("--seconds", type=float, default=180, help="for the tests of one mutant (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at once (default: %(default)s)")
    given = parser.parse_args()
    made = [mutant for path in sorted(PACKAGE.rglob("*.py")) for mutant in mutants_of(path)]
    sample: list[Mutant] = []
    for group in (given.only,) if given.only else GOALS:
        of_group = [mutant for mutant in made if mutant.group == group]
        sample += random.Random(given.seed).sample(of_group, min(given.number, len(of_group)))
    kept = given.out / "mutants.jsonl"
    given.out.mkdir(parents=True, exist_ok=True)
    known: dict[str, str] = (
        {json.dumps(row["mutant"]): row["end"] for row in map(json.loads, kept.read_text().splitlines())} if kept.exists() else {}
    )
    covering, reached, copies = Covering(), Reached(given.out / "reached"), SimpleQueue[Copy]()
    for number in range(given.jobs):
        copies.put(Copy(given.out / f"copy{number}"))

    def end_of(mutant: Mutant) -> str:
        key = json.dumps(asdict(mutant))
        if key in known:
            return known[key]
        copy = copies.get()
        try:
            end = tried(mutant, covering.of(mutant.module), copy, reached, given.seconds)
        finally:
            copies.put(copy)
        with kept.open("a") as file:
            file.write(json.dumps({"mutant": asdict(mutant), "end": end}) + "\n")
        print(f"{end:7} {mutant.module}:{mutant.line} {mutant.kind}: {' '.join(mutant.text.split())[:90]}", flush=True)
        return end

    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(zip(sample, pool.map(end_of, sample), strict=True))
    print(f"\n{table(results, given.seed)}\nMissed:")
    for mutant, end in results:
        if end == "missed":
            print(f"  {mutant.module}:{mutant.line} {mutant.kind}: {' '.join(mutant.text.split())[:100]}")


if __name__ == "__main__":
    main()
