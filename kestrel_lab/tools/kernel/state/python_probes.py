"""Probes of Python and its process: the environment, random states, modules, warnings, logging, signals,
threads.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kestrel_lab.tools.kernel.state.boundary import raw_dict, signal_handler
from kestrel_lab.tools.kernel.state.probes import ABSENT, Probe, Reading, each, each_list, set_or_delete


def _umask(_: Any) -> Reading:
    # os.umask could only be read by setting it
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {"": next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask"))}


def _settings() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
        "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
        "digits of an int": (sys.get_int_max_str_digits, sys.set_int_max_str_digits),
        "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        "gc threshold": (gc.get_threshold, lambda values: gc.set_threshold(*values)),
        "gc debugging": (gc.get_debug, gc.set_debug),
        "tracking of coroutines": (
            sys.get_coroutine_origin_tracking_depth,
            sys.set_coroutine_origin_tracking_depth,
        ),
        "hooks of asynchronous generators": (
            sys.get_asyncgen_hooks,
            lambda hooks: sys.set_asyncgen_hooks(*hooks),
        ),
        "flags of dlopen": (sys.getdlopenflags, sys.setdlopenflags),
        "stack size of threads": (threading.stack_size, threading.stack_size),
        "tracemalloc": (tracemalloc.is_tracing, lambda on: tracemalloc.start() if on else tracemalloc.stop()),
        "faulthandler": (
            faulthandler.is_enabled,
            lambda on: faulthandler.enable() if on else faulthandler.disable(),
        ),
    }
    if (csv := sys.modules.get("csv")) is not None:
        found["size of a field of csv"] = (csv.field_size_limit, csv.field_size_limit)
    if (socket := sys.modules.get("socket")) is not None:
        found["timeout of sockets"] = (socket.getdefaulttimeout, socket.setdefaulttimeout)
    return found


def _restore_filters(_: Any, values: Mapping[Any, Any]) -> None:
    # the one public way to have Python forget which warnings were shown under the old filters
    warnings.resetwarnings()
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

    loggers = [
        one for one in list(logging.root.manager.loggerDict.values()) if isinstance(one, logging.Logger)
    ]
    # A logger as it was made says nothing: libraries make one when they are first used.
    found: dict[str, Any] = {
        one.name: now for one in loggers if (now := state(one)) != (0, False, True, (), ())
    }
    return {**found, "root": state(logging.root), "disabled up to": logging.root.manager.disable}


def _restore_logger(name: str, value: Any) -> None:
    if name == "disabled up to":
        logging.disable(value)
        return
    logger = logging.root if name == "root" else logging.getLogger(name)
    level, logger.disabled, logger.propagate, handlers, filters = (
        (0, False, True, (), ()) if value is ABSENT else value
    )
    logger.setLevel(level)
    logger.handlers[:], logger.filters[:] = [handler for handler, _ in handlers], filters
    for handler, of_handler in handlers:
        handler.setLevel(of_handler)


_LIMITS = {name: number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}


def _at_exit(_: Any) -> Reading:
    # weakref registers a function of its own with the first finalizer of the process, which is no doing of
    # the code.
    return {
        "functions": atexit._ncallbacks() - bool(getattr(weakref.finalize, "_registered_with_atexit", False))
    }


def _timer(_: Any) -> Reading:
    return {
        name: "runs"
        for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
        if signal.getitimer(getattr(signal, name))[0]
    }


def _modules_as_text(key: Any, old: Any, new: Any) -> bool:
    """Importing is no change of state; a module that was put there by hand is."""
    del key
    return old is ABSENT and raw_dict(new).get("__spec__") is not None


def _restore_decimal(_: Any, values: Mapping[Any, Any]) -> None:
    context = decimal.getcontext()
    for name, value in values.items():
        setattr(context, name, dict(value) if name == "traps" else value)


def _decimal(_: Any) -> Reading:
    # Without its flags, which any calculation sets.
    context = decimal.getcontext()
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
    # By TZ, which os.environ has put back before.
    time.tzset()


def _restore_random(_: Any, values: Mapping[Any, Any]) -> None:
    version, words, gauss = values[""]
    # A preview's word, which random does not check.
    if not isinstance(gauss, float | None):
        raise ValueError("the state of a random generator ends with a number")
    random.setstate((version, words, gauss))


PYTHON: Final[tuple[Probe, ...]] = (
    Probe(
        name="os.environ",
        read=lambda _: dict(os.environ),
        restore=each(lambda key, value: set_or_delete(os.environ, key, value)),
        secret=True,
    ),
    Probe(
        name="working folder",
        read=lambda _: {"": os.getcwd()},
        restore=lambda _, values: os.chdir(values[""]),
    ),
    Probe(name="time zone", read=lambda _: {"": (*time.tzname, time.timezone)}, restore=_time_zone_back),
    Probe(name="umask", read=_umask, restore=lambda _, values: os.umask(values[""])),
    Probe(
        name="random state (random)",
        read=lambda _: {"": random.getstate()},
        restore=_restore_random,
        words="moved on",
        adopted=True,
    ),
    Probe(name="sys.path", read=lambda _: {"": tuple(sys.path)}, restore=each_list(lambda _, key: sys.path)),
    Probe(name="sys.argv", read=lambda _: {"": tuple(sys.argv)}, restore=each_list(lambda _, key: sys.argv)),
    Probe(
        name="sys.meta_path",
        read=lambda _: {"": tuple(sys.meta_path)},
        restore=each_list(lambda _, key: sys.meta_path),
    ),
    Probe(
        name="sys.path_hooks",
        read=lambda _: {"": tuple(sys.path_hooks)},
        restore=each_list(lambda _, key: sys.path_hooks),
    ),
    Probe(
        name="sys.modules",
        read=lambda _: dict(sys.modules),
        restore=each(lambda key, value: set_or_delete(sys.modules, key, value)),
        ignore=_modules_as_text,
    ),
    Probe(name="warnings.filters", read=lambda _: {"": tuple(warnings.filters)}, restore=_restore_filters),
    Probe(name="logging", read=_loggers, restore=each(_restore_logger)),
    Probe(
        name="Python settings",
        read=lambda _: {name: read() for name, (read, _) in _settings().items()},
        restore=each(lambda key, value: _settings()[key][1](value)),
    ),
    Probe(name="registries of Python", read=_registries, restore=each(_restore_registry)),
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
        restore=each(lambda key, value: resource.setrlimit(_LIMITS[key], value)),
    ),
    Probe(
        name="priority",
        read=lambda _: {"": os.getpriority(os.PRIO_PROCESS, 0)},
        lost="a process cannot raise its own",
    ),
    Probe(
        name="signal handlers",
        read=lambda _: {one.name: signal_handler(one) for one in signal.Signals},
        restore=each(lambda key, value: signal.signal(signal.Signals[key], value)),
    ),
    Probe(
        name="signal timers",
        read=_timer,
        restore=each(
            lambda key, value: signal.setitimer(getattr(signal, key), 0) if value is ABSENT else None
        ),
    ),
    Probe(name="functions to run at exit", read=_at_exit, lost="Python does not give its list of them"),
    Probe(name="asyncio tasks", read=_tasks, lost="a task that was begun goes on"),
    Probe(
        name="child processes",
        library="multiprocessing.process",
        read=_children,
        lost="a process that was started goes on",
    ),
)
