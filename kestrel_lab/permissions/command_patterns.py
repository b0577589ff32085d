"""Patterns for commands in permission rules, word by word: `*` and `?` in a word, `...` for further words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import pairwise

from kestrel_lab.core.calls import Call
from kestrel_lab.shell_syntax.harmless_options import Harmless, harmless_pattern
from kestrel_lab.shell_syntax.parser import COMMAND, read_line
from kestrel_lab.shell_syntax.program_options import (
    ABBREVIATES,
    MEANS,
    PROGRAMS,
    SEVERAL,
    WORDS_BEHIND_ONE_DASH,
    Command,
    Options,
    command_readings,
    command_spellings,
    name_of,
)
from kestrel_lab.shell_syntax.runnable_words import literal_places
from kestrel_lab.shell_syntax.wrappers import without_run_by_find

MORE = "..."


class Match(IntEnum):
    """Result of matching a command that may be known only in part."""

    NO = 0
    MAYBE = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A pattern such as `git diff ...`, word by word; never a part of a word.

    `git status` is these two words. `*`, `?` and `[ab]` match signs within a word, `...` for any number
    of words; in a rule that allows, not for options that may write or run something. Words with blanks are
    quoted as in a shell.
    """

    text: str
    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> CommandPattern:
        """Read a pattern; raises `ValueError` for one that could never be a single command."""
        try:
            words = tuple(MORE if word == "…" else word for word in shlex.split(text, posix=True))
        except ValueError as error:
            raise ValueError(f"the pattern {text!r} cannot be read: {str(error).lower()}") from error
        if not words or words[0] == MORE:
            raise ValueError(f"the pattern {text!r} must begin with the name of a command")
        if found := re.search(r"[;|&<>`\n]|\$\(", re.sub(r"'[^']*'|\"[^\"]*\"", "", text)):
            raise ValueError(
                f"the pattern {text!r} is for one command: write one pattern for each, without {found[0]!r}"
            )
        return cls(text, words)

    def allows(self, command: Command) -> bool:
        """Return true if the pattern surely matches the whole command.

        `*` never matches an option. If the program is known, `...` matches harmless options only. Commands of
        `find -exec` are matched separately.
        """
        return self._allows(without_run_by_find(command), self._harmless())

    def refused(self, command: Command) -> str:
        """Return the word that `...` does not match, if the pattern matches otherwise; for messages."""
        known, command = self._harmless(), without_run_by_find(command)
        literal = literal_places(command)
        if self._allows(command, known) or not self._allows(command, {}, frozenset()):
            return ""
        if literal:
            return str(command[min(literal)])
        word = min(command[1:], key=lambda word: sum(one.covers(word) for one in known.values()))
        return "an unknown word" if word is None else word

    def _harmless(self) -> dict[int, Harmless]:
        """Return the harmless options for each `...` by position; a missing position allows any word."""
        known = {at: harmless_pattern(self.words, at) for at, word in enumerate(self.words) if word == MORE}
        return {at: one for at, one in known.items() if one is not None}

    def _allows(
        self, command: Command, known: Mapping[int, Harmless], literal: frozenset[int] | None = None
    ) -> bool:
        literal = literal_places(command) if literal is None else literal

        def fits(at: int, place: int, word: str | None) -> bool:
            pattern = self.words[at]
            if place in literal:
                return pattern == word
            if pattern == MORE:
                return at not in known or known[at].covers(word)
            return (
                word is not None
                and fnmatchcase(word, pattern)
                and (pattern.startswith("-") or not word.startswith("-"))
            )

        reached = _skippable_places(self.words, {0})
        for place, word in enumerate(command):
            fitting = {at for at in reached if at < len(self.words) and fits(at, place, word)}
            reached = _skippable_places(
                self.words, {at if self.words[at] == MORE else at + 1 for at in fitting}
            )
        return len(self.words) in reached

    def concerns(self, command: Command) -> Match:
        """Return whether the pattern matches or may match the command, whatever words follow.

        Folder, version and case of the program's name are ignored, as are options before and between the
        words. Options of the pattern match anywhere, also joined or abbreviated.
        """
        return max(
            _concerns(pattern, one) for pattern in _patterns(self.words) for one in command_readings(command)
        )


@lru_cache(maxsize=256)
def _patterns(words: tuple[str, ...]) -> list[_Forbidden]:
    """Return the pattern in each of its spellings, and with each reading of a word behind an option: its
    value, or a word of its own.
    """
    found: list[_Forbidden] = []
    for one in command_spellings(words):
        known = tuple(word for word in one if word is not None)
        if len(known) == len(one):
            found += [_forbidden(known, valued=valued) for valued in (False, True)]
    return found


@dataclass(frozen=True, slots=True)
class _Forbidden:
    """A pattern taken apart: words have an order, options have none."""

    words: tuple[str, ...]
    options: tuple[tuple[str, str | None], ...]
    """Names with their values, `None` for any or none."""


def _forbidden(pattern: tuple[str, ...], *, valued: bool) -> _Forbidden:
    words: list[str] = []
    options: list[tuple[str, str | None]] = []
    for place, word in enumerate(pattern):
        if place == 0 or not _is_option(word):
            if (
                valued
                and words
                and _is_option(pattern[place - 1])
                and word != MORE
                and "=" not in pattern[place - 1]
            ):
                options[-1] = (options[-1][0], word)
            else:
                words.append(word)
        else:
            name, joined, value = word.partition("=")
            options.append((name, value if joined else None))
    return _Forbidden((*words, MORE), tuple(options))


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _concerns(pattern: _Forbidden, command: Command) -> Match:
    """Match a command for asking and denying rules: options with values may come between the words."""
    if _matches_to_end(pattern.words, command, unknown_anywhere=False):
        found = Match.YES
    elif None in command and _matches_to_end(pattern.words, command, unknown_anywhere=True):
        found = Match.MAYBE
    else:
        return Match.NO
    return min([found, *(_has_option(command, *option) for option in pattern.options)])


def _has_option(command: Command, name: str, value: str | None) -> Match:
    """Return whether an option is in the command: in full, abbreviated, or among joined letters."""
    known = [word for word in command[1:] if word is not None]
    letters = {
        letter
        for word in known
        if word[:1] == "-" and word[:2] != "--"
        for letter in word[1:].partition("=")[0]
    }
    letters |= {
        letter
        for word in known
        for letter, meant in MEANS.items()
        if len(word) > 2 and f"--{meant}".startswith(word.partition("=")[0])
    }
    letters |= {
        other for letter in letters & set(MEANS) for other, meant in MEANS.items() if meant == MEANS[letter]
    }
    # `-rf` is `-r -f` for most programs, but one option for `find` and its like.
    joined = name_of(command[0] or "") not in WORDS_BEHIND_ONE_DASH
    found = (
        joined
        and value is None
        and name[:2] != "--"
        and name.isascii()
        and name[1:].isalnum()
        and set(name[1:]) <= letters
    )
    found = found or (
        joined
        and value is None
        and any(f"--{meant}" == name and letter in letters for letter, meant in MEANS.items())
    )
    for word, after in pairwise([*known, ""]):
        given, has, text = word.partition("=")
        if not _same_option(name, given, joined=joined):
            if (
                value is not None
                and len(name) == 2
                and word[:1] == "-"
                and word[:2] != "--"
                and name[1] in word
            ):
                rest = word[word.index(name[1]) + 1 :]  # -XPOST
                found = found or fnmatchcase(rest or after, value)
            continue
        found = found or value is None or fnmatchcase(text if has else after, value)
    return Match.YES if found else Match.MAYBE if None in command else Match.NO


def _same_option(pattern: str, name: str, *, joined: bool) -> bool:
    """Return true if `name` is the option or an abbreviation of it, after one dash or two."""
    if not joined and pattern != "--":
        pattern, name = pattern.lstrip("-"), name.lstrip("-") if name.startswith("-") else "/"
    if fnmatchcase(name, pattern):
        return True
    literal = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return name.startswith("--") and len(name) > 2 and literal.startswith(name)


def _matches_to_end(pattern: tuple[str, ...], command: Command, *, unknown_anywhere: bool) -> bool:
    """Return whether the words of a command lead to the end of the pattern.

    After an option, `may` and `must` hold the positions of the pattern for which the next word may or must be
    the option's value.
    """
    name = name_of(command[0] or "")
    known, reached = PROGRAMS.get(name, Options()), _skippable_places(pattern, {0})
    may, must = set[int](), set[int]()
    for place, word in enumerate(command):
        after = may | must
        may, must = set(), set()
        for at in reached:
            wanted = pattern[at] if at < len(pattern) else ""
            if word is None:
                after |= (
                    set(range(at, len(pattern) + 1))
                    if unknown_anywhere
                    else ({at} if wanted == MORE else set())
                )
            elif place == 0:
                after |= {at + 1} if _same_program(wanted, word) else set()
            else:
                # `cargo +nightly build`: the toolchain is no word of the pattern.
                after |= (
                    {at}
                    if wanted == MORE or (at == 1 and (name in SEVERAL or word.startswith("+")))
                    else set()
                )
                after |= (
                    {at + 1} if _same_word(wanted, word, short=at == 1 and name in ABBREVIATES) else set()
                )
                if _is_option(word):
                    takes = known.takes_next(word) if at == 1 else False if "=" in word else None
                    (must if takes else after).add(at)
                    may |= {at} if takes is None else set()
        reached = _skippable_places(pattern, after)
    return len(pattern) in reached


def _same_word(wanted: str, word: str, *, short: bool) -> bool:
    return wanted != MORE and (
        fnmatchcase(word, wanted) or (short and word != "" and wanted.startswith(word))
    )


def _same_program(pattern: str, word: str) -> bool:
    pattern = pattern.casefold()
    return any(fnmatchcase(name, pattern) for name in (word.casefold(), word.rpartition("/")[2].casefold()))


def _skippable_places(pattern: tuple[str, ...], places: set[int]) -> set[int]:
    """Return the places, and those behind a `...` that takes no word."""
    found = set(places)
    for place in range(len(pattern)):
        if place in found and pattern[place] == MORE:
            found.add(place + 1)
    return found


_WITH_SUBCOMMANDS = frozenset(
    (
        "git hg cargo npm pnpm yarn go pip pip3 docker podman kubectl gh brew apt conda mamba ruff dotnet "
        "terraform poetry systemctl"
    ).split()
)
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")


def offered_pattern(call: Call) -> str:
    """Return a pattern such as `git diff ...` for a line that is one plain command; empty for other lines.

    Lines with operators, substitutions or redirections get none, nor do programs without a sub-command.
    """
    text = call.args.get(COMMAND)
    line = read_line(text) if isinstance(text, str) else None
    if line is None or line.unclear or len(line.commands) != 1 or re.search(r"[;|&$()<>`\n]", str(text)):
        return ""
    program, *rest = line.commands[0]
    if program not in _WITH_SUBCOMMANDS or not rest or not _SUBCOMMAND.fullmatch(rest[0] or ""):
        return ""
    pattern = f"{shlex.join([program, str(rest[0])])} {MORE}"
    # A pattern is offered only if it would allow this very call.
    return pattern if CommandPattern.parse(pattern).allows(line.commands[0]) else ""


def pattern_covers(pattern: CommandPattern, call: Call) -> bool:
    """Return true if the command line of `call` is clear and `pattern` matches each of its commands."""
    text = call.args.get(COMMAND)
    line = read_line(text) if isinstance(text, str) else None
    return (
        line is not None
        and not line.unclear
        and bool(line.commands)
        and all(pattern.allows(command) for command in line.commands)
    )
