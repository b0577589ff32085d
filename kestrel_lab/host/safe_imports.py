"""Import guard: modules that this package and its libraries import never come from the folder an agent works
in.

Kernels and `python -m` put the current folder first on `sys.path`, so a `pandas.py` that an agent writes
there would be imported, and run, when something here needs pandas for the first time. Imports that the user's
own code makes are left alone. One library, which jsonschema imports where JupyterLab is installed, is loaded
when it is used: it compiles grammars for a second. An import that finds nothing says which extra it needs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.host.programs import in_workspace

if TYPE_CHECKING:
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import FrameType, ModuleType

_PACKAGE: Final = __name__.partition(".")[0]
_MACHINERY: Final = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external")
_STDLIB: Final = os.path.dirname(os.__file__) + os.sep
_LATE: Final = "rfc3987_syntax"
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Guard:
    """A finder that differs from the usual one only in modules that this package and its libraries import."""

    def __init__(self, usual: Any) -> None:
        """`usual` is the finder that goes through `sys.path`."""
        self._usual = usual

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module, for us only from outside workspaces; else raises `ModuleNotFoundError`."""
        caller = sys._getframe(1)
        kept, refused = _split_sys_path() if path is None and _is_ours(caller) else (path, [])
        spec: ModuleSpec | None = self._usual.find_spec(name, kept, target)
        if name == _LATE and spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _LateLoader(spec.loader))
        # Whether it is there.
        asks = caller.f_back is not None and caller.f_back.f_globals.get("__name__") == "importlib.util"
        if (
            spec is not None
            or not refused
            or asks
            or (other := self._usual.find_spec(name, refused, target)) is None
        ):
            return spec
        raise ModuleNotFoundError(
            f"{_PACKAGE} does not import {name!r} from {other.origin or 'a folder'} where agents work: "
            "install it, or start elsewhere",
            name=name,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


class _LateLoader:
    """A stub of `is_valid_syntax`, all that jsonschema uses; loads the real module on first use."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        names = vars(module)

        def load() -> None:
            names.pop("__getattr__", None)
            self._usual.exec_module(module)

        def is_valid_syntax(term: str, value: str) -> bool:
            if names["is_valid_syntax"] is is_valid_syntax:
                load()
            return bool(names["is_valid_syntax"](term, value))

        def attribute(name: str) -> Any:
            load()
            return getattr(module, name)

        names.update(is_valid_syntax=is_valid_syntax, __getattr__=attribute)


class ExtraFinder:
    """The last finder: for an import that this package makes and nothing answers, it raises `MissingPackage`.

    Imports of other code, and questions whether a module is there (`importlib.util.find_spec`), are left
    alone: libraries probe for optional packages of theirs.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        """Return nothing; see the class."""
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _MACHINERY:
            frame = frame.f_back
        importer = frame.f_globals.get("__name__") or ""
        if path is None and importer.startswith(f"{_PACKAGE}.") and name != _PACKAGE:
            from kestrel_lab.host.extras import missing_package  # most programs miss nothing

            raise missing_package(name, importer)


def install_guard() -> None:
    """Put the guard around the usual finder, and the finder of extras last; each once."""
    for place, finder in enumerate(sys.meta_path):
        if isinstance(finder, type) and finder.__name__ == "PathFinder":
            sys.meta_path[place] = Guard(finder)
    if not any(isinstance(finder, ExtraFinder) for finder in sys.meta_path):
        sys.meta_path.append(cast("Any", ExtraFinder()))


def _split_sys_path() -> tuple[list[str], list[str]]:
    """`sys.path` without the current folder and workspaces; keeps installed packages wherever they are."""
    kept: list[str] = []
    refused: list[str] = []
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # it is gone
        here = ""
    for entry in sys.path:
        real = os.path.realpath(entry) if os.path.isabs(entry) else ""
        inside = not real or real == here or in_workspace(real)
        (refused if inside and not _is_installed(f"{real}{os.sep}") else kept).append(entry)
    return kept, refused


def _is_ours(frame: FrameType | None) -> bool:
    """Whether this package asked for the import, directly or through libraries; not the user's code."""
    while frame is not None:
        names = frame.f_globals
        name = names.get("__name__") or ""
        if name.partition(".")[0] == _PACKAGE:
            return name != __name__
        if name.partition(".")[0] not in ("importlib", "_frozen_importlib") and not _is_installed(
            names.get("__file__") or ""
        ):
            return False
        frame = frame.f_back
    return False


def _is_installed(file: str) -> bool:
    return file.startswith(_STDLIB) or any(part in file for part in _INSTALLED)
