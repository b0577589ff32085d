"""Optional packages: which extra brings a module that is not installed.

The extras are those of `pyproject.toml`, read from the metadata of the installed distribution. `safe_imports`
raises the error for each import of this package that finds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kestrel_lab.core.errors import MissingPackage

_DISTRIBUTION: Final = "kestrel-lab"
_OTHER_NAMES: Final = {
    "acp": "agent-client-protocol",
    "jupyter_client": "ipykernel",
    "jupyter_core": "ipykernel",
    "markdown_it": "markdown-it-py",
    "mcp_types": "mcp",
    "opentelemetry": "opentelemetry-sdk",
    "traitlets": "ipywidgets",
    "yaml": "pyyaml",
    "zmq": "ipykernel",
}
"""The requirement that brings a module, where their names differ."""
_REQUIREMENT = re.compile(r"""^([\w.-]+).*?(?:;.*\bextra\s*==\s*['"]([\w-]+)['"].*)?$""")


def missing_package(module: str, importer: str = "") -> MissingPackage:
    """Return the error for a module that is not installed.

    Of several extras that bring it, the one that a part of the name `importer` is called like is named.
    """
    from kestrel_lab.core.errors import MissingPackage  # `import kestrel_lab` itself needs no error

    wanted = _normal(_OTHER_NAMES.get(module, module))
    extras = [extra for package, extra in _requirements() if package == wanted]
    if "" in extras:  # a requirement of every installation: somebody installed without requirements
        msg = f"the package {wanted} is not installed: pip install {wanted} (or pip install {_DISTRIBUTION})"
    elif extras:
        extra = next((extra for extra in extras if extra in importer.split(".")), extras[0])
        msg = f"this needs the package {wanted}: pip install '{_DISTRIBUTION}[{extra}]'"
    else:
        msg = f"the package {wanted} is not installed: pip install {wanted}"
    error = MissingPackage(msg)
    error.name = module
    return error


def _requirements() -> Iterator[tuple[str, str]]:
    """Yield each required package with its extra, which is empty for one that is always required."""
    from importlib import metadata  # a tenth of the time that this package takes to load

    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout that nobody installed
        return
    for line in lines:
        if (found := _REQUIREMENT.match(line)) and found[2] != "all":
            yield _normal(found[1]), found[2] or ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
