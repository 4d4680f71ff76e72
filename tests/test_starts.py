"""Where training starts, what it keeps and when it stops."""

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_nopg import NOPG, InputError, TransitionDataset
from sb3_nopg.keeping import BestSoFar
from sb3_nopg.starts import N_TRIAL_UPDATES
from test_value_iteration import rail_data

FAST = {"state_bandwidth": 0.2, "action_bandwidth": 0.5, "next_state_bandwidth": 0.2, "gamma": 0.9, "device": "cpu"}


def build(**arguments) -> NOPG:
    arguments = {"dataset": rail_data(), "initial_states": [[0.8]], "seed": 0, **FAST, **arguments}
    return NOPG("MlpPolicy", None, **arguments)


def parameters(model: NOPG) -> np.ndarray:
    return th.nn.utils.parameters_to_vector(model.policy.parameters()).detach().numpy().copy()


def episodes(n_episodes: int = 10, length: int = 20, seed: int = 0) -> TransitionDataset:
    rng = np.random.default_rng(seed)
    rows = []
    for episode in range(n_episodes):
        state = rng.uniform(-1, 1, 1)
        for _ in range(length):
            action = rng.uniform(-1, 1, 1)
            after = np.clip(state + 0.3 * action + 0.05 * rng.normal(size=1), -1, 1)
            rows.append((state, action, -abs(after[0]), after, episode))
            state = after
    states, actions, rewards, after, ids = (np.array(column) for column in zip(*rows, strict=True))
    ends = np.zeros(len(ids), dtype=bool)
    return TransitionDataset(states, actions, rewards, after, ends, episode_ids=ids, action_space=spaces.Box(-1.0, 1.0, (1,)))


def test_the_best_start_is_climbed_from():
    model = build(n_restarts=2)
    model.learn(1)
    names = [trial.name for trial in model.start_trials]
    scores = [trial.score for trial in model.start_trials]
    assert sorted(names) == ["own", "restart 1", "restart 2", "value_iteration"]
    assert scores == sorted(scores, reverse=True)
    assert all(trial.seconds > 0 for trial in model.start_trials)
    # One update more than the winner's trial.
    assert model.estimated_return() >= scores[0] - 1e-3 * abs(scores[0])


def test_trials_are_not_counted_as_updates():
    model = build(n_restarts=1)
    model.learn(5)
    assert model.num_timesteps == 5
    assert model._n_updates == 5


def test_a_start_continues_where_its_trial_ended():
    """A single start is as if it had been trained by itself from the beginning."""
    tried = build(value_iteration_start=False, n_restarts=1)
    tried.learn(3)
    assert tried.start_trials[0].name in ("own", "restart 1")
    alone = build(value_iteration_start=False)
    if tried.start_trials[0].name == "own":
        alone.learn(N_TRIAL_UPDATES + 3)
        np.testing.assert_allclose(parameters(tried), parameters(alone), atol=1e-6)
    else:
        alone.learn(N_TRIAL_UPDATES + 3)
        assert tried.estimated_return() >= alone.estimated_return()


def test_restarts_differ_from_each_other_and_repeat_with_the_seed():
    first, again = build(n_restarts=3, value_iteration_start=False), build(n_restarts=3, value_iteration_start=False)
    first.learn(1)
    again.learn(1)
    np.testing.assert_array_equal(parameters(first), parameters(again))
    assert [(t.name, t.score) for t in first.start_trials] == [(t.name, t.score) for t in again.start_trials]
    assert len({round(trial.score, 9) for trial in first.start_trials}) == 4


def test_the_search_happens_once():
    model = build()
    model.learn(2)
    before = model.start_trials
    assert before
    model.learn(2, reset_num_timesteps=False)
    assert model.start_trials is before


def test_without_other_starts_nothing_is_tried():
    model = build(value_iteration_start=False)
    model.learn(1)
    assert model.start_trials == ()


def test_restarts_keep_what_the_policy_knows_of_the_data():
    model = build(n_restarts=2, value_iteration_start=False)
    mean = model.policy.observation_mean.clone()
    model.learn(1)
    assert th.equal(model.policy.observation_mean, mean)


def test_episodes_are_held_out_whole():
    data = episodes()
    model = build(dataset=data, initial_states=None, held_out=0.3)
    kept = model.held_out_data
    assert kept is not None
    assert len(np.unique(kept.episode_ids)) == 3
    assert len(kept) + len(model.prepared_problem().rewards) == len(data)
    own = {tuple(row) for row in model.prepared_problem().support.observations.numpy().round(9)}
    assert not own & {tuple(row) for row in kept.observations.round(9)}
    assert model.held_out_return() == pytest.approx(model.estimated_return(kept), rel=1e-9)


def test_unordered_data_are_held_out_row_by_row():
    model = build(held_out=0.2)
    assert model.held_out_data is not None
    assert len(model.held_out_data) == 30


def test_the_best_held_out_parameters_are_kept():
    data = episodes(4, 12)
    other = episodes(30, 20, seed=1)
    seen = []

    def watch(local_variables, _):
        model = local_variables["self"]
        if model.num_timesteps % 10 == 0:
            seen.append((model.held_out_return(), parameters(model)))
        return True

    arguments = {"dataset": data, "initial_states": [[0.8]], "held_out": other, "learning_rate": 0.1}
    model = build(keep="best_heldout", **arguments)
    model.learn(80, callback=watch)
    returns = [value for value, _ in seen]
    assert len(set(returns)) > 1
    best = int(np.argmax(returns))
    # It may have looked more often than we did.
    assert returns[best] - 2e-4 * abs(returns[best]) <= model.held_out_return()
    assert model.held_out_return() == pytest.approx(returns[best], rel=2e-3)
    last = build(keep="last", **arguments)
    last.learn(80)
    np.testing.assert_array_equal(parameters(last), seen[-1][1])


def test_patience_ends_a_training_that_gets_nowhere():
    model = build(patience=20, learning_rate=1e-12)
    model.learn(500)
    # The first look finds a return to compare with.
    assert model.num_timesteps <= 40
    untiring = build(learning_rate=1e-12)
    untiring.learn(60)
    assert untiring.num_timesteps == 60


def test_the_held_out_return_is_logged():
    model = build(held_out=0.2)
    logged = {}

    def look(local_variables, _):
        logged.update(model.logger.name_to_value)
        return True

    model.learn(10, callback=look, log_interval=None)
    assert logged["train/held_out_return"] == pytest.approx(model.held_out_return(), rel=1e-6)
    assert logged["start/score"] == model.start_trials[0].score


def test_ties_do_not_replace_the_best():
    model = build(value_iteration_start=False)
    best = BestSoFar(keep_parameters=True)
    best.look(-10.0, 10, model.policy)
    remembered = parameters(model)
    model.learn(3)
    best.look(-10.0 + 1e-5, 20, model.policy)
    assert best.update == 10
    assert best.restore(model.policy, 20) == 10
    np.testing.assert_array_equal(parameters(model), remembered)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"held_out": 0.0}, "held_out"),
        ({"held_out": 1.0}, "held_out"),
        ({"held_out": "half"}, "held_out"),
        ({"keep": "best"}, "keep"),
        ({"keep": "best_heldout"}, "keep"),
        ({"patience": 0}, "patience"),
        ({"n_restarts": -1}, "n_restarts"),
        ({"n_restarts": 1.5}, "n_restarts"),
        ({"value_iteration_start": "no"}, "value_iteration_start"),
    ],
)
def test_bad_settings_are_refused(arguments, field):
    with pytest.raises(InputError, match=field):
        build(**arguments)


def test_nothing_held_out_has_no_return():
    with pytest.raises(InputError, match="held_out"):
        build().held_out_return()


def test_settings_survive_saving(tmp_path):
    model = build(dataset=episodes(), initial_states=None, held_out=0.3, keep="best_heldout", patience=50, n_restarts=1)
    model.learn(2)
    model.save(tmp_path / "model")
    loaded = NOPG.load(tmp_path / "model")
    assert (loaded.held_out, loaded.keep, loaded.patience, loaded.n_restarts) == (0.3, "best_heldout", 50, 1)
    loaded.set_dataset(episodes())
    assert loaded.held_out_return() == pytest.approx(model.held_out_return(), rel=1e-6)
    given = build(held_out=rail_data(1), keep="best_heldout")
    given.save(tmp_path / "given")
    # Data never go into a model's file.
    assert NOPG.load(tmp_path / "given").held_out is None


@pytest.mark.parametrize("continued", [False, True])
def test_where_training_starts_may_be_the_best(continued):
    """Steps so large that they only do harm."""
    model = build(dataset=episodes(6, 12), initial_states=None, held_out=0.3, keep="best_heldout", learning_rate=1e-9)
    model.learn(10)
    model.learning_rate = 1.0
    model._setup_lr_schedule()
    if not continued:
        model._n_updates = 1  # no search for another start
    before = model.held_out_return()
    model.learn(30, reset_num_timesteps=not continued)
    assert model.held_out_return() >= before - 1e-9


@pytest.mark.parametrize("patience", [1, 3, 12])
def test_short_patience_looks_before_it_gives_up(patience):
    model = build(patience=patience, learning_rate=1e-12, value_iteration_start=False)
    model.learn(100)
    assert model._best.score is not None
    assert patience <= model.num_timesteps <= patience + 10
    climbing = build(patience=patience, value_iteration_start=False)
    climbing.learn(15)
    assert climbing.num_timesteps > patience


def test_of_one_episode_the_end_is_held_out():
    data = episodes(1, 50)
    model = build(dataset=data, initial_states=None, held_out=0.2)
    np.testing.assert_array_equal(model.held_out_data.observations, data.observations[40:])
    assert len(model.prepared_problem().rewards) == 40


def test_data_that_are_learned_from_are_no_check():
    data = rail_data()
    for seen in (data, data.split((0.5, 0.5), by="transition")[0]):
        with pytest.raises(InputError, match="held_out"):
            build(dataset=data, held_out=seen)
    with pytest.raises(InputError, match="synthetic"):
        build(dataset=data, held_out=rail_data(1).densify(50))


def test_trials_see_the_same_draws(monkeypatch):
    model = build(variant="S", n_action_samples=3, resample_interval=7, n_restarts=2, value_iteration_start=False)
    epochs = []
    original = NOPG.train
    monkeypatch.setattr(NOPG, "train", lambda self, *given: (epochs.append(self._noise_epoch), original(self, *given))[1])
    model.learn(1)
    assert epochs == [0, 0, 0, 0]


def test_a_start_that_cannot_be_solved_is_given_up(monkeypatch):
    model = build(n_restarts=1)
    monkeypatch.setattr("sb3_nopg.starts.start_from_value_iteration", lambda model: break_policy(model))
    model.learn(2)
    assert {trial.name for trial in model.start_trials} == {"own", "restart 1"}
    assert np.isfinite(parameters(model)).all()


def break_policy(model: NOPG) -> None:
    with th.no_grad():
        for parameter in model.policy.parameters():
            parameter.fill_(th.nan)
