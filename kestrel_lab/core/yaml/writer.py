"""Writing JSON values as YAML that `core.yaml.reader` reads back as the same values."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from kestrel_lab.core.json_types import Json

_PLAIN: Final = re.compile(r"[A-Za-z](?:[\w ./()-]*[\w./()-])?", re.ASCII)
"""Text that needs no quotes, unless YAML gives the word another meaning."""
_MEANT: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_WIDTH: Final = 110


class _Dumper(yaml.SafeDumper):
    """Writes no aliases, which are refused when read, and indents the items of lists."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
    if _PLAIN.fullmatch(text) and text.lower() not in _MEANT:
        style = None
    elif "\n" in text.strip("\n"):
        style = "|"  # written in quotes all the same where a block could not hold it
    else:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def entry_text(key: str, value: Json, indent: int = 0) -> str:
    """Return `key: value` as lines of YAML, each indented by `indent`; short values stay on one line.

    `key` is a plain word.
    """
    if isinstance(value, list | dict):
        flat = f"{key}: {yaml.dump(value, **_options(flow=True))}"
        whole = flat if len(flat) <= _WIDTH else yaml.dump({key: value}, **_options(flow=False))
    else:
        whole = yaml.dump({key: value}, **_options(flow=False))
    # The emitter ends a document after a text that ends in empty lines; this is no whole document.
    whole = whole.removesuffix("...\n")
    return "".join(
        f"{' ' * indent}{line}" if line.strip() else line for line in whole.splitlines(keepends=True)
    )


def _options(*, flow: bool) -> dict[str, Any]:
    return {
        "Dumper": _Dumper,
        "sort_keys": False,
        "allow_unicode": True,
        "width": 10_000,
        "default_flow_style": flow,
    }
