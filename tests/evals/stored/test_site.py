"""The static site of stored results."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from made_rows import row

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stored.site import write_site
from kestrel_lab.evals.stored_trials import store_trial
from kestrel_lab.lab import Lab

HOSTILE = "../<script>alert(1)</script>"
DAY = 86_400.0


class Page(HTMLParser):
    """The links, the tags and the text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name in ("href", "src") and value]

    def handle_data(self, data: str) -> None:
        self.text += data


def stored(lab: Lab, suite: str, runs: int) -> None:
    """Store eval runs of two configurations, a commit and a day each; the second one gets worse."""
    for run in range(runs):
        for number in range(8):
            for config, passes in (("small", number < 6), ("large", number < 8 - run)):
                made = row(
                    f"s{number}", "pass" if passes else "fail", config=config, cost_estimate=0.001 * (run + 1)
                )
                sitting = {"id": f"e{suite[:1]}{run}", "of": 16, "by": "x"}
                told = {**made.result, "sitting": sitting, "model_kind": "real"}
                at = 1_790_000_000 + DAY * run
                fields = {"id": f"{suite}{run}{number}{config}", "suite": suite, "git_sha": f"{run:040x}"}
                store_trial(lab.store, replace(made, **fields, result=told, created_at=at))
    lab.store.flush()


def test_the_site_leads_to_every_page(session: Lab, tmp_path: Path) -> None:
    """The index has each suite with its rates; a suite has the history of each configuration, its steps, and a link to
    the pages of the newest eval runs. Each link is a file of the site, nothing is loaded from elsewhere, and a hostile
    name is text.
    """
    stored(session, "handbook", 6)
    stored(session, HOSTILE, 1)
    out = tmp_path / "public"
    site = write_site(session.store, out, pages=3)
    assert repr(site).endswith("index.html: 2 suites, 4 pages of eval runs")
    pages = [*out.rglob("index.html")]
    assert len(pages) == 3
    for path in pages:
        page = Page(path)
        assert "script" not in page.tags
        for link in page.links:
            assert link == "data:," or (path.parent / unquote(link)).is_file(), link
    assert len([path for path in out.rglob("*.html") if path not in pages]) == 4
    assert HOSTILE in Page(out / "index.html").text
    suite = Page(out / "handbook" / "index.html")
    assert "38 % (" in suite.text  # the newest of the second configuration
    assert "$0.0060" in suite.text
    assert re.search(r"step at .* \[large\]|no step can be told from chance", suite.text)
    assert suite.text.count("+changes") == 0
    assert write_site(session.store, out, names=["handbook"], pages=0).pages == 0


def test_what_is_no_site(session: Lab, tmp_path: Path) -> None:
    """Without results, with an unknown suite and over the pages of somebody else nothing is written."""
    with pytest.raises(UsageError, match="no suite was run here yet"):
        write_site(session.store, tmp_path / "out")
    stored(session, "handbook", 1)
    with pytest.raises(UsageError, match="did you mean 'handbook'"):
        write_site(session.store, tmp_path / "out", names=["handbok"])
    assert not (tmp_path / "out").exists()
    (tmp_path / "index.html").write_text("<h1>Mine</h1>")
    with pytest.raises(UsageError, match="name another folder"):
        write_site(session.store, tmp_path)
