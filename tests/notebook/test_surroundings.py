"""What a notebook shows of runs and suites that Python code waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel_lab import Lab
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.errors import ModelError
from kestrel_lab.evals.suite import CountErrors, Scenario, Suite
from kestrel_lab.notebook.suite_board import Bar, Board, LiveTiles, NotebookReporter
from kestrel_lab.testing import RecordingSurroundings, ScriptedModel

WRITES = [[("write_file", {"path": "a.txt", "content": "hello"})], "Done."]


@pytest.fixture
def around() -> Iterator[RecordingSurroundings]:
    """Surroundings in which somebody says yes."""
    Lab.surroundings = RecordingSurroundings([True])
    yield Lab.surroundings
    Lab.surroundings = None


def test_a_run_that_is_waited_for_is_shown_and_asks_there(
    around: RecordingSurroundings, tmp_path: Path
) -> None:
    """`lab.run`, `run.ask` and `lab.fork` show their runs and close what shows them; trials of suites and
    `lab.start` do not.
    """

    async def work() -> list[str]:
        async with Lab(home=tmp_path / "home", model=ScriptedModel(WRITES)) as lab:
            run = await lab.run("write it", workspace=tmp_path)
            more = await run.ask("again")
            fork = await lab.fork(run.id, answer="No.")
            await lab.start("alone", approve="auto:medium", workspace=tmp_path).wait()
            suite = Suite(
                name="s",
                scenarios=(Scenario(id="q", goal="say it", checks=(AnswerContains(texts=("yes",)),)),),
            )
            await lab.eval(suite, configs={"m": ScriptedModel(["yes"])})
            return [run.id, more.id, fork.id]

    shown = asyncio.run(work())

    assert (tmp_path / "a.txt").read_text() == "hello"
    assert [[run.id for run in watcher.runs] for watcher in around.watchers] == [[name] for name in shown]
    assert all(watcher.closed for watcher in around.watchers)


def test_a_board_tells_each_scenario_and_the_rate_of_each_configuration(tmp_path: Path) -> None:
    """A tile per scenario and configuration says how many trials passed and how to see each; names are text,
    never elements.
    """
    board = Board()

    class Report:
        def __call__(self, done: int, total: int, note: str) -> None:
            pass

        trial = staticmethod(board.add)

    async def work() -> None:
        async with Lab(home=tmp_path / "home") as lab:
            scenarios = tuple(
                Scenario(id=name, goal="say it", checks=(AnswerContains(texts=("yes",)),))
                for name in ("<b>q</b>", "r")
            )
            said = {"always": ScriptedModel(["yes"]), "never": ScriptedModel(["no"])}
            await lab.eval(Suite(name="s", scenarios=scenarios), configs=said, epochs=2, reporter=Report())

    asyncio.run(work())
    html = Bar(8, 8, "done", board).html

    assert board.rate("always").startswith("100 % (")
    assert board.rate("never").startswith("0 % (0–")
    assert {
        name: {config: (tile.word, tile.text) for config, tile in tiles.items()}
        for name, tiles in board.tiles.items()
    } == {name: {"always": ("pass", "2 of 2"), "never": ("fail", "0 of 2")} for name in ("<b>q</b>", "r")}
    assert "&lt;b&gt;q&lt;/b&gt;" in html and "<b>q</b>" not in html
    assert html.count("%kestrel show ") == 8


@pytest.mark.parametrize(("count_errors", "rate"), [("fail", "50 %"), ("exclude", "100 %")])
def test_the_board_counts_as_the_summary_below_it(
    tmp_path: Path, count_errors: CountErrors, rate: str
) -> None:
    """A trial that broke counts on the board as the suite says, so that the same cell never shows two
    rates.
    """
    board = Board()

    class Report:
        def __call__(self, done: int, total: int, note: str) -> None:
            pass

        trial = staticmethod(board.add)

    async def work() -> str:
        async with Lab(home=tmp_path / "home") as lab:
            scenarios = tuple(
                Scenario(id=name, goal=name, checks=(AnswerContains(texts=("yes",)),))
                for name in ("good", "broken")
            )
            model = ScriptedModel(
                lambda request: "yes" if request.messages[-1].text == "good" else ModelError("gone")
            )
            suite = Suite(name="s", scenarios=scenarios, count_errors=count_errors)
            return str(await lab.eval(suite, configs={"one": model}, reporter=Report()))

    summary = asyncio.run(work())
    assert board.rate("one").startswith(rate)
    assert board.rate("one").endswith(" · 1 broke")
    assert board.rate("one").partition(", n")[0] in summary


def test_a_tile_opens_the_transcripts_of_its_trials(tmp_path: Path) -> None:
    """While a suite runs a tile is a button that shows its runs; the picture that is saved at the end unfolds
    to them without a kernel.
    """

    async def work() -> str:
        async with Lab(home=tmp_path / "home") as lab:
            reporter = NotebookReporter(lambda: lab)
            scenario = Scenario(id="q", goal="say it <b>", checks=(AnswerContains(texts=("yes",)),))
            await lab.eval(
                Suite(name="s", scenarios=(scenario,)),
                configs={"m": ScriptedModel(["no, I will not"])},
                reporter=reporter,
            )
            live = LiveTiles(reporter._board, reporter.transcript, Bar(0, 1, "", reporter._board))
            (button,) = live._buttons.values()
            button.click()
            assert button.description == "m: ✗ fail"
            assert "no, I will not" in live._below.value
            live._only.index = 1
            assert len(live._rows.children) == 1
            (trial,) = (
                trial
                for tiles in reporter._board.tiles.values()
                for tile in tiles.values()
                for trial in tile.runs
            )
            reporter._board.tiles["q"]["m"].runs.append((trial[0], "pass"))
            live._open("q", "m")
            assert live._below.value.count("<section") == 2
            return Bar(1, 1, "", reporter._board, reporter.transcript).html

    saved = asyncio.run(work())

    assert saved.count("<section") == 2  # of the trial that was counted twice
    assert "no, I will not" in saved
    assert "<b></b>" not in saved and "say it &lt;b&gt;" in saved
