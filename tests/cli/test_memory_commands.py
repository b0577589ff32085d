"""`kestrel memory`: what is remembered, by commands alone."""

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import home_of

from kestrel_lab.cli.main import main
from kestrel_lab.core.notes import Note
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.workspace.memory import Notes

Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in an empty folder; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def note_id(output: str) -> str:
    """The id in the card of a note."""
    found = re.search(r"^note (n\w+)$", output, re.MULTILINE)
    assert found
    return found[1]


def test_a_note_from_its_first_day_to_its_last(kestrel: Kestrel, tmp_path: Path) -> None:
    """Added, listed, found, shown, edited, drawn, replaced, forgotten: each command says what became of
    it.
    """
    assert "nothing is remembered yet" in kestrel("memory")[1]
    main_branch = note_id(kestrel("memory", "add", "The default branch is main.", "--tag", "git")[1])
    assert "The default branch is main." in kestrel("memory")[1]
    assert main_branch in kestrel("memory", "search", "which branch is the default")[1]
    assert "no note has to do with that" in kestrel("memory", "search", "marmalade")[1]
    code, out, _ = kestrel(
        "memory", "edit", main_branch[:5], "--text", "The default branch is zqtrunkx.", "--confidence", "0.5"
    )
    assert (code, "zqtrunkx" in out, "0.50" in out, "tags:        git" in out) == (0, True, True, True)
    code, out, _ = kestrel("memory", "add", "The default branch is develop.", "--ttl", "30d")
    assert f"replaces:    {main_branch}: The default branch is zqtrunkx." in out
    assert "zqtrunkx" not in kestrel("memory")[1]
    assert "replaced by" in kestrel("memory", "--replaced")[1]
    assert "replaces" in kestrel("memory", "graph")[1]
    assert kestrel("memory", "graph", "--html", "m.html")[0] == 0
    drawn = (tmp_path / "m.html").read_text()
    assert ("<svg" in drawn, "zqtrunkx" in drawn, "<script" in drawn) == (True, True, False)
    code, _, err = kestrel("memory", "forget", "kind:fact")
    assert (code, "means 2 notes" in err, "add --yes" in err) == (2, True, True)
    assert kestrel("memory", "forget", "kind:fact", "--yes")[:2] == (0, "forgot 2 notes\n")
    assert "zqtrunkx" not in (home_of(tmp_path) / "kestrel.db").read_bytes().decode("latin-1")


def test_what_has_expired_is_listed_only_as_such(kestrel: Kestrel) -> None:
    """After its time a note is in no list, no search and no drawing; `expired` still means it, to be wiped
    from the files.
    """
    kestrel("memory", "add", "The demo is zqtodayx.", "--ttl", "0.01s")
    time.sleep(0.02)
    assert "zqtodayx" not in "".join(
        kestrel("memory", *words)[1]
        for words in ((), ("search", "demo"), ("graph",), ("--select", "kind:fact"))
    )
    assert "zqtodayx" in kestrel("memory", "--select", "expired")[1]
    assert kestrel("memory", "forget", "expired")[1] == "forgot 1 note\n"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "x", "--kind", "fcat"), "there is no kind of notes 'fcat'; did you mean 'fact'"),
        (("add", " "), "a note has from 1 to 4,000 characters"),
        (("add", "x", "--ttl", "soon"), "'soon' is not a time"),
        (("add", "x", "--ttl", "0d"), "a note is kept for more than 0 seconds"),
        (("add", "x", "--run", "r1"), "no run 'r1'"),
        (("add", "x", "--confidence", "7"), "confidence of a note is from 0 to 1"),
        (("edit", "n123"), "say what to change"),
        (("show", "n123"), "no note 'n123'"),
        (("forget", "knid:fact"), "did you mean 'kind'"),
        (("learn", "r1"), "no run 'r1'"),
    ],
)
def test_wrong_words_are_told_from_right_ones(kestrel: Kestrel, words: tuple[str, ...], why: str) -> None:
    """Nothing happens and the message says what to write."""
    code, _, err = kestrel("memory", *words)
    assert (code, why in " ".join(err.split())) == (2, True)


def test_hostile_notes_are_shown_as_text(tmp_path: Path) -> None:
    """Markup, formulas and terminal codes in a note are text in tables, cards, drawings and pages."""
    lab = Lab(tmp_path / "home", env={})
    memory = lab.memory.at(tmp_path)
    hostile = "<img src=x onerror=alert(1)> `</text><script>a()</script>` \x1b[2J"
    note = memory.remember(hostile, tags=["<b>t</b>"])
    drawing = memory.graph()
    for shown in (memory, memory.list(), memory.show(note.id), drawing):
        markup = shown._repr_html_()
        assert ("<img" in markup, "<script" in markup, "<b>" in markup, "&lt;img" in markup) == (
            False,
            False,
            False,
            True,
        )
        assert "\x1b" not in repr(shown)
    assert "<script" not in drawing.save(tmp_path / "m.html").read_text()
    lab.close()


def test_a_long_list_shows_the_newest_and_says_how_many_more_there_are() -> None:
    """Ten thousand notes would be megabytes in a saved notebook."""
    notes = Notes(tuple(Note(text=f"Fact {number}.", id=f"n{number}") for number in range(1_200)), "here")
    assert "and 1,000 more: choose with --select" in repr(notes)
    assert (len(notes), "Fact 199." in repr(notes), "Fact 200." in repr(notes)) == (1_200, True, False)
    assert len(notes._repr_html_()) < 200_000
    assert "more:" not in repr(Notes(notes[:200], "here"))
