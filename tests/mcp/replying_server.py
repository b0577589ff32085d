"""An MCP server that answers as its argument says, in the standard library alone: `python replying_server.py
'{"METHOD": RESULT}'`.

`METHOD NAME` in the place of `METHOD` is for one tool, prompt, address or cursor. A result may have
`progress`, reports that are sent before it, and `error` in its place or `exit`, the code with which the
server ends. What has no answer is an unknown method; `says` is written to the standard error first.
"""

import json
import sys
from typing import Any

ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "replying", "version": "1"},
    },
    "tools/list": {"tools": []},
    **json.loads(sys.argv[1]),
}


def send(**message: Any) -> None:
    """Write one message."""
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if "says" in ANSWERS:
    print(ANSWERS["says"], file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params") or {}
    about = params.get("cursor") or params.get("name") or params.get("uri") or ""
    answer = dict(
        ANSWERS.get(f"{method} {about}")
        or ANSWERS.get(method)
        or {"error": {"code": -32601, "message": f"no {method}"}}
    )
    for report in answer.pop("progress", ()):
        send(
            method="notifications/progress",
            params={"progressToken": params["_meta"]["progressToken"], **report},
        )
    if "exit" in answer:
        print("lost", file=sys.stderr, flush=True)
        sys.exit(answer["exit"])
    send(id=message["id"], **({"error": answer["error"]} if "error" in answer else {"result": answer}))
