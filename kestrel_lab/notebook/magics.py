"""IPython extension: `%load_ext kestrel_lab` adds magics, completion and `await`; unloading removes them."""

from __future__ import annotations

import inspect
import os
import re
import tokenize
from collections.abc import Awaitable
from dataclasses import dataclass
from tokenize import TokenInfo
from typing import Any

from IPython.core.inputtransformer2 import EscapedCommand, HelpEnd, MagicAssign, TokenTransformBase
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from kestrel_lab.cli.frontend import files_named
from kestrel_lab.core.errors import KestrelError
from kestrel_lab.evals.labels.label_queue import Labelling
from kestrel_lab.models.resolve import prepare_in_background
from kestrel_lab.notebook.command_line import run_magic
from kestrel_lab.notebook.completion import complete_line, completion_type
from kestrel_lab.notebook.failed_cell import FailedCell
from kestrel_lab.notebook.frontend import Notebook, NotebookFrontend, NotebookSurroundings, frontend_kind
from kestrel_lab.notebook.label_box import label_bundle
from kestrel_lab.notebook.panel import ChatBox
from kestrel_lab.runtime.conversation import Chat
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.tools.kernel.variables import user_variables


@magics_class
class KestrelMagics(Magics):
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.notebook = Notebook(shell.user_ns)

    @no_var_expand
    @line_cell_magic
    def kestrel(self, line: str, cell: str | None = None) -> object:
        """Run, watch and steer agents: `%kestrel --help`."""
        return _print_text(self._carry_out(line, cell, awaited=False))

    @no_var_expand
    @line_cell_magic
    def kestrel_await(self, line: str, cell: str | None = None) -> Awaitable[object]:
        """What `%kestrel` becomes at the top of a cell: the same, to be awaited."""
        return _result(self._carry_out(line, cell, awaited=True))

    def _carry_out(self, line: str, cell: str | None, *, awaited: bool) -> Any:
        frontend = NotebookFrontend(self.notebook, frontend_kind(self.shell), awaited=awaited)
        with files_named():
            return frontend.finish(run_magic(line, cell, frontend, self.notebook.variables))


async def _result(found: Any) -> object:
    with files_named():
        return _print_text(await found if inspect.isawaitable(found) else found)


def _print_text(found: object) -> object:
    """What a cell gives; a sentence is printed instead."""
    if isinstance(found, str):
        print(found)  # a notebook shows what is printed  # noqa: T201
        return None
    return found


# `%kestrel` at the top of a cell becomes `await …`, so that the cell waits and the kernel goes on.
#
# Only a magic at the beginning of a line is rewritten, and only in a cell that is about to run: code
# that a running cell hands to IPython once more (`%%time`, `%%capture`) may not contain `await`.

MAGIC = "kestrel"
AWAITED = "kestrel_await"

_CALL = re.compile(rf"^((?:[A-Za-z_]\w*\s*=\s*)?)get_ipython\(\)\.run_(cell|line)_magic\('{MAGIC}',")
# IPython refuses a cell without a body, in words of its own and without an error that programs see.
_EMPTY = re.compile(rf"^(await get_ipython\(\)\.run_cell_magic\('{AWAITED}', .*, )''\)$")


class AwaitRewriter:
    """Input transformer of one shell that adds `await` to magics, and hooks that track running cells."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._running = False

    def began(self, *_: object) -> None:
        """Note that a cell starts."""
        self._running = True

    def ended(self, *_: object) -> None:
        """Note that a cell has ended."""
        self._running = False

    def __call__(self, lines: list[str]) -> list[str]:
        """Return the lines of a cell, whose magics are calls already, with `await` where one is possible."""
        if self._running or not self._shell.autoawait or getattr(self._shell, "kernel", None) is None:
            return lines
        return [
            _EMPTY.sub(r"\1'\\n')", _CALL.sub(rf"\1await get_ipython().run_\2_magic('{AWAITED}',", line))
            for line in lines
        ]

    def install(self) -> None:
        """Put the transformer and its hooks into the shell."""
        self._shell.input_transformers_post.append(self)
        self._shell.events.register("pre_run_cell", self.began)
        self._shell.events.register("post_run_cell", self.ended)
        # Loaded by a cell, which runs while this is installed.
        self._running = True

    def remove(self) -> None:
        """Take them out again."""
        self._shell.input_transformers_post.remove(self)
        self._shell.events.unregister("pre_run_cell", self.began)
        self._shell.events.unregister("post_run_cell", self.ended)


class GoalQuestion(HelpEnd):
    """Takes a line `%kestrel GOAL?` for a goal, where IPython would show help on its last word.

    `%kestrel?` alone stays IPython's help. Tokens decide, so such a line in a string is left alone.
    """

    priority = HelpEnd.priority - 1

    def __init__(self, start: tuple[int, int], call: EscapedCommand | MagicAssign) -> None:
        TokenTransformBase.__init__(self, start)  # type: ignore[no-untyped-call,unused-ignore]
        self._call = call

    @classmethod
    def find(cls, tokens_by_line: list[list[TokenInfo]]) -> GoalQuestion | None:
        """Return the first such line of a cell."""
        for line in tokens_by_line:
            tokens = [token for token in line if token.type not in _INVISIBLE]
            strings = [token.string for token in tokens]
            if "%" not in strings or strings[-1] != "?":
                continue
            place = strings.index("%")
            goal = strings[place + 2 :]
            if strings[place + 1] != MAGIC or not goal or set(goal) == {"?"}:
                continue
            if place == 0:
                call = EscapedCommand(tokens[0].start)  # type: ignore[no-untyped-call,unused-ignore]
                return cls(tokens[0].start, call)
            assignment = MagicAssign.find([line])  # type: ignore[no-untyped-call,unused-ignore]
            if assignment is not None:
                return cls(tokens[0].start, assignment)
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """Return the lines with the magic as a call."""
        return list(self._call.transform(lines))


_INVISIBLE = {tokenize.INDENT, tokenize.DEDENT, tokenize.NEWLINE, tokenize.NL, tokenize.ENDMARKER}

_ATTRIBUTE = "_kestrel_extension"
_NAMED = re.compile(r"(?<![\w@.])@([A-Za-z_]\w*|)$")
_GOAL = re.compile(rf"\s*(?:[A-Za-z_]\w*\s*=\s*)?(?:%%{MAGIC}\b|%{MAGIC}\s+(?:run|orchestrate)\b)")
_LINE = re.compile(rf"\s*(?:[A-Za-z_]\w*\s*=\s*)?(%%?{MAGIC}\s.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Loaded:
    rewriter: AwaitRewriter
    after_cell: Any
    matcher: Any


def load_ipython_extension(ip: Any) -> None:
    """Add the magics, their completion, and `await` where they stand at the top of a cell."""
    unload_ipython_extension(ip)
    magics = KestrelMagics(ip)
    ip.register_magics(magics)
    matcher = _matcher(magics)
    ip.Completer.custom_matchers.append(matcher)
    _show_once(ip, magics)

    def after_cell(result: Any) -> None:
        magics.notebook.shown.clear()
        error = result.error_before_exec or result.error_in_exec
        # Agents run code in this shell, too, which no front end counts among its cells. What a run ended with
        # is no mistake of the cell.
        counted = result.info.store_history or getattr(ip, "kernel", None) is None
        if error is not None and counted and not isinstance(error, KestrelError):
            magics.notebook.failed = FailedCell(result.info.raw_cell, error)
            # Who stopped a cell needs no help with it.
            if frontend_kind(ip) == "panel" and not isinstance(error, KeyboardInterrupt):
                magics.notebook.offer_fix()
        # A preview runs an agent's code in a copy of this process, which must not read the log.
        for panel in magics.notebook.panels if counted else ():
            panel.look_again()
        prepare_in_background(os.environ)  # after the cell, also with a key that it has just set

    Services.surroundings = NotebookSurroundings(magics.notebook, ip)
    rewriter = AwaitRewriter(ip)
    rewriter.install()
    ip.input_transformer_manager.token_transformers.append(GoalQuestion)
    ip.events.register("post_run_cell", after_cell)
    setattr(ip, _ATTRIBUTE, _Loaded(rewriter, after_cell, matcher))


def unload_ipython_extension(ip: Any) -> None:
    """Remove everything again; does nothing where nothing is loaded."""
    loaded: _Loaded | None = getattr(ip, _ATTRIBUTE, None)
    if loaded is None:
        return
    delattr(ip, _ATTRIBUTE)
    Services.surroundings = None
    loaded.rewriter.remove()
    ip.input_transformer_manager.token_transformers.remove(GoalQuestion)
    ip.events.unregister("post_run_cell", loaded.after_cell)
    ip.Completer.custom_matchers.remove(loaded.matcher)
    for name in (MAGIC, AWAITED):
        for kind in ("line", "cell"):
            ip.magics_manager.magics[kind].pop(name, None)
    ip.display_formatter.ipython_display_formatter.pop(Run, None)
    for shown in (Chat, Labelling):
        ip.display_formatter.mimebundle_formatter.pop(shown, None)


def _matcher(magics: KestrelMagics) -> Any:
    """What completes lines that begin with `%kestrel` or `name = %kestrel`; nothing else is offered there."""
    from IPython.core.completer import SimpleCompletion, context_matcher  # loaded on use

    @context_matcher()  # type: ignore[no-untyped-call,untyped-decorator,unused-ignore]
    def complete_kestrel(context: Any) -> dict[str, Any]:
        before = context.text_until_cursor
        if (named := _NAMED.search(before)) and _GOAL.match(context.full_text):
            names = [
                f"@{name}"
                for name in sorted(user_variables(magics.notebook.variables))
                if name.startswith(named[1])
            ]
            return {
                "completions": [SimpleCompletion(name, type="variable") for name in names],
                "matched_fragment": named[0],
                "suppress": bool(names),
            }
        line = _LINE.match(before)
        # Only the first line of a cell is a magic with `%%`; what is below it is the goal.
        if line is None or (line[1].startswith("%%") and context.cursor_line):
            return {"completions": []}
        found = complete_line(line[1], magics.notebook.lab, magics.notebook.runs())
        word = "" if before[-1:].isspace() else before.split()[-1]
        return {
            # A front end shows the type in a narrow column: a word has room there, an explanation has not.
            "completions": [SimpleCompletion(text, type=completion_type(text)) for text in found],
            "matched_fragment": word,
            "suppress": True,
        }

    return complete_kestrel


def _show_once(ip: Any, magics: KestrelMagics) -> None:
    """A run that its cell has shown already is not shown again as the cell's result."""
    from IPython.display import display  # loaded on use

    def show(run: Run) -> None:
        if run not in magics.notebook.shown:
            display({"text/html": run._repr_html_(), "text/plain": repr(run.report)}, raw=True)  # type: ignore[no-untyped-call]

    def as_box(chat: Chat, **_: object) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return ChatBox(chat, magics.notebook.answer).bundle() if frontend_kind(ip) == "panel" else None

    # In a terminal a run is text like any other value.
    if getattr(ip, "kernel", None) is not None:
        ip.display_formatter.ipython_display_formatter.for_type(Run, show)

    def as_labels(labelling: Labelling, **_: object) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return label_bundle(labelling) if frontend_kind(ip) == "panel" else None

    ip.display_formatter.mimebundle_formatter.for_type(Chat, as_box)
    ip.display_formatter.mimebundle_formatter.for_type(Labelling, as_labels)
