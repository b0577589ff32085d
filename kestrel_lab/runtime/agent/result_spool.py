"""Long results of tool calls: where a call writes one, and how a model reads on in it."""

from __future__ import annotations

from kestrel_lab.core.errors import StoreError, UsageError, did_you_mean
from kestrel_lab.eventlog.large_results import Spool
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.tools.tool import StoredAnswer

_GONE = "is no longer kept whole: there was no room for it"


def stored_result(ctx: RunContext, name: str) -> StoredAnswer:
    """The answer of this run, or of the one it was forked from, that is kept under that name.

    Raises `ValueError` when there is none, so that no run can read in another's answers, and
    `FileNotFoundError` when it had to go.
    """
    whole = ctx.state.wholes.get(name)
    if whole is None:
        raise ValueError(f"no answer of this run is kept as {name!r}; {did_you_mean(name, ctx.state.wholes)}")
    try:
        path = ctx.services.store.results.path(name)
    except StoreError as error:
        raise FileNotFoundError(str(error)) from error
    if path is None:
        raise FileNotFoundError(
            f"the answer of {whole.tool} {_GONE}; make the call again, for a smaller part of it"
        )
    untrusted = whole.tool not in ctx.tools or "untrusted" in ctx.tools.get(whole.tool).flow.reads
    return StoredAnswer(path=path, chars=whole.chars, tool=whole.tool, untrusted=untrusted)


def begin_spool(ctx: RunContext, spools: list[Spool]) -> Spool:
    """A text that a call begins to keep; one for each call."""
    if spools:
        raise UsageError("a call keeps one text only")
    spools.append(ctx.services.store.results.spool())
    return spools[0]


def end_spools(spools: list[Spool]) -> tuple[str, int]:
    """Name and length of what a call has kept, if anything."""
    return spools[0].close() if spools and spools[0].total else ("", 0)
