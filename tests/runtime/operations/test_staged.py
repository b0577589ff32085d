"""The plan `staged`: an answer from evidence, in named stages, each with a checkpoint."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from standard import ANSWER, GOAL, furnish, verdict

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel, Turn

STAGES = ["decompose", "retrieve", "assemble", "execute", "critique", "finalize"]


class Staged:
    """Says what each stage needs; breaks off where it is told to."""

    def __init__(self, breaks_at: str = "") -> None:
        self.asked: list[str] = []
        self.breaks_at = breaks_at

    def __call__(self, request: ModelRequest) -> Turn:
        """The next turn."""
        first = next(message.text for message in request.messages if message.role == "user")
        begins = {
            "Split this goal": "decompose",
            "Read what the questions": "assemble",
            GOAL: "execute",
            "Judge": "critique",
            "A run has": "finalize",
        }
        stage = next(name for begin, name in begins.items() if first.startswith(begin))
        self.asked.append(stage)
        if stage == self.breaks_at:
            raise ModelError("the key is wrong", caller=True)
        turns = sum(message.role == "assistant" for message in request.messages)
        match stage:
            case "decompose":
                return json.dumps({"questions": ["Which colour?", "How high?"]})
            case "assemble":
                return (
                    [("read_file", {"path": "house/roof.txt"})] if not turns else "house/roof.txt: red, 7 m."
                )
            case "execute":
                assert "house/roof.txt: red, 7 m." in first or len(request.messages) > 2
                return ANSWER
            case "critique":
                return verdict(True)
            case _:
                return json.dumps({"notes": []})


def test_an_answer_from_evidence_in_stages(session: Lab, tmp_path: Path) -> None:
    """Every stage has its checkpoint, in this order; each sees what the one before made."""
    mind = Staged()
    run = asyncio.run(
        session.run(GOAL, plan="staged", model=ScriptedModel(mind), workspace=furnish(tmp_path / "w"))
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, ANSWER), run.reason
    assert list(dict.fromkeys(run.report.stages()["stage"])) == STAGES
    assert set(run.report.stages()["status"]) == {"done"}
    assert run.plan.artifacts["questions"] == {"questions": ["Which colour?", "How high?"]}


def test_it_goes_on_behind_the_last_good_stage(session: Lab, tmp_path: Path) -> None:
    """A run that broke off is resumed where it broke: what was done is not asked again."""
    workspace = furnish(tmp_path / "w")
    mind = Staged(breaks_at="execute")
    run = asyncio.run(session.run(GOAL, plan="staged", model=ScriptedModel(mind), workspace=workspace))
    assert run.status is RunStatus.FAILED
    mind.breaks_at = ""
    mind.asked.clear()
    again = asyncio.run(session.resume(run, model=ScriptedModel(mind)))
    assert (again.status, again.answer) == (RunStatus.COMPLETE, ANSWER)
    assert mind.asked[:1] == ["execute"]
    assert "decompose" not in mind.asked
