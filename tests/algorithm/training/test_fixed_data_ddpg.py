"""DDPG and TD3 on a fixed data set: never a step of an environment, and something is learned."""

import numpy as np
import pytest

from helpers.one_step import ACTIONS, OneStep, Untouchable, one_step_data
from sb3_nopg import InputError
from sb3_nopg.experiments.baselines import BestEvaluation
from sb3_nopg.training.fixed_data_ddpg import FixedDataDDPG, FixedDataLearner, FixedDataTD3, offline_ddpg, online_ddpg


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
