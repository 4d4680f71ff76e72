"""A rig in use: its phases in order, a policy's run, and what there is to say afterwards."""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any

import numpy as np

from nopg_robot.control.estimator import State
from nopg_robot.control.observation import DataRange
from nopg_robot.control.safety import Checks, Intervention, Reason
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import Rig
from nopg_robot.rig.errors import SWITCH_OFF, PlantError, RecorderError
from nopg_robot.run import phases, rig_watchdog
from nopg_robot.run.loop import TERMINAL_REASONS, ControlLoop, SafetyStop, ShowsSnapshots
from nopg_robot.run.stop import StopRequest

_log = logging.getLogger(__name__)

#: volts for an observation
Policy = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class RunSummary:
    """
    :param outcome: ``"finished"``, ``"stopped"`` by the supervisor or the operator, or ``"failed"`` before the run
    :param reason: what ended it, for a person
    :param fault: what the supervisor latched, if it did
    :param phase: in which it ended
    :param seconds: that the policy ran
    :param mean_reward: mean of cos θ while it ran
    :param span_m: measured between the stops
    :param timing: of the loop
    :param interventions: how often each limit acted
    :param simulated: nothing real moved
    :param latency_s: from a push in the self-test to the counts that it made
    """

    outcome: str
    reason: str
    fault: Intervention | None
    phase: str
    seconds: float
    mean_reward: float
    span_m: float
    timing: Mapping[str, float | int] = field(default_factory=dict)
    interventions: Mapping[str, int] = field(default_factory=dict)
    simulated: bool = False
    latency_s: float = math.nan

    def as_dict(self) -> dict[str, Any]:
        """For the flight log: plain numbers and text, NaN as None."""
        entries = dict(self.__dict__)
        entries["fault"] = self.fault.reason.value if self.fault else None
        entries["timing"], entries["interventions"] = dict(self.timing), dict(self.interventions)
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in entries.items()
        }


class Session:
    """
    A rig in use. ``with`` it: at the end the motor is without voltage and the rig closed, whatever happens.

    :param rig: open
    :param recorder: of the flight log
    :param display: shows what happens
    :param stop: the operator's
    """

    def __init__(self, rig: Rig, recorder: FlightRecorder, display: ShowsSnapshots, stop: StopRequest):
        self.rig, self.file, self.recorder = rig, rig.file, recorder
        self.loop = ControlLoop(rig.plant, rig.file, recorder, display, stop)
        self.loop.on_hang = self._abandon
        self._stop = stop
        self.span_m = self.latency_s = math.nan
        #: of the running episode, cos θ after each action
        self.rewards: list[float] = []
        #: why the rig could not be closed properly, and the motor may still be on
        self.closing_problem: str | None = None

    def __enter__(self) -> "Session":
        try:
            self.loop.__enter__()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        try:
            self.loop.__exit__(kind, error, traceback)
        finally:
            self._close()

    def _close(self) -> None:
        # Until it is done: a second Ctrl-C may come in the middle of it.
        self.closing_problem = "closing the rig was interrupted"
        try:
            self.rig.plant.close()
        except PlantError as problem:
            # What the session did is not lost over how it ended.
            self.closing_problem = str(problem)
        except Exception as problem:
            self.closing_problem = f"{type(problem).__name__}: {problem}"
            raise
        else:
            self.closing_problem = None

    def _abandon(self, fault: Intervention) -> None:
        """In the guard's thread: the loop waits for something that never comes, and hears no signal."""
        if self._stop.end_program is None:
            _log.error("%s", fault.message)
            return
        outcome = "stopped" if self.loop.phase in ("run", "collect") else "failed"
        summary = summarize(self, outcome, fault.message, phase=self.loop.phase, fault=fault, rewards=list(self.rewards))
        with contextlib.suppress(RecorderError):
            # Its journal can be read, and the program must end either way.
            self.recorder.close(summary.as_dict())
        self._stop.end_program(summary)

    def prepare(self) -> None:
        """Watchdog, pole hanging, self-test, both stops."""
        watchdog_was_seen = rig_watchdog.ask_the_rig(self.loop)
        phases.wait_for_hanging_pole(self.loop)
        self.latency_s = phases.self_test(self.loop)
        if not watchdog_was_seen:
            rig_watchdog.watch_the_cart(self.loop)
        self.span_m = phases.home(self.loop)

    def start(self, pole: str = "upright", at_m: float = 0.0) -> None:
        """
        :param pole: ``"upright"``: wait until somebody holds it so; ``"hanging"``: wait until it hangs still
        :param at_m: where the cart is to stand, from the middle of the rail
        """
        phases.place_cart(self.loop, at_m)
        if pole == "upright":
            phases.wait_for_upright_pole(self.loop)
        else:
            phases.wait_for_hanging_pole(self.loop)

    def settle(self, seconds: float = 0.5) -> None:
        """Zero volts for a while after a run, for the log: the cart rolls out."""
        self.loop.begin("stop", "Stopping.", Checks(rail=False, angle=False, frozen=False, voltage_volt=0.0))
        with contextlib.suppress(SafetyStop):
            # What matters has been said: this is about the log, and the motor is off either way.
            self.loop.drive(lambda state: 0.0, lambda state, time_s: time_s >= seconds, seconds)


@dataclass(frozen=True)
class Episode:
    """
    :param rewards: cos θ after each action
    :param fault: what ended it before its time
    :param seconds: that it took
    """

    rewards: list[float]
    fault: Intervention | None
    seconds: float

    @property
    def is_terminal(self) -> bool:
        """Whether the system itself ended it: the pole fell, or the cart came to the end of the rail."""
        return self.fault is not None and self.fault.reason in TERMINAL_REASONS


def run_episode(
    session: Session,
    policy: Policy,
    observe: Callable[[State], np.ndarray],
    *,
    seconds: float,
    data_range: DataRange | None = None,
) -> Episode:
    """
    Let a policy act for so long, or until something ends it, in the phase that the loop has begun.

    :param session: prepared
    :param policy: volts for an observation
    :param observe: observation of a state
    :param seconds: longest time
    :param data_range: of the policy's training data
    """
    loop = session.loop
    rewards = session.rewards = []
    fault = None
    # The first cycle is yet to come.
    begin_s = loop.clock.now_s() + session.file.sample_s
    # By the clock: late cycles are left out, and counting actions would make a run of a late computer longer.
    last_s = begin_s + seconds - 0.5 / session.file.rates.control_hz
    try:
        while True:
            rewards.append(math.cos(loop.act(policy, observe, data_range).theta))
            if loop.clock.now_s() >= last_s:
                break
        # The state in which the next action would be due belongs to the last transition.
        loop.cycle(lambda state: 0.0, acts=True)
    except SafetyStop as stop:
        fault = stop.fault
    episode = Episode(rewards, fault, loop.clock.now_s() - begin_s)
    if episode.is_terminal:
        # The state that ended it belongs to the last action, which had no full period.
        rewards.append(math.cos(loop.estimator.state.theta))
    with contextlib.suppress(RecorderError):
        # A recorder that has failed is what ended the episode, and the summary says so.
        session.recorder.end_episode(loop.episode, fault.reason.value if fault else "time limit", episode.is_terminal)
    return episode


def summarize(
    session: Session,
    outcome: str,
    reason: str,
    *,
    phase: str,
    fault: Intervention | None = None,
    rewards: list[float] | None = None,
    seconds: float = 0.0,
) -> RunSummary:
    """What there is to say of a session, however far it came."""
    return RunSummary(
        outcome=outcome,
        reason=reason,
        fault=fault,
        phase=phase,
        seconds=seconds,
        mean_reward=float(np.mean(rewards)) if rewards else math.nan,
        span_m=session.span_m,
        timing=session.loop.timing.summary(),
        interventions=dict(session.loop.interventions),
        simulated=not session.rig.plant.is_hardware,
        latency_s=session.latency_s,
    )


def with_closing_problem(summary: RunSummary, session: Session) -> RunSummary:
    """
    :param summary: of what the session did
    :param session: closed
    :return: the same, or one that says that the motor may still be on
    """
    if session.closing_problem is None:
        return summary
    reason = f"{SWITCH_OFF}: {session.closing_problem}. {summary.reason}"
    fault = summary.fault or Intervention(Reason.PLANT, session.closing_problem, session.loop.clock.now_s())
    return replace(
        summary, outcome="stopped" if summary.outcome == "finished" else summary.outcome, reason=reason, fault=fault
    )
