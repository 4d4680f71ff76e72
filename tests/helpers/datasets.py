"""Small data sets, drawn ones among them, and what it means that two are the same."""

import os

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sb3_nopg import TransitionDataset

REQUIRED = ("observations", "actions", "rewards", "next_observations", "terminals")


ARRAYS = (*REQUIRED, "timeouts", "episode_ids")


FIELDS = (*ARRAYS, "observation_space", "action_space")


def make_arrays(n=12, d_s=3, d_a=2, dtype=np.float64, seed=0):
    """Required fields only. Two terminals, so that not every transition is one."""
    rng = np.random.default_rng(seed)
    terminals = np.zeros(n, dtype=bool)
    terminals[[2, n - 1]] = True
    return {
        "observations": rng.normal(size=(n, d_s)).astype(dtype),
        "actions": rng.uniform(-1, 3, size=(n, d_a)).astype(dtype),
        "rewards": rng.normal(size=n).astype(dtype),
        "next_observations": rng.normal(size=(n, d_s)).astype(dtype),
        "terminals": terminals,
    }


def make_dataset(n=12, dtype=np.float64, seed=0, **changes):
    return TransitionDataset(**{**make_arrays(n, dtype=dtype, seed=seed), **changes})


def full_dataset(n=12, dtype=np.float64, seed=0):
    """Every optional field present; spaces of different types, one of them unbounded."""
    return make_dataset(
        n,
        dtype,
        seed,
        timeouts=np.arange(n) % 5 == 4,
        episode_ids=np.arange(n) // 5 - 1,
        observation_space=spaces.Box(np.array([-np.inf, -4.0, -8.0]), np.array([np.inf, 4.5, np.inf]), dtype=np.float64),
        action_space=spaces.Box(np.array([-1, -2], dtype=np.float32), np.array([3, 3.5], dtype=np.float32)),
    )


def assert_same_bits(dataset, other):
    for name in ARRAYS:
        expected, found = getattr(dataset, name), getattr(other, name)
        assert (expected is None) == (found is None), name
        if expected is not None:
            assert found.dtype == expected.dtype, name
            assert found.shape == expected.shape, name
            # Bytes, not values: -0.0 and subnormal numbers count.
            assert found.tobytes() == expected.tobytes(), name
    assert other.observation_space == dataset.observation_space
    assert other.action_space == dataset.action_space
    assert other.quantities == dataset.quantities


@st.composite
def datasets(draw):
    n, d_s, d_a = draw(st.integers(2, 6)), draw(st.integers(1, 3)), draw(st.integers(1, 2))

    def numbers(*shape, largest=None):
        dtype, width = draw(st.sampled_from([(np.float32, 32), (np.float64, 64)]))
        smallest = None if largest is None else -largest
        elements = st.floats(smallest, largest, allow_nan=False, allow_infinity=False, width=width)
        return draw(hnp.arrays(dtype, shape, elements=elements))

    terminals = draw(hnp.arrays(bool, n))
    terminals[0] = False
    # Only the range of an action space must itself be a number.
    actions = numbers(n, d_a, largest=2.0**120)
    bound = np.abs(actions).max(axis=0).astype(np.float64)
    return TransitionDataset(
        observations=numbers(n, d_s),
        actions=actions,
        rewards=numbers(n),
        next_observations=numbers(n, d_s),
        terminals=terminals,
        timeouts=draw(st.none() | hnp.arrays(bool, n)),
        episode_ids=draw(st.none() | hnp.arrays(np.int64, n)),
        observation_space=draw(st.none() | st.just(spaces.Box(-np.inf, np.inf, (d_s,)))),
        action_space=draw(st.none() | st.just(spaces.Box(-bound, bound, dtype=np.float64))),
    )


class Bomb:
    """Unpickling this creates a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)
