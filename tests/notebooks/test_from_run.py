"""Notebooks made of what runs executed: they run without a model and give the same numbers, and a recomputed
output that changed is noticed.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from markdown_it import MarkdownIt

from kestrel_lab import Lab, Run
from kestrel_lab.cli.main import main
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.events.union import (
    Event,
    KernelChanged,
    KernelUndone,
    RunScanned,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.evals.notebooks.run import run_notebook_sync
from kestrel_lab.language.numbers import number_origins
from kestrel_lab.runtime import recomputation
from kestrel_lab.runtime.recomputation import CodeCall, comparable_output, needed_names
from kestrel_lab.testing import RecordingReporter, ScriptedModel
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

sys.path.insert(0, str(Path(__file__).parents[1] / "notebook"))
from typist import typist

pytestmark = [pytest.mark.usefixtures("warm"), pytest.mark.slow, pytest.mark.timeout(300)]
in_kernel = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())
LOAD = (
    "import csv\nrows = list(csv.DictReader(open('orders.csv')))\namounts = [int(row['amount']) for "
    "row in rows]\nlen(amounts)"
)
SUM = "print(f'{sum(amounts):,} in all')\nmax(amounts)"
ORDERS = "amount\n" + "\n".join(map(str, range(100, 133)))
HOSTILE = (
    "Sum it.\n````\n</code></pre><script>alert(1)</script>\n![x](http://evil.example/x.png) "
    "$\\href{javascript:x}{y}$\n# A heading\n``` \x1b]0;t\x07"
)


def scripted(*turns: object) -> ScriptedModel:
    """A model that runs codes, given as texts in lists, and says the rest."""
    return ScriptedModel(
        [
            [("run_python", {"code": code}) for code in turn] if isinstance(turn, list) else turn
            for turn in turns
        ]
    )


Made = Callable[..., tuple[Lab, Run]]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Runs a goal with codes in a folder with orders."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "orders.csv").write_text(ORDERS)

    def make(*turns: object, goal: str = "Sum the orders") -> tuple[Lab, Run]:
        lab = Lab(home=tmp_path / "home", model=scripted(*turns))
        return lab, lab.run_sync(goal, workspace=tmp_path / "work", tools=["kernel"], approve="auto")

    return make


def codes(path: Path) -> list[nbformat.NotebookNode]:
    """The code cells of a notebook."""
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def printed(cell: nbformat.NotebookNode) -> str:
    """All text of a cell's outputs."""
    return (
        "\n".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in cell.outputs
        )
        .replace("\n\n", "\n")
        .strip()
    )


@in_kernel
def test_a_run_becomes_a_notebook_that_gives_the_same_numbers(made: Made, tmp_path: Path) -> None:
    """The codes are cells in order with recorded outputs; executed without a model they print the same, an
    exception and a figure included.
    """
    plot = "import matplotlib.pyplot as plt\nplt.plot(amounts); plt.show()"
    lab, run = made(
        [LOAD],
        [SUM],
        ["1 / 0"],
        [plot],
        "There are 33 orders, 3,828 in all; the largest is 132. Nothing is 99.",
    )
    path, done = tmp_path / "made.ipynb", tmp_path / "done.ipynb"
    with lab:
        draft = lab.evals.notebook_from(run)
        draft.write(path)
        blame = {"scanner": BLAME, "text": "DECISIVE: turn 2", "value": 0.9, "calls": ["answer.2.1"]}
        lab.store.decide(run.id, RunScanned(scanners={BLAME: "1"}, upto=1, findings=[blame]))
        blamed = lab.evals.notebook_from(run).content.cells
    stored = codes(path)
    result = run_notebook_sync(path, done, cwd=tmp_path / "work")
    computed = codes(done)
    answer = nbformat.read(path, as_version=4).cells[-1]

    nbformat.validate(nbformat.read(path, as_version=4))
    assert repr(draft) == "4 calls of 1 run"
    assert "Decisive step" not in path.read_text()
    marked = next(n for n, cell in enumerate(blamed) if "**Decisive step.**" in cell.source)
    assert blamed[marked + 1].source == SUM, "what a blame names is marked before its cell"
    assert [cell.source for cell in stored] == [LOAD, SUM, "1 / 0", plot]
    assert [cell.metadata.kestrel for cell in stored] == [
        {"run": run.id, "call": f"answer.{turn}.1"} for turn in range(1, 5)
    ]
    assert [printed(cell) for cell in stored[:2]] == ["33", "3,828 in all\n132"]
    assert result.ok, result
    assert [printed(cell) for cell in computed[:2]] == ["33", "3,828 in all\n132"]
    assert computed[2].outputs[-1].ename == "ZeroDivisionError"
    assert base64.b64decode(stored[3].outputs[-1].data["image/png"]).startswith(b"\x89PNG")
    assert any("image/png" in output.data for output in computed[3].outputs)
    assert answer.source.endswith("- 33 → cell 1\n- 3,828 → cell 2\n- 132 → cell 2")
    assert answer.metadata.kestrel["numbers"]["3,828"] == [[run.id, "answer.2.1"]]
    with pytest.raises(UsageError, match="is there already"):
        draft.write(path)


@in_kernel
@pytest.mark.long
def test_a_recomputed_output_that_changed_is_noticed(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchanged data give the same outputs; other data differ exactly where they matter, shown with both.

    A mutant that compares nothing is caught.
    """
    lab, run = made([LOAD], [SUM], ["open('out.txt', 'w').write('1')"], "done")
    with lab:
        before = asyncio.run(run.report.recompute())
        (tmp_path / "work" / "out.txt").write_text("mine")
        in_copy = asyncio.run(lab.evals.recompute(run, copy=True, reporter=(told := RecordingReporter())))
        (tmp_path / "work" / "orders.csv").write_text(ORDERS.replace("132", "133"))
        after = asyncio.run(lab.evals.recompute(run))
        monkeypatch.setattr(recomputation, "comparable_output", lambda text, error: "1")
        mutant = asyncio.run(lab.evals.recompute(run))

    assert [call.outcome for call in before.calls] == ["same", "same", "differs"]
    assert "PermissionError" in before.calls[2].now
    assert in_copy.ok
    assert told.reports[-1][:2] == (3, 3)
    assert (tmp_path / "work" / "out.txt").read_text() == "mine"
    assert [call.outcome for call in after.calls] == ["same", "differs", "differs"]
    assert (after.calls[1].recorded, after.calls[1].now) == ("3,828 in all\n132", "3,829 in all\n133")
    assert "3,828 in all 132" in repr(after)
    assert "3,829 in all 133" in repr(after)
    assert after.headline == f"run {run.id}: 1 of 3 outputs hold"
    assert [call.outcome for call in mutant.calls] != [call.outcome for call in after.calls]


@in_kernel
@pytest.mark.long
def test_another_kernel_begins_without_variables(made: Made, tmp_path: Path) -> None:
    """A call that ended its kernel is left out and named; where the next one began, variables go, in the
    notebook and when recomputed.
    """
    lab, run = made([LOAD], ["import os; os._exit(1)"], ["'rows' in dir()"], "done")
    with lab:
        follow = lab.run_sync(
            "And now?",
            workspace=tmp_path / "work",
            tools=["kernel"],
            approve="auto",
            follow=run,
            model=scripted(["rows"], "gone"),
        )
        draft = lab.evals.notebook_from(follow)
        recomputed = asyncio.run(lab.evals.recompute(follow))
    result = run_notebook_sync(draft.write(tmp_path / "made.ipynb"), cwd=tmp_path / "work")
    cells, note = codes(tmp_path / "made.ipynb"), draft.content.cells[0].source

    assert [cell.source for cell in cells] == [LOAD, "%reset -f", "'rows' in dir()", "%reset -f", "rows"]
    assert [printed(cell) for cell in cells[:3]] == ["33", "", "False"]
    assert cells[4].outputs[0].ename == "NameError"
    assert result.ok
    assert "Left out:\n\n- `answer.2.1`" in note
    assert "the kernel died" in note
    assert "Needs" not in note
    assert [(call.run, call.outcome) for call in recomputed.calls] == [
        (run.id, "same"),
        (run.id, "same"),
        (follow.id, "same"),
    ]


@in_kernel
@pytest.mark.long
def test_in_a_notebook_undone_calls_are_left_out_and_own_variables_are_named(tmp_path: Path) -> None:
    """What `%kestrel undo` took back after the run is no cell; variables of the user's cells are named;
    change lines are no output.
    """
    setup = (
        "%load_ext kestrel_lab\nimport pandas as pd\nfrom kestrel_lab import Lab\nfrom "
        "kestrel_lab.testing import RecordingReporter, ScriptedModel\n"
        "df = pd.DataFrame({'a': [1, 2, 1185]})\n"
        "lab = Lab(model=ScriptedModel([[('run_python', {'code': c})] for c in ('m = "
        "int(df.a.sum())\\nm', 'df = df.head(1)')] + ['It is 1188.']),"
        " rules=[{'tool': 'run_python', 'verdict': 'allow'}])"
    )
    with typist(tmp_path) as person:
        said = (
            person.run(setup)
            + person.run("%kestrel run 'sum' --as r", answer="y")
            + person.run("%kestrel undo")
        )
        said += person.run("%kestrel notebook from-run @r --out made.ipynb")
        nothing_left = person.run("%kestrel undo") + person.run("%kestrel notebook recompute @r")
    cells = nbformat.read(tmp_path / "made.ipynb", as_version=4).cells

    assert (
        "made.ipynb: 1 call of 1 run; needs df from your notebook; 1 call left out, see its first cell"
        in said
    )
    assert [(cell.source, printed(cell)) for cell in cells if cell.cell_type == "code"] == [
        ("m = int(df.a.sum())\nm", "1188")
    ]
    assert "left no Python code (tool run_python) to run again: answer.1.1: it was undone" in nothing_left
    assert "**Needs `df` from your notebook**" in cells[0].source
    assert "- `answer.2.1` of" in cells[0].source
    assert "`it was undone`" in cells[0].source
    assert cells[-1].source.endswith("- 1188 → cell 1")


def test_hostile_text_stays_text(made: Made, tmp_path: Path) -> None:
    """Markup, images, formulas, fences and terminal escapes of goal and answer are shown and never
    rendered.
    """
    lab, run = made(["x = 1"], HOSTILE, goal=HOSTILE)
    with lab:
        path = lab.evals.notebook_from(run).write(tmp_path / "made.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    question, answer = (MarkdownIt("commonmark").parse(cells[place].source) for place in (1, -1))

    assert codes(path)[0].outputs == []
    for tokens in (question, answer):
        assert [token.type for token in tokens][:4] == ["heading_open", "inline", "heading_close", "fence"]
        assert {token.type for token in tokens[4:]} <= {
            "paragraph_open",
            "paragraph_close",
            "inline",
            "bullet_list_open",
            "bullet_list_close",
            "list_item_open",
            "list_item_close",
        }
        assert "<script>" in tokens[3].content
        assert "\x1b" not in tokens[3].content


def _call(name: str, code: str, text: str, **changed: Any) -> list[Event]:
    return [
        ToolCalled(call=name, step="answer", tool="run_python", args={"code": code}),
        KernelChanged(call=name, step="answer", how="executed", kernel="k", **changed),
        ToolAnswered(call=name, step="answer", tool="run_python", text=text),
    ]


def test_undone_and_stopped_calls_of_a_log_are_no_part_of_what_was_executed() -> None:
    """An undo that the log has, and code that was stopped, are left out with the reason; lines on variables
    are no output.
    """
    change = {"name": "x", "kind": "new", "text": "new int, 1", "rebound": True, "lost": ""}
    events = [
        RunStarted(goal="g", workspace="/w", model="m", model_kind="scripted"),
        *_call("a", "x = 1; x", "1\n[x: new int, 1]", changes=[change]),
        *_call("b", "y = 1", "[y: new int, 1]"),
        *_call(
            "c", "while True: ...", "the code took more than 1 s and was stopped", error="KeyboardInterrupt: "
        ),
        ToolCalled(call="d", step="answer", tool="run_python", args={"code": "z"}),
        KernelUndone(calls=["b"], kernel="k"),
    ]
    texts = {event.call: event.text for event in events if isinstance(event, ToolAnswered)}
    run: Any = SimpleNamespace(
        id="r", goal="g", answer="", events=lambda: events, results=texts, _state=SimpleNamespace(folder=".")
    )
    store: Any = None
    turn = recomputation._turn(run, store)

    assert [(call.call, call.text, call.live, call.whole) for call in turn.calls] == [("a", "1", False, True)]
    assert [name for name, _ in turn.left_out] == ["b", "c", "d"]
    assert turn.model == "m (scripted)"


@pytest.mark.parametrize(
    ("answer", "outputs", "found"),
    [
        ("1,188 rows and 1188 too", ["1188", "1_188 and 0.50"], {"1,188": [0, 1], "1188": [0, 1]}),
        ("0.5, 12, −3 and 1e-5.", ["0.50 120 -3", "[1e-05, 12]"], {"−3": [0], "12": [1]}),
        ("1. one\n2) two, on 2026-01-02 in v2, x3 and 3.1.4", ["1 2 2026 01 3 3.1 4"], {}),
        ("between 10-20, at 3/4", ["10 20 3 4"], {}),
        ("5 of [5, 6]", ["5"], {"5": [0]}),
        ("ends with 7. Then 8%", ["7\n8"], {"7": [0], "8": [0]}),
    ],
)
def test_numbers_are_linked_only_where_they_are_equal(
    answer: str, outputs: list[str], found: dict[str, list[int]]
) -> None:
    """Signs between thousands do not count; dates, versions, ranges, list numbers and rounded values are
    never linked.
    """
    assert number_origins(answer, outputs) == found


def code_call(code: str, *, live: bool = True, error: str = "") -> CodeCall:
    """A call whose code ran."""
    return CodeCall(
        run="r", call="c", code=code, kernel="k", live=live, text="", whole=True, error=error, images=()
    )


@pytest.mark.parametrize(
    ("codes", "names"),
    [
        (["df = df.dropna()"], ["df"]),
        (["x = 1", "print(x, len(y))"], ["y"]),
        (["total += 1"], ["total"]),
        (["table['a'] = 1; model.fit(X)"], ["table", "model", "X"]),
        (["import a.b as c, d.e\nc, d"], []),
        (["for row in rows:\n    last = row\nlast, [n for n in row]"], ["rows"]),
        (["try:\n    a = f()\nexcept E as error:\n    print(error, a)"], ["f", "E"]),
        (["with open(p) as file:\n    text = file.read()\ntext"], ["p"]),
        (["def f(n=k):\n    m = n + g(outer)\n    return m\ndef g(v): return v\nf()"], ["k", "outer"]),
        (["match point:\n    case {'x': x, **rest} if x > low: print(x, rest)"], ["point", "low"]),
        (["%matplotlib inline\ndisplay(df); _"], ["df"]),
        (["this is (not python"], []),
    ],
)
def test_names_of_the_users_own_variables(codes: list[str], names: list[str]) -> None:
    """Names that code reads before any code bound them are the user's; nothing that Python or an earlier call
    gives.
    """
    assert needed_names([code_call(code) for code in codes]) == names


def test_a_fresh_kernel_and_an_undefined_name_need_nothing() -> None:
    """Off the notebook no variables were there before; a name that was not defined when the code ran is not
    the user's either.
    """
    assert (
        needed_names(
            [
                code_call("df", live=False),
                code_call("dff", error="NameError: name 'dff' is not defined. Did you mean: 'df'?"),
            ]
        )
        == []
    )


def test_outputs_are_compared_without_what_differs_in_each_process() -> None:
    """Addresses, sizes of figures and tracebacks do not count; the exception and what was printed before
    do.
    """
    trace = (
        f"2\n{'-' * 75}\nValueError   Traceback (most recent call last)\nCell In[{{}}], line "
        "1\nValueError: no"
    )
    assert (
        comparable_output(trace.format(3), "ValueError: no")
        == comparable_output(trace.format(9), "ValueError: no")
        == "2\nValueError: no"
    )
    assert (
        comparable_output("<f at 0x7f01>\n[figure 1: image/png, 1,234 bytes, shown to the user]", "")
        == "<f at 0x…>\n[figure 1: image/png]"
    )
    assert comparable_output("", "") == comparable_output("[no output]", "") == "[no output]"


@in_kernel
def test_the_commands(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`from-run` writes the file, `recompute` prints a table and ends with 1 where an output differs; help
    and mistakes are told.
    """
    lab, run = made([LOAD], "done")
    plain_run = lab.run_sync("nothing", workspace=tmp_path, approve="auto", model=scripted("no code"))
    lab.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KESTREL_HOME", str(tmp_path / "home"))

    def kestrel(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    assert kestrel("notebook", "from-run", run.id)[:2] == (0, f"{run.id}.ipynb: 1 call of 1 run\n")
    assert codes(tmp_path / f"{run.id}.ipynb")[0].source == LOAD
    code, out, _ = kestrel("notebook", "recompute", run.id)
    assert (code, "1 of 1 outputs hold" in out, "same" in out) == (0, True, True)
    (tmp_path / "work" / "orders.csv").write_text("amount\n1")
    code, out, _ = kestrel("notebook", "recompute", run.id)
    assert (code, "0 of 1 outputs hold" in out, "differs" in out) == (1, True, True)
    assert "runs without a model" in " ".join(kestrel("notebook", "from-run", "--help")[1].split())
    for words in (
        ("from-run", "r-none"),
        ("from-run", plain_run.id),
        ("recompute", plain_run.id),
        ("recompute", run.id, "--workspace", "none"),
    ):
        assert kestrel("notebook", *words)[0] == 2
