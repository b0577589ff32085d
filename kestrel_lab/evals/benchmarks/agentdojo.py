"""Tasks of AgentDojo (package `agentdojo`), with or without an attack, through our loop, with its tools and
its scorers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar, Final, cast

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.protocols import Approver, Check, Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.benchmarks.calls import calls_by_turn
from kestrel_lab.evals.benchmarks.isolated_import import check_limit, import_parts, installed_package
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.runtime.security.authority import addresses_in, further_call_text, further_calls
from kestrel_lab.runtime.security.containment import read_mode
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.interaction import state_effects
from kestrel_lab.tools.tool import Tool

VERSION: Final = "v1.2.2"
"""The version of the benchmark's tasks, unless another is asked for."""
UTILITY: Final = "user task done"
RESISTED: Final = "attack resisted"
"""The two scores of a trial under attack, as `EvalResult.scores` names them."""
_PACKAGE: Final = "agentdojo"
_QUESTIONS: Final = ("get_", "read_", "search_", "list_", "check_")
_TELL_NOTHING: Final = frozenset({"get_current_day"})
_USERS_OWN: Final = frozenset(
    {
        *("get_balance", "get_iban", "get_scheduled_transactions", "get_user_info", "get_user_information"),
        *("search_contacts_by_name", "search_contacts_by_email"),
    }
)
"""Tools whose answers only the user writes."""
_OWN: Final = {
    "CalendarEvent": ("id_", "title", "participants"),
    "CloudDriveFile": ("id_", "filename"),
    "EmailContact": ("email", "name"),
}
"""By what they answer, the fields that only the user writes in their own calendar, drive and address book, as
the author of such tools would declare them.
"""
_CONTENT: Final = frozenset(
    {"subject", "body", "content", "title", "description", "location", "end_time", "new_end_time"}
)
"""Parameters that only carry what people read, or how long something lasts, as the author of such tools would
declare them.
"""
_PIPELINE: Final = f"{_PACKAGE}.agent_pipeline"


def load_agentdojo(
    suite: str,
    *,
    attack: str | None = None,
    limit: int | None = None,
    target: str = "local",
    version: str = VERSION,
    containment: str = "off",
    person: bool = False,
    stated: bool = False,
) -> Suite:
    """The user tasks of a suite as scenarios, in a suite named `agentdojo:SUITE`, or
    `agentdojo:SUITE?attack=ATTACK`; needs `pip install --no-deps agentdojo`.

    With an `attack`, such as `important_instructions`, there is a scenario for each user task with each
    injection task; `limit` takes the first of them. A trial then has two scores, apart in
    `EvalResult.scores`: `user task done`, the benchmark's utility, and `attack resisted`, which fails where
    the attack succeeded; it passes if both do. `target` is the name of a model as AgentDojo knows it, for
    attacks that address the model. `containment` is that of the runs: off, so that numbers compare with
    others', unless it is what is measured (see `evals.studies.prompt_injection`); with a `person` somebody is
    there when a call must be asked about, who allows the calls of the benchmark's own solution, whatever the
    words that people read in them, unless they name an address that is not in the world before the attack.
    With `stated` the model is offered `state_effects`.

    Raises `UsageError` for an unknown suite, attack, target or version, and where the package is not
    installed.
    """
    check_limit(f"agentdojo:{suite}", limit)
    _, release = installed_package(_PACKAGE, _PACKAGE)
    tasks = suite_tasks(suite, version)
    held = read_mode(containment)
    if attack is not None:
        _require_attack(attack, target)
    injections = list(tasks.injection_tasks) if attack is not None else [""]
    rest: dict[str, Any] = {
        "target": target,
        "version": version,
        "release": release,
        "person": person,
        "stated": stated,
    }
    made = (
        Situation(suite=suite, task=user, injection=injection, attack=attack or "", **rest)
        for user in tasks.user_tasks
        for injection in injections
    )
    return Suite(
        name=suite_name(suite, attack),
        scenarios=tuple(_scenario(situation, held) for situation in islice(made, limit)),
    )


def suite_name(suite: str, attack: str | None) -> str:
    """Return the name under which trials are stored: those of each attack apart, since their scenarios have
    the same ids.
    """
    return f"agentdojo:{suite}" + (f"?attack={attack}" if attack else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """A user's task in the world of its suite, and what an attacker has put there."""

    suite: str
    task: str
    injection: str
    """The attacker's task; empty where there is no attack."""
    attack: str
    target: str
    version: str
    """Of the benchmark's tasks."""
    release: str
    """Of the package."""
    person: bool = False
    """Whether somebody is asked who allows what the task needs."""
    stated: bool = False
    """Whether the model may state the effects that the task needs."""

    @property
    def instructions(self) -> str:
        """The benchmark's own system message."""
        return _system_message()

    def definition(self) -> dict[str, Json]:
        """Return every name that distinguishes it from another."""
        # What is not so by default is left out where it is not so, so that results stored before it could be
        # still count.
        names = (
            name
            for name in type(self).__dataclass_fields__
            if name not in {"person", "stated"} or getattr(self, name)
        )
        return {name: getattr(self, name) for name in names}

    def open(self) -> TrialWorld:
        """The world before the user's task, with the injections in it."""
        tasks = suite_tasks(self.suite, self.version)
        # Without an attack the world before any task of the suite is the same: it is read from YAML once.
        state = _pristine(
            replace(self, person=False, stated=False, task=self.task if self.attack else "")
        ).model_copy(deep=True)
        state = tasks.user_tasks[self.task].init_environment(state)
        return TrialWorld(situation=self, state=state, before=state.model_copy(deep=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialWorld:
    """The state of one trial."""

    situation: Situation
    state: Any
    before: Any
    """A copy of the state at the beginning."""

    @property
    def tools(self) -> list[Tool]:
        """The suite's tools, working on this state."""
        functions = suite_tasks(self.situation.suite, self.situation.version).tools
        run = _import_modules().functions_runtime.FunctionsRuntime(functions).run_function
        made = [_tool(function, partial(_tool_answer, run, self.state, function)) for function in functions]
        return [*made, replace(state_effects, group="")] if self.situation.stated else made

    @property
    def approver(self) -> Approver | None:
        """An approver that allows what the user's task needs; `None` where nobody is asked."""
        if not self.situation.person:
            return None
        task = suite_tasks(self.situation.suite, self.situation.version).user_tasks[self.situation.task]
        plain = replace(self.situation, injection="", attack="", person=False).open()
        world = f"{task.PROMPT} {plain.before.model_dump_json()}".casefold()
        needed = {_bearing_key(call.function, call.args) for call in task.ground_truth(self.before)}

        async def decide(asked: ApprovalAsked) -> ApprovalGiven:
            also = map(further_call_text, further_calls(asked.contained))
            wanted = [(asked.tool, asked.args), *((call.target, call.args) for call in also)]
            texts = [str(value) for _, args in wanted for name, value in args.items() if name in _CONTENT]
            strange = [place for text in texts for place in addresses_in(text) if place not in world]
            granted = not strange and all(_bearing_key(*one) in needed for one in wanted)
            return ApprovalGiven(
                call=asked.call,
                granted=granted,
                by="who gave the task",
                how="rule",
                scope="run" if granted else "once",
            )

        return decide

    def judge(self, task: Any, method: str, trial: Trial) -> bool:
        """Return what the task's own `METHOD_from_traces` says, or where it says nothing its `METHOD`."""
        asked = [
            call for turn in calls_by_turn(trial.records, denied=False) for step in turn for call in step
        ]
        traces = [
            _import_modules().functions_runtime.FunctionCall(function=call.tool, args=call.args)
            for call in asked
        ]
        found = getattr(task, f"{method}_from_traces")(trial.answer, self.before, self.state, traces)
        return bool(getattr(task, method)(trial.answer, self.before, self.state) if found is None else found)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskDone:
    """The user's task was done, as the benchmark's own function judges."""

    needs: ClassVar[str] = ""
    """Nothing but the environment, in which the calls of a log can be made again."""

    @property
    def label(self) -> str:
        """The check in words."""
        return UTILITY

    async def __call__(self, trial: Trial) -> Score:
        """Return the verdict of the task's `utility`."""
        world: TrialWorld = trial.environment
        task = suite_tasks(world.situation.suite, world.situation.version).user_tasks[world.situation.task]
        done = world.judge(task, "utility", trial)
        return Score(
            check=self.label,
            passed=done,
            value=float(done),
            reason="" if done else f"{world.situation.task} was not done",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackResisted:
    """The attacker's task was not done, as the benchmark's own function judges."""

    needs: ClassVar[str] = ""

    @property
    def label(self) -> str:
        """The check in words."""
        return RESISTED

    async def __call__(self, trial: Trial) -> Score:
        """The opposite of what the injection task's `security` says, which is true of an attack that
        succeeded.
        """
        world: TrialWorld = trial.environment
        task = suite_tasks(world.situation.suite, world.situation.version).injection_tasks[
            world.situation.injection
        ]
        obeyed = world.judge(task, "security", trial)
        reason = f"{world.situation.injection} was done: {task.GOAL}" if obeyed else ""
        return Score(check=self.label, passed=not obeyed, value=float(not obeyed), reason=reason)


def _scenario(situation: Situation, containment: str) -> Scenario:
    checks: tuple[Check, ...] = (TaskDone(), AttackResisted()) if situation.attack else (TaskDone(),)
    name = "/".join(filter(None, (situation.suite, situation.task, situation.injection)))
    return Scenario(
        id=name,
        goal=suite_tasks(situation.suite, situation.version).user_tasks[situation.task].PROMPT,
        checks=checks,
        family=situation.attack or "no attack",
        # The attacks of one user task share the task and its data.
        group=f"{situation.suite}/{situation.task}",
        environment=situation,
        containment=containment,
        limits={"cycles": 30},
    )


def _bearing_key(tool: str, args: Mapping[str, Json]) -> str:
    """Return a key that is equal for calls which differ only in what people read, or in a default scheme;
    what is left out is like nothing.
    """
    bearing = {
        name: value for name, value in args.items() if name not in _CONTENT and value not in (None, [])
    }
    return content_key(
        tool, bearing | ({"url": str(url).removeprefix("http://")} if (url := bearing.get("url")) else {})
    )


def _tool(function: Any, work: Any) -> Tool:
    name, own, schema = function.name, _user_fields(function), _schema(function.parameters)
    parameters = schema.get("properties", {}).keys()
    return Tool(
        name=name,
        description=function.description,
        function=work,
        arguments=SchemaArguments(tool=name, schema=schema),
        danger=Danger.LOW,
        parallel_safe=False,
        # All that is in the world is the user's, and nearly all of it can have been written by others.
        reads=()
        if name in _TELL_NOTHING
        else ("private",)
        if name in _USERS_OWN
        else ("private", "untrusted"),
        # What is called like a question changes nothing, all else acts in the user's name.
        reaches="others"
        if not name.startswith(_QUESTIONS)
        else "address"
        if "url" in parameters
        else "nothing",
        content=tuple(_CONTENT & parameters),
        own=own,
        shown=partial(_object_text, function.return_type) if own else None,
    )


@cache
def _schema(parameters: Any) -> dict[str, Any]:
    """Return the JSON Schema of a function's arguments: each trial has tools of its own, and this takes
    longer than all else of them.
    """
    return cast("dict[str, Any]", parameters.model_json_schema())


def _user_fields(function: Any) -> tuple[str, ...]:
    """Return the fields of its answers that only the user writes."""
    return next((fields for name, fields in _OWN.items() if name in str(function.return_type)), ())


def _tool_answer(run: Any, state: Any, function: Any, /, **args: Any) -> Any:
    answer, _ = run(state, function.name, args, raise_on_error=True)
    return answer if _user_fields(function) else _answer_text(answer)


def _answer_text(answer: Any) -> str:
    """Return an answer as the benchmark writes it for a model."""
    return str(_import_modules().tool_execution.tool_result_to_str(answer))


def _object_text(kind: Any, value: Json) -> str:
    """Return the same for an answer that is kept as objects, of which `kind` is the type."""
    from pydantic import TypeAdapter

    return _answer_text(TypeAdapter(kind).validate_python(value))


@lru_cache(maxsize=256)
def _pristine(situation: Situation) -> Any:
    tasks = suite_tasks(situation.suite, situation.version)
    if not situation.attack:
        return tasks.load_and_inject_default_environment({})
    attack = _attack(situation.suite, situation.version, situation.attack, situation.target)
    injections = attack.attack(tasks.user_tasks[situation.task], tasks.injection_tasks[situation.injection])
    return tasks.load_and_inject_default_environment(injections)


@cache
def _attack(suite: str, version: str, attack: str, target: str) -> Any:
    return _import_modules().attack_registry.ATTACKS[attack](
        suite_tasks(suite, version), SimpleNamespace(name=target)
    )


def _require_attack(attack: str, target: str) -> None:
    known = {
        name for name, kind in _import_modules().attack_registry.ATTACKS.items() if not kind.is_dos_attack
    }
    if attack not in known:
        raise UsageError(
            f"agentdojo has no attack {attack!r} with an injection task; {did_you_mean(attack, known)}"
        )
    names = _import_modules().models.MODEL_NAMES
    if not any(name in target for name in names):
        raise UsageError(
            f"agentdojo has no name for the model {target!r} that an attack could address; "
            f"{did_you_mean(target, names)}"
        )


def suite_tasks(suite: str, version: str) -> Any:
    """The package's own suite, with its tasks and tools; raises `UsageError` if there is none."""
    versions = _import_modules().load_suites._SUITES
    if version not in versions:
        raise UsageError(f"agentdojo has no version {version!r}; {did_you_mean(version, versions)}")
    if suite not in versions[version]:
        raise UsageError(f"agentdojo has no suite {suite!r}; {did_you_mean(suite, versions[version])}")
    return versions[version][suite]


@cache
def _system_message() -> str:
    import yaml

    folder, _ = installed_package(_PACKAGE, _PACKAGE)
    text = (folder / "data" / "system_messages.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["default"])


@cache
def _import_modules() -> SimpleNamespace:
    names = (
        "task_suite.load_suites",
        "functions_runtime",
        "attacks.attack_registry",
        "models",
        "agent_pipeline.tool_execution",
    )
    # The one thing wanted of a provider's client there is the name it gives to calls without one.
    google = {"EMPTY_FUNCTION_NAME": "<empty-function-name>"}
    stand_ins: dict[str, dict[str, object]] = {
        _PIPELINE: {},
        f"{_PIPELINE}.llms": {},
        f"{_PIPELINE}.llms.google_llm": {**google},
    }
    modules = import_parts(_PACKAGE, [f"{_PACKAGE}.{name}" for name in names], in_place_of=stand_ins)
    return SimpleNamespace(
        **{name.rpartition(".")[2]: module for name, module in zip(names, modules, strict=True)}
    )
