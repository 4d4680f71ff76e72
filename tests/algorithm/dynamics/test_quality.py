"""How good a model is, what it predicts, and what it says of itself."""

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from matplotlib.figure import Figure

import nopg_envs
from helpers.point_with_friction import pushed_point
from helpers.systems import cart, record
from sb3_nopg import NOPGD, DynamicsModel, InputError, TransitionDataset, follow, model_errors
from sb3_nopg.dynamics.quality_plot import plot_predictions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def point() -> TransitionDataset:
    return pushed_point(n_episodes=20, n_steps=30)


@pytest.fixture(scope="module")
def pendulum() -> TransitionDataset:
    env = gym.make("nopg/Pendulum-v0")
    starts = np.random.default_rng(0).uniform([-np.pi, -6.0], [np.pi, 6.0], (24, 2))
    parts = [nopg_envs.rollouts(env, "uniform", n_transitions=25, start=start, seed=i) for i, start in enumerate(starts)]
    return TransitionDataset.merge(*(TransitionDataset(**part) for part in parts))


@pytest.fixture(scope="module")
def model(point) -> DynamicsModel:
    return DynamicsModel.fit(point)


def test_a_linear_system_is_predicted_exactly(point, model):
    moved, rewards = model.predict(point.observations, point.actions)
    np.testing.assert_allclose(moved, point.next_observations, atol=1e-6)
    np.testing.assert_allclose(rewards, point.rewards, atol=1e-5)
    one, reward = model.predict(point.observations[0], point.actions[0])
    np.testing.assert_allclose(one, point.next_observations[:1], atol=1e-6)
    assert reward.shape == (1,)


def test_actions_beyond_their_range_count_as_its_end(pendulum):
    model = DynamicsModel.fit(pendulum)
    state = pendulum.observations[:1]
    largest = model.predict(state, [[pendulum.actions.max()]])[0]
    np.testing.assert_array_equal(model.predict(state, [[99.0]])[0], largest)


def test_an_exact_system_goes_on_beyond_the_actions_of_its_data(point, model):
    moved = model.predict([[0.5, 0.3]], [[99.0]])[0]
    np.testing.assert_allclose(moved, [[0.53, 0.27 + 19.8]], rtol=1e-6)


def test_errors_of_a_linear_system_are_nothing_and_long_horizons_unknown(point):
    errors = model_errors(point, steps=(1, 10, 50))
    one, ten, fifty = errors.after
    assert one.model.rmse < 1e-5
    assert ten.model.rmse < 1e-4
    assert ten.model.median <= 2 * ten.model.rmse
    assert ten.nothing_changes.rmse > 100 * ten.model.rmse
    # It is one affine model.
    assert ten.one_affine == ten.model
    assert len(ten.by_coordinate) == len(errors.coordinates) == 2
    # No episode is that long.
    assert (fifty.n_places, fifty.model, fifty.nothing_changes) == (0, None, None)
    assert errors.text().splitlines()[-1].split() == ["50", "steps", *["not", "known"] * 3]


def test_errors_after_one_step_are_what_they_are_said_to_be(point):
    """By hand: leave the same fifth out, fit, predict, compare."""
    from sb3_nopg.dynamics.quality import fit_without

    noisy = TransitionDataset(
        **{
            **{name: getattr(point, name) for name in ("observations", "actions", "rewards", "terminals", "episode_ids")},
            "next_observations": point.next_observations + np.random.default_rng(1).normal(0, 0.01, point.observations.shape),
        }
    )
    errors = model_errors(noisy, steps=(1,), seed=4).after[0]
    fitted, left_out = fit_without(noisy, None, 4)
    assert 0.1 < left_out.mean() < 0.3
    assert set(noisy.episode_ids[left_out]).isdisjoint(noisy.episode_ids[~left_out])
    rows = np.flatnonzero(left_out)
    away = (fitted.predict(noisy.observations[rows], noisy.actions[rows])[0] - noisy.next_observations[rows]) / (
        noisy.observations.std(axis=0, ddof=1)
    )
    assert errors.n_places == len(rows)
    assert errors.model.rmse == pytest.approx(np.sqrt(np.square(away).mean()), rel=1e-6)
    assert errors.model.rmse > 0.005


def test_a_bent_system_is_better_than_one_affine_model():
    errors = model_errors(record(cart, start=(1.5, 1.5), n_episodes=30), steps=(1, 10))
    for one in errors.after:
        assert one.model.rmse < one.nothing_changes.rmse
        assert one.model.rmse < one.one_affine.rmse


def test_one_formula_knows_a_pendulum_whose_speed_stops(pendulum):
    errors = model_errors(pendulum, steps=(1, 10))
    for one in errors.after:
        assert one.model.rmse < 0.1 * one.nothing_changes.rmse
        assert one.model.rmse == one.one_affine.rmse
    assert any("angle" in name for name in errors.coordinates)


def test_a_model_of_all_data_lends_its_choices(pendulum):
    whole = DynamicsModel.fit(pendulum)
    errors = model_errors(pendulum, whole, steps=(1,), n_nodes=800, angles=None)
    assert errors.after[0].model.rmse < errors.after[0].nothing_changes.rmse


def test_data_without_episodes_know_one_step_only():
    grid = TransitionDataset(**nopg_envs.grid(gym.make("nopg/Pendulum-v0"), levels=(8, 8, 2)))
    one, ten = model_errors(grid, steps=(1, 10)).after
    assert one.model.rmse < one.nothing_changes.rmse
    assert ten.model is None
    with pytest.raises(InputError, match="episodes"):
        plot_predictions(grid)


@pytest.mark.parametrize("steps", [(), (0,), (1.5,), (True,)])
def test_steps_are_counts(point, steps):
    with pytest.raises(InputError, match="steps"):
        model_errors(point, steps=steps)


def test_too_few_data_are_refused(point):
    with pytest.raises(InputError, match="too few"):
        model_errors(point.filter(np.arange(len(point)) < 8))


def test_the_picture_shows_every_coordinate_of_some_episodes(point, tmp_path):
    figure = plot_predictions(point, tmp_path / "p.png", n_episodes=3, names=["x", "speed"])
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 2 * 3
    assert [panel.get_ylabel() for panel in figure.axes if panel.get_ylabel()] == ["x", "speed"]
    recorded, predicted = figure.axes[0].lines
    assert len(recorded.get_ydata()) == 31
    np.testing.assert_allclose(predicted.get_ydata(), recorded.get_ydata(), atol=1e-4)
    assert (tmp_path / "p.png").stat().st_size > 0
    with pytest.raises(InputError, match="picture"):
        plot_predictions(point, tmp_path / "p.txt")


def test_any_policy_is_followed(point, model, tmp_path):
    by_hand = follow(model, lambda states: -states[:, :1], [0.5, 0.0], 12)
    state = np.array([[0.5, 0.0]])
    for step in range(12):
        state, _ = model.predict(state, np.clip(-state[:, :1], -1, 1))
        np.testing.assert_allclose(by_hand.states[step + 1], state, atol=1e-6)
    trained = NOPGD("LinearPolicy", None, dataset=point, gamma=0.9, seed=0, device="cpu").learn(1)
    trained.save(tmp_path / "m.zip")
    starts = point.observations[:3]
    of_model, of_file = (follow(model, policy, starts, 5).states for policy in (trained, tmp_path / "m.zip"))
    np.testing.assert_array_equal(of_model, of_file)
    one, again, other = (follow(model, trained, starts, 5, noise_seed=seed).states for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("policy", "starts", "n_steps", "field"),
    [
        (lambda states: states, [0.5, 0.0], 5, "policies"),
        ("nix.zip", [0.5, 0.0], 5, "policies"),
        (lambda states: states[:, :1], [0.5], 5, "starts"),
        (lambda states: states[:, :1], [0.5, 0.0], 0, "n_steps"),
    ],
)
def test_what_cannot_be_followed_is_named(model, policy, starts, n_steps, field):
    with pytest.raises(InputError) as caught:
        follow(model, policy, starts, n_steps)
    assert caught.value.field == field


def test_a_model_describes_itself(pendulum, model):
    told = DynamicsModel.fit(pendulum, limits={2: (-7.0, 7.0)}, reward="-s2[2]**2").describe(["cos", "sin", "speed"])
    for text in ("angle(cos, sin) (all around)", "speed", "the reward is given", "limits of speed", "nodes: "):
        assert text in told, told
    assert "∞: one affine model" in model.describe()


def test_earlier_actions_count_in_a_prediction():
    rng = np.random.default_rng(0)
    rows, past = [], 0.0
    for _ in range(20):
        state, past = rng.uniform(-1, 1), 0.0
        for _ in range(20):
            action = rng.uniform(-1, 1)
            rows.append((state, action, state + 0.1 * past))
            state, past = state + 0.1 * past, action
    table = np.array(rows)
    data = TransitionDataset(
        table[:, :1], table[:, 1:2], np.zeros(400), table[:, 2:], np.zeros(400), episode_ids=np.repeat(np.arange(20), 20)
    )
    model = DynamicsModel.fit(data)
    assert model.choices.n_earlier_steps == 1
    assert "1 counts, by action and change" in model.describe()
    moved, _ = model.predict([[0.0]], [[0.3]], [[1.0, 0.0]])
    assert moved[0, 0] == pytest.approx(0.1, abs=1e-3)
    assert model.predict([[0.0]], [[0.3]])[0][0, 0] == pytest.approx(0.0, abs=1e-3)
    assert model_errors(data, model, steps=(5,)).after[0].model.rmse < 1e-2
    assert isinstance(model.noise, th.Tensor)
