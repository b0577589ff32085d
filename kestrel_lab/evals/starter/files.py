"""The files of a first suite, made for a folder by its language, its README and the forge it is on."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from kestrel_lab.core.sanitize import escape_surrogates, one_line, shown_path
from kestrel_lab.models.providers import PROVIDERS

if TYPE_CHECKING:
    from jinja2 import Environment

Forge = Literal["github", "gitlab", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """A small program with a mistake, in one language."""

    file: str
    broken: str
    wrong: str
    right: str
    test_file: str
    test: str
    command: tuple[str, ...]
    """Runs the test; empty where nothing here can."""


_PYTHON: Final = Bug(
    file="mean.py",
    broken="def mean(values):\n    return sum(values) / (len(values) + 1)\n",
    wrong="(len(values) + 1)",
    right="len(values)",
    test_file="test_mean.py",
    test="import unittest\n\nfrom mean import mean\n\n\nclass TestMean(unittest.TestCase):\n"
    "    def test_two(self):\n        self.assertEqual(mean([1, 3]), 2)\n",
    command=("python", "-m", "unittest", "-q"),
)
_PYTEST: Final = replace(
    _PYTHON,
    test="from mean import mean\n\n\ndef test_two():\n    assert mean([1, 3]) == 2\n",
    command=("python", "-m", "pytest", "-q"),
)
_JAVASCRIPT: Final = Bug(
    file="mean.js",
    broken="exports.mean = (values) => values.reduce((a, b) => a + b, 0) / (values.length + 1);\n",
    wrong="(values.length + 1)",
    right="values.length",
    test_file="mean.test.js",
    test='const test = require("node:test");\nconst assert = require("node:assert");\n'
    'const { mean } = require("./mean.js");\n\ntest("two", () => assert.equal(mean([1, 3]), 2));\n',
    command=("node", "--test"),
)
_GO: Final = Bug(
    file="mean.go",
    broken="package mean\n\nfunc Mean(values []float64) float64 {\n\ttotal := 0.0\n"
    "\tfor _, value := range values {\n\t\ttotal += value\n\t}\n"
    "\treturn total / float64(len(values)+1)\n}\n",
    wrong="float64(len(values)+1)",
    right="float64(len(values))",
    test_file="mean_test.go",
    test='package mean\n\nimport "testing"\n\nfunc TestTwo(t *testing.T) {\n'
    "\tif Mean([]float64{1, 3}) != 2 {\n\t\tt.Fail()\n\t}\n}\n",
    command=("go", "test", "mean.go", "mean_test.go"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Project:
    """What is known of a folder."""

    title: str
    readme: str
    """The beginning of its README."""
    bug: Bug
    forge: Forge

    @classmethod
    def at(cls, folder: Path) -> Project:
        """Look at a folder, which may be empty; nothing in it is run."""
        names = ("README.md", "README.rst", "README")
        found = next((folder / name for name in names if (folder / name).is_file()), None)
        text = "" if found is None else found.read_text(encoding="utf-8", errors="replace")[:1_500]
        heading = re.search(r"^#\s+(.+?)\s*#*$", text, re.MULTILINE)
        title = (
            one_line(
                re.sub(r"<[^>]*>|[`*]", "", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])), 80
            ).strip()
            if heading
            else ""
        )
        if not title:
            title = one_line(folder.resolve().name, 80) or "project"
            text = f"# {title}\n\n{text}"
        text = escape_surrogates(text)
        return cls(title=title, readme=text, bug=_bug_for(folder), forge=_forge_of(folder))


def _bug_for(folder: Path) -> Bug:
    """Return a mistake in the language of a folder, with tests as they are usual there, if they run here."""
    if (folder / "go.mod").is_file():
        bug = _GO
    elif (folder / "package.json").is_file() and not (folder / "pyproject.toml").is_file():
        bug = _JAVASCRIPT
    else:
        # `python` of a check is the one that runs this.
        return _PYTEST if _uses_pytest(folder) and find_spec("pytest") else _PYTHON
    return bug if shutil.which(bug.command[0]) else replace(bug, command=())


def _uses_pytest(folder: Path) -> bool:
    settings = folder / "pyproject.toml"
    text = settings.read_text(encoding="utf-8", errors="replace") if settings.is_file() else ""
    return "pytest" in text or any((folder / name).is_file() for name in ("pytest.ini", "tests/conftest.py"))


def _forge_of(folder: Path) -> Forge:
    if (folder / ".gitlab-ci.yml").is_file():
        return "gitlab"
    config = folder / ".git" / "config"
    remotes = config.read_text(encoding="utf-8", errors="replace") if config.is_file() else ""
    return "gitlab" if "gitlab" in remotes else "github"


def suggested_model(env: Mapping[str, str]) -> str:
    """Return the small model of the first provider whose key is there, else of the first one."""
    known = [one for one in PROVIDERS if one.model]
    return next((one for one in known if one.key(env)), known[0]).default


@dataclass(frozen=True, kw_only=True, slots=True)
class StarterFiles:
    """What was written, and what was there before and is left as it was."""

    root: Path
    suite: Path
    model: str
    written: tuple[Path, ...]
    left: tuple[Path, ...]

    @property
    def next_commands(self) -> list[str]:
        """What to type now."""
        suite, place = shown_path(self.suite), shown_path(self.suite.parent)
        tops = [self.root / one.relative_to(self.root).parts[0] for one in self.written]
        names = " ".join(dict.fromkeys(map(shown_path, tops)))
        return [
            f"kestrel eval run {suite} --report {place}/out/first.html",
            f"kestrel eval run {suite} --model {self.model} --cassette record",
            f"git add {names or place} && git commit -m 'A first suite'",
        ]

    def __repr__(self) -> str:
        lines = [f"wrote {shown_path(path)}" for path in self.written]
        lines += [f"left as it is: {shown_path(path)}, which was there" for path in self.left]
        about = (
            "measures the three scenarios in seconds, without a key",
            "the same with a model, whose answers are recorded; set its key first",
            "from then on CI compares each commit with an earlier one",
        )
        steps = [f"  {line}\n      {why}" for line, why in zip(self.next_commands, about, strict=True)]
        return "\n".join([*lines, "", "Next:", *steps])


def write_starter(root: Path, *, folder: str, model: str, forge: Forge, chosen: bool) -> StarterFiles:
    """Write a suite, its example answers, a notebook, `kestrel.toml` and a file for CI, where they are
    missing.

    `folder` is that of the suite, `chosen` whether the model is one that somebody named. What cannot be
    written leaves nothing behind; raises its `OSError`.
    """
    project, place = Project.at(root), root / folder
    given = {
        "folder": folder,
        "model": model,
        "chosen": chosen,
        "title": project.title,
        "readme": project.readme,
        "bug": project.bug,
    }

    def filled(name: str) -> str:
        return _templates().get_template(name).render(given)

    suite = place / "first.suite.yaml"
    texts = {
        suite: filled("suite.yaml"),
        place / "first.script.yaml": filled("script.yaml"),
        place / "first.ipynb": _notebook(folder),
        place / ".gitignore": "out/\n",
        root / "kestrel.toml": filled("kestrel.toml"),
    }
    if forge == "github":
        texts[root / ".github" / "workflows" / "agents.yml"] = filled("github.yaml")
    elif forge == "gitlab":
        texts[root / ".gitlab-ci.yml"] = filled("gitlab.yaml")
    written, left = _write_missing(texts)
    return StarterFiles(root=root, suite=suite, model=model, written=written, left=left)


def _write_missing(texts: Mapping[Path, str]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the files that were written, and those that were there; an `OSError` leaves none behind."""
    written: list[Path] = []
    left: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                # An existing file is never overwritten, nor is a link followed.
                with path.open("x", encoding="utf-8") as file:
                    written.append(path)
                    file.write(text)
            except FileExistsError:
                left.append(path)
    except OSError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return tuple(written), tuple(left)


@cache
def _templates() -> Environment:
    # Loading jinja2 takes some 30 ms, too long for an import of this package.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(  # YAML and TOML, in which values are quoted as JSON  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _notebook(folder: str) -> str:
    find = f'(Path("first.suite.yaml"), Path({folder!r}, "first.suite.yaml"))'
    cells = [
        ("markdown", "# A first suite\n\nThree scenarios are run with example answers, which need no key."),
        (
            "code",
            "from pathlib import Path\n\nfrom kestrel_lab import Lab\n\n"
            f"suite = next(path for path in {find} if path.exists())\n"
            "lab = Lab()\nresult = await lab.eval(suite)\nresult",
        ),
        ("code", 'result.report(suite.parent / "out" / "first.html")'),
        ("markdown", 'With a model: `await lab.eval(suite, configs={"mine": "openai/gpt-5-mini"})`.'),
    ]
    drawn: list[dict[str, Any]] = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text}
        | ({"execution_count": None, "outputs": []} if kind == "code" else {})
        for number, (kind, text) in enumerate(cells)
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": drawn, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1) + "\n"
