"""Labels in figures: none covers another, none leaves the axes, and long names are told apart."""

from kestrel_lab.core.drawing.matplotlib_figure import (
    WIDTH,
    label_points,
    needs_numbers,
    numbered_labels,
    shown_figure,
    wrap_label,
)


def test_labels_do_not_overlap() -> None:
    """Twenty points, some in one place and some close together, have labels that do not cover each other and
    stay inside.
    """
    figure = shown_figure()(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    points = [
        (x % 5 / 4 + 0.004 * (x % 3), (x // 5) / 4 + 0.003 * (x % 2), str(x + 1)) for x in range(20)
    ] + [
        (0.62, 0.62, "21"),
        (0.62, 0.62, "22"),
    ]
    axes.scatter([x for x, _, _ in points], [y for _, y, _ in points])
    axes.set_xlim(-0.1, 1.1)
    axes.set_ylim(-0.1, 1.1)
    label_points(axes, points)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in axes.texts]
    assert "21, 22" in [text.get_text() for text in axes.texts]
    assert not [(a, b) for n, a in enumerate(boxes) for b in boxes[:n] if a.overlaps(b)]
    assert all(axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1 for box in boxes)


def test_long_names_are_folded_and_numbered() -> None:
    """A name of any length takes three lines at most, its end is kept, and numbers stand for names that do
    not fit beside points.
    """
    long = (
        "provider/some-rather-long-model-name-2026 [temperature=0.1, reasoning_effort=high, "
        "seed=12345, top_p=0.95, stop=none]"
    )
    lines = wrap_label(long).splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= WIDTH and lines[-1].endswith("stop=none]")
    assert needs_numbers(["a", long]) and needs_numbers(list("abcdefg")) and not needs_numbers(["a", "b"])
    assert numbered_labels(["a", "b"]) == ["a", "b"] and numbered_labels(["a", long])[0] == "1  a"
