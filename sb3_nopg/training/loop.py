"""
The loop around the policy updates: what to log and whom to call after each, when to stop, and which of the policies that were
passed to keep. The update itself is :meth:`sb3_nopg.NOPG.train`.
"""

import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.fingerprint import dataset_fingerprint
from sb3_nopg.prediction.judge import Judgement
from sb3_nopg.training.attached_data import LearnsFromData
from sb3_nopg.training.callbacks import UpdateProgressBar
from sb3_nopg.training.course import Candidate, Course
from sb3_nopg.training.distributed import AgreedCallback
from sb3_nopg.training.keeping import CHECK_INTERVAL, BestSoFar, load_parameters, parameters_of
from sb3_nopg.training.log import record_candidates, record_support
from sb3_nopg.training.offline_env import offline_vec_env

if TYPE_CHECKING:
    from sb3_nopg.data.dataset import TransitionDataset

SelfTrainingLoop = TypeVar("SelfTrainingLoop", bound="TrainingLoop")


class TrainingLoop(LearnsFromData):
    """A part of :class:`sb3_nopg.NOPG`, in a file of its own."""

    if TYPE_CHECKING:
        final_std_scale: float | None
        patience: int | None

        candidates: tuple[Candidate, ...]
        judgement: Judgement | None
        learned_from: str | None

        @property
        def training_data(self) -> TransitionDataset: ...
        def estimated_return(self) -> float: ...
        def train(self, gradient_steps: int = 1, batch_size: int = 0) -> None: ...

    def dump_logs(self) -> None:
        """Write the log, with what is worth computing only now and then."""
        states = th.from_numpy(np.array(self.start_states)).to(self.device)
        with th.no_grad():
            if self.transitions == "samples":
                problem = self.prepared_problem()
                record_support(self.logger, problem, self._policy_actions(problem))
                states = problem.queries.states
            std = self.policy.action_distribution(states)[1]
        if std is not None:
            self.logger.record("train/policy_std", float(std.mean()))
        elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("time/updates_per_second", (self.num_timesteps - self._num_timesteps_at_start) / elapsed)
        self.logger.record("time/time_elapsed", int(elapsed), exclude="tensorboard")
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        self.logger.dump(step=self.num_timesteps)

    def learn(
        self: SelfTrainingLoop,
        total_timesteps: int = 500,
        callback: MaybeCallback = None,
        log_interval: int = 10,
        tb_log_name: str = "NOPG",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfTrainingLoop:
        """
        Improve the policy on the data.

        :param total_timesteps: number of policy updates
        :param callback: called after every update
        :param log_interval: updates between two entries of the log
        :param tb_log_name: name of the run for tensorboard
        :param reset_num_timesteps: False to continue counting where training stopped
        :param progress_bar: show one
        :return: the model
        """
        if self.transitions == "model":
            _ = self.estimator
        else:
            self.prepared_problem()
        if self.keep == "best_heldout" and self.held_out_data is None:
            # A model's file does not hold the data that it was checked on.
            raise InputError(
                "held_out", "the loaded model has no data to check on", "Set model.held_out and call set_dataset()"
            )
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        # Callbacks written for environments look for these.
        new_obs, dones = self._last_obs, np.zeros(self.n_envs, dtype=bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        callback.on_training_start(locals(), globals())
        self.learned_from = dataset_fingerprint(self.training_data)
        if self.transitions == "model":
            self._begin_course(total_timesteps - self.num_timesteps)
        best = self._best = self._best_at_the_start()
        while self.num_timesteps < total_timesteps:
            self._make_update(total_timesteps)
            callback.update_locals(locals())
            # Before the callbacks, so that a checkpoint knows of it.
            gives_up = self._gives_up(best, last=self.num_timesteps >= total_timesteps)
            if not callback.on_step() or gives_up:
                break
            if log_interval and self.num_timesteps % log_interval == 0:
                self.dump_logs()
        best.restore(self.policy)
        if self._course is not None:
            self._finish_course(self._course, best_is_kept=self.keep == "best_heldout")
            if log_interval and self.candidates:
                self.dump_logs()
        else:
            # The last update may have been the one too many.
            self._policy_actions(self.prepared_problem())
        callback.on_training_end()
        del new_obs, dones, infos  # callbacks have seen them; nothing else uses them
        return self

    def _begin_course(self, n_updates: int) -> None:
        """A course of so many updates, or the rest of one that was broken off."""
        if self._course is not None:
            self._course_before, self._course = self._course.state(), None
        if self.course(n_updates).is_over and n_updates > 0:
            # All of it was made but for the choice.
            self._finish_course(self.course(0), best_is_kept=self.keep == "best_heldout")
            self.course(n_updates)

    def _finish_course(self, course: Course, *, best_is_kept: bool) -> None:
        """Choose among the candidates. A further training that this asks for goes to the log, not to the count of updates."""
        kept, std_scale = parameters_of(self.policy), float(self.policy.std_scale)
        candidates = course.finish(lambda n_updates: self.train(n_updates))
        if candidates and not best_is_kept:
            self.candidates, self.judgement = candidates, course.judgement
            # The chosen one may be of an earlier time, when σ was larger.
            self.policy.set_std_scale(std_scale)
            record_candidates(self.logger, candidates, course.judgement)
        else:
            load_parameters(self.policy, kept)
        self._course = None

    def _best_at_the_start(self) -> BestSoFar:
        best = self._best_before or BestSoFar(keep_parameters=self.keep == "best_heldout", update=self.num_timesteps)
        self._best_before = None
        if best.score is None and self._watches_score:
            # Where training starts may be the best place of all.
            self._look_at_score(best)
        return best

    def _make_update(self, total_timesteps: int) -> None:
        self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
        if self.final_std_scale is not None:
            done_after = (self.num_timesteps + 1) / total_timesteps
            self.policy.set_std_scale(1.0 + (self.final_std_scale - 1.0) * done_after)
        self.train()
        self.num_timesteps += 1

    def score(self) -> float:
        """What policies are compared by: the held-out return, or Ĵ where nothing is held out."""
        return self.estimated_return() if self.held_out_data is None else self.held_out_return()

    def _gives_up(self, best: BestSoFar, last: bool) -> bool:
        """Look at the held-out return now and then, remember the best, and tell whether patience has run out."""
        interval = CHECK_INTERVAL if self.patience is None else min(CHECK_INTERVAL, self.patience)
        if not self._watches_score or not (self.num_timesteps % interval == 0 or last):
            return False
        self._look_at_score(best)
        return self.patience is not None and self.num_timesteps - best.update >= self.patience

    @property
    def _watches_score(self) -> bool:
        return self.held_out_data is not None or self.patience is not None

    def _look_at_score(self, best: BestSoFar) -> None:
        score = self.score()
        if self.held_out_data is not None:
            self.logger.record("train/held_out_return", score)
        best.look(score, self.num_timesteps, self.policy)

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        assert self.env is not None
        assert self.dataset is not None
        # SB3 resets the environment here. A stand-in takes the call: the real one may be a rig with its motor on.
        env = self.env
        self.env = offline_vec_env(self.observation_space, self.action_space, self.dataset.observations[0], env.num_envs)
        try:
            total_timesteps, _ = super()._setup_learn(total_timesteps, None, reset_num_timesteps, tb_log_name)
        finally:
            self.env = env
        return total_timesteps, self._init_callback(callback, progress_bar)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        if progress_bar and self.processes.is_main:
            given: list[Any] = callback if isinstance(callback, list) else [callback]
            given = [part if isinstance(part, BaseCallback) else ConvertCallback(part) for part in given]
            callback = [*given, UpdateProgressBar()]
        own = super()._init_callback(callback)
        if not self.processes.several:
            return own
        agreed = AgreedCallback(own, self.processes)
        agreed.init_callback(self)
        return agreed
