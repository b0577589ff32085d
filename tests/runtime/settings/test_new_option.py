"""A run option is declared in one place and used in another: a copy of the package gets one, as a newcomer would
add it, and everything that takes options has it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kestrel_lab

ROW = """
    tone: Annotated[
        str,
        Opt(
            "",
            "manner of the answer",
            read=text,
            weakens=_harmless,
            flag=Flag(metavar="MANNER"),
            client=str,
        ),
    ]
"""
"""The row of the table."""
CHANGES = {
    "runtime/options.py": (
        "class ConfigOptions(TypedDict, total=False):\n"
        '    """Options of labs and of runs that begin, which a suite\'s configuration may give to its trials."""\n',
        ROW,
    ),
    "runtime/start.py": (
        "    met = session_time(given.ports.now())\n",
        "    tone = options.get('tone', usual['tone'])\n"
        "    options = {**options, 'instructions': f'Tone: {tone}.'}\n",
    ),
}
"""All that changes: the row, and the use of the option. The text follows the line that is named."""

SCRIPT = """
import asyncio, inspect, json, subprocess, sys
from kestrel_lab import Lab
from kestrel_lab.core.errors import UnknownOption
from kestrel_lab.runtime.options import started_with
from kestrel_lab.server.protocol import Start
from kestrel_lab.testing import ScriptedModel

def heard(request):
    return request.messages[0].text.partition("Tone: ")[2].partition(".")[0]

found = {}
with Lab("home", ScriptedModel(heard), "auto", env={}) as lab:
    found["setting"] = lab.run_sync("go").answer
    found["source"] = lab.settings.items["tone"].source
    found["run"] = lab.run_sync("go", tone="of a run").answer
    found["macro and chat"] = [
        "tone" in inspect.signature(way).parameters for way in (lab.macros.run, lab.chat, lab.websearch)
    ]
    lab.configure("tone", "of config")
    found["configure"] = lab.run_sync("go").answer
    try:
        lab.run_sync("go", tune="x")
    except UnknownOption as error:
        found["misspelt"] = "did you mean 'tone'" in str(error)
    message = Start.model_validate({"type": "start", "goal": "go", "tone": "of a client"})
    found["protocol"] = lab.run_sync(message.goal, **message.options).answer
with Lab("home", ScriptedModel(heard), "auto", tone="of a lab", env={}) as lab:
    found["lab"] = lab.run_sync("go").answer
with Lab("home", ScriptedModel(heard), "auto", env={"KESTREL_TONE": "of a variable"}) as lab:
    found["variable"] = lab.run_sync("go").answer
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package that has one more option."""
    folder = tmp_path_factory.mktemp("copy")
    source = Path(kestrel_lab.__file__).parent
    shutil.copytree(source, folder / "kestrel_lab", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (line, more) in CHANGES.items():
        path = folder / "kestrel_lab" / name
        text = path.read_text(encoding="utf-8")
        assert text.count(line) == 1
        path.write_text(text.replace(line, line + more), encoding="utf-8")
    (folder / "kestrel.toml").write_text('tone = "of a file"\n')
    (folder / "script.yaml").write_text("rules: [{when: '', turns: [done]}]")
    return folder


def _run(folder: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_new_option_is_a_row_and_its_use(copied: Path) -> None:
    """Python, settings, variables and the control protocol take an option of which only the row in the table
    and the line that uses it were written.
    """
    assert len(CHANGES) <= 3
    assert json.loads(_run(copied, "-c", SCRIPT)) == {
        "setting": "of a file",
        "source": "kestrel.toml",
        "run": "of a run",
        "macro and chat": [True, True, True],
        "configure": "of config",
        "misspelt": True,
        "protocol": "of a client",
        "lab": "of a lab",
        "variable": "of a variable",
    }


SUITE = """\
name: toned
configs:
  - {name: plain, model: "scripted:script.yaml"}
  - {name: warm, model: "scripted:script.yaml", tone: of a configuration}
scenarios: [{id: go, goal: go, checks: [{answer_contains: done}]}]
"""
SUITE_SCRIPT = """
import json
from kestrel_lab import Lab
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.suite import Config
from kestrel_lab.evals.suites.json_schemas import schema_text
from kestrel_lab.evals.suites.loader import load_suite

suite = load_suite("toned.yaml")
found = {"python": suite.configs[1] == Config(name="warm", model="scripted:script.yaml", tone="of a configuration")}
found["outcome"] = ["tone" in config.definition() for config in suite.configs]
found["schema"] = json.loads(schema_text("suite"))["$defs"]["Config"]["anyOf"][1]["properties"]["tone"]
try:
    Config(name="x", tune="x")
except UsageError as error:
    found["misspelt"] = "did you mean 'tone'" in str(error)
with Lab("home", env={}) as lab:
    rows = lab.eval_sync(suite).rows
    runs = {row.config: row.run for row in rows}
    heard = {config: lab.get(run).events()[0].system.partition("Tone: ")[2].partition(".")[0] for config, run in runs.items()}
found["trials"] = heard
print(json.dumps(found))
"""


@pytest.mark.slow
def test_configurations_of_suites_have_a_new_option(copied: Path) -> None:
    """Suite files, Python and the JSON Schema take it, its trials get it, and results know it; a configuration
    that does not say it has the default, whatever the lab says.
    """
    (copied / "toned.yaml").write_text(SUITE)
    found = json.loads(_run(copied, "-c", SUITE_SCRIPT))
    assert found == {
        "python": True,
        "outcome": [False, True],
        "schema": {"default": "", "description": "manner of the answer", "type": "string"},
        "misspelt": True,
        "trials": {"plain": "", "warm": "of a configuration"},
    }


@pytest.mark.slow
def test_a_new_option_is_on_the_command_line(copied: Path) -> None:
    """`kestrel run` takes it and explains it."""
    shown = _run(copied, "-m", "kestrel_lab", "run", "--help")
    assert "--tone" in shown and "Manner of the answer." in shown
    words = ("run", "go", "--tone", "of a command", "--model", "scripted:script.yaml", "--json")
    run = json.loads(_run(copied, "-m", "kestrel_lab", *words))["id"]
    code = f"from kestrel_lab import Lab; print(Lab().get({run!r}).events()[0].system)"
    assert "Tone: of a command." in _run(copied, "-c", code)
