"""The portraits: what they call true against the environment itself, and the experiment from end to end."""

import json

import gymnasium as gym
import numpy as np
import pytest
from matplotlib.image import imread

from helpers.colours import n_colours
from sb3_nopg.experiments import load_experiment, portraits
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.report import read_markdown_tables


class Feedback:
    """A policy that pushes by a linear rule, past the torque's bounds at times."""

    def predict(self, observation, deterministic=False):
        return observation @ np.array([[0.5], [-6.0], [-1.5]]), None


class Nothing:
    def predict(self, observation, deterministic=False):
        return np.zeros((len(observation), 1)), None


@pytest.mark.parametrize("start", [(np.pi, 0.0), (0.6, -3.0), (-2.0, 7.5)])
def test_simulation_is_the_environment(start):
    env = gym.make("nopg/Pendulum-v0").unwrapped
    observation, _ = env.reset(options={"state": start})
    expected, near = 0.0, 0.0
    for t in range(230):
        angle, speed = env.state
        wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
        near += 0.97**t * (abs(wrapped) < 0.5 and abs(speed) < 1.5)
        action, _ = Feedback().predict(observation[None].astype(np.float32))
        observation, reward, *_ = env.step(np.clip(action[0], -2.0, 2.0))
        expected += 0.97**t * float(reward)
    returns, shares = portraits.simulate(Feedback(), np.array([start]))
    assert returns[0] == pytest.approx(expected, rel=1e-4)
    assert shares[0] == pytest.approx(near * 0.03 / (1 - 0.97**230), abs=1e-3)


def test_share_of_time_upright_is_a_share():
    # Balanced without a push it stays, hanging it never gets there.
    _, shares = portraits.simulate(Nothing(), np.array([[0.0, 0.0], [np.pi, 0.0]]))
    assert shares == pytest.approx([1.0, 0.0])


def test_starts_are_simulated_by_themselves():
    starts = np.array([[np.pi, 0.0], [1.0, 2.0]])
    together, _ = portraits.simulate(Feedback(), starts)
    alone = [portraits.simulate(Feedback(), start[None])[0][0] for start in starts]
    assert together == pytest.approx(alone)


@pytest.mark.slow
def test_portraits_from_end_to_end(tmp_path):
    experiment = load_experiment("portraits")
    assert experiment is portraits.EXPERIMENT
    trials = experiment.trials(True, 1)
    small = [{**trial, "levels": [7, 7, 2], "n_updates": 3, "n_cells": 9} for trial in trials]
    results = [(trial, json.loads(json.dumps(experiment.run(trial)))) for trial in small]
    for trial, result in results:
        # Of grid points at the same distance, neighbour lists that are cut to size hold the one or the other.
        tolerance = 1e-6 if trial["settings"] == "paper" else 1e-4
        for moment in ("before", "after"):
            portrait = result[moment]
            assert np.array(portrait["value"]).shape == np.array(portrait["state_distribution"]).shape == (9, 9)
            # Angles -π and π are the same place, and rewards lie in [-16.3, 0].
            np.testing.assert_allclose(portrait["value"][0], portrait["value"][-1], rtol=tolerance)
            assert -16.3 / 0.03 <= np.min(portrait["value"]) <= np.max(portrait["value"]) <= 0.0
            assert 0.0 <= portrait["share_upright"] <= 1.0
        assert result["before"]["value"] != result["after"]["value"]
    (table,) = read_markdown_tables(experiment.summarize(results, tmp_path, Extent(quick=True)))
    assert [(row["settings"], row["updates"]) for row in table] == [
        (trial["settings"], str(updates)) for trial in small for updates in (0, 3)
    ]
    assert float(table[0]["believed return"]) == pytest.approx(results[0][1]["before"]["estimated_return"], abs=0.6)
    for name in ("portraits-quick.png", "portraits-quick-our-defaults.png"):
        pixels = imread(tmp_path / name)[..., :3]
        assert n_colours(pixels) > 100
        # Each of the six pictures has something to show.
        height, width = pixels.shape[:2]
        for row in range(2):
            for column in range(3):
                cell = pixels[row * height // 2 : (row + 1) * height // 2, column * width // 3 : (column + 1) * width // 3]
                assert n_colours(cell) > 30


def test_the_papers_settings_are_the_papers():
    """Whatever our defaults become, its picture is of its estimate, and of a policy that has not learned yet."""
    (trial,) = [trial for trial in portraits.trials(True, 1) if trial["settings"] == "paper"]
    settings = portraits._SETTINGS["paper"]
    estimator = settings["estimator_kwargs"]
    assert (estimator["weights"], estimator["pessimism"], settings["keep"]) == ("local_constant", 0.0, "last")
    assert trial["seed"] == 0
    assert all(trial["n_updates"] == 300 for trial in portraits.trials(False, 2))
