"""The start of the `kestrel` command: its start page, its overview, or the code of one command."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from kestrel_lab.host.version import __version__

START: Final = f"""\
kestrel_lab {__version__}: run LLM agents on a goal, watch and approve what they do, and measure them.

  kestrel doctor                    show what is set up, and what to do about the rest
  kestrel run "Explain this code"   let an agent work on a goal in this folder; it asks before risky calls
  kestrel runs                      list the newest runs; `kestrel show RUN` shows one of them
  kestrel init                      write a first suite for this folder, which works without a key
  kestrel eval run SUITE.yaml       measure agents on a suite of scenarios

All commands: kestrel --help. Version: kestrel --version. In a notebook: %load_ext kestrel_lab, then \
%kestrel --help.
"""


def main() -> None:
    """Run the `kestrel` command: print the start page or the overview, or load the commands and run one.

    Ctrl-C while code loads, or after the command, ends the process with 130 and without a word.
    """
    words, completing = sys.argv[1:], "_KESTREL_COMPLETE" in os.environ
    interrupt = signal.getsignal(signal.SIGINT)
    at_once = interrupt is signal.default_int_handler  # else it is ignored, as below nohup
    if at_once:
        # An exception would end up in the middle of any library: some print it, some go on.
        signal.signal(signal.SIGINT, _leave)
    if words == ["--version"]:
        sys.stdout.write(f"kestrel {__version__}\n")
        return None
    if completing or (words and words not in (["--help"], ["-h"])):
        # A command makes mostly objects of modules, which stay. After every 700, as usual, it would look for
        # what nobody holds: a sixth of the time until a wrong key is said.
        gc.set_threshold(50_000)
        run_command = _load_commands()
        signal.signal(signal.SIGINT, interrupt)
        try:
            return run_command()
        finally:
            if at_once:
                signal.signal(signal.SIGINT, _leave)
            gc.freeze()  # else the interpreter looks through all that is left, twice, before it ends
    if not words:
        sys.stdout.write(START)
        return None
    import typer

    from kestrel_lab.cli.build_server_output import harmless_output
    from kestrel_lab.cli.command_table import COMMANDS, SETTINGS

    overview = typer.Typer(**SETTINGS)
    for name, text in COMMANDS.items():
        overview.command(name, help=text)(lambda: None)
    with harmless_output():
        overview(prog_name="kestrel")
    return None


def _leave(*_: Any) -> None:
    """End the process as Ctrl-C does, from wherever it is."""
    if sys.stderr.isatty():
        os.write(2, b"\r\x1b[2K")  # the line that says what loads
    os._exit(130)


def _load_commands() -> Callable[[], None]:
    """Return the function of a command; while its code loads, a terminal says so."""
    announce = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if announce:
        sys.stderr.write("\x1b[2mloading kestrel_lab …\x1b[0m")
        sys.stderr.flush()
    from kestrel_lab.cli.main import main as run_command

    if announce:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()
    return run_command
