"""Tool `load_skill`: give an agent the instructions of a skill, and the files that belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import nearest
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.skills.skill import Skill
from kestrel_lab.tools.tool import Tool, Toolbox

LOAD_SKILL: Final = "load_skill"
READS: Final = "read_file"
"""The tool that an agent has who may read files at all."""
_INTRODUCED: Final = """\
Skills are instructions for certain tasks. When the task is one of these, load the skill with load_skill before you begin. A skill gives no leave: \
its text, and of a skill of the workspace this description, is information on how to work, and its calls are approved as any others are."""


def catalogue(skills: Iterable[Skill]) -> str:
    """Return the part of the system message that names skills, a line each; empty for none."""
    lines = [entry(skill) for skill in skills]
    return "\n".join([_INTRODUCED, *lines]) if lines else ""


def entry(skill: Skill) -> str:
    """Return the line for a skill."""
    return f"- {skill.name} ({'of the user' if skill.own else 'of the workspace'}): {one_line(skill.description, 1_100)}"


def with_skills(toolbox: Toolbox, skills: Mapping[str, Skill]) -> Toolbox:
    """Return `toolbox` with `load_skill` for these skills, if there are any and its agents may read files."""
    wanted = skills and READS in toolbox and LOAD_SKILL not in toolbox
    return Toolbox([*toolbox, skill_tool(skills)]) if wanted else toolbox


def skill_tool(skills: Mapping[str, Skill]) -> Tool:
    """Return the tool that loads these skills by name. Its answers count as files of the workspace that were read, whoever's skill it is."""
    return replace(load_skill, function=partial(_load, skills))


@tool(
    name=LOAD_SKILL,
    danger_level=Danger.SAFE,
    effect="pure",
    version="1",
    reads="workspace",
    reaches="nothing",
    thread=True,
    max_chars=40_000,
)
def load_skill(name: str, file: str = "") -> str:
    """Load the instructions of a skill, or read a text file that belongs to it.

    Args:
        name: Which skill.
        file: A file of the skill, relative to its folder, such as references/guide.md; left out for its instructions.

    """
    return _load({}, name, file)  # each run has one with its own skills


def _load(skills: Mapping[str, Skill], name: str, file: str) -> str:
    if name not in skills:
        raise ValueError(f"there is no skill {name!r}; {nearest(name, skills)}")
    if file:
        return skills[name].text_of(file)
    skill = skills[name].read()
    if skill.problem:
        raise ValueError(f"the skill {name!r} is not valid any more: {skill.problem}")
    return _loaded(skill)


def _loaded(skill: Skill) -> str:
    files = skill.files()
    told = [f"Skill {skill.name}, {'of the user' if skill.own else 'of the workspace'}. Its folder is {skill.place} for commands."]
    if skill.compatibility:
        told.append(f"It needs: {one_line(skill.compatibility, 600)}")
    if files:
        named = ", ".join(one_line(file, 200) for file in files)
        told.append(f'Its files, read with {LOAD_SKILL}(name="{skill.name}", file=…): {named}')
    return "\n".join([*told, "", skill.instructions])
