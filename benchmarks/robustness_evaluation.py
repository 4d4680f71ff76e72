"""How a policy really does: simulated from every start at once, one number a start."""

from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs.cartpole import CartPoleVectorEnv
from sb3_nopg.experiments.cartpole_evaluation import EVALUATION_SEED, N_STARTS, Policy, states_near_rest
from sb3_nopg.prediction.chatter import chatter_of

BALANCE_STEPS = 10_000
# The angle that ends an evaluation, whatever the angle that ended the episodes of the data.
BALANCE_LIMIT_RAD = 0.2
PENDULUM_STEPS = 500
N_CAR_STARTS, CAR_STEPS = 100, 500
# Steps at the end of an evaluation that tell whether a policy holds still.
LISTENED_STEPS = 100


class Nothing:
    """Zero, whatever is observed."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[np.ndarray, Any]:
        return np.zeros((len(observation), 1), dtype=np.float32), None


class Listener:
    """
    A policy, and how much its actions change from step to step towards the end, when there is nothing left to do but hold.

    :param policy: to listen to
    :param low: of the actions
    :param high: of the actions
    """

    def __init__(self, policy: Policy, low: np.ndarray, high: np.ndarray):
        self._policy, self._span = policy, high - low
        self._actions: deque[np.ndarray] = deque(maxlen=LISTENED_STEPS + 1)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]:
        actions, state = self._policy.predict(observation, state, episode_start, deterministic)
        self._actions.append(np.array(actions, dtype=np.float64))
        return actions, state

    @property
    def chatter(self) -> float:
        """Mean change of the action, as a share of its range, in the last steps."""
        return chatter_of(np.array(self._actions), self._span).change


def balanced_steps(policy: Policy, starts: str, parameters: str) -> list[float]:
    """
    Steps that the pole stays within 0.2 rad and the cart on its rail.

    :param policy: to follow
    :param starts: ``"operator"`` for the operator's, ``"rest"`` for those near rest at the centre
    :param parameters: of the cart
    """
    env = CartPoleVectorEnv(
        num_envs=N_STARTS,
        max_episode_steps=BALANCE_STEPS + 1,
        start="operator",
        parameters=parameters,
        theta_limit_rad=BALANCE_LIMIT_RAD,
    )
    options = None
    if starts == "rest":
        options = {"state": states_near_rest(N_STARTS, EVALUATION_SEED)}
    observations, _ = env.reset(seed=EVALUATION_SEED, options=options)
    alive, survived, memory = np.ones(N_STARTS, dtype=bool), np.zeros(N_STARTS), None
    for _ in range(BALANCE_STEPS):
        actions, memory = policy.predict(observations, memory, deterministic=True)
        observations, _, terminated, _, _ = env.step(actions)
        alive &= ~terminated
        survived += alive
        if not alive.any():
            break
    return survived.tolist()


def pendulum_return(policy: Policy) -> list[float]:
    """Return of 500 steps from hanging still, the only start."""
    env = gym.make_vec("nopg/Pendulum-v0", num_envs=1, vectorization_mode="sync", max_episode_steps=PENDULUM_STEPS + 1)
    observations, _ = env.reset(seed=EVALUATION_SEED)
    total, memory = 0.0, None
    for _ in range(PENDULUM_STEPS):
        actions, memory = policy.predict(observations, memory, deterministic=True)
        observations, rewards, _, _, _ = env.step(actions)
        total += float(rewards[0])
    return [total]


def minus_steps_to_goal(policy: Policy) -> list[float]:
    """−1 a step until the mountain car reaches its flag, −500 where it does not."""
    env = gym.make_vec(
        "MountainCarContinuous-v0", num_envs=N_CAR_STARTS, vectorization_mode="sync", max_episode_steps=CAR_STEPS + 1
    )
    observations, _ = env.reset(seed=EVALUATION_SEED)
    driving, steps, memory = np.ones(N_CAR_STARTS, dtype=bool), np.zeros(N_CAR_STARTS), None
    for _ in range(CAR_STEPS):
        actions, memory = policy.predict(observations, memory, deterministic=True)
        observations, _, terminated, _, _ = env.step(actions)
        steps += driving
        driving &= ~terminated
        if not driving.any():
            break
    return (-steps).tolist()
