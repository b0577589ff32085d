"""Sessions of OpenCode as `opencode export` writes them: messages with parts, and snapshots of the folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kestrel_lab.evals.importers.imported_run import (
    ImportedMessage,
    Recording,
    read_call,
    read_parts,
    record_digest,
)


def is_opencode_message(value: Any) -> bool:
    """Return whether a JSON value is a message of OpenCode with its parts."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("parts"), list)
        and isinstance(info := value.get("info"), dict)
        and info.get("role") in ("user", "assistant")
    )


def is_opencode_session(value: Any) -> bool:
    """Return whether a JSON value is an exported session of OpenCode."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("info"), dict)
        and isinstance(messages := value.get("messages"), list)
        and any(map(is_opencode_message, messages[:4]))
    )


def opencode_session(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of an exported session.

    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    parts = [(f"{source} messages[{number}]", one) for number, one in enumerate(value["messages"])]
    return opencode_messages(parts, source, value["info"])


def opencode_messages(
    parts: Sequence[tuple[str, Any]], source: str, session: Mapping[str, Any] | None = None
) -> Recording:
    """Return the recording of the messages of a session.

    Each step of the agent is an answer. Where the snapshots before and after a step are known, its calls say
    which files were other ones: none, or those of its patch.
    """
    about = session or {}
    system: list[str] = []
    said, left_out = read_parts(parts, lambda message: _read(message, system))
    return Recording(
        format="opencode",
        source=source,
        id=str(about.get("id") or ""),
        digest=record_digest("opencode", about.get("id"), [one for _, one in parts]),
        model=next((one.model for one in said if one.model), "unknown"),
        system="\n\n".join(dict.fromkeys(system)),
        messages=said,
        facts={name: about[name] for name in ("title", "directory", "version") if about.get(name)},
        left_out=left_out,
    )


def _read(message: Mapping[str, Any], system: list[str]) -> Iterator[ImportedMessage]:
    info, parts = message["info"], message["parts"]
    at = _seconds((info.get("time") or {}).get("created"))
    if info["role"] == "user":
        if info.get("system"):
            system.append(str(info["system"]))
        texts = [_user_text(part) for part in parts]
        yield ImportedMessage(role="user", text="\n\n".join(filter(None, texts)), at=at)
        return
    steps: list[list[Mapping[str, Any]]] = [[]]
    for part in parts:
        if part["type"] == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    for step in steps:
        yield from _step(step, info, at, alone=len(steps) == 1)
    if error := info.get("error"):
        words = (error.get("data") or {}).get("message") or error.get("name")
        yield ImportedMessage(role="note", text=f"error: {words}", at=at)


def _user_text(part: Mapping[str, Any]) -> str:
    if part["type"] == "text":
        return str(part["text"])
    return f"[{part['type']} {part.get('filename') or part.get('name') or ''}]".replace(" ]", "]")


def _step(
    step: Sequence[Mapping[str, Any]], info: Mapping[str, Any], began: float | None, *, alone: bool
) -> Iterator[ImportedMessage]:
    tools = [part for part in step if part["type"] == "tool"]
    finish = next((part for part in step if part["type"] == "step-finish"), None)
    spent = finish if finish is not None else info if alone else {}
    tokens, cost = spent.get("tokens") or {}, spent.get("cost")
    cached = tokens.get("cache") or {}
    thought = int(tokens.get("reasoning") or 0)
    ended = (info.get("time") or {}).get("completed") if alone else None
    starts = [start for part in tools if (start := (part["state"].get("time") or {}).get("start"))]
    calls = tuple(
        read_call(part["tool"], dict(part["state"].get("input") or {}), part["callID"]) for part in tools
    )
    text = "\n\n".join(str(part["text"]) for part in step if part["type"] == "text")
    thinking = "\n\n".join(str(part["text"]) for part in step if part["type"] == "reasoning")
    if not (text or thinking or calls):
        return
    yield ImportedMessage(
        role="assistant",
        text=text,
        thinking=thinking,
        calls=calls,
        at=_seconds(min(starts, default=ended)) or began,
        # It counts what the cache gave, and thoughts, apart.
        tokens_in=sum(
            int(count or 0) for count in (tokens.get("input"), cached.get("read"), cached.get("write"))
        )
        if tokens
        else None,
        tokens_out=int(tokens.get("output") or 0) + thought if tokens else None,
        tokens_cached=int(cached.get("read") or 0),
        tokens_reasoning=thought,
        # It writes 0 where it has no price.
        cost_usd=float(cost) if cost else None,
        model="/".join(filter(None, (str(info.get("providerID") or ""), str(info.get("modelID") or "")))),
    )
    touched = _touched(step, finish)
    for part in tools:
        yield _result(part, touched)


def _touched(step: Sequence[Mapping[str, Any]], finish: Mapping[str, Any] | None) -> tuple[str, ...] | None:
    """Return the files that are other ones after a step; `None` where a snapshot is missing."""
    before = next((part.get("snapshot") for part in step if part["type"] == "step-start"), None)
    after = None if finish is None else finish.get("snapshot")
    if not before or not after:
        return None
    patches = [part for part in step if part["type"] == "patch"]
    if before != after and not patches:
        return None
    return tuple(dict.fromkeys(str(name) for part in patches for name in part.get("files") or ()))


def _result(part: Mapping[str, Any], touched: tuple[str, ...] | None) -> ImportedMessage:
    state = part["state"]
    times = state.get("time") or {}
    failed = state.get("status") == "error"
    error = str(state.get("error") or "failed") if failed else ""
    began, ended = _seconds(times.get("start")), _seconds(times.get("end"))
    return ImportedMessage(
        role="tool",
        text=str(state.get("output") or error),
        call=str(part["callID"]),
        error=error,
        at=ended,
        seconds=max(0.0, ended - began) if began is not None and ended is not None else 0.0,
        touched=touched,
    )


def _seconds(milliseconds: Any) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000
