"""`action.yml` and `kestrel.gitlab-ci.yml`, run step by step as a server runs them, and the comment that they post."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.ci.ci_report import comment_text
from kestrel_lab.evals.ci.pull_request import post_comment

ROOT = Path(__file__).parents[2]
SUITE = """\
name: talks
configs: [{name: script, model: "scripted:script.yaml"}]
gates: [{success_rate: {at_least: 0.5}}]
scenarios:
""" + "".join(f"  - {{id: s{n}, goal: talk, checks: [{{answer_contains: hello}}]}}\n" for n in range(9))
SCRIPT = "rules:\n  - {when: talk, turns: [WORD]}\n"


class Forge(ThreadingHTTPServer):
    """Keeps the comments of one pull request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Comments)
        self.comments: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str]] = []
        self.refuses = 0

    @property
    def address(self) -> str:
        """Where its API is."""
        return f"http://127.0.0.1:{self.server_port}"


class Comments(BaseHTTPRequestHandler):
    """The part of GitHub's and GitLab's API that is used."""

    server: Forge

    def do_GET(self) -> None:
        self.answer(self.server.comments)

    def do_POST(self) -> None:
        text = self.body()
        self.server.comments.append({"id": 7, "user": {"type": "Bot"}, "body": text})
        self.answer({}, 201)

    def do_PATCH(self) -> None:
        text = self.body()
        self.server.comments[-1]["body"] = text
        self.answer({})

    do_PUT = do_PATCH

    def body(self) -> str:
        return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

    def answer(self, value: Any, code: int = 200) -> None:
        self.server.asked.append((self.command, self.path.partition("?")[0]))
        content = json.dumps(value).encode()
        self.send_response(self.server.refuses or code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def forge() -> Iterator[Forge]:
    """A server without comments."""
    with Forge() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def git(folder: Path, *words: str) -> str:
    """Run git with a fixed identity."""
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@example.org",
        "-c",
        "commit.gpgsign=false",
        *words,
    ]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of a pull request: main passes everything, the branch nothing."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / ".gitignore").write_text("out/\n")
    (folder / "talks.suite.yaml").write_text(SUITE)
    for word in ("hello", "bye"):
        (folder / "script.yaml").write_text(SCRIPT.replace("WORD", word))
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", word)
        if word == "hello":
            git(folder, "switch", "-qc", "topic")
    return folder


def environment(place: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a build: `kestrel` is that of the tests, and no key is there."""
    (place / "bin").mkdir()
    (place / "bin" / "kestrel").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kestrel_lab "$@"\n')
    (place / "bin" / "kestrel").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KESTREL", "GITHUB"))}
    path = f"{place / 'bin'}{os.pathsep}{kept['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "CI": "true", **more}


def run_action(checkout: Path, env: dict[str, str]) -> tuple[int, str]:
    """Run the steps that are commands, save for the installation; returns the exit code of the last and what they
    said.
    """
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    values = {f"inputs.{name}": str(one.get("default", "")) for name, one in action["inputs"].items()}
    values["inputs.token"] = "secret"
    output, said, code = Path(env["GITHUB_OUTPUT"]), "", 0
    for step in action["runs"]["steps"]:
        if "run" not in step or step["name"] == "install":
            continue
        assert "${{" not in step["run"]  # what an input holds is never read as a command
        if output.exists():
            for line in output.read_text().splitlines():
                name, _, value = line.partition("=")
                values[f"steps.measure.outputs.{name}"] = value

        def filled(text: str) -> str:
            return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: values[found[1]], text)

        own = {name: filled(value) for name, value in step.get("env", {}).items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, cwd=checkout, env=env | own, capture_output=True, text=True, check=False
        )
        said, code = said + done.stdout + done.stderr, done.returncode
    return code, said


@pytest.mark.usefixtures("warm")
def test_the_steps_of_the_action(checkout: Path, forge: Forge, tmp_path: Path) -> None:
    """A pull request that makes everything worse is red, and has one comment that says so first; the next build
    changes that comment. What the pages hold is kept beside it.
    """
    (tmp_path / "event.json").write_text(json.dumps({"pull_request": {"number": 3}}))
    env = environment(
        tmp_path,
        {
            "GITHUB_ACTIONS": "true",
            "GITHUB_API_URL": forge.address,
            "GITHUB_SERVER_URL": "https://github.example.org",
            "GITHUB_REPOSITORY": "o/r",
            "GITHUB_RUN_ID": "5",
            "GITHUB_EVENT_PATH": str(tmp_path / "event.json"),
            "GITHUB_OUTPUT": str(tmp_path / "output"),
            "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        },
    )
    code, said = run_action(checkout, env)
    assert code == 1, said
    (comment,) = forge.comments
    mark, heading, change, sides = [line for line in comment["body"].splitlines() if line][:4]
    assert (mark, heading) == ("<!-- kestrel -->", "### ❌ Worse: suite `talks`")
    assert re.match(r"- `script \(scripted\)`: worse than `\w{8}` by 100 points, interval \d+ to 100", change)
    assert sides.startswith("- **9 trials changed sides**, 9 to fail and 0 to pass: `s0`, `s1`")
    assert "(https://github.example.org/o/r/actions/runs/5)" in comment["body"]
    assert (tmp_path / "summary.md").read_text() == comment["body"]
    assert {path.name for path in (checkout / "out" / "kestrel").iterdir()} == {
        "comment.md",
        "talks.html",
        "talks.xml",
        "verdict.txt",
    }

    git(checkout, "checkout", "-q", "main", "--", "script.yaml")
    git(checkout, "commit", "-qam", "Repaired")
    code, said = run_action(checkout, env)
    assert code == 0, said
    assert [asked for asked in forge.asked if asked[0] != "GET"] == [
        ("POST", "/repos/o/r/issues/3/comments"),
        ("PATCH", "/repos/o/r/issues/comments/7"),
    ]
    assert "### ➖ No difference: suite `talks`" in forge.comments[0]["body"]


@pytest.mark.long
@pytest.mark.usefixtures("warm")
def test_gitlab_does_the_same(checkout: Path, forge: Forge, tmp_path: Path) -> None:
    """The one script of the file ends with the same code and posts the same comment, with links to the pages; no
    agent sees its token. A first commit has nothing to be compared with, which is said.
    """
    job = yaml.safe_load((ROOT / "kestrel.gitlab-ci.yml").read_text(encoding="utf-8"))["kestrel"]
    env = environment(
        tmp_path,
        {
            **job["variables"],
            "GITLAB_CI": "true",
            "CI_API_V4_URL": forge.address,
            "CI_PROJECT_ID": "1",
            "CI_MERGE_REQUEST_IID": "3",
            "CI_JOB_URL": "https://gitlab.example.org/o/r/-/jobs/5",
            "GITLAB_COMMENT_TOKEN": "secret",
        },
    )
    (script,) = job["script"]
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    text = forge.comments[0]["body"]
    assert "### ❌ Worse: suite `talks`" in text
    assert "(https://gitlab.example.org/o/r/-/jobs/5/artifacts/file/out/kestrel/talks.html)" in text

    git(checkout, "checkout", "-q", "--detach", "main")
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=checkout, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "### ❔ Nothing to compare with: suite `talks`" in forge.comments[0]["body"]
    assert "HEAD is the first commit" in forge.comments[0]["body"]


def test_where_no_comment_can_be(forge: Forge, tmp_path: Path) -> None:
    """No pull request, no token, a build of a fork, no build at all: each is a sentence and no error; a server that
    is gone is an error.
    """
    file = tmp_path / "comment.md"
    with pytest.raises(UsageError, match="kestrel eval ci writes it"):
        post_comment(file, {})
    file.write_text("<!-- kestrel -->\n")
    assert "no build of GitHub or GitLab" in post_comment(file, {})
    assert "of no pull request" in post_comment(file, {"GITHUB_ACTIONS": "true"})
    gitlab = {"GITLAB_CI": "true", "CI_API_V4_URL": forge.address, "CI_PROJECT_ID": "1"}
    assert "of no merge request" in post_comment(file, gitlab)
    gitlab["CI_MERGE_REQUEST_IID"] = "3"
    assert "no GITLAB_COMMENT_TOKEN" in post_comment(file, gitlab)
    gitlab["GITLAB_COMMENT_TOKEN"] = "secret"
    forge.refuses = 403
    assert "a build of a fork has no right to write" in post_comment(file, gitlab)
    forge.refuses = 500
    with pytest.raises(UsageError, match="the comment was not taken"):
        post_comment(file, gitlab)
    with pytest.raises(UsageError, match="could not be sent"):
        post_comment(file, gitlab | {"CI_API_V4_URL": "http://127.0.0.1:9"})
    # A comment of many suites stays below what servers take.
    text = comment_text(["x" * 25_000] * 4, "https://ci.example.org")
    assert len(text) < 60_000
    assert "2 more suites are in the report of the job." in text
