"""A data frame that code gives is shown as a table of its data."""

import pandas as pd

from kestrel_lab.core.events.union import KernelChanged, ToolAnswered, ToolCalled
from kestrel_lab.tools.kernel.capture import FRAME_COLUMNS, FRAME_ROWS, frame_table
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_view import RunView


class Painted(pd.DataFrame):
    """A frame with HTML of its own."""

    def _repr_html_(self) -> str:
        return "<script>alert(1)</script>"


def test_a_frame_is_told_by_its_data() -> None:
    """Headings, index and cells as short texts, numbers rounded; of a class with HTML of its own the same; of
    a large frame the beginning with its size; of anything else nothing.
    """
    frame = pd.DataFrame({"shop": ["<b>Berlin</b>", "x" * 200], "total": [1 / 3, 2.0]}, index=["a", "b"])
    rows = frame_table(frame)
    assert rows[:2] == [["", "shop", "total"], ["a", "<b>Berlin</b>", "0.333333"]]
    assert len(rows[2][1]) == 60
    assert frame_table(Painted(frame)) == rows
    large = frame_table(pd.DataFrame([range(40)] * 50))
    assert (len(large), len(large[0])) == (FRAME_ROWS + 2, FRAME_COLUMNS + 1)
    assert large[-1][0] == "… of 50 rows × 40 columns"
    assert [frame_table(one) for one in (frame["shop"], frame.iloc[:0], {"a": 1}, None)] == [[], [], [], []]


def test_the_table_stands_in_place_of_the_text() -> None:
    """Under its call and escaped, with the text that the model read folded below it."""
    view = RunView()
    about = {"call": "c1", "step": "answer"}
    for event in (
        ToolCalled(tool="run_python", args={"code": "frame"}, **about),
        KernelChanged(
            how="executed", kernel="k", table=[["", "shop"], ["0", "<b>Berlin\x1b[31m</b>"]], **about
        ),
        ToolAnswered(tool="run_python", text="     shop\n0  Berlin", **about),
    ):
        view.apply(event, 1.0)
    row = view.rows["c:c1"]
    assert row.table == [["", "shop"], ["0", "<b>Berlin</b>"]]
    assert row.undo == ""
    html = run_html(view)
    assert "&lt;b&gt;Berlin&lt;/b&gt;</td>" in html
    assert html.index("</table>") < html.index("as text</summary>") < html.index("0  Berlin")
