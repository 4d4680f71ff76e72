"""Synthetic transitions: as right as the model says they are, where the data are, and never taken for real ones."""

import logging

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import nopg_envs
from sb3_nopg import InputError, TransitionDataset, add_mirror_images, local_model
from sb3_nopg.cli.data import app
from sb3_nopg.data_info import describe_data
from sb3_nopg.densify import prediction_error
from sb3_nopg.preparation import find_initial_states
from sb3_nopg.state_surface import StateSurface
from test_dataset import assert_same_bits

A, B, C = np.array([[-0.1, 0.3], [-0.2, 0.05]]), np.array([[0.1], [0.4]]), np.array([0.5, -1.0])


def linear_system(n=300, noise=0.0, seed=0, n_episodes=6, limit=np.inf, **changes):
    """s' = s + A s + B a, r = c's + a, with noise; the task ends where the first state passes the limit."""
    rng = np.random.default_rng(seed)
    states, actions = rng.uniform(-1, 1, size=(n, 2)), rng.uniform(-2, 2, size=(n, 1))
    next_states = states + states @ A.T + actions @ B.T + noise * rng.normal(size=(n, 2))
    fields = {
        "observations": states,
        "actions": actions,
        "rewards": states @ C + actions[:, 0] + noise * rng.normal(size=n),
        "next_observations": next_states,
        "terminals": next_states[:, 0] > limit,
        "timeouts": np.zeros(n, dtype=bool),
        "episode_ids": np.arange(n) // -(-n // n_episodes),
        "action_space": spaces.Box(-2, 2, (1,)),
    }
    return TransitionDataset(**{**fields, **changes})


def pendulum(n=600):
    env = gym.make("nopg/Pendulum-v0")
    arrays = nopg_envs.rollouts(env, "gaussian_mixture", n_transitions=n, seed=0)
    return TransitionDataset(**arrays, observation_space=env.observation_space, action_space=env.action_space)


def made(dataset):
    """The synthetic transitions alone."""
    return dataset.filter("synthetic")


# --- the model


def test_a_linear_system_is_recovered():
    synthetic = made(linear_system().densify(500, ridge=1e-12))
    states, actions = synthetic.observations, synthetic.actions
    assert len(synthetic) == 500
    np.testing.assert_allclose(synthetic.next_observations, states + states @ A.T + actions @ B.T, atol=1e-9)
    inside = np.clip(states @ C + actions[:, 0], linear_system().rewards.min(), linear_system().rewards.max())
    np.testing.assert_allclose(synthetic.rewards, inside, atol=1e-9)


def test_the_regression_is_weighted_least_squares():
    """Against the textbook's solution for one query, of a system that is not linear."""
    data = linear_system(200, noise=0.3)
    transitions = local_model.Transitions(
        data.observations, data.actions, data.rewards, data.next_observations**2, data.terminals
    )
    settings = local_model.Settings(bandwidth=0.7, ridge=1e-10, n_neighbors=60, terminates=None, reward=None)
    state, action = np.array([[0.2, -0.3]]), np.array([[0.5]])
    predicted, _ = local_model.LocalModel(transitions, settings).predict(state, action)

    inputs = np.concatenate([data.observations, data.actions], axis=1)
    scaled = (inputs - np.concatenate([state, action], axis=1)) / inputs.std(axis=0)
    nearest = np.argsort((scaled**2).sum(axis=1))[:60]
    root = np.sqrt(np.exp(-0.5 * (scaled[nearest] ** 2).sum(axis=1) / 0.7**2))[:, None]
    design = np.concatenate([np.ones((60, 1)), scaled[nearest]], axis=1)
    change = (data.next_observations**2 - data.observations)[nearest]
    expected = np.linalg.lstsq(root * design, root * change, rcond=None)[0][0]
    np.testing.assert_allclose(predicted.next_states[0], state[0] + expected, atol=1e-6)


def test_actions_are_uniform_over_the_action_space():
    actions = made(linear_system().densify(3000)).actions
    np.testing.assert_allclose(np.quantile(actions, [0.1, 0.5, 0.9]), [-1.6, 0.0, 1.6], atol=0.2)
    unknown = linear_system(action_space=None)
    bounds = unknown.actions.min(), unknown.actions.max()
    drawn = made(unknown.densify(3000)).actions
    assert bounds[0] <= drawn.min() < 0.95 * bounds[0]
    assert 0.95 * bounds[1] < drawn.max() <= bounds[1]


def test_noise_on_states_is_what_was_asked_for():
    """An inner point surrounded by data, so that hardly any candidate is dropped."""
    data = linear_system(observations=np.random.default_rng(0).normal(size=(300, 2)))
    spread = made(data.densify(4000, jitter=0.1)).observations.std(axis=0) / data.observations.std(axis=0)
    assert np.all(spread < 1.1)
    still = made(data.densify(100, jitter=0.0)).observations
    assert {tuple(row) for row in still} <= {tuple(row) for row in data.observations}


def test_the_size_of_blocks_does_not_change_the_result(monkeypatch):
    expected = linear_system().densify(400)
    monkeypatch.setattr(local_model, "_BLOCK_NUMBERS", 10_000)
    found = linear_system().densify(400)
    np.testing.assert_allclose(found.next_observations, expected.next_observations, atol=1e-12)


def test_no_more_neighbours_than_a_block_are_held_at_once(monkeypatch):
    sizes = []
    regress = local_model.LocalModel._regress

    def watched(self, queries, n_neighbors):
        sizes.append(len(queries) * n_neighbors * (queries.shape[1] + self._targets.shape[1]))
        return regress(self, queries, n_neighbors)

    monkeypatch.setattr(local_model.LocalModel, "_regress", watched)
    monkeypatch.setattr(local_model, "_BLOCK_NUMBERS", 2**20)
    assert len(linear_system(1000).densify(20_000, n_neighbors=50)) == 21_000
    assert max(sizes) <= 2**20


# --- rewards and ends


def test_rewards_stay_within_those_seen():
    data = linear_system(noise=0.3)
    synthetic = made(data.densify(2000))
    assert data.rewards.min() <= synthetic.rewards.min()
    assert synthetic.rewards.max() <= data.rewards.max()


def test_a_known_reward_is_used_as_it_is():
    synthetic = made(linear_system().densify(200, reward=lambda s, a, s2: 100 * s[:, 0] + 10 * a[:, 0] + s2[:, 1]))
    expected = 100 * synthetic.observations[:, 0] + 10 * synthetic.actions[:, 0] + synthetic.next_observations[:, 1]
    np.testing.assert_allclose(synthetic.rewards, expected, atol=1e-9)


def test_ends_are_voted_on():
    data = linear_system(1000, limit=0.5)
    acting = data.filter(data.observations[:, 0] <= 0.5)
    synthetic = made(acting.densify(2000))
    truth = synthetic.next_observations[:, 0] > 0.5
    assert truth.sum() > 50
    assert (synthetic.terminals != truth).mean() < 0.02
    assert (synthetic.terminals & truth).sum() > 0.7 * truth.sum()
    assert not made(linear_system().densify(100)).terminals.any()


def test_known_ends_are_used_as_they_are():
    synthetic = made(linear_system(limit=0.8).densify(500, terminates=lambda s2: s2[:, 0] > 0.8))
    np.testing.assert_array_equal(synthetic.terminals, synthetic.next_observations[:, 0] > 0.8)
    assert synthetic.terminals.any()


def test_nothing_starts_where_the_task_has_ended():
    data = linear_system(1000, limit=0.8)
    acting = data.filter(data.observations[:, 0] <= 0.8)
    assert made(acting.densify(2000, jitter=1.0, terminates=lambda s: s[:, 0] > 0.8)).observations[:, 0].max() <= 0.8


def test_a_function_that_contradicts_the_data_is_told(caplog):
    data = linear_system(limit=0.8)
    data.densify(10, terminates=lambda s2: s2[:, 0] > 0.8)
    assert "contradicts" not in caplog.text
    data.densify(10, terminates=lambda s2: s2[:, 0] > -0.5)
    n_wrong = int(((data.next_observations[:, 0] > -0.5) != data.terminals).sum())
    assert f"contradicts `terminals` at {n_wrong} of 300" in caplog.text


# --- where synthetic states lie


def test_pendulum_states_lie_on_the_circle():
    data = pendulum()
    synthetic = made(data.densify(1000))
    for states in (synthetic.observations, synthetic.next_observations):
        np.testing.assert_allclose(np.hypot(states[:, 0], states[:, 1]), 1.0, atol=1e-6)
    moved = np.abs(synthetic.observations[:, None, 2] - data.observations[None, :, 2]).min(axis=1)
    assert moved.max() > 0.01


def test_pendulum_transitions_are_true():
    """Against the simulator itself, and no worse than the cross-validated error says."""
    data, env = pendulum(), gym.make("nopg/Pendulum-v0")
    synthetic, error = made(data.densify(200)), prediction_error(data)
    truth = []
    for observation, action in zip(synthetic.observations, synthetic.actions, strict=True):
        env.reset(options={"state": np.array([np.arctan2(observation[1], observation[0]), observation[2]])})
        truth.append(env.step(action)[0])
    rmse = np.sqrt(((np.array(truth) - synthetic.next_observations) ** 2).mean(axis=0))
    assert np.all(rmse < 1.5 * error.rmse)
    assert np.all(rmse < 0.2 * (data.next_observations - data.observations).std(axis=0))


def test_relations_between_states_are_found_and_kept():
    rng = np.random.default_rng(0)
    angle, speed = rng.uniform(-3, 3, size=(2, 400))
    switch, share = rng.integers(0, 2, size=400), rng.uniform(size=400)
    states = np.stack([np.sin(angle), np.cos(angle), speed, switch, share, 1 - share, np.full(400, 7.0)], axis=1)
    surface = StateSurface(states)
    # The constant and the shares that add up to one; the circle and the switch.
    assert (surface.n_linear, surface.n_quadratic) == (2, 2)
    projected = surface.project(states + 0.3 * states.std(axis=0) * rng.normal(size=states.shape))
    np.testing.assert_allclose(np.hypot(projected[:, 0], projected[:, 1]), 1.0, atol=1e-6)
    np.testing.assert_allclose(projected[:, 3] * (1 - projected[:, 3]), 0.0, atol=1e-6)
    np.testing.assert_allclose(projected[:, 4] + projected[:, 5], 1.0, atol=1e-9)
    np.testing.assert_allclose(projected[:, 6], 7.0, atol=1e-9)
    assert np.abs(projected[:, 2] - speed).max() > 0.1


@pytest.mark.parametrize("n", [10, 300])
def test_states_that_nothing_binds_are_left_alone(n):
    states = np.random.default_rng(0).normal(size=(n, 3))
    surface = StateSurface(states)
    assert (surface.n_linear, surface.n_quadratic) == (0, 0)
    np.testing.assert_allclose(surface.project(states), states, atol=1e-9)


def test_the_surface_of_states_in_single_precision_is_found():
    """Near upright, where the cosine hardly changes and rounding is a large part of it."""
    angle = np.random.default_rng(0).uniform(-0.2, 0.2, size=500)
    states = np.stack([np.sin(angle), np.cos(angle), angle**3], axis=1).astype(np.float32)
    assert StateSurface(states).n_quadratic >= 1


def test_gaps_in_the_data_stay_empty():
    """Two clusters: noise of one standard deviation goes to the middle between them, where nothing is known."""
    rng = np.random.default_rng(0)
    centres = np.where(rng.random(2000) < 0.5, -10.0, 10.0)
    states = np.stack([centres, np.zeros(2000)], axis=1) + rng.uniform(-1, 1, size=(2000, 2))
    synthetic = made(linear_system(2000, observations=states).densify(1000, jitter=1.0, n_neighbors=50))
    # Half a standard deviation from either.
    assert np.abs(synthetic.observations[:, 0]).min() > 4.0


def test_states_stay_inside_the_observation_space():
    space = spaces.Box(np.float32([-0.9, -np.inf]), np.float32([0.9, np.inf]))
    data = linear_system(observation_space=space)
    synthetic = made(data.densify(1000))
    assert np.abs(synthetic.observations[:, 0]).max() <= 0.9
    reached = np.abs(data.next_observations[:, 0]).max()
    assert np.abs(synthetic.next_observations[:, 0]).max() <= max(0.9, reached)


def test_noise_that_leaves_the_data_is_refused():
    with pytest.raises(InputError, match=r"jitter.*near the data"):
        linear_system().densify(100_000, jitter=1000.0)


# --- the error


def test_the_error_is_the_noise_of_a_linear_system():
    data = linear_system(3000, noise=0.1)
    error = prediction_error(data, bandwidth=3.0)
    np.testing.assert_allclose(error.rmse, 0.1, rtol=0.06)
    change = (data.next_observations - data.observations).var(axis=0)
    np.testing.assert_allclose(error.r_squared, 1 - 0.01 / change, atol=0.02)
    assert error.reward_rmse == pytest.approx(0.1, rel=0.06)
    assert error.reward_r_squared == pytest.approx(1 - 0.01 / data.rewards.var(), abs=0.01)
    assert (error.n_transitions, error.left_out, error.n_folds) == (3000, "episode", 6)


def test_ends_are_counted():
    data = linear_system(1000, limit=0.8)
    error = prediction_error(data, terminates=lambda s2: np.zeros(len(s2), dtype=bool))
    assert (error.missed_terminals, error.false_terminals) == (data.terminals.sum(), 0)
    assert error.terminal_accuracy == pytest.approx(1 - data.terminals.mean())
    error = prediction_error(data, terminates=lambda s2: np.ones(len(s2), dtype=bool))
    assert (error.missed_terminals, error.false_terminals) == (0, 1000 - data.terminals.sum())


@pytest.mark.parametrize("with_episodes", [True, False])
def test_nothing_leaks_within_an_episode(with_episodes):
    """Every episode stands still at a point and goes to another that only the episode itself tells."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(100), 10)
    states = rng.normal(size=(100, 2))[ids] + 1e-3 * rng.normal(size=(1000, 2))
    data = linear_system(
        1000,
        observations=states,
        next_observations=states + rng.normal(size=(100, 2))[ids],
        episode_ids=ids if with_episodes else None,
        actions=rng.normal(size=(100, 1))[ids],
        timeouts=None,
        action_space=None,
    )
    error = prediction_error(data, bandwidth=0.05)
    assert np.all(error.r_squared < 0.1) if with_episodes else np.all(error.r_squared > 0.9)


def test_pure_noise_is_not_predicted():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(400, 2))
    data = linear_system(400, observations=states, next_observations=states + rng.normal(size=(400, 2)), episode_ids=None)
    error = prediction_error(data)
    assert error.left_out == "transition"
    assert np.all(error.r_squared < 0.05)


def test_the_error_can_be_read():
    text = str(prediction_error(linear_system(noise=0.1, limit=0.8, rewards=np.ones(300))))
    lines = text.splitlines()
    assert lines[0] == "Error on 300 real transitions, left out of the model in 6 parts of whole episodes:"
    assert [line.split()[0] for line in lines[2:]] == ["state", "state", "reward", "terminal"]
    # Of a reward that never changes there is nothing to explain.
    assert lines[4].split()[2] == "–"


def test_densify_tells_the_error_in_the_log(caplog):
    data = linear_system(noise=0.1, limit=0.8)
    with caplog.at_level(logging.INFO, logger="sb3_nopg"):
        data.densify(10)
    assert str(prediction_error(data)) in caplog.text
    assert "voted on" in caplog.text


# --- marks


def test_real_transitions_come_first_and_as_they_were():
    data = linear_system(noise=0.1, limit=0.8)
    denser = data.densify(50)
    assert (len(denser), denser.n_synthetic, data.n_synthetic) == (350, 50, 0)
    assert_same_bits(denser.real, data)
    assert data.real is data
    assert denser.observation_space == data.observation_space


def test_only_real_transitions_are_learned_from():
    data = linear_system(noise=0.1)
    once = data.densify(50, seed=1)
    assert_same_bits(once.densify(70, seed=2), data.densify(70, seed=2))
    assert str(prediction_error(once)) == str(prediction_error(data))


def test_the_same_seed_gives_the_same_data():
    data = linear_system(noise=0.1)
    assert_same_bits(data.densify(50, seed=3), data.densify(50, seed=3))
    assert not np.array_equal(data.densify(50, seed=3).actions, data.densify(50, seed=4).actions)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_stays(dtype):
    data = linear_system()
    data = linear_system(observations=data.observations.astype(dtype), actions=data.actions.astype(dtype))
    denser = data.densify(20)
    assert (denser.observations.dtype, denser.actions.dtype, denser.rewards.dtype) == (dtype, dtype, np.float64)


@pytest.mark.parametrize("name", ["d.npz", "d.h5", "d.csv", "d.parquet", "d.pkl"])
def test_files_keep_the_mark(tmp_path, name):
    denser = linear_system(noise=0.1, limit=0.8).densify(50)
    assert_same_bits(TransitionDataset.load(denser.save(tmp_path / name), trust=True), denser)


def test_minari_refuses_what_it_cannot_mark(tmp_path):
    denser = linear_system().densify(50)
    with pytest.raises(InputError, match="50 transitions as synthetic"):
        denser.save(tmp_path / "d-v0", "minari")
    assert not list(tmp_path.iterdir())
    denser.real.save(tmp_path / "d-v0", "minari")


def test_transformations_keep_the_mark():
    data = linear_system()
    denser = data.densify(50)
    assert TransitionDataset.merge(denser, data).synthetic.tolist() == [False] * 300 + [True] * 50 + [False] * 300
    assert TransitionDataset.merge(data, data).synthetic is None
    assert denser.filter("s[0] > 0").synthetic.tolist() == denser.synthetic[denser.observations[:, 0] > 0].tolist()
    assert len(denser.filter("not synthetic")) == 300
    assert add_mirror_images(denser, [-1, -1], [-1]).synthetic.tolist() == [*denser.synthetic.tolist()] * 2
    for same in (denser.with_units(10.0), denser.relabel("r + 1")):
        np.testing.assert_array_equal(same.synthetic, denser.synthetic)
    assert denser.subsample(340).n_synthetic >= 40
    assert "synthetic     50" in repr(denser)


def test_split_comes_before():
    with pytest.raises(InputError, match=r"50 of 350 transitions are synthetic.*first"):
        linear_system().densify(50).split((0.5, 0.5))
    marked = linear_system(synthetic=np.zeros(300, dtype=bool))
    assert len(marked.split((0.5, 0.5))) == 2


@pytest.mark.parametrize("known_by", ["episode_ids", "timeouts"])
def test_synthetic_transitions_start_no_episode(known_by):
    changes = {"episode_ids": None, "timeouts": np.arange(300) % 30 == 29} if known_by == "timeouts" else {}
    data = linear_system(limit=0.8, **changes)
    denser = data.densify(400)
    assert denser.terminals[300:].any()
    np.testing.assert_array_equal(denser.episode_starts, data.episode_starts)
    np.testing.assert_array_equal(find_initial_states(None, denser, None, None), data.observations[data.episode_starts])
    mirrored = add_mirror_images(denser, [-1, -1], [-1])
    assert len(mirrored.episode_starts) == 2 * len(data.episode_starts)
    assert len(TransitionDataset.merge(data, denser).episode_starts) == 2 * len(data.episode_starts)
    assert made(denser).episode_starts is None


def test_synthetic_transitions_belong_to_the_episode_that_their_state_comes_from():
    data = linear_system(episode_ids=np.arange(300) // 30)
    synthetic = made(data.densify(200, jitter=0.0))
    episode_of = {tuple(state): number for state, number in zip(data.observations, data.episode_ids, strict=True)}
    assert synthetic.episode_ids.tolist() == [episode_of[tuple(state)] for state in synthetic.observations]


def test_marks_without_ids_start_no_episode():
    """Rows of any order, where only ends tell episodes apart."""
    timeouts, synthetic = np.array([0, 1, 0, 0, 1, 0]), np.array([1, 1, 0, 0, 0, 0])
    states = np.arange(6.0)[:, None]
    data = TransitionDataset(states, states, states[:, 0], states, np.zeros(6), timeouts, synthetic=synthetic)
    assert data.episode_starts.tolist() == [2, 5]


def test_data_without_episodes_stay_so():
    data = linear_system(episode_ids=None, timeouts=None)
    denser = data.densify(50)
    assert (denser.episode_ids, denser.timeouts, denser.episode_starts) == (None, None, None)


def test_taking_rows_warns_of_real_starts_only(caplog):
    denser = linear_system().densify(50)
    made(denser)
    assert caplog.text == ""
    denser.filter(np.arange(350) > 0)
    assert "1 episode(s) lost their first transition" in caplog.text


def test_info_tells_real_from_synthetic():
    data = linear_system(noise=0.1)
    told, of_real = describe_data(data.densify(50)), describe_data(data)
    assert (told["real"], told["synthetic"], of_real["real"], of_real["synthetic"]) == (300, 50, 300, 0)
    assert told["episodes"] == of_real["episodes"]
    assert any("50 transitions are synthetic" in remark for remark in told["remarks"])
    assert describe_data(made(data.densify(50)))["episodes"] is None


# --- bad input


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("n", {"n": 0}),
        ("n", {"n": 2.5}),
        ("n", {"n": True}),
        ("jitter", {"jitter": -0.1}),
        ("jitter", {"jitter": np.nan}),
        ("jitter", {"jitter": "0.4"}),
        ("bandwidth", {"bandwidth": 0.0}),
        ("bandwidth", {"bandwidth": np.inf}),
        ("ridge", {"ridge": 0}),
        ("n_neighbors", {"n_neighbors": 7}),
        ("n_neighbors", {"n_neighbors": None}),
        ("terminates", {"terminates": "abs(s2[0]) > 1"}),
        ("terminates", {"terminates": lambda s2: s2[:, 0]}),
        ("terminates", {"terminates": lambda s2: s2[:5, 0] > 0}),
        ("reward", {"reward": lambda s, a, s2: s}),
        ("reward", {"reward": lambda s, a, s2: s[:3, 0]}),
        ("reward", {"reward": lambda s, a, s2: np.full(len(s), np.nan)}),
    ],
)
def test_wrong_arguments_are_named(field, changes):
    with pytest.raises(InputError) as caught:
        linear_system().densify(**{"n": 20, **changes})
    assert caught.value.field == field


def test_too_few_real_transitions_are_refused():
    with pytest.raises(InputError, match="8 real transitions"):
        linear_system(8, n_episodes=2).densify(10)
    with pytest.raises(InputError, match="every transition is synthetic"):
        made(linear_system().densify(50)).densify(10)
    with pytest.raises(InputError, match="is a list"):
        prediction_error([1, 2])


@pytest.mark.parametrize("value", [np.zeros(299), np.full(300, 2), np.zeros((300, 1))])
def test_wrong_marks_are_refused(value):
    with pytest.raises(InputError, match="synthetic"):
        linear_system(synthetic=value)


# --- the command line


def nopg_data(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def test_the_command_writes_what_the_method_makes_and_shows_the_error(tmp_path):
    data = linear_system(noise=0.1, limit=0.8)
    path, output = data.save(tmp_path / "d.npz"), tmp_path / "denser.npz"
    options = ("--jitter", 0.3, "--bandwidth", 0.9, "--n-neighbors", 50, "--seed", 5)
    result = nopg_data("densify", path, output, "-n", 40, *options, "--terminates", "s2[0] > 0.8")
    assert result.exit_code == 0, result.output
    settings = {"bandwidth": 0.9, "n_neighbors": 50, "terminates": lambda s2: s2[:, 0] > 0.8}
    assert_same_bits(TransitionDataset.load(output), data.densify(40, jitter=0.3, seed=5, **settings))
    assert str(prediction_error(data, **settings)) in result.stdout
    assert "Wrote 340 transitions" in result.stdout
    shown = nopg_data("info", output)
    assert "300 / 40" in shown.stdout
    assert "is there already" in nopg_data("densify", path, output, "-n", 40).stderr
    assert nopg_data("convert", output, tmp_path / "x.npz", "--split", "0.5,0.5").exit_code == 2


def test_the_command_knows_the_names_of_columns(tmp_path):
    path = linear_system(limit=0.8).save(tmp_path / "d.csv")
    path.write_text(path.read_text().replace("obs_0", "x").replace("obs_1", "v"))
    names = ("--obs", "x,v", "--next-obs", "next_x,next_v")
    result = nopg_data("densify", path, tmp_path / "o.csv", "-n", 20, *names, "--terminates", "next_x > 0.8")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-n", 0), "positive whole number"),
        (("-n", 10, "--terminates", "x > 1"), "not one of s2"),
        (("-n", 10, "--terminates", "s2[0]"), "terminates"),
        (("-n", 10, "--bandwidth", -1), "bandwidth"),
    ],
)
def test_the_command_says_what_is_wrong_in_one_line(tmp_path, options, reason):
    path = linear_system().save(tmp_path / "d.npz")
    result = nopg_data("densify", path, tmp_path / "o.npz", *options)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "o.npz").exists()


@pytest.mark.parametrize("dt", [0.02, 0.005])
def test_the_velocity_between_two_positions_survives(dt):
    """Observations of a position and the one before it: noise in each on its own would make velocities that never were."""
    rng = np.random.default_rng(0)
    position, velocity = rng.uniform(-1, 1, 2000), rng.normal(size=2000) * 0.3
    states = np.stack([position, position - dt * velocity], axis=1)
    after = np.stack([position + dt * velocity, position], axis=1)
    data = TransitionDataset(states, rng.uniform(-1, 1, (2000, 1)), np.zeros(2000), after, np.zeros(2000, dtype=bool))
    dense = data.densify(2000)
    made = dense.observations[dense.synthetic]
    implied = (made[:, 0] - made[:, 1]) / dt
    assert 0.2 < implied.std() < 0.5
