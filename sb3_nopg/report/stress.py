"""How a policy does on many simulated systems that might be the real one, for a report: figures and words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

# What hurts is told of this many at most.
_MOST_TOLD = 3
#: names of the thirds of a range
PLACES = ("low", "middling", "high")


class StressedFactor(Protocol):
    """Something that systems differ in; ``shares`` hold in the lower, the middle and the upper third of its range."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def shares(self) -> tuple[float, float, float]: ...
    @property
    def clear(self) -> bool: ...


class StressResult(Protocol):
    """What a stress test hands over: `nopg_envs.stress.StressTest`, which this package does not import."""

    @property
    def task(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def voltage_limit_volt(self) -> float: ...
    @property
    def held(self) -> np.ndarray: ...
    @property
    def interval(self) -> tuple[float, float]: ...
    @property
    def fates(self) -> Mapping[str, int]: ...
    @property
    def factors(self) -> Sequence[StressedFactor]: ...
    @property
    def values(self) -> Mapping[str, np.ndarray]: ...


@dataclass(frozen=True)
class FactorFigures:
    """
    Something that rigs differ in.

    :param name: of it
    :param unit: of its range
    :param low: end of its range
    :param high: the other end
    :param shares: of the rigs that hold in the lower, the middle and the upper third of the range
    :param clear: whether they differ by more than chance
    """

    name: str
    unit: str
    low: float
    high: float
    shares: tuple[float, ...]
    clear: bool

    def text(self) -> str:
        """Where it hurts, and how much."""
        worst, best = int(np.argmin(self.shares)), int(np.argmax(self.shares))
        return (
            f"{self.name} where it is {PLACES[worst]} ({100 * self.shares[worst]:.0f} % held there, "
            f"{100 * self.shares[best]:.0f} % where it is {PLACES[best]})"
        )


@dataclass(frozen=True)
class StressFigures:
    """
    What became of a policy on rigs that might be the real one.

    :param task: that they had
    :param n_rigs: how many
    :param n_held: how many of them held to the end
    :param low: lower end of the 95 % interval of the share that holds
    :param high: upper end
    :param seconds: length of a flight
    :param voltage_limit_volt: beyond which voltages were cut
    :param fallen: how many let the pole fall, or did not have it upright at the end
    :param off_rail: how many left the rail
    :param no_number: how many times the policy gave no number
    :param factors: that rigs differ in, the one that makes the largest difference first
    """

    task: str
    n_rigs: int
    n_held: int
    low: float
    high: float
    seconds: float
    voltage_limit_volt: float
    fallen: int
    off_rail: int
    no_number: int
    factors: tuple[FactorFigures, ...]

    @classmethod
    def of(cls, result: StressResult) -> "StressFigures":
        """
        :param result: of a stress test
        """
        low, high = result.interval
        fates = result.fates
        return cls(
            task=result.task,
            n_rigs=len(result.held),
            n_held=int(result.held.sum()),
            low=low,
            high=high,
            seconds=result.seconds,
            voltage_limit_volt=result.voltage_limit_volt,
            fallen=fates.get("angle", 0) + fates.get("down", 0),
            off_rail=fates.get("rail", 0),
            no_number=fates.get("action", 0),
            factors=tuple(
                FactorFigures(one.name, one.unit, one.low, one.high, one.shares, one.clear) for one in result.factors
            ),
        )

    @property
    def share(self) -> float:
        """Of the rigs that hold."""
        return self.n_held / self.n_rigs

    def share_text(self) -> str:
        """How many held, with the interval."""
        lasted = f"{self.seconds:g} s"
        held = f"held for {lasted}" if self.task == "balance" else f"stood upright in the end, after {lasted}"
        return (
            f"{self.n_held} of {self.n_rigs} {held}, {100 * self.share:.3g} % (95 % interval "
            f"{100 * self.low:.3g} to {100 * self.high:.3g} %)"
        )

    def fate_text(self) -> str:
        """What became of the others; ``""`` where there are none."""
        fall = "let the pole fall" if self.task == "balance" else "did not"
        fates = ((self.fallen, fall), (self.off_rail, "left the rail"), (self.no_number, "got no number from the policy"))
        return ", ".join(f"{n} {fate}" for n, fate in fates if n)

    def what_hurts(self) -> str:
        """Which differences between the rigs count, the worst first; ``"none"`` where none does."""
        return "; ".join(factor.text() for factor in self.factors[:_MOST_TOLD] if factor.clear) or "none"

    def text(self) -> str:
        """All of it, in a line."""
        fates = f": {self.fate_text()}" if self.fate_text() else ""
        return f"{self.share_text()}{fates}; what hurts: {self.what_hurts()}"


@dataclass(frozen=True)
class StressPicture:
    """
    What is drawn of it.

    :param figures: of the test
    :param places: of each rig in the range of each factor, from 0 to 1, (n_factors, n_rigs)
    :param held: whether each rig held, (n_rigs,)
    """

    figures: StressFigures
    places: np.ndarray
    held: np.ndarray

    @classmethod
    def of(cls, result: StressResult) -> "StressPicture":
        """
        :param result: of a stress test
        """
        places = [(result.values[one.name] - one.low) / (one.high - one.low) for one in result.factors]
        return cls(StressFigures.of(result), np.array(places).reshape(-1, len(result.held)), result.held)
