"""A rig as a Gymnasium environment, so that ``evaluate_policy`` and wrappers work on it."""

import atexit
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from nopg_robot.control.observation import METADATA, Observer
from nopg_robot.control.safety import Checks
from nopg_robot.flight.recorder import FlightRecorder
from nopg_robot.plants import open_rig
from nopg_robot.rig.errors import RobotError
from nopg_robot.rig.file import RigFile
from nopg_robot.run.deployment import describe
from nopg_robot.run.display import NullDisplay
from nopg_robot.run.loop import TERMINAL_REASONS, SafetyStop, ShowsSnapshots
from nopg_robot.run.session import Session, summarize, with_closing_problem
from nopg_robot.run.stop import StopRequest


class RigEnv(gym.Env[np.ndarray, np.ndarray]):
    """
    The rig through the same loop, supervisor and flight log as ``nopg-deploy``.

    The first ``reset`` connects, tests and homes; each one moves the cart to the middle and waits for the pole. Between
    ``step`` calls the motor keeps its voltage for at most the watchdog's time, then it is cut: this is for policies that
    answer in time, not for learning on the rig.

    While it is open, signals stop the rig in order: Ctrl-C raises :class:`nopg_robot.run.loop.SafetyStop` in the next
    ``step``. A fallen pole and the end of the rail terminate an episode; any other fault raises, since going on would not
    be safe.

    | observation | unit | |
    | --- | --- | --- |
    | x | m | cart, 0 in the middle of the rail |
    | sin θ, cos θ | | pole, 0 = upright |
    | ẋ, θ̇ | m/s, rad/s | through the rig file's velocity filter |

    The action is a voltage within the rig file's limit, the reward cos θ.

    :param rig: rig file, its path or its name
    :param log: path of the flight log, ``.npz``
    :param plant: ``"rig"``, ``"auto"`` or ``"simulated"``
    :param require_hardware: refuse a simulation
    :param pole: how it starts, ``"upright"`` or ``"hanging"``
    :param max_episode_steps: an episode is truncated after so many actions
    :param display: shows what happens
    """

    def __init__(
        self,
        rig: RigFile | str | Path,
        log: str | Path,
        *,
        plant: str = "rig",
        require_hardware: bool = False,
        pole: str = "upright",
        max_episode_steps: int = 1000,
        display: ShowsSnapshots | None = None,
    ):
        if pole not in ("upright", "hanging"):
            raise ValueError(f"pole: unknown {pole!r}; known are upright and hanging")
        if max_episode_steps < 1:
            raise ValueError(f"max_episode_steps: must be at least 1, got {max_episode_steps}")
        self._file = rig if isinstance(rig, RigFile) else RigFile.load(rig)
        self._log, self._plant, self._require_hardware = log, plant, require_hardware
        self._pole, self._max_steps, self._display = pole, max_episode_steps, display or NullDisplay()
        self.control_period_s = 1.0 / self._file.rates.control_hz
        self.metadata = {"render_modes": [], **METADATA}
        limits = self._file.limits
        high = np.array([limits.rail_length_m, 1.0, 1.0, np.inf, np.inf], dtype=np.float32)
        self.observation_space = spaces.Box(-high, high)
        self.action_space = spaces.Box(-limits.voltage_volt, limits.voltage_volt, (1,))
        self._observe = Observer()
        self._stop = StopRequest()
        self._session: Session | None = None
        self._rewards: list[float] = []
        self._n_steps: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        session = self._connected()
        self._end_episode("reset", terminal=False)
        try:
            session.loop.begin_episode()
            session.start(self._pole)
            session.loop.begin("run", "The policy runs.", Checks(angle=self._pole == "upright"))
        except BaseException:
            self.close()
            raise
        self._n_steps = 0
        return self._observe(session.loop.estimator.state), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self._session is None or self._n_steps is None:
            raise RobotError("the rig is not running an episode: call reset() first")
        loop = self._session.loop
        terminated, info = False, {}
        try:
            state = loop.act(lambda observation: action, self._observe)
        except SafetyStop as stop:
            if stop.fault.reason not in TERMINAL_REASONS:
                self.close()
                raise
            state, terminated, info = loop.estimator.state, True, {"termination": stop.fault.reason.value}
        self._n_steps += 1
        truncated = not terminated and self._n_steps >= self._max_steps
        if terminated or truncated:
            self._end_episode(info.get("termination", "time limit"), terminal=terminated)
            if truncated:
                self._settle(self._session)
        reward = math.cos(state.theta)
        self._rewards.append(reward)
        return self._observe(state), reward, terminated, truncated, info

    def _settle(self, session: Session) -> None:
        session.settle()
        fault = session.loop.fault
        if fault is not None:
            self.close()
            raise SafetyStop(fault)

    def close(self) -> None:
        """Zero volts, disconnect, seal the log."""
        session, self._session, self._n_steps = self._session, None, None
        if session is None:
            return
        atexit.unregister(self.close)
        try:
            session.__exit__(None, None, None)
        finally:
            self._stop.__exit__(None, None, None)
            fault = session.loop.fault
            ended_badly = fault is not None and fault.reason not in TERMINAL_REASONS
            summary = summarize(
                session,
                "stopped" if ended_badly else "finished",
                fault.message if fault is not None and ended_badly else "closed",
                phase=session.loop.phase,
                fault=fault if ended_badly else None,
                rewards=self._rewards,
                seconds=len(self._rewards) * self.control_period_s,
            )
            session.recorder.close(with_closing_problem(summary, session).as_dict())

    def _connected(self) -> Session:
        if self._session is None:
            recorder = FlightRecorder(self._log, describe(self._file))
            try:
                rig = open_rig(self._file, self._plant, require_hardware=self._require_hardware)
            except BaseException as error:
                recorder.close({"error": str(error)})
                raise
            self._stop = StopRequest()
            self._session = Session(rig, recorder, self._display, self._stop)
            self._rewards = []
            # A script that dies without closing its environments must not leave the motor on.
            atexit.register(self.close)
            try:
                self._stop.__enter__()
                self._session.__enter__()
                self._session.prepare()
            except BaseException:
                self.close()
                raise
        return self._session

    def _end_episode(self, reason: str, *, terminal: bool) -> None:
        if self._session is not None and self._n_steps is not None:
            self._session.recorder.end_episode(self._session.loop.episode, reason, terminal)
        self._n_steps = None
