"""Nothing that a model, a tool or a file says does anything in a notebook, wherever it is shown.

A notebook full of hostile texts is compared with the same notebook full of harmless ones: it may not
have one kind of element, of request or of message more.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from lab_server import CANARY, CHROMIUM, JupyterLab, command
from nbconvert import HTMLExporter
from payloads import GOT_IN, PAYLOADS
from waits import PATIENCE_MS
from watching import Watch, elements

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(900),
]
HERE = Path(__file__).parent


def cells(texts: str, extra: str = "") -> list[str]:
    """Every way to show a text that somebody else wrote."""
    return [
        f"import sys; sys.path.insert(0, {str(HERE)!r})\nimport hostile, payloads\nT = payloads.{texts}\n"
        f"%load_ext kestrel_lab\nlab = hostile.hostile_lab(T)\n{extra}",
        '%kestrel run "talk" --cycles 200 --as r',
        "await hostile.follow_plan(lab, T)",
        "r",
        "%kestrel runs",
        "r.to_frame()",
        "%kestrel tools",
        "other = await lab.fork(r.id, answer=T[0])\nother",
        "lab.diff(r.id, other.id)",
        "lab",
        "await hostile.measure(lab, T)",
        "hostile.report(' '.join(T))",
        "r.report('run.html')\nr.plan",
        "%kestrel doctor",
        "lab.change(model=hostile.breaking(T))",
        "%kestrel config",
        "print('IN THE LOG', hostile.leaves('OPENAI_API_KEY'))",
        '%kestrel run "break"',
    ]


@dataclass
class Seen:
    """What one notebook led to."""

    watch: Watch
    elements: dict[str, set[str]] = field(default_factory=dict)
    """By the place they were found in."""
    saved: str = ""
    sent: set[str] = field(default_factory=set)
    executed: int = 0


def approve(page: Page, seen: Seen) -> None:
    """Look at what is asked, at calls with their arguments to edit as well, and answer: one by one, two at
    once, a question.

    The second of the two is asked about again: the first changed the file, so it would make another change
    than was shown.
    """
    for number, tool in enumerate(("risky", "write_file", "edit_file", "write_file")):
        card = page.locator(".kst-ask").first
        expect(card).to_contain_text(tool, timeout=PATIENCE_MS)
        expect(page.locator(".kst-together")).to_be_visible(visible=number == 2)
        seen.elements[f"question {number}"] = elements(page)
        card.get_by_role("button", name="Edit", exact=True).click()
        seen.elements[f"editing {number}"] = elements(page)
        card.get_by_role("button", name="Discard edits", exact=True).click()
        card.get_by_label("Reason for denying").fill(PAYLOADS[number])
        # The cards that this answers have to be gone before the next ones are looked at.
        answered = page.locator(".kst-ask").element_handles() if number == 2 else [card.element_handle()]
        page.get_by_role(
            "button", name=("Deny", "Approve", "Approve all", "Approve")[number], exact=True
        ).click()
        for old in answered:
            old.wait_for_element_state("hidden", timeout=PATIENCE_MS)
    expect(page.locator(".kst-options button")).to_have_count(len(PAYLOADS), timeout=PATIENCE_MS)
    assert page.locator(".kst-call .kst-added").count() > 20
    seen.elements["question in words"] = elements(page)
    page.locator(".kst-options button").nth(3).click()


def look_everywhere(jupyterlab: JupyterLab, name: str, texts: str) -> Seen:
    """Run the notebook, reopen it trusted and not, export it, and open the pages it wrote."""
    seen = Seen(Watch(jupyterlab.url))
    notebook = cells(texts)
    folder = jupyterlab.root / name
    with jupyterlab.opened(name, notebook, seen.watch) as page:
        command(page, "notebook:run-all-cells")
        approve(page, seen)
        for number in range(len(notebook)):
            # Each cell has its own time, for on a busy machine all together take minutes.
            expect(page.locator(".jp-Notebook .jp-Cell").nth(number)).not_to_contain_text(
                "[*]", timeout=PATIENCE_MS
            )
        expect(page.locator(".jp-Notebook .jp-Cell").last).to_contain_text("RunFailed", timeout=PATIENCE_MS)
        page.wait_for_timeout(500)  # formulas are looked for after a moment
        seen.elements["ran"] = elements(page)
        prompts = page.locator(".jp-Notebook form").count()
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        seen.sent, seen.executed = set(seen.watch.sent), seen.watch.sent["execute_request"]
        page.reload()
        expect(page.locator(".jp-Notebook .jp-Cell").last).to_contain_text("RunFailed", timeout=PATIENCE_MS)
        # The kernel still has the panel: where it is connected again the panel takes the place of what was
        # saved.
        expect(page.locator(".jp-Notebook form")).to_have_count(prompts, timeout=PATIENCE_MS)
        page.wait_for_timeout(500)
        seen.elements["reopened"] = elements(page)
        saved = nbformat.read(folder / "t.ipynb", as_version=4)  # type: ignore[no-untyped-call]
        seen.saved = (folder / "t.ipynb").read_text()
        saved.cells[0].outputs = [nbformat.v4.new_output("stream", text="from somebody else")]  # type: ignore[no-untyped-call]
        nbformat.write(saved, folder / "foreign.ipynb")  # type: ignore[no-untyped-call]
        page.goto(f"{jupyterlab.url}/doc/tree/{name}/foreign.ipynb")
        expect(page.locator(".jp-Notebook .jp-Cell").last).to_contain_text("RunFailed", timeout=PATIENCE_MS)
        page.wait_for_timeout(500)
        seen.elements["reopened without trust"] = elements(page)
        exported, _ = HTMLExporter().from_notebook_node(saved)  # type: ignore[no-untyped-call]
        (folder / "export.html").write_text(exported, errors="backslashreplace")
        for file, inside in (
            ("export.html", ".jp-OutputArea-output *"),
            ("run.html", "*"),
            ("eval.html", "*"),
        ):
            page.goto((folder / file).as_uri())
            page.wait_for_timeout(500)
            seen.elements[file] = elements(page, inside)
    return seen


@pytest.fixture(scope="module")
def harmless(jupyterlab: JupyterLab) -> Seen:
    """The same notebook with harmless words."""
    return look_everywhere(jupyterlab, "harmless", "HARMLESS")


@pytest.fixture(scope="module")
def hostile(jupyterlab: JupyterLab) -> Seen:
    """The notebook with hostile words."""
    return look_everywhere(jupyterlab, "hostile", "PAYLOADS")


def test_no_text_makes_an_element(harmless: Seen, hostile: Seen) -> None:
    """Hostile texts create no kind of element that harmless ones do not, live, saved, reopened and
    exported.
    """
    more = {place: found - harmless.elements[place] for place, found in hostile.elements.items()}

    print(f"{len(PAYLOADS)} payloads in {len(more)} places")
    assert {place: found for place, found in more.items() if found} == {}


def unasked(seen: Seen) -> set[str]:
    """What a page sent by itself: without its answers about cells, where the kernel asked for them.

    The kernel asks where it has heard of the page by then, which a page that loads its scripts for the first
    time may miss: whether there is such an answer tells how busy the machine was, and not what was shown.
    """
    answers = {"comm_msg cells"} if re.search(rb'"k": ?"cells"', seen.watch.received) else set()
    return seen.sent - answers


def test_no_text_speaks_or_asks(harmless: Seen, hostile: Seen) -> None:
    """No dialog opens, nothing is asked of another server, and the kernel hears what it hears of harmless
    texts.
    """
    assert hostile.watch.dialogs == []
    assert set(hostile.watch.strangers) <= set(
        harmless.watch.strangers
    )  # nbconvert's pages ask for scripts of its own
    assert (unasked(hostile), hostile.executed) == (unasked(harmless), harmless.executed)


def test_no_key_is_saved_or_sent(hostile: Seen) -> None:
    """A key in the environment is neither in the saved notebook, nor in what the kernel sent, nor in the
    log.
    """
    assert "IN THE LOG False" in hostile.saved
    assert (CANARY in hostile.saved, CANARY.encode() in hostile.watch.received) == (False, False)
    assert (
        "kestrel run" in hostile.saved and b"kst-text" in hostile.watch.received
    )  # there is something to find it in
    assert "widgets" not in json.loads(hostile.saved)["metadata"]


_EACH = (
    "import kestrel_lab.views.html.elements as h\nfrom markupsafe import Markup\nfor e in "
    "(h.template_environment(), h.template_environment(h._TEMPLATES))"
)
"""The template environments of the kernel, before anything is shown."""
CARELESS = {
    "panel": "import kestrel_lab.notebook.panel as p\nw = p._widget_class()\nw._esm = "
    "w._esm.replace('textContent', 'innerHTML')",
    "html": f"{_EACH}:\n    e.finalize = Markup",
    "formulas": f"{_EACH}:\n    e.globals['as_text'] = ''\nlab = hostile.hostile_lab(payloads.MATHS)",
}


@pytest.mark.parametrize("which", CARELESS)
def test_a_careless_panel_is_noticed(jupyterlab: JupyterLab, harmless: Seen, which: str) -> None:
    """With `innerHTML` in the panel, without escaping, or with formulas set, these tests would fail."""
    seen = Seen(Watch(jupyterlab.url))
    with jupyterlab.opened(f"careless-{which}", cells("PAYLOADS", CARELESS[which])[:2], seen.watch) as page:
        command(page, "notebook:run-all-cells")
        expect(page.locator(".kst-ask")).to_contain_text("Approve", timeout=PATIENCE_MS)
        live = elements(page) - harmless.elements["question 0"]
        page.get_by_role("button", name="Stop run").click()
        page.wait_for_timeout(3_000)  # a script may have run the notebook again by then
        still = elements(page) - harmless.elements["ran"]

    dialogs, strangers, executed = (
        seen.watch.dialogs,
        seen.watch.strangers,
        seen.watch.sent["execute_request"],
    )
    if which == "panel":
        assert (GOT_IN.split("'")[1] in dialogs, "img onerror src" in live) == (True, True)
    elif which == "html":
        assert (GOT_IN.split("'")[1] in dialogs, bool(strangers), executed > 2) == (True, True, True)
    else:
        assert any("mjx" in kind for kind in still)
