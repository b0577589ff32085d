"""Reports of suites on build servers: verdict, comment, pages and JUnit XML, for each kind of server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.evals.commits.compare import compare_commits
from kestrel_lab.evals.reports.gate_decisions import EXIT_CODES, GateReport, GateVerdict, gravest
from kestrel_lab.evals.reports.markdown import code_span, join_blocks, markdown_link
from kestrel_lab.evals.reports.result_view import write_text
from kestrel_lab.models.cassettes.cassette import file_for
from kestrel_lab.runtime.services import Services

COMMENT: Final = "comment.md"
VERDICT: Final = "verdict.txt"
"""The verdict in one word, for the next step of a build."""
MARK: Final = "<!-- kestrel -->"
"""Begins a comment of ours, by which the next build finds it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CiReport:
    """The decisions on all suites of a build."""

    decided: Mapping[str, GateReport]
    """By suite file."""
    troubles: Mapping[str, str]
    """Why a suite could not be decided at all, by its file."""
    comment: Path

    @property
    def exit_code(self) -> int:
        """That of the gravest suite, as `kestrel eval gate` ends with it."""
        code = EXIT_CODES[self.verdict]
        return code or max((report.exit_code for report in self.decided.values()), default=0)

    @property
    def verdict(self) -> GateVerdict:
        """The gravest verdict of all suites; `broken` where one could not be decided at all."""
        verdicts: list[GateVerdict] = [report.verdict for report in self.decided.values()]
        return gravest([*verdicts, "broken"] if self.troubles else verdicts)

    def __repr__(self) -> str:
        lines = []
        for report in self.decided.values():
            lines += [
                report.headline,
                *(f"  {' · '.join(filter(None, one.cells()))}" for one in report.decisions),
            ]
        lines += [f"BROKEN: {file}: {why}" for file, why in self.troubles.items()]
        return "\n".join([*lines, f"comment: {shown_path(self.comment)}"])


async def decide_in_ci(
    lab: Services,
    suites: Sequence[Path],
    *,
    against: str,
    out: Path,
    env: Mapping[str, str],
    reporter: Reporter | None = None,
    **how: Any,
) -> CiReport:
    """Compare HEAD with a commit on each suite and decide gates; pages, JUnit XML and a comment go to `out`.

    `against` and `how` are those of `compare_commits`. A suite that cannot be decided has its reason in the
    comment, and the others go on.
    """
    decided, troubles, sections = {}, {}, []
    pages, job = addresses(env, out)
    for suite in suites:
        file = shown_path(suite)
        try:
            found = await compare_commits(
                lab, against, "HEAD", suite=suite, alone=True, reporter=reporter, **how
            )
        except UsageError as error:
            troubles[file] = str(error)
            sections.append(f"### ⚠️ Not decided: {code_span(file)}\n\n{code_span(error, 600)}")
            continue
        page = found.report(file_for(out, found.suite.name).with_suffix(".html"))
        found.junit(page.with_suffix(".xml"))
        sections.append(found.markdown(f"{pages}/{page.name}" if pages else ""))
        decided[file] = found.gates()
    comment = write_text(out / COMMENT, comment_text(sections, job))
    report = CiReport(decided=decided, troubles=troubles, comment=comment)
    write_text(out / VERDICT, f"{report.verdict}\n")
    return report


def comment_text(sections: Iterable[str], job: str) -> str:
    """Return a comment of these sections, as many as there is room for, with a link to the job."""
    kept, size = [MARK], 0
    left = 0
    for section in sections:
        size += len(section)
        # GitHub refuses a comment of more than 65,536 characters; the rest is for links and what is left
        # out.
        if size > 60_000:
            left += 1
        else:
            kept.append(section.strip())
    more = f"{left} more suites are in the report of the job." if left else ""
    return join_blocks(
        [*kept, more, markdown_link("Pages of all trials: artifacts of this job", job) if job else ""]
    )


def addresses(env: Mapping[str, str], out: Path) -> tuple[str, str]:
    """Return where the pages in `out` can be read later, and the page of the job; empty where that is not
    known.
    """
    # GitLab shows the files of artifacts.
    if job := env.get("CI_JOB_URL"):
        return f"{job}/artifacts/file/{out.as_posix()}", job
    # GitHub packs artifacts into an archive, so a page in them has no address.
    if env.get("GITHUB_RUN_ID"):
        return (
            "",
            f"{env['GITHUB_SERVER_URL']}/{env['GITHUB_REPOSITORY']}/actions/runs/{env['GITHUB_RUN_ID']}",
        )
    return "", ""
