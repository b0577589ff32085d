"""Front ends: the terminal or notebook behind a command; and the options that commands share."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Protocol, Self, TypeAlias, get_origin, get_type_hints

import typer

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Approver, Reporter
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.labels.label_queue import Labelling
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.options import LimitOptions, Opt, RunOptions, table
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.settings import Settings

Command: TypeAlias = Callable[..., Any]

Model = Annotated[
    str | None, typer.Option(help="Model by name, e.g. openai/gpt-5-mini, ollama/qwen3, local.")
]
Approve = Annotated[
    str | None, typer.Option(help="ask, auto, auto:LEVEL or deny. LEVEL: safe, low, medium, high, critical.")
]
WorkFolder = Annotated[str, typer.Option(help="The only folder that file tools may touch.")]
As = Annotated[
    str, typer.Option("--as", metavar="NAME", help="Notebook: also assign the run to this variable.")
]
Background = Annotated[bool, typer.Option("--bg", help="Notebook: do not wait for the end.")]


def positive(value: float | None) -> float | None:
    """Return an option's positive number; raises `typer.BadParameter` for 0, less and nan."""
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise typer.BadParameter(f"{value:g} is no positive number")
    return value


ApprovalTimeout = Annotated[
    float | None,
    typer.Option(callback=positive, help="Deny a question that nobody has answered after so many seconds."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Terminal: print the run as one JSON object.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of a run, as `kestrel runs` lists them.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShowOptions:
    """How a run is shown while it works."""

    name: As = ""
    background: Background = False
    approval_timeout: ApprovalTimeout = None
    as_json: AsJson = False
    control: Annotated[
        str,
        typer.Option(
            metavar="stdio",
            help="Terminal: write events and read decisions as JSON lines; see `kestrel schema control`.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if self.control not in {"", "stdio"}:
            raise UsageError(f"--control {self.control}: it is stdio")


class Screen(Protocol):
    """Where one run is shown; enter it on the event loop of the run, before the run starts."""

    approver: Approver | None
    """Who is asked for approval; `None` where nobody is."""

    async def __aenter__(self) -> Self:
        """Open it."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""

    async def show(self, run: Run) -> Run:
        """Show a run until it ends, or return at once if it goes on in the background."""


def run_options(words: Mapping[str, Any], options: type[Any] = RunOptions) -> dict[str, Any]:
    """Return the words of a command that are options of this table and were given, as the table has them."""
    given: dict[str, Any] = {}
    for name, opt in table(options).items():
        value = words.get(name)
        if opt.flag is not None and value not in (None, [], ()):
            given[name] = value if opt.flag.parse is None else opt.flag.parse(value)
    return given


def limits_of(words: Mapping[str, Any], usual: Limits) -> Limits:
    """The limits that a command names, and the `usual` ones for the rest."""
    return replace(usual, **run_options(words, LimitOptions))


def flag_names(options: type[Any]) -> dict[str, str]:
    """Return how the options of a table are written on the command line, by name."""
    return {
        name: opt.flag.name.partition(" ")[0] or f"--{name.replace('_', '-')}"
        for name, opt in table(options).items()
        if opt.flag is not None
    }


def takes_flags(*tables: type[Any], without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command the options of these tables that have a flag; it reads them from `ctx.params`.

    They come before its own options in the help. typer reads the options of a command from its signature.
    """
    flags = {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[opt.flag.kind | None, _typer_option(name, opt)],
        )
        for options in tables
        for name, opt in table(options).items()
        if opt.flag is not None and name not in without
    }

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)

        @wraps(command)
        def call(**given: Any) -> Any:
            return command(**{name: value for name, value in given.items() if name not in flags})

        own = [
            one.replace(annotation=hints[one.name]) for one in inspect.signature(command).parameters.values()
        ]
        named = [one for one in own if one.kind is one.KEYWORD_ONLY]
        shown = [*(one for one in own if one not in named), *flags.values(), *named]
        call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # read by typer
        call.__annotations__ = {one.name: one.annotation for one in shown}
        return call

    return decorate


def _typer_option(name: str, opt: Opt) -> Any:
    assert opt.flag is not None
    names = opt.flag.name.split()
    if opt.flag.kind is bool and not names:
        names = [f"--{name}/--no-{name}"]
    return typer.Option(
        *names,
        metavar=opt.flag.metavar or None,
        min=opt.flag.least,
        help=f"{opt.meaning[0].upper()}{opt.meaning[1:]}.",
    )


class Frontend(Protocol):
    """Where commands are typed and results are shown."""

    @property
    def user(self) -> str:
        """Who types, for the record of decisions."""

    def lab(self) -> Lab:
        """The lab that commands work on."""

    def configure(self, key: str, value: str) -> Settings:
        """Change a setting, for as long as makes sense here; returns it as it is in force then."""

    def goes_on_with(self) -> dict[str, Any]:
        """Return the options that continue the conversation here; none if each command stands alone."""
        ...

    def say(self, text: str) -> None:
        """Show a sentence between runs."""
        ...

    def show_result(self, result: Any) -> None:
        """Show what a command gave, between the turns of a conversation."""
        ...

    def screen(self, how: ShowOptions) -> Screen:
        """Make the screen for the run of a command; raises `UsageError` for what cannot be done here."""

    def slider(self, run: Run) -> Any:
        """Return controls that move through the events of a run; raises `UsageError` where there are none."""
        ...

    def label(self, labelling: Labelling) -> Any:
        """Let a person label trials by keys; returns what is shown afterwards."""
        ...

    def failed_cell(self, wish: str) -> str:
        """Return the goal to fix the cell that failed last, with what the person adds; raises `UsageError`
        where none did.
        """
        ...

    def wait(self, work: Callable[[Reporter], Awaitable[Any]]) -> Any:
        """Do something long and show its progress; gives its result, or a coroutine of it."""


def output_file(help: str, *names: str) -> Any:  # as typer calls it  # noqa: A002
    """Return an option that names a file to write.

    One that could not be written is refused before the work whose result it would hold.
    """
    return typer.Option(*names, metavar="FILE", help=help, callback=_check_output)


def _check_output(path: Path | None) -> Path | None:
    if path is None:
        return None
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder: name a file in it")
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if there != path and not there.is_dir():
        raise typer.BadParameter(f"{path} cannot be written: {there} is a file, not a folder")
    if not os.access(there, os.W_OK):
        raise typer.BadParameter(f"{path} cannot be written: you have no right to write to {there}")
    return path


def option_groups(command: Callable[..., Any]) -> Callable[..., Any]:
    """Let a command take groups of options: each field of a parameter whose type is a dataclass becomes an
    option, if typer or an `Opt` with a flag describes it.

    typer reads the options of a command from its signature and its annotations, where it knows no groups.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: _options_of_group(kind)
        for name, kind in hints.items()
        if is_dataclass(kind) and name != "return"
    }

    @wraps(command)
    def call(**given: Any) -> Any:
        for name, options in groups.items():
            # A list that was not given is `None` to typer; its field has the default.
            found = {one: value for one in options if (value := given.pop(one)) is not None}
            parsers = {one: parse for one in found if (parse := options[one][1]) is not None}
            given[name] = hints[name](**found | {one: parse(found[one]) for one, parse in parsers.items()})
        return command(**given)

    shown = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            shown += [
                parameter.replace(name=one.name, default=one.default, annotation=one.annotation)
                for one, _ in groups[name].values()
            ]
        else:
            shown.append(parameter.replace(annotation=hints[name]))
    call.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # read by typer
    call.__annotations__ = {one.name: one.annotation for one in shown}
    return call


def _options_of_group(group: Any) -> dict[str, tuple[inspect.Parameter, Callable[[Any], Any] | None]]:
    """Return the options of a group, each with what makes its value of the words, if they are not it."""
    found: dict[str, tuple[inspect.Parameter, Callable[[Any], Any] | None]] = {}
    for name, annotation in get_type_hints(group, include_extras=True).items():
        shown, default, parse = annotation, group.__dataclass_fields__[name].default, None
        match getattr(annotation, "__metadata__", ()):
            case (Opt(flag=None), *_) | ():
                continue  # an option that only Python code can give
            case (Opt(flag=flag) as opt, *_) if flag is not None:
                kind, parse = flag.kind, flag.parse
                if default is None or get_origin(kind) is list:
                    kind, default = kind | None, None
                shown = Annotated[kind, _typer_option(name, opt)]
        found[name] = (
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=shown),
            parse,
        )
    return found


def command_group(help: str, **more: Any) -> typer.Typer:  # as typer calls it  # noqa: A002
    """Return a command group, which lists its content if `more` says it may be called bare."""
    return typer.Typer(help=help, context_settings={"help_option_names": ["-h", "--help"]}, **more)


def is_listing(ctx: typer.Context, workspace: str) -> bool:
    """Whether a group was called without a command; raises `UsageError` if --workspace hides one."""
    if (command := ctx.invoked_subcommand) is not None and workspace != ".":
        name = ctx.info_name
        raise UsageError(
            f"write --workspace behind {command}: kestrel {name} {command} … --workspace {workspace}"
        )
    return command is None


def frontend_of(ctx: typer.Context) -> Frontend:
    """The front end in which a command was typed."""
    frontend: Frontend = ctx.find_root().obj
    return frontend


def follow_work(
    ctx: typer.Context, how: ShowOptions, begin: Callable[[Approver | None], Run]
) -> Coroutine[Any, Any, Run]:
    """Return the work of a command that begins a run and shows it; raises `UsageError` at once."""
    screen = frontend_of(ctx).screen(how)

    async def work() -> Run:
        async with screen:
            return await screen.show(begin(screen.approver))

    return work()


@contextmanager
def files_named() -> Iterator[None]:
    """Turn what a file system refused, and a number that is too large, into a `UsageError` of one line."""
    try:
        yield
    except OverflowError as error:
        raise UsageError(f"a number is too large: {error}") from error
    except OSError as error:
        if error.filename is None:
            raise
        msg = (
            f"{error.filename}: {(error.strerror or 'refused').lower()}: name another place, or make "
            "it readable and writable"
        )
        raise UsageError(msg) from error
