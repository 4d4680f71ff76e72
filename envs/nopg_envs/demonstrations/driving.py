"""
A person drives an environment and what they do becomes data: controls, episodes and the loop, without any window.

The window is a :class:`Screen`; :mod:`nopg_envs.demonstrations.window` has the one that people see.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from nopg_envs.collect import _as_applied

# The stick of a gamepad never rests at zero exactly.
DEAD_ZONE = 0.1
# Keys that push one way and the other, a pair for each action dimension.
KEY_PAIRS = (("left", "right"), ("down", "up"))
MANUAL = "arrow keys or stick: drive | Enter: end here, keep | D or R: discard, again | Esc: stop"


class Command(Enum):
    """What a person can ask for besides driving."""

    NEXT = "next"
    DISCARD = "discard"
    QUIT = "quit"


class Controls:
    """The arrow keys held down and the gamepad's stick, from the events that report their changes."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._axes = [0.0] * len(KEY_PAIRS)

    def press(self, key: str) -> None:
        """:param key: left, right, down or up; others do nothing"""
        self._held.add(key)

    def release(self, key: str) -> None:
        self._held.discard(key)

    def move_axis(self, dimension: int, position: float) -> None:
        """
        :param dimension: 0 for left and right, 1 for down and up; further ones do nothing
        :param position: from -1 (left, down) to 1
        """
        if dimension < len(self._axes):
            self._axes[dimension] = 0.0 if abs(position) < DEAD_ZONE else min(max(position, -1.0), 1.0)

    def let_go(self) -> None:
        """Everything: a window that is no longer in front misses the keys' release."""
        self._held.clear()
        self._axes = [0.0] * len(KEY_PAIRS)

    def deflection(self, dimension: int) -> float:
        """
        :param dimension: of the action
        :return: from -1 to 1; opposite keys cancel, and keys and stick add up to no more than full
        """
        negative, positive = KEY_PAIRS[dimension]
        total = (positive in self._held) - (negative in self._held) + self._axes[dimension]
        return min(max(total, -1.0), 1.0)

    def action(self, space: spaces.Box) -> np.ndarray:
        """
        :param space: checked by :func:`check_drivable`
        :return: full deflection is an end of the range; nothing held is zero, or the end next to it
        """
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        rest = np.clip(0.0, low, high)
        share = np.array([self.deflection(dimension) for dimension in range(space.shape[0])])
        return (rest + np.where(share > 0, share * (high - rest), share * (rest - low))).astype(space.dtype)


def check_drivable(env: gym.Env) -> spaces.Box:
    """
    :param env: to be driven by hand
    :return: its action space
    :raises ValueError: unless the arrow keys can drive it and a data set can hold it
    """
    action_space = env.action_space
    if not isinstance(env.observation_space, spaces.Box) or len(env.observation_space.shape) != 1:
        raise ValueError(f"env: {env.observation_space} is no vector of numbers; this is for environments with few variables")
    if not isinstance(action_space, spaces.Box) or len(action_space.shape) != 1 or action_space.shape[0] > len(KEY_PAIRS):
        raise ValueError(f"env: {action_space} is not one or two continuous actions, which is what arrow keys can drive")
    if not action_space.is_bounded():
        raise ValueError(f"env: {action_space} has no ends, so there is no full push; limit the actions first")
    return action_space


@dataclass(frozen=True)
class Status:
    """
    What the person sees beside the picture.

    :param episode: the one being driven, from 1
    :param n_episodes: wanted
    :param step: of the episode
    :param episode_return: so far, undiscounted
    :param ended: "" while driving; how the episode ended, while the person is asked what to do with it
    """

    episode: int
    n_episodes: int
    step: int
    episode_return: float
    ended: str = ""

    def lines(self) -> list[str]:
        first = f"Episode {self.episode} of {self.n_episodes}   step {self.step}   return {self.episode_return:.2f}"
        if not self.ended:
            return [first, MANUAL]
        return [f"{first}   {self.ended}", "Enter: keep, go on | D or R: discard, again | Esc: keep and stop"]


class Screen(Protocol):
    """What shows the environment and hears the person."""

    def show(self, picture: Any, status: Status) -> None:
        """Show it and wait for the time of the next step."""

    def listen(self) -> tuple[Controls, Command | None]:
        """The controls as they are now, and the oldest thing asked for that was not told yet."""


class Recorder:
    """
    Episodes driven so far: those kept, and the one under way.

    :param n_episodes: wanted
    """

    def __init__(self, n_episodes: int):
        if n_episodes < 1:
            raise ValueError(f"n_episodes: {n_episodes} is not a positive whole number")
        self.n_episodes = n_episodes
        self._kept: list[list[tuple[Any, ...]]] = []
        self._running: list[tuple[Any, ...]] = []

    @property
    def n_kept(self) -> int:
        return len(self._kept)

    @property
    def returns(self) -> list[float]:
        """Of the episodes kept."""
        return [sum(row[2] for row in episode) for episode in self._kept]

    @property
    def done(self) -> bool:
        return self.n_kept == self.n_episodes

    def status(self, ended: str = "") -> Status:
        """:param ended: how the episode ended, "" if it goes on"""
        total = sum(row[2] for row in self._running)
        return Status(min(self.n_kept + 1, self.n_episodes), self.n_episodes, len(self._running), total, ended)

    def add(self, observation: Any, action: Any, reward: float, next_observation: Any, *, terminated: bool) -> None:
        """One step of the episode under way."""
        row = (np.array(observation), np.array(action), float(reward), np.array(next_observation))
        self._running.append((*row, terminated, False))

    def discard(self) -> None:
        """Forget the episode under way."""
        self._running = []

    def keep(self) -> None:
        """Keep the episode under way. Unless the task ended, it was cut here: by a time limit, or by the person."""
        if self._running:
            *row, terminated, _ = self._running[-1]
            self._running[-1] = (*row, terminated, not terminated)
            self._kept.append(self._running)
        self._running = []

    def arrays(self) -> dict[str, np.ndarray]:
        """
        :return: episodes kept, by name as ``TransitionDataset(**arrays)`` takes them; empty if there is none
        """
        rows = [(*row, number) for number, episode in enumerate(self._kept) for row in episode]
        names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "episode_ids")
        return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=False)}


def drive(env: gym.Env, screen: Screen, recorder: Recorder, seed: int | None = None) -> None:
    """
    Let a person drive until the episodes wanted are kept, or the person stops. What was driven when they stop is kept.

    :param env: with pictures (``render_mode="rgb_array"``), see :func:`check_drivable`
    :param screen: shows and hears
    :param recorder: gets the episodes, also when something fails later on
    :param seed: of the first start
    """
    action_space = check_drivable(env)
    observation, _ = env.reset(seed=seed)
    while not recorder.done:
        command, ended = _episode(env, screen, recorder, observation, action_space)
        if command is None:
            command = _verdict(env, screen, recorder, ended)
        if command is Command.DISCARD:
            recorder.discard()
        else:
            recorder.keep()
        if command is Command.QUIT:
            return
        if not recorder.done:
            observation, _ = env.reset()


def _episode(
    env: gym.Env, screen: Screen, recorder: Recorder, observation: Any, action_space: spaces.Box
) -> tuple[Command | None, str]:
    """
    Drive to the end of an episode, or to the first command.

    :return: the command if there was one, and how the episode ended
    """
    while True:
        screen.show(env.render(), recorder.status())
        controls, command = screen.listen()
        if command is not None:
            return command, ""
        # Copied, because environments may write every observation into the same memory.
        before, action = np.array(observation), controls.action(action_space)
        observation, reward, terminated, truncated, info = env.step(action)
        applied = _as_applied(action, info)
        recorder.add(before, applied, float(reward), observation, terminated=bool(terminated))
        if terminated:
            return None, "It is over."
        if truncated:
            return None, "Time is up."


def _verdict(env: gym.Env, screen: Screen, recorder: Recorder, ended: str) -> Command:
    """Nothing moves until the person has said what to do with the episode."""
    while True:
        screen.show(env.render(), recorder.status(ended))
        _, command = screen.listen()
        if command is not None:
            return command
