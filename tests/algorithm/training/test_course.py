"""The course of a training on a model: candidates from several starts, what follows trajectories, and the choice."""

import functools
import logging
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch as th

import sb3_nopg.training.course
import sb3_nopg.training.imitation
from helpers.models import make_nopg
from helpers.systems import cart, linear, linear_reward, record
from sb3_nopg import NOPG, TransitionDataset
from sb3_nopg.training.candidates import name_of

pytestmark = pytest.mark.slow

STARTS = {"value_iteration", "own", "riccati"}
SAME = ("recipe", "trained_on", "n_updates", "seconds")


def upright(states, actions, next_states):
    return 1.0 - 0.3 * np.square(states).sum(axis=1)


@functools.cache
def recorded() -> TransitionDataset:
    return record(cart, upright, start=(0.8, 0.8), ends=lambda state: bool(np.abs(state).max() > 1.5))


def make(data: TransitionDataset | None = None, **settings) -> NOPG:
    arguments = {"dataset": recorded() if data is None else data, "gamma": 0.8, "seed": 0, "device": "cpu"}
    # Earlier steps do not count in any of these systems, and to find that out takes most of the time.
    arguments |= {"model_kwargs": {"n_nodes": 60, "n_earlier_steps": 0}, "policy_kwargs": {"net_arch": [16]}}
    return make_nopg("MlpPolicy", None, **{**arguments, **settings})


def parameters(model: NOPG) -> np.ndarray:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy()


@pytest.fixture
def followed(monkeypatch):
    """Every bundle of trajectories that training follows."""
    bundles = []
    original = sb3_nopg.training.course.gradient_along_trajectories

    def watched(model, policy, bundle, *settings):
        bundles.append(bundle)
        return original(model, policy, bundle, *settings)

    monkeypatch.setattr(sb3_nopg.training.course, "gradient_along_trajectories", watched)
    return bundles


@dataclass(frozen=True)
class Learned:
    """A model after its training, which several tests look at and none changes, and the candidates that it chose among."""

    model: NOPG
    trained: list


def learn(data: TransitionDataset) -> Learned:
    seen = []
    original = sb3_nopg.training.course.Course.finish

    def watched(course, again):
        found = original(course, again)
        seen.extend(course.trained)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sb3_nopg.training.course.Course, "finish", watched)
        return Learned(make(data).learn(16), seen)


@pytest.fixture(scope="module")
def learned(small_sizes) -> Learned:
    return learn(recorded())


@pytest.mark.parametrize("variant", ["D", "S"])
def test_every_start_is_tried_on_a_half_and_the_best_on_all(variant, request):
    untrained = make(variant=variant, n_action_samples=3)
    assert untrained.candidates == ()
    assert untrained.judgement is None
    model = request.getfixturevalue("learned").model if variant == "D" else untrained.learn(16)
    halves = [candidate for candidate in model.candidates if candidate.trained_on == "half"]
    wholes = [candidate for candidate in model.candidates if candidate.trained_on == "all"]
    # Each is asked of the half that it has not seen; for what has seen both there is none.
    assert all(candidate.unseen_score is not None and 0.0 <= candidate.unseen_lasting <= 1.0 for candidate in halves)
    assert not any(candidate.unseen_score for candidate in wholes)
    assert {candidate.recipe for candidate in halves} >= STARTS
    assert wholes
    assert sum(candidate.n_updates for candidate in halves) + max(candidate.n_updates for candidate in wholes) >= 16
    # The chosen one first: one of all of the data where it is nearly as good as any.
    scores = [candidate.score for candidate in model.candidates]
    nearly = max(scores) - 0.05 * (max(scores) - min(scores))
    assert model.candidates[0].score >= nearly
    lasts = next(candidate.lasting for candidate in model.candidates if candidate.score == max(scores))
    if any(candidate.score >= nearly and candidate.lasting >= lasts - 0.02 for candidate in wholes):
        assert model.candidates[0].trained_on == "all"
    assert len(model.judgement.ranking) == len(model.candidates)
    assert model.judgement.margin is not None


@functools.cache
def steered() -> TransitionDataset:
    """Somebody holds the cart in the middle, with a hand that shakes."""
    return record(
        cart, upright, start=(0.8, 0.8), act=lambda state, random: 0.15 * random - state.sum(axis=1, keepdims=True) / 2
    )


@pytest.fixture(scope="module")
def imitating(small_sizes) -> Learned:
    with pytest.MonkeyPatch.context() as patch:
        # As good as it was said to be, where a test asks how well it is imitated.
        patch.setattr(sb3_nopg.training.imitation, "_N_STEPS", 40)
        return learn(steered())


def test_demonstrations_are_imitated_too_and_random_actions_are_not(imitating, learned):
    candidates = imitating.model.candidates
    assert {candidate.recipe for candidate in candidates if candidate.trained_on == "half"} >= STARTS | {"behaviour"}
    assert "behaviour" not in {candidate.recipe for candidate in learned.model.candidates}


def test_control_does_not_depend_on_units():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(steered()), 1))
    shares = [
        make(
            replace(steered(), actions=np.hstack([steered().actions, scale * noise]), action_space=None)
        ).estimator.model.share_under_control
        for scale in (1.0, 1000.0)
    ]
    assert shares[0] == pytest.approx(shares[1], abs=1e-6)
    assert 0.3 < shares[0] < 0.6


def test_what_imitates_does_what_was_done(imitating):
    (imitator,) = (one for one in imitating.trained if name_of(one) == "behaviour (half, untrained)")
    policy = imitating.model.new_policy()
    policy.load_state_dict(imitator.parameters["policy"])
    done, _ = policy.predict(steered().observations, deterministic=True)
    aimed_at = -steered().observations.sum(axis=1, keepdims=True) / 2
    assert np.square(done - aimed_at).mean() < 0.1 * aimed_at.var()


def test_the_policy_is_left_at_the_chosen_candidate(learned):
    chosen = learned.model.candidates[0]
    (kept,) = (one for one in learned.trained if all(getattr(one, name) == getattr(chosen, name) for name in SAME))
    for name, value in learned.model.policy.state_dict().items():
        if name in kept.parameters["policy"]:
            assert th.equal(value, kept.parameters["policy"][name]), name


def test_training_improves_on_doing_nothing():
    model = make()
    before = model.estimated_return()
    model.learn(30)
    assert model.estimated_return() > before
    assert model.candidates[0].lasting > 0.8


def test_at_nodes_actions_are_drawn_independently_and_as_many_as_before(monkeypatch):
    drawn = []
    original = sb3_nopg.training.course.Course._node_noise

    def watched(self, n_nodes, like):
        drawn.append(original(self, n_nodes, like))
        return drawn[-1]

    monkeypatch.setattr(sb3_nopg.training.course.Course, "_node_noise", watched)
    model = make(variant="S", horizon=0).learn(2)
    assert drawn
    for noise in drawn:
        generator = th.Generator().manual_seed(model.estimator.settings.seed)
        assert th.equal(noise, th.randn(len(noise), 15, 1, generator=generator, dtype=th.float64))


def test_the_same_seed_makes_the_same_bits():
    one, same, other = (make(seed=seed, variant="S", n_action_samples=2).learn(8) for seed in (0, 0, 1))
    np.testing.assert_array_equal(parameters(one), parameters(same))
    assert [(c.recipe, c.trained_on, c.score) for c in one.candidates] == [
        (c.recipe, c.trained_on, c.score) for c in same.candidates
    ]
    assert not np.array_equal(parameters(one), parameters(other))


def test_one_episode_falls_back_and_says_so(caplog):
    data = record(linear, linear_reward, n_episodes=1, length=80)
    model = make(data)
    with caplog.at_level(logging.WARNING):
        model.learn(12)
    assert "too few episodes" in caplog.text
    assert {candidate.trained_on for candidate in model.candidates} == {"all"}
    assert {candidate.recipe for candidate in model.candidates} >= STARTS


def test_nothing_is_followed_without_a_horizon(followed):
    model = make(horizon=0)
    model.learn(12)
    assert followed == []
    assert {candidate.recipe for candidate in model.candidates} >= STARTS


def test_a_horizon_is_followed_by_the_nodes_values(followed):
    make(horizon=5).learn(12)
    assert followed
    for bundle in followed:
        assert bundle.n_steps == 5
        assert bundle.noise.shape[0] == 5
        assert bundle.node_values is not None


def test_without_an_end_no_value_follows(followed):
    model = make(horizon=math.inf)
    model.learn(12)
    assert followed
    for bundle in followed:
        # Until the discount has left a hundredth.
        assert bundle.n_steps == math.ceil(math.log(0.01) / math.log(0.8))
        assert bundle.node_values is None


@pytest.mark.usefixtures("whole_sizes")
def test_the_usual_horizon_goes_with_the_discount(followed):
    make(gamma=0.95).learn(4)
    assert {bundle.n_steps for bundle in followed} == {60}


def test_trajectories_start_half_from_the_data_and_half_from_the_starts(followed):
    make(initial_states=[[0.123, -0.321]]).learn(3)
    bundle = followed[-1]
    from_start = (bundle.starts == th.tensor([0.123, -0.321], dtype=th.float64)).all(dim=1)
    assert int(from_start.sum()) == len(bundle.starts) // 2
    # Other draws at each update.
    assert not th.equal(followed[-1].noise, followed[-2].noise)


def test_a_few_updates_train_the_policy_as_it_is():
    model = make()
    model.learn(2)
    assert [candidate.recipe for candidate in model.candidates] == ["own"]


def test_a_policy_that_a_user_put_somewhere_starts_there():
    data = record(linear, linear_reward)
    model = NOPG(
        "LinearPolicy",
        None,
        dataset=data,
        gamma=0.9,
        seed=0,
        device="cpu",
        learning_rate=1e-6,
        model_kwargs={"n_nodes": 60},
        policy_kwargs={"initial_gain": [[-0.5, -0.25]]},
    )
    model.learn(12)
    assert {candidate.recipe for candidate in model.candidates} == {"own"}
    np.testing.assert_allclose(model.policy.gain.detach().numpy(), [[-0.5, -0.25]], atol=1e-3)
