"""Random ways to act while data is collected, by name."""

from collections.abc import Callable

import numpy as np
from gymnasium import spaces

Behaviour = Callable[[np.ndarray], np.ndarray]
# Fewest and most steps that `held` keeps to an action: at 50 Hz up to half a swing of a Quanser's pole.
HOLD_STEPS = (2, 19)


def uniform(action_space: spaces.Box, rng: np.random.Generator) -> Behaviour:
    """
    Every action equally likely: the paper's behaviour on the cart-pole.

    :param action_space: bounded
    :param rng: drawn from at every call
    """
    low, high = _range(action_space)
    return lambda observation: rng.uniform(low, high)


def gaussian_mixture(action_space: spaces.Box, rng: np.random.Generator) -> Behaviour:
    """
    Three Gaussians, equally likely, drawn at every step, for every action dimension on its own: the kind of behaviour
    that the paper uses on the pendulum.

    The paper does not print its components. These are "push one way", "let go" and "push the other way": with the middle of
    the range as zero and its ends as ±1, means -¾, 0 and ¾ and standard deviation ¼ each. Draws past an end (one in ten) are
    clipped to it, so full pushes, which a swing-up needs, are in the data.

    :param action_space: bounded
    :param rng: drawn from at every call
    """
    low, high = _range(action_space)
    middle, half = (low + high) / 2.0, (high - low) / 2.0
    means = np.array([-0.75, 0.0, 0.75])

    def draw(observation: np.ndarray) -> np.ndarray:
        share = rng.choice(means, size=middle.shape) + 0.25 * rng.standard_normal(middle.shape)
        return np.clip(middle + half * share, low, high)

    return draw


def held(action_space: spaces.Box, rng: np.random.Generator) -> Behaviour:
    """
    Every action equally likely, and held for 2 to 19 steps: pushes that are long enough to move something. Actions drawn
    at every step cancel out before a pendulum has swung.

    :param action_space: bounded
    :param rng: drawn from whenever an action was held long enough, whether or not an episode ended meanwhile
    """
    low, high = _range(action_space)
    action, n_left = low, 0

    def draw(observation: np.ndarray) -> np.ndarray:
        nonlocal action, n_left
        if n_left == 0:
            action, n_left = rng.uniform(low, high), int(rng.integers(*HOLD_STEPS, endpoint=True))
        n_left -= 1
        return action.copy()

    return draw


BEHAVIOURS: dict[str, Callable[[spaces.Box, np.random.Generator], Behaviour]] = {
    "uniform": uniform,
    "gaussian_mixture": gaussian_mixture,
    "held": held,
}


def _range(action_space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    if not action_space.is_bounded():
        raise ValueError(f"action_space: {action_space} has no ends to draw between; give a policy of your own")
    return action_space.low.astype(np.float64), action_space.high.astype(np.float64)
