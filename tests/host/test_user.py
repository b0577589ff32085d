"""Name and home of a user who may have neither."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from kestrel_lab.host.user import home_folder, user_name


@pytest.mark.parametrize("error", [OSError, KeyError, RuntimeError])
def test_a_user_without_an_entry_has_a_number_and_no_home(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container; with one both are as the system has them."""

    def unknown(*_: object) -> str:
        raise error("no entry")

    assert (user_name(), home_folder()) == (getpass.getuser(), Path.home())
    if error is not RuntimeError:
        monkeypatch.setattr(getpass, "getuser", unknown)
        assert user_name() == f"user{os.getuid()}"
    if error is not OSError:
        monkeypatch.setattr(Path, "home", unknown)
        assert home_folder() == Path("/nonexistent")
