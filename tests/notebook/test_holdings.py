"""Everything a user holds, as a notebook, a saved file and a terminal show it."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from holdings import TRAP, Holdings, hold
from IPython.core.formatters import DisplayFormatter

import kestrel_lab
from kestrel_lab.views.dataframes import unit_frame

pytestmark = pytest.mark.slow

GENERIC = re.compile(r"<[\w.]+ object at|<[\w.]+ object>|<function |\bat 0x[0-9a-f]+")


class Outside(HTMLParser):
    """Collects the texts that formulas would be set in."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where formulas are off; void elements hold nothing."""
        if tag not in {"br", "img", "hr", "input"}:
            self._open.append((tag, "mathjax_ignore" in (dict(attrs).get("class") or "")))

    def handle_endtag(self, tag: str) -> None:
        """Leave the element."""
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Keep a text that no element around it protects."""
        if not any(off for _, off in self._open):
            self.texts.append(data)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdings]:
    """One of everything, with texts that would be formulas."""
    with hold(tmp_path_factory.mktemp("held")) as holdings:
        yield holdings


def shown(value: object, forms: AbstractSet[str] = frozenset({"text/plain", "text/html"})) -> dict[str, Any]:
    """The forms that IPython finds for a value; a picture, which takes long to draw, where it is asked
    for.
    """
    found: dict[str, Any] = DisplayFormatter().format(value, include=forms)[0]  # type: ignore[no-untyped-call]
    return found


def test_no_object_renders_empty_or_as_an_address(held: Holdings) -> None:
    """Text and HTML of each object have content, none is Python's own `<object at 0x…>`, and text names no
    class of ours alone.
    """
    for name, value in held.objects.items():
        forms = shown(value)
        for mime in forms:
            text = re.sub(
                r"<style.*?</style>|<[^>]*>" if mime == "text/html" else "^$",
                "",
                forms[mime],
                flags=re.DOTALL,
            )
            assert text.strip() or "<svg" in forms[mime], (name, mime)
            assert not GENERIC.search(forms[mime]), (name, mime, forms[mime])
        assert not GENERIC.search(repr(value)), (name, repr(value))
        assert repr(value).strip(), name


def test_no_public_name_is_forgotten(held: Holdings) -> None:
    """What `kestrel_lab` promises in `__all__` and can be held is among the objects that these tests look
    at.
    """
    kinds = {kind for value in held.objects.values() for kind in type(value).__mro__}
    public = {name: getattr(kestrel_lab, name) for name in kestrel_lab.__all__}
    classes = {
        name for name, value in public.items() if isinstance(value, type) and not issubclass(value, Exception)
    }
    assert {name for name in classes if public[name] not in kinds} == {
        "GraphAgent",
        "LLMAgent",
        "ReActAgent",
        "ToolContext",
    }


def test_no_text_of_others_can_become_a_formula(held: Holdings) -> None:
    """Wherever foreign text with dollar signs is shown as HTML, the element around it is one that formulas
    are not set in.
    """
    seen = set()
    for name, value in held.objects.items():
        html = str(shown(value).get("text/html", ""))
        outside = Outside()
        outside.feed(html)
        assert TRAP not in "".join(outside.texts), (name, outside.texts)
        seen |= {name} if TRAP in html else set()
    assert {
        "run",
        "plan",
        "runs",
        "events",
        "result",
        "trials",
        "comparison",
        "flips",
        "gates",
        "diff",
        "macro",
        "toolbox",
    } <= seen
    assert {
        "history",
        "bisect",
        "front",
        "rescored",
        "stored",
        "stored frame",
        "notes",
        "note card",
        "memory graph",
    } <= seen


def test_frames_say_units_and_whole_texts(held: Holdings) -> None:
    """A table says long texts whole to who points at them, says units of the columns it shows, and stays
    what it is through selections.
    """
    html = str(shown(held.objects["trials"])["text/html"])
    assert "wall_time in s; cost_estimate in USD" in html
    picked = held.objects["trials"][["scenario", "wall_time"]].head(1)
    assert "wall_time in s<" in str(shown(picked)["text/html"])
    units = {
        "history summary": "value, low, high in share",
        "bisect frame": "value, low, high in share",
        "history frame": "cost_estimate, ",
    }
    units |= {
        "families": "working_time, working_time_low, working_time_high",
        "stored": "working_time, s (95 %)",
    }
    assert [
        name for name, said in units.items() if said not in str(shown(held.objects[name])["text/html"])
    ] == []
    long = unit_frame({"text": ["x" * 200, f"{TRAP} <img src=x>\u202e"]})
    table = str(shown(long)["text/html"])
    assert ("x" * 200 in table, "<img" in table, "\u202e" in table) == (True, False, False)
    assert "no rows" in str(shown(unit_frame([], columns=["a"]))["text/html"])


def test_frames_are_frames_to_everybody_else(held: Holdings) -> None:
    """They can be stored and joined, and the options of other people's frames are as they were."""
    import pandas as pd

    trials = held.objects["trials"]
    stored = pickle.loads(pickle.dumps(trials))
    assert type(stored) is pd.DataFrame
    pd.testing.assert_frame_equal(trials, stored)
    assert len(pd.concat([trials, trials]).merge(trials, on="run")) == 2 * len(trials)
    shown(trials)
    assert (pd.get_option("display.html.use_mathjax"), pd.get_option("display.max_colwidth")) == (True, 50)


@pytest.mark.parametrize(
    "name",
    [
        "result figure",
        "plan figure",
        "thoughts figure",
        "families figure",
        "history figure",
        "bisect figure",
        "front figure",
        "routers figure",
    ],
)
def test_figures_read_on_any_ground(held: Holdings, name: str) -> None:
    """The picture has no ground of its own and no black ink; stored on paper, the same figure is black on
    white.
    """
    import io

    from matplotlib import image

    figure = held.objects[name]
    on_screen = image.imread(io.BytesIO(shown(figure, {"image/png"})["image/png"]))
    paper = io.BytesIO()
    figure.savefig(paper, format="png", dpi=110)
    on_paper = image.imread(io.BytesIO(paper.getvalue()))
    assert on_screen[0, 0, 3] == 0
    assert on_paper[0, 0, :3].min() == 1
    if name != "plan figure":  # whose words stand in white boxes
        assert (on_screen[..., 3] == 1).any()
        assert not ((on_screen[..., :3].max(axis=2) < 0.1) & (on_screen[..., 3] > 0.9)).any()
        assert not (
            (on_screen[..., :3].min(axis=2) > 0.75) & (on_screen[..., 3] > 0.5)
        ).any()  # no sheet of white
        assert (on_paper[..., :3].max(axis=2) < 0.1).any()
        assert all(axes.get_title() and axes.get_xlabel() for axes in figure.axes)


def test_a_table_of_settings_in_words(held: Holdings) -> None:
    """`lab.settings` is a table in a notebook, and one in text."""
    settings = held.objects["settings"]
    assert repr(settings).splitlines()[0].split() == ["setting", "value", "from", "meaning"]
    assert "<td" in settings._repr_html_()


@pytest.mark.parametrize("spoil", ["objects", "formulas"])
def test_these_tests_notice_a_careless_rendering(held: Holdings, spoil: str) -> None:
    """An object without words of its own, and a paragraph with foreign text in the open, are found."""

    class Bare:
        pass

    class Open:
        def __repr__(self) -> str:
            return "words"

        def _repr_html_(self) -> str:
            return f"<p>{TRAP}</p>"

    spoilt = Holdings({**held.objects, "spoilt": Bare() if spoil == "objects" else Open()})
    check: Callable[[Holdings], None] = (
        test_no_object_renders_empty_or_as_an_address
        if spoil == "objects"
        else test_no_text_of_others_can_become_a_formula
    )
    with pytest.raises(AssertionError, match="spoilt"):
        check(spoilt)


def test_an_empty_list_need_not_say_where_it_is(held: Holdings, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a saved notebook a workspace is told by its place in the folder of the notebook, not on the
    machine.
    """
    monkeypatch.chdir(held.objects["memory"].workspace)
    said = {
        name: [repr(held.objects[name]), held.objects[name]._repr_html_()]
        for name in ("no notes", "no memory graph", "no macros")
    }
    assert [name for name, forms in said.items() if str(Path.cwd()) in "".join(forms)] == []
    assert [text.split(":")[0] for text, _ in said.values()] == [
        "this folder",
        "home",
        "no macros for home, and none to propose",
    ]


def test_a_result_is_cheap_to_name(held: Holdings) -> None:
    """`repr` of results and comparisons needs no statistics: an event loop asks for it whenever one is
    returned.
    """

    async def main() -> str:
        return repr(held.objects["result"]) + repr(held.objects["comparison"])

    assert "passed" in asyncio.run(main())


def test_the_report_of_a_result_has_the_title_of_its_figure(held: Holdings, tmp_path: Path) -> None:
    """A figure says what suite it is of."""
    assert "suite" in held.objects["result figure"].get_suptitle()
    assert repr(held.objects["result figure"]).startswith("Figure: suite held $x_1+y_2$: 4 trials")
    assert repr(held.objects["plan figure"]) == "Figure: Plan of 2 steps: 2 ok"
