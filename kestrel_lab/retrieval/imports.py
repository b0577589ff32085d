"""Which files of a folder an import or a link means."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from kestrel_lab.retrieval.grammars import language_of


def resolved(path: str, kind: str, target: str, names: str, known: frozenset[str]) -> list[str]:
    """The files of the folder that an import or a link means; none for what is elsewhere."""
    here = posixpath.dirname(path)
    if kind == "link":
        options = [posixpath.join(here, target), target.lstrip("/")]
        return _first(options, ("", ".md", ".rst", ".txt", "/index.md", "/README.md"), known)
    language = language_of(path)
    if language == "python":
        return _python(here, target, names.split(), known)
    if language in {"javascript", "typescript", "tsx"}:
        endings = ("", ".ts", ".tsx", ".js", ".jsx", ".mjs", "/index.ts", "/index.tsx", "/index.js")
        return _first([posixpath.join(here, target)], endings, known) if target.startswith(".") else []
    if language in {"c", "c++"}:
        found = _first([posixpath.join(here, target), target], ("",), known)
        return found or [each for each in known if each.endswith("/" + target)][:1]
    tail = target.replace("::", "/").replace(".", "/") + {"java": ".java", "rust": ".rs"}.get(language, "")
    return sorted(each for each in known if each.endswith("/" + tail) or each == tail)[:1]


def _python(here: str, target: str, names: list[str], known: frozenset[str]) -> list[str]:
    dots = len(target) - len(target.lstrip("."))
    rest = target[dots:].replace(".", "/")
    if dots:
        place = here
        for _ in range(dots - 1):
            place = posixpath.dirname(place)
        roots = [posixpath.join(place, rest) if rest else place]
    else:
        roots = [rest, f"src/{rest}", posixpath.join(here, rest), *_above(here, rest)]
    found: list[str] = []
    for root in roots:
        inner = [each for name in names for each in _first([posixpath.join(root, name)], (".py", ".pyi", "/__init__.py"), known)]
        found = inner or _first([root], (".py", ".pyi", "/__init__.py"), known)
        if found:
            break
    return found


def _above(here: str, rest: str) -> Iterator[str]:
    while here:
        here = posixpath.dirname(here)
        yield posixpath.join(here, rest)


def _first(options: list[str], endings: tuple[str, ...], known: frozenset[str]) -> list[str]:
    for option in options:
        for ending in endings:
            if (found := posixpath.normpath(option) + ending) in known:
                return [found]
    return []
