"""
Bandwidths of the Gaussian kernels: standard deviations, in the units of the data.

The paper chooses them in two steps: cross-validation of a density in each dimension on its own, then an empirical factor.
:func:`select_bandwidths` does both for the three kernels of a data set, or follows another rule.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from sb3_nopg.effective_neighbors import effective_neighbors
from sb3_nopg.errors import InputError

# Cross-validation compares all pairs of samples within parts of a large data set: about 0.1 s a dimension on one core.
PART_SIZE = 500
MAX_PARTS = 8
# Smallest bandwidth where values repeat on many levels, as a fraction of the spread: see _narrowest_bandwidth().
REPEATED_VALUES_FLOOR = 1 / 50
# Share of the samples that repeat another's value from which on that holds; below, in proportion, so there is no threshold.
# Actions clipped at their limits one time in ten would otherwise get 1/250 of the spread.
REPEATED_VALUES_SHARE = 1 / 10
# Values closer than this fraction of the spread count as one: cos(θ) and cos(−θ) may differ in float32's last digit.
SAME_VALUE_TOLERANCE = 3e-7
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


def _spread(values: np.ndarray) -> float:
    """
    Scale of the bulk of the data: the standard deviation or, where outliers inflate it, the interquartile range / 1.34.

    :param values: not all equal, (n,)
    :return: the scale; the two agree on a normal distribution
    """
    standard_deviation = float(values.std())
    lower_quartile, upper_quartile = np.percentile(values, [25, 75])
    robust = float(upper_quartile - lower_quartile) / 1.34
    # Half of the samples on one value leave no interquartile range, or one that is a rounding error.
    return min(standard_deviation, robust) if robust > SAME_VALUE_TOLERANCE * standard_deviation else standard_deviation


def _narrowest_bandwidth(parts: np.ndarray, spread: float) -> float:
    """
    Lower end of the search.

    Where values repeat (grids, clipped actions, coarse sensors) a held-out sample finds its copies among the others and the
    likelihood rewards h → 0, on a grid without bound. The data no longer say which h is best; a convention must: half the
    spacing between levels, the narrowest kernel that still lets neighbouring levels know of each other, or a fiftieth of the
    spread where levels are finer than that. Narrower kernels make the model a table of nearest samples, in which a pendulum
    never leaves its grid point. The paper fills the gap between torques of −2 and 2 with a factor of 50 on a narrower
    bandwidth instead; here the rule gives 2 by itself, so a factor of 1 is right for a grid of actions.

    Elsewhere the likelihood has its maximum well above the typical gap between neighbours, and the search may begin there.

    :param parts: samples, (n_parts, m)
    :param spread: scale of all the data, also where these few are constant
    :return: a positive bandwidth
    """
    gaps = np.diff(np.sort(parts, axis=1), axis=1)
    repeated = gaps <= SAME_VALUE_TOLERANCE * spread
    half_spacing = 0.5 * float(np.median(gaps[~repeated])) if not repeated.all() else 0.0
    fraction_of_spread = REPEATED_VALUES_FLOOR * spread
    repeated_share = min(1.0, float(np.mean(repeated)) / REPEATED_VALUES_SHARE)
    lowest = min(float(np.median(gaps)), fraction_of_spread)
    return max(lowest, repeated_share * max(half_spacing, fraction_of_spread))


def _held_out_log_likelihood(parts: np.ndarray) -> Callable[[float], float]:
    """
    Mean log-density of the samples, each under a kernel density estimate from the others of its part, up to a constant.

    :param parts: samples within [0, 1], (n_parts, m)
    :return: function of the bandwidth
    """
    squared_distances = np.square(parts[:, :, None] - parts[:, None, :])  # (n_parts, m, m)
    squared_distances[:, np.eye(parts.shape[1], dtype=bool)] = np.inf
    # Log-sum-exp: with its largest term, the nearest sample's, taken out, no sum underflows, however far a sample lies.
    nearest = squared_distances.min(axis=2)
    # Sums of terms between zero and one are precise enough in float32, where exp() is several times faster.
    excess = (squared_distances - nearest[:, :, None]).astype(np.float32)
    terms = np.empty_like(excess)

    def log_likelihood(bandwidth: float) -> float:
        half_inverse_variance = 0.5 / bandwidth**2
        np.multiply(excess, np.float32(-half_inverse_variance), out=terms)
        # exp(-80) is nothing beside the largest term, and below it float32 turns subnormal and slow.
        np.exp(np.maximum(terms, np.float32(-80), out=terms), out=terms)
        return float(
            np.log(terms.sum(axis=2)).mean(dtype=np.float64) - half_inverse_variance * nearest.mean() - np.log(bandwidth)
        )

    return log_likelihood


def _maximize(objective: Callable[[float], float], lowest: float, highest: float) -> float:
    """
    Maximise over a positive number, to one percent, on a logarithmic scale.

    :param objective: function to maximise; may have several maxima
    :param lowest: smallest number allowed
    :param highest: largest number allowed
    :return: the best number found
    """

    def loss(log_number: float) -> float:
        return -objective(float(np.exp(log_number)))

    # Steps of a factor of two at most find the right hill; its summit lies between the best step's neighbours.
    n_steps = int(np.ceil(np.log2(highest / lowest))) + 1
    steps = np.linspace(np.log(lowest), np.log(highest), n_steps)
    losses = [loss(step) for step in steps]
    best = int(np.argmin(losses))
    bounds = (steps[max(best - 1, 0)], steps[min(best + 1, n_steps - 1)])
    refined = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01})
    # The refinement never tries the ends of its interval, and the lowest number may be the best.
    return float(np.exp(refined.x if refined.fun < losses[best] else steps[best]))


def cross_validation(samples: np.ndarray, seed: int) -> np.ndarray:
    """
    The paper's rule: in each dimension, the bandwidth that best predicts held-out samples.

    It maximises the leave-one-out log-likelihood of a one-dimensional density. Fewer folds would cost the same here and bring
    in chance: that likelihood is flat, and with ten shuffled folds the bandwidth of 200 normal samples depends on the seed,
    in the worst case threefold.

    From 1,000 samples on it maximises the mean likelihood of up to eight random parts of 500. Because the best bandwidth of a
    density falls as n^(-1/5), the result is then multiplied by (500 / n)^(1/5). The mean over parts scatters less than the
    likelihood of the whole. Lone outliers widen the bandwidth, as ever with likelihoods.

    :param samples: scaled to [0, 1] in every dimension, (n, d)
    :param seed: of the random parts
    :return: bandwidths, (d,)
    """
    n_samples = len(samples)
    n_parts = min(max(n_samples // PART_SIZE, 1), MAX_PARTS)
    part_size = PART_SIZE if n_parts > 1 else n_samples
    chosen = np.random.default_rng(seed).permutation(n_samples)[: n_parts * part_size]
    bandwidths = []
    for column in samples.T:
        parts = column[chosen].reshape(n_parts, part_size)
        lowest = _narrowest_bandwidth(parts, _spread(column))
        # The likelihood falls once the bandwidth exceeds every distance.
        bandwidth = _maximize(_held_out_log_likelihood(parts), lowest, highest=1.0)
        bandwidths.append(max(bandwidth * (part_size / n_samples) ** 0.2, lowest))
    return np.array(bandwidths)


def silverman(samples: np.ndarray, seed: int) -> np.ndarray:
    """
    Silverman's rule of thumb, σ_j (4 / ((d + 2) n))^(1 / (d + 4)), with σ_j = min(standard deviation, IQR / 1.34)
    (the standard deviation alone where the interquartile range is zero) and d the number of dimensions that vary.

    :param samples: not constant in any dimension, (n, d)
    :param seed: unused; rules share one signature
    :return: bandwidths, (d,)
    """
    n_samples, n_dims = samples.shape
    scale = (4 / ((n_dims + 2) * n_samples)) ** (1 / (n_dims + 4))
    return scale * np.array([_spread(column) for column in samples.T])


def standard_deviation(samples: np.ndarray, seed: int) -> np.ndarray:
    """
    As wide as the data: actions are few and far between, and what a narrow kernel finds there is luck.

    :param samples: not constant in any dimension, (n, d)
    :param seed: unused; rules share one signature
    :return: bandwidths, (d,)
    """
    return samples.std(axis=0)


# Rules that look at one kernel's samples only, by name: (n, d) scaled samples without constant dimensions, seed -> (d,).
MARGINAL_RULES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "cross_validation": cross_validation,
    "silverman": silverman,
    "standard_deviation": standard_deviation,
}
#: looks at states and next states together; see :mod:`sb3_nopg.effective_neighbors`
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
    return Bandwidths(
        state=select_bandwidth(
            observations, _joint_rule(state, "state_bandwidth", *given), state_factor, name="state_bandwidth", seed=seed
        ),
        # Beside states chosen so, actions do best with a kernel as wide as they scatter.
        action=select_bandwidth(
            actions,
            "standard_deviation" if _is_joint(action) else action,
            action_factor,
            name="action_bandwidth",
            seed=seed,
        ),
        next_state=select_bandwidth(
            next_observations,
            _joint_rule(next_state, "next_state_bandwidth", *given),
            next_state_factor,
            name="next_state_bandwidth",
            seed=seed,
        ),
    )


def _is_joint(bandwidth: str | ArrayLike) -> bool:
    return isinstance(bandwidth, str) and bandwidth == EFFECTIVE_NEIGHBORS


def _joint_rule(
    bandwidth: str | ArrayLike, name: str, observations: np.ndarray, next_observations: np.ndarray, seed: int
) -> str | ArrayLike:
    """
    Numbers in the place of a rule that looks at states and next states together; anything else as it is.

    :param bandwidth: a rule's name or numbers
    :param name: of the bandwidth, for errors
    """
    if not _is_joint(bandwidth):
        return bandwidth
    # Constant dimensions and data that no rule can use are treated as by all rules.
    chosen = _apply_rule(observations, "standard_deviation", name, seed)
    varying = varies(observations)
    if varying.any():
        states, queries = (samples.astype(np.float64)[:, varying] for samples in (observations, next_observations))
        chosen[varying] = effective_neighbors(states, queries, seed)
    return chosen
