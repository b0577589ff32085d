"""Session options, and the check that refuses an option that does not exist."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeAlias, TypedDict, TypeVar

from kestrel_lab.core.errors import UnknownOption, UsageError, did_you_mean
from kestrel_lab.core.protocols import Middleware, Model
from kestrel_lab.core.run_types import Limits
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.permissions.rulebook import GivenRules
from kestrel_lab.runtime.context.toolboxes import Tools
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings
from kestrel_lab.runtime.operations.verify_plan import NONE, parse_form, parse_level
from kestrel_lab.runtime.security.containment import read_mode
from kestrel_lab.tools.sandbox.levels import AUTO, DEFAULT_MEMORY_GIB

if TYPE_CHECKING:
    from kestrel_lab.core.events.union import Event
    from kestrel_lab.middleware.hooks import Hooks
    from kestrel_lab.runtime.run import Run

GUIDANCE_FILES: Final = "AGENTS.md, CLAUDE.md"
"""Names of the files with guidance for agents that are looked for unless a setting says otherwise."""
SKILL_SOURCES: Final = "workspace, home"
"""Where skills are found unless a setting says otherwise."""
OTEL_MODES: Final = ("off", "on", "content")

RunListener: TypeAlias = "Callable[[Run, Event], None]"
"""Receives the events of many runs."""

P = ParamSpec("P")
T = TypeVar("T")


class SessionChanges(TypedDict, total=False):
    """The fields of `SessionOptions` as keyword arguments, but for `model` and `approve`, which are
    positional too.
    """

    tools: Tools
    models: Mapping[str, Model] | None
    middleware: Iterable[Middleware]
    hooks: Hooks | None
    listeners: Iterable[RunListener]
    limits: Limits | None
    checkpoint_every: int | None
    provider: str | None
    api_base: str | None
    sandbox: str
    network: bool
    sandbox_memory: float | None
    cache: str
    cache_url: str | None
    containment: str
    verify: str
    abstain: float | None
    network_home: bool
    form: str
    guidance_files: str
    skills: str
    otel: str
    env: Mapping[str, str] | None
    mcp: Mapping[str, ServerConfig | Mapping[str, Any]] | None
    rules: GivenRules
    expansion: ExpansionSettings | None


class SessionUpdate(SessionChanges, total=False):
    """The fields of `SessionOptions` that `Session.change` takes."""

    model: str | Model | None
    approve: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """What a session can be given; runs begin with these values unless they bring their own."""

    model: str | Model | None = None
    """The model of runs that name none; `None` finds one (see `kestrel doctor`)."""
    approve: str = "ask"
    """The approval policy: `ask`, `auto`, `auto:LEVEL` or `deny`."""
    tools: Tools = ()
    """Offered to every run beside the native tools: tools, functions, names of tools or of groups of them. A
    tool with the name of a web tool replaces it.
    """
    models: Mapping[str, Model] | None = None
    """Models by names of your own, for runs and for single steps of plans."""
    middleware: Iterable[Middleware] = ()
    """Wraps every model call and tool call: hooks before and after thinking and acting. It sees a tool call
    before its approval; what it answers is what is recorded.
    """
    hooks: Hooks | None = None
    """Called before and after each phase of an agent's turn and around each run; see `middleware.hooks`."""
    listeners: Iterable[RunListener] = ()
    """Called with the run and the event for every event of every run, from `run_started` to the last state
    transition, on the run's event loop; must not block.
    """
    limits: Limits | None = None
    """The limits of runs that bring none of their own."""
    checkpoint_every: int | None = 10
    """A run keeps a checkpoint after so many model turns (past twenty times as many, after a twentieth more
    turns); with `None` only when it waits for approval, is stopped or fails.
    """
    provider: str | None = None
    """The provider of model names that name none."""
    api_base: str | None = None
    """Address of an OpenAI-compatible server."""
    sandbox: str = AUTO
    """Sandbox level of the commands that tools start: `S3`, `S2`, `S1`, `S0` (none), or `auto` for the best
    that works here; where none does, each call is CRITICAL. See `kestrel doctor`.
    """
    network: bool = False
    """Whether commands in a sandbox may use the network."""
    sandbox_memory: float | None = DEFAULT_MEMORY_GIB
    """The most GiB of memory that a command in a sandbox may use, with everything it starts; `None` for no
    limit.
    """
    cache: str = "use"
    """Whether stored answers of pure tools are used: `use`, `off`, `refresh` or `replay`."""
    cache_url: str | None = None
    """A Redis or PostgreSQL server that stores them; the folder by default."""
    containment: str = "on"
    """Whether a person is asked, whatever the policy, when a model that read untrusted text wants an effect:
    `on`, `strict` (files of the workspace count as untrusted) or `off`. See `runtime.security.containment`.
    """
    verify: str = "warn"
    """What is done about the claims of answers; see `runtime.operations.verify_plan`."""
    abstain: float | None = None
    """The confidence that an answer has to state, from 0 to 1, see `answers.confidence`: a judge's, or the
    share of its claims that are cited. A run whose answer states less ends FAILED and says so. Answers that
    state none are given.
    """
    network_home: bool = False
    """Whether the home folder may lie on a network file system, where a log may be damaged."""
    form: str = NONE
    """The form that answers must have: `none`, `auto` (chosen by the goal, of runs without a plan) or the
    name of a contract of `answers.contracts`.
    """
    guidance_files: str = GUIDANCE_FILES
    """Names of files with guidance for agents, the first that a workspace has being used, or `off`; see
    `runtime.context.guidance`.
    """
    skills: str = SKILL_SOURCES
    """Where skills are found, `workspace`, `home` and folders that hold skills, or `off`; of one name the
    first counts. See `tools.skills`.
    """
    otel: str = "off"
    """Whether spans of runs are sent to an OpenTelemetry collector as they end: `off`, `on`, or `content`
    (with goals, messages, arguments and results). Needs the extra `otel`; the collector's address is that of
    the `OTEL_EXPORTER_OTLP_…` variables.
    """
    env: Mapping[str, str] | None = None
    """Environment variables to read; the process's by default."""
    mcp: Mapping[str, ServerConfig | Mapping[str, Any]] | None = None
    """MCP servers by name, read or as tables; a server starts when one of its tools is called."""
    rules: GivenRules = None
    """Rules about the calls of every run: a file of rules, or tables as in one; see `permissions.rule`."""
    expansion: ExpansionSettings | None = None
    """How far runs may go to find tools that they lack."""

    def __post_init__(self) -> None:
        for name in ("middleware", "listeners"):  # what can be read only once
            object.__setattr__(self, name, tuple(getattr(self, name)))
        Policy.parse(self.approve)
        parse_level(self.verify)
        parse_form(self.form)
        read_mode(self.containment)
        guidance_names(self.guidance_files)
        read_otel_mode(self.otel)


@functools.cache
def guidance_names(text: str) -> tuple[str, ...]:
    """Return the file names in the value of the setting `guidance_files`, none for `off`; raises `UsageError`
    for what is not a plain name.
    """
    names = tuple(name for word in text.split(",") if (name := word.strip()))
    if [name.lower() for name in names] in ([], ["off"]):
        return ()
    for name in names:
        if "/" in name or name in {".", ".."}:
            raise UsageError(
                f"guidance_files has file names, such as {GUIDANCE_FILES}, or is off; {name!r} is neither"
            )
    return names


@functools.cache
def skill_sources(text: str) -> tuple[str, ...]:
    """Return the places in the value of the setting `skills`, none for `off`."""
    places = tuple(dict.fromkeys(place for word in text.split(",") if (place := word.strip())))
    return () if places == ("off",) else places


def read_otel_mode(text: str) -> str:
    """Return the mode of the live export of spans, one of `OTEL_MODES`; raises `UsageError` for any other
    word.
    """
    if text not in OTEL_MODES:
        raise UsageError(f"otel is off, on (spans without what was said) or content (with it), not {text!r}")
    return text


def check_options(call: Callable[P, T]) -> Callable[P, T]:
    """Wrap `call` so that an option it does not have raises `UnknownOption` at once, with the nearest
    name.
    """
    parameters = inspect.signature(call).parameters.values()
    known = [
        one.name
        for one in parameters
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name != "self"
    ]
    return _refuse_unknown(call, known)


def takes_options(
    changes: type[Any], options: type[Any] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the keyword arguments `**changes` of a function against a TypedDict or dataclass, and show them
    to `help` and completion.

    The defaults that are shown are those of the dataclass `options`, if it is another one; a TypedDict alone
    shows `None`.
    """
    names = changes.__annotations__
    declared = changes if options is None else options
    defaults = (
        {one.name: one.default for one in fields(declared) if one.default is not MISSING}
        if is_dataclass(declared)
        else dict.fromkeys(names)
    )
    shown = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=kind,
        )
        for name, kind in names.items()
    ]

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(call)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        wrapped = _refuse_unknown(call, [*(one.name for one in own if one.name != "self"), *names])
        wrapped.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]  # `inspect` reads it
        return wrapped

    return decorate


def _refuse_unknown(call: Callable[P, T], names: Iterable[str]) -> Callable[P, T]:
    known = frozenset(names)
    where = call.__qualname__.removesuffix(".__init__")

    @functools.wraps(call)
    def named(*args: P.args, **options: P.kwargs) -> T:
        if unknown := options.keys() - known:
            name = min(unknown)
            raise UnknownOption(f"{where} has no option {name!r}; {did_you_mean(name, known)}")
        return call(*args, **options)

    return named
