"""Caches of libraries, which a preview may read: lists of fonts, downloaded models, compiled functions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kestrel_lab.core.redaction import KEY_LIKE, SECRET_NAME
from kestrel_lab.host.user import home_folder
from kestrel_lab.tools.kernel.state.libraries import package_folders
from kestrel_lab.tools.sandbox.mounts import secret_places

_SEARCHED_BYTES = 64_000
"""Bytes of a file in a cache that are searched for keys."""
_OF_SYSTEM = frozenset({"fontconfig"})
"""Caches of libraries in C that Python's libraries use."""


@dataclass(frozen=True, slots=True)
class LibraryCaches:
    """Folders in which libraries keep what they can make again."""

    home: str
    """The user's folder of caches: in it, what has the name of an installed library."""
    named: tuple[str, ...]
    """Folders that variables of the environment name as caches."""
    secrets: tuple[str, ...]

    @classmethod
    def of_user(cls, env: Mapping[str, str] = os.environ) -> LibraryCaches:
        """Return the caches of this user."""
        home = env.get("XDG_CACHE_HOME") or str(home_folder() / ".cache")
        named = [
            os.path.realpath(folder)
            for name, folder in env.items()
            if "CACHE" in name
            and name != "XDG_CACHE_HOME"
            and os.path.isabs(folder)
            and len(Path(folder).parts) > 2
        ]
        secrets = [os.path.realpath(place) for place in secret_places(env)]
        return cls(os.path.realpath(home), tuple(named), tuple(secrets))

    def may_be_read(self, real: str, place: int) -> bool:
        """Return whether a real path is in a cache and holds no secret; the descriptor stands for it."""
        if not self._is_cached(real) or any(f"{real}/".startswith(f"{secret}/") for secret in self.secrets):
            return False
        words = re.sub(r"[^A-Za-z0-9]+", "_", Path(real).name)
        return not SECRET_NAME.search(words) and not _holds_key(place)

    def _is_cached(self, real: str) -> bool:
        if any(real.startswith(f"{folder}/") for folder in self.named):
            return True
        if not real.startswith(f"{self.home}/"):
            return False
        name = real.removeprefix(f"{self.home}/").partition("/")[0]
        return re.sub(r"[^a-z0-9]", "", name.lower()) in _OF_SYSTEM | _library_names(package_folders())


@cache
def _library_names(folders: tuple[str, ...]) -> frozenset[str]:
    """Return the names of installed libraries and the first word of each, such as `huggingface`."""
    names = set[str]()
    for folder in folders:
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            words = re.split(r"[^a-z0-9]+", name.lower())
            names |= {words[0], "".join(words)}
    return frozenset(names)


def _holds_key(place: int) -> bool:
    """Return whether the beginning of a file holds something like a key."""
    try:
        with open(f"/proc/self/fd/{place}", "rb") as file:
            content = file.read(_SEARCHED_BYTES)
    except IsADirectoryError:
        return False
    except OSError:
        return True
    return bool(KEY_LIKE.search(content.decode("utf-8", "replace")))
