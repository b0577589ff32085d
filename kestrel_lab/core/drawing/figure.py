"""Figures that a notebook shows and a page can hold, light or dark."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#7b7b7b"
"""Reads on white (4.2 : 1) and on the dark grounds of notebooks (4.4 : 1); a picture cannot know which it will be on."""


@cache
def shown_figure() -> type[Figure]:
    """The class of figures that a notebook shows as the value of a cell; not pyplot's, which keeps figures and chooses a screen."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            return _png(self)

        def __repr__(self) -> str:
            titles = [str(self.get_label()), self.get_suptitle(), *(axes.get_title() or axes.get_xlabel() for axes in self.axes)]
            said = "; ".join(filter(None, titles)).replace(r"\$", "$")
            return f"Figure: {said or 'a drawing'}"

    return ShownFigure


def png_uri(figure: Figure) -> str:
    """The figure as a `data:` address for an `<img>`."""
    return f"data:image/png;base64,{base64.b64encode(_png(figure)).decode()}"


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure in the format that the file's ending names; returns the path. Raises `UsageError` for an ending without one."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    known = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in known:
        msg = f"{target} does not end in the name of a picture format; write one of {', '.join('.' + kind for kind in sorted(known))}"
        raise UsageError(msg)
    figure.savefig(target, dpi=150)
    return target


def literal(text: str) -> str:
    """`text` without a meaning for matplotlib, which reads formulas between dollar signs."""
    return text.replace("$", r"\$")


def _png(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    # Ticks and their labels are made by drawing.
    canvas.draw()  # type: ignore[no-untyped-call]
    content = BytesIO()
    with _for_any_ground(figure):
        figure.savefig(content, format="png", dpi=110, transparent=True)
    return content.getvalue()


@contextmanager
def _for_any_ground(figure: Figure) -> Iterator[None]:
    """Everything black in `INK`, legends without a ground; black on white again afterwards, which is for paper."""
    from matplotlib.colors import to_hex
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    kinds = {Line2D: ("color", "markeredgecolor"), Spine: ("edgecolor",), Text: ("color",)}
    changed: list[tuple[Callable[[Any], object], Any]] = []
    for legend in figure.findobj(Legend):
        frame = legend.get_frame()
        changed.append((frame.set_alpha, frame.get_alpha()))
        frame.set_alpha(0.0)  # a sheet of white below grey words
    for kind, colours in kinds.items():
        for artist in figure.findobj(kind):
            for colour in colours:
                before = getattr(artist, f"get_{colour}")()
                if to_hex(before) == "#000000":
                    changed.append((getattr(artist, f"set_{colour}"), before))
                    changed[-1][0](INK)
    try:
        yield
    finally:
        for change, before in changed:
            change(before)
