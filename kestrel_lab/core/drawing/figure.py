"""Figures that a notebook shows and a page can hold."""

from __future__ import annotations

import base64
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING

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


def literal(text: str) -> str:
    """`text` without a meaning for matplotlib, which reads formulas between dollar signs."""
    return text.replace("$", r"\$")


def _png(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    content = BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
