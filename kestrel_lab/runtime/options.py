"""Options of labs and runs, each declared once: type, default, meaning, and where it can be given.

Keyword arguments, settings, command line, the control protocol and the configurations of suites are made from
these tables. `docs/contribute/option.md` says how to add an option.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    ForwardRef,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    get_args,
)

from kestrel_lab.adapters.adapter import Adapter, model_of_runner
from kestrel_lab.answers.contracts import AUTO as FORM_BY_GOAL
from kestrel_lab.answers.contracts import CONTRACTS, LEVELS, NONE, answer_forms, parse_form
from kestrel_lab.answers.contracts import parse_level as parse_verify
from kestrel_lab.core.errors import UnknownOption, UsageError, did_you_mean
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.messages import ImagePart, ModelParams
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Approver, Middleware, Model
from kestrel_lab.core.run_types import Limits, RunReference
from kestrel_lab.core.step import model_at
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.middleware.cache import cache_mode
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.permissions.rulebook import GivenRules
from kestrel_lab.runtime.security.containment import read_mode
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.levels import AUTO, DEFAULT_MEMORY_GIB, parse_level

if TYPE_CHECKING:
    from kestrel_lab.agents import MakesPlan
    from kestrel_lab.core.events.union import Event
    from kestrel_lab.middleware.hooks import Hooks
    from kestrel_lab.runtime.context.dependencies import Ports
    from kestrel_lab.runtime.context.toolboxes import Tools
    from kestrel_lab.tools.tool import Toolbox

GUIDANCE_FILES: Final = "AGENTS.md, CLAUDE.md"
"""Names of the files with guidance for agents that are looked for unless a setting says otherwise."""
SKILL_SOURCES: Final = "workspace, home"
"""Where skills are found unless a setting says otherwise."""
OTEL_MODES: Final = ("off", "on", "content")

# The run is an `Any`: `runtime.run` is above this module. Listeners get a `Run`.
RunListener: TypeAlias = "Callable[[Any, Event], None]"
"""Receives each run with its events."""

P = ParamSpec("P")
T = TypeVar("T")
Table = TypeVar("Table")


# Readers make the value of what a file, a variable, a command line or a caller says. They raise `ValueError`.


def text(value: Any) -> str:
    """Return `value`, which must be a text."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


def _switch(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in {"on", "off", "true", "false", "yes", "no"}:
        return value.lower() in {"on", "true", "yes"}
    if not isinstance(value, bool):
        raise ValueError("must be on or off")
    return value


def _number(value: Any) -> float | None:
    if isinstance(value, str) and value.lower() == "none":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0 < number < math.inf:
        raise ValueError("must be positive")
    return number


def _whole_number(value: Any) -> int | None:
    number = _number(value)
    if number is not None and number != int(number):
        raise ValueError("must be a whole number")
    return None if number is None else int(number)


def _share(value: Any) -> float | None:
    number = _number(value)
    if number is not None and number > 1:
        raise ValueError("must be a share from 0 to 1, or none")
    return number


def _patterns(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ValueError("must be a list of NAME==VERSION")
    patterns = tuple(word.strip() for word in words if word.strip())
    if not patterns:
        return ()
    # Only here, because it loads all that installs packages, and hardly any lab has such patterns.
    from kestrel_lab.mcp.registry.install import checked_pattern

    return tuple(map(checked_pattern, patterns))


def _model(value: Any) -> Any:
    return value if hasattr(value, "name") else text(value)  # a `Model`, which only Python can give


def _policy(value: Any) -> str:
    return Policy.parse(text(value)).text


def _sandbox(value: Any) -> str:
    level = parse_level(text(value))
    return AUTO if level is None else level.name


def _cache(value: Any) -> str:
    return cache_mode(text(value))


def _containment(value: Any) -> str:
    return read_mode(str(value) if isinstance(value, bool) else text(value))


def _verify(value: Any) -> str:
    return parse_verify(text(value))


def _form(value: Any) -> str:
    return parse_form(text(value))


def _guidance(value: Any) -> str:
    names = "off" if value is False else text(value)
    guidance_names(names)
    return names


def _otel(value: Any) -> str:
    return read_otel_mode(("on" if value else "off") if isinstance(value, bool) else text(value))


# Whether a value, beside the default, makes something less safe. A file of a project may say so only when the
# user trusts it.


def _is_different(value: Any, default: Any) -> bool:
    """For a setting without an order: whatever differs may let something run."""
    return bool(value != default)


def _harmless(_value: Any, _default: Any) -> bool:
    """For a setting that lets nothing run that would not."""
    return False


def _is_more(value: Any, default: Any) -> bool:
    """For a bound, where less is safer and no bound the least safe."""
    return default is not None and (value is None or value > default)


def _is_outside(value: str, _default: str) -> bool:
    """For a folder, which is safe within the project."""
    return not Path(value).expanduser().resolve().is_relative_to(Path.cwd())


def _no_plain_name(value: str | None, _default: None) -> bool:
    """For a model: a provider's own name is safe; one that begins with a maker (`scripted:FILE`) or holds an
    address is not.
    """
    return any(":" in name.partition("/")[0] or "//" in name for name in (value or "").split(" > "))


def _is_after(*safest_first: str) -> Callable[[Any, Any], bool]:
    """For words in an order."""
    return lambda value, default: safest_first.index(value) > safest_first.index(default)


def _more_places(value: str, default: str) -> bool:
    """For places whose texts agents are given."""
    return not set(skill_sources(value)) <= set(skill_sources(default))


def _is_laxer_policy(value: str, default: str) -> bool:
    return Policy.parse(value).allow > Policy.parse(default).allow


def _is_off(value: str, _default: str) -> bool:
    return value == "off"


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]


def named_values(given: Iterable[str], option: str = "--input") -> dict[str, Json]:
    """Return what options of the form NAME=VALUE say; raises `UsageError` for one without a name or `=`."""
    found: dict[str, Json] = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"{option} takes NAME=VALUE, not {one!r}")
        found[name.strip()] = value
    return found


def _json_or_text(value: Json) -> Json:
    try:
        return loads(str(value))
    except ValueError:
        return value


def _model_params(given: Iterable[str]) -> dict[str, Json]:
    return {name: _json_or_text(value) for name, value in named_values(given, "--param").items()}


@dataclass(frozen=True, slots=True)
class Flag:
    """How an option is written on the command line."""

    name: str = ""
    """`--cost`; by default made from the option's name. A short form may follow: `--cost -c`."""
    metavar: str = ""
    kind: Any = str
    """The type of its value, a number of at `least` this size. A `list[str]` is written several times."""
    parse: Callable[[Any], Any] | None = None
    """Makes the option's value of it; by default it is the value."""
    least: int | None = None


@dataclass(frozen=True, slots=True)
class Opt:
    """What is to know of an option beside its name and type."""

    default: Any
    """The value where nobody gives one. A run begins with its lab's value of an option that both have."""
    meaning: str
    """A phrase for help texts and the table of settings; sentences about Python may follow in `more`."""
    more: str = ""
    read: Callable[[Any], Any] | None = None
    """Checks and converts what is given; raises `ValueError`. A lab's option that has it is a setting."""
    weakens: Callable[[Any, Any], bool] = _is_different
    flag: Flag | None = None
    """Set for an option of `kestrel run`; those of `ResumeOptions` are also of `resume` and `fork`."""
    words: tuple[str, ...] = ()
    """All values that it may have, where they are words."""
    client: Any = None
    """Its type in JSON, for an option that clients of the control protocol may give: nothing that lets a run
    do more.
    """

    def checked(self, value: Any) -> Any:
        """Return `value` as the option has it; raises `ValueError` for one that it cannot have."""
        return value if self.read is None else self.read(value)


class _ModelAndPolicy(TypedDict, total=False):
    """What is often given to a lab by position."""

    model: Annotated[
        str | Model | None,
        Opt(
            None,
            "model by name, e.g. openai/gpt-5-mini, ollama/qwen3, local; unset: the first that is found",
            "In Python also a `Model`.",
            read=_model,
            weakens=_no_plain_name,
            flag=Flag(),
            client=str,
        ),
    ]
    approve: Annotated[
        str,
        Opt(
            "ask",
            "approval policy: ask, auto, auto:LEVEL or deny",
            "LEVEL: safe, low, medium, high, critical.",
            read=_policy,
            weakens=_is_laxer_policy,
            flag=Flag(),
        ),
    ]


class _Everywhere(TypedDict, total=False):
    """Options of labs and of runs, also of those that go on."""

    provider: Annotated[
        str | None,
        Opt(
            None,
            "provider of model names that do not say theirs (also MODEL_PROVIDER); without a model its usual "
            "one",
            "Of a run it is that of the run's own model.",
            read=text,
            weakens=_harmless,
            flag=Flag(metavar="NAME"),
            client=str,
        ),
    ]
    tools: Annotated[
        "Tools | Toolbox | None",
        Opt(
            None,
            "names of tools or groups (default, web, …) to offer, separated by commas; by default those "
            "without a group, and those that the plan names",
            "In Python also tools and functions. Those of a lab are offered to every run beside the native "
            "ones; one with the name of a web tool replaces it.",
            flag=Flag(parse=_words),
            client=list[str],
        ),
    ]
    limits: Annotated[
        Limits | None, Opt(None, "limits of the run; one that goes on counts what was used before")
    ]
    cache: Annotated[
        str,
        Opt(
            "use",
            "stored answers of pure tools: use, off, refresh (ask anew and store) or replay (only what is "
            "stored)",
            read=_cache,
            weakens=_harmless,
            flag=Flag(),
        ),
    ]


class ResumeOptions(_ModelAndPolicy, _Everywhere, total=False):
    """What a run that is resumed or forked can be given anew."""

    approver: Annotated[
        Approver | None,
        Opt(
            None,
            "who is asked for approval",
            "Without one, a call that needs approval raises `ApprovalRequired` from `Run.wait`.",
        ),
    ]


class ConfigOptions(TypedDict, total=False):
    """Options of labs and of runs that begin, which a suite's configuration may give to its trials."""

    verify: Annotated[
        str,
        Opt(
            "warn",
            "how the claims of answers are checked: off, warn (concerns are shown beside them), repair, "
            "judge (by a model too), quality (a report only)",
            read=_verify,
            words=tuple(LEVELS),
            weakens=_is_off,
            flag=Flag(metavar="LEVEL"),
        ),
    ]
    form: Annotated[
        str,
        Opt(
            NONE,
            f"form that answers have to have: {answer_forms()}",
            "`auto` is chosen by the goal, for runs without a plan.",
            read=_form,
            words=(NONE, FORM_BY_GOAL, *CONTRACTS),
            weakens=_harmless,
            flag=Flag(metavar="FORM"),
            client=str,
        ),
    ]
    pty: Annotated[
        bool,
        Opt(
            False,
            "whether the program of another agent (--runner) gets a terminal for its input and output, for "
            "programs that refuse to work without one",
            read=_switch,
            weakens=_harmless,
            flag=Flag(kind=bool),
        ),
    ]


class _LabAndRun(_Everywhere, ConfigOptions, total=False):
    """Options of labs and of runs that begin."""

    rules: Annotated[
        GivenRules,
        Opt(
            None,
            "TOML file with more rules about calls: see `kestrel rules --help`",
            "In Python also tables as in one, see `permissions.rule`. Those of a run hold for it and its "
            "forks, and lift nothing that other rules forbid or ask about.",
            flag=Flag(metavar="FILE"),
        ),
    ]
    containment: Annotated[
        str,
        Opt(
            "on",
            "whether calls with an effect ask once a model has read foreign text: on, strict (files count "
            "too) or off",
            "See `runtime.security.containment`. A run that is resumed has the value of its lab.",
            read=_containment,
            weakens=_is_after("strict", "on", "off"),
        ),
    ]
    expand: Annotated[
        bool,
        Opt(
            False,
            "whether a run may look for MCP servers with tools that it lacks, and ask to install one",
            read=_switch,
            flag=Flag(kind=bool),
        ),
    ]


class RunOptions(ResumeOptions, _LabAndRun, total=False):
    """What a run can be given. What is left out, or `None`, is as the lab has it."""

    workspace: Annotated[
        str | Path | Workspace, Opt(".", "the only folder that file tools may touch", flag=Flag())
    ]
    runner: Annotated[
        str | Adapter,
        Opt(
            "",
            "another agent that works on the goal: claude-code, codex, gemini, opencode or acp:COMMAND",
            "`native`, or empty, is this package's own. `model` is then a model of that program.",
            flag=Flag(metavar="NAME"),
        ),
    ]
    plan: Annotated[
        "Plan | MakesPlan | str | Path | None",
        Opt(
            None,
            "workflow to follow: see `kestrel plans`",
            "A shipped workflow by name, a workflow file, a `Plan`, or an object that makes one for a goal, "
            "such as an `LLMAgent`; the goal then says what the steps are for. Without a plan one agent "
            "works on the goal. All steps share the limits. The run's answer is that of the steps which no "
            "other step waits for.",
            flag=Flag(metavar="NAME|FILE"),
        ),
    ]
    inputs: Annotated[
        Mapping[str, Json] | None,
        Opt(
            None,
            "input of the workflow; may be repeated",
            flag=Flag("--input", "NAME=VALUE", list[str], named_values),
        ),
    ]
    follow: Annotated[
        RunReference | None,
        Opt(
            None,
            "go on with the conversation of this run; a notebook does so with the last one",
            "The messages are taken over, and what is known of whose words they are. Model, tools, workspace "
            "and rules are those of that run unless they are given.",
            flag=Flag(metavar="RUN"),
        ),
    ]
    params: Annotated[
        ModelParams | Mapping[str, Json] | None,
        Opt(
            None,
            "parameter of the model: temperature, top_p, max_tokens, seed, stop, reasoning_effort, "
            "response_format, timeout_s",
            "A step's own go before them. See `core.messages.ModelParams`.",
            read=ModelParams.of,
            flag=Flag("--param", "NAME=VALUE", list[str], _model_params),
        ),
    ]
    images: Annotated[
        Sequence[str | Path | ImagePart],
        Opt(
            (),
            "image beside the goal, for models that see",
            "Files, or parts made of bytes by `ImagePart.of`.",
            flag=Flag("--image", "FILE", list[str]),
        ),
    ]
    instructions: Annotated[str, Opt("", "text that is added to the system message", read=text)]
    config: Annotated[str, Opt("", "name of the model configuration, for suites", read=text)]
    scenario: Annotated[str, Opt("", "id of the scenario, for suites", read=text)]
    resolve: Annotated[Callable[[str], Model] | None, Opt(None, "finds the models that single steps name")]
    ports: Annotated["Ports | None", Opt(None, "memory, search, clock and retry budget of the run")]


class StartOptions(RunOptions, total=False):
    """The options of a run with the type of its value.

    `output` is a parameter of its own where a run is begun: the type of the run's value follows from it.
    """

    output: Any


class LabKeywords(_LabAndRun, total=False):
    """The options of a lab but for `model` and `approve`, which are positional too."""

    models: Annotated[
        Mapping[str, Model] | None,
        Opt(None, "models by names of your own, for runs and for single steps of plans"),
    ]
    middleware: Annotated[
        Iterable[Middleware],
        Opt(
            (),
            "wraps every model call and tool call",
            "It sees a tool call before its approval; what it answers is what is recorded.",
        ),
    ]
    hooks: Annotated[
        "Hooks | None",
        Opt(
            None,
            "called before and after each phase of an agent's turn and around each run; see "
            "`middleware.hooks`",
        ),
    ]
    listeners: Annotated[
        Iterable[RunListener],
        Opt(
            (),
            "called with the run and the event for every event of every run, on the run's event loop",
            "Must not block.",
        ),
    ]
    api_base: Annotated[str | None, Opt(None, "address of an OpenAI-compatible server", read=text)]
    sandbox: Annotated[
        str,
        Opt(
            AUTO,
            "how strictly commands are sandboxed: S3, S2, S1, S0 (not at all), or auto for the best that "
            "works here",
            "Where none works, each call is CRITICAL. See `kestrel doctor`.",
            read=_sandbox,
            weakens=_is_after("S3", AUTO, "S2", "S1", "S0"),
        ),
    ]
    network: Annotated[
        bool,
        Opt(
            False,
            "whether commands in a sandbox may use the network, this machine's own services included",
            read=_switch,
        ),
    ]
    sandbox_memory: Annotated[
        float | None,
        Opt(
            DEFAULT_MEMORY_GIB,
            "most GiB of memory of a command in a sandbox, with all it starts; none for no bound",
            read=_number,
            weakens=_is_more,
        ),
    ]
    cache_url: Annotated[
        str | None,
        Opt(
            None,
            "server that keeps stored answers for several machines, redis://HOST:PORT/0 or "
            "postgresql://USER@HOST/DATABASE; unset: in the folder home",
            read=text,
        ),
    ]
    mcp_registry: Annotated[
        str | None,
        Opt(None, "address of a registry of MCP servers to look in; unset: the catalogue only", read=text),
    ]
    mcp_catalogue: Annotated[
        str | None,
        Opt(
            None,
            "file with MCP servers to look for, one JSON object per line; unset: the one that is shipped",
            read=text,
        ),
    ]
    mcp_allow: Annotated[
        Sequence[str],
        Opt(
            (),
            "MCP servers that are installed without asking: NAME==VERSION, or NAME==VERSION.*",
            read=_patterns,
        ),
    ]
    abstain: Annotated[
        float | None,
        Opt(
            None,
            "lowest score of a judge, or share of cited claims, that an answer needs; a run whose answer "
            "has less fails and says so",
            "See `answers.confidence`. An answer that states no confidence passes.",
            read=_share,
            weakens=_is_more,
        ),
    ]
    network_home: Annotated[
        bool,
        Opt(
            False,
            "whether the home folder may lie on a network file system, where a log may be damaged",
            read=_switch,
        ),
    ]
    guidance_files: Annotated[
        str,
        Opt(
            GUIDANCE_FILES,
            "files with guidance for agents, the first that a workspace has; off for none. Text of the "
            "workspace",
            "See `runtime.context.guidance`.",
            read=_guidance,
            weakens=_harmless,
        ),
    ]
    skills: Annotated[
        str,
        Opt(
            SKILL_SOURCES,
            "where skills (SKILL.md) are found: workspace, home, folders that hold skills; off for none",
            "Of one name the first counts. See `tools.skills`.",
            read=text,
            weakens=_more_places,
        ),
    ]
    otel: Annotated[
        str,
        Opt(
            "off",
            "spans of runs to an OpenTelemetry collector (OTEL_EXPORTER_OTLP_ENDPOINT): off, on, content "
            "(with texts)",
            "Needs the extra `otel`.",
            read=_otel,
            weakens=_is_after(*OTEL_MODES),
        ),
    ]
    checkpoint_every: Annotated[
        int | None,
        Opt(
            10,
            "model turns after which a snapshot of a run is kept, for resuming quickly; none for never",
            "Past twenty times as many it is kept after a twentieth more turns. With `None` only when the "
            "run waits for approval, is stopped or fails.",
            read=_whole_number,
            weakens=_harmless,
        ),
    ]
    env: Annotated[
        Mapping[str, str] | None, Opt(None, "environment variables to read; the process's by default")
    ]
    mcp: Annotated[
        Mapping[str, ServerConfig | Mapping[str, Any]] | None,
        Opt(
            None,
            "MCP servers by name, read or as tables; a server starts when one of its tools is called",
        ),
    ]


class LabOptions(_ModelAndPolicy, LabKeywords, total=False):
    """What a lab can be given; runs begin with these values unless they bring their own."""


_LIMITS = Limits()


class LimitOptions(TypedDict, total=False):
    """The fields of `Limits` that are settings; in Python they are given as `limits=Limits(…)`."""

    cycles: Annotated[
        int | None,
        Opt(
            _LIMITS.cycles,
            "most model turns of a run",
            read=_whole_number,
            weakens=_is_more,
            flag=Flag(kind=int),
            client=int,
        ),
    ]
    cost_usd: Annotated[
        float | None,
        Opt(
            _LIMITS.cost_usd,
            "most US dollars of a run",
            read=_number,
            weakens=_is_more,
            flag=Flag("--cost", kind=float),
            client=float,
        ),
    ]
    seconds: Annotated[
        float | None,
        Opt(
            _LIMITS.seconds,
            "most seconds of work of a run; waiting, for a person or a busy endpoint, does not count",
            read=_number,
            weakens=_is_more,
            flag=Flag(kind=float),
            client=float,
        ),
    ]
    tokens: Annotated[
        int | None,
        Opt(
            _LIMITS.tokens,
            "most tokens of a run",
            read=_whole_number,
            weakens=_is_more,
            flag=Flag(kind=int),
            client=int,
        ),
    ]
    wall_seconds: Annotated[
        float | None,
        Opt(
            _LIMITS.wall_seconds,
            "most seconds of a run in all, waiting included",
            read=_number,
            weakens=_is_more,
        ),
    ]
    model_seconds: Annotated[
        float | None,
        Opt(
            _LIMITS.model_seconds,
            "most seconds of one model call; one that takes longer has failed; none for no bound",
            read=_number,
            weakens=_is_more,
        ),
    ]
    messages: Annotated[
        int | None,
        Opt(
            _LIMITS.messages,
            "most messages of a run's conversations",
            read=_whole_number,
            weakens=_is_more,
        ),
    ]
    context_tokens: Annotated[
        int | None,
        Opt(
            _LIMITS.context_tokens,
            "tokens of a model's context, beyond which a conversation is compacted; none for what is known "
            "of it",
            read=_whole_number,
            weakens=_harmless,
        ),
    ]


_TABLES: Final[dict[type[Any], Mapping[str, Opt]]] = {}


def table(options: type[Any]) -> Mapping[str, Opt]:
    """Return the options of a table by name, in order."""
    if options not in _TABLES:  # each run asks for several
        _TABLES[options] = MappingProxyType(
            {
                name: kind.__metadata__[0]
                for name, kind in options.__annotations__.items()
                if hasattr(kind, "__metadata__")
            }
        )
    return _TABLES[options]


LIMITS: Final = tuple(LimitOptions.__annotations__)
"""Settings that are limits of runs."""


HOME: Final = Opt(
    "",
    "folder of the event log and of everything else that is kept; unset: one per workspace, see "
    "`kestrel home`",
    read=text,
    weakens=_is_outside,
)
SETTINGS: Final = {
    "home": HOME,
    **{name: opt for name, opt in table(LabOptions).items() if opt.read is not None},
    **table(LimitOptions),
}
"""What `kestrel.toml` and `KESTREL_…` variables can say, beside rules and MCP servers."""


def fill(options: type[Table], given: Mapping[str, Any]) -> Table:
    """Return `given` checked, with the defaults of the table `options` for what is missing.

    `None` is missing, but where it is a value of its own (no bound). A run's option that its lab has too
    stays missing, and so does one whose default is `None`. Raises `UnknownOption` for a name that the table
    does not have, and `UsageError` for a value that the option cannot have.
    """
    known, values = table(options), dict[str, Any]()
    check_names(options.__name__, given, options.__annotations__)
    for name, opt in known.items():
        value = given.get(name)
        if value is None and not (name in given and may_be_none(options, name)):
            if opt.default is not None and (options is LabOptions or name not in LabOptions.__annotations__):
                values[name] = opt.default
            continue
        # A switch of a file (`containment = true`) is no text in Python, where it would mislead.
        if options.__annotations__[name].__origin__ is str and not isinstance(value, str):
            raise UsageError(f"{name}= has to be a text, not {value!r}")
        try:
            values[name] = value if value is None else opt.checked(value)
        except UsageError:
            raise
        except ValueError as error:
            raise UsageError(f"{name}= {error}, not {value!r}") from error
    return cast("Table", {**given, **values} if options is StartOptions else values)


def may_be_none(options: type[Any], name: str) -> bool:
    """Return whether `None` is a value of an option whose default is another."""
    kind = options.__annotations__[name]
    return table(options)[name].default is not None and type(None) in get_args(kind.__origin__)


def started_with(given: Mapping[str, Any], output: object = None) -> StartOptions:
    """Return the options of a run, its runner, provider and model taken together; raises what `fill`
    raises.
    """
    options = fill(StartOptions, given if output is None else {**given, "output": output})
    if provider := options.pop("provider", None):
        options["model"] = _model_of_provider(provider, options)
    if runner := options["runner"]:
        options["model"], options["runner"] = model_of_runner(runner, options.get("model")), ""
    return options


def _model_of_provider(provider: str, options: StartOptions) -> str:
    """Return the name of the model that a provider and the other options of a run say; raises `UsageError`
    where they do not go together.
    """
    model = options.get("model") or ""
    if not isinstance(model, str):
        raise UsageError(
            f"provider={provider!r} is for the name of a model, and model= is an object: leave one out"
        )
    if options["runner"]:
        raise UsageError(f"a runner brings its own models: leave the provider {provider!r} out")
    return model_at(provider, model)


def check_resumable(options: StartOptions) -> None:
    """Raise `UsageError` for an option that a run keeps from its beginning and cannot be given anew."""
    usual = fill(StartOptions, {})
    kept = [
        name
        for name, value in options.items()
        if name not in (*ResumeOptions.__annotations__, "output") and value != usual.get(name)
    ]
    if kept:
        raise UsageError(
            f"a run that goes on keeps its {', '.join(kept)}: leave that out, or start another run"
        )


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
    known = [
        one.name
        for one in inspect.signature(call).parameters.values()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name != "self"
    ]
    return _refuse_unknown(call, known)


def takes_options(*tables: type[Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Check the keyword arguments `**options` of a function against tables, TypedDicts or dataclasses, and
    show them to `help` and completion, with their defaults.
    """
    shown = [one for options in tables for one in _parameters(options)]

    def decorate(call: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(call)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        wrapped = _refuse_unknown(call, [*(one.name for one in (*own, *shown) if one.name != "self")])
        wrapped.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]  # `inspect` reads it
        return wrapped

    return decorate


def _parameters(options: type[Any]) -> list[inspect.Parameter]:
    """Return the options of a table as parameters, with their defaults."""
    own = fields(options) if is_dataclass(options) else ()
    kinds = {one.name: one.type for one in own} if own else options.__annotations__
    defaults = (
        {one.name: one.default for one in own if one.default is not MISSING}
        if own
        else dict.fromkeys(kinds)
        | (fill(LabOptions if options is LabKeywords else options, {}) if table(options) else {})
    )
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=_shown_type(kind, defaults.get(name, "")) if hasattr(kind, "__metadata__") else kind,
        )
        for name, kind in kinds.items()
    ]


def _shown_type(kind: Any, default: object) -> Any:
    """Return the type in an annotation of a table, with `None` where that is the default."""
    kind = kind.__origin__
    if isinstance(kind, ForwardRef):
        return kind.__forward_arg__
    return kind | None if default is None else kind


def check_names(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise `UnknownOption` for the first name that is not `known`, with the nearest that is."""
    if unknown := set(given) - set(known):
        name = min(unknown)
        raise UnknownOption(f"{where} has no option {name!r}; {did_you_mean(name, known)}")


def _refuse_unknown(call: Callable[P, T], names: Iterable[str]) -> Callable[P, T]:
    known = frozenset(names)
    where = call.__qualname__.removesuffix(".__init__")

    @functools.wraps(call)
    def named(*args: P.args, **options: P.kwargs) -> T:
        check_names(where, options, known)
        return call(*args, **options)

    return named
