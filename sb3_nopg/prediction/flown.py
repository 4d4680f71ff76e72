"""
Predicted against flown: where a model that has not seen a flight was right about it, and where not.

The recorded actions are followed from places of the flight, for 1, 10 and 50 steps, and the errors compared with those that
the model had promised (:mod:`sb3_nopg.prediction.promised_errors`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.prediction.promised_errors import PromisedErrors

STEPS = (1, 10, 50)
#: errors above so many times those that were promised contradict a model
CONTRADICTS = 1.5
#: the most by which noise is raised for it
MOST_NOISE_SCALE = 3.0


@dataclass(frozen=True)
class FlownAgainstPredicted:
    """
    Root mean square errors, in standard deviations of each coordinate of the data that the model was fitted to. None for
    what flights or data are too short to tell.

    :param steps: numbers of steps
    :param flown: errors along each flight, by its name
    :param promised: errors that the model had promised there
    """

    steps: tuple[int, ...]
    flown: Mapping[str, tuple[float | None, ...]]
    promised: Mapping[str, tuple[float | None, ...]]

    def ratios_of(self, name: str) -> tuple[float | None, ...]:
        """
        Of the errors to those that were promised: about 1 where they are what the model had promised.

        :param name: of a flight
        """
        return tuple(
            None if one is None or other is None else one / max(other, 1e-12)
            for one, other in zip(self.flown[name], self.promised[name], strict=True)
        )

    @property
    def ratios(self) -> tuple[float | None, ...]:
        """After each number of steps the largest of all flights: one that contradicts is not outvoted by two that do not."""
        by_steps = zip(*(self.ratios_of(name) for name in self.flown), strict=True)
        return tuple(max((ratio for ratio in own if ratio is not None), default=None) for own in by_steps)

    @property
    def contradicting(self) -> tuple[str, ...]:
        """Flights that contradict the model: it was further off than it had said."""
        return tuple(
            name for name in self.flown if any(ratio is not None and ratio > CONTRADICTS for ratio in self.ratios_of(name))
        )

    @property
    def noise_scale(self) -> float:
        """
        What to multiply the noise of the next model by, where flights contradict this one. Noise of a step that is larger by a
        factor makes errors after any number of steps larger by it, so the geometric mean of a flight's ratios fits them best;
        of all flights the largest. Never less than one: noise is no smaller than what the data have shown.
        """
        means = [_geometric_mean(self.ratios_of(name)) for name in self.contradicting]
        return min(max(1.0, *means), MOST_NOISE_SCALE) if means else 1.0

    def text(self) -> str:
        """For a person, in a few sentences."""
        told = [f"{name} {ratios}" for name in self.flown if (ratios := self._ratio_text(name))]
        if not told:
            return "The flights were too short to be compared with the prediction."
        named = self.contradicting
        verdict = "They are about what it had promised"
        if named:
            contradict = f"{' and '.join(named)} contradict{'s' if len(named) == 1 else ''} the model"
            raised = f"raised to {self.noise_scale:.2g} times what it was" if self.noise_scale > 1.0 else "enough on the whole"
            verdict = f"{contradict}, and its noise is {raised}"
        return f"Errors along the flights, against those that the model had promised: {'; '.join(told)}. {verdict}."

    def _ratio_text(self, name: str) -> str:
        return ", ".join(
            f"{ratio:.2g} times after {n} step{'s' if n > 1 else ''}"
            for n, ratio in zip(self.steps, self.ratios_of(name), strict=True)
            if ratio is not None
        )


def _geometric_mean(ratios: Sequence[float | None]) -> float:
    known = np.array([ratio for ratio in ratios if ratio is not None])
    return float(np.exp(np.log(np.maximum(known, 1e-12)).mean()))


def flown_against_predicted(
    promised: PromisedErrors, flown: Mapping[str, TransitionDataset], steps: Sequence[int] = STEPS
) -> FlownAgainstPredicted:
    """
    :param promised: of a model that was fitted before the flights
    :param flown: what was recorded since, a flight each, by its name
    :param steps: numbers of steps to follow the recorded actions for
    """
    found, expected = {}, {}
    for name, flight in flown.items():
        found[name], expected[name] = zip(*(promised.found_and_promised(flight, n_steps) for n_steps in steps), strict=True)
    return FlownAgainstPredicted(tuple(steps), found, expected)
