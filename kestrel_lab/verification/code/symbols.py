"""Where names are defined in the Python files of a workspace, and in packages that are installed; nothing is imported or run."""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from kestrel_lab.language.python_ast import tree_of
from kestrel_lab.verification.code.bindings import Binding, bindings
from kestrel_lab.verification.work_limit import PARSED
from kestrel_lab.verification.workspace_files import Files, places

Answer = Literal["yes", "no", "unknown"]
BUILTINS: Final = frozenset(dir(builtins))
_MOST_DEFINING: Final = 12
"""Files that define a name from which on it is too common, as `__init__` is, to say where it is."""
_MOST_PARSED: Final = 4
_TRANSPARENT: Final = frozenset(
    {"staticmethod", "classmethod", "overload", "contextmanager", "asynccontextmanager", "abstractmethod", "override", "final"}
)
"""Decorators that leave what can be passed as it is."""
_OF_ALL: Final = frozenset((*dir(object), *dir(type), "__dict__", "__slots__", "__annotations__", "__module__", "__name__"))
"""Members that every class has."""


@dataclass(slots=True)
class Definition:
    """A class or function, or a module as one."""

    name: str
    kind: Literal["class", "function", "module", "name"]
    path: str
    first: int
    last: int
    members: dict[str, Definition] = field(default_factory=dict)
    bases: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    firsts: tuple[int, ...] = ()
    """Where it is defined, if more than once: overloads, setters."""
    open: bool = False
    """Whether it may have members that cannot be read off: `__getattr__`, star imports, attributes set from elsewhere."""


class Symbols:
    """The names that the Python files of a workspace define."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._modules: dict[str, Definition | None] = {}
        self._defined: dict[str, list[Definition]] = {}
        self._bound: dict[str, dict[str, list[Binding]]] = {}

    def module(self, path: str) -> Definition | None:
        """The names of one file; `None` if it cannot be parsed."""
        if path not in self._modules:
            text = (self._files.read(path) or "") if path.endswith((".py", ".pyi")) else ""
            self._files.work.spend(PARSED * len(text))
            self._modules[path] = parsed(text, path) if path.endswith((".py", ".pyi")) else None
        return self._modules[path]

    def bound(self, path: str) -> dict[str, list[Binding]]:
        """What the names of one file are bound to."""
        if path not in self._bound:
            text = self._files.read(path) or ""
            self._files.work.spend(PARSED * len(text))
            self._bound[path] = bindings(text, path)
        return self._bound[path]

    def defined(self, name: str) -> list[Definition]:
        """Everything called `name`, at any depth, in the whole workspace."""
        if name not in self._defined:
            found: list[Definition] = []
            for path in self._defining(name):
                if (module := self.module(path)) is not None:
                    found += _search(module, name)
            self._defined[name] = found
        return self._defined[name]

    def at_top(self, one: Definition) -> bool:
        """Whether it is defined at the top of its file."""
        module = self.module(one.path)
        return module is not None and module.members.get(one.name) is one

    def _defining(self, name: str) -> list[str]:
        """The files that define a class or function of that name, and some of those that set or import it: parsing takes long."""
        kinds = {
            path: set(_uses(name, self._files.read(path) or "")) for path in self._files.having(name) if path.endswith((".py", ".pyi"))
        }
        first = [path for path, found in kinds.items() if "defined" in found]
        if len(first) > _MOST_DEFINING:
            return []
        return first + [path for path, found in kinds.items() if found == {"set"}][:_MOST_PARSED]

    def resolves(self, dotted: str) -> Answer:
        """Whether `Class.method`, `module.Class.method` or `package.module` is there.

        `unknown` for what begins with a name that is no class and no module here, as a variable does.
        """
        first, *rest = dotted.split(".")
        holders = [found for found in self.defined(first) if found.kind == "class" and rest]
        answers = [self._has(holder, rest, ()) for holder in holders]
        if answers and not any(self.at_top(holder) for holder in holders):  # a class inside of a function: the name may be a variable
            return "yes" if "yes" in answers else "unknown"
        if not answers or "yes" not in answers:
            answers += self._by_module(dotted.split("."))
        return "yes" if "yes" in answers else "unknown" if "unknown" in answers or not answers else "no"

    def _by_module(self, names: list[str]) -> list[Answer]:
        """What the modules say that the beginning of the name may mean."""
        for length in range(len(names), 0, -1):
            base = "/".join(names[:length])
            if paths := [path for end in (".py", "/__init__.py", ".pyi") for path in self._modules_named(base + end)]:
                rest = names[length:]
                if not rest:
                    return ["yes"]
                texts = [self._files.read(path) or "" for path in paths]
                if not any(next(places(rest[0], text), None) is not None or _DYNAMIC.search(text) for text in texts) and not any(
                    self._modules_named(f"{base}/{rest[0]}{end}") for end in (".py", "/__init__.py", ".pyi")
                ):
                    return ["no"]
                modules = [self.module(path) for path in paths]
                answers: list[Answer] = ["unknown" if module is None else self._has(module, rest, ()) for module in modules]
                folder = self._files.exists(f"{base}/{rest[0]}") or any(self._modules_named(f"{base}/{rest[0]}.py"))
                return ["yes"] if folder else answers
        return installed(names)

    def _modules_named(self, path: str) -> tuple[str, ...]:
        return tuple(found for found in self._files.named(path) if found.endswith(path)) or (
            (path.partition("/")[2],)
            if path.startswith(f"{self._files.root.name}/") and path.partition("/")[2] in self._files.paths
            else ()
        )

    def _has(self, holder: Definition, rest: list[str], seen: tuple[str, ...]) -> Answer:
        if not rest:
            return "yes"
        name, *more = rest
        if name in holder.members:
            member = holder.members[name]
            return "yes" if not more else "unknown" if member.kind == "name" else self._has(member, more, ())
        if name in _OF_ALL or (holder.kind == "function" and name in holder.arguments):
            return "yes"
        if holder.kind == "function":
            return "unknown"
        answers: list[Answer] = []
        for base in holder.bases:
            if isinstance(builtin := getattr(builtins, base, None), type):
                answers.append("yes" if hasattr(builtin, name) else "no")
                continue
            known = [found for found in self.defined(base.rpartition(".")[2]) if found.kind == "class"] if base not in seen else []
            if base in ("object", "Generic", "Protocol", "ABC", "typing.Generic", "typing.Protocol"):
                continue
            answers += [self._has(found, rest, (*seen, base)) for found in known] or [
                "no" if base in seen else self._inherits(holder.path, base, name)
            ]
        if "yes" in answers:
            return "yes"
        return "unknown" if holder.open or "unknown" in answers else "no"

    def _inherits(self, path: str, base: str, name: str) -> Answer:
        """Whether a base that is imported from an installed package has the member."""
        origin = _origin(self._files.read(path) or "", base)
        return next(iter(installed([*origin, name])), "unknown") if len(origin) > 1 else "unknown"


_BEFORE: Final = 400
"""Characters of a line that are looked at before a name."""
_SET: Final = re.compile(r"\s*(?::[^=\n]*)?=(?!=)")


def _uses(name: str, text: str) -> Iterator[Literal["defined", "set"]]:
    """Where a text defines the name, or sets or imports it, as far as the line alone tells."""
    for at in places(name, text):
        before = text[max(at - _BEFORE, text.rfind("\n", 0, at) + 1) : at].split()
        last = before[-1] if before else ""
        if last in ("def", "class"):
            yield "defined"
            return
        alone = not before and text[at + len(name) : at + len(name) + 80].partition("\n")[0].strip() in ("", ",")
        if alone or "import" in before or last in ("as", "for") or _SET.match(text, at + len(name)):
            yield "set"


def _origin(text: str, base: str) -> list[str]:
    """The dotted name that a file imports `base` by; empty where its text does not tell."""
    first = base.partition(".")[0]
    if re.search(rf"^import {re.escape(first)}$", text, re.MULTILINE) and "." in base:
        return base.split(".")
    found = re.findall(rf"^from ([\w.]+) import (?:[^\n(]{{0,2000}}|\([^)]{{0,2000}})\b{re.escape(base)}\b(?!\s+as\b)", text, re.MULTILINE)
    return [*found[0].split("."), base] if len(found) == 1 and not found[0].startswith(".") else []


def _search(holder: Definition, name: str) -> list[Definition]:
    found = [holder.members[name]] if name in holder.members else []
    for member in holder.members.values():
        if member.members:
            found += _search(member, name)
    return found


@lru_cache(maxsize=256)
def parsed(text: str, path: str) -> Definition | None:
    """The names that a Python text defines; `None` if it is none."""
    try:
        tree = tree_of(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    module = Definition(name=Path(path).stem, kind="module", path=path, first=1, last=text.count("\n") + 1)
    _fill(module, tree.body, path)
    module.open = module.open or _DYNAMIC.search(text) is not None
    return module


def _fill(holder: Definition, body: list[ast.stmt], path: str) -> None:  # noqa: C901  # one case per statement
    for node in body:
        match node:
            case ast.ClassDef():
                made = Definition(name=node.name, kind="class", path=path, first=node.lineno, last=node.end_lineno or node.lineno)
                made.bases = tuple(ast.unparse(base).partition("[")[0] for base in node.bases)
                made.open = any(isinstance(keyword, ast.keyword) for keyword in node.keywords) or len(node.decorator_list) > 1
                _fill(made, node.body, path)
                holder.members[node.name] = made
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                made = Definition(name=node.name, kind="function", path=path, first=node.lineno, last=node.end_lineno or node.lineno)
                taken = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, *filter(None, (node.args.vararg, node.args.kwarg)))
                made.arguments = tuple(one.arg for one in taken)
                if (known := holder.members.get(node.name)) is not None and known.kind == "function":
                    made.firsts = (*(known.firsts or (known.first,)), made.first)
                    made.first = known.first
                    made.arguments = (*known.arguments, *made.arguments)
                plain = all(ast.unparse(one).rpartition(".")[2] in _TRANSPARENT for one in node.decorator_list)
                made.open = node.args.kwarg is not None or not plain or (bool(made.firsts) and known is not None and known.open)
                holder.open = holder.open or node.name in ("__getattr__", "__getattribute__")
                _fill(made, node.body, path)
                holder.members[node.name] = made
                if holder.kind == "class":
                    _own_names(holder, node, path)
            case ast.Import() | ast.ImportFrom():
                for alias in node.names:
                    holder.open = holder.open or alias.name == "*"
                    _name(holder, alias.asname or alias.name.partition(".")[0], node.lineno, path)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.With() | ast.AsyncWith():
                for target in ast.walk(node):
                    if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                        _name(holder, target.id, target.lineno, path)
            case _:
                pass
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                _fill(holder, getattr(node, part, []), path)
        for handler in getattr(node, "handlers", []):
            _fill(holder, handler.body, path)


def _own_names(holder: Definition, function: ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> None:
    """Attributes that a method gives to `self` or `cls`; only statements are gone through, as no expression sets one."""
    left: list[ast.AST] = [*function.body]
    for node in left:
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, part, ())
        targets = [*getattr(node, "targets", ()), getattr(node, "target", None), *(one.optional_vars for one in getattr(node, "items", ()))]
        for target in filter(None, targets):
            for one in ast.walk(target):
                if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in ("self", "cls"):
                    _name(holder, one.attr, one.lineno, path)
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            holder.open = holder.open or any(
                (isinstance(one, ast.Name) and one.id in ("setattr", "vars")) or (isinstance(one, ast.Attribute) and one.attr == "__dict__")
                for one in ast.walk(node)
            )


def _name(holder: Definition, name: str, line: int, path: str) -> None:
    holder.members.setdefault(name, Definition(name=name, kind="name", path=path, first=line, last=line))


@lru_cache(maxsize=500)
def source_of(package: str) -> Path | None:
    """The folder or file of an installed top-level package or module; nothing is imported."""
    if not package.isidentifier():
        return None
    spec = importlib.machinery.PathFinder.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None


def installed(names: list[str]) -> list[Answer]:
    """Whether installed packages have what a dotted name says; empty if no package begins so."""
    first, *rest = names
    place = source_of(first)
    if first in sys.builtin_module_names:
        return ["yes"] if not rest or hasattr(sys.modules.get(first), rest[0]) else ["unknown"]
    if place is None:
        return ["unknown"] if first in sys.stdlib_module_names else []
    place, rest = _inside(place, rest)
    module = _module(place / "__init__.py" if place.is_dir() else place) if rest else None
    if not rest or module is None:
        return ["unknown" if rest else "yes"]
    return [_member(module, rest)]


def _inside(place: Path, rest: list[str]) -> tuple[Path, list[str]]:
    """As far as folders and files lead, and what is left."""
    while rest and place.is_dir():
        if (place / rest[0]).is_dir():
            place, rest = place / rest[0], rest[1:]
        elif (place / f"{rest[0]}.py").is_file():
            place, rest = place / f"{rest[0]}.py", rest[1:]
        else:
            break
    return place, rest


def _member(module: Definition, rest: list[str]) -> Answer:
    member = module.members.get(rest[0])
    if member is None:
        maybe = (module.open and _speaks_of(Path(module.path), rest[0])) or re.match(r"__\w+__$", rest[0])
        return "unknown" if maybe else "no"
    if len(rest) == 1 or rest[1] in member.members or rest[1] in _OF_ALL:
        return "yes"
    return "unknown" if member.kind != "class" or member.bases or member.open else "no"


def _speaks_of(path: Path, name: str) -> bool:
    """Whether a module that makes names when asked for them may make this one."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return _DYNAMIC.search(text) is not None or next(places(name, text), None) is not None


_DYNAMIC: Final = re.compile(
    r"\bimport \*|\bglobals\(\)|\bsys\.modules\b|^[ \t]*(?:exec|vars|locals)\(|\blazy\w*[.(]|\b_?[Ll]azy_?(?:[Mm]odule|import)\w*|__getattr__[^#]{0,400}\bgetattr\(",
    re.MULTILINE,
)
"""What makes names of a module that its text does not tell."""


@lru_cache(maxsize=200)
def _module(path: Path) -> Definition | None:
    try:
        return parsed(path.read_text(encoding="utf-8", errors="replace"), str(path)) if path.is_file() else None
    except OSError:
        return None
