"""Values as text for people: arguments, durations, counts and money, with nothing hidden in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Usage
from kestrel_lab.core.calls import cache_text as cache_text  # noqa: PLC0414  # others take it from here
from kestrel_lab.core.calls import format_count as format_count  # noqa: PLC0414  # as above
from kestrel_lab.core.events.union import ApprovalAsked, ModelAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text

ARGS_SHOWN = 4_000
RESULT_SHOWN = 4_000
WRITTEN_SHOWN = 1_500
"""Characters of one argument and of one result that a row shows: beginning and end."""


def visible_json(value: Json) -> str:
    """`value` as indented JSON with every hidden character escaped; parsing it gives `value` again."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return re.sub(
        r"[^\n\x20-\x7e]",
        lambda match: match[0] if sanitize_text(match[0]) == match[0] else json.dumps(match[0])[1:-1],
        text,
    )


def value_text(value: Json) -> str:
    """A string as it is, anything else as JSON; a string that could be mistaken for something else is quoted.

    Terminal escapes are shown, not removed: this is what somebody is asked to allow.
    """
    if not isinstance(value, str) or _edges_hide(value) or _reads_as_json(value):
        return visible_json(value)
    return sanitize_text(value.replace("\x1b", "\\u{1b}"))


def sandbox_words(level: str) -> str:
    """The sandbox of a call in words; empty for a call that has none to speak of."""
    if not level:
        return ""
    if (words := _CODE.get(level.partition(" ")[0])) is not None:
        return words
    return sanitize_text(level) if ":" in level else f"sandbox {sanitize_text(level)}"


_CODE = {PREVIEWED: "values of its preview, the code is not run again", IN_KERNEL: "runs in your kernel"}


def always_words(asked: ApprovalAsked) -> str:
    """Return the keys that decide on calls for the rest of the run."""
    if asked.contained:
        return "[s]ame calls always, [a]ll like these, none from here on"
    like = f"[l]ike {sanitize_text(asked.offer)} always, " if asked.offer else ""
    return f"[s]ame call always, {like}[a]lways in this run"


def typed_decision(word: str, asked: ApprovalAsked) -> dict[str, Any] | None:
    """Return the decision that a typed word means; `None` if it means none or was not offered."""
    scopes = {"a": "run", "always": "run", "any": "run", "s": "same", "same": "same"}
    scopes |= {"l": "like", "like": "like"} if asked.offer else {}
    if word in scopes:
        return {"granted": True, "scope": scopes[word]}
    # No further call that what others wrote may have caused.
    if word == "none" and asked.contained:
        return {"granted": False, "scope": "run", "reason": "none from here on"}
    return {"granted": word in {"y", "yes"}} if word in {"y", "yes", "n", "no"} else None


def origin_pairs(asked: ApprovalAsked) -> list[list[str]]:
    """The arguments that do not come from the model, and where each comes from."""
    known = [
        (one.get("arg", ""), found)
        for one in asked.origins
        if isinstance(found := one.get("from"), list) and found
    ]
    return [
        [sanitize_text(str(arg)), "; ".join(_source(one) for one in found if isinstance(one, dict))]
        for arg, found in known
    ]


def _source(one: Mapping[str, Json]) -> str:
    kind = sanitize_text(str(one.get("kind", "")))
    if kind == "filled":
        return sanitize_text(str(one.get("source", "")))
    where = (
        "from the goal"
        if kind == "goal"
        else f"from {sanitize_text(str(one.get('source', '')))}" + (f" ({kind})" if kind != "tool" else "")
    )
    piece = sanitize_text(str(one.get("piece", "")))
    return f"{where}: {piece}" if piece else where


def containment_text(asked: ApprovalAsked) -> str:
    """Return which sources and effect met in a call that containment asks about; nothing for another call."""
    if not asked.contained:
        return ""

    def names_in(key: str) -> str:
        value = asked.contained.get(key)
        return (
            ", ".join(sanitize_text(str(item)) for item in value)
            if isinstance(value, list)
            else sanitize_text(str(value))
        )

    wants = [one for one in cast("list[Json]", asked.contained.get("wants") or []) if isinstance(one, dict)]
    args = [cast("dict[str, Json]", one.get("args") or {}) for one in wants]
    lines = [", ".join(f"{name}: {text}" for name, text in args_pairs(one)) for one in args]
    calls = [
        f"{sanitize_text(str(one.get('tool')))} ({line})" for one, line in zip(wants, lines, strict=True)
    ]
    together = f" This is also about: {'; '.join(calls)}. A yes or no is for all of them." if calls else ""
    stated = cast("dict[str, Json]", asked.contained.get("stated") or {})
    task = (
        " Stated before anything was read: "
        f"{', '.join(f'{sanitize_text(tool)} ×{times}' for tool, times in stated.items())}."
        if stated
        else ""
    )
    return (
        f"The model has read what others wrote ({names_in('untrusted')}) and can know what is private "
        f"({names_in('private')}); {names_in('effect')}.{together}{task}"
    )


def args_pairs(args: Mapping[str, Json], limit: int | None = ARGS_SHOWN) -> list[list[str]]:
    """Name and text of each argument, each text at most about `limit` characters."""
    pairs = [[sanitize_text(name), value_text(value)] for name, value in args.items()]
    return pairs if limit is None else [[name, head_tail(text, limit)[0]] for name, text in pairs]


def answer_options(asked: ApprovalAsked) -> list[str]:
    """The answers that a question offers, as its reader sees them."""
    options = asked.args.get("options")
    return [sanitize_text(str(option)) for option in options] if isinstance(options, list) else []


def chosen_answer(asked: ApprovalAsked, typed: str) -> str:
    """The answer somebody typed: an option where it is the number of one, else the words themselves."""
    typed, options = typed.strip(), answer_options(asked)
    number = (
        int(typed) if typed.isascii() and typed.isdigit() and len(typed) < 4 and typed not in options else 0
    )
    return options[number - 1] if 0 < number <= len(options) else typed


CODE_ARGS = {"code": "python", "source": "python", "command": "bash"}
"""Arguments that hold code, by name, with its language."""


def code_argument(args: Mapping[str, Json]) -> tuple[str, list[str]]:
    """Name of the argument that is code of several lines, with its language and text; empty for none."""
    for name, language in CODE_ARGS.items():
        if isinstance(code := args.get(name), str) and "\n" in code.strip():
            return name, [language, head_tail(value_text(code), ARGS_SHOWN)[0]]
    return "", []


def args_line(args: Mapping[str, Json]) -> str:
    """The arguments on one short line; of code its first line, as flattened it would be another code."""
    name, code = code_argument(args)
    first, *rest = code[1].strip().splitlines() if code else ("",)
    begun = [f"{first.rstrip()} … {format_count(len(rest), 'more line')}"] if code else []
    others = {key: value for key, value in args.items() if key != name}
    if not code and len(others) == 1:
        return one_line(value_text(next(iter(others.values())))[:400], 100)
    return one_line(
        ", ".join([*begun, *(f"{key}={value_text(value)[:200]}" for key, value in others.items())]), 100
    )


def shown_args(args: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of a call's row that show its arguments."""
    name, code = code_argument(args)
    pairs = args_pairs({key: value for key, value in args.items() if key != name})
    return {"summary": args_line(args), "args": cast("Json", pairs), "code": cast("Json", code)}


def sanitize_short(text: str, limit: int = RESULT_SHOWN) -> str:
    """Foreign `text` made harmless and short."""
    return head_tail(sanitize_text(text), limit)[0]


def opening_line(text: str, limit: int = 160) -> str:
    """Foreign `text` on one line where it fits; else its first line, and how many lines follow it."""
    said = text.strip()
    first, _, rest = said.partition("\n")
    whole = one_line(said[: 2 * limit], limit)
    if not rest or (len(said) <= 2 * limit and not whole.endswith("…")):
        return whole
    more = f" … {format_count(rest.count(chr(10)) + 1, 'more line')}"
    return one_line(first[: 2 * limit], limit - len(more)) + more


def format_duration(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `2 min 05 s`."""
    # Rounded, more would read 100 ms.
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    # Rounded, more would read 60.0 s.
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def thinking_text(event: ModelAnswered) -> str:
    """The reasoning before an answer, harmless to show; a block that the provider encrypted is named."""
    blocks = [
        str(block.get("text") or "[a block that the provider keeps to itself]") for block in event.thinking
    ]
    return sanitize_short("\n\n".join(blocks))


def usage_line(usage: Usage) -> str:
    """Tokens, cost and calls; marks unknown tokens, cached prompts and calls without a price."""
    return str(usage)


def _edges_hide(text: str) -> bool:
    """Return whether `text` has invisible blanks at its ends; ignores indentation and a final line end."""
    if "\n" not in text.strip():
        return text != text.strip()
    return text.startswith("\n") or text.removesuffix("\n") != text.rstrip()


def _reads_as_json(text: str) -> bool:
    if len(text) > 100:
        return False
    try:
        json.loads(text)
    except ValueError:
        return not text
    return True


def action_line(text: str, why: str) -> str:
    """The line of an action; what follows the command is a comment to a shell."""
    return f"{sanitize_text(text)}  # {one_line(sanitize_text(why), 200)}"


# The beginning and the end of something long: what is saved with a notebook has a size that somebody can
# open.

T = TypeVar("T")


def first_and_last(
    items: Sequence[T], render: Callable[[T], str], limit: int | None
) -> tuple[list[str], int, list[str]]:
    """Renderings of the first and of the last items, and how many are left out between.

    Together they have about `limit` characters, a third of them at the beginning; the last item is always
    there. `None` leaves nothing out. Only what is returned is rendered.
    """
    if limit is None or not items:
        return [render(item) for item in items], 0, []
    last = render(items[-1])
    head = _fit_items(items[:-1], render, limit // 3)
    rest = items[len(head) : -1]
    tail = _fit_items(reversed(rest), render, limit - sum(map(len, head)) - len(last))
    return head, len(rest) - len(tail), [*reversed(tail), last]


def _fit_items(items: Iterable[T], render: Callable[[T], str], room: int) -> list[str]:
    found: list[str] = []
    for item in items:
        text = render(item)
        room -= len(text)
        if room < 0:
            break
        found.append(text)
    return found


def guidance_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return `RunStarted.guidance` as lines: the guidance files of a workspace and its skills."""
    skills = [one_line(str(one["path"]).rpartition("/")[0], 200) for one in entries if "skill" in one]
    lines = [f"guidance of the workspace: {guidance_line(one)}" for one in entries if "skill" not in one]
    return [
        *lines,
        *([f"{format_count(len(skills), 'skill')} can be loaded: {', '.join(skills)}"] if skills else []),
    ]


def guidance_line(entry: Mapping[str, Any]) -> str:
    """Return one guidance file as a line: size and hash, or why it is not used."""
    path = one_line(str(entry["path"]), 200)
    if entry.get("problem"):
        return f"{path} is not used: {one_line(str(entry['problem']), 300)}"
    cut = ", of which agents are given the beginning" if entry.get("cut") else ""
    whose = f"; {one_line(str(entry['tainted']), 300)}" if entry.get("tainted") else ""
    return f"{path}, {entry['size']:,} bytes{cut}, sha256 {str(entry['digest'])[:16]}{whose}"
