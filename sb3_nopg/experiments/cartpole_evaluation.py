"""How a policy does on simulated cart-poles: from several starts at once, one number a start."""

from typing import Any, Protocol

import numpy as np

from nopg_envs.cartpole import CartPoleVectorEnv

N_STARTS = 10
#: about rest at the centre: |x| ≤ 1 cm, |θ| ≤ 0.5°
NEAR_REST = (0.01, float(np.radians(0.5)), 0.0, 0.0)
#: starts of evaluations are drawn far from the seeds of data
EVALUATION_SEED = 200_000
#: fifteen seconds, of which the last five count
SWING_UP_STEPS, UPRIGHT_STEPS, UPRIGHT_COSINE = 750, 250, 0.95


class Policy(Protocol):
    """What is followed: ``predict`` as SB3's models have it, with a memory."""

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
    ) -> tuple[np.ndarray, Any]: ...


def states_near_rest(n: int, seed: int) -> np.ndarray:
    """
    :param n: how many
    :param seed: of the draws
    :return: x, θ, ẋ, θ̇, (n, 4)
    """
    return np.random.default_rng(seed).uniform(-1.0, 1.0, size=(n, 4)) * NEAR_REST


def balance_returns(policy: Policy, n_steps: int, **options: Any) -> list[float]:
    """
    Sum of cos θ until the pole falls or the cart leaves its rail, from ten starts about rest at the centre.

    :param policy: to follow
    :param n_steps: at most
    :param options: of the cart, as `CartPoleOptions` has them
    """
    env = CartPoleVectorEnv(num_envs=N_STARTS, max_episode_steps=n_steps + 1, **options)
    observations, _ = env.reset(seed=EVALUATION_SEED, options={"state": states_near_rest(N_STARTS, EVALUATION_SEED)})
    going, returns, memory = np.ones(N_STARTS, dtype=bool), np.zeros(N_STARTS), None
    for _ in range(n_steps):
        actions, memory = policy.predict(observations, state=memory, deterministic=True)
        observations, rewards, terminated, _, _ = env.step(actions)
        returns += np.where(going, rewards, 0.0)
        going &= ~terminated
        if not going.any():
            break
    return returns.tolist()


def upright_steps(policy: Policy, volts: float, n_starts: int = N_STARTS, **options: Any) -> list[float]:
    """
    Steps with cos θ above 0.95, of the last 250 of 750, from where an operator lets the pole hang; none where the cart left
    its rail.

    :param policy: to follow
    :param volts: largest voltage
    :param n_starts: how many
    :param options: of the cart, as `CartPoleOptions` has them
    """
    env = CartPoleVectorEnv(
        num_envs=n_starts,
        max_episode_steps=SWING_UP_STEPS + 1,
        start="operator",
        task="swing_up",
        voltage_limit_volt=volts,
        **options,
    )
    observations, _ = env.reset(seed=EVALUATION_SEED)
    going, upright, memory = np.ones(n_starts, dtype=bool), np.zeros(n_starts), None
    for step in range(SWING_UP_STEPS):
        actions, memory = policy.predict(observations, state=memory, deterministic=True)
        observations, _, terminated, _, infos = env.step(actions)
        going &= ~terminated
        if step >= SWING_UP_STEPS - UPRIGHT_STEPS:
            upright += np.cos(infos["state"][:, 1]) > UPRIGHT_COSINE
        if not going.any():
            break
    return np.where(going, upright, 0.0).tolist()
