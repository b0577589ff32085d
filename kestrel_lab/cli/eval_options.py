"""Options that commands of `kestrel eval` share, alone and in groups."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kestrel_lab.cli.frontend import frontend_of, output_file
from kestrel_lab.core.drawing.matplotlib_figure import save_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.evals.gate_bounds import FailOn
from kestrel_lab.evals.options import CommitSample, EvalOptions, Parts, TrialOptions
from kestrel_lab.views.csv_cells import write_csv

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.evals.commits.comparison import Comparison
    from kestrel_lab.evals.commits.sequential_compare import Design
    from kestrel_lab.evals.execution.result import EvalResult
    from kestrel_lab.lab import Lab

T = TypeVar("T")

Suite = Annotated[
    str,
    typer.Argument(
        metavar="SUITE", help="A suite file (YAML), or a published suite: bfcl:CATEGORY or agentdojo:SUITE."
    ),
]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="Only this configuration of the suite; may be repeated."),
]
SuiteAtCommit = Annotated[
    bool,
    typer.Option("--suite-at-commit", help="Run the suite file of each commit itself, not the present one."),
]
Commit = Annotated[
    str | None,
    typer.Option(help="Trials of this commit (HEAD, a tag, a hash); by default those of the newest trial's."),
]
Margin = Annotated[
    float, typer.Option(help="The largest change of the success rate that counts as no change.")
]
FailOnOption = Annotated[
    FailOn,
    typer.Option(
        "--fail-on",
        help="worse: end with an error code only for what is shown to be worse; uncertain: also where the "
        "trials do not tell; any: for any change of a rate. Bounds under gates: count either way.",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """The options that select configurations of stored trials."""

    configs: Configs = None
    commit: Commit = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredParts(Parts):
    """The options of `StoredSelection`: parts of a suite, and the commit whose trials they are."""

    commit: Commit = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Execution(EvalOptions):
    """The options that say how a suite is run, and where."""

    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the trials on the workers of this Dask scheduler, e.g. tcp://host:8786.",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the options as `Lab.eval` takes them, but for the reporter, which the command brings."""
        return {name: value for name, value in asdict(self).items() if name != "reporter"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine(CommitSample):
    """The options that choose commits."""

    commits: Annotated[
        str, typer.Option(metavar="A..B", help="At these commits: A..B, or A,B,C; see above for the default.")
    ] = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outputs:
    """The options that name files for a result: see `save_outputs`."""

    plot: Annotated[Path | None, output_file("Write the plot to this file: .png, .svg or .pdf.")] = None
    report: Annotated[Path | None, output_file("Write a self-contained HTML report to this file.")] = None
    csv: Annotated[Path | None, output_file("Write the rows to this file.")] = None


def _share(text: str) -> float:
    """Return a share that is written as `5%`, `5` (points) or `0.05`."""
    number = text.strip().removesuffix("%").strip()
    try:
        value = float(number)
    except ValueError:
        raise typer.BadParameter(f"a share is written as 5%, 5 or 0.05, not {text!r}") from None
    # A share of 1 or more makes no sense for these options: it is meant in points.
    return value / 100 if text.strip().endswith("%") or value >= 1 else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The options of trials that are made in turns until something is decided."""

    budget: Annotated[
        str | None,
        typer.Option(
            metavar="BUDGET",
            help="Make trials in turns until it is decided, with at most this: 200trials (of all "
            "configurations or both sides together), 3usd, or open for no maximum.",
        ),
    ] = None
    error: Annotated[
        float,
        typer.Option(
            parser=_share, metavar="SHARE", help="With --budget: the share of false verdicts over all looks."
        ),
    ] = "5%"  # type: ignore[assignment]  # the parser is given the default, too

    def gate_design(self, *, against: str, execution: Execution) -> Design | None:
        """Return the design of a gate in turns, if one is asked for."""
        from kestrel_lab.evals.commits.sequential_compare import Design, parse_budget

        if self.budget is None:
            return None
        if against:
            raise UsageError(
                "--against decides about the change between two commits: kestrel eval compare SUITE "
                f"{against} HEAD --budget {self.budget} makes it in turns"
            )
        if execution.epochs is not None or execution != Execution(
            **{one.name: getattr(execution, one.name) for one in fields(TrialOptions)}
        ):
            raise UsageError(
                "--budget decides how many trials are made, and takes stored ones: leave out --epochs, "
                "--reuse, --resume, --retry-errors, --early-stopping (write it into the suite) and --cluster"
            )
        trials, cost = parse_budget(self.budget)
        return Design(trials=trials, cost=cost, error=self.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns(Budget):
    """The options of a comparison that makes trials in turns until it is decided."""

    power: Annotated[
        float,
        typer.Option(
            parser=_share, metavar="SHARE", help="With --plan: how often a real difference is to be found."
        ),
    ] = "80%"  # type: ignore[assignment]
    matters: Annotated[
        float,
        typer.Option(
            parser=_share,
            metavar="POINTS",
            help="With --budget: the smallest difference that anybody would act on.",
        ),
    ] = "5%"  # type: ignore[assignment]
    plan: Annotated[
        bool, typer.Option("--plan", help="With --budget: only show what that budget can tell apart.")
    ] = False

    @property
    def design(self) -> Design | None:
        """The design that is asked for."""
        from kestrel_lab.evals.commits.sequential_compare import Design, parse_budget

        if self.budget is None:
            if self.plan:
                raise UsageError("--plan needs the budget to plan with: --budget 200trials")
            return None
        trials, cost = parse_budget(self.budget)
        return Design(trials=trials, cost=cost, error=self.error, power=self.power, matters=self.matters)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """The options that name files to write."""

    report: Annotated[Path | None, output_file("Write a self-contained HTML report to this file.")] = None
    junit: Annotated[
        Path | None, output_file("Write JUnit XML: a test case per configuration and scenario.")
    ] = None
    markdown: Annotated[Path | None, output_file("Write a summary for a pull request.")] = None
    link: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The address of --report for links in --markdown; its path by default."
        ),
    ] = ""

    def write(self, measured: EvalResult | Comparison) -> None:
        """Write what is asked for; the summary links to the report."""
        if self.report is not None:
            measured.report(self.report)
            tell_written(self.report)
        if self.junit is not None:
            measured.junit(self.junit)
            tell_written(self.junit)
        if self.markdown is not None:
            near = os.path.relpath(self.report, self.markdown.parent) if self.report is not None else ""
            text = measured.markdown(self.link or near)
            self.markdown.parent.mkdir(parents=True, exist_ok=True)
            self.markdown.write_text(text, encoding="utf-8")
            tell_written(self.markdown)


def run_measurement(
    ctx: typer.Context,
    work: Callable[[Lab, Reporter], Awaitable[T]],
    then: Callable[[T], object] = lambda _: None,
    **files: Any,
) -> Any:
    """Carry out a long command with its lab and show its progress; then give what it found to `then`, and
    write its `files`: see `save_outputs`.
    """
    frontend = frontend_of(ctx)
    lab = frontend.lab()

    async def done(reporter: Reporter) -> T:
        found = await work(lab, reporter)
        then(found)
        save_outputs(found, **files)
        return found

    return frontend.wait(done)


def save_outputs(
    found: Any,
    *,
    report: Path | None = None,
    csv: Path | None = None,
    plot: Path | None = None,
    index: bool = False,
) -> None:
    """Write the report of a result, its frame and its drawing to the files that are named."""
    if report is not None:
        found.report(report)
        tell_written(report)
    if csv is not None:
        write_csv(found.frame, csv, index=index)
        tell_written(csv)
    if plot is not None:
        save_figure(found.plot(), plot)
        tell_written(plot)


def tell_written(path: Path) -> None:
    """Say where a file was written, beside what a command prints for programs."""
    # A device, such as /dev/stdout, is no place to look for it.
    if path.is_file():
        typer.echo(f"wrote {sanitize_text(str(path))}", err=True)


def parse_comparison(words: list[str], suite: str) -> tuple[str, str, str]:
    """Return suite file, base and head of a comparison of commits."""
    file, commits = suite_and_words(words, suite)
    if len(commits) > 2:
        raise UsageError(f"two commits are compared, not {len(commits)}: {' '.join(commits)}")
    base, head = [*commits, *("auto", "HEAD")[len(commits) :]]
    return file, base, head


def suite_and_words(words: list[str], suite: str) -> tuple[str, list[str]]:
    """Return the suite file and what is compared; what is called like a YAML file is the suite."""
    named = [word for word in words[:1] if word.endswith((".yaml", ".yml"))]
    if suite and named:
        raise UsageError(f"the suite is named twice, {named[0]} and --suite {suite}: leave one out")
    if not (suite or named):
        raise UsageError(
            "name the suite file first, or with --suite: kestrel eval compare evals/smoke.yaml main HEAD"
        )
    return suite or named[0], words[len(named) :]
