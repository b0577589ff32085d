"""Answers as models really write them: odd citations, other languages, no ends of sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from kestrel_lab.core.citations import answer_spans, citations_in, is_current, resolve_citation, spans_of
from kestrel_lab.core.events.union import ModelAnswered, ToolAnswered
from kestrel_lab.verification.claims import MOST_CHARS, claims_of
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.evidence import evidence_of
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files
from kestrel_lab.views.evidence import cited_places

HIT = (
    "src/app.py:7-9  (function roof: has roof)\n     7  def roof():\n     8      height = 7\n     9  "
    "\n\nb.py:3  (text)\n     3  roof()"
)
USES = "src/app.py:7: definition: def roof():\nsrc/app.py:12: call: roof()\n[2 more: use grep with a path]"


def test_the_file_of_exactly_that_path_is_meant() -> None:
    """`src/app.py:1` is never resolved to `lib/src/app.py`, even if that was read later; `app.py:1` may mean
    it.
    """
    spans = [
        *answer_spans("m.1.1", "read_file", {"path": "src/app.py"}, "right = 1\n"),
        *answer_spans("m.1.2", "read_file", {"path": "lib/src/app.py"}, "wrong = 1\n"),
    ]
    found = [
        resolve_citation(citations_in(name)[0], spans, lambda _: None)
        for name in ("src/app.py:1", "./src/app.py:1", "app.py:1")
    ]
    assert [span.text.strip() for span in found if span] == ["right = 1", "right = 1", "wrong = 1"]


@pytest.mark.parametrize(
    ("tool", "text", "cited"),
    [
        ("search_code", HIT, "src/app.py:8"),
        ("find_definition", HIT, "b.py:3"),
        ("find_references", USES, "src/app.py:12"),
    ],
)
def test_what_an_index_showed_was_seen(tool: str, text: str, cited: str) -> None:
    """Lines that the search tools showed resolve to what they showed, with the tool that found them, and are
    current.
    """
    span = resolve_citation(citations_in(cited)[0], answer_spans("m.1.1", tool, {}, text), lambda _: None)
    assert span is not None
    assert (span.id, span.found, span.text.strip()) in {
        ("src/app.py:8", "search_code", "height = 7"),
        ("b.py:3", "find_definition", "roof()"),
        ("src/app.py:12", "find_references", "roof()"),
    }
    file = "\n" * (span.first - 1) + f"    {span.text.strip()}  \n"
    assert [is_current(span, lambda _: now) for now in (file, file.replace("o", "u").replace("7", "8"))] == [
        "current",
        "stale",
    ]


def test_a_line_that_was_shown_cut_is_current() -> None:
    """A search shows the first 300 characters of a line: the rest of it is not a change, a change of what was
    shown is one.
    """
    line = "x = " + "7, " * 200
    (_, span) = answer_spans("m.1.1", "search_code", {}, f"a.py:2  (text)\n     2  {line[:300]}")
    assert [is_current(span, lambda _, now=now: f"\n{now}\n") for now in (line, line.replace("7", "8"))] == [
        "current",
        "stale",
    ]


def test_what_the_cache_answered_is_cited_too() -> None:
    """A call that was answered from the cache was never started; the panel shows the lines all the same."""
    asked = ModelAnswered(
        call="m.m1",
        step="m",
        model="x",
        text="",
        calls=[{"id": "m.1.1", "name": "read_file", "args": {"path": "a.py"}}],
        tokens_in=1,
        tokens_out=1,
    )
    said = ToolAnswered(call="m.1.1", step="m", tool="read_file", text="one\ntwo\n", cached=True)
    backed = evidence_of(Subject(answer="It is so [a.py:2].", spans=spans_of([asked, said])))
    assert cited_places(backed)[0][:2] == ["a.py:2", "two"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[src/app.py:7,9]", [(7, 7), (9, 9)]),
        ("[src/app.py:7-8, 11-12]", [(7, 8), (11, 12)]),
        ("src/app.py:7, 9 apples", [(7, 7)]),
        ("[[src/app.py:7]]", [(7, 7)]),
        ("`values[main.1.1]`, rows(x)[a.2.1]", []),
        ("[main.1.1][main.1.2]", [(0, 0), (0, 0)]),
    ],
)
def test_lists_and_subscripts(text: str, found: list[tuple[int, int]]) -> None:
    """Several lines after one path are several citations; a subscript in code is none."""
    assert [(one.first, one.last) for one in citations_in(text)] == found


@pytest.mark.parametrize(
    "cite",
    ["[my notes.md:2]", "`my notes.md:2`", "[see notes.md:2]", "[my notes.md#L2]", "[a b/my notes.md:2]"],
)
def test_paths_with_spaces_are_cited_in_brackets(tmp_path: Path, cite: str) -> None:
    """The whole of what stands in the brackets, if there is such a file, else its end; neither is refused as
    made up.
    """
    meant = "notes.md" if "see" in cite else "a b/my notes.md" if "a b" in cite else "my notes.md"
    (tmp_path / meant).parent.mkdir(exist_ok=True)
    (tmp_path / meant).write_text(f"one\n{meant} it is\n")
    ground = Files(tmp_path, 5.0)
    (cited,) = citations_in(f"It is so {cite}.")
    span = resolve_citation(cited, [], ground.read)
    assert span is not None
    assert (span.id, span.text) == (f"{meant}:2", f"{meant} it is")
    assert check_answer(Subject(answer=f"It is so {cite}.", ground=ground)) == ()


@pytest.mark.parametrize(
    ("text", "claims"),
    [
        ("函数返回 3。上限是 10！完", 3),
        ("Функция возвращает 3. Предел равен 10.", 2),
        ("It returns 3 [a.py:1]. fun_4 returns 4. app.run() starts it.", 3),
        ("It is fast, e.g. fun_4 is. See no. 3 and B. Smith.", 2),
        ("It ends. и так далее", 1),
        ("Findings:\n\n- `a` is 3\n\n**Summary**\n\nIt works. Done.\n\nLet me know if you need more.", 2),
        ("What I found:\nMAX is 3. Yes. Hope this helps!", 2),
        ("It calls this: `a()`. a_b:", 2),
    ],
)
def test_sentences_end_in_other_scripts_and_before_names_of_code(text: str, claims: int) -> None:
    """A full stop of any script ends a claim, also before a name of code in small letters; an abbreviation
    does not.
    """
    assert len(claims_of(text)) == claims


def test_an_answer_without_an_end_is_looked_at_in_bounded_time(tmp_path: Path) -> None:
    """Hundreds of facts in one sentence neither hang the run nor lose a word: claims are bounded, their
    places are right.
    """
    (tmp_path / "a.py").write_text("def fun_1():\n    return 1\n")
    answer = ", ".join(f"fun_{number} is {number} in a.py:{number % 2 + 1}" for number in range(400))
    claims = claims_of(answer)
    check_answer(
        Subject(answer=answer, ground=Files(tmp_path))
    )  # it comes back: by work, see test_work, and by no clock

    assert all(len(said.text) <= MOST_CHARS and answer[said.at :].startswith(said.text) for said in claims)
    assert "".join(said.text for said in claims) == answer
