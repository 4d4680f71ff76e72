"""Policies along trajectories: in NumPy what they are in torch, with the derivatives that autograd finds."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_nopg.policies.nopg_policy import DeterministicLinearPolicy, DeterministicMlpPolicy, GaussianMlpPolicy
from sb3_nopg.policies.plain_network import RememberingNetwork, is_plain
from sb3_nopg.policies.step_function import remembered, step_function

N_CALLS, M = 4, 7


class Timid(DeterministicMlpPolicy):
    """Has ideas of its own."""

    def action_distribution(self, observations):
        mean, std = super().action_distribution(observations)
        return 0.1 * mean, std


def policy_of(kind=DeterministicMlpPolicy, activation=th.nn.Tanh, net_arch=(16, 8)):
    th.manual_seed(0)
    spaces_ = spaces.Box(-9, 9, (3,)), spaces.Box(-1.0, 3.0, (2,))
    policy = kind(*spaces_, lambda _: 1e-3, net_arch=list(net_arch), activation_fn=activation).double()
    policy.fit_normalization(5.0 + 2.0 * np.random.default_rng(0).standard_normal((50, 3)))
    policy.set_std_scale(0.7)
    return policy


def calls():
    generator = np.random.default_rng(1)
    return 5.0 + generator.standard_normal((N_CALLS, M, 3)), generator.standard_normal((N_CALLS, M, 2))


@pytest.mark.parametrize("kind", [DeterministicMlpPolicy, GaussianMlpPolicy], ids=["D", "S"])
@pytest.mark.parametrize("activation", [th.nn.Tanh, th.nn.ReLU, th.nn.ELU])
def test_a_policy_in_numpy_does_what_it_does_in_torch(activation, kind):
    policy = policy_of(kind, activation)
    seen, drawn = (part[0] for part in calls())
    with th.no_grad():
        expected = policy.sample_actions(th.tensor(seen), th.tensor(drawn)[:, None])[:, 0].numpy()
        mean = policy.action_distribution(th.tensor(seen))[0].numpy()
    np.testing.assert_allclose(step_function(policy)(seen, drawn), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(step_function(policy)(seen, None), mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("with_noise", [False, True])
@pytest.mark.parametrize("net_arch", [(), (16,), (16, 8)])
@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        (DeterministicMlpPolicy, th.nn.Tanh),
        (GaussianMlpPolicy, th.nn.Tanh),
        (GaussianMlpPolicy, th.nn.ReLU),
        (DeterministicMlpPolicy, th.nn.ELU),
        (Timid, th.nn.Tanh),
    ],
)
def test_derivatives_are_those_of_autograd(kind, activation, net_arch, with_noise):
    policy = policy_of(kind, activation, net_arch)
    seen, drawn = calls()
    steps = remembered(policy)
    assert (
        isinstance(steps, RememberingNetwork)
        == is_plain(policy)
        == (kind is not Timid and (activation is not th.nn.ELU or not net_arch))
    )
    asked = [steps(seen[t], drawn[t] if with_noise else None) for t in range(N_CALLS)]
    actions, slopes = steps.answers()
    np.testing.assert_allclose(actions.numpy(), np.concatenate(asked), rtol=1e-12, atol=1e-12)

    together = th.tensor(seen.reshape(-1, 3), requires_grad=True)
    noise = th.tensor(drawn.reshape(-1, 1, 2)) if with_noise else None
    expected = policy.sample_actions(together, noise)[:, 0]
    for number in range(2):
        (by_observation,) = th.autograd.grad(expected[:, number].sum(), together, retain_graph=True)
        th.testing.assert_close(slopes[:, number], by_observation, rtol=1e-10, atol=1e-12)

    derivative = th.tensor(np.random.default_rng(2).standard_normal((N_CALLS * M, 2)))
    parameters = list(policy.parameters())
    by_parameter = th.autograd.grad(expected, parameters, derivative)
    for times in (1, 2):
        # Gradients add up, as those of a backward pass do.
        steps.push_back(derivative)
        for parameter, once in zip(parameters, by_parameter, strict=True):
            th.testing.assert_close(parameter.grad, times * once, rtol=1e-10, atol=1e-12)
        if not isinstance(steps, RememberingNetwork):
            break


def test_a_parameter_that_does_not_learn_stays_without_a_gradient():
    policy = policy_of()
    policy.network[0].weight.requires_grad_(False)
    steps = remembered(policy)
    steps(calls()[0][0], None)
    steps.answers()
    steps.push_back(th.ones(M, 2, dtype=th.float64))
    assert policy.network[0].weight.grad is None
    assert float(policy.network[0].bias.grad.abs().amax()) > 0.0


class WithPrior(DeterministicMlpPolicy):
    """A controller that the network adds to."""

    def network_output(self, observations):
        return super().network_output(observations) + observations[:, :2]


class Louder(th.nn.Sequential):
    def forward(self, values):
        return 2.0 * super().forward(values)


def with_prior():
    return policy_of(WithPrior)


def with_another_network():
    policy = policy_of()
    policy.network = Louder(*policy.network)
    return policy


def with_a_forward_hook():
    policy = policy_of()
    policy.network[1].register_forward_hook(lambda module, given, found: 0.5 * found)
    return policy


def with_a_hook_of_a_weight():
    policy = policy_of()
    policy.network[0].weight.register_hook(lambda gradient: 0.0 * gradient)
    return policy


def with_normalised_weights():
    policy = policy_of()
    th.nn.utils.parametrizations.weight_norm(policy.network[0])
    return policy


def without_a_bias():
    policy = policy_of()
    policy.network[0] = th.nn.Linear(3, 16, bias=False).double()
    return policy


@pytest.mark.parametrize(
    "make",
    [with_prior, with_another_network, with_a_forward_hook, with_a_hook_of_a_weight, with_normalised_weights, without_a_bias],
)
def test_what_is_not_plain_is_left_to_torch(make):
    policy, seen = make(), calls()[0][0]
    assert not is_plain(policy)
    steps = remembered(policy)
    with th.no_grad():
        expected = policy.action_distribution(th.tensor(seen))[0].numpy()
    np.testing.assert_array_equal(steps(seen, None), expected)
    steps.answers()
    steps.push_back(th.ones(M, 2, dtype=th.float64))
    found = [parameter.grad.clone() for parameter in policy.parameters()]
    policy.zero_grad()
    policy.sample_actions(th.tensor(seen), None).sum().backward()
    for parameter, gradient in zip(policy.parameters(), found, strict=True):
        th.testing.assert_close(gradient, parameter.grad)


def test_what_changes_afterwards_is_not_seen():
    policy, seen = policy_of(GaussianMlpPolicy), calls()[0][0]
    step = step_function(policy)
    before = step(seen, None)
    with th.no_grad():
        for tensor in (*policy.parameters(), policy.observation_mean, policy.observation_std, policy.action_center):
            tensor.add_(1.0)
    np.testing.assert_array_equal(step(seen, None), before)


def test_two_activations_in_a_row_are_left_to_torch():
    policy = policy_of()
    policy.network.insert(2, th.nn.ReLU())
    assert not is_plain(policy)
    seen = calls()[0][0]
    with th.no_grad():
        expected = policy.action_distribution(th.tensor(seen))[0].numpy()
    np.testing.assert_array_equal(step_function(policy)(seen, None), expected)


def test_a_policy_with_ideas_of_its_own_is_asked_for_them():
    policy, seen = policy_of(Timid), calls()[0][0]
    with th.no_grad():
        expected = policy.action_distribution(th.tensor(seen))[0].numpy()
    np.testing.assert_array_equal(step_function(policy)(seen, None), expected)


def test_linear_policies_are_left_to_torch():
    policy = DeterministicLinearPolicy(spaces.Box(-9, 9, (3,)), spaces.Box(-1.0, 1.0, (1,)), lambda _: 1e-3)
    assert not is_plain(policy)
