"""Parts of scenarios: the options of a question, the model that plays a user, commands that come before."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import Field

from kestrel_lab.checks.answer_forms import Choice
from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.yaml.validation import Declared, Entry, WrittenAs
from kestrel_lab.evals.suite_forms import Filled, Positive, as_tuple, mistake_at, some
from kestrel_lab.tools.files.workspace import Workspace


class SetupCommand(Declared):
    """A command that is run in the workspace before the goal, in the sandbox of the agent's commands; a trial
    in which it fails broke.
    """

    command: Annotated[str | tuple[str, ...], WrittenAs(Filled | Annotated[list[str], Field(min_length=1)])]
    """Lines for `sh`, or a list of words for no shell."""
    timeout: float = 60.0
    """Seconds."""

    async def run(self, workspace: Workspace, sandbox: object) -> str:
        """Run it; returns why it failed, empty where it did not."""
        argv = ("sh", "-ec", self.command) if isinstance(self.command, str) else tuple(self.command)
        place = Trial(
            goal="",
            answer="",
            records=(),
            workspace=workspace.root,
            sandbox=sandbox,
            read_only=workspace.read_only,
        )
        try:
            score = await CommandSucceeds(argv=argv, timeout=self.timeout)(place)
        except CheckError as error:
            return f"a command before it could not be run: {error}"
        return (
            "" if score.passed else f"a command before it failed ({one_line(argv[-1], 60)}): {score.reason}"
        )

    def definition(self) -> Json:
        """Return all that an outcome depends on."""
        command: Json = self.command if isinstance(self.command, str) else list(self.command)
        return {"command": command}


def _right_options(written: Any, _: object) -> tuple[str, ...]:
    return tuple(map(str, written if isinstance(written, list) else [written]))


class Choices(Declared):
    """The options of a question, written below the goal with letters; a check `choice` is added."""

    options: Annotated[tuple[str, ...], WrittenAs(some(Filled), as_tuple)]
    right: Annotated[tuple[str, ...], WrittenAs(str | int | list[str | int], _right_options)]
    """The right ones: letters in the order of `options`, their numbers from 0, or their texts."""
    strict: bool = False
    """Whether the answer `ANSWER: B` alone counts, as it is asked for."""
    shuffle: bool = False
    """Whether they are written in another order for each scenario, always the same one for one scenario."""

    def written(self, scenario: str) -> tuple[str, Choice]:
        """Return the text below the goal, and the check, for the scenario of this id.

        Raises `UsageError` for a right option that is none.
        """
        letters = string.ascii_uppercase
        if not 2 <= len(self.options) <= len(letters):
            raise UsageError(f"choices are 2 to {len(letters)} options, not {len(self.options)}")
        right = {self._place(one) for one in self.right}
        order = list(range(len(self.options)))
        if self.shuffle:
            # Seeded by the scenario: an order that changed would make every stored trial another task.
            random.Random(f"choices/1 {scenario}").shuffle(order)  # meant to be the same each time  # noqa: S311
        lines = [f"{letters[at]}) {self.options[place]}" for at, place in enumerate(order)]
        ask = "letter of your choice" if len(right) == 1 else "letters of your choices, separated by commas"
        text = "\n".join(
            [*lines, "", f"End your answer with a line 'ANSWER: ' followed by the {ask} and nothing else."]
        )
        chosen = tuple(letters[at] for at, place in enumerate(order) if place in right)
        shown = tuple(self.options[place] for place in order)
        return text, Choice(right=chosen, options=shown, strict=self.strict)

    def _place(self, one: str) -> int:
        if one in self.options:
            return self.options.index(one)
        place = int(one) if one.isdigit() else string.ascii_uppercase.find(one.upper())
        if (len(one) != 1 and not one.isdigit()) or not 0 <= place < len(self.options):
            raise UsageError(f"{one!r} is neither the letter, the number nor the text of an option")
        return place


def with_choices(value: Any, context: Mapping[str, Any] | None) -> Any:
    """Return a scenario as it is written with its choices below its goal and their check behind its checks;
    what is no scenario with choices as it is. Without a `context` it is one of Python code.
    """
    if not isinstance(value, dict) or not value.get("choices") or not isinstance(value.get("goal"), str):
        return value
    choices = Choices.model_validate(value["choices"], context=context)
    try:
        text, check = choices.written(str(value.get("id", "")))
    except UsageError as error:
        raise mistake_at("choices", value["choices"], error) from error
    written = {"choice": asdict(check) | {"right": list(check.right), "options": list(check.options)}}
    checks = value.get("checks") or ()
    if isinstance(checks, list | tuple):
        checks = [*checks, written if context else check]
    return {**value, "goal": f"{value['goal'].rstrip()}\n\n{text}", "choices": None, "checks": checks}


class SimulatedUser(Declared):
    """A model that plays the user: it answers the agent until it is content or its turns are over."""

    instructions: Annotated[str, WrittenAs(Filled)]
    """Who the user is, what they want, and what they know and say only when asked."""
    model: str = ""
    """As for any run; empty for the suite's `grader`. What it costs is in the trial's cost, and apart as the
    metric `user_cost`; it is in no number of the run.
    """
    turns: Annotated[int, WrittenAs(Positive)] = 8
    """Most messages of the user behind the goal."""
    until: Annotated[str, WrittenAs(Filled)] = "DONE"
    """What it says, alone or at the end of a message, when it wants nothing more."""

    def definition(self) -> dict[str, Json]:
        """Return all that an outcome depends on."""
        return self.model_dump()


@dataclass(frozen=True, kw_only=True, slots=True)
class InlineFiles:
    """A fresh folder with these files, for each trial."""

    files: dict[str, str] = field(default_factory=dict)
    """Text by path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderCopy:
    """A fresh copy of a folder, for each trial."""

    folder: str
    """As `Suite.resolve` finds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageSource:
    """The source folder of an installed Python package, in place and read-only."""

    package: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GitCheckout:
    """A fresh checkout of one commit, for each trial, with a repository that knows this commit only.

    What came before and, above all, what came after, the solution perhaps, is not in it.
    """

    repository: str
    """A folder, as `Suite.resolve` finds it, or an address that git can fetch from."""
    commit: str
    """Its hash: at least seven digits, all forty for an address."""


Place = InlineFiles | FolderCopy | PackageSource | GitCheckout
"""The workspace of a trial."""


class WorkspaceForm(Entry):
    """One of four: files written here, a folder to copy, the source of an installed package, a commit of a
    git repository.
    """

    files: dict[str, str] | None = None
    folder: str | None = None
    package: str | None = None
    repository: str | None = None
    commit: str | None = None

    def place(self) -> Place:
        """Return the workspace; raises `UsageError` for none and for several of the four."""
        given = self.model_dump(exclude_none=True)
        match given:
            case {"repository": repository, "commit": commit, **others} if not others:
                return GitCheckout(repository=repository, commit=commit)
            case {"folder": folder, **others} if not others:
                return FolderCopy(folder=folder)
            case {"package": package, **others} if not others:
                return PackageSource(package=package)
            case {"files": files, **others} if not others:
                for name in files:
                    path = PurePosixPath(name)
                    if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
                        raise UsageError(f"the file {name!r} must be a relative path without '..'")
                return InlineFiles(files=files)
        raise UsageError(
            "a workspace is one of files, folder, package, and repository with commit, not "
            f"{' and '.join(given) or 'nothing'}"
        )


def place_of(form: WorkspaceForm | None, _: object) -> Place:
    """Return the workspace that is written down; an empty folder where none is."""
    return InlineFiles() if form is None else form.place()
