"""Whose code a file or module is: a library's, or the user's own."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

from kestrel_lab.tools.kernel.state.boundary import raw_dict

_PACKAGE = str(Path(__file__).parents[3])


def in_library(file: str) -> bool:
    """Return true if a Python file belongs to Python, an installed library, or this package."""
    return in_python(file) or file.startswith(package_folders())


def in_python(file: str) -> bool:
    """Return true if a Python file belongs to Python itself, or to this package."""
    if file in ("built-in", "frozen") or file.startswith(("<frozen", f"{_PACKAGE}{os.sep}")):
        return True
    # The folder of the installed packages is below that of Python.
    return file.startswith(_python_folders()) and not file.startswith(package_folders())


def is_own(module: object, *, made: bool = True) -> bool:
    """Return true if a module is the user's: the notebook, or a file that is not of a library.

    `made` is the answer for a module without a file.
    """
    if module == "__main__" or type(module) is not str:
        return True
    loaded = sys.modules.get(module)
    if loaded is None:
        return made
    about = raw_dict(loaded)
    file = about.get("__file__") or getattr(about.get("__spec__"), "origin", None)
    if isinstance(file, str):
        return not in_library(file)
    folders = list(about.get("__path__") or ())
    return (
        made
        and module not in sys.builtin_module_names
        and not any(in_library(os.path.join(str(folder), "")) for folder in folders)
    )


@cache
def _python_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple(_with_separator([paths["stdlib"], paths["platstdlib"]]))


def package_folders() -> tuple[str, ...]:
    """Return the folders of installed packages, each with a separator at its end."""
    return _folders_of_packages(tuple(map(str, sys.path)), "IPython" in sys.modules)


@lru_cache(maxsize=16)
def _folders_of_packages(search_path: tuple[str, ...], in_shell: bool) -> tuple[str, ...]:
    """Return Python's own folders of installed packages, and those of the search path that hold installed
    distributions: PYTHONPATH and lines of .pth files bring packages in from anywhere.

    The folder that the shell itself comes from is one, too, whatever is known of what is installed there.
    """
    paths = sysconfig.get_paths()
    folders = [paths["purelib"], paths["platlib"], *site.getsitepackages(), site.getusersitepackages()]
    folders += [folder for folder in search_path if os.path.isabs(folder) and _holds_distributions(folder)]
    if in_shell:
        folders.append(str(Path(str(sys.modules["IPython"].__file__)).parents[1]))
    return tuple(dict.fromkeys(_with_separator(folders)))


def _with_separator(folders: Iterable[str]) -> Iterator[str]:
    for folder in folders:
        for form in (folder, os.path.realpath(folder)):
            yield os.path.join(form, "")


@cache
def _holds_distributions(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))
    except OSError:
        return False
