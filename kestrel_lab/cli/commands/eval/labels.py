"""`kestrel eval label` and `kestrel eval judge`: what people say of trials, and how far judges agree."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.eval_options import StoredParts, run_measurement, save_outputs
from kestrel_lab.cli.frontend import frontend_of, option_groups, output_file
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.options import JudgeOptions, LabelOptions
from kestrel_lab.views.formatting import format_count

judging = typer.Typer()
"""Commands of `kestrel eval`."""


@judging.command("label", epilog="Example: kestrel eval label evals/smoke.yaml --number 30")
@option_groups
def label_trials(
    ctx: typer.Context,
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A suite file; its name is enough for --csv and --show.")
    ],
    *,
    how: LabelOptions,
    unsure: Annotated[
        bool, typer.Option("--unsure", help="Draw trials likelier where judges are unsure of them.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Only show what is labelled, and how far people agree.")
    ] = False,
    csv: Annotated[Path | None, output_file("Only write the labels to this file.")] = None,
    read: Annotated[
        Path | None, typer.Option("--read", metavar="FILE", help="Only read labels from such a file.")
    ] = None,
    which: StoredParts,
) -> Any:
    """Label stored trials by keys, one at a time, without seeing the configuration or what a judge says.

    Trials are drawn at random, and each label keeps the probability with which its trial was drawn. A
    tenth comes back, to show how consistent you are. Every label is stored at once: quit and go on when you
    like.
    """
    frontend = frontend_of(ctx)
    judging = frontend.lab().evals
    if csv is not None:
        return f"written: {judging.write_labels(suite, csv)}"
    if read is not None:
        new, there = judging.read_labels(suite, read)
        return f"{format_count(new, 'label')} read, {there} were there"
    if show:
        return judging.labels(suite)
    given: Any = {**asdict(how), **asdict(which)}
    return frontend.label(judging.label(suite, active=unsure, **given))


@judging.command(
    "judge", epilog="Example: kestrel eval judge evals/smoke.yaml --model openai/gpt-5 --labelled"
)
@option_groups
def measure_judge(
    ctx: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            metavar="SUITE|FILE",
            help="A suite with labels; or labelled pairs or claims, JSON Lines: see docs/howto/judging.md.",
        ),
    ],
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A judge to ask, may be repeated; of a suite none is asked by default, and of claims the "
            "model of the settings.",
        ),
    ] = None,
    how: JudgeOptions,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Of claims only N of each set, drawn at random."),
    ] = None,
    csv: Annotated[Path | None, output_file("Write the measures with their intervals to this file.")] = None,
    which: StoredParts,
) -> Any:
    """Measure how often model judges are right against labels, with 95 % intervals, and where they lean.

    Of a suite these are the verdicts in the log, after those that --model asks for; each keeps the judge and
    hashes of its prompt and rubric, and scores of two versions are never mixed. A file of pairs has recorded
    verdicts, so that nothing is asked; of a file of claims the judge of `--verify judge` is measured.
    """
    if what.endswith(".jsonl"):
        return _measure_file(ctx, Path(what), model or [], limit, csv)

    given: Any = {**asdict(how), **asdict(which)}
    return run_measurement(
        ctx, lambda lab, reporter: lab.evals.judge(what, *(model or []), reporter=reporter, **given), csv=csv
    )


def _measure_file(
    ctx: typer.Context, file: Path, models: list[str], limit: int | None, csv: Path | None
) -> Any:
    from kestrel_lab.evals.studies.judge_accuracy import judge_accuracy, read_labelled, sample_claims
    from kestrel_lab.evals.studies.judge_pairs import are_pairs, measure_pairs, read_pairs

    if are_pairs(file):
        found = measure_pairs(read_pairs(file), file.name)
        save_outputs(found, csv=csv)
        return found
    if len(models) > 1:
        raise UsageError(f"claims are judged by one model, not {len(models)}: {', '.join(models)}")
    rows = sample_claims(read_labelled(file), limit)
    name = models[0] if models else None
    return run_measurement(
        ctx,
        lambda lab, reporter: judge_accuracy(lab.registry.resolve_model(name), rows, reporter),
        csv=csv,
    )
