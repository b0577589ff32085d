"""What code uses for the first time in a real notebook kernel: a library fills its caches, which is no effect of
the code; a module of the workspace is code that was not approved.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shells import Kernel

sys.path.insert(0, str(Path(__file__).parents[1] / "notebook"))
from typist import Typist, typist

from kestrel_lab.core.calls import Danger
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())

SETUP = """%load_ext kestrel_lab
__import__("kestrel_lab.notebook.panel").notebook.panel.HELLO_S = 0.2  # no page will come
# A busy machine would ask first, and the preview answer then: see test_slow_previews.py.
__import__("kestrel_lab.runtime.agent.tool_calls").runtime.agent.tool_calls.PREVIEW_PATIENCE_S = 240.0
import sys
from kestrel_lab import Lab
from kestrel_lab.testing import ScriptedModel
import pandas as pd
df = pd.DataFrame({"day": pd.date_range("2025-01-01", periods=90), "sales": range(90)})
def run(code):
    global lab
    lab = Lab(model=ScriptedModel([[("run_python", {"code": code})], "done"]))
def seen(run):
    events = list(run.events())
    kinds = [event.type for event in events if event.type.startswith(("kernel", "approval"))]
    return kinds, [event.text for event in events if event.type == "tool_answered"]
"""
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"


def call(person: Typist, code: str) -> tuple[str, str]:
    """What a run of `code` shows, and the events and the answer of its call. Nobody agrees."""
    shown = person.run(f"run({code!r})\n%kestrel run 'go' --as r", answer="n")
    return shown, person.run("print(*seen(r))")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("headless", ["0", "1"])
def test_the_first_plot_with_an_empty_home_asks_nobody(tmp_path: Path, headless: str) -> None:
    """Neither that of pandas, which imports matplotlib itself, nor one by its own functions; with a user and
    without; and a file that the code itself writes beside the caches is asked about.
    """
    (tmp_path / "work").mkdir()
    (tmp_path / "home").mkdir()
    env = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "home" / "cache"),
        "XDG_CONFIG_HOME": str(tmp_path / "home" / "config"),
        "KESTREL_HEADLESS": headless,
    }
    with typist(tmp_path / "work", env) as person:
        person.run(SETUP)
        for code in ("df.plot(x='day', y='sales');", PLOT):
            assert person.run("print('matplotlib' in sys.modules)") == "False\n"
            _, events = call(person, code)
            assert events.startswith("['kernel_previewed', 'kernel_changed']"), events
            assert "mkdir" not in events
        own, _ = call(
            person, "import os\ntry: os.mkdir(os.path.expanduser('~/.config'))\nexcept OSError: v = 1"
        )
        assert "asks for approval" in own or "ApprovalRequired" in own or "wants to" in own, own


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_module_of_the_workspace_is_not_imported_by_an_adoption(tmp_path: Path) -> None:
    """In a real notebook a preview imports it, and shows what comes of it; the kernel does so only after a
    person agreed.
    """
    (tmp_path / "helper.py").write_text("print('helper runs')\nvalue = 41\n")
    with typist(tmp_path) as person:
        person.run(SETUP)
        code = "import helper\nv = helper.value + 1"
        denied, _ = call(person, code)
        assert person.run("print('helper' in sys.modules, 'v' in globals())") == "False False\n"
        agreed = person.run(f"run({code!r})\n%kestrel run 'go' --as r", answer="y")
        assert person.run("print(helper.value, v)") == "41 42\n"

    assert "asks for approval" in denied
    assert "helper runs" in agreed


@pytest.mark.parametrize("code", ["import helper\nv = 1", "from helper import value"])
def test_a_module_of_the_workspace_that_is_not_loaded_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Its code runs in the preview alone. Once it is loaded, its names come with the values."""
    (tmp_path / "helper.py").write_text("def value(): return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    kernel = Kernel(tmp_path)
    preview = kernel.preview(code)
    assert preview.unfit == "it imports helper, which is not loaded yet"
    assert preview.danger is Danger.LOW
    assert "helper" not in sys.modules

    kernel.shell.run_cell("import helper")
    assert kernel.preview(code).adoptable
    del sys.modules["helper"]


def test_a_package_that_is_missing_is_the_codes_error(tmp_path: Path) -> None:
    """An import of the user's code is none of this package, which would name an extra."""
    preview = Kernel(tmp_path).preview("import not_there_at_all")
    assert preview.error == "ModuleNotFoundError: No module named 'not_there_at_all'"


WISHING = """import os, subprocess
for wish in (lambda: os.mkdir(os.path.expanduser('~/.wishing')), lambda: subprocess.run(['true'])):
    try: wish()
    except OSError: print('refused')
"""


def test_what_a_library_wants_at_its_import_is_no_wish_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed library that makes a folder and runs a program when it is imported; where the code does the
    same itself, or the module is of the workspace, it is refused.
    """
    library, work = tmp_path / "library", tmp_path / "work"
    (library / "wishing-1.dist-info").mkdir(parents=True)
    work.mkdir()
    for folder in (library, work):
        (folder / f"wishing_{folder.name}.py").write_text(WISHING)
        monkeypatch.syspath_prepend(str(folder))
    kernel = Kernel(work)

    silent = kernel.preview("import wishing_library\nv = 1")
    assert (silent.refused, silent.danger, silent.printed) == ((), Danger.LOW, "")
    for code in (
        f"import wishing_library\n{WISHING}",
        "import wishing_work",
        "import wishing_library, importlib; importlib.reload(wishing_library)",
        "import wishing_library, ctypes; ctypes.CDLL(None).open(b'/etc/shadow', 0)",
    ):
        assert kernel.preview(code).danger is Danger.HIGH


def test_a_library_that_is_imported_while_the_code_runs_has_wishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliberate bug: without its import before the code, the first plot is HIGH."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    kernel = Kernel(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "config"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    assert kernel.preview(PLOT).danger is Danger.LOW
    monkeypatch.setattr("kestrel_lab.tools.kernel.preview.import_before", lambda *_: None)
    assert kernel.preview(PLOT).danger is Danger.HIGH
