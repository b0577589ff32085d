"""JSON Schemas of all files that people write, those of suites and scenarios among them, and of the control
protocol.
"""

from __future__ import annotations

from typing import Any, Final

from kestrel_lab.checks.parse import CHECK_SCHEMA, checks_schema
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.suites.models import ScenarioFile, SuiteFile
from kestrel_lab.runtime.workflows.models import SCHEMAS, json_schema_text
from kestrel_lab.server.protocol import ControlSchema

_KINDS: Final[dict[str, Any]] = {
    **SCHEMAS,
    "suite": SuiteFile,
    "scenario": ScenarioFile,
    "control": ControlSchema,
}
NAMES: Final = tuple(_KINDS)


def schema_text(name: str) -> str:
    """Return the JSON Schema of a kind of file, as indented JSON; raises `UsageError` for an unknown name."""
    if name not in _KINDS:
        raise UsageError(f"there is no schema {name!r}; {did_you_mean(name, NAMES)}")
    return json_schema_text(name, _KINDS[name], CHECK_SCHEMA, checks_schema())
