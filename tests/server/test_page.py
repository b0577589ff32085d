"""The page of `kestrel serve` in a real browser."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from waits import PATIENCE_MS, PATIENCE_S

from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.lab import Lab
from kestrel_lab.server.controller import Control
from kestrel_lab.server.serve import serve_control
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
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> and \u202egnp.exe"
COMMAND = f"printf '%s' 'a \u202e b' && {'echo on and on; ' * 40}true"
SCRIPTS: dict[str, list[Any]] = {
    "tidy": [
        [("edit_file", {"path": "notes.md", "old": "two", "new": "2"}), ("bash", {"command": COMMAND})],
        [("ask_user", {"question": HOSTILE, "options": ["the first", "the second"]})],
        f"tidied. {HOSTILE}",
    ],
    "cite": [
        [("bash", {"command": "wc notes.md"}), ("read_file", {"path": "notes.md"})],
        "It begins with **one** [notes.md:1]. I was not allowed to count [answer.1.1]. See "
        f"[gone.md:1]. {HOSTILE}",
    ],
    "talk": [f"It was refunded twice. {HOSTILE}"],
    "write": [[("write_file", {"path": "a.txt", "content": "hi"})], "written"],
}


def play(request: ModelRequest) -> Any:
    """The script that the goal's first word names."""
    goal = next(message.text for message in request.messages if message.role == "user")
    return SCRIPTS[goal.split()[0]][sum(message.role == "assistant" for message in request.messages)]


class Server:
    """A server in a thread of its own, which can be stopped and started anew on the same port."""

    def __init__(self, session: Lab, workspace: Path) -> None:
        self._session, self._workspace, self._port = session, workspace, 0
        self.link = ""

    def start(self) -> None:
        ready: threading.Event = threading.Event()

        async def work() -> None:
            control = Control(
                self._session, user="ann", can_start=True, workspace=self._workspace, always=True
            )
            async with control, serve_control(control, port=self._port, heartbeat_s=0.5) as (address, _):
                self._port = address.port
                self.link, self._stop, self._loop = address.link, asyncio.Event(), asyncio.get_running_loop()
                ready.set()
                await self._stop.wait()

        self._thread = threading.Thread(target=asyncio.run, args=(work(),))
        self._thread.start()
        assert ready.wait(PATIENCE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A session whose model plays the script that the goal names."""
    opened = Lab(tmp_path_factory.mktemp("home"), model=ScriptedModel(play), env={})
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a file."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "notes.md").write_text("one\ntwo\n")
    return folder


@pytest.fixture(scope="module")
def server(session: Lab, folder: Path) -> Iterator[Server]:
    """A server with a port and a token that last: the first start finds a port, the second keeps it."""
    found = Server(session, folder)
    found.start()
    found.stop()
    found.start()
    yield found
    found.stop()


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
    opened = browser.new_page(viewport={"width": 1100, "height": 900})
    opened.set_default_timeout(60_000)
    wrong: list[str] = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "request",
        lambda request: (
            wrong.append(request.url)
            if "//127.0.0.1:" not in request.url and "data:" not in request.url
            else None
        ),
    )
    yield opened
    opened.close()
    assert wrong == []


def started(page: Page, goal: str) -> None:
    """Start a run by the page's form."""
    page.get_by_role("button", name="New run").click()
    page.get_by_label("Goal of the new run").fill(goal)
    page.get_by_role("button", name="Start", exact=True).click()


def test_a_run_is_started_followed_and_decided_on_the_page(
    page: Page, server: Server, session: Lab, folder: Path
) -> None:
    """The calls are shown whole with what is hidden in them and their diff; edit, no, reload and answer
    arrive; no markup comes alive.
    """
    page.goto(server.link)
    expect(page.locator("#connection")).to_have_text("connected")
    assert "token" not in page.url
    started(page, "tidy the notes")
    cards = page.locator(".kst-ask")
    expect(cards).to_have_count(2)
    expect(cards.nth(0).locator(".kst-added")).to_have_text("+2")
    command = cards.nth(1).locator("dd").first
    expect(command).to_contain_text("\\u{202e}")
    assert command.inner_text().count("echo on and on") == 40
    cards.nth(0).get_by_role("button", name="Edit").click()
    text = cards.nth(0).get_by_label("Arguments as JSON")
    text.fill('{"path": "notes.md"}')
    cards.nth(0).get_by_role("button", name="Approve edited").click()
    expect(cards.nth(0).get_by_role("alert")).to_contain_text("old")
    text.fill('{"path": "notes.md", "old": "two", "new": "zwei"}')
    cards.nth(0).get_by_role("button", name="Approve edited").click()
    expect(cards).to_have_count(1)
    page.reload()  # the token and the run are still known
    expect(cards).to_have_count(1)
    cards.get_by_label("Reason for denying").fill("too long")
    cards.get_by_role("button", name="Deny").click()
    expect(page.locator(".kst-questiontext")).to_contain_text("<img src=x")
    page.get_by_role("button", name="the second").click()
    expect(page.locator("[data-role=answer]")).to_contain_text("tidied. <img")
    expect(page.locator("#runs li").first).to_have_attribute("data-status", "COMPLETE")
    assert page.title() == "kestrel" and page.locator("img").count() == 0
    assert (folder / "notes.md").read_text() == "one\nzwei\n"
    run = session.get(session.store.runs(limit=1)[0].id)
    assert [event.text for event in run.events() if event.type == "tool_answered"][-1] == "the second"
    assert any("too long" in event.text for event in run.events() if event.type == "tool_answered")


def test_claims_are_underlined_and_say_what_they_cite(page: Page, server: Server, session: Lab) -> None:
    """Each claim has a line by its state; on focus the cited line, or who denied the cited call, is beside
    it; Escape takes that away.
    """
    page.goto(server.link)
    started(page, "cite the notes")
    page.locator(".kst-ask").get_by_role("button", name="Deny").click()
    answer = page.locator("[data-role=answer]")
    shown = "element => getComputedStyle(element, '::after').content"
    for state, words in (
        ("cited", "one"),
        ("unknown", "the call of bash was denied by ann"),
        ("wrong", "gone.md does not exist"),
    ):
        claim = answer.locator(f".kst-claim.kst-{state}[tabindex]")
        expect(claim).to_have_count(1)
        claim.focus()
        assert words in claim.evaluate(shown)
        assert words in (claim.get_attribute("aria-description") or "")
        if folder := os.environ.get("KESTREL_ARTIFACTS"):
            page.screenshot(path=Path(folder) / f"serve-{state}.png")
    page.keyboard.press("Escape")
    assert claim.evaluate(shown) == "none"
    assert page.locator("img").count() == 0


def test_runs_are_found_by_their_words_on_the_page(page: Page, server: Server) -> None:
    """A search shows the text with its words marked and nothing of it alive, filters narrow it, a hit opens its
    run, and a query without a word is refused in words.
    """
    page.goto(server.link)
    started(page, "talk about it")
    expect(page.locator("[data-role=answer]")).to_contain_text("refunded")
    page.get_by_role("button", name="Search", exact=True).first.click()
    page.locator("#query").fill('"refunded twice"')
    page.locator("#query").press("Enter")
    expect(page.locator("#found li")).to_have_count(1)
    expect(page.locator("#found mark")).to_have_text(["refunded", "twice"])
    expect(page.locator("#found")).to_contain_text("<img src=x")
    page.locator("#filters summary").click()
    page.get_by_label("tool", exact=True).fill("bash")
    page.locator("#query").press("Enter")
    expect(page.locator("#found-notes")).to_have_text("no run was found")
    page.get_by_label("tool", exact=True).fill("")
    page.locator("#query").press("Enter")
    page.locator("#found li button").click()
    expect(page.locator("#panel [data-role=answer]")).to_contain_text("refunded twice")
    page.locator("#query").fill("***")
    page.locator("#query").press("Enter")
    expect(page.locator("#found-notes")).to_contain_text("no letter")
    assert page.title() == "kestrel" and page.locator("img").count() == 0


def test_a_page_outlives_its_server(page: Page, server: Server, session: Lab, folder: Path) -> None:
    """The server goes: the page says so, and the run is left waiting; it comes back: connected, gone on with
    by a button, decided.
    """
    page.goto(server.link)
    started(page, "write a file")
    expect(page.locator(".kst-ask")).to_have_count(1)
    server.stop()
    expect(page.locator("#connection")).to_contain_text("connection lost")
    run = session.store.runs(limit=1)[0]
    assert (run.status, run.owner) == (RunStatus.WAITING_APPROVAL, "")
    server.start()
    expect(page.locator("#connection")).to_have_text("connected")
    page.get_by_role("button", name="Go on with it").click()
    expect(page.get_by_text("resumed")).to_have_count(1)
    page.locator(".kst-ask").get_by_role("button", name="Approve").click()
    expect(page.locator("[data-role=answer]")).to_contain_text("written")
    assert (folder / "a.txt").read_text() == "hi"


def test_a_page_without_the_token_sees_nothing(page: Page, server: Server) -> None:
    """It asks for the token and lists no runs; the whole link, pasted, opens it; keys alone choose a run, and
    a narrow page leads back.
    """
    page.goto(server.link.partition("#")[0])
    expect(page.get_by_label(re.compile("Token that"))).to_be_focused()
    assert page.locator("#runs li").count() == 0
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_label(re.compile("Token that"))).to_be_focused()
    page.keyboard.type(server.link)
    page.keyboard.press("Enter")
    expect(page.locator("#connection")).to_have_text("connected")
    expect(page.locator("#runs li")).not_to_have_count(0)
    page.set_viewport_size({"width": 420, "height": 800})
    page.locator("#runs button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator(".kst-goal")).to_be_visible()
    expect(page.locator("nav")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.get_by_role("button", name="All runs").click()
    expect(page.locator("#runs li").first).to_be_visible()


def test_the_trials_of_suites_are_listed(server: Server, page: Page, session: Lab, tmp_path: Path) -> None:
    """Suites, their eval runs, trials with verdicts, and a click that shows the run of one; names are
    text.
    """
    (tmp_path / "suite.yaml").write_text(
        "name: demo <b>bold</b>\nconfigs: [{name: one, model: 'scripted:script.yaml'}]\nscenarios:\n"
        "  - {id: good, goal: talk of bees, checks: [{answer_contains: hello}]}\n"
        "  - {id: bad, goal: talk of ants, checks: [{answer_contains: bye}]}\n"
    )
    (tmp_path / "script.yaml").write_text("rules:\n  - when: talk\n    turns: [hello to you]\n")
    # The driver of the browser has an event loop in this thread.
    work = threading.Thread(target=lambda: asyncio.run(run_suite(session, tmp_path / "suite.yaml")))
    work.start()
    work.join(PATIENCE_S)
    page.goto(server.link)
    page.click("#show-suites")
    run = page.locator("#suites > li").first
    expect(run.locator("summary")).to_contain_text("demo <b>bold</b>")
    expect(run.locator("summary")).to_contain_text("1 passed, 1 failed of 2")
    run.locator("summary").click()
    trials = run.locator("ul button")
    expect(trials).to_have_count(2)
    expect(trials.first).to_contain_text("failed")
    expect(trials.first).to_contain_text("bye")
    trials.nth(1).click()
    expect(page.locator("#panel")).to_contain_text("talk of bees")
    expect(page.locator("#panel")).to_contain_text("hello to you")
    page.click("#show-runs")
    expect(page.locator("#of-suites")).to_be_hidden()
