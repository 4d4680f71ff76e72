"""What became of a policy on many rigs: the share that holds, and what the others have in common."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nopg_envs.stress.rigs import Quantity

#: fates of a flight: it held; the pole fell, or was not upright at the end; the cart left its rail; the policy gave no number
HELD, ANGLE, DOWN, RAIL, ACTION = "held", "angle", "down", "rail", "action"

# 97.5 % of a normal distribution lie below: two of these ends make an interval of 95 %.
_Z = 1.959963984540054
_N_SHUFFLES = 1000
# A factor is clear where chance alone does as much in fewer than one of twenty shuffles.
_CLEAR = 0.05


@dataclass(frozen=True)
class Outcome:
    """
    :param fate: ``"held"``, or what ended the flight
    :param seconds: that it lasted
    """

    fate: str
    seconds: float


@dataclass(frozen=True)
class Factor:
    """
    Something that rigs differ in, and what it does to the policy.

    :param name: as `CartPoleParameters` calls it
    :param unit: of its range
    :param low: end of its range
    :param high: the other end
    :param shares: of the rigs that hold in the lower, the middle and the upper third of the range
    :param chance: how often, were it all chance, the largest difference between thirds of any factor would be this large
    """

    name: str
    unit: str
    low: float
    high: float
    shares: tuple[float, float, float]
    chance: float

    @property
    def spread(self) -> float:
        """Difference between the best and the worst third."""
        return max(self.shares) - min(self.shares)

    @property
    def clear(self) -> bool:
        """Whether this is more than chance."""
        return self.chance < _CLEAR


@dataclass(frozen=True)
class StressTest:
    """
    :param task: ``"balance"`` or ``"swing_up"``
    :param start: where flights begin
    :param seconds: length of a flight
    :param control_hz: how often the policy was asked
    :param voltage_limit_volt: beyond which voltages were cut
    :param seed: of the rigs
    :param outcomes: one for each rig
    :param factors: the one that hurts most first
    :param values: of each factor on each rig, (n_rigs,)
    """

    task: str
    start: str
    seconds: float
    control_hz: float
    voltage_limit_volt: float
    seed: int
    outcomes: tuple[Outcome, ...]
    factors: tuple[Factor, ...]
    values: Mapping[str, np.ndarray]

    @property
    def n_rigs(self) -> int:
        return len(self.outcomes)

    @property
    def held(self) -> np.ndarray:
        """Whether each rig held, (n_rigs,)."""
        return np.array([outcome.fate == HELD for outcome in self.outcomes])

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share that holds, 95 %, by Wilson."""
        return wilson_interval(int(self.held.sum()), self.n_rigs)

    @property
    def fates(self) -> dict[str, int]:
        """How many flights ended how, those that occurred."""
        ended = [outcome.fate for outcome in self.outcomes]
        return {fate: ended.count(fate) for fate in (HELD, ANGLE, DOWN, RAIL, ACTION) if fate in ended}


def wilson_interval(n_held: int, n: int) -> tuple[float, float]:
    """
    Of a share, 95 %. Unlike the textbook's, it is never empty: 200 of 200 might be 98 %.

    :param n_held: successes
    :param n: trials, at least one
    """
    share, square = n_held / n, _Z**2 / n
    middle = (share + square / 2.0) / (1.0 + square)
    half = _Z * math.sqrt(share * (1.0 - share) / n + square / (4.0 * n)) / (1.0 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def find_factors(quantities: Sequence[Quantity], held: np.ndarray, seed: int) -> tuple[Factor, ...]:
    """
    Which differences between the rigs go with success. Outcomes are dealt out to the rigs at random many times: the largest
    difference that this makes between thirds of any quantity tells what chance can do, however many quantities there are.

    :param quantities: that the rigs differ in
    :param held: whether each rig held, (n_rigs,)
    :param seed: of the shuffles
    :return: the largest difference first; a quantity of which some third has no rig is left out
    """
    thirds = {quantity.name: _thirds(quantity) for quantity in quantities}
    told = [quantity for quantity in quantities if thirds[quantity.name].any(axis=1).all()]
    if not told:
        return ()
    generator = np.random.default_rng(seed)
    shuffled = generator.permuted(np.tile(held, (_N_SHUFFLES, 1)), axis=1).astype(np.float64)
    largest = np.max([np.ptp(_shares(shuffled, thirds[quantity.name]), axis=1) for quantity in told], axis=0)
    factors = []
    for quantity in told:
        lower, middle, upper = _shares(held[None].astype(np.float64), thirds[quantity.name])[0].tolist()
        spread = max(lower, middle, upper) - min(lower, middle, upper)
        # Less a rounding error: what is equal counts as reached. The real one is one of the shuffles.
        chance = float((1 + np.count_nonzero(largest >= spread - 1e-9)) / (1 + _N_SHUFFLES))
        factors.append(Factor(quantity.name, quantity.unit, quantity.low, quantity.high, (lower, middle, upper), chance))
    return tuple(sorted(factors, key=lambda factor: -factor.spread))


def _thirds(quantity: Quantity) -> np.ndarray:
    """Which rigs lie in the lower, the middle and the upper third of the range, (3, n_rigs)."""
    places = (quantity.values - quantity.low) / (quantity.high - quantity.low)
    return np.minimum(np.floor(3.0 * places), 2.0) == np.arange(3.0)[:, None]


def _shares(held: np.ndarray, thirds: np.ndarray) -> np.ndarray:
    """Share that holds in each third, (m, 3), of outcomes (m, n_rigs)."""
    return held @ thirds.T / thirds.sum(axis=1)
