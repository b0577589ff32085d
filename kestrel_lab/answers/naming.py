"""Files that a text names, and whether they are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_ENDINGS: Final = (
    "py|pyi|ipynb|md|rst|txt|json|jsonl|csv|tsv|ya?ml|toml|cfg|ini|html?|css|jsx?|tsx?|mjs|sh|sql|xml|log|parquet|c|h|cc|cpp|hpp|rs|go|java|rb|php|"
    "lock|lua|kt|swift|scala|proto|tf"
)
_FILE: Final = re.compile(rf"(?<![\w/:.@-])(?:\.{{0,2}}/)?(?:[\w.+-]+/)*[\w+-][\w.+-]*\.(?:{_ENDINGS})(?![\w/(-])(?!\.\w)")
_BARE: Final = re.compile(r"`((?:[\w.+-]+/)*(?:Makefile|Dockerfile|Jenkinsfile|LICENSE|README|CHANGELOG))`")
_ADDRESS: Final = re.compile(r"\b\w+://\S+")


def file_names(text: str) -> list[str]:
    """Names of files in `text`, each once, in order: by their endings, or in backticks by names that are always files.

    Names within addresses of the web are none.
    """
    bare = _ADDRESS.sub(lambda match: " " * len(match[0]), text)
    found = sorted(
        [(match.start(), match[0]) for match in _FILE.finditer(bare)] + [(match.start(1), match[1]) for match in _BARE.finditer(bare)]
    )
    return list(dict.fromkeys(name for _, name in found))


def there(name: str, workspace: Path) -> Path | None:
    """The file of that name in `workspace`: at that path, or as the end of the path of just any file; `None` if there is none.

    A name that leads out of the workspace is not looked for.
    """
    root = workspace.resolve()
    name = name.removeprefix("./")
    direct = root / name
    try:
        if direct.is_file() and direct.resolve().is_relative_to(root):
            return direct
    except OSError:
        return None
    if name.startswith(("/", "../")) or "/../" in name:
        return None
    hidden = {".git", "node_modules", "__pycache__", ".venv"}
    for path in root.rglob(name.rpartition("/")[2]):
        inside = path.relative_to(root)
        if not hidden & set(inside.parts) and path.is_file() and f"/{inside.as_posix()}".endswith(f"/{name}"):
            return path
    return None
