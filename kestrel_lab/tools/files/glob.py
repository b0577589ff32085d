"""Glob patterns such as `src/**/*.py`, as regular expressions."""

import functools
import re

_BRACES = re.compile(r"\{([^{}]*)\}")
_REPEATED = re.compile(r"(?<![^/])(?:\*\*/)+")
_TOKENS = re.compile(r"\*+|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


@functools.lru_cache(maxsize=256)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for whole relative paths.

    `*` and `?` stay within a name, `**/` is any number of directories, `[abc]` one character, `{a,b}` either.
    A pattern without a slash is for names at any depth. Raises `ValueError` for one that cannot be read.
    """
    plain = pattern.removeprefix("./")
    expressions = [_translate(option if "/" in option else f"**/{option}") for option in _options(plain)]
    try:
        return re.compile("|".join(f"(?:{expression})" for expression in expressions), re.DOTALL)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} cannot be read: {error}") from None


def _options(pattern: str, most: int = 256) -> list[str]:
    """`pattern` with its innermost braces spelled out, again and again."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        option = waiting.pop()
        if len(done) + len(waiting) >= most:
            raise ValueError(f"the pattern {pattern!r} expands to more than {most} patterns")
        if found := _BRACES.search(option):
            waiting += [
                option[: found.start()] + choice + option[found.end() :] for choice in found[1].split(",")
            ]
        else:
            done.append(option)
    return done


def _translate(pattern: str) -> str:
    *folders, name = _REPEATED.sub("**/", pattern).split("/")
    above = "".join("(?:[^/]+/)*" if folder == "**" else f"{_translate_name(folder)}/" for folder in folders)
    return above + (".*" if name == "**" else _translate_name(name))


def _translate_name(pattern: str) -> str:
    """Translate a name; each `*` is minimal and atomic, so that many stars stay fast."""
    pieces = [""]
    for token in _TOKENS.findall(pattern):
        if token.startswith("*"):
            pieces.append("")
        else:
            pieces[-1] += _token(token)
    first, *rest = pieces
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>[^/]*?{piece})" for piece in middle) + f"[^/]*{last}"


def _token(token: str) -> str:
    if token == "?":  # a piece of a pattern  # noqa: S105
        return "[^/]"
    if len(token) == 1:
        return re.escape(token)
    inner = token[1:-1].replace("\\", "\\\\").replace("[", "\\[")
    return f"[^/{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
