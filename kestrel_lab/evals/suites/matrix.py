"""Matrix of configurations: every model with every strategy with every temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.sanitize import one_line

AXES: Final = ("model", "runner", "routes", "plan", "temperature", "seed", "params", "tools", "limits", "inputs", "guidance")
MOST: Final = 200
"""The most configurations of a matrix."""


def expanded(matrix: Mapping[str, Sequence[Any] | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one configuration, as a suite file writes it, for each combination of the values of every axis.

    An axis is a key of a configuration, with a list of values or a mapping that gives each value a name. A configuration is called
    after the values in which it differs from others. Raises `UsageError` for an axis that does not exist or has no values.
    """
    for axis, values in matrix.items():
        if axis not in AXES:
            raise UsageError(f"a matrix has no axis {axis!r}; {nearest(axis, AXES)}")
        if not values:
            raise UsageError(f"the axis {axis!r} has no values")
    named = {
        axis: [*(values.items() if isinstance(values, Mapping) else ((_word(value), value) for value in values))]
        for axis, values in matrix.items()
    }
    combinations = [*product(*named.values())]
    if len(combinations) > MOST:
        raise UsageError(f"the matrix makes {len(combinations)} configurations, more than {MOST}: leave out values")
    differing = [place for place, values in enumerate(named.values()) if len(values) > 1] or [0]
    return [
        {
            "name": " ".join(str(chosen[place][0]) for place in differing),
            **{axis: value for axis, (_, value) in zip(named, chosen, strict=True)},
        }
        for chosen in combinations
    ]


def _word(value: Any) -> str:
    """A value as part of a name."""
    if isinstance(value, str):
        return value or "none"
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ",".join(f"{key}={one_line(str(inner), 30)}" for key, inner in value.items())
    return str(value)
