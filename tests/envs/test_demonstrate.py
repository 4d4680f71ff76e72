"""A person drives: what keys mean, what becomes of episodes, and the window, with injected events and no screen."""

import os
from typing import ClassVar

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import sb3_nopg.commands.demonstrate as command
from nopg_envs import demonstrations
from nopg_envs.demonstrations import scripted_operator
from nopg_envs.demonstrations.driving import Command, Controls, Recorder, check_drivable, drive
from nopg_envs.demonstrations.window import DemonstrationWindow
from sb3_nopg import TransitionDataset
from sb3_nopg.commands.main import app

ONE = spaces.Box(-2.0, 2.0, (1,))
TWO = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 5.0], np.float32))


class CountingEnv(gym.Env):
    """Counts its steps; the task ends at ``n_steps``, or never."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = ONE

    def __init__(self, n_steps: float = np.inf):
        self.n_steps, self.resets = n_steps, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        # The same memory for all observations, as some environments have it.
        self.state = np.zeros(1, np.float32)
        return self.state, {}

    def step(self, action):
        self.state += 1
        return self.state, float(action[0]), bool(self.state[0] >= self.n_steps), False, {}

    def render(self):
        return np.zeros((40, 60, 3), np.uint8)


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


class InjectedWindow(DemonstrationWindow):
    """The real window, with events injected as if a person had caused them: those listed for each time it listens."""

    script: ClassVar[list[list[pygame.event.Event]]] = []

    def __init__(self, title, fps):
        super().__init__(title, 1000)
        self.shown = []

    def show(self, picture, status):
        super().show(picture, status)
        self.shown.append(pygame.surfarray.array3d(pygame.display.get_surface()).copy())

    def listen(self):
        # What SDL itself reports of a new window, such as its focus, is not the person's doing.
        pygame.event.clear()
        for event in self.script.pop(0) if self.script else [pygame.event.Event(pygame.QUIT)]:
            pygame.event.post(event)
        return super().listen()


def key(name: int, down: bool = True) -> pygame.event.Event:
    return pygame.event.Event(pygame.KEYDOWN if down else pygame.KEYUP, key=name)


def driven(script, env, n_episodes=1) -> Recorder:
    recorder = Recorder(n_episodes)
    with InjectedWindow("test", 30) as window:
        window.script = script
        drive(env, window, recorder)
    return recorder


def test_arrow_keys_count_while_they_are_held():
    script = [[key(pygame.K_RIGHT)], [], [key(pygame.K_RIGHT, False)], [key(pygame.K_LEFT)], [key(pygame.K_RETURN)]]
    assert driven(script, CountingEnv()).arrays()["actions"][:, 0].tolist() == [2, 2, 0, -2]


def test_a_window_that_loses_focus_lets_go():
    script = [[key(pygame.K_RIGHT)], [pygame.event.Event(pygame.WINDOWFOCUSLOST)], [key(pygame.K_ESCAPE)]]
    assert driven(script, CountingEnv()).arrays()["actions"][:, 0].tolist() == [2, 0]


def test_a_gamepad_drives_and_commands():
    def axis(number, value):
        return pygame.event.Event(pygame.JOYAXISMOTION, axis=number, value=value)

    env = CountingEnv()
    env.action_space = spaces.Box(-1.0, 1.0, (2,))
    button = pygame.event.Event(pygame.JOYBUTTONDOWN, button=1)
    hat = pygame.event.Event(pygame.JOYHATMOTION, value=(-1, 1))
    script = [
        [axis(0, 1.0)],
        [button],
        [axis(0, 0.5), axis(1, 1.0)],
        [hat],
        [pygame.event.Event(pygame.JOYBUTTONDOWN, button=0)],
    ]
    # A stick pulled back is down; a hat's second number is up.
    assert driven(script, env).arrays()["actions"].tolist() == [[0.5, -1.0], [-1.0, 1.0]]


def test_two_commands_at_once_are_both_heard():
    script = [[key(pygame.K_RIGHT)], [key(pygame.K_d), key(pygame.K_ESCAPE)]]
    assert driven(script, CountingEnv()).n_kept == 0


def test_the_window_shows_the_picture_and_the_numbers():
    with DemonstrationWindow("test", 1000) as window:
        picture = np.full((100, 800, 3), (10, 20, 30), np.uint8)
        window.show(picture, Recorder(3).status())
        first = pygame.surfarray.array3d(pygame.display.get_surface())
        assert first.shape[:2] == (800, 156)
        assert (first[:, :100] == (10, 20, 30)).all()
        longer = Recorder(3)
        longer.add([0.0], [0.0], 5.0, [0.0], terminated=False)
        window.show(picture, longer.status())
        assert (pygame.surfarray.array3d(pygame.display.get_surface())[:, 100:] != first[:, 100:]).any()
        with pytest.raises(ValueError, match="pictures"):
            window.show(None, longer.status())


@pytest.fixture
def injected(monkeypatch):
    monkeypatch.setattr(command, "DemonstrationWindow", InjectedWindow)
    monkeypatch.setattr(InjectedWindow, "script", [])
    return InjectedWindow.script


def demonstrate(*arguments: str):
    return CliRunner().invoke(app, ["demonstrate", "--env", "MountainCarContinuous-v0", *arguments])


@pytest.mark.slow
def test_the_command_line_gives_a_data_set(injected, tmp_path):
    injected += [[key(pygame.K_RIGHT)], [], [key(pygame.K_RETURN)], [key(pygame.K_RIGHT, False)], [], [key(pygame.K_d)]]
    injected += [[key(pygame.K_LEFT)], [], [], [key(pygame.K_ESCAPE)]]
    output = tmp_path / "new" / "demo.npz"
    result = demonstrate("--episodes", "3", "--seed", "4", "-o", str(output))
    assert result.exit_code == 0, result.output
    data = TransitionDataset.load(output)
    assert data.actions[:, 0].tolist() == [1, 1, -1, -1, -1]
    assert data.episode_ids.tolist() == [0, 0, 1, 1, 1]
    assert data.timeouts.tolist() == [False, True, False, False, True]
    assert not data.terminals.any()
    assert data.action_space == spaces.Box(-1.0, 1.0, (1,))
    first, _ = gym.make("MountainCarContinuous-v0").reset(seed=4)
    np.testing.assert_array_equal(data.observations[0], first)


@pytest.fixture
def no_display(monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")


def test_without_a_display_nobody_drives(injected, no_display, tmp_path):
    injected += [[], [], [key(pygame.K_RETURN)]]
    result = demonstrate("-o", str(tmp_path / "demo.npz"))
    assert result.exit_code == 2
    assert "no display" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def pretended_display(no_display, monkeypatch):
    """No window at all; SDL says that it is X11's."""
    monkeypatch.setattr(pygame.display, "init", lambda: None)
    monkeypatch.setattr(pygame.display, "get_driver", lambda: "x11")
    monkeypatch.setattr(pygame.display, "set_mode", lambda size: pygame.Surface(size))
    monkeypatch.setattr(pygame.display, "set_caption", lambda title: None)
    monkeypatch.setattr(pygame.joystick, "init", lambda: None)


@pytest.mark.parametrize("name", ["DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"])
def test_any_display_will_do(pretended_display, monkeypatch, name):
    monkeypatch.setenv(name, "dummy")
    with DemonstrationWindow("test", 30) as window:
        assert window is not None


@pytest.mark.parametrize("driver", ["offscreen", "dummy"])
def test_a_display_that_does_not_answer_is_none(pretended_display, monkeypatch, driver):
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.setattr(pygame.display, "get_driver", lambda: driver)
    with pytest.raises(OSError, match="does not answer"), DemonstrationWindow("test", 30):
        pass


@pytest.mark.parametrize("name", ["demo.txt", "demo.npy"])
def test_what_cannot_be_written_is_refused_before_anybody_drives(injected, tmp_path, name):
    injected += [[], [], [key(pygame.K_RETURN)]]
    result = demonstrate("-o", str(tmp_path / name))
    assert result.exit_code == 2
    assert name in result.stderr
    assert len(injected) == 3


def test_a_recording_is_never_overwritten(injected, tmp_path):
    output = tmp_path / "demo.npz"
    output.write_text("precious")
    result = demonstrate("-o", str(output))
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert output.read_text() == "precious"
    # The ending is added, so this is the same file.
    assert "exists already" in demonstrate("-o", str(tmp_path / "demo")).stderr


def test_nothing_kept_is_no_success(injected, tmp_path):
    injected += [[key(pygame.K_ESCAPE)]]
    result = demonstrate("-o", str(tmp_path / "demo.npz"))
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_what_was_driven_survives_a_failure(injected, tmp_path, monkeypatch):
    injected += [[], [], [key(pygame.K_RETURN)], []]
    steps = gym.envs.classic_control.Continuous_MountainCarEnv.step
    calls = []

    def failing(self, action):
        calls.append(action)
        if len(calls) == 3:
            raise OSError("the cable came off")
        return steps(self, action)

    monkeypatch.setattr(gym.envs.classic_control.Continuous_MountainCarEnv, "step", failing)
    result = demonstrate("-o", str(tmp_path / "demo.npz"))
    assert result.exit_code == 2
    assert "cable" in result.stderr
    assert len(TransitionDataset.load(tmp_path / "demo.npz")) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPole-v1"], "continuous"),
        (["--env", "Nix-v0"], "cannot be made"),
        (["--env", "MountainCarContinuous-v0", "--fps", "0"], "--fps"),
    ],
)
def test_what_cannot_be_driven_is_one_line(injected, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demonstrate", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_shipped_set_is_what_the_scripted_operator_records():
    path = demonstrations.demonstration_file("mountain_car_scripted")
    again = scripted_operator.mountain_car_scripted()
    with np.load(path) as shipped:
        assert set(shipped.files) == set(again)
        assert "not a person" in str(shipped["recorded_by"])
        for name in set(again) - {"recorded_by"}:
            np.testing.assert_allclose(shipped[name], again[name], atol=1e-5, err_msg=name)


def test_the_shipped_set_reaches_the_goal_but_not_in_the_best_way():
    data = TransitionDataset.load(demonstrations.demonstration_file("mountain_car_scripted"))
    assert int(data.terminals.sum()) == len(data.episode_starts) == 10
    assert set(np.unique(data.actions)) == {-1.0, 0.0, 1.0}
    returns = [data.rewards[data.episode_ids == number].sum() for number in range(10)]
    assert 80.0 < min(returns) < max(returns) < 95.0
    # A third of the time it does not push the way the car rolls: late, distracted, or wrong.
    pushes_along = data.actions[:, 0] == np.where(data.observations[:, 1] >= 0, 1.0, -1.0)
    assert 0.5 < pushes_along.mean() < 0.8


def test_an_unknown_set_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="mountain_car_scripted"):
        demonstrations.demonstration_file("nix")
