"""Cassettes: what is recorded comes back, only for what it was said to, whatever happens while it is
written.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolRequest, ToolSpec, TriedModel
from kestrel_lab.models.cassettes.cassette import Cassette, RecordedCall, RecordedTrial, file_for
from kestrel_lab.models.cassettes.recorder import AbsentModel, TrialCassette, answer_content, answer_of
from kestrel_lab.models.cassettes.scrub import SECRET, Scrubber, folder_hidden, folder_shown
from kestrel_lab.testing import ScriptedModel

GREP = ToolSpec(name="grep", description="Search.", schema={"type": "object", "properties": {}})
READ = replace(GREP, name="read")


@dataclass
class Counting:
    """Counts how often it is asked; says so, or raises what it is told to."""

    name: str = "openai/any"
    kind: str = "real"
    asked: int = 0
    raises: list = field(default_factory=list)

    async def __call__(self, request, on_delta):
        self.asked += 1
        if self.raises:
            raise self.raises.pop(0)
        return ModelAnswer(text=f"answer {self.asked}", usage=Usage(tokens_in=3, cost_usd=0.5, model_calls=1))


def says(*texts, **settings):
    """A request with these messages of a user."""
    return ModelRequest(messages=[Message(role="user", text=text) for text in texts], **settings)


class Deck:
    """Records and replays on one file."""

    def __init__(self, folder, tape=TrialCassette):
        self.path, self.tape, self.model = folder / "c.jsonl", tape, Counting()

    def play(
        self,
        mode,
        *requests,
        take=RecordedTrial(),
        workspace=Path("/some/here"),
        scrub=Scrubber(),
        model=None,
    ):
        """The texts answered to `requests` in one trial."""

        async def ask():
            with self.tape(Cassette(self.path, scrub), mode, take, scrub=scrub, workspace=workspace) as tape:
                asked = tape.around(model or self.model)
                return [(await asked(request, lambda _piece: None)).text for request in requests]

        return asyncio.run(ask())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
USAGE = st.builds(
    Usage,
    tokens_in=st.integers(0, 9),
    tokens_out=st.integers(0, 9),
    cost_usd=st.floats(0, 9),
    unpriced=st.integers(0, 1),
)
ANSWERS = st.builds(
    ModelAnswer,
    text=st.text(),
    calls=st.lists(
        st.builds(
            ToolRequest,
            id=st.just(""),
            name=st.text(),
            args=st.dictionaries(st.text(), JSON, max_size=3),
            problem=st.text(),
        )
    ).map(tuple),
    usage=USAGE,
    model=st.text(),
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
    tried=st.lists(
        st.builds(TriedModel, model=st.text(), reason=st.text(), then=st.text(), usage=USAGE), max_size=2
    ).map(tuple),
)


@settings(max_examples=40)
@given(ANSWERS)
def test_an_answer_comes_back_as_it_was(tmp_path_factory, answer):
    """Text, calls, usage, cost and who was asked before survive the file, and the answer says that it is
    replayed.
    """
    path = tmp_path_factory.mktemp("c") / "c.jsonl"
    Cassette(path).add(
        RecordedCall(take=RecordedTrial(), repeat=1, request=REQUEST, answer=answer_content(answer))
    )
    found = Cassette(path).find(
        RecordedCall(take=RecordedTrial(), repeat=1, request=REQUEST, answer={}).key, RecordedTrial(), 1
    )
    calls = tuple(replace(call, id=f"call_{number}") for number, call in enumerate(answer.calls, 1))
    assert answer_of(found.answer) == replace(answer, calls=calls, replayed=True)


REQUEST = {
    "model": "m",
    "messages": [{"role": "user", "text": "\ud800 \u2028 é"}],
    "tools": [],
    "settings": {},
}


class IgnoresTools(TrialCassette):
    """A mutant: knows a request by everything but its tools."""

    def _content(self, name, request):
        return super()._content(name, replace(request, tools=()))


class IgnoresRepeats(TrialCassette):
    """A mutant: takes equal requests for one."""

    def _number(self, key):
        return 1


class FallsThrough(TrialCassette):
    """A mutant: asks the model where nothing is recorded."""

    replays = False


def told_apart(tape, folder):
    """Whether requests that are different are answered each by its own, equal ones in turn, and a model never
    asked in a replay.
    """
    folder.mkdir()
    deck = Deck(folder, tape)
    requests = [
        says("a", tools=(GREP,)),
        says("a", tools=(READ,)),
        says("a"),
        says("a"),
        says("a", temperature=0.0),
        says("a", seed=1),
        says("a", schema={"type": "object"}),
        says("a", max_tokens=5),
        says("b"),
        says("a", "b"),
    ]
    recorded = deck.play("record", *requests)
    again = deck.play("replay", *requests) + deck.play("replay", requests[1])
    try:
        deck.play("replay", says("something new"))
    except ModelError:
        missed = True
    else:
        missed = False
    return (len(set(recorded)), again == [*recorded, recorded[1]], deck.model.asked, missed) == (
        len(requests),
        True,
        len(requests),
        True,
    )


@pytest.mark.parametrize(
    ("tape", "right"),
    [(TrialCassette, True), (IgnoresTools, False), (IgnoresRepeats, False), (FallsThrough, False)],
)
def test_a_request_is_known_by_all_it_says(tmp_path, tape, right):
    """Tools, settings, messages and the number of an equal request tell requests apart; three mutants are
    caught.
    """
    assert told_apart(tape, tmp_path / "c") is right


def test_what_changes_nothing_is_no_difference(tmp_path):
    """Streaming, ids of calls and the folder worked in do not matter; paths in answers are those of the
    replay.
    """
    deck = Deck(tmp_path)

    def asks(folder, number, stream):
        call = ToolRequest(id=f"s.{number}", name="read", args={"path": f"{folder}/a.txt"})
        result = Message(role="tool", text=f"in {folder}/a.txt: hello", call_id=call.id, name="read")
        return ModelRequest(
            messages=[Message(role="user", text="go"), Message(role="assistant", calls=(call,)), result],
            stream=stream,
        )

    deck.model = ScriptedAsReal("/tmp/first/a.txt says hello")
    assert deck.play("record", asks("/tmp/first", 1, True), workspace=Path("/tmp/first")) == [
        "/tmp/first/a.txt says hello"
    ]
    assert "/tmp/first" not in deck.path.read_text()
    assert deck.play("replay", asks("/tmp/second", 2, False), workspace=Path("/tmp/second")) == [
        "/tmp/second/a.txt says hello"
    ]


@dataclass
class ScriptedAsReal:
    """Says one thing, and passes for a real model."""

    text: str
    name: str = "openai/any"
    kind: str = "real"

    async def __call__(self, request, on_delta):
        return ModelAnswer(text=self.text)


def test_modes(tmp_path):
    """`record` asks for what is missing, `refresh` for everything, dropping what is not asked any more;
    `replay` never asks.
    """
    deck = Deck(tmp_path)
    assert deck.play("record", says("a"), says("b")) == ["answer 1", "answer 2"]
    assert deck.play("record", says("a"), says("c")) == ["answer 1", "answer 3"]
    assert deck.play("replay", says("a"), says("b"), says("c")) == ["answer 1", "answer 2", "answer 3"]
    assert deck.play("record", says("a"), take=RecordedTrial(epoch=2)) == ["answer 4"]
    assert deck.play("refresh", says("a")) == ["answer 5"]
    assert deck.play("replay", says("a")) == ["answer 5"]
    assert deck.play("replay", says("a"), take=RecordedTrial(epoch=2)) == ["answer 4"]
    assert sorted(one.take.epoch for one in Cassette(deck.path)) == [1, 2]


def test_configurations_are_recorded_apart_and_stand_in_for_each_other(tmp_path):
    """Two configurations that say the same get answers of their own; one that was never recorded replays
    another's.
    """
    deck = Deck(tmp_path)
    assert deck.play("record", says("a"), take=RecordedTrial(config="x")) == ["answer 1"]
    assert deck.play("record", says("a"), take=RecordedTrial(config="y")) == ["answer 2"]
    assert [deck.play("replay", says("a"), take=RecordedTrial(config=name)) for name in "yxz"] == [
        ["answer 2"],
        ["answer 1"],
        ["answer 1"],
    ]


def test_no_real_model_needs_no_tape(tmp_path):
    """A script is played, not recorded, in every mode."""
    deck = Deck(tmp_path)
    script = ScriptedModel(["hello"])
    assert [deck.play(mode, says("a"), model=script) for mode in ("record", "replay")] == [
        ["hello"],
        ["hello"],
    ]
    assert not deck.path.exists()


def test_a_failure_is_never_an_answer(tmp_path):
    """A rate limit is not recorded as one: who tries again is recorded; a replay of a call that only failed
    says why.
    """
    deck = Deck(tmp_path)
    deck.model.raises = [ModelError("rate limit", transient=True)]
    with pytest.raises(ModelError, match="rate limit"):
        deck.play("record", says("a"))
    with pytest.raises(ModelError, match="when it was, this call failed: rate limit") as caught:
        deck.play("replay", says("a"))
    assert (caught.value.transient, caught.value.caller) == (False, True)
    assert deck.play("record", says("a")) == ["answer 2"]
    assert deck.play("replay", says("a")) == ["answer 2"]
    deck.model.raises = [ModelError("rate limit", transient=True)]
    with pytest.raises(ModelError, match="rate limit"):
        deck.play("refresh", says("a"))
    assert deck.play("replay", says("a")) == ["answer 2"]


def test_who_tries_again_within_a_trial_is_answered_in_turn(tmp_path):
    """An attempt that failed takes no number: the replay, which does not fail, finds the answer of the second
    attempt.
    """
    deck = Deck(tmp_path)

    class Stubborn(ScriptedAsReal):
        async def __call__(self, request, on_delta):
            try:
                return await tape_model(request, on_delta)
            except ModelError:
                return await tape_model(request, on_delta)

    deck.model.raises = [ModelError("busy", transient=True)]
    with TrialCassette(
        Cassette(deck.path), "record", RecordedTrial(), scrub=Scrubber(), workspace=tmp_path
    ) as tape:
        tape_model = tape.around(deck.model)
        assert asyncio.run(Stubborn("")(says("a"), print)).text == "answer 2"
    assert deck.play("replay", says("a")) == ["answer 2"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            says("Be brief.\nSay hi."),
            says("Be very brief.\nSay hi."),
            ["message 1 (user) changed", "- Be brief.", "+ Be very brief."],
        ),
        (
            says("a", tools=(GREP,)),
            says("a", tools=(READ,)),
            ["tools that were not offered: read", "tools that are not offered any more: grep"],
        ),
        (
            says("a", tools=(GREP,)),
            says("a", tools=(replace(GREP, description="Find."),)),
            ["the description of the tool grep changed", "- Search.", "+ Find."],
        ),
        (
            says("a", temperature=0.0),
            says("a", temperature=1.0),
            ["the setting temperature is 1.0, recorded was 0.0"],
        ),
        (says("a", seed=1), says("a"), ["the setting seed is not given, recorded was 1"]),
        (says("a"), says("a", "more"), ["the conversation has 2 messages, recorded were 1", "+ user: more"]),
        (
            says("a", tools=(GREP, READ)),
            says("a", tools=(READ, GREP)),
            ["the tools are offered in another order"],
        ),
    ],
)
def test_a_miss_tells_what_changed(tmp_path, old, new, told):
    """The nearest recording is compared with what is asked; what to do stands at the end, and no model is
    asked.
    """
    deck = Deck(tmp_path)
    deck.play("record", says("far away", "from it"), old)
    with pytest.raises(ModelError) as caught:
        deck.play("replay", new)
    lines = str(caught.value).splitlines()
    assert lines[2:-1] == told
    assert lines[0].startswith(f"not recorded: {told[0]}")
    assert lines[-1] == "Record what is missing (--cassette record), or everything anew (--cassette refresh)."
    assert deck.model.asked == 2


@pytest.mark.parametrize(("where", "dots"), [(0, False), (30, False), (120, True), (4_000, True)])
def test_a_long_line_is_told_from_where_it_differs(tmp_path, where, dots):
    """With what stands before the place, and dots where that is not the beginning."""
    before = "".join(f"{number:05}" for number in range(where // 5 + 2_000))
    deck = Deck(tmp_path)
    deck.play("record", says(before))
    with pytest.raises(ModelError) as caught:
        deck.play("replay", says(f"{before[:where]}HERE{before[where:]}"))
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("+ ")]
    assert line.startswith("+ …") is dots and "HERE" in line and len(line) < 400
    assert before[max(0, where - 5) : where] in line


def test_a_miss_tells_of_epochs_and_repeats(tmp_path):
    """An epoch needs answers of its own, and so does a request that is made once more than it was."""
    deck = Deck(tmp_path)
    with pytest.raises(ModelError, match="not recorded: the file is not there"):
        deck.play("replay", says("a"))
    deck.play("record", says("a"))
    with pytest.raises(
        ModelError, match="recorded in epoch 1, and this is epoch 2, which needs an answer of its own"
    ):
        deck.play("replay", says("a"), take=RecordedTrial(epoch=2))
    with pytest.raises(ModelError, match=r"recorded 1 times in this trial, and is now made for the 2. time"):
        deck.play("replay", says("a"), says("a"))


def test_a_replay_needs_no_model_and_says_what_it_is(tmp_path):
    """An absent model stands in under the name that was recorded for how it is asked for; the kind is
    `replay`.
    """
    deck = Deck(tmp_path)
    with TrialCassette(
        Cassette(deck.path), "record", RecordedTrial(), scrub=Scrubber(), workspace=tmp_path
    ) as tape:
        asyncio.run(tape.around(deck.model, "any")(says("a"), print))
        assert (tape.around(deck.model).kind, tape.replayed) == ("real", 0)
    with TrialCassette(
        Cassette(deck.path), "replay", RecordedTrial(), scrub=Scrubber(), workspace=tmp_path
    ) as tape:
        model = tape.around(AbsentModel(name="any"), "any")
        heard = []
        answer = asyncio.run(model(says("a"), heard.append))
        assert (model.name, model.kind, answer.replayed, answer.usage.cost_usd) == (
            "openai/any",
            "replay",
            True,
            0.5,
        )
        assert ("".join(heard), tape.replayed) == ("answer 1", 1)
    with pytest.raises(ModelError, match="is replayed from a cassette"):
        asyncio.run(AbsentModel(name="any")(says("a"), print))


def test_the_clock_is_that_of_the_recording(tmp_path):
    """What a trial is told of the time is the same in every replay, and new in a refresh; without a call
    nothing is kept.
    """
    deck = Deck(tmp_path)

    def now(mode, *, asks=True):
        with TrialCassette(
            Cassette(deck.path), mode, RecordedTrial(), scrub=Scrubber(), workspace=tmp_path
        ) as tape:
            clock = tape.now()
            if asks:
                asyncio.run(tape.around(deck.model, "any")(says("a"), print))
            return clock

    now("record", asks=False)
    assert not deck.path.exists()
    first = now("record")
    lines = deck.path.read_text().replace(first.isoformat(), "2001-02-03T04:05:06+00:00")
    deck.path.write_text(lines)
    assert [now(mode).year for mode in ("replay", "record", "refresh", "replay")] == [
        2001,
        2001,
        first.year,
        first.year,
    ]


def recordings(count):
    """Different recordings that share messages."""
    texts = ["one", "two", "three", "four"]
    return [
        RecordedCall(
            take=RecordedTrial(config="ab"[number % 2], epoch=1 + number // 2),
            repeat=1,
            answer={"text": str(number)},
            request={
                **REQUEST,
                "messages": [{"role": "user", "text": text} for text in texts[: 1 + number % 3]],
            },
        )
        for number in range(count)
    ]


def test_the_order_of_recording_leaves_no_trace(tmp_path):
    """Whatever the order in which calls end, the finished file is the same; messages are written once."""
    wholes = set()
    for place, order in enumerate(permutations(recordings(4))):
        cassette = Cassette(tmp_path / f"{place}.jsonl")
        cassette.begin()
        for recorded in order:
            cassette.add(recorded)
        cassette.end()
        wholes.add(cassette.path.read_text())
    (whole,) = wholes
    lines = [json.loads(line) for line in whole.splitlines()]
    assert len([line for line in lines if line.get("text") == "one"]) == 1
    assert sorted(tmp_path.iterdir()) == sorted(tmp_path.glob("*.jsonl"))


def test_a_file_cut_anywhere_holds_what_came_before(tmp_path):
    """Killed at any byte of a write, everything acknowledged before it is there, and recording goes on."""
    path = tmp_path / "c.jsonl"
    first, second, third = recordings(3)
    Cassette(path).add(first)
    whole_first = path.read_bytes()
    Cassette(path).add(second)
    whole = path.read_bytes()
    for end in [*range(len(whole_first), len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:end])
        cassette = Cassette(path)
        cassette.add(third)
        kept = {one.answer["text"] for one in Cassette(path)}
        assert {"0", "2"} <= kept, end


@pytest.mark.parametrize(
    "line",
    [
        *(
            '{"config": "a", "epoch": 1, "clock": "yesterday"}',
            '{"config": "a", "epoch": 1, "clock": "2026-01-01T00:00:00"}',
        ),
        "<<<<<<< HEAD",
        '{"hash": "x"} oops',
        "[1]",
        '{"config": "a", "epoch": 1, "repeat": 1, "call": {"model": "m", "messages": ["none"]}}',
    ],
)
def test_an_edited_file_is_refused_with_its_line(tmp_path, line):
    """A merge conflict or a line that is none is told, not passed over: what it held would be missing."""
    path = tmp_path / "c.jsonl"
    Cassette(path).add(recordings(1)[0])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=r"c\.jsonl:3: not a line of a cassette"):
        Cassette(path)


_RECORD = """
import sys
from pathlib import Path
from kestrel_lab.models.cassettes.cassette import Cassette, RecordedCall, RecordedTrial
cassette = Cassette(Path(sys.argv[1]))
cassette.begin()
for number in range(int(sys.argv[3])):
    request = {"model": "m", "messages": [{"role": "user", "text": f"{sys.argv[2]} {number}"}], "tools": [], \
"settings": {}}
    cassette.add(RecordedCall(take=RecordedTrial(), repeat=1, request=request, answer={"text": str(number)}))
    print(number, flush=True)
cassette.end()
"""


def test_killed_while_recording_nothing_acknowledged_is_lost(tmp_path):
    """After SIGKILL the file holds every call that was acknowledged, at most one more, and can be
    replayed.
    """
    path = tmp_path / "c.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", _RECORD, str(path), "a", "100000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 40:
            os.kill(process.pid, signal.SIGKILL)
            break
    told = 40 + len(process.communicate()[0].splitlines())
    kept = sorted(int(one.answer["text"]) for one in Cassette(path))
    assert kept in (list(range(told + 1)), list(range(told + 2)))


def test_many_may_record_into_one_file(tmp_path):
    """Two processes and four threads at once, each putting the file in order at its end, lose nothing."""
    path = tmp_path / "c.jsonl"
    others = [
        subprocess.Popen([sys.executable, "-c", _RECORD, str(path), name, "60"], stdout=subprocess.DEVNULL)
        for name in "ab"
    ]
    cassette = Cassette(path)

    def work(name):
        for number in range(30):
            cassette.begin()
            request = {**REQUEST, "messages": [{"role": "user", "text": f"{name} {number}"}]}
            cassette.add(RecordedCall(take=RecordedTrial(), repeat=1, request=request, answer={"text": "x"}))
            cassette.end()

    threads = [threading.Thread(target=work, args=(name,)) for name in "cdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in others] == [0, 0]
    assert len(list(Cassette(path))) == 2 * 60 + 4 * 30


SECRETS = [
    "sk-proj-abcdefghijklmnopqrstuvwx",
    "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "AKIAABCDEFGHIJKLMNOP",
    "xoxb-1234567890-abcdef",
    "AIzaSyabcdefghijklmnopqrstuvw",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefg",
    "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----",
    "hunter2-hunter2",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_not_recorded(tmp_path, secret):
    """Keys by their form, and values of variables that hold them, are in no message, tool, call or answer; a
    replay works without.
    """
    scrub = Scrubber.of({"MY_API_KEY": "hunter2-hunter2", "PATH": "/usr/bin/ordinary", "SHORT_KEY": "x"})
    deck = Deck(tmp_path)
    deck.model = ScriptedAsReal(f"the key is {secret}.")
    request = says(f"use {secret} now", tools=(replace(GREP, description=f"Needs {secret}"),))
    deck.play("record", request, scrub=scrub)
    assert secret not in json.loads(json.dumps(deck.path.read_text()))
    assert secret.splitlines()[0] not in deck.path.read_text()
    assert deck.play("replay", request, scrub=scrub) == [f"the key is {SECRET}."]


@pytest.mark.parametrize(
    "text",
    [
        "the task-list-of-things-to-do-in-full",
        "sketch sk-learn",
        "/usr/bin/ordinary",
        "bearer of bad news",
        "x",
        "key = get_key()",
    ],
)
def test_ordinary_words_stay(text):
    """What only resembles a secret is left alone."""
    assert Scrubber.of({"PATH": "/usr/bin/ordinary", "SHORT_KEY": "x"})(text) == text


def test_what_is_declared_volatile_is_no_difference(tmp_path):
    """A duration in a result may differ, also where it is declared after the recording; what cannot be read
    is refused.
    """
    deck = Deck(tmp_path)
    deck.play("record", says("took 12 ms"))
    with pytest.raises(ModelError):
        deck.play("replay", says("took 99 ms"))
    assert deck.play("replay", says("took 99 ms"), scrub=Scrubber.of({}, [r"\d+ ms", "answer"])) == [
        "answer 1"
    ]
    deck.play("record", says("exit_code: 0\nseconds: 0.02\nstdout: 3"))
    assert deck.play("replay", says("exit_code: 0\nseconds: 11\nstdout: 3")) == ["answer 2"]
    fenced = "--- begin artifact 'a' {0} ---\n{1}/x\n--- end artifact 'a' {0} ---"
    deck.play("record", says(fenced.format("0123456789ab", "/some/here")))
    assert deck.play(
        "replay", says(fenced.format("ba9876543210", "/some/there")), workspace=Path("/some/there")
    ) == ["answer 3"]
    for pattern, why in (("(", "not a regular expression"), ("x*", "fits an empty text")):
        with pytest.raises(UsageError, match=why):
            Scrubber.of({}, [pattern])


def test_folders_are_replaced_whole():
    """A path that goes on is another folder; the end of a sentence is not part of a path."""
    hide, show = folder_hidden(Path("/tmp/space")), folder_shown(Path("/tmp/space"))
    for text in ("/tmp/space/a.py", "see /tmp/space.", "'/tmp/space'", "/tmp/space:/bin"):
        assert "/tmp/space" not in hide(text)
        assert show(hide(text)) == text
    assert [hide(text) for text in ("/tmp/spaces", "/tmp/space-2", "/tmp/space.bak")] == [
        "/tmp/spaces",
        "/tmp/space-2",
        "/tmp/space.bak",
    ]
    assert folder_hidden(Path("/"))("/ /a") == "/ /a"


def test_names_become_files_that_differ():
    """Any scenario id has a file of its own inside the folder."""
    names = ["a", "a/b", "a b", "../a", "..", "", "A", "ä"]
    places = [file_for(Path("/c"), name) for name in names]
    assert len(set(places)) == len(names)
    assert {place.parent for place in places} == {Path("/c")}
    assert file_for(Path("/c"), "fix-bug_2.1") == Path("/c/fix-bug_2.1.jsonl")
