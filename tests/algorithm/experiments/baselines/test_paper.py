"""The paper's settings are those that the baselines have in the end."""

import numpy as np
import pytest
from gymnasium import spaces

from helpers.one_step import OneStep, one_step_data
from sb3_nopg import TransitionDataset
from sb3_nopg.experiments.baselines import PAPER_SETTINGS, PWIS, OfflineDPG, offline_ddpg, online_ddpg


def sizes(network) -> list[int]:
    return [layer.out_features for layer in network.modules() if hasattr(layer, "out_features")]


def test_the_papers_settings():
    offline = offline_ddpg(one_step_data(), **PAPER_SETTINGS["pendulum", "offline_ddpg"].arguments)
    online = online_ddpg(OneStep(), **PAPER_SETTINGS["cartpole", "online_ddpg"].arguments)
    assert (offline.gamma, online.gamma) == (0.97, 0.99)
    for model in (offline, online):
        assert sizes(model.actor) == [50, 1]
        assert sizes(model.critic) == [50, 1]
        assert model.tau == 1e-3
    assert (offline.learning_rate, offline.critic_learning_rate) == (1e-2, None)
    assert (online.learning_rate, online.critic_learning_rate) == (1e-3, 1e-2)
    assert online.action_noise is not None


def test_paper_settings_build_what_they_are_for():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(9, 2))
    data = TransitionDataset(
        states[:-1],
        rng.normal(size=(8, 2)),
        rng.normal(size=8),
        states[1:],
        np.zeros(8, dtype=bool),
        episode_ids=np.zeros(8, dtype=int),
        action_space=spaces.Box(-25.0, 25.0, (2,), np.float32),
    )
    dpg = OfflineDPG(dataset=data, **PAPER_SETTINGS["lqr", "dpg"].arguments)
    assert (dpg.learning_rate, dpg.gamma, dpg.tau) == (0.5, 0.9, 0.01)
    np.testing.assert_allclose(dpg.policy.gain.detach(), np.diag([0.7, -0.7]), rtol=1e-6)
    pwis = PWIS(dataset=data, behavior_log_density=np.zeros(8), **PAPER_SETTINGS["lqr", "pwis"].arguments)
    assert pwis.learning_rate == 2.5e-4
    # Σ = diag(0.01, 0.01) is a variance.
    np.testing.assert_allclose(pwis.policy.noise_std, 0.1, rtol=1e-6)
    for name in ("pendulum", "cartpole"):
        settings = PAPER_SETTINGS[name, "pwis"]
        model = PWIS(dataset=data, behavior_log_density=np.zeros(8), **settings.arguments)
        assert sizes(model.policy) == [50, 4]
        assert settings.n_updates == 2_000
    with pytest.raises(TypeError):
        PAPER_SETTINGS["lqr", "dpg"].arguments["gamma"] = 0.5  # type: ignore[index]
