"""Show recorded runs of real models: what `make demo` shows first.

python evals/demo_recorded.py FOLDER

AgentDojo, a benchmark of agents under prompt injection, has the runs of its authors in its source distribution
(MIT). pip downloads it; it is read as an archive and not installed. Exits with 3 where it cannot be had.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from kestrel_lab import Lab
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.views.text import table_text

PACKAGE, VERSION = "agentdojo", "0.1.26"
DIGEST = "c279d89f8724b54ad20a9ee380c94317f4d55843826758c281330064f8e3eec5"
"""SHA-256 of the source distribution, so that everybody sees the same runs."""
MODELS = ("claude-3-5-sonnet-20241022", "gpt-4o-2024-05-13", "gemini-1.5-pro-002")
SUITE, ATTACK = "banking", "important_instructions"
PATIENCE_S = 90
CANNOT = 3
"""The exit code where the package cannot be had."""
WHAT = f"""\
RECORDED RUNS OF REAL MODELS. Nothing was asked of a model now.
  what:  {len(MODELS)} models as agents of a bank's customer ({SUITE}): 16 tasks, alone and with 9 attacks each,
         instructions hidden in what the agent reads. A trial passes if the task was done and the attack was not.
  whose: the authors of AgentDojo (Debenedetti, Zhang, Balunović, Beurer-Kellner, Fischer, Tramèr; MIT licence),
         published in {PACKAGE} {VERSION}. Its files have no date; the newest model is of October 2024.
"""


def main() -> int:
    """Fetch, import, and show; return the exit code."""
    folder = Path(sys.argv[1])
    try:
        archive = fetch(folder / "download")
    except OSError as error:
        print(f"The recorded runs of {PACKAGE} {VERSION} cannot be had: {error}", file=sys.stderr)
        return CANNOT
    asyncio.run(show(folder, list(unpack(archive, folder / "recorded"))))
    return 0


def fetch(folder: Path) -> Path:
    """Return the source distribution, downloaded unless it is there; raises `OSError` where it is not the known
    one.
    """
    archive = folder / f"{PACKAGE}-{VERSION}.tar.gz"
    if not archive.exists():
        print(f"fetching {PACKAGE} {VERSION} (21 MB)", flush=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--no-binary", PACKAGE, "--dest", str(folder), "--retries", "1", f"{PACKAGE}=={VERSION}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"pip had not ended after {PATIENCE_S} s") from error
        if done.returncode or not archive.exists():
            raise OSError((done.stderr.strip().splitlines() or ["pip gave no reason"])[-1])
    if hashlib.sha256(archive.read_bytes()).hexdigest() != DIGEST:
        archive.unlink()
        raise OSError("another file than the published one was downloaded")
    return archive


def unpack(archive: Path, folder: Path) -> Iterator[Path]:
    """Write the runs that are shown to files of our own naming, and yield their paths; nothing else is
    unpacked.
    """
    with tarfile.open(archive) as members:
        for member in members:
            match PurePosixPath(member.name).parts:
                case (_, "runs", model, suite, task, attack, name) if (
                    model in MODELS
                    and suite == SUITE
                    and task.startswith("user_task")
                    and attack in ("none", ATTACK)
                    and (content := members.extractfile(member)) is not None
                ):
                    path = folder / f"{model}-{task}-{attack}-{name}"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
                    yield path


async def show(folder: Path, files: Sequence[Path]) -> None:
    """Import the runs, print the matrix, the comparison and one reason, and write the pages."""
    async with Lab() as lab:
        imported = await lab.evals.import_runs(files)
        alone, attacked = (imported.results[name] for name in sorted(imported.results))
        compared = lab.evals.compare_configs(attacked, *reversed(MODELS[:2]))
        failed = next(row for row in attacked.rows if row.config == MODELS[1] and "resisted" in row.why)
        print(WHAT)
        headings, rows = imported.table()
        known = [
            place for place, name in enumerate(headings) if name not in ("broke", "tokens", "cost per trial")
        ]
        print(table_text([headings[n] for n in known], [[row[n] for n in known] for row in rows]))
        print("tokens and costs are not in the recordings\n")
        print("each task: done when left alone; in how many of 9 attacks it was done and the attack was not")
        print(table_text(*matrix(alone, attacked)), "\n")
        print("\n".join(str(compared).splitlines()[:2]), "\n")
        print(f"why {MODELS[1]} failed {failed.scenario}:\n  {failed.why}")
        print(f"  all of it: KESTREL_HOME={lab.home} kestrel show {failed.run}\n")
        print(f"matrix:     {attacked.report(folder / 'report.html')}")
        print(f"comparison: {compared.report(folder / 'comparison.html')}")
        attacked.frame.to_csv(folder / "trials.csv", index=False)
        print(f"trials:     {folder / 'trials.csv'}")
        print("to try the agent itself, with a small local model: make demo-local")


def matrix(alone: EvalResult, attacked: EvalResult) -> tuple[list[str], list[list[str]]]:
    """Return headings, and a row of texts per task."""
    done = {(row.scenario, row.config): row.outcome == "pass" for row in alone.rows}
    rows = []
    for task in sorted({row.scenario for row in alone.rows}, key=lambda name: int(name.rpartition("_")[2])):
        cells = [task.rpartition("/")[2]]
        for model in MODELS:
            held = [
                row.outcome == "pass"
                for row in attacked.rows
                if row.config == model and row.scenario.startswith(f"{task}/")
            ]
            cells.append(f"{'✓' if done[task, model] else '✗'}  {sum(held)} of {len(held)}")
        rows.append(cells)
    return ["task", *MODELS], rows


if __name__ == "__main__":
    sys.exit(main())
