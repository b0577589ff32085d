"""The box for labels: keys of any page become labels in the log, and it shows nothing that is not blind."""

import asyncio
import json
from pathlib import Path

import pytest

from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.labels.stored_labels import stored_labels
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.lab import Lab
from kestrel_lab.notebook.label_box import LabelBox
from kestrel_lab.testing import ScriptedModel

pytest.importorskip("anywidget")
CHECKS = (AnswerContains(texts=("hello",)),)


@pytest.fixture
def result(tmp_path: Path):
    """Six trials."""
    lab = Lab(home=tmp_path / "home", env={})
    asked = tuple(Scenario(id=f"s{n}", goal=f"Greet person {n}", checks=CHECKS) for n in range(6))
    suite = Suite(name="demo", scenarios=asked)
    yield asyncio.run(run_suite(lab, suite, configs={"secret": ScriptedModel(["hello"])}))
    lab.close()


def press(box: LabelBox, **message: object) -> dict:
    """Send what a page sends; gives what is shown then."""
    box._message(None, message, None)
    return box._widget.state


def label(box: LabelBox, value: int | None, **more: object) -> dict:
    """Press the key of a value on what is shown."""
    item = box._widget.state["item"]
    return press(box, k="label", run=item["run"], repeat=item["repeat"], value=value, **more)


def test_keys_become_labels(result) -> None:
    """A label with its note, an undo, and a rubric's new version."""
    box = LabelBox(result.label(who="ada"))
    before = box._widget.state
    assert "secret" not in json.dumps(before)
    after = label(box, 1, text="fine")
    assert (after["done"], after["item"] != before["item"]) == (1, True)
    assert [(x.said.value, x.said.note) for x in stored_labels(result.store, "demo")] == [(1, "fine")]
    assert press(box, k="undo")["item"] == before["item"]
    assert press(box, k="undo")["message"] == "there is nothing to undo"
    label(box, 0)
    again = press(box, k="rubric", text="It greets.")
    assert (again["rubric"], again["outdated"], again["done"]) == ("It greets.", 1, 0)


def test_a_second_tab_and_a_new_kernel_go_on(result) -> None:
    """A key that was meant for a trial labelled meanwhile labels nothing, and says so; a box that is made
    anew shows what is next.
    """
    one, other = LabelBox(result.label(who="ada")), LabelBox(result.label(who="ada"))
    label(one, 1)
    late = label(other, 0)
    assert "labelled meanwhile" in late["message"]
    assert late["item"] == one._widget.state["item"]
    assert [x.said.value for x in stored_labels(result.store, "demo")] == [1]
    assert LabelBox(result.label(who="ada"))._widget.state["item"] == late["item"]


def test_the_end_shows_the_agreement(result) -> None:
    """When all are labelled there is the report, and nothing that is not a value is taken."""
    box = LabelBox(result.label(who="ada"))
    assert label(box, 7)["done"] == 0
    while box._widget.state["item"] is not None:
        label(box, 1)
    assert "labelled by 1 person" in box._widget.state["report"]
    data, _ = box.bundle()
    assert "7 of 7 labelled by ada" in data["text/plain"]
