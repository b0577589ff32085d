"""A plan as a table and as a drawing."""

from io import BytesIO

from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.views.plan_figure import plot_plan

PLAN = Plan(
    steps=(
        Step(id="<a> $x$", goal="<script>go</script>", produces=("r",)),
        Step(id="b", tool="keep", consumes=("r",), parallelizable=False, stage="end"),
        Step(id="c", goal="c", depends_on=("b", "<a> $x$")),
    )
)


def test_a_plan_is_drawn() -> None:
    """Every step with its state and every need is in the drawing; a notebook gets a PNG, a file may be an SVG."""
    figure = plot_plan(PLAN, {"b": "ok", "c": "failed"})
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert [text for text in texts if text] == [r"<a> \$x\$", "b\nok", "c\nfailed"]
    assert texts.count("") == 3
    assert figure._repr_png_().startswith(b"\x89PNG")
    target = BytesIO()
    figure.savefig(target, format="svg")
    assert b"<svg" in target.getvalue()


def test_a_plan_is_a_table() -> None:
    """Steps with what they wait for; nothing of a plan is read as HTML."""
    text = PLAN._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;go&lt;/script&gt;" in text
    assert text.count("<tr>") == 4
    assert '<td style="text-align:left">b, &lt;a&gt; $x$</td>' in text
