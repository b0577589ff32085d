"""Contracts hold answers to what they promise: a good answer of each kind passes, and each way of breaking it
is named.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.answers.contracts import CONTRACTS, FOR_INTENT, contract_named, sections_of
from kestrel_lab.answers.intent import INTENTS
from kestrel_lab.checks.parse import parse_check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Trial

GOOD = {
    "brief": "It is `MAX = 20`, set in `app/limits.py`.\n\n- app/limits.py:1 says so",
    "plan": "## Goal\nA higher limit.\n\n## Steps\n1. Change `MAX` in `app/limits.py`.\n2. Write "
    "`tests/test_limits.py` (new).\n\n"
    "## Checks\n`pytest tests`\n\n## Risks\nNone known.",
    "patch": "## Summary\nThe limit is 30.\n\n## Changes\n- `app/limits.py`: MAX is 30\n- `docs/limits.md` "
    "(new): says why\n\n"
    "```diff\n--- a/app/limits.py\n+++ b/app/limits.py\n@@ -1 +1 @@\n-MAX = 20\n+MAX = 30\n```\n\n## "
    "Checks\n```sh\npytest\n```",
    "explanation": "## In short\nOne constant bounds all.\n\n## How it works\n```python\n# ## not a "
    "heading\n```\nIt is read once.\n\n"
    "## Where to look\n- app/limits.py: the constant",
    "research": "## Findings\n- A is faster than B (https://example.org/a)\n1. B is smaller `bench.txt`\n\n## "
    "How sure\nTwo sources.\n\n## Open\nC.",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one module."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "limits.py").write_text("MAX = 20\n")
    return tmp_path


@pytest.mark.parametrize("name", GOOD)
def test_a_good_answer_keeps_its_contract(name: str, project: Path) -> None:
    """One of each kind; so does one that says that it does not know, and no empty one does."""
    assert CONTRACTS[name].issues(GOOD[name], project) == ()
    assert CONTRACTS[name].issues("I do not know: nothing here says so.", project) == ()
    assert CONTRACTS[name].issues("  \n", project) == ("there is no answer",)


@pytest.mark.parametrize(
    ("name", "before", "after", "issue"),
    [
        ("brief", "It is", "It is " * 61, "the first paragraph has"),
        ("brief", "- app", "word " * 151 + "\n- app", "words, at most 150 are allowed"),
        ("brief", "- app", "## Evidence\n- app", "a brief answer has no headings"),
        ("plan", "## Risks\nNone known.", "", "lacks the section ## Risks"),
        ("plan", "None known.", "", "## Risks is empty"),
        ("plan", "2. Write", "3. Write", "numbered 1., 2., 3."),
        ("plan", "1. Change `MAX` in `app/limits.py`.", "1. Change the limit.", "step 1 names no file"),
        ("plan", "`app/limits.py`", "`app/limit.py`", "there is no file 'app/limit.py'"),
        ("plan", "`pytest tests`", "Look at it.", "## Checks names no command"),
        ("plan", "## Goal\nA higher limit.\n\n## Steps", "## Steps", "lacks the section ## Goal"),
        ("patch", "- `app/limits.py`: MAX is 30", "- MAX is 30", "names no file"),
        ("patch", "(new)", "", "there is no file 'docs/limits.md'"),
        ("patch", "-MAX = 20", "-MAX = 21", "patch 1 does not fit the files"),
        ("patch", "@@ -1 +1 @@", "", "patch 1 does not fit the files"),
        (
            "patch",
            "--- a/app/limits.py\n+++ b/app/limits.py",
            "--- a/../../etc/passwd\n+++ b/../../etc/passwd",
            "patch 1 does not fit the files",
        ),
        ("explanation", "One constant", "One constant " * 40, "## In short has"),
        ("explanation", "- app/limits.py: the constant", "- everywhere", "names no file"),
        ("explanation", "app/limits.py", "app/limit.py", "there is no file 'app/limit.py'"),
        ("research", " (https://example.org/a)", "", "a finding has no source"),
        (
            "research",
            "## How sure\nTwo sources.\n\n## Open\nC.",
            "## Open\nC.\n\n## How sure\nTwo.",
            "in this order",
        ),
    ],
)
def test_what_breaks_a_contract_is_named(
    name: str, before: str, after: str, issue: str, project: Path
) -> None:
    """Each change breaks it, and the issue says how."""
    assert before in GOOD[name]
    issues = CONTRACTS[name].issues(GOOD[name].replace(before, after), project)
    assert any(issue in found for found in issues), issues


def test_a_patch_that_is_applied_already_fits(project: Path) -> None:
    """An agent that made the change describes it by the same patch; files and repository stay as they are."""
    (project / "app" / "limits.py").write_text("MAX = 30\n")
    assert CONTRACTS["patch"].issues(GOOD["patch"], project) == ()
    assert (project / "app" / "limits.py").read_text() == "MAX = 30\n"


def test_headings_are_found_outside_of_code() -> None:
    """Those within fenced blocks are text."""
    assert sections_of("# A\nx\n```\n# B\n```\n### C:\ny") == {"a": "x\n```\n# B\n```", "c": "y"}


def test_every_intent_has_a_contract() -> None:
    """And a name that is none is met with the nearest."""
    assert set(FOR_INTENT) == set(INTENTS)
    assert all(contract_named(name).name == name for name in FOR_INTENT.values())
    with pytest.raises(UsageError, match="did you mean 'brief'"):
        contract_named("breif")


def test_a_suite_checks_the_form(project: Path) -> None:
    """The check `answer_form` says what is wrong, and passes what is not."""
    check = parse_check({"answer_form": "explanation"})
    good, bad = (
        asyncio.run(check(Trial(goal="", answer=text, records=(), workspace=project)))
        for text in (GOOD["explanation"], "Because.")
    )
    assert (good.passed, good.value) == (True, 1.0)
    assert (bad.passed, bad.reason) == (
        False,
        "the answer lacks the sections ## In short, ## How it works, ## Where to look",
    )
    with pytest.raises(UsageError, match="there is no answer form 'essay'"):
        parse_check({"answer_form": "essay"})


def test_bounds_of_length_are_allowed_themselves(project: Path) -> None:
    """Exactly so many words are no issue, and one more is."""
    brief, explanation = CONTRACTS["brief"], GOOD["explanation"]
    for first, rest, issues in ((60, 90, 0), (61, 89, 1), (60, 91, 1)):
        assert len(brief.issues("word " * first + "\n\n" + "word " * rest, project)) == issues
    for words, issues in ((60, 0), (61, 1)):
        answer = explanation.replace("One constant bounds all.", "word " * words)
        assert len(CONTRACTS["explanation"].issues(answer, project)) == issues


def test_a_form_with_sections_names_them_in_order() -> None:
    """Whoever answers is given the headings; a form without any asks for none."""
    assert CONTRACTS["research"].instructions.endswith(
        "Use exactly these headings, in this order: ## Findings, ## How sure, ## Open."
    )
    assert "Use exactly these headings" not in CONTRACTS["brief"].instructions
