"""Claims about the `kestrel` command, made of its real process or its real entry point."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest
from in_process import home_of
from waits import PATIENCE_S

from kestrel_lab import Lab
from kestrel_lab.cli.commands import doctor
from kestrel_lab.cli.main import main
from kestrel_lab.evals.stored_trials import stored_trials

pytestmark = pytest.mark.slow

SCRIPT = """
rules:
  - when: write
    turns:
      - - {tool: write_file, args: {path: a.txt, content: hi}}
      - written
  - when: talk
    turns: [hello]
  - when: ask
    turns:
      - - {tool: file_exists, args: {path: nothing}}
        - {tool: grpe, args: {}}
      - there is nothing
  - when: paint
    turns:
      - - {tool: ask_user, args: {question: Which colour?, options: [red, blue]}}
      - painted
  - when: thrice
    turns:
      - - {tool: write_file, args: {path: a.txt, content: hi}}
      - - {tool: write_file, args: {path: b.txt, content: hi}}
      - - {tool: write_file, args: {path: c.txt, content: hi}}
      - written
  - when: decorate
    turns:
      - - {tool: ask_user, args: {question: Which colour?, options: [red, blue]}}
      - - {tool: ask_user, args: {question: Which colour?, options: [red, blue]}}
      - painted
"""

Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.yaml").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def kestrel(folder: Path, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in `folder`; gives exit code, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def newest(folder: Path) -> str:
    """The id of the newest run."""
    lab = Lab(home=home_of(folder))
    try:
        return lab.store.runs(limit=1)[0].id
    finally:
        lab.close()


def test_a_run_shows_its_calls_and_its_answer(kestrel: Kestrel) -> None:
    """`kestrel run` prints calls with results, errors the model was told, the answer, usage and the script's
    label; exit code 0.
    """
    code, out, _ = kestrel("run", "ask", "--model", "scripted:script.yaml")
    assert code == 0
    assert "script.yaml (scripted)" in out
    assert "✓ file_exists" in out
    assert "there is no tool 'grpe'; did you mean 'grep'?" in out
    assert "there is nothing" in out
    assert "COMPLETE · 50 tokens" in out


def test_with_nobody_there_a_risky_call_stops_at_once(kestrel: Kestrel, folder: Path) -> None:
    """Exit code 3 and the words to go on with; approving and resuming finishes the run."""
    code, _, err = kestrel("run", "write", "--model", "scripted:script.yaml")
    run_id = newest(folder)
    assert code == 3
    assert f"kestrel approve {run_id}" in err
    assert not (folder / "a.txt").exists()
    assert kestrel("show", run_id)[1].startswith(f"run {run_id} · WAITING_APPROVAL")
    assert kestrel("approve", run_id)[0] == 0
    code, out, _ = kestrel("run", "--resume", run_id)
    assert code == 0
    assert "written" in out
    assert (folder / "a.txt").read_text() == "hi"
    assert run_id in kestrel("runs")[1]


def test_denied_runs_go_on(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel deny` with a reason: the model is told, the file is not written, the run completes."""
    kestrel("run", "write", "--model", "scripted:script.yaml")
    run_id = newest(folder)
    assert kestrel("deny", run_id, "--reason", "not today")[0] == 0
    code, out, _ = kestrel("resume", run_id)
    assert code == 0
    assert "not today" in out
    assert not (folder / "a.txt").exists()


def test_a_question_is_answered_from_outside(kestrel: Kestrel, folder: Path) -> None:
    """With nobody there the run says how to answer; a yes without words is refused; the answer is what the
    model is told.
    """
    code, _, err = kestrel("run", "paint", "--model", "scripted:script.yaml")
    run_id = newest(folder)
    assert code == 3
    assert f"answer: kestrel approve {run_id} --answer TEXT" in err
    shown = kestrel("show", run_id)[1]
    assert "waits for an answer: Which colour?\n  1. red\n  2. blue" in shown
    code, _, err = kestrel("approve", run_id)
    assert (code, "waits for an answer ('Which colour?')" in err) == (2, True)
    assert kestrel("approve", run_id, "--answer", "green")[1].startswith("answered: ask_user.")
    code, out, _ = kestrel("resume", run_id)
    assert (code, "green" in out, "painted" in out) == (0, True, True)


def test_a_question_is_asked_at_a_terminal(folder: Path) -> None:
    """The number of an option is that option, nothing is not an answer; and the run completes."""
    words = ["-m", "kestrel_lab", "run", "decorate", "--model", "scripted:script.yaml"]
    child = pexpect.spawn(sys.executable, words, cwd=str(folder), encoding="utf-8", timeout=PATIENCE_S)
    for typed, told in (("2", "blue"), ("", "no answer was given")):
        child.expect("Which colour?")
        child.expect("2. blue")
        child.expect(r"answer \(empty for none\): ")
        child.sendline(typed)
        # A line may be wrapped anywhere between two words.
        child.expect(rf"(?s)ask_user.*{told.replace(' ', '.{1,20}?')}")
    child.expect("COMPLETE")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_a_run_is_taken_over_on_demand_only(kestrel: Kestrel, folder: Path) -> None:
    """A run that a live process holds is refused with the words that take it, and those take it."""
    kestrel("run", "write", "--model", "scripted:script.yaml")
    run_id = newest(folder)
    code = (
        "import sys; from kestrel_lab.eventlog.store import SessionStore; store = "
        "SessionStore(sys.argv[1] + '/kestrel.db')\n"
    )
    code += "print(store.claim(store.run(sys.argv[2])), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home_of(folder)), run_id],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        status, _, err = kestrel("resume", run_id, "--approve", "auto")
        assert status == 2
        assert f"kestrel resume {run_id} --take-over" in err
        status, out, _ = kestrel("resume", run_id, "--approve", "auto", "--take-over")
        assert (status, "written" in out) == (0, True)
        holder.communicate("\n")


def test_json_is_for_programs(folder: Path) -> None:
    """`--json` writes one JSON object to standard output and nothing else, everything else to standard
    error.
    """
    words = [sys.executable, "-m", "kestrel_lab", "run", "talk", "--model", "scripted:script.yaml", "--json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert (said["status"], said["answer"], said["model"]) == (
        "COMPLETE",
        "hello",
        "scripted:script.yaml (scripted)",
    )


def test_a_person_at_a_terminal_is_asked(folder: Path) -> None:
    """At a terminal the call is shown whole; a yes lets it run, an edit runs what was edited, a no with a
    reason does not run it.
    """
    words = ["-m", "kestrel_lab", "run", "thrice", "--model", "scripted:script.yaml"]
    child = pexpect.spawn(sys.executable, words, cwd=str(folder), encoding="utf-8", timeout=PATIENCE_S)
    for name, *keys in (
        ("a", "y"),
        ("b", "e", '{"path": "b.txt", "content": "edited"}'),
        ("c", "n", "no files"),
    ):
        child.expect("wants to run")
        child.expect(f"{name}.txt")
        child.expect(r"lways in this run\? ")
        assert not (folder / f"{name}.txt").exists()
        for number, line in enumerate(keys):
            if number:
                child.expect("JSON: |empty\\): ")
            child.sendline(line)
    child.expect("COMPLETE")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert {path.name: path.read_text() for path in folder.glob("*.txt")} == {
        "a.txt": "hi",
        "b.txt": "edited",
    }


def test_an_approval_from_another_process_is_enough(kestrel: Kestrel, folder: Path) -> None:
    """A run that waits at a terminal goes on when another process approves it."""
    child = pexpect.spawn(
        sys.executable,
        ["-m", "kestrel_lab", "run", "write", "--model", "scripted:script.yaml"],
        cwd=str(folder),
        encoding="utf-8",
        timeout=PATIENCE_S,
    )
    child.expect(r"lways in this run\? ")
    assert kestrel("approve", newest(folder))[0] == 0
    child.expect("COMPLETE")
    child.expect(pexpect.EOF)
    assert (folder / "a.txt").read_text() == "hi"


def test_ctrl_c_leaves_a_run_that_can_be_resumed(kestrel: Kestrel, folder: Path) -> None:
    """Ctrl-C while a question is open ends the process with exit code 130 and says how to go on: approved and
    resumed, the run is done.
    """
    child = pexpect.spawn(
        sys.executable,
        ["-m", "kestrel_lab", "run", "write", "--model", "scripted:script.yaml"],
        cwd=str(folder),
        encoding="utf-8",
        timeout=PATIENCE_S,
    )
    child.expect(r"lways in this run\? ")
    child.sendintr()
    child.expect("was stopped")
    child.expect("kestrel run --resume")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
    run = newest(folder)
    lab = Lab(home=home_of(folder))
    assert (lab.get(run).status, lab.get(run).report.interrupted) == ("WAITING_APPROVAL", True)
    lab.close()
    assert kestrel("approve", run)[0] == 0
    code, _, err = kestrel("run", "--resume", run)
    assert (code, (folder / "a.txt").read_text()) == (0, "hi"), err


def test_a_cancelled_run_is_not_resumed_and_says_what_can_be_done(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel cancel` ends a run for good; resuming it says so and names the fork that goes on from there,
    which does.
    """
    kestrel("run", "write", "--model", "scripted:script.yaml")  # waits for leave
    run = newest(folder)
    code, out, _ = kestrel("cancel", run)
    assert (
        code,
        f"run {run} is cancelled; a new run goes on from there: kestrel fork {run} --at" in out,
    ) == (0, True)
    for words in (("run", "--resume", run), ("resume", run)):
        code, _, told = kestrel(*words)
        assert (code, f"run {run} was cancelled (stopped on request) and is not resumed" in told) == (2, True)
    hint = re.search(rf"kestrel (fork {run} --at \d+ --in-place)", told)
    assert hint is not None and hint[1] in kestrel("show", run)[1]
    assert kestrel("cancel", run)[0] == 2
    assert kestrel(*hint[1].split(), "--approve", "auto:medium")[0] == 0
    assert (folder / "a.txt").read_text() == "hi"


def test_a_fork_leaves_the_files_and_apply_takes_its_changes_over(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel fork` works in a copy; `kestrel apply --dry-run` shows the difference, and `kestrel apply`
    takes it over; mistakes exit 2.
    """
    kestrel("run", "write", "--model", "scripted:script.yaml")  # waits for leave
    run = newest(folder)
    kestrel("cancel", run)
    at = re.search(r"--at (\d+)", kestrel("show", run)[1])
    assert at is not None
    assert kestrel("fork", run, "--at", at[1], "--approve", "auto:medium")[0] == 0
    fork = newest(folder)
    assert not (folder / "a.txt").exists()
    for words, there in ((("--dry-run",), False), ((), True)):
        code, out, _ = kestrel("apply", fork, *words)
        assert (code, "new      a.txt" in out, "+hi" in out, (folder / "a.txt").exists()) == (
            0,
            True,
            True,
            there,
        )
    assert "works in the workspace itself" in kestrel("apply", run)[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", ""], "the goal is empty"),
        (["run", "x", "--model", "opnai/gpt-5"], "did you mean 'openai'?"),
        (["run", "x", "--model", "scripted:nothing.yaml"], "no script"),
        (["run", "x", "--model", "scripted:script.yaml", "--tools", "grpe"], "did you mean 'grep'?"),
        (["run", "x", "--approve", "sometimes"], "unknown approval policy 'sometimes'"),
        (
            ["run", "x", "--model", "scripted:script.yaml", "--workspace", "nowhere"],
            "nowhere is not a directory",
        ),
        (["run", "x", "--resume", "r1"], "not both"),
        (["run", "--aprove", "ask"], "No such option: --aprove. Did you mean --appro"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'? See kestrel --help.\n"),
        (["eval", "rnu"], "No such command 'rnu'. Did you mean 'run'? See kestrel eval --help.\n"),
        (["shwo", "r0"], "kestrel has no command 'shwo': did you mean kestrel show r0?"),
        (["evla", "run", "s.yaml"], "did you mean kestrel eval run s.yaml?"),
        (["clen", "--model", "x"], "No such command 'clen'"),
        (
            ["clean", "the", "data", "--modle", "x"],
            "No such option: --modle. Did you mean --model? See kestrel run --help.\n",
        ),
        (["show", "me", "the", "data"], "If these words are a goal: kestrel run show me the data."),
        (["config", "cache", "of"], "unknown cache mode 'of'; did you mean 'off'?\n"),
        (["show", "r0"], "no run 'r0'"),
        (["eval", "run", "nothing.yaml"], "nothing.yaml: cannot be read"),
    ],
)
def test_mistakes_are_named(kestrel: Kestrel, words: list[str], told: str) -> None:
    """A mistake gives exit code 2, one message that names it and what would be right, and no traceback."""
    code, _, err = kestrel(*words)
    assert code == 2
    assert told in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [
        ("talk", "to", "me", "--model", "scripted:script.yaml"),
        ("--model", "scripted:script.yaml", "talk", "to", "me"),
        ("talk", "--model", "scripted:script.yaml", "to", "me"),
        ("talk to me", "--model", "scripted:script.yaml"),
    ],
)
def test_several_words_that_are_no_command_are_a_goal(
    kestrel: Kestrel, folder: Path, words: tuple[str, ...]
) -> None:
    """Wherever options stand among them; `kestrel show` alone then shows that run."""
    code, out, _ = kestrel(*words)
    assert (code, "hello" in out) == (0, True)
    _, shown, _ = kestrel("show")
    assert newest(folder) in shown and "goal: talk to me" in shown


def test_an_unknown_run_names_three_candidates(kestrel: Kestrel) -> None:
    """The nearest ids, else the newest ones: not all."""
    for _ in range(5):
        kestrel("run", "talk", "--model", "scripted:script.yaml")
    _, out, _ = kestrel("runs")
    ids = re.findall(r"^(r[0-9a-z]+-[0-9a-z]+)", out, re.MULTILINE)
    code, _, err = kestrel("run", "--resume", "zzz")
    assert (code, [one for one in ids if one in err]) == (2, ids[:3])
    _, _, err = kestrel("show", f"{ids[2][:-1]}~")
    assert 1 <= sum(one in err for one in ids) <= 3 and ids[2] in err


def test_settings_say_where_they_come_from(
    kestrel: Kestrel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kestrel config` shows each value with its source."""
    (folder / "kestrel.toml").write_text('approve = "auto:medium"\n')
    monkeypatch.setenv("KESTREL_CYCLES", "7")
    _, out, _ = kestrel("config")
    assert re.search(r"approve +auto:medium +\S*kestrel.toml", out)
    assert re.search(r"cycles +7 +KESTREL_CYCLES", out)
    assert re.search(r"seconds +300.0 +default", out)


def test_the_guidance_of_the_folder_stands_below_the_settings(kestrel: Kestrel, folder: Path) -> None:
    """Which file it is, its size and its hash, and why one is not used; nothing where there is none, or it is
    off.
    """
    assert "guidance for agents in this folder" not in kestrel("config")[1]
    (folder / "AGENTS.md").write_text("Use tabs.\n")
    for words in ((), ("guidance_files",)):
        assert (
            "guidance for agents in this folder: AGENTS.md, 10 bytes, sha256 2d812d6fdf8ecb4d"
            in kestrel("config", *words)[1]
        )
    assert "guidance for agents in this folder" not in kestrel("config", "approve")[1]
    (folder / "AGENTS.md").write_bytes(b"\0")
    assert "AGENTS.md is not used: AGENTS.md is a binary file" in kestrel("config")[1]
    kestrel("config", "guidance_files", "off")
    assert "guidance for agents in this folder" not in kestrel("config")[1]
    assert "guidance_files has file names" in kestrel("config", "guidance_files", "docs/x.md")[2]


def test_skills_are_listed_and_shown(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel skills` says what can be loaded and what is wrong with the rest; `show` has the text."""
    assert "no skills" in kestrel("skills")[1]
    for name, says in (("good", "good"), ("bad", "worse")):
        (folder / ".agents/skills" / name).mkdir(parents=True)
        (folder / ".agents/skills" / name / "SKILL.md").write_text(
            f"---\nname: {says}\ndescription: Does it.\n---\nHow it is done.\n"
        )
    _, out, _ = kestrel("skills")
    assert re.search(r"good +\.agents/skills/good +can be loaded +Does it\.", out)
    assert (
        ".agents/skills/bad cannot be loaded: SKILL.md: the name 'worse' is not that of its folder, 'bad'"
        in out
    )
    assert "How it is done." in kestrel("skills", "show", "good")[1]
    assert "there is no skill 'goods'; did you mean 'good'?" in kestrel("skills", "show", "goods")[2]


def test_the_doctor_says_what_to_type(kestrel: Kestrel) -> None:
    """`kestrel doctor` names the log, the model in force, and for each missing provider the variable to
    set.
    """
    code, out, _ = kestrel("doctor")
    assert code == 0
    assert "local/smollm2-135m" in out
    assert "set OPENAI_API_KEY" in out
    assert "kestrel.db" in out


def test_the_doctor_says_whether_vectors_are_indexed(
    kestrel: Kestrel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line names sqlite-vec; where it cannot be loaded it says why, and that search goes on without
    it.
    """
    assert re.search(r"✓ +sqlite-vec +\d", kestrel("doctor")[1])
    monkeypatch.setattr(doctor, "load_problem", lambda: "no extensions here")
    code, out, _ = kestrel("doctor")
    assert code == 0
    assert re.search(
        r"✗ +sqlite-vec +cannot be loaded: no extensions here +search compares every vector instead, "
        r"which is slower",
        out,
    )


def test_the_doctor_shows_what_runs_depend_on(kestrel: Kestrel, monkeypatch: pytest.MonkeyPatch) -> None:
    """An own server that is down is named with state, reason and advice, and fails the check unless another
    model stands in.
    """
    assert re.search(r"model local/smollm2-135m +ready", kestrel("doctor")[1])
    monkeypatch.setenv("KESTREL_API_BASE", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("KESTREL_MODEL", "openai/any")
    code, out, _ = kestrel("doctor")
    assert code == 1
    assert re.search(r"✗ +model openai/any at http://127.0.0.1:9/v1 +degraded", out)
    monkeypatch.setenv("KESTREL_MODEL", "openai/any > local")
    code, out, _ = kestrel("doctor")
    assert (code, "degraded" in out) == (0, True)


def test_help_teaches() -> None:
    """`kestrel --help` lists every command with its purpose and where to begin."""
    done = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "--help"], capture_output=True, text=True, check=True
    )
    for word in (
        "run",
        "resume",
        "show",
        "runs",
        "approve",
        "deny",
        "tools",
        "models",
        "config",
        "doctor",
        "eval",
        "kestrel doctor",
    ):
        assert word in done.stdout


def test_names_in_a_table_are_whole_in_a_narrow_terminal(
    kestrel: Kestrel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leading columns have what is copied from a table: it is not broken at the width of the terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")

    assert "mistral/mistral-small-latest " in kestrel("models")[1]


def test_before_the_first_run(kestrel: Kestrel, folder: Path) -> None:
    """Commands that have nothing to show say so, and what to do."""
    assert kestrel("runs") == (0, f'no runs in {home_of(folder)} yet: kestrel run "…" makes one\n', "")
    assert kestrel("trust")[1].endswith("so there is nothing to trust\n")
    assert "in a table [mcp.servers.time]" in kestrel("mcp", "check", "time")[2]
    (folder / "suite.yaml").write_text(
        "name: s\nscenarios: [{id: a, goal: a, checks: [{answer_contains: a}]}]\n"
    )
    code, _, err = kestrel("eval", "compare", "suite.yaml")
    assert (code, "git init" in err) == (2, True)


def test_a_suite_from_the_command_line(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel eval run` prints the table and writes report and rows; the frame is the one `Lab.eval`
    gives.
    """
    (folder / "suite.yaml").write_text(
        """
name: small
epochs: 2
configs:
  - {name: script, model: "scripted:script.yaml"}
scenarios:
  - {id: talk, goal: talk, checks: [{answer_contains: hello}]}
  - {id: write, goal: write, tools: [write_file], checks: [{file_equals: {path: a.txt, text: hi}}]}
"""
    )
    code, out, _ = kestrel("eval", "run", "suite.yaml", "--report", "out/r.html", "--csv", "out/r.csv")
    assert code == 0
    assert "script (scripted)  100 %" in out
    assert "<html" in (folder / "out/r.html").read_text()
    assert "4 trials: 2 scenarios × 1 configuration × 2 epochs." in (folder / "out/r.html").read_text()
    lab = Lab(home=home_of(folder))
    frame = lab.eval_sync("suite.yaml").frame
    stored = stored_trials(lab.store, suite="small")
    lab.close()
    columns = (folder / "out/r.csv").read_text().splitlines()
    assert columns[0].split(",") == list(frame.columns)
    assert len(columns) == 1 + len(frame) == 5
    assert len(stored) == 8


def test_a_run_is_forked_and_compared(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel fork` goes on in a new run and exits as `run` does; `kestrel diff` shows where the two part;
    mistakes exit 2.
    """
    kestrel("run", "ask", "--model", "scripted:script.yaml")
    parent = newest(folder)
    code, out, _ = kestrel("fork", parent, "--answer", "something [bold]else[/bold]")
    child = newest(folder)
    assert code == 0
    assert child != parent
    assert f"forked from {parent} at" in out
    assert "something [bold]else[/bold]" in out
    code, out, _ = kestrel("diff", parent, child)
    assert code == 0
    assert "then part" in out
    assert "there is nothing" in out
    assert "something [bold]else[/bold]" in out
    code, _, err = kestrel("fork", parent, "--at", "99")
    assert code == 2
    assert "has no event 99: its events are 1 to" in err
    assert kestrel("fork", parent, "--at", "1", "--result", "x")[0] == 2
    assert kestrel("diff", parent, "nothing")[0] == 2


FLOW = """\
kind: loop
name: poem
inputs: {tone: how it sounds}
steps:
  - {id: line, goal: "talk about {{goal}}, {{tone}}", consumes: [line]}
until: line == "hello"
limit: 3
"""


def test_a_workflow_from_the_command_line(kestrel: Kestrel, folder: Path) -> None:
    """It is listed, looked at, drawn and run with its inputs; each mistake is one line with file, line and
    key.
    """
    (folder / "flow.yaml").write_text(FLOW)
    code, out, _ = kestrel("plans")
    assert (code, "react" in out, "One agent works on the goal" in out) == (0, True, True)
    code, out, _ = kestrel("plan", "the", "sea", "--plan", "flow.yaml", "--input", "tone=calm")
    assert (
        code,
        'loop until line == "hello", at most 3 rounds' in out,
        "talk about the sea, calm" in out,
    ) == (0, True, True)
    code, out, _ = kestrel(
        "plan", "sea", "--plan", "flow.yaml", "--input", "tone=calm", "--svg", "out/plan.svg"
    )
    assert (code, out.strip(), "<svg" in (folder / "out" / "plan.svg").read_text()) == (
        0,
        "out/plan.svg",
        True,
    )
    code, out, _ = kestrel(
        "run",
        "sea",
        "--plan",
        "flow.yaml",
        "--input",
        "tone=calm",
        "--model",
        "scripted:script.yaml",
        "--json",
    )
    assert (code, json.loads(out)["answer"]) == (0, "hello")
    (folder / "flow.yaml").write_text(FLOW.replace("until", "untl"))
    code, _, err = kestrel("run", "sea", "--plan", "flow.yaml", "--input", "tone=calm")
    assert (code, "flow.yaml:6: untl: unknown key; did you mean 'until'?" in err) == (2, True)
    code, _, err = kestrel("run", "--resume", newest(folder), "--plan", "react")
    assert (code, "a run that is resumed keeps its plan" in err) == (2, True)
    assert [
        kestrel("run", "sea", "--plan", "flow.yaml", "--input", "tone")[0],
        kestrel("plan", "sea", "--plan", "reakt")[0],
    ] == [2, 2]


def test_schemas_are_printed(kestrel: Kestrel) -> None:
    """What is printed is the JSON Schema; another name is told with the nearest one."""
    code, out, _ = kestrel("schema", "agent")
    assert (code, json.loads(out)["title"]) == (0, "kestrel_lab agent")
    code, _, err = kestrel("schema", "agents")
    assert (code, "did you mean 'agent'?" in err) == (2, True)


def test_a_run_that_reached_its_limit_says_how_to_go_on_and_does(kestrel: Kestrel, folder: Path) -> None:
    """`kestrel resume` takes a higher limit and does nothing again; `kestrel fork` takes one too."""
    code, out, _ = kestrel(
        "run", "write", "--model", "scripted:script.yaml", "--cycles", "1", "--approve", "auto:medium"
    )
    failed = newest(folder)
    assert (code, f"kestrel run --resume {failed} --cycles N" in " ".join(out.split())) == (1, True), out
    (folder / "a.txt").unlink()
    assert kestrel("resume", failed, "--cycles", "5")[0] == 0
    assert (newest(folder) != failed, (folder / "a.txt").exists()) == (True, False)
    assert kestrel("fork", failed)[0] == 1
    assert kestrel("fork", failed, "--cycles", "5")[0] == 0
