"""Many carts on arrays are the same carts, one by one."""

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from nopg_envs.cartpole import CartPoleVectorEnv, QuanserCartPoleBalanceEnv, QuanserCartPoleSwingUpEnv, register

if "nopg/QuanserCartPoleBalance-v0" not in gym.registry:
    register()
CLASSES = {"balance": QuanserCartPoleBalanceEnv, "swing_up": QuanserCartPoleSwingUpEnv}
N_CARTS = 5


def one_by_one(task: str, **options) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: CLASSES[task](**options) for _ in range(N_CARTS)])


def assert_same(ours: tuple, theirs: tuple) -> None:
    """Whatever reset() or step() returns, infos last."""
    for our_part, their_part in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_allclose(our_part, their_part, rtol=0, atol=1e-12)
        assert our_part.shape == their_part.shape
    assert set(ours[-1]) == set(theirs[-1])
    for name in ("state", "voltage_volt"):
        np.testing.assert_allclose(ours[-1][name], theirs[-1][name], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours[-1]["termination"], theirs[-1]["termination"])


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(CLASSES))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rig_effects": False},
        {"coulomb_friction": False},
        {"input_delay": False},
        {"encoder_counts": False},
        {"filtered_velocities": False},
        {"voltage_saturation": False},
        {"sensor_noise": 1.5},
        {"sensor_noise": 1.5, "filtered_velocities": False, "encoder_counts": False},
        {"parameters": "long_pole", "control_hz": 100, "physics_hz": 1000},
        {"randomize": {"input_delay_s": (0.0, 0.05), "cart_damping": (5.0, 8.0), "rail_length_m": (0.2, 0.9)}},
    ],
    ids=str,
)
def test_batch_equals_single(task: str, options: dict):
    options = {"start": "operator", **options}
    ours, theirs = CartPoleVectorEnv(N_CARTS, task=task, **options), one_by_one(task, **options)
    assert_same(ours.reset(seed=3), theirs.reset(seed=3))
    rng = np.random.default_rng(0)
    n_ends = 0
    for _ in range(round(1.2 * options.get("control_hz", 50))):
        actions = rng.uniform(-7, 7, size=(N_CARTS, 1)).astype(np.float32)
        our_step = ours.step(actions)
        assert_same(our_step, theirs.step(actions))
        n_ends += int(our_step[2].sum())
    # Carts that began anew were compared too.
    assert n_ends > 5 or task == "swing_up"
    assert_same(ours.reset(), theirs.reset())


def test_batch_equals_single_up_to_truncation():
    ours = CartPoleVectorEnv(3, max_episode_steps=7)
    theirs = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(QuanserCartPoleBalanceEnv(), 7)] * 3)
    ours.reset(seed=0)
    theirs.reset(seed=0)
    seen = []
    for _ in range(20):
        our_step, their_step = ours.step(np.zeros((3, 1))), theirs.step(np.zeros((3, 1), dtype=np.float32))
        for our_part, their_part in zip(our_step[:-1], their_step[:-1], strict=True):
            np.testing.assert_array_equal(our_part, their_part)
        seen.append(bool(our_step[3].all()))
    assert [step for step, truncated in enumerate(seen, 1) if truncated] == [7, 15]


def test_next_step_after_an_end_begins_anew():
    env = CartPoleVectorEnv(2)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.reset(options={"state": [[0.0, 0.19, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]]})
    _, _, terminated, _, infos = env.step(np.zeros((2, 1)))
    assert terminated.tolist() == [True, False]
    assert infos["termination"].tolist() == ["angle", None]
    observations, rewards, terminated, _, infos = env.step(np.full((2, 1), 5.0))
    assert not terminated.any()
    assert rewards[0] == 0.0
    assert rewards[1] > 0.99
    np.testing.assert_array_equal(observations[0], [0.0, 0.0, 1.0, 0.0, 0.0])
    assert infos["voltage_volt"].tolist() == [0.0, 5.0]


@pytest.mark.parametrize("task", sorted(CLASSES))
def test_spaces_are_those_of_single_carts(task: str):
    batch, single = CartPoleVectorEnv(4, task=task), CLASSES[task]()
    assert batch.single_action_space == single.action_space
    assert batch.single_observation_space == single.observation_space
    assert batch.state_space == single.state_space
    assert batch.action_space.shape == (4, 1)
    assert batch.observation_space.shape == (4, 5)
    observations, _ = batch.reset(seed=0)
    assert batch.observation_space.contains(observations)


@pytest.mark.parametrize(("name", "n_steps"), [("Balance-v0", 10_000), ("SwingUp-v1", 500)])
def test_made_by_id(name: str, n_steps: int):
    env = gym.make_vec(f"nopg/QuanserCartPole{name}", num_envs=3, vectorization_mode="vector_entry_point", start="operator")
    assert isinstance(env, CartPoleVectorEnv)
    assert env.max_episode_steps == n_steps
    _, infos = env.reset(seed=0)
    assert (np.abs(infos["state"][:, 1]) > 3).all() == (name == "SwingUp-v1")


def test_seeds():
    env = CartPoleVectorEnv(3, start="operator")
    first = env.reset(seed=5)[0]
    second = env.reset()[0]
    np.testing.assert_array_equal(env.reset(seed=[5, 6, 7])[0], first)
    np.testing.assert_array_equal(env.reset()[0], second)
    assert len(np.unique(np.concatenate([first, second])[:, 0])) == 6
    # None leaves that cart's generator alone.
    third = env.reset(seed=[None, 6, None])[0]
    np.testing.assert_array_equal(third[1], first[1])
    assert (third[0] != first[0]).any()
    # Unseeded environments differ from each other.
    assert (CartPoleVectorEnv(3, start="operator").reset()[0] != CartPoleVectorEnv(3, start="operator").reset()[0]).any()


def test_starts_anywhere_when_asked():
    env = CartPoleVectorEnv(3)
    states = np.array([[0.1, 0.1, 0.0, 0.0], [-0.4, 0.0, 0.5, 0.0], [0.0, -0.2, 0.0, 1.0]])
    np.testing.assert_array_equal(env.reset(options={"state": states})[1]["state"], states)
    np.testing.assert_array_equal(env.reset(options={"state": states[0]})[1]["state"], states[[0, 0, 0]])
    assert env.reset(seed=0, options={"start": "operator"})[1]["state"].all()


def test_a_start_that_is_refused_changes_nothing():
    env = CartPoleVectorEnv(2)
    env.reset(options={"state": (0.1, 0.0, 0.0, 0.0)})
    with pytest.raises(ValueError, match="outside the rail"):
        env.reset(options={"state": [[0.3, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0]]})
    np.testing.assert_allclose(env.step(np.zeros((2, 1)))[4]["state"][:, 0], 0.1, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": np.zeros((3, 4))}, "state"),
        ({"state": np.zeros(3)}, "state"),
        ({"state": (math.nan, 0.0, 0.0, 0.0)}, "state"),
        ({"state": {"x": 0}}, "state"),
        ({"state": "abc"}, "state"),
        (3, "options: must be a dict"),
        ({"start": "hanging"}, "hanging"),
        ({"speed": 1}, "speed"),
    ],
)
def test_bad_reset_options_are_refused(options: dict, message: str):
    with pytest.raises(ValueError, match=message):
        CartPoleVectorEnv(2).reset(options=options)


@pytest.mark.parametrize(
    "actions",
    [
        np.zeros(2),
        np.zeros((3, 1)),
        np.zeros((2, 2)),
        [[0.0], [np.nan]],
        [[np.inf], [0.0]],
        [["1"], ["2"]],
        [[1j], [0.0]],
        [[0.0], 1.0],
    ],
)
def test_bad_actions_are_refused(actions):
    env = CartPoleVectorEnv(2)
    env.reset()
    with pytest.raises(ValueError, match="actions"):
        env.step(actions)


@pytest.mark.parametrize("value", [1.01e4, -1e300])
def test_volts_that_cannot_be_simulated_are_refused_unless_they_are_cut(value: float):
    free = CartPoleVectorEnv(2, voltage_saturation=False)
    free.reset()
    with pytest.raises(ValueError, match=r"actions: .* beyond ±10000 V"):
        free.step(np.array([[0.0], [value]]))
    cut = CartPoleVectorEnv(2)
    cut.reset()
    np.testing.assert_array_equal(cut.step(np.array([[0.0], [value]]))[4]["voltage_volt"], [0.0, math.copysign(5.0, value)])


@pytest.mark.parametrize(("row", "reason"), [(0, "rail"), (1, "angle")])
def test_a_state_that_is_not_a_number_ends_the_episode(row: int, reason: str):
    env = CartPoleVectorEnv(2, task="balance", filtered_velocities=False)
    env.reset()
    env._batch.positions[row, 1] = math.nan
    *_, terminated, _, info = env.step(np.zeros((2, 1)))
    np.testing.assert_array_equal(terminated, [False, True])
    # An angle that is not a number spoils the position within a step.
    assert info["termination"][1] in ("rail", reason)


def test_bad_sizes_and_seeds_are_refused():
    for n_carts in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="num_envs"):
            CartPoleVectorEnv(n_carts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seed"):
        CartPoleVectorEnv(2).reset(seed=[1, 2, 3])
    with pytest.raises(ResetNeeded):
        CartPoleVectorEnv(2).step(np.zeros((2, 1)))


@pytest.mark.parametrize("n_steps", [0, -1, 2.5, "x", True, math.inf])
def test_bad_episode_lengths_are_refused(n_steps):
    with pytest.raises(ValueError, match="max_episode_steps: must be a positive count"):
        CartPoleVectorEnv(2, max_episode_steps=n_steps)


def test_carts_begin_anew_each_with_its_own_parameters():
    env = CartPoleVectorEnv(3, randomize={"rail_length_m": (0.3, 0.9)}, voltage_saturation=False)
    env.reset(seed=0)
    before = list(env.parameters)
    env.reset(options={"state": [[0.0, 0.19, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.19, 0.0, 1.0]]})
    drawn = list(env.parameters)
    assert all(one is not other for one, other in zip(before, drawn, strict=True))
    env.step(np.zeros((3, 1)))
    env.step(np.zeros((3, 1)))
    assert [one is other for one, other in zip(env.parameters, drawn, strict=True)] == [False, True, False]


def test_copies_are_refused():
    with pytest.raises(TypeError, match="make another environment"):
        copy.deepcopy(CartPoleVectorEnv(2))
