"""
A program that drives by the arrow keys as a person might, and the demonstration sets that it recorded.

    python -m nopg_envs.demonstrations.scripted_operator mountain_car_scripted -o demonstration.npz

Nobody sat at the keyboard. The operator presses keys late, gets distracted and hits the wrong key now and then: its episodes
reach the goal, but not in the best way.
"""

import argparse
import sys
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs import command_line
from nopg_envs.atomic_files import write_atomically
from nopg_envs.demonstrations.driving import Command, Controls, Recorder, Status, drive

LABEL = "scripted sub-optimal operator, not a person: arrow keys, late, distracted and at times the wrong one"
N_EPISODES, SEED = 10, 0
# Of data set files, as sb3_nopg reads them.
_FORMAT_VERSION = 1


class ScriptedOperator:
    """
    Somebody who has understood that a mountain car must swing, and drives it by arrow keys: always push the way it rolls.

    It is a :class:`nopg_envs.demonstrations.driving.Screen` that looks at positions and velocities instead of pictures.

    :param seed: of its lapses
    :param delay: steps between seeing and acting; 6 steps are a fifth of a second
    :param distraction: chance at each step to let go of the keys for a while
    :param mistake: chance at each step to press the wrong key for a while
    """

    def __init__(self, seed: int, delay: int = 6, distraction: float = 0.01, mistake: float = 0.005):
        self._rng = np.random.default_rng(seed)
        self._distraction, self._mistake = distraction, mistake
        self._seen: deque[float] = deque([0.0], maxlen=delay + 1)
        self._status: Status | None = None
        # What it does instead of the right thing (0 nothing, -1 the opposite), and for how many steps more.
        self._lapse, self._lapse_left = 1, 0

    def show(self, picture: Any, status: Status) -> None:
        self._seen.append(float(picture[1]))
        self._status = status

    def listen(self) -> tuple[Controls, Command | None]:
        assert self._status is not None
        if self._status.ended:
            self._seen.clear()
            return Controls(), Command.NEXT
        controls, push = Controls(), self._push()
        if push != 0:
            controls.press("right" if push > 0 else "left")
        return controls, None

    def _push(self) -> int:
        self._lapse_left -= 1
        if self._lapse_left <= 0:
            draw = self._rng.uniform()
            self._lapse, self._lapse_left = 1, 0
            if draw < self._mistake:
                self._lapse, self._lapse_left = -1, int(self._rng.integers(3, 9))
            elif draw < self._mistake + self._distraction:
                self._lapse, self._lapse_left = 0, int(self._rng.integers(10, 31))
        velocity = self._seen[0]
        # At rest it begins to the right, where the goal is.
        return self._lapse * (1 if velocity >= 0.0 else -1)


class _StateAsPicture(gym.Wrapper):
    """A program needs no picture: it sees the observation itself."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._observation, info = self.env.reset(**arguments)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observation, reward, terminated, truncated, info

    def render(self) -> Any:
        return self._observation


def mountain_car_scripted() -> dict[str, np.ndarray]:
    """The arrays of the set of this name, recorded again."""
    env, recorder = _StateAsPicture(gym.make("MountainCarContinuous-v0")), Recorder(N_EPISODES)
    drive(env, ScriptedOperator(SEED), recorder, seed=SEED)
    arrays = recorder.arrays()
    for name in ("observation_space", "action_space"):
        space: Any = getattr(env, name)
        arrays[f"{name}_low"], arrays[f"{name}_high"] = space.low, space.high
    env.close()
    return {**arrays, "format_version": np.array(_FORMAT_VERSION), "recorded_by": np.array(LABEL)}


RECORDERS = {"mountain_car_scripted": mountain_car_scripted}


def main() -> int:
    """Entry point: record a set again."""
    parser = argparse.ArgumentParser(
        prog="python -m nopg_envs.demonstrations.scripted_operator", description="Record a set again."
    )
    parser.add_argument("name", choices=sorted(RECORDERS))
    parser.add_argument("-o", "--output", required=True, help="file to write, .npz")
    arguments = parser.parse_args()

    def command() -> None:
        command_line.check_outputs(arguments.output)
        arrays = RECORDERS[arguments.name]()
        write_atomically(arguments.output, lambda path: np.savez_compressed(path, **arrays))  # type: ignore[arg-type]

    return command_line.run(parser.prog, command)


if __name__ == "__main__":
    sys.exit(main())
