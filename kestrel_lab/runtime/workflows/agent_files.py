"""Agent files: an agent with its instructions, tools and team in YAML, shipped ones by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kestrel_lab.agents import LLMAgent
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.core.step import AgentSettings
from kestrel_lab.core.yaml.reader import read_yaml
from kestrel_lab.core.yaml.validation import validate
from kestrel_lab.runtime.workflows.models import AgentEntry, AgentFileEntry

SHIPPED_AGENTS: Final = Path(__file__).parent / "library" / "agents"
SETTINGS: Final = tuple(one.name for one in fields(AgentSettings))


def load_agent(name_or_path: str | Path) -> LLMAgent:
    """Return the agent of a file, or a shipped one by its name.

    Raises `UsageError` for a file or name that is not there, and for mistakes, with file, line and key.
    """
    path = (
        Path(name_or_path)
        if isinstance(name_or_path, Path) or is_file_name(name_or_path)
        else _shipped_agent(name_or_path, ())
    )
    entry = _read(path)
    # Refuses an agent in its own team.
    settings_of(entry, path.parent, {})
    team = tuple(replace(load_agent(_file(name, path.parent, {})), name=name) for name in entry.team)
    return LLMAgent(
        name=entry.name or path.stem, description=entry.description, team=team, **own_settings(entry)
    )


def own_settings(entry: AgentFileEntry | AgentEntry) -> dict[str, Any]:
    """Return the settings that are written in an entry, as fields of `Step`."""
    return {key: getattr(entry, key) for key in SETTINGS if key in entry.written}


def settings_of(
    entry: AgentFileEntry | AgentEntry,
    folder: Path,
    agents: Mapping[str, AgentEntry],
    above: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return the settings of an agent, those of a reference before those of the agent that it refers to.

    That is one of `agents`, a file in `folder` or below it, or a shipped agent; so is each of its team.
    Raises `UsageError` for anything else, and for an agent that is in its own team, however deep.
    """
    own = {**own_settings(entry), **team_of(entry.team, folder, agents, above)}
    if not isinstance(entry, AgentEntry) or not entry.use:
        return own
    if entry.use in agents:
        others = {name: agent for name, agent in agents.items() if name != entry.use}
        return {**settings_of(agents[entry.use], folder, others, above), **own}
    path = _file(entry.use, folder, agents)
    return {**settings_of(_read(path), path.parent, {}, above), **own}


def team_of(
    names: Sequence[str], folder: Path, agents: Mapping[str, AgentEntry], above: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the team with these agents as a field of `Step`, none if empty; raises like `settings_of`."""
    team = {name: _member(name, folder, agents, above) for name in names}
    return {"team": team} if team else {}


def _member(
    name: str, folder: Path, agents: Mapping[str, AgentEntry], above: tuple[str, ...]
) -> dict[str, Any]:
    if name in above:
        raise UsageError(f"agent {name!r} is in its own team: {' → '.join((*above, name))}")
    if name in agents:
        return {
            **settings_of(agents[name], folder, agents, (*above, name)),
            "description": agents[name].description,
        }
    entry = _read(path := _file(name, folder, agents))
    return {**settings_of(entry, path.parent, {}, (*above, name)), "description": entry.description}


def _file(name: str, folder: Path, agents: Mapping[str, AgentEntry]) -> Path:
    return file_beside(folder, name) if is_file_name(name) else _shipped_agent(name, agents)


def is_file_name(text: str) -> bool:
    """Return whether a text names a file and not something shipped."""
    return "/" in text or "\\" in text or text.endswith((".yaml", ".yml"))


def _read(path: Path) -> AgentFileEntry:
    return validate(read_yaml(path, shown_path(path)), AgentFileEntry)


def _shipped_agent(name: str, others: Mapping[str, AgentEntry] | tuple[()]) -> Path:
    known = {path.stem: path for path in SHIPPED_AGENTS.glob("*.yaml")}
    if name not in known:
        raise UsageError(
            f"there is no agent {name!r}; {did_you_mean(name, {*known, *others})} (a file is named "
            f"with its ending, {name}.yaml)"
        )
    return known[name]


def file_beside(folder: Path, name: str, kind: str = "agent") -> Path:
    """Return a file named by a workflow; raises `UsageError` if it is not below its folder."""
    pure = PurePosixPath(name)
    found = folder / name
    if (
        pure.is_absolute()
        or "\\" in name
        or "\0" in name
        or not found.resolve().is_relative_to(folder.resolve())
    ):
        raise UsageError(
            f"{name!r} is not in the folder of the workflow: a workflow uses {kind} files beside it or below"
        )
    if not found.is_file():
        raise UsageError(f"there is no {kind} file {name!r} beside the workflow")
    return found
