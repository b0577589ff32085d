"""Resolution of imports and links to files of a folder."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from kestrel_lab.language.grammars import language_of


def resolve_import(path: str, kind: str, target: str, names: str, known: frozenset[str]) -> list[str]:
    """Return the files of the folder that an import or a link refers to; none for what is elsewhere."""
    here = posixpath.dirname(path)
    if kind == "link":
        options = [posixpath.join(here, target), target.lstrip("/")]
        return _first_known(options, ("", ".md", ".rst", ".txt", "/index.md", "/README.md"), known)
    language = language_of(path)
    if language == "python":
        return _python(here, target, names.split(), known)
    if language in {"javascript", "typescript", "tsx"}:
        endings = ("", ".ts", ".tsx", ".js", ".jsx", ".mjs", "/index.ts", "/index.tsx", "/index.js")
        # TypeScript is imported under the name of what it is compiled to.
        plain = re.sub(r"\.[cm]?jsx?$", "", target)
        return (
            _first_known([posixpath.join(here, each) for each in (target, plain)], endings, known)
            if target.startswith(".")
            else []
        )
    if language in {"c", "c++"}:
        found = _first_known([posixpath.join(here, target), target], ("",), known)
        return found or [each for each in known if each.endswith("/" + target)][:1]
    if language == "go":
        return _go_package_files(target, known)
    if language == "rust":
        return _rust(path, target, known)
    if language == "java":
        # The latter for what is imported from a class.
        options = [
            target.replace(".", "/"),
            target.rpartition(".")[0].replace(".", "/"),
        ]
        return next(
            (
                [each]
                for option in options
                for each in sorted(known)
                if each == f"{option}.java" or each.endswith(f"/{option}.java")
            ),
            [],
        )
    return []


def _go_package_files(target: str, known: frozenset[str]) -> list[str]:
    """Return the files of a package: the folder its address ends with, after any prefix as module name."""
    pieces = target.split("/")
    modules = ["", *(posixpath.dirname(each) for each in known if posixpath.basename(each) == "go.mod")]
    for start in range(1, len(pieces)):
        folders = {posixpath.join(module, *pieces[start:]) for module in modules}
        if found := [each for each in known if each.endswith(".go") and posixpath.dirname(each) in folders]:
            return sorted(each for each in found if not each.endswith("_test.go"))
    return []


def _rust(path: str, target: str, known: frozenset[str]) -> list[str]:
    """The file of a module: as far as the names of a `use` lead, from the file's own folder upwards."""
    here, stem = posixpath.dirname(path), posixpath.basename(path).removesuffix(".rs")
    own = here if stem in {"mod", "lib", "main"} else posixpath.join(here, stem)
    pieces = [piece for piece in target.split("::") if piece]
    roots = [own, here, *_parent_paths(here, "")]
    while pieces and pieces[0] in {"crate", "self", "super"}:
        roots = roots[1:] if pieces[0] == "super" else roots
        pieces = pieces[1:]
    for end in range(len(pieces), 0, -1):
        if found := _first_known(
            [posixpath.join(root, *pieces[:end]) for root in roots], (".rs", "/mod.rs"), known
        ):
            return found if found != [path] else []
    return []


def _python(here: str, target: str, names: list[str], known: frozenset[str]) -> list[str]:
    dots = len(target) - len(target.lstrip("."))
    rest = target[dots:].replace(".", "/")
    if dots:
        place = here
        for _ in range(dots - 1):
            place = posixpath.dirname(place)
        roots = [posixpath.join(place, rest) if rest else place]
    else:
        roots = [rest, f"src/{rest}", posixpath.join(here, rest), *_parent_paths(here, rest)]
    found: list[str] = []
    for root in roots:
        inner = [
            each
            for name in names
            for each in _first_known([posixpath.join(root, name)], (".py", ".pyi", "/__init__.py"), known)
        ]
        found = inner or _first_known([root], (".py", ".pyi", "/__init__.py"), known)
        if found:
            break
    return found


def _parent_paths(here: str, rest: str) -> Iterator[str]:
    while here:
        here = posixpath.dirname(here)
        yield posixpath.join(here, rest)


def _first_known(options: list[str], endings: tuple[str, ...], known: frozenset[str]) -> list[str]:
    for option in options:
        for ending in endings:
            if (found := posixpath.normpath(option) + ending) in known:
                return [found]
    return []
