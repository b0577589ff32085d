"""What a command writes while it runs: soon, in bounds, harmless, and without secrets."""

import asyncio
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.redaction import REDACTED, Redactor
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.shell.bash import KEPT_STDOUT, bash
from kestrel_lab.tools.shell.output import INTERVAL_S, KEPT, MOST, Capture, LiveOutput
from kestrel_lab.tools.tool import ToolContext

SECRET = "correct-horse/battery"
REDACTOR = Redactor.of({"A_PASSWORD": SECRET})


def follow(root: Path, command: str, redactor: Redactor = REDACTOR) -> tuple[Any, list[str]]:
    """The answer of a command, and what was told meanwhile."""
    told: list[str] = []
    context = ToolContext(workspace=Workspace(root), output=told.append, redactor=redactor)
    return asyncio.run(bash.run(bash.validate({"command": command}), context)), told


def test_output_is_told_before_the_command_ends(tmp_path: Path) -> None:
    """The command waits for a file that only whoever hears its first line makes."""

    async def main() -> tuple[Any, list[str]]:
        told: list[str] = []

        def hear(text: str) -> None:
            told.append(text)
            (tmp_path / "heard").touch()

        context = ToolContext(workspace=Workspace(tmp_path), output=hear)
        return await bash.run(
            bash.validate(
                {"command": "echo begun; while [ ! -e heard ]; do sleep 0.02; done; echo done >&2"}
            ),
            context,
        ), told

    answer, told = asyncio.run(main())
    assert (answer["exit_code"], told) == (0, ["begun\n", "done\n"])


def test_a_flood_is_told_in_few_bounded_pieces(tmp_path: Path) -> None:
    """Of thirty megabytes at full speed a screen gets a few thousand characters ten times a second, the
    newest, and how much is missing.
    """
    answer, told = follow(tmp_path, "yes 0123456789 | head -c 30000000; echo the end")
    assert answer["exit_code"] == 0
    assert len(told) <= answer["seconds"] / INTERVAL_S + 3
    assert max(map(len, told)) <= MOST + 100
    assert "not shown …" in told[-1] + told[0]
    assert told[-1].endswith("the end\n")


def test_no_piece_holds_a_part_of_a_secret(tmp_path: Path) -> None:
    """Written a character at a time, in base64, with a flood around it, or as an error: neither pieces nor
    answer have it.
    """
    encoded = b64encode(f"user:{SECRET}".encode()).decode()
    slow = "".join(f"printf {letter}; sleep 0.01; " for letter in SECRET)
    answer, told = follow(tmp_path, f"{slow} echo; echo {encoded}; echo {SECRET} >&2")
    text = "".join(told) + str(answer)
    assert (SECRET in text, encoded[8:24] in text, text.count(REDACTED)) == (False, False, 6)
    assert not any(SECRET[:6] in piece or SECRET[-6:] in piece for piece in told)
    answer, told = follow(tmp_path, f"yes {SECRET} | head -n 136000")
    assert not any(part in piece for part in (SECRET[:8], SECRET[-8:]) for piece in [*told, answer["stdout"]])


def test_a_cut_answer_ends_within_no_secret() -> None:
    """Wherever the beginning that is kept ends and the end begins, no part of a secret stands there; without
    the margin one does.
    """
    for shift in range(len(SECRET)):
        fed = (
            b"a" * (KEPT_STDOUT * 2 // 3 - shift)
            + SECRET.encode()
            + b"b" * 50_000
            + SECRET.encode()
            + b"c" * (KEPT_STDOUT // 3 - shift)
        )
        capture, naive = Capture(KEPT_STDOUT, REDACTOR), Capture(KEPT_STDOUT)
        for place in range(0, len(fed), 7_777):
            capture.feed(fed[place : place + 7_777])
            naive.feed(fed[place : place + 7_777])
        assert not any(part in capture.text() for part in (SECRET[:4], SECRET[-4:]))
        if 4 <= shift < len(SECRET) - 4:
            assert any(part in REDACTOR.text(naive.text()) for part in (SECRET[:4], SECRET[-4:]))


_PARTS = st.sampled_from(
    [
        b"plain ",
        "grüße ".encode(),
        b"\x1b[31m",
        b"\x1b]0;title\x07",
        b"\xff",
        b"\r\n",
        b"\r",
        b"line\n",
        SECRET.encode(),
    ]
)


@settings(deadline=None, max_examples=60)
@given(st.lists(_PARTS, max_size=12), st.lists(st.integers(0, 120), max_size=6))
def test_pieces_together_are_the_whole(parts: list[bytes], cuts: list[int]) -> None:
    """Law: cut anywhere, also within a character, an escape or a secret, the pieces show together what the
    whole would.
    """
    whole, told = b"".join(parts), []

    async def main() -> None:
        live = LiveOutput(told.append, REDACTOR)
        take, last = live.stream(), 0
        for cut in [*sorted(cuts), len(whole)]:
            take(whole[last:cut])
            last = max(last, cut)
            live._flush()
        live.close()

    asyncio.run(main())
    expected = REDACTOR.text(whole.decode("utf-8", "replace")).replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(told) == expected
    assert "".join(map(sanitize_text, told)) == sanitize_text(expected)


def test_memory_is_bounded_while_nobody_listens() -> None:
    """Between two pieces no more is held than what a screen takes."""

    async def main() -> int:
        live = LiveOutput(lambda _: time.sleep(0), REDACTOR)
        take = live.stream()
        for _ in range(1_000):
            take(b"x" * 65_536)
        held = len(live._streams[0]._new)
        live.close()
        return held

    assert asyncio.run(main()) <= 2 * KEPT + 65_536
