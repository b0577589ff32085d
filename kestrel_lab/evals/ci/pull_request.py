"""The comment of a build on its pull request (GitHub) or merge request (GitLab): posted once, then kept up to
date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.ci.ci_report import MARK


@dataclass(frozen=True, kw_only=True, slots=True)
class Thread:
    """Where comments of a pull request are."""

    comments: str
    """The address that lists them, and takes a new one."""
    edit: str
    """The address of one, with `{id}`."""
    method: str
    """How one is changed."""
    headers: Mapping[str, str]


def post_comment(file: Path, env: Mapping[str, str]) -> str:
    """Post a comment that `kestrel eval ci` wrote, or change the one of the build before; says what was done.

    A build without a pull request has nothing to comment on, and one of a fork has no right to: both are said
    and are no error. Raises `UsageError` for a file that is not there, and a server that does not answer.
    """
    if not file.is_file():
        raise UsageError(f"{shown_path(file)} does not exist: kestrel eval ci writes it")
    text = file.read_text(encoding="utf-8")
    thread = _thread(env)
    if isinstance(thread, str):
        return thread
    try:
        with httpx.Client(headers=dict(thread.headers), timeout=30) as client:
            known = _ours(client, thread)
            if known is None:
                answer = client.post(thread.comments, json={"body": text})
            else:
                answer = client.request(thread.method, thread.edit.format(id=known), json={"body": text})
            answer.raise_for_status()
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        if code in (401, 403, 404):
            return (
                f"the server refused the comment ({code}): a build of a fork has no right to write; "
                "elsewhere give the job the right (GitHub: permissions: pull-requests: write; GitLab: a "
                "token with scope api in GITLAB_COMMENT_TOKEN)"
            )
        raise UsageError(f"the comment was not taken: {one_line(str(error), 200)}") from error
    except httpx.HTTPError as error:
        raise UsageError(f"the comment could not be sent: {one_line(str(error), 200)}") from error
    return "comment posted" if known is None else "comment changed"


def _ours(client: httpx.Client, thread: Thread) -> int | None:
    # Pages of a hundred comments: on a longer thread a new comment is better than a build that reads for
    # ever.
    for page in range(1, 10 + 1):
        answer = client.get(thread.comments, params={"per_page": 100, "page": page})
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        for one in found:
            # A person may quote the mark; on GitHub builds write as a bot.
            person = one.get("user", {}).get("type", "Bot") != "Bot"
            if str(one.get("body", "")).startswith(MARK) and not person:
                return int(one["id"])
        if len(found) < 100:
            break
    return None


def _thread(env: Mapping[str, str]) -> Thread | str:
    """Return where to comment, or why there is no place for it."""
    if env.get("GITHUB_ACTIONS"):
        event = Path(env.get("GITHUB_EVENT_PATH", ""))
        payload = json.loads(event.read_text(encoding="utf-8")) if event.is_file() else {}
        number = payload.get("pull_request", {}).get("number")
        if not isinstance(number, int):
            return "this build is of no pull request: there is nothing to comment on"
        if not env.get("GITHUB_TOKEN"):
            return "there is no GITHUB_TOKEN to comment with: the comment is in the summary of the job"
        place = f"{env['GITHUB_API_URL']}/repos/{env['GITHUB_REPOSITORY']}/issues"
        return Thread(
            comments=f"{place}/{number}/comments",
            edit=f"{place}/comments/{{id}}",
            method="PATCH",
            headers={
                "Authorization": f"Bearer {env['GITHUB_TOKEN']}",
                "Accept": "application/vnd.github+json",
            },
        )
    if env.get("GITLAB_CI"):
        if not env.get("CI_MERGE_REQUEST_IID"):
            return "this build is of no merge request: there is nothing to comment on"
        if not env.get("GITLAB_COMMENT_TOKEN"):
            return "there is no GITLAB_COMMENT_TOKEN to comment with: the comment is among the artifacts"
        requests = f"{env['CI_API_V4_URL']}/projects/{env['CI_PROJECT_ID']}/merge_requests"
        notes = f"{requests}/{env['CI_MERGE_REQUEST_IID']}/notes"
        return Thread(
            comments=notes,
            edit=f"{notes}/{{id}}",
            method="PUT",
            headers={"PRIVATE-TOKEN": env["GITLAB_COMMENT_TOKEN"]},
        )
    return "this is no build of GitHub or GitLab: there is nothing to comment on"
