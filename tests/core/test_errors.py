"""Errors: which of several is raised, what foreign ones become, and what their readers can do."""

import pytest

from kestrel_lab.core.errors import (
    START_STEP,
    ApprovalRequired,
    CheckError,
    KestrelError,
    RunCancelled,
    RunError,
    UsageError,
    did_you_mean,
    error_boundary,
    most_severe,
)


def test_a_failure_goes_before_a_signal() -> None:
    """Of several errors the first failure is raised, with the other failures as notes; groups count as what
    is in them.
    """
    stopped, one, two = RunCancelled("stop"), ValueError("one"), KeyError("two")
    found = most_severe([stopped, ExceptionGroup("g", [one, ExceptionGroup("h", [two])])])
    assert found is one
    assert found.__notes__ == ["at the same time: KeyError: 'two'"]
    assert most_severe([stopped, RunCancelled("again")]) is stopped
    assert not hasattr(stopped, "__notes__")


@pytest.mark.parametrize(
    ("tool", "question", "words"),
    [
        (START_STEP, False, ("begin step deploy", "to approve it", "kestrel approve r1 ·")),
        ("ask_user", True, ("ask a question", "to answer it", "kestrel approve r1 --answer TEXT")),
        ("bash", False, ("call bash", "to approve it", "kestrel approve r1 ·")),
    ],
)
def test_a_run_that_waits_says_how_it_goes_on(tool: str, question: bool, words: tuple[str, ...]) -> None:
    """What is wanted, by whom it can be decided, and the commands for it."""
    error = ApprovalRequired("r1", tool, {"step": "deploy"}, question=question)
    for word in (*words, "kestrel show r1", "kestrel run --resume r1"):
        assert word in str(error)
    assert (error.run_id, error.tool, error.args_asked) == ("r1", tool, {"step": "deploy"})


def test_foreign_errors_get_a_name_and_our_own_pass() -> None:
    """An error of foreign code becomes the given kind and says what failed; cancellations and our own errors
    stay.
    """
    with (
        pytest.raises(CheckError, match="the check x failed: ZeroDivisionError: ") as caught,
        error_boundary(CheckError, "the check x"),
    ):
        print(1 // 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(UsageError, match="mine"), error_boundary(CheckError, "x"):
        raise UsageError("mine")
    with pytest.raises(KeyboardInterrupt), error_boundary(RunError, "x"):
        raise KeyboardInterrupt


def test_an_error_is_one_harmless_line_in_a_notebook() -> None:
    """No traceback, no escapes of a terminal."""
    assert KestrelError("a\x1b[2Jb")._render_traceback_() == ["KestrelError: ab"]


@pytest.mark.parametrize(
    ("word", "options", "clause"),
    [
        ("gerp", ("grep", "glob"), "did you mean 'grep'?"),
        ("zzz", ("b", "a"), "known: a, b"),
        ("x", (), "known: none"),
    ],
)
def test_a_mistyped_word_is_answered_with_what_there_is(
    word: str, options: tuple[str, ...], clause: str
) -> None:
    """The nearest option, else all of them."""
    assert did_you_mean(word, options) == clause
