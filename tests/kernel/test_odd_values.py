"""Values whose classes raise exceptions while they are read: they are left out and named, and code goes on."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from shells import Kernel

from kestrel_lab.tools.kernel.inspection import inspect_value, variable_lines
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.state.boundary import held_interrupts
from kestrel_lab.tools.kernel.state.fingerprints import value_fingerprint

pytestmark = pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem())

METHODS = (
    "__reduce__ __reduce_ex__ __eq__ __hash__ __len__ __sizeof__ __iter__ __repr__ __str__ __bool__ __dir__ "
    "__getstate__ __format__ __index__ __array__ __call__"
).split()
ATTRIBUTES = ("__class__", "__dict__", "shape", "dtype", "nbytes", "closed", "name")
BASES = ("object", "dict", "list", "set", "tuple", "str", "int", "Exception", "random.Random", "io.StringIO")
EXCEPTIONS = ("ValueError", "RecursionError", "MemoryError", "KeyboardInterrupt", "SystemExit", "Odd")

SETUP = """
import io, random, numpy as np, pandas as pd
class Odd(BaseException): pass
armed = [False]
def raising(error):
    def method(self, *args, **options):
        if armed[0]:
            raise error("no")
        return NotImplemented
    return method
"""
ODD = {
    **{
        f"{error} of {base}": f"class C({base}): pass\nbad = C.__new__(C)\n"
        f"for name in {METHODS + ['__getattr__', '__getattribute__']}: setattr(C, name, raising({error}))\n"
        f"for name in {ATTRIBUTES}: setattr(C, name, property(raising({error})))\n"
        for error in EXCEPTIONS
        for base in BASES
        if base in ("object", "dict", "io.StringIO") or error == "Odd"
    },
    "a metaclass": "class M(type):\n    __hash__ = __eq__ = __getattribute__ = __instancecheck__ = "
    "__subclasscheck__ = raising(Odd)\nclass C(metaclass=M): pass\nbad = [C(), {'a': C()}]",
    "an array in itself": "bad = np.empty(1, object); bad[0] = bad",
    "a frame in itself": "bad = pd.DataFrame({'a': [1, 'x']}, dtype=object); bad.iloc[0, 0] = bad; "
    "bad.attrs['me'] = bad",
    "lists in lists": "bad = []\nfor _ in range(200_000): bad = [bad]",
    "dicts and objects in each other": "class C: pass\nbad = C()\nfor _ in range(50_000):\n    new = C(); "
    "new.inner = {'a': (bad,)}; bad = new",
    "a part of the kernel": "bad = get_ipython()",
    "a manager of the kernel": "bad = get_ipython().history_manager, get_ipython().events",
    "an iterator": "class C(map): __reduce__ = raising(Odd)\nbad = C(str, [])",
    "a widget": "import ipywidgets\nclass C(ipywidgets.IntSlider): pass\nbad = C()\n"
    "C._trait_values = property(raising(Odd))",
    "a frame": "class C(pd.DataFrame):\n    dtypes = shape = index = columns = property(raising(Odd))\n"
    "bad = C.__new__(C)",
    "an array": "class C(np.ndarray): dtype = shape = flags = property(raising(Odd))\nbad = np.zeros(2).view(C)",
    "a generator": "def g():\n    yield from ()\nbad = g()",
    "a name that is no text": "globals()[1] = 2; bad = 1",
}


@pytest.mark.parametrize("kind", ODD)
def test_code_runs_beside_a_value_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    """It is previewed, taken over, run and undone, whatever reading the value raises, also where the code
    names it.
    """
    kernel = Kernel(tmp_path, SETUP)
    kernel.shell.run_cell(ODD[kind])
    assert "bad" in kernel.ns
    kernel.ns["armed"][0] = True

    card = kernel.preview("x = 1")
    assert (card.adoptable, card.text) == (True, "x: new int, 1")
    assert kernel.adopt("x = 1").how == "adopted"
    assert not kernel.execute("y = [bad]").error
    assert kernel.live.undo().restored
    assert value_fingerprint(kernel.ns["bad"]) == value_fingerprint(kernel.ns["bad"])
    assert "bad: " in variable_lines(kernel.shell.user_ns)
    assert "bad: " in inspect_value("bad", kernel.ns["bad"])


def test_a_value_that_cannot_be_read_is_named_where_code_names_it(tmp_path: Path) -> None:
    """The card, the answer and the undo say that a change of it could not be seen, and why."""
    kernel = Kernel(tmp_path, SETUP)
    kernel.shell.run_cell("class C(dict): __iter__ = keys = items = __len__ = raising(Odd)\n")
    kernel.shell.run_cell("class D(random.Random): getstate = raising(Odd)\nbad = D()\narmed[0] = True")

    line = "bad: it cannot be seen whether it changed (cannot be undone: reading a D raises Odd)"
    assert line in kernel.preview("bad.seed(1)").text
    ran = kernel.execute("bad.seed(1)")
    assert line in [change.line for change in ran.changes]
    assert "bad" in kernel.live.undo().missing


def test_an_interrupt_comes_after_the_reading() -> None:
    """It is not taken for an exception of a value, and not lost either."""
    read = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            read.set()
    assert read.is_set()
