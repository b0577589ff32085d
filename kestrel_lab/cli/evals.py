"""`kestrel eval …`: measure suites, compare commits, decide gates."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.face import Face
from kestrel_lab.core.errors import UsageError

if TYPE_CHECKING:
    from kestrel_lab.evals.comparison import Comparison
    from kestrel_lab.evals.result import EvalResult

evals = typer.Typer(
    help="Measure agents: run suites of scenarios, compare two commits, decide gates.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Suite = Annotated[str, typer.Argument(metavar="SUITE", help="A suite file (YAML), or a published suite: bfcl:CATEGORY or agentdojo:SUITE.")]
Configs = Annotated[list[str] | None, typer.Option("--config", "-c", help="Only this configuration of the suite; may be repeated.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", "-m", help="This model in place of the suite's configurations; may be repeated.")
]
Epochs = Annotated[int | None, typer.Option(help="How often each scenario is repeated; the suite's number by default.")]
Report = Annotated[Path | None, typer.Option(help="Write a self-contained HTML report to this file.")]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML: a test case per configuration and scenario.")]
Markdown = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a summary for a pull request.")]
Link = Annotated[str, typer.Option(metavar="URL", help="Where --report will be found, for links of --markdown; its path by default.")]
Reuse = Annotated[bool, typer.Option("--reuse", help="Take equal trials that were made before instead of making them again.")]
Margin = Annotated[float, typer.Option(help="How large a change of the success rate still counts as none.")]


@evals.command("run", epilog="Example: kestrel eval run evals/smoke.yaml --epochs 3 --report out/smoke.html")
def run_suite(
    ctx: typer.Context,
    suite: Suite,
    *,
    config: Configs = None,
    model: Models = None,
    epochs: Epochs = None,
    report: Report = None,
    csv: Annotated[Path | None, typer.Option(help="Write one row per trial to this file.")] = None,
    junit: Junit = None,
    markdown: Markdown = None,
    link: Link = "",
    reuse: Reuse = False,
) -> Any:
    """Run every scenario with every model configuration, as often as `epochs` says.

    Published suites need their packages (pip install --no-deps bfcl-eval agentdojo, and 'kestrel-lab[benchmarks]'):
    kestrel eval run 'bfcl:multi_turn_base?limit=20' --model local
    """
    if config and model:
        msg = "--config picks configurations of the suite and --model takes their place: give one of the two"
        raise UsageError(msg)
    chosen = {name: name for name in model} if model else config
    face: Face = ctx.find_root().obj
    lab = face.lab()

    async def work(reporter: Any) -> Any:
        result = await lab.eval(suite, configs=chosen, epochs=epochs, reporter=reporter, reuse=reuse)
        _write(result, report, junit, markdown, link)
        if csv is not None:
            csv.parent.mkdir(parents=True, exist_ok=True)
            result.frame.to_csv(csv, index=False)
        return result

    return face.wait(work)


@evals.command("compare", epilog="Example: kestrel eval compare main HEAD --suite evals/smoke.yaml")
def compare_commits(
    ctx: typer.Context,
    base: Annotated[str, typer.Argument(metavar="BASE", help="The commit to compare with: a name, tag or hash.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="The commit in question.")],
    *,
    suite: Annotated[str, typer.Option("--suite", "-s", help="A suite file (YAML).")],
    config: Configs = None,
    epochs: Epochs = None,
    report: Report = None,
    junit: Junit = None,
    markdown: Markdown = None,
    link: Link = "",
    margin: Margin = 0.05,
) -> Any:
    """Run a suite at two commits, as far as results are missing, and say what changed.

    Each commit is checked out in a worktree of its own; your files, index and HEAD stay as they are.
    """
    face: Face = ctx.find_root().obj
    lab = face.lab()

    async def work(reporter: Any) -> Any:
        comparison = await lab.compare(base, head, suite=suite, configs=config, epochs=epochs, reporter=reporter, margin=margin)
        _write(comparison, report, junit, markdown, link)
        return comparison

    return face.wait(work)


@evals.command("gate", epilog="Example: kestrel eval gate evals/smoke.yaml --against main --markdown out/gate.md")
def decide_gates(
    ctx: typer.Context,
    suite: Suite,
    *,
    against: Annotated[str, typer.Option(metavar="COMMIT", help="Also compare HEAD with this commit, both measured as committed.")] = "",
    config: Configs = None,
    epochs: Epochs = None,
    report: Report = None,
    junit: Junit = None,
    markdown: Markdown = None,
    link: Link = "",
    margin: Margin = 0.05,
    reuse: Reuse = False,
) -> Any:
    """Run a suite and decide its gates. Exit code 0: all hold; 1: one is violated; 2: not sure; 3: not decided, something is broken.

    Gates stand in the suite file: `gates: [{success_rate: {at_least: 0.8}}, {cost_estimate: {at_most: 0.02, config: small}}]`.
    A bound holds, or is violated, where the whole 95 % interval is on one side of it.
    """
    from kestrel_lab.evals.suitefile import load_suite  # loads pydantic

    face: Face = ctx.find_root().obj
    if not against and not load_suite(suite).select(configs=config).gates:
        msg = f"{suite} declares no gates to decide: write some under 'gates', or compare with a commit (--against)"
        raise UsageError(msg)
    lab = face.lab()

    async def work(reporter: Any) -> Any:
        measured: EvalResult | Comparison
        if against:
            measured = await lab.compare(against, "HEAD", suite=suite, configs=config, epochs=epochs, reporter=reporter, margin=margin)
        else:
            measured = await lab.eval(suite, configs=config, epochs=epochs, reporter=reporter, reuse=reuse)
        _write(measured, report, junit, markdown, link)
        return measured.gates()

    return face.wait(work)


@evals.command("import", epilog="Example: kestrel eval import logs/2026-11-22_task.eval --csv out/trials.csv")
def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="Logs of Inspect (.eval, .json) or public routing data (.jsonl).")],
    *,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one row per trial to this file.")] = None,
) -> Any:
    """Read what others measured and summarise it like our own trials, with 95 % intervals clustered by scenario.

    Nothing in the files is run, and Inspect need not be installed. What broke there counts in no rate, as in Inspect.
    """
    from kestrel_lab.evals.importers.files import read_files, summary_of

    frame = read_files(files)
    if csv is not None:
        csv.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(csv, index=False)
    return summary_of(frame)


def _write(measured: EvalResult | Comparison, report: Path | None, junit: Path | None, markdown: Path | None, link: str) -> None:
    """Write what is asked for; the summary links to the report."""
    if report is not None:
        measured.report(report)
    if junit is not None:
        measured.junit(junit)
    if markdown is not None:
        near = os.path.relpath(report, markdown.parent) if report is not None else ""
        text = measured.markdown(link or near)
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(text, encoding="utf-8")
