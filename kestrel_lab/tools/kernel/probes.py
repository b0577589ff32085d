"""State of the process that no variable holds: a table of small probes, each with what it reads and, where that is cheap, how it is put back.

A new kind of state is one more row of `PROBES`. A reading is a mapping, so that only the keys that code changed are named and put back.
"""

from __future__ import annotations

import asyncio
import atexit
import decimal
import faulthandler
import gc
import locale
import logging
import os
import random
import resource
import signal
import sys
import threading
import time
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.tools.kernel.fingerprints import raw_dict, value_fingerprint
from kestrel_lab.tools.kernel.variables import short_repr

Reading = Mapping[Any, Any]
ABSENT: Final = object()
"""Stands for a key that a reading does not have."""
_MOST_NAMED = 6
_MOST_WIDGETS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One kind of state. `read` and `restore` get the shell; a probe whose library is not loaded, or that cannot be read, reads nothing."""

    name: str
    read: Callable[[Any], Reading]
    restore: Callable[[Any, Mapping[Any, Any]], object] | None = None
    """Put back the values of these keys; `ABSENT` for one that was not there."""
    lost: str = ""
    """Why it cannot be restored."""
    library: str = ""
    """The module that has to be loaded."""
    words: str = ""
    """What to say instead of old and new values."""
    secret: bool = False
    """Values may be secrets: only keys are named."""
    adopted: bool = False
    """Plain data, which goes along when the values of a preview are taken over."""
    ignore: Callable[[Any, Any, Any], bool] = lambda key, old, new: False  # a default with the shape of the others
    """Whether a change of this key, from old to new, is no change of state."""

    def reading(self, shell: Any) -> Reading:
        """Return what there is now; empty where it cannot be read."""
        if self.library and self.library not in sys.modules:
            return {}
        try:
            return self.read(shell)
        except Exception:  # noqa: BLE001  # the boundary to libraries of any version: what cannot be read is not compared
            return {}

    def difference(self, old: Reading, new: Reading) -> dict[Any, tuple[Any, Any]]:
        """Return the keys whose values differ, each with both; `ABSENT` where there is none."""
        found = {}
        for key in [*old, *(key for key in new if key not in old)]:
            was, now = old.get(key, ABSENT), new.get(key, ABSENT)
            if not same(was, now) and not self.ignore(key, was, now):
                found[key] = (was, now)
        return found

    def text(self, changed: Mapping[Any, tuple[Any, Any]]) -> str:
        """Say in a line what changed."""
        if self.words:
            return self.words
        parts = [self._part(str(key), was, now) for key, (was, now) in list(changed.items())[:_MOST_NAMED]]
        return " · ".join(parts) + (f" · {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else "")

    def _part(self, key: str, was: Any, now: Any) -> str:
        if was is ABSENT or now is ABSENT:
            value = now if was is ABSENT else was
            return f"{'+' if was is ABSENT else '−'} {key}" + (
                f" ({value})" if isinstance(value, str) and value and not self.secret else ""
            )
        if isinstance(was, tuple) and isinstance(now, tuple) and not key:
            more = [f"+ {short_repr(one)[:80]}" for one in now if one not in was][:3]
            less = [f"− {short_repr(one)[:80]}" for one in was if one not in now][:3]
            return " · ".join([*more, *less]) or "another order"
        values = "" if self.secret else f"{short_repr(was)[:60]} → {short_repr(now)[:60]}"
        return ": ".join(part for part in (key, values) if part)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, by identity where they cannot be compared."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # noqa: BLE001  # the boundary to classes of others: arrays have no one answer
        return False


def _each(restore: Callable[[Any, Any], object]) -> Callable[[Any, Mapping[Any, Any]], None]:
    def put_back(_: Any, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            restore(key, value)

    return put_back


def set_or_delete(mapping: Any, key: Any, value: Any) -> None:
    """Make `value` that of `key`; `ABSENT` removes the key."""
    if value is ABSENT:
        mapping.pop(key, None)
    else:
        mapping[key] = value


# Python and the process.


def _umask(_: Any) -> Reading:
    status = Path("/proc/self/status").read_text(encoding="ascii")  # os.umask could only be read by setting it
    return {"": next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask"))}


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
        "digits of an int": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "gc threshold": (gc.get_threshold, lambda values: gc.set_threshold(*values)),
        "gc debugging": (gc.get_debug, gc.set_debug),
        "stack size of threads": (threading.stack_size, threading.stack_size),
        "tracemalloc": (tracemalloc.is_tracing, lambda on: tracemalloc.start() if on else tracemalloc.stop()),
        "faulthandler": (faulthandler.is_enabled, lambda on: faulthandler.enable() if on else faulthandler.disable()),
    }
    if (csv := sys.modules.get("csv")) is not None:
        found["size of a field of csv"] = (csv.field_size_limit, csv.field_size_limit)
    if (socket := sys.modules.get("socket")) is not None:
        found["timeout of sockets"] = (socket.getdefaulttimeout, socket.setdefaulttimeout)
    return found


def _restore_filters(_: Any, values: Mapping[Any, Any]) -> None:
    warnings.resetwarnings()  # the one public way to have Python forget which warnings were shown under the old filters
    warnings.filters[:] = values[""]  # type: ignore[index]


_REGISTRIES = (("gc", "callbacks"), ("copyreg", "dispatch_table"), ("mimetypes", "types_map"))


def _registries(_: Any) -> Reading:
    found = {name: getattr(sys.modules[name[0]], name[1]) for name in _REGISTRIES if name[0] in sys.modules}
    return {name: tuple(items.items() if isinstance(items, dict) else items) for name, items in found.items()}


def _restore_registry(name: tuple[str, str], items: Any) -> None:
    registry = getattr(sys.modules[name[0]], name[1])
    registry.clear()
    if isinstance(registry, dict):
        registry.update(items)
    else:
        registry.extend(items)


def _loggers(_: Any) -> Reading:
    def state(logger: logging.Logger) -> tuple[Any, ...]:
        handlers = tuple((handler, handler.level) for handler in logger.handlers)
        return logger.level, logger.disabled, logger.propagate, handlers, tuple(logger.filters)

    loggers = [one for one in list(logging.root.manager.loggerDict.values()) if isinstance(one, logging.Logger)]
    # A logger as it was made says nothing: libraries make one when they are first used.
    found: dict[str, Any] = {one.name: told for one in loggers if (told := state(one)) != (0, False, True, (), ())}
    return {**found, "root": state(logging.root), "disabled up to": logging.root.manager.disable}


def _restore_logger(name: str, value: Any) -> None:
    if name == "disabled up to":
        logging.disable(value)
        return
    logger = logging.root if name == "root" else logging.getLogger(name)
    level, logger.disabled, logger.propagate, handlers, filters = (0, False, True, (), ()) if value is ABSENT else value
    logger.setLevel(level)
    logger.handlers[:], logger.filters[:] = [handler for handler, _ in handlers], filters
    for handler, of_handler in handlers:
        handler.setLevel(of_handler)


_LIMITS = {name: number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}


def _at_exit(_: Any) -> Reading:
    # weakref registers a function of its own with the first finalizer of the process, which is no doing of the code.
    return {"functions": atexit._ncallbacks() - bool(getattr(weakref.finalize, "_registered_with_atexit", False))}


def _timer(_: Any) -> Reading:
    return {name: "runs" for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF") if signal.getitimer(getattr(signal, name))[0]}


def _modules_as_text(key: Any, old: Any, new: Any) -> bool:
    """Importing is no change of state; a module that was put there by hand is."""
    del key
    return old is ABSENT and raw_dict(new).get("__spec__") is not None


def _restore_decimal(_: Any, values: Mapping[Any, Any]) -> None:
    context = decimal.getcontext()
    for name, value in values.items():
        setattr(context, name, dict(value) if name == "traps" else value)


def _decimal(_: Any) -> Reading:
    context = decimal.getcontext()  # without its flags, which any calculation sets
    names = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
    return {**{name: getattr(context, name) for name in names}, "traps": dict(context.traps)}


_KERNELS_OWN = ("kestrel_lab", "ipykernel", "tornado", "zmq", "jupyter_client")


def _tasks(_: Any) -> Reading:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return {}
    found = {}
    for task in tasks - {asyncio.current_task()}:
        code = getattr(task.get_coro(), "cr_code", None)
        if code is not None and not any(f"/{name}/" in code.co_filename for name in _KERNELS_OWN):
            found[task] = code.co_name
    return {task.get_name(): name for task, name in found.items()}


def _children(_: Any) -> Reading:
    alive = [one for one in sys.modules["multiprocessing.process"]._children if one.exitcode is None]
    return {f"{one.name} (process {one.pid})": "" for one in alive}


def _time_zone_back(_: Any, values: Mapping[Any, Any]) -> None:
    del values
    time.tzset()  # by TZ, which os.environ has put back before


# The random states of libraries, and their options.


def _numpy_random(_: Any) -> Reading:
    name, keys, position, has_gauss, gauss = sys.modules["numpy.random"].get_state()
    return {"": (name, keys.tobytes(), position, has_gauss, gauss)}


def _restore_numpy_random(_: Any, values: Mapping[Any, Any]) -> None:
    numpy = sys.modules["numpy"]
    name, keys, *rest = values[""]
    numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *rest))


def _restore_random(_: Any, values: Mapping[Any, Any]) -> None:
    version, words, gauss = values[""]
    if not isinstance(gauss, float | None):  # a preview's word, which random does not check
        raise ValueError("the state of a random generator ends with a number")
    random.setstate((version, words, gauss))


def _matplotlib(_: Any) -> Reading:
    params = sys.modules["matplotlib"].rcParams
    # Not by its own methods, which would choose a backend where none is chosen yet.
    return {key: list(value) if type(value) is list else value for key, value in dict.items(params) if key != "backend"}


def _backend(_: Any) -> Reading:
    name = dict.get(sys.modules["matplotlib"].rcParams, "backend")
    return {"": name.rpartition(".backend_")[2] if isinstance(name, str) else name}  # `inline` is also module://….backend_inline


def _pandas(_: Any) -> Reading:
    found, todo = dict[str, Any](), [("", object.__getattribute__(sys.modules["pandas"].options, "d"))]
    while todo:
        before, options = todo.pop()
        for name, value in options.items():
            if isinstance(value, dict):
                todo.append((f"{before}{name}.", value))
            else:
                found[before + name] = value
    return found


def _restore_pandas(_: Any, values: Mapping[Any, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of options that will go one day
        for key, value in values.items():
            sys.modules["pandas"].set_option(key, value)


def _restore_print_options(_: Any, values: Mapping[Any, Any]) -> None:
    sys.modules["numpy"].set_printoptions(**values)


def _restore_numpy_errors(_: Any, values: Mapping[Any, Any]) -> None:
    numpy = sys.modules["numpy"]
    if "call" in values:
        numpy.seterrcall(values["call"])
    numpy.seterr(**{name: value for name, value in values.items() if name != "call"})


def _widgets(_: Any) -> Reading:
    widgets = list(sys.modules["ipywidgets.widgets.widget"]._instances.values())
    shown = [one for one in widgets if not type(one).__module__.startswith(_KERNELS_OWN)][-_MOST_WIDGETS:]
    return {f"{type(one).__name__} {one.model_id[:8]}": value_fingerprint(one) for one in shown}


# IPython.


def _shell_settings(shell: Any) -> Reading:
    # By attribute: what nobody has asked for yet is not among the values of traitlets.
    found = {name: getattr(shell, name) for name in _configurable(cast("Any", type(shell)))}
    plain = {name: value for name, value in found.items() if isinstance(value, bool | int | float | str)}
    return {**plain, "custom_exceptions": shell.custom_exceptions, "CustomTB": shell.CustomTB}


def _restore_settings(shell: Any, values: Mapping[Any, Any]) -> None:
    for name, value in values.items():
        setattr(shell, name, value)


@cache
def _configurable(kind: Any) -> frozenset[str]:
    return frozenset(kind.class_trait_names(config=True))


def _transformers(shell: Any) -> Reading:
    lists = {name: getattr(shell, name) for name in ("input_transformers_post", "ast_transformers")}
    return {name: tuple(found) for name, found in lists.items()}


def _restore_lists(find: Callable[[Any, Any], list[Any]]) -> Callable[[Any, Mapping[Any, Any]], None]:
    def put_back(shell: Any, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            find(shell, key)[:] = () if value is ABSENT else value

    return put_back


def _restore_magics(shell: Any, values: Mapping[Any, Any]) -> None:
    for (kind, name), value in values.items():
        set_or_delete(shell.magics_manager.magics[kind], name, value)


def _formatters(shell: Any) -> Reading:
    found = {}
    for mime, formatter in shell.display_formatter.formatters.items():
        for (module, name), printer in formatter.deferred_printers.items():
            found[f"{mime} of {module}.{name}"] = printer
        # The first display of a value turns the name of its type into the type: under the same key it is no change.
        for kind, printer in formatter.type_printers.items():
            found[f"{mime} of {getattr(kind, '__module__', '')}.{getattr(kind, '__name__', kind)}"] = printer
    return found


PROBES: Final[tuple[Probe, ...]] = (
    Probe(
        name="os.environ",
        read=lambda _: dict(os.environ),
        restore=_each(lambda key, value: set_or_delete(os.environ, key, value)),
        secret=True,
    ),
    Probe(name="working folder", read=lambda _: {"": os.getcwd()}, restore=lambda _, values: os.chdir(values[""])),
    Probe(name="time zone", read=lambda _: {"": (*time.tzname, time.timezone)}, restore=_time_zone_back),
    Probe(name="umask", read=_umask, restore=lambda _, values: os.umask(values[""])),
    Probe(name="random state (random)", read=lambda _: {"": random.getstate()}, restore=_restore_random, words="moved on", adopted=True),
    Probe(
        name="random state (numpy)",
        library="numpy.random",
        read=_numpy_random,
        restore=_restore_numpy_random,
        words="moved on",
        adopted=True,
    ),
    Probe(name="sys.path", read=lambda _: {"": tuple(sys.path)}, restore=_restore_lists(lambda _, key: sys.path)),
    Probe(name="sys.argv", read=lambda _: {"": tuple(sys.argv)}, restore=_restore_lists(lambda _, key: sys.argv)),
    Probe(name="sys.meta_path", read=lambda _: {"": tuple(sys.meta_path)}, restore=_restore_lists(lambda _, key: sys.meta_path)),
    Probe(name="sys.path_hooks", read=lambda _: {"": tuple(sys.path_hooks)}, restore=_restore_lists(lambda _, key: sys.path_hooks)),
    Probe(
        name="sys.modules",
        read=lambda _: dict(sys.modules),
        restore=_each(lambda key, value: set_or_delete(sys.modules, key, value)),
        ignore=_modules_as_text,
    ),
    Probe(name="warnings.filters", read=lambda _: {"": tuple(warnings.filters)}, restore=_restore_filters),
    Probe(name="logging", read=_loggers, restore=_each(_restore_logger)),
    Probe(
        name="Python settings",
        read=lambda _: {name: read() for name, (read, _) in _settings().items()},
        restore=_each(lambda key, value: _settings()[key][1](value)),
    ),
    Probe(name="registries of Python", read=_registries, restore=_each(_restore_registry)),
    Probe(
        name="trace and profile functions",
        read=lambda _: {
            "trace": sys.gettrace(),
            "profile": sys.getprofile(),
            "trace of threads": threading.gettrace(),
            "profile of threads": threading.getprofile(),
        },
        lost="they belong to a thread",
    ),
    Probe(
        name="locale",
        read=lambda _: {"": locale.setlocale(locale.LC_ALL)},
        restore=lambda _, values: locale.setlocale(locale.LC_ALL, values[""]),
    ),
    Probe(name="decimal context", read=_decimal, restore=_restore_decimal),
    Probe(
        name="resource limits",
        read=lambda _: {name: resource.getrlimit(number) for name, number in _LIMITS.items()},
        restore=_each(lambda key, value: resource.setrlimit(_LIMITS[key], value)),
    ),
    Probe(name="priority", read=lambda _: {"": os.getpriority(os.PRIO_PROCESS, 0)}, lost="a process cannot raise its own"),
    Probe(
        name="signal handlers",
        read=lambda _: {one.name: signal.getsignal(one) for one in signal.Signals},
        restore=_each(lambda key, value: signal.signal(signal.Signals[key], value)),
    ),
    Probe(
        name="signal timers",
        read=_timer,
        restore=_each(lambda key, value: signal.setitimer(getattr(signal, key), 0) if value is ABSENT else None),
    ),
    Probe(name="functions to run at exit", read=_at_exit, lost="Python does not give its list of them"),
    Probe(name="asyncio tasks", read=_tasks, lost="a task that was begun goes on"),
    Probe(name="child processes", library="multiprocessing.process", read=_children, lost="a process that was started goes on"),
    Probe(
        name="numpy print options",
        library="numpy",
        read=lambda _: sys.modules["numpy"].get_printoptions(),
        restore=_restore_print_options,
    ),
    Probe(
        name="numpy error handling",
        library="numpy",
        read=lambda _: {**sys.modules["numpy"].geterr(), "call": sys.modules["numpy"].geterrcall()},
        restore=_restore_numpy_errors,
    ),
    Probe(
        name="options of matplotlib",
        library="matplotlib",
        read=_matplotlib,
        restore=_each(lambda key, value: dict.__setitem__(sys.modules["matplotlib"].rcParams, key, value)),
    ),
    Probe(
        name="backend of matplotlib",
        library="matplotlib",
        read=_backend,
        lost="changing it closes figures",
        ignore=lambda key, old, new: not isinstance(old, str),  # the first figure chooses one
    ),
    Probe(name="options of pandas", library="pandas", read=_pandas, restore=_restore_pandas),
    Probe(
        name="accessors of pandas",
        library="pandas",
        read=lambda _: {f"{name}.{one}": "" for name in ("DataFrame", "Series") for one in getattr(sys.modules["pandas"], name)._accessors},
        lost="pandas keeps them",
    ),
    Probe(name="widgets", library="ipywidgets.widgets.widget", read=_widgets, lost="the page holds them"),
    Probe(
        name="IPython events",
        read=lambda shell: {name: tuple(found) for name, found in shell.events.callbacks.items()},
        restore=_restore_lists(lambda shell, key: shell.events.callbacks[key]),
    ),
    Probe(
        name="IPython magics",
        read=lambda shell: {(kind, name): found for kind, those in shell.magics_manager.magics.items() for name, found in those.items()},
        restore=_restore_magics,
        ignore=lambda key, old, new: type(old).__name__ == "LazyMagic",  # it becomes the magic that it stands for when it is used
    ),
    Probe(name="IPython transformers", read=_transformers, restore=_restore_lists(getattr)),
    Probe(
        name="IPython settings",
        read=_shell_settings,
        restore=_restore_settings,
    ),
    Probe(
        name="IPython extensions", read=lambda shell: dict.fromkeys(shell.extension_manager.loaded, ""), lost="an extension is not unloaded"
    ),
    Probe(name="IPython display of types", read=_formatters, lost="it is set by type"),
)


@cache
def _by_name() -> dict[str, Probe]:
    return {probe.name: probe for probe in PROBES}


def probe_of(name: str) -> Probe:
    """Return the probe of that name; raises `KeyError` where there is none."""
    return _by_name()[name]


def read_all(shell: Any, probes: Iterable[Probe] = PROBES) -> dict[str, Reading]:
    """Return all readings, by the name of the probe."""
    return {probe.name: probe.reading(shell) for probe in probes}
