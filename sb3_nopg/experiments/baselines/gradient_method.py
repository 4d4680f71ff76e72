"""What the baselines with a policy, a fixed data set and an optimiser have in common."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import FloatSchedule, configure_logger, set_random_seed

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count, check_number
from sb3_nopg.data.buffer import check_fits_spaces, spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.policies.nopg_policy import NOPGPolicy
from sb3_nopg.training.loop import make_updates

# Updates between two tables.
_LOG_INTERVAL = 100

SelfMethod = TypeVar("SelfMethod", bound="GradientMethod")


class GradientMethod(ABC):
    """
    A policy that follows an estimate of its gradient on a fixed data set; nothing is ever tried out.

    :param policy: ``"MlpPolicy"`` or ``"LinearPolicy"``, a subclass of :class:`sb3_nopg.NOPGPolicy`, or a policy, which is
        then trained itself
    :param dataset: the data, with the spaces where they are to be other than what the data span
    :param learning_rate: of Adam for the policy
    :param gamma: discount, in [0, 1]: episodes are finite
    :param policy_kwargs: further arguments of a policy that is made here
    :param normalize_observations: let the policy see observations normalised by the data's mean and standard deviation
    :param seed: of the policy's first parameters
    :param verbose: 1 for a table of progress
    """

    # By name, as in NOPG.
    policies: ClassVar[dict[str, type[NOPGPolicy]]]

    def __init__(
        self,
        policy: str | type[NOPGPolicy] | th.nn.Module,
        dataset: TransitionDataset,
        learning_rate: float,
        gamma: float,
        policy_kwargs: dict[str, Any] | None,
        normalize_observations: bool,
        seed: int | None,
        verbose: int,
    ):
        check_number("gamma", gamma, 0.0, 1.0, low_included=True, high_included=True)
        check_number("learning_rate", learning_rate, 0.0, np.inf)
        self.dataset, self.gamma, self.learning_rate = dataset, float(gamma), float(learning_rate)
        self.observation_space, self.action_space = spaces_of(dataset)
        check_fits_spaces(dataset, self.observation_space, self.action_space)
        if seed is not None:
            set_random_seed(seed)
        self.policy: Any = self._make_policy(policy, policy_kwargs or {})
        if normalize_observations and isinstance(self.policy, NOPGPolicy):
            self.policy.fit_normalization(dataset.observations)
        self.optimizer = th.optim.Adam(self.policy.parameters(), lr=self.learning_rate)
        # Under SB3's name, for its callbacks: here, updates of the policy.
        self.num_timesteps = 0
        self.verbose = verbose
        self.logger: Logger = configure_logger(verbose=verbose)

    def _make_policy(self, policy: Any, arguments: dict[str, Any]) -> th.nn.Module:
        if isinstance(policy, th.nn.Module):
            if arguments:
                raise InputError("policy_kwargs", "given for a policy that exists already", "Give its class, or no arguments")
            return policy
        if isinstance(policy, str):
            if policy not in self.policies:
                raise InputError("policy", f"{policy!r} is unknown", f"Give one of {', '.join(self.policies)}, or a policy")
            policy = self.policies[policy]
        if not (isinstance(policy, type) and issubclass(policy, NOPGPolicy)):
            raise InputError("policy", f"{policy!r} is no policy", f"Give one of {', '.join(self.policies)}, or a policy")
        policy_class: Any = policy
        made = policy_class(self.observation_space, self.action_space, FloatSchedule(self.learning_rate), **arguments)
        # Products of many density ratios, and squares of an unstable system's states: float32 would show.
        return made.double()

    @property
    def device(self) -> th.device:
        return next(self.policy.parameters()).device

    def learn(self: SelfMethod, n_updates: int, callback: BaseCallback | list[BaseCallback] | None = None) -> SelfMethod:
        """
        Go on from where the policy is.

        :param n_updates: of the policy
        :param callback: called after every update; may stop the learning, see :class:`.BestEvaluation`
        :return: the model
        """
        check_count("n_updates", n_updates, 0)
        calls = callback if isinstance(callback, BaseCallback) else CallbackList(callback or [])
        calls.init_callback(self)  # type: ignore[arg-type]
        calls.on_training_start(locals(), globals())
        make_updates(self, self.num_timesteps + n_updates, calls, _LOG_INTERVAL if self.verbose else 0)
        calls.on_training_end()
        return self

    @abstractmethod
    def _make_update(self, total_timesteps: int) -> None:
        """One step of the policy."""

    def _wants_to_stop(self, *, last: bool) -> bool:
        return False

    def dump_logs(self) -> None:
        """Write what was logged since the last time."""
        self.logger.dump(self.num_timesteps)

    def predict(
        self,
        observation: np.ndarray,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """As in SB3: action or actions, and the state, which nothing here has."""
        return self.policy.predict(observation, state, episode_start, deterministic)

    def _tensor(self, array: np.ndarray) -> th.Tensor:
        return th.as_tensor(np.array(array, dtype=np.float64), device=self.device)
