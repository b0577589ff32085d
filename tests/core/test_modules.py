"""What is imported on our behalf never comes from the folder an agent works in."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waits import PATIENCE_S

PLANTED = ("pandas", "yaml", "pyarrow", "difflib", "numpy", "six", "jsonschema")
"""What we import late, what that imports, what it would import if it were there, and a module of Python's
own.
"""

_OURS = """
from kestrel_lab.core.yaml.reader import parse_yaml
from kestrel_lab.views.dataframes import unit_frame
assert parse_yaml("a: 1", "x").value == {"a": 1}
assert len(unit_frame([{"a": 1}], columns=["a"], units={})) == 1
from kestrel_lab.core.errors import did_you_mean
did_you_mean("ab", ["abc"])
"""
_UNGUARDED = (
    "import sys, kestrel_lab\nfor i, f in enumerate(sys.meta_path):\n    if type(f).__name__ == "
    "'Guard': sys.meta_path[i] = f._usual\n"
)


def plant(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text("open('ran', 'a').write(__name__ + ' ')\nVALUE = 1\n")
    return folder


def run(folder: Path, code: str, *, how: str = "kernel") -> str:
    """Run `code` with `folder` in front of the path as kernels, scripts, `-m` and variables put it; what was
    run of it.
    """
    argv, env = [sys.executable, "-c", f"import kestrel_lab\n{code}"], {"PATH": "/usr/bin:/bin"}
    if how == "script":
        (folder / "main.py").write_text(
            f"from kestrel_lab.host.programs import exclude_folder\nexclude_folder({str(folder)!r})\n{code}"
        )
        argv = [sys.executable, "main.py"]
    elif how == "variable":
        env["PYTHONPATH"] = str(folder)
    elif how == "-m":
        (folder / "main.py").write_text(code)
        argv = [sys.executable, "-m", "main"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "ran").read_text() if (folder / "ran").exists() else ""


@pytest.mark.parametrize("how", ["kernel", "script", "-m", "variable"])
def test_planted_modules_are_not_imported(tmp_path: Path, how: str) -> None:
    """Neither what we import late nor what its libraries import, Python's own modules and missing extras
    included.
    """
    assert run(plant(tmp_path / "work", *PLANTED), f"import kestrel_lab\n{_OURS}", how=how) == ""


def test_without_the_guard_they_are(tmp_path: Path) -> None:
    """The mutant: the same program with the usual finder runs what was planted."""
    folder = plant(tmp_path / "work", "yaml")
    code = f"{_UNGUARDED}try:\n    import kestrel_lab.core.yaml.reader\nexcept ImportError:\n    pass\n"
    assert "yaml" in run(folder, code)


def test_the_users_own_imports_are_as_they_were(tmp_path: Path) -> None:
    """A module in the current folder is the user's to import, by name or by a function, from cells and from
    tools that a run calls.
    """
    folder = plant(tmp_path / "work", "helper", "pyarrow", "tabulate", "late")
    code = f"""
import asyncio
import importlib
from kestrel_lab import Lab, tool
from kestrel_lab.testing import ScriptedModel
import helper
importlib.import_module("pyarrow")

@tool
def look() -> str:
    "Look."
    import tabulate
    return str(importlib.import_module("late").VALUE)

lab = Lab({str(tmp_path / "home")!r}, model=ScriptedModel([[("look", {{}})], "done"]), tools=[look], \
approve="auto")
assert asyncio.run(lab.run("look", workspace={str(folder)!r})).answer == "done"
"""
    assert run(folder, code, how="script").split() == ["helper", "pyarrow", "tabulate", "late"]


def test_it_is_told_why_a_module_is_not_taken(tmp_path: Path) -> None:
    """Only there: an import says where it found the module and what to do, a question whether it is there is
    answered with no.
    """
    folder = plant(tmp_path / "work", "redis")
    code = """
import json, sys
from kestrel_lab.models.local import find_spec
exec(compile('''
import importlib.util
there = importlib.util.find_spec("plainly_planted") is not None
try:
    import plainly_planted
    said = ""
except ModuleNotFoundError as error:
    said = str(error)
''', "x", "exec"), {"__name__": "kestrel_lab.late", "__file__": "late.py"}, found := {})
print(json.dumps({"there": found["there"], "said": found["said"]}))
"""
    plant(folder, "plainly_planted")
    done = subprocess.run(
        [sys.executable, "-c", f"import kestrel_lab\n{code}"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    said = json.loads(done.stdout)
    assert not said["there"]
    assert "plainly_planted.py" in said["said"]
    assert "install it, or start elsewhere" in said["said"]


def test_an_environment_in_the_workspace_is_no_plant(tmp_path: Path) -> None:
    """Installed packages are imported wherever the environment lies: `.venv` in the project is where most
    have it.
    """
    folder = tmp_path / "work"
    installed = folder / ".venv" / "lib" / "python3" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "lately.py").write_text("VALUE = 2\n")
    code = f"""
import sys
from kestrel_lab.host.programs import exclude_folder
exclude_folder({str(folder)!r})
sys.path.append({str(installed)!r})
exec("import lately", {{"__name__": "kestrel_lab.late"}})
"""
    assert run(folder, code) == ""


def test_the_grammars_of_jsonschema_are_compiled_when_they_are_used(tmp_path: Path) -> None:
    """The library checks the format `iri` as it does by itself, and a module that has been loaded late is
    whole for everybody.
    """
    pytest.importorskip("rfc3987_syntax", reason="JupyterLab, which brings it, is not installed")
    code = """
import sys, kestrel_lab
from jsonschema import FormatChecker
before, valid = "lark" in sys.modules, [FormatChecker().conforms(one, "iri") for one in ("http://a/\u00fc", \
"no iri", "http://a/\u00fc")]
from rfc3987_syntax import *
print(before, valid, "lark" in sys.modules, is_valid_syntax_iri("http://a"), \
sys.modules["rfc3987_syntax"].parse.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.strip() == "False [True, False, True] True True parse", done.stderr
