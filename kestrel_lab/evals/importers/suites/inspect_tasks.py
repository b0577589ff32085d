"""Tasks of Inspect: the dataset, the kind of solver and the scorer of each `@task`, read from its file.

The file is never run: `static_python` reads what it says. What would have to be run is said with its line.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.evals.importers.imported_run import SHARED
from kestrel_lab.evals.importers.suites.draft import (
    SuiteDraft,
    as_list,
    is_carried,
    known_params,
    read_beside,
    slug,
)
from kestrel_lab.evals.importers.suites.inspect_scorers import (
    SCORER_NOTES,
    SCORERS,
    graded_check,
    right_letters,
)
from kestrel_lab.evals.importers.suites.static_python import StaticModule
from kestrel_lab.evals.importers.suites.static_values import (
    Called,
    Function,
    Named,
    Unread,
    Unreadable,
    is_plain,
)
from kestrel_lab.evals.suites.datasets import TABLES, read_rows

_DATA: Final = "save its rows as CSV or JSON Lines and name the file: --data FILE"
_WORKFLOW: Final = "a workflow (plan:), or instructions of the suite"
_SCORE: Final = "a graded check takes its place: write a python_check that says the same"
_TOOLS: Final = {
    "bash": "bash",
    "python": "run_python",
    "web_search": "web_search",
    "text_editor": "edit_file",
}
_REDUCERS: Final = {"mean": "mean", "mode": "mode", "median": "mode", "max": "max"}
_LIMITS: Final = {"message_limit": "messages", "token_limit": "tokens", "time_limit": "seconds"}
_OF_SCENARIO: Final = ("input", "target", "choices", "files", "setup")
"""What a scenario is made of in a sample."""
_CHOSEN: Final = frozenset({"filter", "slice", "shuffle", "shuffle_choices"})
"""Methods of a dataset that give another."""
_LOADED: Final = frozenset({"hf_dataset", "json_dataset", "csv_dataset", "file_dataset", "example_dataset"})
_IGNORED: Final = frozenset({"version", "name", "metadata", "metrics", "viewer", "tags", "display_name"})


@dataclass(kw_only=True, slots=True)
class _Solved:
    """What solvers make of a sample."""

    system: str = ""
    template: str = "{prompt}"
    tools: list[Json] = field(default_factory=list)
    choices: Mapping[str, Any] | None = None
    """Arguments of `multiple_choice`, where it is used."""


def read_inspect(path: Path, *, task: str = "", data: Path | None = None) -> SuiteDraft:
    """Return the suite of the tasks in a Python file, or of the `task` of that name; `data` has the rows of a
    dataset that would have to be fetched.

    Raises `UsageError` for a file without tasks, and where none of them can be read, with the places.
    """
    module = StaticModule.parse(path)
    names = module.decorated("task")
    if not names:
        raise UsageError(f"{path} has no function with @task: it is no task file of Inspect")
    if task and task not in names:
        raise UsageError(f"{path} has no task {task!r}: it has {', '.join(names)}")
    draft = SuiteDraft(source=path, tool="Inspect")
    draft.suite = {"name": task or (names[0] if len(names) == 1 else path.stem)}
    chosen = [task] if task else names
    for name in chosen:
        reader = _TaskReader(draft, module, name, data, several=len(chosen) > 1)
        try:
            reader.read()
        except Unreadable as error:
            place, _, why = str(error).partition(": ")
            draft.lost(
                f"{name}, {place}", f"the task: {why}", "a Python suite that builds the same scenarios"
            )
    for skipped in {(one.line, str(one)): one for one in module.skipped}.values():
        draft.lost(f"line {skipped.line}", str(skipped).partition(": ")[2], "write it into the suite by hand")
    return draft


class _TaskReader:
    """The reading of one task."""

    def __init__(
        self, draft: SuiteDraft, module: StaticModule, name: str, data: Path | None, *, several: bool
    ) -> None:
        self.draft, self.module, self.name, self.data, self.several = draft, module, name, data, several

    def lost(self, line: int, what: str, way: str) -> None:
        self.draft.lost(f"{self.name}, line {line}", what, way)

    def read(self) -> None:
        found = self.module.call(self.name)
        if not isinstance(found, Called) or found.name != "Task":
            line = self.module.functions[self.name].node.lineno
            self.lost(line, f"{self.name} gives no Task that can be read", "a Python suite")
            return
        solved = self._solvers(found.arg("solver") or found.arg("plan"))
        if solved.system and not self.several:
            self.draft.suite["instructions"] = solved.system
        self._options(found)
        self.draft.suite["defaults"] = {"tools": solved.tools} | (
            {"limits": limits} if (limits := _limits(found)) else {}
        )
        scorers = [one for one in as_list(found.arg("scorer")) if one is not None]
        for origin, sample in self._samples(found.arg("dataset", 0), found.line):
            self._scenario(origin, sample, solved, scorers)

    def _options(self, task: Called) -> None:
        epochs = task.arg("epochs")
        if isinstance(epochs, Called):
            reducers = as_list(epochs.arg("reducer", 1))
            epochs = epochs.arg("epochs", 0)
            for one in reducers:
                name = _name(one)
                if name in _REDUCERS or re.fullmatch(r"at_least_\d+", name):
                    self.draft.suite["reducer"] = _REDUCERS.get(name, name)
                else:
                    self.lost(
                        task.line, f"the reducer {name}", "kestrel eval summary --tries has pass@k and pass^k"
                    )
        if isinstance(epochs, int) and epochs > 1:
            self.draft.suite["epochs"] = epochs
        for key in ("epochs", "config", *_LIMITS):
            if isinstance(one := task.arg(key), Unread):
                self.lost(task.line, f"the argument {key}: {one.name}", "a key of the suite")
        if isinstance(config := task.arg("config"), Called):
            self._config(config)
        known = {*_LIMITS, *_IGNORED, "dataset", "solver", "plan", "scorer", "epochs", "config"}
        for key in sorted(set(task.kwargs) - known):
            if task.kwargs[key] is None:
                continue
            way = (
                "files in the workspace and commands before, or a container where one can be had"
                if key == "sandbox"
                else "a key of the suite or its configurations"
            )
            self.lost(task.line, f"the argument {key}", way)

    def _config(self, config: Called) -> None:
        made: dict[str, Json] = {"name": "default"}
        if isinstance(heat := config.kwargs.get("temperature"), int | float):
            made["temperature"] = heat
        if values := known_params(config.kwargs):
            made["params"] = {**values}
        for key, one in sorted(config.kwargs.items()):
            if not is_carried(key, one):
                self.lost(config.line, f"the setting {key}", "a setting of the model or its server")
        if len(made) > 1:
            self.draft.suite["configs"] = [made]

    # Solvers

    def _solvers(self, given: Any) -> _Solved:
        solved = _Solved()
        for one in as_list(given):
            if not isinstance(one, Called):
                self.lost(_line(one), f"the solver {_name(one)}", _WORKFLOW)
                continue
            if one.name in ("chain", "Plan"):
                inner = self._solvers(
                    one.args[0] if one.args and isinstance(one.args[0], list) else [*one.args]
                )
                solved = inner if not solved.system else solved
                continue
            step = _SOLVERS.get(one.name)
            if step is None:
                self.lost(one.line, f"the solver {one.name}", _WORKFLOW)
            else:
                step(self, one, solved)
        return solved

    def system(self, one: Called, solved: _Solved) -> None:
        """Read `system_message`: a text, or a file beside the task."""
        text = one.arg("template", 0)
        if not isinstance(text, str):
            self.lost(one.line, "the system message", "instructions of the suite")
            return
        if re.fullmatch(r"[\w./-]+\.(txt|md)", text):
            try:
                text = read_beside(self.draft.source, text)
            except UsageError as error:
                self.lost(one.line, f"the system message: {error}", "instructions of the suite")
                return
        solved.system = "\n\n".join(filter(None, (solved.system, text.strip())))

    def template(self, one: Called, solved: _Solved) -> None:
        """Read `prompt_template`."""
        text = one.arg("template", 0)
        if isinstance(text, str) and "{prompt}" in text:
            solved.template = solved.template.replace("{prompt}", text)
        else:
            self.lost(one.line, "the prompt template", "write it into the goals")

    def thoughts(self, one: Called, solved: _Solved) -> None:
        """Read `chain_of_thought`, whose own words are not taken over."""
        text = one.arg("template", 0)
        own = "{prompt}\n\nThink step by step. End with a line 'ANSWER: ' followed by the answer alone."
        solved.template = solved.template.replace("{prompt}", text if isinstance(text, str) else own)
        if not isinstance(text, str):
            self.lost(one.line, "the words of chain_of_thought", "goals ask in our words to think first")

    def multiple_choice(self, one: Called, solved: _Solved) -> None:
        """Read `multiple_choice`."""
        solved.choices = one.kwargs
        if {"template", "cot"} & set(one.kwargs):
            self.lost(one.line, "the template of multiple_choice", "choices are written in our words")

    def use_tools(self, one: Called, solved: _Solved) -> None:
        """Read tools, of `use_tools` and of agents."""
        given = [*one.args, *as_list(one.kwargs.get("tools"))]
        for tool in [inner for item in given for inner in as_list(item)]:
            name = _name(tool)
            if name in _TOOLS:
                solved.tools.append(_TOOLS[name])
            else:
                self.lost(one.line, f"the tool {name}", "a @tool in a file under tools_from")
        if isinstance(text := one.kwargs.get("prompt"), str):
            solved.system = "\n\n".join(filter(None, (solved.system, text.strip())))

    def nothing(self, _one: Called, _solved: _Solved) -> None:
        """`generate` is what every run does."""

    # Samples

    def _samples(self, given: Any, line: int) -> Iterator[tuple[str, dict[str, Any]]]:
        if isinstance(given, list):
            yield from self._listed(given, line)
            return
        if given is None:
            self.lost(line, "a task without a dataset, which a person or a solver fills", "write scenarios")
            return
        if not isinstance(given, Called):
            self.lost(_line(given) or line, f"how samples are made: {_name(given)}", _DATA)
            given = Called(name="rows", args=(), kwargs={}, line=_line(given) or line)
        if given.name == "MemoryDataset":
            yield from self._samples(given.arg("samples", 0), given.line)
            return
        inner = given.owner if given.name in _CHOSEN else given.arg("", 0)
        # It may also be a function that is given a dataset.
        if isinstance(inner, Called) and given.name not in _LOADED:
            yield from self._chosen(given, inner)
            return
        rows, limit, fields = list(self._rows(given)), given.arg("limit"), given.arg("sample_fields", 1)
        # A limit is about the published data, not about rows that a person saved.
        most = limit if isinstance(limit, int) and self.data is None else None
        for number, row in enumerate(rows[:most], 1):
            try:
                sample = self._of_row(row, fields)
            except Unreadable as error:
                self.draft.lost(f"{self.name}, row {number}", f"the row: {error}", "write it as a scenario")
                continue
            for one in as_list(sample):
                yield f"{self.name}, row {number}", _sample(one) if isinstance(one, Called) else one

    def _listed(self, given: list[Any], line: int) -> Iterator[tuple[str, dict[str, Any]]]:
        for place, one in enumerate(given, 1):
            if isinstance(one, Called) and one.name == "Sample":
                yield f"{self.name}, line {one.line}", _sample(one)
            else:
                what = f"the sample {place}: {_name(one)}"
                self.lost(_line(one) or line, what, "write it as a scenario")

    def _chosen(self, step: Called, dataset: Called) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the samples of a dataset that are kept: some by their places; a function that chooses is not
        asked, which is said.
        """
        found = self._samples(dataset, step.line)
        if step.name == "slice" and self.data is None:
            first, end = step.args
            if all(one is None or (isinstance(one, int) and one >= 0) for one in (first, end)):
                yield from islice(found, first, end)
                return
        if step.name != "shuffle":
            self.lost(
                step.line, f"the choice of samples by {step.name}", "leave the others out of --data FILE"
            )
        yield from found

    def _rows(self, dataset: Called) -> Iterator[dict[str, Json]]:
        if self.data is not None:
            yield from (row.values for row in read_rows(self.data))
            return
        name = (
            dataset.arg("json_file", 0)
            or dataset.arg("csv_file")
            or dataset.arg("file")
            or dataset.arg("name")
        )
        if dataset.name == "example_dataset" and isinstance(name, str):
            yield from self._example(name, dataset)
        elif dataset.name in ("json_dataset", "csv_dataset", "file_dataset") and isinstance(name, str):
            file = self.draft.source.parent / name
            if Path(name).is_absolute() or ".." in Path(name).parts or file.suffix.lower() not in TABLES:
                self.lost(dataset.line, f"the dataset {name}", _DATA)
                return
            try:
                yield from (row.values for row in read_rows(file))
            except (UsageError, csv.Error) as error:
                self.lost(dataset.line, f"the dataset: {error}", _DATA)
        elif dataset.name != "rows":
            shown = dataset.kwargs.get("path") or name
            given = f"{dataset.name} {shown}" if isinstance(shown, str) else dataset.name
            self.lost(
                dataset.line, f"the dataset {given}, which would have to be fetched or run", _saved(dataset)
            )

    def _example(self, name: str, dataset: Called) -> Iterator[dict[str, Json]]:
        """Yield the rows of an example that Inspect ships, where it is installed; it is not imported."""
        spec = find_spec("inspect_ai")
        places = spec.submodule_search_locations if spec is not None else None
        folder = Path(next(iter(places))) if places else None
        file = folder / "dataset" / "_examples" / f"{slug(name)}.jsonl" if folder else None
        if file is None or not file.is_file():
            self.lost(
                dataset.line,
                f"the example {name}, which comes with inspect_ai",
                f"pip install it, or {_DATA}",
            )
            return
        yield from (loads(line) for line in split_lines(file.read_text("utf-8")) if line.strip())  # type: ignore[misc]  # objects

    def _of_row(self, row: dict[str, Json], fields: Any) -> Any:
        """Return the sample of a row: by a function of the file, by names of fields, or by usual names."""
        if isinstance(fields, Function) or (isinstance(fields, Called) and fields.name == "partial"):
            return self.module.call_value(fields, [row], {})
        if isinstance(fields, Named | Unread):
            raise Unreadable(ast.Pass(), f"{fields.name} makes samples of rows, and would have to be run")
        names = fields.kwargs if isinstance(fields, Called) and fields.name == "FieldSpec" else {}
        made = {
            key: row.get(str(names.get(key, key))) for key in ("input", "target", "choices", "id", "files")
        }
        kept = names.get("metadata")
        made["metadata"] = (
            {key: row.get(key) for key in kept} if isinstance(kept, list) else row.get("metadata")
        )
        return made

    def _scenario(self, origin: str, sample: dict[str, Any], solved: _Solved, scorers: list[Any]) -> None:
        if unknown := [key for key in _OF_SCENARIO if not is_plain(_content(sample.get(key)))]:
            why = _unknown(sample.get(unknown[0]))
            self.draft.lost(
                origin, f"the sample: its {' and '.join(unknown)}: {why}", "write it as a scenario"
            )
            return
        metadata = _mapping(sample.get("metadata"))
        if left := sorted(key for key, value in metadata.items() if not is_plain(value)):
            self.draft.lost(
                origin, f"metadata that would have to be run: {', '.join(left)}", "metadata: of it"
            )
        system, said = _prompt(sample.get("input"))
        targets = [str(one) for one in as_list(sample.get("target")) if one is not None]
        goal = solved.template.replace("{prompt}", said)
        system = "\n\n".join(filter(None, (solved.system if self.several else "", system)))
        checks: list[Json] = []
        for one in scorers:
            checks += self._score(one, targets, has_choices=solved.choices is not None)
        name, options = sample.get("id"), as_list(sample.get("choices"))
        if solved.choices is not None and not options:
            self.draft.lost(origin, "multiple_choice without choices", "write them as choices")
            return
        choices: dict[str, Json] = {}
        if solved.choices is not None:
            shuffled = solved.choices.get("shuffle") is True
            choices = {
                "options": [str(one) for one in options],
                "right": [*right_letters(targets)],
                "strict": True,
            }
            choices |= {"shuffle": True} if shuffled else {}
        files = sample.get("files")
        setup = sample.get("setup")
        if isinstance(files, dict) and any(
            "\n" not in str(text) and len(str(text)) < 200 for text in files.values()
        ):
            self.draft.lost(
                origin, "files that may be names of files", "write their text under workspace: files"
            )
        self.draft.add(
            origin,
            {
                "id": f"{self.name}-{len(self.draft.scenarios) + 1}"
                if not isinstance(name, str | int) or not name
                else str(name),
                "family": self.name if self.several else "",
                "group": next((str(metadata[key]) for key in SHARED if metadata.get(key)), ""),
                "goal": "\n\n".join(filter(None, (system, goal))) or " ",
                "choices": choices,
                "expected": targets[0] if len(targets) == 1 else [*targets],
                "workspace": {"files": {str(k): str(v) for k, v in files.items()}}
                if isinstance(files, dict)
                else {},
                "before": [{"command": setup}] if isinstance(setup, str) and setup.strip() else [],
                "checks": checks,
                "metadata": {key: one for key, one in metadata.items() if key not in left},
            },
        )

    def _score(self, scorer: Any, targets: list[str], *, has_choices: bool) -> list[dict[str, Json]]:
        name, line = _name(scorer), _line(scorer)
        if name == "choice" and has_choices:
            # `choices` bring their own check.
            return []
        make = SCORERS.get(name) if isinstance(scorer, Called) else None
        note = None
        if make is None:
            note = (f"the scorer {name}", _SCORE)
        elif not targets and name not in ("model_graded_qa", "model_graded_fact"):
            note = (f"the scorer {name} of a sample without a target", _SCORE)
        if note is not None or make is None:
            if note is not None and note not in [(one.what, one.way) for one in self.draft.missing]:
                self.lost(line, *note)
            # Not nothing: a scenario without a check would pass whatever is answered.
            return graded_check(Called(name="", args=(), kwargs={}, line=line), targets) if targets else []
        try:
            if unknown := [one for one in (*scorer.args, *scorer.kwargs.values()) if isinstance(one, Unread)]:
                raise UsageError(unknown[0].name)
            made = make(scorer, targets)
            for one in made:
                parse_check(one)
        except UsageError as error:
            self.lost(line, f"the scorer {name}: {error}", _SCORE)
            return []
        if (remark := SCORER_NOTES.get(name)) and remark not in [one.way for one in self.draft.missing]:
            self.lost(line, f"{name} as it is judged there", remark)
        return made


_SOLVERS: Final[dict[str, Callable[[_TaskReader, Called, _Solved], None]]] = {
    "generate": _TaskReader.nothing,
    "system_message": _TaskReader.system,
    "prompt_template": _TaskReader.template,
    "chain_of_thought": _TaskReader.thoughts,
    "multiple_choice": _TaskReader.multiple_choice,
    "use_tools": _TaskReader.use_tools,
    "basic_agent": _TaskReader.use_tools,
    "react": _TaskReader.use_tools,
}


def _name(one: Any) -> str:
    """Return what something is called, or why it is not known."""
    return str(getattr(one, "name", one))


def _line(one: Any) -> int:
    return one.error.line if isinstance(one, Unread) else int(getattr(one, "line", 0))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _content(given: Any) -> Any:
    """Return what an input says: of messages, their contents."""
    if not isinstance(given, list):
        return given
    return [one.arg("content", 0) if isinstance(one, Called) else one for one in given]


def _saved(dataset: Called) -> str:
    """Return how the rows of a dataset are saved, with the command where it is known."""
    path, kinds = (
        dataset.arg("path", 0),
        {"name": dataset.kwargs.get("name"), "split": dataset.kwargs.get("split")},
    )
    if dataset.name != "hf_dataset" or not isinstance(path, str):
        return _DATA
    given = "".join(f", {key}={one!r}" for key, one in kinds.items() if isinstance(one, str))
    load = f"from datasets import load_dataset; load_dataset({path!r}{given}).to_json('rows.jsonl')"
    return f'save its rows, python -c "{load}", and name them: --data rows.jsonl'


def _unknown(value: Any) -> str:
    """Return why a value is not known, of the first part of it that is not."""
    if isinstance(value, Unread):
        return value.name
    if isinstance(value, dict | list):
        parts = list(value.values()) if isinstance(value, dict) else value
        return next((_unknown(one) for one in parts if not is_plain(one)), "")
    return f"{_name(value)} would have to be run"


def _limits(task: Called) -> dict[str, Json]:
    return {ours: task.kwargs[key] for key, ours in _LIMITS.items() if isinstance(task.kwargs.get(key), int)}


def _sample(one: Called) -> dict[str, Any]:
    names = ("input", "choices", "target", "id", "metadata", "sandbox", "files", "setup")
    return dict(zip(names, one.args, strict=False)) | dict(one.kwargs)


def _prompt(given: Any) -> tuple[str, str]:
    """Return the system message and the text of a sample's input."""
    if not isinstance(given, list):
        return "", str(given or "")
    said: list[tuple[str, str]] = []
    for one in given:
        if isinstance(one, Called):
            role = re.sub(r"^ChatMessage", "", one.name).lower()
            said.append((role, str(one.arg("content", 0) or "")))
        elif isinstance(one, dict):
            said.append((str(one.get("role", "user")), str(one.get("content", ""))))
    system = "\n\n".join(text for role, text in said if role == "system")
    rest = [(role, text) for role, text in said if role != "system"]
    return system, rest[0][1] if len(rest) == 1 else "\n\n".join(f"{role}: {text}" for role, text in rest)
