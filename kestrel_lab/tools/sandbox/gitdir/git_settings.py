"""Settings of a repository: which of them git's own plain work writes, and with which values.

A setting that is not listed may name a program, a file of further settings, or where pushes go. It is
refused, as is a file that cannot be read like git reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SECTION = re.compile(r'\[\s*([A-Za-z0-9.-]+)(?:\s+"((?:[^"\\\n]|\\.)*)")?\s*\]')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*(=?)[ \t]*")
_BOOLEAN = r"true|false|yes|no|on|off|0|1|"
_REMOTE_NAME = r"(?!-)[\w][\w./-]*|\."
_ADDRESS = r"(?!-)(?![\w+.-]*::)(?:(?:https?|ssh|git|file|git\+ssh)://(?!-)[^\s\x00-\x1f]+|[^\s:\x00-\x1f-][^\x00-\x1f]*)"
"""An address or a path; an address with two colons (`ext::`) names a program."""
_PLAIN: Final = {
    r"core\.(?:filemode|logallrefupdates|ignorecase|precomposeunicode|symlinks)": _BOOLEAN,
    r"core\.sparsecheckout(?:cone)?": _BOOLEAN,
    r"core\.repositoryformatversion": r"[01]",
    r"core\.bare": _BOOLEAN,
    r"extensions\.(?:worktreeconfig|noop)": _BOOLEAN,
    r"extensions\.objectformat": r"sha1|sha256",
    r"extensions\.refstorage": r"files|reftable",
    r"extensions\.partialclone": _REMOTE_NAME,
    r"index\.sparse": _BOOLEAN,
    r"user\.(?:name|email)": r"[^\x00-\x1f]*",
    r"init\.defaultbranch": r"[\w./-]+",
    r"remote\.[^\x00-\x1f]+\.(?:url|pushurl)": _ADDRESS,
    r"remote\.[^\x00-\x1f]+\.(?:fetch|push)": r"\^?\+?(?!-)[\w./*:@-]+",
    r"remote\.[^\x00-\x1f]+\.(?:mirror|prune|prunetags|promisor|skipdefaultupdate|skipfetchall)": _BOOLEAN,
    r"remote\.[^\x00-\x1f]+\.tagopt": r"--(?:no-)?tags",
    r"remote\.[^\x00-\x1f]+\.partialclonefilter": r"[\w:=.+/-]+",
    r"branch\.[^\x00-\x1f]+\.remote": _REMOTE_NAME,
    r"branch\.[^\x00-\x1f]+\.merge": r"refs/[^\x00-\x20]+",
    r"branch\.[^\x00-\x1f]+\.rebase": r"true|false|merges|interactive",
    r"branch\.[^\x00-\x1f]+\.description": r"[^\x00]*",
    r"submodule\.active": r"[^\x00-\x1f]*",
    r"submodule\.[^\x00-\x1f]+\.active": _BOOLEAN,
    r"submodule\.[^\x00-\x1f]+\.url": _ADDRESS,
    r"submodule\.[^\x00-\x1f]+\.branch": r"[\w./-]+",
    r"submodule\.[^\x00-\x1f]+\.update": r"checkout|rebase|merge|none",
}
_SEQUENCER: Final = {
    r"options\.(?:no-commit|edit|allow-empty|allow-empty-message|keep-redundant-commits|drop-redundant-commits|signoff"
    r"|record-origin|allow-ff|allow-rerere-auto)": _BOOLEAN,
    r"options\.mainline": r"\d+",
    r"options\.strategy": r"ort|recursive|resolve|octopus|ours|subtree",
    r"options\.strategy-option": r"[a-z][a-z-]*(?:=[\w./%-]+)?",
    r"options\.gpg-sign": r"[\w@.<> +-]*",
    r"options\.default-msg-cleanup": r"[a-z]+",
}
_TABLES: Final = tuple(
    tuple((re.compile(key, re.DOTALL), re.compile(value)) for key, value in table.items())
    for table in (_PLAIN, _SEQUENCER)
)
_LASTING: Final = re.compile(
    r"(?:remote\..+\.(?:url|pushurl|push|mirror)|branch\..+\.remote|core\.bare)", re.DOTALL
)
"""Settings that say where work goes: what was there before may only be removed with all of its section."""
_UNREADABLE: Final = "a setting that cannot be read"


def refused_settings(
    before: bytes, after: bytes, *, sequencer: bool = False, worktree: str = ""
) -> list[str]:
    """Return the names of settings that differ and that git's plain work does not write like that.

    `worktree` is the value that the setting of that name may have.
    """
    try:
        old, new = read_settings(before), read_settings(after)
    except ValueError:
        return [] if before == after else [_UNREADABLE]
    if old == new and before != after:
        return ["comments or empty sections"]
    changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
    return [key for key in changed if not _is_plain_change(key, old, new, sequencer, worktree)]


def _is_plain_change(
    key: str, old: Mapping[str, list[str]], new: Mapping[str, list[str]], sequencer: bool, worktree: str
) -> bool:
    was, values = old.get(key, []), new.get(key, [])
    if key == "core.worktree":
        return bool(worktree) and values in ([], [worktree])
    if _LASTING.fullmatch(key) and was and values:
        return False
    if key.endswith(".pushurl") and f"{key.removesuffix('.pushurl')}.url" in old:
        return False
    for name, value in _TABLES[sequencer]:
        if name.fullmatch(key):
            return all(value.fullmatch(one) for one in values if one not in was)
    return False


def read_settings(content: bytes) -> dict[str, list[str]]:
    """Return the values of each setting by `section.subsection.key`, section and key in lower case.

    Raises `ValueError` for a file that git would not read, or that has a subsection in the old form.
    """
    text = content.decode("utf-8")
    if "\0" in text:
        raise ValueError("no text")
    found: dict[str, list[str]] = {}
    section, position = "", 0
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    while position < len(text):
        if text[position] in " \t\n":
            position += 1
        elif text[position] in "#;":
            position = _line_end(text, position)
        elif header := _SECTION.match(text, position):
            name, below = header[1].lower(), header[2]
            if "." in name:
                raise ValueError("a subsection in the old form")
            section = name if below is None else name + "." + _ESCAPED.sub(r"\1", below)
            position = header.end()
        elif section and (key := _KEY.match(text, position)):
            value, position = _read_value(text, key.end()) if key[2] else ("", _bare_end(text, key.end()))
            found.setdefault(f"{section}.{key[1].lower()}", []).append(value)
        else:
            raise ValueError("neither a section nor a setting")
    return found


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _bare_end(text: str, position: int) -> int:
    """Return the end of a setting without a value; it ends its line, or a comment does."""
    end = _line_end(text, position)
    if text[position:end].strip() and text[position] not in "#;":
        raise ValueError("a setting without a sign of equality")
    return end


def _read_value(text: str, position: int) -> tuple[str, int]:
    """Return the value that begins at `position`, and the position behind it."""
    value, blanks, quoted = "", "", False
    while position < len(text) and text[position] != "\n":
        sign = text[position]
        position += 1
        if sign in " \t" and not quoted:
            blanks += sign
            continue
        if sign in "#;" and not quoted:
            return value, _line_end(text, position)
        value, blanks = value + (blanks if value else ""), ""
        if sign == '"':
            quoted = not quoted
        elif sign == "\\":
            after = text[position : position + 1]
            if after not in ("n", "t", "b", '"', "\\", "\n"):
                raise ValueError("an unknown escape")
            value += {"n": "\n", "t": "\t", "b": "\b", "\n": ""}.get(after, after)
            position += 1
        else:
            value += sign
    if quoted:
        raise ValueError("an open quote")
    return value, position
