"""State outside of the namespace: whatever door code takes to it, an undo restores it or names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shells import Kernel

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.kernel.lockdown import lockdown_problem
from kestrel_lab.tools.kernel.state.attributes import Snapshot

pytestmark = [
    pytest.mark.skipif(bool(lockdown_problem()), reason=lockdown_problem()),
    pytest.mark.filterwarnings("ignore"),
]

SETUP = """
import abc, asyncio, atexit, builtins, calendar, codecs, collections, contextlib
import contextvars, copyreg, csv, decimal, doctest, email.charset, enum, functools
import gc, gettext, importlib, itertools, json, linecache, locale, logging
import math, mimetypes, multiprocessing, numbers, operator, os, pprint, random
import re, readline, reprlib, shutil, signal, site, socket, sqlite3
import ssl, string, sys, tempfile, threading, time, types, typing
import unicodedata, urllib.request, urllib.parse, uuid, warnings, weakref, webbrowser, xml.etree.ElementTree as ET
import xml.dom, zoneinfo, dataclasses, faulthandler, inspect, http.client, fractions, encodings.aliases
import numpy as np, pandas as pd
import helper
class Model:
    count: int = 0
    seen = []
    @functools.cache
    def slow(self, n): return n
    @functools.lru_cache(maxsize=4)
    def slower(self, n): return n
    @functools.cached_property
    def once(self): return 5
    @functools.singledispatchmethod
    def disp(self, x): return 0
class Base(abc.ABC): pass
class Colour(enum.Enum):
    RED = 1
model = Model()
@functools.cache
def fast(n): return n
@functools.singledispatch
def show(x): return 0
def f(x: int = 1) -> int: return x
def later(*args): pass
variable = contextvars.ContextVar("variable", default=1)
local = threading.local()
local.x = 1
@dataclasses.dataclass
class Row:
    a: int = 1
row = Row()
ref = weakref.WeakValueDictionary()
keep = [Model()]
wk = weakref.WeakKeyDictionary()
ws = weakref.WeakSet()
event = threading.Event()
tmpl = string.Template("$a")
gen = (i for i in range(5))
chain = collections.ChainMap({})
counter = collections.Counter()
dd = collections.defaultdict(list)
od = collections.OrderedDict(a=1)
ns_ = types.SimpleNamespace(a=1)
arr = bytearray(b"abc")
lock = threading.Lock()
"""
HELPER = "import functools\ncounter = 0\n@functools.cache\ndef slow(n): return [n]\n"
DOORS = {
    "cache of a method": ("y = model.slow(3)", "Model.slow.cache_info().currsize"),
    "lru cache of a method": ("y = model.slower(3)", "Model.slower.cache_info().currsize"),
    "cache of a function": ("y = fast(3)", "fast.cache_info().currsize"),
    "cache cleared": ("fast(1); fast.cache_clear(); y = fast(9)", "fast.cache_info().currsize"),
    "cache of a module's function": ("y = helper.slow(3)", "helper.slow.cache_info().currsize"),
    "cached property": ("y = model.once", "sorted(vars(model))"),
    "csv dialect": ("csv.register_dialect('mine', delimiter=';')", "csv.list_dialects()"),
    "csv dialect gone": ("csv.unregister_dialect('unix')", "sorted(csv.list_dialects())"),
    "csv field size": ("y = csv.field_size_limit(5)", "csv.field_size_limit()"),
    "ET namespace": ("ET.register_namespace('q', 'http://q')", "dict(ET._namespace_map)"),
    "annotations of the notebook": ("z: int = 1", "dict(globals().get('__annotations__', {}))"),
    "annotations of a class": ("Model.__annotations__['x'] = str", "dict(Model.__annotations__)"),
    "annotations of a function": ("f.__annotations__['y'] = str", "dict(f.__annotations__)"),
    "annotations of a function replaced": ("f.__annotations__ = {}", "dict(f.__annotations__)"),
    "doc of a function": ("f.__doc__ = 'x'", "f.__doc__"),
    "name of a function": ("f.__name__ = 'g'", "f.__name__"),
    "qualname of a function": ("f.__qualname__ = 'g'", "f.__qualname__"),
    "module of a function": ("f.__module__ = 'g'", "f.__module__"),
    "kwdefaults": ("f.__kwdefaults__ = {'a': 1}", "f.__kwdefaults__"),
    "doc of a class": ("Model.__doc__ = 'x'", "Model.__doc__"),
    "name of a class": ("Model.__name__ = 'x'", "Model.__name__"),
    "qualname of a class": ("Model.__qualname__ = 'x'", "Model.__qualname__"),
    "module of a class": ("Model.__module__ = 'x'", "Model.__module__"),
    "bases of a class": ("class B2: pass\nclass C2(B2): pass\nRow.__init__ = later", "Row.__init__"),
    "class of an object": ("model.__class__ = type('Z', (Model,), {})", "type(model).__name__"),
    "doc of a module": ("helper.__doc__ = 'x'", "helper.__doc__"),
    "file of a module": ("helper.__file__ = 'x'", "helper.__file__"),
    "all of a module": ("helper.__all__ = ['x']", "getattr(helper, '__all__', None)"),
    "finalize": ("fin = weakref.finalize(keep[0], later)", "len(weakref.finalize._registry)"),
    "weak value dictionary": ("ref['a'] = keep[0]", "len(ref)"),
    "weak key dictionary": ("wk[keep[0]] = 1", "len(wk)"),
    "weak set": ("ws.add(keep[0])", "len(ws)"),
    "singledispatch": ("@show.register(str)\ndef _(x): return 1", "len(show.registry)"),
    "singledispatch method": (
        "Model.disp.register(str, later)",
        "len(Model.__dict__['disp'].dispatcher.registry)",
    ),
    "abc registration": ("y = Base.register(str) is str", "issubclass(str, Base)"),
    "abc registration of a library": (
        "y = numbers.Number.register(Model) is Model",
        "issubclass(Model, numbers.Number)",
    ),
    "abc registration of collections": (
        "import collections.abc\ny = collections.abc.Sequence.register(Model) is Model",
        "__import__('collections').abc.Sequence in [c for c in [__import__('collections').abc.Sequence] if issubclass(Model, c)]",
    ),
    "codec": ("codecs.register(lambda name: None)", "0"),
    "codec error": ("codecs.register_error('mine', later)", "0"),
    "copyreg": ("copyreg.pickle(Model, later)", "Model in copyreg.dispatch_table"),
    "copyreg extension": (
        "copyreg.add_extension('helper', 'counter', 77)",
        "dict(copyreg._extension_registry)",
    ),
    "mimetypes": ("mimetypes.add_type('a/b', '.zzz')", "mimetypes.guess_type('x.zzz')"),
    "level names": ("logging.addLevelName(33, 'MINE')", "logging.getLevelName(33)"),
    "logger class": (
        "class L3(logging.Logger): pass\nlogging.setLoggerClass(L3)",
        "logging.getLoggerClass().__name__",
    ),
    "log record factory": ("logging.setLogRecordFactory(later)", "logging.getLogRecordFactory()"),
    "capture warnings": ("logging.captureWarnings(True)", "warnings.showwarning.__module__"),
    "last resort": ("logging.lastResort = None", "logging.lastResort"),
    "raise exceptions": ("logging.raiseExceptions = False", "logging.raiseExceptions"),
    "calendar": ("calendar.setfirstweekday(6)", "calendar.firstweekday()"),
    "archive format": (
        "shutil.register_archive_format('zzz', later)",
        "sorted(n for n,_ in shutil.get_archive_formats())",
    ),
    "unpack format": (
        "shutil.register_unpack_format('zzz', ['.zzz'], later)",
        "sorted(n[0] for n in shutil.get_unpack_formats())",
    ),
    "browser": ("webbrowser.register('zzz', None, later())", "'zzz' in webbrowser._browsers"),
    "charset": ("email.charset.add_charset('zzz')", "'zzz' in email.charset.CHARSETS"),
    "charset alias": ("email.charset.add_alias('zzz', 'utf-8')", "'zzz' in email.charset.ALIASES"),
    "gettext": ("y = gettext.bindtextdomain('zzz', '/x')", "dict(gettext._localedirs)"),
    "gettext domain": ("y = gettext.textdomain('zzz')", "gettext.textdomain()"),
    "gettext install": ("gettext.install('zzz')", "'_' in vars(builtins)"),
    "sqlite adapter": ("sqlite3.register_adapter(Model, str)", "len(sqlite3.adapters)"),
    "sqlite converter": ("sqlite3.register_converter('zzz', str)", "'ZZZ' in sqlite3.converters"),
    "doctest flag": ("y = doctest.register_optionflag('ZZZ')", "'ZZZ' in doctest.OPTIONFLAGS_BY_NAME"),
    "event loop policy": (
        "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())",
        "id(asyncio.get_event_loop_policy())",
    ),
    "start method": (
        "multiprocessing.set_start_method('spawn', force=True)",
        "multiprocessing.get_start_method()",
    ),
    "url opener": ("urllib.request.install_opener(urllib.request.build_opener())", "urllib.request._opener"),
    "url schemes": ("urllib.parse.uses_netloc.append('zzz')", "urllib.parse.uses_netloc"),
    "http debug": ("http.client.HTTPConnection.debuglevel = 1", "http.client.HTTPConnection.debuglevel"),
    "reprlib": ("reprlib.aRepr.maxstring = 5", "reprlib.aRepr.maxstring"),
    "dom": (
        "xml.dom.registerDOMImplementation('zzz', later)",
        "'zzz' in __import__('xml.dom.domreg').dom.domreg.registered",
    ),
    "time zone path": ("zoneinfo.reset_tzpath(['/x'])", "zoneinfo.TZPATH"),
    "ssl context": ("ssl._create_default_https_context = later", "ssl._create_default_https_context"),
    "encoding alias": ("encodings.aliases.aliases['zzz'] = 'utf_8'", "'zzz' in encodings.aliases.aliases"),
    "tempdir": ("tempfile.tempdir = '/x'", "tempfile.tempdir"),
    "breakpointhook": ("sys.breakpointhook = later", "sys.breakpointhook"),
    "asyncgen hooks": ("sys.set_asyncgen_hooks(later)", "sys.get_asyncgen_hooks()"),
    "coroutine origin": (
        "sys.set_coroutine_origin_tracking_depth(3)",
        "sys.get_coroutine_origin_tracking_depth()",
    ),
    "dlopen flags": ("sys.setdlopenflags(1)", "sys.getdlopenflags()"),
    "ps1": ("sys.ps1 = 'x'", "getattr(sys, 'ps1', None)"),
    "traceback limit": ("sys.tracebacklimit = 3", "getattr(sys, 'tracebacklimit', None)"),
    "dont write bytecode": (
        "sys.dont_write_bytecode = not sys.dont_write_bytecode",
        "sys.dont_write_bytecode",
    ),
    "recursion": ("sys.setrecursionlimit(3333)", "sys.getrecursionlimit()"),
    "stdin": ("sys.stdin = None", "sys.stdin"),
    "builtin": ("builtins.zzz = 1", "hasattr(builtins, 'zzz')"),
    "at fork": ("os.register_at_fork(before=later)", "0"),
    "putenv": ("os.putenv('ZZZ', '1')", "__import__('ctypes').CDLL(None).getenv(b'ZZZ') != 0"),
    "wakeup fd": ("y = signal.set_wakeup_fd(-1)", "0"),
    "thread local": ("local.x = 2", "local.x"),
    "enum member": ("Colour.RED._value_ = 5", "Colour.RED.value"),
    "enum new attr": ("Colour.extra = 5", "hasattr(Colour, 'extra')"),
    "dataclass field": ("row.a = 5", "row.a"),
    "dataclass fields": (
        "Row.__dataclass_fields__['a'].default = 9",
        "Row.__dataclass_fields__['a'].default",
    ),
    "event": ("event.set()", "event.is_set()"),
    "chain map": ("chain['a'] = 1", "dict(chain)"),
    "counter": ("counter['a'] += 1", "dict(counter)"),
    "defaultdict": ("y = dd['a']", "dict(dd)"),
    "ordered": ("od.move_to_end('a'); od['b'] = 1", "dict(od)"),
    "simple namespace": ("ns_.a = 2", "ns_.a"),
    "bytearray": ("arr.append(1)", "bytes(arr)"),
    "gc frozen": ("gc.freeze()", "0"),
    "gc debug": ("gc.set_debug(gc.DEBUG_STATS)", "gc.get_debug()"),
    "warnings shown": ("warnings.showwarning = later", "warnings.showwarning"),
    "warnings format": ("warnings.formatwarning = later", "warnings.formatwarning"),
    "decimal default": ("decimal.DefaultContext.prec = 7", "decimal.DefaultContext.prec"),
    "locale domain": ("y = locale.bindtextdomain('zzz', '/x')", "locale.bindtextdomain('zzz', None)"),
    "importlib finder": ("sys.meta_path.append(later)", "later in sys.meta_path"),
    "module replaced": ("sys.modules['json'] = types.ModuleType('json')", "sys.modules['json'] is json"),
    "readline": ("readline.set_completer(later)", "readline.get_completer()"),
    "typing overloads": ("@typing.overload\ndef zzz(a: int): ...\n", "len(typing._overload_registry)"),
    "uuid node": ("uuid._node = 5", "uuid._node"),
    "pandas option": ("pd.set_option('display.precision', 2)", "pd.get_option('display.precision')"),
    "pandas option by register": ("pd.options.display.max_rows = 5", "pd.options.display.max_rows"),
    "pandas extension type": (
        "pd.api.extensions.register_extension_dtype(type('Z', (pd.api.extensions.ExtensionDtype,), {'name': 'zz', 'construct_from_string': classmethod(later)}))",
        "len(__import__('pandas.core.dtypes.base').core.dtypes.base._registry.dtypes)",
    ),
    "plot backend": (
        "pd.options.plotting.matplotlib.register_converters = False",
        "pd.options.plotting.matplotlib.register_converters",
    ),
    "numpy string function": (
        "np.set_printoptions(formatter={'int': str})",
        "np.get_printoptions()['formatter']",
    ),
    "numpy bufsize": ("y = np.setbufsize(16000)", "np.getbufsize()"),
    "numpy alias": ("np.zzz = 1", "hasattr(np, 'zzz')"),
    "json decoder": (
        "json.decoder.JSONDecoder.strict = 5",
        "getattr(json.decoder.JSONDecoder, 'strict', None)",
    ),
    "json default encoder": ("json._default_encoder = later", "json._default_encoder"),
    "random instance": ("random._inst.seed(5)", "random._inst.getstate()"),
    "site": ("site.addsitedir('/tmp')", "'/tmp' in __import__('sys').path"),
    "affinity": ("os.sched_setaffinity(0, {0})", "os.sched_getaffinity(0)"),
    "cwd": ("os.chdir('/')", "os.getcwd()"),
    "thread hook": ("threading.excepthook = later", "threading.excepthook"),
    "thread name": ("threading.current_thread().name = 'zzz'", "__import__('threading').main_thread().name"),
    "mp process config": (
        "multiprocessing.current_process().name = 'zzz'",
        "multiprocessing.current_process().name",
    ),
    "unraisable": ("sys.unraisablehook = later", "sys.unraisablehook"),
    "tracemalloc": ("import tracemalloc; tracemalloc.start()", "__import__('tracemalloc').is_tracing()"),
    "int digits": ("sys.set_int_max_str_digits(5000)", "sys.get_int_max_str_digits()"),
    "module attribute by setattr": ("setattr(math, 'zzz', 1)", "hasattr(math, 'zzz')"),
    "module dict": ("vars(math)['zzq'] = 1", "hasattr(math, 'zzq')"),
    "module list by alias": (
        "a = urllib.parse.uses_query; a.append('zz')",
        "'zz' in urllib.parse.uses_query",
    ),
}
"""By door: code, and what is compared. It is 0 where Python shows nothing: then the undo must name it."""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """A kernel in a folder of its own, with a module there."""
    (tmp_path / "helper.py").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    yield Kernel(tmp_path, SETUP)
    sys.modules.pop("helper", None)


def undone(kernel: Kernel) -> list[str]:
    """What an undo names as not restored; nothing where it has nothing to undo."""
    try:
        return list(kernel.live.undo().missing)
    except UsageError:
        return []


@pytest.mark.parametrize("door", DOORS)
def test_an_undo_is_never_silent(kernel: Kernel, door: str) -> None:
    """The state is what it was, or the undo names what it could not restore; an adoption does not lose it."""
    code, compared = DOORS[door]
    before = repr(eval(compared, kernel.shell.user_ns))
    card = kernel.preview(code)
    assert not kernel.execute(code).error
    changed = repr(eval(compared, kernel.shell.user_ns))
    named = undone(kernel)

    if compared == "0":
        assert named
    else:
        assert changed != before or door in UNSEEN
        assert named or repr(eval(compared, kernel.shell.user_ns)) == before
    assert not card.adoptable or door in ADOPTED


UNSEEN = ("asyncgen hooks", "numpy string function", "numpy bufsize")
"""What is of the task of the call alone, or may be so already."""
ADOPTED = ("random instance", "numpy bufsize", "annotations of the notebook")
"""Random states and annotations are taken over with the values."""


def test_a_snapshot_that_skips_registers_is_silent(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deliberate bug: without the state behind the names, a dialect stays and nothing says so."""
    monkeypatch.setattr(Snapshot, "alterations", lambda _: iter(()))
    kernel.execute("csv.register_dialect('mine', delimiter=';')")
    assert undone(kernel) == []
    assert "mine" in kernel.ns["csv"].list_dialects()
    kernel.ns["csv"].unregister_dialect("mine")
