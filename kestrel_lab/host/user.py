"""Name and home folder of the user; the user of a container may have neither."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def user_name() -> str:
    """Return the login name; where the user has none, `user` and their number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # In a container the user's number may have no entry in the password database.
        return f"user{os.getuid()}"


def home_folder() -> Path:
    """Return the home folder, or one that does not exist for a user who has none, as in `passwd`."""
    try:
        return Path.home()
    except (RuntimeError, KeyError):
        # As above; a folder that does not exist is one that nothing lies in.
        return Path("/nonexistent")


def decider(name: str) -> str:
    """Return who decided, for a sentence: the name of one's own account, such as root, says nothing."""
    return "the user" if name == user_name() else name
