"""What watching a run costs: events from a kernel through JupyterLab to a panel in a browser."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.environments import ROOT
from bench.job import asked, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target

if TYPE_CHECKING:
    from playwright.sync_api import Page

_BURST = "kestrel_lab, 1,000 events at once"
_PACED = "kestrel_lab, 1,000 events in 4 s"
_MANY = "kestrel_lab, 10,000 events at once"
_CLICK = "kestrel_lab, click on Approve"
_CLICKS = 7

BENCHMARK = Benchmark(
    name="panel",
    title="The panel: from the kernel to the page",
    measures=(
        Measure(key="shown_s", heading="all shown after", unit="s"),
        Measure(key="kernel_s", heading="kernel busy", unit="s", digits=3),
        Measure(key="cpu_s", heading="kernel CPU", unit="s", digits=3),
        Measure(key="messages", heading="messages", digits=0),
        Measure(key="scroll_ms", heading="longest frame while scrolling", unit="ms", digits=0),
        Measure(key="reload_s", heading="shown again after a reload", unit="s"),
        Measure(key="click_ms", heading="click to call", unit="ms", digits=0),
        Measure(key="code_kb", heading="code of the panel", unit="kB", digits=1),
    ),
    probes=(
        Probe(
            rows=tuple(Row(name=name, ours=True) for name in (_BURST, _PACED, _MANY, _CLICK)),
            command=("-m", "bench.panel"),
        ),
    ),
    targets=(
        Target(row=_BURST, measure="kernel_s", at_most=0.6, meaning="kernel time of 1,000 events"),
        Target(row=_BURST, measure="shown_s", at_most=2.2, meaning="1,000 events on the page"),
        Target(row=_PACED, measure="cpu_s", at_most=0.16, meaning="kernel CPU of 1,000 events in 4 s"),
        Target(
            row=_PACED,
            measure="messages",
            at_most=106,
            meaning="messages of 1,000 events in 4 s (25 a second and a few that cannot wait)",
        ),
        Target(row=_MANY, measure="shown_s", at_most=10, meaning="10,000 events on the page"),
        Target(
            row=_MANY,
            measure="scroll_ms",
            at_most=200,
            meaning="longest frame while scrolling through 10,000 events",
        ),
        Target(row=_CLICK, measure="click_ms", at_most=100, meaning="from a click to the call"),
        Target(row=_CLICK, measure="code_kb", at_most=60, meaning="code of the panel, script and style"),
    ),
    rounds=2,
    notes=(
        "A real JupyterLab and Chromium with software rendering on this machine. Events: texts that "
        "stream, calls and their results.",
        "Shown: from the first event in the kernel to the last one's text in the page, measured with "
        "one clock.",
        "Kernel CPU: beside what the same loop uses without a panel.",
    ),
)

_FEED = """
import asyncio, time
from types import SimpleNamespace
from kestrel_lab.core.events import union as e
from kestrel_lab.notebook.panel import Panel

class Told:
    "A run whose events come when the benchmark says; it has no images."
    id = "bench"
    results = SimpleNamespace(read_image=lambda key: None)
    def subscribe(self, listener):
        self.tell = listener

def events(number):
    yield e.RunStarted(goal="bench", workspace=".", model="none", model_kind="scripted")
    for n in range(number // 10):
        yield e.ModelCalled(call=f"m{n}", step="s", model="none", cycle=n, messages=n)
        for piece in range(4):
            yield e.ModelDelta(call=f"m{n}", text=f"piece {piece} of what the model says in turn {n}, eighty \
characters or so. ")
        yield e.ModelAnswered(call=f"m{n}", step="s", model="none", text="piece " * 40, tokens_in=9, \
tokens_out=9)
        for k in range(2):
            args = {"path": f"folder/file{n}.py", "pattern": "def "}
            yield e.ToolCalled(call=f"c{n}.{k}", step="s", tool="grep", args=args)
            yield e.ToolAnswered(call=f"c{n}.{k}", step="s", tool="grep", text=f"line {n} " * 40, \
seconds=0.01)

async def paced(number, seconds, tell):
    began = time.time()
    for place, event in enumerate(events(number)):
        tell(event)
        await asyncio.sleep(max(0.0, began + seconds * place / number - time.time()))

async def feed(last, number, seconds=0.0):
    panel = Panel(user="bench", fallback=None)
    told = Told()
    panel.follow(told)
    while not panel._watched:
        await asyncio.sleep(0.05)
    sends, send = [], panel._widget.send
    panel._widget.send = lambda *given: (sends.append(1), send(*given))
    panel._stream._send = panel._send
    before = time.process_time()
    await paced(number, seconds, lambda event: None)
    began, cpu, wall = time.time(), time.process_time(), time.perf_counter()
    await paced(number, seconds, told.tell)
    told.tell(e.Progress(text=f"LAST {last}."))
    panel._stream.flush()
    took, used = time.perf_counter() - wall, time.process_time() - cpu
    print("TOLD", began, took, used - (cpu - before), len(sends))
"""
_SHOWN = """last => new Promise((done, failed) => {
  const end = Date.now() + 120_000;
  const look = () => {
    if (Date.now() > end) return failed(new Error(`the panel never showed ${last}`));
    const found = [...document.querySelectorAll('.kst-progress')].some(node => \
node.textContent.includes(last));
    if (found) requestAnimationFrame(() => done(Date.now() / 1000)); else setTimeout(look, 5);
  };
  look();
})"""
_SCROLL = """async () => {
  const rows = [...document.querySelectorAll('.kst-rows')].at(-1);
  let longest = 0, before = performance.now();
  for (let step = 0; step < 60; step++) {
    rows.scrollTop = rows.scrollHeight * ((step * 37) % 60) / 60;
    await new Promise(done => requestAnimationFrame(done));
    const now = performance.now();
    longest = Math.max(longest, now - before);
    before = now;
  }
  return longest;
}"""
_WRITES = """
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
lab = Lab(model=ScriptedModel([*[[("write_file", {"path": f"{n}.txt", "content": "x"})] for n in \
range(CLICKS)], "done"]))
""".replace("CLICKS", str(_CLICKS))


def _fed(page: Page, cell: int) -> dict[str, float]:
    """Run the cell that feeds a panel and wait until all is shown."""
    from lab_server import run_cell

    run_cell(page, cell)
    shown_at = page.evaluate(_SHOWN, f"LAST {cell}.")
    text = page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea", has_text="TOLD").first
    text.wait_for(timeout=120_000)
    began, took, cpu, sends = map(float, text.inner_text().partition("TOLD ")[2].split()[:4])
    return {
        "shown_s": shown_at - began,
        "kernel_s": took,
        "cpu_s": cpu,
        "messages": sends,
        "scroll_ms": page.evaluate(_SCROLL),
    }


def _clicked(page: Page, cell: int) -> float:
    """Milliseconds from a click to the call it allows, the median of several."""
    from lab_server import run_cell

    run_cell(page, cell)
    clicks = []
    for number in range(_CLICKS):
        page.locator(".kst-ask", has_text=f"{number}.txt").wait_for(timeout=60_000)
        page.get_by_role("button", name="Approve", exact=True).click()
        clicks.append(float(page.evaluate("() => window.clickedAt")))
    run_cell(page, cell + 1)
    reported = (
        page.locator(".jp-Notebook .jp-Cell").nth(cell + 1).locator(".jp-OutputArea", has_text="CALLED")
    )
    reported.first.wait_for(timeout=60_000)
    calls = map(float, reported.first.inner_text().partition("CALLED ")[2].split())
    return median(called - click for click, called in zip(clicks, calls, strict=True)) * 1000


def _reloaded(page: Page, cell: int) -> float:
    """Seconds until a page that is loaded anew shows all of the panel again."""
    page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")
    began = time.monotonic()
    page.reload()
    page.locator(".kst").last.wait_for(timeout=120_000)
    page.evaluate(_SHOWN, f"LAST {cell}.")
    return time.monotonic() - began


def main() -> None:
    """Measure and tell."""
    # The tests have the server and browser already.
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "notebook")]
    from lab_server import CHROMIUM, QUIET, JupyterLab, serve
    from playwright.sync_api import sync_playwright

    folder, quick = asked(sys.argv[1:])
    many = 1_000 if quick else 10_000
    cells = [
        f"%load_ext kestrel_lab\n{_FEED}",
        "await feed(1, 1_000)",
        "await feed(2, 1_000, 4.0)",
        f"await feed(3, {many})",
        f'{_WRITES}\n%kestrel run "write" --as r',
        "print('CALLED', *[x.at for x in r.records() if x.event.type == 'tool_called'])",
    ]
    code = (
        sum((ROOT / "kestrel_lab" / "notebook" / name).stat().st_size for name in ("panel.js", "panel.css"))
        / 1000
    )
    with (
        tempfile.TemporaryDirectory(dir=folder) as config,
        serve(folder, Path(config)) as url,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET.split())
        lab = JupyterLab(url, folder, browser)
        with lab.opened("panel", cells) as page:
            from lab_server import run_cell

            run_cell(page, 0)
            burst, paced, more = _fed(page, 1), _fed(page, 2), _fed(page, 3)
            click = {"click_ms": _clicked(page, 4), "code_kb": code}
            more["reload_s"] = _reloaded(page, 3)
        browser.close()
    tell(burst, paced, more, click)


if __name__ == "__main__":
    main()
