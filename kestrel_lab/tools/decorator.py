"""`@tool`: any typed function with a docstring becomes a tool."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypedDict, Unpack, get_args, get_type_hints, overload

from kestrel_lab.core.calls import Danger, Effect
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.yaml.type_checks import is_of_type, type_name
from kestrel_lab.tools.argument_schema import REQUIRED, Parameter, TypedArguments
from kestrel_lab.tools.data_flow import Shows, read_reach, read_reads, suggested_reach, undeclared_flow
from kestrel_lab.tools.sandbox.levels import Level
from kestrel_lab.tools.tool import CacheScope, Fingerprint, Preview, Tool, ToolContext

# A docstring in Google style, split into what a model reads: the description and the parameters.

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns|Return|Yields|Raises|Examples?|Notes?|Warnings?|See "
    r"Also|References|Attributes|Todo):\s*"
)
_ARGUMENTS = {"Args", "Arguments", "Parameters", "Params"}
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the text before the first section, and the entry of each parameter; `text` is dedented, as
    `inspect.getdoc` gives it.

    An entry is the part after `name:` with its continuation lines, on one line.
    """
    description: list[str] = []
    entries: list[str] = []
    section = ""
    for line in text.splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif not section:
            description.append(line)
        elif line and not line[0].isspace():
            # Prose after a section belongs to none.
            section = "text"
        elif section in _ARGUMENTS:
            entries.append(line)
    return _unwrapped("\n".join(description).strip()), _entries(entries)


_WRAP = re.compile(r"(?<=\S)\n(?=[^\s\-*+>|`#\d])")


def _unwrapped(text: str) -> str:
    """Return `text` with each paragraph on one line; lists, tables and indented lines stay as they are."""
    # Models read a description, and cassettes compare it: the width of our source must not change it.
    return _WRAP.sub(" ", text)


def _entries(lines: list[str]) -> dict[str, str]:
    filled = [line for line in lines if line.strip()]
    margin = min((_indent(line) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filled:
        entry = _ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        if entry:
            current = found.setdefault(entry[1], [])
            current.append(entry[2])
        else:
            current.append(line.strip())
    return {name: " ".join(part for part in parts if part) for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider accepts


class ToolOptions(TypedDict, total=False):
    """The keyword arguments of `tool`, which says what they mean. What is left out is as in `Tool`."""

    name: str | None
    danger_level: Danger | str
    effect: Effect
    version: str | None
    parallel_safe: bool | None
    timeout_s: float | None
    max_chars: int
    thread: bool
    fingerprint: Fingerprint | None
    cache_ttl_seconds: float | None
    cache_scope: CacheScope
    preview: Preview | None
    sandbox: Level | None
    reads: str | Iterable[str] | None
    untrusted: bool | None
    reaches: str | None
    content: str | Iterable[str]
    own: str | Iterable[str]
    shows: Shows


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, synchronous or asynchronous: `@tool` or `@tool(danger_level="high")`.

    The model gets the docstring up to its first section, and for each parameter its type and its
    entry under `Args:`. A parameter annotated `ToolContext` is filled in by the engine, not the model.

    Args:
        function: The function, when used without parentheses.
        name: What the model calls it; the function's name if left out.
        danger_level: How much harm a call can do, e.g. `"high"`. LOW if left out: the engine does not ask
            before it, but does not take it to be harmless either.
        effect: What repeating a call does: `pure`, `idempotent`, `checkable` or `opaque`.
        version: Changes when answers may change; a hash of the function's own source if left out.
        parallel_safe: Whether it may run beside other calls; if left out, when pure or at most LOW.
        timeout_s: Seconds the engine gives a call. A synchronous function with one runs in a thread; it
            cannot be stopped, so past its time the model gets an error and the thread is abandoned.
        max_chars: How much of an answer a model is shown.
        thread: Run a synchronous function in a worker thread.
        fingerprint: The state of what a pure tool reads; answers are reused while it stays equal.
        cache_ttl_seconds: How long answers of a pure tool are reused; without a fingerprint that alone
            decides.
        cache_scope: Who shares stored answers: a `run`, the `workspace` or, for a tool that reads nothing in
            it, `global`.
        preview: What a call would change, as a unified diff, for the person who is asked to allow it.
        sandbox: The least sandbox level that commands it starts may run at, for a tool that starts some.
        reads: What its answers may hold: `private` data, text that is `untrusted` because others wrote it, or
            both (`"private untrusted"`); `workspace` for files, `""` for nothing of all this. Once a model
            has read what is untrusted, its calls that reach something are asked about.
        untrusted: Whether others may have written what it answers: `True` adds `untrusted` to `reads`,
            `False` says that its answers are its own or the user's, so that reading them taints nothing.
            Never guessed from its name.
        reaches: How far a call reaches: `nothing`, `workspace`, `address` (one in its arguments), `others` or
            `anything`. Say both or neither. A tool that is neither pure nor SAFE and says neither counts as
            one that may bring in what others wrote and may send; where somebody is there, they are asked
            once, as soon as it matters, and what they say is kept for this definition of the tool. One that
            says `reads` only reaches what its danger suggests: `anything` from MEDIUM on, below it `address`
            where it takes one, else `nothing`.
        content: Arguments that only carry what is written, such as `"subject body"`. All others bear
            authority: they say whom, where, which or how much, and after untrusted text was read a call
            passes without a question only if they come from the user. A `contentMediaType` in the schema of a
            parameter says the same.
        own: Fields of its answers (an object, or a list of objects) that nobody but the user or the service
            can write, such as `"id filename"`. Where the goal names one object by a text in such a field, its
            other texts there count as named, too, and its numbers and lists as arguments of the same name.
        shows: What its answers have of the files it is about, for tools that read the workspace: `names` for
            paths only, `lines` for lines beside the path of their file. Left out, it is taken to show any
            file it opens.

    Raises:
        UsageError: For a function whose arguments could not be described to a model, with what to change.

    """
    given: dict[str, Any] = {**options}
    if unknown := given.keys() - ToolOptions.__annotations__.keys():
        raise TypeError(f"tool() got an unexpected keyword argument {min(unknown)!r}")
    own_name, version = given.pop("name", None), given.pop("version", None)
    danger, effect = _danger(given.pop("danger_level", Danger.LOW)), given.setdefault("effect", "opaque")
    parallel_safe = given.pop("parallel_safe", None)
    read = read_reads(given.pop("reads", None), untrusted=given.pop("untrusted", None))
    reach = read_reach(given.pop("reaches", None))
    for name in ("content", "own"):
        words = given.get(name, ())
        given[name] = tuple(words.split()) if isinstance(words, str) else tuple(words)
    if effect not in get_args(Effect):
        raise UsageError(f"there is no effect {effect!r}; {did_you_mean(str(effect), get_args(Effect))}")
    _check_timeout(given.get("timeout_s"))
    _check_caching(given)

    # Depth: how far up the scope is whose names annotations may use.
    def make(function: Callable[..., Any], depth: int = 1) -> Tool:
        _check_function(function)
        called = own_name or function.__name__
        if not _NAME.fullmatch(called):
            raise UsageError(
                f"{called!r} cannot be a tool's name: use 1 to 64 letters, digits, _ and -, e.g. "
                "@tool(name='look_up')"
            )
        description, about = read_docstring(inspect.getdoc(function) or "")
        if not description:
            raise UsageError(
                f"tool {called!r} has no docstring: write one line that tells the model what it does"
            )
        if unknown := [one for one in given["content"] if one not in inspect.signature(function).parameters]:
            known = did_you_mean(unknown[0], inspect.signature(function).parameters)
            raise UsageError(
                f"tool {called!r} has no parameter {unknown[0]!r} that could be content; {known}"
            )
        parameters, context = _parameters(called, function, about, sys._getframe(depth).f_locals)
        return Tool(
            name=called,
            description=description,
            function=function,
            arguments=TypedArguments(tool=called, parameters=parameters),
            danger=danger,
            version=version or _source_hash(function),
            parallel_safe=(effect == "pure" or danger <= Danger.LOW)
            if parallel_safe is None
            else parallel_safe,
            reads=("private",) if read is None else read,
            reaches=reach or suggested_reach(parameters, danger, effect),
            unsaid=undeclared_flow(reads=read, reaches=reach, danger=danger, effect=effect),
            context_parameter=context,
            **given,
        )

    return make if function is None else make(function, depth=2)


def _signature() -> inspect.Signature:
    own = {"danger_level": Danger.LOW, "version": None, "parallel_safe": None}
    function = inspect.Parameter("function", inspect.Parameter.POSITIONAL_ONLY, default=None)
    return inspect.Signature(
        [
            function,
            *(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=own[name] if name in own else getattr(Tool, name, None),
                    annotation=kind.__forward_arg__,
                )
                for name, kind in ToolOptions.__annotations__.items()
            ),
        ]
    )


# Notebooks complete keywords and show help by it; neither reads an unpacked TypedDict.
tool.__signature__ = _signature()  # type: ignore[attr-defined]  # `inspect` reads it


def _check_timeout(seconds: object) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise UsageError(
            f"timeout_s is a positive number of seconds, not {seconds!r}; leave it out for no bound"
        )


def _check_function(function: Callable[..., Any]) -> None:
    if not inspect.isroutine(function):
        raise UsageError(f"@tool needs a function, not {function!r}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(
            f"tool {function.__name__!r} yields its answer in pieces, and a call has one: return a "
            "list of them instead"
        )


def _check_caching(given: Mapping[str, Any]) -> None:
    effect, ttl = given["effect"], given.get("cache_ttl_seconds")
    scope = given.get("cache_scope", "workspace")
    if scope not in get_args(CacheScope):
        raise UsageError(
            f"there is no cache scope {scope!r}; {did_you_mean(str(scope), get_args(CacheScope))}"
        )
    if ttl is not None and (
        isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 < ttl < math.inf
    ):
        msg = (
            f"cache_ttl_seconds is a positive number of seconds, not {ttl!r}; leave it out for answers "
            "that are good as long as the fingerprint"
        )
        raise UsageError(msg)
    if effect != "pure" and (ttl is not None or given.get("fingerprint") is not None):
        msg = (
            f"answers of a tool with effect {effect!r} are never reused, as its calls would then not "
            'happen: say effect="pure", or no caching'
        )
        raise UsageError(msg)


def _danger(level: Danger | str) -> Danger:
    if isinstance(level, Danger):
        return level
    if isinstance(level, str) and level.upper() in Danger.__members__:
        return Danger[level.upper()]
    raise UsageError(
        f"there is no danger level {level!r}; {did_you_mean(str(level).upper(), Danger.__members__)}"
    )


def _parameters(
    tool_name: str, function: Callable[..., Any], about: Mapping[str, str], names: Mapping[str, Any]
) -> tuple[dict[str, Parameter], str]:
    """Every parameter the model fills in, and the name of the one that takes the `ToolContext`."""
    declared = inspect.signature(function).parameters.values()
    for parameter in declared:
        _refuse_undescribable(tool_name, parameter)
    try:
        hints = get_type_hints(function, localns=dict(names), include_extras=True)
    except NameError as error:
        raise UsageError(
            f"tool {tool_name!r} has an annotation that means nothing here ({error}): import or define "
            "it above the function"
        ) from error
    context = ""
    parameters: dict[str, Parameter] = {}
    for parameter in declared:
        annotation = hints[parameter.name]
        if annotation is ToolContext:
            context = parameter.name
            continue
        _refuse_foreign_default(tool_name, parameter.name, annotation, parameter.default)
        parameters[parameter.name] = Parameter(
            annotation=annotation,
            default=REQUIRED if parameter.default is inspect.Parameter.empty else parameter.default,
            description=about.get(parameter.name, ""),
        )
    return parameters, context


def _refuse_foreign_default(tool_name: str, name: str, annotation: Any, default: object) -> None:
    """Refuse a default that only another library understands: a function that is called gets it as it is."""
    what = f"parameter {name!r} of tool {tool_name!r}"
    for note in getattr(annotation, "__metadata__", ()):
        required = getattr(note, "is_required", None)
        if callable(required) and not required():
            raise UsageError(f"{what} has a default within Annotated[…]: write it behind, as {name}: … = 5")
    if default is inspect.Parameter.empty or default is None or type(default).__module__ == "builtins":
        return
    if type(default).__name__ == "FieldInfo" or not is_of_type(default, annotation):
        raise UsageError(
            f"{what} has a default of the class {type(default).__name__}, which is not a value of its type: "
            f"write {name}: Annotated[{type_name(annotation)}, Field(…)] = value"
        )


def _refuse_undescribable(tool_name: str, parameter: inspect.Parameter) -> None:
    what = f"parameter {parameter.name!r} of tool {tool_name!r}"
    if parameter.kind in {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        raise UsageError(
            f"{what} takes any number of arguments, which cannot be described to a model: name each "
            "one, or take a list or dict"
        )
    if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        raise UsageError(
            f"{what} is positional-only, but models name their arguments: remove the / from the signature"
        )
    if parameter.annotation is inspect.Parameter.empty:
        hint = (
            "decorate a plain function, not a method"
            if parameter.name == "self"
            else f"write e.g. {parameter.name}: str"
        )
        raise UsageError(f"{what} has no type: {hint}")


def _source_hash(function: Callable[..., Any]) -> str:
    """Return a hash of the source of a function; the functions it calls are not part of it."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        # Typed in a plain interpreter, or built in.
        return "1"
    return hashlib.sha256(source.encode("utf-8", "replace")).hexdigest()[:12]
