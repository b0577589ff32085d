"""`kestrel show`, `diff`, `approve`, `deny` and `undo`: watch runs, and decide what they wait for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kestrel_lab.cli.frontend import RunId, frontend_of
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.runtime.approvals.undo import newest_run
from kestrel_lab.runtime.diff import RunDiff
from kestrel_lab.tools.kernel.live_kernel import kernel_of, live_shell
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.run_text import run_text

if TYPE_CHECKING:
    from kestrel_lab.lab import Lab

deciding = typer.Typer()


@deciding.command()
def show(
    ctx: typer.Context,
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Id of a run, as `kestrel runs` lists them; by default the last one."
        ),
    ] = "",
    *,
    html: Annotated[
        Path | None, typer.Option(help="Write a self-contained HTML page to this file instead.")
    ] = None,
    call: Annotated[
        str | None,
        typer.Option(metavar="CALL", help="Print the whole answer to this call; 'all' lists the calls."),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(metavar="EVENT", help="Print the run as it was after the event of this number."),
    ] = None,
    otlp: Annotated[
        str,
        typer.Option(
            metavar="FILE|URL",
            help="Export the run as OpenTelemetry spans: to a file of OTLP JSON, or to a collector "
            "(http://localhost:4318).",
        ),
    ] = "",
    atif: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Export the run as a trajectory in ATIF, which Harbor and others read."
        ),
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="With --otlp: also what was said, asked and answered.")
    ] = False,
    slider: Annotated[
        bool,
        typer.Option(
            "--slider", help="Notebook: move through the events of the run, and fork it at any of them."
        ),
    ] = False,
) -> Any:
    """Show a run: its calls, its answer, what it used and what it waits for."""
    lab = frontend_of(ctx).lab()
    found = lab.get(run_id or _last_run(lab))
    if otlp:
        return (
            f"{format_count(lab.evals.export_otel(found, otlp, content=content), 'span')} of run "
            f"{found.id} exported to {otlp}"
        )
    if atif is not None:
        return (
            f"{format_count(lab.evals.export_atif(found, atif), 'step')} of run {found.id} exported to {atif}"
        )
    if content:
        raise UsageError("--content says what --otlp exports: give both")
    if slider:
        return frontend_of(ctx).slider(found)
    if at is not None:
        return run_text(found.report.view(at=at))
    if call is not None:
        return repr(found.results) if call == "all" else sanitize_text(found.results[call])
    return found if html is None else found.report(html)


def _last_run(lab: Lab) -> str:
    """Return the id of the newest run that no suite started; raises `UsageError` where there is none."""
    lab.store.flush()
    for newest in lab.store.runs(limit=1, trials=False):
        return newest.id
    raise UsageError(f'no runs in {lab.home} yet: kestrel run "…" makes one')


@deciding.command()
def diff(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="Id of a run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Id of another run, for example a fork of it.")],
) -> RunDiff:
    """Show where two runs differ first, and what each did after that."""
    return frontend_of(ctx).lab().diff(a, b)


@deciding.command()
def approve(
    ctx: typer.Context,
    run_id: RunId,
    *,
    always: Annotated[
        bool, typer.Option("--always", help="Do not ask about the same tool again in this run.")
    ] = False,
    reason: Annotated[str, typer.Option(help="The reason, for the record.")] = "",
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Answer a question of the agent; once for each question, in order."
        ),
    ] = None,
) -> str:
    """Approve what a run waits for, or answer its question; a waiting session continues at once."""
    frontend = frontend_of(ctx)
    scope = "run" if always else "once"
    decided = frontend.lab().decide(
        run_id,
        granted=True,
        by=frontend.user,
        how="command",
        reason=reason,
        scope=scope,
        answers=answer or (),
    )
    return (
        f"{'answered' if answer else 'approved'}: {', '.join(decided)}. If no session is waiting, go "
        f"on with: kestrel run --resume {run_id}"
    )


@deciding.command()
def deny(
    ctx: typer.Context,
    run_id: RunId,
    *,
    reason: Annotated[str, typer.Option(help="The reason, which the model is given.")] = "",
    rest: Annotated[
        bool, typer.Option("--rest", help="Deny also all later calls that containment would ask about.")
    ] = False,
) -> str:
    """Deny what a run waits for; the model learns of it and may find another way."""
    frontend = frontend_of(ctx)
    decided = frontend.lab().decide(
        run_id, granted=False, by=frontend.user, how="command", reason=reason, scope="run" if rest else "once"
    )
    return (
        f"denied: {', '.join(decided)}. If no session is waiting, go on with: kestrel run --resume {run_id}"
    )


@deciding.command(
    epilog="Example: %kestrel undo, in the notebook whose variables or cells were changed; kestrel undo "
    "--run RUN for files"
)
def undo(
    ctx: typer.Context,
    *,
    call: Annotated[
        str,
        typer.Argument(help="The call to take back, with all that came after it; without one, the newest."),
    ] = "",
    run: Annotated[
        str, typer.Option(help="The run that made the call; in a notebook by default that of the newest one.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Undo even what something else has changed since then.")
    ] = False,
) -> str:
    """Undo calls of an agent: variables and cells of this notebook, and files, are again what they were."""
    lab, shell = frontend_of(ctx).lab(), live_shell()
    if not (run := run or (newest_run(lab.store) if shell is not None else "")):
        if shell is None:
            raise UsageError(
                "say whose call is to be undone: kestrel undo --run RUN (kestrel runs lists them)"
            )
        # Of another lab, whose log is not at hand.
        return str(kernel_of(shell).undo(call=call, force=force))
    return str(lab.get(run).undo(call, force=force))
