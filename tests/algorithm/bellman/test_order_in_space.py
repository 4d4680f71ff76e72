"""
Large data are put in order of space for speed. No answer may depend on it, and all come in the order of the data. Where chance
has a part, in actions of NOPG-S and in batches, another state gets each draw.
"""

import numpy as np
import pytest

import sb3_nopg.bellman.preparation
from helpers.models import make_nopg
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.experiments.baselines import KernelValueIteration
from sb3_nopg.report.support import predicted_visitation, support_along_the_way, support_figures, visits_of

N = 300


def data() -> TransitionDataset:
    rng = np.random.default_rng(0)
    observations, actions = rng.normal(size=(N, 2)), rng.uniform(-1, 1, (N, 1))
    terminals = rng.random(N) < 0.05
    next_observations = observations + 0.3 * actions + 0.05 * rng.normal(size=(N, 2))
    rewards = -(observations**2).sum(1) - 1.0
    episodes = np.repeat(np.arange(N // 10), 10)
    return TransitionDataset(observations, actions, rewards, next_observations, terminals, episode_ids=episodes)


def model(ordered: bool, monkeypatch: pytest.MonkeyPatch, **settings: object) -> NOPG:
    monkeypatch.setattr(sb3_nopg.bellman.preparation, "_WORTH_ORDERING", 0 if ordered else 10**9)
    made = make_nopg("MlpPolicy", None, dataset=data(), seed=0, gamma=0.9, device="cpu", transitions="samples", **settings)
    order = made.estimator.problem.order
    assert (order is not None) == ordered
    if order is not None:
        assert order.tolist() != list(range(N))
        assert sorted(order.tolist()) == list(range(N))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "pessimism", "n_neighbors", "n_next_state_samples"),
    [
        ("local_constant", 0.0, None, 1),
        ("local_linear", 0.05, None, 1),
        ("local_constant", 0.05, 40, 1),
        ("local_linear", 0.0, 40, 3),
    ],
)
def test_answers_do_not_depend_on_the_order(monkeypatch, weights, pessimism, n_neighbors, n_next_state_samples):
    settings = {"weights": weights, "pessimism": pessimism, "n_neighbors": n_neighbors}
    settings["n_next_state_samples"] = n_next_state_samples
    ours, plain = (model(ordered, monkeypatch, **settings) for ordered in (True, False))
    states = np.random.default_rng(1).normal(size=(20, 2))

    def inside(states: np.ndarray) -> np.ndarray:
        return np.abs(states[:, 0]) < 1.5

    for ask in (
        lambda m: m.estimated_return(),
        lambda m: m.q_values,
        lambda m: m.visitation,
        lambda m: m.policy_gradient(),
        lambda m: m.value(states),
        lambda m: m.support(states),
        lambda m: m.exit_probability(inside),
        lambda m: m.exit_probability(inside, data()),
        lambda m: m.return_interval(n_resamples=5).resamples,
        lambda m: predicted_visitation(m.evaluation),
        lambda m: support_along_the_way(m.evaluation).samples,
        lambda m: support_figures(m.evaluation, m.visitation, visits_of(m.evaluation, m.visitation)).truncation,
    ):
        answers = []
        for asked, threshold in ((ours, 0), (plain, 10**9)):
            # Some answers are by equations of their own.
            monkeypatch.setattr(sb3_nopg.bellman.preparation, "_WORTH_ORDERING", threshold)
            answers.append(ask(asked))
        np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_kernel_value_iteration_answers_in_the_order_of_the_data(monkeypatch):
    values = []
    for threshold in (0, 10**9):
        monkeypatch.setattr(sb3_nopg.bellman.preparation, "_WORTH_ORDERING", threshold)
        values.append(KernelValueIteration(data(), gamma=0.9, pessimism=1e-3).q_values)
    np.testing.assert_allclose(*values, rtol=1e-6)


@pytest.mark.slow
def test_learning_does_not_depend_on_the_order(monkeypatch):
    ours, plain = (model(ordered, monkeypatch, n_neighbors=40).learn(10) for ordered in (True, False))
    assert ours.estimated_return() == pytest.approx(plain.estimated_return(), rel=1e-5)
    np.testing.assert_allclose(ours.q_values, plain.q_values, rtol=1e-4)


@pytest.mark.slow
def test_neighbours_in_space_lie_together(monkeypatch):
    states = [m.estimator.problem.queries.states[:N].numpy() for m in (model(o, monkeypatch) for o in (True, False))]
    ordered, plain = (np.linalg.norm(np.diff(path, axis=0), axis=1).mean() for path in states)
    assert ordered < 0.7 * plain


@pytest.mark.slow
def test_a_checkpoint_of_ordered_data_resumes_bit_by_bit(monkeypatch, tmp_path):
    whole = model(True, monkeypatch, n_neighbors=40).learn(8)
    begun = model(True, monkeypatch, n_neighbors=40).learn(5)
    begun.save_checkpoint(tmp_path / "run.ckpt")
    resumed = NOPG.resume(tmp_path / "run.ckpt", dataset=data()).learn(3, reset_num_timesteps=False)
    for ours, expected in zip(resumed.policy.parameters(), whole.policy.parameters(), strict=True):
        np.testing.assert_array_equal(ours.detach(), expected.detach())
