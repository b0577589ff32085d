"""Plays the part of an agent program: prints a stream line by line, and notes in its folder how it was called
and what it was sent.

A line `{"player": "hear"}` waits for a line of input, `{"player": "hang"}` for ever, `{"player": "exit",
"code": 3, "words": "…"}` ends it with words on standard error, and `{"player": "write", "path": "…"}` tries
to write a file and says what came of it.
"""

import json
import sys
import time
from pathlib import Path


def install(folder: Path, name: str, stream: list[object]) -> Path:
    """Put a program of that name into `folder/bin` that plays the stream; returns the folder to put on the
    PATH.
    """
    bins = folder / "bin"
    bins.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in stream), encoding="utf-8"
    )
    (folder / "player.py").write_text(Path(__file__).read_text(encoding="utf-8"), encoding="utf-8")
    program = bins / name
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} {folder}/player.py {folder}/{name}.jsonl "$@"\n', encoding="utf-8"
    )
    program.chmod(0o755)
    return bins


def stream_of(name: str) -> list[object]:
    """Return a stream of this folder."""
    text = (Path(__file__).parent / "streams" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def heard(workspace: Path) -> list[object]:
    """Return what the players in a workspace were called with and sent, in order."""
    return [json.loads(line) for line in (workspace / "heard.jsonl").read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Play a stream."""
    with open("heard.jsonl", "a", encoding="utf-8") as notes:

        def note(value: object) -> None:
            notes.write(json.dumps(value) + "\n")
            notes.flush()

        note({"argv": sys.argv[2:]})
        for text in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            what = line.get("player") if isinstance(line, dict) else None
            if what == "hear":
                note(json.loads(sys.stdin.readline()))
            elif what == "hang":
                time.sleep(86_400)
            elif what == "exit":
                sys.stderr.write(line["words"])
                sys.exit(line["code"])
            elif what == "write":
                try:
                    Path(line["path"]).write_text("x", encoding="utf-8")
                    note({"wrote": True})
                except OSError as error:
                    note({"wrote": type(error).__name__})
            else:
                print(line if isinstance(line, str) else text, flush=True)


if __name__ == "__main__":
    main()
