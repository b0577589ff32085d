"""The form in which an answer that must be supported is asked for: claims, each with citations.

Pydantic models, so import this late.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kestrel_lab.answers.claim_markdown import TITLE
from kestrel_lab.core.citations import citations_in

HOW: Final = """\
The answer is a list of claims. The text of a claim is Markdown: one statement that stands by itself, or a \
block of code. Each claim cites \
what shows it: `place` is lines of a file as path:line or path:first-last, `call` the id of a tool call, \
`address` that of a page; \
what does not apply is an empty text. `quote` is copied word by word from there. A claim that nothing shows \
has no citations; it is shown as uncited."""


class Place(BaseModel):
    """A place that a claim cites."""

    model_config = ConfigDict(extra="forbid")

    place: str
    quote: str
    call: str
    address: str

    @model_validator(mode="before")
    @classmethod
    def _completed(cls, given: object) -> object:
        """Fill in fields that do not apply: models without a strict schema omit them."""
        return {**dict.fromkeys(cls.model_fields, ""), **given} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _points_somewhere(self) -> Place:
        if not (self.place.strip() or self.call.strip() or self.address.strip()):
            raise ValueError("a citation needs a place, a call or an address")
        if self.place.strip() and not any(one.path and one.first for one in citations_in(self.place)):
            raise ValueError(f"place {self.place[:80]!r} is not of the form path:line or path:first-last")
        return self


class Claim(BaseModel):
    """One statement with what shows it."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1)
    citations: list[Place]


class ClaimedAnswer(BaseModel):
    """An answer as claims."""

    model_config = ConfigDict(extra="forbid", title=TITLE)

    claims: list[Claim] = Field(min_length=1)
