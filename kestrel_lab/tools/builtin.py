"""The tools that come with the package."""

from kestrel_lab.tools.files import tools as files
from kestrel_lab.tools.files.trash import delete_file, restore_file
from kestrel_lab.tools.interaction import ask_user
from kestrel_lab.tools.shell.bash import bash
from kestrel_lab.tools.time import normalize_timezone, parse_relative, time_arithmetic
from kestrel_lab.tools.tool import Toolbox
from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.github import github_tools
from kestrel_lab.tools.web.jira import jira_tools
from kestrel_lab.tools.web.search_engines import evidence_tools, search_tools
from kestrel_lab.tools.web.tools import http_tools, page_tools

NEEDS = {
    "github": "GITHUB_TOKEN",
    **dict.fromkeys(
        ("fetch_pull_request", "get_pull_request_diff", "list_merged_prs"),
        "GITHUB_TOKEN, GITHUB_ORG and GITHUB_REPO",
    ),
    "jira": "JIRA_URL and JIRA_API_TOKEN",
    **dict.fromkeys(
        ("get_jira_issue", "search_jira_issues", "get_my_project_issues", "get_assigned_issues"),
        "JIRA_BASE_URL and JIRA_API_TOKEN",
    ),
    "brave": "BRAVE_API_KEY",
}
"""Variables that tools need, by the beginning of their names."""


def native_tools() -> Toolbox:
    """Files, search, the shell, time, and a question to the user."""
    reckoning = [parse_relative, time_arithmetic, normalize_timezone]
    writing = [files.write_file, files.edit_file, files.multi_edit, delete_file, restore_file]
    searching = [files.list_directory, files.file_exists, files.glob, files.grep, files.tree]
    return Toolbox([files.read_file, files.batch_read, *writing, *searching, bash, *reckoning, ask_user])


def web_tools(reach: Reach | None = None) -> Toolbox:
    """Return what asks the web; each is offered only to runs that name it.

    Tools for Brave, GitHub and Jira are among them where the environment of `reach` has their keys.
    """
    reach = reach or Reach()
    asking = [*search_tools(reach), *page_tools(reach), *http_tools(reach), *evidence_tools(reach)]
    return Toolbox([*asking, *github_tools(reach), *jira_tools(reach)])
