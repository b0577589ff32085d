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
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.evals.importers.suites.draft import (
    FOLDER,
    MOST_FILES,
    SuiteDraft,
    as_list,
    read_beside,
    slug,
)
from kestrel_lab.evals.suite import Defaults

_INSTALLS: Final = re.compile(r"\b(apt-get|apt|curl|wget|uvx?|pip3?|npm|apk|dnf|conda)\b")
_TOOLS: Final[list[Json]] = ["list_directory", "glob", "grep", "read_file", "write_file", "edit_file", "bash"]
_SECTIONS: Final = frozenset(
    {
        *("version", "schema_version", "task", "metadata", "verifier", "agent", "environment", "source"),
        *("steps", "multi_step_reward_strategy"),
        # The solution of the task, which no agent sees.
        "solution",
    }
)
_ENVIRONMENT: Final = frozenset(
    {
        *("cpus", "memory", "memory_mb", "storage", "storage_mb", "build_timeout_sec", "gpus"),
        *("docker_image", "workdir", "allow_internet", "os"),
    }
)
_WAYS: Final = {
    "mcp_servers": "the server in kestrel.toml, and its tools under tools",
    "env": "ENV in the Dockerfile, which is beside the suite",
    "skills_dir": "skills of the workspace",
}
_COPIES: Final = ("COPY", "ADD")
_WITHOUT_FILES: Final = ("CMD", "LABEL", "ARG", "EXPOSE", "SHELL", "STOPSIGNAL", "MAINTAINER", "WORKDIR")
"""Instructions that add nothing to the files or programs of an image."""
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
    steps = [str(step.get("name")) for step in as_list(config.get("steps")) if isinstance(step, dict)]
    folders = [f"steps/{step}/" for step in steps] or [""]
    asked = [read_beside(place, f"{folder}instruction.md").strip() for folder in folders]
    name = task.resolve().name
    metadata = {
        key: one
        for key, one in _table(config, "metadata").items()
        if isinstance(one, str | int | float | bool) and not key.startswith("author")
    }
    tags = [str(one) for one in as_list(_table(config, "metadata").get("tags"))]
    keywords = [str(one) for one in as_list(_table(config, "task").get("keywords"))]
    _settings(draft, name, config)
    environment = _table(config, "environment")
    home, missing = _environment(draft, task, name, environment.get("workdir"))
    container = _container(draft, task, name, home, environment.get("docker_image"))
    for where, source in () if container else missing:
        draft.lost(where, f"{source}, which is not in environment", "put the file into the workspace")
    if not container and (moved := [_placed(text, home, "") for text in asked]) != asked:
        what, way = f"absolute paths below {home}", "they are relative to the workspace in goal and tests"
        draft.lost(f"{name}/instruction.md", what, way)
        asked = moved
    if len(steps) > 1 and config.get("multi_step_reward_strategy") != "final":
        draft.lost(f"{name}/steps", "the rewards of steps before the last", "the tests of the last decide")
    seconds = _table(config, "agent").get("timeout_sec")
    seconds = len(asked) * seconds if isinstance(seconds, int | float) else 0
    places = home, f"{home}/" if container else ""
    tests = task / folders[-1] / "tests"
    checks = _tests(draft, tests, name, places, _table(config, "verifier").get("timeout_sec"))
    draft.add(
        name,
        {
            "id": name,
            "family": str(metadata.pop("category", "")),
            "group": str(metadata.get("repo") or metadata.get("source") or ""),
            "goal": asked[0] or " ",
            "turns": [*asked[1:]],
            "tags": [*(tags or keywords)],
            "workspace": {"folder": f"{FOLDER}/{name}/workspace"}
            if _has(draft, f"{name}/workspace/")
            else {},
            **container,
            "limits": {"seconds": seconds} if seconds > 0 else {},
            "checks": checks,
            "metadata": {**metadata},
        },
    )


def _settings(draft: SuiteDraft, name: str, config: dict[str, Any]) -> None:
    """Note the settings that ours has not."""
    place = f"{name}/task.toml"
    for key in sorted(key for key, value in config.items() if value and key not in _SECTIONS):
        draft.lost(place, f"the section {key}", "a scenario of its own for each step or artifact")
    for key, value in sorted(_table(config, "environment").items()):
        if value and key not in _ENVIRONMENT:
            draft.lost(place, f"environment.{key}", _WAYS.get(key, _CONTAINER))
    if _table(config, "verifier").get("env"):
        draft.lost(place, "verifier.env", "a key that a judge needs: graded, with its own model")


def _container(draft: SuiteDraft, task: Path, name: str, home: str, image: Any) -> dict[str, Json]:
    """Return where commands run: the task's image, or its Dockerfile with the files beside it, at the working
    folder. Empty where there is neither, and where that folder cannot be a workspace.
    """
    folder, dockerfile = task / "environment", task / "environment" / "Dockerfile"
    try:
        Defaults(root=home)
    except UsageError:
        for line, words in _instructions(read_beside(dockerfile, "Dockerfile")):
            if words[0].upper() not in (*_COPIES, *_WITHOUT_FILES):
                draft.lost(
                    f"{name}/environment/Dockerfile:{line}", one_line(" ".join(words), 120), _CONTAINER
                )
        return {}
    if isinstance(image, str) and image:
        return {"image": image, "root": home}
    if not dockerfile.is_file():
        return {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and _is_inside(file, folder):
            _take(draft, file, f"{name}/environment/{file.relative_to(folder).as_posix()}")
    return {"dockerfile": f"{FOLDER}/{name}/environment/Dockerfile", "root": home}


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _has(draft: SuiteDraft, start: str) -> bool:
    return any(name.startswith(start) for name in draft.files)


def _environment(draft: SuiteDraft, task: Path, name: str, workdir: Any) -> tuple[str, list[tuple[str, str]]]:
    """Take over the files that the Dockerfile copies to the working folder; return the path of that folder in
    the container, and what is copied and not there, each behind its place.
    """
    folder, given = task / "environment", str(workdir or "")
    dockerfile = folder / "Dockerfile"
    missing: list[tuple[str, str]] = []
    if not dockerfile.is_file():
        if (folder / "docker-compose.yaml").is_file():
            draft.lost(f"{name}/environment", "docker-compose.yaml, a container or several", _CONTAINER)
        return given or "/app", missing
    home = "/"
    for line, words in _instructions(read_beside(dockerfile, "Dockerfile")):
        if words[0].upper() == "WORKDIR" and len(words) > 1:
            home = str(PurePosixPath(home) / words[1])
        plain = not any(word.startswith("--") for word in words[1:])
        if words[0].upper() in _COPIES and plain and len(words) > 2:
            target, where = str(PurePosixPath(home) / words[-1]), f"{name}/environment/Dockerfile:{line}"
            missing += [
                (where, one) for one in words[1:-1] if not _copy(draft, folder, name, one, target, home)
            ]
    return given or (home if home != "/" else "/app"), missing


def _instructions(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the instructions of a Dockerfile as words, each with its line."""
    joined, begun = "", 0
    for number, line in enumerate(split_lines(text), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        begun = begun or number
        joined += " " + bare.removesuffix("\\")
        if not bare.endswith("\\"):
            words = joined.replace("[", " ").replace("]", " ").replace('"', "").replace(",", " ").split()
            if joined.split()[0].upper() not in _COPIES:
                words = joined.split()
            yield begun, words
            joined, begun = "", 0


def _copy(draft: SuiteDraft, folder: Path, name: str, source: str, target: str, home: str) -> bool:
    """Take over what is copied to the working folder; return whether it is there."""
    inside = PurePosixPath(target)
    if home == "/" or not inside.is_relative_to(home):
        # What lies outside of the working folder is in the image already.
        return True
    found = [one for one in sorted(folder.glob(source.removeprefix("./") or ".")) if _is_inside(one, folder)]
    if source in (".", "./"):
        found = [folder]
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
    return bool(found)


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


def _take(draft: SuiteDraft, file: Path, name: str, change: Any = None) -> None:
    content = file.read_bytes()
    if change is not None and b"\0" not in content[:8000]:
        content = change(content.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
    draft.files[str(PurePosixPath(name))] = content
    if sum(map(len, draft.files.values())) > MOST_FILES:
        raise UsageError(f"its files are larger than {MOST_FILES:,} bytes: import fewer tasks at once")


def _placed(text: str, home: str, within: str) -> str:
    """Return a text in which the tests and logs of the container lie in the workspace: at `within`, the
    absolute path of the workspace, or where that is empty relative to it, as are all paths below `home`.
    """
    if not within:
        text = re.sub(rf"(?<![\w./-]){re.escape(home)}/(?=[\w.*{{$])", "", text)
        text = re.sub(rf"(?<![\w./-]){re.escape(home)}(?![\w/-])", ".", text)
    places = r"(?<![\w./-])/(tests|logs/verifier|logs/agent)(?=[/\"'\s)]|$)"
    return re.sub(places, rf"{within}\1", text, flags=re.MULTILINE)


def _tests(draft: SuiteDraft, folder: Path, name: str, places: tuple[str, str], seconds: Any) -> list[Json]:
    """Take over the tests; return the checks that run them, none where there are none."""
    script = folder / "test.sh"
    python = sorted(folder.glob("test_*.py"))
    if not script.is_file() and not python:
        draft.lost(f"{name}/tests", "tests without a test.sh", "command_succeeds, or checks of files")
        return []
    for file in sorted(folder.rglob("*")):
        if file.is_file() and _is_inside(file, folder):
            place = f"{name}/tests/{file.relative_to(folder).as_posix()}"
            _take(draft, file, place, lambda text: _placed(text, *places))
    given: dict[str, Json] = {"files": f"{FOLDER}/{name}/tests"}
    if isinstance(seconds, int | float) and seconds > 0:
        given["timeout"] = seconds
    text = read_beside(script, "test.sh") if script.is_file() else ""
    shell = "bash" if text.startswith("#!") and "bash" in split_lines(text)[0] else "sh"
    run = f"mkdir -p logs/verifier && {shell} tests/test.sh"
    where = f"{name}/tests/test.sh"
    if python and (not text or _INSTALLS.search(text)):
        if text:
            what = "what it installs before it runs pytest, where pytest is there already"
            draft.lost(where, what, "install what the tests import; in a container it needs network = true")
        # One file is the task; several are named rewards of it, each with its part of the score.
        checks: list[Json] = []
        for one in python:
            tested = f"python -m pytest -q tests/{one.name}"
            # Harbor's script ends well whatever it finds: the reward that it writes is the verdict.
            other = f"{run}; grep -qE '^1(\\.0*)?$' logs/verifier/reward.txt"
            line = f"if python -m pytest --version >/dev/null 2>&1; then {tested}; else {other}; fi"
            runs: list[Json] = ["sh", "-c", line] if text and places[1] else [*tested.split()]
            label: dict[str, Json] = {} if len(python) == 1 else {"name": one.stem.removeprefix("test_")}
            checks.append({"command_succeeds": {"argv": runs, **given}, **label})
        return checks
    if _INSTALLS.search(text):
        draft.lost(where, "what it installs or fetches", "install it here; tests have no network")
    return [{"command_succeeds": {"argv": [shell, "-c", run], **given, "reward": "logs/verifier/reward.txt"}}]
