"""Checks of how code hangs together: what a class derives from, what can be passed to a function, what a list says a file has."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from typing import Final

from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.claims import Said
from kestrel_lab.verification.code.symbols import Definition
from kestrel_lab.verification.issues import Issue, issue
from kestrel_lab.verification.prose.introduced_names import names_bound
from kestrel_lab.verification.prose.names import Name, code_in, files_in
from kestrel_lab.verification.prose.stance import PROPOSES, covered
from kestrel_lab.verification.rules.code_and_commands import PYTHON, python_of
from kestrel_lab.verification.subject import Subject

_DERIVES: Final = re.compile(
    r"`(?P<name>[A-Za-z_][\w.]*)`[^`.;:]{0,30}?\b(?:(?:direct |thin |plain )?subclass(?:es)? of|derives? (?:\w+ )?from|inherits? (?:\w+ )?from|extends|erbt von|hérite de|hereda de)\s+(?:the )?`(?P<base>[A-Za-z_][\w.]*)`",
    re.IGNORECASE,
)
_CLASS: Final = re.compile(r"^class (?P<name>\w+)\((?P<bases>[\w., ]+)\):?$")
_ITEM: Final = re.compile(r"^`(?:(?P<name>[A-Za-z_]\w{3,})(?:\(\))?`[.,;]?$|--(?P<option>[a-z][\w-]{2,})`)")


def bases_hold(subject: Subject) -> Iterator[Issue]:
    """A class that is said to derive from another does, where the workspace defines both."""
    for said in subject.paid():
        if said.kind == "code":
            continue
        pairs = [(match["name"], match["base"], match.start("name")) for match in _DERIVES.finditer(said.text)]
        for code, at in code_in(said):
            if match := _CLASS.match(code):
                pairs += [(match["name"], base.strip(), at + match.start("name")) for base in match["bases"].split(",") if base.strip()]
        for name, base, at in pairs:
            if subject.stance(said, Name(name, at, at + len(name))) == "asserted" and _derives(subject, name, base) is False:
                known = [", ".join(one.bases) or "nothing" for one in _classes(subject, name)]
                yield issue(
                    "critical",
                    said.text,
                    f"{name} does not derive from {base} but from {known[0]}",
                    "read the class and say what it derives from",
                )


def _classes(subject: Subject, name: str) -> list[Definition]:
    return [one for one in subject.symbols.defined(name.rpartition(".")[2]) if one.kind == "class"]


def _derives(subject: Subject, name: str, base: str) -> bool | None:
    """Whether a class of that name has the base, directly or not; `None` where the workspace does not tell."""
    wanted, known = base.rpartition(".")[2], _classes(subject, name)
    if not known or not (_classes(subject, wanted) or wanted in _BUILT_IN):
        return None
    seen: set[str] = set()
    left = [parent.rpartition(".")[2] for one in known for parent in one.bases]
    while left:
        parent = left.pop()
        if parent == wanted:
            return True
        if parent in seen:
            continue
        seen.add(parent)
        parents = _classes(subject, parent)
        if (
            not parents
            and any(one.kind == "name" for one in subject.symbols.defined(parent))
            and _classes(subject, wanted)
            and parent not in _BUILT_IN
        ):
            continue  # imported from elsewhere: it cannot derive from what is here
        left += [grand.rpartition(".")[2] for one in parents for grand in one.bases]
        left += [grand.__name__ for grand in _BUILT_IN[parent].__mro__[1:]] if not parents and parent in _BUILT_IN else []
    return False


_BUILT_IN: Final = {name: value for name, value in vars(__import__("builtins")).items() if isinstance(value, type)}


def calls_fit(subject: Subject) -> Iterator[Issue]:
    """What is passed by name to a function or class of the workspace is one of its parameters."""
    for said in subject.paid():
        if said.kind != "code":
            for code, at in code_in(said):
                tree = _parsed(code) if code.endswith(")") and "=" in code else None
                call = tree.body[0].value if tree is not None and len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr) else None
                if isinstance(call, ast.Call) and subject.stance(said, Name(ast.unparse(call.func), at, at + len(code))) == "asserted":
                    yield from _misfit(subject, said.text, call, ast.unparse(call.func))
        elif (
            said.language in PYTHON and not PROPOSES.search(covered(said.lead)) and (tree := _parsed(python_of(textwrap.dedent(said.text))))
        ):
            taken = {
                alias.asname or alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and _is_home(subject, node.module)
                for alias in node.names
            }
            bound = set(names_bound(tree)) | {
                alias.asname or alias.name
                for node in ast.walk(tree)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                name = ast.unparse(call.func)
                if (
                    name in taken
                    or (name not in bound and _is_own(subject, name))
                    or (_is_home(subject, name.rpartition(".")[0]) and name.count(".") == 1)
                ):
                    yield from _misfit(subject, ast.unparse(call), call, name)


def _is_own(subject: Subject, name: str) -> bool:
    """Whether a name that an example uses and does not import can only be the workspace's: no plain word, and at the top of a file of its."""
    telling = name.isidentifier() and name not in _BUILT_IN and re.search(r"[a-z]_[a-z]|[a-z][A-Z]", name)
    return bool(telling) and any(subject.symbols.at_top(one) for one in subject.symbols.defined(name))


def _is_home(subject: Subject, module: str | None) -> bool:
    return (module or "").partition(".")[0].lower() in subject.home - {""}


def _parsed(code: str) -> ast.Module | None:
    try:
        return tree_of(code)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _misfit(subject: Subject, place: str, call: ast.Call, name: str) -> Iterator[Issue]:
    holder, _, last = name.rpartition(".")
    known = [one for one in subject.symbols.defined(last) if one.kind != "name"]
    if holder and (classes := _classes(subject, holder)):
        known = [one.members[last] for one in classes if last in one.members]
    elif holder and not _is_home(subject, holder):
        return  # a variable of whatever kind
    elif tops := [one for one in known if subject.symbols.at_top(one)]:
        known = tops
    takes = [_parameters(subject, one) for one in known]
    if not takes or any(one is None for one in takes) or last in subject.introduced:
        return
    for word in (one.arg for one in call.keywords if one.arg):
        if not any(word in one for one in takes if one is not None) and word not in subject.introduced:
            yield issue("critical", place, f"{name} takes no {word}", f"pass what it takes: {', '.join(sorted(takes[0] or ()))}")


def _parameters(subject: Subject, one: Definition) -> frozenset[str] | None:
    """What can be passed by name; `None` where that cannot be told."""
    if one.kind == "function":
        return None if one.open or any(child.open for child in one.members.values() if child.kind == "class") else frozenset(one.arguments)
    if one.kind != "class" or one.open:
        return None
    if made := one.members.get("__init__") or one.members.get("__new__"):
        return _parameters(subject, made)
    parents = [found for base in one.bases for found in _classes(subject, base)]
    return _parameters(subject, parents[0]) if len(one.bases) == 1 and len(parents) == 1 else None


def lists_hold(subject: Subject) -> Iterator[Issue]:
    """In a list of what a file has, no item is nowhere in the workspace while the others are in that file."""
    groups: dict[str, list[tuple[Said, str]]] = {}
    for said in subject.paid():
        if said.lead and (match := _ITEM.match(said.text)):
            groups.setdefault(said.lead, []).append((said, match["name"] or match["option"]))
    for lead, items in groups.items():
        texts = [subject.files.read(path) or "" for file in files_in(Said(text=lead, at=0)) for path in subject.files.named(file.text)]
        there = [name for _, name in items if any(name in text for text in texts)]
        for said, name in items:
            if (
                len(there) >= 2
                and not subject.names(name)
                and subject.stance(said, Name(name, 1, 1 + len(name))) == "asserted"
                and subject.files.whole
            ):
                yield issue(
                    "critical", f"{lead} {said.text}", f"nothing here is called {name}, while {', '.join(there)} are there", "leave it out"
                )
