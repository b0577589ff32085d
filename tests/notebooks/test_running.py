"""Claims about notebooks that a program executes: parameters, limits, failures, and that they always end."""

import ast
import asyncio
import json
import tempfile
from pathlib import Path
from xml.etree import ElementTree as ET

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook
from waits import FOREVER_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.notebooks.parameters import inject_parameters, parameter_source, parse_parameters
from kestrel_lab.evals.notebooks.run import run_notebook, run_notebook_sync

pytestmark = pytest.mark.usefixtures("warm")

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}_", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

RISKY = """\
from kestrel_lab import Lab
lab = Lab(home="home", model="scripted:script.yaml", approve="ask")
run = await lab.run("write it")
"""
SCRIPT = (
    "rules:\n  - when: write\n    turns:\n      - [{tool: write_file, args: {path: done, content: "
    "hi}}]\n      - written\n"
)


def written(path: Path, *sources: str, tags: tuple[str, ...] = ()) -> Path:
    """A notebook of code cells; the first one has `tags`."""
    cells = [new_code_cell(source) for source in sources]
    cells[0].metadata["tags"] = list(tags)
    nbformat.write(new_notebook(cells=cells), path)
    return path


def texts(path: Path) -> list[str]:
    """What the code cells of a notebook printed."""
    return [
        "".join(output.get("text", "") for output in cell.outputs)
        for cell in nbformat.read(path, as_version=4).cells
    ]


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_what_is_injected_is_what_was_given(parameters: dict[str, object]) -> None:
    """Executing the injected source gives exactly the values, and the source is nothing but assignments of
    literals.
    """
    source = parameter_source(parameters)
    found: dict[str, object] = {}
    exec(compile(source, "cell", "exec"), {}, found)
    assert json.dumps(found) == json.dumps(parameters)
    tree = ast.parse(source).body
    assert {
        name: ast.literal_eval(node.value) for node in tree for name in [node.targets[0].id]
    } == parameters


@pytest.mark.parametrize(("folder", "transport"), [("t", "ipc"), ("t" * 100, "tcp")])
def test_a_kernel_has_no_port_where_its_sockets_have_a_path(
    folder: str, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other process can take what it listens on.

    A path that is too long for a socket leaves TCP; nothing is left of the sockets.
    """
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as short:
        place = Path(short) / folder
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        source = written(tmp_path / "a.ipynb", "print(get_ipython().kernel.parent.transport, end='')")
        assert run_notebook_sync(source, tmp_path / "b.ipynb").ok
        assert texts(tmp_path / "b.ipynb") == [transport]
        assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["a b", "1a", "class", "x\nimport os", "a.b", ""])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    """Nothing but a Python name comes to stand before the equals sign."""
    with pytest.raises(UsageError, match="Python name"):
        parameter_source({name: 1})


def test_values_are_json_or_text() -> None:
    """`-p` values are JSON where they are JSON, else text; what only begins like JSON is refused."""
    given_ = ["n=3", "text=main", "empty=", "list=[1, null]", 'quoted="3"', "equation=a=b"]
    assert parse_parameters(given_) == {
        "n": 3,
        "text": "main",
        "empty": "",
        "list": [1, None],
        "quoted": "3",
        "equation": "a=b",
    }
    for wrong, why in (("n", "NAME=VALUE"), ("=1", "NAME=VALUE"), ("n=[1", "begins like JSON")):
        with pytest.raises(UsageError, match=why):
            parse_parameters([wrong])
    with pytest.raises(UsageError, match="given twice"):
        parse_parameters(["n=1", "n=2"])


def test_parameters_are_put_behind_the_defaults(tmp_path: Path) -> None:
    """The injected cell stands behind the tagged one; executing the result again replaces it; the source
    stays as it was.
    """
    source = written(tmp_path / "nb.ipynb", "n = 1\nwho = 'me'", "print(n, who)", tags=("parameters",))
    before = source.read_bytes()
    first = run_notebook_sync(
        source, tmp_path / "one.ipynb", parameters={"n": [2, None], "who": "'); import os"}
    )
    second = run_notebook_sync(tmp_path / "one.ipynb", tmp_path / "two.ipynb", parameters={"n": 3})
    assert (first.ok, second.ok) == (True, True)
    assert texts(tmp_path / "one.ipynb") == ["", "", "[2, None] '); import os\n"]
    assert texts(tmp_path / "two.ipynb") == ["", "", "3 me\n"]
    assert source.read_bytes() == before


def test_parameters_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A misspelt name, a notebook without the tag, and overwriting the source are told before a kernel
    starts.
    """
    tagged = written(tmp_path / "tagged.ipynb", "epochs: int = 1", tags=("parameters",))
    with pytest.raises(UsageError, match="no parameter 'epoch'; did you mean 'epochs'"):
        inject_parameters(nbformat.read(tagged, as_version=4), {"epoch": 2}, "tagged")
    with pytest.raises(UsageError, match="no cells tagged 'parameters'"):
        inject_parameters(
            nbformat.read(written(tmp_path / "bare.ipynb", "epochs = 1"), as_version=4), {"epochs": 2}, "bare"
        )
    with pytest.raises(UsageError, match="--out"):
        run_notebook_sync(tagged, parameters={"epochs": 2})
    with pytest.raises(UsageError, match="above 0"):
        run_notebook_sync(tagged, timeout=0)
    with pytest.raises(UsageError, match="there is no notebook"):
        run_notebook_sync(tmp_path / "gone.ipynb")
    (tmp_path / "junk.ipynb").write_text("no json")
    with pytest.raises(UsageError, match="cannot be read as a notebook"):
        run_notebook_sync(tmp_path / "junk.ipynb")


def test_a_cell_that_raises_is_named_and_outputs_are_kept(tmp_path: Path) -> None:
    """The result names cell and error, the file has all outputs, and JUnit and Markdown tell of it with
    foreign text harmless.
    """
    source = written(
        tmp_path / "nb.ipynb",
        "print('before')",
        "raise ValueError('<img src=x> `|` \\x1b[31m\\x00')",
        "print('after')",
    )
    result = run_notebook_sync(source, tmp_path / "out.ipynb")
    assert [(cell.outcome, cell.error) for cell in result.cells] == [
        ("ok", ""),
        ("error", "ValueError"),
        ("not run", ""),
    ]
    assert result.headline.startswith("nb.ipynb: cell 2 of 3 (raise ValueError")
    assert texts(tmp_path / "out.ipynb") == ["before\n", "", ""]
    assert nbformat.read(tmp_path / "out.ipynb", as_version=4).cells[1].outputs[0].ename == "ValueError"
    root = ET.parse(result.junit(tmp_path / "junit.xml")).getroot()
    assert {key: root.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "errors": "0",
        "skipped": "1",
    }
    assert "<img src=x>" in root.findall(".//failure")[0].get("message", "")
    assert "`ValueError` `<img src=x> ˋ¦ˋ" in result.markdown()


@pytest.mark.long
def test_a_cell_has_a_time_limit(tmp_path: Path) -> None:
    """A cell that never ends is ended, kernel and all, even one that does not heed interrupts."""
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    source = written(tmp_path / "nb.ipynb", "print('first')", stubborn)
    result = run_notebook_sync(source, timeout=5)
    assert [cell.outcome for cell in result.cells] == ["ok", "timeout"]
    assert "took longer than the 5 s" in result.headline
    assert texts(source)[0] == "first\n"


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("input('name? ')", "StdinNotImplementedError"),
        ("import os\nos._exit(1)", "DeadKernelError"),
        (RISKY, "ApprovalRequired"),
    ],
    ids=["keyboard", "dead kernel", "risky call"],
)
def test_nothing_waits_for_a_person(tmp_path: Path, source: str, error: str) -> None:
    """Reading from the keyboard, a kernel that dies and a risky call each end the notebook long before its
    limit.
    """
    (tmp_path / "script.yaml").write_text(SCRIPT)
    notebook = written(tmp_path / "nb.ipynb", source)
    result = run_notebook_sync(notebook, cwd=tmp_path, timeout=FOREVER_S)
    assert result.failed is not None
    assert result.failed.error == error
    assert result.needs_approval is (error == "ApprovalRequired")
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
def test_what_a_kernel_says_of_itself_is_told_if_it_dies(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], dies: bool
) -> None:
    """What no cell printed, like a complaint while it is shut down, is not mixed into the output; the last
    words of a dead one are told.
    """
    # Descriptor 2 where ipykernel leaves it alone, else its copy of what it was.
    says = "import os, sys\nos.write(getattr(sys.stderr, '_original_stdstream_copy', 2), b'no socket')"
    result = run_notebook_sync(written(tmp_path / "nb.ipynb", says + ("\nos._exit(1)" if dies else "")))
    assert capfd.readouterr() == ("", "")
    assert result.ok is not dies
    assert [cell.message.endswith("; the kernel said last: no socket") for cell in result.cells] == [dies]


def test_cancelling_leaves_the_notebook_and_no_kernel(tmp_path: Path) -> None:
    """Whoever stops waiting gets the outputs so far in the file, and the kernel's process is gone."""
    source = written(tmp_path / "nb.ipynb", "import os\nprint(os.getpid())", "import time\ntime.sleep(60)")
    begun: list[int] = []

    async def stop() -> None:
        task = asyncio.ensure_future(
            run_notebook(
                source, tmp_path / "out.ipynb", reporter=lambda done, total, note: begun.append(done)
            )
        )
        while begun.count(1) < 2:
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(stop())
    kernel = int(texts(tmp_path / "out.ipynb")[0])
    assert not Path(f"/proc/{kernel}").exists()
