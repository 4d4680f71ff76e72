"""DDPG and TD3 on a fixed data set, for comparison: their own updates, and never a step of an environment."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3 import DDPG, TD3
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import update_learning_rate

from sb3_nopg.common.checks import check_not_normalized
from sb3_nopg.common.numbers import check_number
from sb3_nopg.data.buffer import FixedReplayBuffer, check_observations_inside, spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.transitions import Transitions
from sb3_nopg.training.loop import FixedDataAlgorithm
from sb3_nopg.training.offline_env import offline_vec_env

# The paper's appendix, pendulum and cart-pole alike. It does not print the batch: 64 is that of the implementation it names.
_PAPER: dict[str, Any] = {"tau": 1e-3, "batch_size": 64, "policy_kwargs": {"net_arch": [50]}}


class FixedDataLearner(FixedDataAlgorithm):
    """
    An off-policy algorithm that, where it is given data, learns from them alone; without data it is as it was.

    :param dataset: the data; None to collect them as SB3 does
    :param critic_learning_rate: where it is to differ from ``learning_rate``, which is then the actor's
    :param arguments: of the algorithm
    """

    def __init__(
        self,
        *arguments: Any,
        dataset: TransitionDataset | None = None,
        critic_learning_rate: float | None = None,
        **keywords: Any,
    ):
        check_number("critic_learning_rate", critic_learning_rate, 0.0, np.inf, optional=True)
        self.dataset, self.critic_learning_rate = dataset, critic_learning_rate
        super().__init__(*arguments, **keywords)

    def _setup_model(self) -> None:
        super()._setup_model()
        if self.dataset is None:
            return
        assert self.env is not None
        check_not_normalized(self.env)
        check_observations_inside(self.dataset, self.observation_space)  # type: ignore[arg-type]
        self.replay_buffer = FixedReplayBuffer(self.dataset, self.observation_space, self.action_space, self.device)  # type: ignore[arg-type]

    def _update_learning_rate(self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> None:
        super()._update_learning_rate(optimizers)
        if self.critic_learning_rate is not None:
            # SB3 has one rate for both.
            critic: Any = self.policy.critic
            update_learning_rate(critic.optimizer, self.critic_learning_rate)

    def _fixed_data(self) -> Transitions | None:
        # A loaded replay buffer that is fixed holds data too.
        return self.replay_buffer.dataset if isinstance(self.replay_buffer, FixedReplayBuffer) else None

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "dataset"]


class FixedDataDDPG(FixedDataLearner, DDPG):
    """DDPG, on data where it is given some."""


class FixedDataTD3(FixedDataLearner, TD3):
    """TD3, on data where it is given some."""


def offline_ddpg(
    dataset: TransitionDataset,
    env: GymEnv | str | None = None,
    *,
    algorithm: type[FixedDataLearner] = FixedDataDDPG,
    seed: int | None = None,
    **changes: Any,
) -> Any:
    """
    DDPG with the paper's settings for learning offline: networks of 50 units, learning rates 10⁻², τ = 10⁻³.

        evaluation = BestEvaluation(evaluate, every=100)
        offline_ddpg(dataset, gamma=0.97, seed=0).learn(2000, evaluation)
        evaluation.best

    ``learn`` counts gradient steps. Use :class:`.BestEvaluation` to evaluate on the way, as the paper does.

    :param dataset: the data
    :param env: for its spaces, it is never stepped; None to take the spaces from the data
    :param algorithm: :class:`FixedDataDDPG` or :class:`FixedDataTD3`
    :param seed: of networks and batches
    :param changes: other arguments of the algorithm, such as ``gamma``, 0.97 on the pendulum and 0.99 elsewhere
    """
    if env is None:
        env = offline_vec_env(*spaces_of(dataset), dataset.observations[0])
    # A buffer is made before it is replaced by the data: one row is enough.
    settings = {**_PAPER, "learning_rate": 1e-2, "device": "cpu", "buffer_size": 1, **changes}
    return algorithm("MlpPolicy", env, dataset=dataset, seed=seed, **settings)


def online_ddpg(env: GymEnv | str, *, seed: int | None = None, **changes: Any) -> FixedDataDDPG:
    """
    DDPG that acts, with the paper's settings: actor 10⁻³, critic 10⁻², 1,000 steps and as many updates in turn.

    ``learn`` counts steps. Ornstein-Uhlenbeck noise of 0.2 of half the action range explores: the paper prints none.

    :param env: environment or its id
    :param seed: of networks, batches, noise and environment
    :param changes: other arguments of SB3's DDPG
    """
    rates = {"learning_rate": 1e-3, "critic_learning_rate": 1e-2}
    turns = {"train_freq": 1000, "gradient_steps": -1, "learning_starts": 0}
    settings = {**_PAPER, **rates, **turns, "device": "cpu", "buffer_size": 100_000, **changes}
    model = FixedDataDDPG("MlpPolicy", env, seed=seed, **settings)
    if "action_noise" not in changes:
        n_actions = model.action_space.shape[0]  # type: ignore[index]
        model.action_noise = OrnsteinUhlenbeckActionNoise(np.zeros(n_actions), 0.2 * np.ones(n_actions))
    return model
