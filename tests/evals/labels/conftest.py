"""A suite of trials that were really run, to be labelled."""

import asyncio
import shutil
from pathlib import Path

import pytest
from greetings import suite

from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel


@pytest.fixture(scope="session")
def _ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with twelve trials."""
    home = tmp_path_factory.mktemp("labels") / "home"
    lab = Lab(home=home, env={})
    asyncio.run(run_suite(lab, suite(12), configs={"c": ScriptedModel(["hello"])}))
    lab.close()
    return home


@pytest.fixture
def lab(_ran: Path, tmp_path: Path):
    """A lab with a copy of that home."""
    shutil.copytree(_ran, tmp_path / "home")
    made = Lab(home=tmp_path / "home", env={})
    yield made
    made.close()


@pytest.fixture
def runs(lab: Lab) -> list[str]:
    """The runs of the trials, in the order of the scenarios."""
    rows = sorted(stored_trials(lab.store), key=lambda row: int(row.scenario[1:]))
    return [row.run for row in rows]
