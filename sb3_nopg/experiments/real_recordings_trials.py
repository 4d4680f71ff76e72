"""
Trials on a user's recordings. Two questions: does a model of some recordings predict the motion in the one that it has not
seen, and does a policy that was learned from all of them fly, on the identified simulator and on rigs that might be real?
"""

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from nopg_envs.cartpole import CartPoleVectorEnv
from nopg_envs.cartpole.options import TASKS
from nopg_envs.cartpole.parameters import PARAMETER_SETS, CartPoleParameters
from nopg_envs.identification.prediction import errors, windows_of
from nopg_envs.identification.recordings import Recording
from nopg_envs.stress import stress_test
from sb3_nopg.dynamics.bounds import Limit
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.quality import open_loop
from sb3_nopg.experiments.baselines.least_squares_riccati import QuadraticCost
from sb3_nopg.experiments.cartpole_evaluation import EVALUATION_SEED, N_STARTS, UPRIGHT_STEPS, upright_steps
from sb3_nopg.experiments.experiment import Result, Trial
from sb3_nopg.experiments.methods import run_method
from sb3_nopg.experiments.recordings import (
    CONTROL_HZ,
    coverage_of,
    largest_voltage,
    on_both_sides,
    read_told,
    stride_of,
    transitions_of,
)
from sb3_nopg.experiments.task import Task

#: seconds that motion is predicted for
WINDOWS_S = (0.1, 0.5, 1.0)
SHOWN_WINDOW_S = 0.5
MODEL, AFFINE, STILL = "model of NOPG", "one affine model", "nothing changes"
#: sets of the simulator's parameters, by the names that they are shown under
SIMULATORS = {"identified simulator": "identified", "data sheet's simulator": "datasheet"}
ENVIRONMENTS = {"swing_up": "nopg/QuanserCartPoleSwingUp-v1", "balance": "nopg/QuanserCartPoleBalance-v0"}
_FLIGHT_S = 20.0
_N_STARTS = 16
# Predictions begin here: before it, the steps that a delay reaches back to are not known.
_FIRST_ROW = 3
# Of rigs nobody remembers the action before: each flies for as long as it lasts, beside others.
_COST = QuadraticCost((0, 1, 3, 4), (1.0, 100.0, 0.1, 0.1), 1e-3, cosine=2, remembers=False)


def run(trial: Trial) -> Result:
    """
    :param trial: ``recordings``, their fingerprint; and either ``left_out``, the name of one, with ``method`` and ``seed``; or
        ``task``, with ``method``, ``seed``, ``updates`` and the number of ``rigs``
    """
    recordings = read_told(trial["recordings"])
    return _predict(trial, recordings) if "left_out" in trial else _learn_and_fly(trial, list(recordings.values()))


# --- Predicted against recorded ------------------------------------------------------------------------------------------


def _predict(trial: Trial, recordings: dict[str, Recording]) -> Result:
    left_out = recordings[trial["left_out"]]
    if trial["method"] in SIMULATORS:
        return _simulated(left_out, PARAMETER_SETS[SIMULATORS[trial["method"]]])
    others = [recording for name, recording in recordings.items() if name != trial["left_out"]]
    parameters = PARAMETER_SETS["identified"]
    volts = largest_voltage(list(recordings.values()), parameters)
    unseen = transitions_of([left_out], parameters, volts)
    model = None
    if trial["method"] != STILL:
        bandwidth = math.inf if trial["method"] == AFFINE else None
        seen = transitions_of(others, parameters, volts)
        model = DynamicsModel.fit(seen, bandwidth=bandwidth, limits=_limits(parameters), seed=trial["seed"])
    found: Result = {}
    for window_s in WINDOWS_S:
        n_steps = round(window_s * CONTROL_HZ)
        rows = np.arange(_FIRST_ROW, len(unseen) - n_steps + 1)
        found[_name(window_s)] = _errors(*_motion(model, unseen, rows, n_steps))
    if trial.get("shown"):
        found["motion"] = _shown(model, unseen)
    return found


def _motion(model: DynamicsModel | None, data: Any, rows: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """
    :param model: None for one in which nothing changes
    :param data: one recording
    :param rows: that predictions start from
    :param n_steps: that each lasts
    :return: predicted and recorded observations after each step, (n_steps, m, 5) each
    """
    recorded = np.stack([data.next_observations[rows + step] for step in range(n_steps)]).astype(np.float64)
    if model is None:
        return np.broadcast_to(data.observations[rows], recorded.shape).astype(np.float64), recorded
    prepared = Prepared.of(data, model.coordinates, np.array(data.rewards, dtype=np.float64))
    return open_loop(model, prepared, rows, n_steps)[1:], recorded


def _errors(predicted: np.ndarray, recorded: np.ndarray) -> Result:
    angles = [np.arctan2(part[..., 1], part[..., 2]) for part in (predicted, recorded)]
    turned = (angles[0] - angles[1] + np.pi) % (2.0 * np.pi) - np.pi
    return _rms(predicted[..., 0] - recorded[..., 0], turned)


def _rms(x: np.ndarray, theta: np.ndarray) -> Result:
    rms = [float(np.sqrt(np.mean(np.square(error)))) for error in (x, theta)]
    return {"x_m": rms[0], "theta_rad": rms[1], "n": int(x.size)}


def _simulated(recording: Recording, parameters: CartPoleParameters) -> Result:
    """The simulator's errors at the same steps, started from measured states without the filter's lag."""
    found: Result = {}
    stride = stride_of(recording)
    for window_s in WINDOWS_S:
        windows, _ = windows_of(
            recording, window_s, every_s=1.0 / CONTROL_HZ, rail_length_m=parameters.rail_length_m, longest_delay_s=0.05
        )
        x, theta = errors([parameters], windows)
        found[_name(window_s)] = _rms(x[..., stride - 1 :: stride], theta[..., stride - 1 :: stride])
    return found


def _shown(model: DynamicsModel | None, data: Any) -> Result:
    """Motion of a recording and what is predicted of it, begun again every half second."""
    n_steps = round(SHOWN_WINDOW_S * CONTROL_HZ)
    rows = np.arange(_FIRST_ROW, len(data) - n_steps + 1, n_steps)
    predicted, recorded = _motion(model, data, rows, n_steps)
    times = (rows[None] + 1 + np.arange(n_steps)[:, None]) / CONTROL_HZ

    def columns(motion: np.ndarray) -> list[Any]:
        return [motion[..., 0].T.tolist(), np.degrees(np.arctan2(motion[..., 1], motion[..., 2])).T.tolist()]

    return {"times_s": times.T.tolist(), "predicted": columns(predicted), "recorded": columns(recorded)}


def _name(window_s: float) -> str:
    return f"{window_s:g} s"


# --- Learned from recordings, flown on simulated rigs --------------------------------------------------------------------


def _learn_and_fly(trial: Trial, recordings: list[Recording]) -> Result:
    parameters = PARAMETER_SETS["identified"]
    volts = largest_voltage(recordings, parameters)
    task = Task(
        make_env=partial(gym.make, ENVIRONMENTS[trial["task"]], voltage_limit_volt=volts),
        evaluate=partial(share_of_rigs, task=trial["task"], volts=volts, n_rigs=trial["rigs"]),
        gamma=0.99,
        initial_states=_starts(trial["task"], volts),
        paper_nopg={"action_bandwidth_factor": 20.0, "n_action_samples": 10},
        max_std=1.0 / volts,
        cost=_COST,
        model_settings={"limits": _limits(parameters, trial["task"])},
        also=partial(on_the_simulator, task=trial["task"], volts=volts),
    )
    dataset = transitions_of(recordings, parameters, volts)
    return {**run_method(task, trial, on_both_sides(dataset), None), "recorded": coverage_of(dataset), "volts": volts}


def share_of_rigs(model: Any, task: str, volts: float, n_rigs: int) -> float:
    """
    :param model: has ``predict``
    :param task: ``"balance"`` or ``"swing_up"``
    :param volts: largest voltage
    :param n_rigs: plausible rigs that are drawn
    :return: share of them on which it holds
    """

    def act(observations: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(observations, deterministic=True)[0])

    tested = stress_test(
        act, task=task, n_rigs=n_rigs, seconds=_FLIGHT_S, parameters="identified", voltage_limit_volt=volts, seed=0
    )
    return float(tested.held.mean())


def on_the_simulator(model: Any, task: str, volts: float) -> Result:
    """
    :param model: has ``predict``
    :param task: ``"balance"`` or ``"swing_up"``
    :param volts: largest voltage
    :return: ``simulator``, the share of an operator's ten starts from which it holds on the identified rig
    """
    if task == "swing_up":
        return {"simulator": float(np.mean([steps >= UPRIGHT_STEPS for steps in upright_steps(model, volts)]))}
    n_steps = round(_FLIGHT_S * CONTROL_HZ)
    env = CartPoleVectorEnv(N_STARTS, max_episode_steps=n_steps + 1, start="operator", task=task, voltage_limit_volt=volts)
    observations, _ = env.reset(seed=EVALUATION_SEED)
    going = np.ones(N_STARTS, dtype=bool)
    for _ in range(n_steps):
        actions, _ = model.predict(observations, deterministic=True)
        observations, _, terminated, _, _ = env.step(actions)
        going &= ~terminated
        if not going.any():
            break
    return {"simulator": float(going.mean())}


def _starts(task: str, volts: float) -> list[list[float]]:
    """Where an operator starts: other draws than those of evaluations, (16, 5)."""
    env = gym.make(ENVIRONMENTS[task], start="operator", voltage_limit_volt=volts)
    return [env.reset(seed=seed)[0].tolist() for seed in range(_N_STARTS)]


def _limits(parameters: CartPoleParameters, task: str | None = None) -> dict[int | str, Limit]:
    """The ends of the rail, which recordings keep away from; and where a balanced pole counts as fallen, in sin θ."""
    rail: dict[int | str, Limit] = {0: (-parameters.rail_length_m / 2.0, parameters.rail_length_m / 2.0)}
    fallen = math.sin(TASKS["balance"].theta_limit_rad)
    return {**rail, 1: (-fallen, fallen)} if task == "balance" else rail
