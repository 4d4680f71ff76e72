"""The quadratic critic at its fixed point, its semi-gradient and its learning, against the regulator's closed forms."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from nopg_envs.lqr import LQREnv
from sb3_nopg import InputError, SolverError, TransitionDataset
from sb3_nopg.experiments.baselines import OfflineDPG, QuadraticCritic
from sb3_nopg.policies.nopg_policy import GaussianLinearPolicy

GAIN = np.array([[-3.0, 0.4], [0.2, -2.0]])
USUAL = {"R": -0.01 * np.eye(2), "action_bound": 1e3}


def random_transitions(
    env: LQREnv, n: int = 200, terminal_rows: tuple[int, ...] = (), behavior_gain: np.ndarray | None = None
) -> TransitionDataset:
    """Unordered samples of a noiseless regulator, with actions of any kind or about a gain's."""
    rng = np.random.default_rng(0)
    x, u = rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    if behavior_gain is not None:
        u += x @ behavior_gain.T
    terminals = np.zeros(n, dtype=bool)
    terminals[list(terminal_rows)] = True
    return TransitionDataset(
        observations=x,
        actions=u,
        rewards=0.5 * (np.einsum("ni,ij,nj->n", x, env.Q, x) + np.einsum("ni,ij,nj->n", u, env.R, u)),
        next_observations=x @ env.A.T + u @ env.B.T,
        terminals=terminals,
        observation_space=env.observation_space,
        action_space=env.action_space,
    )


def true_critic(env: LQREnv, gain: np.ndarray) -> np.ndarray:
    """W of Q(x, u) = zᵀWz: reward now, and the discounted value ½ x'ᵀPx' of where it leads."""
    basis = np.eye(2)
    values = np.array([[float(env.value(gain, one + other)) for other in basis] for one in basis])
    single = np.array([float(env.value(gain, one)) for one in basis])
    # From V(x) = ½ xᵀPx at the unit vectors and their sums.
    half_p = (values - single[:, None] - single[None, :]) / 2
    step = np.hstack([env.A, env.B])
    now = 0.5 * np.block([[env.Q, np.zeros((2, 2))], [np.zeros((2, 2)), env.R]])
    return now + env.gamma * step.T @ half_p @ step


def make(env: LQREnv, data: TransitionDataset | None = None, **changes) -> OfflineDPG:
    arguments = {"gamma": env.gamma, "policy_kwargs": {"initial_gain": GAIN}, **changes}
    return OfflineDPG("LinearPolicy", random_transitions(env) if data is None else data, **arguments)


def test_fitted_critic_is_the_true_one():
    env = LQREnv(**USUAL)
    model = make(env, cross_terms=True)
    model.fit_critic()
    np.testing.assert_allclose(model.critic.matrix.detach(), true_critic(env, GAIN), atol=1e-9)


def test_the_papers_critic_is_true_where_nothing_joins_state_and_action():
    env = LQREnv(A=np.zeros((2, 2)), B=[[0.3, 0.1], [0.0, 0.4]], R=[[-0.02, 0.005], [0.005, -0.01]], action_bound=1e3)
    model = make(env)
    model.fit_critic()
    np.testing.assert_allclose(model.critic.matrix.detach(), true_critic(env, GAIN), atol=1e-9)


def test_the_papers_critic_sees_no_reason_to_act():
    """Without the joining term the best gain is zero, where the system is unstable; with it, the regulator's."""
    env = LQREnv(**USUAL)
    best = env.optimal_gain()
    for cross_terms, is_stationary in ((True, True), (False, False)):
        model = make(env, cross_terms=cross_terms, policy_kwargs={"initial_gain": best})
        model.fit_critic()
        assert (np.abs(model.semi_gradient()).max() < 1e-6) == is_stationary
    idle = make(env, policy_kwargs={"initial_gain": np.zeros((2, 2))})
    idle.critic.set_coefficients(-th.ones(6, dtype=th.float64))
    np.testing.assert_allclose(idle.semi_gradient(), 0.0, atol=1e-12)


def test_terminals_are_worth_nothing_more():
    env = LQREnv(**USUAL)
    all_but_one = tuple(range(1, 200))
    model = make(env, random_transitions(env, terminal_rows=all_but_one), cross_terms=True)
    model.fit_critic()
    now = 0.5 * np.block([[env.Q, np.zeros((2, 2))], [np.zeros((2, 2)), env.R]])
    assert np.abs(model.critic.matrix.detach().numpy() - now).max() < 0.2 * np.abs(true_critic(env, GAIN) - now).max()


def test_semi_gradient_has_the_closed_form():
    """((R + γBᵀPB) K + γBᵀPA) times the data's second moment, where the true gradient has the policy's own."""
    env = LQREnv(**USUAL)
    data = random_transitions(env)
    model = make(env, data, cross_terms=True)
    model.fit_critic()
    w = true_critic(env, GAIN)
    moment = data.observations.T @ data.observations / len(data)
    # Q = xᵀW₁₁x + 2uᵀW₂₁x + uᵀW₂₂u.
    expected = 2 * (w[2:, :2] + w[2:, 2:] @ GAIN) @ moment
    np.testing.assert_allclose(model.semi_gradient().reshape(2, 2), expected, rtol=1e-6)


def test_semi_gradient_holds_the_critic():
    model = make(LQREnv(**USUAL), policy_kwargs={"initial_gain": np.diag(np.diag(GAIN)), "diagonal": True})
    model.fit_critic()
    parameters = list(model.policy.parameters())
    start = parameters_to_vector(parameters).detach().clone()
    slopes = []
    for index in range(len(start)):
        values = []
        for sign in (1.0, -1.0):
            moved = start.clone()
            moved[index] += sign * 1e-5
            vector_to_parameters(moved, parameters)
            values.append(model.policy_objective().item())
        slopes.append((values[0] - values[1]) / 2e-5)
    vector_to_parameters(start, parameters)
    np.testing.assert_allclose(model.semi_gradient(), slopes, rtol=1e-6)


def test_the_critics_step_holds_its_target():
    """Derivative of the squared error by hand: the target's own dependence on the critic is left out."""
    env = LQREnv(**USUAL)
    data = random_transitions(env)
    model = make(env, data, cross_terms=True)
    model.fit_critic()
    with th.no_grad():
        # All four apart: what is learned, and its targets.
        model.critic.weight.add_(0.1)
        model.critic_target.weight.add_(0.3)
        model.policy.weight.mul_(2.0)
    model.critic_loss().backward()
    z = np.hstack([data.observations, data.actions])
    following = np.hstack([data.next_observations, data.next_observations @ GAIN.T])
    w, target = true_critic(env, GAIN) + 0.1, true_critic(env, GAIN) + 0.3
    targets = data.rewards + env.gamma * np.einsum("ni,ij,nj->n", following, target, following)
    errors = np.einsum("ni,ij,nj->n", z, w, z) - targets
    expected = 2 * np.einsum("n,ni,nj->ij", errors, z, z) / len(z)
    np.testing.assert_allclose(model.critic.weight.grad, expected, rtol=1e-6, atol=1e-9)


def test_targets_follow_by_tau():
    model = make(LQREnv(**USUAL), tau=0.01)
    model.learn(1)
    for learned, target in ((model.critic, model.critic_target), (model.policy, model.policy_target)):
        assert list(learned.parameters()) is not list(target.parameters())
        for one, other in zip(learned.parameters(), target.parameters(), strict=True):
            assert one is not other
    # Zero at first, and the policy moves only after the critic.
    np.testing.assert_allclose(model.critic_target.weight.detach(), 0.01 * model.critic.weight.detach(), atol=1e-12)
    assert not th.equal(model.policy.gain, model.policy_target.gain)


@pytest.mark.slow
def test_the_critic_learns_its_fixed_point():
    env = LQREnv(**USUAL)
    settings = {"cross_terms": True, "learning_rate": 1e-12, "critic_learning_rate": 0.02, "n_critic_updates": 300, "tau": 0.1}
    model = make(env, random_transitions(env, behavior_gain=GAIN), **settings).learn(4)
    np.testing.assert_allclose(model.critic.matrix.detach(), true_critic(env, GAIN), atol=0.01)
    # With actions that have nothing to do with the policy's, bootstrapping runs away, as semi-gradients do.
    astray = make(env, random_transitions(env), **settings).learn(2)
    assert np.abs(astray.critic.matrix.detach().numpy() - true_critic(env, GAIN)).max() > 10


@pytest.mark.slow
def test_learns_the_regulator_where_the_critic_can():
    env = LQREnv(**USUAL)
    start = np.diag([-3.0, -2.0])
    model = make(
        env,
        random_transitions(env, behavior_gain=np.diag([-5.0, -3.0])),
        cross_terms=True,
        learning_rate=0.05,
        critic_learning_rate=0.02,
        n_critic_updates=20,
        tau=0.1,
        policy_kwargs={"diagonal": True, "initial_gain": start},
    )
    model.fit_critic()
    model.learn(80)
    gain = model.policy.gain.detach().numpy()
    optimum = env.true_return(env.optimal_gain())
    assert optimum - env.true_return(gain) < 0.2 * (optimum - env.true_return(start))


def test_coefficients_and_features_agree():
    critic = QuadraticCritic(2, 1, cross_terms=True)
    coefficients = th.arange(1.0, 7.0, dtype=th.float64)
    critic.set_coefficients(coefficients)
    states, actions = th.randn(5, 2, dtype=th.float64), th.randn(5, 1, dtype=th.float64)
    np.testing.assert_allclose(critic(states, actions).detach(), critic.features(states, actions) @ coefficients)


def test_data_without_a_fixed_point_is_an_error():
    """One state and action, followed by a state larger by √(1/γ): the value would satisfy w = r + w."""
    states = np.array([[1.0, 0.0], [1.0, 0.0]])
    data = TransitionDataset(
        observations=states,
        actions=np.zeros((2, 2)),
        rewards=np.ones(2),
        next_observations=states / np.sqrt(0.81),
        terminals=np.zeros(2, dtype=bool),
        action_space=spaces.Box(-1.0, 1.0, (2,), np.float64),
    )
    model = OfflineDPG("LinearPolicy", data, gamma=0.81)
    with pytest.raises(SolverError, match="no fixed point"):
        model.fit_critic()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tau": 2.0}, "tau"),
        ({"n_critic_updates": 0}, "n_critic_updates"),
        ({"critic_learning_rate": -1.0}, "critic_learning_rate"),
        ({"policy": GaussianLinearPolicy}, "policy"),
    ],
)
def test_bad_input_is_named(changes, field):
    arguments = {"policy": "LinearPolicy", "dataset": random_transitions(LQREnv(**USUAL)), **changes}
    with pytest.raises(InputError) as caught:
        OfflineDPG(**arguments)
    assert caught.value.field == field
