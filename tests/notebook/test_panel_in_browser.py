"""The panel in a real JupyterLab with a real kernel, clicked in a real browser."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import nbformat
import pytest
from lab_server import CHROMIUM, JupyterLab, Load, command
from nbconvert import HTMLExporter
from waits import PATIENCE_MS, until

pytest.importorskip("playwright.sync_api")
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="there is no Chromium here"),
    pytest.mark.timeout(400),
]
WRITES = '[("write_file", {"path": "a.txt", "content": "hello"})], "I wrote a.txt."'


def setup(turns: str, extra: str = "") -> str:
    """The first cell: the extension, and a lab whose scripted model plays `turns`."""
    return (
        "%load_ext kestrel_lab\nfrom kestrel_lab import Lab, tool\nfrom kestrel_lab.testing import "
        "ScriptedModel\n"
        f"{extra}\nlab = Lab(model=ScriptedModel([{turns}]), tools=TOOLS if 'TOOLS' in dir() else [])"
    )


def output(page: Page, number: int) -> Locator:
    """What a cell of the notebook, counted from 0, has put out."""
    return page.locator(".jp-Notebook .jp-Cell").nth(number).locator(".jp-Cell-outputArea")


def button(page: Page, name: str) -> Locator:
    """A button by its exact name."""
    return page.get_by_role("button", name=name, exact=True)


def seconds_from_click(page: Page, printed: Locator) -> float:
    """Seconds from the last click in the page to the time that a cell printed as `AT <time>`."""
    found = re.search(r"AT ([\d.]+)", printed.inner_text())
    assert found, printed.inner_text()
    return float(found[1]) - float(page.evaluate("() => window.clickedAt"))


PRINT_WHEN_CALLED = (
    "print('ANSWER', r.answer)\n"
    "print('GIVEN', [(e.granted, e.how, e.reason, e.args, e.scope) for e in r.events() if e.type == "
    "'approval_given'])\n"
    "print('AT', next((x.at for x in r.records() if x.event.type == 'tool_called'), 0))"
)


CLICKS = 5


def test_approving_lets_the_run_go_on_at_once(jupyterlab: JupyterLab) -> None:
    """A click writes the file within 100 ms (median of five), the next cell uses the run, the saved notebook
    holds no widget.

    What a later cell writes into a file that the answer cites is marked in the picture above.
    """
    write = '("write_file", {"path": "%d.txt", "content": "hello"})'
    turns = (
        ", ".join(f"[{write % n}]" for n in range(CLICKS))
        + ', [("read_file", {"path": "0.txt"})], "I wrote them. [0.txt:1]"'
    )
    called = "[x.at for x in r.records() if x.event.type == 'tool_called' and x.event.tool == 'write_file']"
    print_when = f"print('ANSWER', r.answer)\nprint('CALLED', {called})"
    cells = [
        setup(turns),
        'r = %kestrel run "write greetings"',
        print_when,
        "_ = open('0.txt', 'w').write('bye')",
    ]
    clicked, stretched = [], []
    with jupyterlab.opened("approve", cells) as page:
        command(page, "notebook:run-all-cells")
        for n in range(CLICKS):
            expect(page.locator(".kst-ask")).to_contain_text(f"{n}.txt")
            expect(page.locator(".kst-kind")).to_have_text("scripted")
            file = jupyterlab.root / "approve" / f"{n}.txt"
            assert not file.exists()
            with Load() as load:
                button(page, "Approve").click()
                clicked.append(float(page.evaluate("() => window.clickedAt")))
                until(file.exists)
            stretched.append(load.stretch)
        expect(output(page, 2)).to_contain_text("ANSWER I wrote them.", timeout=PATIENCE_MS)
        called = json.loads(output(page, 2).inner_text().partition("CALLED ")[2])
        expect(output(page, 1)).to_contain_text("0.txt:1 changed since")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        saved = json.loads((jupyterlab.root / "approve" / "t.ipynb").read_text())
    shown = saved["cells"][1]["outputs"][0]["data"]
    waited = [after - click for click, after in zip(clicked, called, strict=True)]

    print("click to continue, ms:", *(f"{seconds * 1000:.0f}" for seconds in waited))
    assert [(jupyterlab.root / "approve" / f"{n}.txt").read_text() for n in range(CLICKS)] == ["bye"] + [
        "hello"
    ] * (CLICKS - 1)
    assert median(waited) < 0.1 * median(stretched)
    assert (set(shown), "widgets" in saved["metadata"]) == ({"text/html", "text/plain"}, False)


@pytest.mark.long
def test_denying_tells_the_model_why(jupyterlab: JupyterLab) -> None:
    """A denial with a reason, typed and sent by the keyboard alone, is recorded; so is that nobody answered
    in time.
    """
    late = '%kestrel run "write again" --approval-timeout 1'
    cells = [setup(WRITES), 'r = %kestrel run "write a greeting to a.txt"', PRINT_WHEN_CALLED, late]
    with jupyterlab.opened("deny", cells) as page:
        command(page, "notebook:run-all-cells")
        reason = page.get_by_label("Reason for denying")
        expect(button(page, "Deny")).to_be_enabled()
        reason.focus()
        page.keyboard.type("do not add a file")
        page.keyboard.press("Enter")
        expect(output(page, 2)).to_contain_text(
            "GIVEN [(False, 'click', 'do not add a file', None, 'once')]", timeout=PATIENCE_MS
        )
        expect(output(page, 3)).to_contain_text("nobody answered within 1 s", timeout=PATIENCE_MS)

    assert not (jupyterlab.root / "deny" / "a.txt").exists()


@pytest.mark.long
def test_edited_arguments_are_checked_and_used(jupyterlab: JupyterLab) -> None:
    """Invalid JSON and wrong arguments are explained in the panel; the corrected ones are run."""
    cells = [setup(WRITES), 'r = %kestrel run "write a greeting to a.txt"', PRINT_WHEN_CALLED]
    with jupyterlab.opened("edit", cells) as page:
        command(page, "notebook:run-all-cells")
        button(page, "Edit").click()
        area = page.get_by_label("Arguments as JSON")
        area.fill("{oops")
        button(page, "Approve edited").click()
        expect(page.get_by_role("alert")).to_contain_text("Not valid JSON")
        area.fill('{"pth": "b.txt", "content": "edited"}')
        button(page, "Approve edited").click()
        expect(page.get_by_role("alert")).to_contain_text("did you mean 'path'?")
        area.fill('{"path": "b.txt", "content": "edited"}')
        button(page, "Approve edited").click()
        expect(output(page, 2)).to_contain_text("ANSWER", timeout=PATIENCE_MS)

    assert (jupyterlab.root / "edit" / "b.txt").read_text() == "edited"


@pytest.mark.long
def test_clicks_arrive_where_a_cell_cannot_await(jupyterlab: JupyterLab) -> None:
    """Under `%%time` and in a loop the run works on its own thread; clicks and keys still decide, "always"
    asks once.
    """
    turns = WRITES.replace('"I wrote', '[("write_file", {"path": "b.txt", "content": "again"})], "I wrote')
    loop = 'for i in range(1):\n    %kestrel run "write"'
    cells = [setup(turns), '%%time\n%kestrel run "write" --as r', PRINT_WHEN_CALLED, loop]
    with jupyterlab.opened("threads", cells) as page:
        command(page, "notebook:run-all-cells")
        expect(button(page, "Always for this run")).to_be_enabled()
        with Load() as load:
            button(page, "Always for this run").click()
            expect(output(page, 2)).to_contain_text("True, 'click', '', None, 'run')]", timeout=PATIENCE_MS)
        waited = seconds_from_click(page, output(page, 2))
        button(page, "Deny").click()
        expect(page.locator(".kst-ask")).to_contain_text("b.txt")
        expect(button(page, "Approve")).to_be_enabled()
        button(page, "Approve").focus()
        page.keyboard.press("b")  # inserts a cell, were it the notebook's
        page.keyboard.press("Enter")
        expect(output(page, 3)).to_contain_text("COMPLETE", timeout=PATIENCE_MS)
        assert page.locator(".jp-Notebook .jp-Cell").count() == len(cells)

    print(f"click to continue on a thread: {waited * 1000:.0f} ms")
    assert waited < 0.25 * load.stretch


@pytest.mark.long
def test_every_place_without_await_works(jupyterlab: JupyterLab) -> None:
    """In a function and after `%autoawait off` clicks decide; under `%%capture`, which hides the panel, the
    question is typed.
    """
    turns = '[("write_file", {"path": "a.txt", "content": "x"})], "done"'
    cells = [
        setup(turns),
        'def go():\n    %kestrel run "write" --as r\n    return r.answer\ngo()',
        '%%capture said\n%kestrel run "write" --as r',
        "%autoawait off",
        '%kestrel run "write" --as r',
        "print(len(said.outputs), r.answer)",
    ]
    with jupyterlab.opened("no-await", cells) as page:
        command(page, "notebook:run-all-cells")
        button(page, "Approve").click()
        expect(output(page, 1)).to_contain_text("'done'", timeout=PATIENCE_MS)
        line = page.locator(".jp-Stdin-input").last
        expect(page.locator(".jp-Stdin-prompt").last).to_contain_text(
            "write_file (MEDIUM) asks for approval", timeout=PATIENCE_MS
        )
        line.fill("y")
        line.press("Enter")
        button(page, "Approve").click(timeout=PATIENCE_MS)
        expect(output(page, 5)).to_contain_text("done", timeout=PATIENCE_MS)


@pytest.mark.long
def test_a_background_run_leaves_the_kernel_free(jupyterlab: JupyterLab) -> None:
    """With --bg the next cell runs while the panel waits; a reload brings the question back; `Stop run` ends
    it.
    """
    cells = [setup(WRITES), '%kestrel run "write" --bg --as r', "print('STATUS', r.status)"]
    with jupyterlab.opened("background", cells) as page:
        command(page, "notebook:run-all-cells")
        expect(output(page, 2)).to_contain_text("STATUS", timeout=PATIENCE_MS)
        expect(page.locator(".kst-ask")).to_contain_text("write_file")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.reload()
        expect(page.locator(".kst-ask")).to_contain_text("write_file", timeout=PATIENCE_MS)
        button(page, "Stop run").click()
        expect(output(page, 1)).to_contain_text("INTERRUPTED", timeout=PATIENCE_MS)


@pytest.mark.long
def test_many_rows_can_be_filtered_and_old_ones_are_not_laid_out(jupyterlab: JupyterLab) -> None:
    """Rows far from the end are left to the browser to skip; words show only rows that contain them, new ones
    too.
    """
    calls = (
        '*[[("file_exists", {"path": f"file{5 * turn + n}.txt"}) for n in range(5)] for turn in '
        'range(20)], [("no_such_tool", {})]'
    )
    turns = (
        f'{calls}, [("write_file", {{"path": "a.txt", "content": "x"}})], [("bash", {{"command": '
        f'"ls"}})], "done"'
    )
    with jupyterlab.opened("filter", [setup(turns), '%kestrel run "look" --cycles 40']) as page:
        command(page, "notebook:run-all-cells")
        expect(page.locator(".kst-ask")).to_contain_text("write_file", timeout=PATIENCE_MS)
        rows = page.locator(".kst-call:visible")
        expect(rows).to_have_count(102)
        assert page.locator(".kst-call.kst-far").count() > 30
        box = page.get_by_label("Show only rows with these words")
        box.fill("file_exists file7.txt")
        expect(rows).to_have_count(1)
        box.fill("error")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("no_such_tool")
        box.fill("waiting")
        expect(rows).to_contain_text(
            "write_file"
        )  # not only one row, as before: until the words are applied, what is below moves
        expect(rows).to_have_count(1)
        button(page, "Approve").press(
            "Enter"
        )  # by key: rows that are laid out just now can move the button away under a mouse
        expect(page.locator(".kst-ask")).to_contain_text("bash", timeout=PATIENCE_MS)
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("bash")
        expect(page.locator(".kst-find")).to_contain_text("1 of ")
        box.fill("")
        expect(rows).to_have_count(103)
        button(page, "Stop run").click()


FORGETFUL = (
    "import kestrel_lab.notebook.panel as p\nw = p._widget_class()\nw._esm = "
    "w._esm.replace('outputs.set(i', 'void (i')"
)


@pytest.mark.long
@pytest.mark.parametrize("extra", ["", FORGETFUL], ids=["kept", "not-kept"])
def test_a_reload_while_a_question_waits_loses_nothing(jupyterlab: JupyterLab, extra: str) -> None:
    """After a reload the question is there, a click lets the run go on to its end in sight; what is saved
    shows the end, else where to look.
    """
    name = f"reload-{'not-' if extra else ''}kept"
    cells = [setup(WRITES, extra), '%kestrel run "write a greeting to a.txt" --as r']
    with jupyterlab.opened(name, cells) as page:
        command(page, "notebook:run-all-cells")
        expect(page.locator(".kst-ask")).to_contain_text("write_file")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        page.reload()
        expect(page.locator(".kst-ask")).to_contain_text("write_file", timeout=PATIENCE_MS)
        button(page, "Approve").click()
        expect(output(page, 1)).to_contain_text("I wrote a.txt.", timeout=PATIENCE_MS)
        expect(page.locator(".kst-ask")).to_have_count(0, timeout=PATIENCE_MS)
        expect(page.locator(".kst")).to_have_count(
            1 if extra else 0, timeout=PATIENCE_MS
        )  # where nothing can take its place, the panel stays
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        saved = json.loads((jupyterlab.root / name / "t.ipynb").read_text())
    shown = saved["cells"][1]["outputs"][0]["data"]
    text = "".join(shown["text/plain"])

    assert (jupyterlab.root / name / "a.txt").read_text() == "hello"
    assert "widgets" not in saved["metadata"]
    if extra:
        assert re.search(r"how it went on: %kestrel show r\S+$", text)
    else:
        assert (set(shown), "COMPLETE" in text, "I wrote a.txt." in text) == (
            {"text/html", "text/plain"},
            True,
            True,
        )


@pytest.mark.long
def test_a_run_that_ends_while_the_page_is_closed_is_shown_when_it_is_opened(jupyterlab: JupyterLab) -> None:
    """A background run that ended meanwhile is shown whole, and nothing of the panel is left."""
    cells = [setup(WRITES), '%kestrel run "write" --bg --approval-timeout 10 --as r']
    with jupyterlab.opened("closed", cells) as page:
        command(page, "notebook:run-all-cells")
        expect(page.locator(".kst-ask")).to_contain_text("write_file")
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        address = page.url
        page.goto("about:blank")
        page.wait_for_timeout(11_000)
        page.goto(address)
        expect(output(page, 1)).to_contain_text("nobody answered within 10 s", timeout=PATIENCE_MS)
        expect(page.locator(".kst")).to_have_count(0, timeout=PATIENCE_MS)


SLOW = """
import asyncio, time
@tool
async def wait(seconds: float) -> str:
    "Wait."
    await asyncio.sleep(seconds)
    return "waited"
@tool
def block(seconds: float) -> str:
    "Block."
    time.sleep(seconds)
    return "blocked"
@tool(thread=True)
def thread(seconds: float) -> str:
    "Block a thread."
    time.sleep(seconds)
    return "blocked"
TOOLS = [wait, block, thread]
"""
SLEEPS = {"bash": '{"command": "sleep 30"}'}


@pytest.mark.parametrize(
    "tool", ["wait", *(pytest.param(tool, marks=pytest.mark.long) for tool in ("block", "thread", "bash"))]
)
def test_the_stop_button_interrupts_cleanly(jupyterlab: JupyterLab, screens: Path, tool: str) -> None:
    """Stop ends the cell within half a second, in a tool that waits, one that blocks (a thread, too) and a
    command; the kernel lives on.
    """
    cells = [
        setup(
            f'[("{tool}", '
            f'{SLEEPS.get(tool, """{"seconds": 5}""" if tool == "thread" else """{"seconds": 30}""")})], '
            '"never"',
            SLOW,
        ),
        "print('STATUS', *((r.status, r.report.interrupted) if 'r' in dir() else ['none yet']))",
        '%kestrel run "wait for a long time" --approve auto --as r',
    ]
    with jupyterlab.opened(f"stop-{tool}", cells) as page:
        command(page, "notebook:run-all-cells")
        expect(page.locator('.kst-call[data-state="running"]')).to_be_visible(timeout=PATIENCE_MS)
        page.screenshot(path=str(screens / f"running-{tool}.png"))
        with Load() as load:
            took = page.evaluate(
                """async () => {
                  const widget = [...window.jupyterapp.shell.widgets('main')].find(w => w.sessionContext);
                  const kernel = widget.sessionContext.session.kernel, began = performance.now();
                  const shown = () => document.querySelectorAll('.jp-Notebook \
.jp-Cell')[2].textContent.includes('RunCancelled');
                  await kernel.interrupt();
                  const ended = () => (shown() && kernel.status === 'idle') || performance.now() - began > \
8000;
                  while (!ended()) await new Promise(done => setTimeout(done, 5));
                  return (performance.now() - began) / 1000;
                }"""
            )
        expect(output(page, 2)).to_contain_text("RunCancelled")
        page.evaluate("""() => {
            const notebook = [...window.jupyterapp.shell.widgets('main')].find(w => w.sessionContext).content;
            notebook.activeCellIndex = 1;
        }""")
        command(page, "notebook:run-cell")
        expect(page.locator(".jp-Notebook")).to_contain_text("STATUS EXECUTING True", timeout=PATIENCE_MS)

    print(f"stop ({tool}): {took * 1000:.0f} ms")
    assert took < 0.5 * load.stretch


TOGETHER = r"""
from pathlib import Path
Path("notes.txt").write_text("".join(f"line {n}\n" for n in range(1, 21)))
Path("code.py").write_text("def area(r):\n    return 3 * r * r\n\nprint(area(2))\n")
"""
ASKS = (
    '[("list_directory", {}), ("grep", {"pattern": "TODO"})],'
    '[("write_file", {"path": "notes.txt", "content": "".join(f"line {n}\\n" for n in range(1, '
    '21)).replace("line 7", "line seven <b>")}),'
    ' ("edit_file", {"path": "code.py", "old": "3 * r * r", "new": "3.14159 * r ** 2"}), ("bash", '
    '{"command": "set -e\\npython code.py\u202e"})],'
    ' [("ask_user", {"question": "Which unit should <b>the area</b> be in?", "options": ["square '
    'metres", "square feet <img>"]})],'
    ' [("ask_user", {"question": "And how many digits?"})], "All is done."'
)
GIVEN = (
    "print('GIVEN', [(e.granted, e.reason, e.answer) for e in r.events() if e.type == "
    "'approval_given'])\nlen({e.key for e in r.events() if e.type == 'approval_asked'})"
)


def reopened_and_exported(page: Page, file: Path, screens: Path) -> None:
    """Save the notebook, look at it after a reload and as a page that nbconvert makes, with a network that
    answers nothing.
    """
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    page.reload()
    expect(output(page, 1)).to_contain_text("All is done.", timeout=PATIENCE_MS)
    output(page, 1).screenshot(path=str(screens / "reopened.png"))
    notebook = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    exported, _ = HTMLExporter().from_notebook_node(notebook)  # type: ignore[no-untyped-call]
    file.with_suffix(".html").write_text(exported, encoding="utf-8")
    page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    page.goto(file.with_suffix(".html").as_uri())
    expect(page.locator("section", has_text="All is done.")).to_be_visible()
    for call in page.locator("section summary").all()[2:4]:
        call.click()
    page.screenshot(path=str(screens / "exported.png"), full_page=True)


@pytest.mark.long
@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_calls_that_wait_together_and_questions(jupyterlab: JupyterLab, screens: Path, theme: str) -> None:
    """In both themes calls are shown together with their diffs, decided alone or all at once; questions take
    an option or words.
    """
    name = theme.split()[1].lower()
    folder = jupyterlab.root / f"together-{name}"
    goal = "%%kestrel --as r\nTidy this folder up, and work the area out.\nUse {braces} as they are."
    cells = [setup(ASKS, TOGETHER), goal, GIVEN]
    with jupyterlab.opened(f"together-{name}", cells) as page:
        page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme
        )
        page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg=str(name == "light").lower()
        )
        command(page, "notebook:run-all-cells")
        expect(page.locator(".kst-together")).to_contain_text("3 calls wait for approval")
        cards = page.locator(".kst-ask")
        expect(cards.nth(0).locator(".kst-added")).to_have_text(re.compile("line seven <b>"))
        expect(cards.nth(1).locator(".kst-removed")).to_have_text(re.compile("return 3 . r . r"))
        expect(cards.nth(2)).to_contain_text("python code.py\\u{202e}")
        page.set_viewport_size({"width": 1100, "height": 1500})
        page.locator(".kst-call summary").first.click()
        page.mouse.move(0, 0)
        expect(cards.nth(2).get_by_role("button", name="Approve")).to_be_enabled()
        page.locator(".kst").screenshot(path=str(screens / f"panel-{name}.png"))
        cards.nth(2).get_by_role("button", name="Edit").click()
        cards.nth(2).screenshot(path=str(screens / f"edit-{name}.png"))
        cards.nth(2).get_by_role("button", name="Discard edits").click()
        page.set_viewport_size({"width": 560, "height": 1700})
        page.locator(".kst").screenshot(path=str(screens / f"panel-narrow-{name}.png"))
        page.set_viewport_size({"width": 1100, "height": 900})
        if name == "light":
            page.get_by_label("Reason for all").fill("not now")
            cards.nth(1).get_by_role("button", name="Approve", exact=True).click()
            expect(page.locator(".kst-together")).to_contain_text("2 calls wait for approval")
            button(page, "Deny all").click()
        else:
            button(page, "Approve all").click()
        asked = page.locator(".kst-question")
        expect(asked).to_contain_text("Which unit should <b>the area</b> be in?", timeout=PATIENCE_MS)
        expect(page.locator(".kst-together")).to_be_hidden()
        expect(button(page, "square metres")).to_be_enabled()
        page.locator(".kst").screenshot(path=str(screens / f"question-{name}.png"))
        button(page, "square feet <img>").click()
        expect(asked).to_contain_text("And how many digits?")
        button(page, "Answer").click()
        expect(page.get_by_role("alert")).to_contain_text("Type an answer first.")
        page.get_by_label("Your answer").fill("two, please")
        page.keyboard.press("Enter")
        expect(output(page, 2)).to_contain_text("GIVEN", timeout=PATIENCE_MS)
        output(page, 2).scroll_into_view_if_needed()  # what is out of sight has no text
        told = output(page, 2).inner_text()
        page.locator(".jp-Notebook").evaluate("node => node.scrollTo(0, 0)")
        for call in output(page, 1).locator("summary").all()[2:5]:
            call.click()
        page.set_viewport_size({"width": 1100, "height": 1700})
        output(page, 1).screenshot(path=str(screens / f"done-{name}.png"))
        if name == "light":
            reopened_and_exported(page, folder / "t.ipynb", screens)

    given = (
        [(True, "", None)] * 3
        if name == "dark"
        else [(True, "", None), (False, "not now", None), (False, "not now", None)]
    )
    given += [(True, "", "square feet <img>"), (True, "", "two, please")]
    assert f"GIVEN {given}" in told
    assert told.split()[-1] == "5"
    assert (
        "line seven <b>" in (folder / "notes.txt").read_text(),
        "3.14159" in (folder / "code.py").read_text(),
    ) == (name == "dark", True)


GROWS = """
import asyncio, json, jsonschema
from pathlib import Path
from kestrel_lab import Plan, Step
from kestrel_lab.cli.frontend import ShowOptions
from kestrel_lab.notebook.frontend import Notebook, NotebookFrontend
@tool(danger_level="safe", effect="pure")
async def look(what: str) -> str:
    "Look at something, as soon as there is a file of that name."
    while not Path(what).exists():
        await asyncio.sleep(0.02)
    return f"{what}: nothing unusual"
PROPOSED = {"steps": [{"id": "sort", "tool": "look", "args": {"what": "sort"}, "produces": ["order"]},
    {"id": "clean", "goal": "clean <b>all</b> rooms"}, {"id": "last", "goal": "say what was done", \
"depends_on": ["clean"], "consumes": ["order"]}],
    "acceptance_criteria": ["everything is tidy"]}
def says(request):
    goal = next(message.text for message in request.messages if message.role == "user")
    return json.dumps(PROPOSED) if goal.startswith("Make a plan") else f"I did this: {goal[:30]}"
PLAN = Plan(steps=(
    Step(id="kitchen", tool="look", args={"what": "kitchen"}, stage="gather"),
    Step(id="cellar", tool="look", args={"what": "cellar"}, stage="gather"),
    Step(id="plan", operation="plan", args={"goal": "tidy up", "stage": "act"}, depends_on=("kitchen", \
"cellar"), stage="plan"),
    Step(id="report", goal="report", depends_on=("plan",), needs_approval=True, stage="report"),
    Step(id="sorry", goal="apologise", depends_on=("kitchen",), when="not steps.kitchen.ok", stage="report")))
lab = Lab(model=ScriptedModel(says), tools=[look])
async def followed():
    async with NotebookFrontend(Notebook(globals()), "panel", awaited=True).screen(ShowOptions()) as screen:
        return await screen.show(lab.start("tidy the house up", plan=PLAN, approver=screen.approver))
"""
FOLLOWED = "r = await followed()"


def node(page: Page, name: str) -> Locator:
    """A step in the drawing of the plan."""
    return page.get_by_role("button", name=f"step {name},")


@pytest.mark.long
@pytest.mark.parametrize("theme", ["JupyterLab Dark"])
def test_a_plan_that_grows_is_a_live_graph(jupyterlab: JupyterLab, screens: Path, theme: str) -> None:
    """Steps show their state as it changes and appear as they grow; Enter leads to what a step did; saved
    HTML has the graph.
    """
    name = theme.split()[1].lower()
    folder = jupyterlab.root / f"plan-{name}"
    with jupyterlab.opened(f"plan-{name}", [setup('"-"'), GROWS, FOLLOWED, "PLAN"]) as page:
        page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme
        )
        page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg=str(name == "light").lower()
        )
        command(page, "notebook:run-all-cells")
        for step, state in {
            "kitchen": "running",
            "cellar": "running",
            "plan": "pending",
            "report": "pending",
        }.items():
            expect(node(page, step)).to_have_attribute("data-state", state, timeout=PATIENCE_MS)
        expect(page.locator(".kst-node")).to_have_count(5)
        page.locator(".kst").screenshot(path=str(screens / f"plan-begun-{name}.png"))
        (folder / "kitchen").touch()
        expect(node(page, "kitchen")).to_have_attribute("data-state", "ok")
        expect(node(page, "cellar")).to_have_attribute("data-state", "running")
        (folder / "cellar").touch()
        expect(node(page, "plan/sort")).to_have_attribute("data-state", "running")
        expect(node(page, "plan/clean")).to_have_attribute("data-state", "ok")
        expect(page.locator(".kst-node")).to_have_count(8)
        (folder / "sort").touch()
        expect(node(page, "report")).to_have_attribute("data-state", "waiting")
        expect(page.locator(".kst b b, .kst-graph b")).to_have_count(0)
        places = {
            box["x"]: box
            for step in ("plan", "plan/clean", "plan/last", "report")
            if (box := node(page, step).bounding_box())
        }
        assert list(places) == sorted(places)
        node(page, "plan/clean").focus()
        page.keyboard.press("Enter")
        focused = page.evaluate("() => document.activeElement.textContent")
        assert "I did this: clean <b>all</b> rooms" in focused
        page.locator(".kst").screenshot(path=str(screens / f"plan-grown-{name}.png"))
        page.set_viewport_size({"width": 560, "height": 900})
        expect(page.locator(".kst-graph")).to_be_hidden()
        listed = page.locator(".kst-plan li > b").all_inner_texts()
        assert listed == [
            "kitchen",
            "cellar",
            "plan",
            "plan/sort",
            "plan/clean",
            "plan/last",
            "report",
            "sorry",
        ]
        page.locator(".kst").screenshot(path=str(screens / f"plan-narrow-{name}.png"))
        page.set_viewport_size({"width": 1100, "height": 900})
        button(page, "Approve").click()
        expect(output(page, 2)).to_contain_text("COMPLETE", timeout=PATIENCE_MS)
        expect(output(page, 3).locator("svg.kestrel-plan")).to_be_visible(timeout=PATIENCE_MS)
        page.screenshot(path=str(screens / f"plan-done-{name}.png"))
        page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
        saved = json.loads((folder / "t.ipynb").read_text())["cells"][2]["outputs"][0]["data"]
    shown = "".join(saved["text/html"])
    assert "<script" not in shown
    for words in ("<svg", "plan/clean", "✓ ok", "» skipped", "&lt;b&gt;all&lt;/b&gt;"):
        assert words in shown
    assert "clean <b>all</b> rooms" in "".join(saved["text/plain"])
