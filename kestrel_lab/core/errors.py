"""Every way things can go wrong, and which side of the fence it came from.

    KestrelError
    ├── UsageError              you must change something: a name, a setting, a file
    │   ├── MissingPackage      a package that this needs is not installed
    │   └── UnknownOption       an option that a function does not have
    ├── StoreError              the log refused or could not keep something
    │   ├── IllegalTransition   a run cannot go from this state to that one
    │   ├── AlreadyDecided      the approval was answered before
    │   ├── Fenced              another session has taken the run over
    │   ├── Damaged             events of the run are not those that were written
    │   └── StorageFull         the disk has no room; nothing acknowledged was lost
    ├── RunError                recorded on the run; never crashes its siblings
    │   ├── ModelError          a provider call failed
    │   ├── DependencyError     something the run depends on is not in working order
    │   ├── ToolError           a tool raised, or its process did
    │   │   └── CodeError       code that a tool ran raised, or a person stopped it
    │   ├── CheckError          a check broke (not: a check said no)
    │   ├── TrialBroke          a trial says nothing of what it tried: its model, the engine or a check broke
    │   ├── UnmetError          the work was done, and its result is not good enough
    │   ├── LimitError          a budget, a count or a deadline ran out
    │   └── RunFailed           what an awaiting caller gets when a run ended in failure
    └── Signal                  no failure at all: control flow the engine understands
        ├── ApprovalRequired    a person has to answer before the run may go on
        └── RunCancelled        somebody stopped the run

Tools and checks raise plain Python errors and need not import this module; `error_boundary`
decides which of these an escaping error becomes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from opcode import opmap
from types import TracebackType
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import escape_surrogates, head_tail, sanitize_text

if TYPE_CHECKING:
    from kestrel_lab.core.calls import Problem
    from kestrel_lab.core.messages import TriedModel


# An error's causes go into the log and to the model, so their number and length are bounded.
_MOST_CAUSES = 20
_MOST_DEPTH = 5
_MOST_CHARS = 6_000
_RAISE = opmap["RAISE_VARARGS"]
START_STEP = "start_step"
"""Takes the place of a tool's name when the question is whether a step that needs approval may begin."""


class KestrelError(Exception):
    """Root of every error this package raises on purpose; prints as one line in a notebook."""

    def __str__(self) -> str:
        """The message, harmless wherever it is shown: it may quote a model, a tool or a file."""
        return sanitize_text(super().__str__())

    def _render_traceback_(self) -> list[str]:
        """Return the message for IPython to show in place of a traceback: it is written for its reader."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(KestrelError, ValueError):
    """Something the caller wrote must change."""


class MissingPackage(UsageError, ModuleNotFoundError):
    """A package that a part of kestrel_lab needs is not installed; the message says what to type."""


class UnknownOption(UsageError, TypeError):
    """A function was given an option that it does not have; Python's own error for that is a `TypeError`."""


class StoreError(KestrelError):
    """The log refused or could not keep something."""


class IllegalTransition(StoreError):
    """A run was asked to go from one state to another that does not follow it."""


class AlreadyDecided(StoreError):
    """An approval was answered before; the first answer counts."""


class Fenced(StoreError):
    """Another session has taken the run over; nothing of this one is written any more."""


class Damaged(StoreError):
    """The log of a run was changed or lost from some event on; the run cannot be resumed."""

    def __init__(self, message: str, *, run_id: str, seq: int) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.seq = seq
        """The first event that is wrong or missing; those before it are as they were written."""


class StorageFull(StoreError):
    """The disk has no room for the log; what was acknowledged is kept."""


class RunError(KestrelError):
    """A failure that belongs to one run."""

    failed_steps: tuple[str, ...] = ()
    """The steps whose failure ended a plan of several steps, in the order of the plan."""


class ModelError(RunError):
    """A call to a model failed."""

    def __init__(
        self,
        message: str,
        *,
        transient: bool = False,
        retry_after_s: float | None = None,
        caller: bool = False,
        rate_limited: bool = False,
        received: bool | None = True,
        tried: tuple[TriedModel, ...] = (),
    ) -> None:
        super().__init__(message)
        self.transient = transient
        """Whether the same call may well succeed later (a rate limit, a dropped connection)."""
        self.retry_after_s = retry_after_s
        """How long the provider asks to wait before the next attempt, when it says so."""
        self.rate_limited = rate_limited
        """Whether the provider is there and wants fewer calls."""
        self.received = received
        """False if no connection was made; `None` if the request was sent and no answer came, so that the
        provider may have done its work, and counted it.
        """
        self.caller = caller
        """Whether the caller must change something (key, name, conversation); another model is not asked."""
        self.tried = tried
        """The models that were asked in turn, when there were several."""


class DependencyError(RunError):
    """Something a run depends on, a model endpoint or a server of tools, is not in working order."""

    def __init__(
        self,
        dependency: str,
        state: str,
        message: str,
        *,
        retry_in_s: float | None = None,
        tried: tuple[TriedModel, ...] = (),
    ) -> None:
        super().__init__(message)
        self.dependency = dependency
        """Its name."""
        self.state = state
        """`starting`, `degraded`, `recovering` or `failed`."""
        self.retry_in_s = retry_in_s
        """Seconds until it is tried again; `None` when nothing is planned."""
        self.tried = tried
        """The models that were asked in turn, when it is an endpoint and there were several."""


class ToolError(RunError):
    """A tool failed."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        """The problem recorded for its call, if there was a call."""


class CodeError(ToolError):
    """Code run by a tool raised an exception or was stopped by a person; its effects so far remain."""

    def __init__(self, message: str, output: str, *, stopped: bool = False) -> None:
        super().__init__(message)
        self.output = output
        """Text for the model: printed output, traceback, and what the code changed."""
        self.stopped = stopped
        """Whether a person stopped it: then the run stops too."""


class ConflictError(RunError):
    """A file changed since it was read: somebody else wrote it first.

    Nothing was changed.
    """


class CheckError(RunError):
    """A check could not form an opinion."""


class TrialBroke(RunError):
    """A trial broke, so it neither passed nor failed."""


class UnmetError(RunError):
    """The work is done but not good enough: criteria are unmet, or a search found no solution."""


class LimitError(RunError):
    """A limit of the run was reached."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit
        """Which one: a field of `Limits`."""


class RunFailed(RunError):
    """A run ended in failure; the message carries its reason and id."""


class Signal(KestrelError):
    """Control flow between the engine and its caller, not a failure."""


class ApprovalRequired(Signal):
    """A call needs a person's decision, and no approver is connected.

    The run waits in the log; `str(error)` says how to approve and how to resume it.
    """

    def __init__(
        self, run_id: str, tool: str, args: dict[str, Json], *, question: bool = False, why: str = ""
    ) -> None:
        what = (
            f"begin step {args.get('step')}"
            if tool == START_STEP
            else "ask a question"
            if question
            else f"call {tool}"
        )
        whom, how = ("answer", " --answer TEXT") if question else ("approve", "")
        super().__init__(
            f"run {run_id} wants to {what} and nobody is here to {whom} it{f' ({why})' if why else ''}. "
            f"Look: kestrel show {run_id} · {whom}: kestrel approve {run_id}{how} · "
            f"go on: kestrel run --resume {run_id} (or: await lab.resume({run_id!r}))"
        )
        self.run_id = run_id
        self.tool = tool
        self.args_asked = args


class RunCancelled(Signal):
    """Somebody stopped the work: by `Run.cancel` for good, else until the run is resumed."""


def most_severe(errors: Iterable[BaseException]) -> BaseException:
    """Return the error to raise out of several simultaneous ones: a failure rather than a `Signal`, with the
    other failures as notes.

    Groups of errors are flattened.
    """
    found = [one for error in errors for one in _flatten(error)]
    first = min(found, key=lambda error: isinstance(error, Signal))
    for other in found:
        if other is not first and not isinstance(other, Signal):
            first.add_note(f"at the same time: {error_text(other)}")
    return first


def error_text(error: BaseException) -> str:
    """Return class and message of `error`, its notes, the errors of a group and its causes, one per line.

    Never raises, whatever foreign code made the error: its `__str__` may fail or return megabytes or lone
    surrogates, a group may have hundreds of errors, and an error may be its own cause.
    """
    lines = list(islice(_error_lines(error, frozenset(), 0), _MOST_CAUSES + 1))
    if len(lines) > _MOST_CAUSES:
        lines[_MOST_CAUSES:] = ["and more"]
    return head_tail("\n".join(lines), _MOST_CHARS)[0]


def _error_lines(error: BaseException, above: frozenset[int], depth: int) -> Iterator[str]:
    above |= {id(error)}
    indent = "  " * depth
    yield f"{type(error).__name__}: {_message(error)}".removesuffix(": ")
    notes = getattr(error, "__notes__", None)
    for note in notes if isinstance(notes, list) else ():
        yield f"{indent}  note: {_part(note)}"
    inner = [("- ", one) for one in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    cause = error.__cause__
    for mark, one in [*inner, *([("caused by ", cause)] if cause is not None else [])]:
        # An error may be among its own causes, and chains may be long.
        if id(one) in above or depth >= _MOST_DEPTH:
            continue
        first, *more = islice(_error_lines(one, above, depth + 1), _MOST_CAUSES + 1)
        yield f"{indent}  {mark}{first}"
        yield from more


def _message(error: BaseException) -> str:
    try:
        return _part(str(error))
    except BaseException as failed:  # the class of the error is foreign code
        if stops_task(failed):
            raise
        return f"(no message: __str__ raised {type(failed).__name__}; args: {_args(error)})"


def _args(error: BaseException) -> str:
    try:
        return _part(repr(error.args))
    except BaseException as failed:  # as above
        if stops_task(failed):
            raise
        return f"repr raised {type(failed).__name__}"


def _part(text: object) -> str:
    return head_tail(
        escape_surrogates(text) if isinstance(text, str) else _args(Exception(text)), _MOST_CHARS
    )[0]


def _running_task() -> asyncio.Task[object] | None:
    """Return the task that runs this code; `None` outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def stops_task(error: BaseException) -> bool:
    """Return whether `error`, which escapes from code that the current task runs, ends it from outside.

    That is Ctrl-C, a `CancelledError` where somebody cancelled the task, and a `GeneratorExit` where its
    coroutine is closed. Anything else is a failure of the code that raised it: code of others also raises
    `SystemExit`, a `CancelledError` of a task of its own, or a `BaseException`.
    """
    if isinstance(error, asyncio.CancelledError):
        task = _running_task()
        return task is not None and task.cancelling() > 0
    if isinstance(error, GeneratorExit):
        return not _is_raised_by_statement(error)
    return isinstance(error, KeyboardInterrupt)


def _is_raised_by_statement(error: BaseException) -> bool:
    """Return whether code raised the error, and not whoever closed a coroutine that was waiting."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


class error_boundary:  # used as a function; a generator would cost each model call five times as much  # noqa: N801
    """Turn any error that escapes from foreign code into a `kind` that names `what` it was."""

    def __init__(self, kind: type[RunError], what: str) -> None:
        self._kind, self._what = kind, what

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        """Raise the error in place of a foreign one."""
        if error is None or isinstance(error, KestrelError):
            return
        if not stops_task(error):
            raise self._kind(f"{self._what} failed: {error_text(error)}") from error


def _flatten(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _flatten(inner)
    else:
        yield error


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A clause that helps a reader who mistyped `word`: the closest option, or up to 40 of them."""
    known = sorted(options)
    if close := get_close_matches(word, known, n=1, cutoff=0.5):
        return f"did you mean {close[0]!r}?"
    more = f" and {len(known) - 40} more" if len(known) > 40 else ""
    return "known: " + (", ".join(known[:40]) + more if known else "none")


def candidates(word: str, options: Sequence[str], most: int = 3) -> str:
    """A hint for a mistyped id among many: the closest of `options`, else the first; at most `most`."""
    if close := get_close_matches(word, options, n=most, cutoff=0.5):
        return f"did you mean {' or '.join(map(repr, close))}?"
    more = f" and {len(options) - most} more" if len(options) > most else ""
    return f"known: {', '.join(options[:most])}{more}"
