"""What the conformance suite of the protocol runs as a client: `python conformance_client.py URL`; it uses
what the product uses.

A scripted person takes what a question suggests, and logs in where a server wants that, by opening the
address as a browser would.
"""

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kestrel_lab.core.errors import DependencyError, ToolError
from kestrel_lab.lab import Lab
from kestrel_lab.mcp.approvals import Definition
from kestrel_lab.mcp.config import read_server
from kestrel_lab.mcp.elicitation import DECLINE, DONE, LEAVE_OUT

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
GIVEN: dict[str, dict[str, Any]] = {"add_numbers": {"a": 5, "b": 3}}
BY_TYPE = {
    "string": "x",
    "integer": 0,
    "number": 0,
    "boolean": False,
    "object": {},
    "array": [],
    "null": None,
}


async def person(text: str, options: tuple[str, ...]) -> str:
    """Log in where that is asked for, else take the first answer on offer."""
    if "wants a login" in text:
        await asyncio.to_thread(
            lambda: urllib.request.urlopen(text.rsplit("\n", maxsplit=1)[-1]).read()
        )  # of the suite, on this machine
        return DONE
    return next((one for one in options if one not in (LEAVE_OUT, DECLINE)), LEAVE_OUT)


def oauth(url: str) -> dict[str, Any]:
    """The table of a server whose client was registered by hand, where the suite gives one."""
    table: dict[str, Any] = {"client_metadata_url": "https://conformance-test.local/client-metadata.json"}
    if "client_id" in CONTEXT:
        table |= {"client_id": CONTEXT["client_id"], "client_secret": CONTEXT.get("client_secret", "")}
    if SCENARIO.startswith(("auth/client-credentials", "auth/enterprise")):
        # A person knows which server issued the client; the suite tells it nowhere but in the metadata of the
        # resource.
        place = url.replace("/mcp", "/.well-known/oauth-protected-resource/mcp")
        issuer = json.load(urllib.request.urlopen(place))["authorization_servers"][0]
        table |= {"issuer": issuer, "client_credentials": "idp_id_token" not in CONTEXT}
        if "idp_id_token" in CONTEXT:
            table |= {
                "id_token": CONTEXT["idp_id_token"],
                "id_endpoint": CONTEXT["idp_token_endpoint"],
                "id_client": CONTEXT["idp_client_id"],
            }
        if "private_key_pem" in CONTEXT:
            table |= {
                "private_key": CONTEXT["private_key_pem"],
                "algorithm": CONTEXT.get("signing_algorithm", "ES256"),
            }
    return table


def calls(tools: dict[str, Definition]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of a scenario: those that the suite names, else one of each tool."""
    if "toolCalls" in CONTEXT:
        yield from ((one["name"], one.get("arguments") or {}) for one in CONTEXT["toolCalls"])
        return
    for name, tool in tools.items():
        properties: Any = tool.schema.get("properties", {})
        required: Any = tool.schema.get("required", [])
        args = {key: BY_TYPE.get(properties.get(key, {}).get("type"), "x") for key in required}
        if name == "json_schema_echo":
            args = {"schema": tools["json_schema_2020_12_tool"].schema}
        yield name, GIVEN.get(name, args)


async def main(url: str, home: Path) -> None:
    """Connect, list and call."""
    env = {"XDG_CONFIG_HOME": str(home / "config"), "PATH": os.environ["PATH"]}
    server = read_server("tested", {"url": url, "oauth": oauth(url), "timeout_s": 60, "start_timeout_s": 60})
    session = Lab(home / "state", env=env, mcp={"tested": server}, approve="auto")
    servers = session.mcp
    try:
        tools = (await servers.login("tested", person)).tools
        for name, args in calls({**tools}):
            if name in tools:
                with suppress(ToolError):  # what a tool answers is the suite's affair
                    print(
                        name,
                        await servers.call(
                            "tested", name, tools[name].pin, args, lambda *_: None, ask=person
                        ),
                        file=sys.stderr,
                    )
    except DependencyError as error:
        sys.exit(str(error))
    finally:
        await session.mcp.aclose()
        session.close()


with TemporaryDirectory() as folder:
    asyncio.run(main(sys.argv[1], Path(folder)))
