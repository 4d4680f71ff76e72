"""The one loop around the updates of everything that learns from fixed data: whom to call after each, and when to stop."""

from typing import Any, Protocol, TypeVar

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_nopg.data.transitions import Transitions
from sb3_nopg.training.callbacks import UpdateProgressBar
from sb3_nopg.training.offline_env import offline_vec_env

SelfAlgorithm = TypeVar("SelfAlgorithm", bound="FixedDataAlgorithm")


class Learner(Protocol):
    """Whoever makes updates on fixed data; an SB3 algorithm or not."""

    num_timesteps: int

    def _make_update(self, total_timesteps: int) -> None: ...

    def _wants_to_stop(self, *, last: bool) -> bool: ...

    def dump_logs(self) -> None: ...


def make_updates(learner: Learner, total_timesteps: int, callback: BaseCallback, log_interval: int) -> None:
    """
    :param learner: that goes on from where it is
    :param total_timesteps: that ``num_timesteps`` reaches unless somebody wants to stop
    :param callback: called after every update
    :param log_interval: updates between two entries of the log, 0 for none
    """
    while learner.num_timesteps < total_timesteps:
        learner._make_update(total_timesteps)
        learner.num_timesteps += 1
        # Before the callbacks, so that a checkpoint knows of it.
        stops = learner._wants_to_stop(last=learner.num_timesteps >= total_timesteps)
        if not callback.on_step() or stops:
            break
        if log_interval and learner.num_timesteps % log_interval == 0:
            learner.dump_logs()


class FixedDataAlgorithm(OffPolicyAlgorithm):
    """An off-policy algorithm that, where it has data, learns from them alone; without data it is as SB3 has it."""

    def _fixed_data(self) -> Transitions | None:
        """What it learns from; None to step an environment."""
        raise NotImplementedError

    def _begin(self, total_timesteps: int) -> None:
        """
        Before the first update.

        :param total_timesteps: that ``num_timesteps`` will reach
        """

    def _make_update(self, total_timesteps: int) -> None:
        self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
        self.train(gradient_steps=1, batch_size=self.batch_size)

    def _wants_to_stop(self, *, last: bool) -> bool:
        """
        :param last: whether no update is left
        """
        return False

    def _finish(self, *, logs: bool) -> None:
        """
        After the last update.

        :param logs: whether a log is kept
        """

    def learn(
        self: SelfAlgorithm,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "run",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfAlgorithm:
        """
        :param total_timesteps: updates on the data; steps of the environment where there are no data
        :param callback: called after every update
        :param log_interval: updates between two entries of the log
        :param tb_log_name: name of the run for tensorboard
        :param reset_num_timesteps: False to continue counting where training stopped
        :param progress_bar: show one
        :return: the model
        """
        if self._fixed_data() is None:
            return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        # Callbacks written for environments look for these.
        new_obs, dones = self._last_obs, np.zeros(self.n_envs, dtype=bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        callback.on_training_start(locals(), globals())
        self._begin(total_timesteps)
        make_updates(self, total_timesteps, callback, log_interval)
        self._finish(logs=bool(log_interval))
        callback.on_training_end()
        del new_obs, dones, infos  # callbacks have seen them; nothing else uses them
        return self

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        env, data = self.env, self._fixed_data()
        if data is None:
            return super()._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar)
        assert env is not None
        # SB3 resets the environment here. A stand-in takes the call: the real one may be a rig with its motor on.
        self.env = offline_vec_env(self.observation_space, self.action_space, data.observations[0], env.num_envs)
        try:
            total_timesteps, _ = super()._setup_learn(total_timesteps, None, reset_num_timesteps, tb_log_name)
        finally:
            self.env = env
        return total_timesteps, self._init_callback(callback, progress_bar)

    def _init_callback(self, callback: MaybeCallback, progress_bar: bool = False) -> BaseCallback:
        if progress_bar and self._fixed_data() is not None:
            given: list[Any] = callback if isinstance(callback, list) else [callback]
            given = [part if isinstance(part, BaseCallback) else ConvertCallback(part) for part in given]
            return super()._init_callback([*given, UpdateProgressBar()])
        return super()._init_callback(callback, progress_bar)
