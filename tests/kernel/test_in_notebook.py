"""The kernel tools in a real notebook kernel: adoption without a question, execution with one, interrupt,
undo, and who gets them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "notebook"))
from typist import Typist, typist

from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("warm"),
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
]

SETUP = """%load_ext kestrel_lab
__import__("kestrel_lab.notebook.panel").notebook.panel.HELLO_S = 0.2  # no page will come
# A busy machine would ask first, and the preview answer then: see test_slow_previews.py.
__import__("kestrel_lab.runtime.agent.tool_calls").runtime.agent.tool_calls.PREVIEW_PATIENCE_S = 240.0
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
import pandas as pd, numpy as np
df = pd.DataFrame({"day": pd.date_range("2025-01-01", periods=90), "sales": np.arange(90.0)})
items = [1]
def lab_of(*codes, **options):
    return Lab(model=ScriptedModel([*[[("run_python", {"code": code})] for code in codes], "done"]), \
**options)
def kinds(run): return [event.type for event in run.events() if event.type.startswith(("kernel", "approval"))]
def said(run): return [event.text for event in run.events() if event.type == "tool_answered"]
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    """A kernel for the tests that leave it as it was: it takes seconds to begin."""
    with typist(tmp_path_factory.mktemp("notebook")) as person:
        yield person


@pytest.fixture
def person(notebook: Typist) -> Typist:
    """Somebody at that kernel, whose variables are those of the first cell."""
    notebook.run("%reset -f")
    notebook.run(SETUP)
    return notebook


def test_reading_passes_and_changes_are_asked_about(person: Typist) -> None:
    """New names are taken over unasked; a change inside of a frame is asked about, run, shown and undone."""
    person.run("lab = lab_of('m = df.sales.mean(); m')\n%kestrel run 'mean' --as r", answer="n")
    adopted = person.run("print(m, kinds(r), said(r))")
    asked = person.run(
        "lab = lab_of('df[\"month\"] = df.day.dt.month; print(len(df))')\n%kestrel run 'month' --as r",
        answer="y",
    )
    executed = person.run("print(list(df.columns), kinds(r), said(r))")
    undone = person.run("%kestrel undo")
    after = person.run("print(list(df.columns))\nr.undo()")

    assert (
        adopted == "44.5 ['kernel_previewed', 'kernel_changed'] ['np.float64(44.5)\\n[m: new float64, "
        "np.float64(44.5)]']\n"
    )
    assert "run_python (MEDIUM, runs in your kernel) asks for approval" in asked
    assert "90\n" in asked
    assert (
        "['day', 'sales', 'month'] ['kernel_previewed', 'approval_asked', 'approval_given', 'kernel_changed']"
        in executed
    )
    assert "[df: + column month]" in executed
    assert "restored df" in undone
    assert after.startswith("['day', 'sales']\n")


@pytest.mark.long
def test_no_level_of_danger_lets_code_into_the_kernel(person: Typist) -> None:
    """Under `auto` code that only makes a function waits for a person; under `deny` it is denied; a rule
    allows it.
    """
    code = "'f = lambda: 0'"
    asked = person.run(f"lab = lab_of({code}, approve='auto')\n%kestrel run 'make' --as r", answer="y")
    person.run(f"lab = lab_of({code}, approve='deny')\n%kestrel run 'make' --as r", answer="y")
    denied = person.run("print(said(r))")
    rule = "{'tool': 'run_python', 'verdict': 'allow'}"
    person.run(f"del f\nlab = lab_of({code}, rules=[{rule}])\n%kestrel run 'make' --as r", answer="n")
    ruled = person.run("print(said(r))")

    assert "asks for approval" in asked
    assert "run_python was denied by policy" in denied
    assert "f: new function" in ruled


@pytest.mark.long
def test_code_is_always_asked_about_after_words_of_others(person: Typist) -> None:
    """A rule and a yes for the whole run do not hold any more once the model has read what others wrote;
    adoption goes on.
    """
    person.run(
        "from kestrel_lab import tool\n@tool(reads='untrusted', reaches='nothing')\ndef page() -> "
        "str:\n    'Read a page.'\n    return 'words of others'\n"
        "lab = Lab(model=ScriptedModel([[('page', {})], [('run_python', {'code': 'n = 1'})], "
        "[('run_python', {'code': 'g = lambda: 1'})], 'done']),\n"
        "          tools=[page], rules=[{'tool': 'run_python', 'verdict': 'allow'}])"
    )
    asked = person.run("%kestrel run 'read' --as r", answer="n")
    result = person.run(
        "print(n, 'g' in dir(), [e.contained.get('untrusted')[:1] for e in r.events() if e.type == "
        "'approval_asked'])"
    )

    assert asked.count("asks for approval") == 1
    assert result == "1 False [['page']]\n"


@pytest.mark.long
def test_cells_are_proposed_and_always_asked_about_after_words_of_others(person: Typist) -> None:
    """Without a page or a server a new cell is proposed; under `auto` that passes, but not once the model has
    read what others wrote.
    """
    person.run(
        "from kestrel_lab import tool\n@tool(reads='untrusted', reaches='nothing')\ndef page() -> "
        "str:\n    'Read a page.'\n    return 'words of others'\n"
        "cell = [('insert_cell', {'source': 'n = 1'})]\n"
        "lab = Lab(model=ScriptedModel([cell, [('page', {})], cell, [('edit_cell', {'cell': 'c', "
        "'old': 'a', 'new': 'b'})], 'done']),\n"
        "          tools=[page], approve='auto')"
    )
    asked = person.run("%kestrel run 'read' --as r", answer="n")
    result = person.run("print(said(r))")

    assert asked.count("asks for approval") == 2
    assert "only the user can take it away" in result
    assert result.count("insert_cell was denied") == result.count("edit_cell was denied") == 1


def test_figures_belong_to_the_call_that_drew_them(person: Typist) -> None:
    """What executed code draws is in its result, for the model too, and not left for the end of the person's
    cell; what the person drew before is not in it.
    """
    person.run(
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nlab = lab_of('k = plt.plot([1, 2])', "
        "rules=[{'tool': 'run_python', 'verdict': 'allow'}])"
    )
    person.run("plt.plot([3])\n%kestrel run 'draw' --as r", answer="n")
    result = person.run("print(said(r), plt.get_fignums())")

    assert "shown to the user]" in result
    assert "figure 2" not in result
    assert result.rstrip().endswith("[]")


def test_a_second_call_of_a_turn_sees_the_first(person: Typist) -> None:
    """Two calls of one turn: the preview of the second is made again after the first, and what it takes over
    fits.
    """
    calls = (
        "[('run_python', {'code': 'a = 1'}), ('run_python', {'code': 'b = len([one for one in dir() if "
        'one == "a"])\'})]'
    )
    person.run(f"lab = Lab(model=ScriptedModel([{calls}, 'done']))\n%kestrel run 'two' --as r", answer="n")
    result = person.run("print(a, b)")

    assert result == "1 1\n"


# A preview runs in another process: there this code ends at once.
STOPPED = {
    "busy": "while os.getpid() == here: time.sleep(.01)",
    "awaits": "import asyncio\\nif os.getpid() == here: await asyncio.sleep(1e5)",
    "swallows": "try:\\n  while os.getpid() == here: time.sleep(.01)\\nexcept BaseException: items.append(3)",
}


@pytest.mark.parametrize(
    "cell",
    ["%kestrel run 'loop' --as r", "%%time\n%kestrel run 'loop' --as r"],
    ids=["awaited", "on a thread"],
)
@pytest.mark.parametrize("rest", STOPPED.values(), ids=STOPPED)
def test_one_stop_ends_code_and_run_and_the_kernel_goes_on(tmp_path: Path, rest: str, cell: str) -> None:
    """The kernel's own stop button reaches code that works, that awaits, and that catches everything, and
    ends the run.

    The model is not asked again, the run is interrupted and its call stopped; what the code had done is known
    and can be undone. Resumed, the run goes on.
    """
    code = f"items.append(2)\\npathlib.Path(\\'begun\\').touch()\\n{rest}"
    with typist(tmp_path) as person:
        person.run(SETUP + "import pathlib, time, threading, os, signal\nhere = os.getpid()")
        person.run(
            "def stop():\n    while not os.path.exists('begun'): time.sleep(.01)\n    time.sleep(.2); "
            "os.kill(os.getpid(), signal.SIGINT)\n"
            "threading.Thread(target=stop, daemon=True).start()\n"
            f"lab = lab_of('{code}', rules=[{{'tool': 'run_python', 'verdict': 'allow'}}])"
        )
        stopped = person.run(cell, answer="y")
        state = person.run(
            "print(r.status, r.report.interrupted, len([e for e in r.events() if e.type == "
            "'model_called']), said(r))"
        )
        shown = person.run("print(repr(r.report))")
        undone = person.run("%kestrel undo")
        after = person.run("print(items)")
        resumed = person.run("r = await lab.resume(r.id)\nprint(r.status, r.answer)")

    assert (
        "stopped run " in stopped or "was stopped; go on with it" in stopped
    ) and "live_kernel.py" not in stopped
    assert state.startswith("EXECUTING True 1 [") and "[a person stopped this code while it ran]" in state
    assert "run_python" in shown and "[stopped · " in shown
    assert "restored items" in undone
    assert after == "[1]\n"
    assert resumed.endswith("COMPLETE done\n")


def test_a_time_limit_is_no_stop(tmp_path: Path) -> None:
    """Code that takes too long is stopped without anybody's wish: the model is told, and the run goes on."""
    with typist(tmp_path) as person:
        person.run(
            SETUP + "from kestrel_lab.tools.kernel import live_kernel\nlive_kernel.EXECUTE_S = .2\nimport "
            "os; here = os.getpid()"
        )
        person.run(
            "lab = lab_of('items.append(2)\\nwhile os.getpid() == here: pass', rules=[{'tool': "
            "'run_python', 'verdict': 'allow'}])\n%kestrel run 'loop' --as r"
        )
        result = person.run(
            "print(r.status, [e.error['kind'] for e in r.events() if e.type == 'tool_answered'], said(r))"
        )

    assert result.startswith("COMPLETE ['raised'] ['the code took more than 0.2 s and was stopped")


def test_the_same_tools_are_offered_whoever_watches(tmp_path: Path) -> None:
    """A notebook that a program executes is told of the tools that a person's is; only the policy decides
    what they may do.
    """
    offered = (
        "lab = lab_of('x = 1')\n%kestrel run 'x' --as r\n"
        # On a line of its own, also where the question left none.
        "print()\nprint(sorted(t['name'] for t in next(iter(r.events())).tools))"
    )
    with typist(tmp_path) as person:
        person.run(SETUP)
        watched = person.run(offered, answer="n").splitlines()[-1]
    with typist(tmp_path, {"KESTREL_HEADLESS": "1"}) as program:
        program.run(SETUP)
        unwatched = program.run(offered).splitlines()[-1]
        asked = program.run("lab = lab_of('items.append(2)')\n%kestrel run 'x'")
        left = program.run("print(items)")

    assert watched == unwatched
    assert "'run_python'" in watched and "'insert_cell'" in watched
    assert (
        "nobody is here to approve it (no level of danger lets code into your own kernel; a rule that "
        "allows run_python does)" in asked
    )
    assert left == "[1]\n"


def named(person: Typist, text: str) -> str:
    """What the completion of a cell offers."""
    listed = f"print([one.text for one in get_ipython().Completer.completions({text!r}, {len(text)})])"
    return person.run(
        f"from IPython.core.completer import provisionalcompleter\nwith provisionalcompleter():\n    {listed}"
    )


def test_variables_complete_in_a_goal(person: Typist) -> None:
    """`@` and the beginning of a name, in a line and in the body of a cell."""
    cell, line = named(person, "%%kestrel\nlook at @d"), named(person, "%kestrel run look at @it")

    assert "@df" in cell
    assert "@items" in line


def test_a_warning_is_the_same_in_two_previews(person: Typist) -> None:
    """The file name of the cell has nothing of the copy in it: an approval of the first preview holds for the
    second.
    """
    person.run(
        "from kestrel_lab.tools.kernel.live_kernel import kernel_of\nkernel = kernel_of(get_ipython())"
    )
    code = "'import warnings; warnings.warn(chr(65), UserWarning)'"
    result = person.run(
        f"a, b = [(await kernel.preview({code}, '.')).text for _ in range(2)]\nprint(a == b, a)"
    )

    assert result.startswith("True")
    assert "UserWarning: A" in result and "kestrel-preview" not in result


def test_what_was_denied_is_not_reported_as_done(person: Typist) -> None:
    """After a person, or a policy, has denied the code, "Done.

    `df` lost its rows." is a concern, and the frame is as it was; done code is none.
    """
    person.run(
        "def claims(code, answer, **options):\n"
        "    return Lab(model=ScriptedModel([[('run_python', {'code': code})], answer]), **options)\n"
        "def concerns(run): return [one['what'] for e in run.events() if e.type == 'run_finished' for "
        "one in e.concerns]\n"
        "code, passive = 'df.drop(df.index[:5], inplace=True)', '`df` was cleaned: it lost its rows.'"
    )
    person.run("lab = claims(code, 'Done. `df` lost its rows.')\n%kestrel run 'clean' --as r", answer="n")
    denied = person.run("print(len(df), concerns(r))")
    person.run("lab = claims(code, passive, approve='deny')\n%kestrel run 'clean' --as r", answer="n")
    ruled = person.run("print(len(df), concerns(r))")
    person.run("lab = claims(code, passive)\n%kestrel run 'clean' --as r", answer="y")
    done = person.run("print(len(df), concerns(r))")

    assert denied.startswith(
        "90 ['the answer says “Done.”, but the call of run_python was denied', 'the answer says “lost”"
    )
    assert ruled.startswith("90 ['the answer says “was cleaned”, but the call of run_python was denied")
    assert done == "85 []\n"
