"""Writing one setting into `kestrel.toml`, everything else in it left as it is."""

from __future__ import annotations

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.core.text_files import line_end, lines_with_ends
from kestrel_lab.runtime.project_trust import TrustedFiles
from kestrel_lab.runtime.settings import find_weakenings, load_settings, setting_files

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


def write_setting(folder: Path, key: str, value: str, env: Mapping[str, str] = os.environ) -> Path:
    """Set `key` in the `kestrel.toml` that holds in `folder`, else in a new one; returns its path.

    A text that reads as a number or as true or false is written as that. A value that the user sets here is
    trusted: a file of which nothing was ignored is trusted as it is afterwards. Raises `UsageError` for a
    setting or value that cannot be, and for a file in which the setting cannot be written without changing
    anything else.
    """
    load_settings(folder, {}).given("kestrel config", **{key: value})
    found = setting_files(folder)
    path = (found[-1][0].parent if found else folder) / "kestrel.toml"
    before = path.read_bytes().decode("utf-8") if path.exists() else ""
    after = _with_line(before, key, f"{key} = {_toml(value)}")
    if tomllib.loads(after) != {**tomllib.loads(before), key: tomllib.loads(f"v = {_toml(value)}")["v"]}:
        msg = (
            f"{shown_path(path)} cannot be changed without changing more than {key}: write {key} = "
            f"{_toml(value)} into it by hand"
        )
        raise UsageError(msg)
    trusted = TrustedFiles.of(env)
    known = next((table for place, table in found if place == path), {})
    trust = not find_weakenings(path, known) or trusted.holds(path, known)
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_bytes(after.encode("utf-8"))
    if path.exists():
        written.chmod(path.stat().st_mode & 0o777)
    written.replace(path)
    if (
        trust
        and find_weakenings(path, tomllib.loads(after))
        and not trusted.holds(path, tomllib.loads(after))
    ):
        trusted.add(path, tomllib.loads(after))
    return path


def _with_line(text: str, key: str, line: str) -> str:
    """`text` with `line` replacing the one that sets `key`, else before the first table; keeps line ends."""
    end = "\r\n" if line_end(text) == "\r\n" else "\n"
    table = _TABLE.search(text)
    top, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    lines = lines_with_ends(top)
    places = [
        place for place, old in enumerate(lines) if re.match(rf"\s*(['\"]?){re.escape(key)}\1\s*=", old)
    ]
    if places:
        lines[places[0]] = line + end
    else:
        last = len(lines)
        while last and not lines[last - 1].strip():
            last -= 1
        if last and not lines[last - 1].endswith("\n"):
            lines[last - 1] += end
        lines.insert(last, line + end)
    return "".join([*lines, rest])


def _toml(value: str) -> str:
    for read in (int, float):
        try:
            number: Any = read(value)
        except ValueError:
            # Not a number in this notation: try the next one.
            continue
        if math.isfinite(number):
            return repr(number)
    return value if value in {"true", "false"} else json.dumps(value, ensure_ascii=False)
