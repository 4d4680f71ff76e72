"""What a person drives, and a person who presses keys, without a screen."""

import os
from typing import ClassVar

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium as gym
import numpy as np
import pygame
import pytest
from gymnasium import spaces

from nopg_envs.demonstrations.window import DemonstrationWindow

ONE = spaces.Box(-2.0, 2.0, (1,))


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


def without_display(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
