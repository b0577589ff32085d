"""Undo of state behind the names: each kind is what it was afterwards, or is named on the card and by the
undo.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shells import Kernel

from kestrel_lab.core.errors import ConflictError
from kestrel_lab.tools.kernel.lockdown import lockdown_problem

pytestmark = [
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETUP = """
import asyncio, atexit, builtins, collections, decimal, gc, itertools, json, locale, logging, math, os, \
random, signal, socket, sqlite3
import subprocess, sys, threading, types, warnings
import contextvars, functools
import numpy as np, pandas as pd, matplotlib, ipywidgets
matplotlib.use("agg")
import matplotlib.pyplot as plt
import helper
class Model:
    count = 0
    seen = []
    def predict(self): return 1
class Slotted:
    __slots__ = ("a",)
class Holder: pass
model, slotted, box = Model(), Slotted(), Holder()
slotted.a = 1
box.inner = Holder(); box.inner.deep = Holder(); box.inner.deep.more = Holder(); box.inner.deep.more.last = \
[1]
def f(x=1): return x
def default(x=[]): return x
def counter():
    n, items = 0, []
    def step():
        nonlocal n
        n += 1
        items.append(n)
        return n
    return step
step = counter()
hidden_list = [1]
def by_alias(): return hidden_list
table = {"call": by_alias}
_private = [1]
rng, legacy, own_random = np.random.default_rng(0), np.random.RandomState(0), random.Random(0)
numbers, letters, pairs = (n for n in range(9)), iter("abcdef"), itertools.count()
text = open("notes.txt")
connection = sqlite3.connect(":memory:"); connection.execute("create table t (a)")
lock, queue, tasks = threading.Lock(), collections.deque([1]), []
variable = contextvars.ContextVar("variable", default=1)
slider = ipywidgets.IntSlider(value=1)
figure, axes = plt.subplots(); plt.close(figure)
place = __import__("pathlib").Path("a")
df, x, items = pd.DataFrame({"a": [1, 2]}), 3, [1, 2]
def later(*args): pass
"""
HELPER = (
    "counter, cache = 0, {}\ndef bump():\n    global counter\n    counter += 1\ndef patch():\n    "
    "import json\n    json.dumps = bump\nclass Kept:\n    n = 1\n"
)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A kernel in a folder of its own, with a module there."""
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "notes.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    yield Kernel(tmp_path, SETUP)
    sys.modules.pop("helper", None)
    sys.modules["matplotlib.pyplot"].close("all")
    sys.modules["ipywidgets"].Widget.close_all()  # those of one test would be compared in all that follow


RESTORED = {
    "a class attribute": ("Model.count = 5", "Model.count"),
    "a list of a class": ("Model.seen.append(1)", "Model.seen"),
    "a method": ("Model.predict = lambda self: 2", "model.predict()"),
    "a new class attribute": ("Model.extra = 1", "hasattr(Model, 'extra')"),
    "a global of a module of the workspace": ("helper.counter = 7", "helper.counter"),
    "a global that a function of a module changes": ("helper.bump()", "helper.counter"),
    "a dict of a module of the workspace": ("helper.cache['a'] = 1", "helper.cache"),
    "a class of a module of the workspace": ("helper.Kept.n = 2", "helper.Kept.n"),
    "a constant of a library": ("math.pi = 3", "math.pi"),
    "a function of a library": ("json.dumps = later", "json.dumps"),
    "a function of a library, by a helper": ("helper.patch()", "json.dumps"),
    "a method of a class of a library": (
        "pd.DataFrame.total = lambda self: 1",
        "hasattr(pd.DataFrame, 'total')",
    ),
    "a mock": ("from unittest import mock; mock.patch('json.loads').start()", "json.loads"),
    "a builtin": ("builtins.ascii = later", "builtins.ascii"),
    "os.environ": (
        "os.environ['KESTREL_TRIED'] = 'secret'; os.environ.pop('HOME', None)",
        "sorted(os.environ.items())",
    ),
    "the working folder": ("os.chdir('sub')", "os.getcwd()"),
    "the random state of Python": ("random.seed(7); y = random.random()", "random.getstate()"),
    "the random state of numpy": (
        "np.random.seed(7); y = np.random.rand()",
        "np.random.get_state()[1].tolist()",
    ),
    "a generator of numpy": ("y = rng.random()", "rng.bit_generator.state"),
    "a legacy generator of numpy": (
        "y = legacy.rand()",
        "legacy.get_state()[1].tolist(), legacy.get_state()[2]",
    ),
    "a generator of Python": ("y = own_random.random()", "own_random.getstate()"),
    "defaults of a function": ("f.__defaults__ = (9,)", "f()"),
    "an attribute of a function": ("f.calls = 1", "f.__dict__"),
    "the code of a function": ("f.__code__ = (lambda x=1: 8).__code__", "f()"),
    "a number in a closure": (
        "y = step()",
        "step.__closure__[1].cell_contents, step.__closure__[0].cell_contents",
    ),
    "a list that only a function names": ("by_alias().append(2)", "hidden_list"),
    "a list that a function in a dict names": ("table['call']().append(2)", "hidden_list"),
    "a name with an underscore": ("_private.append(2); _more = 1", "_private, '_more' in globals()"),
    "a name of a module": ("math = 5", "math"),
    "an object that was replaced and changed": ("items.append(3); items = []", "items"),
    "options of pandas": (
        "pd.set_option('display.max_rows', 7); pd.options.display.width = 33",
        "pd.options.display.max_rows, pd.options.display.width",
    ),
    "options of matplotlib": (
        "plt.rcParams['figure.dpi'] = 33; plt.style.use('ggplot')",
        "dict(plt.rcParams)",
    ),
    "print options of numpy": ("np.set_printoptions(precision=2)", "np.get_printoptions()"),
    "errors of numpy": ("y = np.seterr(divide='raise')", "np.geterr()"),
    "sys.path": ("sys.path.insert(0, '/x')", "list(sys.path)"),
    "sys.argv": ("sys.argv = ['a']", "list(sys.argv)"),
    "sys.modules": (
        "sys.modules['made_up'] = types.ModuleType('made_up'); del sys.modules['colorsys' if 'colorsys' in "
        "sys.modules else 'json']",
        "'made_up' in sys.modules, 'json' in sys.modules",
    ),
    "warnings": ("warnings.simplefilter('ignore', UserWarning)", "list(warnings.filters)"),
    "a level of logging": (
        "logging.getLogger().setLevel(5); logging.getLogger('zzz').setLevel(10)",
        "logging.getLogger().level, logging.getLogger('zzz').level",
    ),
    "a handler of logging": (
        "logging.getLogger('zzy').addHandler(logging.StreamHandler())",
        "logging.getLogger('zzy').handlers",
    ),
    "decimals": ("decimal.getcontext().prec = 5", "decimal.getcontext().prec"),
    "the locale": ("locale.setlocale(locale.LC_ALL, 'C')", "locale.setlocale(locale.LC_ALL)"),
    "the time zone": (
        "import time; os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
        "__import__('time').tzname",
    ),
    "umask": ("os.umask(0o077)", "(__import__('os').umask(0o022), __import__('os').umask(0o022))[0]"),
    "the recursion limit": ("sys.setrecursionlimit(5000)", "sys.getrecursionlimit()"),
    "garbage collection": ("gc.disable(); gc.set_threshold(5)", "gc.isenabled(), gc.get_threshold()"),
    "the timeout of sockets": ("socket.setdefaulttimeout(3)", "socket.getdefaulttimeout()"),
    "a hook of threading": ("threading.excepthook = later", "threading.excepthook"),
    "a signal handler": ("y = signal.signal(signal.SIGUSR1, later)", "signal.getsignal(signal.SIGUSR1)"),
    "an event of IPython": (
        "get_ipython().events.register('post_run_cell', later)",
        "list(get_ipython().events.callbacks['post_run_cell'])",
    ),
    "a magic of IPython": (
        "get_ipython().register_magic_function(later, 'line', 'zzz')",
        "'zzz' in get_ipython().magics_manager.magics['line']",
    ),
    "a transformer of IPython": (
        "get_ipython().input_transformers_post.append(lambda lines: lines)",
        "len(get_ipython().input_transformers_post)",
    ),
    "a setting of IPython": (
        "get_ipython().ast_node_interactivity = 'all'",
        "get_ipython().ast_node_interactivity",
    ),
    "a callback of the garbage collector": ("gc.callbacks.append(later)", "gc.callbacks"),
    "an alias of IPython": (
        "get_ipython().run_line_magic('alias', 'zzy ls')",
        "'zzy' in get_ipython().magics_manager.magics['line']",
    ),
    "an object in a large dict": ("large[5].append(1)", "large[5]"),
    "an open file": ("left = open('notes.txt')", "'left' in globals()"),
    "an open file elsewhere": ("left = open(os.__file__)", "'left' in globals()"),
}
"""By kind of state: what changes it, and what is compared."""

NAMED = {
    "a list in a default": ("default().append(1)", "default.__defaults__"),
    "a class attribute of an instance": ("model.fitted = True", "model"),
    "an attribute in slots": ("slotted.a = 2", "slotted"),
    "something deep in objects": ("getattr(box.inner, 'de' + 'ep').more.last.append(2)", "box"),
    "a generator function": ("y = next(numbers)", "numbers"),
    "an iterator": ("y = next(letters)", "letters"),
    "an iterator of itertools": ("y = next(pairs)", "pairs"),
    "a position in a file": ("y = text.readline()", "text"),
    "a database": ("y = connection.execute('insert into t values (1)').rowcount", "connection"),
    "a lock": ("y = lock.acquire()", "lock"),
    "a deque": ("queue.append(2)", "queue"),
    "a widget": ("slider.value = 5", "slider"),
    "a file": ("n = open('out.txt', 'w').write('x')", "file out.txt"),
    "a file outside": (
        "import pathlib; n = pathlib.Path('/dev/shm/kestrel-undo-test').write_text('x')",
        "file /dev/shm/kestrel-undo-test",
    ),
    "a deleted file": ("os.remove('helper.py')", "file helper.py"),
    "a process": ("y = subprocess.run(['true']).returncode", "run the program true"),
    "a connection": ("s = socket.socket(); y = s.connect_ex(('127.0.0.1', 9))", "connect to 127.0.0.1 9"),
    "a thread": (
        "stop = threading.Event(); t = threading.Thread(target=stop.wait, args=(60,), name='waits', "
        "daemon=True); t.start()",
        "thread waits",
    ),
    "a function at exit": ("y = atexit.register(later)", "functions to run at exit"),
    "a file that a thread writes": (
        "t = threading.Thread(target=open, args=('late.txt', 'w')); t.start(); t.join()",
        "file late.txt",
    ),
    "a figure": ("y = axes.set_title('x').get_text()", "axes"),
    "an accessor of pandas": (
        "y = pd.api.extensions.register_dataframe_accessor('tried')(Model)",
        "accessors of pandas",
    ),
    "a display of a type": (
        "get_ipython().display_formatter.formatters['text/plain'].for_type(Model, lambda *a: None)",
        "IPython display of types",
    ),
}
"""By kind of state: what changes it, and how the card and the undo call it."""

EFFECTS = (
    "a file",
    "a file that a thread writes",
    "a file outside",
    "a deleted file",
    "a process",
    "a connection",
)
"""A preview refuses them, and its card says what the code wants."""


UNSEEN = ("the locale", "print options of numpy", "errors of numpy", "decimals")
"""What is of the task of the call alone, or may be so already."""


@pytest.mark.parametrize("kind", RESTORED)
def test_what_is_cheap_is_restored(kernel: Kernel, kind: str) -> None:
    """The value is that from before, the undo says what it restored, and the card says what would change."""
    code, compared = RESTORED[kind]
    if "large" in code:  # alone: comparing it takes a tenth of a second of each call
        kernel.shell.run_cell("large = {n: [n] for n in range(20_000)}")
    before = repr(eval(compared, kernel.shell.user_ns))
    card = kernel.preview(code).text
    ran = kernel.execute(code)
    changed = repr(eval(compared, kernel.shell.user_ns))
    undone = kernel.live.undo()

    assert not ran.error
    assert changed != before or kind in UNSEEN
    assert repr(eval(compared, kernel.shell.user_ns)) == before
    assert undone.restored and not undone.missing, undone
    assert all(change.line in card for change in ran.changes if " at 0x" not in change.line), (
        card,
        ran.changes,
    )
    assert "secret" not in card


@pytest.mark.parametrize("kind", NAMED)
def test_the_rest_is_named(kernel: Kernel, kind: str) -> None:
    """On the card before anything happens, in the answer, and by the undo with a reason."""
    code, name = NAMED[kind]
    card = kernel.preview(code).text
    ran = kernel.execute(code)
    undone = kernel.live.undo()
    if "stop" in kernel.ns:
        kernel.ns["stop"].set()
    Path("/dev/shm/kestrel-undo-test").unlink(missing_ok=True)

    assert not ran.error
    assert name in undone.missing, undone
    assert name not in undone.restored
    line = next(change.line for change in ran.changes if change.name == name)
    assert "(cannot be undone: " in line
    assert name in str(undone)
    if kind in EFFECTS:
        assert "wants to " in card and "undo does not take that back" in card
    else:
        assert (f"{name}: " if kind == "a position in a file" else line) in card, (
            card
        )  # a preview has no open files


QUIET = [
    "df['x'] = 1",
    "y = df.a.sum(); print(y)",
    "import numpy as np",
    "import colorsys",
    "import scipy.stats",
    "fig, ax = plt.subplots(); ax.plot([1, 2]); plt.close(fig)",
    "plt.plot([1, 2]); plt.title('x')",
    "print('hello')",
    "def g(a): return a + 1",
    "y = f(3)",
    "y = model.predict()",
    "with open('notes.txt') as opened: y = opened.read()",
    "y = pd.read_csv('notes.txt')",
    "y = df.describe().to_html()",
    "y = json.dumps({'a': 1})",
    "y = [n * 2 for n in items]",
    "import tempfile\nwith tempfile.TemporaryDirectory() as place: pass",
    "log = logging.getLogger('quiet'); log.info('x')",
    "y = str(Holder()); import re; z = re.sub('a', 'b', 'aa')",
    "from pathlib import Path; p = Path('a'); y = p.name, str(p)",
    "y = df.groupby('a').size()",
    "y = sorted(items); y = len(items)",
    "y = str(place), place.name, hash(place)",
    "y = repr(axes), axes.get_xlim(); y = figure.axes",
    "df",
    "1/0",
    "import asyncio; await asyncio.sleep(0)",
    "t = threading.Thread(target=later); t.start(); t.join()",
    "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool: y = "
    "list(pool.map(str, items))",
    "y = decimal.Decimal(1) / 3",
    "with np.errstate(divide='ignore'): y = np.array([1.0]) / 0",
    "with pd.option_context('display.max_rows', 3): y = repr(df)",
    "with warnings.catch_warnings(): warnings.simplefilter('ignore')",
    "for _ in range(3): pass",
]


@pytest.mark.parametrize("code", QUIET)
def test_nothing_is_named_where_nothing_behind_the_names_changed(kernel: Kernel, code: str) -> None:
    """Variables alone, on the card and in the undo."""
    card = kernel.preview(code)
    ran = kernel.execute(code)

    assert [change for change in card.changes if change.kind == "state" or change.lost] == []
    assert [change for change in ran.changes if change.kind == "state" or change.lost] == []
    if ran.changes:
        assert kernel.live.undo().missing == {}


def test_what_has_changed_again_since_stays_and_is_named(kernel: Kernel) -> None:
    """Key by key; with force it goes back too."""
    kernel.execute("os.environ['KESTREL_A'] = '1'; os.environ['KESTREL_B'] = '1'; Model.count = 5")
    kernel.shell.run_cell("os.environ['KESTREL_A'] = 'mine'")
    undone = kernel.live.undo()
    assert (undone.restored, list(undone.missing)) == (["Model.count"], ["os.environ"])
    assert "something else has changed it since" in undone.missing["os.environ"]
    assert kernel.ns["os"].environ["KESTREL_A"] == "mine"

    kernel.shell.run_cell("del os.environ['KESTREL_A'], os.environ['KESTREL_B']")
    kernel.execute("os.environ['KESTREL_A'] = '1'")
    kernel.shell.run_cell("os.environ['KESTREL_A'] = 'mine'")
    assert kernel.live.undo(force=True).restored == ["os.environ"]
    assert "KESTREL_A" not in kernel.ns["os"].environ


def test_nothing_is_called_restored_that_did_not_come_back(kernel: Kernel) -> None:
    """An environment that does not give a name up: it is compared afterwards, and named."""
    kernel.execute("os.environ['KESTREL_C'] = '1'; x = 4")
    environ = kernel.ns["os"].environ
    kept = type(environ).pop
    type(environ).pop = lambda *_: None  # type: ignore[assignment]
    try:
        undone = kernel.live.undo()
    finally:
        type(environ).pop = kept  # type: ignore[method-assign]
        environ.pop("KESTREL_C")
    assert (undone.restored, undone.missing) == (["x"], {"os.environ": "+ KESTREL_C: it is not what it was"})


def test_adoption_moves_random_states_on(kernel: Kernel) -> None:
    """Two previews that are taken over draw different numbers, and the undo of both gives the first back."""
    for name in ("first", "second"):
        assert kernel.adopt(f"{name} = np.random.rand(2), random.random()").how == "adopted"
    first, second = kernel.ns["first"], kernel.ns["second"]
    assert list(first[0]) != list(second[0])
    assert first[1] != second[1]
    kernel.live.undo()
    kernel.live.undo()
    kernel.adopt("again = np.random.rand(2), random.random()")
    assert (list(kernel.ns["again"][0]), kernel.ns["again"][1]) == (list(first[0]), first[1])


@pytest.mark.parametrize(
    "states",
    [
        {"os.environ": ["dict", [["A", "1"]]]},
        {"nothing": ["dict", []]},
        {"random state (random)": ["dict", [["", ["tuple", [3, 1, "x"]]]]]},
    ],
)
def test_a_forged_state_is_refused(kernel: Kernel, states: dict[str, Any]) -> None:
    """The copy ran code of a model: only random states are taken over from it, and only whole ones."""
    preview = kernel.preview("fine = 1")
    with pytest.raises(ConflictError):
        kernel.live.adopt(replace(preview, states=states), "r", "c1")
    assert "fine" not in kernel.ns
    assert "A" not in kernel.ns["os"].environ


def test_code_that_changes_more_than_variables_is_run_and_not_taken_over(kernel: Kernel) -> None:
    """An adoption would lose the setting."""
    for code, why in (
        ("os.environ['X'] = '1'", "it changes os.environ, which is more than a variable"),
        ("Model.count = 3", "it changes Model.count, which is more than a variable"),
    ):
        preview = kernel.preview(code)
        assert (preview.unfit, preview.error) == (why, "")


def test_a_call_leaves_the_shell_as_it_was(kernel: Kernel) -> None:
    """The last result is still `_`, and IPython's events hold nothing of the call."""
    kernel.shell.user_ns["_"] = "mine"
    before = {name: len(found) for name, found in kernel.shell.events.callbacks.items()}
    kernel.execute("x = 4")
    assert kernel.ns["_"] == "mine"
    assert {name: len(found) for name, found in kernel.shell.events.callbacks.items()} == before
