"""Transitions of several steps: what they are made of, what a model makes of them, and when it takes them by itself."""

import numpy as np
import pytest

from sb3_nopg import AS_IN_THE_PAPER, NOPG, TransitionDataset
from sb3_nopg.action_lag import find_action_lag
from sb3_nopg.choices import PESSIMISM, PESSIMISM_WITH_BAD_ENDS, choose_n_steps, choose_pessimism
from sb3_nopg.errors import InputError
from sb3_nopg.multi_step import Windows, multi_step


def counting_data(lengths=(5, 2, 12), ended=(True, True, False)):
    """Each state is a number of its own; an episode that has not ended was cut by a time limit."""
    columns = {name: [] for name in ("observations", "next_observations", "terminals", "episode_ids")}
    for episode, (length, end) in enumerate(zip(lengths, ended, strict=True)):
        states = 100.0 * episode + np.arange(length + 1.0)
        columns["observations"].append(states[:-1, None])
        columns["next_observations"].append(states[1:, None])
        columns["terminals"].append(np.arange(length) == (length - 1 if end else length))
        columns["episode_ids"].append(np.full(length, episode))
    arrays = {name: np.concatenate(parts) for name, parts in columns.items()}
    n = len(arrays["terminals"])
    return TransitionDataset(**arrays, actions=np.arange(n)[:, None] / n, rewards=2.0 ** np.arange(n))


def one_by_one(data, n_steps, gamma):
    """Windows by the obvious loop: (first row, discounted rewards, next state, end) of each."""
    found = []
    for first in range(len(data)):
        total, row = 0.0, first
        for step in range(n_steps):
            total += gamma**step * data.rewards[row]
            goes_on = row + 1 < len(data) and data.episode_ids[row + 1] == data.episode_ids[row] and not data.terminals[row]
            if step == n_steps - 1 or data.terminals[row]:
                found.append((first, total, data.next_observations[row, 0], bool(data.terminals[row])))
                break
            if not goes_on:
                break
            row += 1
    return found


@pytest.mark.parametrize("n_steps", [1, 2, 3, 4, 5, 9])
def test_windows_are_those_of_the_obvious_loop(n_steps):
    data = counting_data()
    expected = one_by_one(data, n_steps, 0.9)
    windows, ours = Windows(data, n_steps), multi_step(data, n_steps, 0.9)
    firsts = [row[0] for row in expected]
    assert windows.firsts.tolist() == firsts
    np.testing.assert_allclose(ours.rewards, [row[1] for row in expected], rtol=1e-14)
    np.testing.assert_array_equal(ours.next_observations[:, 0], [row[2] for row in expected])
    np.testing.assert_array_equal(ours.terminals, [row[3] for row in expected])
    for name in ("observations", "actions", "episode_ids"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(data, name)[firsts])


def test_a_gap_in_the_recording_is_not_bridged():
    data = counting_data(lengths=(6,), ended=(False,))
    keep = np.array([0, 1, 2, 4, 5])
    gappy = TransitionDataset(**{name: getattr(data, name)[keep] for name in _COLUMNS})
    assert Windows(gappy, 2).firsts.tolist() == [0, 1, 3]


_COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminals", "episode_ids")


def test_what_is_true_throughout():
    data = counting_data(lengths=(5,), ended=(True,))
    windows = Windows(data, 3)
    flags = np.array([True, True, False, True, True])
    assert windows.all_of(flags).tolist() == [False, False, False, True, True]


def test_values_are_the_same_in_steps_of_any_size():
    # A chain that is known exactly, one sample for each state: what it is worth does not depend on how it is cut.
    data = counting_data(lengths=(12,), ended=(True,))
    settings = {"state_bandwidth": 0.05, "action_bandwidth": 10.0, "weights": "local_constant", "pessimism": 0.0}
    returns = [
        NOPG("LinearPolicy", None, dataset=data, gamma=0.9, n_steps=n, initial_states=[[0.0]], seed=0, **settings)
        for n in (1, 2, 3, 5)
    ]
    expected = sum(0.9**step * 2.0**step for step in range(12))
    for model in returns:
        assert model.estimated_return() == pytest.approx(expected, rel=1e-6)


def lagging_data(seed=0, n_episodes=30, length=20, lag=1, bad_ends=True):
    """A system that answers to the action ``lag`` steps ago."""
    rng = np.random.default_rng(seed)
    rows = {name: [] for name in _COLUMNS}
    for episode in range(n_episodes):
        state, past = rng.normal(size=2), [0.0] * lag
        for step in range(length):
            past.append(rng.uniform(-1, 1))
            following = np.array([[0.9, 0.1], [0.0, 0.8]]) @ state + np.array([0.0, 0.5]) * past[-1 - lag]
            rows["observations"].append(state)
            rows["actions"].append([past[-1]])
            rows["rewards"].append(1.0)
            rows["next_observations"].append(following)
            rows["terminals"].append(bad_ends and step == length - 1)
            rows["episode_ids"].append(episode)
            state = following
    return TransitionDataset(**{name: np.array(values) for name, values in rows.items()})


def test_auto_takes_as_many_steps_as_an_action_needs():
    assert [choose_n_steps(lagging_data(lag=lag)) for lag in (0, 1, 2)] == [1, 3, 4]
    model = NOPG("MlpPolicy", None, dataset=lagging_data(lag=1), seed=0)
    assert (model.n_steps, model.chosen_n_steps, model.transition_gamma) == ("auto", 3, pytest.approx(0.99**3))
    assert len(model.transitions) == len(model.q_values) == len(model.training_data) == 600
    assert model.prepared_problem().gamma == model.transition_gamma
    paper = NOPG("MlpPolicy", None, dataset=lagging_data(lag=1), seed=0, **AS_IN_THE_PAPER)
    assert (paper.chosen_n_steps, paper.chosen_pessimism) == (1, 0.0)
    assert paper.transitions is paper.training_data


def test_auto_is_more_careful_where_episodes_end_badly():
    data = lagging_data(bad_ends=True)
    assert choose_pessimism(data, 0.99) == PESSIMISM_WITH_BAD_ENDS
    assert choose_pessimism(lagging_data(bad_ends=False), 0.99) == PESSIMISM

    def with_rewards(going_on, end):
        rewards = np.where(data.terminals, end, going_on)
        return data.relabel(reward=lambda states, actions, next_states: rewards)

    assert choose_pessimism(with_rewards(-1.0, -1.0), 0.99) == PESSIMISM, "the end is the goal"
    assert choose_pessimism(with_rewards(-1.0, -1000.0), 0.99) == PESSIMISM_WITH_BAD_ENDS, "a crash"
    assert choose_pessimism(with_rewards(0.01, 100.0), 0.99) == PESSIMISM, "a goal with a bonus"


def test_the_choice_survives_saving_and_loading(tmp_path):
    data = lagging_data(lag=1)
    model = NOPG("MlpPolicy", None, dataset=data, seed=0)
    model.learn(2)
    model.save(tmp_path / "model.zip")
    loaded = NOPG.load(tmp_path / "model.zip")
    loaded.set_dataset(data)
    assert loaded.estimated_return() == pytest.approx(model.estimated_return(), rel=1e-6)
    # By itself, other data would make another choice.
    other = lagging_data(lag=0, bad_ends=False, seed=1)
    loaded.set_dataset(other)
    assert (loaded.n_steps, loaded.chosen_n_steps, loaded.chosen_pessimism) == ("auto", 3, PESSIMISM_WITH_BAD_ENDS)
    assert choose_n_steps(other) == 1


def test_training_goes_on_after_a_kill(tmp_path):
    # Attempts would follow the first part already.
    data, settings = lagging_data(lag=1), {"seed": 0, "held_out": 0.3, "value_iteration_start": False, "n_attempts": 1}
    whole = NOPG("MlpPolicy", None, dataset=data, **settings).learn(6)
    first = NOPG("MlpPolicy", None, dataset=data, **settings).learn(3)
    first.save_checkpoint(tmp_path / "checkpoint.zip")
    resumed = NOPG.resume(tmp_path / "checkpoint.zip", dataset=data)
    assert resumed.chosen_n_steps == 3
    resumed.learn(3, reset_num_timesteps=False)
    assert resumed.estimated_return() == whole.estimated_return()


def test_held_out_data_and_answers_go_by_the_same_steps():
    data = lagging_data(lag=1)
    model = NOPG("MlpPolicy", None, dataset=data, held_out=0.3, seed=0, pessimism=0.0)
    assert model.held_out_problem().gamma == model.transition_gamma
    # Every step earns one until the end, which is some 20 steps away, of three each.
    interval = model.return_interval(n_resamples=5)
    assert 5.0 < interval.low < interval.high < 60.0
    assert model.exit_probability(lambda states: states[:, 0] < 1e3) == 0.0
    # A state in the middle of a transition counts too.
    passed_by = model.training_data.next_observations[1]
    assert not (model.transitions.next_observations == passed_by).all(axis=1).any()
    assert model.exit_probability(lambda states: ~(states == passed_by).all(axis=1)) > 0.0


def walk(cut_as, seed=0):
    """A random walk that is recorded until it has left [-1, 1]."""
    rng, rows = np.random.default_rng(seed), {name: [] for name in _COLUMNS}
    for episode in range(60):
        state = rng.uniform(-0.5, 0.5)
        while abs(state) <= 1.0:
            action = rng.uniform(-0.4, 0.4)
            following = state + action
            for name, value in zip(_COLUMNS, ([state], [action], 0.0, [following], False, episode), strict=True):
                rows[name].append(value)
            state = following
        rows["terminals"][-1] = cut_as == "terminal"
    return TransitionDataset(**{name: np.array(values) for name, values in rows.items()})


def test_a_recording_that_stops_at_a_limit_does_not_hide_that_it_was_passed():
    settings = {"seed": 0, "pessimism": 0.0, "n_steps": 3, "initial_states": [[0.0]], "gamma": 0.95}
    by_end, by_cut = (
        NOPG("MlpPolicy", None, dataset=walk(cut_as), **settings).exit_probability(lambda states: np.abs(states[:, 0]) <= 1.0)
        for cut_as in ("terminal", "cut")
    )
    assert by_cut == pytest.approx(by_end, rel=0.05)
    assert by_cut > 0.1


def test_an_interval_needs_two_episodes_that_are_long_enough():
    data = counting_data(lengths=(2, 2, 40), ended=(False, False, False))
    model = NOPG("MlpPolicy", None, dataset=data, n_steps=3, state_bandwidth=1.0, action_bandwidth=1.0, pessimism=0.0, seed=0)
    with pytest.raises(InputError, match="single episode"):
        model.return_interval(n_resamples=3)


def test_auto_does_not_spend_the_data_on_long_transitions():
    short = lagging_data(lag=2, length=5, n_episodes=120, bad_ends=False)
    assert find_action_lag(short).lag == 2
    assert choose_n_steps(short) == 1
    assert choose_n_steps(lagging_data(lag=2, length=9, n_episodes=120, bad_ends=False)) == 4
    assert choose_n_steps(lagging_data(lag=1), held_out=lagging_data(length=2, bad_ends=False)) == 1


def test_held_out_data_that_cannot_follow_are_refused_at_once():
    data = lagging_data(lag=1)
    with pytest.raises(InputError, match="n_steps"):
        NOPG("MlpPolicy", None, dataset=data, n_steps=3, held_out=lagging_data(seed=1, length=2, bad_ends=False))


def test_what_has_no_successors_is_refused():
    data = lagging_data()
    unordered = TransitionDataset(**{name: getattr(data, name) for name in _COLUMNS if name != "episode_ids"})
    with pytest.raises(InputError, match=r"n_steps.*episode"):
        NOPG("MlpPolicy", None, dataset=unordered, n_steps=2, initial_states=[[0.0, 0.0]])
    with pytest.raises(InputError, match=r"n_steps.*successive"):
        NOPG("MlpPolicy", None, dataset=lagging_data(bad_ends=False), n_steps=21)
    with pytest.raises(InputError, match=r"n_steps.*synthetic"):
        NOPG("MlpPolicy", None, dataset=data.densify(50, seed=0), n_steps=2)
    assert choose_n_steps(data.densify(50, seed=0)) == 1


@pytest.mark.parametrize("n_steps", [0, -1, 1.5, "many", True, None])
def test_bad_counts_are_refused(n_steps):
    with pytest.raises(InputError, match=r"n_steps"):
        NOPG("MlpPolicy", None, dataset=lagging_data(), n_steps=n_steps)
