"""Data flow of tools, for containment: what answers bring into a conversation and how far calls reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from kestrel_lab.core.calls import HELD, IN_KERNEL, PREVIEWED, Danger, Effect
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json

Reads = Literal["private", "untrusted", "workspace", "run", "kernel"]
"""What an answer may hold: what is the user's own, what others wrote whom nobody vouches for, files of the
workspace (private, and untrusted where something foreign was written into them), what other steps of the run
left, or variables and cells of a kernel (untrusted where code that ran there had read something foreign).
"""
Shows = Literal["", "lines", "names"]
"""What an answer has of the files it reads: anything, only lines beside the path of their file, or only
paths.
"""
Reach = Literal["nothing", "workspace", "address", "others", "anything"]
"""What a call may change or send: nothing outside the run; files of the workspace; the host that answers at
an address in its arguments; others, to whom it sends or with whom it changes things; or all of these.
"""


@dataclass(frozen=True, slots=True)
class Flow:
    """Data a tool reads and sends."""

    reads: frozenset[str]
    reaches: str
    unsaid: frozenset[str] = field(default=frozenset(), compare=False)
    """`reads` and `reaches` where neither the author nor a person has said them: what is there is supposed;
    `files` where it may open any.
    """
    own: tuple[str, ...] = ()
    """Fields of its answers that only the user or the service writes, see `tools.tool.Tool.own`."""

    def at(self, sandbox: str) -> Flow:
        """Return the flow of a call whose commands run at `sandbox`: without one, or with a network, they
        read and reach anything.

        Values that are taken over from a preview reach nothing.
        """
        if sandbox == PREVIEWED:
            return Flow(self.reads, "nothing", self.unsaid)
        if sandbox == IN_KERNEL:
            return Flow(self.reads, "anything", self.unsaid)
        return (
            self
            if not sandbox or sandbox in HELD
            else Flow(self.reads | {"private", "untrusted"}, "anything")
        )

    def as_json(self) -> dict[str, Json]:
        """Return the two as the log keeps them with the name of a tool."""
        more = {"unsaid": sorted(self.unsaid), "own": [*self.own]}
        said = {name: cast("list[Json]", words) for name, words in more.items() if words}
        return {"reads": cast("list[Json]", sorted(self.reads)), "reaches": self.reaches, **said}

    @classmethod
    def from_json(cls, body: Mapping[str, Json]) -> Flow | None:
        """Return the flow in `as_json` form; `None` for logs of earlier versions without one."""
        reads, reaches = body.get("reads"), body.get("reaches")
        unsaid, own = (
            tuple(map(str, cast("list[Json]", body.get(name) or []))) for name in ("unsaid", "own")
        )
        return (
            cls(frozenset(map(str, reads)), reaches, frozenset(unsaid), own)
            if isinstance(reads, list) and isinstance(reaches, str)
            else None
        )


_ADDRESSES = frozenset({"url", "urls", "uri", "link", "href"})

UNKNOWN = Flow(frozenset({"private", "untrusted"}), "anything")
"""Flow of a tool about which nothing is known."""


def read_reads(given: str | Iterable[str] | None, *, untrusted: bool | None = None) -> tuple[str, ...] | None:
    """Return `reads` and `untrusted` as written for a tool, as a tuple; `None` where neither is said.

    Raises `UsageError` with the nearest word for one that is none, and where the two contradict each other.
    """
    if given is None:
        return None if untrusted is None else ("private", "untrusted") if untrusted else ("private",)
    words = tuple(given.split()) if isinstance(given, str) else tuple(given)
    if untrusted is False and "untrusted" in words:
        raise UsageError("a tool cannot read what is untrusted and be untrusted=False: leave one of them out")
    words += ("untrusted",) if untrusted and "untrusted" not in words else ()
    for word in words:
        if word not in get_args(Reads):
            raise UsageError(
                f"a tool reads {', '.join(get_args(Reads))}, not {word!r}; "
                f"{did_you_mean(str(word), get_args(Reads))}"
            )
    return words


def read_reach(given: str | None) -> str | None:
    """`reaches` as written for a tool; raises `UsageError` with the nearest word for one that is none."""
    if given is not None and given not in get_args(Reach):
        raise UsageError(
            f"a tool reaches {', '.join(get_args(Reach))}, not {given!r}; "
            f"{did_you_mean(str(given), get_args(Reach))}"
        )
    return given


def suggested_reach(parameters: Iterable[str], danger: Danger, effect: Effect) -> Reach:
    """Return how far a call of an undeclared function reaches, judged by its danger."""
    if danger >= Danger.MEDIUM:
        return "anything"
    return "address" if effect != "pure" and _ADDRESSES & {*parameters} else "nothing"


def undeclared_flow(
    *, reads: Iterable[str] | None, reaches: str | None, danger: Danger, effect: Effect
) -> frozenset[str]:
    """Return the assumed flow of an undeclared function: does it open `files`, its effect and danger."""
    if reads is not None or reaches is not None:
        return frozenset()
    if effect == "pure":
        return frozenset({"files"})
    return frozenset({"files", "reads", "reaches"} if danger is Danger.LOW else {"files", "reads"})
