"""What a policy is and what it predicts."""

import pathlib
from typing import Any, ClassVar

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from torch import nn

from helpers.drift import (
    ACTION_HIGH,
    ACTION_LOW,
    STATES,
    DriftEnv,
    Recorder,
    all_policies,
    both,
    drift_data,
    make,
    make_vec_env,
    parameters_of,
    variants,
)
from sb3_nopg import NOPG, NOPGD, NOPGS, NOPGPolicy, TransitionDataset
from sb3_nopg.policies.nopg_policy import (
    DeterministicLinearPolicy,
    DeterministicMlpPolicy,
    GaussianLinearPolicy,
    GaussianMlpPolicy,
)


@all_policies
def test_predictions_have_the_shape_of_the_question(algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any]):
    model = make(algorithm, policy, env=DriftEnv(), policy_kwargs=policy_kwargs).learn(2)
    for predict in (model.predict, model.policy.predict):
        expected, state = predict(STATES.astype(np.float32), deterministic=True)
        assert state is None
        assert expected.shape == (6, 2)
        assert expected.dtype == np.float32
        one = predict(STATES[0].astype(np.float32), deterministic=True)[0]
        assert one.shape == (2,)
        np.testing.assert_allclose(one, expected[0], rtol=1e-5, atol=1e-6)
        for question in (STATES, STATES.tolist()):
            answer = predict(question, deterministic=True)[0]
            assert answer.shape == (6, 2)
            np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)
        assert predict([0, 1])[0].shape == (2,)


@all_policies
def test_actions_stay_in_their_space_and_only_draws_differ(algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any]):
    model = make(algorithm, policy, env=DriftEnv(), policy_kwargs=policy_kwargs).learn(2)
    states = np.random.default_rng(0).normal(scale=5.0, size=(200, 2))
    for deterministic in (True, False):
        actions = model.predict(states, deterministic=deterministic)[0]
        assert (actions >= ACTION_LOW).all()
        assert (actions <= ACTION_HIGH).all()
        again = model.predict(states, deterministic=deterministic)[0]
        repeats = deterministic or algorithm is NOPGD
        assert np.array_equal(actions, again) == repeats


@variants
def test_evaluate_policy(algorithm: type[NOPG]):
    model = make(algorithm, env=DriftEnv()).learn(2)
    rewards, lengths = evaluate_policy(model, Monitor(DriftEnv()), n_eval_episodes=3, return_episode_rewards=True)
    assert lengths == [10, 10, 10]
    assert len(rewards) == 3
    mean, _ = evaluate_policy(model, make_vec_env(2), n_eval_episodes=4, deterministic=False)
    assert np.isfinite(mean)


@pytest.mark.slow
@both
def test_training_makes_the_policy_better_in_the_environment(transitions: str):
    model = make(env=DriftEnv(), dataset=drift_data(200), transitions=transitions)
    env = Monitor(DriftEnv())
    env.reset(seed=0)
    before, _ = evaluate_policy(model, env, n_eval_episodes=5)
    model.learn(60 if transitions == "samples" else 8)
    env.reset(seed=0)
    after, _ = evaluate_policy(model, env, n_eval_episodes=5)
    assert after > before + 1.0


def test_default_networks():
    for algorithm, expected_class, n_outputs in (
        (NOPGD, DeterministicMlpPolicy, 2),
        (NOPGS, GaussianMlpPolicy, 4),
    ):
        model = make(algorithm)
        assert type(model.policy) is expected_class
        layers = list(model.policy.network)
        assert [type(layer) for layer in layers] == [nn.Linear, nn.ReLU, nn.Linear]
        assert [layers[0].out_features, layers[2].out_features] == [50, n_outputs]
    assert type(make(NOPGD, "LinearPolicy").policy) is DeterministicLinearPolicy
    assert type(make(NOPGS, "LinearPolicy").policy) is GaussianLinearPolicy
    assert type(make(NOPGS).policy) is GaussianMlpPolicy


@pytest.mark.parametrize(
    ("net_arch", "expected"), [([], [nn.Linear]), ([8, 8], [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear])]
)
@variants
def test_networks_as_asked_for(algorithm: type[NOPG], net_arch: list[int], expected: list[type[nn.Module]]):
    model = make(algorithm, policy_kwargs={"net_arch": net_arch, "activation_fn": nn.Tanh})
    assert [type(layer) for layer in model.policy.network] == expected
    assert [layer.out_features for layer in model.policy.network if isinstance(layer, nn.Linear)][:-1] == net_arch
    before = parameters_of(model)
    assert not np.array_equal(parameters_of(model.learn(2)), before)


def test_deterministic_mlp_is_a_tanh_scaled_to_the_action_space():
    policy = make(env=DriftEnv()).policy
    observations = th.as_tensor(STATES, dtype=th.float32)
    squashed = th.tanh(policy.network(policy.normalize(observations)))
    expected = ACTION_LOW + 0.5 * (squashed.detach().numpy() + 1.0) * (ACTION_HIGH - ACTION_LOW)
    np.testing.assert_allclose(policy.predict(STATES)[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gaussian_mlp_has_a_tanh_mean_and_a_sigmoid_standard_deviation():
    policy = make(NOPGS, env=DriftEnv(), policy_kwargs={"max_std": 0.25}).policy
    observations = th.as_tensor(STATES, dtype=th.float32)
    output = policy.network(policy.normalize(observations)).detach().numpy()
    center, half_range = (ACTION_HIGH + ACTION_LOW) / 2, (ACTION_HIGH - ACTION_LOW) / 2
    mean, std = (part.detach().numpy() for part in policy.action_distribution(observations))
    np.testing.assert_allclose(mean, center + half_range * np.tanh(output[:, :2]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, 0.25 * half_range / (1.0 + np.exp(-output[:, 2:])), rtol=1e-5)
    th.manual_seed(0)
    draws = np.stack([policy._predict(observations).detach().numpy() for _ in range(3000)])
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=5.0 * std.max() / np.sqrt(3000))
    np.testing.assert_allclose(draws.std(axis=0), std, rtol=0.1)


def test_linear_policy_is_a_gain_on_raw_observations():
    gain = [[0.7, -0.2], [0.1, 0.3]]
    model = make(policy="LinearPolicy", env=DriftEnv(), policy_kwargs={"initial_gain": gain})
    actions = model.predict(STATES)[0]
    np.testing.assert_allclose(actions, np.clip(STATES @ np.array(gain).T, ACTION_LOW, ACTION_HIGH), rtol=1e-5, atol=1e-6)
    model.learn(3)
    np.testing.assert_allclose(
        model.predict(STATES)[0],
        np.clip(STATES @ model.policy.gain.detach().numpy().T, ACTION_LOW, ACTION_HIGH),
        rtol=1e-5,
        atol=1e-6,
    )
    # Not squashed: what the gain asks for is not bounded, only what predict() hands to an environment is.
    assert float(model.policy.action_distribution(th.full((1, 2), 100.0))[0].detach().abs().max()) > 3.0


def test_diagonal_gain_stays_diagonal():
    model = make(policy="LinearPolicy", policy_kwargs={"diagonal": True}).learn(5)
    gain = model.policy.gain.detach().numpy()
    assert np.count_nonzero(gain) == 2
    assert np.count_nonzero(np.diag(gain)) == 2


def test_observations_are_normalised_by_the_data_unless_told_not_to():
    data = drift_data()
    policy = make(dataset=data).policy
    np.testing.assert_allclose(policy.observation_mean.numpy(), data.observations.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(policy.observation_std.numpy(), data.observations.std(axis=0), rtol=1e-5)
    raw = make(dataset=data, normalize_observations=False).learn(2).policy
    assert raw.observation_mean.tolist() == [0.0, 0.0]
    assert raw.observation_std.tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_units_of_the_observations_do_not_matter():
    data = drift_data()
    scaled = TransitionDataset(
        data.observations * [1024.0, 1 / 64],
        data.actions,
        data.rewards,
        data.next_observations * [1024.0, 1 / 64],
        data.terminals,
        episode_ids=data.episode_ids,
    )
    model = make(dataset=data).learn(10)
    other = make(dataset=scaled, state_bandwidth=[0.4 * 1024.0, 0.4 / 64]).learn(10)
    np.testing.assert_allclose(other.predict(STATES * [1024.0, 1 / 64])[0], model.predict(STATES)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transitions", "policy"), [("samples", "MlpPolicy"), ("samples", "LinearPolicy"), ("model", "MlpPolicy")]
)
def test_standard_deviation_decays_to_its_share_exactly_at_the_end(transitions: str, policy: str):
    model = make(NOPGS, policy, policy_kwargs={"final_std_scale": 0.1}, transitions=transitions)
    recorder = Recorder(lambda callback: float(callback.model.policy.std_scale))
    model.learn(9, callback=recorder)
    np.testing.assert_allclose(recorder.seen, 1.0 - 0.9 * np.arange(1, 10) / 9, rtol=1e-6)
    assert model.policy.std_scale == th.tensor(0.1)
    observations = th.as_tensor(STATES, dtype=th.float32)
    decayed = model.policy.action_distribution(observations)[1]
    model.policy.set_std_scale(1.0)
    th.testing.assert_close(decayed, 0.1 * model.policy.action_distribution(observations)[1])


def test_standard_deviation_is_left_alone_by_default():
    assert make(NOPGS).learn(5).policy.std_scale == 1.0


def test_the_learning_rate_schedule_reaches_the_optimiser():
    model = make(learning_rate=lambda progress_remaining: 0.1 * progress_remaining)
    recorder = Recorder(lambda callback: callback.model.policy.optimizer.param_groups[0]["lr"])
    model.learn(4, callback=recorder)
    np.testing.assert_allclose(recorder.seen, [0.1, 0.075, 0.05, 0.025])


def test_the_optimiser_can_be_chosen():
    model = make(policy_kwargs={"optimizer_class": th.optim.SGD, "optimizer_kwargs": {"momentum": 0.5}}).learn(2)
    assert type(model.policy.optimizer) is th.optim.SGD
    assert model.policy.optimizer.param_groups[0]["momentum"] == 0.5


@all_policies
def test_a_policy_can_be_saved_by_itself(
    algorithm: type[NOPG], policy: str, policy_kwargs: dict[str, Any], tmp_path: pathlib.Path
):
    model = make(algorithm, policy, policy_kwargs={**policy_kwargs, "final_std_scale": 0.4}).learn(3)
    model.policy.save(tmp_path / "policy.pth")
    loaded = type(model.policy).load(tmp_path / "policy.pth")
    np.testing.assert_array_equal(loaded.predict(STATES, deterministic=True)[0], model.predict(STATES, deterministic=True)[0])
    observations = th.as_tensor(STATES, dtype=th.float32)
    th.testing.assert_close(loaded.action_distribution(observations), model.policy.action_distribution(observations))


class CubicPolicy(NOPGPolicy):
    """A policy of a user's own: odd polynomials of the normalised state."""

    own_arguments: ClassVar[tuple[str, ...]] = ("degree",)

    def __init__(
        self, observation_space: spaces.Box, action_space: spaces.Box, lr_schedule: Any, degree: int = 3, **kwargs: Any
    ):
        super().__init__(observation_space, action_space, **kwargs)
        self.degree = degree
        self.coefficients = nn.Parameter(th.zeros(action_space.shape[0], observation_space.shape[0]))
        self._build_optimizer(lr_schedule)

    def action_distribution(self, observations: th.Tensor) -> tuple[th.Tensor, th.Tensor | None]:
        return self.normalize(observations) ** self.degree @ self.coefficients.T, None


@pytest.mark.slow
@both
def test_a_user_s_own_policy_class(transitions: str, tmp_path: pathlib.Path):
    model = make(policy=CubicPolicy, policy_kwargs={"degree": 1}, transitions=transitions)
    predicted = model.estimated_return()
    assert model.learn(20).estimated_return() > predicted
    model.save(tmp_path / "model")
    # Its class is in a pickle.
    loaded = NOPG.load(tmp_path / "model", trust=True)
    assert loaded.policy.degree == 1
    np.testing.assert_array_equal(loaded.predict(STATES)[0], model.predict(STATES)[0])
    model.policy.save(tmp_path / "policy.pth")
    np.testing.assert_array_equal(CubicPolicy.load(tmp_path / "policy.pth").predict(STATES)[0], model.predict(STATES)[0])
