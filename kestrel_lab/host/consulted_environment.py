"""An environment that knows which of its variables were looked at, so that a choice can be made anew when one
of them has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class ConsultedEnvironment(Mapping[str, str]):
    """The variables of another mapping as they are now."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._consulted: dict[str, str | None] = {}
        """What each variable was when it was looked at; `None` if it was not set."""

    def __getitem__(self, name: str) -> str:
        value = self._env.get(name)
        self._consulted.setdefault(name, value)
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        for name in self._env:
            self._consulted.setdefault(name, self._env.get(name))
            yield name

    def __len__(self) -> int:
        return len(self._env)

    @property
    def changed(self) -> bool:
        """Whether a variable that was looked at is another one now."""
        return any(self._env.get(name) != value for name, value in self._consulted.items())
