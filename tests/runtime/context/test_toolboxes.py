"""Which tools a run has of those that are given: by name, by group, as functions; and what is said of names
that are none.
"""

from dataclasses import replace

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.plan import Step
from kestrel_lab.runtime.context.toolboxes import (
    check_wire_names,
    chosen_tools,
    group_names,
    known_tools,
    to_tool,
)
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.delegation import DELEGATE
from kestrel_lab.tools.tool import Tool, Toolbox


def made(name: str, group: str = "") -> Tool:
    @tool(name=name)
    def act() -> str:
        """Act."""
        return name

    return replace(act, group=group)


PLAIN, ONE, TWO, OTHER = made("plain"), made("one", "numbers"), made("two", "numbers"), made("other", "more")
OWN = [PLAIN, ONE, TWO, OTHER]


def shown(box: Toolbox) -> list[str]:
    """Names of tools, with the group of those that are offered on request only."""
    return [f"{item.name}{f' of {item.group}' if item.group else ''}" for item in box]


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ([], ["plain", "one of numbers", "two of numbers", "other of more"]),
        (["one"], ["plain", "two of numbers", "other of more", "one"]),
        (["numbers"], ["plain", "other of more", "one", "two"]),
        (["one", "numbers"], ["plain", "other of more", "one", "two"]),
        (["plain", "default"], ["plain", "one of numbers", "two of numbers", "other of more"]),
        ([made("one")], ["plain", "two of numbers", "other of more", "one"]),
        (["files:read"], ["plain", "one of numbers", "two of numbers", "other of more"]),
    ],
    ids=str,
)
def test_what_is_given_is_offered_to_every_run(given: list[str | Tool], known: list[str]) -> None:
    """A tool on request that is named, alone or with its group, is offered like any other, once; the rest
    stays on request.
    """
    assert shown(known_tools(OWN, given, servers=("files",))) == known


def test_a_name_of_a_server_that_is_not_there_is_refused() -> None:
    """With the one that may be meant."""
    with pytest.raises(UsageError, match=r"no MCP server 'fiels'; did you mean 'files'"):
        known_tools(OWN, ["fiels:read"], servers=("files",))


@pytest.mark.parametrize(
    ("tools", "steps", "chosen"),
    [
        (None, [], ["plain"]),
        (None, [Step(id="a", tool="one"), Step(id="b", goal="x", tools=("two",))], ["plain", "one", "two"]),
        (None, [Step(id="a", goal="x", team=("w",))], ["plain", DELEGATE]),
        (["numbers", "one"], [], ["one", "two"]),
        (["default"], [], ["plain"]),
        (["one"], [Step(id="a", goal="x", team=("w",))], ["one", DELEGATE]),
        (["one", DELEGATE], [Step(id="a", goal="x", team=("w",))], ["one", DELEGATE]),
        ([], [], []),
        (Toolbox([TWO]), [], ["two"]),
        (Toolbox([TWO]), [Step(id="a", goal="x", team=("w",))], ["two", DELEGATE]),
    ],
    ids=str,
)
def test_the_tools_of_a_run(tools: list[str] | Toolbox | None, steps: list[Step], chosen: list[str]) -> None:
    """Those that are named, each once; else those that belong to no group and those that steps name;
    `delegate` where a step has a team.
    """
    known = Toolbox([*OWN, made(DELEGATE, "agents")])

    assert [item.name for item in chosen_tools(known, tools, steps)] == chosen


def test_without_delegate_a_team_adds_nothing() -> None:
    """A step with a team asks for a tool that this machine may not have."""
    team = [Step(id="a", goal="x", team=("w",))]

    assert [item.name for item in chosen_tools(Toolbox(OWN), ["one"], team)] == ["one"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("onee", "there is no tool 'onee'; did you mean 'one'"),
        ("jira", "it needs JIRA_URL and JIRA_API_TOKEN in the environment"),
        ("jira_search", "it needs JIRA_URL"),
        ("jiras", "there is no tool 'jiras'; (?!it needs)"),
    ],
)
def test_an_unknown_name_says_what_may_be_meant(name: str, says: str) -> None:
    """A name that is like it, or what the environment has to hold for it."""
    with pytest.raises(UsageError, match=says):
        chosen_tools(Toolbox(OWN), [name])


def test_what_is_no_list_of_tools_is_refused() -> None:
    """A text would be taken for its letters, and a name is no tool."""
    with pytest.raises(UsageError, match="must be a list, not the text 'one'"):
        chosen_tools(Toolbox(OWN), "one")
    with pytest.raises(UsageError, match="'one' is a name"):
        to_tool("one")


def test_two_tools_that_models_would_see_under_one_name_are_refused() -> None:
    """Models know fewer characters than names may have."""
    box = Toolbox([replace(made("x"), name="time:now"), made("time__now")])
    with pytest.raises(UsageError, match="under the same name"):
        check_wire_names(box)
    assert check_wire_names(Toolbox(OWN)).names == ("plain", "one", "two", "other")
    assert group_names(Toolbox(OWN)) == ["default", "numbers", "more"]
