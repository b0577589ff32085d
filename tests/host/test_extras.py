"""What is not installed says which extra it needs, in one sentence, wherever it is met."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from result_pages import page_index
from waits import PATIENCE_S

from kestrel_lab.core.errors import MissingPackage, UsageError
from kestrel_lab.host.extras import missing_package

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("evals", "mcp", "notebook", "retrieval", "server")

HIDE = """
import importlib.machinery, sys
hidden = set(sys.argv.pop(1).split(","))
usual = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name in hidden else usual(name, path, target)
)
"""
"""Hides packages from a program before it imports anything, as if they were not installed."""


def packages(extra: str) -> set[str]:
    """The packages of an extra, as `pyproject.toml` names them."""
    return {re.split(r"[<>=\[]", line)[0] for line in PROJECT["optional-dependencies"][extra]}


def optional_imports() -> Iterator[tuple[str, str]]:
    """Each import of a package that only an extra brings: where it is, and the name."""
    base = {re.split(r"[<>=\[]", line)[0] for line in PROJECT["dependencies"]}
    optional = set().union(*map(packages, EXTRAS)) - base
    owners = packages_distributions()
    for file in sorted((ROOT / "kestrel_lab").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            found = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom) and not node.level
                else []
            )
            for name in {one.partition(".")[0] for one in found}:
                if optional & {owner.lower() for owner in owners.get(name, ())} or name == "mcp_types":
                    yield module, name


def run_hidden(hidden: set[str], program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that finds none of the hidden modules."""
    command = [sys.executable, "-c", HIDE + program, ",".join(sorted(hidden))]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False, timeout=PATIENCE_S)


def test_every_optional_import_says_what_to_install(tmp_path: Path) -> None:
    """Whichever module imports it, the error is a `UsageError` that names an extra, and no bare
    `ModuleNotFoundError`.
    """
    imports = sorted(set(optional_imports()))
    assert {name for _, name in imports} >= {"pandas", "numpy", "matplotlib", "mcp", "nbformat", "starlette"}
    program = f"""
import kestrel_lab
from kestrel_lab.core.errors import MissingPackage
for module, name in {imports!r}:
    try:
        exec("import " + name, {{"__name__": module}})
        print("found", module, name)
    except MissingPackage as error:
        assert "pip install 'kestrel-lab[" in str(error), error
print("all")
"""
    done = run_hidden({name for _, name in imports}, program, tmp_path)
    assert (done.stdout, done.stderr) == ("all\n", "")


def test_other_code_is_not_told(tmp_path: Path) -> None:
    """A program's own import fails as ever, and a library that asks whether a module is there gets `None`."""
    program = """
import kestrel_lab, importlib.util
print(importlib.util.find_spec("pandas"))
try:
    import pandas
except ModuleNotFoundError as error:
    print(type(error).__name__, error)
"""
    done = run_hidden({"pandas"}, program, tmp_path)
    assert done.stdout == "None\nModuleNotFoundError No module named 'pandas'\n"


@pytest.mark.parametrize(
    ("hidden", "words", "extra"),
    [
        ({"uvicorn", "starlette"}, ["serve", "--port", "0"], "server"),
        ({"nbformat", "nbclient"}, ["notebook", "run", "a.ipynb"], "notebook"),
        ({"pandas"}, ["eval", "run", "suite.yaml", "--csv", "a.csv"], "evals"),
    ],
)
def test_a_command_says_which_extra_it_needs(
    tmp_path: Path, hidden: set[str], words: list[str], extra: str
) -> None:
    """In one sentence, without a traceback, with the exit code of a mistake."""
    (tmp_path / "a.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    (tmp_path / "script.yaml").write_text('rules: [{when: ".", turns: [done]}]')
    (tmp_path / "suite.yaml").write_text(SUITE)
    program = f"""
import sys; sys.argv[1:] = {words!r}
from kestrel_lab.cli.overview import main
main()
"""
    done = run_hidden(hidden, program, tmp_path)
    assert done.returncode, done
    assert f"pip install 'kestrel-lab[{extra}]'" in re.sub(r"\s+", " ", done.stderr), done
    assert "Traceback" not in done.stderr


SUITE = """
name: smoke
epochs: 2
configs: [{name: script, model: "scripted:script.yaml"}]
gates: [{success_rate: {at_least: 0.2}}]
scenarios: [{id: say, goal: say it, checks: [{answer_contains: [done]}]}]
"""


def test_suites_and_gates_need_no_extra(tmp_path: Path) -> None:
    """Without any of them a suite runs, its gates decide and its report is written, plots included."""
    (tmp_path / "script.yaml").write_text('rules: [{when: ".", turns: [done]}]')
    (tmp_path / "suite.yaml").write_text(SUITE)
    program = """
import sys; sys.argv[1:] = ["eval", "run", "suite.yaml", "--report", "report.html"]
from kestrel_lab.cli.overview import main
main()
"""
    done = run_hidden({name for _, name in optional_imports()}, program, tmp_path)
    assert done.returncode == 0, done
    assert page_index(tmp_path / "report.html")["plots"][0]["rows"][0]["text"] == "100 %"


def test_a_data_frame_and_a_definition_say_so_in_python(tmp_path: Path) -> None:
    """An object's table needs pandas, the definition of a name its grammar; code is found by its words all the
    same.
    """
    (tmp_path / "a.py").write_text("def first():\n    return 1\n")
    program = """
from pathlib import Path
from kestrel_lab import Lab, UsageError
from kestrel_lab.language.definitions import definitions_in
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.views.dataframes import unit_frame
assert definitions_in("a.py", Path("a.py").read_text()) == ()
try:
    unit_frame({})
except UsageError as error:
    print(error)
"""
    done = run_hidden({"pandas", "tree_sitter_python"}, program, tmp_path)
    assert done.stdout == "this needs the package pandas: pip install 'kestrel-lab[evals]'\n", done


def test_a_requirement_of_all_installations_is_named_by_itself() -> None:
    """Somebody installed without requirements; what this package does not list at all is named too."""
    error = missing_package("yaml")
    assert (
        str(error) == "the package pyyaml is not installed: pip install pyyaml (or pip install kestrel-lab)"
    )
    assert isinstance(error, MissingPackage | UsageError) and error.name == "yaml"
    assert str(missing_package("nothing")) == "the package nothing is not installed: pip install nothing"


def test_all_has_every_other_extra() -> None:
    """But for `minilm`, whose onnxruntime is large."""
    (line,) = PROJECT["optional-dependencies"]["all"]
    inside = set(line.partition("[")[2].rstrip("]").split(","))
    assert inside == set(PROJECT["optional-dependencies"]) - {"all", "minilm"}
