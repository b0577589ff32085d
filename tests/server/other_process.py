"""A session of another process, whose runs wait for a person there: says their ids, and how each ended."""

import asyncio
import sys

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


async def thinks(_: ApprovalAsked) -> ApprovalGiven:
    """Never decides."""
    await asyncio.Event().wait()
    raise AssertionError


async def main() -> None:
    """Two runs that write a file each."""
    session = Lab(sys.argv[1])
    names = ("a.txt", "b.txt")
    scripts = [
        ScriptedModel([[("write_file", {"path": name, "content": "hi"})], "written"]) for name in names
    ]
    runs = [
        session.start("write", model=script, workspace=sys.argv[2], approver=thinks) for script in scripts
    ]
    session.store.flush()
    print(*(run.id for run in runs), flush=True)
    for run in runs:
        try:
            await run.wait()
            print(run.status, flush=True)
        except StoreError as error:
            print(type(error).__name__, flush=True)


asyncio.run(main())
