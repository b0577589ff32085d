"""Tasks of the Berkeley Function Calling Leaderboard (package `bfcl-eval`), through our loop, with its tools
and its scorers.
"""

from __future__ import annotations

import copy
import importlib
import json
import keyword
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, cast

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.benchmarks.calls import WrittenCall, calls_by_turn
from kestrel_lab.evals.benchmarks.isolated_import import check_limit, import_parts, installed_package
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.tool import Tool

SINGLE: Final = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
"""Categories in which the calls of one answer are compared with possible ones."""
NONE: Final = ("irrelevance",)
"""Categories in which no function fits, and none must be called."""
MULTI: Final = ("multi_turn_base", "multi_turn_miss_param", "multi_turn_long_context")
"""Categories of conversations, judged by the state that the calls leave and by what they answered."""
STEPS: Final = 20
"""Model turns that a conversation may take for each thing the user says, as in the benchmark."""
_PREFIX: Final = "BFCL_v4_"
_PACKAGE, _DISTRIBUTION = "bfcl_eval", "bfcl-eval"
_TURNS: Final = f"{_PACKAGE}.eval_checker.multi_turn_eval"
_NOTED: Final = "The call has been noted. Nothing is executed here: say in a few words that you are done."


def load_bfcl(category: str, *, limit: int | None = None) -> Suite:
    """The tasks of a category as a suite named `bfcl:CATEGORY`, the first `limit` of them; needs `pip install
    --no-deps bfcl-eval`.

    In the categories of single answers the calls of the model's first answer are judged by the package's AST
    checker, as in the benchmark; they are not executed. In those of conversations the functions work on a
    state made afresh for each trial, and the package's checker plays the calls of every turn beside the right
    ones and compares states and answers. Names of functions have `_` in place of `.`, as for models that
    allow no dots.

    Raises `UsageError` for another category (those in Java and JavaScript, with a memory, a web search or
    tools that appear later are not supported) and where the package is not installed.
    """
    if category not in (known := (*SINGLE, *NONE, *MULTI)):
        raise UsageError(
            f"bfcl has no category {category!r} that can be run here; {did_you_mean(category, known)}"
        )
    check_limit(f"bfcl:{category}", limit)
    folder, version = installed_package(_PACKAGE, _DISTRIBUTION)
    answers = (
        {}
        if category in NONE
        else {row["id"]: row["ground_truth"] for row in _rows(folder, f"possible_answer/{_PREFIX}{category}")}
    )
    make = partial(_conversation, folder) if category in MULTI else _single
    entries = list(_rows(folder, f"{_PREFIX}{category}"))[:limit]
    scenarios = tuple(make(version, category, entry, answers.get(entry["id"], [])) for entry in entries)
    return Suite(name=f"bfcl:{category}", scenarios=scenarios)


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsMatch:
    """The calls of the first answer are possible ones; in a category where nothing fits, there are none."""

    category: str

    @property
    def label(self) -> str:
        """The check in words."""
        return "calls match"

    async def __call__(self, trial: Trial) -> Score:
        """Return the verdict of the package's AST checker."""
        task = cast("dict[str, Any]", trial.expected)
        turns = calls_by_turn(trial.records)
        first = turns[0][0] if turns and turns[0] else []
        if self.category in NONE:
            named = ", ".join(call.tool for call in first)
            return _score(self.label, valid=not first, reason=f"called {named}, but no function fits")
        if not first:
            return _score(self.label, valid=False, reason="no function was called")
        checker = _ast_checker()
        output = [{call.tool: call.args} for call in first]
        found = checker.ast_checker(
            task["functions"], output, task["answer"], checker.Language.PYTHON, self.category, _AS_MODEL
        )
        return _score(self.label, valid=found["valid"], reason=_reason(found.get("error")))


@dataclass(frozen=True, kw_only=True, slots=True)
class StatesMatch:
    """After every turn the calls have left the same state as the right ones, and given all of their
    answers.
    """

    @property
    def label(self) -> str:
        """The check in words."""
        return "states match"

    async def __call__(self, trial: Trial) -> Score:
        """Return the verdict of the package's multi-turn checker."""
        task = cast("dict[str, Any]", trial.expected)
        turns = calls_by_turn(trial.records)
        if len(turns) != len(task["answer"]):
            return _score(
                self.label,
                valid=False,
                reason=f"the conversation ended in turn {len(turns)} of {len(task['answer'])}",
            )
        written = [
            [step for calls in turn if (step := [text for call in calls if (text := _call_as_python(call))])]
            for turn in turns
        ]
        module = _module("multi_turn_checker")
        # A name of its own: trials that run at once must not share the package's instances.
        name = f"kestrel{secrets.token_hex(8)}"
        try:
            found = module.multi_turn_checker(written, task["answer"], task["entry"], "", name)
        finally:
            # The package keeps every instance for ever, under a name that begins with the model's.
            kept = vars(_module("multi_turn_utils"))
            for key in [key for key in kept if key.startswith(name)]:
                del kept[key]
        return _score(self.label, valid=found["valid"], reason=_reason(found.get("error_message")))


@dataclass(frozen=True, kw_only=True, slots=True)
class FunctionsNoted:
    """Functions that are only described: a call of one is noted, and nothing happens."""

    functions: tuple[dict[str, Any], ...]
    version: str
    instructions: str = ""

    @property
    def tools(self) -> list[Tool]:
        """The functions as tools."""
        return [_tool(function, lambda **_: _NOTED) for function in self.functions]

    @property
    def approver(self) -> None:
        """No approver: nobody is asked."""

    def definition(self) -> dict[str, Json]:
        """The functions, and the version of the package."""
        return {"bfcl": self.version, "functions": list(self.functions)}

    def open(self) -> FunctionsNoted:
        """Return itself: it has no state."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class Instances:
    """Objects of the package's classes, one of each, whose methods are the tools."""

    entry: dict[str, Any]
    functions: tuple[dict[str, Any], ...]
    version: str
    long: bool
    """Whether the state is made longer than the task needs."""
    instructions: str = ""

    def definition(self) -> dict[str, Json]:
        """The state at the beginning, and the version of the package."""
        return {
            "bfcl": self.version,
            "entry": self.entry,
            "functions": list(self.functions),
            "long": self.long,
        }

    def open(self) -> OpenInstances:
        """New objects in the state of the task."""
        backend = importlib.import_module(f"{_PACKAGE}.constants.executable_backend_config")
        made = []
        for name in self.entry["involved_classes"]:
            instance = getattr(importlib.import_module(backend.CLASS_FILE_PATH_MAPPING[name]), name)()
            if name not in backend.STATELESS_CLASSES:
                instance._load_scenario(
                    copy.deepcopy(self.entry["initial_config"].get(name, {})), long_context=self.long
                )
            made.append(instance)
        owners = {
            function["name"]: next(one for one in made if hasattr(one, function["name"]))
            for function in self.functions
        }
        tools = [
            _tool(function, partial(_tool_answer, owners[function["name"]], function["name"]))
            for function in self.functions
        ]
        return OpenInstances(tools=tools, objects=made)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenInstances:
    """The objects of one trial, and their methods as tools."""

    tools: list[Tool]
    objects: list[object]
    approver: None = None


def _single(version: str, category: str, entry: dict[str, Any], answer: list[Any]) -> Scenario:
    texts = {
        role: [one["content"] for one in entry["question"][0] if one["role"] == role]
        for role in ("system", "user")
    }
    functions = tuple(entry["function"])
    return Scenario(
        id=entry["id"],
        goal="\n\n".join(texts["user"]),
        checks=(CallsMatch(category=category),),
        family=category,
        # Questions about the same functions resemble each other.
        group=", ".join(sorted({str(function["name"]) for function in functions})),
        expected={"functions": list(functions), "answer": answer},
        environment=FunctionsNoted(
            functions=functions, version=version, instructions="\n\n".join(texts["system"])
        ),
    )


def _conversation(
    folder: Path, version: str, category: str, entry: dict[str, Any], answer: list[Any]
) -> Scenario:
    says = ["\n\n".join(message["content"] for message in turn) for turn in entry["question"]]
    left_out = set(entry.get("excluded_function") or ())
    documents = _module("executable_backend_config", f"{_PACKAGE}.constants").MULTI_TURN_FUNC_DOC_FILE_MAPPING
    functions = [
        doc
        for name in entry["involved_classes"]
        for doc in _documents(folder, documents[name])
        if doc["name"] not in left_out
    ]
    task = {key: entry[key] for key in ("id", "initial_config", "involved_classes")}
    return Scenario(
        id=entry["id"],
        goal=says[0],
        turns=tuple(says[1:]),
        checks=(StatesMatch(),),
        family=category,
        # The variants of a conversation (a function is missing, the context is long) have one number.
        group=f"multi_turn_{entry['id'].rpartition('_')[2]}",
        limits={"cycles": STEPS * len(says)},
        expected={"entry": task, "answer": answer},
        environment=Instances(
            entry=task, functions=tuple(functions), version=version, long="long_context" in category
        ),
    )


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    for line in (folder / "data" / f"{name}.json").read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


@cache
def _documents(folder: Path, name: str) -> list[dict[str, Any]]:
    return list(_rows(folder, f"multi_turn_func_doc/{name.removesuffix('.json')}"))


@cache
def _module(name: str, parent: str = _TURNS) -> ModuleType:
    (module,) = import_parts(_PACKAGE, [f"{parent}.{name}"], in_place_of={})
    return module


_AS_MODEL: Final = "kestrel"


@cache
def _ast_checker() -> ModuleType:
    """The package's checker, which looks up of a model only whether its functions have `_` in place of
    `.`.
    """
    name = f"{_PACKAGE}.eval_checker.ast_eval.ast_checker"
    ours = {_AS_MODEL: SimpleNamespace(underscore_to_dot=True)}
    stand_ins = {f"{_PACKAGE}.constants.model_config": {"MODEL_CONFIG_MAPPING": ours}}
    (module,) = import_parts(_PACKAGE, [name], in_place_of=stand_ins, forget=[name])
    return module


def _tool(function: dict[str, Any], work: Callable[..., str]) -> Tool:
    # Providers refuse dots in the names of functions; the checker is given the same names.
    name = re.sub(r"\.", "_", function["name"])
    schema = cast("dict[str, Json]", _schema(function["parameters"]))
    return Tool(
        name=name,
        description=function["description"],
        function=work,
        arguments=SchemaArguments(tool=name, schema=schema),
        danger=Danger.LOW,
        parallel_safe=False,
    )


def _tool_answer(owner: object, name: str, /, **args: Any) -> str:
    """Return the answer of a method as the package writes it for a model."""
    answer = getattr(owner, name)(**args)
    if isinstance(answer, str):
        return answer
    try:
        return json.dumps(answer) if isinstance(answer, dict) else str(answer)
    except TypeError:
        return str(answer)


def _schema(described: Any) -> Json:
    """JSON Schema for the package's descriptions, which name types as Python does."""
    types = _module("type_mappings", f"{_PACKAGE}.constants").GORILLA_TO_OPENAPI
    found: dict[str, Json] = {
        key: value
        for key, value in described.items()
        if key in ("description", "default", "enum", "required")
    }
    found["type"] = types.get(described["type"], described["type"])
    if "properties" in described:
        found["properties"] = {name: _schema(inner) for name, inner in described["properties"].items()}
    if isinstance(described.get("items"), dict) and "type" in described["items"]:
        found["items"] = _schema(described["items"])
    return cast("Json", found)


def _call_as_python(call: WrittenCall) -> str:
    """The call as Python that the package evaluates: a name, and literals only.

    Empty for names that are none.
    """
    names = [call.tool, *call.args]
    if not all(
        name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_") for name in names
    ):
        return ""
    return f"{call.tool}({', '.join(f'{name}={value!r}' for name, value in call.args.items())})"


def _score(label: str, *, valid: bool, reason: str) -> Score:
    return Score(check=label, passed=valid, value=float(valid), reason="" if valid else reason)


def _reason(found: object) -> str:
    return one_line("; ".join(map(str, found)) if isinstance(found, list) else str(found), 500)
