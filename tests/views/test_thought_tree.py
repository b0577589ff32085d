"""A search as a table and as a tree."""

from kestrel_lab.core.events.union import BranchScored, Event, Progress
from kestrel_lab.views.thought_tree import plot_thoughts, thoughts_of

EVENTS: list[Event] = [
    BranchScored(step="s#2", candidate="s/c1", text="one", score=0.5),
    Progress(text="something else"),
    BranchScored(step="s#2", candidate="s/c2", text="$two$\x1b[31m", score=0.75),
    BranchScored(step="s#2", candidate="s/c2", text="$two$\x1b[31m", score=0.75),
    BranchScored(step="s#3", candidate="s/c3", text="three", score=1.0, parent="s/c2", done=True),
]


def test_a_row_per_candidate() -> None:
    """Candidates come once each, in order, with depth, and the solution is marked from its first thought
    on.
    """
    rows = thoughts_of(EVENTS).to_dict("split")
    assert rows["columns"] == ["candidate", "parent", "depth", "score", "text", "chosen"]
    assert rows["data"] == [
        ["s/c1", "", 1, 0.5, "one", False],
        ["s/c2", "", 1, 0.75, "$two$\x1b[31m", True],
        ["s/c3", "s/c2", 2, 1.0, "three", True],
    ]


def test_a_run_without_a_search_has_no_thoughts() -> None:
    """The table is empty with its columns, and its drawing is a dot."""
    frame = thoughts_of([])
    assert (list(frame.columns), len(frame)) == (
        ["candidate", "parent", "depth", "score", "text", "chosen"],
        0,
    )
    assert list(plot_thoughts(frame).axes[0].texts) == []


def test_the_tree_shows_scores_and_the_solution() -> None:
    """Each candidate stands below its parent's column with score and text, formulas and escapes harmless; the
    solution is drawn bold.
    """
    figure = plot_thoughts(thoughts_of(EVENTS))
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.50 one", r"0.75 \$two\$", "1.00 three"]
    assert [line.get_linewidth() for line in figure.axes[0].lines] == [1, 2, 2]
    assert b"\x89PNG" in figure._repr_png_()[:8]


def test_many_candidates_have_no_texts() -> None:
    """Beyond forty the drawing keeps to dots, one line each."""
    events = [BranchScored(step="s", candidate=f"c{n}", text=str(n), score=n / 100) for n in range(41)]
    assert list(plot_thoughts(thoughts_of(events)).axes[0].texts) == []
