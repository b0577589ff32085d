"""What a decision covers: the call that was asked about, others like it, or the rest of a run."""

from __future__ import annotations

from kestrel_lab.core.calls import Call
from kestrel_lab.core.json_types import content_key
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.permissions.command_patterns import CommandPattern, pattern_covers
from kestrel_lab.tools.tool import Toolbox


def decision_binding(call: Call, toolbox: Toolbox, project: str) -> str:
    """Return what a decision on `call` is bound to: tool, version, arguments, folder and sandbox."""
    version = toolbox.get(call.target).version if call.target in toolbox else ""
    return content_key(call.key, version, project, call.sandbox)


def decision_applies(state: RunState, question: str, call: Call, bound: str) -> bool:
    """Return false if a yes to `question` was given for another call; edited arguments fit any call."""
    known = state.decisions.get(question)
    if known is None or not known.granted or known.args is not None or known.answer is not None:
        return True
    # Logs of earlier versions have the latter.
    return state.bound.get(question, bound) in (bound, call.key)


def is_allowed_for_run(state: RunState, call: Call, bound: str) -> bool:
    """Return true if a person allowed calls like this one for the rest of the run."""
    if call.target in state.always or bound in state.same:
        return True
    alike = state.like.get(call.target)
    return (
        alike is not None
        and not call.unsandboxed
        and any(pattern_covers(CommandPattern.parse(pattern), call) for pattern in alike)
    )
