"""Preview of code: what the card says, how dangerous it is, and what may be taken over."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from shells import Kernel

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Danger
from kestrel_lab.core.errors import ConflictError
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.preview import PreviewJob

pytestmark = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    """A kernel that previews leave as it is."""
    return Kernel(tmp_path_factory.mktemp("work"))


@pytest.mark.parametrize(
    ("code", "danger", "sandbox", "line"),
    [
        ("m = df.sales.mean(); m", "LOW", PREVIEWED, "m: new float64, np.float64("),
        ("df.describe()", "LOW", PREVIEWED, "no variable, file or process changes"),
        ("1/0", "LOW", PREVIEWED, "raises ZeroDivisionError: division by zero"),
        ("import asyncio\nawait asyncio.sleep(0); q = 1", "LOW", PREVIEWED, "q: new int, 1"),
        ("d2 = df", "LOW", PREVIEWED, "d2: new DataFrame, 1,200 rows × 2 columns"),
        ("df = df.dropna()", "MEDIUM", PREVIEWED, "df: 1,200 → 1,188 rows · missing values 12 → 0"),
        ("del x", "MEDIUM", PREVIEWED, "x: deleted (int)"),
        ("print = 5", "MEDIUM", PREVIEWED, "print: new int, 5"),
        ("df['month'] = df.day.dt.month", "MEDIUM", IN_KERNEL, "df: + column month"),
        ("items.append(5)", "MEDIUM", IN_KERNEL, "items: [1, 2] → [1, 2, 5]"),
        ("arr[0] = 7", "MEDIUM", IN_KERNEL, "arr: other values"),
        ("part = arr[:2]", "LOW", IN_KERNEL, "part: new ndarray, 2 of int64"),
        ("f = lambda: 0", "LOW", IN_KERNEL, "f: new function"),
        ("globals()['items'].append(1)", "MEDIUM", IN_KERNEL, "items: [1, 2] → [1, 2, 1]"),
        ("open('out.csv', 'w').write('x' * 3100)", "HIGH", IN_KERNEL, "wants to write out.csv, 3.1 kB"),
        ("df.to_csv('frame.csv')", "HIGH", IN_KERNEL, "wants to write frame.csv, "),
        ("import os; os.system('ls')", "HIGH", IN_KERNEL, "wants to run the command ls"),
        ("open('/etc/shadow').read()", "HIGH", IN_KERNEL, "wants to read /etc/shadow"),
        (
            "import socket; socket.create_connection(('127.0.0.1', 9))",
            "HIGH",
            f"{IN_KERNEL} with network",
            "wants to reach 127.0.0.1, port 9",
        ),
    ],
)
def test_the_card_says_what_code_would_do(
    kernel: Kernel, code: str, danger: str, sandbox: str, line: str
) -> None:
    """Reading and new names are LOW, changes of variables MEDIUM, what leaves the kernel HIGH; only plain new
    objects may be taken over.
    """
    before = kernel.ns["df"].copy(), list(kernel.ns["items"]), kernel.ns["arr"].copy()
    preview = kernel.preview(code)

    assert (preview.danger, preview.sandbox) == (Danger[danger], sandbox)
    assert any(one.startswith(line) for one in preview.text.splitlines()), preview.text
    pd.testing.assert_frame_equal(kernel.ns["df"], before[0])
    assert (kernel.ns["items"], list(kernel.ns["arr"]), kernel.ns["x"]) == (before[1], list(before[2]), 3)
    assert list(kernel.folder.iterdir()) == []


def test_a_figure_is_part_of_the_preview(kernel: Kernel) -> None:
    """A plot gives a PNG, and code that reads back what it wrote finds it."""
    preview = kernel.preview(
        "import matplotlib; matplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]); "
        "plt.show()"
    )
    again = kernel.preview("open('a.txt', 'w').write('hello'); back = open('a.txt').read()")

    assert [media for media, _ in preview.images] == ["image/png"]
    assert "back: new str, 'hello'" in again.text


def test_an_endless_loop_ends_in_its_time_limit(kernel: Kernel) -> None:
    """Code that does not end has no preview, the kernel goes on, and nothing of it may be taken over."""
    job = PreviewJob(
        shell=kernel.shell,
        code="while True: pass",
        workspace=str(kernel.folder),
        generation=kernel.live.generation,
    )
    preview = asyncio.run(job.run(0.5))

    assert preview.text == "no preview: it did not end in 0.5 s"
    assert (preview.danger, preview.sandbox, preview.adoptable) == (Danger.HIGH, IN_KERNEL, False)


def test_a_copy_that_dies_is_said(kernel: Kernel) -> None:
    """Where the copy ends by itself there is no preview."""
    assert kernel.preview("import os; os._exit(0)").text == "no preview: the copy of the kernel died"


def test_where_effects_cannot_be_denied_there_is_no_preview(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Landlock the code alone is shown, and it counts as HIGH."""
    monkeypatch.setattr("kestrel_lab.tools.sandbox.landlock.landlock_version", lambda: 0)
    preview = kernel.preview("x = 4")

    assert preview.text.startswith("no preview: this Linux has no Landlock")
    assert (preview.danger, preview.adoptable) == (Danger.HIGH, False)


def test_adoption_takes_over_values_without_running_the_code(tmp_path: Path) -> None:
    """What was computed is what is taken over, also where running again would give something else."""
    kernel = Kernel(tmp_path)
    kernel.ns["np"].random.seed(1)
    preview = kernel.preview(
        "import time\nat = time.time_ns(); draws = np.random.random(3); clean = df.dropna(); same = "
        "df; clean.sales.mean()"
    )
    ran = kernel.live.adopt(preview, "r", "c1")

    assert (ran.how, [change.name for change in ran.changes]) == (
        "adopted",
        ["at", "clean", "draws", "same", "random state (numpy)"],
    )
    assert kernel.ns["at"] < time.time_ns()
    assert kernel.ns["draws"].shape == (3,)
    pd.testing.assert_frame_equal(kernel.ns["clean"], kernel.ns["df"].dropna())
    assert kernel.ns["same"] is kernel.ns["df"]
    assert kernel.ns["_"] == kernel.ns["clean"].sales.mean()
    kernel.ns["draws"][0] = 5.0  # it can be changed as any array


def test_a_preview_of_the_past_is_not_taken_over(tmp_path: Path) -> None:
    """After another cell the preview does not count any more."""
    kernel = Kernel(tmp_path)
    preview = kernel.preview("y = x + 1")
    kernel.shell.run_cell("x = 10")

    with pytest.raises(ConflictError, match="the variables have changed since the preview"):
        kernel.live.adopt(preview, "r", "c1")
    assert "y" not in kernel.ns


@pytest.mark.parametrize(
    "forged",
    [
        {"__builtins__": {"value": 1}},
        {"a b": {"value": 1}},
        {"y": {"module": "this_is_no_module"}},
        {"y": {"same": "nothing"}},
        {"y": {"value": ["pickle", "gASVIAAAAAAAAACMBXBvc2l4"]}},
        {"y": {"value": ["array", [0, "|O", [1], "C"]]}},
        {"y": {"value": ["array", [2**40, "<f8", [10], "C"]]}},
    ],
)
def test_a_forged_report_is_refused_whole(tmp_path: Path, forged: dict[str, object]) -> None:
    """The copy ran code of a model: names that no variable has, modules that are not there and damaged values
    change nothing.
    """
    kernel = Kernel(tmp_path)
    preview = kernel.preview("fine = 1")
    with pytest.raises(ConflictError):
        kernel.live.adopt(replace(preview, adopted={"fine": {"value": 1}, **forged}), "r", "c1")  # type: ignore[dict-item]

    assert not {"fine", "y"} & kernel.ns.keys()


def test_the_danger_of_a_forged_report_is_that_of_what_is_taken_over(kernel: Kernel) -> None:
    """A copy that calls a changed variable new does not pass as LOW: the kernel knows its own names."""
    preview = kernel.preview("fine = 1")

    assert replace(preview, adopted={"df": {"value": 1}}).danger is Danger.MEDIUM


def test_large_frames_are_compared_by_content(tmp_path: Path) -> None:
    """A change of one cell among a million is seen; arrays that share memory count as changed together."""
    kernel = Kernel(
        tmp_path,
        "import numpy as np, pandas as pd\nbig = pd.DataFrame(np.zeros((100_000, 10)))\na = "
        "np.zeros(10); b = a[2:4]",
    )

    assert kernel.preview("big.iloc[77_777, 3] = 1").text == "big: other values"
    assert kernel.preview("b[0] = 1").text.splitlines() == ["a: other values", "b: other values"]
    assert kernel.preview("s = big.sum().sum()").changes[0].name == "s"
    assert np.all(kernel.ns["a"] == 0)


@pytest.mark.parametrize(
    "code",
    [
        "text = open('pipe').read(4)",
        "import os; text = os.read(os.open('deep/pipe', os.O_RDONLY | os.O_NONBLOCK), 4)",
        "from pathlib import Path; text = Path('link').open('rb').read(4)",
        "import ctypes; libc = ctypes.CDLL(None); libc.read(libc.open(b'deep/pipe', 0x800), "
        "ctypes.create_string_buffer(4), 4)",
    ],
)
def test_a_preview_takes_nothing_out_of_a_pipe(
    kernel: Kernel, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pipe of the workspace holds is still there for whoever it is meant for; files beside it are read
    as ever.
    """
    place = kernel.folder
    monkeypatch.chdir(place)
    (place / "deep").mkdir(exist_ok=True)
    (place / "deep/plain.txt").write_text("plain")
    pipes = []
    try:
        for name in ("pipe", "deep/pipe"):
            os.mkfifo(place / name)
            pipes.append(os.open(place / name, os.O_RDWR | os.O_NONBLOCK))
            os.write(pipes[-1], b"safe")
        (place / "link").symlink_to("pipe")
        preview = kernel.preview(code)
        assert [os.read(one, 10) for one in pipes] == [b"safe", b"safe"]
        assert "ctypes" in code or (
            preview.danger is Danger.HIGH and "wants to use the pipe or device" in preview.text
        )
        assert kernel.preview("import os; names = os.listdir('deep')").adoptable
        assert kernel.preview("text = open('deep/plain.txt').read()").adoptable
    finally:
        for one in pipes:
            os.close(one)
        for name in ("pipe", "deep/pipe", "link"):
            (place / name).unlink(missing_ok=True)
