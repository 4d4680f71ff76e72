"""Training data from a rig: episodes of a behaviour, through the same loop and supervisor as any policy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nopg_robot.control.observation import Observer
from nopg_robot.control.policy import PolicyMetadata
from nopg_robot.control.safety import Checks, Reason
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import Rig, open_rig
from nopg_robot.rig.errors import PhaseError
from nopg_robot.rig.file import RigFile
from nopg_robot.run.deployment import check_choices, check_policy, describe, run_session
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.loop import SafetyStop, ShowsSnapshots
from nopg_robot.run.session import Policy, RunSummary, Session, run_episode, summarize
from nopg_robot.run.stop import StopRequest


@dataclass(frozen=True)
class CollectOptions:
    """
    :param episodes: at most so many
    :param transitions: enough when there are so many; None for no such limit
    :param seconds: longest episode
    :param spread_m: the cart starts within so far of the rail's middle, anywhere with equal odds; 0 for always the middle
    :param pole: how it starts, ``"upright"`` or ``"hanging"``
    :param may_fall: a pole that falls from upright does not end an episode
    :param plant: ``"rig"``, ``"auto"`` or ``"simulated"``
    :param require_hardware: refuse a simulation
    :param seed: of the starts
    """

    episodes: int = 20
    transitions: int | None = None
    seconds: float = 10.0
    spread_m: float = 0.0
    pole: str = "upright"
    plant: str = "rig"
    require_hardware: bool = False
    seed: int = 0
    may_fall: bool = False

    def check(self, rig: RigFile) -> None:
        """
        :param rig: that must allow it
        """
        if self.episodes < 1 or (self.transitions is not None and self.transitions < 1):
            raise ValueError("episodes and transitions: must be at least 1")
        if not 0 < self.seconds <= rig.limits.max_seconds:
            raise ValueError(f"seconds: must be above 0 and at most limits.max_seconds, {rig.limits.max_seconds:g}")
        room_m = rig.limits.rail_length_m / 2.0 - rig.limits.rail_margin_m
        if not 0 <= self.spread_m < room_m:
            raise ValueError(f"spread_m: must be at least 0 and below {room_m:g} m, where the rail's margin begins")
        check_choices(self.plant, self.pole)


def collect(
    behaviour: Policy,
    rig: RigFile,
    log: str | Path,
    options: CollectOptions,
    *,
    metadata: PolicyMetadata | None = None,
    display: ShowsSnapshots | None = None,
    stop: StopRequest | None = None,
    on_connect: Callable[[Rig], None] = lambda rig: None,
    on_episode: Callable[[int, int], None] = lambda episodes, transitions: None,
) -> RunSummary:
    """
    Episodes until there are enough. A fallen pole or the end of the rail ends an episode; any other fault ends it all, and
    what was recorded until then stays.

    :param behaviour: volts for an observation
    :param rig: to run it on
    :param log: path of the flight log, ``.npz``
    :param options: how much, and from where
    :param metadata: of a behaviour that is a policy: what it observes, and how often it acts; None for one that observes
        [x, sin θ, cos θ, ẋ, θ̇]
    :param display: shows what happens
    :param stop: the operator's
    :param on_connect: told what answered
    :param on_episode: told how many episodes and transitions there are
    """
    options.check(rig)
    header = {**describe(rig), "options": dict(options.__dict__)}
    observe = Observer()
    if metadata is not None:
        check_policy(metadata, rig)
        header["policy"] = dict(metadata.__dict__)
        observe = Observer(metadata.observation_names)
    with FlightRecorder(log, header) as recorder:
        summary = run_session(
            lambda: open_rig(rig, options.plant, require_hardware=options.require_hardware),
            recorder,
            lambda session: _episodes(session, behaviour, observe, options, on_episode),
            display or NullDisplay(),
            stop or StopRequest(),
            on_connect,
        )
    return summary


def _episodes(
    session: Session,
    behaviour: Policy,
    observe: Observer,
    options: CollectOptions,
    on_episode: Callable[[int, int], None],
) -> RunSummary:
    loop, rng = session.loop, np.random.default_rng(options.seed)
    enough = options.transitions or float("inf")
    rewards: list[float] = []
    seconds = 0.0
    try:
        session.prepare()
        for number in range(1, options.episodes + 1):
            loop.begin_episode()
            session.start(options.pole, float(rng.uniform(-options.spread_m, options.spread_m)))
            message = f"Episode {number}, {len(rewards)} transitions so far."
            loop.begin("collect", message, Checks(angle=options.pole == "upright" and not options.may_fall))
            episode = run_episode(session, behaviour, observe, seconds=options.seconds)
            rewards += episode.rewards
            seconds += episode.seconds
            on_episode(number, len(rewards))
            if episode.fault is not None and not episode.is_terminal:
                raise SafetyStop(episode.fault)
            if len(rewards) >= enough:
                break
    except PhaseError as error:
        session.settle()
        return summarize(session, "failed", str(error), phase=error.phase, rewards=rewards, seconds=seconds)
    except SafetyStop as error:
        outcome = "stopped" if error.fault.reason is Reason.OPERATOR else "failed"
        return summarize(
            session, outcome, error.fault.message, phase=loop.phase, fault=error.fault, rewards=rewards, seconds=seconds
        )
    reason = f"{number} episodes, {len(rewards)} transitions"
    return summarize(session, "finished", reason, phase="collect", rewards=rewards, seconds=seconds)
