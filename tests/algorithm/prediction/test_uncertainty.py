"""Intervals that cover the truth as often as they say, sample sizes, and chains that are left with a known probability."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from helpers.bellman_problems import random_problem
from helpers.models import make_nopg
from helpers.oracles import OracleProblem
from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.bellman.on_samples import solve_bellman
from sb3_nopg.bellman.solvers.coarse import CoarseModel
from sb3_nopg.paper import AS_IN_THE_PAPER
from sb3_nopg.prediction.uncertainty import ReturnInterval, effective_sample_size, units_of


def dataset_of(problem: OracleProblem, episode_length: int | None = None) -> TransitionDataset:
    ids = None if episode_length is None else np.arange(problem.n_transitions) // episode_length
    return TransitionDataset(
        problem.states, problem.actions, problem.rewards, problem.next_states, problem.terminals, episode_ids=ids
    )


def model_of(problem: OracleProblem, **settings: Any) -> NOPG:
    arguments = dict(
        dataset=dataset_of(problem),
        initial_states=problem.initial_states,
        gamma=problem.gamma,
        state_bandwidth=problem.state_bandwidth,
        action_bandwidth=problem.action_bandwidth,
        next_state_bandwidth=problem.next_state_bandwidth,
        n_neighbors=problem.n_neighbors,
        n_action_samples=4,
        seed=0,
    )
    return make_nopg("LinearPolicy", None, **{**AS_IN_THE_PAPER, **arguments, **settings})


def covers(interval: ReturnInterval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


# --- Intervals: coverage -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_interval_over_transitions_covers_the_mean_of_a_noisy_reward():
    """One state, one action, γ = 0: Ĵ is the mean of the rewards, whose true mean is 1."""
    n, n_repetitions, rng, n_covered, widths = 30, 60, np.random.default_rng(0), 0, []
    for _ in range(n_repetitions):
        data = TransitionDataset(
            np.zeros((n, 1)), np.zeros((n, 1)), rng.normal(1.0, 2.0, size=n), np.zeros((n, 1)), np.zeros(n, dtype=bool)
        )
        interval = tabular_model(data, gamma=0.0, initial_states=[[0.0]]).return_interval(0.9, n_resamples=50)
        assert interval.estimate == pytest.approx(data.rewards.mean(), rel=1e-9)
        n_covered += covers(interval, 1.0)
        widths.append(interval.high - interval.low)
    assert 0.75 <= n_covered / n_repetitions <= 0.97
    assert np.mean(widths) == pytest.approx(2 * 1.645 * 2.0 / np.sqrt(n), rel=0.1)


@pytest.mark.slow
def test_interval_over_episodes_covers_where_transitions_of_an_episode_resemble_each_other():
    """Five rewards of an episode share their noise: transitions taken one by one would promise too much."""
    n_episodes, length, n_repetitions, rng = 20, 5, 36, np.random.default_rng(1)
    n = n_episodes * length
    n_covered = 0
    for _ in range(n_repetitions):
        rewards = 1.0 + np.repeat(rng.normal(size=n_episodes), length) + 0.1 * rng.normal(size=n)
        arrays = (np.zeros((n, 1)), np.zeros((n, 1)), rewards, np.zeros((n, 1)), np.zeros(n, dtype=bool))
        data = TransitionDataset(*arrays, episode_ids=np.repeat(np.arange(n_episodes), length))
        interval = tabular_model(data, gamma=0.5, initial_states=[[0.0]]).return_interval(0.9, n_resamples=50)
        # Value of a constant reward of 1 at γ = 0.5: 2.
        n_covered += covers(interval, 2.0)
    assert 0.72 <= n_covered / n_repetitions <= 0.97
    one_by_one = tabular_model(TransitionDataset(*arrays), gamma=0.5, initial_states=[[0.0]]).return_interval(0.9, 50)
    assert one_by_one.high - one_by_one.low < 0.6 * (interval.high - interval.low)


def tabular_model(data: TransitionDataset, **settings: Any) -> NOPG:
    """States a hundred bandwidths apart, and actions that make no difference."""
    return make_nopg(
        "LinearPolicy",
        None,
        dataset=dataclasses.replace(data, action_space=spaces.Box(-1.0, 1.0, (1,))),
        **{
            "state_bandwidth": 1.0,
            "action_bandwidth": 1e6,
            "next_state_bandwidth": 1.0,
            "n_neighbors": None,
            **({"transitions": "samples", "weights": "local_constant", "pessimism": 0.0, **settings}),
        },
    )


@pytest.mark.slow
def test_start_states_are_drawn_with_their_episodes():
    """Separate states, each a one-step episode with its own reward: all that varies is which starts count how much."""
    n = 40
    states, rewards = 100.0 * np.arange(n)[:, None], np.random.default_rng(0).normal(size=n)
    data = TransitionDataset(
        states,
        np.zeros((n, 1)),
        rewards,
        states,
        np.arange(n) > 0,
        episode_ids=np.arange(n),
    )
    drawn = tabular_model(data, gamma=0.0).return_interval(0.9, 400)
    given = tabular_model(data, gamma=0.0, initial_states=states).return_interval(0.9, 400)
    assert drawn.estimate == pytest.approx(rewards.mean())
    assert drawn.resamples.std() == pytest.approx(rewards.std() / np.sqrt(n + 1), rel=0.15)
    assert given.resamples.std() < 1e-9


@pytest.mark.slow
def test_starts_of_other_episodes_are_drawn_independently():
    n = 40
    states, rewards = 100.0 * np.arange(n)[:, None], np.random.default_rng(0).normal(size=n)
    data = TransitionDataset(states, np.zeros((n, 1)), rewards, states, np.arange(n) > 0, episode_ids=np.arange(n))
    model = tabular_model(data, gamma=0.0)
    same_again = TransitionDataset(*(getattr(data, f.name) for f in dataclasses.fields(data)))
    own, other = model.return_interval(0.9, 300), model.return_interval(0.9, 300, dataset=same_again)
    assert other.resamples.std() == pytest.approx(own.resamples.std(), rel=0.2)
    units = units_of(same_again, n, starts_are_its_own=False)
    assert not set(units.of_starts) & set(units.of_transitions)


# --- Intervals: what a resample is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"n_neighbors": 12}, {"weights": "local_linear"}, {"variant": "S"}], ids=str)
def test_weights_of_whole_numbers_are_copies_of_the_data(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]):
    """A transition of weight two counts like two of them: the reweighted estimate is that of data with copies."""
    problem = random_problem(n_neighbors=settings.get("n_neighbors"))
    copies = np.random.default_rng(0).integers(1, 4, size=problem.n_transitions)
    model = model_of(problem, **settings)

    class GivenWeights:
        def exponential(self, size: int) -> np.ndarray:
            assert size == problem.n_transitions
            return copies.astype(float)

    monkeypatch.setattr(np.random, "default_rng", lambda seed: GivenWeights())
    interval = model.return_interval(n_resamples=2)
    monkeypatch.undo()
    copied = {
        name: np.repeat(getattr(problem, name), copies, axis=0)
        for name in ("states", "actions", "rewards", "next_states", "terminals")
    }
    if "n_neighbors" in settings:
        # Lists of a fixed length would hold fewer different samples.
        assert np.ptp(interval.resamples) == 0.0
        assert interval.resamples[0] != pytest.approx(interval.estimate, rel=1e-3)
        return
    other = model_of(dataclasses.replace(problem, **copied), **settings)
    other.policy.load_state_dict(model.policy.state_dict())
    # A stochastic policy's draws are those of other states there.
    tolerance = 0.2 if "variant" in settings else 1e-8
    np.testing.assert_allclose(interval.resamples, other.estimated_return(), rtol=tolerance)
    assert interval.estimate == pytest.approx(model.estimated_return(), rel=1e-8)


def test_training_s_coarse_model_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    built, build = [], CoarseModel.build

    def note(self: CoarseModel, *arguments: Any) -> None:
        built.append(self)
        build(self, *arguments)

    monkeypatch.setattr(CoarseModel, "build", note)
    model = model_of(random_problem())
    model.exit_probability(lambda states: states[:, 0] < 1.0)
    model.return_interval(n_resamples=3)
    assert len(built) == 5
    assert not any(coarse_model is model.estimator.problem.coarse_model for coarse_model in built)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_interval_and_training_does_not_notice():
    problem = random_problem(n=60)
    asked, left_alone = model_of(problem), model_of(problem)
    asked.exit_probability(lambda states: states[:, 0] < 1.0)
    first, again = asked.return_interval(n_resamples=30), asked.return_interval(n_resamples=30)
    np.testing.assert_array_equal(first.resamples, again.resamples)
    assert (first.low, first.high, first.level) == (again.low, again.high, 0.95)
    assert first.low < first.high
    other = asked.return_interval(n_resamples=30, seed=1)
    assert not np.array_equal(first.resamples, other.resamples)
    asked.learn(25)
    left_alone.learn(25)
    for ours, theirs in zip(asked.policy.parameters(), left_alone.policy.parameters(), strict=True):
        np.testing.assert_array_equal(ours.detach().numpy(), theirs.detach().numpy())


@pytest.mark.slow
def test_a_wider_level_gives_a_wider_interval_around_held_out_data_too():
    model = model_of(random_problem(n=60), dataset=dataset_of(random_problem(n=60), episode_length=6))
    held_out = dataset_of(random_problem(seed=1, n=60), episode_length=6)
    narrow, wide = (model.return_interval(level, 60, dataset=held_out) for level in (0.5, 0.95))
    np.testing.assert_array_equal(narrow.resamples, wide.resamples)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.estimate == pytest.approx(model.estimated_return(held_out), rel=1e-8)
    assert wide.resamples.shape == (60,)


def test_episodes_are_found_by_their_numbers_or_by_their_ends():
    problem = random_problem(n=6, n_terminals=0)
    arrays = (problem.states, problem.actions, problem.rewards, problem.next_states, problem.terminals)
    by_number = TransitionDataset(*arrays, episode_ids=np.array([7, 3, 7, 3, 9, 9]))
    np.testing.assert_array_equal(units_of(by_number, 3, True).of_transitions, [1, 0, 1, 0, 2, 2])
    np.testing.assert_array_equal(units_of(by_number, 3, True).of_starts, [1, 0, 2])
    by_end = TransitionDataset(*arrays, timeouts=np.array([0, 1, 0, 0, 1, 0]))
    np.testing.assert_array_equal(units_of(by_end, 3, True).of_transitions, [0, 0, 1, 1, 1, 2])
    np.testing.assert_array_equal(units_of(TransitionDataset(*arrays), None, True).of_transitions, np.arange(6))


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("level", {"level": 0.0}),
        ("level", {"level": 1.0}),
        ("level", {"level": 95}),
        ("level", {"level": float("nan")}),
        ("n_resamples", {"n_resamples": 1}),
        ("n_resamples", {"n_resamples": 20.0}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": "x"}),
    ],
)
def test_bad_arguments_are_refused(field: str, arguments: dict[str, Any]):
    with pytest.raises(InputError, match=field):
        model_of(random_problem()).return_interval(**arguments)


def test_one_episode_makes_no_interval():
    problem = random_problem()
    with pytest.raises(InputError, match="several episodes"):
        model_of(problem, dataset=dataset_of(problem, episode_length=100)).return_interval()


# --- Effective sample size -----------------------------------------------------------------------------------------------


def test_effective_sample_size():
    assert effective_sample_size(np.ones(7)) == pytest.approx(7.0)
    assert effective_sample_size(np.array([0.0, 3.0, 0.0])) == pytest.approx(1.0)
    assert effective_sample_size(np.array([1.0, 1.0, 0.0, 2.0])) == pytest.approx(16.0 / 6.0)
    model = model_of(random_problem())
    visitation = model.visitation
    assert model.effective_sample_size() == pytest.approx(visitation.sum() ** 2 / (visitation**2).sum(), rel=1e-9)
    assert model.effective_sample_share() == pytest.approx(model.effective_sample_size() / 30, rel=1e-9)
    assert 1.0 < model.effective_sample_size() < 30.0


# --- Exit probability ----------------------------------------------------------------------------------------------------


def ring(gamma: float, stays: int, leaves: int, **settings: Any) -> NOPG:
    """
    State 0 with ``stays`` transitions to itself and ``leaves`` to state 100, which is kept forever: a risk of
    leaves / (stays + leaves) a step.
    """
    next_states = np.array([0.0] * stays + [100.0] * leaves + [100.0])[:, None]
    states = np.array([0.0] * (stays + leaves) + [100.0])[:, None]
    n = len(states)
    data = TransitionDataset(states, np.zeros((n, 1)), np.ones(n), next_states, np.zeros(n, dtype=bool))
    return tabular_model(data, **{"gamma": gamma, "initial_states": [[0.0]], **settings})


def near_zero(states: np.ndarray) -> np.ndarray:
    return np.abs(states[:, 0]) < 50.0


@pytest.mark.parametrize("gamma", [0.0, 0.9, 0.99])
def test_a_constant_risk_has_its_exit_probability(gamma: float):
    risk = 2.0 / 10.0
    # Σ_t γ^(t−1) (1 − λ)^(t−1) λ
    expected = risk / (1.0 - gamma * (1.0 - risk))
    probability = ring(gamma, stays=8, leaves=2).exit_probability(near_zero)
    assert type(probability) is float
    assert probability == pytest.approx(expected, rel=1e-8)
    # And back, as the docstring says.
    assert probability * (1.0 - gamma) / (1.0 - gamma * probability) == pytest.approx(risk, rel=1e-7)


def test_a_walk_to_the_end_takes_its_time():
    """0 → 1 → … → 5, the region ends before 5: five steps, γ⁴."""
    states = 100.0 * np.arange(6)[:, None]
    data = TransitionDataset(
        states,
        np.zeros((6, 1)),
        np.zeros(6),
        np.roll(states, -1, axis=0),
        np.zeros(6, dtype=bool),
        episode_ids=np.zeros(6, int),
    )
    model = tabular_model(data, gamma=0.8, initial_states=states[:1])
    assert model.exit_probability(lambda s: s[:, 0] < 450.0) == pytest.approx(0.8**4, rel=1e-8)
    assert model.exit_probability(lambda s: s[:, 0] < 1e6) == 0.0
    assert model.exit_probability(lambda s: s[:, 0] > 1e6) == 1.0
    # From two starts, one outside: it counts as one.
    two = tabular_model(data, gamma=0.8, initial_states=states[[0, 5]])
    assert two.exit_probability(lambda s: s[:, 0] < 450.0) == pytest.approx(0.5 * (1.0 + 0.8**4), rel=1e-8)


def test_an_end_of_the_task_inside_is_no_exit_and_outside_is_one():
    states = np.zeros((4, 1))
    for next_state, expected in ((0.0, 0.0), (100.0, 1.0)):
        next_states = np.full((4, 1), next_state)
        data = TransitionDataset(states, states, np.ones(4), next_states, np.array([True, True, True, False]))
        probability = tabular_model(data, gamma=0.0, initial_states=[[0.0]]).exit_probability(near_zero)
        assert probability == pytest.approx(expected)
    stays = np.array([True, False])
    data = TransitionDataset(states[:2], states[:2], np.ones(2), np.array([[0.0], [100.0]]), stays)
    # Half of the time the task ends at once, half of the time it leaves.
    assert tabular_model(data, gamma=0.9, initial_states=[[0.0]]).exit_probability(near_zero) == pytest.approx(0.5)


def test_with_pessimism_what_has_no_support_counts_as_leaving():
    # Nine samples at zero, none of which leaves, and one imaginary sample.
    calm = ring(0.9, stays=9, leaves=0)
    assert calm.exit_probability(near_zero) == 0.0
    wary = ring(0.9, stays=9, leaves=0, pessimism=1.0)
    expected = 0.1 / (1.0 - 0.9 * 0.9)
    assert wary.exit_probability(near_zero) == pytest.approx(expected, rel=1e-8)
    one_outside = ring(0.9, stays=9, leaves=0, pessimism=1.0, initial_states=[[0.0], [100.0]])
    assert one_outside.exit_probability(near_zero) == pytest.approx(0.5 + 0.5 * expected, rel=1e-8)


def test_other_data_predict_another_probability():
    model, other = ring(0.9, stays=8, leaves=2), ring(0.9, stays=5, leaves=5)
    assert model.exit_probability(near_zero, dataset=other.dataset) == pytest.approx(0.5 / (1.0 - 0.9 * 0.5), rel=1e-8)


@pytest.mark.parametrize("settings", [{}, {"n_neighbors": 12}, {"variant": "S", "n_next_state_samples": 3}], ids=str)
def test_probability_is_that_of_a_dense_chain(settings: dict[str, Any]):
    problem = random_problem()
    model = model_of(problem, **settings)

    def inside(states: np.ndarray) -> np.ndarray:
        return np.abs(states[:, 0]) < 0.9

    engine = model.estimator.problem
    with th.no_grad():
        actions = model.policy.sample_actions(engine.queries.states, model.estimator.action_noise).double()
        solve_bellman(engine, engine.support.kernel_weights(engine.queries, actions))
    transition = engine.transition.to_dense().numpy()
    outside = ~inside(problem.next_states)
    assert 3 <= outside.sum() <= 27
    transition[outside] = 0.0
    q = np.linalg.solve(np.eye(30) - problem.gamma * transition, outside.astype(float))
    with th.no_grad():
        queries = engine.queries
        weights = engine.support.weights(queries, actions).mean(dim=1)
        from_starts = (weights * queries.neighbors.gather(th.as_tensor(q))).sum(dim=1)[-len(problem.initial_states) :].numpy()
    expected = np.where(inside(problem.initial_states), from_starts, 1.0).mean()
    assert model.exit_probability(inside) == pytest.approx(expected, rel=1e-7)
    assert 0.0 < expected < 1.0


@pytest.mark.parametrize(
    "inside",
    [lambda states: True, lambda states: states < 1.0, lambda states: states[:, 0], lambda states: np.ones(3, dtype=bool)],
    ids=["one", "wide", "numbers", "short"],
)
def test_a_region_that_does_not_answer_as_it_should_is_refused(inside: Any):
    with pytest.raises(InputError, match="inside"):
        model_of(random_problem()).exit_probability(inside)
