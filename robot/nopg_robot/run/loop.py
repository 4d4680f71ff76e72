"""The control loop: at a fixed rate read, estimate, ask, supervise, write, record. Every phase of a run goes through it."""

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from nopg_robot.control.estimator import State, StateEstimator
from nopg_robot.control.observation import DataRange
from nopg_robot.control.safety import Checks, Decision, Intervention, Reason, SafetySupervisor, Situation
from nopg_robot.flight.recorder import FlightRecorder, Sample
from nopg_robot.plants.base import Plant, Reading
from nopg_robot.rig.clock import SimulatedClock
from nopg_robot.rig.errors import PlantError, RecorderError, RobotError
from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import NullDisplay, Snapshot
from nopg_robot.run.loop_timing import LoopTiming
from nopg_robot.run.stop import StopRequest
from nopg_robot.run.watchdog import GuardedPlant

_log = logging.getLogger(__name__)

#: an episode that ends for one of these ended because of what the system did, and another may follow
TERMINAL_REASONS = frozenset({Reason.ANGLE, Reason.RAIL})
#: what is asked of the motor in a state, volts; anything else is the supervisor's business
Command = Callable[[State], Any]


class SafetyStop(RobotError):  # noqa: N818 - it is what the supervisor does, not something that went wrong in it
    """
    The supervisor has cut the motor.

    :param fault: that did it
    """

    def __init__(self, fault: Intervention):
        super().__init__(fault.message)
        self.fault = fault


class ShowsSnapshots(Protocol):
    """A display; see :mod:`nopg_robot.run.display`."""

    def update(self, snapshot: Snapshot) -> None: ...


class ControlLoop:
    """
    Absolute deadlines on the plant's clock: a late cycle does not push the ones after it. ``with loop:`` guards the motor by a
    watchdog and ends at zero volts.

    :param plant: open
    :param rig: its rig file
    :param recorder: gets every cycle
    :param display: gets every cycle too, and draws when it likes
    :param stop: the operator's
    """

    def __init__(self, plant: Plant, rig: RigFile, recorder: FlightRecorder, display: ShowsSnapshots, stop: StopRequest):
        self.rig, self.clock = rig, plant.clock
        self.estimator = StateEstimator(rig.sensors, rig.sample_s)
        self.supervisor = self._new_supervisor()
        self.timing = LoopTiming(rig.timing.miss_s)
        self.interventions: Counter[str] = Counter()
        self.episode = 0
        self.last_observation: np.ndarray | None = None
        # Simulated time stands still while a policy thinks.
        timeout_s = None if isinstance(plant.clock, SimulatedClock) else rig.watchdog_s
        self.guarded = self._plant = GuardedPlant(plant, timeout_s, self._give_up)
        #: what is done when the loop will never come back, in another thread: it has been noted by then
        self.on_hang: Callable[[Intervention], None] = lambda fault: _log.error(fault.message)
        self._recorder, self._display, self._stop = recorder, display, stop
        self.phase, self._message, self._announced = "connect", "", set[tuple[str, Reason]]()
        self._deadline_s = self.clock.now_s()
        self._asked: Any = 0.0
        self._motor_is_off = False
        self._policy_error: str | None = None
        self._outside_data: str | None = None
        self._recorder_error: str | None = None

    def __enter__(self) -> "ControlLoop":
        self._plant.__enter__()
        self._stop.in_order = True
        self._deadline_s = self.clock.now_s()
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self._plant.write(0.0)
        except PlantError:
            # Whatever ends the run has said so already, and closing the plant tries again.
            pass
        finally:
            self._plant.__exit__(*exception)
            self._stop.in_order = False

    @property
    def fault(self) -> Intervention | None:
        """What the supervisor has cut the motor for, if it has."""
        return self.supervisor.fault

    def begin(self, phase: str, message: str, checks: Checks) -> None:
        """
        :param phase: name of what comes now, for the log
        :param message: to the operator
        :param checks: limits that apply from now on
        """
        self.phase, self._message = phase, message
        self.supervisor.begin(checks)
        self._outside_data = None

    def motor_off(self) -> None:
        """From now on nothing is applied, whatever is asked: a dry run."""
        self._motor_is_off = True

    def test_watchdog(self) -> bool:
        """Let the rig show that its own watchdog acts; see :meth:`nopg_robot.plants.base.Plant.test_watchdog`."""
        try:
            seen = self._plant.test_watchdog()
        except PlantError as error:
            self._end_with(Reason.PLANT, str(error))
        # It took its time, which is nobody's fault.
        self._deadline_s = self.clock.now_s()
        return seen

    def begin_episode(self) -> None:
        """Another episode: its number in the log, and a supervisor that has seen nothing yet."""
        if self.fault is not None and self.fault.reason not in TERMINAL_REASONS:
            raise SafetyStop(self.fault)
        self.episode += 1
        self.supervisor = self._new_supervisor()

    def drive(self, command: Command, until: Callable[[State, float], bool], timeout_s: float) -> bool:
        """
        Cycle with ``command`` in every cycle.

        :param command: volts for a state
        :param until: of a state and the seconds since the beginning: whether the goal is reached
        :param timeout_s: longest time
        :return: whether the goal was reached in time
        """
        begin_s = self.clock.now_s()
        while True:
            state = self.cycle(command, acts=True)
            passed_s = self.clock.now_s() - begin_s
            if until(state, passed_s):
                return True
            if passed_s > timeout_s:
                return False

    def act(
        self, policy: Callable[[np.ndarray], Any], observe: Callable[[State], np.ndarray], data_range: DataRange | None = None
    ) -> State:
        """
        One control period: the policy acts once, its voltage is held.

        :param policy: volts for an observation
        :param observe: observation of a state
        :param data_range: of the policy's training data
        :return: state at the end of the period, when the next action is due
        """

        def command(state: State) -> Any:
            observation = observe(state)
            self.last_observation = observation
            self._outside_data = None if data_range is None else data_range.complaint(observation)
            return policy(observation)

        for number in range(self.rig.samples_per_action):
            self.cycle(command, acts=number == 0)
        return self.estimator.state

    def cycle(self, command: Command, *, acts: bool) -> State:
        """
        One sample period.

        :param command: volts for a state
        :param acts: whether the command is asked now; otherwise what it said last is held
        :return: state in which the voltage was chosen
        """
        begin_s, late_s = self._wait()
        self.timing.add_lateness(late_s)
        try:
            reading = self._plant.read()
        except PlantError as error:
            self._end_with(Reason.PLANT, str(error))
        state = self.estimator.update(reading)
        asked_s = self.clock.now_s()
        if acts:
            self._asked = self._ask(command, state)
        decision = self._decide(state, reading, asked_s, late_s)
        applied_volt = self._write(decision)
        busy_s = self.clock.now_s() - begin_s
        self.timing.add_busy(busy_s)
        self._record(reading, state, decision, applied_volt, late_s, busy_s, acts)
        if decision.fault is not None:
            raise SafetyStop(decision.fault)
        return state

    def _new_supervisor(self) -> SafetySupervisor:
        rig = self.rig
        return SafetySupervisor(rig.limits, rig.timing, rig.sample_s, readings=rig.readings)

    def _wait(self) -> tuple[float, float]:
        self._deadline_s += self.rig.sample_s
        self.clock.sleep_until(self._deadline_s)
        now_s = self.clock.now_s()
        late_s = now_s - self._deadline_s
        # Cycles that were slept through are left out, not hurried through one after the other.
        self._deadline_s += math.floor(late_s / self.rig.sample_s) * self.rig.sample_s
        return now_s, late_s

    def _ask(self, command: Command, state: State) -> Any:
        self._plant.wait_for("the policy to answer")
        try:
            return command(state)
        except Exception as error:
            # Whatever a policy throws, the motor comes first.
            self._policy_error = f"{type(error).__name__}: {error}"
            return 0.0
        finally:
            self._plant.wait_for(None)

    def _decide(self, state: State, reading: Reading, asked_s: float, late_s: float) -> Decision:
        now_s = self.clock.now_s()
        if (tripped := self._plant.check()) is not None:
            self.supervisor.latch(Reason.DEADLINE, tripped, now_s)
        elif now_s - asked_s > self.rig.watchdog_s:
            # The motor stood without voltage meanwhile, but an answer to a question this old must not move it.
            self.supervisor.latch(Reason.DEADLINE, f"the policy took {1e3 * (now_s - asked_s):.0f} ms to answer", now_s)
        return self.supervisor.decide(
            Situation(
                # Of the state, not of the decision: what moved while a policy was slow did not jump.
                time_s=reading.time_s,
                state=state,
                raw=(reading.cart, reading.pole),
                reading_age_s=now_s - reading.time_s,
                asked=self._asked,
                late_s=late_s,
                stop=self._stop.reason,
                policy_error=self._policy_error,
                outside_data=self._outside_data,
                recorder_error=self._recorder_error,
            )
        )

    def _write(self, decision: Decision) -> float:
        sign = self.rig.motor.sign
        try:
            return sign * self._plant.write(0.0 if self._motor_is_off else sign * decision.volt)
        except PlantError as error:
            self._end_with(Reason.PLANT, str(error))

    def _end_with(self, reason: Reason, message: str) -> NoReturn:
        """The plant is lost: nothing can be written, but everything can be said."""
        self.supervisor.latch(reason, message, self.clock.now_s())
        fault = self.supervisor.fault
        assert fault is not None
        self._note(fault)
        raise SafetyStop(fault)

    def _give_up(self, message: str) -> None:
        """In the guard's thread, while the loop's own waits for what never comes."""
        fault = self.supervisor.latch(Reason.DEADLINE, message, self.clock.now_s())
        # Who has cut the motor is not lost over what went wrong before.
        if fault.message != message:
            fault = Intervention(Reason.DEADLINE, f"{message}. Before that: {fault.message}", self.clock.now_s())
        self._note(fault)
        self.on_hang(fault)

    def _record(
        self,
        reading: Reading,
        state: State,
        decision: Decision,
        applied_volt: float,
        late_s: float,
        busy_s: float,
        acts: bool,
    ) -> None:
        asked_volt = _as_float(self._asked)
        for intervention in decision.interventions:
            self._note(intervention)
        # One that was latched from outside is in no cycle's interventions.
        if decision.fault is not None and decision.fault not in decision.interventions:
            self._note(decision.fault)
        sample = Sample(
            time_s=reading.time_s,
            phase=self.phase,
            raw_cart=reading.cart,
            raw_pole=reading.pole,
            x=state.x,
            theta=state.theta,
            x_dot=state.x_dot,
            theta_dot=state.theta_dot,
            asked_volt=asked_volt,
            applied_volt=applied_volt,
            late_s=late_s,
            busy_s=busy_s,
            acted=acts,
            episode=self.episode,
        )
        try:
            self._recorder.record(sample)
        except RecorderError as error:
            self._recorder_error = str(error)
        self._show(sample)

    def _show(self, sample: Sample) -> None:
        try:
            self._display.update(
                Snapshot(
                    phase=sample.phase,
                    time_s=sample.time_s,
                    state=self.estimator.state,
                    asked_volt=sample.asked_volt,
                    applied_volt=sample.applied_volt,
                    late_s=sample.late_s,
                    busy_s=sample.busy_s,
                    misses=self.timing.misses,
                    interventions=self.interventions,
                    message=self._message,
                )
            )
        except (Exception, SystemExit) as error:
            # A closed pipe at the other end must not end a run; rich makes an exit of it.
            self._display = NullDisplay()
            _log.error("The display has failed and is switched off: %s: %s", type(error).__name__, error)

    def _note(self, intervention: Intervention) -> None:
        """Count it; write it down if it is a fault or new in this phase: a clamp may act 500 times a second."""
        self.interventions[intervention.reason.value] += 1
        key = (self.phase, intervention.reason)
        if key in self._announced and intervention is not self.supervisor.fault:
            return
        self._announced.add(key)
        try:
            self._recorder.note(intervention)
        except RecorderError as error:
            self._recorder_error = str(error)


def _as_float(asked: Any) -> float:
    try:
        return float(np.asarray(asked, dtype=np.float64).reshape(-1)[0])
    except (TypeError, ValueError, IndexError):
        return math.nan
