"""Plans drawn: the laws of the arrangement, and that SVG, figure and table tell the plan and nothing else."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from IPython.lib.pretty import pretty

from kestrel_lab.core.drawing.layout import (
    FOLD_FROM,
    HEIGHT,
    Layout,
    Node,
    fold_nodes,
    lay_out,
    reduced_edges,
    shorten_to_width,
    svg_path,
    text_width,
)
from kestrel_lab.core.drawing.svg import plan_svg
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.sanitize import sanitize_text

STATES = ("", "pending", "running", "waiting", "ok", "failed", "skipped", "stopped")


@st.composite
def nodes(draw: st.DrawFn, most: int = 14) -> list[Node]:
    """Steps of a plan, which wait for earlier ones and may have been grown by one of these; in any order."""
    found: list[Node] = []
    for number in range(draw(st.integers(0, most))):
        earlier = st.sampled_from(found) if found else st.nothing()
        needs = draw(st.lists(earlier, max_size=4, unique_by=lambda node: node.id)) if found else []
        parent = draw(st.none() | earlier) if found else None
        grown = (parent.id,) if parent else ()
        found.append(
            Node(
                id=f"s{number}",
                needs=(*grown, *(node.id for node in needs)),
                state=draw(st.sampled_from(STATES)),
                stage=draw(st.sampled_from(("", "look", "act"))),
                parent=parent.id if parent else "",
            )
        )
    return draw(st.permutations(found))


def tangle(plan: list[Node]) -> list[Node]:
    """The same with a circle through all of it, as a log of another program might hold."""
    return [Node(id=node.id, needs=(*node.needs, plan[number - 1].id)) for number, node in enumerate(plan)]


def before(plan: list[Node] | tuple[Node, ...], needs: dict[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """All that each step waits for, however far: the simplest way to say it."""
    found = {node.id: set(needs[node.id]) for node in plan}
    while True:
        more = {name: waits.union(*(found[need] for need in waits)) for name, waits in found.items()}
        if more == found:
            return found
        found = more


def legal(layout: Layout) -> None:
    """No two steps touch, every line leads to the right and through no step, everything is on the sheet."""
    boxes = layout.boxes
    for number, one in enumerate(boxes):
        assert one.x >= 0 <= one.y and one.x + one.width <= layout.width and one.y + HEIGHT <= layout.height
        for other in boxes[:number]:
            apart_x = one.x + one.width < other.x or other.x + other.width < one.x
            apart_y = one.y + HEIGHT < other.y or other.y + HEIGHT < one.y
            assert apart_x or apart_y, (one, other)
    column = {box.node.id: box.column for box in boxes}
    for line in layout.lines:
        assert column[line.source] < column[line.target]
        xs = [x for x, _ in line.points]
        assert xs == sorted(set(xs))
        assert all(0 <= y <= layout.height for _, y in line.points)
        for (x, y), (_, y_end) in zip(line.points[1::2], line.points[2::2], strict=False):
            assert y == y_end
            assert not any(box.x == x and box.y <= y <= box.y + HEIGHT for box in boxes), line


@given(nodes())
def test_steps_have_places_of_their_own_and_lines_go_right(plan: list[Node]) -> None:
    """Holds for every plan; equal plans are arranged equally, and one line is drawn per arrow."""
    layout = lay_out(plan)
    legal(layout)
    assert [box.node.id for box in layout.boxes] == [node.id for node in plan]
    assert layout == lay_out(list(plan))
    assert sorted((line.source, line.target) for line in layout.lines) == sorted(
        (need, name) for name, needs in reduced_edges(plan).items() for need in needs
    )


@given(nodes())
def test_arrows_that_others_imply_are_left_out_and_no_more(plan: list[Node]) -> None:
    """What waits for what is the same by the arrows drawn as by the needs; without any one of them it is
    not.
    """
    drawn = reduced_edges(plan)
    assert before(plan, drawn) == before(plan, {node.id: node.needs for node in plan})
    for name, needs in drawn.items():
        for need in needs:
            fewer = {**drawn, name: tuple(other for other in needs if other != need)}
            assert before(plan, fewer) != before(plan, drawn)


@given(nodes().map(tangle))
def test_a_circle_is_drawn_too(plan: list[Node]) -> None:
    """A log may hold a plan that is none: it is drawn with the circle cut open, not refused."""
    legal(lay_out(plan))


@given(nodes(most=6), st.data())
def test_long_plans_fold_what_is_done(plan: list[Node], data: st.DataObject) -> None:
    """Growth that is done is one node with what grew it: nothing is lost, nothing open is hidden, no circle
    appears.
    """
    many = [
        Node(id=f"x{number}", needs=data.draw(st.sampled_from([(), (plan[0].id,)]) if plan else st.just(())))
        for number in range(FOLD_FROM)
    ]
    shown = fold_nodes([*plan, *many])
    assert sum(1 + node.folded for node in shown) == len(plan) + len(many)
    hidden = {node.id for node in plan} - {node.id for node in shown}
    assert all(node.state in {"ok", "skipped"} and node.parent for node in plan if node.id in hidden)
    legal(lay_out([*plan, *many]))
    assert fold_nodes(plan) == tuple(plan)


def test_a_group_that_others_run_through_is_not_folded() -> None:
    """A step between two of a group would wait for it and be waited for: then nothing is folded."""
    group = [
        Node(id="p", state="ok"),
        Node(id="a", needs=("p",), parent="p", state="ok"),
        Node(id="b", needs=("p", "between"), parent="p", state="ok"),
        Node(id="between", needs=("a",), state="running"),
    ]
    rest = [Node(id=f"x{number}") for number in range(FOLD_FROM)]
    assert fold_nodes([*group, *rest]) == (*group, *rest)
    assert [(node.id, node.folded) for node in fold_nodes([*group[:2], *rest])][:2] == [("p", 1), ("x0", 0)]


def test_two_hundred_steps_are_arranged_while_one_waits() -> None:
    """A plan of 200 steps that depend on each other irregularly is legal, and has few more crossings than
    none.
    """
    plan = [
        Node(id=f"s{n}", needs=tuple(f"s{n - d}" for d in (1, 3, 7) if n >= d and (n * d) % 5 > 1))
        for n in range(200)
    ]
    legal(lay_out(plan))


def test_a_bad_arrangement_would_be_noticed() -> None:
    """The laws are broken by steps in one place, by a line to the left and by a line through a step."""
    plan = [
        Node(id="a"),
        Node(id="b", needs=("a",)),
        Node(id="c", needs=("b",)),
        Node(id="d", needs=("c",)),
        Node(id="e", needs=("a",)),
    ]
    layout = lay_out([*plan, Node(id="f", needs=("e", "d"))])
    long = max(layout.lines, key=lambda line: len(line.points))
    box = next(box for box in layout.boxes if box.x == long.points[1][0])
    straight = replace(long, points=tuple((x, box.y + HEIGHT // 2) for x, _ in long.points))
    wrong = (
        replace(layout, boxes=tuple(replace(box, x=14, y=14) for box in layout.boxes)),
        replace(layout, lines=(replace(layout.lines[0], source="d", target="a"),)),
        replace(layout, lines=(straight,)),
    )
    legal(layout)
    for bad in wrong:
        with pytest.raises(AssertionError):
            legal(bad)


def test_crossings_are_avoided() -> None:
    """Two chains written crosswise are drawn beside each other."""
    plan = [Node(id="a"), Node(id="b"), Node(id="of b", needs=("b",)), Node(id="of a", needs=("a",))]
    row = {box.node.id: box.y for box in lay_out(plan).boxes}
    assert (row["a"] < row["b"]) == (row["of a"] < row["of b"])


HOSTILE = (
    "<script>alert(1)</script>",
    '"/><image href="//x"/>',
    "]]><!--",
    "\x1b[31m\u202ered\uffff",
    "javascript:alert(1)",
    "&amp;",
)
ELEMENTS = {"svg", "style", "title", "desc", "g", "rect", "path", "text"}
ATTRIBUTES = {
    *(
        "class",
        "role",
        "aria-label",
        "width",
        "height",
        "viewBox",
        "font-size",
        "style",
        "x",
        "y",
        "rx",
        "d",
        "opacity",
    ),
    *(
        "fill",
        "fill-opacity",
        "stroke",
        "stroke-opacity",
        "stroke-width",
        "stroke-dasharray",
        "text-anchor",
        "font-weight",
    ),
}


@pytest.mark.parametrize("alone", [True, False])
@given(st.text(min_size=1, max_size=30) | st.sampled_from(HOSTILE))
def test_foreign_text_is_text_in_the_svg(alone: bool, hostile: str) -> None:
    """Whatever steps are called, the SVG is well-formed, has our own elements and attributes only, and loads
    nothing.
    """
    plan = [
        Node(id=hostile + "1", work=hostile, stage=hostile, state=hostile),
        Node(id="b", needs=(hostile + "1",), state="ok", exclusive=True),
    ]
    text = plan_svg(lay_out(plan), alone=alone, stages={hostile: hostile})
    root = ET.fromstring(text)
    assert {node.tag.removeprefix("{http://www.w3.org/2000/svg}") for node in root.iter()} <= ELEMENTS
    assert {name for node in root.iter() for name in node.attrib} <= ATTRIBUTES
    assert "url(" not in text and "href" not in [name for node in root.iter() for name in node.attrib]
    words = "".join(root.itertext())
    assert sanitize_text(words) == words


def test_a_tooltip_says_what_a_step_does() -> None:
    """Where it has work that can be said; a file alone has no more to say of a step without any."""
    drawn = ET.fromstring(
        plan_svg(
            lay_out([Node(id="read", work="look at the files"), Node(id="b", needs=("read",))]), alone=True
        )
    )
    titles = [node.text or "" for node in drawn.iter() if node.tag.endswith("title")]
    assert [text.count("look at the files") for text in titles if text.startswith(("read", "b"))] == [1, 0]
    assert not any(text.endswith(": ") for text in titles)


PLAN = Plan(
    steps=(
        Step(id="<a> $x$", goal="<script>go</script>", produces=("r",)),
        Step(id="b", tool="keep", consumes=("r",), parallelizable=False, stage="end"),
        Step(id="c", goal="c", depends_on=("b", "<a> $x$")),
    )
)


def test_a_plan_is_drawn_as_a_figure() -> None:
    """Every step with its state, every arrow and every stage is in the drawing; a notebook gets a PNG, a file
    may be an SVG.
    """
    figure = PLAN.plot({"b": "ok", "c": "failed"})
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == [
        "end",
        r"<a> \$x\$",
        "· pending",
        "b",
        "✓ ok",
        "c",
        "✗ failed",
    ]
    assert len(axes.patches) == 1 + 2 + 3
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    target = BytesIO()
    figure.savefig(target, format="svg")
    assert b"<svg" in target.getvalue()


def test_a_plan_is_an_svg_file() -> None:
    """State is told by word and mark, not by colour alone; exclusive steps are dashed; a reader hears what
    waits for what.
    """
    root = ET.fromstring(PLAN.to_svg({"b": "ok"}))
    space = {"s": "http://www.w3.org/2000/svg"}
    assert root.get("aria-label") == "Plan of 3 steps: 2 pending, 1 ok"
    assert (
        root.findtext("s:desc", namespaces=space)
        == "<a> $x$ (pending); b (ok) after <a> $x$; c (pending) after b"
    )
    texts = [text.text for text in root.iterfind(".//s:text", space)]
    assert texts == ["end", "<a> $x$", "· pending", "b", "✓ ok", "c", "· pending"]
    assert ["stroke-dasharray" in rect.attrib for rect in root.iterfind(".//s:rect", space)] == [
        False,
        False,
        True,
        False,
    ]


def test_a_plan_shows_itself_as_a_drawing_and_a_table() -> None:
    """Steps with what they wait for; nothing of a plan is read as HTML."""
    text = PLAN._repr_html_()
    assert "<script>" not in text
    assert "<svg" in text
    assert "&lt;script&gt;go&lt;/script&gt;" in text
    assert text.count("<tr>") == 4
    assert '<td style="text-align:left">b, &lt;a&gt; $x$</td>' in text


def test_a_plan_has_a_readable_plain_form() -> None:
    """What a terminal, or a notebook opened as text, shows: a line per step with what it waits for, no
    fields.
    """
    text = pretty(
        Plan(steps=(Step(id="a", tool="t", produces=("x",)), Step(id="b", goal="do", consumes=("x",))))
    )
    assert text == "Plan of 2 steps\n  a: call t (produces x)\n  b: do (after a)"
    assert pretty(Plan.single("do")).startswith("Plan of 1 step\n")


def test_long_names_keep_their_end() -> None:
    """Grown steps differ at the end of their names; wide characters count twice."""
    assert shorten_to_width("execute/plan/read-config#2", 22) == "execute…/read-config#2"
    assert text_width("読む") == 4
    assert text_width(shorten_to_width("読" * 40, 22)) <= 22


def test_curves_are_numbers() -> None:
    """A path has letters and numbers only, also through columns that it passes."""
    plan = [
        Node(id="a"),
        Node(id="b", needs=("a",)),
        Node(id="c", needs=("b",)),
        Node(id="d", needs=("a",)),
        Node(id="e", needs=("c", "d")),
    ]
    layout = lay_out(plan)
    assert all(set(svg_path(line)) <= set("MCL 0123456789") for line in layout.lines)
    assert max(len(line.points) for line in layout.lines) == 4
