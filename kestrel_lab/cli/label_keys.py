"""Labelling in a terminal: one trial at a time, a key each."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from textwrap import indent

from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.text import Text

from kestrel_lab.evals.labels.label_queue import LabelItem, Labelling

KEYS = "1 met · 0 not met · s skip · n note · u undo · t calls · r rubric · q quit"
_VALUES = {"1": 1, "0": 0, "s": None}

Ask = Callable[[str], str]
"""Asks for a line; raises `EOFError` at the end."""


def label_by_keys(console: Console, labelling: Labelling, key: Callable[[], str], ask: Ask) -> None:
    """Show trials until all are labelled, or `key` gives `q` or nothing more; `ask` reads a line of text.

    Ctrl-C is `q`, at any moment.
    """
    with suppress(KeyboardInterrupt):
        _label(console, labelling, key, ask)
    done, total = labelling.progress()
    console.print(f"{done} of {total} labelled; everything is stored", style="green")


def _label(console: Console, labelling: Labelling, key: Callable[[], str], ask: Ask) -> None:
    note, shown, folded = "", "", True
    while (item := labelling.next()) is not None:
        if shown != (now := f"{item.run}{item.repeat}{folded}"):
            _show(console, labelling, item, folded=folded)
            shown = now
        pressed = key()
        if pressed in ("q", "", "\x03", "\x04"):
            break
        if pressed in _VALUES:
            labelling.give(item.run, _VALUES[pressed], note=note, repeat=item.repeat)
            note, folded = "", True
        elif pressed == "u":
            undone = labelling.undo()
            console.print("undone" if undone else "there is nothing to undo", style="yellow")
            shown, folded = "", True
        elif pressed == "n":
            note = ask("note: ")
        elif pressed == "t":
            folded = not folded
        elif pressed == "r":
            shown = "" if _new_rubric(console, labelling, ask) else shown
        else:
            console.print(KEYS, style="dim")


@contextmanager
def keys_of_terminal() -> Iterator[Callable[[], str]]:
    """Give what reads one key of the terminal, without Enter; of a pipe the first letter of each line.

    Within, a hang-up or a `kill` ends the process at once, with the terminal as it was before.
    """
    if not sys.stdin.isatty():
        yield _letter_of_line
        return
    import termios  # there is none on Windows, where a terminal is read like a pipe
    import tty

    number = sys.stdin.fileno()
    usual = termios.tcgetattr(number)

    def read() -> str:
        try:
            # By default it would throw away what was typed since the last key.
            tty.setcbreak(number, termios.TCSADRAIN)
            return sys.stdin.read(1).lower()
        finally:
            with suppress(termios.error):  # its window was closed
                termios.tcsetattr(number, termios.TCSADRAIN, usual)

    def leave(signalled: int, _frame: object) -> None:
        # An exception would end up in the middle of any library, and some go on. Labels are on disk.
        with suppress(termios.error):
            termios.tcsetattr(number, termios.TCSANOW, usual)
        os._exit(128 + signalled)

    # Below nohup a hang-up is ignored, and stays so.
    ends = [one for one in (signal.SIGHUP, signal.SIGTERM) if signal.getsignal(one) is signal.SIG_DFL]
    for one in ends:
        signal.signal(one, leave)
    try:
        yield read
    finally:
        for one in ends:
            signal.signal(one, signal.SIG_DFL)


def _letter_of_line() -> str:
    return sys.stdin.readline().strip()[:1].lower()


def _new_rubric(console: Console, labelling: Labelling, ask: Ask) -> bool:
    console.print(Text(f"rubric now: {labelling.rubric}", style="dim"))
    text = ask("new rubric (empty keeps it): ").strip()
    if not text:
        return False
    labelling.edit_rubric(text)
    console.print("a new version: trials are labelled again, and no labels are mixed", style="yellow")
    return True


def _show(console: Console, labelling: Labelling, item: LabelItem, *, folded: bool) -> None:
    done, total = labelling.progress()
    older = " · labelled by an earlier rubric" if item.seen else ""
    console.print(Rule(f"{done + 1} of {total}{older}", align="left"))
    console.print(Text.assemble(("rubric  ", "bold cyan"), labelling.rubric))
    console.print(Text.assemble(("goal    ", "bold cyan"), item.goal))
    for step in item.transcript:
        if folded and step.kind == "call":
            console.print(Text(f"  ▸ {step.title}", style="dim"))
        else:
            mark = f"▾ {step.title}" if step.kind == "call" else step.title
            console.print(Text(indent(f"{mark}\n{step.text}", "  "), style="dim"))
    for check in item.checks:
        console.print(Text.assemble(("check   ", "bold cyan"), check))
    console.print(Text.assemble(("answer  ", "bold cyan"), item.answer or "(no answer)"))
    console.print(escape(KEYS), style="dim")
