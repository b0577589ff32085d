"""Jira for agents: search, issues, and comments under a person's eyes."""

from __future__ import annotations

import base64
import re

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.tool import Tool
from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.json_api import Service, api_service, text_at
from kestrel_lab.tools.web.tools import mark_foreign, web_tool

_PROJECT = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,30}-[0-9]{1,9}")


def jira_tools(reach: Reach) -> list[Tool]:
    """Return the tools, if the environment has `JIRA_BASE_URL` and `JIRA_API_TOKEN`, and `JIRA_EMAIL` for
    Jira in the cloud. Else none.

    Where the address is in `JIRA_URL` they have other names, and there are none for one's project and one's
    own issues.
    """
    base, token, email = (
        reach.env.get(name, "") for name in ("JIRA_BASE_URL", "JIRA_API_TOKEN", "JIRA_EMAIL")
    )
    url = base or reach.env.get("JIRA_URL", "")
    if not (url and token):
        return []
    basic = base64.b64encode(f"{email}:{token}".encode()).decode()
    headers = {
        "Authorization": f"Basic {basic}" if email else f"Bearer {token}",
        "Accept": "application/json",
    }
    search, issue, project, assigned, comment = _tools(
        api_service("Jira", "", url, reach, headers),
        "/rest/api/2/search/jql" if email else "/rest/api/2/search",
        ("search_jira_issues", "get_jira_issue") if base else ("", ""),
    )
    return [issue, search, project, assigned, comment] if base else [search, issue, comment]


def _tools(jira: Service, path: str, names: tuple[str, str]) -> list[Tool]:
    async def found(jql: str, count: int) -> str:
        value = await jira.get(
            path, jql=jql, maxResults=min(max(count, 1), 50), fields="summary,status,assignee"
        )
        rows = [_line(issue) for issue in jira.rows_in(value, "issues", each="key")]
        return mark_foreign("\n".join(rows), "Jira") if rows else f"nothing was found for {jql!r}"

    @web_tool(Danger.LOW, "idempotent", name=names[0] or None, group="jira")
    async def jira_search(jql: str, count: int = 20) -> str:
        """Search Jira for issues.

        Args:
            jql: In Jira's query language, e.g. `project = ABC AND status = "To Do" ORDER BY created`.
            count: Number of results, at most 50.

        """
        return await found(jql, count)

    @web_tool(Danger.LOW, "idempotent", name=names[1] or None, group="jira")
    async def jira_issue(key: str) -> str:
        """Read an issue of Jira with its comments.

        Args:
            key: Such as ABC-123.

        """
        answer = await jira.get(
            f"/rest/api/2/issue/{_check_key(key)}", fields="summary,status,assignee,description,comment"
        )
        issue = jira.object_with(answer, "key")
        parts = [_line(issue), text_at(issue, "fields", "description")]
        fields = issue.get("fields")
        # A project may hide its comments.
        hidden = not isinstance(fields, dict) or fields.get("comment") is None
        comments = [] if hidden else jira.rows_in(issue, "fields", "comment", "comments", each="id")
        parts += [
            f"{text_at(one, 'author', 'displayName')}, {text_at(one, 'created')}:\n{text_at(one, 'body')}"
            for one in comments
        ]
        return mark_foreign("\n\n".join(part for part in parts if part), "Jira")

    @web_tool(Danger.LOW, "idempotent", group="jira")
    async def get_my_project_issues(project: str, count: int = 20) -> str:
        """List the issues of a project of Jira that are not done, the newest change first.

        Args:
            project: Its key, such as ABC.
            count: Number of results, at most 50.

        """
        if not _PROJECT.fullmatch(project):
            raise ValueError(f"{project!r} is not a key of a project: write it like ABC")
        return await found(f'project = "{project}" AND statusCategory != Done ORDER BY updated DESC', count)

    @web_tool(Danger.LOW, "idempotent", group="jira")
    async def get_assigned_issues(count: int = 20) -> str:
        """List the issues of Jira that are assigned to the user and not done, the newest change first.

        Args:
            count: Number of results, at most 50.

        """
        return await found("assignee = currentUser() AND statusCategory != Done ORDER BY updated DESC", count)

    @web_tool(Danger.HIGH, "opaque", group="jira")
    async def jira_comment(key: str, text: str) -> str:
        """Write a comment under an issue of Jira, for all who can read it.

        Args:
            key: Such as ABC-123.
            text: The comment.

        """
        made = await jira.post(f"/rest/api/2/issue/{_check_key(key)}/comment", {"body": text})
        return f"commented on {key}: comment {text_at(made, 'id')}"

    return [jira_search, jira_issue, get_my_project_issues, get_assigned_issues, jira_comment]


def _line(issue: Json) -> str:
    who = text_at(issue, "fields", "assignee", "displayName") or "nobody"
    return (
        f"{text_at(issue, 'key')} [{text_at(issue, 'fields', 'status', 'name')}] "
        f"{text_at(issue, 'fields', 'summary')} (assigned to {who})"
    )


def _check_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key of an issue: write it like ABC-123")
    return key
