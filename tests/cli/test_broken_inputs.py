"""Whatever a person gives that cannot be read is an error of one line that names it, never a traceback."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.cli import main as cli
from kestrel_lab.cli.main import main

pytestmark = pytest.mark.usefixtures("warm")

Kestrel = Callable[..., tuple[int, str, str]]
HUGE = "9" * 5_000
DEEP = "[" * 20_000
BIG = str(10**30)


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in an empty folder; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KESTREL_MODEL", "scripted:script.yaml")
    Path("script.yaml").write_text("rules: [{when: '', turns: [done]}]")

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def is_one_error(code: int, err: str) -> bool:
    """Whether a command ended with one line that says what is wrong, and not with a fault of ours."""
    return (
        code in (1, 2)
        and err.startswith("error: ")
        and err.count("\n") == 1
        and "Traceback" not in err
        and "bug in kestrel" not in err
    )


SETTINGS = {
    "kestrel.toml": [
        f"cycles = {HUGE}",
        f"x = {DEEP}",
        "x = " + "{a=" * 3_000,
        f"cycles = {BIG}",
        "cycles = nan",
        "cost_usd = inf",
        "seconds = -1",
        "approve = 3",
        "approve = []",
        "model = {}",
        "mcp = 3",
        "mcp.servers = 3",
        "mcp.servers.x = 3",
        "rules = 3",
        "rules = [3]",
        f"[[rules]]\ntool='b'\nverdict='deny'\nargs={{x={HUGE}}}",
        "[[rules]]\ntool=3\nverdict='deny'",
        "[[rules]]\ntool='x'\nverdict=['deny']",
        "kestrel = 1979-05-27",
        "\0",
        "a" * 100_000,
    ],
    "pyproject.toml": [
        "tool = 3",
        "tool = []",
        "tool = {kestrel = 3}",
        "[tool]\nkestrel = []",
        f"x = {HUGE}",
        f"x = {DEEP}",
        "[[tool]]",
    ],
    ".mcp.json": [
        "3",
        "[" * 100_000,
        '{"mcpServers": 3}',
        '{"mcpServers": {"x": 3}}',
        f'{{"mcpServers": {HUGE}}}',
        "{",
    ],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, texts in SETTINGS.items() for number in range(len(texts))]
)
def test_settings_that_cannot_be_read(kestrel: Kestrel, name: str, number: int) -> None:
    """Each broken file of settings is named in one line, or it is none that matters and the command does its
    work.
    """
    Path(name).write_text(SETTINGS[name][number])
    for words in (["config"], ["rules"], ["mcp"]):
        code, _, err = kestrel(*words)
        assert (code, err) == (0, "") or is_one_error(code, err), (words, err[-2_000:])
        assert len(err) < 1_500


def test_the_seven_that_the_walk_found(kestrel: Kestrel) -> None:
    """Huge numbers and deep tables in the settings, `tool = 3`, and a limit that no machine counts to: each
    says what is wrong.
    """
    for text, told in (
        (f"cycles = {HUGE}", "kestrel.toml is not TOML"),
        (f"x = {DEEP}", "nested too deeply"),
    ):
        Path("kestrel.toml").write_text(text)
        code, _, err = kestrel("config")
        assert (code, told in err, is_one_error(code, err)) == (2, True, True)
    Path("kestrel.toml").unlink()
    Path("pyproject.toml").write_text("tool = 3")
    assert kestrel("config")[0] == 0
    code, _, err = kestrel("runs", "--limit", BIG)
    assert (code, "too large" in err, is_one_error(code, err)) == (2, True, True)


OPTIONS = [
    ["runs", "--limit"],
    ["run", "x", "--cycles"],
    ["run", "x", "--seconds"],
    ["run", "x", "--cost"],
    ["run", "x", "--tokens"],
    ["run", "x", "--approval-timeout"],
    ["orchestrate", "x", "--rounds"],
    ["fork", "r0", "--at"],
    ["eval", "run", "suite.yaml", "--epochs"],
    ["eval", "history", "suite.yaml", "--last"],
    ["search", "x", "--top"],
    ["memory", "search", "x", "--top"],
    ["memory", "add", "x", "--confidence"],
    ["notebook", "run", "x.ipynb", "--timeout"],
    ["serve", "--port"],
]


@pytest.mark.parametrize("value", [BIG, HUGE, "nan"])
@pytest.mark.parametrize("words", OPTIONS, ids=lambda words: " ".join(words))
def test_numbers_that_nothing_can_count_to(kestrel: Kestrel, words: list[str], value: str) -> None:
    """A number of any size, or what is none, is refused in one line or does no harm."""
    code, _, err = kestrel(*words, value)
    assert code == 0 or is_one_error(code, err) or ("Traceback" not in err and "bug in kestrel" not in err), (
        err[-2_000:]
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0"])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "x", "--approval-timeout"],
        ["chat", "--approval-timeout"],
        ["serve", "--approval-timeout"],
        ["run", "x", "--seconds"],
        ["run", "x", "--cost"],
    ],
    ids=" ".join,
)
def test_numbers_that_are_no_amount(kestrel: Kestrel, words: list[str], value: str) -> None:
    """A time or a sum of nothing, of less, or of no number, is refused before anything begins: compared with
    it nothing is ever too long.
    """
    code, out, err = kestrel(*words, value)
    assert (is_one_error(code, err), out) == (True, ""), err


def test_a_script_whose_arguments_are_no_table(kestrel: Kestrel) -> None:
    """The line says where, and no run is begun that nobody could end."""
    Path("script.yaml").write_text("rules: [{when: '', turns: [[{tool: read_file, args: 3}], done]}]")
    assert kestrel("run", "x") == (
        2,
        "",
        "error: script.yaml: rules[0].turns[0]: the args of read_file are a table of names and values, "
        "not 3\n",
    )


CONTENT = [
    "3",
    "[]",
    "null",
    '"x"',
    "{}",
    "[" * 60,
    HUGE,
    "\0",
    "a: &a [*a]",
    "steps: 3",
    "kind: 3",
    "steps: [3]",
    "scenarios: 3",
    "scenarios: [3]",
    "scenarios: [{goal: 3}]",
    "rules: 3",
    "name: []",
    "turns: {}",
    f"limit: {BIG}",
    "!!python/object:x",
    "cells: 3",
]
FILES = [
    ["eval", "run", "FILE.yaml"],
    ["plan", "x", "--plan", "FILE.yaml"],
    ["run", "x", "--plan", "FILE.yaml"],
    ["run", "x", "--model", "scripted:FILE.yaml"],
    ["run", "x", "--rules", "FILE.toml"],
]


@pytest.mark.parametrize("words", FILES, ids=lambda words: " ".join(words))
def test_files_of_another_form(kestrel: Kestrel, words: list[str]) -> None:
    """Suites, workflows, scripts and rules of any other form are refused in one line that names the file."""
    for text in [
        *CONTENT,
        *(
            json.dumps({"scenarios": [{"id": "a", "goal": "g", key: value}]})
            for key in ("epochs", "checks")
            for value in ({}, -1, math.pi)
        ),
    ]:
        for ending in ("yaml", "toml"):
            Path(f"FILE.{ending}").write_text(text)
        code, _, err = kestrel(*words)
        assert code == 0 or ("Traceback" not in err and "bug in kestrel" not in err), (
            text[:80],
            err[-2_000:],
        )


def test_a_fault_of_our_own_is_one_line_and_kept(kestrel: Kestrel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw is said in one line, with where the traceback is, for its owner alone; nothing is
    swallowed.
    """

    class Broken:
        def __repr__(self) -> str:
            raise LookupError("x\nsecond line " * 100)

    monkeypatch.setattr("kestrel_lab.cli.app.Doctor", None, raising=False)
    monkeypatch.setattr(cli, "_show_result", lambda *_args, **_more: repr(Broken()))
    code, _, err = kestrel("runs")
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith("error: LookupError: x second line")
    file = Path(err.split()[-1])
    assert "please report it" in err
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in file.read_text()
    assert "kestrel runs" in file.read_text()
    file.unlink()


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The installed program says the same."""
    (tmp_path / "kestrel.toml").write_text(f"x = {DEEP}")
    told = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "runs"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=dict(os.environ),
    )
    assert (told.returncode, told.stderr.count("\n"), "Traceback" in told.stderr) == (2, 1, False)


def test_an_unknown_command_points_to_help_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no help of a command that does not exist: that of the commands above it is named."""
    for words, help_of in (
        (["frobnicate"], "kestrel --help"),
        (["eval", "frobnicate"], "kestrel eval --help"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert capsys.readouterr().err.strip().endswith(f"See {help_of}.")
