"""`kestrel eval ci` and `kestrel eval comment`: decide suites in a build, and tell the pull request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from kestrel_lab.cli.eval_options import FailOnOption, Margin, run_measurement
from kestrel_lab.evals.ci.ci_report import COMMENT, decide_in_ci
from kestrel_lab.evals.suite_files import find_suites

building = typer.Typer()
"""Commands of `kestrel eval`."""


@building.command("ci", epilog="Example: kestrel eval ci evals/sums.yaml --against origin/main --out out")
def decide_build(
    ctx: typer.Context,
    suites: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[SUITE]…", help="Suite files; by default each *.suite.yaml below this folder."
        ),
    ] = None,
    *,
    against: Annotated[
        str,
        typer.Option(metavar="COMMIT", help="Compare HEAD with this commit; auto: the nearest one on main."),
    ] = "auto",
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Write pages, JUnit XML and comment.md to this folder.")
    ] = Path("out"),
    margin: Margin = 0.05,
    fail_on: FailOnOption = "worse",
    cassette: Annotated[
        str, typer.Option(metavar="MODE", help="replay: no model is asked; off: models are asked.")
    ] = "replay",
) -> Any:
    """Decide the gates of suites and compare HEAD with a commit, as kestrel eval gate --against does, in a
    build.

    Exit codes are those of kestrel eval gate, the gravest of all suites. A suite that cannot be decided has
    its reason in the comment.
    """
    chosen = suites or find_suites(Path.cwd())
    how: Any = {"against": against, "out": out, "margin": margin, "cassette": cassette}
    how |= {"fail_on": fail_on, "env": os.environ}
    return run_measurement(ctx, lambda lab, reporter: decide_in_ci(lab, chosen, reporter=reporter, **how))


@building.command(
    "comment", epilog="Example: kestrel eval comment out/comment.md, in a build of a pull request"
)
def comment_on_request(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What kestrel eval ci wrote.")] = Path(
        "out", COMMENT
    ),
) -> str:
    """Post a comment on the pull request (GitHub) or merge request (GitLab) of this build, or change the last
    one.

    It takes GITHUB_TOKEN or GITLAB_COMMENT_TOKEN. It is a command of its own so that no token is there while
    agents work.
    """
    from kestrel_lab.evals.ci.pull_request import post_comment  # loads httpx

    return post_comment(file, os.environ)
