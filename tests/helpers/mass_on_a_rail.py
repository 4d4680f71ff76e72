"""A mass on a rail: its recordings, policies for it, and what it truly does."""

import numpy as np

from sb3_nopg import TransitionDataset


def cart(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A mass on a rail: position and velocity, a tenth of a second."""
    position, velocity = states.T
    return np.column_stack([position + 0.1 * velocity, velocity + 0.1 * actions[:, 0] + 0.05 * np.sin(position)])


def recorded(
    n_episodes: int = 40, length: int = 25, delay: int = 0, limit: float = np.inf, seed: int = 0
) -> TransitionDataset:
    """
    :param delay: steps until an action acts
    :param limit: of the position, at which the task ends
    """
    rng = np.random.default_rng(seed)
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("s", "a", "n", "t", "e")}
    for episode in range(n_episodes):
        state = rng.uniform([-0.8, -0.8], [0.8, 0.8])[None]
        actions = rng.uniform(-2.0, 2.0, size=(length + delay, 1))
        for step in range(length):
            after = cart(state, actions[step : step + 1])
            ended = bool(np.abs(after[0, 0]) > limit)
            values = (state[0], actions[step + delay], after[0], ended, episode)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
            state = after
            if ended:
                break
    states, actions, after, ended, episodes = (np.array(column) for column in columns.values())
    return TransitionDataset(
        observations=states,
        actions=actions,
        rewards=1.0 - states[:, 0] ** 2,
        next_observations=after,
        terminals=ended,
        episode_ids=episodes,
    )


STARTS = np.array([[0.5, 0.0], [-0.3, 0.4], [0.0, -0.6]])


def brake(states: np.ndarray) -> np.ndarray:
    return -1.0 * states[:, :1] - 1.2 * states[:, 1:]


def followed(act, n_steps: int, delay: int = 0) -> np.ndarray:
    """What the cart truly does, (n_steps + 1, m, 2)."""
    states, waiting = [STARTS], [np.zeros((len(STARTS), 1))] * delay
    for _ in range(n_steps):
        waiting.append(act(states[-1]))
        states.append(cart(states[-1], waiting.pop(0)))
    return np.stack(states)


def drive(states: np.ndarray) -> np.ndarray:
    return np.full((len(states), 1), 2.0)
