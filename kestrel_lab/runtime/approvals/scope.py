"""The policy of a run: the level of danger it names, under the rules of its lab and its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from kestrel_lab.core.calls import Call
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.permissions.command_patterns import CommandPattern, pattern_covers
from kestrel_lab.permissions.policy import Policy
from kestrel_lab.permissions.rule import read_rule
from kestrel_lab.permissions.rulebook import Rulebook
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Toolbox


def policy_for(policy: str, lab: Rulebook, own: Rulebook, place: Workspace) -> Policy:
    """The policy of that name under both books of rules, for calls of a run in `place`; raises `UsageError`
    for an unknown name.
    """
    return replace(Policy.parse(policy), rules=(lab + own).within(place.root))


def rules_as_json(own: Rulebook) -> list[dict[str, Json]]:
    """Rules of a run for its log, so that they hold for whoever resumes or forks it."""
    return [{"source": rule.source, "rule": dict(rule.table)} for rule in own]


def rules_from_json(kept: Sequence[dict[str, Json]]) -> Rulebook:
    """The rules that `rules_as_json` kept."""
    return Rulebook(
        tuple(read_rule(cast("dict[str, Json]", entry["rule"]), str(entry["source"])) for entry in kept)
    )


def decision_binding(call: Call, toolbox: Toolbox, project: str) -> str:
    """What a decision on `call` is bound to: tool, its version, arguments, folder, and how its commands are
    held in.
    """
    version = toolbox.get(call.target).version if call.target in toolbox else ""
    return content_key(call.key, version, project, call.sandbox)


def decision_applies(state: RunState, question: str, call: Call, bound: str) -> bool:
    """Whether the yes to `question`, if there is one, is for this very call; a person who edited it said what
    to run.
    """
    known = state.decisions.get(question)
    if known is None or not known.granted or known.args is not None or known.answer is not None:
        return True
    return state.bound.get(question, bound) in (bound, call.key)  # logs of earlier versions have the latter


def is_allowed_for_run(state: RunState, call: Call, bound: str) -> bool:
    """Whether a person allowed calls like this one for the rest of the run."""
    if call.target in state.always or bound in state.same:
        return True
    alike = state.like.get(call.target)
    return (
        alike is not None
        and not call.unsandboxed
        and any(pattern_covers(CommandPattern.parse(pattern), call) for pattern in alike)
    )
