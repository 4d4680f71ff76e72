"""Data sets to and from SB3's replay buffers: the same transitions, in the right units, order and episodes."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env

from helpers.models import make_nopg
from sb3_nopg import FixedReplayBuffer, InputError, TransitionDataset

ARRAYS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "episode_ids")
OBSERVATION_SPACE = spaces.Box(-1e6, 1e6, (3,), dtype=np.float32)
# Asymmetric, and different in each dimension: a mistake in scaling cannot cancel.
ACTION_SPACE = spaces.Box(np.array([-1.0, 10.0], dtype=np.float32), np.array([3.0, 50.0], dtype=np.float32))
# Numbers, because choosing bandwidths is not what these tests are about.
# With them and without a search for a start, models are built fast.
BANDWIDTHS = {
    "transitions": "samples",
    "state_bandwidth": 0.5,
    "action_bandwidth": 0.5,
    "next_state_bandwidth": 0.5,
}

# That a wrapped buffer may begin in mid-episode is told to the user, and tested in training/test_training.py.
pytestmark = pytest.mark.filterwarnings("ignore:This replay buffer has overwritten")


def make_dataset(n=20, seed=0, dtype=np.float64, **changes):
    """Rows that can be told apart by their first observation, with one row both terminal and timed out."""
    rng = np.random.default_rng(seed)
    observations = rng.normal(size=(n, 3))
    observations[:, 0] = np.arange(n)
    terminals, timeouts = np.arange(n) % 7 == 6, np.arange(n) % 5 == 4
    terminals[9] = timeouts[9] = True
    arrays = {
        "observations": observations.astype(dtype),
        "actions": rng.uniform(ACTION_SPACE.low, ACTION_SPACE.high, size=(n, 2)).astype(dtype),
        "rewards": rng.normal(size=n).astype(dtype),
        "next_observations": rng.normal(size=(n, 3)).astype(dtype),
        "terminals": terminals,
        "timeouts": timeouts,
        "episode_ids": np.arange(n) // 5,
    }
    return TransitionDataset(**{**arrays, **changes})


def fixed_buffer(dataset, device="cpu"):
    return FixedReplayBuffer(dataset, OBSERVATION_SPACE, ACTION_SPACE, device)


def pendulum_dataset(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return TransitionDataset(
        observations=rng.uniform(-1, 1, size=(n, 3)),
        actions=rng.uniform(-2, 2, size=(n, 1)),
        rewards=rng.normal(size=n),
        next_observations=rng.uniform(-1, 1, size=(n, 3)),
        terminals=np.zeros(n, dtype=bool),
        episode_ids=np.arange(n) // 20,
    )


# --- the fixed buffer samples like any other


def test_samples_have_sb3s_shapes_and_dtypes():
    samples = fixed_buffer(make_dataset()).sample(32)
    assert samples.observations.shape == samples.next_observations.shape == (32, 3)
    assert samples.actions.shape == (32, 2)
    assert samples.rewards.shape == samples.dones.shape == (32, 1)
    assert {tensor.dtype for tensor in samples if tensor is not None} == {th.float32}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_samples_go_to_the_device_asked_for(device):
    samples = fixed_buffer(make_dataset(), device).sample(4)
    assert {tensor.device.type for tensor in samples if tensor is not None} == {device}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_sample_is_a_row_of_the_data(dtype):
    dataset = make_dataset(dtype=dtype)
    np.random.seed(0)  # noqa: NPY002 - SB3 samples from NumPy's global generator
    samples = fixed_buffer(dataset).sample(600)
    rows = samples.observations[:, 0].numpy().astype(int)
    assert set(rows) == set(range(len(dataset)))
    np.testing.assert_allclose(samples.observations, dataset.observations[rows], rtol=1e-6)
    np.testing.assert_allclose(samples.next_observations, dataset.next_observations[rows], rtol=1e-6)
    np.testing.assert_allclose(samples.rewards[:, 0], dataset.rewards[rows], rtol=1e-6)
    # From the definition: the middle of the range is 0, its ends are ±1.
    middle, half_range = np.array([1.0, 30.0]), np.array([2.0, 20.0])
    np.testing.assert_allclose(samples.actions, (dataset.actions[rows] - middle) / half_range, atol=1e-6)
    # What SB3's algorithms call done, after leaving out time limits, is what the data call terminal.
    np.testing.assert_array_equal(samples.dones[:, 0].numpy() == 1.0, dataset.terminals[rows])


def test_without_timeouts_dones_are_the_terminals():
    dataset = make_dataset(timeouts=None)
    samples = fixed_buffer(dataset).sample(200)
    np.testing.assert_array_equal(
        samples.dones[:, 0].numpy() == 1.0, dataset.terminals[samples.observations[:, 0].numpy().astype(int)]
    )


def test_scaled_actions_stay_within_one_even_where_rounding_crossed_the_bound():
    actions = make_dataset().actions.copy()
    actions[0], actions[1] = ACTION_SPACE.high.astype(float) * (1 + 1e-7), ACTION_SPACE.low.astype(float) - 1e-7
    buffer = fixed_buffer(make_dataset(actions=actions))
    assert np.abs(buffer.actions).max() == 1.0


def test_actions_are_scaled_as_sb3s_policies_scale_them():
    dataset = make_dataset()
    model = make_nopg("MlpPolicy", None, dataset=make_dataset(action_space=ACTION_SPACE), device="cpu", **BANDWIDTHS)
    np.testing.assert_allclose(fixed_buffer(dataset).actions[:, 0], model.policy.scale_action(dataset.actions), atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_data_set_gives_a_buffer_for_its_own_spaces(device):
    dataset = make_dataset(observation_space=OBSERVATION_SPACE, action_space=ACTION_SPACE)
    buffer = dataset.to_replay_buffer(device)
    assert isinstance(buffer, FixedReplayBuffer)
    assert buffer.dataset is dataset
    assert (buffer.observation_space, buffer.action_space) == (OBSERVATION_SPACE, ACTION_SPACE)
    assert buffer.sample(2).rewards.device.type == device
    np.testing.assert_array_equal(buffer.actions, fixed_buffer(dataset).actions)


def test_without_spaces_the_range_of_the_actions_is_scaled_to_one():
    dataset = make_dataset()
    buffer = dataset.to_replay_buffer("cpu")
    np.testing.assert_allclose(buffer.actions.min(axis=(0, 1)), -1.0, atol=1e-6)
    np.testing.assert_allclose(buffer.actions.max(axis=(0, 1)), 1.0, atol=1e-6)
    np.testing.assert_allclose(buffer.action_space.low, dataset.actions.min(axis=0), rtol=1e-6)
    np.testing.assert_allclose(buffer.action_space.high, dataset.actions.max(axis=0), rtol=1e-6)


def test_it_knows_its_size():
    buffer = fixed_buffer(make_dataset(n=20))
    assert (buffer.size(), buffer.buffer_size, buffer.full, buffer.n_envs) == (20, 20, True, 1)


# --- and refuses to change


def refuse_cases():
    observation, action = np.zeros((1, 3), dtype=np.float32), np.zeros((1, 2), dtype=np.float32)
    transition = (observation, observation, action, np.zeros(1), np.zeros(1), [{}])
    return {
        "add": lambda buffer: buffer.add(*transition),
        "extend": lambda buffer: buffer.extend(*([part] for part in transition)),
        "reset": lambda buffer: buffer.reset(),
    }


@pytest.mark.parametrize("name", sorted(refuse_cases()))
def test_changes_are_refused_and_change_nothing(name):
    buffer = fixed_buffer(make_dataset())
    before = {field: getattr(buffer, field).copy() for field in ("observations", "actions", "rewards", "dones")}
    with pytest.raises(InputError, match="set_dataset"):
        refuse_cases()[name](buffer)
    for field, array in before.items():
        np.testing.assert_array_equal(getattr(buffer, field), array)
    assert (buffer.size(), buffer.pos, buffer.full) == (20, 0, True)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "field"),
    [
        (spaces.Box(-9, 9, (4,)), ACTION_SPACE, "observations"),
        (OBSERVATION_SPACE, spaces.Box(-99, 99, (1,)), "actions"),
        (OBSERVATION_SPACE, spaces.Box(-1, 1, (2,)), "actions"),
        (spaces.Discrete(3), ACTION_SPACE, "observation_space"),
        (OBSERVATION_SPACE, spaces.MultiDiscrete([3, 3]), "action_space"),
        (spaces.Dict(s=OBSERVATION_SPACE), ACTION_SPACE, "observation_space"),
    ],
    ids=["wide-states", "narrow-actions", "actions-outside", "discrete-states", "discrete-actions", "dict-states"],
)
def test_a_buffer_for_spaces_that_do_not_fit_is_refused(observation_space, action_space, field):
    with pytest.raises(InputError) as caught:
        FixedReplayBuffer(make_dataset(), observation_space, action_space)
    assert caught.value.field == field


# --- back to a data set


def test_a_data_set_survives_its_buffer_exactly():
    dataset = make_dataset()
    assert TransitionDataset.from_replay_buffer(fixed_buffer(dataset)) is dataset


@pytest.mark.parametrize("seed", range(3))
def test_what_a_fixed_buffer_stores_converts_back_like_any_buffers_content(seed):
    """Scaling in and scaling out are written apart from each other. This is the only place where they meet."""
    rows = np.arange(20)
    dataset = make_dataset(
        seed=seed,
        # A plain buffer knows time limits only where the task did not end as well, and tells episodes apart by their ends.
        timeouts=(rows % 5 == 4) & (rows != 9),
        terminals=rows == 9,
    )
    fixed = fixed_buffer(dataset)
    plain = ReplayBuffer(len(dataset), OBSERVATION_SPACE, ACTION_SPACE, "cpu")
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "full"):
        setattr(plain, name, getattr(fixed, name))
    back = TransitionDataset.from_replay_buffer(plain)
    for name in ("observations", "actions", "rewards", "next_observations"):
        np.testing.assert_allclose(getattr(back, name), getattr(dataset, name), rtol=1e-5, atol=1e-6)
    for name in ("terminals", "timeouts", "episode_ids"):
        np.testing.assert_array_equal(getattr(back, name), getattr(dataset, name))


# --- from buffers that others filled


class Recording:
    """
    A made-up past, written into a buffer step by step and kept beside it as a list of rows for each environment.

    Observations are (environment, step, 0 before and 1 after it): every row says where it comes from. An episode ends for
    good when it is odd, by a time limit when it is even; the environments' episodes have different lengths.
    """

    def __init__(self, buffer, n_steps, time_limits=True, seed=0):
        rng = np.random.default_rng(seed)
        n_envs = buffer.n_envs
        self.rows = [[] for _ in range(n_envs)]
        episode = np.zeros(n_envs, dtype=int)
        length = np.zeros(n_envs, dtype=int)
        for step in range(n_steps):
            observations = np.array([[env, step, 0] for env in range(n_envs)], dtype=np.float32)
            scaled = rng.uniform(-1, 1, size=(n_envs, 2)).astype(np.float32)
            rewards = np.arange(n_envs) + step / 1000
            length += 1
            dones = length == 4 + np.arange(n_envs)
            timeouts = dones & (episode % 2 == 0) & time_limits
            # As in SB3: the state after an end is the last of its episode, otherwise the one that the next step starts from.
            next_observations = np.array([[env, step + 1, 0] for env in range(n_envs)], dtype=np.float32)
            next_observations[dones, 2] = 1
            infos = [{"TimeLimit.truncated": True} if timeout else {} for timeout in timeouts]
            buffer.add(observations, next_observations, scaled, rewards, dones, infos)
            for env in range(n_envs):
                self.rows[env].append(
                    {
                        "observations": observations[env],
                        # By hand: 1 ± 2 and 30 ± 20.
                        "actions": np.array([1.0 + 2.0 * scaled[env, 0], 30.0 + 20.0 * scaled[env, 1]]),
                        "rewards": rewards[env],
                        "next_observations": next_observations[env],
                        "terminals": dones[env] and not timeouts[env],
                        "timeouts": timeouts[env],
                        "episode_ids": 1000 * env + episode[env],
                    }
                )
            episode[dones] += 1
            length[dones] = 0

    def last(self, n_steps):
        """The last steps of each environment, one environment after the other."""
        rows = [row for env_rows in self.rows for row in env_rows[-n_steps:]]
        return {name: np.array([row[name] for row in rows]) for name in ARRAYS}


def empty_buffer(capacity, n_envs, **kwargs):
    return ReplayBuffer(capacity * n_envs, OBSERVATION_SPACE, ACTION_SPACE, "cpu", n_envs=n_envs, **kwargs)


def assert_same_episodes(ids, expected_ids):
    """The numbers are free, but they must part the rows in the same way."""
    assert len(set(zip(ids, expected_ids, strict=True))) == len(set(ids)) == len(set(expected_ids))


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [17, 30, 40, 60], ids=["part-full", "just-full", "wrapped", "wrapped-twice"])
def test_a_buffer_filled_by_hand_gives_every_row_it_still_holds(n_envs, n_steps):
    buffer = empty_buffer(30, n_envs)
    recording = Recording(buffer, n_steps)
    dataset = TransitionDataset.from_replay_buffer(buffer)
    expected = recording.last(min(n_steps, 30))
    assert len(dataset) == min(n_steps, 30) * n_envs
    for name in ("observations", "rewards", "next_observations", "actions"):
        np.testing.assert_allclose(getattr(dataset, name), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(dataset.terminals, expected["terminals"])
    np.testing.assert_array_equal(dataset.timeouts, expected["timeouts"])
    assert_same_episodes(dataset.episode_ids, expected["episode_ids"])
    assert dataset.terminals.any()
    assert dataset.timeouts.any()


def test_wrapped_buffers_of_these_tests_have_really_wrapped():
    buffer = empty_buffer(30, 3)
    Recording(buffer, 40)
    assert buffer.full
    assert buffer.pos == 10


def test_the_spaces_come_along():
    buffer = empty_buffer(30, 2)
    Recording(buffer, 20)
    dataset = TransitionDataset.from_replay_buffer(buffer)
    assert (dataset.observation_space, dataset.action_space) == (OBSERVATION_SPACE, ACTION_SPACE)


def test_the_data_set_does_not_change_with_the_buffer():
    buffer = empty_buffer(30, 2)
    Recording(buffer, 40)
    dataset = TransitionDataset.from_replay_buffer(buffer)
    before = {name: getattr(dataset, name).copy() for name in ARRAYS}
    Recording(buffer, 11, seed=1)
    buffer.observations[:] = 0
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(dataset, name), before[name])


def test_episodes_of_different_environments_are_never_joined():
    """The last episode of one environment is still running where the record of the next one begins."""
    buffer = empty_buffer(10, 3)
    Recording(buffer, 2)
    dataset = TransitionDataset.from_replay_buffer(buffer)
    assert dataset.episode_starts.tolist() == [0, 2, 4]


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [17, 30, 40], ids=["part-full", "just-full", "wrapped"])
def test_a_memory_saving_buffer_gives_its_rows_except_the_one_it_has_overwritten(n_envs, n_steps):
    buffer = empty_buffer(30, n_envs, optimize_memory_usage=True, handle_timeout_termination=False)
    recording = Recording(buffer, n_steps, time_limits=False)
    with pytest.warns(UserWarning, match="did not record time limits"):
        dataset = TransitionDataset.from_replay_buffer(buffer)
    expected = recording.last(n_steps if n_steps < 30 else 29)
    assert len(dataset) == len(expected["rewards"])
    for name in ("observations", "rewards", "actions"):
        np.testing.assert_allclose(getattr(dataset, name), expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(dataset.terminals, expected["terminals"])
    assert not dataset.timeouts.any()
    assert_same_episodes(dataset.episode_ids, expected["episode_ids"])
    # SB3 keeps the state after an end in the place where the next episode's first one goes: it is lost, and never used.
    kept = ~expected["terminals"]
    np.testing.assert_array_equal(dataset.next_observations[kept], expected["next_observations"][kept])


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("memory_saving", [False, True])
def test_an_empty_buffer_is_refused(n_envs, memory_saving):
    buffer = empty_buffer(10, n_envs, optimize_memory_usage=memory_saving, handle_timeout_termination=not memory_saving)
    with pytest.raises(InputError, match=r"replay_buffer|observations"):
        TransitionDataset.from_replay_buffer(buffer)


@pytest.mark.parametrize(
    ("capacity", "kwargs"),
    [
        (10, {}),
        (1, {}),
        # Full, and its only state overwritten by the one that followed: nothing is left.
        (1, {"optimize_memory_usage": True, "handle_timeout_termination": False}),
    ],
    ids=["roomy", "full", "memory-saving"],
)
def test_a_buffer_with_one_transition_is_refused(capacity, kwargs):
    buffer = empty_buffer(capacity, 1, **kwargs)
    Recording(buffer, 1)
    with pytest.raises(InputError, match=r"replay_buffer|two"):
        TransitionDataset.from_replay_buffer(buffer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DictReplayBuffer(10, spaces.Dict(s=OBSERVATION_SPACE), ACTION_SPACE, "cpu"),
        lambda: NStepReplayBuffer(10, OBSERVATION_SPACE, ACTION_SPACE, "cpu", n_steps=3, gamma=0.9),
        lambda: ReplayBuffer(10, OBSERVATION_SPACE, spaces.Discrete(3), "cpu"),
        lambda: ReplayBuffer(10, spaces.Box(0, 255, (8, 8, 3), dtype=np.uint8), ACTION_SPACE, "cpu"),
    ],
    ids=["dict", "n-step", "discrete-actions", "images"],
)
def test_buffers_of_other_kinds_are_refused(make):
    with pytest.raises(InputError, match=r"replay_buffer|observation_space|action_space"):
        TransitionDataset.from_replay_buffer(make())


# --- from buffers that SB3's algorithms filled


def collect(algorithm, n_steps, buffer_size):
    """Random actions: learning starts after the end. Pendulum's episodes have 200 steps."""
    env = make_vec_env("Pendulum-v1", n_envs=2, seed=0)
    model = algorithm(
        "MlpPolicy", env, buffer_size=buffer_size, learning_starts=10**6, seed=0, device="cpu", policy_kwargs={"net_arch": [8]}
    )
    return model.learn(2 * n_steps)


@pytest.fixture(scope="module")
def td3():
    return collect(TD3, n_steps=300, buffer_size=2000)


@pytest.fixture(scope="module")
def wrapped_sac():
    return collect(SAC, n_steps=350, buffer_size=600)


def assert_obeys_the_pendulum(dataset):
    """Gymnasium's equations, from the recorded states and actions alone."""
    angle = np.arctan2(dataset.observations[:, 1], dataset.observations[:, 0]).astype(np.float64)
    speed, torque = dataset.observations[:, 2].astype(np.float64), dataset.actions[:, 0]
    np.testing.assert_allclose(dataset.rewards, -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), atol=2e-5)
    next_speed = np.clip(speed + (15.0 * np.sin(angle) + 3.0 * torque) * 0.05, -8, 8)
    next_angle = angle + 0.05 * next_speed
    expected = np.stack([np.cos(next_angle), np.sin(next_angle), next_speed], axis=1)
    # Across time limits too: the next state is the episode's own, not the one after the reset.
    np.testing.assert_allclose(dataset.next_observations, expected, atol=2e-5)


def test_a_buffer_filled_by_td3_obeys_the_pendulums_equations(td3):
    dataset = TransitionDataset.from_replay_buffer(td3.replay_buffer)
    assert len(dataset) == 600
    assert_obeys_the_pendulum(dataset)
    # Torques in the environment's units: not scaled to [-1, 1].
    assert np.abs(dataset.actions).max() > 1.5
    assert not dataset.terminals.any()
    assert np.flatnonzero(dataset.timeouts).tolist() == [199, 499]
    assert dataset.episode_starts.tolist() == [0, 200, 300, 500]


def test_within_an_episode_each_state_is_where_the_step_before_arrived(td3):
    dataset = TransitionDataset.from_replay_buffer(td3.replay_buffer)
    same_episode = np.diff(dataset.episode_ids) == 0
    np.testing.assert_array_equal(dataset.observations[1:][same_episode], dataset.next_observations[:-1][same_episode])
    assert same_episode.sum() == 600 - 4


def test_a_buffer_filled_by_sac_that_wrapped_around_obeys_the_pendulums_equations(wrapped_sac):
    assert wrapped_sac.replay_buffer.full
    assert wrapped_sac.replay_buffer.pos == 50
    dataset = TransitionDataset.from_replay_buffer(wrapped_sac.replay_buffer)
    assert len(dataset) == 600
    assert_obeys_the_pendulum(dataset)
    assert np.flatnonzero(dataset.timeouts).tolist() == [149, 449]


# --- the model's replay buffer


@pytest.fixture
def always_warn():
    """torch says some things only once in a process: here, every time."""
    th.set_warn_always(True)
    yield
    th.set_warn_always(False)


@pytest.mark.usefixtures("always_warn")
def test_learning_from_read_only_arrays_gives_no_warning():
    make_nopg("MlpPolicy", "Pendulum-v1", dataset=pendulum_dataset(), device="cpu", **BANDWIDTHS).learn(1)


def test_the_models_replay_buffer_holds_its_data_set():
    dataset = pendulum_dataset()
    model = make_nopg("MlpPolicy", "Pendulum-v1", dataset=dataset, device="cpu", **BANDWIDTHS)
    assert isinstance(model.replay_buffer, FixedReplayBuffer)
    assert model.replay_buffer.dataset is dataset
    assert model.replay_buffer.sample(5).observations.shape == (5, 3)


def parameters_of(model):
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().clone()


def attach_by_set_dataset(model, td3, tmp_path):
    model.set_dataset(TransitionDataset.from_replay_buffer(td3.replay_buffer))


def attach_td3s_pickle(model, td3, tmp_path):
    td3.save_replay_buffer(tmp_path / "td3")
    model.load_replay_buffer(tmp_path / "td3")


@pytest.mark.slow
@pytest.mark.parametrize("attach", [attach_by_set_dataset, attach_td3s_pickle], ids=["set_dataset", "load_replay_buffer"])
def test_a_model_built_without_data_learns_once_it_has_some(tmp_path, td3, attach):
    model = make_nopg("MlpPolicy", "Pendulum-v1", seed=0, device="cpu", **{"n_neighbors": 50, **BANDWIDTHS})
    with pytest.raises(InputError, match="dataset"):
        model.learn(1)
    attach(model, td3, tmp_path)
    before = parameters_of(model)
    model.learn(2)
    assert not th.equal(parameters_of(model), before)
    assert isinstance(model.replay_buffer, FixedReplayBuffer)
    expected = TransitionDataset.from_replay_buffer(td3.replay_buffer)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(model.dataset, name), getattr(expected, name))


def test_our_own_pickle_gives_the_data_set_back_exactly(tmp_path):
    dataset = pendulum_dataset()
    make_nopg("MlpPolicy", "Pendulum-v1", dataset=dataset, device="cpu", **BANDWIDTHS).save_replay_buffer(
        tmp_path / "ours.pkl"
    )
    model = make_nopg("MlpPolicy", "Pendulum-v1", device="cpu", **BANDWIDTHS)
    model.load_replay_buffer(tmp_path / "ours.pkl")
    for name in ("observations", "actions", "rewards", "next_observations", "terminals", "episode_ids"):
        assert getattr(model.dataset, name).dtype == getattr(dataset, name).dtype
        np.testing.assert_array_equal(getattr(model.dataset, name), getattr(dataset, name))
        assert not getattr(model.dataset, name).flags.writeable
    assert model.dataset.timeouts is None


def test_td3_can_take_over_our_buffer(tmp_path):
    """It is an SB3 replay buffer: another algorithm can train on it."""
    make_nopg("MlpPolicy", "Pendulum-v1", dataset=pendulum_dataset(), device="cpu", **BANDWIDTHS).save_replay_buffer(
        tmp_path / "ours.pkl"
    )
    model = TD3("MlpPolicy", "Pendulum-v1", device="cpu", policy_kwargs={"net_arch": [8]}, seed=0)
    model.learn(0)
    model.load_replay_buffer(tmp_path / "ours.pkl")
    before = th.cat([parameter.detach().flatten().clone() for parameter in model.critic.parameters()])
    model.train(gradient_steps=2, batch_size=16)
    assert not th.equal(th.cat([parameter.detach().flatten() for parameter in model.critic.parameters()]), before)


def save_buffer_with(path, observation_space, action_space, fill=True):
    buffer = ReplayBuffer(20, observation_space, action_space, "cpu")
    rng = np.random.default_rng(0)
    for _ in range(10 if fill else 0):
        observation = rng.normal(size=(1, *observation_space.shape)).astype(np.float32)
        action = rng.uniform(-1, 1, size=(1, *action_space.shape)).astype(np.float32)
        buffer.add(observation, observation, action, np.zeros(1), np.zeros(1), [{}])
    model = TD3("MlpPolicy", "Pendulum-v1", buffer_size=1, device="cpu", policy_kwargs={"net_arch": [8]})
    model.replay_buffer = buffer
    model.save_replay_buffer(path)


def save_truncated(path):
    save_buffer_with(path, OBSERVATION_SPACE, spaces.Box(-2, 2, (1,)))
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("save", "field"),
    [
        (lambda path: save_buffer_with(path, spaces.Box(-9, 9, (2,)), spaces.Box(-2, 2, (1,))), "observations"),
        (lambda path: save_buffer_with(path, OBSERVATION_SPACE, spaces.Box(-2, 2, (2,))), "actions"),
        (lambda path: save_buffer_with(path, OBSERVATION_SPACE, spaces.Box(-20, 20, (1,))), "actions"),
        (
            lambda path: save_buffer_with(path, OBSERVATION_SPACE, spaces.Box(-2, 2, (1,)), fill=False),
            "replay_buffer|observations",
        ),
        (lambda path: path.write_bytes(b"\x80\x04K\x05."), "buffer.pkl"),
        (lambda path: path.write_text("hello"), "buffer.pkl"),
        (lambda path: path.write_bytes(b""), "buffer.pkl"),
        (save_truncated, "buffer.pkl"),
    ],
    ids=["states-2", "actions-2", "actions-outside", "empty-buffer", "pickled-number", "text", "empty-file", "truncated"],
)
def test_a_buffer_that_cannot_be_used_leaves_the_model_as_it_was(tmp_path, save, field):
    path = tmp_path / "buffer.pkl"
    save(path)
    model = make_nopg("MlpPolicy", "Pendulum-v1", dataset=pendulum_dataset(), device="cpu", seed=0, **BANDWIDTHS)
    dataset, replay_buffer, bandwidths = model.dataset, model.replay_buffer, model.bandwidths
    estimate = model.estimated_return()
    with pytest.raises(InputError, match=field):
        model.load_replay_buffer(path)
    assert model.dataset is dataset
    assert model.replay_buffer is replay_buffer
    assert model.bandwidths is bandwidths
    assert model.estimated_return() == pytest.approx(estimate, rel=1e-9)
    model.learn(1)
