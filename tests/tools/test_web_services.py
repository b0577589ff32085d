"""GitHub, Jira and Brave against recorded answers, shortened to what is read and some of what is not."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from webserver import WebServer, answer, serving

from kestrel_lab.tools.builtin import web_tools
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Toolbox, ToolContext
from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.search_engines import search_function

ISSUE = {
    "url": "https://api.github.com/repos/octocat/Hello-World/issues/1347",
    "html_url": "https://github.com/octocat/Hello-World/issues/1347",
    "number": 1347,
    "state": "open",
    "title": "Found a bug",
    "body": "I'm having a problem with this.",
    "user": {"login": "octocat", "id": 1, "type": "User"},
    "labels": [{"id": 208045946, "name": "bug", "color": "f29513"}],
    "comments": 2,
}
COMMENTS = [
    {"id": 1, "body": "Me too", "user": {"login": "hubot"}, "created_at": "2011-04-14T16:00:49Z"},
    {"id": 2, "body": "Fixed?", "user": {"login": "monalisa"}, "created_at": "2011-04-15T16:00:49Z"},
]
FILE = {
    "type": "file",
    "encoding": "base64",
    "size": 20,
    "name": "README.md",
    "path": "README.md",
    "content": "IyBIZWxsbwoKV29y\nbGQhCg==\n",
}
FOLDER = [{"type": "dir", "path": "src"}, {"type": "file", "path": "README.md"}]
JIRA_ISSUE = {
    "id": "10002",
    "key": "ED-1",
    "fields": {
        "summary": "Main order flow broken",
        "status": {"name": "In Progress", "statusCategory": {"key": "indeterminate"}},
        "assignee": {"accountId": "5b10a2844c20165700ede21g", "displayName": "Mia Krystof"},
        "description": "Orders get lost.",
        "comment": {
            "total": 1,
            "comments": [
                {
                    "id": "1",
                    "author": {"displayName": "Emma"},
                    "body": "Since Monday",
                    "created": "2021-01-17",
                }
            ],
        },
    },
}
BRAVE = {
    "type": "search",
    "query": {"original": "kestrel", "more_results_available": True},
    "web": {
        "type": "search",
        "results": [
            {
                "title": "Common kestrel",
                "url": "https://example.org/k",
                "description": "A <strong>kestrel</strong> &amp; a vole",
                "age": "x",
            },
            {"title": "Other", "url": "https://example.org/o", "description": ""},
        ],
    },
}


def recorded(value: Any, status: str = "200 OK") -> bytes:
    """A JSON answer."""
    return answer(json.dumps(value), status, kind="application/json; charset=utf-8")


def box(**env: str) -> Toolbox:
    """The tools of the web in an environment."""
    return web_tools(Reach(env=env))


def use(tools: Toolbox, name: str, **args: Any) -> str:
    """Validate and run a tool; the mark around what is foreign is left out."""
    made = tools.get(name)
    text = asyncio.run(made.run(made.validate(args), ToolContext(workspace=Workspace(Path.cwd()))))
    assert isinstance(text, str)
    lines = text.splitlines()
    return "\n".join(lines[1:-1]) if lines[0].startswith("--- begin") else text


def github(server: WebServer) -> Toolbox:
    """With a token, and the test's server in place of GitHub's."""
    return box(GITHUB_TOKEN="t0ken", GITHUB_API_URL=server.url("/api/v3/"))


def jira(server: WebServer, **env: str) -> Toolbox:
    """With a token for the test's server."""
    return box(JIRA_URL=server.url(), JIRA_API_TOKEN="t0ken", **env)


def test_tools_are_there_only_with_their_keys() -> None:
    """Each service by its own variables; half of them are not enough."""
    always = box().names
    assert not any(name.startswith(("github", "jira", "brave")) for name in always)
    assert box(JIRA_URL="https://j.example", GITHUB_TOKEN="").names == always
    assert set(box(GITHUB_TOKEN="t").names) - set(always) == {
        "github_search",
        "github_issue",
        "github_file",
        "github_comment",
    }
    pulls = {"fetch_pull_request", "get_pull_request_diff", "list_merged_prs"}
    assert not pulls & set(box(GITHUB_TOKEN="t", GITHUB_ORG="o").names)
    assert pulls < set(box(GITHUB_TOKEN="t", GITHUB_ORG="o", GITHUB_REPO="r").names)
    assert set(box(JIRA_URL="https://j.example", JIRA_API_TOKEN="t").names) - set(always) == {
        "jira_search",
        "jira_issue",
        "jira_comment",
    }
    assert box(JIRA_BASE_URL="https://j.example").names == always
    assert set(box(JIRA_BASE_URL="https://j.example", JIRA_API_TOKEN="t").names) - set(always) == {
        *(
            "get_jira_issue",
            "search_jira_issues",
            "get_my_project_issues",
            "get_assigned_issues",
            "jira_comment",
        )
    }
    assert set(box(BRAVE_API_KEY="k").names) - set(always) == {"brave_search"}


def test_github_is_searched_and_read() -> None:
    """Issues, repositories, code, an issue with its comments, a file, a folder; asked with the token and a
    version.
    """
    found = {"total_count": 1, "incomplete_results": False}
    repository = {
        "full_name": "dtrupenn/Tetris",
        "stargazers_count": 1,
        "description": "A C implementation",
        "html_url": "https://github.com/d/T",
    }
    code = {
        "path": "src/a.js",
        "html_url": "https://github.com/j/q/blob/src/a.js",
        "repository": {"full_name": "jquery/jquery"},
    }
    path = "/api/v3/repos/octocat/Hello-World"
    routes = {
        "/api/v3/search/issues": recorded({**found, "items": [ISSUE]}),
        "/api/v3/search/repositories": recorded({**found, "items": [repository]}),
        "/api/v3/search/code": recorded({**found, "items": [code]}),
        f"{path}/issues/1347": recorded(ISSUE),
        f"{path}/issues/1347/comments": recorded(COMMENTS),
        f"{path}/contents/README.md": recorded(FILE),
        f"{path}/contents/": recorded(FOLDER),
    }
    with serving(routes) as server:
        tools, repo = github(server), "octocat/Hello-World"
        assert (
            use(tools, "github_search", query="is:open bug", count=5)
            == f"#1347 [open] Found a bug {ISSUE['html_url']}"
        )
        assert use(tools, "github_search", query="tetris", kind="repositories").startswith(
            "dtrupenn/Tetris (1 stars): A C implementation https"
        )
        assert (
            use(tools, "github_search", query="a", kind="code")
            == f"jquery/jquery: src/a.js {code['html_url']}"
        )
        assert use(tools, "github_issue", repo=repo, number=1347).split("\n\n") == [
            "#1347 [open] Found a bug (by octocat)",
            "I'm having a problem with this.",
            "hubot, 2011-04-14T16:00:49Z:\nMe too",
            "monalisa, 2011-04-15T16:00:49Z:\nFixed?",
        ]
        assert use(tools, "github_file", repo=repo, path="README.md", ref="main") == "# Hello\n\nWorld!\n"
        assert use(tools, "github_file", repo=repo, path="") == "src/\nREADME.md"
        assert server.asked[0].target == "/api/v3/search/issues?q=is%3Aopen+bug&per_page=5"
        assert server.asked[5].target.endswith("README.md?ref=main")
        assert {
            (one.headers["authorization"], one.headers["x-github-api-version"]) for one in server.asked
        } == {("Bearer t0ken", "2022-11-28")}


def test_github_is_written_to() -> None:
    """A comment is one POST of JSON, and its address is told."""
    path = "/api/v3/repos/octocat/Hello-World/issues/1347/comments"
    with serving({path: recorded({"id": 1, "html_url": "https://github.com/c/1"}, "201 Created")}) as server:
        said = use(github(server), "github_comment", repo="octocat/Hello-World", number=1347, text="Grüezi")
        assert said == "commented: https://github.com/c/1"
        assert (server.asked[0].method, json.loads(server.asked[0].body)) == ("POST", {"body": "Grüezi"})


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("github_issue", {"repo": "octocat", "number": 1}),
        ("github_issue", {"repo": "../x", "number": 1}),
        ("github_issue", {"repo": "a/b/c", "number": 1}),
        ("github_issue", {"repo": "a/b?x", "number": 1}),
        ("github_file", {"repo": "a/b", "path": "../../../user"}),
        ("github_comment", {"repo": "a/..", "number": 1, "text": "x"}),
        ("jira_issue", {"key": "../../myself"}),
        ("jira_comment", {"key": "ABC", "text": "x"}),
    ],
)
def test_arguments_cannot_lead_elsewhere(name: str, args: dict[str, Any]) -> None:
    """What becomes part of a path is looked at: no other part of the interface is asked."""
    with serving({}) as server:
        with pytest.raises(ValueError, match=r"is not a repository|leads out|is not a key"):
            use(github(server) if name.startswith("github") else jira(server), name, **args)
        assert server.connections == 0


def test_errors_are_told_in_the_services_own_words() -> None:
    """Status and message, never the key; what may pass is a connection error, which the engine may try
    again.
    """
    path = "/api/v3/repos/a/b/issues/1"
    with serving({}) as server:
        for status, body, message in (
            ("401 Unauthorized", {"message": "Bad credentials"}, r"401 Unauthorized: Bad credentials"),
            ("404 Not Found", {}, r"404 Not Found: there is no /repos/a/b/issues/1"),
            (
                "400 Bad Request",
                {"errorMessages": ["The value 'X' does not exist"]},
                r"The value 'X' does not exist",
            ),
            ("422 Unprocessable", {"error": {"code": "V", "detail": "wrong"}}, r"wrong; V"),
        ):
            server.routes = {path: recorded(body, status)}
            with pytest.raises(ValueError, match=message) as raised:
                use(github(server), "github_issue", repo="a/b", number=1)
            assert "t0ken" not in str(raised.value)
        for route, error, message in (
            (recorded({"message": "slow down"}, "429 Too Many Requests"), ConnectionError, "slow down"),
            (answer("<html>", "503 Service Unavailable"), ConnectionError, "503"),
            (answer("<html>"), ValueError, "not JSON"),
            (answer("[" * 100_000), ValueError, "not JSON"),
            (answer(b"x", kind="image/png"), ValueError, "was not read: its type is image/png"),
            (answer("", "302 Found", Location="http://evil.test/"), ValueError, "302 Found"),
        ):
            server.routes = {path: route}
            with pytest.raises(error, match=message):
                use(github(server), "github_issue", repo="a/b", number=1)


def test_jira_in_the_cloud_is_searched_read_and_written_to() -> None:
    """With mail address and token; a server of one's own takes the token alone and has another search."""
    routes = {
        "/rest/api/2/search/jql": recorded({"issues": [JIRA_ISSUE], "isLast": True}),
        "/rest/api/2/search": recorded({"issues": [], "total": 0}),
        "/rest/api/2/issue/ED-1": recorded(JIRA_ISSUE),
        "/rest/api/2/issue/ED-1/comment": recorded({"id": "10000"}, "201 Created"),
    }
    with serving(routes) as server:
        cloud = jira(server, JIRA_EMAIL="a@b.example")
        line = "ED-1 [In Progress] Main order flow broken (assigned to Mia Krystof)"
        assert use(cloud, "jira_search", jql="project = ED") == line
        assert (
            use(cloud, "jira_issue", key="ED-1")
            == f"{line}\n\nOrders get lost.\n\nEmma, 2021-01-17:\nSince Monday"
        )
        assert (
            use(cloud, "jira_comment", key="ED-1", text="Looking into it")
            == "commented on ED-1: comment 10000"
        )
        basic = base64.b64encode(b"a@b.example:t0ken").decode()
        assert {one.headers["authorization"] for one in server.asked} == {f"Basic {basic}"}
        assert json.loads(server.asked[2].body) == {"body": "Looking into it"}
        assert use(jira(server), "jira_search", jql="project = X") == "nothing was found for 'project = X'"
        assert (server.asked[3].headers["authorization"], server.asked[3].target.partition("?")[0]) == (
            "Bearer t0ken",
            "/rest/api/2/search",
        )


def test_brave_searches_the_web() -> None:
    """By its own tool with an age, and behind web_search; emphasis of the extracts is left out."""
    with serving({"/res/v1/web/search": recorded(BRAVE)}) as server:
        tools = box(BRAVE_API_KEY="k3y", BRAVE_API_URL=server.url())
        listed = (
            "1. Common kestrel\n   https://example.org/k\n   A kestrel & a vole\n2. Other\n   "
            "https://example.org/o\n   "
        )
        assert use(tools, "brave_search", query="kestrel", count=2, age="week") == listed
        assert use(tools, "web_search", query="kestrel", count=1) == listed.partition("\n2.")[0]
        assert [one.target for one in server.asked] == [
            *("/res/v1/web/search?q=kestrel&count=2&freshness=pw", "/res/v1/web/search?q=kestrel&count=1")
        ]
        assert {one.headers["x-subscription-token"] for one in server.asked} == {"k3y"}


OTHER_SHAPES: list[Any] = [
    {"error": "moved"},
    {"results": [{"url": "https://example.org"}]},
    {"web": {"results": {"0": "x"}}, "items": {"0": "x"}, "issues": "none"},
    {"web": {"results": ["text"]}, "items": ["text"], "issues": ["text"]},
    {"web": {"results": [{"link": "x"}]}, "items": [{"link": "x"}], "issues": [{"link": "x"}]},
    [],
    "nothing",
    None,
]
SEARCHES = {
    "brave_search": ({"query": "x"}, "/res/v1/web/search"),
    "web_search": ({"query": "x"}, "/res/v1/web/search"),
    "web_results": ({"query": "x"}, "/res/v1/web/search"),
    "github_search": ({"query": "x"}, "/search/issues"),
    "jira_search": ({"jql": "x"}, "/rest/api/2/search"),
}


@pytest.mark.parametrize("value", OTHER_SHAPES, ids=lambda value: json.dumps(value)[:30])
@pytest.mark.parametrize("name", SEARCHES)
def test_an_answer_of_another_shape_is_an_error(name: str, value: Any) -> None:
    """No search says that nothing was found where its service answered something else; it shows what came."""
    arguments, path = SEARCHES[name]
    with serving({path: recorded(value)}) as server:
        tools = box(
            BRAVE_API_KEY="k",
            BRAVE_API_URL=server.url(),
            GITHUB_TOKEN="t",
            GITHUB_API_URL=server.url(),
            JIRA_URL=server.url(),
            JIRA_API_TOKEN="t",
        )
        with pytest.raises(ValueError, match="answered in another shape") as caught:
            use(tools, name, **arguments)
    came = "text" if "text" in json.dumps(value) else json.dumps(value)
    assert came[:100] in str(caught.value)


def test_a_search_of_brave_without_pages_found_nothing() -> None:
    """Brave leaves the part for pages out where it found none: that is an answer of its shape."""
    empty = {"type": "search", "query": {"original": "xyzzy"}, "mixed": {}}
    with serving({"/res/v1/web/search": recorded(empty)}) as server:
        tools = box(BRAVE_API_KEY="k", BRAVE_API_URL=server.url())
        assert use(tools, "web_search", query="xyzzy") == "nothing was found for 'xyzzy'"


@pytest.mark.parametrize(
    "results", [None, {"a": 1}, "text", [("title", "url")], [{"url": "u"}], [("t", "", "e")]]
)
def test_an_engine_of_another_shape_is_an_error(results: Any) -> None:
    """An engine that a program brings is held to titles, addresses and extracts, too."""
    search = search_function(Reach(env={}), lambda query, count: results)
    with pytest.raises(ValueError, match="answered in another shape"):
        asyncio.run(search("x", 3))


def test_pull_requests_of_one_repository_are_read() -> None:
    """With the repository in the environment: one with its size, what it changes, and those that were
    merged.
    """
    pull = {
        "number": 7,
        "state": "closed",
        "title": "Fix it",
        "body": "It was broken.",
        "merged_at": "2026-01-02T03:04:05Z",
        "user": {"login": "octocat"},
        "head": {"label": "octocat:fix"},
        "base": {"ref": "main"},
        "changed_files": 2,
        "additions": 10,
        "deletions": 3,
    }
    diff = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b"
    path = "/api/v3/repos/octocat/Hello-World/pulls"
    with serving(
        {path: recorded([pull, {**pull, "number": 8, "merged_at": None}]), f"{path}/7": recorded(pull)}
    ) as server:
        tools = box(
            GITHUB_TOKEN="t0ken",
            GITHUB_API_URL=server.url("/api/v3"),
            GITHUB_ORG="octocat",
            GITHUB_REPO="Hello-World",
        )
        assert use(tools, "fetch_pull_request", number=7).split("\n") == [
            "#7 [merged 2026-01-02T03:04:05Z] Fix it (by octocat)",
            "octocat:fix → main: 2 files, +10 −3",
            "",
            "It was broken.",
        ]
        assert use(tools, "list_merged_prs", base="main") == "#7 merged 2026-01-02T03:04:05Z: Fix it"
        assert (
            server.asked[1].target
            == f"{path}?state=closed&sort=updated&direction=desc&per_page=100&base=main"
        )
        server.routes = {
            f"{path}/7": answer(diff, kind="application/vnd.github.diff; charset=utf-8"),
            path: recorded([]),
        }
        assert use(tools, "get_pull_request_diff", number=7) == diff
        assert server.asked[2].headers["accept"] == "application/vnd.github.diff"
        assert use(tools, "list_merged_prs") == "no pull request was merged lately"
        server.routes = {f"{path}/7": recorded({"message": "Not Found"}, "404 Not Found")}
        with pytest.raises(ValueError, match="404 Not Found: Not Found"):
            use(tools, "get_pull_request_diff", number=7)
    with pytest.raises(ValueError, match="is not a repository"):
        use(box(GITHUB_TOKEN="t", GITHUB_ORG="..", GITHUB_REPO="x"), "list_merged_prs")


def test_jira_by_its_base_address_has_the_issues_of_a_project_and_ones_own() -> None:
    """Under the names that go with that variable; a project is a key and nothing that could be more of a
    query.
    """
    found = recorded({"issues": [JIRA_ISSUE]})
    with serving({"/rest/api/2/search": found, "/rest/api/2/issue/ED-1": recorded(JIRA_ISSUE)}) as server:
        tools = box(JIRA_BASE_URL=server.url(), JIRA_API_TOKEN="t0ken")
        line = "ED-1 [In Progress] Main order flow broken (assigned to Mia Krystof)"
        assert use(tools, "search_jira_issues", jql="project = ED") == line
        assert use(tools, "get_my_project_issues", project="ED") == line
        assert use(tools, "get_assigned_issues", count=3) == line
        assert use(tools, "get_jira_issue", key="ED-1").startswith(line)
        asked = [one.target for one in server.asked]
        assert "jql=project+%3D+%22ED%22+AND+statusCategory" in asked[1]
        assert "assignee+%3D+currentUser%28%29" in asked[2]
        assert "maxResults=3" in asked[2]
        with pytest.raises(ValueError, match="is not a key of a project"):
            use(tools, "get_my_project_issues", project='ED" OR project = "X')


def test_a_key_is_nowhere_to_be_seen() -> None:
    """Neither in what describes a service nor in what describes its tools."""
    tools = box(
        GITHUB_TOKEN="s3cret", JIRA_URL="https://j.example", JIRA_API_TOKEN="s3cret", BRAVE_API_KEY="s3cret"
    )
    assert "s3cret" not in repr(tools) + repr([(made, made.spec()) for made in tools])
