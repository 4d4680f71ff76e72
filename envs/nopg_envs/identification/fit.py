"""Fitting the cart-pole's parameters to recordings: the mathematics. The command is ``nopg_envs.identify``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from nopg_envs.cartpole.parameters import CartPoleParameters
from nopg_envs.identification.prediction import LONGEST_DELAY_S, Windows, errors, joined, windows_of
from nopg_envs.identification.prediction_errors import FITTED, Problem
from nopg_envs.identification.recordings import Array, Recording, RecordingError

WINDOW_S = 0.5
EVERY_S = 0.1
# Time that residuals are taken to be correlated over, for uncertainties.
BLOCK_S = 1.0
# A parameter the data narrow down by less than this is not identified.
LARGEST_SHRINKAGE = 0.5
CART = ("input_gain", "cart_damping", "cart_coulomb", "pole_coupling", "voltage_offset", "input_delay_s")
POLE = ("pole_coupling", "inverse_pole_length", "pole_damping", "pole_coulomb")
# Constant volts show one number, the balance of drive and friction, which these share.
DRIVE = ("input_gain", "cart_damping", "cart_coulomb", "voltage_offset", "input_delay_s")


@dataclass(frozen=True)
class Identification:
    """
    :param start: parameters before
    :param fitted: parameters after
    :param uncertainty: one standard deviation by name, for those that were fitted
    :param unidentified: why by name, for those that kept their start values
    :param rmse: "train" and "validation" → "start" and "fitted" → x in m and θ in rad, over windows of half a second
    """

    start: CartPoleParameters
    fitted: CartPoleParameters
    uncertainty: dict[str, float]
    unidentified: dict[str, str]
    rmse: dict[str, dict[str, tuple[float, float]]]


def split(recordings: Sequence[Recording], start: CartPoleParameters, seed: int) -> tuple[list[Windows], list[Windows]]:
    """
    Windows to fit to and windows to check with: a quarter of the files, evenly spread, or the last quarter of a single one.

    :param recordings: at least one
    :param start: windows at the ends of its rail are left out
    :param seed: which files
    :return: training and validation windows
    """
    parts = [_windows(recording, start, number) for number, recording in enumerate(recordings)]
    if len(parts) > 1:
        spacing = max(2, min(4, len(parts)))
        held = set(range(int(np.random.default_rng(seed).integers(spacing)), len(parts), spacing))
        return (
            joined([part for number, part in enumerate(parts) if number not in held]),
            joined([part for number, part in enumerate(parts) if number in held]),
        )
    only, n_steps = parts[0], parts[0].x.shape[1]
    border = only.first[0] + 0.75 * (only.first[-1] + n_steps - only.first[0])
    # No window reaches over the border, or training would have seen what validation asks.
    training, validation = only.pick(only.first + n_steps <= border), only.pick(only.first >= border)
    if not len(training) or not len(validation):
        raise ValueError(f"{recordings[0].name}: too short to fit to one part and check with another; record 4 s or more")
    return [training], [validation]


def has_windows(recording: Recording, start: CartPoleParameters) -> bool:
    """
    :param recording: perhaps too short, or all of it at an end of the rail
    :param start: whose rail it is
    :return: whether there is anything in it to fit to
    """
    try:
        return len(_windows(recording, start, 0)) > 0
    except RecordingError:
        return False


def _windows(recording: Recording, start: CartPoleParameters, number: int) -> Windows:
    longest_delay_s = max(LONGEST_DELAY_S, start.input_delay_s)
    where = {"rail_length_m": start.rail_length_m, "longest_delay_s": longest_delay_s}
    return windows_of(recording, WINDOW_S, every_s=EVERY_S, source=number, **where)[0]


def not_excited(batches: Sequence[Windows]) -> dict[str, str]:
    """Parameters that these windows can say nothing about because something stood still, and why."""
    reasons: dict[str, str] = {}
    voltage = np.concatenate([batch.u.ravel() for batch in batches])
    if np.ptp(voltage) < 0.2:
        reasons |= dict.fromkeys(DRIVE, f"the voltage is constant ({voltage.mean():.2f} V)")
    if max(np.ptp(batch.x[batch.source == n]) for batch in batches for n in np.unique(batch.source)) < 0.003:
        reasons |= dict.fromkeys(CART, "the cart never moves (less than 3 mm)")
    if max(np.ptp(batch.theta[batch.source == n]) for batch in batches for n in np.unique(batch.source)) < 0.03:
        reasons |= dict.fromkeys(POLE, "the pole never swings (less than 0.03 rad)")
    return reasons


def not_narrowed(jacobian: Array, n_windows: int) -> np.ndarray:
    """
    Parameters that the data leave about as uncertain as they were, alone or in combination with others.

    Before the data each parameter is uncertain by its scale, one unit. A residual counts as one unit of noise, and all those
    of a window as two independent readings.

    :param jacobian: of the residuals by the parameters in units of their scales, (r, p)
    :param n_windows: that the residuals are from
    :return: mask, (p,)
    """
    weight = 2.0 * n_windows / len(jacobian)
    covariance = np.linalg.inv(np.eye(jacobian.shape[1]) + weight * jacobian.T @ jacobian)
    return np.sqrt(np.diag(covariance)) > LARGEST_SHRINKAGE


def uncertainties(problem: Problem, vector: Array) -> Array:
    """
    Standard deviations of the fitted vector that hold for correlated residuals.

    Neighbouring residuals repeat each other, so their number says little. The jackknife leaves out a whole block of time in
    turn and takes one Gauss-Newton step from the optimum to the new one; where there are several recordings it also leaves out
    whole recordings, and the larger of the two answers counts.

    :param problem: that was solved
    :param vector: its solution, (p,)
    :return: in the parameters' units, (p,)
    """
    residuals, jacobian = problem.residuals(vector), problem.jacobian(vector)
    # Derivative of the soft-l1 loss: the weight each residual had in the fit.
    weights = 1.0 / np.sqrt(1.0 + residuals**2)
    found = np.zeros(len(vector))
    for block_s in (BLOCK_S, None):
        members = problem.groups(block_s)
        groups = np.unique(members)
        if len(groups) < 3:
            continue
        steps = []
        for group in groups:
            left_out = members == group
            weighted = weights[left_out, None] * jacobian[left_out]
            kept = weights[~left_out, None] * jacobian[~left_out]
            # A ridge far below any real curvature: what is left may not determine every parameter.
            hessian = kept.T @ jacobian[~left_out] + 1e-3 * np.eye(len(vector))
            steps.append(np.linalg.solve(hessian, weighted.T @ residuals[left_out]))
        found = np.maximum(found, np.sqrt((len(groups) - 1) / len(groups) * np.sum(np.square(steps), axis=0)))
    return found * problem.scales


def rmse(batches: Sequence[Windows], parameters: CartPoleParameters) -> tuple[float, float]:
    """Of x in m and θ in rad, over all samples of all windows."""
    both = [errors([parameters], batch) for batch in batches]
    x, theta = (np.concatenate([pair[i].ravel() for pair in both]) for i in range(2))
    return float(np.sqrt(np.mean(x**2))), float(np.sqrt(np.mean(theta**2)))


def identify(
    recordings: Sequence[Recording],
    start: CartPoleParameters,
    *,
    n_starts: int = 4,
    seed: int = 0,
    progress: Callable[[str], object] = lambda stage: None,
) -> Identification:
    """
    Fit parameters to recordings by multi-step prediction errors.

    :param recordings: of one rig
    :param start: where the search starts, and the values of what cannot be identified
    :param n_starts: searches, the first from ``start``, the others from around it
    :param seed: of the held-out files and the other starts
    :param progress: called after each of the ``n_starts + 2`` stages with what was done
    :return: what was found
    """
    training, validation = split(recordings, start, seed)
    unidentified = not_excited(training)
    names = [name for name in FITTED if name not in unidentified]
    # Every third window is enough to find the right valley.
    coarse = [batch.pick(slice(None, None, 3)) for batch in training]
    fitted = _search(Problem(coarse, start, names), n_starts, seed, progress) if names else start
    uncertainty = np.zeros(0)
    while names:
        problem = Problem(training, start, names)
        vector = _solve(problem, problem.vector(fitted), max_nfev=25, tolerance=1e-6)
        fitted = problem.parameters(vector)
        progress("all windows")
        weak = not_narrowed(problem.jacobian(vector), sum(map(len, training)))
        reason = "these recordings do not tell it apart from the others"
        if not weak.any():
            uncertainty = uncertainties(problem, vector)
            # The same measure as above: what the data leave about as uncertain as it was, they do not tell.
            weak = uncertainty / problem.scales > LARGEST_SHRINKAGE
            reason = "it changes too much when parts of these recordings are left out"
        if not weak.any():
            break
        unidentified |= {name: reason for name, is_weak in zip(names, weak, strict=True) if is_weak}
        names = [name for name in names if name not in unidentified]
    # The last parameters to be given up go back to their start values too.
    fitted, uncertainty = (fitted, uncertainty) if names else (start, np.zeros(0))
    progress("uncertainties")
    return Identification(
        start=start,
        fitted=fitted,
        uncertainty=dict(zip(names, uncertainty.tolist(), strict=True)),
        unidentified=unidentified,
        rmse={
            part: {"start": rmse(batches, start), "fitted": rmse(batches, fitted)}
            for part, batches in (("train", training), ("validation", validation))
        },
    )


def _search(problem: Problem, n_starts: int, seed: int, progress: Callable[[str], object]) -> CartPoleParameters:
    """The best of several short searches."""
    rng = np.random.default_rng(seed)
    first = problem.vector(problem.start)
    best, least = first, np.inf
    for number in range(n_starts):
        # Factors for what is positive and large, shifts for what may be zero.
        around = first * np.exp(rng.normal(0.0, 0.4, len(first))) + rng.normal(0.0, 0.2, len(first))
        vector = _solve(problem, first if number == 0 else around, max_nfev=12, tolerance=1e-4)
        cost = float(np.sum(np.sqrt(1.0 + problem.residuals(vector) ** 2) - 1.0))
        if cost < least:
            best, least = vector, cost
        progress(f"start {number + 1}")
    return problem.parameters(best)


def _solve(problem: Problem, vector: Array, max_nfev: int, tolerance: float) -> Array:
    solution = least_squares(
        problem.residuals,
        # The search must begin inside the bounds, not on them.
        np.clip(vector, problem.low + 1e-3, problem.high - 1e-3),
        problem.jacobian,
        bounds=(problem.low, problem.high),
        loss="soft_l1",
        max_nfev=max_nfev,
        xtol=tolerance,
        ftol=tolerance,
    )
    return np.asarray(solution.x)
