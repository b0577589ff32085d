"""Formats that can be imported, in one table: how a file shows what it is, and what reads it.

A file is known by what is in it. To add a format, write a reader and add a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers import trace_exports as traces
from kestrel_lab.evals.importers.agent_sessions import read_claude_code, read_codex, session_format
from kestrel_lab.evals.importers.atif_trajectories import atif_recordings, is_atif, trial_recordings
from kestrel_lab.evals.importers.benchmark_runs.agentdojo_runs import agentdojo_recording, is_agentdojo
from kestrel_lab.evals.importers.benchmark_runs.harbor_trials import (
    TRIAL,
    is_harbor_job,
    is_harbor_trial,
    read_job,
    trial_files,
)
from kestrel_lab.evals.importers.benchmark_runs.tau_bench_runs import is_tau_bench, tau_bench_recording
from kestrel_lab.evals.importers.chat_logs import chat_recording, is_chat, is_message, list_recording
from kestrel_lab.evals.importers.coding_agents.gemini_sessions import (
    gemini_lines,
    gemini_session,
    is_gemini_line,
    is_gemini_session,
)
from kestrel_lab.evals.importers.coding_agents.opencode_sessions import (
    is_opencode_message,
    is_opencode_session,
    opencode_messages,
    opencode_session,
)
from kestrel_lab.evals.importers.coding_agents.openhands_events import (
    is_openhands_event,
    is_openhands_row,
    openhands_events,
    openhands_row,
)
from kestrel_lab.evals.importers.coding_agents.swe_agents import (
    is_mini_message,
    is_mini_swe_agent,
    is_swe_agent,
    mini_swe_agent_messages,
    mini_swe_agent_recording,
    swe_agent_recording,
)
from kestrel_lab.evals.importers.imported_run import Recording, Records, unreadable_record
from kestrel_lab.evals.importers.inspect_logs import inspect_recordings, is_inspect
from kestrel_lab.evals.importers.json_fields import UNREADABLE, Broken, numbered_lines, parse_json, parse_line
from kestrel_lab.evals.importers.otel_traces import read_otel
from kestrel_lab.evals.importers.other_tools import name_other_tool

ENDINGS: Final = (".eval", ".json", ".jsonl", ".ndjson", ".traj")
"""Of files that are looked for in folders."""
_SNIFFED: Final = 40
"""Parts in which a list or a file of lines has to show what it is: some begin with notes of the program."""
_STATE: Final = "base_state.json"
"""What the SDK of OpenHands keeps beside its folder of events."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One form in which runs are recorded."""

    name: str
    """As `RunStarted.imported` has it."""
    title: str
    """What it is and where it is found, for people."""
    unit: Literal["file", "record", "parts"] = "record"
    """What `fits` looks at and `read` takes: a path, a JSON value, or one of the lines or items that make a
    record together.
    """
    fits: Callable[[Any], bool]
    read: Callable[[Any, str, Path], Records]
    """Takes the unit (of parts: all of them, each with its place), the place, and the file."""


def _one(make: Callable[[Any, str], Any]) -> Callable[[Any, str, Path], Records]:
    """Return the reader of a format whose unit is one recording."""
    return lambda value, place, _: iter((make(value, place),))


def _all(make: Callable[[Any, str], Records]) -> Callable[[Any, str, Path], Records]:
    return lambda value, place, _: make(value, place)


def _session(name: str, title: str, read: Callable[[Path], Records]) -> Format:
    return Format(
        name=name,
        title=title,
        unit="file",
        fits=lambda path: session_format(path) == name,
        read=lambda path, *_: read(path),
    )


_ATIF: Final = "ATIF: Harbor's folders of trials, and trajectories of others, versions 1.0 to 1.8"
_OPENHANDS: Final = "OpenHands: a downloaded trajectory, the folder `events` of a session, `output.jsonl`"
_GEMINI: Final = "Gemini CLI: `~/.gemini/tmp/*/chats/session-*.json` or `.jsonl`"
_OPENCODE: Final = "OpenCode: what `opencode export SESSION` prints"
_MINI: Final = "mini-swe-agent: `.traj.json` of version 1 and 2, or its messages alone"
_LANGFUSE: Final = "Langfuse: a trace as downloaded, observations of the API or of a table's export"
_LANGSMITH: Final = "LangSmith: runs of its SDK or API, as JSON or JSON Lines"
_PHOENIX: Final = "Phoenix: spans of its API, or a frame of spans written as JSON"

FORMATS: Final[tuple[Format, ...]] = (
    Format(
        name="inspect",
        title="Inspect: logs, `.eval` and `.json`",
        unit="file",
        fits=lambda path: path.suffix == ".eval" or is_inspect(path),
        read=lambda path, *_: inspect_recordings(path),
    ),
    _session("claude-code", "Claude Code: `~/.claude/projects/*/*.jsonl`", read_claude_code),
    _session("codex", "Codex: `~/.codex/sessions/**/rollout-*.jsonl`", read_codex),
    _session("otel", "OpenTelemetry: OTLP JSON with the GenAI conventions", read_otel),
    Format(name="atif", title=_ATIF, fits=is_atif, read=atif_recordings),
    Format(name="atif", title=_ATIF, fits=is_harbor_trial, read=trial_recordings),
    Format(name="atif", title=_ATIF, fits=is_harbor_job, read=read_job),
    Format(name="swe-agent", title="SWE-agent: `.traj`", fits=is_swe_agent, read=_one(swe_agent_recording)),
    Format(name="mini-swe-agent", title=_MINI, fits=is_mini_swe_agent, read=_one(mini_swe_agent_recording)),
    Format(
        name="mini-swe-agent",
        title=_MINI,
        unit="parts",
        fits=is_mini_message,
        read=_one(mini_swe_agent_messages),
    ),
    Format(name="openhands", title=_OPENHANDS, fits=is_openhands_row, read=_one(openhands_row)),
    Format(
        name="openhands", title=_OPENHANDS, unit="parts", fits=is_openhands_event, read=_one(openhands_events)
    ),
    Format(
        name="tau-bench",
        title="tau-bench: `historical_trajectories/*.json` and results of its `run.py`",
        fits=is_tau_bench,
        read=lambda value, place, path: iter((tau_bench_recording(value, place, path),)),
    ),
    Format(
        name="gemini",
        title=_GEMINI,
        fits=lambda value: is_gemini_session(value) and isinstance(value.get("messages"), list),
        read=_one(gemini_session),
    ),
    Format(name="gemini", title=_GEMINI, unit="parts", fits=is_gemini_line, read=_one(gemini_lines)),
    Format(name="opencode", title=_OPENCODE, fits=is_opencode_session, read=_one(opencode_session)),
    Format(
        name="opencode", title=_OPENCODE, unit="parts", fits=is_opencode_message, read=_one(opencode_messages)
    ),
    Format(
        name="langfuse", title=_LANGFUSE, fits=traces.is_langfuse_trace, read=_all(traces.read_langfuse_trace)
    ),
    Format(
        name="langfuse",
        title=_LANGFUSE,
        unit="parts",
        fits=traces.is_langfuse,
        read=_all(traces.read_langfuse),
    ),
    Format(
        name="langsmith",
        title=_LANGSMITH,
        fits=traces.is_langsmith_page,
        read=_all(traces.read_langsmith_page),
    ),
    Format(
        name="langsmith",
        title=_LANGSMITH,
        unit="parts",
        fits=traces.is_langsmith,
        read=_all(traces.read_langsmith),
    ),
    Format(name="phoenix", title=_PHOENIX, fits=traces.is_phoenix_page, read=_all(traces.read_phoenix_page)),
    Format(
        name="phoenix", title=_PHOENIX, unit="parts", fits=traces.is_phoenix, read=_all(traces.read_phoenix)
    ),
    Format(name="agentdojo", title="AgentDojo: run files", fits=is_agentdojo, read=_one(agentdojo_recording)),
    Format(
        name="chat",
        title="Chat logs: `messages`, or request and response, of OpenAI, Anthropic, Gemini, LangChain",
        fits=is_chat,
        read=lambda value, place, path: iter((chat_recording(value, place, path.stem),)),
    ),
    Format(
        name="messages",
        title="Messages: a list and nothing else, of OpenAI, Anthropic, Gemini, LangChain",
        unit="parts",
        fits=is_message,
        read=_one(list_recording),
    ),
)
"""The first that fits is taken: the narrower forms come before the wider ones."""
TITLES: Final = tuple(dict.fromkeys(one.title for one in FORMATS))
_NAMES: Final = ", ".join(title.partition(":")[0] for title in TITLES)
_UNKNOWN: Final = f"of no known format; known are {_NAMES} (docs/howto/import.md)"


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder that may be recordings; a folder with the events of one session is one, and
    of a folder with a trial of Harbor its result, with which the rest is read.
    """
    trials = {file.parent for file in trial_files(folder)}
    jobs = {trial.parent for trial in trials if (trial.parent / TRIAL).is_file()}
    seen: set[Path] = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix not in ENDINGS or not path.is_file():
            continue
        if path.name != TRIAL or path.parent not in trials:
            # What Harbor keeps of a job beside its trials, and of a trial beside its result.
            if path.name != TRIAL and path.parent in jobs:
                continue
            if any(parent in trials for parent in path.parents):
                continue
        if path.name == _STATE and (path.parent / "events").is_dir():
            continue
        # OpenHands keeps a session as a folder `events`, one event a file.
        if path.parent.name != "events" or not path.name.startswith(("event-", *"0123456789")):
            yield path
        elif path.parent not in seen:
            seen.add(path.parent)
            yield path.parent


def read_file(path: Path) -> Records:
    """Yield the recordings in a file, or in a folder of events, and what cannot be read of it."""
    if path.is_dir():
        yield from _read_elements(path, _events_in(path))
        return
    for form in FORMATS:
        if form.unit == "file" and form.fits(path):
            yield from _read_unit(form, path, str(path), path)
            return
    if path.suffix in (".jsonl", ".ndjson"):
        with path.open("rb") as file:
            lines = ((f"{shown_path(path)}:{number}", line) for number, line in numbered_lines(file))
            yield from _read_elements(path, _parsed_lines(lines))
        return
    value = _parsed(path.read_bytes(), shown_path(path))
    if isinstance(value, Broken):
        yield Broken(value.place, f"{value.why}; formats that are known: {_NAMES}")
    else:
        yield from _read_value(path, value, str(path))


def _events_in(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the events in a folder, in their order, and the state of the session that is kept beside it."""
    for file in sorted(folder.glob("*.json"), key=lambda file: (_event_number(file), file.name)):
        yield shown_path(file), _parsed(file.read_bytes(), shown_path(file))
    state = folder.parent / _STATE
    if state.is_file() and not isinstance(value := _parsed(state.read_bytes(), shown_path(state)), Broken):
        yield (
            shown_path(state),
            {"kind": "ConversationStateUpdateEvent", "key": "full_state", "value": value},
        )


def _event_number(file: Path) -> int:
    """Return the number of an event, which its file's name begins with: event 10 comes after event 9."""
    digits = re.match(r"(?:event-)?(\d{1,18})", file.name)
    return int(digits[1]) if digits else 1 << 62


def _parsed(content: bytes, place: str) -> Any:
    try:
        return parse_json(content)
    except ValueError as error:
        return Broken(place, f"not JSON: {one_line(str(error), 100)}")


def _parsed_lines(lines: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, Any]]:
    for place, line in lines:
        if line.strip():
            yield place, parse_line(line, place)


def _record_format(value: Any) -> Format | None:
    return next((form for form in FORMATS if form.unit == "record" and form.fits(value)), None)


def _part_formats(value: Any) -> list[Format]:
    """Return the formats of which a value may be a part; a whole record is none."""
    return [form for form in FORMATS if form.unit == "parts" and form.fits(value)]


def _read_value(path: Path, value: Any, place: str) -> Records:
    """Yield the recordings in a JSON value: it is one, a list of them, or a list of parts of some."""
    shown = place.replace(str(path), shown_path(path), 1)
    if (form := _record_format(value)) is not None:
        yield from _read_unit(form, value, place, path)
    elif isinstance(value, list):
        items = ((f"{shown}[{number}]", item) for number, item in enumerate(value))
        yield from _read_elements(path, items)
    elif forms := _part_formats(value):
        yield from _read_unit(forms[0], [(shown, value)], place, path)
    else:
        yield Broken(shown, _unknown_reason(path, value))


def _read_elements(path: Path, elements: Iterator[tuple[str, Any]]) -> Records:
    """Yield the recordings in lines or items: each is one, or all of them are parts of some.

    What most of the first elements are decides; an element of another shape among them is named, and is no
    reason to read the others otherwise.
    """
    first = list(islice(elements, _SNIFFED))
    values = [value for _, value in first if not isinstance(value, Broken)]
    records = [form for form in map(_record_format, values) if form is not None]
    forms = {form for value in values if _record_format(value) is None for form in _part_formats(value)}
    parts = sum(1 for value in values if _record_format(value) is None and _part_formats(value))
    if forms and parts > len(records):
        elements_read = [*first, *elements]
        yield from (value for _, value in elements_read if isinstance(value, Broken))
        whole = [(place, value) for place, value in elements_read if not isinstance(value, Broken)]
        yield from _read_parts(sorted(forms, key=FORMATS.index), whole, path)
        return
    usual = max(records, key=records.count, default=None)
    for place, value in chain(first, elements):
        if isinstance(value, Broken):
            yield value
        elif (form := _record_format(value)) is not None:
            yield from _read_unit(form, value, _place_in(path, place), path)
        elif usual is not None and isinstance(value, dict):
            # One of them that lacks what shows what it is: its reader says what is missing.
            yield from _read_unit(usual, value, _place_in(path, place), path)
        elif isinstance(value, list) and value:
            yield from _read_value(path, value, _place_in(path, place))
        else:
            yield Broken(place, _unknown_reason(path, value))


def _place_in(path: Path, place: str) -> str:
    return place.replace(shown_path(path), str(path), 1)


def _read_parts(forms: Sequence[Format], parts: list[tuple[str, Any]], path: Path) -> Records:
    """Yield the recordings that parts make together, in the narrowest format that leaves out least."""
    readings: list[list[Recording | Broken]] = []
    for form in forms:
        reading = list(_read_unit(form, parts, str(path), path))
        readings.append(reading)
        if not _left_out(reading):
            break
    yield from min(readings, key=_left_out)


def _left_out(reading: Iterable[Recording | Broken]) -> int:
    return sum(1 if isinstance(record, Broken) else len(record.left_out) for record in reading)


def _unknown_reason(path: Path, value: Any) -> str:
    other = name_other_tool(path, value)
    return f"{other}; {_UNKNOWN}" if other else _UNKNOWN


def _read_unit(form: Format, unit: Any, place: str, path: Path) -> Records:
    shown = place.replace(str(path), shown_path(path), 1)
    try:
        yield from form.read(unit, place, path)
    except UsageError:
        raise
    except UNREADABLE as error:
        yield unreadable_record(shown, f"cannot be read as {form.title.partition(':')[0]}", error)
