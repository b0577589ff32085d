"""The page of a suite and of a comparison, and `kestrel eval view`, in a real browser."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from made_rows import row, suite
from waits import PATIENCE_MS, PATIENCE_S

from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.reports.aligned_runs import align_runs
from kestrel_lab.evals.reports.page_data import Trials
from kestrel_lab.evals.reports.suite_page import write_page, write_suite_page
from kestrel_lab.evals.stored.view_server import serving_view
from kestrel_lab.evals.stored_trials import EvalRow, store_trial
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect, sync_playwright

expect.set_options(timeout=PATIENCE_MS)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "/usr/bin/chromium"
QUIET = (
    "--no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
]
EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \u202egnp"
)


def a_trial(scenario: str, config: str, epoch: int, passed: bool, answer: str, run: str = "") -> EvalRow:
    """A trial with one check, told in words that would be markup."""
    made = row(scenario, "pass" if passed else "fail", config=config, epoch=epoch, family=f"family {EVIL}")
    found = "" if passed else f"missing '42'; answered {answer!r}"
    score = {"check": "answer contains '42'", "passed": passed, "value": float(passed), "reason": found}
    told = {"answer": answer, "scores": [score], "reason": found and f"answer contains '42': {found}"}
    name = run or f"r-{scenario}-{config}-{epoch}"
    return replace(made, id=name, result=made.result | told | {"run": name})


def trials(*configs: str) -> list[EvalRow]:
    """Twelve scenarios of three epochs; the first configuration passes all, each other one fewer."""
    return [
        a_trial(
            f"s{number}", config, epoch, good, f"The answer is {'42' if good else f'41 {EVIL}'} by {config}"
        )
        for number in range(12)
        for place, config in enumerate(configs)
        for epoch in (1, 2, 3)
        for good in [not place or (number + epoch) % (6 - place) != 0]
    ]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A session with one real run, of which transcripts are shown."""
    opened = Lab(
        tmp_path_factory.mktemp("home"),
        model=ScriptedModel([[("tree", {})], f"It is 41. {EVIL}"]),
        env={},
    )
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def real_run(session: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a run in the log, with a call and an answer."""
    place = tmp_path_factory.mktemp("work")
    (place / f"{EVIL[9:30].replace('/', '')}.txt").touch()

    async def work() -> str:
        run = session.start(f"look {EVIL}", workspace=place)
        await run.wait()
        return str(run.id)

    with ThreadPoolExecutor() as apart:  # the browser's loop runs in this thread
        return apart.submit(asyncio.run, work()).result()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the file."""
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=QUIET.split(), timeout=120_000)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that notes what goes wrong in it, and whatever it asks of another machine."""
    opened = browser.new_page(viewport={"width": 1600, "height": 900})
    opened.set_default_timeout(60_000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    opened.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))
            else wrong.append(request.url)
        ),
    )
    yield opened
    assert wrong == []
    assert "owned" not in opened.title() or EVIL[:9] in opened.title()
    assert opened.locator("img").count() == 0
    opened.close()


def opened(page: Page, path: Path) -> Page:
    """Show a page and wait for its matrix."""
    page.goto(path.as_uri())
    expect(page.locator(".matrix [data-at]").first).to_be_visible()
    return page


@pytest.fixture(scope="module")
def written(session: Lab, real_run: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a suite of three configurations, one trial of which has a transcript."""
    rows = trials("good", "fair", f"poor {EVIL}")
    rows[4] = a_trial("s0", "fair", 2, False, f"It is 41. {EVIL}", run=real_run)
    made = suite(configs=["good", "fair"], name=f"demo {EVIL}")
    return write_suite_page(tmp_path_factory.mktemp("page") / "s.html", made, rows, session.store)


def test_a_stranger_reads_who_is_best_how_sure_and_why(page: Page, written: Path) -> None:
    """The first screen says the best configuration with its interval, the cause that most trials failed of,
    and each cell its trials' marks; a cause is a filter.
    """
    opened(page, written)
    expect(page.locator(".verdict b")).to_have_text(
        "good (scripted) is the best: it passes 100 % (95 % interval 76–100) of its trials."
    )
    expect(page.locator(".why")).to_contain_text("answer contains … ")
    first = page.locator('.matrix [data-at="0 0"]')
    expect(first.locator("i")).to_have_text(["✓", "✓", "✓"])
    expect(first).to_contain_text("100 % (44–100)")
    expect(page.locator(".lead svg").first).to_be_visible()
    page.get_by_role("button", name="answer contains …").click()
    expect(page.locator(".count")).to_contain_text("of 108 in 12 scenarios of 12")
    assert page.locator(".matrix td.cell.dim").count() >= 12  # what the best one passed, for one


def test_trials_are_filtered_and_sorted(page: Page, written: Path) -> None:
    """By text, outcome and family; scenarios on which configurations disagree come first unless the suite's
    order is asked for.
    """
    opened(page, written)
    names = page.locator(".matrix tbody th b")
    rates = [
        [
            sum(mark == "✓" for mark in cell) / len(cell)
            for one in page.locator(".matrix tbody tr").nth(number).locator("td").all()
            for cell in [one.locator("i").all_text_contents()]
        ]
        for number in range(12)
    ]
    spread = [max(line) - min(line) for line in rates]
    assert spread[0] == max(spread) and spread[-1] == min(spread)
    page.get_by_label("Sort by").select_option("suite")
    expect(names.nth(1)).to_have_text("s1")
    page.get_by_label("Show only trials with this text").fill("s11")
    expect(names).to_have_text(["s11"])
    page.get_by_label("Show only trials with this text").fill("nothing says this")
    expect(page.locator(".matrix .none")).to_have_text("No trial fits the filters.")
    page.get_by_role("button", name="Clear").click()
    page.get_by_label("Outcome").select_option("failed")
    expect(page.locator(".count")).to_contain_text("in ")
    page.get_by_label("Tag or family").select_option(index=1)
    assert names.count() > 0


def test_a_cell_opens_beside_the_matrix_by_keys_alone(page: Page, written: Path) -> None:
    """Arrows move, Enter opens: goal, answer, each check with what was expected and found, the transcript;
    Esc closes and the cell has the focus again. Foreign text is text.
    """
    opened(page, written)
    page.get_by_label("Sort by").select_option("suite")
    page.locator('.matrix [data-at="0 0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    trial = page.get_by_label("Trial", exact=True)
    expect(trial.locator(".outcome")).to_contain_text("✗ failed fair (scripted), epoch 2")
    expect(trial.locator(".outcome .because")).to_contain_text(
        "expected: answer contains '42'; found: missing '42'; answered"
    )
    expect(trial.locator(".checks tbody tr td").nth(1)).to_have_text("answer contains '42'")
    expect(trial.locator(".checks")).to_contain_text("</script><script>document.title=")
    expect(trial.locator(".row.call b")).to_have_text("tree")
    expect(trial.locator(".answer").first).to_contain_text(r"\u{202e}gnp")
    page.keyboard.press("ArrowDown")
    expect(trial.locator("h2")).to_have_text("s1")
    page.keyboard.press("Escape")
    expect(trial).to_be_hidden()
    assert page.evaluate("document.activeElement.dataset.at") == "1 1"


def test_two_configurations_stand_beside_each_other(page: Page, written: Path) -> None:
    """The same scenario by another configuration, with the first difference of the answers marked on both
    sides.
    """
    opened(page, written)
    page.goto(f"{written.as_uri()}#run-r-s3-fair-3")
    trial = page.get_by_label("Trial", exact=True)
    expect(trial.locator("h2")).to_have_text("s3")
    trial.get_by_label("Beside it").select_option(label="good (scripted)")
    expect(trial.locator(".side")).to_have_count(2)
    marked = trial.locator(".answer mark")
    expect(marked).to_have_count(2)
    assert {*marked.all_text_contents()} in ({"fair", "good"}, {"41", "42"})


def test_two_transcripts_are_aligned(page: Page, session: Lab, tmp_path: Path) -> None:
    """A step that only one run has stands beside a gap, those behind it beside their partners, as in
    `kestrel align`; what both begin with is folded.
    """
    look, more = ("glob", {"pattern": "*"}), ("grep", {"pattern": "x"})
    turns = {"a": [[("tree", {})], [look], "It is 42."], "b": [[("tree", {})], [more], [look], "It is 41."]}
    rows = []

    async def work() -> None:
        for config, script in turns.items():
            run = session.start("look", workspace=tmp_path, model=ScriptedModel(script))
            await run.wait()
            rows.append(a_trial("s0", config, 1, config == "a", str(run.answer), str(run.id)))

    with ThreadPoolExecutor() as apart:
        apart.submit(asyncio.run, work()).result()
    aligned = align_runs(session.store, [one.run for one in rows]).alignment
    assert [one.same for one in aligned.rows] == ["same", "same", "not in all", "same", "differs"]
    written = write_suite_page(tmp_path / "two.html", suite(), rows, session.store)
    opened(page, written)
    page.goto(f"{written.as_uri()}#run-{rows[0].run}")
    trial = page.get_by_label("Trial", exact=True)
    trial.get_by_label("Beside it").select_option(index=1)
    expect(trial.locator("summary", has_text="1 step is the same in both, then they part")).to_be_visible()
    cells = trial.locator(".steps > [data-side]")
    expect(cells).to_have_count(6)
    told = [" ".join(text.split()) for text in cells.all_text_contents()]
    assert told[0] == "no such step" and told[1].startswith("first difference") and "grep" in told[1], told
    assert "glob" in told[2] and "glob" in told[3] and "differ" not in "".join(told[2:4]), told
    assert told[4].startswith("differs") and told[5].startswith("differs"), told


@pytest.mark.parametrize("width", [400, 900, 1600])
def test_nothing_is_wider_than_the_window(page: Page, written: Path, width: int) -> None:
    """At three widths, with a trial opened and without."""
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, written)
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(wide) <= 0
    page.locator(".matrix [data-at]").first.click()
    expect(page.locator(".trial .answer").first).to_be_visible()
    assert page.evaluate(wide) <= 0


def test_the_print_has_all_rows_and_no_controls(page: Page, written: Path) -> None:
    """What is folded is open, controls are gone."""
    opened(page, written)
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(page.locator(".filters")).to_be_hidden()
    assert page.locator(".matrix tbody tr").count() == 12
    assert page.locator("details.fold:not([open])").count() == 0


def test_a_comparison_opens_with_its_verdict_and_both_answers(
    page: Page, session: Lab, tmp_path: Path
) -> None:
    """What changed most comes first, and a click shows base and head beside each other."""
    before, after = (
        tuple(
            replace(one, config="c", id=f"{one.id}{name}") for one in trials("a", "b") if one.config == name
        )
        for name in "ab"
    )
    compared = Comparison(
        suite=suite(),
        base=Side(name="old", sha="", rows=before),
        head=Side(name="new", sha="", rows=after),
        store=session.store,
    )
    opened(page, compared.report(tmp_path / "c.html"))
    expect(page.locator(".verdict.bad b")).to_contain_text("new is worse than old: 100 % → 8")
    assert page.locator(".matrix thead b").all_text_contents() == ["old (scripted)", "new (scripted)"]
    page.locator(".matrix [data-at]").nth(1).click()
    expect(page.locator(".side .outcome b")).to_have_text(["✓ passed", "✗ failed"])
    expect(page.locator(".side .answer mark")).to_have_count(2)
    page.keyboard.press("Escape")
    page.get_by_label("Outcome").select_option("changed sides")
    expect(page.locator(".count")).to_contain_text("scenarios of 12")


def test_a_page_with_a_folder_reads_its_blocks(page: Page, session: Lab, tmp_path: Path) -> None:
    """From a disk, without a server; a folder that was left behind is named."""
    rows = trials("good", "fair")
    found = Trials(name="demo", rows=rows, stores=[session.store])
    path = opened_path = write_page(tmp_path / "s.html", found, found.index("demo"), most=10)
    opened(page, opened_path)
    page.locator(".matrix [data-at]").first.click()
    expect(page.locator(".trial .answer").first).to_contain_text("The answer is")
    assert len([*(tmp_path / "s_trials").iterdir()]) == 1
    assert path.stat().st_size < 80_000


@pytest.mark.long
def test_ten_thousand_trials_open_at_once(page: Page, session: Lab, tmp_path: Path) -> None:
    """The page of 10,000 trials has less than 20 MB and is shown in no more processor time than four times what
    one of 36 takes, and 0.3 s of its own.
    """
    sizes = {}
    ticks = page.context.new_cdp_session(page)
    ticks.send("Performance.enable", {"timeDomain": "threadTicks"})
    for scenarios in (3, 834):
        rows = [
            a_trial(f"s{number}", config, epoch, bool((number + epoch) % 3), f"{number} {epoch} " * 100)
            for number in range(scenarios)
            for config in ("a", "b", "c", "d")
            for epoch in (1, 2, 3)
        ]
        found = Trials(name="demo", rows=rows, stores=[session.store])
        path = write_page(tmp_path / f"{scenarios}.html", found, found.index("demo"))
        assert path.stat().st_size < 20_000_000
        took = []
        for _ in range(3):
            opened(page, path)
            page.wait_for_function("performance.getEntriesByName('kestrel-shown').length", polling=20)
            measured = {one["name"]: one["value"] for one in ticks.send("Performance.getMetrics")["metrics"]}
            took.append(measured["TaskDuration"])
        sizes[scenarios] = min(took)
    assert sizes[834] < 4 * sizes[3] + 0.3, json.dumps(sizes)
    drawn = page.locator(".matrix tbody tr")
    assert drawn.count() < 200  # the others are drawn as they come into sight
    page.locator(".matrix [data-at]").first.focus()
    for _ in range(25):
        page.keyboard.press("PageDown")
    assert page.evaluate("document.activeElement.parentNode.rowIndex") == 251


@pytest.fixture
def served(session: Lab) -> Iterator[str]:
    """The link of a server over the session's log."""
    ready, found = threading.Event(), dict[str, Any]()

    async def work() -> None:
        async with serving_view(session) as (address, _):
            found.update(link=address.link, loop=asyncio.get_running_loop(), stop=asyncio.Event())
            ready.set()
            await found["stop"].wait()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield found["link"]
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(PATIENCE_S)


def test_stored_suites_are_viewed_live(page: Page, session: Lab, served: str, real_run: str) -> None:
    """The list of eval runs leads to the page of each; a trial that ends is shown without a reload, and what
    was opened stays open.
    """
    told = {"sitting": {"id": "e1", "of": 9, "by": str(session.store.session)}}
    rows = [
        replace(one, suite=f"live {EVIL}", result=one.result | told, created_at=float(number))
        for number, one in enumerate(
            [a_trial("s0", "a", 1, False, f"It is 41. {EVIL}", run=real_run), *trials("a", "b")[1:3]]
        )
    ]
    for one in rows[:2]:
        store_trial(session.store, one).result()
    page.goto(served)
    assert "token" not in page.url
    page.get_by_role("link", name="live").click()
    expect(page.locator(".about")).to_contain_text("2 trials")
    page.locator(".matrix [data-at]").first.click()
    trial = page.get_by_label("Trial", exact=True)
    expect(trial.locator(".row.call b")).to_have_text("tree")
    store_trial(session.store, rows[2]).result()
    expect(page.locator(".about")).to_contain_text("3 trials")
    expect(trial.locator(".row.call b")).to_have_text("tree")
    page.get_by_role("button", name="All suites").click()
    expect(page.locator("h1")).to_have_text("Stored eval runs")
