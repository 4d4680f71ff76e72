"""Ask an environment for transitions and get plain arrays back, as ``TransitionDataset(**arrays)`` takes them."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from nopg_envs.behaviours import BEHAVIOURS, Behaviour
from nopg_envs.checks import is_count

# Steps without an end after which whole episodes are given up. The longest that our own environments have is a tenth of it.
LONGEST_EPISODE = 100_000
# A grid multiplies quickly; beyond this a slip of the keyboard is likelier than a wish.
LARGEST_GRID = 10**7
START_NAMES = ("paper", "operator")
Start = str | npt.ArrayLike | Callable[[np.random.Generator], npt.ArrayLike]


def grid(env: gym.Env, levels: Sequence[int]) -> dict[str, np.ndarray]:
    """
    One transition from every point of a grid over states and actions, from one end of each range to the other; a single level
    is the middle.

    The environment must start anywhere (``reset(options={"state": ...})``) and know its ``state_space``.

    :param env: environment to query; where its steps are random, seed it before with ``env.reset(seed=...)``
    :param levels: number of levels for each state dimension, then for each action dimension; their product is the number of
        transitions, ten million at most
    :return: arrays by name, actions as they were applied; unordered one-step samples, so there are no episodes and no time
        limits
    """
    state_space, action_space = getattr(env.unwrapped, "state_space", None), env.action_space
    if not isinstance(state_space, spaces.Box) or not isinstance(action_space, spaces.Box):
        raise ValueError("grid() needs an environment with a Box `state_space` and a Box `action_space`")
    if not (state_space.is_bounded() and action_space.is_bounded()):
        raise ValueError("grid() needs a `state_space` and an `action_space` with finite ends")
    low = np.concatenate([state_space.low, action_space.low]).astype(np.float64)
    high = np.concatenate([state_space.high, action_space.high]).astype(np.float64)
    if not isinstance(levels, Sequence | np.ndarray) or isinstance(levels, str):
        raise ValueError(f"levels must be {len(low)} positive counts, states then actions; got {levels!r}")
    if len(levels) != len(low) or not all(map(is_count, levels)):
        raise ValueError(f"levels must be {len(low)} positive counts, states then actions; got {tuple(levels)}")
    # Whole numbers of Python, because NumPy's would wrap around.
    n_transitions = math.prod(int(n) for n in levels)
    if n_transitions > LARGEST_GRID:
        counts = " x ".join(str(n) for n in levels)
        raise ValueError(f"levels: {counts} are {n_transitions:,} transitions, and a grid may have {LARGEST_GRID:,}")

    axes = [np.linspace(lo, hi, n) if n > 1 else [(lo + hi) / 2] for lo, hi, n in zip(low, high, levels, strict=True)]
    columns = _Columns("observations", "actions", "rewards", "next_observations", "terminals")
    for point in product(*axes):
        state, action = np.array(point[: len(state_space.low)]), np.array(point[len(state_space.low) :])
        observation, _ = env.reset(options={"state": state})
        before = np.array(observation)
        # Whether a time limit strikes after this one step says nothing about s': nobody went on from there anyway.
        next_observation, reward, terminated, _, info = env.step(action)
        columns.append(before, _as_applied(action, info), float(reward), next_observation, bool(terminated))
    return columns.arrays()


def rollouts(
    env: gym.Env,
    policy: str | Behaviour,
    *,
    n_transitions: int | None = None,
    n_episodes: int | None = None,
    start: Start | None = None,
    seed: int | None = None,
) -> dict[str, np.ndarray]:
    """
    Transitions of a policy, episode after episode.

    Actions are recorded as they were applied: clipped to the action space, and where the environment cut a voltage further,
    as ``info["voltage_volt"]`` reports. ``terminals`` marks true ends only. An episode that a time limit cuts has its last row
    in ``timeouts`` instead, and so has the last episode where the number of transitions wanted cuts it; where end and limit
    coincide, it was an end.

    :param env: environment with Box spaces; with ``n_episodes``, one whose episodes end or are cut within its own time limit
        or within 100,000 steps
    :param policy: from observation to action, or a name of :mod:`nopg_envs.behaviours`: ``"uniform"`` and
        ``"gaussian_mixture"``, the paper's behaviours on the cart-pole and on the pendulum, or ``"held"``, actions that last
        for some steps
    :param n_transitions: exactly so many transitions, or
    :param n_episodes: so many whole episodes
    :param start: where episodes start: ``"paper"`` or ``"operator"`` in environments that know these starts, a state, or a
        function that draws one from the generator it is given; by default the environment's own
    :param seed: of the environment and of everything drawn here; a policy of your own keeps its own randomness
    :return: arrays by name, one row a transition
    """
    n_wanted = _wanted(n_transitions, n_episodes)
    observation_space, action_space = env.observation_space, env.action_space
    for name, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"{name}: {space} is not a one-dimensional Box; flatten or encode it first")
    assert isinstance(action_space, spaces.Box)
    # Spawned, because the environment seeds itself with the same number: equal streams would tie its noise to the actions.
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    act = _behaviour(policy, action_space, rng)
    options = _start_options(env, start)

    columns = _Columns("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "episode_ids")
    observation, _ = env.reset(seed=seed, options=options(rng))
    longest = _longest_episode(env) if n_episodes is not None else math.inf
    episode, episode_start = 0, 0
    while True:
        before = np.array(observation)
        action = _within_bounds(act(observation), action_space)
        observation, reward, terminated, truncated, info = env.step(action)
        last = n_transitions is not None and len(columns) + 1 == n_wanted
        timeout = bool((truncated or last) and not terminated)
        columns.append(before, _as_applied(action, info), float(reward), observation, bool(terminated), timeout, episode)
        if last:
            break
        if terminated or truncated:
            episode, episode_start = episode + 1, len(columns)
            if n_episodes is not None and episode == n_wanted:
                break
            observation, _ = env.reset(options=options(rng))
        elif len(columns) - episode_start >= longest:
            raise ValueError(
                f"n_episodes: episode {episode} has not ended after {longest:,} steps; "
                "wrap the environment in gymnasium.wrappers.TimeLimit, or ask for n_transitions instead"
            )
    return columns.arrays()


class _Columns:
    """Rows collected one at a time, copied, since environments may write every observation into the same memory."""

    def __init__(self, *names: str):
        self._columns: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def append(self, *values: Any) -> None:
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(np.array(value))

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: np.array(column) for name, column in self._columns.items()}


def _wanted(n_transitions: int | None, n_episodes: int | None) -> int:
    given = {name: n for name, n in (("n_transitions", n_transitions), ("n_episodes", n_episodes)) if n is not None}
    if len(given) != 1:
        raise ValueError(
            f"Give either n_transitions or n_episodes, got n_transitions={n_transitions}, n_episodes={n_episodes}"
        )
    ((name, n),) = given.items()
    if not is_count(n):
        raise ValueError(f"{name} must be a positive whole number, got {n!r}")
    return int(n)


def _longest_episode(env: gym.Env) -> int:
    limit = None if env.spec is None else env.spec.max_episode_steps
    return max(LONGEST_EPISODE, limit or 0)


def _behaviour(policy: str | Behaviour, action_space: spaces.Box, rng: np.random.Generator) -> Behaviour:
    if isinstance(policy, str):
        if policy not in BEHAVIOURS:
            raise ValueError(f"policy: unknown name {policy!r}; known are {', '.join(BEHAVIOURS)}")
        return BEHAVIOURS[policy](action_space, rng)
    if not callable(policy):
        raise ValueError(f"policy must be a name or map an observation to an action, got {type(policy).__name__}")
    return policy


def _start_options(env: gym.Env, start: Start | None) -> Callable[[np.random.Generator], dict[str, Any] | None]:
    """Options for reset(), drawn for each episode."""
    if start is None:
        return lambda rng: None
    if isinstance(start, str) and start not in START_NAMES:
        raise ValueError(f"start: unknown name {start!r}; known are {', '.join(START_NAMES)}, a state or a function")
    # Gymnasium's own environments ignore options they do not know: the data would start somewhere else, and nobody would know.
    if not isinstance(getattr(env.unwrapped, "state_space", None), spaces.Box):
        raise ValueError("start: needs an environment that starts where it is told to, one with a Box `state_space`")
    if isinstance(start, str):
        return lambda rng: {"start": start}
    if callable(start):
        return lambda rng: {"state": np.array(start(rng), dtype=np.float64)}
    state = np.array(start, dtype=np.float64)
    return lambda rng: {"state": state.copy()}


def _as_applied(action: np.ndarray, info: dict[str, Any]) -> np.ndarray:
    """What reached the motor, where the environment reports it: an amplifier may end before the action space does."""
    if "voltage_volt" not in info:
        return action
    return np.array(info["voltage_volt"], dtype=action.dtype).reshape(action.shape)


def _within_bounds(action: Any, action_space: spaces.Box) -> np.ndarray:
    """What the environment gets for an action: within its bounds, in its type."""
    array = np.asarray(action)
    if array.shape != action_space.shape:
        raise ValueError(f"policy: an action of shape {array.shape} where the action space has {action_space.shape}")
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise ValueError(f"policy: an action must hold finite numbers, got {array!r}")
    return np.clip(array, action_space.low, action_space.high).astype(action_space.dtype)
