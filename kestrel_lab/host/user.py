"""Who runs this process, for the record and for the folders that are theirs; a container's user may have neither name nor home."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def user_name() -> str:
    """The login name; where the user has none, `user` and their number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"user{os.getuid()}"


def home_folder() -> Path:
    """The home folder; for a user who has none one that is not there, as in `passwd`."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        return Path("/nonexistent")
