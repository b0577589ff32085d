"""A look at an answer takes so much work and no more, and says where it stopped."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kestrel_lab.answers.next_actions import next_actions
from kestrel_lab.core.citations import Span
from kestrel_lab.verification import workspace_files as work
from kestrel_lab.verification.engine import UNFINISHED, check_answer
from kestrel_lab.verification.evidence import evidence_of
from kestrel_lab.verification.issues import Issue
from kestrel_lab.verification.subject import MOST_BLOCK, MOST_CHARS, MOST_CLAIMS, Subject
from kestrel_lab.verification.workspace_files import Files


@pytest.fixture
def ground(tmp_path: Path) -> Files:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "app.py").write_text("def start():\n    return 1\n")
    return Files(folder)


def stopped(found: tuple[Issue, ...]) -> list[str]:
    return [one.what for one in found if one.check == UNFINISHED]


def cites(count: int) -> str:
    return "\n".join(f"- `start` sets it in app.py:{number}." for number in range(1, count + 1))


def merges(levels: int) -> str:
    """Keys that are merged from two of the level before: a few hundred bytes that a loader makes millions
    of.
    """
    lines = ["a0: &a0 {k: v}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, levels))]
    return "\n".join(lines)


def test_a_thousand_claims_are_looked_at_and_the_rest_is_told(ground: Files) -> None:
    """What comes first is checked in full however much follows it, and the issue says how much of the answer
    that is.
    """
    answer = f"It is in `gone.py`.\n\n{cites(20_000)}"
    subject = Subject(answer=answer, ground=ground, calls=())
    found = check_answer(subject)
    assert "gone.py does not exist" in [one.what for one in found]
    assert len(subject.claims) == MOST_CLAIMS
    assert stopped(found) == [
        f"the answer was not checked to its end: only the first {MOST_CLAIMS:,} of its claims were checked"
    ]
    assert len(evidence_of(subject)) == MOST_CLAIMS
    assert f"{MOST_CLAIMS:,}" in subject.unseen


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("It is so " * (MOST_CHARS // 8), "characters were checked"),
        (f"Look:\n\n```python\n{'x = 1' * (MOST_BLOCK // 4)}\n```\n", "blocks of up to"),
        ("a", ""),
    ],
)
def test_what_is_left_out_is_told(ground: Files, answer: str, says: str) -> None:
    """An answer of a megabyte and a block of a hundred thousand characters are cut where the message says."""
    found = stopped(check_answer(Subject(answer=answer, ground=ground)))
    assert [says in one for one in found] == ([True] if says else [])


def test_a_check_that_has_spent_its_work_stops_and_what_was_found_stays(ground: Files) -> None:
    """Issues until then are kept, checks after it do not run, and no clock is asked for that: the count alone
    stops it.
    """
    seen: list[int] = []

    def endless(subject: Subject) -> Iterator[Issue]:
        yield Issue("major", "", "found before", "")
        while True:
            seen.append(1)
            subject.pay(work.MOST / 10)

    def later(subject: Subject) -> Iterator[Issue]:
        yield Issue("major", "", "found later", "")

    found = check_answer(
        Subject(answer="It is in app.py.", ground=ground), checks={"files": (endless, later)}
    )
    assert [one.what for one in found if one.refuses] == ["found before"]
    assert [("endless" in one, "no more work" in one) for one in stopped(found)] == [(True, True)]
    assert len(seen) <= 11
    assert (
        check_answer(Subject(answer="It is in app.py.", ground=ground), checks={"files": (later,)})[0].what
        == "found later"
    )


def test_the_counting_notices_work_that_nobody_stops(ground: Files) -> None:
    """The mutant: where spending stops nothing, the same check goes on to its end, and nothing says that it
    should not have.
    """

    class Careless(work.WorkAllowance):
        def spend(self, cost: float) -> None:
            pass

    def long(subject: Subject) -> Iterator[Issue]:
        for number in range(100):
            subject.pay(work.MOST / 10)
            yield Issue("minor", "", f"found {number}", "")

    subject = Subject(answer="It is in app.py.", ground=ground)
    kept = check_answer(subject, {"files": (long,)})
    assert (len(kept) < 12, len(stopped(kept))) == (True, 1)
    ground.work = Careless()
    careless = check_answer(subject, {"files": (long,)})
    assert (len(careless), len(stopped(careless))) == (100, 0)


def test_nothing_is_counted_outside_of_a_look(ground: Files) -> None:
    """Whoever reads the files for another end is not stopped by what a look has spent."""
    for _ in range(3):
        ground.work.spend(work.MOST)
    assert ground.read("app.py")


def test_time_that_is_over_is_told(ground: Files) -> None:
    """A look that may take no time says so instead of finding nothing wrong."""
    late = Subject(answer="It is in `gone.py`.", ground=Files(ground.root, seconds=-1.0))
    found = check_answer(late)
    assert [len(stopped(found)), len(found)] == [1, 1]
    assert evidence_of(late) == ()
    assert late.unseen


@pytest.mark.parametrize(
    "text",
    [
        merges(40),
        "\n".join(
            [
                "a: &a [x, x]",
                *(f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]" for n in range(24)),
            ]
        ),
        "[" * 10_000,
        "{a: " * 3_000,
        "- " * 5_000,
        "!Ref x\n---\n!!python/object:os.system []",
        "when: 2025-99-99\nn: !!int x",
    ],
)
def test_yaml_is_read_and_not_built(ground: Files, text: str) -> None:
    """Merges, aliases, depth and tags cost as much as they are long, and are not mistakes of the writer."""
    assert not any(
        one.refuses for one in check_answer(Subject(answer=f"```yaml\n{text}\n```", ground=ground))
    )


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("json", '{"n": ' + "9" * 5_000 + "}"),
        ("toml", "n = " + "9" * 5_000),
        ("toml", ".".join("a" * 9_000) + " = 1"),
        ("json", "[" * 15_000),
        ("python", "-" * 15_000 + "1"),
        ("python", "+".join("1" * 9_000)),
        ("python", "\n" * 19_000),
        ("python", " " * 19_000),
        ("bash", "cat <<A\n" * 2_400),
        ("bash", " " * 19_000 + ";"),
        ("text", "\n" * 19_000),
    ],
)
def test_blocks_that_are_made_to_be_hard(ground: Files, language: str, text: str) -> None:
    """Long integers, keys of thousands of parts, depth, white space: the look comes to an end and breaks on
    none of them.
    """
    found = check_answer(
        Subject(answer=f"Start it with `app.py`:\n\n```{language}\n{text}\n```\n", ground=ground)
    )
    assert not any("could not be checked" in one.what for one in found)


def hard(text: str) -> Callable[[Path], None]:
    return lambda folder: (
        [(folder / name).write_text(text) for name in ("hard.py", "hard.md", "hard.cfg", "hard.yml")] and None
    )


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 400_000,
        " " * 400_000,
        "start " * 80_000,
        '"\n' + "\n" * 200_000 + '"',
        "x = " + "(10**64)" + "**64" * 20,
        "x = " + "+".join("1" * 4_000),
        "x = 9" + "<<64" * 500,
        "# " * 100_000 + '"',
        ":a" * 100_000,
        "from a import (" * 5_000,
        "class start(a): pass\n" + "from a import (\n" * 5_000,
        "'{x} it starts the app {y}'\n" * 4_000,
        "it starts the app now then " * 8_000,
        "9*" * 50_000,
        "`" * 100_000,
        "a." * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_files_that_are_made_to_be_hard(ground: Files, text: str) -> None:
    """A file of the workspace, which an agent may write, holds up the look at an answer no longer than its
    size allows.
    """
    hard(text)(ground.root)
    answer = (
        '`start` in hard.py:1 says "app the starts it then now" and `x = 9` of hard.cfg is 64. The '
        "class `start` has `go()`; "
        "`hard.yml` sets `x` to 3.\n\n> it the starts app now and then\n\n```python\nx = 5\nstart(1)\n```\n"
    )
    found = check_answer(Subject(answer=answer, ground=Files(ground.root), calls=()))
    assert not any("could not be checked" in one.what for one in found)


def test_thousands_of_spans_and_claims(ground: Files) -> None:
    """Claims times what tools answered is bounded by work: what came before the end is kept, and that it
    ended is told.
    """
    spans = tuple(
        Span(id=f"main.{n}.1", source="grep", text="start the app " * 40_000, call=f"main.{n}.1")
        for n in range(3)
    )
    subject = Subject(
        answer=". ".join(f"It starts the app {n}" for n in range(900)), ground=ground, spans=spans, calls=()
    )
    claims = [{"text": "So.", "citations": [{"call": "main.0.1", "quote": f"start {n}"}]} for n in range(900)]
    backed = evidence_of(subject, claims)
    assert 0 < len(backed) < 900
    assert "no more work" in subject.unseen
    assert evidence_of(replace(subject, answer="It starts the app [main.0.1]."))[0].cited[0].span


def test_what_can_be_done_next_is_looked_for_in_bounded_names(ground: Files) -> None:
    """An answer that names twenty thousand files and commands is answered with the first that are there."""
    answer = "\n".join(f"`ls -{n}` of none{n}.py and `app.py`" for n in range(20_000))
    assert [one.text for one in next_actions(answer, ground)][:1]
