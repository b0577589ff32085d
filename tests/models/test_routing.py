"""Models chosen by kind of work: rules, files of routes, and runs that use them."""

import asyncio
import subprocess
import sys

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ModelAnswered
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.lab import Lab
from kestrel_lab.models.router import classify_goal, model_router, read_routes
from kestrel_lab.testing import ScriptedModel

GOALS = {
    "fast": [
        "Draft a tweet about bees",
        "Brainstorm five names for a boat",
        "Quickly rephrase this sentence: it rained.",
    ],
    "code": [
        "Fix the bug in calc.py",
        "Implement a function that reverses a list",
        "Refactor src/app/main.ts so that it has no globals",
        "What does this traceback mean?",
    ],
    "analysis": [
        "Compare the two offers in a.txt and b.txt",
        "Why did sales fall in March?",
        "Sum up the minutes of the meeting",
    ],
    "simple": ["What is the capital of France?", "How many files are here?"],
    None: ["Tell me of the sea. " * 30],
}


def asked(*texts):
    """A conversation in which `texts` were said in turn by user and assistant."""
    roles = ["user", "assistant"] * len(texts)
    return ModelRequest(
        messages=[Message(role=role, text=text) for role, text in zip(roles, texts, strict=False)]
    )


def choose(name):
    """A scripted model that says its own name."""
    return ScriptedModel(lambda _: f"I am {name}.", name=name)


@pytest.mark.parametrize(("kind", "goal"), [(kind, goal) for kind, goals in GOALS.items() for goal in goals])
def test_kinds(kind, goal):
    """Goals as people write them have the kind that a person would give them."""
    assert classify_goal(goal)[0] == kind


def test_a_conversation_stays_with_its_model():
    """The first question decides, whatever is said later; the answer says who and why."""
    model = model_router({"code": "big", "simple": "small", "otherwise": "middle"}, choose)

    async def answers():
        first = await model(asked("Where is Rome?"), lambda _: None)
        later = await model(asked("Where is Rome?", "In Italy.", "Fix the bug in calc.py"), lambda _: None)
        other = await model(asked("Compare apples with pears"), lambda _: None)
        return [(a.text, a.model, a.routed) for a in (first, later, other)]

    small = ("I am small.", "small", "simple: it is short and asks for nothing else")
    assert asyncio.run(answers()) == [
        small,
        small,
        ("I am middle.", "middle", "otherwise: analysis, for which there is no route"),
    ]


def test_a_file_of_routes(tmp_path):
    """Patterns of one's own come first; every mistake is told with its line."""
    file = tmp_path / "routes.yaml"
    file.write_text("legal: {model: lawyer, when: '(?i)contract'}\ncode: big\notherwise: middle\n")
    model = read_routes(file, choose)
    assert [model.choose(goal)[0].name for goal in ("Fix contract.py", "Fix it.py", "hi")] == [
        "lawyer",
        "big",
        "middle",
    ]
    assert model.choose("Fix contract.py")[1] == "legal: it says 'contract'"

    file.write_text("cod: big\nsimple: 3\nlegal: {model: lawyer, when: '('}\n")
    with pytest.raises(UsageError) as caught:
        read_routes(file, choose)
    lines = str(caught.value).splitlines()
    assert [line.partition("routes.yaml:")[2][:1] for line in lines[:3]] == ["1", "2", "3"]
    assert "did you mean 'code'" in lines[0]
    assert "otherwise" in lines[3]
    with pytest.raises(UsageError, match="there is no file of routes"):
        read_routes(tmp_path / "no.yaml", choose)


def test_a_file_of_routes_may_be_as_in_a_suite(tmp_path):
    """What documents show, with `routes:` above; mistakes are told with their lines."""
    file = tmp_path / "routes.yaml"
    file.write_text("routes:\n  code: big\n  otherwise: middle\n")
    model = read_routes(file, choose)
    assert [model.choose(goal)[0].name for goal in ("Fix it.py", "hi")] == ["big", "middle"]
    file.write_text("routes:\n  otherwise: middle\n  cod: big\n")
    with pytest.raises(UsageError, match=r"routes.yaml:3: .*did you mean 'code'"):
        read_routes(file, choose)


def test_a_run_is_routed_and_the_log_says_so(tmp_path):
    """A run names `route:FILE`; the model that answered and the reason are in its events."""
    (tmp_path / "a.yaml").write_text("rules: [{when: '.', turns: [from a]}]\n")
    (tmp_path / "b.yaml").write_text("rules: [{when: '.', turns: [from b]}]\n")
    routes = tmp_path / "routes.yaml"
    routes.write_text(
        f"code: 'scripted:{tmp_path / 'a.yaml'}'\notherwise: 'scripted:{tmp_path / 'b.yaml'}'\n"
    )
    session = Lab(home=tmp_path / "home")
    run = session.run_sync("Rename a in calc.py", model=f"route:{routes}", workspace=tmp_path)
    answered = [record.event for record in run.records() if isinstance(record.event, ModelAnswered)]

    assert run.answer == "from a"
    assert [(event.model, event.routed) for event in answered] == [
        (f"scripted:{tmp_path / 'a.yaml'}", "code: it says 'calc.py'")
    ]
    assert session.run_sync("Hello", model=f"route:{routes}", workspace=tmp_path).answer == "from b"
    session.close()


def test_importing_routes_loads_no_pydantic():
    """What every start imports stays light."""
    seen = "import sys, kestrel_lab.models.router; print('pydantic' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )
