"""Data recipes: the same seed gives the same arrays, and a recipe that is wrong names the field."""

import gymnasium as gym
import numpy as np
import pytest

import nopg_envs
from sb3_nopg import InputError, TransitionDataset
from sb3_nopg.recipes import POLICIES, make_dataset

GRID = {"grid": {"levels": [5, 5, 2]}}
WIDE = {"low": [-0.3, -0.03, -0.1, -0.2], "high": [0.3, 0.03, 0.1, 0.2]}


def pendulum() -> gym.Env:
    return gym.make("nopg/Pendulum-v0")


def rollouts(**fields: object) -> dict[str, object]:
    return {"rollouts": {"policy": "uniform", "n_transitions": 40, **fields}}


def same(one: TransitionDataset, other: TransitionDataset) -> bool:
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_a_grid_is_that_of_nopg_envs():
    data = make_dataset(GRID, pendulum(), seed=0)
    expected = nopg_envs.grid(pendulum(), [5, 5, 2])
    assert same(data, TransitionDataset(**expected))
    assert data.episode_starts is None


def test_rollouts_are_those_of_nopg_envs():
    data = make_dataset(rollouts(), pendulum(), seed=3)
    expected = nopg_envs.rollouts(pendulum(), "uniform", n_transitions=40, seed=3)
    assert same(data, TransitionDataset(**expected))
    assert data.action_space == pendulum().action_space


@pytest.mark.parametrize("policy", POLICIES)
def test_rollouts_follow_from_the_seed(policy):
    recipe = {"rollouts": {"policy": policy, "n_transitions": 30}}

    def make(seed: int) -> TransitionDataset:
        return make_dataset(recipe, gym.make("MountainCarContinuous-v0"), seed)

    assert same(make(0), make(0))
    assert not same(make(0), make(1))


def test_a_seed_in_the_recipe_is_not_that_of_the_run():
    fixed = {**rollouts(), "seed": 7}
    assert same(make_dataset(fixed, pendulum(), seed=0), make_dataset(fixed, pendulum(), seed=1))
    assert same(make_dataset(fixed, pendulum(), seed=0), make_dataset(rollouts(), pendulum(), seed=7))


def test_a_grid_of_a_noisy_environment_follows_from_the_seed():
    recipe = {"grid": {"levels": [3, 3, 2, 2]}}

    def make(seed: int) -> TransitionDataset:
        return make_dataset(recipe, gym.make("nopg/LQR-v0", noise_covariance=[[0.1, 0.0], [0.0, 0.1]]), seed)

    assert same(make(0), make(0))
    assert not same(make(0), make(1))


def test_starts_are_drawn_from_the_box():
    recipe = {"rollouts": {"policy": "uniform", "n_episodes": 12, "start": WIDE}}
    data = make_dataset(recipe, gym.make("nopg/QuanserCartPoleBalance-v0"), seed=0)
    starts = data.observations[data.episode_starts]
    assert len(starts) == 12
    assert (np.abs(starts[:, 0]) <= 0.3).all()
    assert starts[:, 0].std() > 0.05  # a box, not a point
    again = make_dataset(recipe, gym.make("nopg/QuanserCartPoleBalance-v0"), seed=0)
    assert same(data, again)


def test_short_episodes_are_cut_not_ended():
    data = make_dataset(rollouts(episode_steps=10), pendulum(), seed=0)
    assert data.episode_starts.tolist() == [0, 10, 20, 30]
    assert data.timeouts.sum() == 4
    assert not data.terminals.any()


def test_another_environment_may_be_asked():
    data = make_dataset({"env": "nopg/Pendulum-v0", **GRID}, gym.make("Pendulum-v1"), seed=0)
    assert same(data, make_dataset(GRID, pendulum(), seed=0))


def test_the_scripted_driver_reaches_the_goal():
    recipe = {"rollouts": {"policy": "mountain_car_pumping", "n_episodes": 2}}
    data = make_dataset(recipe, gym.make("MountainCarContinuous-v0"), seed=0)
    assert data.terminals.sum() == 2
    assert len(data) < 800  # within the time limit of 999 steps an episode


def test_a_file_is_found_here_or_beside_the_config(tmp_path, monkeypatch):
    make_dataset(GRID, pendulum(), seed=0).save(tmp_path / "configs" / "grid.npz")
    beside = make_dataset({"file": "grid.npz"}, pendulum(), seed=0, folder=tmp_path / "configs")
    monkeypatch.chdir(tmp_path / "configs")
    here = make_dataset({"file": "grid.npz"}, pendulum(), seed=0)
    assert same(beside, here)
    with pytest.raises(InputError, match="grid2") as caught:
        make_dataset({"file": "grid2.npz"}, pendulum(), seed=0, folder=tmp_path)
    assert caught.value.field == "data.file"


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        (None, "data"),
        ("grid", "data"),
        ({}, "data"),
        ({**GRID, **rollouts()}, "data"),
        ({"grids": {}}, "data.grids"),
        ({**GRID, "seed": -1}, "data.seed"),
        ({**GRID, "seed": True}, "data.seed"),
        ({"file": "a.npz", "seed": 1}, "data"),
        ({"file": 3}, "data.file"),
        ({"env": "nopg/Nothing-v0", **GRID}, "data.env"),
        ({"env": "nopg/Nothing", **GRID}, "data.env"),
        ({"env": 3, **GRID}, "data.env"),
        ({"grid": [5, 5, 2]}, "data.grid"),
        ({"grid": {}}, "data.grid.levels"),
        ({"grid": {"level": [5, 5, 2]}}, "data.grid.level"),
        ({"grid": {"levels": [5, 5]}}, "data.grid"),
        ({"grid": {"levels": 5}}, "data.grid"),
        ({"grid": {"levels": [5, 5, 0]}}, "data.grid"),
        ({"rollouts": "uniform"}, "data.rollouts"),
        ({"rollouts": {"n_transitions": 3}}, "data.rollouts.policy"),
        (rollouts(policy="nobody"), "data.rollouts.policy"),
        (rollouts(policy=["uniform"]), "data.rollouts.policy"),
        (rollouts(n_transitions=-3), "data.rollouts"),
        (rollouts(n_transitions="many"), "data.rollouts"),
        (rollouts(n_episodes=3), "data.rollouts"),
        (rollouts(steps=3), "data.rollouts.steps"),
        (rollouts(start="moon"), "data.rollouts"),
        (rollouts(start={"low": [0.0, 0.0]}), "data.rollouts.start"),
        (rollouts(start={"low": [0.0, 0.0], "high": [1.0]}), "data.rollouts.start"),
        (rollouts(start={"low": [1.0, 0.0], "high": [0.0, 1.0]}), "data.rollouts.start"),
        (rollouts(start={"low": ["a", 0.0], "high": [0.0, 1.0]}), "data.rollouts.start"),
        (rollouts(start={"low": [0.0], "height": [0.0]}), "data.rollouts.start.height"),
        (rollouts(start=[1.0, 2.0, 3.0]), "data.rollouts"),
        (rollouts(episode_steps=0), "data.rollouts.episode_steps"),
        (rollouts(episode_steps="ten"), "data.rollouts.episode_steps"),
    ],
)
def test_a_wrong_recipe_names_the_field(recipe, field):
    with pytest.raises(InputError) as caught:
        make_dataset(recipe, pendulum(), seed=0)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("recipe", "env_id"), [(GRID, "Pendulum-v1"), (rollouts(start=[0.0, 0.0]), "Pendulum-v1"), (rollouts(), "CartPole-v1")]
)
def test_an_environment_that_cannot_answer_is_refused(recipe, env_id):
    with pytest.raises(InputError, match=r"data\.(grid|rollouts): "):
        make_dataset(recipe, gym.make(env_id), seed=0)


def test_mirror_images_double_the_data():
    env = gym.make("nopg/LQR-v0")
    recipe = {"grid": {"levels": [3, 3, 2, 2]}}
    signs = {"observation_signs": [-1, -1], "action_signs": [-1, -1]}
    single, both = make_dataset(recipe, env, 0), make_dataset({**recipe, "mirror": signs}, env, 0)
    assert len(both) == 2 * len(single)
    np.testing.assert_array_equal(both.actions[len(single) :], -single.actions)


@pytest.mark.parametrize(
    ("mirror", "field"),
    [
        ({"observation_signs": [-1, -1]}, r"data\.mirror\.action_signs"),
        ({"signs": [1]}, r"data\.mirror\.signs"),
        ([-1], r"data\.mirror"),
        ({"observation_signs": [2, 1], "action_signs": [-1, -1]}, "observation_signs"),
    ],
)
def test_a_bad_mirror_is_named(mirror, field):
    with pytest.raises(InputError, match=field):
        make_dataset({"grid": {"levels": [3, 3, 2, 2]}, "mirror": mirror}, gym.make("nopg/LQR-v0"), 0)
