"""Figures that a notebook shows and a page can hold."""

from __future__ import annotations

import base64
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@cache
def shown_figure() -> type[Figure]:
    """The class of figures that a notebook shows as the value of a cell; not pyplot's, which keeps figures and chooses a screen."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            return _png(self)

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

    FigureCanvasAgg(figure)
    content = BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
