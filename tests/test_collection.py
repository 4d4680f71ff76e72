"""Training data from the simulated rig, in simulated time."""

import numpy as np
import pytest

from nopg_robot.collect import behaviour_named, with_angle_limit
from nopg_robot.collection import CollectOptions, collect
from nopg_robot.flight_log import read_flight
from nopg_robot.stop import StopRequest
from rigs import balance, fast_rig
from sb3_nopg import TransitionDataset


def gather(tmp_path, behaviour=None, rig=None, stop=None, **options):
    rig = rig or fast_rig()
    path = tmp_path / "collected.npz"
    episodes = []
    summary = collect(
        behaviour or behaviour_named("uniform", rig, seed=0),
        rig,
        path,
        CollectOptions(**options),
        stop=stop,
        on_episode=lambda number, transitions: episodes.append((number, transitions)),
    )
    return summary, read_flight(path), episodes


def test_episodes_of_a_random_behaviour_become_a_data_set(tmp_path):
    summary, log, episodes = gather(tmp_path, episodes=3, spread_m=0.2, seed=1)
    assert summary.outcome == "finished"
    assert [number for number, _ in episodes] == [1, 2, 3]
    data = TransitionDataset(**log.transitions())
    assert len(data) == pytest.approx(episodes[-1][1], abs=3)
    # Uniform volts let the pole fall: every episode ends by itself.
    assert data.terminals.sum() == 3
    starts = data.observations[data.episode_starts]
    assert len(starts) == 3
    assert np.abs(starts[:, 1]).max() < 0.06
    assert np.abs(starts[:, 0]).max() <= 0.22
    assert np.ptp(starts[:, 0]) > 0.02
    assert np.abs(data.actions).max() <= 5.0
    # What was applied: the slew limit lets a jump of 10 V take three of the ten cycles.
    assert np.abs(data.actions).max() > 3.0


def test_enough_transitions_end_it(tmp_path):
    summary, _, episodes = gather(tmp_path, episodes=100, transitions=20)
    assert summary.outcome == "finished"
    assert episodes[-1][1] >= 20
    assert episodes[-2][1] < 20 if len(episodes) > 1 else True


def test_a_policy_that_balances_ends_by_its_time_limit(tmp_path):
    summary, log, _ = gather(tmp_path, behaviour=balance, episodes=2, seconds=1.0)
    data = TransitionDataset(**log.transitions())
    assert summary.outcome == "finished"
    assert len(data) == 100
    assert not data.terminals.any()
    assert data.timeouts.sum() == 2


def test_what_was_recorded_stays_when_the_operator_stops(tmp_path):
    stop = StopRequest()
    calls = []

    def policy(observation):
        calls.append(1)
        if len(calls) == 80:
            stop.request("Enter key")
        return balance(observation)

    summary, log, _ = gather(tmp_path, behaviour=policy, episodes=5, seconds=1.0, stop=stop)
    assert summary.fault.reason.value == "operator"
    assert len(TransitionDataset(**log.transitions())) >= 78


def test_a_lower_angle_limit(tmp_path):
    rig = with_angle_limit(fast_rig(), 0.1)
    _, log, _ = gather(tmp_path, rig=rig, episodes=2)
    collected = log.phase == "collect"
    assert 0.1 < np.abs(log.theta[collected]).max() < 0.13
    with pytest.raises(ValueError, match="angle_limit"):
        with_angle_limit(fast_rig(), 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("episodes", 0),
        ("transitions", 0),
        ("seconds", 0.0),
        ("seconds", 1e9),
        ("spread_m", 0.4),
        ("spread_m", -0.1),
        ("pole", "x"),
    ],
)
def test_bad_options_name_the_field(tmp_path, field, value):
    with pytest.raises(ValueError, match=field):
        gather(tmp_path, **{field: value})
    assert not list(tmp_path.iterdir())


def test_an_unknown_behaviour():
    with pytest.raises(ValueError, match="behaviour"):
        behaviour_named("random", fast_rig(), 0)
