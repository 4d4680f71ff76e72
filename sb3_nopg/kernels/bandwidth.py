"""
Bandwidths of the Gaussian kernels: standard deviations, in the units of the data.

The paper chooses them in two steps: cross-validation of a density in each dimension on its own, then an empirical factor.
:func:`select_bandwidths` does both for the three kernels of a data set, or follows another rule.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sb3_nopg.common.errors import InputError
from sb3_nopg.kernels.bandwidth_rules import MARGINAL_RULES
from sb3_nopg.kernels.effective_neighbors import effective_neighbors

# Squares of numbers beyond this, or below its inverse, leave the range of float64.
LARGEST_MAGNITUDE = 1e150


@dataclass(frozen=True)
class Bandwidths:
    """
    The kernels' bandwidths, in the units of the data.

    :param state: of the kernel ψ between states, (d_s,)
    :param action: of the kernel φ between actions, (d_a,)
    :param next_state: of the kernel ϕ around next states, (d_s,)
    """

    state: np.ndarray
    action: np.ndarray
    next_state: np.ndarray


def varies(samples: np.ndarray) -> np.ndarray:
    """
    Which dimensions change by more than rounding errors.

    :param samples: (n, d)
    :return: boolean, (d,)
    """
    rounding = np.finfo(samples.dtype).eps if samples.dtype.kind == "f" else 0.0
    data = samples.astype(np.float64)
    extent = data.max(axis=0) - data.min(axis=0)
    return extent > np.maximum(8 * rounding * np.abs(data).max(axis=0), 1 / LARGEST_MAGNITUDE)


#: looks at states and next states together; see :mod:`sb3_nopg.kernels.effective_neighbors`
EFFECTIVE_NEIGHBORS = "effective_neighbors"


def _positive_per_dimension(value: ArrayLike, n_dims: int, field: str) -> np.ndarray:
    """
    :param value: a positive number or one for each dimension
    :param n_dims: number of dimensions d
    :param field: name of the value, for the error
    :return: (d,)
    """
    fix = f"Give a positive number or {n_dims} of them, one for each dimension"
    try:
        array = np.asarray(value)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(field, f"is not an array of numbers ({error})", fix) from error
    if array.dtype.kind not in "iuf":
        raise InputError(field, f"should hold numbers but holds {array.dtype}", fix)
    if array.shape not in ((), (n_dims,)):
        raise InputError(field, f"has shape {array.shape} where the data have {n_dims} dimensions", fix)
    if not np.all(np.isfinite(array) & (array > 0)):
        raise InputError(field, f"must be positive and finite, got {array.tolist()}", fix)
    return np.full(n_dims, array, dtype=np.float64)


def _apply_rule(samples: np.ndarray, rule: str, name: str, seed: int) -> np.ndarray:
    """
    :param samples: (n, d)
    :param rule: a name in ``MARGINAL_RULES``
    :param name: name of the bandwidth, for the error
    :param seed: of the rule's random choices
    :return: (d,)
    """
    if rule not in MARGINAL_RULES:
        known = ", ".join(map(repr, (*MARGINAL_RULES, EFFECTIVE_NEIGHBORS)))
        raise InputError(name, f"there is no rule {rule!r}", f"Choose one of {known}, or give the bandwidth as numbers")
    if len(samples) < 2:
        raise InputError(name, f"a rule cannot choose from {len(samples)} samples", "Give two or more, or a number")
    data = samples.astype(np.float64)
    if not np.all(np.abs(data) <= LARGEST_MAGNITUDE):
        raise InputError(name, f"the samples hold NaN or numbers beyond {LARGEST_MAGNITUDE:g}", "Remove or rescale them")

    low, magnitude = data.min(axis=0), np.abs(data).max(axis=0)
    extent = data.max(axis=0) - low
    varying = varies(samples)
    # A constant dimension multiplies all weights of a query by the same number, so any bandwidth will do that is positive
    # and far above its rounding errors.
    bandwidths = np.maximum(magnitude, 1.0)
    if varying.any():
        scaled = (data[:, varying] - low[varying]) / extent[varying]
        bandwidths[varying] = MARGINAL_RULES[rule](scaled, seed) * extent[varying]
    return bandwidths


def select_bandwidth(
    samples: np.ndarray, bandwidth: str | ArrayLike, factor: ArrayLike = 1.0, *, name: str, seed: int = 0
) -> np.ndarray:
    """
    Bandwidth of one kernel: what a rule says, or the numbers given, times a factor.

    A dimension in which the samples are constant gets max(|value|, 1) from every rule.

    :param samples: (n, d)
    :param bandwidth: name of a rule in ``MARGINAL_RULES``, or a number for all dimensions, or one for each, (d,)
    :param factor: number for all dimensions, or one for each, (d,)
    :param name: what the caller calls the bandwidth; errors name it, or ``{name}_factor``
    :param seed: of the rule's random choices
    :return: positive and finite, (d,)
    """
    samples = np.asarray(samples)
    if samples.ndim != 2 or samples.dtype.kind not in "iuf":
        problem = f"the samples it is for hold {samples.dtype} in shape {samples.shape}"
        raise InputError(name, problem, "Give numbers as an array (n, d)")
    n_dims = samples.shape[1]
    factors = _positive_per_dimension(factor, n_dims, f"{name}_factor")
    if isinstance(bandwidth, str):
        chosen = _apply_rule(samples, bandwidth, name, seed)
    else:
        chosen = _positive_per_dimension(bandwidth, n_dims, name)
    with np.errstate(over="ignore", under="ignore"):
        scaled = chosen * factors
    if not np.all(np.isfinite(scaled) & (scaled > 0)):
        raise InputError(f"{name}_factor", f"turns {chosen.tolist()} into {scaled.tolist()}", "Use a factor nearer to 1")
    return scaled


def select_bandwidths(
    observations: np.ndarray,
    actions: np.ndarray,
    next_observations: np.ndarray,
    *,
    state: str | ArrayLike = "cross_validation",
    action: str | ArrayLike = "cross_validation",
    next_state: str | ArrayLike = "cross_validation",
    state_factor: ArrayLike = 1.0,
    action_factor: ArrayLike = 1.0,
    next_state_factor: ArrayLike = 1.0,
    seed: int = 0,
) -> Bandwidths:
    """
    Bandwidths of all kernels; each may be a rule's name, a number for all dimensions, or an array with one for each.

    :param observations: (n, d_s)
    :param actions: (n, d_a)
    :param next_observations: (n, d_s)
    :param state: bandwidth of the state kernel
    :param action: bandwidth of the action kernel
    :param next_state: bandwidth of the next-state kernel
    :param state_factor: multiplies the state kernel's
    :param action_factor: multiplies the action kernel's
    :param next_state_factor: multiplies the next-state kernel's
    :param seed: of the rules' random choices
    :return: the bandwidths, times their factors
    """
    given = (observations, next_observations, seed)
    state = _neighbor_rule(state, "state_bandwidth", *given)
    # Beside states chosen so, actions do best with a kernel as wide as they scatter.
    action = "standard_deviation" if _is_rule(action, EFFECTIVE_NEIGHBORS) else action
    next_state = _neighbor_rule(next_state, "next_state_bandwidth", *given)

    return Bandwidths(
        state=select_bandwidth(observations, state, state_factor, name="state_bandwidth", seed=seed),
        action=select_bandwidth(actions, action, action_factor, name="action_bandwidth", seed=seed),
        next_state=select_bandwidth(next_observations, next_state, next_state_factor, name="next_state_bandwidth", seed=seed),
    )


def _is_rule(bandwidth: str | ArrayLike, rule: str) -> bool:
    return isinstance(bandwidth, str) and bandwidth == rule


def _neighbor_rule(
    bandwidth: str | ArrayLike, name: str, observations: np.ndarray, next_observations: np.ndarray, seed: int
) -> str | ArrayLike:
    """
    Numbers in the place of the rule that looks at states and next states together; anything else as it is.

    :param bandwidth: a rule's name or numbers
    :param name: of the bandwidth, for errors
    """
    if not _is_rule(bandwidth, EFFECTIVE_NEIGHBORS):
        return bandwidth
    # Constant dimensions and data that no rule can use are treated as by all rules.
    chosen = _apply_rule(observations, "standard_deviation", name, seed)
    varying = varies(observations)
    if varying.any():
        states, queries = (samples.astype(np.float64)[:, varying] for samples in (observations, next_observations))
        chosen[varying] = effective_neighbors(states, queries, seed)
    return chosen
