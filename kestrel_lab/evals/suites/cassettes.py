"""Cassettes of a suite: model calls are recorded for each scenario, in a folder beside the suite."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast, get_args
from weakref import WeakValueDictionary

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.suite import CassetteMode, Suite
from kestrel_lab.models.cassettes.cassette import Cassette, RecordedTrial, file_for
from kestrel_lab.models.cassettes.recorder import TrialCassette
from kestrel_lab.models.cassettes.scrub import Scrubber

FOLDER: Final = "cassettes"
"""The folder beside the suite file; in it is a folder for each suite."""


def with_cassette(suite: Suite, mode: str | None, folder: str | Path | None) -> Suite:
    """Return the suite with another mode or folder of cassettes, where they are given; raises `UsageError`
    for an unknown mode.
    """
    use = suite.cassette
    if mode is not None:
        use = use.model_copy(update={"mode": checked_mode(mode)})
    if folder is not None:
        use = use.model_copy(update={"folder": Path(folder).absolute()})
        if use.mode == "off" and mode is None:
            raise UsageError(
                f"cassettes in {folder} are not used while cassettes are off: choose record, replay or "
                "refresh"
            )
    return suite if use == suite.cassette else suite.model_copy(update={"cassette": use})


def default_folder(suite_file: Path, name: str) -> Path:
    """Return the folder of a suite's recordings, unless the suite names another."""
    return suite_file.absolute().parent / FOLDER / file_for(Path(), name).stem


def checked_mode(mode: str) -> CassetteMode:
    """Return `mode`; raises `UsageError` for an unknown one."""
    if mode not in (modes := get_args(CassetteMode)):
        raise UsageError(
            f"a cassette is for {', '.join(modes[1:])}, or off, not {mode!r}; {did_you_mean(mode, modes)}"
        )
    return cast("CassetteMode", mode)


@dataclass(frozen=True, slots=True)
class Recordings:
    """The cassettes of a suite. Trials of one scenario share one."""

    folder: Path
    mode: CassetteMode
    scrub: Scrubber
    _open: WeakValueDictionary[str, Cassette]
    _lock: threading.Lock

    @classmethod
    def of(cls, suite: Suite, env: Mapping[str, str], *, needed: bool = True) -> Recordings | None:
        """Return the recordings of the suite, if it uses any; secrets in `env` and in this process's
        environment are left out of them.

        Raises `UsageError` when there is nothing to replay, if it is `needed`: a script plays without.
        """
        use = suite.cassette
        if use.mode == "off":
            return None
        folder = (
            use.folder
            if use.folder is not None
            else default_folder(suite.path or Path("suite.yaml"), suite.name)
        )
        if use.mode == "replay" and needed and not folder.is_dir():
            raise UsageError(
                f"there are no recordings in {folder}: make them with --cassette record, or name their "
                "folder with --cassettes"
            )
        return cls(
            folder,
            use.mode,
            Scrubber.of({**os.environ, **env}, use.volatile),
            WeakValueDictionary(),
            threading.Lock(),
        )

    def tape(self, scenario: str, config: str, epoch: int, workspace: Path) -> TrialCassette:
        """Return the tape of one trial."""
        with self._lock:
            cassette = self._open.get(scenario)
            if cassette is None:
                cassette = self._open[scenario] = Cassette(file_for(self.folder, scenario), self.scrub)
        return TrialCassette(
            cassette,
            self.mode,
            RecordedTrial(config=config, epoch=epoch),
            scrub=self.scrub,
            workspace=workspace,
        )
