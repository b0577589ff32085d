"""One law over all formats: an element of a recording that is odd costs itself, is named, and takes nothing else."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_formats import RECORDED
from test_bad_records import FORMATS as SESSIONS

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.formats import FORMATS, read_file
from kestrel_lab.evals.importers.imported_run import Recording
from kestrel_lab.evals.importers.json_fields import Broken
from kestrel_lab.evals.importers.recorded_events import events_of, trial_of

FILES: dict[str, list[Any]] = {
    **{name: lines for name, (_, lines) in RECORDED.items()},
    **{name: lines for name, lines in SESSIONS.items() if name != "routes.jsonl"},
    "result.json": [
        {
            "task_name": "shop",
            "trial_name": "shop__a",
            "source": "shops",
            "agent_info": {"name": "helper", "version": "1", "model_info": {"name": "m", "provider": "p"}},
            "agent_result": {"n_input_tokens": 30, "n_output_tokens": 4, "cost_usd": 0.5},
            "verifier_result": {"rewards": {"reward": 1.0, "style": 0.0}},
            "exception_info": None,
            "started_at": "2026-11-01T10:00:00Z",
            "finished_at": "2026-11-01T10:01:00Z",
        }
    ],
}
"""By file, its lines: what is one line is the whole file."""
CHAT_PAIR = "two-chats.jsonl"
FILES[CHAT_PAIR] = [
    {
        "id": name,
        "model": "m",
        "messages": [
            {"role": "user", "content": f"Ask {name}"},
            {"role": "assistant", "content": f"Answer {name}"},
        ],
    }
    for name in ("one", "two", "three")
]
FILES["tries.json"] = [[{**RECORDED["gpt-4o-airline.json"][1][0][0], "trial": trial} for trial in range(3)]]

Path_ = tuple[Any, ...]
ODD: dict[str, Any] = {
    "true": True,
    "list": [[]],
    "object": {"odd": {"er": 1}},
    "text": math.nan,
    "nan": math.nan,
    "infinite": math.inf,
    "huge": 10**40,
    "negative": -3,
    "null": None,
}
SEPARATORS = "\u2028\u2029\x85end"
"""What `str.splitlines` takes for ends of lines, and files do not."""
NUMBERS = ("nan", "infinite", "huge", "negative")
# NaN in place of a text is no text, either.
DAMAGES = ("drop", "separator", *ODD)


def places_in(value: Any, path: Path_ = ()) -> list[Path_]:
    """The path of each element of a JSON value."""
    paths: list[Path_] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        paths += [(*path, key), *places_in(value[key], (*path, key))]
    return paths


def at(value: Any, path: Path_) -> Any:
    """The element at a path."""
    for key in path:
        value = value[key]
    return value


PLACES = {name: places_in(lines) for name, lines in FILES.items()}


def damaged(lines: list[Any], path: Path_, damage: str) -> list[Any]:
    """A copy in which one element is odd."""
    lines = copy.deepcopy(lines)
    holder, key = at(lines, path[:-1]), path[-1]
    if damage == "drop":
        del holder[key]
    elif damage == "separator":
        if isinstance(holder[key], str):
            holder[key] += SEPARATORS
    elif damage in NUMBERS:
        if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] = ODD[damage]
    elif type(holder[key]) is not type(ODD[damage]):
        # An object in place of one is an object without fields, as if they were dropped.
        holder[key] = copy.deepcopy(ODD[damage])
    return lines


def read(folder: Path, name: str, lines: list[Any]) -> tuple[list[Recording], list[str]]:
    """The recordings in a file, and what is named as broken in it; each is a run and a trial without an error."""
    path = folder / name
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    recordings, named = [], []
    try:
        found = list(read_file(path))
    except UsageError as error:
        return [], [str(error)]
    for one in found:
        if isinstance(one, Broken):
            named.append(str(one))
            continue
        try:
            trial_of(one, events_of(one))
        except ValueError as error:
            # What has no conversation is named by the import.
            named.append(str(error))
            continue
        recordings.append(one)
        named += map(str, one.left_out)
        # A call that cannot be read says so in its run.
        named += [call.problem for message in one.messages for call in message.calls if call.problem]
    return recordings, named


def said(recordings: list[Recording]) -> list[str]:
    """All that was said, and the tools that were called."""
    texts = []
    for recording in recordings:
        for message in recording.messages:
            text = message.text.replace(SEPARATORS, "")
            pieces = [piece for piece in text.split("\n\n") if not piece.startswith("[")]
            texts += [*pieces, *(call.tool for call in message.calls)]
    return sorted(filter(None, texts))


def read_as(recordings: list[Recording]) -> str:
    """All that is known of the recordings but what is kept as it is."""
    return repr(
        [
            (
                one.model,
                one.system,
                one.error,
                one.reason,
                one.suite,
                one.scenario,
                one.config,
                one.epoch,
                one.passed,
                one.scores,
                one.usage,
                one.metrics,
                one.summary,
                one.began,
                one.seconds,
                [tool["name"] for tool in one.tools],
                [
                    (
                        said.role,
                        said.text,
                        said.thinking,
                        said.error,
                        said.at,
                        said.seconds,
                        said.tokens_in,
                        said.tokens_out,
                        said.tokens_cached,
                        said.cost_usd,
                        [call.tool for call in said.calls],
                    )
                    for said in one.messages
                ],
            )
            for one in recordings
        ]
    )


def element_of(lines: list[Any], path: Path_) -> Any:
    """The nearest item of a list that an element is or is in; the element itself where there is none."""
    if "attributes" in path:
        # Attributes are the fields of a span.
        return at(lines, path[: path.index("attributes")])
    for end in range(len(path), 0, -1):
        if isinstance(at(lines, path[: end - 1]), list):
            return at(lines, path[:end])
    return at(lines, path)


def may_be_lost(lines: list[Any], path: Path_, sound: list[Recording]) -> str:
    """What an odd element may cost: what is said in it, and the answers to calls that it makes."""
    lost = json.dumps(element_of(lines, path), ensure_ascii=False)
    for recording in sound:
        calls: list[str] = []
        for message in recording.messages:
            calls += [call.id for call in message.calls if call.id and call.id in lost]
            if message.role == "tool" and (not message.call or message.call in calls):
                lost += message.text + json.dumps(message.text, ensure_ascii=False)
    return lost


def is_of(text: str, lost: str) -> bool:
    """Whether a text is made of what may be lost; a command in an answer is a call of a shell."""
    return text in ("bash", lost) or text in lost or json.dumps(text, ensure_ascii=False)[1:-1] in lost


@pytest.fixture(scope="module")
def folder() -> Any:
    """A folder for the files."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


Reader = Callable[[Path, str, list[Any]], tuple[list[Recording], list[str]]]


def check_law(folder: Path, name: str, path: Path_, damage: str, read: Reader = read) -> None:
    """Hold one damage against the sound file."""
    lines = FILES[name]
    sound, complaints = read(folder, name, lines)
    assert complaints == []
    recordings, named = read(folder, name, damaged(lines, path, damage))
    whole = len(path) <= 2 and not (len(lines) > 1 or isinstance(lines[0], list))
    whole = whole or path[:2] == (0, "eval")
    # What stands for a message that nobody recorded is in no file.
    raw = json.dumps(lines, ensure_ascii=False)
    missing = [text for text in said(sound) if is_of(text, raw)]
    for text in said(recordings):
        alike = text if text in missing else next((one for one in missing if one in text), "")
        if alike:
            missing.remove(alike)
    lost = may_be_lost(lines, path, sound)
    unexplained = [text for text in missing if not is_of(text, lost)]
    # A record that no longer shows what it is, or has no list of messages, is named as a whole.
    assert not unexplained or (whole and named), (unexplained, named)
    # Trials in are trials out, or named.
    trials = [sum(one.is_trial for one in some) for some in (sound, recordings)]
    # A verdict that is not there leaves a run without a score, which the import counts.
    assert trials[1] >= trials[0] or named or damage in ("drop", "null"), trials
    # What is in the arguments of a call is the model's, whatever it is; settings are texts of a name.
    if damage not in ("drop", "null", "separator") and not any(
        str(key).endswith(("args", "arguments", "_config")) for key in path
    ):
        # A result may be any JSON, which is its text; a large reward is one.
        faithful = {json.dumps(ODD[damage]), repr(ODD[damage])}
        if damage == "huge":
            faithful.add(repr(float(ODD[damage])))
        after = read_as(recordings)
        assert named or after == read_as(sound) or any(form in after for form in faithful), after


@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_odd_element_costs_itself_and_is_named(folder: Path, data: st.DataObject) -> None:
    """A file of each format, one element of it dropped, null, of another type, or with separators of lines in
    its text: all else is read, the element is named, and nothing raises.
    """
    name = data.draw(st.sampled_from(sorted(FILES)))
    path = data.draw(st.sampled_from(PLACES[name]))
    check_law(folder, name, path, data.draw(st.sampled_from(DAMAGES)))


def test_every_format_is_held_to_the_law(folder: Path) -> None:
    """A format that is added to the table needs a file here."""
    formats = {one.format for name, lines in FILES.items() for one in read(folder, name, lines)[0]}
    assert formats >= {form.name for form in FORMATS}


def _takes_the_rest(folder: Path, name: str, lines: list[Any]) -> tuple[list[Recording], list[str]]:
    recordings, named = read(folder, name, lines)
    return ([], named) if named else (recordings, named)


def _names_nothing(folder: Path, name: str, lines: list[Any]) -> tuple[list[Recording], list[str]]:
    return read(folder, name, lines)[0], []


@pytest.mark.parametrize("mutant", [_takes_the_rest, _names_nothing])
def test_the_law_catches_readers_that_break_it(folder: Path, mutant: Reader) -> None:
    """One that loses what stands beside an odd element, and one that does not name it."""
    path = (1, "messages", 1, "content")
    check_law(folder, CHAT_PAIR, path, "object")
    with pytest.raises(AssertionError):
        check_law(folder, CHAT_PAIR, path, "object", mutant)
