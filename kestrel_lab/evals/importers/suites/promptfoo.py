"""Suites of promptfoo: prompts, providers, tests with their variables, scenarios, CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.core.yaml.reader import parse_yaml, read_yaml
from kestrel_lab.evals.importers.suites.draft import (
    SuiteDraft,
    as_list,
    files_beside,
    is_carried,
    known_params,
    read_beside,
)
from kestrel_lab.evals.importers.suites.promptfoo_assertions import RUN_ONE, csv_test, text_of
from kestrel_lab.evals.importers.suites.promptfoo_checks import CODE, AssertionReader, as_mapping, rendered
from kestrel_lab.evals.importers.suites.promptfoo_models import model_of

_SETTINGS: Final = frozenset(
    {
        *("prompts", "providers", "targets", "tests", "defaultTest", "scenarios", "description"),
        *("evaluateOptions", "commandLineOptions", "metadata", "tags", "sharing", "outputPath", "$schema"),
        *("assertionTemplates", "env"),
    }
)
_TEST: Final = frozenset({"vars", "assert", "options", "description", "threshold", "metadata", "provider"})


_Prompt = tuple[str, str, str]
"""A name, the system message and the text."""


def is_promptfoo(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a value is a configuration of promptfoo."""
    return isinstance(value, dict) and bool({"prompts", "tests", "scenarios"} & set(value))


def read_promptfoo(path: Path) -> SuiteDraft:
    """Return the suite of a promptfoo configuration; raises `UsageError` for a file that is none."""
    value = read_yaml(path, aliases=True).value
    if not is_promptfoo(value):
        raise UsageError(f"{path} has neither prompts nor tests: it is no configuration of promptfoo")
    return _Reader(path, value).read()


class _Reader:
    """The reading of one configuration."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.draft = SuiteDraft(source=path, tool="promptfoo")
        self.checks = AssertionReader(self.draft, path, as_mapping(config.get("assertionTemplates")))
        default = config.get("defaultTest")
        if isinstance(default, str):
            default = self._from_file("defaultTest", default)
        self.default = default if isinstance(default, dict) else {}

    def read(self) -> SuiteDraft:
        self._settings()
        prompts = list(self._prompts())
        tests = list(self._tests())
        several = len(prompts) > 1
        for number, (where, test) in enumerate(tests, 1):
            self._note_odd_parts(where, test)
            for origin, variables in self._variables(where, test):
                if origin == where or origin.endswith(", combination 1"):
                    self._note_unread(where, test, variables, prompts)
                for prompt in prompts:
                    name = str(test.get("description") or f"test-{number}")
                    self._scenario(
                        origin, f"{name}-{prompt[0]}" if several else name, test, variables, prompt
                    )
        return self.draft

    def _settings(self) -> None:
        config, suite = self.config, self.draft.suite
        suite["name"] = _name(self.path)
        options = {
            **as_mapping(config.get("commandLineOptions")),
            **as_mapping(config.get("evaluateOptions")),
        }
        if isinstance(repeat := options.get("repeat"), int) and repeat > 1:
            suite["epochs"] = repeat
        if isinstance(at_once := options.get("maxConcurrency"), int) and at_once > 0:
            suite["concurrency"] = at_once
        configs: list[Json] = list(self._providers())
        if configs:
            suite["configs"] = configs
        grader = as_mapping(self.default.get("options")).get("provider", self.default.get("provider"))
        if grader is not None and (model := self.checks.grader("defaultTest.options.provider", grader)):
            suite["grader"] = model
        # A prompt of theirs has no tools; ours would have those that read files.
        suite["defaults"] = {"tools": []}
        for key in sorted(set(config) - _SETTINGS):
            self.draft.lost(key, f"the key {key}", "a workflow or a Python suite, where it matters")

    def _providers(self) -> Iterator[dict[str, Json]]:
        names: set[str] = set()
        for place, one in enumerate(self._given_providers()):
            where = f"providers[{place}]"
            given = {"id": one} if isinstance(one, str) else as_mapping(one)
            if len(given) == 1 and "id" not in given:
                ((name, options),) = given.items()
                given = {**as_mapping(options), "id": name}
            model = model_of(given.get("id"))
            if not model:
                self.draft.lost(
                    where,
                    f"the provider {one_line(str(given.get('id') or one), 60)!r}, which does not exist here",
                    "another model: kestrel eval run SUITE --model NAME",
                )
                continue
            options = as_mapping(given.get("config"))
            made: dict[str, Json] = {"name": str(given.get("label") or model), "model": model}
            if isinstance(heat := options.get("temperature"), int | float):
                made["temperature"] = heat
            if params := known_params(options):
                made["params"] = {**params}
            self._left_settings(f"{where}.config", options)
            for key in ("transform", "prompts", "delay"):
                if key in given:
                    self.draft.lost(where, f"the key {key}", "another configuration or scenario")
            if made["name"] in names:
                made["name"] = f"{made['name']} {place + 1}"
            names.add(str(made["name"]))
            yield made

    def _given_providers(self) -> Iterator[Any]:
        """Yield the providers, those that files of YAML or JSON declare among them."""
        for place, one in enumerate(as_list(self.config.get("providers", self.config.get("targets")))):
            if (
                isinstance(one, str)
                and one.startswith("file://")
                and one.endswith((".yaml", ".yml", ".json"))
            ):
                yield from as_list(self._from_file(f"providers[{place}]", one))
            else:
                yield one

    def _left_settings(self, where: str, options: Mapping[str, Any]) -> None:
        for key, value in sorted(options.items()):
            if key not in ("apiKey", "organization") and not is_carried(key, value):
                tools = key in ("tools", "functions")
                way = "name the tools under tools" if tools else "a setting of the model or its server"
                self.draft.lost(where, f"the setting {key}", way)

    # Prompts

    def _prompts(self) -> Iterator[_Prompt]:
        given_prompts = self.config.get("prompts")
        # A mapping has labels by file.
        if isinstance(given_prompts, dict):
            given_prompts = [
                {"id": f"file://{name}", "label": label} for name, label in given_prompts.items()
            ]
        for place, one in enumerate(as_list(given_prompts) or ["{{prompt}}"]):
            given = {"raw": one} if isinstance(one, str) else as_mapping(one)
            text = str(given.get("raw") or given.get("id") or "")
            label = str(given.get("label") or f"prompt-{place + 1}")
            try:
                pieces = self._prompt_texts(text)
            except UsageError as error:
                self.draft.lost(f"prompts[{place}]", str(error), "write the prompt out, or a Python suite")
                continue
            for number, piece in enumerate(pieces, 1):
                system, said = _chat(piece)
                name = label if len(pieces) == 1 else f"{label}-{number}"
                yield name, system, said

    def _prompt_texts(self, text: str) -> list[str]:
        name = text.removeprefix("file://")
        is_file = text != name or re.fullmatch(
            r"[\w./*-]+\.(txt|md|json|ya?ml|j2|py|js|ts|mjs|cjs)(:\w+)?", text
        )
        if not is_file:
            return [text]
        found: list[str] = []
        for bare in files_beside(self.path, name.partition(":")[0]):
            if bare.endswith(CODE):
                raise UsageError(f"the prompt function {name}, which would have to be run")
            content = read_beside(self.path, bare)
            if bare.endswith((".yaml", ".yml")):
                content = dumps(parse_yaml(content, bare).value)
            parts = [one.strip("\n") for one in re.split(r"(?m)^---\s*$", content) if one.strip()]
            found += parts or [content]
        return found

    # Tests

    def _tests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield from self._test_list("tests", self.config.get("tests"))
        for place, scenario in enumerate(as_list(self.config.get("scenarios"))):
            where = f"scenarios[{place}]"
            given = as_mapping(self._from_file(where, scenario) if isinstance(scenario, str) else scenario)
            inner = list(self._test_list(f"{where}.tests", given.get("tests"))) or [(where, {})]
            for number, data in enumerate(as_list(given.get("config"))):
                for at, test in inner:
                    yield f"{at} with {where}.config[{number}]", _merged(as_mapping(data), test)
        if not self.config.get("tests") and not self.config.get("scenarios"):
            yield "prompts", {}

    def _test_list(self, where: str, given: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for place, one in enumerate(as_list(given)):
            at = f"{where}[{place}]"
            # A mapping with a path has the options of code under `config`.
            path = one["path"] if isinstance(one, dict) and "path" in one else one
            if not isinstance(path, str):
                if isinstance(one, dict):
                    yield at, one
                else:
                    self.draft.lost(
                        at, f"the test: it is no mapping, but {one_line(repr(one), 40)}", "write it as one"
                    )
                continue
            name = path.removeprefix("file://")
            for file in self._named_files(at, name):
                if file.lower().endswith(".csv"):
                    yield from self._csv(at, file)
                elif (found := self._from_file(at, file)) is not None:
                    yield from self._file_tests(file, found)

    def _file_tests(self, file: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for number, test in enumerate(as_list(value)):
            place = f"{file}[{number}]"
            if isinstance(test, dict):
                yield place, test
            else:
                self.draft.lost(
                    place, f"the test: it is no mapping, but {one_line(repr(test), 40)}", "write it as one"
                )

    def _named_files(self, where: str, name: str) -> list[str]:
        try:
            return files_beside(self.path, name)
        except UsageError as error:
            self.draft.lost(where, str(error), "name files that are there")
            return []

    def _from_file(self, where: str, name: str) -> Any:
        """Return what a file of YAML, JSON or JSON Lines holds; `None` where it cannot be read without being
        run.
        """
        name = name.removeprefix("file://")
        try:
            if name.partition(":")[0].endswith(CODE) or "://" in name:
                raise UsageError(f"{name}, which would have to be {'fetched' if '://' in name else 'run'}")
            text = read_beside(self.path, name)
            if name.endswith(".jsonl"):
                return list(self._json_lines(where, name, text))
            return loads(text) if name.endswith(".json") else parse_yaml(text, name, aliases=True).value
        except (UsageError, ValueError) as error:
            self.draft.lost(where, str(error), "save what it gives as YAML or CSV, and name that")
            return None

    def _json_lines(self, where: str, name: str, text: str) -> Iterator[Any]:
        """Yield the values of JSON Lines; a line that is none is noted and costs itself alone."""
        for number, line in enumerate(split_lines(text), 1):
            if line.strip():
                try:
                    yield loads(line)
                except ValueError as error:
                    self.draft.lost(f"{where}, {name}:{number}", f"the line: {error}", "write it as JSON")

    def _csv(self, where: str, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            rows = list(csv.DictReader(io.StringIO(read_beside(self.path, name), newline="")))
        except (UsageError, csv.Error) as error:
            self.draft.lost(where, str(error), "put the file beside the configuration")
            return
        for number, row in enumerate(rows, 1):
            test, unknown = csv_test(row)
            for column in unknown:
                self.draft.lost(f"{name} row {number}", f"the column {column}", "a key of the scenario")
            yield f"{name} row {number}", test

    def _variables(self, where: str, test: dict[str, Any]) -> Iterator[tuple[str, dict[str, Json]]]:
        """Yield the variables of a test: one set for each combination of values in lists."""
        given = test.get("vars")
        if isinstance(given, str | list):
            named = [
                file
                for name in as_list(given)
                for file in self._named_files(f"{where}.vars", str(name).removeprefix("file://"))
            ]
            read = [as_mapping(self._from_file(f"{where}.vars", name)) for name in named]
            given = {key: value for one in read for key, value in one.items()}
        variables = {**as_mapping(self.default.get("vars")), **as_mapping(given)}
        for key, value in variables.items():
            if not isinstance(value, str) or not value.startswith("file://"):
                continue
            name = value.removeprefix("file://")
            if name.endswith((".yaml", ".yml", ".json")) and "*" not in name:
                variables[key] = self._from_file(f"{where}.vars.{key}", value)
                continue
            try:
                if name.partition(":")[0].endswith(CODE):
                    raise UsageError(f"the variable {key} of {name}, which would have to be run")
                texts: list[Json] = [
                    read_beside(self.path, one).strip() for one in files_beside(self.path, name)
                ]
                variables[key] = texts if "*" in name else texts[0]
            except UsageError as error:
                self.draft.lost(f"{where}.vars.{key}", str(error), "write its value out")
                return
        options = {**as_mapping(self.default.get("options")), **as_mapping(test.get("options"))}
        # As there, a list is several values where its first is a text, and one value otherwise.
        lists = {
            key: value
            for key, value in variables.items()
            if isinstance(value, list) and value and isinstance(value[0], str)
        }
        if not lists or options.get("disableVarExpansion"):
            yield where, variables
            return
        for number, chosen in enumerate(product(*lists.values()), 1):
            yield f"{where}, combination {number}", {**variables, **dict(zip(lists, chosen, strict=True))}

    def _scenario(
        self, where: str, name: str, test: dict[str, Any], variables: dict[str, Json], prompt: _Prompt
    ) -> None:
        options = {**as_mapping(self.default.get("options")), **as_mapping(test.get("options"))}
        label, instructions, text = prompt
        for key in sorted(
            set(options) & {"transform", "postprocess", "transformVars", "rubricPrompt", "storeOutputAs"}
        ):
            self.draft.lost(where, f"the option {key}", RUN_ONE)
        if (provider := as_mapping(test.get("options")).get("provider", test.get("provider"))) is not None:
            model = self.checks.grader(f"{where}.options.provider", provider)
            if model and model != self.draft.suite.get("grader"):
                asked = f"the grader {model} of one test"
                self.draft.lost(f"{where}.options.provider", asked, "model: of its graded checks")
        for key in sorted((set(test) | set(self.default)) - _TEST):
            self.draft.lost(
                where, f"the key {key} of a test", RUN_ONE if "Function" in key else "a key of the scenario"
            )
        try:
            # Values may have templates of their own, which see the other values.
            scope = {key: rendered(value, variables) for key, value in variables.items()}
            system = str(rendered(instructions, scope))
            goal = "".join(
                str(rendered(part, scope))
                for part in (options.get("prefix", ""), text, options.get("suffix", ""))
            )
        except UsageError as error:
            self.draft.lost(where, f"the prompt cannot be filled in: {error}", "write the goal out")
            return
        asserts = [*as_list(self.default.get("assert")), *as_list(test.get("assert"))]
        checks = [
            item
            for place, one in enumerate(asserts)
            if (item := self.checks.read(f"{where}.assert[{place}]", as_mapping(one), scope)) is not None
        ]
        if asserts and not checks:
            self.draft.lost(where, "no assertion of it can be carried over, so it is left out", RUN_ONE)
            return
        threshold = self.checks.threshold(where, test if "threshold" in test else self.default)
        metadata = {**as_mapping(self.default.get("metadata")), **as_mapping(test.get("metadata"))}
        several = len(as_list(self.config.get("prompts"))) > 1
        self.draft.add(
            where,
            {
                "id": name,
                "family": label if several else "",
                # One test with each of its prompts and combinations of values is one thing.
                "group": where.partition(",")[0] if several or "," in where else "",
                "goal": f"{system}\n\n{goal}" if system else goal or " ",
                "checks": cast("list[Json]", checks),
                "at_least": threshold,
                "metadata": metadata,
            },
        )

    def _note_odd_parts(self, where: str, test: Mapping[str, Any]) -> None:
        """Note parts of a test that are of another type than theirs, and are left out."""
        for key, types in (("vars", (dict, str, list)), ("options", (dict,)), ("metadata", (dict,))):
            if (value := test.get(key)) is not None and not isinstance(value, types):
                shown = one_line(repr(value), 40)
                self.draft.lost(f"{where}.{key}", f"{key}: it is no mapping, but {shown}", "write it as one")

    def _note_unread(
        self, where: str, test: dict[str, Any], variables: Mapping[str, Json], prompts: Sequence[_Prompt]
    ) -> None:
        """Note variables that neither a prompt nor an assertion reads: with them, a provider does."""
        options = {**as_mapping(self.default.get("options")), **as_mapping(test.get("options"))}
        asserts = [*as_list(self.default.get("assert")), *as_list(test.get("assert"))]
        templates = repr([prompts, options, asserts, self.config.get("assertionTemplates")])
        templates += repr([*variables.values()])
        for name in variables:
            if not re.search(rf"\b{re.escape(name)}\b", templates):
                self.draft.lost(
                    f"{where}.vars.{name}",
                    f"the variable {name}, which no prompt and no assertion reads",
                    "metadata of the scenario; what a provider made of it is code",
                )


def _chat(text: str) -> tuple[str, str]:
    """Return system message and the rest of a prompt that is a list of chat messages, or the text itself."""
    try:
        found = loads(text) if text.lstrip().startswith(("[", '{"')) else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        found = found.get("messages")
    messages = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    if not messages or not all("role" in one for one in messages):
        return "", text
    said = [(str(one["role"]), _said(one.get("content"))) for one in messages]
    system = "\n\n".join(words for role, words in said if role == "system")
    rest = [(role, words) for role, words in said if role != "system"]
    if len(rest) == 1:
        return system, rest[0][1]
    return system, "\n\n".join(f"{role}: {words}" for role, words in rest)


def _said(content: Json) -> str:
    """Return the text of a message, which may come in parts."""
    if not isinstance(content, list):
        return text_of(content)
    return "\n".join(text_of(part.get("text")) for part in content if isinstance(part, dict))


def _merged(first: dict[str, Any], test: dict[str, Any]) -> dict[str, Any]:
    both = {**first, **test, "vars": {**as_mapping(first.get("vars")), **as_mapping(test.get("vars"))}}
    return {**both, "assert": [*as_list(first.get("assert")), *as_list(test.get("assert"))]}


def _name(path: Path) -> str:
    return path.parent.resolve().name if path.stem == "promptfooconfig" else path.stem
