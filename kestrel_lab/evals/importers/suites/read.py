"""`kestrel eval import-suite`: whose suite a file or folder is, and where it is written."""

from __future__ import annotations

from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.yaml.reader import read_yaml
from kestrel_lab.evals.importers.json_fields import UNREADABLE
from kestrel_lab.evals.importers.other_tools import name_other_tool
from kestrel_lab.evals.importers.suites.draft import ImportedSuite, SuiteDraft, slug
from kestrel_lab.evals.importers.suites.harbor import find_tasks, read_harbor
from kestrel_lab.evals.importers.suites.inspect_tasks import read_inspect
from kestrel_lab.evals.importers.suites.promptfoo import is_promptfoo, read_promptfoo
from kestrel_lab.evals.importers.suites.pydantic_evals import read_pydantic_evals


def import_suite(
    source: str | Path, *, out: str | Path | None = None, task: str = "", data: str | Path | None = None
) -> ImportedSuite:
    """Write a suite of another tool as one of ours, and a list of what was not carried over beside it.

    The source is a configuration of promptfoo, a dataset of pydantic-evals (YAML, JSON), a task file of
    Inspect (`.py`), or a task folder of Harbor, or a folder with one of them. Nothing of it is run. `out` is
    the new suite file, by default `NAME.suite.yaml` in the current folder; `task` one of several tasks of a
    file of Inspect, `data` a table with the rows of its dataset. Raises `UsageError` where nothing can be
    carried over, and for files that are there already; then nothing is written.
    """
    path = Path(source)
    try:
        draft = _read(path, task, None if data is None else Path(data))
    except UsageError:
        raise
    except UNREADABLE as error:  # a form that no file of theirs had that was seen here
        raise UsageError(
            f"{path} cannot be read ({type(error).__name__}: {one_line(str(error), 100)}): nothing is written"
        ) from error
    target = Path(out) if out is not None else Path(f"{slug(str(draft.suite['name']))}.suite.yaml")
    if target.suffix not in (".yaml", ".yml"):
        raise UsageError(f"a suite file ends in .yaml: write --out {target.with_suffix('.yaml')}")
    return draft.write(target)


def _read(path: Path, task: str, data: Path | None) -> SuiteDraft:
    if not path.exists():
        raise UsageError(f"there is no {path}")
    if path.is_dir():
        found = next(
            (
                path / name
                for name in ("promptfooconfig.yaml", "promptfooconfig.yml", "promptfooconfig.json")
                if (path / name).is_file()
            ),
            None,
        )
        if found is None or find_tasks(path):
            return read_harbor(path)
        path = found
    if (task or data is not None) and path.suffix != ".py":
        raise UsageError("--task and --data are for task files of Inspect, which end in .py")
    if path.suffix == ".py":
        return read_inspect(path, task=task, data=data)
    if path.name == "task.toml":
        return read_harbor(path.parent)
    if path.suffix.lower() not in (".yaml", ".yml", ".json"):
        other = name_other_tool(path)
        raise UsageError(
            f"{path.name} is no suite that can be read{f', but {other}' if other else ''}: promptfoo and "
            "pydantic-evals (.yaml, .json), Inspect (.py), Harbor (a folder with task.toml)"
        )
    value = read_yaml(path, aliases=True).value
    if isinstance(value, dict) and "cases" in value:
        return read_pydantic_evals(path)
    if not is_promptfoo(value) and (other := name_other_tool(path, value)):
        raise UsageError(f"{path.name} is no suite that can be read, but {other}")
    return read_promptfoo(path)
