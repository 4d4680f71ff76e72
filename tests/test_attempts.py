"""Which of the policies that training passes is kept, and another training where it is predicted to fail."""

import csv

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import configure

from sb3_nopg import NOPG, TransitionDataset, attempts
from sb3_nopg.callbacks import NOPGCheckpointCallback
from sb3_nopg.choices import has_bad_ends
from sb3_nopg.errors import InputError, SolverError
from sb3_nopg.policies import DeterministicMlpPolicy
from sb3_nopg.prospects import Prospects, TrajectoryJudge
from test_rollouts import STARTS, brake, recorded

N_UPDATES = 6


def balancing(limit: float = 1.0, seed: int = 0) -> TransitionDataset:
    """Rewards for staying on a rail that ends."""
    data = recorded(n_episodes=20, length=12, limit=limit, seed=seed)
    return TransitionDataset(
        observations=data.observations,
        actions=data.actions,
        rewards=np.ones(len(data)),
        next_observations=data.next_observations,
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )


def untrained(dataset: TransitionDataset | None = None, **settings: object) -> NOPG:
    dataset = balancing() if dataset is None else dataset
    given = {"seed": 3, "device": "cpu", "value_iteration_start": False, "keep": "last", **settings}
    return NOPG("MlpPolicy", None, dataset=dataset, **given)


def parameters(model: NOPG) -> np.ndarray:
    return th.cat([parameter.detach().reshape(-1) for parameter in model.policy.parameters()]).numpy()


def predict(monkeypatch, *outcomes: tuple[float, float, tuple[int, ...]]) -> list[np.ndarray]:
    """
    :param outcomes: score, share that lasts and ends in each dimension, one attempt after the other, the last policy first
    :return: filled with the actions at the starts of each policy that is judged
    """
    coming, judged = iter(outcomes), []

    def prospects(act):
        judged.append(act(STARTS))
        score, lasting, ends_by = next(coming)
        return Prospects(score, lasting, np.array(ends_by), ())

    monkeypatch.setattr(TrajectoryJudge, "prospects_of", lambda self, actors: [prospects(act) for act in actors])
    return judged


def test_the_judge_tells_policies_that_stay_from_those_that_creep_away():
    dataset = recorded(limit=2.0)
    judge = TrajectoryJudge(dataset, STARTS, 300)
    staying = judge.prospects(brake)
    assert staying.lasting == 1.0
    assert staying.ends_by.tolist() == [0, 0]
    creeping = judge.prospects(lambda states: 5.0 * (0.1 - states[:, 1:]) - 0.5 * np.sin(states[:, :1]))
    assert creeping.lasting == 0.0
    # By the position, in every model from every start.
    assert creeping.ends_by.tolist() == [len(STARTS) * len(judge.models), 0]
    assert creeping.score < staying.score
    assert len(creeping.rollouts) == len(judge.models)


def test_many_starts_are_shared_among_the_models():
    dataset = recorded(n_episodes=100)
    judge = TrajectoryJudge(dataset, dataset.observations[dataset.episode_starts], 5)
    n_starts = [len(rollouts.n_steps) for rollouts in judge.prospects(brake).rollouts]
    assert n_starts == [16, 16, 16, 16]


def test_what_lies_beyond_the_data_is_worth_the_worst_that_was_seen():
    dataset = recorded()
    judge = TrajectoryJudge(dataset, STARTS, 300)
    creeping = judge.prospects(lambda states: 5.0 * (0.3 - states[:, 1:]) - 0.5 * np.sin(states[:, :1]))
    worst = dataset.rewards.min()
    expected = [np.nansum(r.rewards, axis=0) + (300 - r.n_steps) * worst for r in creeping.rollouts]
    assert creeping.score == pytest.approx(np.mean(expected))


def test_crashing_is_no_way_out_of_a_task_in_which_every_step_costs():
    """By a hundred and twenty at the end, which ten times the horizon would cost more than."""
    data = recorded(n_episodes=60, limit=1.0)
    rewards = np.where(data.terminals, -120.0, -1.0)
    dataset = TransitionDataset(
        observations=data.observations,
        actions=data.actions,
        rewards=rewards,
        next_observations=data.next_observations,
        terminals=data.terminals,
        episode_ids=data.episode_ids,
    )
    assert has_bad_ends(dataset, 0.99)
    judge = TrajectoryJudge(dataset, STARTS, 1000, ends_are_bad=True)
    crashing = judge.prospects(lambda states: np.full((len(states), 1), 2.0))
    assert crashing.lasting == 0.0
    staying = judge.prospects(brake)
    assert staying.lasting == 1.0
    assert crashing.score < staying.score


def test_one_episode_is_cut_without_a_word(caplog):
    data = recorded(n_episodes=1, length=200, seed=4)
    TrajectoryJudge(data, STARTS, 5)
    assert not caplog.records


@pytest.mark.parametrize(
    ("ends_by", "factor"), [((9, 1), (0.4, 1.0)), ((3, 1), (0.4, 0.4)), ((2, 2, 3, 2, 2, 2), (1, 1, 0.4, 1, 1, 1))]
)
def test_some_dimension_is_always_looked_at_more_closely(ends_by, factor):
    np.testing.assert_allclose(attempts._narrowed(np.array(ends_by)), factor)


def test_a_policy_that_lasts_is_the_only_attempt(monkeypatch):
    predict(monkeypatch, (5.0, 0.95, (0, 1)))
    model = untrained().learn(N_UPDATES, log_interval=None)
    assert len(model.attempts) == 1
    assert (model.attempts[0].score, model.attempts[0].lasting) == (5.0, 0.95)
    assert model.attempts[0].state_bandwidth_factor == (1.0, 1.0)
    np.testing.assert_array_equal(parameters(model), parameters(untrained(n_attempts=1).learn(N_UPDATES, log_interval=None)))


def test_a_better_second_attempt_is_kept(monkeypatch):
    judged = predict(monkeypatch, (5.0, 0.2, (9, 1)), (8.0, 0.6, (3, 3)))
    first = untrained(n_attempts=1).learn(N_UPDATES, log_interval=None)
    model = untrained().learn(N_UPDATES, log_interval=None)
    assert [attempt.score for attempt in model.attempts] == [8.0, 5.0]
    # Narrower where nine of ten end, and nowhere else.
    assert model.attempts[0].state_bandwidth_factor == (0.4, 1.0)
    np.testing.assert_allclose(model.bandwidths.state, first.bandwidths.state * [0.4, 1.0])
    np.testing.assert_allclose(model.bandwidths.action, first.bandwidths.action)
    # It is what training with these bandwidths leads to, from the same first parameters.
    same = untrained(n_attempts=1, state_bandwidth_factor=[0.4, 1.0]).learn(N_UPDATES, log_interval=None)
    np.testing.assert_array_equal(parameters(model), parameters(same))
    np.testing.assert_array_equal(model.act(STARTS), judged[1])
    assert not np.array_equal(judged[0], judged[1])
    assert (model.num_timesteps, model.progress) == (N_UPDATES, (N_UPDATES, 0))
    assert model.estimated_return() == pytest.approx(same.estimated_return(), rel=1e-6)


def test_a_worse_second_attempt_leaves_no_trace(monkeypatch):
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (6.0, 0.1, (0, 1)))
    first = untrained(n_attempts=1).learn(N_UPDATES, log_interval=None)
    model = untrained().learn(N_UPDATES, log_interval=None)
    assert [attempt.lasting for attempt in model.attempts] == [0.2, 0.1]
    np.testing.assert_array_equal(parameters(model), parameters(first))
    np.testing.assert_array_equal(model.bandwidths.state, first.bandwidths.state)
    assert model.state_bandwidth_factor == 1.0
    assert model.estimated_return() == pytest.approx(first.estimated_return(), rel=1e-6)
    # And it goes on from there.
    for trained in (first, model):
        trained.learn(2, log_interval=None, reset_num_timesteps=False)
    np.testing.assert_allclose(parameters(model), parameters(first), rtol=1e-4, atol=1e-6)


def test_of_the_policies_on_the_way_the_one_that_lasts_is_kept(monkeypatch):
    judged = predict(monkeypatch, (5.0, 0.2, (9, 1)), (6.0, 0.4, (0, 1)), (7.0, 0.95, (0, 0)), (8.0, 0.1, (0, 1)))
    model = untrained(keep="lasting").learn(N_UPDATES, log_interval=None)
    # After the last update, after four, after two, and at the start: what shorter trainings lead to.
    for actions, n_updates in zip(judged, (6, 4, 2), strict=False):
        shorter = untrained(n_attempts=1).learn(n_updates, log_interval=None)
        np.testing.assert_array_equal(actions, shorter.act(STARTS))
        if n_updates == 2:
            np.testing.assert_array_equal(parameters(model), parameters(shorter))
    np.testing.assert_array_equal(judged[3], untrained().act(STARTS))
    assert len(judged) == 4
    assert [(attempt.lasting, attempt.n_updates) for attempt in model.attempts] == [(0.95, 2)]
    assert model.num_timesteps == N_UPDATES
    # Its optimiser is the one that it had then.
    steps = {state["step"].item() for state in model.policy.optimizer.state_dict()["state"].values()}
    assert steps == {2.0}


def test_where_all_last_well_enough_what_they_earn_decides(monkeypatch):
    predict(monkeypatch, (5.0, 1.0, (0, 0)), (9.0, 0.92, (1, 0)), (6.0, 1.0, (0, 0)), (10.0, 0.89, (1, 0)))
    model = untrained(keep="lasting").learn(N_UPDATES, log_interval=None)
    assert (model.attempts[0].score, model.attempts[0].n_updates) == (9.0, 4)


def test_the_last_of_equals_is_kept(monkeypatch):
    predict(monkeypatch, *[(5.0, 1.0, (0, 0))] * 4)
    model = untrained(keep="lasting").learn(N_UPDATES, log_interval=None)
    np.testing.assert_array_equal(parameters(model), parameters(untrained(n_attempts=1).learn(N_UPDATES, log_interval=None)))


def test_every_attempt_has_policies_on_the_way(monkeypatch):
    first = [(5.0, 0.2, (9, 1)), (6.0, 0.4, (1, 9)), (5.0, 0.1, (9, 1)), (5.0, 0.1, (9, 1))]
    second = [(5.0, 0.2, (9, 1)), (6.0, 0.3, (1, 9)), (9.0, 0.6, (9, 1)), (5.0, 0.1, (9, 1))]
    predict(monkeypatch, *first, *second)
    model = untrained(keep="lasting").learn(N_UPDATES, log_interval=None)
    # Narrower where the best of the first attempt ends, which was not its last.
    assert [attempt.state_bandwidth_factor for attempt in model.attempts] == [(1.0, 0.4), (1.0, 1.0)]
    assert [attempt.n_updates for attempt in model.attempts] == [2, 4]
    narrow = untrained(n_attempts=1, state_bandwidth_factor=[1.0, 0.4]).learn(2, log_interval=None)
    np.testing.assert_array_equal(parameters(model), parameters(narrow))


def test_bandwidths_given_in_numbers_stay_and_policies_are_judged_all_the_same(monkeypatch):
    judged = predict(monkeypatch, *[(5.0, 0.2, (9, 1))] * 4)
    model = untrained(keep="lasting", state_bandwidth=[0.3, 0.3]).learn(N_UPDATES, log_interval=None)
    assert len(model.attempts) == 1
    assert len(judged) == 4


def test_an_early_policy_is_a_trained_one_with_the_last_ones_spread(monkeypatch):
    predict(monkeypatch, *[(5.0, 0.2, (9, 1))] * 3, (5.0, 1.0, (0, 0)))
    settings = {
        "variant": "S",
        "n_action_samples": 3,
        "final_std_scale": 0.5,
        "n_attempts": 1,
        "normalize_observations": False,
    }
    model = untrained(keep="lasting", **settings).learn(N_UPDATES, log_interval=None)
    assert model.attempts[0].n_updates == 0
    np.testing.assert_array_equal(parameters(model), parameters(untrained(**settings)))
    assert model.policy.std_scale.item() == 0.5
    # Other data must not change what it does.
    before = model.act(STARTS)
    data, model.normalize_observations = balancing(), True
    model.set_dataset(data.filter(data.observations[:, 0] > 0))
    np.testing.assert_array_equal(model.act(STARTS), before)


def test_other_data_forget_the_policies_on_the_way(monkeypatch):
    judged = predict(monkeypatch)
    model = untrained(keep="lasting")

    def interrupted(*_: object) -> bool:
        if model.num_timesteps == 3:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        model.learn(N_UPDATES, interrupted, log_interval=None)
    data = balancing()
    model.set_dataset(data.filter(data.observations[:, 0] > 0))
    model.learn(3, log_interval=None, reset_num_timesteps=False)
    assert not judged


def test_a_policy_that_cannot_be_copied_can_be_judged():
    class Remembers(DeterministicMlpPolicy):
        def action_distribution(self, observations):
            self.last_mean, std = super().action_distribution(observations)
            return self.last_mean, std

    settings = {"seed": 3, "device": "cpu", "value_iteration_start": False, "n_attempts": 1}
    model = NOPG(Remembers, None, dataset=balancing(), **settings).learn(3, log_interval=None)
    assert len(model.attempts) == 1


def test_patience_is_told_of_the_policy_that_is_kept(monkeypatch, tmp_path):
    predict(monkeypatch, *[(5.0, 0.2, (9, 1))] * 3, (6.0, 1.0, (0, 0)))
    dataset = balancing()
    callback = NOPGCheckpointCallback(tmp_path / "run.ckpt", 1)
    model = untrained(dataset, keep="lasting", patience=20).learn(N_UPDATES, callback, log_interval=None)
    assert model.attempts[0].n_updates == 0
    resumed = NOPG.resume(tmp_path / "run.ckpt", dataset, device="cpu")
    for trained in (model, resumed):
        trained.learn(4, log_interval=None, reset_num_timesteps=False)
    np.testing.assert_array_equal(parameters(resumed), parameters(model))


def test_the_best_held_out_policy_knows_when_it_was_there(monkeypatch):
    predict(monkeypatch, (5.0, 1.0, (0, 0)))
    model = untrained(keep="best_heldout", held_out=0.3, learning_rate=0.3).learn(30, log_interval=None)
    steps = {int(state["step"]) for state in model.policy.optimizer.state_dict()["state"].values()} or {0}
    assert {model.attempts[0].n_updates} == steps


def test_nothing_is_remembered_that_nobody_will_judge(tmp_path):
    model = untrained(balancing(limit=np.inf), keep="lasting")
    seen = []
    model.learn(N_UPDATES, lambda *_: seen.append(len(model._waypoints.passed)) or True, log_interval=None)
    assert set(seen) == {0}


def test_policies_side_by_side_are_judged_as_one_by_one():
    judge = TrajectoryJudge(recorded(limit=2.0), STARTS, 150)

    def creep(states):
        return 5.0 * (0.1 - states[:, 1:]) - 0.5 * np.sin(states[:, :1])

    together = judge.prospects_of([brake, creep, brake])
    for act, found in zip((brake, creep, brake), together, strict=True):
        alone = judge.prospects(act)
        assert (found.lasting, found.ends_by.tolist()) == (alone.lasting, alone.ends_by.tolist())
        assert found.score == pytest.approx(alone.score)
        for one, other in zip(found.rollouts, alone.rollouts, strict=True):
            np.testing.assert_array_equal(one.n_steps, other.n_steps)
            np.testing.assert_allclose(one.states, other.states, atol=1e-9)


def test_a_third_attempt_starts_from_what_the_second_was_lacking(monkeypatch):
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (6.0, 0.3, (1, 9)), (7.0, 0.4, (5, 5)))
    model = untrained(n_attempts=3).learn(N_UPDATES, log_interval=None)
    assert model.attempts[0].state_bandwidth_factor == pytest.approx((0.4, 0.4))
    assert len(model.attempts) == 3


def test_a_worse_attempt_that_was_shorter_leaves_no_trace_either(monkeypatch):
    settings = {"variant": "S", "n_action_samples": 3, "resample_interval": 2}
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (6.0, 0.1, (0, 1)))
    first = untrained(n_attempts=1, **settings).learn(N_UPDATES, log_interval=None)
    model, made = untrained(**settings), []
    monkeypatch.setattr(model, "_gives_up", lambda best, last: made.append(1) or len(made) == N_UPDATES + 1)
    model.learn(N_UPDATES, log_interval=None)
    assert len(made) == N_UPDATES + 1
    assert model.progress == first.progress == (N_UPDATES, (N_UPDATES - 1) // 2)
    assert model.estimated_return() == pytest.approx(first.estimated_return(), rel=1e-6)


def test_an_attempt_that_cannot_be_solved_is_given_up(monkeypatch, caplog):
    predict(monkeypatch, (5.0, 0.2, (9, 1)))
    first = untrained(n_attempts=1).learn(N_UPDATES, log_interval=None)
    model, made = untrained(), []
    make_update = model._make_update

    def fails(total: int) -> None:
        made.append(1)
        if len(made) == N_UPDATES + 3:
            raise SolverError("no solution")
        make_update(total)

    monkeypatch.setattr(model, "_make_update", fails)
    model.learn(N_UPDATES, log_interval=None)
    assert "given up: no solution" in caplog.text
    assert len(model.attempts) == 1
    np.testing.assert_array_equal(parameters(model), parameters(first))
    assert model.progress == first.progress


def test_a_policy_that_is_no_number_any_more_is_told_as_ever(monkeypatch):
    model = untrained()
    make_update = model._make_update

    def breaks(total: int) -> None:
        make_update(total)
        with th.no_grad():
            next(model.policy.parameters()).fill_(np.nan)

    monkeypatch.setattr(model, "_make_update", breaks)
    with pytest.raises(SolverError, match="smaller learning_rate"):
        model.learn(1, log_interval=None)


@pytest.mark.parametrize(
    "settings", [{"n_attempts": 1}, {"dataset": balancing(limit=np.inf)}, {"state_bandwidth": [0.3, 0.3]}]
)
def test_nothing_is_attempted_where_it_is_not_asked_for_or_nothing_ends_badly(settings, monkeypatch):
    judged = predict(monkeypatch)
    assert untrained(**settings).learn(N_UPDATES, log_interval=None).attempts == ()
    assert not judged


def test_only_the_first_training_is_followed_by_attempts(monkeypatch):
    judged = predict(monkeypatch, (5.0, 1.0, (0, 0)))
    model = untrained().learn(N_UPDATES, log_interval=None)
    model.learn(2, log_interval=None, reset_num_timesteps=False)
    assert len(judged) == 1


def test_who_stops_training_does_not_want_another(monkeypatch):
    judged = predict(monkeypatch)
    model = untrained().learn(N_UPDATES, lambda *_: False, log_interval=None)
    assert model.num_timesteps == 1
    # Nor later, when the network is not what it began with.
    model.learn(2, log_interval=None, reset_num_timesteps=False)
    model.learn(2, log_interval=None)
    assert not judged


def test_schedules_are_the_same_in_every_attempt(monkeypatch):
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (6.0, 0.1, (0, 1)))
    seen, n_looks = [], []
    model = untrained(learning_rate=lambda remaining: seen.append(round(remaining, 3)) or 1e-3)
    # Both give up after three of six updates.
    monkeypatch.setattr(model, "_gives_up", lambda best, last: n_looks.append(1) or len(n_looks) % 3 == 0)
    seen.clear()
    model.learn(6, log_interval=None)
    assert len(n_looks) == 6
    of_one = len(seen) // 2
    assert seen[:of_one] == seen[of_one:]
    assert sorted(set(seen), reverse=True) == [1.0, round(5 / 6, 3), round(4 / 6, 3)]


def test_too_few_data_to_predict_from_are_no_error():
    dataset = balancing().filter(np.arange(len(balancing())) < 9)
    terminals = np.zeros(9, dtype=bool)
    terminals[-1] = True
    short = TransitionDataset(
        observations=dataset.observations,
        actions=dataset.actions,
        rewards=dataset.rewards,
        next_observations=dataset.next_observations,
        terminals=terminals,
        episode_ids=np.zeros(9, dtype=np.int64),
    )
    assert untrained(short).learn(2, log_interval=None).attempts == ()


def test_an_interrupted_attempt_loses_nothing(monkeypatch):
    predict(monkeypatch, (5.0, 0.2, (9, 1)))
    first = untrained(n_attempts=1).learn(N_UPDATES, log_interval=None)
    model = untrained()
    make_update, n_made = model._make_update, []

    def interrupted(total: int) -> None:
        n_made.append(1)
        if len(n_made) > N_UPDATES + 2:
            raise KeyboardInterrupt
        make_update(total)

    monkeypatch.setattr(model, "_make_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.learn(N_UPDATES, log_interval=None)
    np.testing.assert_array_equal(parameters(model), parameters(first))
    np.testing.assert_array_equal(model.bandwidths.state, first.bandwidths.state)
    assert model.num_timesteps == N_UPDATES
    assert model.progress == first.progress


def test_a_run_that_is_resumed_makes_the_same_attempts(monkeypatch, tmp_path):
    outcomes = (5.0, 0.2, (9, 1)), (8.0, 0.6, (3, 3))
    predict(monkeypatch, *outcomes)
    whole = untrained().learn(N_UPDATES, log_interval=None)
    dataset = balancing()
    part = untrained(dataset)
    part.learn(N_UPDATES, StopAfter(tmp_path / "run.ckpt", N_UPDATES // 2), log_interval=None)
    predict(monkeypatch, *outcomes)
    resumed = NOPG.resume(tmp_path / "run.ckpt", dataset, device="cpu")
    resumed.learn(N_UPDATES - resumed.num_timesteps, log_interval=None, reset_num_timesteps=False)
    np.testing.assert_array_equal(parameters(resumed), parameters(whole))
    assert resumed.attempts[0].state_bandwidth_factor == whole.attempts[0].state_bandwidth_factor == (0.4, 1.0)


def test_a_run_that_is_resumed_remembers_the_policies_on_the_way(monkeypatch, tmp_path):
    outcomes = [(5.0, 0.2, (9, 1)), (5.0, 0.2, (9, 1)), (6.0, 1.0, (0, 0)), (5.0, 0.2, (9, 1))]
    predict(monkeypatch, *outcomes)
    whole = untrained(keep="lasting").learn(N_UPDATES, log_interval=None)
    dataset = balancing()
    part = untrained(dataset, keep="lasting")
    part.learn(N_UPDATES, StopAfter(tmp_path / "run.ckpt", N_UPDATES // 2), log_interval=None)
    judged = predict(monkeypatch, *outcomes)
    resumed = NOPG.resume(tmp_path / "run.ckpt", dataset, device="cpu")
    resumed.learn(N_UPDATES - resumed.num_timesteps, log_interval=None, reset_num_timesteps=False)
    assert len(judged) == 4
    assert resumed.attempts[0].n_updates == whole.attempts[0].n_updates == 2
    np.testing.assert_array_equal(parameters(resumed), parameters(whole))


class StopAfter(NOPGCheckpointCallback):
    """As if the computer had failed after that update."""

    def _on_step(self) -> bool:
        super()._on_step()
        return self.num_timesteps < self.interval

    def _on_training_end(self) -> None:
        pass


@pytest.mark.parametrize("settings", [{}, {"keep": "best_heldout", "held_out": 0.3}])
def test_the_last_checkpoint_knows_of_the_attempts(settings, monkeypatch, tmp_path):
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (8.0, 0.6, (3, 3)))
    dataset = balancing()
    # Written after the last update too, before the attempts.
    callback = NOPGCheckpointCallback(tmp_path / "run.ckpt", 1)
    model = untrained(dataset, **settings).learn(N_UPDATES, callback, log_interval=None)
    resumed = NOPG.resume(tmp_path / "run.ckpt", dataset, device="cpu")
    np.testing.assert_array_equal(parameters(resumed), parameters(model))
    np.testing.assert_array_equal(resumed.bandwidths.state, model.bandwidths.state)
    judged = predict(monkeypatch)
    resumed.learn(0, log_interval=None, reset_num_timesteps=False)
    np.testing.assert_array_equal(parameters(resumed), parameters(model))
    resumed.learn(1, log_interval=None, reset_num_timesteps=False)
    assert not judged


def test_a_file_keeps_the_bandwidths_of_the_attempt(monkeypatch, tmp_path):
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (8.0, 0.6, (3, 3)))
    dataset = balancing()
    model = untrained(dataset).learn(N_UPDATES, log_interval=None)
    model.save(tmp_path / "model.zip")
    loaded = NOPG.load(tmp_path / "model.zip", device="cpu")
    loaded.set_dataset(dataset)
    np.testing.assert_allclose(loaded.bandwidths.state, model.bandwidths.state)
    assert loaded.attempts == model.attempts
    assert loaded.estimated_return() == pytest.approx(model.estimated_return(), rel=1e-6)


def test_the_log_tells_the_attempts_and_their_cost(monkeypatch, tmp_path):
    predict(monkeypatch, (5.0, 0.2, (9, 1)), (6.0, 0.1, (0, 1)))
    model = untrained()
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(N_UPDATES, lambda *_: model.logger.record("user/x", model.num_timesteps) or True, log_interval=4)
    model.logger.close()
    with open(tmp_path / "progress.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["time/total_timesteps"] for row in rows] == ["4", "6"]
    assert [row["attempts/lasting"] for row in rows] == ["", "0.2"]
    # What others wanted to be written is not lost.
    assert [row["user/x"] for row in rows] == ["4", "6"]
    assert float(rows[-1]["attempts/seconds"]) > 0.0
    # Of the policy that is kept, not of the last one trained.
    assert float(rows[-1]["train/estimated_return"]) == pytest.approx(model.estimated_return(), rel=1e-6)


@pytest.mark.parametrize("n_attempts", [0, 1.5, True, "two"])
def test_a_number_of_attempts_that_is_none_is_refused(n_attempts):
    with pytest.raises(InputError, match="n_attempts"):
        untrained(n_attempts=n_attempts)


def test_trajectories_of_a_model():
    model = untrained()
    found = model.trajectories(7)
    assert found.states.shape == (8, 20, 2)
    np.testing.assert_array_equal(found.states[0], model.start_states)
    np.testing.assert_allclose(found.actions[0], model.act(model.start_states))
    assert model.trajectories(3, [[0.1, 0.0]]).states.shape == (4, 1, 2)
    with pytest.raises(InputError, match="n_steps"):
        model.trajectories(0)
