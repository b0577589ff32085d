"""A `uv` for tests: knows every package, installs the hostile server as its program, and can be held up in
the middle.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

HOSTILE = Path(__file__).with_name("mcp_hostile.py")
HASH = "a" * 64


def make_uv(folder: Path) -> str:
    """Put it into `folder`, and give the PATH on which it is found first.

    In `folder`: `log` has a line per installation; while `block` is there, one waits half-way and says so in
    `blocked`; with `fail` it fails there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    at = shlex.quote(str(folder))
    program = f"#!/bin/sh\\nexec {shlex.quote(sys.executable)} -S %s/server.py\\n"
    (folder / "uv").write_text(f"""#!/bin/sh
for last; do :; done
what="$1 $2"
if [ "$1" = venv ]; then mkdir -p "$last/bin"; exit 0; fi
while [ $# -gt 0 ]; do
  [ "$1" = --output-file ] && out=$2
  [ "$1" = --python ] && bin=${{2%/python}}
  shift
done
if [ "$what" = "pip compile" ]; then
  {{ tr -d '\\n' < "$last"; echo ' --hash=sha256:{HASH}'; }} > "$out"; exit 0
fi
echo installing >> {at}/log
name=$(sed 's/==.*//' "$last")
printf '#!/bin/sh' > "$bin/$name"; chmod +x "$bin/$name"
if [ -e {at}/fail ]; then echo "no space left" >&2; exit 4; fi
if [ -e {at}/block ]; then echo $$ > {at}/blocked; exec sleep 60; fi
cp {shlex.quote(str(HOSTILE))} "$bin/server.py"
printf '{program}' "$bin" > "$bin/$name"
""")
    (folder / "uv").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def write_catalogue(path: Path, *entries: dict[str, Any]) -> str:
    """A catalogue of these entries."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return str(path)


def entry(
    name: str = "io.github.someone/mcp-echo",
    description: str = "Echo a text back, word by word.",
    **package: Any,
) -> dict[str, Any]:
    """An entry whose package is called as its server."""
    given = {
        "registryType": "pypi",
        "identifier": name.partition("/")[2],
        "version": "1.0.0",
        "transport": {"type": "stdio"},
        **package,
    }
    repository = {"url": "https://github.com/someone/mcp-echo", "source": "github"}
    return {
        "name": name,
        "description": description,
        "version": "1.0.0",
        "repository": repository,
        "packages": [given],
    }
