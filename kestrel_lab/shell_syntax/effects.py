"""Effects of a command line: whether it can change files, run code that it does not show, and send something.

Only programs that are known are excluded from an effect; any other program may have all of them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from kestrel_lab.shell_syntax.harmless_options import only_shows
from kestrel_lab.shell_syntax.known_programs import FILE_TOOLS, READERS, TRANSFERS
from kestrel_lab.shell_syntax.parser import read_line
from kestrel_lab.shell_syntax.program_options import Command, name_of, subcommand_at
from kestrel_lab.shell_syntax.wrappers import SHELLS, commands_in

LineEffect = Literal["files", "code", "send"]
"""`files`: changes files; `code`: runs code not in the line, such as tests; `send`: sends data to others."""
ANY: Final = frozenset[LineEffect](("files", "code", "send"))
_NONE: Final = frozenset[LineEffect]()
_FILES: Final = frozenset[LineEffect](("files",))


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_GIT_FILES: Final = _words(
    "add rm mv init clone fetch pull checkout switch restore reset stash clean apply branch tag remote "
    "config notes worktree gc prune "
    "bundle archive submodule sparse-checkout update-index"
)
"""Subcommands of git that change files and neither run a hook that tests nor send anything."""
_VERSION: Final = _words("--version -V -version --help version")
_INLINE: Final = {"python": "c", "node": "e", "ruby": "e", "perl": "e", "php": "r"}
"""Interpreters, with the option that is followed by code."""
_RUNS: Final = re.compile(
    r"test|check|spec|subprocess|system|popen|exec|run|spawn|import_module|__import__|eval|compile|fork",
    re.IGNORECASE,
)
_SENDS: Final = re.compile(
    r"mail|smtp|http|url|socket|request|ftp|ssh|api|client|send|post|publish|paramiko|boto|web", re.IGNORECASE
)
_WRITES: Final = re.compile(
    r"open|write|save|dump|\bto_|mkdir|touch|remove|unlink|rename|move|copy|replace|rmtree|chmod|link|truncate|tofile|sql|db|shutil|>",
    re.IGNORECASE,
)


@lru_cache(maxsize=256)
def line_effects(text: str) -> frozenset[LineEffect]:
    """Return the possible effects of a command line; all effects if it cannot be parsed."""
    line = read_line(text)
    found = _NONE.union(*map(command_effects, line.commands))
    # What no rule may judge, such as a redirection, can write a file; the programs that run there are among
    # the commands.
    return found | _FILES if line.unclear else found


def command_effects(command: Command) -> frozenset[LineEffect]:
    """Return the effects of one simple command, without the commands it runs: `Line.commands` has those."""
    if not command or command[0] is None:
        return ANY
    name = name_of(command[0])
    if len(command) == 2 and command[1] in _VERSION and "/" not in command[0]:
        return _NONE
    if "/" in command[0] and not command[0].startswith(("/bin/", "/usr/bin/", "/usr/local/bin/")):
        # A program of the workspace, whatever it is called.
        return ANY
    if only_shows(command) or name in READERS or _only_filters(name, command):
        return _NONE
    if name in TRANSFERS:
        return frozenset(("files", "send"))
    if name in FILE_TOOLS or (name == "git" and _subcommand(command) in _GIT_FILES):
        return _FILES
    if (option := _INLINE.get(name)) and (code := _inline_code(command, option)) is not None:
        return code_effects(code)
    if name in SHELLS and command[1:2] and (command[1] or "").startswith("-") and any(commands_in(command)):
        return _NONE
    return _NONE if name not in SHELLS and any(commands_in(command)) else ANY


def runs_program(text: str, program: str) -> bool:
    """Return true if a command line may run `program`, or contains an unknown command."""
    for command in read_line(text).commands:
        if not command or command[0] is None:
            return True
        named = any(word is None or program in re.split(r"[^\w.+-]+", word) for word in command)
        if (named and command_effects(command)) or name_of(command[0]) == name_of(program):
            return True
    return False


def _subcommand(command: Command) -> str:
    place = subcommand_at(command)
    return "" if place is None else command[place] or ""


def _only_filters(name: str, command: Command) -> bool:
    """Return true if `sed`, `awk` or `uniq` writes only to its output, and `env` only prints."""
    if name == "uniq":
        return None not in command and sum(not (word or "").startswith("-") for word in command[1:]) < 2
    if name == "env":
        return len(command) == 1
    if name == "sed":
        return all(
            word is not None and not re.match(r"-[a-zA-Z]*i|--in-place|.*(?:^|[;{\d/$])\s*[weW]\s", word)
            for word in command[1:]
        )
    return name in ("awk", "gawk", "mawk") and all(
        word is not None and not re.search(r"system|getline|[>|]|-i", word) for word in command[1:]
    )


def _inline_code(command: Command, option: str) -> str | None:
    """Return the code after an interpreter's option such as `-c`; `None` if there is none or unknown."""
    for place, word in enumerate(command[1:-1], 1):
        if word is None or not word.startswith("-"):
            return None
        if not word.startswith("--") and word.endswith(option):
            return command[place + 1]
    return None


def code_effects(code: str) -> frozenset[LineEffect]:
    """Return the possible effects of code, by its words; code that starts other programs may have any."""
    if _RUNS.search(code):
        return ANY
    found: set[LineEffect] = set()
    if _SENDS.search(code):
        found.add("send")
    if _WRITES.search(code):
        found.add("files")
    return frozenset(found)
