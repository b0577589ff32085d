"""Routing: several models as one, where each conversation goes to the model for its kind of work.

Rules of words in the first question decide the kind, so every turn of a conversation, and of a resumed run,
goes to the same model. The rules are coarse; a file of routes may bring its own, which are tried first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from kestrel_lab.core.errors import ModelError, UsageError, did_you_mean
from kestrel_lab.core.expressions.bounded_search import search_in_time
from kestrel_lab.core.sanitize import one_line, shown_path

if TYPE_CHECKING:
    from kestrel_lab.core.json_types import Json
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import Model, ModelKind, OnDelta

Kind = Literal["code", "analysis", "fast", "simple"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
OTHERWISE: Final = "otherwise"
ROUTE: Final = "route"
"""`route:FILE` names a file of routes wherever a model is named."""
_LOOKED_AT: Final = 20_000
"""Characters of a goal to which rules are applied."""
_SHORT: Final = 200
"""Characters up to which a goal of no other kind counts as simple."""

_WORDS: Final[dict[Kind, re.Pattern[str]]] = {
    "code": re.compile(
        r"```|\b[\w/-]+\.(?:py|js|ts|tsx|go|rs|java|c|h|cpp|rb|sh|sql|ipynb)\b"
        r"|\b(?:implement|refactor|debug|compile|traceback|stack trace|unit tests?|pull "
        r"request|bug|function|method|class|regex|script)\b",
        re.IGNORECASE,
    ),
    "analysis": re.compile(
        r"\b(?:analy[sz]e|analysis|compare|comparison|evaluate|assess|investigate|research|root "
        r"cause|trade-?offs?|why|explain|summari[sz]e|sum up|review|pros and cons)\b",
        re.IGNORECASE,
    ),
    "fast": re.compile(
        r"\b(?:draft|sketch|brainstorm|quick(?:ly)?|rough|rephrase|reword|name "
        r"ideas|variants?|iterate|try out)\b",
        re.IGNORECASE,
    ),
}


def classify_goal(goal: str) -> tuple[Kind | None, str]:
    """Return the kind of work of a goal and the reason, by rules in this order: fast, code, analysis, simple
    if it is short.

    The kind is `None` for a long goal that fits none.
    """
    text = goal[:_LOOKED_AT]
    for kind in ("fast", "code", "analysis"):
        if found := _WORDS[kind].search(text):
            return kind, f"it says {one_line(found[0], 40)!r}"
    return (
        ("simple", "it is short and asks for nothing else")
        if len(goal) <= _SHORT
        else (None, "it fits no kind")
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A model for a kind of work."""

    kind: str
    """One of `KINDS`, or another name, for which `when` is the rule."""
    model: Model
    when: re.Pattern[str] | None = None
    """Searched in the goal before the kinds are tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutedModel:
    """Sends a conversation to the first of `routes` that fits its first question, else to `otherwise`."""

    name: str
    routes: tuple[Route, ...]
    otherwise: Model
    learned: Callable[[str], tuple[str, str]] | None = None
    """Chooses a route's kind for a goal, with the reason, instead of the rules; see `learned_router`."""

    @property
    def kind(self) -> ModelKind:
        """`real` only if all of them are."""
        return next((model.kind for model in self.models if model.kind != "real"), "real")

    @property
    def models(self) -> tuple[Model, ...]:
        """Every model that may be called, `otherwise` last."""
        return (*(route.model for route in self.routes), self.otherwise)

    def choose(self, goal: str) -> tuple[Model, str]:
        """Return the model for `goal`, and the reason: `code: it says 'bug'`."""
        if self.learned is not None:
            name, why = self.learned(goal)
            return next((route.model for route in self.routes if route.kind == name), self.otherwise), why
        for route in self.routes:
            if route.when is None:
                continue
            try:
                found = search_in_time(route.when, goal[:_LOOKED_AT])
            except TimeoutError as error:
                raise ModelError(f"the route {route.kind!r} cannot be tried: {error}") from error
            if found is not None:
                return route.model, f"{route.kind}: it says {one_line(found[0], 40)!r}"
        kind, why = classify_goal(goal)
        for route in self.routes:
            if route.when is None and route.kind == kind:
                return route.model, f"{kind}: {why}"
        return self.otherwise, f"{OTHERWISE}: {f'{kind}, for which there is no route' if kind else why}"

    def over(self, change: Callable[[Model], Model]) -> RoutedModel:
        """Return the same routes with `change` applied to each model."""
        routes = tuple(replace(route, model=change(route.model)) for route in self.routes)
        return replace(self, routes=routes, otherwise=change(self.otherwise))

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Call the chosen model; the answer names it and the reason. Raises that model's errors."""
        goal = next((message.text for message in request.messages if message.role == "user"), "")
        model, why = self.choose(goal)
        answer = await model(request, on_delta)
        return replace(answer, model=answer.model or model.name, routed=why)


def read_routes(path: str | Path, choose: Callable[[str], Model]) -> RoutedModel:
    """Return the model that the YAML file at `path` describes; `choose` finds models by name.

    The file maps kinds of work (`code`, `analysis`, `fast`, `simple`, or another name) to a model or to
    `{model, when}`, where `when` is a regular expression searched in the goal before kinds are tried;
    `otherwise` is the model for the rest. They may stand below `routes:`, as in a suite. Raises `UsageError`,
    one line with file and line for each mistake.
    """
    path = Path(path)
    if not path.is_file():
        raise UsageError(f"there is no file of routes {str(path)!r}: write {ROUTE}:FILE")
    # PyYAML: only where a file says the routes.
    from kestrel_lab.core.yaml.reader import read_yaml

    document = read_yaml(path, shown_path(path))
    if not isinstance(document.value, dict):
        raise UsageError(f"{document.place()}: a file of routes maps kinds of work to models")
    routes, within = document.value, tuple[str, ...]()
    if routes.keys() == {"routes"} and isinstance(below := routes["routes"], dict):
        routes, within = below, ("routes",)
    return _make_router(
        f"{ROUTE}:{path}", routes, choose, lambda kind: f"{document.place((*within, kind))}: "
    )


def model_router(routes: Mapping[str, Json], choose: Callable[[str], Model]) -> RoutedModel:
    """Return the model for `{"code": MODEL, …, "otherwise": MODEL}`; `UsageError` lists all mistakes."""
    names = ", ".join(
        f"{kind}={model.get('model') if isinstance(model, dict) else model}" for kind, model in routes.items()
    )
    return _make_router(f"{ROUTE} {names}", routes, choose, lambda kind: f"routes.{kind}: ")


def _make_router(
    name: str, routes: Mapping[str, Json], choose: Callable[[str], Model], place: Callable[[str], str]
) -> RoutedModel:
    found: dict[str, Route] = {}
    problems: list[str] = []
    for kind, given in routes.items():
        try:
            found[kind] = _route(kind, given, choose)
        except UsageError as error:
            problems.append(f"{place(kind)}{error}")
    if OTHERWISE not in routes:
        problems.append(f"{place(OTHERWISE)}is missing: the model for everything else")
    if problems:
        raise UsageError("\n".join(problems))
    otherwise = found.pop(OTHERWISE).model
    return RoutedModel(name=name, routes=tuple(found.values()), otherwise=otherwise)


def _route(kind: str, given: Json, choose: Callable[[str], Model]) -> Route:
    wanted: dict[str, Json] = (
        {"model": given} if isinstance(given, str) else given if isinstance(given, dict) else {}
    )
    model, when = wanted.get("model"), wanted.get("when", "")
    if (
        not isinstance(model, str)
        or not model
        or not isinstance(when, str)
        or not set(wanted) <= {"model", "when"}
    ):
        raise UsageError("must be the name of a model, or {model: NAME, when: PATTERN}")
    if not when and kind not in (*KINDS, OTHERWISE):
        raise UsageError(
            f"{kind!r} is not a kind of work; {did_you_mean(kind, KINDS)}; or say by 'when' which "
            "goals it is for"
        )
    try:
        pattern = re.compile(when) if when else None
    except re.error as error:
        raise UsageError(f"when is not a regular expression: {error}") from error
    return Route(kind=kind, model=choose(model), when=pattern)
