"""Searches within runs: the tools, what the log has of them, and the commands."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelCalled, RetrievalStep, StepFinished, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.retrieval.search import FAINT, MAX_LISTED
from kestrel_lab.runtime.operations.gather import find_in, session_indexes
from kestrel_lab.runtime.review.retrieval_trace import RunRetrieval
from kestrel_lab.testing import ScriptedModel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small plain folder with a secret."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "cart.py").write_text("class Cart:\n    def total(self):\n        return sum(self.prices)\n")
    (place / "tax.py").write_text(
        "from cart import Cart\n\n\ndef tax(cart: Cart) -> float:\n    return cart.total() * 0.2\n"
    )
    (place / "notes.md").write_text("# Shop\n\nThe total is without tax.\n")
    (place / ".env").write_text("TOTAL=secret\n")
    return place


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Lab]:
    """A session whose home is not in the folder."""
    made = Lab(tmp_path / "home", approve="auto")
    yield made
    made.close()


def test_an_agent_searches_and_the_log_tells_how(session: Lab, folder: Path) -> None:
    """The tools answer with places; the trace is in the log, the same after reading it again, and explains
    every file.
    """
    model = ScriptedModel(
        [
            [("search_code", {"query": "where is the total of a cart computed", "top_k": 2})],
            [
                ("find_definition", {"name": "Cart.total"}),
                ("find_references", {"name": "Cart"}),
                ("find_definition", {"name": "Carts"}),
            ],
            "in cart.py",
        ]
    )
    run = session.run_sync("work", model=model, tools=["retrieval"], workspace=folder)
    assert run.answer == "in cart.py"
    asked = [(event.call, event.tool, event.args) for event in run.events() if isinstance(event, ToolCalled)]
    answers = {
        event.call: event.text for event in run.events() if isinstance(event, ToolAnswered)
    }  # in the order in which they came
    order = ["where is the total of a cart computed", "Cart.total", "Cart", "Carts"]
    said = [
        answers[call]
        for call, _, args in sorted(
            asked, key=lambda one: order.index(str(one[2].get("query", one[2].get("name"))))
        )
    ]
    assert said[0].startswith("cart.py:")
    assert "     2      def total(self):" in said[0]
    assert "secret" not in "".join(said)
    assert said[1].startswith("cart.py:2-3  (method Cart.total)")
    assert said[2].split("\n")[:2] == [
        "cart.py:1: definition: class Cart:",
        "tax.py:1: import: from cart import Cart",
    ]
    assert said[3] == "[nothing called Carts is defined here; did you mean 'Cart'?]"
    steps = [event for event in run.events() if isinstance(event, RetrievalStep)]
    assert {event.call for event in steps} == {asked[0][0]}
    assert all(event.step for event in steps)
    found = run.report.retrieval
    assert [len(found.questions), found.questions[0].paths[0]] == [1, "cart.py"]
    assert repr(session.get(run.id).report.retrieval) == repr(found)
    assert {path: found.explain(path).state for path in ("cart.py", ".env", "none.py")} == {
        "cart.py": "found",
        ".env": "unread",
        "none.py": "missing",
    }
    assert "<table" in found._repr_html_()
    assert next(iter(found.to_frame()["path"])) == "cart.py"
    assert fold(run.records()).answer == "in cart.py"
    with pytest.raises(UsageError, match="no question 3"):
        found.explain("cart.py", 3)


def test_an_explanation_from_the_log_does_not_guess(session: Lab, folder: Path) -> None:
    """What was behind is told with its place; of what no step names it is said whether all that matched are
    told of.
    """
    for number in range(8):
        (folder / f"m{number}.py").write_text(f"def total{number}():\n    return 'total'\n")
    (folder / "far.py").write_text("nothing = 0\n")
    model = ScriptedModel([[("search_code", {"query": "total", "top_k": 2})], "x"])
    found = session.run_sync("work", model=model, tools=["search_code"], workspace=folder).report.retrieval
    chosen = found.questions[0].paths
    ranked = {
        path: found.explain(path) for path in [f"m{number}.py" for number in range(8)] if path not in chosen
    }
    assert {one.state for one in ranked.values()} == {"behind"}
    assert all("ranked " in one.reason for one in ranked.values())
    assert found.explain("far.py").state == "unmatched"
    assert "no step names it" in found.explain("far.py").reason
    with pytest.raises(UsageError, match="looked nothing up"):
        RunRetrieval([], folder, folder).explain("cart.py")


def test_operations_use_the_index_that_somebody_made(session: Lab, folder: Path) -> None:
    """`gather` goes by words until there is an index, then by the index and with a trace; `find_files` makes
    one and gives a map.
    """
    gather = Plan(
        steps=(Step(id="g", operation="gather", args={"goal": "total of a cart"}, produces=("found",)),)
    )
    before = session.run_sync("look", model=ScriptedModel([]), plan=gather, workspace=folder)
    assert before.report.retrieval.questions == []
    find = Plan(
        steps=(
            Step(
                id="f",
                operation="find_files",
                args={"goal": "total of a cart", "top_k": 2},
                produces=("found",),
            ),
        )
    )
    run = session.run_sync("find", model=ScriptedModel([]), plan=find, workspace=folder)
    (made,) = [event.output for event in run.events() if isinstance(event, StepFinished)]
    assert isinstance(made, dict)
    assert (made["coverage"], made["stopped"], made["gaps"]) == (1.0, "confidence", [])
    assert "cart.py" in json.dumps(made["files"])
    after = session.run_sync("look", model=ScriptedModel([]), plan=gather, workspace=folder)
    assert [asked.paths[0] for asked in after.report.retrieval.questions] == ["cart.py"]


def test_a_model_proposes_queries_for_the_loop(session: Lab, folder: Path) -> None:
    """With `ask` the model's queries are searched after the first round, beside the ones by rule."""
    steps = (
        Step(
            id="f",
            operation="find_files",
            args={"goal": "how much is owed to the state zebrafish", "ask": True},
            produces=("found",),
        ),
    )
    model = ScriptedModel(
        [json.dumps({"queries": ["tax"]}), json.dumps({"queries": []}), json.dumps({"queries": []})]
    )
    run = session.run_sync("find", model=model, plan=Plan(steps=steps), workspace=folder)
    (made,) = [event.output for event in run.events() if isinstance(event, StepFinished)]
    assert isinstance(made, dict)
    assert "tax.py" in json.dumps(made["files"])
    assert "tax" in json.dumps(made["queries"])
    quiet = Step(
        id="f",
        operation="find_files",
        args={"goal": "how much is owed to the state zebrafish"},
        produces=("found",),
    )
    ruled = session.run_sync("find", model=ScriptedModel([]), plan=Plan(steps=(quiet,)), workspace=folder)
    assert [any(isinstance(event, ModelCalled) for event in one.events()) for one in (run, ruled)] == [
        True,
        False,
    ]


def test_who_finds_nothing_is_skipped(session: Lab, folder: Path) -> None:
    """A step without files has no output to go on with, and says so; one that has found some is done."""
    for goal, skipped in (("zebrafish quagga", True), ("total of a cart", False)):
        plan = Plan(steps=(Step(id="f", operation="find_files", args={"goal": goal}, produces=("found",)),))
        run = session.run_sync("find", model=ScriptedModel([]), plan=plan, workspace=folder)
        (done,) = [event for event in run.events() if isinstance(event, StepFinished)]
        assert (done.skipped, done.output is None) == (skipped, skipped)


def kestrel(folder: Path, *words: str) -> tuple[int, str, str]:
    """Run the command line in `folder`."""
    env = {**os.environ, "KESTREL_HOME": str(folder.parent / "cli"), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", *words],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_commands_search_and_explain(folder: Path) -> None:
    """A table of places with why; why a file is not found; the state of the index; a mistake in one line."""
    code, out, _ = kestrel(folder, "search", "total", "of", "a", "cart", "--top", "2")
    assert (code, out.split("\n")[1].split()[1]) == (0, "cart.py:2-3")
    assert (
        kestrel(folder, "search", "total", "--explain", ".env")[1]
        == ".env: unread: it is not read: its name says that it holds secrets\n"
    )
    assert "not read" in kestrel(folder, "index", "--status")[1]
    assert kestrel(folder, "search", "?")[::2] == (
        2,
        "error: there is no word to search for in '?': name at least one word\n",
    )


@pytest.mark.parametrize(
    ("found", "ranked", "faint", "state"),
    [
        (2, 0, 0, "unmatched"),
        (32, 30, 0, "unmatched"),
        (40, 30, 0, "behind"),
        (40, 30, 30, "behind"),  # faint ones are listed beside those that the step counts
        (2, 0, MAX_LISTED, "behind"),  # more faint ones than are listed
        (2, 0, MAX_LISTED - 1, "unmatched"),
    ],
)
def test_a_miss_is_unmatched_only_where_all_that_matched_are_listed(
    folder: Path, tmp_path: Path, found: int, ranked: int, faint: int, state: str
) -> None:
    """A step counts what matched well and lists a part of it and a part of the rest: these are not mixed."""
    dropped: dict[str, Json] = {f"r{number}.py": f"ranked {number}: behind" for number in range(ranked)}
    dropped |= {f"f{number}.py": FAINT for number in range(faint)}
    step = RetrievalStep(
        step="main",
        retriever="code",
        query="total",
        found=found,
        chosen=["a.py", "b.py"],
        dropped=dropped,
        stopped="confidence",
    )
    trace = RunRetrieval([step], folder, tmp_path / "none")
    assert trace.explain("far.py").state == state
    chosen = trace.explain("a.py")
    assert (chosen.state, "chosen there" in chosen.reason) == ("dropped", True)


@pytest.mark.parametrize("name", ["HTTPServer.py", "UserProfileView.py", "pricing_rules.py", "my-file.py"])
def test_no_gap_is_the_name_of_a_file_that_was_found(tmp_path: Path, folder: Path, name: str) -> None:
    """A question may name a file that does not have its own name in it: that word is not missing."""
    (folder / name).write_text("def total():\n    return 3\n")
    goal = f"Which total does {Path(name).stem} return for a zebra?"
    found = asyncio.run(find_in(session_indexes(tmp_path / "home"), folder, goal, top_k=5))
    assert name in [file.path for file in found.key_files]
    assert [gap for gap in found.gaps if gap in name.lower()] == []
    assert "zebra" in found.gaps
