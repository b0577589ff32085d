"""Published suites by name: `bfcl:multi_turn_base?limit=20`,
`agentdojo:banking?attack=important_instructions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.benchmarks.agentdojo import load_agentdojo
from kestrel_lab.evals.benchmarks.bfcl import load_bfcl
from kestrel_lab.evals.suite import Suite

PUBLISHED: Final[Mapping[str, tuple[Callable[..., Suite], Mapping[str, Callable[[str], Any]]]]] = {
    "bfcl": (load_bfcl, {"limit": int}),
    "agentdojo": (
        load_agentdojo,
        {"limit": int, "attack": str, "target": str, "version": str, "containment": str},
    ),
}
"""What loads the suites of each benchmark, and the options it takes, with what reads them."""


def is_published(name: str) -> bool:
    """Return whether `name` means a published suite and no file."""
    return name.partition(":")[0] in PUBLISHED and ":" in name


def load_published(name: str) -> Suite:
    """Return the suite that `BENCHMARK:SUITE` or `BENCHMARK:SUITE?OPTION=VALUE&…` names, called
    `BENCHMARK:SUITE`.

    Raises `UsageError` for a benchmark, suite or option that there is not, and where the benchmark's package
    is not installed.
    """
    benchmark, _, rest = name.partition(":")
    if benchmark not in PUBLISHED:
        raise UsageError(f"there is no benchmark {benchmark!r}; {did_you_mean(benchmark, PUBLISHED)}")
    load, options = PUBLISHED[benchmark]
    suite, _, written = rest.partition("?")
    given: dict[str, Any] = {}
    for key, text in parse_qsl(written, keep_blank_values=True):
        if key not in options:
            raise UsageError(f"{name}: {benchmark} has no option {key!r}; {did_you_mean(key, options)}")
        try:
            given[key] = options[key](text)
        except ValueError as error:
            raise UsageError(f"{name}: {key} is a whole number, not {text!r}") from error
    return load(suite, **given)
