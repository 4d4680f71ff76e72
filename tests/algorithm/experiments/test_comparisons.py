"""Each comparison of the paper at toy size: it runs from end to end, and its figure and its table show what the JSON has."""

import csv
import dataclasses
import json
import math
from functools import partial

import gymnasium as gym
import matplotlib.image
import numpy as np
import pytest

import nopg_envs
from helpers.colours import colour_counts
from helpers.recorded_swings import record_swings
from sb3_nopg import NOPGS, InputError, TransitionDataset
from sb3_nopg.experiments import (
    EXPERIMENTS,
    cartpole_evaluation,
    load_experiment,
    methods,
    mountain_car_trials,
    pendulum_trials,
)
from sb3_nopg.experiments.baselines.kernel_value_iteration import KernelValueIteration
from sb3_nopg.experiments.comparison import Comparison
from sb3_nopg.experiments.experiment import on_device
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.methods import nopg_model
from sb3_nopg.experiments.report import (
    mean_interval,
    new_figure,
    read_interval,
    read_markdown_tables,
    save_figure,
)
from sb3_nopg.experiments.runner import reproduce
from sb3_nopg.experiments.task import total_reward

NAMES = ("pendulum-grid", "pendulum-random", "cartpole-random", "cartpole-swing-up", "mountain-car")


def toy(trial):
    """The same trial at a size that takes a moment."""
    small = dict(trial)
    if "levels" in small and "samples" in small:
        small["levels"] = [small["samples"] // 40, 4, 2]
    elif "samples" in small:
        small["samples"] = 40 + small["samples"] // 10
    for name, value in {"updates": 2, "steps": 40, "every": 20, "evaluation_steps": 20}.items():
        if name in small:
            small[name] = value
    return small


def run_toy(name, folder):
    experiment = load_experiment(name)
    small = dataclasses.replace(experiment, trials=lambda quick, n: [toy(trial) for trial in experiment.trials(quick, n)])
    table = reproduce(small, folder, n_seeds=1, quick=True)
    return table, json.loads((folder / f"{Extent(quick=True).file_name(name)}.json").read_text())["trials"]


def pixels(path):
    return matplotlib.image.imread(path)[..., :3]


def colours(image, low, high):
    """How many colours that are no grey a part of an image has, in more than a few pixels."""
    part = image[:, int(low * image.shape[1]) : int(high * image.shape[1])]
    grey = np.ptp(part, axis=-1) < 0.15
    return int((colour_counts(part[~grey], 8) > 20).sum())


# By the name of the experiment.
RAN = {}


@pytest.fixture(params=NAMES)
def ran(request, tmp_path_factory, module_patch):
    """Run once, within a test: only there, what a model is made of is chosen once for all trials on the same data."""
    name = request.param
    if name not in RAN:
        folder = tmp_path_factory.mktemp(name)
        RAN[name] = name, folder, *run_toy(name, folder)
    return RAN[name]


@pytest.fixture(scope="module")
def module_patch():
    with pytest.MonkeyPatch.context() as patch:
        # Episodes as short as the training.
        patch.setattr(mountain_car_trials, "N_STEPS", 20)
        patch.setattr(mountain_car_trials, "_N_EVALUATIONS", 2)
        patch.setattr(pendulum_trials, "total_reward", lambda model, env: total_reward(model, env, n_steps=20))
        patch.setattr(cartpole_evaluation, "SWING_UP_STEPS", 60)
        patch.setattr(cartpole_evaluation, "UPRIGHT_STEPS", 20)
        # Else it acts a thousand steps, and learns as many, before it asks whether forty are over.
        patch.setattr(methods, "online_ddpg", partial(methods.online_ddpg, train_freq=20))
        yield patch


@pytest.mark.slow
def test_every_method_has_a_return(ran):
    name, _, _, trials = ran
    methods = {entry["trial"]["method"] for entry in trials}
    assert {"NOPG-D, paper", "NOPG-D, defaults", "KBRL", "doing nothing", "behaviour cloning", "greedy on nodes"} <= methods
    assert ("least squares + Riccati" in methods) == (name != "mountain-car")
    if name.endswith("random"):
        assert {"NOPG-S, paper"} <= methods
        assert {"PWIS", "PWIS, self-normalised", "DDPG offline", "DDPG online", "behaviour"} <= methods
    for entry in trials:
        if entry["trial"]["method"] != "example":
            assert math.isfinite(entry["result"]["return"]), entry["trial"]
            if entry["trial"]["method"] != "demonstrator":
                assert entry["result"]["learning_seconds"] >= 0.0


@pytest.mark.slow
def test_the_table_says_what_the_numbers_are(ran):
    name, folder, table, trials = ran
    across = "demonstrations" if name == "mountain-car" else "samples"
    systems = list(dict.fromkeys(entry["trial"].get("system") for entry in trials))
    tables = read_markdown_tables(table)
    # Means, what else is told, seconds, seeds.
    n_tables = {"cartpole-random": 4, "cartpole-swing-up": 4}.get(name, 3)
    assert len(tables) == n_tables * len(systems)
    for number, system in enumerate(systems):
        means, *others, seeds = tables[n_tables * number : n_tables * (number + 1)]
        keys = {"cartpole-random": ["perturbed"], "cartpole-swing-up": ["held"]}.get(name, [])
        for other, key in zip(others, [*keys, "learning_seconds"], strict=True):
            for row in other:
                values = [
                    entry["result"][key]
                    for entry in trials
                    if entry["trial"].get("system") == system and entry["trial"]["method"] == row["method"]
                ]
                found = [read_interval(row[count])[0] for count in row.keys() - {"method"} if row[count] != "–"]
                assert min(values) - 1.0 <= min(found) <= max(found) <= max(values) + 1.0
        checked = 0
        for row in means:
            for count in row.keys() - {"method"}:
                values = [
                    entry["result"]["return"]
                    for entry in trials
                    if entry["trial"].get("system") == system
                    and entry["trial"]["method"] == row["method"]
                    and entry["trial"].get(across) == int(count)
                ]
                if values:
                    checked += 1
                    assert read_interval(row[count])[0] == pytest.approx(np.mean(values), abs=0.5)
        assert checked >= 6
        assert len(seeds) >= checked
    with (folder / f"{name}-quick.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(trials)
    for row, entry in zip(rows, trials, strict=True):
        assert row["method"] == entry["trial"]["method"]
        if "return" in entry["result"]:
            assert float(row["return"]) == entry["result"]["return"]


@pytest.mark.slow
def test_the_figure_shows_curves_and_says_that_it_is_quick(ran):
    name, folder, _, _ = ran
    image = pixels(folder / f"{name}-quick.png")
    # Curves of several methods in the panels, not only in the legend at the right.
    assert colours(image, 0.0, 0.75 if name == "pendulum-grid" else 0.8) >= 3
    dark_red = (np.abs(image - np.array([178, 34, 34]) / 255).max(axis=-1) < 0.1)[-40:]
    assert dark_red.sum() > 50
    if name == "mountain-car":
        assert colours(image, 0.5, 0.85) >= 2


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_ours(ran):
    name, _, table, _ = ran
    rows = {row["method"]: row for row in read_markdown_tables(table)[0]}
    if name == "pendulum-grid":
        assert (rows["NOPG-D in the paper"]["200"], rows["NOPG-D in the paper"]["450"]) == ("-3775", "-594")
        assert (rows["NOPG-S in the paper"]["200"], rows["NOPG-S in the paper"]["450"]) == ("-3793", "-593")
    elif name == "mountain-car":
        assert (rows["NOPG-D in the paper"]["1"], rows["NOPG-D in the paper"]["2"]) == ("-274", "-101")
        assert rows["human in the paper"]["2"] == "-434"
    elif name == "cartpole-swing-up":
        assert "it has no swing-up itself" in table
        assert "MC-PILCO" in table
    else:
        assert "nothing to set beside ours" in table


@pytest.mark.parametrize("name", NAMES)
def test_full_and_quick_trials_are_different_and_all_sizes_are_there(name):
    experiment = load_experiment(name)
    full, quick = experiment.trials(False, 10), experiment.trials(True, 2)
    assert len(full) > 5 * len(quick)
    assert sum(trial["method"] == "doing nothing" for trial in full) == len({trial.get("system") for trial in full})
    assert {trial["seed"] for trial in full} == set(range(10))
    assert {trial["seed"] for trial in quick} == {0, 1}
    texts = [json.dumps(trial, sort_keys=True) for trial in full + quick]
    assert len(set(texts)) >= len(texts) - len([t for t in quick if "updates" not in t and "steps" not in t])
    if name == "pendulum-grid":
        assert {trial["samples"] for trial in full if "samples" in trial} == {200, 450, 800, 1250, 1800, 3200}
        assert all(math.prod(trial["levels"]) == trial["samples"] for trial in full if "samples" in trial)
    elif name == "mountain-car":
        assert {trial.get("demonstrations") for trial in full} >= {1, 2, 5, 10}
    else:
        assert {trial.get("samples") for trial in full} >= {1000, 10_000}
        # To the paper's sizes, whatever it takes.
        assert max(trial["samples"] for trial in full if trial["method"] == "NOPG-S, defaults") == 10_000
    if name == "cartpole-random":
        assert {trial["system"] for trial in full} == {"identified rig", "data sheet"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("quick", [True, False])
def test_d3rlpy_learns_from_the_same_data_as_the_others(name, quick):
    experiment = load_experiment(name)

    def data(trials):
        which = ("samples", "levels", "demonstrations", "system", "seed")
        return {json.dumps([trial.get(key) for key in which]) for trial in trials}

    added = experiment.d3rlpy_trials(quick, 2)
    # ReBRAC wants next actions, which a grid does not have.
    assert {trial["method"] for trial in added} == {"IQL", "TD3+BC", "CQL" if name == "pendulum-grid" else "ReBRAC"}
    assert {trial["seed"] for trial in experiment.d3rlpy_trials(quick, 10)} == {0, 1, 2}
    assert data(added) == data(trial for trial in experiment.trials(quick, 2) if trial["method"] == "NOPG-D, paper")


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("quick", [True, False])
def test_as_many_seeds_are_run_as_one_asks_for(name, quick, tmp_path, monkeypatch):
    monkeypatch.setenv("NOPG_RECORDINGS", str(record_swings(tmp_path, n=2, seconds=0.2)))
    assert {trial["seed"] for trial in load_experiment(name).trials(quick, 4)} == {0, 1, 2, 3}


class RisesThenFalls:
    """An evaluation that is best, with zero, after four updates."""

    def __init__(self):
        self.seen = []

    def __call__(self, model):
        self.seen.append(model.num_timesteps)
        return -abs(model.num_timesteps - 4.0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["DDPG offline", "PWIS", "PWIS, self-normalised", "NOPG-D, paper", "NOPG-S, defaults"])
def test_nopg_reports_its_last_evaluation_and_others_their_best(method):
    data, behavior = pendulum_trials.random_data(40, seed=0)
    evaluate = RisesThenFalls()
    task = dataclasses.replace(pendulum_trials._task({}), evaluate=evaluate)
    result = methods.run_method(task, {"method": method, "seed": 0, "updates": 10}, data, behavior)
    if method.startswith("NOPG"):
        assert result["return"] == -6.0
        assert evaluate.seen == [10]
    else:
        assert (result["return"], result["last"]) == (0.0, -6.0)
        assert evaluate.seen == list(range(11))
        assert [n for n, _ in result["evaluations"]] == evaluate.seen


@pytest.mark.slow
def test_self_normalised_weights_lead_elsewhere():
    data, behavior = pendulum_trials.random_data(600, seed=0)
    policies = []
    for method in ("PWIS", "PWIS, self-normalised"):
        seen = []
        task = dataclasses.replace(
            pendulum_trials._task({}),
            evaluate=lambda model, seen=seen: float(seen.append(model.predict(np.ones(3))[0].item()) or 0.0),
        )
        methods.run_method(task, {"method": method, "seed": 0, "updates": 3}, data, behavior)
        policies.append(seen)
    assert policies[0][0] == policies[1][0]
    assert policies[0][-1] != policies[1][-1]


def test_the_papers_settings_are_the_papers(module_patch):
    task = pendulum_trials._task({"action_bandwidth_factor": 50.0, "n_action_samples": 15})
    env = gym.make(pendulum_trials.ENV_ID)
    data = TransitionDataset(**nopg_envs.grid(env, (4, 4, 2)), action_space=env.action_space)
    paper, own = (nopg_model(task, data, "S", settings, {"seed": 0}) for settings in ("paper", "defaults"))
    plain = NOPGS("MlpPolicy", None, dataset=data, gamma=0.97, initial_states=[[-1.0, 0.0, 0.0]])
    assert paper.transitions == "samples"
    samples = paper.estimator.settings.samples
    assert (samples.state_bandwidth, samples.weights) == ("cross_validation", "local_constant")
    assert samples.pessimism == 0.0
    assert samples.n_action_samples == 15
    assert (paper.gamma, paper.learning_rate, paper.policy.net_arch, paper.policy.max_std) == (0.97, 1e-2, [50], 0.5)
    assert own.transitions == plain.transitions
    for name in ("state_bandwidth", "weights", "pessimism", "n_action_samples"):
        assert getattr(own.estimator.settings.samples, name) == getattr(plain.estimator.settings.samples, name)


@pytest.mark.slow
def test_the_papers_factor_is_not_applied_to_levels_that_the_rule_has_bridged(module_patch):
    env = gym.make(pendulum_trials.ENV_ID)
    grid = TransitionDataset(**nopg_envs.grid(env, (4, 4, 2)), action_space=env.action_space)
    # Some of whose actions are clipped, and so alike.
    random, _ = pendulum_trials.random_data(500, 0)
    demonstrated = mountain_car_trials.demonstrations(2, 0)
    task = pendulum_trials._task({"action_bandwidth_factor": 50.0})
    on_grid, on_random = (nopg_model(task, data, "D", "paper", {"seed": 0}) for data in (grid, random))
    # Two levels of torque, ±2, know of each other with half of the gap; times 50 they would be the same.
    np.testing.assert_allclose(on_grid.bandwidths.action, [2.0], rtol=1e-6)
    assert len(np.unique(random.actions)) < 0.95 * len(random)
    assert on_random.estimator_kwargs["action_bandwidth_factor"] == [50.0]
    assert len(np.unique(demonstrated.actions)) == 3
    assert methods._action_factors(demonstrated.actions, 50.0) == [1.0]
    literally = nopg_model(task, grid, "D", f"paper, {methods.AS_PRINTED}", {"seed": 0})
    np.testing.assert_allclose(literally.bandwidths.action, [100.0], rtol=1e-6)
    assert literally.estimator_kwargs["weights"] == on_grid.estimator_kwargs["weights"]
    assert literally.learning_rate == on_grid.learning_rate
    assert methods._action_factors(np.column_stack([grid.actions, np.arange(32.0)]), 50.0) == [1.0, 50.0]


@pytest.mark.slow
def test_d3rlpy_learns_in_its_own_environment(monkeypatch, tmp_path, module_patch):
    called = []

    class Still:
        def predict(self, observation, state=None, deterministic=True):
            return np.zeros(1, dtype=np.float32), None

    def train(folder, dataset, algorithm, **settings):
        called.append((folder, len(dataset), algorithm, settings))
        return Still()

    monkeypatch.setattr(methods, "train_d3rlpy", train)
    # As if there were a GPU.
    monkeypatch.setattr(methods, "device_of", lambda trial: trial.get("device", "cpu"))
    monkeypatch.setenv("NOPG_D3RLPY_ENVIRONMENT", str(tmp_path))
    # Hanging still costs π² a step; standing still in the valley costs every step.
    for name, size, gamma, expected, last in (
        ("pendulum-random", {"samples": 100}, 0.97, -20 * math.pi**2, "rebrac"),
        ("pendulum-grid", {"samples": 200}, 0.97, -20 * math.pi**2, "cql"),
        ("mountain-car", {"demonstrations": 1}, 0.99, -20.0, "rebrac"),
    ):
        called.clear()
        experiment = load_experiment(name)
        for trial in experiment.d3rlpy_trials(True, 1):
            if size.items() <= trial.items():
                somewhere = on_device(trial, "cuda" if trial["method"] == "IQL" else "cpu")
                assert experiment.run(somewhere)["return"] == pytest.approx(expected, rel=1e-3)
        assert [(folder, algorithm) for folder, _, algorithm, _ in called] == [
            (tmp_path, "iql"),
            (tmp_path, "td3_bc"),
            (tmp_path, last),
        ]
        for (*_, settings), device in zip(called, ("cuda", "cpu", "cpu"), strict=True):
            assert settings == {"n_steps": 500, "gamma": gamma, "seed": 0, "device": device}
        assert all(n_samples == size.get("samples", n_samples) for _, n_samples, _, _ in called)


def test_demonstrations_cost_one_a_step_and_are_drawn_by_seed():
    one, same, other = (mountain_car_trials.demonstrations(2, seed) for seed in (0, 0, 1))
    assert set(one.rewards.tolist()) == {-1.0}
    assert len(one.episode_starts) == 2
    np.testing.assert_array_equal(one.observations, same.observations)
    assert one.observations.shape != other.observations.shape or not np.array_equal(one.observations, other.observations)
    everything = mountain_car_trials.demonstrations(10, 0)
    assert len(everything.episode_starts) == 10


@pytest.mark.slow
def test_curves_stand_under_the_steps_that_they_took(tmp_path):
    comparison = Comparison("test", "samples", "samples", paper={}, notes=("A note.",))
    seeds, curve = range(3), [[0, -9.0], [100, -50.0]]
    results = [({"method": "offline", "samples": 100, "seed": n}, {"return": -100.0 - 10 * n}) for n in seeds]
    results += [({"method": "online", "seed": n}, {"return": -n, "curve": [*curve, [200, -n]]}) for n in seeds]
    results += [({"method": "constant", "seed": 0}, {"return": -7.0})]
    text = comparison.summarize(results, tmp_path, Extent())
    rows = {row["method"]: row for row in read_markdown_tables(text)[0]}
    assert rows["online"]["100"] == "-50 ± 0"
    assert rows["constant"]["100"] == "-7"
    mean, half_width = mean_interval([-100.0, -110.0, -120.0])
    assert read_interval(rows["offline"]["100"]) == (round(mean), round(half_width))
    assert "online after 200 steps: -1 ± 2" in text
    assert "- A note." in text
    assert "--quick" not in text


@pytest.mark.slow
def test_a_learning_curve_can_stand_alone(tmp_path):
    comparison = Comparison("test", "samples", "samples", paper={}, notes=())
    results = [({"method": "online", "seed": n}, {"return": -n, "curve": [[0, -9.0], [200, -n]]}) for n in range(3)]
    text = comparison.summarize(results, tmp_path, Extent(n_missing=5, n_trials=8))
    assert "online after 200 steps: -1 ± 2" in text
    assert (tmp_path / "test.png").exists()


@pytest.mark.slow
def test_a_table_with_d3rlpy_says_how_long_it_trained(tmp_path):
    comparison = Comparison("test", "samples", "samples", paper={}, notes=())
    results = [({"method": "NOPG", "samples": 100, "seed": n}, {"return": -1.0}) for n in range(3)]
    assert "d3rlpy" not in comparison.summarize(results, tmp_path, Extent())
    results += [({"method": "IQL", "samples": 100, "seed": n, "updates": 1234}, {"return": -1.0}) for n in range(2)]
    assert "after 1,234 updates; 2 seeds." in comparison.summarize(results, tmp_path, Extent())


@pytest.mark.slow
def test_a_figure_says_where_it_is_not_of_the_whole(tmp_path):
    red = []
    for extent in (Extent(), Extent(quick=True), Extent(n_missing=3, n_trials=7), Extent(True, 3, 7)):
        figure = new_figure(6, 3)
        figure.subplots().plot([0, 1], [0, 1])
        save_figure(figure, tmp_path / "figure.png", extent)
        red.append((np.ptp(pixels(tmp_path / "figure.png")[-50:], axis=-1) > 0.3).sum())
    assert red[0] < 50 < min(red[1:3])
    assert red[3] > max(red[1:3]) + 50


# Kernel value iteration.


def line_world(n=60):
    """A point on a line that an action pushes; the reward is best at zero."""
    rng = np.random.default_rng(0)
    position, push = rng.uniform(-1, 1, (n, 1)), rng.choice([-1.0, 1.0], (n, 1))
    return TransitionDataset(
        observations=position,
        actions=push,
        rewards=-np.abs(position[:, 0]),
        next_observations=np.clip(position + 0.2 * push, -1, 1),
        terminals=np.zeros(n, dtype=bool),
        action_space=gym.spaces.Box(-1.0, 1.0, (1,)),
    )


KERNELS = {"state_bandwidth": 0.1, "action_bandwidth": 0.3, "next_state_bandwidth": 0.1, "pessimism": 0.0}
PLAIN = {**KERNELS, "weights": "local_constant", "n_neighbors": None}


@pytest.mark.slow
def test_kernel_value_iteration_is_the_fixed_point_of_the_greedy_equation():
    data, gamma, candidates = line_world(), 0.9, np.array([[-1.0], [0.0], [1.0]])
    model = KernelValueIteration(data, gamma=gamma, initial_states=[[0.5]], candidates=candidates, **PLAIN)

    def weights(states):
        by_state = np.exp(-0.5 * ((states[:, None] - data.observations[None]) / 0.1).sum(axis=-1) ** 2)
        by_action = np.exp(-0.5 * ((candidates[:, None] - data.actions[None]) / 0.3).sum(axis=-1) ** 2)
        product = by_state[:, None, :] * by_action[None]
        return product / product.sum(axis=-1, keepdims=True)

    q_values = np.zeros(len(data))
    for _ in range(500):
        q_values = data.rewards + gamma * (weights(data.next_observations) @ q_values).max(axis=1)
    np.testing.assert_allclose(model.q_values, q_values, atol=1e-4)
    states = np.linspace(-0.9, 0.9, 7)[:, None]
    np.testing.assert_allclose(model.action_values(states), weights(states) @ q_values, atol=1e-4)
    assert model.estimated_return == pytest.approx((weights(np.array([[0.5]])) @ q_values).max(), abs=1e-4)


def test_kernel_value_iteration_acts_greedily_at_any_state():
    model = KernelValueIteration(line_world(), gamma=0.9, initial_states=[[0.5]], **PLAIN)
    assert model.predict(np.array([0.8], dtype=np.float32))[0].shape == (1,)
    actions, state = model.predict(np.array([[0.8], [-0.8]]), deterministic=True)
    assert state is None
    assert actions.dtype == np.float32
    assert actions[0, 0] < 0 < actions[1, 0]
    assert len(model.candidates) == 9


@pytest.mark.parametrize("candidates", [[[2.0]], [1.0], np.zeros((0, 1)), [[0.0, 0.0]]])
def test_kernel_value_iteration_refuses_other_actions(candidates):
    with pytest.raises(InputError, match="candidates"):
        KernelValueIteration(line_world(), gamma=0.9, initial_states=[[0.5]], candidates=candidates, **PLAIN)
