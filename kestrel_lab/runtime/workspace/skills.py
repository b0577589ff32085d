"""Skills of a workspace and of its user: lists them with their states, and shows one whole."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.runtime.options import skill_sources
from kestrel_lab.runtime.services import Services
from kestrel_lab.tools.skills import FILE, PLACES, SHIPPED, Skill, find_skills
from kestrel_lab.views.html.table_view import TableView, TextView

_COLUMNS = ("skill", "folder", "state", "what for")


@dataclass(frozen=True, slots=True, repr=False)
class ShownSkill(TextView):
    """A skill with everything that its SKILL.md says, shown as text."""

    skill: Skill

    def __repr__(self) -> str:
        skill = self.skill
        facts = {
            "folder": f"{skill.shown} ({'your own' if skill.own else 'text of the workspace'})",
            "state": skill.problem or "can be loaded",
            "what for": skill.description,
            "needs": skill.compatibility,
            "license": skill.license,
            **skill.metadata,
            "asks for": f"{' '.join(skill.allowed_tools)} (allows nothing: rules do)"
            if skill.allowed_tools
            else "",
            "not in the specification": ", ".join(skill.unknown),
            "SKILL.md": f"{skill.size:,} bytes, sha256 {skill.digest[:16]}" if skill.digest else "",
            "files": "" if skill.problem else ", ".join(skill.files()),
        }
        lines = [f"{one_line(name, 60)}: {one_line(value, 1_500)}" for name, value in facts.items() if value]
        return sanitize_text(
            "\n".join([skill.name, *lines, *(("", skill.instructions) if skill.instructions else ())])
        )


class WorkspaceSkills(TableView):
    """The skills that agents here can load, and the others with the reason; shown as a table."""

    __slots__ = ("_folder", "_lab")

    def __init__(self, lab: Services, workspace: str | Path = ".") -> None:
        self._lab = lab
        self._folder = Path(workspace)

    @property
    def workspace(self) -> Path:
        """The folder that is meant; the current one, as it is when asked, unless another was named."""
        return self._folder.resolve()

    def at(self, workspace: str | Path) -> WorkspaceSkills:
        """Return the skills of another workspace."""
        return WorkspaceSkills(self._lab, workspace)

    def add(self, name: str) -> ShownSkill:
        """Copy a skill that comes with this package into the workspace, for agents of any kind to load.

        Raises `UsageError` where there is none of that name, or the workspace has another one.
        """
        source, target = SHIPPED / name, self.workspace / PLACES[0] / name
        known = sorted(path.parent.name for path in SHIPPED.glob(f"*/{FILE}"))
        if name not in known:
            raise UsageError(f"no skill {name!r} comes with kestrel; {did_you_mean(name, known)}")
        if target.exists() and (target / FILE).read_bytes() != (source / FILE).read_bytes():
            raise UsageError(f"{target} is there and is another one: remove it first to get that of kestrel")
        shutil.copytree(source, target, dirs_exist_ok=True)
        return self.get(name)

    def get(self, name: str) -> ShownSkill:
        """Return the skill of that name, loadable ones first; raises `UsageError` if there is none."""
        found = [skill for skill in self.list() if skill.name == name]
        if not found:
            raise UsageError(
                f"there is no skill {name!r}; {did_you_mean(name, [skill.name for skill in self.list()])}"
            )
        return ShownSkill(min(found, key=lambda skill: bool(skill.problem)))

    @property
    def nothing(self) -> str:
        """What is said where there are none."""
        return (
            f"no skills: folders with a SKILL.md are looked for in {' and '.join(PLACES)}, here and in "
            "your home (setting skills)"
        )

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row for each skill."""
        return _COLUMNS, [
            (
                skill.name,
                skill.shown,
                "cannot be loaded" if skill.problem else "can be loaded",
                skill.description,
            )
            for skill in self.list()
        ]

    def lines(self) -> tuple[str, ...]:
        """Why some skills are not offered to agents, one line each."""
        return tuple(
            f"{skill.shown} cannot be loaded: {skill.problem}" for skill in self.list() if skill.problem
        )

    def list(self) -> list[Skill]:
        """Return all skills that were found, valid or not, those first that come first."""
        return find_skills(self.workspace, skill_sources(self._lab.options["skills"]), self._lab.env)
