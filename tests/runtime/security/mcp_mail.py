"""An MCP server with a mailbox that anybody can write to: `python mcp_mail.py SENT`, where SENT is the file
of what was sent.
"""

import json
import sys
from pathlib import Path

SENT = Path(sys.argv[1])
WORDS = {"type": "object", "properties": {"text": {"type": "string"}, "to": {"type": "string"}}}
TOOLS = [
    {"name": name, "description": "Mail.", "inputSchema": WORDS} for name in ("read", "fail", "save", "send")
]


def send(number, result):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n")
    sys.stdout.flush()


def call(number, name, args):
    text, error = args.get("text", ""), name == "fail"
    if name == "send":
        with SENT.open("a") as file:
            file.write(text + "\n")
        text = "sent"
    elif name == "save":  # an attachment, under the name that its sender chose
        Path(args["to"], text).write_text("attached")
        text = "saved"
    send(number, {"content": [{"type": "text", "text": text}], "isError": error})


for line in sys.stdin:
    message = json.loads(line)
    method, number, params = message.get("method"), message.get("id"), message.get("params") or {}
    if method == "initialize":
        info = {"name": "mail", "version": "1"}
        send(number, {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        send(number, {"tools": TOOLS})
    elif method == "tools/call":
        call(number, params["name"], params.get("arguments") or {})
    elif number is not None:
        send(number, {})
