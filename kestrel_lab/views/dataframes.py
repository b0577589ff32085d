"""Data frames that a notebook shows as they are: no formulas made of dollar signs, units said, and as many
columns as fit on a page.

pandas' own table is set as mathematics by JupyterLab wherever two dollar signs stand in its texts, cuts texts
at 50 characters, and shows columns that are empty. Changing its options would change the tables of everybody;
so ours are a subclass that stays one through selecting, sorting and joining. Only the picture has fewer
columns: the frame, `to_csv` and the like have all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.json_types import readable
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.views.html.elements import template_macros

if TYPE_CHECKING:
    import pandas as pd

UNITS = "units"
"""Key in `attrs`, which survives slicing and joining a frame, of the units by column."""
WIDTH: Final = 1_100
"""Pixels that a table may take: the page of a notebook on a laptop."""
_CHAR, _PADDING = 8, 16
"""Pixels of a character of the themes' tables, and of the space around a cell."""
_ONE_LINE, _WIDEST = 28, 32
"""Characters of a text that is not broken into two lines, and of a line of long texts while there is no room
to spare."""
_FEWEST: Final = 18
"""Characters that a column of long texts gets at least."""
_LONGEST: Final = 300
"""Characters of a value that are looked at, and shown to who points at its cell."""
_ENOUGH: Final = 7
"""Columns beyond which none is shown while a text before them is cut."""
_EDGE: Final = 5
"""Rows from the beginning and from the end of a frame that pandas would not show whole."""
_NAMED: Final = 12
"""Columns that are not shown and yet named."""


def unit_frame(content: Any, *, units: Mapping[str, str] = {}, **options: Any) -> pd.DataFrame:
    """A frame of what `pandas.DataFrame` takes, with the units of some of its columns."""
    frame = _frame_class()(content, **options)
    if units:
        frame.attrs[UNITS] = dict(units)
    return frame


@cache
def _frame_class() -> type[pd.DataFrame]:
    # Loading pandas takes half a second, so it is loaded with the first frame.
    import pandas as pd

    class Frame(pd.DataFrame):
        @property
        def _constructor(self) -> type[pd.DataFrame]:
            return Frame

        def __reduce__(self) -> Any:
            # A class made in a function cannot be found again by name: what is stored is a plain frame.
            return pd.DataFrame(self).__reduce__()

        def _repr_html_(self) -> str:
            if self.columns.nlevels == 1:
                return _table(self)
            # A table with several rows of headings is a pivot: short, and laid out best by pandas.
            with pd.option_context("display.html.use_mathjax", False, "display.show_dimensions", "truncate"):
                table: str = super()._repr_html_()  # type: ignore[misc]  # the stubs leave it out
            return f"{sanitize_text(table)}{_note(self)}"

    Frame.__name__ = Frame.__qualname__ = "DataFrame"
    return Frame


def _table(frame: pd.DataFrame) -> str:
    """Return the HTML of the columns that hold something, as many of the first ones as fit in `WIDTH`.

    Each text has room for two lines. Of a long frame the first and last rows are shown.
    """
    import pandas as pd

    whole = len(frame) <= pd.get_option("display.max_rows")
    rows = frame if whole else pd.concat([pd.DataFrame(frame.head(_EDGE)), frame.tail(_EDGE)])
    levels = [_Column(name or "", rows.index.get_level_values(n)) for n, name in enumerate(rows.index.names)]
    # By place: two columns may have one name.
    columns = [_Column(name, rows.iloc[:, place]) for place, name in enumerate(rows.columns)]
    room = WIDTH - sum(level.pixels for level in levels)
    filled = columns if sum(one.pixels for one in columns) <= room else [one for one in columns if one.filled]
    shown: list[_Column] = []
    for column in filled:
        if (room := room - column.pixels) < 0:
            break
        shown.append(column)
    room = WIDTH - sum(one.pixels for one in (*levels, *shown))
    # Where not all fit, what is read first is better whole than beside one more column.
    while len(shown) < len(filled) and len(shown) > _ENOUGH and any(one.cut for one in shown[:_ENOUGH]):
        room += shown.pop().pixels
    _widen(shown, room)
    left_out = [column.name for column in columns if all(column is not one for one in shown)]
    table = template_macros("frame.html").frame(levels, shown, len(rows), 0 if whole else _EDGE)
    return f"{table}{_note(frame, shown=[one.name for one in shown], left_out=left_out, whole=whole)}"


class _Column:
    """A column as texts, and the room that it takes."""

    def __init__(self, name: object, values: Any) -> None:
        self.name = one_line(str(name), _WIDEST)
        self.number = getattr(values.dtype, "kind", "O") in "iuf"
        text = _number_format(values) if self.number else _text
        self.texts = [text(value) for value in values]
        """What is shown of each value at most; empty for one that holds nothing."""
        self.filled = any(self.texts)
        longest = max(map(len, self.texts), default=0)
        one_row = longest if longest <= _ONE_LINE else max(_FEWEST, _half(longest))
        self.wide = min(_WIDEST, max(one_row, min(len(self.name), _ONE_LINE), 3))
        """Characters of a line."""
        self.wanted = longest

    @property
    def cut(self) -> bool:
        """Whether two lines do not hold its longest text."""
        return self.wide < min(_half(self.wanted), self.wanted)

    @property
    def style(self) -> str:
        """How wide its cells are."""
        return "white-space:nowrap" if self.wanted <= _ONE_LINE else f"max-width:{self.wide * _CHAR}px"

    @property
    def pixels(self) -> int:
        return self.wide * _CHAR + _PADDING

    @property
    def cells(self) -> list[tuple[str, str]]:
        """Of each cell what is shown in two lines, and the rest of it for who points at it."""
        # A line ends at a word: of two lines a tenth is not used.
        most = self.wide * 2 - self.wide // 5 if self.wanted > self.wide else self.wide
        return [(one_line(text, most), text if len(text) > most else "") for text in self.texts]


def _half(characters: int) -> int:
    """Return the length of a line of which two hold a text; they end at words, so some of it is not used."""
    return characters // 2 + characters // 10 + 1


def _widen(columns: Sequence[_Column], room: int) -> None:
    """Give columns of texts that are cut the room that is left, the first ones first."""
    for column in columns:
        more = min(room // _CHAR, max(0, _half(column.wanted) - column.wide), 40)
        if column.wanted > _ONE_LINE and more > 0:
            column.wide += more
            room -= more * _CHAR


def _text(value: Any) -> str:
    """Return a value in one line; nothing for one that is missing or empty."""
    import pandas as pd

    if isinstance(value, str):
        return one_line(value, _LONGEST)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, dict | list | tuple):
        return one_line(_structure(value), _LONGEST) if value else ""
    if pd.isna(value):
        return ""
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return one_line(str(value), _LONGEST)


def _number_format(values: Any) -> Callable[[Any], str]:
    """Return what writes the numbers of a column, all with the decimals that three digits of its largest
    need.
    """
    import pandas as pd

    known = [abs(float(value)) for value in values.dropna() if math.isfinite(value)]
    largest = max(known, default=0.0)
    whole = all(value.is_integer() for value in known)
    decimals = 0 if whole or not largest else min(6, max(0, 2 - math.floor(math.log10(largest))))
    return lambda value: f"{float(value):,.{decimals}f}" if value is not pd.NA and value == value else ""


def _structure(value: object) -> str:
    try:
        return readable(value)
    except (TypeError, ValueError):  # of a frame that somebody put other things into
        return str(value)


def _note(
    frame: pd.DataFrame,
    *,
    shown: Sequence[str] | None = None,
    left_out: Sequence[str] = (),
    whole: bool = True,
) -> str:
    """Return the line below a table: units, that it has no rows, and what of the frame is not shown."""
    units: dict[str, str] = frame.attrs.get(UNITS, {})
    names = {
        *(map(str, frame.columns) if shown is None else shown),
        *(str(name) for name in (*frame.index[:100], *frame.columns.names, *frame.index.names)),
    }
    said: dict[str, list[str]] = {}
    for name, unit in units.items():
        if name in names:
            said.setdefault(unit, []).append(name)
    notes = [f"{', '.join(named)} in {unit}" for unit, named in said.items()]
    if not len(frame):
        notes = ["no rows"]
    if left_out:
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        notes.append(
            f"{format_count(len(frame.columns), 'column')}, not shown: {', '.join(left_out[:_NAMED])}{more}; "
            ".columns names all"
        )
    if not whole:
        notes.append(f"{format_count(len(frame), 'row')}")
    return str(template_macros("elements.html").faint("; ".join(notes))) if notes else ""
