"""The window that a person drives in, with injected events and no screen."""

import numpy as np
import pygame
import pytest
from gymnasium import spaces

from helpers.demonstrations import CountingEnv, InjectedWindow, key, without_display
from nopg_envs.demonstrations.driving import Recorder, drive
from nopg_envs.demonstrations.window import DemonstrationWindow


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
def pretended_display(monkeypatch):
    """No window at all; SDL says that it is X11's."""
    without_display(monkeypatch)
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
