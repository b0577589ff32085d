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
from kestrel_lab.notebook.suite_board import Bar, Board, LiveBoard, NotebookReporter
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
    } == {name: {"always": ("pass", "✓ 2 of 2"), "never": ("fail", "✗ 0 of 2")} for name in ("<b>q</b>", "r")}
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


def test_a_tile_says_why_and_opens_the_transcripts_of_its_trials(tmp_path: Path) -> None:
    """While a suite runs and when it has ended the board has the same rows: a tile's first line says what a check
    expected and found, and it unfolds to the transcripts, without a kernel. None of a failed trial begins with
    the status of a run that ended well.
    """

    async def work() -> tuple[str, list[str]]:
        async with Lab(home=tmp_path / "home") as lab:
            reporter = NotebookReporter(lambda: lab)
            checks = (AnswerContains(texts=("yes",)),)
            scenarios = tuple(Scenario(id=name, goal=f"say {name} <b>", checks=checks) for name in "qr")
            await lab.eval(
                Suite(name="s", scenarios=scenarios),
                configs={
                    "m": ScriptedModel(lambda r: "yes" if "q" in r.messages[-1].text else "no, I will not")
                },
                reporter=reporter,
            )
            ended = Bar(2, 2, "", reporter._board, reporter._transcripts)
            live = LiveBoard(Bar(1, 2, "", reporter._board, reporter._transcripts))
            live.update(ended)
            assert [row.value for row in live._rows.children] == ended.rows
            return ended.html, ended.rows

    saved, (passed, failed) = asyncio.run(work())

    assert all(row in saved for row in (passed, failed))
    assert '</b> <span style="font-size:92%">expected: answer contains &#39;yes&#39;; found: ' in failed
    assert ("no, I will not" in failed, ">COMPLETE<" in failed, "did not pass</b>" in failed) == (
        True,
        False,
        True,
    )
    assert ("expected" in passed, ">COMPLETE<" in passed, "kst-board-passed" in passed) == (False, True, True)
    assert saved.count("<section") == 2
    assert "<b></b>" not in saved and "say r &lt;b&gt;" in saved


def test_transcripts_of_a_board_stay_small(tmp_path: Path) -> None:
    """Those of failed trials come first, and there are no more than there is room for."""

    async def work() -> NotebookReporter:
        async with Lab(home=tmp_path / "home") as lab:
            reporter = NotebookReporter(lambda: lab)
            reporter._room = 1
            scenario = Scenario(id="q", goal="say it", checks=(AnswerContains(texts=("yes",)),))
            await lab.eval(
                Suite(name="s", scenarios=(scenario,)),
                configs={"m": ScriptedModel(["no"])},
                reporter=reporter,
            )
            return reporter

    assert asyncio.run(work())._transcripts == {}


def test_a_bar_goes_when_its_work_has_ended() -> None:
    """What a long command says comes without a bar that stopped half way above it."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    InteractiveShell.instance()
    try:
        with capture_output() as shown:
            reporter = NotebookReporter(Lab)
            reporter(1, 40, "turn 1")
            reporter.close()
    finally:
        InteractiveShell.clear_instance()
    texts = [output.data["text/html"] for output in shown.outputs]
    assert ("turn 1" in texts[0], texts[-1]) == (True, "")
