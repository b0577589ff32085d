"""Formats that can be imported, in one table: how a file shows what it is, and what reads it.

A file is known by what is in it. To add a format, write a reader and add a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers import trace_exports as traces
from kestrel_lab.evals.importers.agent_sessions import read_claude_code, read_codex, session_format
from kestrel_lab.evals.importers.agentdojo_runs import agentdojo_recording, is_agentdojo
from kestrel_lab.evals.importers.atif_trajectories import TRIAL, atif_recordings, is_atif
from kestrel_lab.evals.importers.chat_logs import chat_recording, is_chat, is_message, list_recording
from kestrel_lab.evals.importers.coding_agents.gemini_sessions import (
    gemini_lines,
    gemini_session,
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
from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
    Broken,
    Records,
    unreadable_record,
)
from kestrel_lab.evals.importers.inspect_logs import inspect_recordings, is_inspect
from kestrel_lab.evals.importers.otel_traces import read_otel
from kestrel_lab.evals.importers.tau_bench_runs import is_tau_bench, tau_bench_recording

ENDINGS: Final = (".eval", ".json", ".jsonl", ".ndjson", ".traj")
"""Of files that are looked for in folders."""
_SNIFFED: Final = 40
"""Parts in which a list or a file of lines has to show what it is: some begin with notes of the program."""


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
    Format(
        name="atif",
        title="ATIF: Harbor's folders of trials, and trajectories of others, versions 1.0 to 1.8",
        fits=is_atif,
        read=atif_recordings,
    ),
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
    Format(name="gemini", title=_GEMINI, unit="parts", fits=is_gemini_session, read=_one(gemini_lines)),
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
    """Yield the files in a folder that may be recordings; a folder with the events of one session is one."""
    seen: set[Path] = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix not in ENDINGS or not path.is_file() or _is_of_trial(path):
            continue
        # OpenHands keeps a session as a folder `events`, one event a file.
        if path.parent.name != "events" or not path.name.startswith(("event-", *"0123456789")):
            yield path
        elif path.parent not in seen:
            seen.add(path.parent)
            yield path.parent


def _is_of_trial(path: Path) -> bool:
    """Return whether a file is of a trial of Harbor and not of its agent: a trajectory is read with them."""
    trial = path.parent.parent if path.parent.name == "verifier" else path.parent
    return (trial / "agent").is_dir() and (trial / TRIAL).is_file()


def read_file(path: Path) -> Records:
    """Yield the recordings in a file, or in a folder of events, and what cannot be read of it."""
    if path.is_dir():
        # By number: event 10 comes after event 9.
        files = sorted(path.glob("*.json"), key=lambda file: (int(re.sub(r"\D", "", file.name)), file.name))
        yield from _read_lines(path, ((shown_path(file), file.read_bytes()) for file in files))
        return
    for form in FORMATS:
        if form.unit == "file" and form.fits(path):
            yield from form.read(path, shown_path(path), path)
            return
    with path.open("rb") as file:
        if path.suffix in (".jsonl", ".ndjson"):
            yield from _read_lines(
                path, ((f"{shown_path(path)}:{number}", line) for number, line in enumerate(file, 1))
            )
            return
        content = file.read()
    value = _parsed(content, shown_path(path))
    if isinstance(value, Broken):
        yield Broken(value.place, f"{value.why}; formats that are known: {_NAMES}")
    else:
        yield from _read_value(path, value, str(path))


def _parsed(content: bytes, place: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        return Broken(place, f"not JSON: {one_line(str(error), 100)}")


def _read_lines(path: Path, lines: Iterable[tuple[str, bytes]]) -> Records:
    """Yield the recordings in lines: each is one, or all of them are parts of some."""
    begun: list[tuple[str, Any]] = []
    rest = ((place, _parsed(line, place)) for place, line in lines if line.strip())
    form = None
    for place, value in rest:
        begun.append((place, value))
        form = _parts_format(value)
        if form is not None or len(begun) == _SNIFFED or _record_format(value) is not None:
            break

    def whole() -> Iterator[tuple[str, Any]]:
        yield from begun
        yield from rest

    if form is None:
        for place, value in whole():
            yield from (value,) if isinstance(value, Broken) else _read_value(path, value, place)
        return
    parts = list(whole())
    yield from (value for _, value in parts if isinstance(value, Broken))
    yield from _read_unit(form, [one for one in parts if not isinstance(one[1], Broken)], str(path), path)


def _record_format(value: Any) -> Format | None:
    return next((form for form in FORMATS if form.unit == "record" and form.fits(value)), None)


def _parts_format(value: Any) -> Format | None:
    """Return the format of parts that a value is one of; a whole record is none."""
    if _record_format(value) is not None:
        return None
    return next((form for form in FORMATS if form.unit == "parts" and form.fits(value)), None)


def _read_value(path: Path, value: Any, place: str) -> Records:
    """Yield the recordings in a JSON value: it is one, a list of them, or a list of parts of some."""
    shown = place.replace(str(path), shown_path(path), 1)
    if (form := _record_format(value)) is not None:
        yield from _read_unit(form, value, place, path)
        return
    if not isinstance(value, list):
        if (form := _parts_format(value)) is not None:
            yield from _read_unit(form, [(shown, value)], place, path)
        else:
            yield Broken(shown, _UNKNOWN)
        return
    first: Sequence[Any] = value[:_SNIFFED]
    whole = any(_record_format(one) is not None for one in first)
    form = None if whole else next(filter(None, map(_parts_format, first)), None)
    if form is not None:
        # The narrowest format that fits any of them, as messages with commands in some of their texts.
        form = min((one for one in map(_parts_format, first) if one), key=FORMATS.index)
        parts = [(f"{shown}[{number}]", one) for number, one in enumerate(value)]
        yield from _read_unit(form, parts, place, path)
        return
    for number, one in enumerate(value):
        inner = _record_format(one)
        if inner is None:
            yield Broken(f"{shown}[{number}]", _UNKNOWN)
        else:
            yield from _read_unit(inner, one, f"{place}[{number}]", path)


def _read_unit(form: Format, unit: Any, place: str, path: Path) -> Records:
    shown = place.replace(str(path), shown_path(path), 1)
    try:
        yield from form.read(unit, place, path)
    except UNREADABLE as error:
        yield unreadable_record(shown, f"cannot be read as {form.title.partition(':')[0]}", error)
