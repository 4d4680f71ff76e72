"""Path-wise importance sampling against loops, finite differences and closed forms."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from scipy.stats import norm
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from nopg_envs.lqr import LQREnv
from sb3_nopg import InputError, SolverError, TransitionDataset
from sb3_nopg.experiments.baselines import PWIS, BestEvaluation, linear_gaussian_behavior, mixture_behavior
from sb3_nopg.experiments.baselines.densities import gaussian_log_density
from sb3_nopg.experiments.baselines.pwis import importance_weights
from sb3_nopg.policies.nopg_policy import DeterministicMlpPolicy

STATES = spaces.Box(-np.inf, np.inf, (2,), np.float64)
WIDE = spaces.Box(-1e3, 1e3, (2,), np.float64)
NARROW = spaces.Box(-1.0, 1.0, (2,), np.float64)


def episodes(rewards: list[np.ndarray], observations: np.ndarray, actions: np.ndarray, **columns) -> TransitionDataset:
    """Episodes of these lengths, one after the other, through consecutive states (n + 1, d_s)."""
    ids = np.repeat(np.arange(len(rewards)), [len(episode) for episode in rewards])
    return TransitionDataset(
        observations=observations[:-1],
        actions=actions,
        rewards=np.concatenate(rewards),
        next_observations=observations[1:],
        episode_ids=ids,
        **{"terminals": np.zeros(len(ids), dtype=bool), "observation_space": STATES, "action_space": WIDE, **columns},
    )


def random_episodes(seed: int, lengths: tuple[int, ...] = (4, 2, 5, 3), ended: tuple[int, ...] = (1,)) -> TransitionDataset:
    """Of unequal lengths, some truly ended, with a clipped behaviour: some actions lie on an end of the action space."""
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    terminals = np.zeros(n, dtype=bool)
    terminals[np.cumsum(lengths)[list(ended)] - 1] = True
    observations = rng.normal(size=(n + 1, 2))
    actions = np.stack([mixture_behavior(NARROW, seed=seed + row)(observations[row]) for row in range(n)])
    rewards = np.split(rng.normal(size=n), np.cumsum(lengths)[:-1])
    return episodes(rewards, observations, actions, terminals=terminals, action_space=NARROW)


def lqr_episodes(env: LQREnv, gain: np.ndarray, std: float, n: int, n_steps: int, seed: int) -> TransitionDataset:
    """Many rollouts of u = K x + σ ξ at once."""
    rng = np.random.default_rng(seed)
    x = np.tile(env.x0, (n, 1))
    columns: list[list[np.ndarray]] = [[], [], [], []]
    for _ in range(n_steps):
        u = x @ gain.T + std * rng.standard_normal((n, len(gain)))
        after = x @ env.A.T + u @ env.B.T
        reward = 0.5 * (np.einsum("ni,ij,nj->n", x, env.Q, x) + np.einsum("ni,ij,nj->n", u, env.R, u))
        for column, value in zip(columns, (x, u, reward, after), strict=True):
            column.append(value)
        x = after
    observations, actions, rewards, following = (np.stack(column, axis=1) for column in columns)
    return TransitionDataset(
        observations=observations.reshape(n * n_steps, -1),
        actions=actions.reshape(n * n_steps, -1),
        rewards=rewards.reshape(-1),
        next_observations=following.reshape(n * n_steps, -1),
        terminals=np.zeros(n * n_steps, dtype=bool),
        episode_ids=np.repeat(np.arange(n), n_steps),
        observation_space=STATES,
        action_space=WIDE,
    )


def finite_differences(model: PWIS, step: float = 1e-6) -> np.ndarray:
    parameters = list(model.policy.parameters())
    start = parameters_to_vector(parameters).detach().clone()
    slopes = []
    for index in range(len(start)):
        values = []
        for sign in (1.0, -1.0):
            moved = start.clone()
            moved[index] += sign * step
            vector_to_parameters(moved, parameters)
            values.append(model.estimate().discounted_return)
        slopes.append((values[0] - values[1]) / (2 * step))
    vector_to_parameters(start, parameters)
    return np.array(slopes)


@pytest.mark.slow
@pytest.mark.parametrize("self_normalized", [False, True])
@pytest.mark.parametrize(
    ("policy", "policy_kwargs"),
    [("LinearPolicy", {"std": 0.6, "initial_gain": [[0.3, -0.2], [0.1, 0.4]]}), ("MlpPolicy", {"net_arch": [5]})],
)
def test_gradient_is_that_of_the_estimate(policy, policy_kwargs, self_normalized):
    data = random_episodes(0)
    assert (np.abs(data.actions) == 1.0).any()  # clipped ones are among them
    behavior = mixture_behavior(NARROW)
    model = PWIS(
        policy, data, behavior.log_density, gamma=0.9, self_normalized=self_normalized, policy_kwargs=policy_kwargs, seed=1
    )
    gradient = model.estimate().gradient
    assert np.abs(gradient).max() > 1e-3
    np.testing.assert_allclose(gradient, finite_differences(model), rtol=1e-5, atol=1e-8)


def test_estimate_is_the_papers_sum():
    """Σ_t γᵗ ρ_t Q_t ∇log π_t with Q_t what followed, importance-weighted, by loops; linear-Gaussian score by hand."""
    rng = np.random.default_rng(3)
    gain, std, gamma, n_steps, n_episodes = np.array([[0.4, -0.1], [0.2, 0.3]]), 0.7, 0.8, 4, 3
    observations, actions = rng.normal(size=(n_steps * n_episodes + 1, 2)), rng.normal(size=(n_steps * n_episodes, 2))
    rewards, log_behavior = rng.normal(size=n_steps * n_episodes), rng.normal(size=n_steps * n_episodes)
    data = episodes(np.split(rewards, n_episodes), observations, actions)
    estimated = PWIS(
        "LinearPolicy", data, log_behavior, gamma=gamma, policy_kwargs={"initial_gain": gain, "std": std}
    ).estimate()

    total, gradient = 0.0, np.zeros((2, 2))
    for episode in range(n_episodes):
        rows = range(episode * n_steps, (episode + 1) * n_steps)
        errors = [actions[row] - gain @ observations[row] for row in rows]
        ratios = [
            norm.pdf(error, scale=std).prod() / np.exp(log_behavior[row]) for row, error in zip(rows, errors, strict=True)
        ]
        for t in range(n_steps):
            total += gamma**t * np.prod(ratios[: t + 1]) * rewards[rows[t]]
            to_go = sum(gamma ** (k - t) * np.prod(ratios[t + 1 : k + 1]) * rewards[rows[k]] for k in range(t, n_steps))
            score = np.outer(errors[t], observations[rows[t]]) / std**2
            gradient += gamma**t * np.prod(ratios[: t + 1]) * to_go * score
    # The policy keeps σ in float32.
    assert estimated.discounted_return == pytest.approx(total / n_episodes, rel=1e-5)
    np.testing.assert_allclose(estimated.gradient, gradient.flatten() / n_episodes, rtol=1e-5)


@pytest.mark.parametrize("self_normalized", [False, True])
def test_one_step_problem_has_the_closed_form(self_normalized):
    """r = -|a - c s|² and a ~ N(k s, σ²): J = -Σ(k - c)² s² - d σ², learned from N(k_β s, σ_β²)."""
    rng = np.random.default_rng(5)
    n, target, gain, std = 100_000, 0.5, -0.2, 0.4
    state = np.array([1.0, -0.5])
    behavior = linear_gaussian_behavior(0.1 * np.eye(2), 0.7, WIDE)
    actions = 0.1 * state + 0.7 * rng.standard_normal((n, 2))
    data = TransitionDataset(
        observations=np.tile(state, (n, 1)),
        actions=actions,
        rewards=-((actions - target * state) ** 2).sum(axis=1),
        next_observations=np.tile(state, (n, 1)),
        terminals=np.zeros(n, dtype=bool),
        episode_ids=np.arange(n),
        action_space=WIDE,
    )
    model = PWIS(
        "LinearPolicy",
        data,
        behavior.log_density,
        self_normalized=self_normalized,
        policy_kwargs={"initial_gain": gain * np.eye(2), "std": std},
    )
    estimated = model.estimate()
    value = -((gain - target) ** 2 * state**2).sum() - 2 * std**2
    gradient = -2 * (gain - target) * np.outer(state, state)
    # Largest errors over ten seeds: 0.007 and 0.02.
    assert estimated.discounted_return == pytest.approx(value, abs=0.01)
    np.testing.assert_allclose(estimated.gradient.reshape(2, 2), gradient, atol=0.05)
    assert 1_000 < estimated.effective_episodes[0] < n


@pytest.mark.slow
@pytest.mark.parametrize("off_policy", [False, True])
def test_unbiased_for_the_regulator(off_policy):
    """The mean over many data sets against the regulator's closed form, in units of its own standard error."""
    env = LQREnv(B=0.5 * np.eye(2), R=-0.01 * np.eye(2), gamma=0.7)
    gain, std, n_steps = -0.8 * np.eye(2), 1.0, 15
    behavior_gain, behavior_std = (gain + 0.05, 1.05) if off_policy else (gain, std)
    behavior = linear_gaussian_behavior(behavior_gain, behavior_std, WIDE)
    kwargs = {"initial_gain": gain, "std": std}
    estimates = [
        PWIS("LinearPolicy", data, behavior.log_density, gamma=env.gamma, policy_kwargs=kwargs).estimate()
        for data in (lqr_episodes(env, behavior_gain, behavior_std, 500, n_steps, seed) for seed in range(40))
    ]
    gradients = np.stack([estimated.gradient.reshape(2, 2) for estimated in estimates])
    returns = np.array([estimated.discounted_return for estimated in estimates])
    truth = env.true_gradient(gain, std**2 * np.eye(2))
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(gradients))
    assert error.max() < 0.1 * np.abs(truth).max()  # sharp enough to notice
    assert (np.abs(gradients.mean(axis=0) - truth) < 4 * error).all()
    # Of the return, γ^15 = 0.005 lies past the horizon.
    return_error = returns.std(ddof=1) / np.sqrt(len(returns))
    assert returns.mean() == pytest.approx(env.true_return(gain, std**2 * np.eye(2)), abs=4 * return_error + 0.01)
    if not off_policy:
        np.testing.assert_allclose(estimates[0].effective_episodes, 500, rtol=1e-6)


def test_self_normalised_weights():
    rng = np.random.default_rng(0)
    log_ratios = th.from_numpy(300.0 * rng.normal(size=(6, 8)))
    taken = th.ones(6, 8, dtype=th.bool)
    weights, effective = importance_weights(log_ratios, taken, taken, self_normalized=True)
    np.testing.assert_allclose(weights.sum(dim=0), 1.0)
    # A factor that all episodes share, however large, does not matter.
    shifted, _ = importance_weights(log_ratios + 500.0, taken, taken, self_normalized=True)
    np.testing.assert_allclose(shifted, weights, atol=1e-9)
    assert ((effective >= 1.0 - 1e-9) & (effective <= 6.0 + 1e-9)).all()
    equal, effective = importance_weights(th.zeros(6, 8, dtype=th.float64), taken, taken, self_normalized=True)
    np.testing.assert_allclose(equal, 1 / 6)
    np.testing.assert_allclose(effective, 6.0)


def test_a_true_end_pays_nothing_more_and_a_time_limit_tells_nothing():
    """Reward one a step; one episode ends after two steps, one is cut after two, one goes on for four."""
    rng = np.random.default_rng(0)
    terminals = np.zeros(8, dtype=bool)
    terminals[1] = True
    data = episodes(
        [np.ones(2), np.ones(2), np.ones(4)], rng.normal(size=(9, 2)), rng.normal(size=(8, 2)), terminals=terminals
    )
    policy_kwargs = {"initial_gain": np.zeros((2, 2)), "std": 1.0}
    on_policy = linear_gaussian_behavior(np.zeros((2, 2)), 1.0, WIDE)
    for self_normalized in (False, True):
        model = PWIS(
            "LinearPolicy",
            data,
            on_policy.log_density,
            gamma=0.5,
            self_normalized=self_normalized,
            policy_kwargs=policy_kwargs,
        )
        assert model.estimate().discounted_return == pytest.approx(1 + 0.5 + (0.25 + 0.125) / 2)


@pytest.mark.slow
def test_an_action_on_an_end_counts_with_the_probability_of_being_clipped():
    """Reward for a clipped action: the return is the policy's probability to be clipped."""
    n, half = 50_000, np.array([0.5])
    space = spaces.Box(-1.0, 1.0, (1,), np.float64)
    behavior = linear_gaussian_behavior([[0.0]], 1.0, space, seed=1)
    states = np.tile(half, (n, 1))
    actions = np.stack([behavior(state) for state in states])
    data = TransitionDataset(
        observations=states,
        actions=actions,
        rewards=(actions[:, 0] >= 1.0).astype(float),
        next_observations=states,
        terminals=np.zeros(n, dtype=bool),
        episode_ids=np.arange(n),
        action_space=space,
    )
    model = PWIS("LinearPolicy", data, behavior.log_density, policy_kwargs={"initial_gain": [[0.8]], "std": 0.9})
    slope = norm.pdf((1.0 - 0.4) / 0.9) * 0.5 / 0.9
    estimated = model.estimate()
    assert estimated.discounted_return == pytest.approx(norm.sf((1.0 - 0.4) / 0.9), abs=0.01)
    assert estimated.gradient == pytest.approx(slope, abs=0.01)


@pytest.mark.slow
def test_learns_and_reports_its_best():
    env = LQREnv(R=-0.01 * np.eye(2))
    start = np.diag([-3.0, -2.0])
    data = lqr_episodes(env, start, 0.3, 200, 10, seed=0)
    behavior = linear_gaussian_behavior(start, 0.3, WIDE)
    model = PWIS(
        "LinearPolicy",
        data,
        behavior.log_density,
        learning_rate=0.02,
        gamma=env.gamma,
        self_normalized=True,
        policy_kwargs={"diagonal": True, "initial_gain": start, "std": 0.3},
    )
    evaluation = BestEvaluation(lambda model: env.true_return(model.policy.gain.detach().numpy()), every=10)
    before = model.estimate().discounted_return
    assert model.learn(35, evaluation) is model
    assert [entry.n_updates for entry in evaluation.evaluations] == [0, 10, 20, 30, 35]
    assert model.estimate().discounted_return > before
    assert evaluation.best.value > evaluation.evaluations[0].value + 0.1
    evaluation.restore_best()
    assert env.true_return(model.policy.gain.detach().numpy()) == evaluation.best.value
    action, state = model.predict(env.x0, deterministic=True)
    np.testing.assert_allclose(action, model.policy.gain.detach().numpy() @ env.x0, rtol=1e-6)
    assert state is None


class Laplace(th.nn.Module):
    """A density of the user's own."""

    def __init__(self):
        super().__init__()
        self.center = th.nn.Parameter(th.tensor([0.2, -0.1], dtype=th.float64))

    def log_prob(self, observations: th.Tensor, actions: th.Tensor) -> th.Tensor:
        return th.distributions.Laplace(self.center, 0.8).log_prob(actions).sum(dim=1)


def test_any_module_with_a_log_density_will_do():
    data = random_episodes(4)
    model = PWIS(Laplace(), data, np.zeros(len(data)), gamma=0.9)
    np.testing.assert_allclose(model.estimate().gradient, finite_differences(model), rtol=1e-5)
    before = model.policy.center.detach().clone()
    model.learn(1)
    assert not th.equal(model.policy.center, before)


def test_overflow_is_an_error_and_not_a_policy_of_nan():
    data = random_episodes(0)
    far = np.full(len(data), -400.0)
    model = PWIS("LinearPolicy", data, far)
    with pytest.raises(SolverError, match=r"overflowed in update 1.*self_normalized=True"):
        model.learn(1)
    assert th.isfinite(model.policy.gain).all()
    PWIS("LinearPolicy", data, far, self_normalized=True).learn(2)


def without_episodes(data: TransitionDataset) -> TransitionDataset:
    names = ("observations", "actions", "rewards", "next_observations")
    return TransitionDataset(**{name: getattr(data, name) for name in names}, terminals=np.zeros(len(data), dtype=bool))


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (lambda data: {"dataset": without_episodes(data)}, "dataset", "one-step samples without trajectories"),
        (lambda data: {"dataset": data.subsample(9, seed=1)}, "dataset", "does not go on where row"),
        (lambda data: {"behavior_log_density": None}, "behavior_log_density", "is missing.*use NOPG"),
        (lambda data: {"behavior_log_density": np.zeros(3)}, "behavior_log_density", r"\(3,\).*one number for each row"),
        (lambda data: {"behavior_log_density": np.full(len(data), -np.inf)}, "behavior_log_density", "-inf at row 0"),
        (lambda data: {"behavior_log_density": lambda s, a: s}, "behavior_log_density", "one number for each row"),
        (lambda data: {"policy": DeterministicMlpPolicy}, "policy", "has no density"),
        (lambda data: {"policy": "CnnPolicy"}, "policy", "is unknown"),
        (lambda data: {"gamma": 1.5}, "gamma", "out of range"),
        (lambda data: {"learning_rate": 0.0}, "learning_rate", r"out of range.*\(0, inf\)"),
        (lambda data: {"policy": Laplace(), "policy_kwargs": {"std": 1.0}}, "policy_kwargs", "exists already"),
    ],
)
def test_bad_input_is_named(change, field, words):
    data = random_episodes(0)
    arguments = {"policy": "LinearPolicy", "dataset": data, "behavior_log_density": np.zeros(len(data)), **change(data)}
    with pytest.raises(InputError, match=words) as caught:
        PWIS(**arguments)
    assert caught.value.field == field


def test_the_number_of_updates_is_checked():
    data = random_episodes(0)
    with pytest.raises(InputError, match="n_updates"):
        PWIS("LinearPolicy", data, np.zeros(len(data))).learn(1.5)


def test_far_bounds_give_finite_gradients():
    mean = th.zeros(3, dtype=th.float64, requires_grad=True)
    bounds = th.tensor(-1e12, dtype=th.float64), th.tensor(1e12, dtype=th.float64)
    values, std = th.tensor([0.5, -0.5, 2.0], dtype=th.float64), th.full((3,), 0.01, dtype=th.float64)
    gaussian_log_density(values, mean, std, bounds).sum().backward()
    assert mean.grad is not None
    np.testing.assert_allclose(mean.grad, values / 0.01**2)
