"""What goes in and out by tools: what is declared, what is suggested where nothing is, and what a command
without a sandbox adds.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
from kestrel_lab.tools.builtin import native_tools, web_tools
from kestrel_lab.tools.code_search import retrieval_tools
from kestrel_lab.tools.data_flow import UNKNOWN, Flow
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.delegation import delegate
from kestrel_lab.tools.interaction import task_tools
from kestrel_lab.tools.memory_tools import memory_tools
from kestrel_lab.tools.read_result import read_result
from kestrel_lab.tools.web.fetch import Reach

KEYS = {"GITHUB_TOKEN": "t", "JIRA_URL": "https://j.example", "JIRA_API_TOKEN": "t", "BRAVE_API_KEY": "k"}


def test_every_tool_of_the_package_says_what_goes_in_and_out(tmp_path: Path) -> None:
    """No tool is left to a suggestion, so that a new one has to say it; what each says is here."""
    indexes = WorkspaceIndexes(tmp_path)
    tools = [
        *native_tools(),
        *task_tools(),
        *memory_tools(),
        *retrieval_tools(indexes),
        *web_tools(Reach(env=KEYS)),
        read_result,
        delegate,
    ]
    assert [made.name for made in tools if made.reads is None or made.reaches is None] == []
    told: dict[tuple[str, ...], set[str]] = {}
    for made in tools:
        told.setdefault((*sorted(made.flow.reads), "→", made.flow.reaches), set()).add(made.name)
    assert told == {
        ("workspace", "→", "nothing"): {
            *("read_file", "batch_read", "list_directory", "file_exists", "glob", "grep", "tree"),
            *("search_code", "find_definition", "find_references"),
        },
        ("workspace", "→", "workspace"): {
            "write_file",
            "edit_file",
            "multi_edit",
            "delete_file",
            "restore_file",
            "bash",
        },
        ("→", "nothing"): {
            "parse_relative",
            "time_arithmetic",
            "normalize_timezone",
            "ask_user",
            "state_effects",
            "delegate",
        },
        ("run", "→", "nothing"): {"create_tasks", "update_task", "list_tasks", "read_result", "remember"},
        ("run", "→", "others"): {"forget"},
        ("private", "→", "nothing"): {"recall"},
        ("untrusted", "→", "nothing"): {"web_search", "brave_search", "web_results"},
        ("untrusted", "→", "address"): {"web_fetch", "extract_links", "http_get", "web_page"},
        ("untrusted", "→", "others"): {"http_post", "http_put", "http_delete"},
        ("private", "untrusted", "→", "nothing"): {
            "github_search",
            "github_issue",
            "github_file",
            "jira_search",
            "jira_issue",
        },
        ("private", "untrusted", "→", "others"): {"github_comment", "jira_comment"},
    }


@pytest.mark.parametrize(
    ("how", "flow"),
    [
        ({}, Flow(frozenset({"private"}), "nothing")),
        ({"danger_level": "medium"}, Flow(frozenset({"private"}), "anything")),
        ({"name": "fetch_weather"}, Flow(frozenset({"private"}), "nothing")),
        ({"untrusted": True}, Flow(frozenset({"private", "untrusted"}), "nothing")),
        ({"name": "fetch_weather", "untrusted": False}, Flow(frozenset({"private"}), "nothing")),
        ({"reads": "workspace", "untrusted": True}, Flow(frozenset({"workspace", "untrusted"}), "nothing")),
        ({"name": "fetch_weather", "effect": "pure"}, Flow(frozenset({"private"}), "nothing")),
        ({"name": "read_inbox", "reads": "private"}, Flow(frozenset({"private"}), "nothing")),
        ({"reads": "", "reaches": "others"}, Flow(frozenset(), "others")),
        ({"reads": ["untrusted"]}, Flow(frozenset({"untrusted"}), "nothing")),
    ],
)
def test_somebodys_own_tool(how: dict[str, Any], flow: Flow) -> None:
    """What is declared counts; else the answers are private and danger is reach, whatever the name says."""

    def weather(place: str) -> str:
        """Tell the weather."""
        return place

    assert tool(**how)(weather).flow == flow


def test_an_address_among_the_parameters_is_one_that_is_asked() -> None:
    """A tool that takes a URL tells whoever answers what is in it; whether it brings in what others wrote has
    nobody said.
    """

    @tool
    def look(url: str) -> str:
        """Look."""
        return url

    assert (look.flow, look.unsaid) == (
        Flow(frozenset({"private"}), "address"),
        {"files", "reads", "reaches"},
    )


@pytest.mark.parametrize("effect", ["opaque", "idempotent", "pure"])
def test_a_safe_tool_that_says_nothing_is_doubted_unless_pure(effect: Any) -> None:
    """That a call harms nobody does not say whose words its answers hold."""

    def weather(place: str) -> str:
        """Tell the weather."""
        return place

    assert ("reads" in tool(danger_level="safe", effect=effect)(weather).unsaid) is (effect != "pure")


def test_untrusted_and_content_are_checked_where_the_tool_is_made() -> None:
    """A contradiction, and content that is no parameter, are errors with what would do."""
    with pytest.raises(UsageError, match="leave one of them out"):
        tool(reads="untrusted", untrusted=False)

    def send(to: str, body: str) -> str:
        """Send."""
        return to + body

    with pytest.raises(UsageError, match="no parameter 'bod' that could be content; did you mean 'body'"):
        tool(content="to bod")(send)
    assert tool(content="body")(send).content == ("body",)


def test_own_fields_are_declared_and_kept_in_the_log() -> None:
    """Which fields of its answers nobody else writes stands in the flow of a tool, and in the log, from where
    it is read again.
    """

    def files() -> list[dict[str, str]]:
        """List files."""
        return []

    made = tool(own="id filename", reads="untrusted", reaches="nothing")(files)
    assert made.own == made.flow.own == ("id", "filename")
    assert Flow.from_json(made.flow.as_json()) == made.flow
    assert "own" not in replace(made, own=()).flow.as_json()


def test_words_that_mean_nothing_are_refused() -> None:
    """A misspelt flow is an error where the tool is made, with the nearest word."""
    with pytest.raises(UsageError, match="did you mean 'untrusted'"):
        tool(reads="untrustd")
    with pytest.raises(UsageError, match="did you mean 'others'"):
        tool(reaches="other")


def test_a_command_without_a_sandbox_reads_and_reaches_anything() -> None:
    """At a level that holds without network a command is what it says; at none, or with a network, it may be
    anything.
    """
    bash = native_tools().get("bash").flow
    assert [bash.at(level) for level in ("", "S1", "S2", "S3")] == [bash] * 4
    wide = Flow(frozenset({"workspace", "private", "untrusted"}), "anything")
    assert [bash.at(level) for level in ("S0", "S0: no sandbox; S3: no", "S3 with network")] == [wide] * 3


def test_flows_are_read_back_from_a_log() -> None:
    """What the log has of a flow is that flow; a log of an earlier version has none."""
    assert Flow.from_json(UNKNOWN.as_json()) == UNKNOWN
    assert Flow.from_json({"name": "bash", "danger": "HIGH"}) is None
