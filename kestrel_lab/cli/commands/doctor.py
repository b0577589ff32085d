"""`kestrel config` and `kestrel doctor`: what is configured, what is missing, and what to type."""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import apsw
import typer

from kestrel_lab.cli.frontend import frontend_of
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.redaction import REDACTED, Redactor, secret_values
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.connection import check_integrity
from kestrel_lab.eventlog.seals.row_seals import REMEDY, SEALED, checked_rows, count_unsealed, head_problems
from kestrel_lab.host.filesystem import is_shared, kind_of_filesystem
from kestrel_lab.host.git import git_program
from kestrel_lab.host.vector_tables import load_problem
from kestrel_lab.host.version import __version__
from kestrel_lab.lab import Lab
from kestrel_lab.models.fallback import EscalatingModel
from kestrel_lab.models.resolve import available_models
from kestrel_lab.models.router import RoutedModel
from kestrel_lab.runtime.context.guidance import guidance_in
from kestrel_lab.runtime.mcp.servers import dependency_name
from kestrel_lab.runtime.options import guidance_names
from kestrel_lab.runtime.settings import Settings
from kestrel_lab.runtime.supervision.health import HealthRow, HealthState
from kestrel_lab.runtime.supervision.model_guard import watch_model
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.tools.files.ripgrep import rg_path
from kestrel_lab.tools.files.safe_open import has_openat2
from kestrel_lab.tools.kernel.documents import NextInput, document_of
from kestrel_lab.tools.kernel.live_kernel import kernel_of, live_shell
from kestrel_lab.tools.sandbox.canary import PROBES
from kestrel_lab.tools.sandbox.container import find_engine, sockets
from kestrel_lab.tools.sandbox.levels import Level
from kestrel_lab.tools.sandbox.select import choose_level, level_problem
from kestrel_lab.tools.web.urls import address_refusal
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

_LOOK_S, _NAMED = 3.0, 5
"""How long the log is looked through, and how many damaged runs are named."""
_COLUMNS = ("", "what", "found", "what to do")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    ok: bool | None
    """`None`: it is not set up, and runs do not need it."""
    what: str
    found: str
    advice: str = ""
    optional: bool = False
    """Runs can be started although it is not right."""


@dataclass(frozen=True, slots=True, repr=False)
class Doctor(TableView):
    """A list of findings that renders as a table."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether runs can be started."""
        return all(finding.ok is not False or finding.optional for finding in self.findings)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings, and mark, subject, finding and advice of each."""
        marks = {True: "✓", False: "✗", None: "–"}
        return _COLUMNS, [(marks[f.ok], f.what, f.found, f.advice) for f in self.findings]


def run_diagnostics(lab: Lab) -> Doctor:
    """Look at everything a run needs; starts no model and talks to nothing but this machine and a server of
    your own that is set.
    """
    python = Finding(
        True, "kestrel_lab", f"{__version__} on Python {platform.python_version()}, {sys.platform}"
    )
    own = (
        python,
        _log(lab),
        _log_files(lab),
        _events(lab),
        check_results(lab),
        _model(lab),
        *_dependencies(lab),
        *_servers(lab),
        *_providers(lab),
    )
    return Doctor(
        (
            *own,
            _vectors(),
            _ripgrep(),
            *_sandbox(lab),
            _containers(lab),
            *probe_barriers(lab),
            _git(),
            *_notebook(),
        )
    )


def known_models(lab: Lab) -> Doctor:
    """The models that can be used now, and what to type for others."""
    return Doctor((_model(lab), *_providers(lab)))


def _log(lab: Lab) -> Finding:
    runs = len(lab.store.runs(limit=100_000))
    if lab.store.lost:
        lost = "; ".join(map(str, lab.store.lost))
        return Finding(False, "log", f"{lab.store.path}: {lost}", optional=True)
    return Finding(
        True, "log", f"{lab.store.path} ({format_count(runs, 'run')}, SQLite {apsw.sqlite_lib_version()})"
    )


def _log_files(lab: Lab) -> Finding:
    """Whether the files of the log are in order, as far as can be looked at in a few seconds."""
    problem, checked = check_integrity(lab.store.path, _LOOK_S)
    if problem:
        advice = f"copy {lab.home} away, then put back an earlier copy; what kestrel show shows can be read"
        return Finding(False, "  files", f"damaged: {one_line(problem, 200)}", advice, optional=True)
    return Finding(True, "  files", "undamaged" if checked else "undamaged as far as there was time to look")


def _events(lab: Lab) -> Finding:
    """Whether runs are what was written, the newest first: as many as can be looked at in a few seconds."""
    until, runs, damaged, looked = time.monotonic() + _LOOK_S, lab.store.runs(limit=100_000), [], 0
    while looked < len(runs) and time.monotonic() < until:
        run = runs[looked].id
        looked += 1
        if (found := lab.store.damage(run)) is not None:
            damaged.append(f"{run} from event {found.seq} on ({found.what})")
    if not damaged:
        return Finding(True, "  events", f"{looked} of {format_count(len(runs), 'run')} checked: undamaged")
    more = f"; {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    advice = (
        "to see one: kestrel show RUN. It cannot be resumed, but it can be forked at an event before "
        "the damage"
    )
    return Finding(False, "  events", f"damaged: {'; '.join(damaged[:_NAMED])}{more}", advice, optional=True)


def check_results(lab: Lab) -> Finding:
    """Check that the results of evaluations are what was written, as many as can be looked at in a few
    seconds.
    """
    until, checked, what = time.monotonic() + _LOOK_S, 0, "  results"
    problems: list[str] = []
    try:
        for table in SEALED:
            problems += head_problems(lab.store.query, table)
            for problem in checked_rows(lab.store.query, table):
                checked += 1
                problems += [problem] if problem else []
                if time.monotonic() > until:
                    break
    except StoreError as error:
        problems.append(str(error))
    if problems:
        more = f"; {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
        return Finding(False, what, f"damaged: {'; '.join(problems[:_NAMED])}{more}", REMEDY, optional=True)
    unsealed = count_unsealed(lab.store.query)
    note = f"; {unsealed} of an earlier version are not sealed" if unsealed else ""
    return Finding(True, what, f"{format_count(checked, 'row')} checked: undamaged{note}")


def _model(lab: Lab) -> Finding:
    try:
        model = lab.registry.resolve_model(None)
    except UsageError as error:
        return Finding(False, "model", "none", str(error))
    return Finding(True, "model", f"{model.name} ({model.kind})")


def _dependencies(lab: Lab) -> list[Finding]:
    """What runs of this lab depend on, probed where that costs nothing."""
    try:
        model = lab.registry.resolve_model(None)
    except UsageError:
        # No model is set: that is a finding of its own, not the end of the inspection.
        needed: tuple[Model, ...] = ()
    else:
        needed = model.models if isinstance(model, EscalatingModel | RoutedModel) else (model,)
    watched = [watch_model(one, lab.supervisor).name for one in needed if one.kind == "real"]
    # Of several models that stand in for each other none is needed, and neither is what only earlier runs
    # used.
    return [
        _dependency(lab, row, optional=watched != [row.dependency])
        for row in run_blocking(lab.supervisor.look())
    ]


def _dependency(lab: Lab, row: HealthRow, *, optional: bool) -> Finding:
    well = row.state in {HealthState.STARTING, HealthState.READY}
    found = (
        "not called yet; a test call would cost money"
        if row.state is HealthState.STARTING
        else str(row.state)
    )
    advice = "" if well else str(lab.supervisor.error(row.dependency))
    return Finding(well, f"  {row.kind} {row.dependency}", found, advice, optional=optional)


def _servers(lab: Lab) -> list[Finding]:
    """The MCP servers that are configured; none is started."""
    # Else a dependency.
    rows = [row for row in lab.mcp.table() if lab.supervisor.get(dependency_name(row.name)) is None]
    held = {row.name: f", sandbox {row.sandbox}" if row.sandbox else "" for row in rows}
    well = {"not started", "ready", "off"}
    return [
        Finding(
            row.state in well,
            f"  mcp {row.name}",
            f"{row.state}, {format_count(row.tools, 'tool')}{held[row.name]}"
            + (f": {row.reason}" if row.reason else ""),
            optional=True,
        )
        for row in rows
    ]


def _providers(lab: Lab) -> list[Finding]:
    return [
        Finding(True, f"  {one.name}", one.note)
        if one.available
        else Finding(None, f"  {one.name}", "not set up", one.note)
        for one in available_models(lab.env)
    ]


def _vectors() -> Finding:
    if why := load_problem():
        advice = "search compares every vector instead, which is slower"
        return Finding(False, "sqlite-vec", f"cannot be loaded: {why}", advice, optional=True)
    return Finding(True, "sqlite-vec", version("sqlite-vec"))


def _ripgrep() -> Finding:
    try:
        return Finding(True, "ripgrep", rg_path())
    except FileNotFoundError as error:
        return Finding(False, "ripgrep", "none", str(error))


def _sandbox(lab: Lab) -> list[Finding]:
    """The level that commands run at here, and what the canary of each level says."""
    what = f"sandbox ({lab.sandbox.name}{', with network' if lab.sandbox.network else ''})"
    try:
        choice = choose_level(lab.sandbox, Path.cwd())
    except UsageError as error:
        return [Finding(False, what, "none", str(error)), *_canaries(lab)]
    asked = (
        ""
        if choice.wanted
        else "each command needs approval as CRITICAL; install what is missing below, or set sandbox = S0"
    )
    held = Finding(
        choice.level > Level.S0, what, f"{choice.level.name}: {choice.level.meaning}", asked, optional=True
    )
    return [held, *_canaries(lab)]


def _containers(lab: Lab) -> Finding:
    """Whether a container engine answers, for scenarios that name an image."""
    if (engine := run_blocking(find_engine(lab.env))) is not None:
        return Finding(True, "containers", f"{engine.name} at {engine.socket}")
    looked = "; ".join(sockets(lab.env)) or lab.env.get("DOCKER_HOST", "")
    return Finding(
        None,
        "containers",
        f"no engine answers at {looked}",
        "install and start docker or podman, for scenarios with an image",
    )


def _canaries(lab: Lab) -> list[Finding]:
    tried = {
        level: level_problem(level, lab.sandbox) for level in sorted(Level, reverse=True) if level > Level.S0
    }
    passed = f"canary passed ({', '.join(PROBES)})"
    return [
        Finding(not why, f"  {level.name}", f"no: {why}" if why else passed, optional=True)
        for level, why in tried.items()
    ]


# What keeps agents from harm: each barrier is asked to stop something, and says whether it did.

# Nothing is bound to these: the web tools must refuse them.
_CLOSED = (
    "127.0.0.1",
    "0.0.0.0",  # noqa: S104
    "10.0.0.1",
    "169.254.169.254",
    "::1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "fd00::1",
)
_OPEN = "93.184.215.14"
_PROBE = "a-secret-that-nobody-has"


def probe_barriers(lab: Lab) -> list[Finding]:
    """Try each barrier but the sandbox, which has a canary of its own; talks to nothing, and starts
    nothing.
    """
    return [
        probe_redaction(lab),
        probe_web_barrier(),
        probe_path_barrier(),
        log_place(lab.store.path),
    ]


def probe_redaction(lab: Lab) -> Finding:
    """Check that the redactor hides the values of secret variables, or a made-up one."""
    known = secret_values(lab.env)
    redactor = lab.redactor if known else Redactor.of({"PROBE_API_KEY": _PROBE})
    leaks = [value for value in known or {_PROBE} if redactor.text(f"<{value}>") != f"<{REDACTED}>"]
    count = f"{format_count(len(known), 'secret variable')} known"
    found = f"{count}; hidden in tool output" if not leaks else f"{count}; {len(leaks)} not hidden"
    return _barrier(
        "secrets",
        found,
        "" if not leaks else "do not run agents: keys would be written into the log. Please report this",
    )


def probe_web_barrier() -> Finding:
    """Check that the web tools refuse this machine, its network and cloud metadata, but no public address."""
    let_in = [address for address in _CLOSED if not address_refusal(address)]
    found = f"{len(_CLOSED)} private addresses refused" if not let_in else f"would reach {', '.join(let_in)}"
    return _barrier(
        "web tools",
        found,
        "do not let agents use the web. Please report this" if let_in or address_refusal(_OPEN) else "",
    )


def probe_path_barrier() -> Finding:
    """Say how links in a workspace are followed: by the kernel's own rules, or not at all."""
    found = (
        "kept inside the workspace by the kernel (openat2)"
        if has_openat2()
        else "links are refused (the kernel has no openat2)"
    )
    return _barrier("paths", found, "")


def log_place(path: Path) -> Finding:
    """Check that the log is on a disk where locks and syncing work."""
    kind = kind_of_filesystem(path)
    advice = "a log on a network disk may be damaged: set KESTREL_HOME to a folder on this machine's own disk"
    return _barrier("log's disk", kind or "not known", advice if is_shared(kind) else "")


def _barrier(name: str, found: str, advice: str) -> Finding:
    return Finding(not advice, f"barrier: {name}", found, advice, optional=True)


def _git() -> Finding:
    try:
        found = git_program()
    except UsageError as error:
        return Finding(False, "git", "none", str(error), optional=True)
    inside = any((place / ".git").exists() for place in (Path.cwd(), *Path.cwd().parents))
    return Finding(
        True,
        "git",
        f"{found} ({'in a repository' if inside else 'no repository here: commits cannot be compared'})",
    )


def _notebook() -> list[Finding]:
    wanted = {
        "ipykernel": "pip install 'ipykernel>=7.4'",
        "anywidget": "pip install anywidget",
        "jupyterlab": "pip install jupyterlab",
    }
    findings = []
    for package, advice in wanted.items():
        try:
            findings.append(Finding(True, package, version(package)))
        except PackageNotFoundError:
            findings.append(Finding(None, package, "not installed", f"for notebooks: {advice}"))
    return [*findings, _cells()]


def _cells() -> Finding:
    """Say how an agent reaches the cells of the notebook in which this was typed."""
    shell = live_shell()
    if shell is None:
        return Finding(
            None,
            "cells",
            "this is no notebook",
            "%kestrel doctor in a notebook says how its cells are reached",
        )
    how = document_of(kernel_of(shell)).how
    only = how == NextInput.how
    advice = (
        "only new cells can be proposed: use JupyterLab, or a notebook of a Jupyter server" if only else ""
    )
    return Finding(not only, "cells", f"reached through {how}", advice, optional=True)


def config(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(metavar="SETTING", help="Show only this setting.")] = None,
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="Change it: in kestrel.toml, or for the session of a notebook."),
    ] = None,
) -> Settings:
    """Show every setting and rule, its value and its source; or change a setting."""
    if key is not None and value is not None:
        return frontend_of(ctx).configure(key, value)
    settings = frontend_of(ctx).lab().settings
    shown = settings if key is None else settings.only(key)
    if key not in (None, "guidance_files"):
        return shown
    guidance = guidance_in(Path.cwd(), guidance_names(settings["guidance_files"]))
    return replace(shown, notes=(guidance,) if guidance else ())
