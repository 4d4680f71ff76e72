"""Small systems whose equations are known, recorded as data sets."""

from collections.abc import Callable, Sequence

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg import DynamicsModel, TransitionDataset
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.prepared import Prepared, float_tensor

#: states (m, d), actions (m, d_a) to next states (m, d)
Advance = Callable[[np.ndarray, np.ndarray], np.ndarray]

# A cart with a spring and friction, stable by itself: x' = A x + B a.
A = np.array([[1.0, 0.1], [-0.2, 0.9]])
B = np.array([[0.0], [0.2]])
# Its reward is −(xᵀQx + aᵀRa).
Q, R = np.diag([1.0, 0.2]), np.diag([0.1])


def linear(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return states @ A.T + actions @ B.T


def linear_reward(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    return -(np.square(states) @ np.diag(Q) + np.square(actions) @ np.diag(R))


def pendulum(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Angle from upright and angular velocity, a tenth of a second."""
    angle, speed = states.T
    speed = 0.98 * speed + 0.1 * (4.0 * np.sin(angle) + 3.0 * actions[:, 0])
    return np.column_stack([angle + 0.1 * speed, speed])


#: angular velocity beyond which a pendulum of that name does not go
TOP_SPEED = 3.0


def pendulum_with_top_speed(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The same with a speed that grows no further."""
    speed = np.clip(pendulum(states, actions)[:, 1], -TOP_SPEED, TOP_SPEED)
    return np.column_stack([states[:, 0] + 0.1 * speed, speed])


def on_circle(states: np.ndarray) -> np.ndarray:
    """What is seen of a pendulum: cosine, sine, angular velocity."""
    return np.column_stack([np.cos(states[:, 0]), np.sin(states[:, 0]), states[:, 1]])


def pendulum_reward(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    return np.cos(states[:, 0]) - 0.05 * actions[:, 0] ** 2


def cart(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A mass that springs push away from the middle: it leaves if nobody holds it."""
    position, velocity = states.T
    return np.column_stack([position + 0.1 * velocity, velocity + 0.1 * (position + 0.3 * position**3 + 2.0 * actions[:, 0])])


#: speed that dry friction takes away in a step, and all of what is less
FRICTION = 0.05


def held_by_friction(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A mass on a rail: whatever would move slowly stays where it is."""
    position, velocity = states.T
    pushed = velocity + 0.15 * actions[:, 0]
    velocity = np.sign(pushed) * np.maximum(np.abs(pushed) - FRICTION, 0.0)
    return np.column_stack([position + 0.1 * velocity, velocity])


def pendulum_with_friction(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A :func:`pendulum` whose bearing holds it."""
    angle, speed = states.T
    pushed = 0.98 * speed + 0.1 * (4.0 * np.sin(angle) + 3.0 * actions[:, 0])
    speed = np.sign(pushed) * np.maximum(np.abs(pushed) - 5.0 * FRICTION, 0.0)
    return np.column_stack([angle + 0.1 * speed, speed])


def two_forces(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """A point in a plane that two actions push, one the stronger where the other acts too."""
    push = actions + 0.6 * actions[:, :1] * actions[:, 1:]
    return 0.9 * states + 0.2 * push + 0.05 * np.sin(2.0 * states[:, ::-1])


def bends_along_the_first(states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Three coordinates, and a system that bends with one of them."""
    first, second, third = states.T
    return np.column_stack(
        [
            0.9 * first + 0.1 * second,
            second + 0.2 * np.sin(3.0 * first) - 0.1 * second + 0.1 * actions[:, 0],
            0.9 * third + 0.1 * first,
        ]
    )


def bent_reward(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    return np.sin(3.0 * states[:, 2]) - 0.1 * actions[:, 0] ** 2


def plain(states: np.ndarray) -> np.ndarray:
    return states


def near_the_middle(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    return -np.square(states).sum(axis=1)


def record(
    advance: Advance,
    reward: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] = near_the_middle,
    *,
    start: tuple[float, ...] = (1.0, 1.0),
    d_a: int = 1,
    n_episodes: int = 16,
    length: int = 15,
    delay: int = 0,
    at_rest: bool = True,
    noise: float = 0.0,
    observe: Callable[[np.ndarray], np.ndarray] = plain,
    ends: Callable[[np.ndarray], bool] | None = None,
    act: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    seed: int = 0,
) -> TransitionDataset:
    """
    Episodes under random actions within ±1.

    :param advance: the system
    :param reward: of its states
    :param start: episodes start within ± this
    :param d_a: action dimensions
    :param n_episodes: how many
    :param length: of each, where the task does not end
    :param delay: steps until an action acts
    :param at_rest: whether nothing acts in the first steps of an episode with a delay; otherwise somebody's actions do
    :param noise: standard deviation of what disturbs every step
    :param observe: of a state
    :param ends: whether the task ends at a state
    :param act: of a state and of a random action; None for the random one
    :param seed: of all draws
    """
    rng = np.random.default_rng(seed)
    rows: list[tuple[np.ndarray, np.ndarray, float, np.ndarray, bool, int]] = []
    for episode in range(n_episodes):
        state = rng.uniform(-np.array(start), np.array(start))[None]
        waiting = [np.zeros((1, d_a)) if at_rest else rng.uniform(-1.0, 1.0, size=(1, d_a)) for _ in range(delay)]
        for _ in range(length):
            action = rng.uniform(-1.0, 1.0, size=(1, d_a))
            action = action if act is None else act(state, action)
            waiting.append(action)
            after = advance(state, waiting.pop(0)) + noise * rng.normal(size=state.shape)
            ended = ends is not None and bool(ends(after[0]))
            earned = float(reward(state, action, after)[0])
            rows.append((observe(state)[0], action[0], earned, observe(after)[0], ended, episode))
            state = after
            if ended:
                break
    states, actions, rewards, after, ended, episodes = (np.array(column) for column in zip(*rows, strict=True))
    return TransitionDataset(
        states, actions, rewards, after, ended, episode_ids=episodes, action_space=spaces.Box(-1.0, 1.0, (d_a,), np.float64)
    )


def prepared(data: TransitionDataset, angles: Sequence[tuple[int, int]] | None = None) -> Prepared:
    """
    As a model chooses by them.

    :param data: recorded transitions
    :param angles: pairs of columns that are cosine and sine of an angle; None to find them
    """
    both = np.concatenate([data.observations, data.next_observations])
    return Prepared.of(data, Coordinates.of(float_tensor(both), angles), np.array(data.rewards, dtype=np.float64))


def truth(advance: Advance, act: Callable[[np.ndarray], np.ndarray], start: np.ndarray, n_steps: int) -> np.ndarray:
    """What the system does under a policy of its states, (n_steps + 1, m, d)."""
    states = [start]
    for _ in range(n_steps):
        states.append(advance(states[-1], np.clip(act(states[-1]), -1.0, 1.0)))
    return np.stack(states)


def predicted_changes(model: DynamicsModel, data: TransitionDataset) -> th.Tensor:
    """What the model says of the changes in a data set's rows, for a model without earlier steps, (n, d)."""
    states = model.coordinates.encode(th.tensor(data.observations))
    inputs = model.features(th.tensor(data.actions))
    return model.nodes.evaluate(states, inputs, model.nodes.locate(states))[:, : model.coordinates.dim]


def recorded_changes(model: DynamicsModel, data: TransitionDataset) -> th.Tensor:
    """What happened there, (n, d)."""
    states, after = (model.coordinates.encode(th.tensor(part)) for part in (data.observations, data.next_observations))
    return model.coordinates.difference(after, states)


def relative_error(model: DynamicsModel, data: TransitionDataset) -> float:
    """Of predicted changes, as a share of what the changes vary by."""
    expected = recorded_changes(model, data)
    return float(((predicted_changes(model, data) - expected) / expected.std(dim=0)).square().mean().sqrt())
