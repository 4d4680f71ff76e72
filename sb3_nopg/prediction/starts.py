"""Where the task starts: as given, or as the data's episodes start, or as the environment does."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset

_N_RESETS = 16


@dataclass(frozen=True, eq=False)
class Starts:
    """
    :param given: states, (n₀, d_s), or one; None to look elsewhere
    :param data: the transitions
    :param env: reset only if neither of the others tells
    :param seed: of those resets
    :param processes: that all take the main one's answer
    """

    given: np.ndarray | None
    data: TransitionDataset
    env: VecEnv | None
    seed: int | None
    processes: Processes

    def check(self) -> None:
        """:raises InputError: where nothing tells, or what is given are no states"""
        if self.given is not None:
            check_states("initial_states", self.given, self.data.observation_dim)
        elif self.data.episode_starts is None and self.env is None:
            fix = "Pass initial_states=..., or a data set with episode_ids"
            raise InputError("initial_states", "neither given nor told by the data", fix)

    @property
    def are_those_of_episodes(self) -> bool:
        """Whether the data's episodes tell them."""
        return self.given is None and self.data.episode_starts is not None

    @cached_property
    def states(self) -> np.ndarray:
        """(n₀, d_s). Asks the environment, if at all, at the first call."""
        return self.processes.from_main(self._find)

    def _find(self) -> np.ndarray:
        if self.given is not None:
            return check_states("initial_states", self.given, self.data.observation_dim)
        if self.data.episode_starts is not None:
            return self.data.observations[self.data.episode_starts]
        assert self.env is not None
        if self.seed is not None:
            self.env.seed(self.seed)
        n_rounds = -(-_N_RESETS // self.env.num_envs)
        return np.concatenate([np.asarray(self.env.reset()) for _ in range(n_rounds)])
