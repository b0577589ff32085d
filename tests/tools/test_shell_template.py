"""Values in commands of macros and workflows: they are data wherever they stand, or the template is
refused.
"""

import asyncio
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ToolAnswered
from kestrel_lab.core.expressions import templates as template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.lab import Lab
from kestrel_lab.shell_syntax.template import check_command, render_call
from kestrel_lab.testing import ScriptedApprover, ScriptedModel
from kestrel_lab.tools.macros import Macro, MacroRegistry, add_macro

WORD: dict[str, Json] = {"type": "object", "properties": {"w": {"type": "string"}}, "required": ["w"]}
HOSTILE = [
    "q; touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "\ntouch PWNED\n",
    "x\nEOF\ntouch PWNED\n",
    "\\'; touch PWNED; #",
    '\\";touch PWNED;"',
    "') ; touch PWNED; ('",
    "a[$(touch PWNED)]",
    "| touch PWNED",
    "--output=PWNED",
    "2",
    "",
]
SAFE = [
    "printf %s {{w}} > out",
    'printf %s "{{w}}" > out',
    "printf %s '{{w}}' > out",
    "printf %s $'{{w}}' > out",
    'printf %s "$(printf %s {{w}})" > out',
    'printf %s "$(printf %s "{{w}}")" > out',
    'x={{w}}; printf %s "$x" > out',
    "if true; then printf %s {{w}} > out; fi",
    'for x in {{w}}; do printf %s "$x" > out; done',
    "(printf %s {{w}}) > out",
    "bash -c 'printf %s \"$1\" > out' _ {{w}}",
    "printf %s {{w}}>out",
    "cat <<< {{w}} | tr -d '\\n' > out",
]
REFUSED = [
    ("{{w}} x", "the name of a command"),
    ("env {{w}}", "the name of a command"),
    ("find . -exec {{w}} \\;", "the name of a command"),
    ("cat <<EOF\n{{w}}\nEOF", "a here-document"),
    ("cat <<'EOF'\n{{w}}\nEOF", "a here-document"),
    ("echo `ls {{w}}`", "backticks"),
    ("echo $(({{w}}+1))", "the name of a variable"),
    ("[[ {{w}} -eq 1 ]]", "binary expression"),
    ("ls # {{w}}", "a comment"),
    ("echo \\{{w}}", "word"),
    ("echo $${{w}}", "do not agree"),
    ("bash -c 'echo {{w}}'", "what bash reads as a program"),
    ("eval {{w}}", "what eval reads as a program"),
    ("sudo sh -c {{w}}", "what sh reads as a program"),
    ("python -c 'print({{w}})'", "a program of python"),
    ("sed 's/a/{{w}}/' f", "a program of sed"),
    ("awk -F , {{w}} f", "a program of awk"),
    ("ssh host {{w}}", "what ssh reads as a program"),
    ("export A={{w}}", "declaration command"),
    ("a[{{w}}]=1", "subscript"),
    ("f() { ls {{w}}; }; f", "function definition"),
    ("git -c alias.x={{w}} x", "a command that git is to run"),
    ("GIT_PAGER={{w}} git log", "variable assignment"),
    ("echo 'a {{w}}", "cannot be read"),
]


def run(line: str, folder: Path) -> None:
    """Run a line in bash."""
    subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", line],
        cwd=folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize("text", SAFE)
def test_a_value_is_one_word_wherever_it_stands(text: str, tmp_path: Path) -> None:
    """Bash gives the program exactly the value, whatever signs are in it, or the value is refused as an
    option; nothing else runs.
    """
    for value in HOSTILE:
        try:
            line = str(render_call({"command": text}, {"w": value})["command"])
        except UsageError:
            assert value == "--output=PWNED"
            continue
        run(line, tmp_path)
        assert not (tmp_path / "PWNED").exists(), line
        if not text.startswith("cat"):
            wanted = value.rstrip("\n") if "$(printf" in text else value  # bash takes ends of lines off
            assert (tmp_path / "out").read_text() == wanted


def test_values_put_in_as_they_are_are_caught(tmp_path: Path) -> None:
    """The mutant: a renderer that writes values into the command, as macros did before, runs them."""
    ran = 0
    for number, value in enumerate(HOSTILE):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(str(template.render_template(SAFE[0], {"w": value})), folder)
        ran += (folder / "PWNED").exists()
    assert ran > 4


@pytest.mark.parametrize(("text", "where"), REFUSED)
def test_a_place_that_cannot_be_made_safe_is_refused(text: str, where: str) -> None:
    """A macro whose command could read a value as a program cannot be made; the message names the place."""
    with pytest.raises(UsageError, match="step 1 of macro 'm'") as failure:
        Macro.from_json("m", "Runs.", WORD, [{"type": "tool", "name": "bash", "args": {"command": text}}])
    assert where in str(failure.value)
    with pytest.raises(UsageError):
        check_command({"command": text})


def test_a_command_that_is_a_reference_alone_is_the_value() -> None:
    """There is no template around it: the value is the command, which is approved as any other."""
    assert render_call({"command": "{{w}}", "timeout_s": "{{n}}"}, {"w": "ls; ls", "n": 3}) == {
        "command": "ls; ls",
        "timeout_s": 3,
    }


PART = st.sampled_from(
    [
        "{{w}}",
        "a",
        " ",
        " ",
        " ",
        "'",
        '"',
        "\\",
        "$",
        "$(",
        ")",
        "`",
        "echo ",
        ";",
        "|",
        ">",
        "\n",
        "#",
        "{",
        "}",
        "=",
        "&&",
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PART, min_size=1, max_size=9).map(lambda parts: "echo " + "".join(parts) + "{{w}}"),
    st.sampled_from(HOSTILE),
)
def test_no_template_that_is_accepted_runs_a_value(
    tmp_path_factory: pytest.TempPathFactory, text: str, value: str
) -> None:
    """Of random templates, bash runs no value in any that is accepted."""
    try:
        line = str(render_call({"command": text}, {"w": value})["command"])
    except UsageError:
        return
    folder = tmp_path_factory.mktemp("w")
    run(line, folder)
    assert not (folder / "PWNED").exists() or "touch" not in value, line


def test_the_approval_shows_the_line_that_runs(tmp_path: Path, workspace: Path) -> None:
    """A macro's command is asked about with its value quoted, and that line is what runs."""
    macro = Macro.from_json(
        "keep",
        "Keeps a word.",
        WORD,
        [{"type": "tool", "name": "bash", "args": {"command": "echo hi > {{w}}"}}],
    )
    with closing(Lab(tmp_path / "home", env={}, sandbox="S0", containment="off")) as session:
        MacroRegistry(session.store, str(workspace)).save(macro)
        person = ScriptedApprover([True])
        turns = [[("macro_run", {"name": "keep", "args": {"w": "q; touch PWNED"}})], "done"]
        done = session.run_sync("go", model=ScriptedModel(turns), workspace=workspace, approver=person)
        asked = [event.args["command"] for event in done.events() if isinstance(event, ApprovalAsked)]
        assert (asked, done.answer) == (["echo hi > 'q; touch PWNED'"], "done")
        assert sorted(path.name for path in workspace.iterdir() if path.is_file()) == ["q; touch PWNED"]


def test_a_stored_macro_of_an_earlier_version_is_safe(tmp_path: Path, workspace: Path) -> None:
    """What was kept before is listed still: a safe place is quoted, and a place that cannot be made safe
    stops the macro.
    """
    with closing(Lab(tmp_path / "home", env={}, sandbox="S0", containment="off", approve="auto")) as session:
        for name, text in (("old", "echo hi > {{w}}"), ("worse", "bash -c 'echo {{w}}'")):
            steps: list[Json] = [{"type": "tool", "name": "bash", "args": {"command": text}}]
            add_macro(session.store, str(workspace), Macro.from_json(name, "Old.", WORD, steps, stored=True))
        registry = MacroRegistry(session.store, str(workspace))
        assert [macro.name for macro in registry.list()] == ["old", "worse"]
        turns = [
            [("macro_run", {"name": name, "args": {"w": "q; touch PWNED"}})] for name in ("old", "worse")
        ]
        done = session.run_sync("go", model=ScriptedModel([*turns, "done"]), workspace=workspace)
        told = [event.text for event in done.events() if isinstance(event, ToolAnswered)]
        assert "what bash reads as a program" in told[-1]
        assert sorted(path.name for path in workspace.iterdir() if path.is_file()) == ["q; touch PWNED"]
        with pytest.raises(UsageError, match="what bash reads as a program"):
            registry.save(registry.get("worse"))


def test_commands_of_plans_are_treated_alike(tmp_path: Path, workspace: Path) -> None:
    """An artifact in a step's command is quoted; a plan whose command cannot be made safe does not begin."""

    def plan(text: str) -> Plan:
        first = Step(id="a", tool="read_file", args={"path": "word"}, produces=("w",))
        return Plan(steps=(first, Step(id="b", tool="bash", args={"command": text}, consumes=("w",))))

    (workspace / "word").write_text("q; touch PWNED")
    with closing(Lab(tmp_path / "home", env={}, sandbox="S0", containment="off", approve="auto")) as session:
        asyncio.run(
            session.run(
                "go", plan=plan("printf %s {{w}} > out"), model=ScriptedModel([]), workspace=workspace
            )
        )
        assert "q; touch PWNED" in (workspace / "out").read_text()
        assert not (workspace / "PWNED").exists()
        with pytest.raises(UsageError, match="what sh reads as a program"):
            asyncio.run(
                session.run("go", plan=plan("sh -c {{w}}"), model=ScriptedModel([]), workspace=workspace)
            )
