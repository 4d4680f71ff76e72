"""DDPG and TD3 on a fixed data set, for comparison: their own updates, and never a step of an environment."""

from typing import Any, TypeVar

import numpy as np
from stable_baselines3 import DDPG, TD3
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback

from sb3_nopg.buffer import FixedReplayBuffer
from sb3_nopg.checks import check_not_normalized
from sb3_nopg.dataset import TransitionDataset
from sb3_nopg.offline_env import offline_vec_env

SelfLearner = TypeVar("SelfLearner", bound="FixedDataLearner")


class FixedDataLearner(OffPolicyAlgorithm):
    """
    An off-policy algorithm that, where it is given data, learns from them alone; without data it is as it was.

    :param dataset: the data; None to collect them as SB3 does
    :param arguments: of the algorithm
    """

    def __init__(self, *arguments: Any, dataset: TransitionDataset | None = None, **keywords: Any):
        self.dataset = dataset
        super().__init__(*arguments, **keywords)

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.dataset is None:
            return
        assert self.env is not None
        check_not_normalized(self.env)
        self.replay_buffer = FixedReplayBuffer(self.dataset, self.observation_space, self.action_space, self.device)  # type: ignore[arg-type]

    def learn(
        self: SelfLearner,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 100,
        tb_log_name: str = "run",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfLearner:
        """
        :param total_timesteps: gradient steps on the data; environment steps where there are no data
        :param callback: called after every step
        :param log_interval: gradient steps between two entries of the log
        :param tb_log_name: name of the run for tensorboard
        :param reset_num_timesteps: False to continue counting where training stopped
        :param progress_bar: show one
        :return: the model
        """
        # A loaded replay buffer that is fixed holds data too.
        if not isinstance(self.replay_buffer, FixedReplayBuffer):
            return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        env = self.env
        assert env is not None
        first = self.replay_buffer.dataset.observations[0]
        # SB3 resets the environment here; a stand-in takes the call.
        self.env = offline_vec_env(self.observation_space, self.action_space, first, env.num_envs)
        try:
            total_timesteps, _ = self._setup_learn(total_timesteps, None, reset_num_timesteps, tb_log_name)
        finally:
            self.env = env
        ticks = self._init_callback(callback, progress_bar)
        # Callbacks written for environments look for these.
        new_obs, dones = self._last_obs, np.zeros(self.n_envs, dtype=bool)
        infos: list[dict[str, Any]] = [{} for _ in range(self.n_envs)]
        ticks.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            self.train(gradient_steps=1, batch_size=self.batch_size)
            self.num_timesteps += 1
            ticks.update_locals(locals())
            if not ticks.on_step():
                break
            if log_interval and self.num_timesteps % log_interval == 0:
                self.dump_logs()
        ticks.on_training_end()
        del new_obs, dones, infos  # callbacks have seen them; nothing else uses them
        return self

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "dataset"]


class FixedDataDDPG(FixedDataLearner, DDPG):
    """DDPG, on data where it is given some."""


class FixedDataTD3(FixedDataLearner, TD3):
    """TD3, on data where it is given some."""
