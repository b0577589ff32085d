"""Commands that run other commands, such as `env`, `sudo`, `xargs`, `sh -c` and `find -exec`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from kestrel_lab.shell_syntax.program_options import Command, Options, name_of, subcommand_at
from kestrel_lab.shell_syntax.runnable_words import git_option_texts

UNKNOWN: Command = (None,)
"""An unknown command."""

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_RESERVED = frozenset(
    "if then elif else fi do done for while until case esac select function in { } !".split()
)
_OPAQUE = frozenset(
    (
        "source . parallel unshare nsenter systemd-run strace ltrace expect entr pkexec setpriv firejail "
        "chpst"
    ).split()
)
"""They run what a rule cannot see, or are too many-sided to be read."""


_WRAPPERS: dict[str, Options] = {
    "sudo": Options(
        "AbBEeHiKklNnPSsVv",
        "CDghpRrTtUu",
        "askpass background bell edit preserve-env set-home login list non-interactive preserve-groups "
        "stdin shell",
        "user group host prompt chdir chroot role type other-user close-from command-timeout",
        assigns=True,
    ),
    "doas": Options("Lns", "Cu"),
    "env": Options(
        "i0v",
        "uCa",
        "ignore-environment null debug ignore-signal default-signal block-signal list-signal-handling",
        "unset chdir argv0",
        assigns=True,
        dash=True,
    ),
    "nohup": Options(),
    "setsid": Options("cfw", "", "ctty fork wait"),
    "stdbuf": Options("", "ioe", "", "input output error"),
    "nice": Options("0123456789", "n", "", "adjustment"),
    "ionice": Options("t", "cn", "ignore", "class classdata"),
    "chrt": Options("abfimorRv", "TPD", before=1),
    "taskset": Options("ac", "", "all-tasks cpu-list", before=1),
    "timeout": Options("fpv", "ks", "foreground preserve-status verbose", "signal kill-after", before=1),
    "time": Options("apqvV", "fo", "append portability quiet verbose", "format output"),
    "command": Options("p"),
    "builtin": Options(),
    "exec": Options("cl", "a"),
    "coproc": Options(),
    "busybox": Options(),
    "toybox": Options(),
    "caffeinate": Options("dimsu", "tw"),
    "chroot": Options("", "", "skip-chdir", "userspec groups", before=1),
    "flock": Options(
        "sxeunoFv",
        "wE",
        "shared exclusive unlock nonblock close no-fork verbose",
        "timeout conflict-exit-code",
        before=1,
    ),
    "xargs": Options(
        "0rtpox",
        "adEILnPs",
        "null no-run-if-empty verbose interactive open-tty exit",
        "arg-file delimiter eof replace max-lines max-args max-procs max-chars process-slot-var",
    ),
}
RUNNERS = (
    *(
        ("uv", "run"),
        ("poetry", "run"),
        ("hatch", "run"),
        ("pdm", "run"),
        ("pipenv", "run"),
        ("bundle", "exec"),
    ),
    ("git", "bisect", "run"),
    ("git", "submodule", "foreach"),
)
"""Programs with a word of their own that runs a command; with options behind it, the command is unknown."""


def program_of(word: str) -> str:
    """Return the name of the program without its folder."""
    return posixpath.basename(word)


def commands_in(command: Command) -> tuple[list[Command], list[str]]:
    """Return the commands that `command` runs, and the shell programs that it runs."""
    name = command[0]
    if name is None or len(command) > _MOST_WORDS:
        return [], []
    name, rest = program_of(name), command[1:]
    # The parser has taken a part of a larger command for a simple one.
    if name in _RESERVED:
        return [rest or UNKNOWN, UNKNOWN], []
    if name in _OPAQUE:
        return [UNKNOWN], []
    if name in SHELLS:
        return _of_shell(rest)
    if (reading := _SPECIAL.get(name)) is not None:
        return reading(rest)
    if name in _WRAPPERS:
        return _wrapped_commands(_WRAPPERS[name], rest), []
    return _of_runner(command)


_MOST_WORDS = 10_000


def _of_runner(command: Command) -> tuple[list[Command], list[str]]:
    """Return what a sub-command runs; options after the sub-command leave it unknown."""
    name, place = name_of(command[0] or ""), subcommand_at(command)
    runners = [words for program, *words in RUNNERS if program == name]
    if place is None and any(words[0] in command for words in runners):
        return [UNKNOWN], []
    for words in runners:
        if (
            place is not None
            and list(command[place : place + len(words)]) == words
            and (inner := command[place + len(words) :])
        ):
            plain = inner[0] is not None and not inner[0].startswith("-")
            if words[-1] == "foreach":
                return _of_eval(inner) if plain else ([UNKNOWN], [])
            return [inner if plain else UNKNOWN], []
    return [], ([*_of_git_settings(command), *git_option_texts(command)] if name == "git" else [])


GIT_RUNS = re.compile(
    r"(?:-c)?(?:alias\.[^=]+|[^=]*(?:sshcommand|pager|pager\.[^=]+|editor|fsmonitor|external|textconv|helper|program|command|cmd|askpass|clean|smudge))"
    r"(?:=(.*))?",
    re.IGNORECASE | re.DOTALL,
)
"""Git settings whose value is a command."""


def _of_git_settings(command: Command) -> list[str]:
    """Return the shell programs that git runs because of `-c NAME=VALUE` and `git config NAME VALUE`."""
    found: list[str] = []
    for word, after in pairwise((*command[1:], None)):
        setting = GIT_RUNS.fullmatch(word or "")
        value = setting and (setting[1] if setting[1] is not None else "config" in command and after)
        if setting and value and (value.startswith("!") or "alias." not in setting[0].casefold()):
            found.append(value.removeprefix("!"))
    return found


def _command_place(options: Options, words: Command) -> int | None:
    """Return the position of the command in `words`; `None` if an unknown option precedes it."""
    place, long = 0, {*options.words.split(), *options.valued.split()}
    while place < len(words) and (word := words[place]) != "--":
        if word is None:
            return None
        if not word.startswith("-") or word == "-":
            break
        takes = options.takes_next(word)
        if takes is None or (word.startswith("--") and word[2:].partition("=")[0] not in long):
            return None
        place += 1 + takes
    place += place < len(words) and words[place] == "--"
    place += options.dash and place < len(words) and words[place] == "-"
    while options.assigns and place < len(words) and _ASSIGNMENT.match(words[place] or ""):
        place += 1
    return place + options.before


def _wrapped_commands(options: Options, rest: Command) -> list[Command]:
    place = _command_place(options, rest)
    # An unknown word may be any number of words, and the command may begin within them.
    if place is None or None in rest[:place]:
        return [UNKNOWN]
    return [rest[place:]] if place < len(rest) else []


def _of_shell(rest: Command) -> tuple[list[Command], list[str]]:
    """Return what a shell runs: the text after `-c`, a script file, or unknown input."""
    place, text = 0, False
    while place < len(rest) and (word := rest[place]) is not None and word[:1] in ("-", "+") and word != "-":
        if word in ("--version", "--help"):
            return [], []
        if word.startswith("--"):
            place += 2 if word in ("--rcfile", "--init-file") else 1
            continue
        text = text or (word[0] == "-" and "c" in word)
        # With `-s` a shell reads its program from standard input.
        if "s" in word and word[0] == "-":
            return [UNKNOWN], []
        place += 2 if word[-1:] in "oO" else 1
    if place >= len(rest) or (found := rest[place]) is None or found == "-":
        return [UNKNOWN], []
    if text:
        return [], [found]
    # `/dev/stdin` and its like: another program writes the script.
    return ([UNKNOWN] if found.startswith(("/dev/", "/proc/")) else []), []


def _of_eval(rest: Command) -> tuple[list[Command], list[str]]:
    rest = rest[rest[:1] == ("--",) :]
    known = [word for word in rest if word is not None]
    return ([UNKNOWN], []) if len(known) < len(rest) else ([], [" ".join(known)])


def _of_flock(rest: Command) -> tuple[list[Command], list[str]]:
    """Return the program behind `-c`, or the command behind the file."""
    programs = [text for option in ("-c", "--command") for text in _values_of_option(rest, option)]
    return _of_texts(programs) if programs else (_wrapped_commands(_WRAPPERS["flock"], rest), [])


def _of_session(rest: Command) -> tuple[list[Command], list[str]]:
    """Return the program after `-c` of `su`, `script` and the like, plus an unknown command: they start a
    shell.
    """
    letters = [
        place
        for place, word in enumerate(rest)
        if word and re.fullmatch(r"-[A-Za-z]*c|--(?:session-)?command", word)
    ]
    joined = [word.partition("=")[2] for word in rest if word and re.match(r"--(?:session-)?command=", word)]
    found, programs = _of_texts(
        [*joined, *(rest[place + 1] if place + 1 < len(rest) else None for place in letters)]
    )
    return [UNKNOWN, *found], programs


def _of_texts(texts: Sequence[str | None]) -> tuple[list[Command], list[str]]:
    return [UNKNOWN] if None in texts else [], [text for text in texts if text]


def _of_options(*options: str) -> Callable[[Command], tuple[list[Command], list[str]]]:
    """Return a reader for commands that run only the values of these options."""
    return lambda rest: _of_texts([text for option in options for text in _values_of_option(rest, option)])


def _of_trap(rest: Command) -> tuple[list[Command], list[str]]:
    rest = rest[rest[:1] == ("--",) :]
    return ([], []) if not rest or rest[0] in ("-", "-p", "-l", "") else _of_eval(rest[:1])


def _of_alias(rest: Command) -> tuple[list[Command], list[str]]:
    """Each definition is a program of its own."""
    programs = [word.partition("=")[2] for word in rest if word is not None]
    return [UNKNOWN] if None in rest else [], [program for program in programs if program]


def _of_command(rest: Command) -> tuple[list[Command], list[str]]:
    """With `-v` and `-V` it only shows what a name means."""
    shows = rest[:1] and re.fullmatch(r"-p?[vV]+p?", rest[0] or "")
    return ([], []) if shows else (_wrapped_commands(_WRAPPERS["command"], rest), [])


def _of_watch(rest: Command) -> tuple[list[Command], list[str]]:
    place = _command_place(Options("bcdegtwx", "nq"), rest)
    return ([UNKNOWN], []) if place is None else _of_eval(rest[place:])


def _of_env(rest: Command) -> tuple[list[Command], list[str]]:
    split = next(
        (
            place
            for place, word in enumerate(rest)
            if word is not None and word.startswith(("-S", "--split-string"))
        ),
        None,
    )
    return ([UNKNOWN], []) if split is not None else (_wrapped_commands(_WRAPPERS["env"], rest), [])


def _of_xargs(rest: Command) -> tuple[list[Command], list[str]]:
    """Words are added at the end, or put in the place of one that is named by -I."""
    marks = [
        mark for mark in (*_values_of_option(rest, "-I"), *_values_of_option(rest, "--replace"), "{}") if mark
    ]
    found = _wrapped_commands(_WRAPPERS["xargs"], rest)
    return [
        (*(None if word is None or any(mark in word for mark in marks) else word for word in one), None)
        for one in found
    ], []


def _values_of_option(words: Command, option: str) -> list[str | None]:
    joined = [
        word[len(option) :].lstrip("=")
        for word in words
        if word is not None and word.startswith(option) and word != option
    ]
    # Programs take the beginning of a long option for it.
    short = [
        value
        for word in words
        if word is not None and option.startswith("--") and len(name := word.partition("=")[0]) > 3
        if name != option and option.startswith(name) and (value := word.partition("=")[2])
    ]
    return [*joined, *short, *(words[place + 1] for place, word in enumerate(words[:-1]) if word == option)]


_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_FOUND = re.compile(r"\{(?:/{0,2}|/?\.)\}")
"""Placeholder for a file, or with fd for part of its path."""


def _of_found(*options: str) -> Callable[[Command], tuple[list[Command], list[str]]]:
    """Return a reader for commands that run one behind these options for files that they find."""
    return lambda rest: ([inner for inner, _ in _run_by_find(rest, frozenset(options))], [])


def without_run_by_find(command: Command) -> Command:
    """Return a `find` without the commands it runs; other commands unchanged."""
    if command[0] is None or program_of(command[0]) != "find":
        return command
    ran = {place for _, places in _run_by_find(command[1:], _FIND_RUNS) for place in places}
    return (command[0], *(word for place, word in enumerate(command[1:]) if place not in ran))


def _run_by_find(rest: Command, options: frozenset[str]) -> list[tuple[Command, range]]:
    """Return the commands that `find` or `fd` runs, with the places of their words and of the end; the files
    found are unknown words.
    """
    found: list[tuple[Command, range]] = []
    place = 0
    while place < len(rest):
        option, begin = rest[place], place + 1
        place = begin
        if option not in options:
            continue
        # Only there ends a `+` behind `{}` the command; elsewhere it is a word.
        batch = option in ("-exec", "-execdir")
        while (
            place < len(rest)
            and rest[place] != ";"
            and not (batch and rest[place - 1 : place + 1] == ("{}", "+"))
        ):
            place += 1
        inner = (
            tuple(None if word is None or _FOUND.search(word) else word for word in rest[begin:place])
            or UNKNOWN
        )
        # `-execdir` runs in the folder of each file, where a relative path may be any program.
        elsewhere = (
            option in ("-execdir", "-okdir")
            and "/" in (inner[0] or "")
            and not (inner[0] or "").startswith("/")
        )
        place += 1
        found.append((UNKNOWN if elsewhere else inner, range(begin, place)))
    return found


_SPECIAL: dict[str, Callable[[Command], tuple[list[Command], list[str]]]] = {
    "eval": _of_eval,
    "command": _of_command,
    "trap": _of_trap,
    "alias": _of_alias,
    "watch": _of_watch,
    "env": _of_env,
    "xargs": _of_xargs,
    "find": _of_found(*_FIND_RUNS),
    **dict.fromkeys(("fd", "fdfind"), _of_found("-x", "-X", "--exec", "--exec-batch")),
    "flock": _of_flock,
    **dict.fromkeys(("su", "runuser", "script", "sg", "newgrp"), _of_session),
    **dict.fromkeys(("complete", "compgen", "mapfile", "readarray"), _of_options("-C")),
    "man": _of_options("-P", "--pager", "-H", "--html"),
    "scp": _of_options("-S"),
    "sftp": _of_options("-S", "-D"),
    # `hash -p FILE NAME` puts the program behind a name.
    "hash": lambda rest: ([(path, None) for path in _values_of_option(rest, "-p")], []),
}


def assigned_by(command: Command) -> Sequence[tuple[str, str]]:
    """Return variables that `env`, `sudo` or a builtin such as `export` sets for the command."""
    if command[0] is None or program_of(command[0]) not in _ASSIGNS:
        return ()
    words = [word.partition("=") for word in command[1:] if word is not None and _ASSIGNMENT.match(word)]
    return [(name.rstrip("+"), value) for name, _, value in words]


_ASSIGNS = frozenset({"env", "sudo", "export", "declare", "typeset", "local", "readonly"})
