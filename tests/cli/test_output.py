"""What a build server reads along: no text of models and tools becomes a command of a workflow."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import in_process
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.cli.build_server_output import HarmlessStream
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

pytestmark = pytest.mark.usefixtures("warm")

ORDERS = [
    "::add-mask::secret",
    "  ::set-output name=x::y",
    "\u2003::stop-commands::x",
    "##[group]x",
    "said ##[add-path]/evil",
    "##vso[task.setvariable variable=x]y",
    "##TeamCity[x]",
    "fine\n::error::x",
    "fine\r::error::x",
]


def orders_in(text: str) -> list[str]:
    """Lines that a build server would obey, as the runners of GitHub, Azure and TeamCity find them."""
    lines = re.split(r"[\r\n]", text)
    return [
        line
        for line in lines
        if line.strip().startswith("::") or re.search(r"##(vso|teamcity)?\[", line, re.IGNORECASE)
    ]


def written(pieces: list[str]) -> str:
    """What arrives behind the stream."""
    behind = io.StringIO(newline="")
    stream = HarmlessStream(behind)
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    return behind.getvalue()


@pytest.mark.parametrize("text", ORDERS)
def test_no_line_is_an_order(text: str) -> None:
    """Each beginning of a command is written so that it is none, in one piece and letter by letter."""
    assert orders_in(text)
    assert orders_in(written([text])) == orders_in(written(list(text))) == []


PIECES = st.lists(st.text(st.sampled_from(":#[ \n\r\tavso"), max_size=6), max_size=8)


@given(PIECES)
def test_nothing_else_is_changed(pieces: list[str]) -> None:
    """However a text is cut into pieces, no order is in what is written, and what was meant can be told from
    it.
    """
    text = "".join(pieces)
    shown = written(pieces)
    assert orders_in(shown) == []
    assert shown.replace("\\u003a", ":").replace("\\u005b", "[") == text


def test_within_json_it_means_the_same() -> None:
    """A JSON text is still that JSON text."""
    value = {"answer": "##[group] and ##vso[x]", "::a": ["::b"]}
    assert json.loads(written([json.dumps(value, indent=2)])) == value


def test_a_stream_that_only_knows_whole_writes_is_caught() -> None:
    """The mutant: a filter that looks at each piece alone lets an order through that comes in two."""

    class Forgetful(HarmlessStream):
        def write(self, text: str) -> int:
            self._line = ""
            return super().write(text)

    behind = io.StringIO()
    for piece in ("##", "[group]"):
        Forgetful(behind).write(piece)
    assert orders_in(behind.getvalue())


def test_what_a_run_says_gives_no_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Piped `kestrel show`, `runs` and errors: goal, answer and tool output with orders in them print
    none.
    """
    lab = Lab(
        home=tmp_path / ".kestrel",
        env={},
        model=ScriptedModel([[("read_file", {"path": "a"})], "\n".join(ORDERS)]),
        approve="auto",
    )
    (tmp_path / "a").write_text("\n".join(ORDERS))
    done = lab.run_sync("::error::goal", workspace=tmp_path)
    lab.close()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["show", done.id], ["runs"], ["show", "::error::x"], ["tools", "\n::error::x"]):
        if words[0] == "show":  # in a process, whose output is a pipe; the others take the same way out
            command = [sys.executable, "-m", "kestrel_lab", *words]
            told = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S
            )
        else:
            told = in_process.kestrel(tmp_path, *words)
        assert "add-mask" in told.stdout or words[0] != "show" or told.returncode
        assert orders_in(told.stdout + "\n" + told.stderr) == []
        assert "Traceback" not in told.stderr
