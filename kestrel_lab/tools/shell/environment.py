"""Environment of commands: a short list of variables, and nothing that looks like a secret."""

import os
import re
import sys
from collections.abc import Mapping

_PASSED = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "SSL_CERT_FILE",
    }
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|SESSION|PRIVATE", re.IGNORECASE)
_SET = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
"""Prevents coloured output and waits for an answer."""


def looks_secret(name: str) -> bool:
    """Return whether a variable of that name is likely to hold a secret."""
    return _SECRET.search(name) is not None


def clean_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of commands. In a virtual environment, `python` means the Python of this
    process.

    This is no protection: a command outside of a sandbox can still read the files of its user.
    """
    passed = {
        name: value
        for name, value in source.items()
        if (name in _PASSED or name.startswith("LC_")) and not _SECRET.search(name)
    }
    if sys.prefix != sys.base_prefix:
        passed["PATH"] = os.pathsep.join([os.path.join(sys.prefix, "bin"), passed.get("PATH", os.defpath)])
    return passed | _SET
