"""Tables of data frames in a notebook: which columns are shown, how wide, and that the frame keeps all."""

import asyncio
import re

import pandas as pd
import pytest

from kestrel_lab.core.calls import Usage
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.views.dataframes import WIDTH, unit_frame


def headings(frame: pd.DataFrame) -> list[str]:
    """What stands over the columns that a notebook shows."""
    return re.findall(r'<th scope="col"[^>]*>([^<]*)</th>', frame._repr_html_())


def test_columns_that_hold_something_are_shown_and_all_are_kept() -> None:
    """Of more columns than fit those without a value are left out first; the note says how to see them."""
    columns = {f"c{n:02}": ["x" * 20 if n % 2 else None] * 3 for n in range(40)}
    frame = unit_frame(columns)
    assert headings(frame)[1:4] == ["c01", "c03", "c05"]
    assert "40 columns, not shown: c00, " in frame._repr_html_()
    assert len(frame.columns) == 40
    assert headings(unit_frame({"a": [None], "b": [1]})) == ["", "a", "b"]


def test_a_table_fits_a_page_and_a_text_two_lines() -> None:
    """The columns that are shown have room in `WIDTH` pixels, and no cell has more text than two lines hold; the
    rest is told to who points at it.
    """
    frame = unit_frame({name: ["some words " * 40, "few"] for name in "abcdef"})
    html = frame._repr_html_()
    wide = [int(px) for px in re.findall(r"max-width:(\d+)px", html)]
    cells = re.findall(r"max-width:(\d+)px\">([^<]*)</div>", html)
    assert 0 < sum(wide[: len(headings(frame)) - 1]) + 16 * len(headings(frame)) <= WIDTH
    assert all(len(text) * 8 <= 2 * int(px) for px, text in cells)
    assert 'title="some words some words' in html


def test_a_long_frame_shows_its_ends() -> None:
    """Of 12,000 rows ten are shown, and the note says how many there are."""
    html = unit_frame({"n": range(12_000)})._repr_html_()
    assert (html.count("<tr>"), "12,000 rows" in html, "11,999" in html) == (12, True, True)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([0.018743, 0.00096, 1.5], ["0.02", "0.00", "1.50"]),
        ([12_000.0, 3.0, float("nan")], ["12,000", "3", ""]),
        ([0.00002, 0.00001, 0.0], ["0.000020", "0.000010", "0.000000"]),
        ([True, False, None], ["True", "False", ""]),
        ([{"a": 1}, [], "<b>"], ["{&#34;a&#34;:1}", "", "&lt;b&gt;"]),
    ],
)
def test_values_read_as_values(values: list[object], texts: list[str]) -> None:
    """Numbers of a column have equally many decimals, what is missing or empty is blank, and text is text."""
    html = unit_frame({"x": values})._repr_html_()
    assert re.findall(r"<td[^>]*><div[^>]*>([^<]*)</div>", html) == texts


def test_a_frame_stays_a_frame() -> None:
    """Selecting, grouping, joining and writing are those of pandas, with all columns."""
    frame = unit_frame({"k": ["a", "a", "b"], "v": [1, 2, 3], "empty": [None] * 3})
    assert dict(frame.groupby("k")["v"].sum()) == {"a": 3, "b": 3}
    assert list(frame.merge(frame, on="k").columns) == ["k", "v_x", "empty_x", "v_y", "empty_y"]
    assert frame.to_csv(index=False).splitlines()[0] == "k,v,empty"
    assert frame.pivot_table(index="k", columns="v", values="v")._repr_html_().count("<th") > 4
    assert "<th" in frame.pivot_table(index="k", columns=["v", "k"], values="v")._repr_html_()


def test_a_report_says_what_was_done_denied_and_spent(session: Lab) -> None:
    """Shown, a report is a summary, and its usage a line; the whole run is what the run itself shows."""
    calls = [("write_file", {"path": f"{name}.txt", "content": "hello"}) for name in "ab"]
    model = ScriptedModel([calls, "Done: a.txt holds it."])
    deny = [{"tool": "write_file", "verdict": "deny", "path": "b.txt"}]
    run = asyncio.run(session.run("write <it>", model=model, approve="auto:medium", rules=deny))
    text, html = str(run.report), run.report._repr_html_()
    assert re.search(r"(?m)^did +changed a\.txt \(\+1 −0 lines", text)
    assert re.search(r"(?m)^answered +Done: a\.txt holds it\.$", text)
    assert re.search(r"(?m)^took .*tokens · .*2 model calls", text)
    assert re.search(r"(?m)^denied +called write_file\(.*b\.txt", text)
    assert ("&lt;it&gt;" in html, "<details" in html, "<details" in run._repr_html_()) == (True, False, True)


def test_usage_reads_as_a_line() -> None:
    """Tokens, money and calls, as in the panel."""
    used = Usage(tokens_in=1_500, tokens_out=20, cost_usd=0.0021, model_calls=3, tool_calls=1)
    assert str(used) == "1,520 tokens · $0.0021 · 3 model calls · 1 tool call"
