"""`kestrel macros`: from three equal runs to one call, by commands alone."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main

BY_HAND = """
  - when: by hand {word}
    turns:
      - - {{tool: glob, args: {{pattern: {word}.txt}}}}
      - - {{tool: read_file, args: {{path: {word}.txt}}}}
      - - {{tool: write_file, args: {{path: copy-{word}.txt, content: text of {word}}}}}
      - copied
"""
BY_MACRO = """
  - when: by macro
    turns:
      - - {tool: macro_run, args: {name: copy, args: {pattern: four.txt, path: copy-four.txt}}}
      - copied
"""
WORDS = ("one", "two", "three")

Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in a folder with a script and four files; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    rules = "".join(BY_HAND.format(word=word) for word in WORDS) + BY_MACRO
    (tmp_path / "script.yaml").write_text(f"rules:\n{rules}")
    for word in (*WORDS, "four"):
        (tmp_path / f"{word}.txt").write_text(f"text of {word}")

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def test_a_workflow_done_three_times_is_one_call_the_fourth(kestrel: Kestrel, tmp_path: Path) -> None:
    """Three runs, `macros`, `macros show`, `macros accept`: the fourth run calls one tool, which still has to
    be approved.
    """
    assert "none to propose" in kestrel("macros")[1]
    for word in WORDS:
        assert (
            kestrel("run", f"by hand {word}", "--model", "scripted:script.yaml", "--approve", "auto")[0] == 0
        )
    code, out, _ = kestrel("macros")
    assert code == 0
    assert "glob_read_file_write_file(pattern, path)" in out
    assert "proposed, 3 times" in out
    shown = kestrel("macros", "show", "glob_read_file_write_file")[1]
    assert '2. read_file {"path":"{{steps[0].content}}"}' in shown
    assert '3. write_file {"path":"{{path}}","content":"{{steps[1].content}}"}' in shown
    assert kestrel("macros", "accept", "glob_read_file_write_file", "--as", "copy")[1].startswith(
        "kept copy(pattern, path): "
    )
    assert "proposed" not in kestrel("macros")[1]

    code, _, err = kestrel("run", "by macro", "--model", "scripted:script.yaml")
    assert (code, "wants to call write_file" in err) == (3, True)
    run_id = err.split("run ", 1)[1].split()[0]
    assert kestrel("approve", run_id)[0] == 0
    code, out, _ = kestrel("resume", run_id)
    assert (code, (tmp_path / "copy-four.txt").read_text()) == (0, "text of four")
    assert "macro_run" in kestrel("show", run_id)[1]


def test_macros_are_disabled_enabled_and_removed(kestrel: Kestrel) -> None:
    """Each command says what it did; a disabled macro is not offered; an unknown one is told with the
    nearest, exit code 2.
    """
    for word in WORDS:
        kestrel("run", f"by hand {word}", "--model", "scripted:script.yaml", "--approve", "auto")
    kestrel("macros", "accept", "glob_read_file_write_file", "--as", "copy")
    assert kestrel("macros", "disable", "copy")[1] == "disabled copy\n"
    assert "disabled" in kestrel("macros")[1]
    assert "there is no tool 'macro_run'" in kestrel("run", "by macro", "--model", "scripted:script.yaml")[1]
    assert kestrel("macros", "enable", "copy")[1] == "enabled copy\n"
    assert kestrel("macros", "disable", "copi")[::2] == (
        2,
        f"error: there is no macro 'copi' for {Path.cwd()}; did you mean 'copy'?\n",
    )
    assert kestrel("macros", "remove", "copy")[1] == "removed copy\n"
    assert "proposed, 3 times" in kestrel("macros")[1]
    assert kestrel("macros", "accept", "nothing")[0] == 2
    code, _, err = kestrel("macros", "--workspace", "src", "remove", "copy")
    assert (code, "write --workspace behind remove" in err) == (2, True)
    assert "no macros for" in kestrel("macros", "--workspace", "src")[1]
