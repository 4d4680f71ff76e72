"""What a model says about its policy: against the paper's formulas, and one answer against another."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

import sb3_nopg.bellman.solvers.coarse
from helpers import oracles
from helpers.bellman_problems import random_problem
from helpers.models import make_nopg
from helpers.oracles import OracleProblem
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.paper import AS_IN_THE_PAPER

QUERY_STATES = np.random.default_rng(7).normal(size=(9, 2))
QUERIES: dict[str, Callable[[NOPG], Any]] = {
    "estimated_return": lambda model: model.estimated_return(),
    "q_values": lambda model: model.q_values,
    "visitation": lambda model: model.visitation,
    "policy_gradient": lambda model: model.policy_gradient(),
    "value": lambda model: model.value(QUERY_STATES),
    "state_distribution": lambda model: model.state_distribution(QUERY_STATES),
    "support": lambda model: model.support(QUERY_STATES),
}


def dataset_of(problem: OracleProblem) -> TransitionDataset:
    return TransitionDataset(problem.states, problem.actions, problem.rewards, problem.next_states, problem.terminals)


def model_of(problem: OracleProblem, policy: str = "MlpPolicy", **settings: Any) -> NOPG:
    """A model of a problem, exact unless told otherwise: all neighbours, and solves far below any tolerance used here."""
    arguments = dict(
        dataset=dataset_of(problem),
        initial_states=problem.initial_states,
        gamma=problem.gamma,
        state_bandwidth=problem.state_bandwidth,
        action_bandwidth=problem.action_bandwidth,
        next_state_bandwidth=problem.next_state_bandwidth,
        n_neighbors=problem.n_neighbors,
        n_action_samples=6,
        solver_tolerance=1e-10,
        seed=0,
    )
    return make_nopg(policy, None, **{**AS_IN_THE_PAPER, **arguments, **settings})


def relative_error(answer: Any, expected: Any) -> float:
    assert np.shape(answer) == np.shape(expected)
    return float(np.linalg.norm(np.subtract(answer, expected)) / np.linalg.norm(expected))


@pytest.fixture(params=["D", "S"])
def trained(request: pytest.FixtureRequest) -> NOPG:
    """A model after a few updates, deterministic and stochastic in turn."""
    return model_of(random_problem(), variant=request.param).learn(5)


@pytest.fixture
def deterministic() -> NOPG:
    return model_of(random_problem()).learn(5)


# --- Against the oracle --------------------------------------------------------------------------------------------------


def oracle_view(model: NOPG, problem: OracleProblem) -> tuple[OracleProblem, oracles.Policy, np.ndarray | None]:
    """The model's problem with the next states that it drew, its policy and its action noise, as the oracle takes them."""
    n = problem.n_transitions
    draws = (
        model.estimator.problem.queries.states[: -len(problem.initial_states)].numpy().reshape(n, -1, problem.states.shape[1])
    )
    if draws.shape[1] > 1:
        noise = (draws - problem.next_states[:, None, :]) / problem.next_state_bandwidth
        problem = dataclasses.replace(problem, next_state_noise=noise.swapaxes(0, 1))
    else:
        np.testing.assert_array_equal(draws[:, 0], problem.next_states)

    def policy(states: th.Tensor) -> Any:
        mean, std = model.policy.action_distribution(states)
        return mean if std is None else (mean, std)

    return problem, policy, None if model.estimator.action_noise is None else model.estimator.action_noise.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("policy_name", ["MlpPolicy", "LinearPolicy"])
@pytest.mark.parametrize(
    ("variant", "n_next_state_samples", "n_neighbors", "d_a"),
    [("D", 1, None, 1), ("S", 1, None, 1), ("D", 3, None, 2), ("S", 3, None, 2), ("D", 1, 8, 2), ("S", 3, 8, 1)],
)
def test_answers_equal_the_paper_s_formulas(
    variant: str, n_next_state_samples: int, n_neighbors: int | None, d_a: int, policy_name: str
):
    problem = random_problem(d_a=d_a, n_neighbors=n_neighbors)
    model = model_of(problem, policy_name, variant=variant, n_next_state_samples=n_next_state_samples).learn(5)
    model.policy.double()
    problem, policy, noise = oracle_view(model, problem)
    assert problem.n_next_state_samples == n_next_state_samples
    expected = oracles.evaluate(problem, policy, noise)

    assert relative_error(model.estimated_return(), expected.estimated_return) <= 1e-6
    assert relative_error(model.q_values, expected.q) <= 1e-6
    assert relative_error(model.visitation, expected.mu) <= 1e-6
    gradient = oracles.autograd_gradient(problem, policy, model.policy.parameters(), noise)
    assert relative_error(model.policy_gradient(), gradient.numpy()) <= 1e-6

    query_noise = None if variant == "D" else model.estimator.noise_for(len(QUERY_STATES)).numpy()
    value = oracles.value(problem, expected, policy, QUERY_STATES, query_noise)
    assert relative_error(model.value(QUERY_STATES), value) <= 1e-6
    distribution = oracles.state_distribution(problem, expected, policy, QUERY_STATES, query_noise)
    assert relative_error(model.state_distribution(QUERY_STATES), distribution) <= 1e-6


def test_gradient_predicts_how_the_estimated_return_changes(trained: NOPG):
    trained.policy.double()
    gradient, parameters = trained.policy_gradient(), list(trained.policy.parameters())
    start = th.nn.utils.parameters_to_vector(parameters).detach().clone()
    direction = th.as_tensor(gradient / np.linalg.norm(gradient))
    returns = []
    for step in (-1e-5, 1e-5):
        th.nn.utils.vector_to_parameters(start + step * direction, parameters)
        returns.append(trained.estimated_return())
    slope = (returns[1] - returns[0]) / 2e-5
    assert slope == pytest.approx(np.linalg.norm(gradient), rel=1e-5)


@pytest.mark.parametrize("variant", ["D", "S"])
def test_training_follows_the_gradient_that_is_reported(variant: str):
    model = model_of(random_problem(), variant=variant, learning_rate=1e-3, policy_kwargs={"optimizer_class": th.optim.SGD})
    model.policy.double()
    gradient = model.policy_gradient()
    before = th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy().copy()
    model.learn(1)
    after = th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()
    assert relative_error(after - before, 1e-3 * gradient) <= 1e-6


# --- One answer against another ------------------------------------------------------------------------------------------


def test_q_is_the_reward_and_the_discounted_value_of_what_follows(deterministic: NOPG):
    data = deterministic.dataset
    assert data.terminals.any()
    expected = data.rewards + deterministic.gamma * np.where(data.terminals, 0.0, deterministic.value(data.next_observations))
    np.testing.assert_allclose(deterministic.q_values, expected, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{}, {"keep_largest": 5}, {"kl_bound": 0.1}, {"n_neighbors": 8}, {"n_next_state_samples": 3}]
)
@pytest.mark.parametrize("variant", ["D", "S"])
def test_visits_add_up_to_the_discounted_length_of_an_endless_task(variant: str, settings: dict[str, Any]):
    model = model_of(random_problem(n_terminals=0, gamma=0.9), variant=variant, **settings).learn(3)
    visitation = model.visitation
    assert visitation.sum() == pytest.approx(1.0 / (1.0 - 0.9), rel=1e-7)
    assert visitation.min() >= -1e-9


def test_visits_are_fewer_where_the_task_can_end(trained: NOPG):
    assert trained.dataset.terminals.any()
    assert 1.0 <= trained.visitation.sum() < 0.9 / (1.0 - trained.gamma)


def test_estimated_return_is_the_mean_value_of_the_start_states(deterministic: NOPG):
    assert deterministic.value(deterministic.initial_states).mean() == pytest.approx(
        deterministic.estimated_return(), rel=1e-8
    )


def test_estimated_return_is_the_reward_of_what_is_visited(trained: NOPG):
    assert trained.visitation @ trained.dataset.rewards == pytest.approx(trained.estimated_return(), rel=1e-7)


def test_start_states_are_those_of_the_episodes_where_none_are_given():
    problem = random_problem()
    episodes = TransitionDataset(
        problem.states,
        problem.actions,
        problem.rewards,
        problem.next_states,
        problem.terminals,
        episode_ids=np.arange(problem.n_transitions) // 10,
    )
    told = model_of(problem, dataset=episodes, initial_states=None)
    given = model_of(problem, initial_states=problem.states[[0, 10, 20]])
    assert told.estimated_return() == given.estimated_return()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["D", "S"])
def test_estimated_return_rises_with_training(variant: str):
    model = model_of(random_problem(), variant=variant)
    before = model.estimated_return()
    assert model.learn(20).estimated_return() > before + 0.01 * abs(before)


def test_answers_follow_the_parameters(trained: NOPG):
    before = {name: np.copy(query(trained)) for name, query in QUERIES.items()}
    with th.no_grad():
        for parameter in trained.policy.parameters():
            parameter.add_(0.5)
    for name, query in QUERIES.items():
        assert not np.allclose(query(trained), before[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["D", "S"])
def test_answer_at_a_state_does_not_depend_on_what_else_is_asked(variant: str):
    model = model_of(random_problem(), variant=variant).learn(3)
    for query in (model.value, model.state_distribution, model.support):
        together = query(QUERY_STATES)
        alone = np.concatenate([query(state) for state in QUERY_STATES])
        np.testing.assert_allclose(alone, together, rtol=1e-7, err_msg=query.__name__)


def test_answers_repeat(trained: NOPG):
    for name, query in QUERIES.items():
        np.testing.assert_array_equal(query(trained), query(trained), err_msg=name)


def test_float32_answers_are_close_to_float64(deterministic: NOPG):
    single = model_of(random_problem(), precision="float32", solver_tolerance=1e-5)
    single.set_parameters(deterministic.get_parameters())
    assert relative_error(single.q_values, deterministic.q_values) <= 1e-4
    assert relative_error(single.visitation, deterministic.visitation) <= 1e-4


# --- Support -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_neighbors", [None, "auto"])
def test_support_is_the_sum_of_kernels(n_neighbors):
    problem = random_problem(d_a=2)
    model = model_of(problem, n_neighbors=n_neighbors, truncation_tolerance=1e-8)
    actions = np.random.default_rng(3).normal(size=(len(QUERY_STATES), 2))
    expected = np.zeros(len(QUERY_STATES))
    for i, (state, action) in enumerate(zip(QUERY_STATES, actions, strict=True)):
        for j in range(problem.n_transitions):
            state_distance = (((state - problem.states[j]) / problem.state_bandwidth) ** 2).sum()
            action_distance = (((action - problem.actions[j]) / problem.action_bandwidth) ** 2).sum()
            expected[i] += np.exp(-0.5 * (state_distance + action_distance))
    np.testing.assert_allclose(model.support(QUERY_STATES, actions), expected, rtol=1e-5, atol=1e-9)


def test_support_is_large_in_the_data_and_nothing_far_away(trained: NOPG):
    data = trained.dataset
    at_the_samples = trained.support(data.observations, data.actions)
    assert at_the_samples.shape == (len(data),)
    assert (at_the_samples >= 1.0).all(), "each sample counts itself"
    assert (at_the_samples <= len(data)).all()
    far = trained.support(data.observations + 100.0)
    assert far.shape == (len(data),)
    assert ((far >= 0.0) & (far < 1e-12)).all()
    untried_actions = trained.support(data.observations, data.actions + 100.0)
    assert ((untried_actions >= 0.0) & (untried_actions < 1e-12)).all()


def test_support_takes_the_policy_s_action_where_none_is_given(deterministic: NOPG):
    actions, _ = deterministic.predict(QUERY_STATES, deterministic=True)
    np.testing.assert_allclose(deterministic.support(QUERY_STATES), deterministic.support(QUERY_STATES, actions), rtol=1e-4)


def test_support_takes_the_action_by_its_name(deterministic: NOPG):
    actions = deterministic.dataset.actions[: len(QUERY_STATES)]
    by_name = deterministic.support(QUERY_STATES, action=actions)
    np.testing.assert_array_equal(by_name, deterministic.support(QUERY_STATES, actions))


@pytest.mark.parametrize(
    "actions", [np.zeros((3, 1)), np.zeros((9, 2)), np.zeros(9), np.full((9, 1), np.nan)], ids=["few", "wide", "flat", "nan"]
)
def test_support_refuses_actions_that_do_not_fit(deterministic: NOPG, actions: np.ndarray):
    with pytest.raises(InputError, match="action: "):
        deterministic.support(QUERY_STATES, actions)


# --- Shapes and errors ---------------------------------------------------------------------------------------------------


def test_answers_are_numpy_arrays_of_the_promised_shapes(trained: NOPG):
    n, n_parameters = len(trained.dataset), sum(parameter.numel() for parameter in trained.policy.parameters())
    shapes = {"q_values": (n,), "visitation": (n,), "policy_gradient": (n_parameters,)}
    for name, query in QUERIES.items():
        answer = query(trained)
        if name == "estimated_return":
            assert type(answer) is float
        else:
            assert isinstance(answer, np.ndarray), name
            assert answer.shape == shapes.get(name, (len(QUERY_STATES),)), name
            assert np.isfinite(answer).all(), name


def test_states_are_taken_as_one_state_as_a_list_or_in_single_precision(deterministic: NOPG):
    for query in (deterministic.value, deterministic.state_distribution, deterministic.support):
        expected = query(QUERY_STATES)
        one = query(QUERY_STATES[0])
        assert one.shape == (1,)
        np.testing.assert_allclose(one, expected[:1], rtol=1e-7)
        np.testing.assert_allclose(query(QUERY_STATES.tolist()), expected, rtol=1e-7)
        np.testing.assert_allclose(query(QUERY_STATES.astype(np.float32)), expected, rtol=1e-4)
    one_support = deterministic.support(QUERY_STATES[0], deterministic.dataset.actions[0])
    assert one_support.shape == (1,)


def test_far_states_have_finite_values(trained: NOPG):
    far = np.array([[1e3, -1e3], [1e6, 1e6]])
    bound = np.abs(trained.dataset.rewards).max() / (1.0 - trained.gamma)
    assert (np.abs(trained.value(far)) <= bound).all()
    assert np.isfinite(trained.state_distribution(far)).all()


@pytest.mark.parametrize(
    "states",
    [np.zeros((4, 3)), np.zeros(5), np.zeros((0, 2)), np.zeros((2, 2, 2)), np.full((1, 2), np.inf), "here"],
    ids=["wide", "flat", "empty", "cube", "infinite", "text"],
)
def test_states_that_make_no_sense_are_refused(deterministic: NOPG, states: Any):
    for query in (deterministic.value, deterministic.state_distribution, deterministic.support):
        with pytest.raises(InputError, match="observations"):
            query(states)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
def test_without_data_a_query_says_what_is_missing(query: Callable[[NOPG], Any], tmp_path):
    model_of(random_problem()).save(tmp_path / "model")
    with pytest.raises(InputError, match=r"dataset.*set_dataset"):
        query(NOPG.load(tmp_path / "model"))


# --- Queries and the life of a model -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("variant", ["D", "S"])
def test_answers_survive_saving_and_loading(variant: str, seed: int | None, tmp_path):
    model = model_of(random_problem(), variant=variant, seed=seed, n_next_state_samples=3).learn(5)
    model.save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model")
    loaded.set_dataset(model.dataset)
    for name, query in QUERIES.items():
        # The loaded model has no earlier solution to start from: its solves end elsewhere within their tolerance.
        np.testing.assert_allclose(query(loaded), query(model), rtol=1e-5, atol=1e-8, err_msg=name)


def test_answers_are_about_the_data_attached_last(trained: NOPG):
    other = random_problem(seed=1, n=20)
    trained.set_dataset(dataset_of(dataclasses.replace(other, actions=np.clip(other.actions, -0.5, 0.5))))
    assert trained.q_values.shape == trained.visitation.shape == (20,)


def test_queries_leave_no_trace(trained: NOPG):
    """Nothing of what training depends on changes: parameters, gradients, Adam's moments, anyone's random numbers."""

    def state_of(model: NOPG) -> list[np.ndarray]:
        tensors = [*model.policy.state_dict().values(), *(parameter.grad for parameter in model.policy.parameters())]
        for moments in model.policy.optimizer.state_dict()["state"].values():
            tensors += [moment for moment in moments.values() if isinstance(moment, th.Tensor)]
        global_numbers = np.random.get_state()[1]  # noqa: NPY002
        return [*(tensor.detach().numpy().copy() for tensor in tensors), th.get_rng_state().numpy(), global_numbers]

    before = state_of(trained)
    for query in QUERIES.values():
        query(trained)
    for old, new in zip(before, state_of(trained), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "settings"),
    [("D", {}), ("S", {"resample_interval": 7}), ("D", {"n_neighbors": "auto"})],
    ids=["fixed", "resampled", "auto"],
)
def test_training_with_queries_in_between_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, variant: str, settings: dict[str, Any]
):
    problem = random_problem(n=80)
    # All that is renewed only now and then is renewed at least once.
    monkeypatch.setattr(sb3_nopg.bellman.solvers.coarse, "_UPDATES_BETWEEN_REFRESHES", 6)
    left_alone = model_of(problem, variant=variant, **settings).learn(10)

    def ask(local_variables: dict[str, Any], _: dict[str, Any]) -> bool:
        for query in QUERIES.values():
            query(local_variables["self"])
        return True

    asked = model_of(problem, variant=variant, **settings)
    asked.estimated_return()
    asked.learn(10, callback=ask)
    for expected, parameter in zip(left_alone.policy.parameters(), asked.policy.parameters(), strict=True):
        np.testing.assert_array_equal(parameter.detach().numpy(), expected.detach().numpy())


@pytest.mark.slow
def test_the_return_on_held_out_data():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 2))
    data = TransitionDataset(
        observations=states,
        actions=rng.normal(size=(200, 1)),
        rewards=-(states**2).sum(axis=1) + rng.normal(size=200),
        next_observations=0.9 * states,
        terminals=np.zeros(200, dtype=bool),
        action_space=spaces.Box(-5.0, 5.0, (1,)),
    )
    learned_on, held_out = data.split([0.5, 0.5], by="transition", seed=0)
    model = make_nopg(
        "MlpPolicy",
        None,
        dataset=learned_on,
        initial_states=[1.0, 1.0],
        seed=0,
        **{"n_neighbors": None, **AS_IN_THE_PAPER},
    ).learn(60)
    assert model.estimated_return(learned_on) == pytest.approx(model.estimated_return(), rel=1e-8)
    # What it was optimised on flatters it.
    assert model.estimated_return(held_out) < model.estimated_return()
    # And it is the return that a model of that data gives the same policy.
    other = make_nopg(
        "MlpPolicy",
        None,
        dataset=held_out,
        initial_states=[1.0, 1.0],
        seed=0,
        **{"n_neighbors": None, **AS_IN_THE_PAPER},
    )
    other.policy.load_state_dict(model.policy.state_dict())
    assert model.estimated_return(held_out) == pytest.approx(other.estimated_return(), rel=1e-8)
    with pytest.raises(InputError):
        model.estimated_return(
            TransitionDataset(
                observations=states[:, :1],
                actions=data.actions,
                rewards=data.rewards,
                next_observations=states[:, :1],
                terminals=data.terminals,
            )
        )
