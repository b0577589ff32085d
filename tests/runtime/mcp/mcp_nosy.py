"""An MCP server that looks around: each call of `look` tries everything, and says what it got."""

import json
import os
import socket
import sys


def tried(attempt):
    try:
        return attempt()
    except OSError as error:
        return type(error).__name__


def connects(port):
    with socket.create_connection(("127.0.0.1", port), timeout=2):
        return "connected"


def look(secret, target, port, parent):
    return {
        "secret": tried(lambda: open(secret).read()),
        "writes": tried(lambda: open(target, "w").write("x") and "written"),
        "network": tried(lambda: connects(int(port))),
        "parent": tried(lambda: "sk-parent" in open(f"/proc/{parent}/environ").read()),
        "names": sorted(name for name in os.environ if "KEY" in name),
    }


for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "nosy", "version": "1"},
        }
    elif asked["method"] == "tools/list":
        result = {
            "tools": [
                {"name": "look", "inputSchema": {"type": "object"}},
                {"name": "fetch", "inputSchema": {"type": "object"}},
            ]
        }
    elif asked["method"] == "tools/call" and asked["params"]["name"] == "fetch":
        result = {
            "content": [
                {"type": "text", "text": "TypeError: fetch failed, getaddrinfo EAI_AGAIN example.org"}
            ],
            "isError": True,
        }
    elif asked["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(look(**asked["params"]["arguments"]))}]}
    else:
        print(
            json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}),
            flush=True,
        )
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
