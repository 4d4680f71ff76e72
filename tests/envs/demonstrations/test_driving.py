"""A person drives: what keys mean, and what becomes of episodes."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from helpers.demonstrations import ONE, CountingEnv
from nopg_envs.demonstrations.driving import Command, Controls, Recorder, check_drivable, drive

TWO = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 5.0], np.float32))


class ScriptedScreen:
    """Says what a script says, one entry for each time it is asked: a key held, a command, or both."""

    def __init__(self, *script: str | Command):
        self.script, self.statuses = list(script), []

    def show(self, picture, status):
        self.statuses.append(status)

    def listen(self):
        entry, controls = self.script.pop(0), Controls()
        if isinstance(entry, Command):
            return controls, entry
        controls.press(entry)
        return controls, None


def test_keys_push_to_the_ends_and_cancel():
    controls = Controls()
    assert controls.action(ONE) == 0.0
    controls.press("right")
    assert controls.action(ONE) == 2.0
    controls.press("left")
    assert controls.action(ONE) == 0.0
    controls.release("right")
    assert controls.action(ONE) == -2.0
    assert controls.action(ONE).dtype == ONE.dtype
    controls.let_go()
    assert controls.action(ONE) == 0.0


def test_each_action_dimension_has_its_keys_and_its_own_range():
    controls = Controls()
    # Zero is outside of the range's inside: its end next to zero is rest.
    np.testing.assert_array_equal(controls.action(TWO), [0.0, 0.0])
    controls.press("up")
    controls.press("left")
    np.testing.assert_array_equal(controls.action(TWO), [-1.0, 5.0])
    controls.let_go()
    controls.press("down")
    controls.press("right")
    np.testing.assert_array_equal(controls.action(TWO), [3.0, 0.0])


def test_a_stick_pushes_by_degrees_outside_of_its_dead_zone():
    controls = Controls()
    controls.move_axis(0, 0.5)
    assert controls.action(TWO)[0] == pytest.approx(1.5)
    controls.move_axis(0, -0.5)
    assert controls.action(TWO)[0] == pytest.approx(-0.5)
    controls.move_axis(0, 0.05)
    assert controls.action(TWO)[0] == 0.0
    controls.move_axis(0, 0.7)
    controls.press("right")
    assert controls.action(ONE) == 2.0
    controls.move_axis(5, 1.0)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (ONE, spaces.Discrete(2), "one or two continuous"),
        (ONE, spaces.Box(-1.0, 1.0, (3,)), "one or two continuous"),
        (ONE, spaces.Box(-np.inf, 1.0, (1,)), "no ends"),
        (spaces.Box(0, 1, (4, 4, 3)), ONE, "no vector"),
    ],
)
def test_what_cannot_be_driven_is_refused(observation_space, action_space, message):
    env = CountingEnv()
    env.observation_space, env.action_space = observation_space, action_space
    with pytest.raises(ValueError, match=message):
        check_drivable(env)


def test_ends_and_time_limits_are_kept_apart():
    ended, cut = Recorder(1), Recorder(1)
    drive(CountingEnv(3), ScriptedScreen("right", "left", "right", Command.NEXT), ended)
    drive(gym.wrappers.TimeLimit(CountingEnv(), 3), ScriptedScreen("up", "left", "right", Command.NEXT), cut)
    for recorder, terminal in ((ended, True), (cut, False)):
        arrays = recorder.arrays()
        assert arrays["terminals"].tolist() == [False, False, terminal]
        assert arrays["timeouts"].tolist() == [False, False, not terminal]
        assert arrays["observations"][:, 0].tolist() == [0, 1, 2]
        assert arrays["next_observations"][:, 0].tolist() == [1, 2, 3]
    assert ended.arrays()["actions"][:, 0].tolist() == [2, -2, 2]
    assert cut.arrays()["rewards"].tolist() == [0, -2, 2]


def test_an_end_at_the_time_limit_is_an_end():
    recorder = Recorder(1)
    drive(gym.wrappers.TimeLimit(CountingEnv(2), 2), ScriptedScreen("up", "up", Command.NEXT), recorder)
    assert recorder.arrays()["terminals"].tolist() == [False, True]
    assert recorder.arrays()["timeouts"].tolist() == [False, False]


def test_a_discarded_episode_is_driven_again():
    screen = ScriptedScreen("right", "right", Command.DISCARD, "left", "left", Command.NEXT, "up", "up", Command.NEXT)
    env, recorder = CountingEnv(2), Recorder(2)
    drive(env, screen, recorder)
    assert recorder.returns == [-4.0, 0.0]
    assert recorder.arrays()["episode_ids"].tolist() == [0, 0, 1, 1]
    assert env.resets == 3
    assert [status.episode for status in screen.statuses] == [1] * 6 + [2] * 3


def test_an_attempt_can_be_thrown_away_or_kept_half_way():
    screen = ScriptedScreen("right", Command.DISCARD, "left", Command.NEXT, "up", "up", Command.NEXT)
    recorder = Recorder(2)
    drive(CountingEnv(2), screen, recorder)
    assert recorder.returns == [-2.0, 0.0]
    assert recorder.arrays()["timeouts"].tolist() == [True, False, False]
    assert recorder.arrays()["terminals"].tolist() == [False, False, True]


def test_stopping_loses_nothing():
    recorder = Recorder(5)
    drive(CountingEnv(2), ScriptedScreen("right", "right", Command.NEXT, "left", Command.QUIT), recorder)
    assert recorder.returns == [4.0, -2.0]
    assert recorder.arrays()["timeouts"].tolist() == [False, False, True]


def test_stopping_before_the_first_step_gives_no_data():
    recorder = Recorder(5)
    drive(CountingEnv(2), ScriptedScreen(Command.NEXT, Command.QUIT), recorder)
    assert recorder.n_kept == 0
    assert recorder.arrays() == {}


def test_the_person_sees_episode_step_and_return():
    screen = ScriptedScreen("right", "right", Command.NEXT)
    drive(CountingEnv(2), screen, Recorder(1))
    assert [(status.step, status.episode_return) for status in screen.statuses] == [(0, 0.0), (1, 2.0), (2, 4.0)]
    assert "Episode 1 of 1   step 1   return 2.00" in screen.statuses[1].lines()[0]
    assert "over" in screen.statuses[2].lines()[0]
