"""Patterns of commands: the words of a command, each with `*` and `?`, and `...` for any further words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from fnmatch import fnmatchcase

from kestrel_lab.tools.rules.wrappers import Command, program_of

MORE = "..."


class Match(IntEnum):
    """Whether a pattern fits something of which not all may be known."""

    NO = 0
    MAYBE = 1
    YES = 2


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A pattern such as `git diff ...`, word by word; never a part of a word.

    `git status` is these two words. `*`, `?` and `[ab]` stand for signs within a word, `...` for any number of words.
    Words with blanks are quoted as in a shell.
    """

    text: str
    words: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> CommandPattern:
        """Read a pattern; raises `ValueError` for one that could never be a single command."""
        try:
            words = tuple(MORE if word == "…" else word for word in shlex.split(text, posix=True))
        except ValueError as error:
            msg = f"the pattern {text!r} cannot be read: {str(error).lower()}"
            raise ValueError(msg) from error
        if not words or words[0] == MORE:
            msg = f"the pattern {text!r} must begin with the name of a command"
            raise ValueError(msg)
        if found := re.search(r"[;|&<>`\n]|\$\(", re.sub(r"'[^']*'|\"[^\"]*\"", "", text)):
            msg = f"the pattern {text!r} is for one command: write one pattern for each, without {found[0]!r}"
            raise ValueError(msg)
        return cls(text, words)

    def allows(self, command: Command) -> bool:
        """Whether the whole command is surely what the pattern describes; a `*` alone is no option, which begins with `-`."""
        return _fits(self.words, command, _strict, unknown_anywhere=False)

    def concerns(self, command: Command) -> Match:
        """Whether the command is, or may be, what the pattern describes, whatever words follow.

        The program's folder and the case of its name make no difference.
        """
        words = (*self.words, MORE)
        if not _fits(words, command, _broad, unknown_anywhere=True):
            return Match.NO
        return Match.YES if _fits(words, command, _broad, unknown_anywhere=False) else Match.MAYBE


def _strict(pattern: str, word: str, _place: int) -> bool:
    return fnmatchcase(word, pattern) and (pattern.startswith("-") or not word.startswith("-"))


def _broad(pattern: str, word: str, place: int) -> bool:
    if place == 0:
        pattern = pattern.casefold()
        return fnmatchcase(word.casefold(), pattern) or fnmatchcase(program_of(word).casefold(), pattern)
    return fnmatchcase(word, pattern)


def _fits(pattern: tuple[str, ...], command: Command, same: Callable[[str, str, int], bool], *, unknown_anywhere: bool) -> bool:
    """Match words against a pattern, a row of reachable places of the pattern per word.

    An unknown word stands for any number of words: with `unknown_anywhere` for those that fit, else only `...` takes it.
    """
    reached = _skipped(pattern, {0})
    for place, word in enumerate(command):
        after: set[int] = set()
        for at in reached:
            if word is None and unknown_anywhere:
                after |= set(range(at, len(pattern) + 1))
            elif at < len(pattern) and pattern[at] == MORE:
                after.add(at)
            elif word is not None and at < len(pattern) and same(pattern[at], word, place):
                after.add(at + 1)
        reached = _skipped(pattern, after)
        if not reached:
            return False
    return len(pattern) in reached


def _skipped(pattern: tuple[str, ...], places: set[int]) -> set[int]:
    """The places, and those behind a `...` that takes no word."""
    found = set(places)
    for place in range(len(pattern)):
        if place in found and pattern[place] == MORE:
            found.add(place + 1)
    return found
