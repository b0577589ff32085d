"""Suites of promptfoo: prompts, providers, tests with their variables, scenarios, CSV files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.checks.parse import parse_check
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
from kestrel_lab.evals.importers.suites.promptfoo_assertions import (
    JUDGED_OTHERWISE,
    RUN_ONE,
    check_of,
    csv_test,
    is_graded,
    text_of,
    way_of,
)
from kestrel_lab.evals.suites.row_filters import render_filtered

_PROVIDERS: Final = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gemini",
    "vertex": "vertex_ai",
    "ollama": "ollama_chat",
    "openrouter": "openrouter",
    "azure": "azure",
    "azureopenai": "azure",
    "mistral": "mistral",
    "groq": "groq",
    "deepseek": "deepseek",
    "bedrock": "bedrock",
    "xai": "xai",
    "cohere": "cohere",
    "perplexity": "perplexity",
    "cerebras": "cerebras",
    "togetherai": "together_ai",
    "fireworks": "fireworks_ai",
    "cloudflare-ai": "cloudflare",
    "litellm": "",
    **{
        name: name
        for name in (
            *("ai21", "databricks", "deepinfra", "fireworks_ai", "github", "huggingface", "hyperbolic"),
            *(
                "nebius",
                "novita",
                "nscale",
                "replicate",
                "sagemaker",
                "sambanova",
                "snowflake",
                "together_ai",
            ),
            *("vertex_ai", "vllm", "voyage", "watsonx"),
        )
    },
}
"""Their providers by the names that litellm has for them."""
_OTHER_KINDS: Final = frozenset(
    {
        *("embedding", "embeddings", "realtime", "image", "video", "audio", "speech", "transcription"),
        *("moderation", "assistant", "text-classification", "token-classification", "feature-extraction"),
        *("sentence-similarity", "agents", "knowledge-base", "codex-sdk", "claude-agent-sdk"),
    }
)
"""Kinds of providers that write no text, or are agents of their own."""
_SETTINGS: Final = frozenset(
    {
        *("prompts", "providers", "targets", "tests", "defaultTest", "scenarios", "description"),
        *("evaluateOptions", "commandLineOptions", "metadata", "tags", "sharing", "outputPath", "$schema"),
        *("assertionTemplates", "env"),
    }
)
_TEST: Final = frozenset({"vars", "assert", "options", "description", "threshold", "metadata", "provider"})
_CODE: Final = (".py", ".js", ".ts", ".mjs", ".cjs", ".rb", ".go", ".sh")


_Prompt = tuple[str, str, str]
"""A name, the system message and the text."""


def read_promptfoo(path: Path) -> SuiteDraft:
    """Return the suite of a promptfoo configuration; raises `UsageError` for a file that is none."""
    value = read_yaml(path, aliases=True).value
    if not isinstance(value, dict) or not {"prompts", "tests", "scenarios"} & set(value):
        raise UsageError(f"{path} has neither prompts nor tests: it is no configuration of promptfoo")
    return _Reader(path, value).read()


class _Reader:
    """The reading of one configuration."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.draft = SuiteDraft(source=path, tool="promptfoo")
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
        options = {**_mapping(config.get("commandLineOptions")), **_mapping(config.get("evaluateOptions"))}
        if isinstance(repeat := options.get("repeat"), int) and repeat > 1:
            suite["epochs"] = repeat
        if isinstance(at_once := options.get("maxConcurrency"), int) and at_once > 0:
            suite["concurrency"] = at_once
        configs: list[Json] = list(self._providers())
        if configs:
            suite["configs"] = configs
        grader = _mapping(self.default.get("options")).get("provider", self.default.get("provider"))
        if grader is not None and (model := self._text_model("defaultTest.options.provider", grader)):
            suite["grader"] = model
        # A prompt of theirs has no tools; ours would have those that read files.
        suite["defaults"] = {"tools": []}
        for key in sorted(set(config) - _SETTINGS):
            self.draft.lost(key, f"the key {key}", "a workflow or a Python suite, where it matters")

    def _providers(self) -> Iterator[dict[str, Json]]:
        names: set[str] = set()
        for place, one in enumerate(self._given_providers()):
            where = f"providers[{place}]"
            given = {"id": one} if isinstance(one, str) else _mapping(one)
            if len(given) == 1 and "id" not in given:
                ((name, options),) = given.items()
                given = {**_mapping(options), "id": name}
            model = self._model(given.get("id"))
            if not model:
                self.draft.lost(
                    where,
                    f"the provider {one_line(str(given.get('id') or one), 60)!r}, which does not exist here",
                    "another model: kestrel eval run SUITE --model NAME",
                )
                continue
            options = _mapping(given.get("config"))
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

    def _model(self, given: Any) -> str:
        """Return the model that a provider's id names; empty where ours has none such."""
        name = str(_mapping(given).get("id", "")) if isinstance(given, dict) else str(given or "")
        maker, *rest = name.split(":")
        if rest and rest[0] in ("chat", "messages", "completion", "responses", "text", "text-generation"):
            rest = rest[1:]
        known = _PROVIDERS.get(maker)
        if known is None or not rest or rest[0] in _OTHER_KINDS:
            return ""
        return f"{known}/{':'.join(rest)}".removeprefix("/")

    # Prompts

    def _prompts(self) -> Iterator[_Prompt]:
        given_prompts = self.config.get("prompts")
        # A mapping has labels by file.
        if isinstance(given_prompts, dict):
            given_prompts = [
                {"id": f"file://{name}", "label": label} for name, label in given_prompts.items()
            ]
        for place, one in enumerate(as_list(given_prompts) or ["{{prompt}}"]):
            given = {"raw": one} if isinstance(one, str) else _mapping(one)
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
            if bare.endswith(_CODE):
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
            given = _mapping(self._from_file(where, scenario) if isinstance(scenario, str) else scenario)
            inner = list(self._test_list(f"{where}.tests", given.get("tests"))) or [(where, {})]
            for number, data in enumerate(as_list(given.get("config"))):
                for at, test in inner:
                    yield f"{at} with {where}.config[{number}]", _merged(_mapping(data), test)
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
            if name.partition(":")[0].endswith(_CODE) or "://" in name:
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
            read = [_mapping(self._from_file(f"{where}.vars", name)) for name in named]
            given = {key: value for one in read for key, value in one.items()}
        variables = {**_mapping(self.default.get("vars")), **_mapping(given)}
        for key, value in variables.items():
            if not isinstance(value, str) or not value.startswith("file://"):
                continue
            name = value.removeprefix("file://")
            if name.endswith((".yaml", ".yml", ".json")) and "*" not in name:
                variables[key] = self._from_file(f"{where}.vars.{key}", value)
                continue
            try:
                if name.partition(":")[0].endswith(_CODE):
                    raise UsageError(f"the variable {key} of {name}, which would have to be run")
                texts: list[Json] = [
                    read_beside(self.path, one).strip() for one in files_beside(self.path, name)
                ]
                variables[key] = texts if "*" in name else texts[0]
            except UsageError as error:
                self.draft.lost(f"{where}.vars.{key}", str(error), "write its value out")
                return
        options = {**_mapping(self.default.get("options")), **_mapping(test.get("options"))}
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
        options = {**_mapping(self.default.get("options")), **_mapping(test.get("options"))}
        label, instructions, text = prompt
        for key in sorted(
            set(options) & {"transform", "postprocess", "transformVars", "rubricPrompt", "storeOutputAs"}
        ):
            self.draft.lost(where, f"the option {key}", RUN_ONE)
        if (provider := _mapping(test.get("options")).get("provider", test.get("provider"))) is not None:
            model = self._text_model(f"{where}.options.provider", provider)
            if model and model != self.draft.suite.get("grader"):
                asked = f"the grader {model} of one test"
                self.draft.lost(f"{where}.options.provider", asked, "model: of its graded checks")
        for key in sorted((set(test) | set(self.default)) - _TEST):
            self.draft.lost(
                where, f"the key {key} of a test", RUN_ONE if "Function" in key else "a key of the scenario"
            )
        try:
            # Values may have templates of their own, which see the other values.
            scope = {key: _rendered(value, variables) for key, value in variables.items()}
            system = str(_rendered(instructions, scope))
            goal = "".join(
                str(_rendered(part, scope))
                for part in (options.get("prefix", ""), text, options.get("suffix", ""))
            )
        except UsageError as error:
            self.draft.lost(where, f"the prompt cannot be filled in: {error}", "write the goal out")
            return
        asserts = [*as_list(self.default.get("assert")), *as_list(test.get("assert"))]
        checks = [
            item
            for place, one in enumerate(asserts)
            if (item := self._check(f"{where}.assert[{place}]", _mapping(one), scope)) is not None
        ]
        if asserts and not checks:
            self.draft.lost(where, "no assertion of it can be carried over, so it is left out", RUN_ONE)
            return
        threshold = self._threshold(where, test if "threshold" in test else self.default)
        metadata = {**_mapping(self.default.get("metadata")), **_mapping(test.get("metadata"))}
        self.draft.add(
            where,
            {
                "id": name,
                "family": label if len(as_list(self.config.get("prompts"))) > 1 else "",
                "goal": f"{system}\n\n{goal}" if system else goal or " ",
                "checks": cast("list[Json]", checks),
                "at_least": threshold,
                "metadata": metadata,
            },
        )

    def _note_unread(
        self, where: str, test: dict[str, Any], variables: Mapping[str, Json], prompts: Sequence[_Prompt]
    ) -> None:
        """Note variables that neither a prompt nor an assertion reads: with them, a provider does."""
        options = {**_mapping(self.default.get("options")), **_mapping(test.get("options"))}
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

    # Assertions

    def _check(self, where: str, one: dict[str, Any], scope: Mapping[str, Json]) -> dict[str, Json] | None:
        """Return an assertion as a check; `None` where it is noted as not carried over."""
        if isinstance(name := one.get("$ref"), str):
            known = _mapping(self.config.get("assertionTemplates"))
            one = {**_mapping(known.get(name.removeprefix("#/assertionTemplates/"))), **one}
        kind = str(one.get("type", "without a type"))
        try:
            made = (
                self._set(where, one, scope)
                if kind == "assert-set"
                else self._single(where, kind, one, scope)
            )
            if made is None:
                raise UsageError("ours has no such check")
            if metric := one.get("metric"):
                made["name"] = str(_rendered(metric, scope))
            weight = one.get("weight")
            if isinstance(weight, int | float) and not isinstance(weight, bool):
                made |= {"weight": weight} if weight != 1 else {}
            elif weight is not None:
                self.draft.lost(where, f"the weight {one_line(repr(weight), 40)}", "weight, a number")
            parse_check(made)
        except UsageError as error:
            self.draft.lost(where, f"the assertion {kind}: {error}", way_of(kind))
            return None
        if "transform" in one:
            self.draft.lost(where, "the transform of an assertion", RUN_ONE)
        note = JUDGED_OTHERWISE.get(kind.removeprefix("not-"))
        # A remark is made once, and not at each place.
        if note and note not in [one.way for one in self.draft.missing]:
            self.draft.lost(where, f"{kind} as it is judged there, here and elsewhere", note)
        return made

    def _set(self, where: str, one: dict[str, Any], scope: Mapping[str, Json]) -> dict[str, Json] | None:
        parts: list[Json] = [
            item
            for place, inner in enumerate(as_list(one.get("assert")))
            if (item := self._check(f"{where}.assert[{place}]", _mapping(inner), scope)) is not None
        ]
        threshold = self._threshold(where, one)
        share: dict[str, Json] = {} if threshold is None else {"at_least": threshold}
        return {"all_of": parts, **share} if parts else None

    def _threshold(self, where: str, one: Mapping[str, Any]) -> float | None:
        """Return a threshold as it is; one that is no number from 0 to 1 is noted."""
        threshold = one.get("threshold")
        if threshold is None:
            return None
        if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 <= threshold <= 1:
            self.draft.lost(
                where, f"the threshold {one_line(repr(threshold), 40)}", "at_least, a number from 0 to 1"
            )
            return None
        return threshold

    def _single(
        self, where: str, kind: str, one: dict[str, Any], scope: Mapping[str, Json]
    ) -> dict[str, Json] | None:
        value = _rendered(one.get("value"), scope)
        if isinstance(value, str) and value.startswith("file://"):
            value = self._asserted_file(value)
        model = self._grader(where, kind, one)
        grader = "" if model == self.draft.suite.get("grader") else model
        made = check_of(kind.removeprefix("not-"), value, self._limit(where, kind, one), grader)
        return {"not": made} if made is not None and kind.startswith("not-") else made

    def _grader(self, where: str, kind: str, one: Mapping[str, Any]) -> str:
        """Return the model that an assertion names as its grader; empty for the suite's."""
        provider = one.get("provider")
        if provider is None or not is_graded(kind):
            return ""
        return self._text_model(where, provider)

    def _text_model(self, where: str, provider: Any) -> str:
        """Return the model of a grader, which may be named for texts alone; one that is not here is noted."""
        if isinstance(provider, dict) and "id" not in provider:
            provider = provider.get("text")
        model = self._model(provider)
        if not model:
            self.draft.lost(
                where,
                f"the grader {one_line(repr(provider), 60)}, which does not exist here",
                "grader: of the suite, or model: of the check",
            )
        elif isinstance(provider, dict) and provider.get("config"):
            self.draft.lost(where, f"the settings of the grader {model}", "grader: takes a model alone")
        return model

    def _limit(self, where: str, kind: str, one: Mapping[str, Any]) -> float | None:
        """Return the threshold of an assertion; one that its check here does not take is noted."""
        threshold = one.get("threshold")
        if threshold is None:
            return None
        name = kind.removeprefix("not-")
        counts = name in ("levenshtein", "cost", "latency")
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            self.draft.lost(where, f"the threshold {one_line(repr(threshold), 40)}", "a number")
            return None
        if not counts and not (is_graded(kind) and 0 < threshold <= 1):
            way = (
                "at_least of a graded check, above 0 and at most 1"
                if is_graded(kind)
                else "weights and at_least"
            )
            self.draft.lost(where, f"the threshold {threshold:g} of {kind}", way)
            return None
        return float(threshold)

    def _asserted_file(self, name: str) -> Json:
        name = name.removeprefix("file://")
        if name.partition(":")[0].endswith(_CODE):
            raise UsageError(f"{name} would have to be run")
        text = read_beside(self.path, name)
        if name.endswith(".json"):
            return loads(text)
        return parse_yaml(text, name).value if name.endswith((".yaml", ".yml")) else text


def _rendered(value: Any, scope: Mapping[str, Json]) -> Json:
    """Return a value with its templates filled in; what is not there is empty, as with them."""
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return text_of(render_filtered(f"{value}{_NOTHING}", scope, lenient=True)).removesuffix(_NOTHING)
    if isinstance(value, list):
        return [_rendered(item, scope) for item in value]
    if isinstance(value, dict):
        return {key: _rendered(item, scope) for key, item in value.items()}
    return cast("Json", value)


_NOTHING: Final = "\u200b"
"""Behind a template, so that one expression is text too: variables of theirs are texts in a prompt."""


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
    both = {**first, **test, "vars": {**_mapping(first.get("vars")), **_mapping(test.get("vars"))}}
    return {**both, "assert": [*as_list(first.get("assert")), *as_list(test.get("assert"))]}


def _name(path: Path) -> str:
    return path.parent.resolve().name if path.stem == "promptfooconfig" else path.stem


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
