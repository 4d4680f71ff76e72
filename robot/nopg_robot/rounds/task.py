"""What is to be learned on a rig: how a flight starts, what a step earns, and when the task is done."""

import runpy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nopg_robot.control.observation import NAMES
from nopg_robot.rounds.formula import check_formula

#: of observations (T + 1, 5), as x, sin θ, cos θ, ẋ, θ̇, and the control period: whether this flight did what was wanted
Goal = Callable[[np.ndarray, float], bool]

# Within 18° of upright.
UPRIGHT_COS = 0.95
# Steps that a formula of the reward is asked about.
_N_SAMPLES = 100
# Of the flight that a goal is asked about before there is one.
_PERIOD_S, _MOST_ASKED = 0.02, 10_000


def upright_at_the_end(hold_s: float) -> Goal:
    """
    :param hold_s: that the pole must have been upright when the flight ends
    """

    def is_met(observations: np.ndarray, period_s: float) -> bool:
        n_steps = round(hold_s / period_s)
        return len(observations) > n_steps and bool((observations[-n_steps - 1 :, 2] > UPRIGHT_COS).all())

    return is_met


@dataclass(frozen=True)
class LearningTask:
    """
    A file ``my_task.py`` that assigns one of these to ``TASK`` is a task of your own.

    :param name: for a person
    :param pole: how every flight starts, ``"upright"`` or ``"hanging"``
    :param reward: of a step, a formula over s, a and s2, where s is x, sin θ, cos θ, ẋ, θ̇. It is used exactly
    :param goal: whether a flight did what was wanted; asked of flights that lasted their whole time, recorded or predicted
    :param flight_s: how long a flight lasts
    :param first_s: seconds of random voltages before there is a policy
    :param fallen_s: as many again with a pole that is let go upright and falls, for a task that starts hanging and must know
        what is up there
    :param episode_s: longest episode of random voltages
    :param gamma: discount for each control period
    :param initial_state: where the task starts; None for where the recorded episodes did
    """

    name: str
    pole: str
    reward: str
    goal: Goal
    flight_s: float
    first_s: float
    fallen_s: float = 0.0
    episode_s: float = 5.0
    gamma: float = 0.99
    initial_state: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.pole not in ("upright", "hanging"):
            raise ValueError(f"pole: unknown {self.pole!r}; known are upright and hanging")
        for field in ("flight_s", "first_s", "episode_s"):
            if not 0 < getattr(self, field) < float("inf"):
                raise ValueError(f"{field}: must be a positive number of seconds, got {getattr(self, field)}")
        if not 0 <= self.fallen_s < float("inf"):
            raise ValueError(f"fallen_s: must be a number of seconds, got {self.fallen_s}")
        if self.fallen_s and self.initial_state is None:
            raise ValueError("fallen_s: episodes then start in two ways; say which is the task's, with initial_state")
        if not 0 < self.gamma < 1:
            raise ValueError(f"gamma: must be between 0 and 1, got {self.gamma}")
        if self.initial_state is not None and len(self.initial_state) != len(NAMES):
            raise ValueError(f"initial_state: must be x, sin θ, cos θ, ẋ, θ̇, got {self.initial_state}")
        _check_reward(self.reward)
        _check_goal(self.goal, self.flight_s)


def _check_reward(formula: str) -> None:
    """The learner will look at it after the random voltages, which is late."""
    try:
        n_finite = check_formula(formula, _samples())
    except ValueError as error:
        raise ValueError(f"reward: {error}") from error
    if n_finite < _N_SAMPLES:
        problem = (
            f"{formula!r} is not a finite number for {_N_SAMPLES - n_finite} of {_N_SAMPLES} states that might be recorded"
        )
        warnings.warn(f"reward: {problem}; the learner will refuse it if one of them is", stacklevel=4)


def _samples() -> dict[str, np.ndarray]:
    """Steps that a rig may record, by the names that a formula of the reward knows them by."""
    generator = np.random.default_rng(0)

    def states() -> np.ndarray:
        x, theta, x_dot, theta_dot = generator.uniform(-1.0, 1.0, (_N_SAMPLES, 4)).T * [[0.4], [np.pi], [2.0], [20.0]]
        return np.stack([x, np.sin(theta), np.cos(theta), x_dot, theta_dot], axis=1)

    return {"s": states(), "a": generator.uniform(-5.0, 5.0, (_N_SAMPLES, 1)), "s2": states()}


def _check_goal(goal: Goal, flight_s: float) -> None:
    """Asked once before anything flies: of a pole that stands still upright."""
    upright = np.tile([0.0, 0.0, 1.0, 0.0, 0.0], (min(round(flight_s / _PERIOD_S), _MOST_ASKED) + 1, 1))
    try:
        answer = goal(upright, _PERIOD_S)
    # It is somebody's program: anything may be wrong with it.
    except Exception as error:
        raise ValueError(f"goal: does not answer for {upright.shape} numbers ({type(error).__name__}: {error})") from error
    if not isinstance(answer, bool | np.bool_):
        raise ValueError(f"goal: must answer True or False, got {answer!r}")


TASKS = {
    "balance": LearningTask(
        name="balance",
        pole="upright",
        reward="s2[2]",
        goal=upright_at_the_end(9.0),
        flight_s=10.0,
        first_s=8.0,
    ),
    "swing_up": LearningTask(
        name="swing_up",
        pole="hanging",
        # Never negative: leaving the rail early must not be the best thing to do.
        reward="(1 + s2[2]) / 2",
        goal=upright_at_the_end(5.0),
        flight_s=12.0,
        first_s=20.0,
        # Slow near the top, where a pole that swings is fast.
        fallen_s=12.0,
        episode_s=6.0,
        initial_state=(0.0, 0.0, -1.0, 0.0, 0.0),
    ),
}


def load_task(name: str) -> LearningTask:
    """
    :param name: of a task that comes with the package, or path of a Python file, which is run
    :raises ValueError: if there is none
    """
    if name in TASKS:
        return TASKS[name]
    path = Path(name)
    if path.suffix != ".py" or not path.is_file():
        raise ValueError(f"task: unknown {name!r}; known are {', '.join(TASKS)}, or a Python file that assigns TASK")
    try:
        task = runpy.run_path(str(path)).get("TASK")
    # It is somebody's program: anything may be wrong with it, and its end is not ours.
    except (Exception, SystemExit) as error:
        raise ValueError(f"task: {path} does not run ({type(error).__name__}: {error})") from error
    if not isinstance(task, LearningTask):
        raise ValueError(f"task: {path} does not assign a nopg_robot.rounds.task.LearningTask to TASK")
    return task
