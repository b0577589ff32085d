"""Task folders of Harbor: instruction, files of the environment, and tests, which the agent never sees."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.importers.suites.draft import (
    FOLDER,
    MOST_FILES,
    SuiteDraft,
    as_list,
    read_beside,
    slug,
)

_INSTALLS: Final = re.compile(r"\b(apt-get|apt|curl|wget|uvx?|pip3?|npm|apk|dnf|conda)\b")
_TOOLS: Final[list[Json]] = ["list_directory", "glob", "grep", "read_file", "write_file", "edit_file", "bash"]
_CONTAINER: Final = "a container where there is one, or commands under before"


def find_tasks(folder: Path) -> list[Path]:
    """Return the task folders in a folder: itself, or those below it, two levels deep."""
    if (folder / "task.toml").is_file():
        return [folder]
    return sorted(
        found.parent for pattern in ("*/task.toml", "*/*/task.toml") for found in folder.glob(pattern)
    )


def read_harbor(folder: Path) -> SuiteDraft:
    """Return the suite of a task folder, or of a folder of them; raises `UsageError` where there is none."""
    tasks = find_tasks(folder)
    if not tasks:
        old = (
            " (a task.yaml is of Terminal-Bench: harbor converts it)"
            if list(folder.glob("**/task.yaml"))
            else ""
        )
        raise UsageError(f"{folder} has no task.toml: it is no task folder of Harbor{old}")
    draft = SuiteDraft(source=folder, tool="Harbor", folder="tasks")
    draft.suite = {"name": slug(folder.resolve().name), "defaults": {"tools": list(_TOOLS)}}
    for task in tasks:
        try:
            _read_task(draft, task)
        except UsageError as error:
            draft.lost(task.name, f"the task: {error}", "write it as a scenario")
    return draft


def _read_task(draft: SuiteDraft, task: Path) -> None:
    place = task / "task.toml"
    try:
        config = tomllib.loads(read_beside(place, "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"task.toml is not TOML: {error}") from error
    goal = read_beside(place, "instruction.md").strip()
    name = task.resolve().name
    home = _environment(draft, task, name)
    metadata = {
        key: one
        for key, one in _table(config, "metadata").items()
        if isinstance(one, str | int | float | bool) and not key.startswith("author")
    }
    tags = [str(one) for one in as_list(_table(config, "metadata").get("tags"))]
    keywords = [str(one) for one in as_list(_table(config, "task").get("keywords"))]
    for key in sorted(
        set(config) - {"version", "schema_version", "task", "metadata", "verifier", "agent", "environment"}
    ):
        draft.lost(
            f"{name}/task.toml", f"the section {key}", "a scenario of its own for each step or artifact"
        )
    environment = {"cpus", "memory", "memory_mb", "storage", "storage_mb", "build_timeout_sec", "gpus"}
    for key in sorted(set(_table(config, "environment")) - environment):
        draft.lost(f"{name}/task.toml", f"environment.{key}", _CONTAINER)
    if _table(config, "verifier").get("env"):
        draft.lost(
            f"{name}/task.toml", "verifier.env", "a key that a judge needs: graded, with its own model"
        )
    relative = _relative(goal, home)
    if relative != goal:
        draft.lost(
            f"{name}/instruction.md",
            f"absolute paths below {home}",
            "they are relative to the workspace in goal and tests",
        )
    seconds = _table(config, "agent").get("timeout_sec")
    checks = _tests(draft, task, name, home, _table(config, "verifier").get("timeout_sec"))
    draft.add(
        name,
        {
            "id": name,
            "family": str(metadata.pop("category", "")),
            "goal": relative or " ",
            "tags": [*(tags or keywords)],
            "workspace": {"folder": f"{FOLDER}/{name}/workspace"}
            if _has(draft, f"{name}/workspace/")
            else {},
            "limits": {"seconds": seconds} if isinstance(seconds, int | float) and seconds > 0 else {},
            "checks": checks,
            "metadata": {**metadata},
        },
    )


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _has(draft: SuiteDraft, start: str) -> bool:
    return any(name.startswith(start) for name in draft.files)


def _environment(draft: SuiteDraft, task: Path, name: str) -> str:
    """Take over the files that the Dockerfile copies to the working folder; return the path of that folder in
    the container.
    """
    folder = task / "environment"
    dockerfile = folder / "Dockerfile"
    if not dockerfile.is_file():
        if (folder / "docker-compose.yaml").is_file():
            draft.lost(f"{name}/environment", "docker-compose.yaml, a container or several", _CONTAINER)
        return "/app"
    home = "/"
    for line, words in _instructions(read_beside(dockerfile, "Dockerfile")):
        where = f"{name}/environment/Dockerfile:{line}"
        match words[0].upper():
            case "WORKDIR":
                home = str(PurePosixPath(home) / words[1])
            case "COPY" | "ADD" if not any(word.startswith("--") for word in words[1:]) and len(words) > 2:
                for source in words[1:-1]:
                    _copy(draft, folder, name, where, source, str(PurePosixPath(home) / words[-1]), home)
            case "FROM":
                draft.lost(where, f"the image {' '.join(words[1:])}", _CONTAINER)
            case "CMD" | "LABEL" | "ARG" | "EXPOSE" | "SHELL" | "STOPSIGNAL" | "MAINTAINER":
                pass
            case _:
                draft.lost(where, one_line(" ".join(words), 120), _CONTAINER)
    return home if home != "/" else "/app"


def _instructions(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the instructions of a Dockerfile as words, each with its line."""
    joined, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        begun = begun or number
        joined += " " + bare.removesuffix("\\")
        if not bare.endswith("\\"):
            words = joined.replace("[", " ").replace("]", " ").replace('"', "").replace(",", " ").split()
            if joined.split()[0].upper() not in ("COPY", "ADD"):
                words = joined.split()
            yield begun, words
            joined, begun = "", 0


def _copy(
    draft: SuiteDraft, folder: Path, name: str, where: str, source: str, target: str, home: str
) -> None:
    inside = PurePosixPath(target)
    if home == "/" or not inside.is_relative_to(home):
        draft.lost(where, f"the copy of {source} to {target}, outside {home}", _CONTAINER)
        return
    found = [one for one in sorted(folder.glob(source.removeprefix("./") or ".")) if _is_inside(one, folder)]
    if source in (".", "./"):
        found = [folder]
    if not found:
        draft.lost(where, f"{source}, which is not in environment", "put the file into the workspace")
    for one in found:
        place = inside.relative_to(home)
        if one.is_dir():
            for file in sorted(one.rglob("*")):
                if (
                    file.is_file()
                    and _is_inside(file, folder)
                    and file.name not in ("Dockerfile", "docker-compose.yaml")
                ):
                    _take(draft, file, f"{name}/workspace/{place / file.relative_to(one).as_posix()}")
        else:
            ends = target.endswith("/") or target == home or len(found) > 1 or str(place) == "."
            _take(draft, one, f"{name}/workspace/{place / one.name if ends else place}")


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _take(draft: SuiteDraft, file: Path, name: str, change: Any = None) -> None:
    content = file.read_bytes()
    if change is not None and b"\0" not in content[:8000]:
        content = change(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    draft.files[str(PurePosixPath(name))] = content
    if sum(map(len, draft.files.values())) > MOST_FILES:
        raise UsageError(f"its files are larger than {MOST_FILES:,} bytes: import fewer tasks at once")


def _relative(text: str, home: str) -> str:
    """Return a text with paths below the working folder, the tests and the logs of the container relative to
    the workspace.
    """
    text = re.sub(rf"(?<![\w./-]){re.escape(home)}/(?=[\w.*{{$])", "", text)
    text = re.sub(rf"(?<![\w./-]){re.escape(home)}(?![\w/-])", ".", text)
    return re.sub(
        r"(?<![\w./-])/(tests|logs/verifier|logs/agent)(?=[/\"'\s)]|$)", r"\1", text, flags=re.MULTILINE
    )


def _tests(draft: SuiteDraft, task: Path, name: str, home: str, seconds: Any) -> list[Json]:
    """Take over the tests; return the checks that run them, none where there are none."""
    folder = task / "tests"
    script = folder / "test.sh"
    python = sorted(folder.glob("test_*.py"))
    if not script.is_file() and not python:
        draft.lost(f"{name}/tests", "tests without a test.sh", "command_succeeds, or checks of files")
        return []
    for file in sorted(folder.rglob("*")):
        if file.is_file() and _is_inside(file, folder):
            _take(
                draft,
                file,
                f"{name}/tests/{file.relative_to(folder).as_posix()}",
                lambda text: _relative(text, home),
            )
    given: dict[str, Json] = {"files": f"{FOLDER}/{name}/tests"}
    if isinstance(seconds, int | float) and seconds > 0:
        given["timeout"] = seconds
    text = read_beside(script, "test.sh") if script.is_file() else ""
    if python and (not text or _INSTALLS.search(text)):
        if text:
            draft.lost(
                f"{name}/tests/test.sh",
                "what it installs before it runs pytest",
                "install here what the tests import; pytest runs them",
            )
        # One file is the task; several are named rewards of it, each with its part of the score.
        checks: list[Json] = []
        for one in python:
            runs: list[Json] = ["python", "-m", "pytest", "-q", f"tests/{one.name}"]
            label: dict[str, Json] = {} if len(python) == 1 else {"name": one.stem.removeprefix("test_")}
            checks.append({"command_succeeds": {"argv": runs, **given}, **label})
        return checks
    if _INSTALLS.search(text):
        draft.lost(
            f"{name}/tests/test.sh", "what it installs or fetches", "install it here; tests have no network"
        )
    shell = "bash" if text.startswith("#!") and "bash" in text.splitlines()[0] else "sh"
    words: list[Json] = [shell, "-c", f"mkdir -p logs/verifier && {shell} tests/test.sh"]
    return [{"command_succeeds": {"argv": words, **given, "reward": "logs/verifier/reward.txt"}}]
