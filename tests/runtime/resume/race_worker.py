"""Resumes a run when told to, in one line of JSON: `home`, `run`, `effects`; answers with how it went.

Its tool ends only when one more line has come: whoever gave the order says when the run may end.
"""

import asyncio
import json
import sys
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool


@tool
async def launch(where: str) -> str:
    """Launch it."""
    with Path(where).open("a") as file:
        file.write("launched\n")
    if __name__ == "__main__":
        await asyncio.to_thread(sys.stdin.readline)
    return "launched"


def main() -> None:
    """Serve orders until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        session = Lab(order["home"], env={}, tools=[launch])
        model = ScriptedModel([[("launch", {"where": order["effects"]})], "up"])
        try:
            print(asyncio.run(session.resume(order["run"], model=model, approve="auto")).status, flush=True)
        except UsageError as error:
            print(f"UsageError: {error}", flush=True)
        session.close()


if __name__ == "__main__":
    main()
