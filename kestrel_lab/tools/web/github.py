"""GitHub for agents: search, issues, files, and comments under a person's eyes."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Literal
from urllib.parse import quote

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.json_types import Json
from kestrel_lab.tools.tool import Tool
from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.json_api import Service, api_service, text_at
from kestrel_lab.tools.web.tools import mark_foreign, web_tool

_API = "https://api.github.com"
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}")
_MOST_COMMENTS = 30
_reading = web_tool(Danger.LOW, "idempotent", group="github")


def github_tools(reach: Reach) -> list[Tool]:
    """Return the tools, if the environment has a `GITHUB_TOKEN`; `GITHUB_API_URL` names a server of one's
    own. Else none.

    With `GITHUB_ORG` and `GITHUB_REPO` as well there are tools for the pull requests of that repository.
    """
    token = reach.env.get("GITHUB_TOKEN", "")
    if not token:
        return []
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/vnd.github+json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    github = api_service("GitHub", _API, reach.env.get("GITHUB_API_URL", ""), reach, headers)
    owner, name = reach.env.get("GITHUB_ORG", ""), reach.env.get("GITHUB_REPO", "")
    return [
        *_for_all_repositories(github),
        *(_pull_requests(github, f"{owner}/{name}") if owner and name else ()),
    ]


def _for_all_repositories(github: Service) -> list[Tool]:
    @_reading
    async def github_search(
        query: str, kind: Literal["issues", "repositories", "code"] = "issues", count: int = 10
    ) -> str:
        """Search GitHub for issues and pull requests, repositories, or code.

        Args:
            query: In GitHub's search language, e.g. `repo:owner/name is:open crash`.
            kind: What to look for.
            count: Number of results, at most 50.

        """
        value = await github.get(f"/search/{kind}", q=query, per_page=min(max(count, 1), 50))
        rows = [_row(kind, item) for item in github.rows_in(value, "items", each="html_url")]
        return mark_foreign("\n".join(rows), "GitHub") if rows else f"nothing was found for {query!r}"

    @_reading
    async def github_issue(repo: str, number: int) -> str:
        """Read an issue or pull request of GitHub with its comments.

        Args:
            repo: `owner/name`.
            number: Of the issue or pull request.

        """
        path = f"/repos/{_repository(repo)}/issues/{number}"
        issue = github.object_with(await github.get(path), "number")
        head = (
            f"#{number} [{text_at(issue, 'state')}] {text_at(issue, 'title')} (by "
            f"{text_at(issue, 'user', 'login')})"
        )
        parts = [head, text_at(issue, "body")]
        total = int(text_at(issue, "comments") or 0)
        answer: Json = await github.get(f"{path}/comments", per_page=_MOST_COMMENTS) if total else []
        comments = github.rows_in(answer, each="created_at")
        parts += [
            f"{text_at(one, 'user', 'login')}, {text_at(one, 'created_at')}:\n{text_at(one, 'body')}"
            for one in comments
        ]
        if total > _MOST_COMMENTS:
            parts.append(f"[{total - _MOST_COMMENTS} more comments]")
        return mark_foreign("\n\n".join(part for part in parts if part), "GitHub")

    @_reading
    async def github_file(repo: str, path: str, ref: str = "") -> str:
        """Read a file, or list a folder, of a GitHub repository.

        Args:
            repo: `owner/name`.
            path: In the repository; empty for its top folder.
            ref: Branch, tag or commit; the default branch if left out.

        """
        if any(part in {".", ".."} for part in path.split("/")):
            raise ValueError(f"{path!r} leads out of the repository")
        value = await github.get(f"/repos/{_repository(repo)}/contents/{quote(path.strip('/'))}", ref=ref)
        if isinstance(value, list):
            github.rows_in(value, each="path")
            rows = [text_at(item, "path") + ("/" if text_at(item, "type") == "dir" else "") for item in value]
            return mark_foreign("\n".join(rows), "GitHub")
        github.object_with(value, "path")
        try:
            content = base64.b64decode(text_at(value, "content")).decode()
        except (binascii.Error, UnicodeDecodeError):
            content = ""
        if not content and text_at(value, "size") not in {"", "0"}:
            raise ValueError(
                f"{path} is not text, or too large to be read this way ({text_at(value, 'size')} bytes)"
            )
        return mark_foreign(content, "GitHub")

    @web_tool(Danger.HIGH, "opaque", group="github")
    async def github_comment(repo: str, number: int, text: str) -> str:
        """Write a comment under an issue or pull request of GitHub, for all who can read it.

        Args:
            repo: `owner/name`.
            number: Of the issue or pull request.
            text: The comment, in Markdown.

        """
        made = await github.post(f"/repos/{_repository(repo)}/issues/{number}/comments", {"body": text})
        return f"commented: {text_at(made, 'html_url')}"

    return [github_search, github_issue, github_file, github_comment]


def _row(kind: str, item: dict[str, Json]) -> str:
    url = text_at(item, "html_url")
    match kind:
        case "issues":
            return f"#{text_at(item, 'number')} [{text_at(item, 'state')}] {text_at(item, 'title')} {url}"
        case "repositories":
            stars = text_at(item, "stargazers_count")
            return f"{text_at(item, 'full_name')} ({stars} stars): {text_at(item, 'description')} {url}"
    return f"{text_at(item, 'repository', 'full_name')}: {text_at(item, 'path')} {url}"


def _pull_requests(github: Service, repo: str) -> list[Tool]:
    def path(number: int | None = None) -> str:
        return f"/repos/{_repository(repo)}/pulls" + ("" if number is None else f"/{number}")

    @_reading
    async def fetch_pull_request(number: int) -> str:
        """Read a pull request: its state, branches, size and description.

        Args:
            number: Of the pull request.

        """
        one = github.object_with(await github.get(path(number)), "number")
        branches = f"{text_at(one, 'head', 'label')} → {text_at(one, 'base', 'ref')}"
        size = (
            f"{text_at(one, 'changed_files')} files, +{text_at(one, 'additions')} "
            f"−{text_at(one, 'deletions')}"
        )
        state = f"merged {text_at(one, 'merged_at')}" if text_at(one, "merged_at") else text_at(one, "state")
        head = (
            f"#{number} [{state}] {text_at(one, 'title')} (by "
            f"{text_at(one, 'user', 'login')})\n{branches}: {size}"
        )
        return mark_foreign("\n\n".join(part for part in (head, text_at(one, "body")) if part), "GitHub")

    @_reading
    async def get_pull_request_diff(number: int) -> str:
        """Read what a pull request changes, as a unified diff.

        Args:
            number: Of the pull request.

        """
        return mark_foreign(await github.text(path(number), "application/vnd.github.diff"), "GitHub")

    @_reading
    async def list_merged_prs(count: int = 20, base: str = "") -> str:
        """List the pull requests that were merged last.

        Args:
            count: Number of results, at most 50, of the hundred closed ones that changed last.
            base: Only those into this branch; any by default.

        """
        closed = await github.get(
            path(), state="closed", sort="updated", direction="desc", per_page=100, base=base
        )
        merged = [one for one in github.rows_in(closed, each="number") if text_at(one, "merged_at")]
        rows = [
            f"#{text_at(one, 'number')} merged {text_at(one, 'merged_at')}: {text_at(one, 'title')}"
            for one in merged
        ]
        return (
            mark_foreign("\n".join(rows[: min(max(count, 1), 50)]), "GitHub")
            if rows
            else "no pull request was merged lately"
        )

    return [fetch_pull_request, get_pull_request_diff, list_merged_prs]


def _repository(repo: str) -> str:
    if not _REPOSITORY.fullmatch(repo) or any(part in {".", ".."} for part in repo.split("/")):
        raise ValueError(f"{repo!r} is not a repository: write owner/name")
    return repo
