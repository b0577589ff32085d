"""Terminal display of a run: finished rows scroll, running ones stay below, questions between them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, Group
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from kestrel_lab.cli.slow_start import say_when_slow
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.views import formatting
from kestrel_lab.views.diffs import diff_lines
from kestrel_lab.views.rows import CallRow, NoticeRow, QuestionRow, Row, StageRow, TextRow
from kestrel_lab.views.run_text import MARKS
from kestrel_lab.views.run_view import RunView
from kestrel_lab.views.text import table_lines

_STYLES = {
    "ok": "green",
    "error": "red",
    "denied": "yellow",
    "running": "cyan",
    "waiting": "magenta",
    "stopped": "yellow",
}
_DANGERS = {"SAFE": "green", "LOW": "green", "MEDIUM": "yellow", "HIGH": "red", "CRITICAL": "bold red"}
_LEVELS = {"warning": "yellow", "good": "green", "bad": "red"}
_DIFF = {"added": "green", "removed": "red"}
_SETTLED = frozenset({"ok", "error", "denied", "stopped", "done"})
_TAIL_LINES = 8
_TAIL_CHARS = 2_000


class TerminalDisplay:
    """Follows one run on a console; give its `tell` to `Run.subscribe`."""

    def __init__(self, console: Console) -> None:
        self.view = RunView()
        self._console = console
        self._known: set[str] = set()
        self._open: dict[str, None] = {}
        """Rows that are not printed yet, in order."""
        self._live = Live(console=console, refresh_per_second=10, transient=True, get_renderable=self._now)

    def tell(self, event: Event, at: float | None = None) -> None:
        """Apply an event, of now or of `at` seconds since 1970, and print the rows that are finished."""
        for change in self.view.apply(event, time.time() if at is None else at):
            name = str(change["id"])
            if name in self.view.rows and name not in self._known:
                self._known.add(name)
                self._open[name] = None
        last = next(reversed(self.view.rows), "")
        for row in [self.view.rows[name] for name in self._open]:
            # The last text may still turn out to be the answer.
            undecided = isinstance(row, TextRow) and row.id == last and not self.view.done
            if not undecided and (isinstance(row, StageRow) or row.state in _SETTLED):
                del self._open[row.id]
                if not isinstance(row, TextRow) or row.text.strip() or row.thinking:
                    self._console.print(_row_text(row))

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the moving lines while the block runs; without a terminal only long waits are reported."""
        if not self._console.is_terminal:
            with say_when_slow(lambda: sanitize_text(self.view.head.progress)):
                yield
            return
        with self._live:
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Remove the moving lines while a question is asked."""
        started = self._live.is_started
        self._live.stop()
        try:
            yield
        finally:
            if started:
                self._live.start(refresh=True)

    def ending(self) -> Text:
        """The line that a run ends with."""
        head = self.view.head
        style = {"COMPLETE": "green", "FAILED": "red", "CANCELLED": "yellow", "INTERRUPTED": "yellow"}.get(
            head.status, "magenta"
        )
        line = Text.assemble(
            (head.status or "?", f"bold {style}"),
            f" · {head.usage} · {formatting.format_duration(head.took_until(time.time()))}",
        )
        printed = [row for row in self.view.rows.values() if row.id not in self._open]
        # The reason is not printed twice: a notice or the answer may have had it.
        shown_before = any(head.reason in row.text for row in printed if isinstance(row, TextRow | NoticeRow))
        return line if shown_before else line.append(f"\n{head.reason}")

    def _now(self) -> Group:
        lines: list[Any] = []
        head = self.view.head
        first = next((row for row in self.view.rows.values() if isinstance(row, TextRow)), None)
        for row in self.view.rows.values():
            if isinstance(row, CallRow) and row.state not in _SETTLED:
                lines.append(
                    Text.assemble(
                        (f"{MARKS.get(row.state, '·')} ", "cyan"),
                        (row.tool, "bold"),
                        f" {row.summary}",
                        (f"  {row.state}", "dim"),
                    )
                )
                if row.result:
                    lines.append(
                        Padding(Text("\n".join(row.result.splitlines()[-_TAIL_LINES:]), style="dim"), (0, 4))
                    )
            elif isinstance(row, TextRow) and row.state not in _SETTLED:
                waits = (
                    f"waiting for {head.model}: the first answer takes longest"
                    if row is first
                    else f"waiting for {head.model}"
                )
                thought = row.thinking[-_TAIL_CHARS:].rstrip().rpartition("\n")[2]
                text = "\n".join(row.text.splitlines()[-_TAIL_LINES:]) or (
                    f"thinking: {one_line(thought, 200)}" if thought else waits
                )
                lines.append(Padding(Text(text, style="italic" if row.text else "dim"), (0, 2)))
        if head.progress:
            lines.append(Text(f"{head.progress} …", style="dim"))
        lines.append(
            Text(
                f"{head.status} · {head.usage} · {formatting.format_duration(head.took_until(time.time()))}"
                if head.usage
                else "starting …",
                style="dim",
            )
        )
        return Group(*lines)


class _AnswerText:
    """An answer: with its headings, tables and lists drawn in a terminal, and as it is written elsewhere."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, _options: ConsoleOptions) -> Iterator[Any]:
        if not console.is_terminal:
            yield Text(self._text)
            return
        from markdown_it import MarkdownIt  # loaded on use
        from rich.markdown import Markdown

        drawn = Markdown("", hyperlinks=False)
        # HTML is text: an element that is not drawn would hide what is in it.
        parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("image")
        drawn.markup, drawn.parsed = self._text, parser.parse(self._text)
        for token in drawn.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"  # lines stay lines
        yield drawn


def _row_text(row: Row) -> Any:
    match row:
        case NoticeRow():
            line = Text(row.text, style=_LEVELS.get(row.level, "dim"))
            lines = [*(one_line(item, 200) for item in row.items), *table_lines(row.table)]
            return line.append("".join(f"\n    {each}" for each in lines), style="dim")
        case StageRow():
            return Text(
                f"stage {row.stage}" + (f", attempt {row.attempt}" if row.attempt > 1 else ""), style="bold"
            )
        case TextRow():
            if row.role == "answer":
                return Panel(
                    _AnswerText(row.text),
                    title="answer",
                    title_align="left",
                    border_style="green",
                    subtitle=escape(row.note),
                    subtitle_align="right",
                )
            thought = f"thinking: {one_line(row.thinking, 200)}\n" if row.thinking else ""
            return Padding(
                Text.assemble((thought, "dim"), (row.text, "red" if row.state == "error" else "italic")),
                (0, 2),
            )
        case CallRow():
            line = Text.assemble(
                (f"{MARKS.get(row.state, '·')} ", _STYLES.get(row.state, "")),
                (row.tool, "bold"),
                f" {row.summary} ",
                (row.danger, _DANGERS.get(row.danger, "")),
                (f" {row.took}", "dim"),
                (f" {row.note}" if row.note else "", "dim"),
            )
            return line.append(f"\n    {row.preview}", style="dim") if row.preview else line


class TerminalApprover:
    """Asks on the terminal; one question at a time.

    Without an answer in `timeout_s` seconds the answer is no.
    """

    def __init__(
        self, console: Console, display: TerminalDisplay, user: str, timeout_s: float | None
    ) -> None:
        self._console = console
        self._display = display
        self._user = user
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Show the call whole and wait for a decision; cancelled when it was decided elsewhere."""
        async with self._turn:
            with self._display.paused():
                self._console.print(_question(asked, self._display.view.asks.get(asked.call)))
                try:
                    async with asyncio.timeout(self._timeout_s):
                        return await (
                            self._answer(asked) if asked.why == "question" else self._decision(asked)
                        )
                except TimeoutError:
                    # Silence is a no, as in the panel.
                    reason = f"nobody answered within {self._timeout_s:g} s"
                    self._console.print(Text(reason, style="yellow"))
                    return ApprovalGiven(
                        call=asked.call, granted=False, by="timeout", how="policy", reason=reason
                    )

    async def _answer(self, asked: ApprovalAsked) -> ApprovalGiven:
        """What the person says, the option where they type its number; nothing at all is not an answer."""
        said = formatting.chosen_answer(asked, await self._line("answer (empty for none): "))
        return (
            self._given(asked, granted=True, answer=said)
            if said
            else self._given(asked, granted=False, reason="no answer was given")
        )

    async def _decision(self, asked: ApprovalAsked) -> ApprovalGiven:
        while True:
            word = (
                (await self._line(f"[y]es, [n]o, [e]dit, {formatting.always_words(asked)}? ") or "n")
                .strip()
                .lower()
            )
            if (said := formatting.typed_decision(word, asked)) is not None:
                if word in {"n", "no"}:
                    said["reason"] = (await self._line("reason for the model (may be empty): ")).strip()
                return self._given(asked, **said)
            if word in {"e", "edit"}:
                text = await self._line("arguments as JSON: ")
                try:
                    args = loads(text)
                except ValueError as error:
                    # Asked again: a slip in the edited arguments must decide nothing.
                    self._console.print(Text(f"not JSON: {error}", style="red"))
                    continue
                if isinstance(args, dict):
                    return self._given(asked, granted=True, args=args)
                self._console.print(Text("the arguments must be a JSON object", style="red"))

    def _given(self, asked: ApprovalAsked, **fields: Any) -> ApprovalGiven:
        return ApprovalGiven(call=asked.call, by=self._user, how="prompt", **fields)

    async def _line(self, prompt: str) -> str:
        """Return a line from the terminal with its end, without blocking the run; empty at its end."""
        self._console.print(Text(prompt, style="bold"), end="")
        loop = asyncio.get_running_loop()
        line: asyncio.Future[str] = loop.create_future()

        def read() -> None:
            # The loop may call it once more before the reader is removed.
            if not line.done():
                line.set_result(sys.stdin.readline())

        loop.add_reader(sys.stdin.fileno(), read)
        try:
            return await line
        except asyncio.CancelledError:
            # The cursor is behind the question; what follows begins on a line of its own.
            self._console.print()
            raise
        finally:
            loop.remove_reader(sys.stdin.fileno())


def _question(asked: ApprovalAsked, ask: QuestionRow | None) -> Panel:
    if asked.why == "question" and ask is not None:
        options = [f"\n  {number}. {option}" for number, option in enumerate(ask.options, 1)]
        # A server that asks is not the agent.
        who = "the agent asks" if asked.tool == "ask_user" else escape(asked.tool)
        return Panel(Text("".join([ask.text, *options])), title=who, title_align="left", border_style="cyan")
    body = Text()
    for kind, text in diff_lines(ask.diff) if ask is not None else ():
        body.append(f"{text}\n", style=_DIFF.get(kind, "dim"))
    for name, text in ask.args if ask is not None else []:
        body.append(f"{name}\n", style="bold").append(f"{text}\n")
    for place, words in formatting.origin_pairs(asked):
        body.append(f"{place}: {words}\n", style="dim")
    why = {
        "danger": "",
        "contained": "",
        "unknown_outcome": "The last session ended while this call ran; whether it took effect is unknown. "
        "Run it "
        "again?",
    }.get(asked.why, asked.why)
    for reason in (why, formatting.containment_text(asked)):
        if reason:
            body.append(f"\n{reason}", style="yellow")
    if held := formatting.sandbox_words(asked.sandbox):
        body.append(f"\n{held}", style="dim")
    return Panel(
        body,
        title=f"[bold]{escape(asked.tool)}[/bold] · {asked.danger} · wants to run",
        title_align="left",
        border_style="magenta",
    )


@contextmanager
def progress_bar(console: Console) -> Iterator[Any]:
    """A `Reporter` that draws a bar, or prints a line now and then where there is no terminal."""
    if not console.is_terminal:
        yield PlainReporter(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=console)
    task = bar.add_task("running", total=None)
    said = Text(style="dim", no_wrap=True, overflow="ellipsis")

    def report(done: int, total: int, note: str) -> None:
        bar.update(task, completed=done, total=total)
        said.plain = sanitize_text(one_line(note, 300))

    # The note has a line of its own: it is longer than what a bar leaves.
    with Live(console=console, refresh_per_second=5, transient=True, get_renderable=lambda: Group(bar, said)):
        yield report


class PlainReporter:
    """Prints a line every few seconds, and the last."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0

    def __call__(self, done: int, total: int, note: str) -> None:
        """Print how far it is, unless that was done just now."""
        if done == total or time.monotonic() - self._last > 5:
            self._last = time.monotonic()
            self._console.print(Text(sanitize_text(f"{done}/{total} {note}")))
