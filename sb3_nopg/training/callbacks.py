"""Callbacks for training that counts policy updates."""

import os
import pathlib
from contextlib import ExitStack
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count
from sb3_nopg.common.progress import Advance, phase


class UpdateProgressBar(BaseCallback):
    """Counts policy updates in the display of phases, where SB3's own bar counts steps of the environments."""

    def __init__(self) -> None:
        super().__init__()
        self._open = ExitStack()
        self._advance: Advance | None = None

    def _on_training_start(self) -> None:
        n_updates = self.locals["total_timesteps"] - self.model.num_timesteps
        self._advance = self._open.enter_context(phase("candidates", n_updates))

    def _on_step(self) -> bool:
        assert self._advance is not None
        self._advance()
        if self.num_timesteps >= self.locals["total_timesteps"]:
            self._open.close()
        return True

    def _on_training_end(self) -> None:
        self._open.close()


class NOPGCheckpointCallback(BaseCallback):
    """
    Keeps one file up to date from which :meth:`sb3_nopg.NOPG.resume` continues a run that was interrupted.

    The file before stays until the new one is complete, so there is a whole one at any time after the first.

    :param path: of the file
    :param interval: updates between two checkpoints; another one is written at the end
    :param verbose: 1 to tell of every checkpoint
    """

    model: Any

    def __init__(self, path: str | os.PathLike[str], interval: int = 50, verbose: int = 0):
        super().__init__(verbose)
        check_count("interval", interval, fix="Give the updates between two files")
        self.path, self.interval = pathlib.Path(path), interval
        if self.path.is_dir():
            raise InputError("path", f"{path} is a folder", "Give the name of a file, such as run.ckpt")
        self._written_at = -1

    def _init_callback(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _on_step(self) -> bool:
        if self.num_timesteps % self.interval == 0:
            self._write()
        return True

    def _on_training_end(self) -> None:
        if self._written_at != self.num_timesteps:
            self._write()

    def _write(self) -> None:
        self.model.save_checkpoint(self.path)
        self._written_at = self.num_timesteps
        if self.verbose > 0:
            self.logger.log(f"Checkpoint of update {self.num_timesteps} in {self.path}")
