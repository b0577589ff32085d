"""Probes of libraries: random states and options of numpy, pandas, matplotlib, settings of IPython,
widgets.
"""

from __future__ import annotations
import __future__

import functools
import operator
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, cast

from kestrel_lab.tools.kernel.state.annotations import annotations_of, restore_annotations
from kestrel_lab.tools.kernel.state.fingerprints import value_fingerprint
from kestrel_lab.tools.kernel.state.probes import Probe, Reading, each, each_list, set_or_delete

_MOST_WIDGETS = 200

# The random states of libraries, and their options.


def _numpy_random(_: Any) -> Reading:
    name, keys, position, has_gauss, gauss = sys.modules["numpy.random"].get_state()
    return {"": (name, keys.tobytes(), position, has_gauss, gauss)}


def _restore_numpy_random(_: Any, values: Mapping[Any, Any]) -> None:
    numpy = sys.modules["numpy"]
    name, keys, *rest = values[""]
    numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *rest))


def _matplotlib(_: Any) -> Reading:
    params = sys.modules["matplotlib"].rcParams
    # Not by its own methods, which would choose a backend where none is chosen yet.
    return {
        key: list(value) if type(value) is list else value
        for key, value in dict.items(params)
        if key != "backend"
    }


def _backend(_: Any) -> Reading:
    name = dict.get(sys.modules["matplotlib"].rcParams, "backend")
    # `inline` is also module://….backend_inline.
    return {"": name.rpartition(".backend_")[2] if isinstance(name, str) else name}


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
        # Of options that will go one day.
        warnings.simplefilter("ignore")
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
    shown = [one for one in widgets if not type(one).__module__.startswith("kestrel_lab.")][-_MOST_WIDGETS:]
    return {f"{type(one).__name__} {one.model_id[:8]}": value_fingerprint(one) for one in shown}


# IPython.


def _shell_settings(shell: Any) -> Reading:
    # By attribute: what nobody has asked for yet is not among the values of traitlets.
    found = {name: getattr(shell, name) for name in _configurable(cast("Any", type(shell)))}
    return {
        **{name: value for name, value in found.items() if isinstance(value, bool | int | float | str)},
        "custom_exceptions": shell.custom_exceptions,
        "CustomTB": shell.CustomTB,
    }


def _restore_settings(shell: Any, values: Mapping[Any, Any]) -> None:
    for name, value in values.items():
        setattr(shell, name, value)


@cache
def _configurable(kind: Any) -> frozenset[str]:
    return frozenset(kind.class_trait_names(config=True))


_FEATURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


def _restore_features(shell: Any, values: Mapping[Any, Any]) -> None:
    shell.compile.flags = shell.compile.flags & ~_FEATURES | int(values[""]) & _FEATURES


def _transformers(shell: Any) -> Reading:
    lists = {name: getattr(shell, name) for name in ("input_transformers_post", "ast_transformers")}
    return {name: tuple(found) for name, found in lists.items()}


def _restore_magics(shell: Any, values: Mapping[Any, Any]) -> None:
    for (kind, name), value in values.items():
        set_or_delete(shell.magics_manager.magics[kind], name, value)


def _formatters(shell: Any) -> Reading:
    found = {}
    for mime, formatter in shell.display_formatter.formatters.items():
        for (module, name), printer in formatter.deferred_printers.items():
            found[f"{mime} of {module}.{name}"] = printer
        # The first display of a value turns the name of its type into the type: under the same key it is no
        # change.
        for kind, printer in formatter.type_printers.items():
            found[f"{mime} of {getattr(kind, '__module__', '')}.{getattr(kind, '__name__', kind)}"] = printer
    return found


LIBRARIES: Final[tuple[Probe, ...]] = (
    Probe(
        name="random state (numpy)",
        library="numpy.random",
        read=_numpy_random,
        restore=_restore_numpy_random,
        words="moved on",
        adopted=True,
    ),
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
        restore=each(lambda key, value: dict.__setitem__(sys.modules["matplotlib"].rcParams, key, value)),
    ),
    Probe(
        name="backend of matplotlib",
        library="matplotlib",
        read=_backend,
        lost="changing it closes figures",
        # The first figure chooses one.
        ignore=lambda key, old, new: not isinstance(old, str),
    ),
    Probe(name="options of pandas", library="pandas", read=_pandas, restore=_restore_pandas),
    Probe(
        name="accessors of pandas",
        library="pandas",
        read=lambda _: {
            f"{name}.{one}": ""
            for name in ("DataFrame", "Series")
            for one in getattr(sys.modules["pandas"], name)._accessors
        },
        lost="pandas keeps them",
    ),
    Probe(name="widgets", library="ipywidgets.widgets.widget", read=_widgets, lost="the page holds them"),
    Probe(
        name="annotations",
        read=annotations_of,
        restore=restore_annotations,
        # The names of the variables say enough.
        secret=True,
        adopted=True,
    ),
    Probe(
        name="features of __future__",
        read=lambda shell: {"": shell.compile.flags & _FEATURES},
        restore=_restore_features,
        words="imported",
        adopted=True,
    ),
    Probe(
        name="IPython events",
        read=lambda shell: {name: tuple(found) for name, found in shell.events.callbacks.items()},
        restore=each_list(lambda shell, key: shell.events.callbacks[key]),
    ),
    Probe(
        name="IPython magics",
        read=lambda shell: {
            (kind, name): found
            for kind, those in shell.magics_manager.magics.items()
            for name, found in those.items()
        },
        restore=_restore_magics,
        ignore=lambda key, old, new: (
            type(old).__name__ == "LazyMagic"
            # It becomes the magic that it names when it is used.
        ),
    ),
    Probe(name="IPython transformers", read=_transformers, restore=each_list(getattr)),
    Probe(
        name="IPython settings",
        read=_shell_settings,
        restore=_restore_settings,
    ),
    Probe(
        name="IPython extensions",
        read=lambda shell: dict.fromkeys(shell.extension_manager.loaded, ""),
        lost="an extension is not unloaded",
    ),
    Probe(name="IPython display of types", read=_formatters, lost="it is set by type"),
)
