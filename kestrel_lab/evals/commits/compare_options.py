"""Options of a comparison of two commits; their types are loaded only to check types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.evals.options import Selection

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Reporter
    from kestrel_lab.evals.commits.sequential_compare import Design


class CompareOptions(Selection, total=False):
    """How two commits are compared."""

    epochs: int | None
    """How often each scenario is repeated; the suite's number by default."""
    reporter: Reporter | None
    margin: float
    """How large a change of the success rate counts as none, .05 by default."""
    own_suite: bool
    """Whether each commit runs the suite file that it has itself."""
    cassette: str | None
    """As in `EvalOptions`; recordings are those of each commit."""
    cassettes: str | Path | None
    design: Design | None
    """Make trials in turns until this is decided."""
    from_divergence: bool
    """Whether both commits share the answers of models up to the first request in which they differ."""
    alone: bool
    """Whether a first commit, for which `auto` finds no base, is run by itself."""
