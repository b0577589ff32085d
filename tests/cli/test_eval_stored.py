"""`kestrel eval rescore` and `summary`, of what is stored: nothing is run again."""

import subprocess
from pathlib import Path

import in_process
import pytest
from result_pages import page_details

SUITE = """\
name: demo
epochs: 2
configs: [{name: script, model: "scripted:script.yaml"}]
scenarios:
  - {id: a, family: talk, goal: talk, checks: [{answer_contains: bye}]}
  - {id: b, family: find, tags: [slow], goal: find, tools: [grep], workspace: {files: {a.py: "def one(): \
pass"}}, checks: [{recall_at: [a.py, b.py]}]}
"""
SCRIPT = """\
rules:
  - {when: talk, turns: [hello]}
  - {when: find, turns: [[{tool: grep, args: {pattern: def}}], found]}
"""


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `kestrel eval` in `folder`."""
    return in_process.kestrel(folder, "eval", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A suite that was run once, and whose script is gone since: a model that is asked would fail."""
    place = tmp_path_factory.mktemp("suite")
    (place / "suite.yaml").write_text(SUITE)
    (place / "script.yaml").write_text(SCRIPT)
    done = kestrel(place, "run", "suite.yaml")
    assert done.returncode == 0
    assert "pass@2" in done.stdout
    assert "pass^2" in done.stdout
    (place / "script.yaml").unlink()
    return place


def test_rescore_judges_without_running(folder: Path) -> None:
    """With the check put right the stored answers pass, and the report is of the new scores."""
    (folder / "right.yaml").write_text(SUITE.replace("bye", "hello"))
    done = kestrel(folder, "rescore", "right.yaml", "--report", "out/r.html")
    assert (done.returncode, done.stderr.splitlines()) == (0, ["wrote out/r.html"])
    assert "4 trials judged again" in done.stdout
    assert "2 outcomes changed" in done.stdout
    assert "a [script] epoch 1: fail → pass" in done.stdout
    told = [check for one in page_details(folder / "out" / "r.html") for check in one["checks"]]
    assert {passed for name, passed, *_ in told if name == "answer contains 'hello'"} == {True}


def test_summary_is_by_family(folder: Path) -> None:
    """Families with rates and recall@10, a plot, and a file with every metric and its interval."""
    done = kestrel(
        folder,
        "summary",
        "suite.yaml",
        "--by",
        "family",
        "-m",
        "recall@10",
        "--plot",
        "f.png",
        "--csv",
        "f.csv",
    )
    assert done.returncode == 0
    assert [line.split()[2:4] for line in done.stdout.split("\n\n")[0].splitlines()[2:]] == [
        ["talk", "2"],
        ["find", "2"],
    ]
    assert "b.py (first 10)" in done.stdout, "what was wanted and not found stands below"
    assert "50 % (" in done.stdout
    assert (folder / "f.png").read_bytes().startswith(b"\x89PNG")
    assert "recall@10_low" in (folder / "f.csv").read_text().splitlines()[0]


def test_parts_are_chosen_with_the_words_of_run(folder: Path) -> None:
    """`summary` and `rescore` take --family, --tag and --scenario as `run` does, and leave the other trials
    alone.
    """
    out = kestrel(folder, "summary", "suite.yaml", "--by", "scenario", "--tag", "slow").stdout
    assert [line.split()[2:4] for line in out.split("\n\n")[0].splitlines()[2:]] == [["b", "2"]]
    (folder / "part.yaml").write_text(SUITE.replace("bye", "hello"))
    out = kestrel(folder, "rescore", "part.yaml", "--family", "talk").stdout
    assert "2 trials judged again" in out
    assert "no such scenario" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("summary", "suite.yaml", "--family", "tlk"), "no family 'tlk'; did you mean 'talk'?"),
        (("compare", "suite.yaml", "a", "b", "--suite", "suite.yaml"), "the suite is named twice"),
        (("compare", "main"), "name the suite file first, or with --suite"),
        (("compare", "suite.yaml", "a", "b", "c"), "two commits are compared, not 3"),
        (("compare", "suite.yaml", "a", "b"), "is not in a git repository"),
        (("compare", "a", "b", "-s", "suite.yaml"), "is not in a git repository"),
    ],
)
def test_wrong_parts_are_told(folder: Path, words: tuple[str, ...], message: str) -> None:
    """What fits nothing, a suite named twice or not at all, and too many commits; both places of the suite
    are understood.
    """
    done = kestrel(folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("summary", "suite.yaml", "--by", "famly"),
            "there is no column 'famly' to group by; did you mean 'family'?",
        ),
        (("summary", "suite.yaml", "-m", "recal@10"), "did you mean 'recall@10'?"),
        (
            ("summary", "suite.yaml", "--commit", "abc"),
            "no trials of suite 'demo' at commit 'abc' are stored",
        ),
        (("rescore", "missing.yaml"), "missing.yaml"),
        (("rescore", "suite.yaml", "--config", "other"), "no configuration 'other'"),
    ],
)
def test_mistakes_are_told(folder: Path, words: tuple[str, ...], message: str) -> None:
    """What is not there is said, and nothing else is printed."""
    done = kestrel(folder, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_a_run_says_where_its_files_are(tmp_path: Path) -> None:
    """Each file that was asked for is named on the error output, which leaves the output to programs."""
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    files = {
        "--report": "out/r.html",
        "--csv": "out/r.csv",
        "--junit": "out/r.xml",
        "--markdown": "out/r.md",
    }
    ran = kestrel(tmp_path, "run", "suite.yaml", *(word for pair in files.items() for word in pair))
    assert ran.returncode == 0
    lines = [line for line in ran.stderr.splitlines() if line.startswith("wrote ")]
    assert sorted(lines) == sorted(f"wrote {path}" for path in files.values())
    assert "wrote" not in ran.stdout
    assert all((tmp_path / path).is_file() for path in files.values())
