"""Shared trials: what of a stored trial leaves the machine, without secrets, and the check of what comes from
a store that others write.

A trial's id is made once, at random, and a stored trial never changes: equal ids are the same trial. Whether
they are is decided by a digest of its numbers, which no redaction of texts changes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_type_hints

from msgspec.structs import fields as struct_fields
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    create_model,
)

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json, content_key, dumps, loads
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.run_types import TERMINAL
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.stored_trials import EvalRow, LaterScores

MOST_TEXT = 1_000_000
"""Characters of a trial's result, or of its scores, at most; what a suite stores has some thousand."""
MOST_EVENTS = 64_000_000
"""Characters of a run's events at most."""
SOURCE = "kestrel"
"""`RunStarted.imported["format"]` of a run that was pulled."""
_NOT_A_NAME = "it is no name of one line, or has characters that a name of its kind cannot have"


def _check_past(at: Any) -> Any:
    # Clocks of other machines may be a day ahead. The newest trial counts, and one from next year would
    # count until then.
    if isinstance(at, float) and at > time.time() + 86_400.0:
        raise ValueError("it is from the future: a clock is wrong")
    return at


_Name = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""One line of text: of nothing else is a table or a path made of a name."""
_Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,79}$")]
_Sha = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,149})?$")]
_Time = Annotated[float, Field(ge=0), BeforeValidator(_check_past)]
_Metrics = dict[_Name, float]


_AT: TypeAdapter[float] = TypeAdapter(Annotated[float, Field(ge=0, allow_inf_nan=False)])


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


def _form(kind: type[Any], **narrower: Any) -> type[_Strict]:
    """Return the check of what others stored of a dataclass or struct: its fields, some of `narrower` types,
    and what else is in `narrower` and may be missing.
    """
    hints = get_type_hints(kind) | narrower
    if is_dataclass(kind):
        known = {one.name: ... if one.default is MISSING else one.default for one in fields(kind)}
    else:
        known = {one.encode_name: one.default for one in struct_fields(kind)}
    made: dict[str, Any] = {name: (hints[name], known.get(name)) for name in (*known, *narrower)}
    form: type[_Strict] = create_model(kind.__name__, __base__=_Strict, **made)
    return form


# Type checkers know no class that is made of another.
if TYPE_CHECKING:
    _Score = _Strict
else:
    _Score = _form(Score, usage=_form(Usage) | None, kept=bool | None)


class _Attempt(_Strict):
    reason: str
    run: _Id
    metrics: _Metrics


class _Rescored(_Strict):
    suite: str
    from_: _Id = Field(alias="from")
    at: float
    kept: list[str]


class _Result(_Strict):
    family: _Name
    metadata: dict[str, JsonValue] | None = None
    weight: float = Field(gt=0)
    model: _Name
    model_kind: Literal["real", "scripted", "replay", "imported"]
    outcome: Literal["pass", "fail", "error"]
    reason: str
    scores: list[_Score]
    run: _Id
    status: _Name = ""
    finish: _Name | None = None
    answer: str = ""
    task: _Name | None = None
    identity: dict[_Name, str | int] = Field(default_factory=dict)
    imported: _Name | None = None
    attempts: list[_Attempt] | None = None
    rescored: _Rescored | None = None
    origin: _Name | None = None


_Trial = _form(
    EvalRow,
    **dict.fromkeys(("scenario", "suite", "config"), _Name),
    **dict.fromkeys(("git_sha", "key"), _Sha),
    id=_Id,
    result=_Result,
    metrics=_Metrics,
    created_at=_Time,
    epoch=Annotated[int, Field(ge=0, lt=2**53)],
)
_Later = _form(LaterScores, trial=_Id, suite_hash=_Sha, key=_Sha, result=_Result, created_at=_Time)


def redact_trial(row: EvalRow, redactor: Redactor, origin: str) -> EvalRow:
    """Return a trial as it may leave the machine: without secrets and the session it was made in, marked with
    where it was made.

    One that was pulled keeps its mark. Raises `UsageError` that names the trial for one that nobody could
    pull.
    """
    result: dict[str, Json] = {"origin": origin, **cast("dict[str, Json]", redactor.json(row.result))}
    if (size := len(dumps(result))) > MOST_TEXT:
        raise UsageError(
            f"trial {_short_name(row.id)} has {size:,} characters, more than the {MOST_TEXT:,} that a "
            "shared one may have"
        )
    # Checked before it is sent: nobody could pull a trial that is not in order.
    return checked_trial({**_fields(row), "result": result})


def redact_scores(scores: LaterScores, redactor: Redactor) -> LaterScores:
    """Return scores that a trial was given later as they may leave the machine; raises like
    `redact_trial`.
    """
    return checked_scores(
        {name: getattr(scores, name) for name in LaterScores.__dataclass_fields__}
        | {"result": redactor.json(scores.result)}
    )


def checked_trial(values: dict[str, Any]) -> EvalRow:
    """Return the trial that these columns are; `result` and `metrics` may be JSON text.

    Raises `UsageError` for anything else.
    """
    row = EvalRow(**_validated_dump(_Trial, values, f"trial {_short_name(values.get('id'))}"))
    return replace(row, result={"origin": "unknown", **row.result})


def checked_scores(values: dict[str, Any]) -> LaterScores:
    """Return the later scores that these columns are; raises like `checked_trial`."""
    return LaterScores(
        **_validated_dump(_Later, values, f"scores of trial {_short_name(values.get('trial'))}")
    )


def trial_digest(row: EvalRow) -> str:
    """Return a hash of everything of a trial that is no free text: equal before and after redaction, here and
    there.
    """
    # Texts are left out, because redaction changes them, and differently on each machine.
    columns = {name: value for name, value in _fields(row).items() if name != "result"}
    return content_key("trial/1", columns, _facts(row.result))


def scores_digest(scores: LaterScores) -> str:
    """Return the same of scores that a trial was given later."""
    return content_key(
        "scores/1", scores.trial, scores.suite_hash, scores.key, scores.created_at, _facts(scores.result)
    )


def events_text(records: Sequence[e.Record], redactor: Redactor) -> str:
    """Return the events of a run as text, without secrets and the folder it worked in.

    Empty for a run that has not ended, which others would find waiting for them.
    """
    if not records or not _has_ended([record.event for record in records]):
        return ""
    timed = [
        (record.at, replace(one, workspace="") if isinstance(one := record.event, e.RunStarted) else one)
        for record in records
    ]
    return dumps([[at, event.type, redactor.json(e.to_json(event))] for at, event in timed])


def checked_events(run: str, text: str, origin: str) -> list[tuple[float, e.Event]]:
    """Return the events of a run of others, as one that was recorded elsewhere: of no workspace, with no
    rule, policy or standing approval.

    Raises `UsageError` that names the run for anything but the events of one run that has ended.
    """
    try:
        timed = [
            (_AT.validate_python(at), _event(kind, body)) for at, kind, body in cast("list[Any]", loads(text))
        ]
    except (ValueError, TypeError, StoreError) as error:
        raise UsageError(f"run {_short_name(run)} cannot be read: {one_line(str(error), 200)}") from error
    events = [event for _, event in timed]
    if not events or not isinstance(events[0], e.RunStarted) or not _has_ended(events):
        raise UsageError(f"run {_short_name(run)} is not one from its beginning to its end")
    # Which of the workspace's files are tainted is known where they are.
    return [(at, _harmless(event, origin)) for at, event in timed if not isinstance(event, e.FilesTainted)]


def _event(kind: str, body: Any) -> e.Event:
    """Return the event that a type and its fields are; raises `ValueError` for a field of another type than
    it has.
    """
    event = e.from_json(kind, body)
    _fields_of(kind).model_validate(e.to_json(event))
    return event


@cache
def _fields_of(kind: str) -> type[BaseModel]:
    """Return the check of the fields that events of a type have."""
    event = e.EVENT_TYPES[kind]
    hints = get_type_hints(event, localns={"Json": Any})
    known: dict[str, Any] = {one.name: (hints[one.name], ...) for one in fields(event)}
    form: type[BaseModel] = create_model(kind, __base__=_Strict, **known)
    return form


def _harmless(event: e.Event, origin: str) -> e.Event:
    match event:
        case e.RunStarted():
            mark: dict[str, Json] = {"format": SOURCE, "source": origin, "at": time.time(), "times": "each"}
            return replace(
                event, workspace="", policy="ask", rules=[], follows="", earlier={}, images=[], imported=mark
            )
        case e.ApprovalGiven():
            # An approval of somebody else must not hold for later calls here.
            return replace(event, scope="once")
    return event


def _has_ended(events: Sequence[e.Event]) -> bool:
    return any(isinstance(event, e.StateTransition) and event.target in TERMINAL for event in events[-3:])


def _fields(row: EvalRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in EvalRow.__dataclass_fields__}


def _facts(result: dict[str, Any]) -> Json:
    return [
        *(result[name] for name in ("outcome", "weight", "model_kind", "run")),
        [[score["passed"], score["value"]] for score in result["scores"]],
    ]


def _validated_dump(form: type[BaseModel], values: dict[str, Any], what: str) -> dict[str, Any]:
    try:
        read = {
            name: loads(value) if name in ("result", "metrics") and isinstance(value, str) else value
            for name, value in values.items()
        }
        # What is not written down is at its default there, too.
        return form.model_validate(read).model_dump(exclude_none=True, exclude_unset=True, by_alias=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        why = (
            f"{'.'.join(map(str, first['loc']))}: "
            f"{_NOT_A_NAME if first['type'] == 'string_pattern_mismatch' else first['msg']}"
        )
    except ValueError as error:
        why = str(error)
    raise UsageError(f"{what} is not in order: {one_line(why, 200)}")


def _short_name(name: object) -> str:
    return one_line(str(name), 80)
