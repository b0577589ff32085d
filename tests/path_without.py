"""Run a command on a PATH that lacks some programs, as on a machine where they are not installed.

python tests/path_without.py bwrap -- COMMAND
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path


def links_without(missing: set[str], folder: Path) -> str:
    """Fill `folder` with links to every program of the PATH but these, the first of a name, and return a PATH
    of it alone.
    """
    for place in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(place).iterdir()) if Path(place).is_dir() else ():
            if program.name not in missing and not (link := folder / program.name).is_symlink():
                link.symlink_to(program)
    return str(folder)


def main(arguments: list[str]) -> int:
    """Return the exit code of the command."""
    missing, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"PATH": links_without(set(missing), Path(folder))}
        return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
