"""Python files of a project: tools, checks and scripted models, always loaded from the files as they are
now.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from kestrel_lab.core.errors import UsageError, did_you_mean, stops_task
from kestrel_lab.tools.tool import Tool

T = TypeVar("T")


def load_tools(path: Path, root: Path | None = None) -> list[Tool]:
    """Return the `@tool` objects of the Python file at `path`.

    The file and the modules it imports from its own folder and from `root` are run afresh and not left in
    `sys.modules`, so that an edited file, or the same file of another commit, is what is measured. Raises
    `UsageError` when the file cannot be imported or holds no tool.
    """
    tools = [
        value for value in vars(_module(path, root, "tools_from names")).values() if isinstance(value, Tool)
    ]
    if not tools:
        raise UsageError(f"{path} defines no tools: decorate functions with @tool from kestrel_lab")
    return tools


def load_instance(path: Path, kind: type[T], root: Path | None = None) -> T:
    """Return the one object of this type that the Python file at `path` defines, which is run as by
    `load_tools`.

    Raises `UsageError` when the file cannot be imported or defines none or several.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    found = {
        id(value): value
        for value in vars(_module(path, root, "a suite is to come from")).values()
        if isinstance(value, kind)
    }
    if len(found) != 1:
        raise UsageError(
            f"{path} defines {len(found) or 'no'} objects of type {kind.__name__}: a file is read for "
            "the one it defines"
        )
    return next(iter(found.values()))


def load_function(path: Path, name: str, root: Path | None = None) -> Callable[..., Any]:
    """Return the function `name` of the Python file at `path`, which is run as by `load_tools`.

    Raises `UsageError` when the file cannot be imported or has no such function.
    """
    found = vars(_module(path, root, "a function is to come from"))
    if not callable(found.get(name)):
        own = [key for key, value in found.items() if callable(value) and not key.startswith("_")]
        raise UsageError(f"{path} has no function {name!r}; {did_you_mean(name, own)}")
    function: Callable[..., Any] = found[name]
    return function


def load_object(path: Path, name: str, kind: type[T], root: Path | None = None) -> T:
    """Return the object `name` of this type that the Python file at `path` defines, which is run as by
    `load_tools`.

    Raises `UsageError` when the file is not there, cannot be imported or has no such object.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {str(path)!r}")
    found = vars(_module(path, root, f"a {kind.__name__.lower()} is to come from"))
    if not isinstance(found.get(name), kind):
        own = [key for key, value in found.items() if isinstance(value, kind)]
        raise UsageError(f"{path} has no {kind.__name__.lower()} {name!r}; {did_you_mean(name, own)}")
    made: T = found[name]
    return made


def load_check(reference: str, folder: Path | None, root: Path | None = None) -> Callable[..., Any]:
    """Return the function that `module:function` names.

    The module is a file in `folder`, which is run as by `load_tools`, or else a module of a package that is
    installed: neither the current folder nor the standard library is looked at. Raises `UsageError` when it
    is at neither place or has no such function.
    """
    name, _, function = reference.partition(":")
    if folder is not None:
        path = folder.joinpath(*name.split(".")).with_suffix(".py")
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return load_function(path, function, root)
    if not _is_installed(name.partition(".")[0]):
        beside = f"neither a file in {folder} nor" if folder is not None else "not"
        raise UsageError(
            f"python_check {reference!r}: the module {name!r} is {beside} of an installed package"
        )
    try:
        found = getattr(importlib.import_module(name), function, None)
    except BaseException as error:
        if stops_task(error):
            raise
        raise UsageError(
            f"python_check {reference!r}: {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise UsageError(f"python_check {reference!r}: {name} has no function {function!r}")
    loaded: Callable[..., Any] = found
    return loaded


def _is_installed(package: str) -> bool:
    if package in sys.stdlib_module_names:
        return False
    # It is no name, or one whose module has no file.
    with suppress(ValueError):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin and "site-packages" in spec.origin:
            return True
    # Last, since it takes half a second to read the metadata of each package: those that are installed
    # editable are found in no other way.
    return package in packages_distributions()


def _module(path: Path, root: Path | None, who: str) -> ModuleType:
    """Run the file anew and return its module; `who` names it in errors."""
    name = f"kestrel_tools_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{who} {path}, which is not a Python file")
    module = importlib.util.module_from_spec(spec)
    with _project_alone([place.resolve() for place in (path.parent, root) if place is not None]):
        # Annotations are looked up in the module by its name.
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            if stops_task(error):
                raise
            raise UsageError(
                f"{who} {path}, which cannot be imported: {type(error).__name__}: {error}"
            ) from error
    return module


@contextmanager
def _project_alone(folders: list[Path]) -> Iterator[None]:
    """Import from `folders` first, without modules that were imported from there before, and leave no
    trace.
    """
    before = _modules_in(folders)
    path, silent = list(sys.path), sys.dont_write_bytecode
    for name in before:
        del sys.modules[name]
    sys.path[:0] = [str(folder) for folder in dict.fromkeys(folders)]
    # A folder of compiled files would be a change in the user's checkout.
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.path[:], sys.dont_write_bytecode = path, silent
        for name in _modules_in(folders):
            del sys.modules[name]
        sys.modules.update(before)


def _modules_in(folders: list[Path]) -> dict[str, ModuleType]:
    """Return the loaded modules whose files are in `folders`, without this package and what is installed
    there.
    """
    within, python = (
        tuple(f"{str(folder).rstrip(os.sep)}{os.sep}" for folder in folders),
        f"{sys.base_prefix}{os.sep}",
    )
    found = {}
    for name, module in list(sys.modules.items()):
        file = (
            getattr(module, "__file__", None) or ""
        )  # compared as texts: there are thousands, before and after each file that is run
        own = name == "__main__" or name.partition(".")[0] == "kestrel_lab" or "site-packages" in file
        if file.startswith(within) and not file.startswith(python) and not own:
            found[name] = module
    return found
