"""An agent, a plan and a suite all of whose words are those of `payloads`; a notebook imports this."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from kestrel_lab import Lab, tool
from kestrel_lab.checks.answer import AnswerContains
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.evals.suite import Scenario, Suite
from kestrel_lab.host.homes import default_home
from kestrel_lab.notebook.panel import Panel
from kestrel_lab.notebook.suite_board import NotebookReporter
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.tool import Tool


class Talker:
    """Says one text a turn in small pieces, calls tools with it, and at last answers with all of them."""

    name = "talker"
    kind: ModelKind = "scripted"

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        turn = sum(message.role == "assistant" for message in request.messages)
        last = turn >= len(self.texts)
        text = "\n".join(self.texts) if last else self.texts[turn]
        for piece in re.findall(r"(?s).{1,7}", text):
            on_delta(piece)
        calls = () if last else (*self._asking(turn), *_quiet(turn, text))
        return ModelAnswer(text=text, calls=calls, usage=Usage(tokens_in=1, tokens_out=1), model=text[:80])

    def _asking(self, turn: int) -> tuple[ToolRequest, ...]:
        """What a person is asked about: all texts as names and as values, a file written and changed,
        questions with options.
        """
        everything = "\n".join(self.texts)
        written = re.sub("[\0\ud800]", "", everything)  # no text file holds these
        match turn:
            case 0:
                named = {f"{number} {text}": text for number, text in enumerate(self.texts)}
                return (ToolRequest(id="risky", name="risky", args={"named": named, "text": everything}),)
            case 1:
                return (
                    ToolRequest(
                        id="write",
                        name="write_file",
                        args={"path": "f.txt", "content": f"before\n{written}\nafter\n"},
                    ),
                )
            case 2:
                return (
                    ToolRequest(
                        id="edit", name="edit_file", args={"path": "f.txt", "old": "before", "new": written}
                    ),
                    ToolRequest(
                        id="again", name="write_file", args={"path": "f.txt", "content": written[::-1]}
                    ),
                )
            case 3:
                return (
                    ToolRequest(
                        id="ask", name="ask_user", args={"question": everything, "options": list(self.texts)}
                    ),
                )
        return ()


def _quiet(turn: int, text: str) -> tuple[ToolRequest, ...]:
    return (
        ToolRequest(id=f"{turn}e", name="echo", args={"text": text}),
        ToolRequest(id=f"{turn}f", name="fail", args={"text": text}),
        ToolRequest(id=f"{turn}u", name=text, args={text: text}),
        ToolRequest(id=f"{turn}b", name="echo", args={}, problem=text),
    )


def _tools(texts: Sequence[str]) -> list[Tool]:
    @tool(danger_level="safe", effect="pure")
    def echo(text: str) -> str:
        """Say it again."""
        return text

    @tool(danger_level="safe", effect="pure")
    def fail(text: str) -> str:
        """Fail with it."""
        raise RuntimeError(text)

    @tool(danger_level="high")
    def risky(named: dict[str, str], text: str) -> str:
        """Take everything."""
        return text

    def described() -> str:
        return ""

    described.__doc__ = " ".join(texts)
    return [echo, fail, risky, tool(described)]


def hostile_lab(texts: Sequence[str]) -> Lab:
    """A lab whose model and tools say `texts`."""
    return Lab(model=Talker(texts), tools=_tools(texts))


async def follow_plan(lab: Lab, texts: Sequence[str]) -> None:
    """Show a plan that is named, worded and answered by `texts`, live."""
    steps = [
        Step(id=f"{number} {sanitize_text(text)}", goal=f"do {text}") for number, text in enumerate(texts)
    ]
    panel = Panel(user="tester", fallback=None)
    said = ScriptedModel(lambda request: request.messages[-1].text or "nothing")
    run = lab.start("a plan", plan=Plan(steps=tuple(steps)), model=said, approver=panel)
    panel.follow(run)
    await run.wait()


async def measure(lab: Lab, texts: Sequence[str]) -> object:
    """A suite whose scenarios, configurations and reasons are `texts`, with its report page beside the
    notebook.
    """
    texts = [text for text in texts if "\ud800" not in text]  # names of a suite are stored as UTF-8
    scenarios = [
        Scenario(
            id=f"{number} {text}", goal=text, checks=(AnswerContains(texts=(f"no {text}",)),), family=text
        )
        for number, text in enumerate(texts)
    ]
    said = {f"{text}": ScriptedModel(["something else"], name=text[:40]) for text in texts[:3]}
    result = await lab.eval(
        Suite(name=texts[0], scenarios=tuple(scenarios)), configs=said, reporter=NotebookReporter(lambda: lab)
    )
    result.report("eval.html")
    return result


def report(note: str) -> None:
    """A progress bar with a note."""
    NotebookReporter(Lab)(1, 2, note)


def breaking(texts: Sequence[str]) -> ScriptedModel:
    """A model whose provider refuses in the words of `texts`."""
    return ScriptedModel([ModelError("\n".join(texts))])


def leaves(secret_of: str) -> bool:
    """Whether the value of an environment variable is anywhere in the log."""
    secret = os.environ[secret_of].encode()
    return any(secret in path.read_bytes() for path in default_home(Path(), {}).rglob("*") if path.is_file())
