"""A lab that runs are imported into, closed afterwards: what is left open is open until the process ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrel_lab.lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab without settings."""
    with Lab(home=tmp_path / "home", env={}) as opened:
        yield opened
