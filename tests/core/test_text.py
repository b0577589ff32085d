"""Foreign text made harmless and short."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import RunFailed, UsageError
from kestrel_lab.core.sanitize import escape_surrogates, head_tail, one_line, overwrite_lines, sanitize_text

hostile = st.text(
    st.characters() | st.sampled_from("\x1b[]0m;\x07\\\r\n\t\u202e\ud800\x9b\U000e0041"), max_size=60
)


@given(text=hostile)
def test_plain_text_is_visible_and_encodable(text: str) -> None:
    """Nothing is left that moves a cursor, hides, reverses or cannot be written; doing it again changes
    nothing.
    """
    shown = sanitize_text(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    shown.encode()
    assert sanitize_text(shown) == shown


@given(text=st.text(st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\ufeff\u2028")))
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Letters, digits and punctuation of any script stay as they are, with their lines."""
    assert sanitize_text(f"{text}\n\t{text}\r\n") == f"{text}\n\t{text}\n"


def test_escapes_are_removed_and_hidden_characters_shown() -> None:
    """Colours, titles and hyperlinks go; a right-to-left override and a tag character can be seen."""
    assert (
        sanitize_text("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\")
        == "red link"
    )
    assert sanitize_text("a\u202eb\U000e0041\ud800\r") == "a\\u{202e}b\\u{e0041}\\u{d800}\\u{d}"


@given(text=st.text(max_size=200), limit=st.integers(0, 120))
def test_head_and_tail_are_kept(text: str, limit: int) -> None:
    """Short text is untouched; of long text the beginning and the end are kept, `limit` characters in all,
    and the rest is counted.
    """
    shown, cut = head_tail(text, limit)
    assert cut == (len(text) > limit)
    if not cut:
        assert shown == text
        return
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    assert shown == f"{text[:head]}\n… {len(text) - limit} characters left out …\n{text[len(text) - tail :]}"


@given(text=hostile, limit=st.integers(1, 40))
def test_one_line_is_one_line(text: str, limit: int) -> None:
    """Whatever goes in, one line of at most so many characters comes out."""
    line = one_line(text, limit)
    assert len(line) <= limit
    assert line.splitlines() in ([], [line])


@given(text=hostile)
def test_encodable_text_differs_only_where_it_must(text: str) -> None:
    """What can be encoded stays as it is; only lone surrogates become escapes."""
    assert escape_surrogates(text) == re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):x}", text)
    escape_surrogates(text).encode()


@given(text=hostile)
def test_what_an_error_quotes_is_harmless(text: str) -> None:
    """The message of every error of ours is plain, whoever it quotes, and in a notebook as well."""
    for error in (UsageError(text), RunFailed(text)):
        assert str(error) == sanitize_text(text)
        assert error._render_traceback_() == [f"{type(error).__name__}: {sanitize_text(text)}"]


def test_a_carriage_return_replaces_its_line() -> None:
    """As in a terminal: a bar that is drawn again and again is one line; a line end of Windows is one."""
    assert overwrite_lines("a\r\nb\n 1%\r 9%\rdone\n") == "a\nb\ndone\n"
    assert overwrite_lines("\r 2%", "head\n 1%") == "head\n 2%"
    assert overwrite_lines("kept\r\n") == overwrite_lines("kept\r") + "\n" == "kept\n"
