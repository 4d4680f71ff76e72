"""DDPG and TD3 on a fixed data set: never a step of an environment, the paper's settings, and something is learned."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_nopg import InputError, TransitionDataset
from sb3_nopg.experiments.baselines import (
    PAPER_SETTINGS,
    PWIS,
    BestEvaluation,
    FixedDataDDPG,
    FixedDataTD3,
    OfflineDPG,
    offline_ddpg,
    online_ddpg,
)
from sb3_nopg.training.fixed_data_ddpg import FixedDataLearner

ACTIONS = spaces.Box(-2.0, 2.0, (1,), np.float32)
STATES = spaces.Box(-5.0, 5.0, (1,), np.float32)


class Untouchable(gym.Env):
    """Fails whoever tries it out."""

    observation_space, action_space = STATES, ACTIONS

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("somebody reset the environment")

    def step(self, action):
        raise RuntimeError("somebody stepped the environment")


class OneStep(Untouchable):
    """Every episode one step long; the best action is the state."""

    def reset(self, *, seed=None, options=None):
        super(Untouchable, self).reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self.state, {}

    def step(self, action):
        return self.state, -float((action[0] - self.state[0]) ** 2), True, False, {}


def one_step_data(n: int = 400) -> TransitionDataset:
    """r = -(a - s)², and it is over: the best action is the state."""
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(-1.0, 1.0, (n, 1)), rng.uniform(-2.0, 2.0, (n, 1))
    terminals = np.ones(n, dtype=bool)
    terminals[0] = False
    return TransitionDataset(states, actions, -((actions - states) ** 2)[:, 0], states, terminals, action_space=ACTIONS)


def error(model) -> float:
    states = np.linspace(-1.0, 1.0, 21)[:, None].astype(np.float32)
    return float(np.abs(model.predict(states, deterministic=True)[0] - states).mean())


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FixedDataDDPG, FixedDataTD3])
def test_learns_and_never_touches_the_environment(algorithm):
    model = offline_ddpg(one_step_data(), Untouchable(), algorithm=algorithm, seed=0)
    assert isinstance(model, algorithm)
    before = error(model)
    evaluation = BestEvaluation(lambda model: -error(model), every=100)
    model.learn(350, evaluation)
    assert [entry.n_updates for entry in evaluation.evaluations] == [0, 100, 200, 300, 350]
    assert evaluation.evaluations[0].value == -before
    assert evaluation.last.value == -error(model)
    assert -evaluation.best.value < min(0.15, 0.5 * before)
    evaluation.restore_best()
    assert error(model) == -evaluation.best.value


def test_what_was_not_learned_is_not_the_best():
    values = iter([9.0, np.nan, 1.0, 3.0, 3.0, 2.0])
    evaluation = BestEvaluation(lambda model: next(values), every=1)
    offline_ddpg(one_step_data(), seed=0).learn(5, evaluation)
    assert (evaluation.best.n_updates, evaluation.best.value) == (3, 3.0)
    assert evaluation.last.value == 2.0


def test_without_an_environment_the_data_tell_the_spaces():
    model = offline_ddpg(one_step_data(), gamma=0.97, seed=0)
    assert model.action_space == ACTIONS
    assert model.gamma == 0.97
    model.learn(3)
    assert model._n_updates == 3


@pytest.mark.slow
def test_the_same_seed_learns_the_same():
    first, again, other = (offline_ddpg(one_step_data(), seed=seed).learn(20).predict(np.zeros(1))[0] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


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


def test_the_critic_has_a_rate_of_its_own(tmp_path):
    model = offline_ddpg(one_step_data(), critic_learning_rate=0.5, seed=0).learn(1)
    assert model.actor.optimizer.param_groups[0]["lr"] == 1e-2
    assert model.critic.optimizer.param_groups[0]["lr"] == 0.5
    model.save(tmp_path / "model")
    assert FixedDataDDPG.load(tmp_path / "model").critic_learning_rate == 0.5
    plain = offline_ddpg(one_step_data(), seed=0).learn(1)
    assert plain.critic.optimizer.param_groups[0]["lr"] == 1e-2
    with pytest.raises(InputError, match="critic_learning_rate"):
        offline_ddpg(one_step_data(), critic_learning_rate=0.0)


@pytest.mark.slow
def test_online_acts_and_learns_in_turn():
    model = online_ddpg(OneStep(), train_freq=50, seed=0)
    assert isinstance(model, FixedDataLearner)
    before = error(model)
    model.learn(400)
    assert model.num_timesteps == 400
    assert model._n_updates == 400
    assert error(model) < before
    assert model.critic.optimizer.param_groups[0]["lr"] == 1e-2
    assert model.actor.optimizer.param_groups[0]["lr"] == 1e-3


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
