"""Callbacks for training that counts policy updates."""

from stable_baselines3.common.callbacks import ProgressBarCallback


class UpdateProgressBar(ProgressBarCallback):
    """Counts policy updates, where SB3's own counts steps of the environments."""

    def _on_step(self) -> bool:
        self.pbar.update(1)
        return True
