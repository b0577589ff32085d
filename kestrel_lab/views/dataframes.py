"""Data frames that a notebook shows as they are: no formulas made of dollar signs, no text cut short, units
said.

pandas' own table is set as mathematics by JupyterLab wherever two dollar signs stand in its texts, and cuts
texts at 50 characters. Changing its options would change the tables of everybody; so ours are a subclass that
stays one through selecting, sorting and joining.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.views.html.elements import template_macros

if TYPE_CHECKING:
    import pandas as pd

LONGEST = 240
"""Characters of one cell that are shown; the frame has them all."""
UNITS = "units"
"""Key in `attrs`, which survives slicing and joining a frame, of the units by column."""


def unit_frame(content: Any, *, units: Mapping[str, str] = {}, **options: Any) -> pd.DataFrame:
    """A frame of what `pandas.DataFrame` takes, with the units of some of its columns."""
    frame = _frame_class()(content, **options)
    if units:
        frame.attrs[UNITS] = dict(units)
    return frame


@cache
def _frame_class() -> type[pd.DataFrame]:
    import pandas as pd  # half a second: not at import

    class Frame(pd.DataFrame):
        @property
        def _constructor(self) -> type[pd.DataFrame]:
            return Frame

        def __reduce__(self) -> Any:
            # A class made in a function cannot be found again by name: what is stored is a plain frame.
            return pd.DataFrame(self).__reduce__()

        def _repr_html_(self) -> str:
            longest, cut = ("display.max_colwidth", LONGEST), ("display.show_dimensions", "truncate")
            with pd.option_context("display.html.use_mathjax", False, *longest, *cut):
                table: str = super()._repr_html_()  # type: ignore[misc]  # the stubs leave it out
            return f"{sanitize_text(table)}{_note(self)}"

    Frame.__name__ = Frame.__qualname__ = "DataFrame"
    return Frame


def _note(frame: pd.DataFrame) -> str:
    """Return the line below a table: its units, or that it has no rows."""
    units: dict[str, str] = frame.attrs.get(UNITS, {})
    names = {
        str(name) for name in (*frame.columns, *frame.index[:100], *frame.columns.names, *frame.index.names)
    }
    said: dict[str, list[str]] = {}
    for name, unit in units.items():
        if name in names:
            said.setdefault(unit, []).append(name)
    notes = [f"{', '.join(named)} in {unit}" for unit, named in said.items()]
    if not len(frame):
        notes = ["no rows"]
    return str(template_macros("elements.html").faint("; ".join(notes))) if notes else ""
