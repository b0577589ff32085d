"""The magics in a real IPython shell that is not a kernel and has nobody to ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from kestrel_lab import Lab, RunFailed, UsageError
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.cli.app import app
from kestrel_lab.core.errors import ApprovalRequired, ModelError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.evals.commits.sequential_compare import Design
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.notebook.command_line import root_command
from kestrel_lab.notebook.completion import complete_line
from kestrel_lab.notebook.magics import AwaitRewriter
from kestrel_lab.notebook.suite_board import NotebookReporter
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell with the extension loaded and a lab in the notebook's variable `lab`."""
    monkeypatch.chdir(tmp_path)
    ip = InteractiveShell.instance()
    ip.run_line_magic("load_ext", "kestrel_lab")
    ip.user_ns["lab"] = Lab(
        model=ScriptedModel([[("write_file", {"path": "a.txt", "content": "x"})], "done"])
    )
    yield ip
    ip.run_line_magic("unload_ext", "kestrel_lab")
    ip.user_ns["lab"].close()
    InteractiveShell.clear_instance()


def run(ip: InteractiveShell, code: str) -> Any:
    """What a cell gives; raises what it raised."""
    with capture_output():
        result = ip.run_cell(code)  # type: ignore[no-untyped-call]
    result.raise_error()
    return result.result


def test_the_run_is_the_cells_result_and_a_variable(shell: InteractiveShell) -> None:
    """A run can be assigned, is left in `_` and under the name given."""
    run(shell, '%kestrel run "write a.txt" --approve auto --as mine')
    run(shell, 'other = %kestrel run "write a.txt" --approve auto')

    assert [type(shell.user_ns[name]) for name in ("_", "mine", "other")] == [Run, Run, Run]
    assert (shell.user_ns["mine"].answer, shell.user_ns["mine"].status, shell.user_ns["_"]) == (
        "done",
        "COMPLETE",
        shell.user_ns["mine"],
    )
    assert Path("a.txt").read_text() == "x"


def test_a_cell_is_the_goal_as_it_is_written(shell: InteractiveShell) -> None:
    """Quotes, braces, dashes and `%` in a cell are text; only `@name` is filled in, and what is code is
    not.
    """
    shell.user_ns["who"] = "--bg {Ada}"
    goal = '--it\'s {a} {{b}} "c" %d @who `@nobody`\n  indented'
    found = run(shell, f"%%kestrel --approve auto\n{goal}")

    assert found.goal == goal.replace("@who", "--bg {Ada}")


def test_several_words_that_are_no_command_are_a_goal(shell: InteractiveShell) -> None:
    """With options anywhere among them; `show` alone shows that run, which was the last."""
    df = [1, 2]
    shell.user_ns["df"] = df
    for line in (
        "clean df",
        "--approve auto clean df",
        "clean --approve auto df",
        "clean df --approve auto",
        "'clean df' --approve auto",
    ):
        done = run(
            shell, f"%kestrel {line} --as r" if "auto" in line else f"%kestrel {line} --approve auto --as r"
        )
        assert (done.goal, done.answer) == ("clean df", "done")
        assert run(shell, "%kestrel show").id == done.id
    assert run(shell, "%kestrel clean @df --approve auto").goal == "clean [1, 2]"
    assert run(shell, "%kestrel plan --help") is None


def test_notes_are_remembered_recalled_and_forgotten_by_these_words(shell: InteractiveShell) -> None:
    """As the functions of `lab.memory` are called."""
    run(shell, "%kestrel memory remember Tests are run with make test. --kind procedure")
    found = run(shell, "%kestrel memory recall how are the tests run")
    assert "make test" in repr(found)
    run(shell, f"%kestrel memory forget {found[0].id}")
    assert "make test" not in repr(run(shell, "%kestrel memory recall how are the tests run"))


@pytest.mark.parametrize("options", ["--as r", "--cycles=3", "--workspace . --verify off"])
def test_a_line_takes_the_options_of_a_cell(shell: InteractiveShell, options: str) -> None:
    """`%kestrel --option value goal` is the run that `%%kestrel --option value` over the goal is, and the one
    with `run`.
    """
    done = [
        run(shell, f"%%kestrel {options} --approve auto\ngoal of both"),
        run(shell, f"%kestrel {options} --approve auto goal of both"),
    ]
    done.append(run(shell, f"%kestrel run {options} --approve auto goal of both"))
    assert [(one.goal, one.answer) for one in done] == [("goal of both", "done")] * 3


def test_a_session_in_stages_from_a_line_and_from_a_cell(shell: InteractiveShell) -> None:
    """`%kestrel orchestrate` follows the plan `standard`; over a cell, the cell is the goal."""
    proposal = '{"steps": [{"id": "look", "goal": "Look."}], "acceptance_criteria": ["it says something"]}'
    says = {
        "Make a plan": proposal,
        "Look.": "nothing",
        "Judge": '{"criteria": [{"criterion": 1, "met": true, "why": "yes", "evidence": []}], "confidence": '
        "1}",
        "A run has": '{"notes": []}',
    }

    def answer(request: ModelRequest) -> str:
        first = next(message.text for message in request.messages if message.role == "user")
        return next(text for begin, text in says.items() if first.startswith(begin))

    shell.user_ns["lab"].change(model=ScriptedModel(answer))
    line = run(shell, '%kestrel orchestrate "What is here?" --rounds 1')
    cell = run(shell, "%%kestrel orchestrate --steps 2\nWhat is here?")
    for found in (line, cell):
        assert (found.goal, found.status, found.answer) == ("What is here?", "COMPLETE", "nothing")
        assert list(found.report.stages()["stage"]) == [
            "bootstrap",
            "gather",
            "plan",
            "execute",
            "verify",
            "commit",
        ]


def test_braces_in_a_line_are_variables(shell: InteractiveShell) -> None:
    """`{name}` in a line is filled in as for other magics, with its parts; nothing is evaluated, and `$name`
    and functions stay.
    """
    shell.user_ns.update(x=5, rows={"größe": [{"n": 7}]}, first="{x}")
    line = "{x} {{x}} $x {{y}} {x+1} {rows[größe][0][n]} {first} {len} {x.__class__}"
    assert (
        run(shell, f'%kestrel run "{line}" --approve auto').goal
        == "5 {x} $x {y} {x+1} 7 {x} {len} {x.__class__}"
    )
    with pytest.raises(UsageError, match=r"\{rows\[gone\]\} cannot be filled in \(KeyError"):
        run(shell, '%kestrel run "{rows[gone]}"')


def test_a_run_in_braces_stands_for_its_id(shell: InteractiveShell) -> None:
    """As `@name` does, and `{name.id}`."""
    done = run(shell, "%kestrel run --as mine --approve auto hello there")
    for word in ("{mine}", "@mine", "{mine.id}"):
        assert run(shell, f"%kestrel show {word}").id == done.id


def test_where_nobody_is_a_risky_call_raises_at_once(shell: InteractiveShell) -> None:
    """With `ask` and nobody to ask, the cell ends with ApprovalRequired; approved and resumed, the run
    completes.
    """
    with pytest.raises(ApprovalRequired) as raised:
        run(shell, '%kestrel run "write a.txt" --as r')
    run(shell, f"%kestrel approve {raised.value.run_id}")
    resumed = run(shell, f"%kestrel resume {raised.value.run_id}")

    assert (resumed.id, resumed.status) == (raised.value.run_id, "COMPLETE")


def test_a_failed_run_raises_and_is_still_there(shell: InteractiveShell) -> None:
    """Programs that execute notebooks see the failure; the run is left under its name."""
    shell.user_ns["lab"].change(model=ScriptedModel([ModelError("no quota")]))
    with pytest.raises(
        RunFailed,
        match=r"run r\S+ failed: .*no quota.* Look: %kestrel show r\S+ · go on with it: kestrel run --resume",
    ):
        run(shell, '%kestrel run "x" --as r')

    assert shell.user_ns["r"].status == "FAILED"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%kestrel rum", "%kestrel has no command 'rum': did you mean 'run'?"),
        ("%kestrel run x --modle y", "--model"),
        ('%kestrel run "it', "put the goal in quotes"),
        ("%kestrel run x --model nope/x --approve auto", "nope"),
        ("%kestrel run x --approve sometimes", "unknown approval policy 'sometimes'"),
        ("%kestrel run x --tools bsh", "bash"),
        ("%kestrel run x --cycles many", "--cycles"),
        ("%kestrel show", "no runs in "),
        ("%kestrel count @labb", "there is no variable 'labb' for @labb in the goal; did you mean 'lab'"),
        ("%kestrel sum {q}", "there is no variable 'q' for {q} in the goal"),
        ("%kestrel shwo r0", "did you mean %kestrel show r0?"),
        ("%kestrel clean --modle y", "has no command 'clean'"),
        ("%kestrel show r0", "r0"),
        ("%kestrel show r0 --html x.html", "r0"),
        ("%kestrel resume r0", "r0"),
        ("%kestrel run --resume r0", "r0"),
        ("%kestrel fork r0", "r0"),
        ("%kestrel diff r0 r1", "r0"),
        ("%kestrel approve r0", "r0"),
        ("%kestrel deny r0", "r0"),
        ("%kestrel runs --limit few", "--limit"),
        ("%kestrel runs --limit 0", "--limit"),
        ("%kestrel holiday", 'a goal is %kestrel run "…"'),
        ("%kestrel eval run a.yaml --junit", "%kestrel eval run --help"),
        ("%kestrel compare HEAD", "name the suite file first"),
        ("%kestrel show @nobody", "@nobody"),
        ("%kestrel tools extra --nope", "--nope"),
        ("%kestrel eval rn", "eval --help"),
        ("%kestrel eval run nosuch.yaml", "nosuch.yaml"),
        ("%kestrel eval compare a b --suite nosuch.yaml", "a"),
        ("%kestrel run x --as 1x", "--as needs a variable name"),
        ("%%kestrel run words\nbody", "the cell is the goal"),
        ("%%kestrel eval run suite.yaml\nbody", "the cell is the goal"),
        ("%%kestrel\n\n", "the goal is empty"),
    ],
)
def test_mistakes_are_explained_on_one_line(shell: InteractiveShell, line: str, message: str) -> None:
    """Every command raises UsageError for what it cannot do, shown as one line that names it and says what to
    do.
    """
    with pytest.raises(UsageError) as raised:
        run(shell, line)

    assert message in str(raised.value)
    assert [text.count("\n") for text in raised.value._render_traceback_()] == [0]


def test_forks_and_diffs_are_values(shell: InteractiveShell) -> None:
    """`%kestrel fork` gives the new run, `%kestrel diff` something with a frame."""
    parent = run(shell, '%kestrel run "write" --approve auto')
    fork = run(shell, f'%kestrel fork {parent.id} --answer "no need"')
    found = run(shell, f"%kestrel diff {parent.id} {fork.id}")

    assert (fork.id != parent.id, fork.answer) == (True, "no need")
    assert (found.a.id, found.b.id, found.first_a.event.text, found.first_b.event.text) == (
        parent.id,
        fork.id,
        "done",
        "no need",
    )
    assert list(found.frame.columns) == ["a_seq", "b_seq", "type", "same", "a", "b"]


def test_a_variable_names_its_run(shell: InteractiveShell) -> None:
    """Wherever a run is named, `@r` stands for the id of the run in `r`; in a goal it stands for what the run
    did.
    """
    first = run(shell, 'r = %kestrel run "write" --approve auto\nr')
    assert run(shell, "%kestrel show @r").id == first.id
    fork = run(shell, '%kestrel fork @r --answer "no need" --approve auto')
    shell.user_ns["fork"] = fork
    assert run(shell, "%kestrel diff @r @fork").b.id == fork.id
    assert str(run(shell, "%kestrel scenario from-run @r --out found.yaml")) == "found.yaml"
    assert run(shell, '%kestrel run "again: @r" --approve auto').goal == f"again: {first.report!r}"


def test_every_verb_of_the_command_line_is_one_of_the_notebook(shell: InteractiveShell) -> None:
    """The same commands, sub-commands and options, but for the completion of terminals; `compare` is `eval
    compare`.
    """

    def words(command: Any) -> dict[str, Any]:
        options = {name: p.default for p in command.params for name in p.opts if "completion" not in name}
        return {
            "options": options,
            **{name: words(one) for name, one in getattr(command, "commands", {}).items()},
        }

    here = words(root_command())
    assert here == words(typer.main.get_command(app))
    assert here["compare"] == here["eval"]["compare"]
    wanted = (
        "run plan show runs resume approve deny fork tools models memory time macros orchestrate eval "
        "compare config doctor"
    )
    assert set(wanted.split()) <= set(here)


def test_a_setting_is_changed_for_the_session(shell: InteractiveShell) -> None:
    """`%kestrel config cache refresh` changes the notebook's lab and no file, and shows what is in force."""
    shown = run(shell, "%kestrel config cache refresh")
    assert (
        shell.user_ns["lab"].cache.mode,
        "this session" in repr(shown),
        list(Path().glob("*.toml")),
    ) == ("refresh", True, [])
    run(shell, '%kestrel run "write" --approve auto --cache off --as mine')
    assert (shell.user_ns["mine"].status, shell.user_ns["lab"].cache.mode) == ("COMPLETE", "refresh")
    with pytest.raises(UsageError, match="did you mean 'cache'"):
        run(shell, "%kestrel config cahce off")


def test_help_and_tables(shell: InteractiveShell) -> None:
    """Help is printed for the whole and for a command; lists are values."""
    run(shell, '%kestrel run "write" --approve deny')
    with capture_output() as captured:
        for line in ("%kestrel --help", "%kestrel help", "%kestrel run --help"):
            assert shell.run_cell(line).result is None  # type: ignore[no-untyped-call]

    assert captured.stdout.count("--help") >= 3
    assert (captured.outputs, [sign for sign in ("\x1b", "│", "[bold]") if sign in captured.stdout]) == (
        [],
        [],
    )
    assert max(map(len, captured.stdout.splitlines())) <= 110
    for heading, command in (("Run agents:", "run"), ("Measure:", "eval"), ("Set up:", "doctor")):
        below = captured.stdout.partition(heading)[2].partition("\n\n")[0]
        assert f"\n  {command} " in below, "grouped as in a terminal"
    assert "--approval-timeout" in captured.stdout
    assert list(run(shell, "%kestrel runs").status) == ["COMPLETE"]
    assert "bash" in run(shell, "%kestrel tools").names


def test_a_cell_that_failed_is_handed_to_the_agent(shell: InteractiveShell) -> None:
    """The goal has the cell, its traceback, the variables that it names and what is added; the person reads
    what went wrong. Without a failed cell, and for what a run ended with, there is nothing to fix.
    """
    run(shell, "one, two = [1, 2], 'unused'")
    with pytest.raises(UsageError, match="no cell has failed"):
        run(shell, "%kestrel fix")
    for failing in ("one[5]", "raise RunFailed('of a run')"):
        with pytest.raises((IndexError, RunFailed)):
            run(shell, f"from kestrel_lab import RunFailed\n{failing}")
    shell.user_ns["lab"] = Lab(model=ScriptedModel(lambda request: request.messages[-1].text))
    goal = run(shell, "%kestrel fix keep it short").answer
    assert goal.startswith("Fix the cell that failed with IndexError: list index out of range\nkeep it short")
    assert all(part in goal for part in ("```python\nfrom kestrel_lab", "one[5]", "Traceback", "one: list"))
    assert ("two: str" in goal, "IPython/core" in goal) == (False, False)
    started = next(iter(shell.user_ns["_"].events()))
    assert (started.said.count("\n"), started.goal) == (1, goal)


def test_what_was_pasted_is_not_what_the_person_said(shell: InteractiveShell) -> None:
    """A variable in a goal is filled in for the model; the log has the goal as it was written beside it."""
    run(shell, "numbers = [1, 2, 3]")
    done = run(shell, "%%kestrel --approve deny\nAdd @numbers up.")
    started = next(iter(done.events()))
    assert (started.said, started.goal) == ("Add @numbers up.", "Add [1, 2, 3] up.")
    assert "with the variables filled in" in done._repr_html_()
    assert next(iter(run(shell, "%kestrel run just this --approve deny").events())).said == ""


def test_every_completion_says_what_it_is() -> None:
    """Each word is offered with a few words of its own help."""
    offered = complete_line("%kestrel run --")
    assert offered["--workspace"].lower().startswith("the only folder")
    assert offered["--bg"] == "Notebook: do not wait for the end"
    for line in ("%kestrel ", "%kestrel eval ", "%kestrel run --approve "):
        assert all(0 < len(about) < 80 for about in complete_line(line).values())


def test_words_and_options_complete() -> None:
    """Completion knows commands, sub-commands and the options of a command."""
    assert [*complete_line("%kestrel r")] == ["resume", "router", "rules", "run", "runs"]
    assert [*complete_line("%kestrel eval c")] == ["calibration", "ci", "clusters", "comment", "compare"]
    assert [*complete_line("%kestrel macros a")] == ["accept"]
    assert [*complete_line("%kestrel --app")] == ["--approval-timeout", "--approve"]
    assert [*complete_line("%kestrel --approve x --to")] == [*complete_line("%kestrel run --to")]
    assert [*complete_line("%kestrel run --app")] == ["--approval-timeout", "--approve"]
    assert "--workspace" in complete_line("%%kestrel ")
    assert [*complete_line("%kestrel memory --re")] == ["--replaced"]
    assert [*complete_line("%kestrel time --z")] == ["--zone"]
    assert [*complete_line("%kestrel compare --suite-")] == ["--suite-at-commit"]


def test_values_complete(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run ids, policies, tools, usable models and files complete where they may stand, and nothing else is
    offered there.
    """
    lab = shell.user_ns["lab"]
    run(shell, '%kestrel run "write" --approve auto --as first')
    run(shell, '%kestrel run "write" --approve auto --as second')
    ids = sorted(shell.user_ns[name].id for name in ("first", "second"))
    Path("suites").mkdir()
    Path("suites/a.yaml").touch()
    lab.env = {"OPENAI_API_KEY": "x", "OLLAMA_HOST": "127.0.0.1:9"}

    def found(line: str) -> list[str]:
        return [*complete_line(line, lambda: lab)]

    assert [found(line) for line in ("%kestrel show ", "%kestrel diff x ", "%kestrel run --resume ")] == [
        ids
    ] * 3
    assert found(f"%kestrel show {ids[0]}") == [ids[0]]
    assert found("%kestrel show x --") == [
        "--at",
        "--atif",
        "--call",
        "--content",
        "--help",
        "--html",
        "--otlp",
        "--slider",
    ]
    assert found("%kestrel run --approve auto:m") == ["auto:medium"]
    assert found("%%kestrel --approve ")[:3] == ["ask", "auto", "auto:critical"]
    assert found("%kestrel run --tools bash,read") == ["bash,read_file", "bash,read_notebook"]
    assert [name for name in found("%kestrel run --model ") if name.startswith("openai/")] == [
        "openai/gpt-6-luna"
    ]
    assert found("%kestrel eval run sui") == ["suites/"]
    assert found("%kestrel run --cycles ") == []
    assert found("%kestrel help ru") == ["rules", "run", "runs"]
    note = lab.memory.remember("Tests are run with make.", tags=["tests"])
    assert [found(f"%kestrel memory {verb} ") for verb in ("show", "edit")] == [[note.id]] * 2
    assert found("%kestrel memory forget ta") == ["tag:tests", "tainted"]
    assert found("%kestrel memory --select kind:p") == ["kind:pitfall", "kind:preference", "kind:procedure"]
    assert found("%kestrel memory add x --kind fi") == ["fingerprint"]
    assert found("%kestrel time x --prefer ") == ["future", "past"]


def tab(shell: InteractiveShell, text: str) -> list[str]:
    """What the last line of a cell becomes for each word that Tab offers, as front ends put it in."""
    with provisionalcompleter():
        found = list(shell.Completer.completions(text, len(text)))
    return [(text[: one.start] + one.text + text[one.end :]).split("\n")[-1] for one in found]


def test_the_shell_completes_words(shell: InteractiveShell) -> None:
    """Tab after `%kestrel` offers our words and no others, also behind `r =`, a colon or a comma; elsewhere
    nothing of ours.
    """
    assert tab(shell, "%kestrel ru") == ["%kestrel rules", "%kestrel run", "%kestrel runs"]
    assert tab(shell, "x = 5\nr = %kestrel ru") == [
        "r = %kestrel rules",
        "r = %kestrel run",
        "r = %kestrel runs",
    ]
    assert tab(shell, "%kestrel run --m") == ["%kestrel run --model"]
    assert tab(shell, "%kestrel run --approve auto:m") == ["%kestrel run --approve auto:medium"]
    assert tab(shell, "%kestrel run --tools bash,read") == [
        f"%kestrel run --tools bash,{name}" for name in ("read_file", "read_notebook")
    ]
    assert "%kestrel plan x --plan react" in tab(shell, "%kestrel plan x --plan r")
    run(shell, '%kestrel run "write" --approve auto --as mine')
    assert tab(shell, "%kestrel show @") == ["%kestrel show @mine"]
    assert tab(shell, "%%kestrel\nrun") != ["run", "runs"]
    shell.run_line_magic("unload_ext", "kestrel_lab")
    assert "%kestrel run" not in tab(shell, "%kestrel ru")


def test_the_type_of_a_completion_is_a_word(shell: InteractiveShell) -> None:
    """Front ends have a narrow column for it; a longer text lies over the completion itself."""
    run(shell, '%kestrel run "write" --approve auto --as mine')
    lines = ["ru", "run --", "run --approve ", "show ", "show @", "memory ", "eval r", "run --tools bash,"]
    types = set()
    with provisionalcompleter():
        for text in (f"%kestrel {line}" for line in lines):
            types |= {str(one.type) for one in shell.Completer.completions(text, len(text))}
    assert types == {"command", "option", "value", "variable"}


def test_a_place_that_cannot_be_written_is_told_on_one_line(shell: InteractiveShell) -> None:
    """A file that the system refuses is a `UsageError` that names it, with a next step."""
    run(shell, 'r = %kestrel run "write" --approve auto')
    with pytest.raises(
        UsageError, match=r"^/proc/x: .*: name another place, or make it readable and writable$"
    ):
        run(shell, "%kestrel show @r --html /proc/x/y.html")


def test_a_magic_at_the_top_of_a_cell_is_awaited() -> None:
    """Only column 0 is rewritten, only before a cell runs, only in a kernel with autoawait."""

    class Shell:
        autoawait = True
        kernel: object = object()

    rewriter = AwaitRewriter(Shell())
    line = "get_ipython().run_line_magic('kestrel', 'run x')\n"
    awaited = "await get_ipython().run_line_magic('kestrel_await', 'run x')\n"

    assert rewriter([line, f"r = {line}", f"    {line}"]) == [awaited, f"r = {awaited}", f"    {line}"]
    empty = "get_ipython().run_cell_magic('kestrel', '', '')"
    assert rewriter([empty]) == [f"await {empty[:-4].replace('kestrel', 'kestrel_await')} '\\n')"]
    rewriter.began()
    assert rewriter([line]) == [line]
    rewriter.ended()
    Shell.autoawait = False
    assert rewriter([line]) == [line]
    Shell.autoawait, Shell.kernel = True, None
    assert rewriter([line]) == [line]


def test_unloading_leaves_nothing_behind(shell: InteractiveShell) -> None:
    """After unload the magic is unknown and no transformer of ours is left; loading again works."""
    shell.run_line_magic("unload_ext", "kestrel_lab")

    assert "kestrel" not in shell.magics_manager.magics["line"]
    assert not [t for t in shell.input_transformers_post if isinstance(t, AwaitRewriter)]
    shell.run_line_magic("load_ext", "kestrel_lab")
    assert run(shell, '%kestrel run "write" --approve deny').answer == "done"


def test_a_run_works_below_a_running_loop(shell: InteractiveShell) -> None:
    """Called where a loop runs already and nothing can await, the magic still gives the run."""

    async def main() -> Any:
        return shell.run_line_magic("kestrel", 'run "write" --approve auto')

    with capture_output():
        assert asyncio.run(main()).answer == "done"


def test_progress_is_throttled_and_its_end_is_shown(shell: InteractiveShell) -> None:
    """Many reports give few pictures, and always the last."""
    with capture_output() as captured:
        reporter = NotebookReporter(Lab)
        for done in range(1_001):
            reporter(done, 1_000, "<b>")

    shown = [output.data["text/plain"] for output in captured.outputs]
    assert (len(shown) <= 3, shown[0], shown[-1]) == (True, "0 of 1,000 · <b>", "1,000 of 1,000 · <b>")
    assert "&lt;b&gt;" in captured.outputs[-1].data["text/html"]


def test_looks_of_trials_in_turns_are_drawn_in_one_place(shell: InteractiveShell) -> None:
    """While trials are made in turns each look renews the plot; the last one shows all of them."""
    scenarios = tuple(
        Scenario(id=f"s{n}", goal=f"Greet {n}", checks=(AnswerContains(texts=("hello",)),)) for n in range(20)
    )
    models = {"polite": ScriptedModel(lambda r: "hello"), "rude": ScriptedModel(lambda r: "no")}
    with capture_output() as captured, Lab() as lab:
        found = lab.evals.compare_in_turns_sync(
            Suite(name="greetings", scenarios=scenarios),
            "polite",
            "rude",
            design=Design(trials=40, looks=4),
            configs=models,
            reporter=NotebookReporter(lambda: lab, live=False),
        )
    plots = [output for output in captured.outputs if "image/png" in output.data]
    assert len(plots) == len(found.sequence.looks) == 2
    assert [plot.update for plot in plots] == [False, True]
    assert f"verdict after {found.sequence.pairs} pairs: regression" in plots[-1].data["text/plain"]


def test_a_workflow_in_a_cell(shell: InteractiveShell, tmp_path: Path) -> None:
    """Plans are values; a run follows one with inputs, in which `@name` stands for a variable."""
    (tmp_path / "flow.yaml").write_text(
        "kind: sequential\ninputs: {what: it}\nsteps: [{id: a, goal: 'Write {{what}}: {{goal}}'}]\n"
    )
    shell.user_ns["word"] = "a letter"
    plan = run(shell, '%kestrel plan "to Ann" --plan flow.yaml --input what=@word')
    assert [step.goal for step in plan.steps] == ["Write a letter: to Ann"]
    made = run(shell, '%kestrel run "to Ann" --plan flow.yaml --input what=@word --approve auto')
    assert (made.status, made.plan.without_results()) == ("COMPLETE", plan)
    assert list(run(shell, "%kestrel plans").index) == [
        "learning",
        "pev",
        "react",
        "staged",
        "standard",
        "tree_of_thoughts",
        "websearch",
    ]


def test_macros_are_looked_at_and_accepted_in_a_cell(shell: InteractiveShell) -> None:
    """`%kestrel macros` gives the table, `%kestrel macros accept` keeps what three runs did, and it is
    offered from then on.
    """
    turns = [[("file_exists", {"path": "a"}), ("list_directory", {})], "done"]
    for _ in range(3):
        shell.user_ns["lab"].run_sync("look", model=ScriptedModel(turns))
    table = run(shell, "%kestrel macros")
    assert "file_exists_list_directory()" in repr(table)
    assert "proposed, 3 times" in table._repr_html_()
    assert (
        run(shell, "%kestrel macros accept file_exists_list_directory --as look") is None
    )  # told, and no value to show
    assert [macro.name for macro in run(shell, "%kestrel macros").list()] == ["look"]
    assert run(shell, "%kestrel macros show look").steps[0].args == {"path": "a"}
    shell.user_ns.update(which="look", here=Path.cwd())  # `@name` also below a command that has commands
    assert run(shell, "%kestrel macros show @which --workspace @here").name == "look"
    with pytest.raises(UsageError, match="did you mean 'look'"):
        run(shell, "%kestrel macros remove lok")


def test_a_scenario_is_drafted_in_a_cell(shell: InteractiveShell, tmp_path: Path) -> None:
    """`%kestrel scenario from-run` prints the draft of a run, or writes it and gives the file."""
    made = shell.user_ns["lab"].run_sync("look", model=ScriptedModel(["seen 42"]), workspace=tmp_path)
    with capture_output() as shown:
        shell.run_cell(f"%kestrel scenario from-run {made.id}")  # type: ignore[no-untyped-call]
    assert "goal: look" in shown.stdout
    assert (
        run(shell, f"%kestrel scenario from-run {made.id} --out {tmp_path}/found.yaml")
        == tmp_path / "found.yaml"
    )


def test_recordings_are_imported_by_path_and_by_variable(shell: InteractiveShell, tmp_path: Path) -> None:
    """Arguments that are paths may stand in the line, or be a variable."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    for number in (1, 2):
        messages = [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": "Yes."},
        ]
        (folder / f"{number}.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    shell.push({"one": folder / "1.jsonl"})  # type: ignore[no-untyped-call]
    first = run(shell, "%kestrel import @one")
    second = run(shell, f"%kestrel import {folder}")
    assert (first.added, second.added) == (1, 1)


def test_time_gives_a_reading_that_renders(shell: InteractiveShell) -> None:
    """`%kestrel time` needs no quotes; its result is a value and a table, and a refusal is one line."""
    found = run(
        shell, "%kestrel time next friday at 15:30 --reference 2026-11-18T12:00:00 --zone Europe/Vienna"
    )
    assert (found.start.isoformat(), found.zone.name) == ("2026-11-27T15:30:00+01:00", "Europe/Vienna")
    assert "the coming Friday is 2026-11-20" in found._repr_html_()
    assert run(shell, "%kestrel time --zone Asia/Tokyo").zone.name == "Asia/Tokyo"
    with pytest.raises(UsageError, match="America/Chicago or Asia/Shanghai"):
        run(shell, "%kestrel time 3pm CST")
