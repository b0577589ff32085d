"""Modules of a benchmark's package, imported without the clients of model providers that the package loads
beside them.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.suite_forms import MOST

_IMPORTING = threading.RLock()


def check_limit(suite: str, limit: int | None) -> None:
    """Raise `UsageError` for a number of tasks that a suite cannot have."""
    if limit is not None and limit < 1:
        raise UsageError(f"{suite}: a limit is at least 1, not {limit}")
    if limit is not None and limit > MOST:
        raise UsageError(f"{suite}: a limit is at most {MOST:,}; leave it out for all")


def installed_package(package: str, distribution: str) -> tuple[Path, str]:
    """Return the folder and the version of an installed package; raises `UsageError` with what to type if it
    is missing.
    """
    try:
        spec = find_spec(package)
        found = version(distribution)
    except PackageNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(
            f"the package {distribution} is not installed: pip install --no-deps {distribution}, and "
            "pip install "
            "'kestrel-lab[benchmarks]' for the small packages its tasks need (the many others it lists "
            "are clients of model providers)"
        )
    return Path(next(iter(spec.submodule_search_locations))), found


def import_parts(
    package: str,
    names: Collection[str],
    *,
    in_place_of: Mapping[str, Mapping[str, object]],
    forget: Collection[str] = (),
) -> list[ModuleType]:
    """Import the modules `names` of `package`.

    While they are imported, modules with the given contents stand for those that would load more than is
    needed (the submodules of one that is a package are still found). Afterwards these, and the modules to
    `forget`, are as they were before, so that other users of the package get the real ones. Raises
    `UsageError` if something else is not installed.
    """
    with _IMPORTING, _standing_in(package, in_place_of, forget), warnings.catch_warnings():
        # The warnings are about the package's own code.
        warnings.simplefilter("ignore")
        try:
            return [import_module(name) for name in names]
        except ModuleNotFoundError as error:
            raise UsageError(
                f"{package} needs the package {error.name!r}, which is not installed: pip install "
                "'kestrel-lab[benchmarks]'"
            ) from error


@contextmanager
def _standing_in(
    package: str, in_place_of: Mapping[str, Mapping[str, object]], forget: Collection[str]
) -> Iterator[None]:
    spec = find_spec(package)
    root = Path(next(iter(spec.submodule_search_locations or ()))) if spec else Path()
    touched = [*in_place_of, *forget]
    before = {name: sys.modules.pop(name) for name in touched if name in sys.modules}
    for name, content in in_place_of.items():
        module = ModuleType(name)
        folder = root.joinpath(*name.split(".")[1:])
        if folder.is_dir():
            module.__path__ = [str(folder)]
        vars(module).update(content)
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in touched:
            sys.modules.pop(name, None)
        sys.modules.update(before)
