"""An answer that was given as claims with citations: recognised, and as the Markdown that a person reads.

The form itself is in `claim_form`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from kestrel_lab.core.json_types import Json, values_in

TITLE: Final = "ClaimedAnswer"
"""The title of the JSON Schema of `claim_form`, by which a step that is asked for claims is known."""


def asks_for_claims(schema: Mapping[str, Any] | None) -> bool:
    """Return whether an answer with this JSON Schema is asked for as claims with citations."""
    return schema is not None and schema.get("title") == TITLE


def claims_given(value: Json) -> list[Mapping[str, Any]]:
    """Return the claims of an answer in the form of `claim_form`, as a value or in a text; empty for others.

    Citations may omit fields that do not apply; unknown keys are dropped.
    """
    if isinstance(value, str):
        return next(filter(None, map(claims_given, values_in(value))), [])
    claims = value.get("claims") if isinstance(value, dict) else None
    if not isinstance(claims, list) or not all(isinstance(one, dict) and _is_claim(one) for one in claims):
        return []
    return [
        {"text": one["text"], "citations": one["citations"]}
        for one in cast("list[Mapping[str, Any]]", claims)
    ]


def _is_claim(one: Mapping[str, Any]) -> bool:
    cites = one.get("citations")
    return (
        isinstance(one.get("text"), str)
        and isinstance(cites, list)
        and all(isinstance(cite, dict) for cite in cites)
    )


def as_markdown(claims: list[Mapping[str, Any]]) -> str:
    """Return the answer as Markdown: one paragraph per claim, with its citations in square brackets."""
    return "\n\n".join(_paragraph(claim) for claim in claims)


def _paragraph(claim: Mapping[str, Any]) -> str:
    text = str(claim["text"]).strip()
    cites = [
        str(one[key]).strip()
        for one in claim["citations"]
        for key in ("place", "call", "address")
        if str(one.get(key, "")).strip()
    ]
    known = [f"[{one}]" for one in dict.fromkeys(cites) if f"[{one}]" not in text]
    # Citations come below a block of code: text behind a fence would keep it from closing.
    return f"{text}{chr(10) if text.endswith(('```', '~~~')) else ' '}{' '.join(known)}" if known else text
