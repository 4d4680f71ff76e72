"""
Rules that choose one kernel's bandwidth from its samples alone.

All take samples scaled to [0, 1] without constant dimensions, and a seed for their random choices.
"""

from collections.abc import Callable

import numpy as np
import scipy

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
    refined = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01})
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
