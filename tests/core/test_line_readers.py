"""Claims about lines: data of others is never cut where `str.splitlines` would."""

import re
from pathlib import Path
from typing import Final

import kestrel_lab

PACKAGE: Final = Path(kestrel_lab.__file__).parent
_USE: Final = re.compile(r"\.splitlines\(")
PROSE: Final = "prose of a model or of a person, whose parts are only looked at or shown"
OWN: Final = "text that this package or Python wrote: messages, sources, docstrings, tracebacks"
SYSTEM: Final = "files of the system, which have plain lines"
OFFERED: Final = "a function of that name, which suites may use"
IMPORTED: Final = "a file of another tool, whose reader is replaced beside this"
ALLOWED: Final = {
    "answers/contracts.py": PROSE,
    "answers/next_actions.py": PROSE,
    "answers/output_types.py": OWN,
    "cli/terminal.py": PROSE,
    "core/citations.py": PROSE,
    "core/yaml/writer.py": OWN,
    "evals/blame/blame.py": PROSE,
    "evals/importers": IMPORTED,
    "evals/notebooks/run.py": PROSE,
    "evals/suites/row_filters.py": OFFERED,
    "evals/suites/scenario_from_run.py": PROSE,
    "host/filesystem.py": SYSTEM,
    "mcp/approvals.py": OWN,
    "mcp/registry/install.py": OWN,
    "memory/deduplicate.py": OWN,
    "models/cassettes/recorder.py": PROSE,
    "pytest_plugin.py": OWN,
    "retrieval/indexing/chunks.py": PROSE,
    "runtime/lifecycle.py": OWN,
    "runtime/memory/learn.py": PROSE,
    "tools/decorator.py": OWN,
    "tools/kernel": OWN,
    "tools/sandbox/autorun_list.py": OWN,
    "tools/sandbox/canary.py": OWN,
    "verification/quotes.py": PROSE,
    "views/formatting.py": PROSE,
}
"""Where it is used, and of what."""


def test_lines_of_others_end_with_line_ends() -> None:
    """`str.splitlines` cuts at U+2028, which stands within lines of JSON and of files: each file that uses it
    says of what, and data of others is split by `core.text_files.split_lines`.
    """
    uses = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if _USE.search(path.read_text("utf-8"))
    }
    unnamed = {use for use in uses if not any(use.startswith(place) for place in ALLOWED)}
    assert unnamed == set()
    gone = {place for place in ALLOWED if not any(use.startswith(place) for use in uses)}
    assert gone <= {"evals/importers"}
