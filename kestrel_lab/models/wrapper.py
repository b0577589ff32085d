"""Models around another model: what they have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kestrel_lab.core.messages import ThinkingDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kestrel_lab.core.protocols import Model, ModelKind, OnDelta


@runtime_checkable
class PreparableModel(Protocol):
    """A model that has to load something once in a process before it can be called."""

    @property
    def ready(self) -> bool:
        """True if it can be called at once."""
        ...

    @property
    def preparing(self) -> str:
        """What it does until then, for display."""
        ...

    async def prepare(self) -> None:
        """Return once it can be called at once."""
        ...


class ModelWrapper:
    """A model that adds something to another, called `model`, and keeps its name and kind."""

    __slots__ = ()
    model: Model

    @property
    def name(self) -> str:
        """The wrapped model's name."""
        return self.model.name

    @property
    def kind(self) -> ModelKind:
        """The wrapped model's kind."""
        return self.model.kind


def inner_model(model: Model) -> Model | None:
    """Return the model inside a wrapper; `None` for a model that is none."""
    inner: Model | None = getattr(model, "model", None)
    return inner if callable(inner) else None


def leaf_models(model: Model) -> Iterator[Model]:
    """Yield the models inside a model, without wrappers."""
    several: tuple[Model, ...] | None = getattr(model, "models", None)
    inner = inner_model(model)
    if several is not None:
        for one in several:
            yield from leaf_models(one)
    elif inner is not None:
        yield from leaf_models(inner)
    else:
        yield model


async def prepare_models(models: Iterable[Model]) -> None:
    """Return once each of `models` can be called at once."""
    for model in models:
        for leaf in leaf_models(model):
            if isinstance(leaf, PreparableModel) and not leaf.ready:
                await leaf.prepare()


def drop_text(_: str) -> None:
    """Drop a piece of streamed text."""


class Stream:
    """Passes on streamed text and records that there was some: a later attempt must not show it again."""

    __slots__ = ("_on_delta", "begun", "heard")

    def __init__(self, on_delta: OnDelta) -> None:
        self._on_delta = on_delta
        self.begun = False
        self.heard = False
        """Whether anything came, reasoning included."""

    def __call__(self, piece: str) -> None:
        """Pass on `piece`; reasoning, which the answer replaces, may be shown a second time."""
        self.heard = True
        self.begun = self.begun or not isinstance(piece, ThinkingDelta)
        self._on_delta(piece)

    def mute(self) -> None:
        """Drop every further piece."""
        self._on_delta = drop_text
