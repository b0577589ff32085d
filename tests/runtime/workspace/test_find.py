"""Find: runs by their words and by what is known of them."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waits import until

from kestrel_lab.core.errors import UnknownOption, UsageError
from kestrel_lab.core.events.union import (
    Event,
    ModelAnswered,
    RunFinished,
    RunStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.stored_trials import EvalRow, store_trial
from kestrel_lab.eventlog.removal import plan_removal, remove_from_log, rewrite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.eventlog.text_index import marked_words, query_terms, register_terms, run_terms, words_of
from kestrel_lab.runtime.workspace import find
from kestrel_lab.runtime.workspace.find import FoundRuns, find_runs

EARLIER = Path(__file__).parents[2] / "earlier"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """An empty log."""
    found = SessionStore(tmp_path / "kestrel.db")
    yield found
    found.close()


def tell(
    store: SessionStore, run: str, *said: str | Event, goal: str = "do it", end: bool = True, **more: Any
) -> None:
    """Write a run that answered these texts, or has these events."""
    at = more.pop("at", None)
    store.create_run(run, RunStarted(goal=goal, workspace="/w", **{"model": "m", **more}), at=at)
    for text in said:
        event = ModelAnswered(call="c", step="s", model="m", text=text) if isinstance(text, str) else text
        store.append(run, event)
    if end:
        store.append(run, RunFinished(outcome="cancelled"))
        store.transition(run, RunStatus.CANCELLED, source=RunStatus.PLANNING).result()


def trial(store: SessionStore, run: str, outcome: str, **checks: bool) -> None:
    """Store a trial of a run."""
    scores = [
        {"check": name, "passed": passed, "value": 1.0, "reason": ""} for name, passed in checks.items()
    ]
    result = {"run": run, "outcome": outcome, "reason": "", "scores": scores}
    given: dict[str, Any] = {"git_sha": "a", "created_at": 1.0, "suite": "refunds", "config": "c", "key": "k"}
    store_trial(
        store, EvalRow(id=f"t{run}", scenario="s", result=result, metrics={}, epoch=2, **given)
    ).result()


def found(store: SessionStore, query: str = "", **filters: Any) -> list[str]:
    """The ids of the runs that are found."""
    return [hit.row.id for hit in find_runs(store, query, **filters)]


def test_words_are_found_wherever_they_stand_and_phrases_side_by_side(store: SessionStore) -> None:
    """All words of a query are in a run, in its goal, calls, results, errors or answers; newest runs first."""
    tell(store, "a", "the refund was sent", goal="Pay Café Müller back twice")
    call = ToolCalled(call="1", step="s", tool="send_money", args={"to": "GB29 NWBK", "cents": 1250})
    failed = ToolAnswered(
        call="1", step="s", tool="send_money", text="", error={"kind": "x", "message": "limit exceeded"}
    )
    tell(store, "b", call, failed, "I sent the refund twice")
    assert found(store, "REFUND twice") == ["b", "a"]
    assert found(store, '"refund twice"') == ["b"]
    assert found(store, "cafe muller") == ["a"]
    assert found(store, "gb29 1250 exceeded") == ["b"]
    assert found(store, "send_money") == found(store, "exceeded") == ["b"]
    assert found(store, "refund never") == []
    hit = next(iter(find_runs(store, "exceeded")))
    assert (hit.where, hit.piece.text) == ("error of send_money", "limit exceeded")


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我想申请退款，订单号是一二三", "退款"),
        ("返金を二回受け取りました", "二回受"),
        ("환불을 두번 받았습니다", "환불"),
        ("ฉันต้องการขอคืนเงินสองครั้ง", "คืนเงิน"),
        ("रिफंड दो बार मिला", "दो बार"),
        ("ﾃﾞｰﾀ ＡＢＣ", "データ abc"),
        ("Straße nach İstanbul", "STRASSE istanbul"),
    ],
)
def test_any_language_is_found(store: SessionStore, text: str, query: str) -> None:
    """Scripts without spaces are found by any part; case, accents and width make no difference."""
    tell(store, "a", text)
    tell(store, "b", "款退 nothing of the kind 回二")
    assert found(store, query) == ["a"]


@settings(max_examples=40)
@given(st.text(max_size=60), st.integers(0, 20), st.integers(1, 6))
def test_every_part_of_a_text_is_looked_for_where_it_is(text: str, start: int, count: int) -> None:
    """The terms of any phrase of a text are among the terms of a run that has the text."""
    raw = apsw.Connection(":memory:")
    raw.execute(
        "CREATE TABLE runs(id, goal, model, config, scenario, workspace); CREATE TABLE events(run_id, seq, type, body)"
    )
    raw.execute(
        "INSERT INTO runs VALUES ('r', ?, '', '', '', '')", (text.encode("utf-8", "replace").decode(),)
    )
    words = words_of(text.encode("utf-8", "replace").decode())
    phrase = tuple(words[start : start + count])
    assert set(query_terms([phrase])) <= set(run_terms(raw, "r", 9).split(" "))
    assert set(words_of(marked_words(text)[0])) == set(words_of(text))


def test_syntax_of_the_index_is_text(store: SessionStore) -> None:
    """Operators, columns and quotation marks of FTS5 are words and signs in a query, and never an error."""
    tell(store, "a", 'say NEAR(this AND that) or "terms : not" it^*')
    for query in ("NEAR(this", "this AND that", '"terms : not', "it* ^it", "-this", "terms:not", "'\"'this"):
        assert found(store, query) == ["a"], query
    assert found(store, "this NOT absent") == []
    for query in ('"***"', "🎉 ✓"):
        page = find_runs(store, query)
        assert (page.hits, page.headline) == ((), f"0 runs with {query}")
        assert "no letter and no digit" in str(page)
    long = find_runs(store, "this " * 2_000)
    assert ([hit.row.id for hit in long], "the first 2,000 were looked for" in str(long)) == (["a"], True)
    with pytest.raises(UnknownOption, match="model"):
        find_runs(store, "this", modle="x")
    for wrong in ({"since": "soon"}, {"epoch": "two"}, {"limit": 0}):
        with pytest.raises(UsageError):
            find_runs(store, "this", **wrong)  # type: ignore[arg-type]  # that is the point


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.text(max_size=80)
    | st.text("\"“”*^-:(){}+ANDORNEAR'\\%_ ", max_size=40)
    | st.text("行かないで 🎉éß\x00\ud800", max_size=20)
    | st.integers(1, 10_000).map("x".__mul__),
    st.dictionaries(
        st.sampled_from(["tool", "check", "model", "outcome", "scenario", "config", "suite"]),
        st.text("ab*?[\"'=()", max_size=8),
        max_size=3,
    ),
)
def test_any_query_has_an_answer(store: SessionStore, query: str, filters: dict[str, str]) -> None:
    """Whatever is asked for, with whatever filters together: a page, shown in every way."""
    if not find_runs(store):
        tell(store, "any", "say this")
    page = find_runs(store, query, **filters)
    assert set(page.as_json()) >= {"hits", "notes"}
    assert f"{page}{page._repr_html_()}"


def test_runs_are_chosen_by_what_is_known_of_them(store: SessionStore) -> None:
    """Filters over fields of runs and trials, with * and ?, alone and beside words; imported runs as well."""
    used = ModelAnswered(
        call="c", step="s", model="m", text="refund", tokens_in=90, tokens_out=10, cost_usd=0.5
    )
    pay = ToolCalled(call="1", step="s", tool="send_money", args={})
    tell(store, "a", used, pay, model="gpt-5-mini", scenario="twice", config="c1", at=1_000.0)
    tell(store, "b", "refund", model="gpt-4o", imported={"format": "agentdojo"})
    trial(store, "a", "fail", paid=False, polite=True)
    trial(store, "b", "pass", paid=True)
    a: list[dict[str, Any]] = [
        *({"model": one} for one in ("gpt-5-mini", "gpt-5*", "gpt-?-mini", "*mini")),
        *({"check": one} for one in ("failed", "paid=failed", "polite", "pol*=passed")),
        *({"tool": one} for one in ("send_money", "send*", "*money", "*")),
        *({"imported": "no"}, {"outcome": "fail"}, {"scenario": "tw*"}, {"config": "c1"}, {"until": "1d"}),
        *({"min_tokens": 100}, {"max_cost": 0.5}, {"suite": "refunds", "epoch": 2, "min_cost": 0.1}),
    ]
    for filters in a:
        assert found(store, "refund", **filters) == found(store, **filters) == ["a"], filters
    b: list[dict[str, Any]] = [
        *({"imported": one} for one in ("yes", "agentdojo", "agent*")),
        *({"check": "paid=passed"}, {"since": "2w"}, {"outcome": "pass", "status": "cancelled"}),
    ]
    for filters in b:
        assert found(store, "refund", **filters) == found(store, **filters) == ["b"], filters
    assert found(store, "refund", suite="other") == found(store, model="gpt") == []


def test_pages_follow_each_other_while_runs_come(store: SessionStore) -> None:
    """A page begins behind the one before: nothing twice, nothing left out, whatever was added meanwhile."""
    for number in range(7):
        tell(store, f"r{number}", "same words")
    first = find_runs(store, "words", limit=3)
    tell(store, "new", "same words")
    second = find_runs(store, "words", limit=3, after=first.after)
    third = find_runs(store, "words", limit=3, after=second.after)
    assert [hit.row.id for page in (first, second, third) for hit in page] == [
        f"r{n}" for n in range(6, -1, -1)
    ]
    assert third.after is None
    assert "next page" in repr(first)


def test_a_run_that_works_is_found_by_what_it_has_said_so_far(store: SessionStore) -> None:
    """What a run says after it was indexed is found by the next find, beside what it said before."""
    tell(store, "a", "alpha", end=False)
    assert found(store, "alpha") == ["a"]
    assert found(store, "omega") == []
    store.append("a", ModelAnswered(call="c", step="s", model="m", text="omega")).result()
    assert found(store, "omega alpha") == ["a"]
    _intact(store)


def _intact(store: SessionStore) -> None:
    """The index has the terms of the events, and no others."""
    raw = apsw.Connection(str(store.path))
    register_terms(raw)
    expected = {
        (term, number)
        for number, run, upto in raw.execute(
            "SELECT number, run_id, upto FROM run_texts WHERE upto NOT NULL"
        ).fetchall()
        for term in run_terms(raw, run, upto).split()
    }
    raw.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, run_words, instance)")
    assert set(raw.execute("SELECT term, doc FROM words")) == expected
    raw.close()


def test_removed_runs_leave_no_words(store: SessionStore, tmp_path: Path) -> None:
    """What a removed run said is not found, and its words are in no file of the log."""
    tell(store, "a", "zanzibar is here")
    tell(store, "b", "here it is")
    assert found(store, "zanzibar") == ["a"]
    assert remove_from_log(store, plan_removal(store, ["a"]))
    assert found(store, "here") == ["b"]
    _intact(store)
    rewrite(store)
    assert not any(b"zanzibar" in path.read_bytes() for path in tmp_path.glob("kestrel.db*"))


# Of this one SQLite says that there is not enough memory, as of one random block in thirty.
VAST = "a8dcc0d4467316814a99eb8ff71d8b84df20e2811c18c3a6749ba59d768b8396588f1b689e07d54f6c381ebb74973335287d"


@pytest.mark.parametrize("harm", ["block = x'00'", "block = randomblob(50)", f"block = x'{VAST}'"])
def test_a_damaged_index_is_made_anew(store: SessionStore, harm: str) -> None:
    """Whatever has become of the index, runs are written, removed and found; only the index is made anew."""
    for number in range(40):
        tell(store, f"r{number}", f"number n{number} same")
    assert len(found(store, "same", limit=50)) == 40
    raw = apsw.Connection(str(store.path))
    raw.execute(f"UPDATE run_words_data SET {harm}")
    raw.close()
    tell(store, "new", "same again")
    assert remove_from_log(store, plan_removal(store, ["r3"]))
    assert len(found(store, "same", limit=50, wait=True)) == 40
    assert found(store, "n7") == ["r7"]
    _intact(store)


def test_a_log_of_an_earlier_version_is_searched(tmp_path: Path) -> None:
    """Its runs are indexed when somebody looks for one, with progress, and a find says how far it is."""
    for path in EARLIER.rglob("*.db"):
        shutil.copyfile(path, tmp_path / "kestrel.db")
    store = SessionStore(tmp_path / "kestrel.db")
    told: list[tuple[int, int, str]] = []
    every = find_runs(store, wait=True, reporter=lambda *so_far: told.append(so_far), limit=500)
    assert len(every) > 0
    assert (every.indexed, every.runs) == told[-1][:2] == (len(every), len(every))
    goal = next(hit.row for hit in every if words_of(hit.row.goal))
    assert goal.id in found(store, f'"{goal.goal}"', limit=500)
    store.close()


def test_what_is_not_indexed_yet_is_indexed_in_the_background(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A find does not wait for all of an old log: it says how far the index is, which goes on by itself."""
    for number in range(100):
        tell(store, f"r{number}", "same")
    store.texts.empty()
    monkeypatch.setattr(find, "PATIENCE_S", -1.0)
    find_runs(store, "same")
    until(store.texts.complete)
    assert len(found(store, "same", limit=200)) == 100
    part = FoundRuns(query="x", hits=(), after=None, indexed=32, runs=100)
    assert "32 of 100 runs are indexed so far" in repr(part)


def test_sessions_write_while_one_finds(tmp_path: Path) -> None:
    """Several sessions write runs and index them while another finds: no error, and in the end all are found."""
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with_own = SessionStore(tmp_path / "kestrel.db")
            for number in range(40):
                tell(with_own, f"{name}{number}", f"shared words {name}")
            with_own.close()
        except BaseException as error:
            failed.append(error)
            raise

    store = SessionStore(tmp_path / "kestrel.db")
    threads = [threading.Thread(target=work, args=(name,)) for name in ("x", "y")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        page = find_runs(store, "shared", limit=500)
        assert len({hit.row.id for hit in page}) == len(page)
    assert failed == []
    assert len(found(store, "shared words", limit=500)) == 80
    _intact(store)
    store.close()


def test_runs_are_indexed_many_at_a_time_as_they_end(tmp_path: Path) -> None:
    """A session indexes the runs that ended now and then and when it closes: nothing is left to the first find."""
    store = SessionStore(tmp_path / "kestrel.db")
    for number in range(40):
        tell(store, f"r{number}", "words")
    store.flush()
    assert 0 < store.texts.state()[0] < 40
    store.close()
    again = SessionStore(tmp_path / "kestrel.db")
    assert again.texts.state() == (40, 40)
    again.close()


def test_what_was_found_is_shown_as_text(store: SessionStore) -> None:
    """In HTML the words are marked and everything else of a run is text; the frame has a row for each run."""
    tell(store, "a", "<script>refund</script> \x1b[31m now", model="<b>")
    page = find_runs(store, "refund")
    html = page._repr_html_()
    assert "&lt;script&gt;<mark>refund</mark>" in html
    assert "<script>" not in html
    assert "\x1b" not in html + repr(page)
    assert list(page.frame.index) == ["a"]
    assert page.frame.loc["a", "text"].startswith("<script>")
    nothing = find_runs(store, "absent").frame
    assert (list(nothing.index), list(nothing.columns)) == ([], list(page.frame.columns))
