"""The model `none`: for plans whose steps never ask one, and for work that says what it leaves out without a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import ModelError

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import ModelKind, OnDelta

NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class NoModel:
    """Stands where there is no model; asked all the same, it raises `ModelError`."""

    @property
    def name(self) -> str:
        """`none`."""
        return NONE

    @property
    def kind(self) -> ModelKind:
        """Nothing is played or replayed."""
        return "real"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Raise `ModelError`."""
        msg = "this step asks a model, and the run has none: name one (kestrel models)"
        raise ModelError(msg)
