"""Web search as a run: the choice of its model, and the evidence bundle it ends with."""

from __future__ import annotations

from kestrel_lab.core.errors import RunFailed, UsageError
from kestrel_lab.core.events.union import StepFinished
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.models.resolve import NoModel
from kestrel_lab.models.web_grounding import WEB
from kestrel_lab.runtime.operations.web_evidence import KIND, EvidenceBundle
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.session import Session


def search_model(session: Session, model: str | Model | None, *, grounded: bool) -> Model:
    """Return the model of a search; `NoModel` where none is named, set up or found.

    Raises `UsageError` for a model that cannot be had, and where `grounded` is asked for one that does not search the web.
    """
    options = session.options
    nothing_set = model is None and options.model is None and not options.provider and not options.api_base
    try:
        found = session.registry.resolve_model(model)
    except UsageError:
        if grounded or not nothing_set or session.env.get("MODEL_PROVIDER"):
            raise
        return NoModel()
    if grounded:
        session.registry.resolve_model(found.name if found.name.endswith(WEB) else f"{found.name}{WEB}")
    return found


def evidence_of(run: Run) -> EvidenceBundle:
    """Return the last evidence bundle of a run; raises `RunFailed` if it failed before there was one, `UsageError` if it has none."""
    for event in reversed(run.events()):
        if isinstance(event, StepFinished) and isinstance(event.output, dict) and event.output.get("kind") == KIND:
            return EvidenceBundle.from_json(event.output)
    if run.status is RunStatus.FAILED:
        raise RunFailed(f"the search failed: {run.reason} (run {run.id})")
    raise UsageError(f"run {run.id} has no evidence bundle: it is {run.status}, and searches are made by `kestrel websearch`")
