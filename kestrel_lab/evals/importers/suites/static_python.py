"""Reading of what a Python file says without running it: constants, records, and calls that stay calls.

The file is parsed, and so are files of its own folder that it imports; nothing of them is called. What its
functions make of plain values (texts, numbers, lists, mappings) is worked out here, step by step, by the few
operations that are named below. A call of anything else is returned as what it is, a name with arguments, and
what would have to be run becomes a value that says so: it is a mistake only where it is needed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.suites.draft import read_beside
from kestrel_lab.evals.importers.suites.static_frame import Frame
from kestrel_lab.evals.importers.suites.static_values import (
    Called,
    Function,
    Named,
    Unread,
    Unreadable,
    decorators_of,
)


@dataclass(kw_only=True, slots=True)
class StaticModule:
    """A parsed file."""

    tree: ast.Module
    path: Path
    functions: dict[str, Function] = field(default_factory=dict)
    skipped: list[Unreadable] = field(default_factory=list)
    """Blocks of functions that could not be read and were left out."""
    _constants: dict[str, ast.expr] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    """What constants are, worked out once."""
    _imports: dict[str, tuple[Path, str]] = field(default_factory=dict)
    """By name, the file of this folder that it comes from, and its name there."""
    _files: dict[Path, StaticModule] = field(default_factory=dict)
    """The files of the folder that were read, one dictionary for all of them."""
    _steps: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def parse(cls, path: Path, beside: StaticModule | None = None) -> StaticModule:
        """Return the module of a file; raises `UsageError` for what is not Python or cannot be read.

        `beside` is the module that imports it.
        """
        text = read_beside(
            path if beside is None else beside.path, str(path.name if beside is None else path)
        )
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None) or 1
            raise UsageError(f"{path.name}:{line}: is not Python: {getattr(error, 'msg', error)}") from error
        module = cls(tree=tree, path=path.resolve())
        if beside is not None:
            module._files, module._steps, module.skipped = beside._files, beside._steps, beside.skipped
        module._files[module.path] = module
        for node in _top_level(tree.body):
            match node:
                case ast.FunctionDef(name=defined):
                    module.functions[defined] = Function(name=defined, node=node, module=module)
                case ast.Assign(targets=[ast.Name(id=defined)], value=value):
                    module._constants[defined] = value
                case ast.AnnAssign(target=ast.Name(id=defined), value=ast.expr() as value):
                    module._constants[defined] = value
                case ast.ImportFrom():
                    module._import(node)
        return module

    def _import(self, node: ast.ImportFrom) -> None:
        """Note names that come from a file of this folder, by a relative import or by the folder's name."""
        parts = (node.module or "").split(".") if node.module else []
        if node.level == 0:
            own = self.path.parent.name
            if own not in parts:
                return
            parts = parts[len(parts) - parts[::-1].index(own) :]
        elif node.level > 1:
            return
        found = self.path.parent.joinpath(*parts)
        for alias in node.names:
            for file in (found.with_suffix(".py") if parts else None, found / f"{alias.name}.py"):
                if file is not None and file.is_file() and file.stem != alias.name:
                    self._imports[alias.asname or alias.name] = file, alias.name

    def decorated(self, name: str) -> list[str]:
        """Return the functions with a decorator of this name, in the order of the file."""
        return [key for key, one in self.functions.items() if name in decorators_of(one.node)]

    def call(self, name: str) -> Any:
        """Return what a function of the file gives for its own defaults; see `call_value`."""
        return self.call_value(self.functions[name], [], {})

    def call_value(self, function: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what a function gives for plain arguments, its own defaults filled in.

        Blocks that cannot be read are left out and noted in `skipped`. Raises `Unreadable` where the result
        is one that cannot be read.
        """
        if isinstance(function, Called) and function.name == "partial" and function.args:
            first, *more = function.args
            return self.call_value(first, [*more, *args], {**function.kwargs, **kwargs})
        if not isinstance(function, Function):
            raise Unreadable(ast.Pass(), f"{getattr(function, 'name', function)} would have to be run")
        return Frame(function, 0).run(args, dict(kwargs))

    def tick(self, node: ast.AST) -> None:
        """Count a step; raises `Unreadable` beyond two million."""
        self._steps[0] += 1
        # A loop of the file that is read may have no end.
        if self._steps[0] > 2_000_000:
            raise Unreadable(node, "it takes too many steps")

    def global_value(self, name: str) -> Any:
        """Return what a name of the file is; `Named` for one that it imports from elsewhere."""
        if name in self._values:
            return self._values[name]
        if name in self.functions:
            return self.functions[name]
        if (constant := self._constants.get(name)) is not None:
            # One that is made of itself is not known.
            self._values[name] = Unread(error=Unreadable(constant, f"{name} is made of itself"))
            self._values[name] = Frame(
                Function(
                    name=name,
                    node=ast.Lambda(
                        args=ast.arguments(
                            posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
                        ),
                        body=constant,
                    ),
                    module=self,
                ),
                0,
            ).part(constant)
            return self._values[name]
        if name in self._imports:
            file, there = self._imports[name]
            try:
                module = self._files.get(file.resolve()) or StaticModule.parse(file, self)
            except UsageError as error:
                return Unread(error=Unreadable(ast.Pass(), str(error)))
            return module.global_value(there)
        return Named(name=name)


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, those in a `try` or behind a condition of imports among them."""
    for node in body:
        yield node
        if isinstance(node, ast.Try | ast.If):
            yield from _top_level(node.body)
