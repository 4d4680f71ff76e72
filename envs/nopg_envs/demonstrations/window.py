"""The window in which a person drives an environment: pictures, a line of numbers, arrow keys and gamepads, by pygame."""

import os
import sys
from collections import deque
from typing import Any

import numpy as np

from nopg_envs.demonstrations.driving import Command, Controls, Status
from nopg_envs.rendering import BACKGROUND, INK, _import_pygame

_BAR_HEIGHT, _MARGIN, _TEXT_SIZE, _MIN_WIDTH = 56, 10, 22, 720

# SDL draws where one of them tells it to.
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
_INVISIBLE = ("offscreen", "dummy")


def _check_display() -> None:
    """Without a display SDL opens a window that nobody sees, and the data set would be one that nobody drove."""
    if sys.platform.startswith("linux") and not any(os.environ.get(name) for name in _DISPLAYS):
        raise OSError(
            f"A window is needed to drive, and there is no display here (none of {', '.join(_DISPLAYS)} is set); "
            "work at a computer with a screen, or forward its display (ssh -X)"
        )


class DemonstrationWindow:
    """
    A :class:`nopg_envs.demonstrations.driving.Screen`. Use it as a context manager, so that the window goes away whatever
    happens.

    :param title: of the window
    :param fps: steps a second
    """

    def __init__(self, title: str, fps: float):
        if not 0 < fps <= 1000:
            raise ValueError(f"fps: {fps} is not a number of steps a second that a person can follow")
        self._pygame, self._title, self._fps = _import_pygame(), title, fps
        self._controls = Controls()
        self._asked_for: deque[Command] = deque()
        self._surface: Any = None
        pygame = self._pygame
        self._keys = {pygame.K_LEFT: "left", pygame.K_RIGHT: "right", pygame.K_DOWN: "down", pygame.K_UP: "up"}
        self._commands = {
            pygame.K_RETURN: Command.NEXT,
            pygame.K_KP_ENTER: Command.NEXT,
            pygame.K_d: Command.DISCARD,
            pygame.K_r: Command.DISCARD,
            pygame.K_ESCAPE: Command.QUIT,
        }
        # The two buttons that every gamepad has.
        self._buttons = {0: Command.NEXT, 1: Command.DISCARD}

    def __enter__(self) -> "DemonstrationWindow":
        pygame = self._pygame
        _check_display()
        try:
            pygame.display.init()
            self._surface = pygame.display.set_mode((_MIN_WIDTH, _BAR_HEIGHT))
        except pygame.error as error:
            raise OSError(f"A window is needed to drive, and none can be opened here ({error})") from error
        # What SDL falls back to where the display named does not answer.
        if not os.environ.get("SDL_VIDEODRIVER") and pygame.display.get_driver() in _INVISIBLE:
            pygame.quit()
            raise OSError("A window is needed to drive, and the display does not answer; check DISPLAY and WAYLAND_DISPLAY")
        pygame.display.set_caption(self._title)
        pygame.font.init()
        pygame.joystick.init()
        self._font, self._clock = pygame.font.Font(None, _TEXT_SIZE), pygame.time.Clock()
        # Filled by an event for each; only gamepads that somebody holds on to report what they do.
        self._gamepads: list[Any] = []
        return self

    def __exit__(self, *reason: object) -> None:
        self._pygame.quit()

    def show(self, picture: Any, status: Status) -> None:
        """
        :param picture: red, green and blue, (height, width, 3)
        :param status: shown below it
        """
        pygame = self._pygame
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise ValueError("env: it gives no pictures as arrays (render_mode='rgb_array'), so there is nothing to see")
        height, width = picture.shape[:2]
        size = (max(width, _MIN_WIDTH), height + _BAR_HEIGHT)
        if self._surface.get_size() != size:
            self._surface = pygame.display.set_mode(size)
        self._surface.fill(BACKGROUND)
        image = pygame.surfarray.make_surface(np.ascontiguousarray(picture.swapaxes(0, 1)))
        self._surface.blit(image, ((size[0] - width) // 2, 0))
        for number, line in enumerate(status.lines()):
            place = (_MARGIN, height + 6 + number * (_BAR_HEIGHT // 2))
            self._surface.blit(self._font.render(line, True, INK), place)
        pygame.display.flip()
        self._clock.tick(self._fps)

    def listen(self) -> tuple[Controls, Command | None]:
        """
        :return: controls as they are now, and the oldest thing asked for that was not told yet
        """
        for event in self._pygame.event.get():
            command = self._command(event)
            if command is None:
                self._move(event)
            else:
                self._asked_for.append(command)
        return self._controls, self._asked_for.popleft() if self._asked_for else None

    def _command(self, event: Any) -> Command | None:
        pygame = self._pygame
        if event.type == pygame.QUIT:
            return Command.QUIT
        if event.type == pygame.KEYDOWN:
            return self._commands.get(event.key)
        if event.type == pygame.JOYBUTTONDOWN:
            return self._buttons.get(event.button)
        return None

    def _move(self, event: Any) -> None:
        pygame, controls = self._pygame, self._controls
        if event.type == pygame.KEYDOWN and event.key in self._keys:
            controls.press(self._keys[event.key])
        elif event.type == pygame.KEYUP and event.key in self._keys:
            controls.release(self._keys[event.key])
        elif event.type == pygame.JOYAXISMOTION:
            # A stick pulled towards the person counts as positive for pygame, and as down for us.
            controls.move_axis(event.axis, -event.value if event.axis == 1 else event.value)
        elif event.type == pygame.JOYHATMOTION:
            for dimension, position in enumerate(event.value):
                controls.move_axis(dimension, position)
        elif event.type == pygame.JOYDEVICEADDED:
            self._gamepads.append(pygame.joystick.Joystick(event.device_index))
        elif event.type == pygame.WINDOWFOCUSLOST:
            controls.let_go()
