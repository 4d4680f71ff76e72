"""An algorithm whose updates a :class:`.Training` makes: between Stable-Baselines3's loop and what is known of the data."""

import sys
import time
from abc import abstractmethod
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import array_fingerprint, dataset_fingerprint, parameter_fingerprint
from sb3_nopg.kernels.bandwidth import Bandwidths
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.prediction.estimator import Estimator
from sb3_nopg.prediction.evaluation import PolicyEvaluation
from sb3_nopg.prediction.judge import Judgement
from sb3_nopg.prediction.questions import Questions
from sb3_nopg.training.candidates import Candidate
from sb3_nopg.training.distributed import AgreedCallback, check_same_everywhere
from sb3_nopg.training.log import record_now_and_then
from sb3_nopg.training.resumable import ResumableAlgorithm
from sb3_nopg.training.training import Training, TrainingOptions

# What belongs to the data, or can be prepared again from it.
_UNSAVED = ("dataset", "_training", "distributed", "processes")


class TrainedAlgorithm(Questions, ResumableAlgorithm):
    """
    Its training belongs to data and settings: where these change, who derives from it makes another one. The settings that
    have a say in an update are looked up at each, since a user may change them on the way.
    """

    policy: NOPGPolicy
    held_out: float | TransitionDataset | None
    initial_states: np.ndarray | None
    horizon: str | float
    keep: str
    patience: int | None
    final_std_scale: float | None
    candidates: tuple[Candidate, ...]
    judgement: Judgement | None
    learned_from: str | None
    _training: Training | None
    # How often draws have been made again.
    _noise_epoch: int

    @abstractmethod
    def set_dataset(self, dataset: TransitionDataset) -> None:
        """
        :param dataset: to learn from, in place of any before
        """

    @property
    def _attached(self) -> Training:
        if self._training is None:
            raise InputError(
                "dataset",
                "there is no data to learn from, and a model's file holds none",
                "Pass dataset=… to NOPG() or load(), or call set_dataset() or load_replay_buffer()",
            )
        check_same_everywhere(self.processes, self.dataset, self._what_must_be_the_same)
        return self._training

    def _what_must_be_the_same(self) -> dict[str, Any]:
        """In all processes that train the model together."""
        assert self.dataset is not None
        assert self.bandwidths is not None
        return {
            "dataset": dataset_fingerprint(self.dataset),
            "policy": parameter_fingerprint(self.policy),
            "bandwidths": array_fingerprint([self.bandwidths.state, self.bandwidths.action, self.bandwidths.next_state]),
            "num_timesteps": self.num_timesteps,
            **self.settings(),
        }

    def _up_to_date(self) -> Training:
        """With policy and options as they are now: a user may have changed them."""
        training = self._attached
        training.policy = self.policy
        training.options = TrainingOptions(self.horizon, self.keep == "best_heldout", self.patience)
        return training

    @property
    def estimator(self) -> Estimator:
        """All that follows from data and settings, and nothing of the policy."""
        return self._attached.estimator

    @property
    def held_out_data(self) -> TransitionDataset | None:
        """The data that the policy is checked on."""
        held_out = None if self._training is None else self._training.held_out
        return None if held_out is None else held_out.dataset

    @property
    def bandwidths(self) -> Bandwidths | None:
        """Of the paper's kernels; None without data."""
        return None if self._training is None else self._training.estimator.bandwidths

    def _fixed_data(self) -> TransitionDataset | None:
        return self.estimator.starts.data

    def _begin(self, total_timesteps: int) -> None:
        self.learned_from = dataset_fingerprint(self.training_data)
        n_left = total_timesteps - self.num_timesteps
        self._remember(self._up_to_date().begin(n_left, self._n_updates, self.num_timesteps, self.train, self.logger))

    def _make_update(self, total_timesteps: int) -> None:
        if self.final_std_scale is not None:
            done_after = (self.num_timesteps + 1) / total_timesteps
            self.policy.set_std_scale(1.0 + (self.final_std_scale - 1.0) * done_after)
        self.train()

    def train(self, gradient_steps: int = 1, batch_size: int = 0) -> None:
        """
        Make policy updates with the full gradient on all of the data.

        :param gradient_steps: how many
        :param batch_size: accepted for SB3's sake; the gradient is never that of a batch
        """
        self.policy.set_training_mode(True)
        # From now on the parameters belong to the normalisation they were learned with, be it none.
        self.policy.normalization_fitted.fill_(1.0)
        self._update_learning_rate(self.policy.optimizer)
        for number in range(gradient_steps):
            rate = self.lr_schedule(self._current_progress_remaining)
            self._up_to_date().update(gradient_steps - number, self._n_updates, rate, self.logger)
            self._noise_epoch = self._attached.estimator.epoch
            self._n_updates += 1
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _wants_to_stop(self, *, last: bool) -> bool:
        return self._up_to_date().wants_to_stop(self.num_timesteps, last, self.logger)

    def _finish(self, *, logs: bool) -> None:
        candidates = self._up_to_date().finish(self.train, self.logger)
        self._remember(candidates)
        if logs and candidates:
            self.dump_logs()

    def _remember(self, candidates: tuple[Candidate, ...]) -> None:
        if candidates:
            self.candidates, self.judgement = candidates, self._attached.judgement

    def dump_logs(self) -> None:
        """Write the log, with what is worth computing only now and then."""
        elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        n_updates = self.num_timesteps - self._num_timesteps_at_start
        record_now_and_then(self.logger, self.evaluation, n_updates, elapsed)
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        own = super()._init_callback(callback, progress_bar)
        if not self.processes.several:
            return own
        agreed = AgreedCallback(own, self.processes)
        agreed.init_callback(self)
        return agreed

    @property
    def evaluation(self) -> PolicyEvaluation:
        """Answers every question about the policy, at its current parameters."""
        return self._up_to_date().evaluation

    def held_out_return(self) -> float:
        """Ĵ on the held-out data: what the policy is worth by transitions that it was not optimised on."""
        if self._attached.held_out is None:
            raise InputError("held_out", "no data were held out", "Build the model with held_out=0.2 or other data")
        return self._up_to_date().score()

    def score(self) -> float:
        """What policies are compared by: the held-out return, or Ĵ where nothing is held out."""
        return self._up_to_date().score()

    def run_state(self) -> dict[str, Any]:
        """What :meth:`save` leaves out, for a checkpoint."""
        return {"start_states": th.tensor(self.start_states), **self._attached.state()}

    def restore_run(self, dataset: TransitionDataset, state: dict[str, Any]) -> None:
        """
        :param dataset: that the run learned from
        :param state: of :meth:`run_state`
        """
        given = self.initial_states
        if given is None and dataset.episode_starts is None:
            # They came from an environment, which may not be at hand any more.
            self.initial_states = state["start_states"].cpu().numpy()
        try:
            self.set_dataset(dataset)
        finally:
            self.initial_states = given
        self._attached.restore(state)

    def _excluded_save_params(self) -> list[str]:
        given_data = ["held_out"] if isinstance(self.held_out, TransitionDataset) else []
        return [*super()._excluded_save_params(), *_UNSAVED, *given_data]
