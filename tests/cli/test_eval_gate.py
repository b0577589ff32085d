"""Exit codes and files of `kestrel eval gate`."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import in_process
import pytest

pytestmark = pytest.mark.usefixtures("warm")

SUITE = """\
name: demo
epochs: 1
configs: [{name: script, model: "scripted:script.yaml"}]
gates: [{success_rate: {at_least: 0.5}}]
scenarios:
""" + "".join(f"  - {{id: s{n}, goal: talk, checks: [{{answer_contains: hello}}]}}\n" for n in range(9))
SAYS = "rules:\n  - when: talk\n    turns: [WORD]\n"


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kestrel eval` in `folder`."""
    return in_process.kestrel(folder, "eval", *words)


def git(folder: Path, *words: str) -> None:
    """Run git with a fixed identity."""
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        *words,
    ]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A suite whose script passes."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "script.yaml").write_text(SAYS.replace("WORD", "hello"))
    return tmp_path


def test_the_four_codes(folder: Path) -> None:
    """0 when the bound holds, 1 when it is violated, 2 when two scenarios cannot tell, 3 when nothing could
    be run.
    """
    command = [
        sys.executable,
        "-m",
        "kestrel_lab",
        "eval",
        "gate",
        "suite.yaml",
        "--junit",
        "ci/j.xml",
        "--markdown",
        "ci/m.md",
    ]
    done = subprocess.run(
        [*command, "--report", "ci/r.html"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "wrote ci/r.html\nwrote ci/j.xml\nwrote ci/m.md\n")
    assert "OK: suite demo, 1 gate\n" in done.stdout
    root = ET.parse(folder / "ci" / "j.xml").getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("10", "0", "0")
    assert "[9 trials of 9 scenarios](r.html)" in (folder / "ci" / "m.md").read_text()

    (folder / "script.yaml").write_text(SAYS.replace("WORD", "bye"))
    done = kestrel(folder, "gate", "suite.yaml")
    assert done.returncode == 1
    assert "regression" in done.stdout

    (folder / "few.yaml").write_text("".join(SUITE.splitlines(keepends=True)[:7]))
    assert kestrel(folder, "gate", "few.yaml").returncode == 2

    (folder / "script.yaml").write_text("rules:\n  - when: something else\n    turns: [x]\n")
    done = kestrel(folder, "gate", "suite.yaml")
    assert done.returncode == 3
    assert "broken" in done.stdout


def test_a_budget_makes_no_more_trials_than_the_gate_needs(folder: Path) -> None:
    """The nine scenarios are tried in turns until the bound is shown; what was skipped is said, and files are
    of the same decision. Options that say how many trials there are contradict it.
    """
    done = kestrel(folder, "gate", "suite.yaml", "--budget", "40trials", "--markdown", "m.md")
    assert (done.returncode, done.stderr) == (0, "wrote m.md\n")
    assert "trials of at most 40 of each configuration, decided at look" in done.stdout
    assert "**Gates: ok**" in (folder / "m.md").read_text()
    done = kestrel(folder, "gate", "suite.yaml", "--budget", "40trials", "--epochs", "3")
    assert done.returncode == 3
    assert "leave out --epochs" in done.stderr
    assert "200trials, 3usd or open" in kestrel(folder, "gate", "suite.yaml", "--budget", "40").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("missing.yaml",),
        ("suite.yaml", "--wrong"),
        ("bare.yaml",),
        ("suite.yaml", "--config", "other"),
        ("suite.yaml", "--against", "main"),
    ],
)
def test_what_cannot_be_decided_is_no_verdict(folder: Path, words: tuple[str, ...]) -> None:
    """Wrong usage, which is code 2 elsewhere, is code 3 here: 2 would say that the gate was tried."""
    (folder / "bare.yaml").write_text(SUITE.replace("gates: [{success_rate: {at_least: 0.5}}]\n", ""))
    done = kestrel(folder, "gate", *words)
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")


def test_a_gate_goes_on_where_it_was_cut_off(folder: Path) -> None:
    """What is stored is not made again; options that mean nothing beside --against are refused, as
    undecided.
    """
    assert kestrel(folder, "gate", "suite.yaml", "--scenario", "s1").returncode == 2
    done = kestrel(folder, "gate", "suite.yaml", "--resume", "--retry-errors", "1")
    assert (done.returncode, "1 trial of it there, 8 left" in done.stdout) == (0, True)
    done = kestrel(folder, "gate", "suite.yaml", "--against", "auto", "--resume")
    assert (done.returncode, "leave out" in done.stderr) == (3, True)


def test_against_a_commit(folder: Path) -> None:
    """Compared with a better commit: code 1, and the table has the change."""
    (folder / ".gitignore").write_text(".kestrel/\n")
    git(folder, "init", "-q", "-b", "main")
    for word in ("hello", "bye"):
        (folder / "script.yaml").write_text(SAYS.replace("WORD", word))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", word)
    (folder / "suite.yaml").write_text(SUITE.replace("gates: [{success_rate: {at_least: 0.5}}]\n", ""))
    done = kestrel(folder, "gate", "suite.yaml", "--against", "HEAD~1", "--markdown", "m.md")
    assert done.returncode == 1, done.stderr
    assert "success_rate: change from HEAD~1" in done.stdout
    assert "**9 trials changed sides**, 9 to fail and 0 to pass" in (folder / "m.md").read_text()


def test_a_run_writes_the_same_files(folder: Path) -> None:
    """`eval run --junit --markdown` writes both and fails for no gate."""
    (folder / "script.yaml").write_text(SAYS.replace("WORD", "bye"))
    done = kestrel(
        folder,
        "run",
        "suite.yaml",
        "--junit",
        "j.xml",
        "--markdown",
        "m.md",
        "--link",
        "https://ci.example.org/r.html",
    )
    assert done.returncode == 0
    assert ET.parse(folder / "j.xml").getroot().get("failures") == "10"
    assert "https://ci.example.org/r.html#run-" in (folder / "m.md").read_text()


def test_a_run_in_which_every_trial_broke_failed(folder: Path) -> None:
    """Nothing was measured, which a script has to notice; one trial that was measured is enough."""
    script = "rules:\n  - when: something else\n    turns: [x]\n"
    (folder / "script.yaml").write_text(script)
    done = kestrel(folder, "run", "suite.yaml")
    assert done.returncode == 1
    assert "9 broke" in " ".join(done.stdout.split())
    (folder / "suite.yaml").write_text(
        SUITE + "  - {id: more, goal: something else, checks: [{answer_contains: hello}]}\n"
    )
    assert kestrel(folder, "run", "suite.yaml").returncode == 0


@pytest.mark.parametrize(
    ("option", "file", "why"),
    [
        ("--junit", "out", "out is a folder: name a file in it"),
        ("--report", "suite.yaml/r.html", "suite.yaml is a file, not a folder"),
        ("--csv", "suite.yaml/more/r.csv", "suite.yaml is a file, not a folder"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_first_trial(
    folder: Path, option: str, file: str, why: str
) -> None:
    """Not after all trials have run."""
    (folder / "out").mkdir()
    done = kestrel(folder, "run", "suite.yaml", option, file)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())
    assert "passed" not in done.stdout + done.stderr
    assert not (folder / ".kestrel").exists()


def test_results_that_were_changed_by_hand_give_no_verdict(folder: Path) -> None:
    """Where failures were turned into passes in the log's file, a summary, a comparison and a gate over
    stored trials end with an error, the gate with code 3, and doctor names them; it did not before.
    """
    (folder / ".gitignore").write_text(".kestrel/\n")
    git(folder, "init", "-q", "-b", "main")
    for word in ("hello", "bye"):
        (folder / "script.yaml").write_text(SAYS.replace("WORD", word))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", word)
    assert "FAIL" in kestrel(folder, "gate", "suite.yaml", "--against", "HEAD~1").stdout.upper()
    assert "damaged: " not in in_process.kestrel(folder, "doctor").stdout

    log = in_process.home_of(folder) / "kestrel.db"
    with sqlite3.connect(log) as raw:
        ((rule,),) = raw.execute("SELECT sql FROM sqlite_schema WHERE name = 'eval_runs_update'").fetchall()
        raw.execute("DROP TRIGGER eval_runs_update")
        raw.execute(
            "UPDATE eval_runs SET result_json = json_replace(result_json, '$.outcome', 'pass') "
            "WHERE result_json ->> '$.outcome' = 'fail'"
        )
        raw.execute(rule)
    raw.close()

    for command in (
        ["summary", "suite.yaml"],
        ["compare", "suite.yaml", "HEAD~1", "HEAD"],
        ["history", "suite.yaml"],
    ):
        refused = kestrel(folder, *command)
        assert refused.returncode not in {0, 2}, command
        assert "is not what was written" in refused.stderr, command
    refused = kestrel(folder, "gate", "suite.yaml", "--against", "HEAD~1")
    assert (refused.returncode, "is not what was written" in refused.stderr) == (3, True)
    assert "damaged: " in in_process.kestrel(folder, "doctor").stdout
