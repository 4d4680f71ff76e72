"""A whole run on a rig, from connecting to the summary, for programs; ``nopg-deploy`` is this with a command line."""

import logging
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nopg_robot.control.observation import UNITS, DataRange, Observer
from nopg_robot.control.policy import PolicyMetadata
from nopg_robot.control.safety import Checks, Intervention, Reason
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import Rig, open_rig
from nopg_robot.rig.errors import SWITCH_OFF, DefectError, PhaseError, PlantError, PolicyError, RecorderError, RobotError
from nopg_robot.rig.file import RigFile
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.loop import SafetyStop, ShowsSnapshots
from nopg_robot.run.session import Policy, RunSummary, Session, run_episode, summarize, with_closing_problem
from nopg_robot.run.stop import StopRequest

# Periods of one rate differ by no more than this share: that of a recording is measured, by another clock.
SAME_PERIOD = 0.01

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """
    :param seconds: longest time that the policy runs
    :param plant: ``"rig"``, ``"auto"`` or ``"simulated"``, as for :func:`nopg_robot.plants.open_rig`
    :param require_hardware: refuse a simulation
    :param pole: how it starts, ``"upright"`` or ``"hanging"``; the limit of the angle applies to an upright one only
    :param dry_run: connect, read the sensors and ask the policy, but leave the motor at zero volts
    """

    seconds: float = 60.0
    plant: str = "rig"
    require_hardware: bool = False
    pole: str = "upright"
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_choices(self.plant, self.pole)
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds: must be positive, got {self.seconds}")


def deploy(
    policy: Policy,
    metadata: PolicyMetadata,
    rig: RigFile,
    log: str | Path,
    options: RunOptions,
    *,
    display: ShowsSnapshots | None = None,
    stop: StopRequest | None = None,
    on_connect: Callable[[Rig], None] = lambda rig: None,
) -> RunSummary:
    """
    Connect, test, home, centre, wait for the pole, run, stop. Returns what happened and leaves it in the log as well; raises
    for what the caller can put right before anything moves.

    :param policy: volts for an observation
    :param metadata: of the policy
    :param rig: to run it on
    :param log: path of the flight log, ``.npz``
    :param options: how to run it
    :param display: shows what happens
    :param stop: the operator's
    :param on_connect: told what answered
    """
    check_policy(metadata, rig)
    header = {**describe(rig), "policy": dict(metadata.__dict__), "options": dict(options.__dict__)}
    with FlightRecorder(log, header) as recorder:
        summary = run_session(
            lambda: open_rig(rig, options.plant, require_hardware=options.require_hardware),
            recorder,
            lambda session: _sequence(session, policy, metadata, options),
            display or NullDisplay(),
            stop or StopRequest(),
            on_connect,
        )
    return summary


def run_session(
    connect: Callable[[], Rig],
    recorder: FlightRecorder,
    work: Callable[[Session], RunSummary],
    display: ShowsSnapshots,
    stop: StopRequest,
    on_connect: Callable[[Rig], None],
) -> RunSummary:
    """
    Connect, work, close, seal the log.

    :param connect: opens the rig
    :param recorder: of the flight log
    :param work: what is done with the rig
    :param display: shows what happens
    :param stop: the operator's
    :param on_connect: told what answered
    """
    try:
        connected = connect()
    except (PlantError, KeyboardInterrupt) as error:
        summary = not_connected(recorder, error)
    else:
        session = None
        try:
            session = Session(connected, recorder, display, stop)
            with session:
                on_connect(connected)
                summary = work(session)
        except (RobotError, KeyboardInterrupt) as error:
            # Also who stops in a hurry must read it.
            if (problem := _closing_problem(connected, session)) is not None:
                error.args = (". ".join(filter(None, (f"{SWITCH_OFF}: {problem}", str(error)))),)
            raise
        except Exception as error:
            problem = _closing_problem(connected, session)
            what = f"{type(error).__name__}: {error}"
            raise DefectError(
                f"{what}; the motor was cut" if problem is None else f"{SWITCH_OFF}: {problem}. {what}"
            ) from error
        summary = with_closing_problem(summary, session)
    seal(recorder, summary)
    return summary


def _closing_problem(rig: Rig, session: Session | None) -> str | None:
    """
    :param rig: that was connected
    :param session: that has closed it; one that never came to a session is closed here
    """
    if session is not None:
        return session.closing_problem
    try:
        rig.plant.close()
    except Exception as problem:
        return str(problem) if isinstance(problem, PlantError) else f"{type(problem).__name__}: {problem}"
    return None


def check_choices(plant: str, pole: str) -> None:
    """Before there is a log of a run that nobody can make."""
    if plant not in ("rig", "auto", "simulated"):
        raise ValueError(f"plant: unknown {plant!r}; known are rig, auto and simulated")
    if pole not in ("upright", "hanging"):
        raise ValueError(f"pole: unknown {pole!r}; known are upright and hanging")


def _sequence(session: Session, policy: Policy, metadata: PolicyMetadata, options: RunOptions) -> RunSummary:
    checks = Checks(angle=options.pole == "upright")
    try:
        if options.dry_run:
            # Nothing moves, so that nothing is known of stops and angles.
            session.loop.motor_off()
            checks = Checks(rail=False, angle=False, frozen=False)
        else:
            session.prepare()
            session.start(options.pole)
        return _run(session, policy, metadata, options.seconds, checks)
    except PhaseError as error:
        session.settle()
        return summarize(session, "failed", str(error), phase=error.phase)
    except SafetyStop as error:
        outcome = "stopped" if error.fault.reason is Reason.OPERATOR else "failed"
        return summarize(session, outcome, error.fault.message, phase=session.loop.phase, fault=error.fault)


def _run(session: Session, policy: Policy, metadata: PolicyMetadata, seconds: float, checks: Checks) -> RunSummary:
    limits = session.file.limits
    data_range = None
    if metadata.data_low is not None and metadata.data_high is not None:
        data_range = DataRange(metadata.observation_names, metadata.data_low, metadata.data_high, limits.outside_data_margin)
    seconds = min(seconds, limits.max_seconds)
    session.loop.begin("run", f"The policy runs, for {seconds:g} s.", checks)
    episode = run_episode(session, policy, Observer(metadata.observation_names), seconds=seconds, data_range=data_range)
    if episode.fault is None:
        session.settle()
    # Also one that was found while the cart rolled out.
    fault = session.loop.fault
    return summarize(
        session,
        "stopped" if fault else "finished",
        fault.message if fault else f"{seconds:g} s are over",
        phase="run",
        fault=fault,
        rewards=episode.rewards,
        seconds=episode.seconds,
    )


def seal(recorder: FlightRecorder, summary: RunSummary) -> None:
    """
    :param recorder: that has nothing more to record
    :param summary: of the run; that of one which did not finish is not lost over a log that cannot be written
    """
    try:
        recorder.close(summary.as_dict())
    except RecorderError as error:
        if summary.outcome == "finished":
            raise
        _log.error("%s", error)


def not_connected(recorder: FlightRecorder, error: BaseException) -> RunSummary:
    by_operator = isinstance(error, KeyboardInterrupt)
    reason = "the operator stopped it" if by_operator else str(error)
    fault = Intervention(Reason.OPERATOR if by_operator else Reason.PLANT, reason, 0.0)
    recorder.note(fault)
    return RunSummary("stopped" if by_operator else "failed", reason, fault, "connect", 0.0, math.nan, math.nan)


def check_policy(metadata: PolicyMetadata, rig: RigFile) -> list[str]:
    """
    Whether a policy fits a rig.

    :param metadata: of the policy file
    :param rig: to run it on
    :return: what an operator should know although it forbids nothing
    """
    Observer(metadata.observation_names)
    if len(metadata.action_names) != 1:
        raise PolicyError(f"the policy has {len(metadata.action_names)} actions and the rig one motor")
    quantities = [*metadata.observation_names, metadata.action_names[0]]
    units = [*metadata.observation_units, metadata.action_units[0]]
    measured = [*(UNITS[name] for name in metadata.observation_names), "V"]
    for quantity, unit, wanted in zip(quantities, units, measured, strict=True):
        if unit not in ("", wanted):
            raise PolicyError(f"the policy has {quantity} in {unit} and the rig in {wanted}; train a policy in {wanted}")
    period_s = 1.0 / rig.rates.control_hz
    if metadata.control_period_s is not None and abs(metadata.control_period_s - period_s) > SAME_PERIOD * period_s:
        raise PolicyError(
            f"the policy was trained for {1.0 / metadata.control_period_s:g} actions a second and the rig file has "
            f"rates.control_hz {rig.rates.control_hz:g}; they must agree"
        )
    notes = []
    if metadata.control_period_s is None:
        notes.append("The policy file does not say for which control rate it was trained.")
    if "" in units:
        nameless = [quantity for quantity, unit in zip(quantities, units, strict=True) if not unit]
        notes.append(f"The policy file does not say in which units these are: {', '.join(nameless)}.")
    largest = max(abs(metadata.action_low[0]), abs(metadata.action_high[0]))
    if largest > rig.limits.voltage_volt:
        notes.append(f"The policy may ask for {largest:g} V; the rig file allows {rig.limits.voltage_volt:g} V.")
    if metadata.data_low is None or metadata.data_high is None:
        notes.append("The policy file does not say what its training data covered: nothing warns outside of it.")
    return notes


def describe(rig: RigFile) -> dict[str, Any]:
    """What a log must tell about where it comes from."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("sb3-nopg", "numpy", "onnxruntime", "pyserial"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return {"rig": rig.to_yaml(), "versions": versions, "command": sys.argv[1:]}
