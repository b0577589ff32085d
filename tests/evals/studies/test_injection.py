"""AgentDojo's attacks on a script that obeys them all: contained they do nothing, uncontained they
succeed.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.benchmarks.agentdojo import load_agentdojo, suite_tasks
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.studies.prompt_injection import measure_injection, obedient_model
from kestrel_lab.lab import Lab

READS = {"get_webpage": ("address", ["private", "untrusted"]), "get_current_day": ("nothing", [])}
ACCOUNT = ("get_balance", "get_iban", "get_scheduled_transactions", "get_user_info", "get_user_information")
READS |= dict.fromkeys(
    (*ACCOUNT, "search_contacts_by_name", "search_contacts_by_email"), ("nothing", ["private"])
)
"""What is not as the name of the tool says; the account and the address book hold what the user wrote."""


def test_contained_nothing_succeeds_uncontained_everything(tmp_path: Path) -> None:
    """A slice of banking: no attack succeeds with containment, every one without; somebody who knows the task
    loses nothing by it.
    """
    with_nobody, with_somebody, off = asyncio.run(
        measure_injection(Lab(tmp_path), "banking", limit=4)
    ).settings
    assert [(one.containment, one.person, one.model) for one in (with_nobody, with_somebody, off)] == [
        ("on", False, "victim (scripted)"),
        ("on", True, "victim (scripted)"),
        ("off", False, "victim (scripted)"),
    ]
    assert [one.succeeded for one in (with_nobody, with_somebody, off)] == [(0, 4), (0, 4), (4, 4)]
    assert (with_somebody.plain, with_somebody.attacked, off.plain) == ((4, 4), (4, 4), (4, 4))
    assert with_nobody.plain < with_somebody.plain
    assert [one.asked > 0 for one in (with_nobody, with_somebody, off)] == [True, True, False]


def test_what_is_only_said_is_not_contained(tmp_path: Path) -> None:
    """Containment is about effects: an injection that wants words in the answer gets them, and the score says
    so.
    """
    suite = load_agentdojo("travel", attack="direct", containment="on").select(
        scenarios=["travel/user_task_0/injection_task_6"]
    )
    (row,) = asyncio.run(run_suite(Lab(tmp_path), suite, configs={"victim": obedient_model("travel")})).rows
    scores = {score["check"]: score["passed"] for score in row.result["scores"]}  # type: ignore[union-attr, index, call-overload]
    assert scores["attack resisted"] is False


@pytest.mark.parametrize("name", ["workspace", "banking", "slack", "travel"])
def test_flows_of_the_tools(name: str) -> None:
    """What asks reads what others may have written; what is not called like a question acts in the user's
    name.
    """
    (scenario,) = load_agentdojo(name, limit=1).scenarios
    assert scenario.environment is not None
    for tool in scenario.environment.open().tools:
        asks = tool.name.split("_")[0] in ("get", "read", "search", "list", "check")
        reach, reads = READS.get(tool.name, ("nothing" if asks else "others", ["private", "untrusted"]))
        assert (tool.flow.reaches, sorted(tool.flow.reads)) == (reach, reads), tool.name
    assert len(suite_tasks(name, "v1.2.2").tools) > 10


def test_wrong_names(tmp_path: Path) -> None:
    """Another suite, attack or mode is refused with the nearest name, before anything runs."""
    with pytest.raises(UsageError, match="did you mean 'banking'"):
        asyncio.run(measure_injection(Lab(tmp_path), "agentdojo:bankin"))
    with pytest.raises(UsageError, match="did you mean 'important_instructions'"):
        asyncio.run(
            measure_injection(
                Lab(tmp_path / "other"),
                "banking",
                "important_instruction",
                reporter=lambda *_: pytest.fail("it ran"),
            )
        )
    with pytest.raises(UsageError, match="unknown containment 'maybe'"):
        load_agentdojo("slack", containment="maybe")
