"""Options of evaluations are declared once, for Python and the command line."""

import inspect
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from kestrel_lab import Lab
from kestrel_lab.cli.app import app
from kestrel_lab.cli.frontend import option_groups
from kestrel_lab.evals.evaluations import Evaluations
from kestrel_lab.evals.options import AblationOptions, EvalOptions, JudgeOptions, LabelOptions
from kestrel_lab.runtime.options import Flag, Opt


@cache
def commands():
    """The commands of `kestrel eval`, whose making takes a second."""
    return typer.main.get_command(app).commands["eval"].commands


@pytest.mark.parametrize(
    ("options", "command"),
    [(EvalOptions, "run"), (AblationOptions, "ablate"), (JudgeOptions, "judge"), (LabelOptions, "label")],
)
def test_a_command_has_the_options_of_its_table(options, command):
    """Each field with a flag is an option of the command, with the default that Python code gets."""
    params = {one.name: one for one in commands()[command].params}
    hints = get_type_hints(options, include_extras=True)
    for field in fields(options):
        opt = next(
            (one for one in getattr(hints[field.name], "__metadata__", ()) if isinstance(one, Opt)), None
        )
        assert (field.name in params) == (opt is not None)
        if opt is not None:
            assert opt.default == field.default
            assert params[field.name].default in (field.default, None)
            assert params[field.name].help.startswith(opt.meaning[0].upper())


def test_help_shows_types_and_defaults():
    """What Python shows of an option is its plain type with its default."""
    shown = inspect.signature(Lab.eval).parameters
    assert (shown["reuse"].annotation, shown["reuse"].default) == (bool, False)
    assert inspect.signature(Evaluations.stored).parameters["by"].default == "config"


def test_a_field_is_all_that_an_option_needs():
    """A new field is an option, parsed as it says, with its default where it is not given; one without a flag
    is none.
    """

    @dataclass(frozen=True, kw_only=True)
    class Tone:
        """Made up."""

        tone: Annotated[str, Opt("DRY", "manner", flag=Flag("--tone -t", parse=str.upper))] = "DRY"
        times: Annotated[int, Opt(2, "how often", flag=Flag(kind=int, least=1))] = 2
        names: Annotated[list[str] | None, Opt(None, "who", flag=Flag("--name", kind=list[str]))] = None
        inside: object = None

    said = []

    def speak(*, how):
        said.append(how)

    speak.__annotations__["how"] = Tone
    program = typer.Typer()
    program.command()(option_groups(speak))
    run = CliRunner().invoke
    for words in ([], ["-t", "warm", "--times", "3", "--name", "a", "--name", "b"]):
        assert run(program, words).exit_code == 0
    assert said[0] == Tone(tone="DRY")
    assert said[1] == Tone(tone="WARM", times=3, names=["a", "b"])
    assert run(program, ["--times", "0"]).exit_code == run(program, ["--inside", "x"]).exit_code == 2
