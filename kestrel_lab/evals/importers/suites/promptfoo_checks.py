"""Assertions of a promptfoo configuration as checks of scenarios; what is not carried over is noted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.yaml.reader import parse_yaml
from kestrel_lab.evals.importers.suites.draft import SuiteDraft, as_list, read_beside
from kestrel_lab.evals.importers.suites.promptfoo_assertions import (
    JUDGED_OTHERWISE,
    RUN_ONE,
    check_of,
    is_graded,
    text_of,
    way_of,
)
from kestrel_lab.evals.importers.suites.promptfoo_models import model_of
from kestrel_lab.evals.suites.row_filters import render_filtered

CODE: Final = (".py", ".js", ".ts", ".mjs", ".cjs", ".rb", ".go", ".sh")
"""Endings of files that would have to be run."""


class AssertionReader:
    """Reads the assertions of one configuration."""

    def __init__(self, draft: SuiteDraft, path: Path, templates: Mapping[str, Any]) -> None:
        self.draft, self.path, self.templates = draft, path, templates

    def read(self, where: str, one: dict[str, Any], scope: Mapping[str, Json]) -> dict[str, Json] | None:
        """Return an assertion as a check; `None` where it is noted as not carried over."""
        if isinstance(name := one.get("$ref"), str):
            known = self.templates
            one = {**as_mapping(known.get(name.removeprefix("#/assertionTemplates/"))), **one}
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
                made["name"] = str(rendered(metric, scope))
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
            if (item := self.read(f"{where}.assert[{place}]", as_mapping(inner), scope)) is not None
        ]
        threshold = self.threshold(where, one)
        share: dict[str, Json] = {} if threshold is None else {"at_least": threshold}
        return {"all_of": parts, **share} if parts else None

    def threshold(self, where: str, one: Mapping[str, Any]) -> float | None:
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
        value = rendered(one.get("value"), scope)
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
        return self.grader(where, provider)

    def grader(self, where: str, provider: Any) -> str:
        """Return the model of a grader, which may be named for texts alone; one that is not here is noted."""
        if isinstance(provider, dict) and "id" not in provider:
            provider = provider.get("text")
        model = model_of(provider)
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
        if name.partition(":")[0].endswith(CODE):
            raise UsageError(f"{name} would have to be run")
        text = read_beside(self.path, name)
        if name.endswith(".json"):
            return loads(text)
        return parse_yaml(text, name).value if name.endswith((".yaml", ".yml")) else text


def rendered(value: Any, scope: Mapping[str, Json]) -> Json:
    """Return a value with its templates filled in; what is not there is empty, as with them."""
    if isinstance(value, str) and ("{{" in value or "{%" in value):
        return text_of(render_filtered(f"{value}{_BEHIND}", scope, lenient=True)).removesuffix(_BEHIND)
    if isinstance(value, list):
        return [rendered(item, scope) for item in value]
    if isinstance(value, dict):
        return {key: rendered(item, scope) for key, item in value.items()}
    return cast("Json", value)


_BEHIND: Final = "\u200b"
"""Behind a template, so that one expression is text too: variables of theirs are texts in a prompt."""


def as_mapping(value: Any) -> dict[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, dict) else {}
