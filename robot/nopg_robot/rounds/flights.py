"""The rig's half of a round: random voltages first, then flights with the policy that the learner left."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nopg_robot.control.policy import OnnxPolicy
from nopg_robot.control.safety import Reason
from nopg_robot.flight.log import LEARNING_PHASES, read_flight
from nopg_robot.rig.errors import RobotError
from nopg_robot.rig.file import RigFile
from nopg_robot.rounds.exploring import exploring, held_voltages
from nopg_robot.rounds.folder import LearningFolder, Round, observations_of
from nopg_robot.rounds.task import LearningTask
from nopg_robot.run.collection import CollectOptions, collect
from nopg_robot.run.deployment import RunOptions, check_policy, deploy
from nopg_robot.run.session import RunSummary

#: flights that must reach the goal, one after the other, for the task to be done
ENOUGH_FLIGHTS = 2
# What a policy brings about by itself: something to learn from. Anything else is about the rig or its operator.
_OF_THE_POLICY = frozenset(
    {
        Reason.ANGLE,
        Reason.RAIL,
        Reason.CART_SPEED,
        Reason.POLE_SPEED,
        Reason.OUTSIDE_DATA,
        Reason.POLICY_OUTPUT,
        Reason.POLICY_ERROR,
    }
)
# Far more than fit into the time that is asked for.
_MANY_EPISODES = 10_000
_LEAST_EPISODE_S = 0.5
# A pole that is let go has fallen, and swung through, by then.
_FALL_S = 2.0


class FlightStoppedError(RobotError):
    """
    A flight that says nothing of its policy: the operator stopped it, or the rig failed. What it recorded is kept, and the
    round is flown again.

    :param summary: of the flight
    """

    def __init__(self, summary: RunSummary):
        super().__init__(f"{summary.outcome} in phase '{summary.phase}': {summary.reason}")
        self.summary = summary


@dataclass(frozen=True)
class RigHalf:
    """
    :param rig: to fly on
    :param folder: to leave the flights in
    :param most_seconds: of rig time, all flights together
    :param around_flight: told what begins, the path of its log and how long it may last; gives display, stop and on_connect,
        within which a flight happens
    :param plant: ``"rig"``, ``"auto"`` or ``"simulated"``
    :param ended: told how each flight ended
    """

    rig: RigFile
    folder: LearningFolder
    most_seconds: float
    around_flight: Callable[[str, Path, float], Any]
    plant: str = "rig"
    ended: Callable[[RunSummary], None] = field(default=lambda summary: None)

    @property
    def task(self) -> LearningTask:
        return self.folder.task

    def random_voltages(self, one: Round) -> None:
        """
        Until there is enough to learn from, counting what an interrupted run has left.

        :param one: the round of the random voltages
        """
        self._record(one, "first", self.task.first_s, self.task.pole)
        self._record(one, "fallen", self.task.fallen_s, "upright")
        one.write_flown([])

    def _record(self, one: Round, kind: str, seconds: float, pole: str) -> None:
        rig = self.rig
        reach_m = rig.limits.rail_length_m / 2.0 - rig.limits.rail_margin_m
        # A period more or less.
        while (lacking_s := seconds - self.folder.rig_seconds_of(one, kind)) > 1.5 / rig.rates.control_hz:
            log = one.next_log(kind)
            generator = self._generator(one, log)
            options = CollectOptions(
                episodes=_MANY_EPISODES,
                # A period less than the seconds have: where a cycle was missed, the last one would take an episode more.
                transitions=max(1, round(lacking_s * rig.rates.control_hz) - 1),
                seconds=max(_LEAST_EPISODE_S, min(self.task.episode_s if kind == "first" else _FALL_S, lacking_s)),
                spread_m=0.3 * reach_m,
                pole=pole,
                plant=self.plant,
                seed=int(generator.integers(2**31)),
                may_fall=kind == "fallen",
            )
            behaviour = held_voltages(rig.limits.voltage_volt, reach_m, generator, to_and_fro=pole == "hanging")
            what = (
                f"Random voltages, the pole {'hanging' if pole == 'hanging' else 'let go upright'}, {lacking_s:.0f} s of them"
            )
            with self.around_flight(what, log, lacking_s) as shown:
                summary = collect(behaviour, rig, log, options, **shown)
                self.ended(summary)
            # A rig on which nothing can be recorded is not tried for ever.
            if _says_nothing(summary) or seconds - self.folder.rig_seconds_of(one, kind) >= lacking_s:
                raise FlightStoppedError(summary)

    def fly(self, one: Round, policy: OnnxPolicy) -> None:
        """
        A flight with the policy as it is. If that reaches the goal, another one; otherwise one with exploration on top. What
        was flown before an interruption counts.

        :param one: the round
        :param policy: to fly
        """
        policy.warm_up()
        check_policy(policy.metadata, self.rig)
        found = (self._outcome(path) for path in sorted(one.folder.glob("flight-*.npz")))
        succeeded = [outcome for outcome in found if outcome is not None]
        while len(succeeded) < ENOUGH_FLIGHTS and all(succeeded) and self.can_fly:
            succeeded += [outcome for outcome in [self._test(one, policy)] if outcome is not None]
        if not all(succeeded) and self.left_s > _LEAST_EPISODE_S and not list(one.folder.glob("explore-*.npz")):
            self._explore(one, policy)
        one.write_flown(succeeded)

    def _test(self, one: Round, policy: OnnxPolicy) -> bool | None:
        log = one.next_log("flight")
        options = RunOptions(self.task.flight_s, self.plant, pole=self.task.pole)
        with self.around_flight(f"Round {one.number}: the policy, {options.seconds:.0f} s", log, options.seconds) as shown:
            summary = deploy(policy, policy.metadata, self.rig, log, options, **shown)
            self.ended(summary)
        if _says_nothing(summary):
            raise FlightStoppedError(summary)
        return self._outcome(log)

    def _outcome(self, path: Path) -> bool | None:
        """Whether a flight reached the goal; None for one that says nothing of its policy."""
        log = read_flight(path)
        if log.summary is None or log.summary["phase"] != "run":
            return None
        if log.summary["outcome"] != "finished":
            return False if log.summary["fault"] in _OF_THE_POLICY else None
        # Of a task of one's own, it may be NumPy's.
        return bool(self.task.goal(observations_of(log), 1.0 / self.rig.rates.control_hz))

    def _explore(self, one: Round, policy: OnnxPolicy) -> None:
        log = one.next_log("explore")
        rig, generator = self.rig, self._generator(one, log)
        seconds = min(self.task.flight_s, self.left_s)
        options = CollectOptions(
            episodes=_MANY_EPISODES,
            transitions=max(1, round(seconds * rig.rates.control_hz)),
            seconds=max(seconds, _LEAST_EPISODE_S),
            pole=self.task.pole,
            plant=self.plant,
            seed=int(generator.integers(2**31)),
        )
        behaviour = exploring(policy, rig.limits.voltage_volt, generator)
        with self.around_flight(f"Round {one.number}: the policy and random voltages, {seconds:.0f} s", log, seconds) as shown:
            summary = collect(behaviour, rig, log, options, metadata=policy.metadata, **shown)
            self.ended(summary)
        if _says_nothing(summary):
            raise FlightStoppedError(summary)

    @property
    def left_s(self) -> float:
        """Of the rig time."""
        return self.most_seconds - self.folder.rig_seconds

    @property
    def can_fly(self) -> bool:
        """Whether there is time for a whole flight: one that is cut short says nothing."""
        return self.left_s >= self.task.flight_s

    def _generator(self, one: Round, log: Path) -> np.random.Generator:
        # Of its own for each log: what is flown again after an interruption is not the same.
        return np.random.default_rng([self.folder.about["seed"], one.number, *log.name.encode()])


def _says_nothing(summary: RunSummary) -> bool:
    """Whether a flight ended for a reason that is not what was flown."""
    if summary.outcome == "finished":
        return False
    return summary.phase not in LEARNING_PHASES or summary.fault is None or summary.fault.reason not in _OF_THE_POLICY
