"""Preview of code: runs it in a locked-down copy of the kernel and reports what it would change."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import ModuleType
from typing import Any, cast

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Danger
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.kernel.capture import (
    IMAGES,
    MOST_IMAGE_BYTES,
    Output,
    add_open_figures,
    capture_output,
)
from kestrel_lab.tools.kernel.fork import PROBLEM, Fork
from kestrel_lab.tools.kernel.lockdown import NoLockdown
from kestrel_lab.tools.kernel.state.annotations import is_type_of_python, written_type
from kestrel_lab.tools.kernel.state.boundary import is_a, read_or, type_name
from kestrel_lab.tools.kernel.state.effects import NETWORK, Effects
from kestrel_lab.tools.kernel.state.fingerprints import OpenFiles
from kestrel_lab.tools.kernel.state.imports import (
    check_installed,
    import_before,
    import_sources,
    imported_attribute,
    imported_modules,
)
from kestrel_lab.tools.kernel.state.libraries import in_library
from kestrel_lab.tools.kernel.state.process_state import ProcessState, is_adopted, read_all
from kestrel_lab.tools.kernel.values import Buffers, NotPlain, Store, encode_value
from kestrel_lab.tools.kernel.variables import Before, Change, shadows_builtin
from kestrel_lab.tools.sandbox.observer import Observer

PREVIEW_S = 20.0
"""Most seconds of a preview."""
MOST_TEXT = 20_000
"""Most characters of printed text, and of a traceback, in a preview."""


@dataclass(frozen=True, kw_only=True)
class Preview:
    """Effects that a piece of code would have. All of it is untrusted: the process that ran the code wrote
    it.
    """

    code: str
    generation: int
    """Generation of the kernel's state it was made from."""
    workspace: str = ""
    seconds: float = 0.0
    problem: str = ""
    """Why there is no complete preview."""
    changes: tuple[Change, ...] = ()
    refused: tuple[str, ...] = ()
    error: str = ""
    """Kind and message of the exception that it raises."""
    traceback: str = ""
    printed: str = ""
    images: tuple[tuple[str, bytes], ...] = ()
    shown: tuple[str, ...] = ()
    """The plain text of what it displayed."""
    given: str = ""
    """The plain text of what its last expression gave."""
    unfit: str = ""
    """Why nothing of it can be adopted; empty if all can."""
    adopted: dict[str, Json] = field(default_factory=dict)
    """Adoptable results by name: a value, a module, or another variable."""
    imports: tuple[str, ...] = ()
    """Installed modules that it imports and that were not loaded; taking its values over imports them."""
    wishing: tuple[str, ...] = ()
    """Installed libraries whose import wanted an effect."""
    states: dict[str, Json] = field(default_factory=dict)
    """Random states that would be taken over with it, by the name of their probe."""
    store: Store | None = None
    known: frozenset[str] = frozenset()
    """The variables that were there."""

    @property
    def adoptable(self) -> bool:
        """True if it is complete and contains only plain data."""
        return not (self.problem or self.unfit or self.refused)

    @property
    def touches(self) -> list[str]:
        """Existing names that would change, or hide a Python builtin; judged by the values, not by the copy's
        claims.
        """
        return [
            name for name in self.adopted if name != "_" and (name in self.known or shadows_builtin(name))
        ]

    @property
    def danger(self) -> Danger:
        """LOW for reading and new names, MEDIUM for changes of variables, HIGH for effects beyond the kernel
        and for what has no preview.
        """
        if self.problem or self.refused:
            return Danger.HIGH
        if self.adoptable:
            return Danger.MEDIUM if self.touches else Danger.LOW
        return (
            Danger.MEDIUM
            if any(change.kind != "new" for change in self.changes if not is_adopted(change))
            else Danger.LOW
        )

    @property
    def sandbox(self) -> str:
        """Where the code has its effect."""
        if self.adoptable:
            return PREVIEWED
        reaches = any(wish.startswith(NETWORK) for wish in self.refused)
        return f"{IN_KERNEL} with network" if reaches else IN_KERNEL

    @property
    def text(self) -> str:
        """The preview for the approver, one fact per line."""
        lines = [f"no preview: {self.problem}"] if self.problem else []
        lines += [change.line for change in self.changes]
        lines += [f"wants to {wish}" for wish in self.refused]
        lines += (
            ["undo does not take that back"]
            if any(not wish.startswith("read ") for wish in self.refused)
            else []
        )
        lines += [f"raises {self.error}"] if self.error else []
        if not lines:
            lines = ["no variable, file or process changes"]
        if self.adoptable and self.imports:
            lines.append(f"imports {', '.join(self.imports)}, which is installed")
        if self.printed.strip():
            lines += ["prints:", *self.printed.strip().splitlines()[:12]]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewJob:
    """Code to preview, with its shell."""

    shell: Any
    code: str
    workspace: str
    generation: int
    untraced: bool = False
    """True if tainted files are in the workspace: reads must be traced, which a preview cannot do."""
    first: tuple[str, ...] = ()
    """Installed libraries to import before the code runs."""

    async def run(self, seconds: float = PREVIEW_S) -> Preview:
        """Make the preview; a cancelled one is killed. Call on the thread that the shell belongs to."""
        preview = await self._run_once(seconds)
        if not preview.wishing or self.first:
            return preview
        # A library that is imported for the first time makes its folders and lists of fonts. That is no
        # effect of the code, but only where the code has not run yet can it be told from one.
        return await replace(self, first=preview.wishing)._run_once(seconds)

    async def _run_once(self, seconds: float) -> Preview:
        known, began = frozenset(self.shell.user_ns), time.perf_counter()
        try:
            _look_up_once(self.shell)
            work = partial(self._work, frozenset(sys.modules))
            fork = Fork(work, self.workspace, prepare=self._import_first)
        except (NoLockdown, OSError) as error:
            return self._none(str(error), 0.0)
        try:
            store = await asyncio.to_thread(fork.wait, seconds)
        finally:
            fork.kill()
        spent = time.perf_counter() - began
        if store is None:
            late = f"it did not end in {seconds:g} s" if spent >= seconds else "the copy of the kernel died"
            return self._none(fork.problem or late, spent)
        try:
            return self._read(store, spent, known, fork.observer)
        # The report comes from the process that ran the code: it may hold anything.
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return self._none(f"its report cannot be read: {error}", spent)

    def _none(self, problem: str, seconds: float) -> Preview:
        return Preview(code=self.code, generation=self.generation, problem=problem, seconds=seconds)

    def _read(
        self, store: Store, seconds: float, known: frozenset[str], observer: Observer | None
    ) -> Preview:
        header = cast("dict[str, Any]", store.header)
        if PROBLEM in header:
            return self._none(str(header[PROBLEM]), seconds)
        if observer is None:
            return self._none("what the copy was refused was not observed", seconds)
        unfit = str(header["unfit"])
        folder = os.path.join(os.path.realpath(self.workspace), "")
        if self.untraced and any(path.startswith(folder) for path in observer.opened):
            unfit = unfit or "it reads files, some of which hold words of others"
        images = [(str(media), base64.b64decode(content)) for media, content in header["images"]]
        return Preview(
            code=self.code,
            generation=self.generation,
            workspace=self.workspace,
            seconds=seconds,
            changes=tuple(Change(**change) for change in header["changes"]),
            refused=(*map(str, header["refused"]), *_unnamed(observer, list(map(str, header["refused"])))),
            error=str(header["error"]),
            traceback=str(header["traceback"]),
            printed=str(header["printed"]),
            images=tuple(
                (media, content)
                for media, content in images
                if media in IMAGES and content.startswith(IMAGES[media])
            ),
            shown=tuple(map(str, header["shown"])),
            given=str(header["given"]),
            unfit=unfit,
            adopted=dict(header["adopted"]),
            imports=tuple(map(str, header["imports"])),
            wishing=tuple(map(str, header["wishing"])),
            states=dict(header["states"]),
            store=store,
            known=known,
        )

    # In the copy.

    def _import_first(self) -> None:
        if self.first:
            with capture_output(self.shell):
                import_before(self.first, self.workspace)

    def _work(self, loaded: frozenset[str], scratch: str, buffers: Buffers, _: list[str]) -> Json:
        shell = self.shell
        shell.history_manager.enabled = False
        # Cells may await, but the kernel's event loop runs in a thread that a copy does not have.
        shell.loop_runner = lambda coroutine: asyncio.new_event_loop().run_until_complete(coroutine)
        # The copy shares open files with the kernel: reading would move the kernel's position in them.
        OpenFiles.readable = False
        effects = Effects(scratch)
        effects.install()
        # IPython puts an `open` of its own into the namespace, which hides the built-in one.
        shell.user_ns["open"] = effects.opened
        # All is compared while the capture is in place, so that it is no difference.
        with capture_output(shell) as output:
            before = Before.of(self.code, shell.user_ns)
            state = ProcessState.of(self.code, shell, before, hidden=scratch, wishes=effects.refused)
            with state.watching():
                shell.run_cell(self.code, store_history=False)
            changes = [*before.changes(shell.user_ns), *(one.change for one in state.alterations())]
            add_open_figures(output)
        refused = [
            *effects.refused,
            *(f"write {path}, {_size(size)}" for path, size in effects.sizes()),
        ]
        unfit = self._unfit(output, changes, refused)
        adopted, states = dict[str, Json](), dict[str, Json]()
        imports = [name for name in imported_modules(self.code) if name in sys.modules and name not in loaded]
        if not unfit:
            try:
                for name in imports:
                    check_installed(name, self.workspace)
                variables = [change for change in changes if change.kind != "state"]
                known = loaded | set(imports)
                adopted = _adoptable_values(
                    self.code, shell.user_ns, variables, before, known, output, buffers
                )
                states = state.adoptable(changes, buffers)
                if os.listdir(scratch) and scratch in json.dumps(adopted):
                    raise NotPlain("a value names a temporary file, which only the preview has")
            except NotPlain as reason:
                unfit = str(reason)
                buffers.drop(0)
                adopted = {}
        return {
            "changes": [change.as_json() for change in changes],
            "refused": cast("list[Json]", refused),
            "error": output.error[:2_000],
            "traceback": output.traceback[-MOST_TEXT:],
            # Warnings name the cell's file, which has the number of the copy in it: without this, no two
            # previews of the same code would be equal.
            "printed": output.text.replace(f"{scratch}/ipykernel_{os.getpid()}/", "")[:MOST_TEXT],
            "images": [
                [media, base64.b64encode(content).decode()]
                for media, content in output.images
                if len(content) <= MOST_IMAGE_BYTES
            ],
            "shown": cast("list[Json]", [text[:MOST_TEXT] for text in output.texts]),
            "given": _as_text(shell, output.value),
            "unfit": unfit,
            "adopted": adopted,
            "imports": cast("list[Json]", imports),
            "wishing": cast("list[Json]", state.wishing),
            "states": states,
        }

    def _unfit(self, output: Output, changes: list[Change], refused: list[str]) -> str:
        """Return why no value of the preview can be adopted."""
        if refused:
            return "it wants an effect that a preview does not have"
        if state := [change.name for change in changes if change.kind == "state" and not is_adopted(change)]:
            return f"it changes {state[0]}, which is more than a variable"
        if inside := [change.name for change in changes if change.inside]:
            return f"it changes the object of {inside[0]}, which others may hold too"
        if any(set(data) - {*IMAGES, "text/plain"} for data, _ in output.displayed):
            return "it displays more than text and images"
        return ""


@cache
def _look_up_once(shell: Any) -> None:
    """Have this process remember what does not change, so that its copies need not look it up each time."""
    in_library("")
    read_all(shell)


_REFUSED = {
    "read": "read {}",
    "write": "write {}",
    "device": "use the pipe or device {}",
    "network": "use the network",
    "process": "start a process",
    "other": "use the system call {}",
}
"""By kind of refusal, what was wanted."""
_NAMED_BY = {
    "network": NETWORK,
    "process": ("run ", "start a process"),
    "other": ("change the ", "send signal "),
}
"""By kind of refusal, how the copy begins to name it, more precisely."""


def _unnamed(observer: Observer, wishes: list[str]) -> Iterator[str]:
    """Yield what the copy was refused and did not name among its `wishes`."""
    here = os.path.join(os.getcwd(), "")
    for refusal in observer.refusals:
        beginnings = _NAMED_BY.get(refusal.kind, ())
        is_named = any(wish.startswith(beginnings) for wish in wishes) if beginnings else False
        if refusal.kind in ("read", "write"):
            names = (refusal.target, refusal.target.removeprefix(here))
            is_named = any(name in re.split(r" |, ", wish) for wish in wishes for name in names)
        if not is_named:
            yield _REFUSED[refusal.kind].format(refusal.target)


def _adoptable_values(
    code: str,
    namespace: dict[str, Any],
    changes: list[Change],
    before: Before,
    loaded: frozenset[str],
    output: Output,
    buffers: Buffers,
) -> dict[str, Json]:
    """Return the adoptable values; raises `NotPlain` if one cannot be adopted."""
    if output.error:
        # The model reads the exception; nothing of what was done before it is kept.
        return {}
    found: dict[str, Json] = {}
    same = {id(value): name for name, value in before.values.items()}
    for name, module in namespace.items():
        if is_a(module, ModuleType) and not name.startswith("_") and name not in before.modules:
            # Taking it over would run its code, unseen.
            if module.__name__ not in loaded:
                raise NotPlain(f"it imports {module.__name__}, which is not loaded yet")
            found[name] = {"module": module.__name__}
    for change in changes:
        if change.kind == "deleted":
            found[change.name] = {"deleted": True}
        elif (other := same.get(id(namespace[change.name]))) is not None:
            found[change.name] = {"same": other}
        else:
            found[change.name] = _encode_new(code, change.name, namespace, buffers)
            _check_own(change.name, namespace[change.name], before)
    if output.value is not None:
        place = len(buffers.arrays)
        try:
            found["_"] = {"value": encode_value(output.value, buffers)}
        except NotPlain:
            # Its text is shown; nothing else uses it.
            buffers.drop(place)
    return found


def _encode_new(code: str, name: str, namespace: dict[str, Any], buffers: Buffers) -> Json:
    """Encode a value; raises `NotPlain` with its name.

    What code imports by name, and types such as `list[int]`, are no data: the kernel has them itself.
    """
    value = namespace[name]
    try:
        return {"value": encode_value(value, buffers)}
    except NotPlain as error:
        reason = str(error)
    for module, attribute in import_sources(name, code):
        if read_or(None, imported_attribute, module, attribute) is value:
            return {"from": [module, attribute]}
    written = written_type(value, namespace)
    if is_type_of_python(written):
        return {"type": encode_value(written, buffers)}
    raise NotPlain(f"{name} cannot be taken over: {reason}")


def _check_own(name: str, value: object, before: Before) -> None:
    """Raise `NotPlain` for an array that is a part of one that was there: taken over it would be a copy."""
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return
    for other, old in before.values.items():
        if is_a(old, numpy.ndarray) and numpy.may_share_memory(value, old):
            raise NotPlain(f"{name} is a part of {other}")


def _as_text(shell: Any, value: object) -> str:
    if value is None:
        return ""
    try:
        return str(shell.display_formatter.format(value, include={"text/plain"})[0].get("text/plain", ""))[
            :MOST_TEXT
        ]
    except BaseException as error:  # the boundary to a class of the user's  # noqa: BLE001
        return f"<{type_name(value)}: its repr fails with {type(error).__name__}>"


def _size(number: int) -> str:
    return (
        f"{number:,} bytes"
        if number < 1_000
        else f"{number / 1_000:,.1f} kB"
        if number < 1_000_000
        else f"{number / 1_000_000:,.1f} MB"
    )
