"""
Predicted against flown: where a model that has not seen a flight was right about it, and where not.

The recorded actions are followed from places of the flight, for 1, 10 and 50 steps, and the errors compared with those that
the model had promised: its errors along episodes that it was fitted without, times how much farther its noise takes it astray
along the flight than along those. Near the top of a pendulum small errors grow a hundredfold in a second, however good the
model, and below it they do not.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sb3_nopg.data.action_lag import rows_with_a_past
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.plot import save_picture
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.quality import fit_without, open_loop, windows
from sb3_nopg.dynamics.trajectories import draw_noise

STEPS = (1, 10, 50)
#: errors above so many times those that were promised contradict a model
CONTRADICTS = 1.5
#: the most by which noise is raised for it
MOST_NOISE_SCALE = 3.0
_MOST_PLACES = 300
# How often the noise is drawn along one way: of many places a few times tell, of a single one they do not.
_N_DRAWS, _N_DRAWS_OF_ONE = 8, 64
# Of a picture: predictions start again so often. What a model promises is asked after these steps, and lies between them else.
_STRETCH = 50
_ASKED_AFTER = (1, 2, 5, 10, 20, 35, _STRETCH)
# Spreads below this share of a coordinate's are rounding errors.
_LEAST_SPREAD = 1e-12
# Of a band that holds 95 % of errors that are normally distributed.
_ROOT_MEAN_SQUARES = 1.96
# Flights beside each other that can still be read.
_MOST_DRAWN = 4
_FLOWN, _PREDICTED, _OUTSIDE = "#2d323c", "#2f6f4f", "#b3261e"


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
    model: DynamicsModel,
    learned_from: TransitionDataset,
    flown: Mapping[str, TransitionDataset],
    steps: Sequence[int] = STEPS,
) -> FlownAgainstPredicted:
    """
    :param model: of the system, fitted before the flights
    :param learned_from: what it was fitted to
    :param flown: what was recorded since, a flight each, by its name
    :param steps: numbers of steps to follow the recorded actions for
    """
    left_out = _left_out(model, learned_from, steps)
    errors = {
        name: [_errors(model, flight, n_steps, left_out.get(n_steps)) for n_steps in steps] for name, flight in flown.items()
    }
    found, promised = ({name: tuple(one[which] for one in own) for name, own in errors.items()} for which in (0, 1))
    return FlownAgainstPredicted(tuple(steps), found, promised)


@dataclass(frozen=True)
class _LeftOut:
    """
    Of episodes that a model was fitted without, after some steps.

    :param scale: standard deviation of each coordinate, (d,)
    :param per_spread: root mean square of each coordinate's errors, in that of how far the noise takes it astray there, (d,)
    """

    scale: th.Tensor
    per_spread: th.Tensor

    def promised(self, spread: th.Tensor, rows: Any = ...) -> th.Tensor:
        """
        :param spread: how far the noise takes predictions astray somewhere else
        :param rows: of these records, where there is one for each step
        :return: the errors to be expected there
        """
        return self.per_spread[rows] * spread.maximum(_LEAST_SPREAD * self.scale[rows])


def _left_out(model: DynamicsModel, learned_from: TransitionDataset, steps: Sequence[int]) -> dict[int, _LeftOut]:
    """After each of the numbers of steps for which an episode is long enough."""
    other, rows = fit_without(learned_from, model, 0)
    data = _prepared(other, learned_from)
    scale = data.states.std(dim=0).clamp_min(_LEAST_SPREAD)
    found = {}
    for n_steps in steps:
        along = _along(other, data, rows, n_steps)
        if along is not None:
            away, spread = (_root_mean_square(one, 0) for one in along)
            found[n_steps] = _LeftOut(scale, away / spread.maximum(_LEAST_SPREAD * scale))
    return found


def _errors(
    model: DynamicsModel, flight: TransitionDataset, n_steps: int, left_out: _LeftOut | None
) -> tuple[float | None, float | None]:
    """After so many steps along a flight, and those that were promised there; None where flight or data are too short."""
    data = _prepared(model, flight)
    # Without its past a flight is predicted as if from rest, and would be blamed for it.
    along = _along(model, data, data.n_past >= model.choices.n_earlier_steps, n_steps) if left_out else None
    if left_out is None or along is None:
        return None, None
    away, spread = along
    scale = left_out.scale
    return float(_root_mean_square(away / scale)), float(_root_mean_square(left_out.promised(spread) / scale))


def _along(model: DynamicsModel, data: Prepared, rows: np.ndarray, n_steps: int) -> tuple[th.Tensor, th.Tensor] | None:
    """
    :param rows: that may be predicted, (n,)
    :return: how far predictions from some places are off after so many steps, and the root mean square of how far noise takes
        them astray, (m, d) each; None where no episode is long enough
    """
    starts = windows(data, rows, n_steps, model.choices.n_earlier_steps)
    if not len(starts):
        return None
    chosen = starts[np.unique(np.linspace(0, len(starts) - 1, _MOST_PLACES).astype(int))]
    path, spread = _predicted(model, data, chosen, n_steps, _N_DRAWS)
    return model.coordinates.difference(path[-1], data.next_states[chosen + n_steps - 1]), spread[-1]


def _root_mean_square(x: th.Tensor, dim: int | None = None) -> th.Tensor:
    return x.square().mean(dim=dim).sqrt()


def _predicted(
    model: DynamicsModel, data: Prepared, starts: np.ndarray, n_steps: int, n_draws: int
) -> tuple[th.Tensor, th.Tensor]:
    """
    Where the recorded actions lead by the model, and the root mean square of how far its noise takes it away from there.

    :param starts: rows
    :return: without the starts, (n_steps, m, d) each
    """
    noise = draw_noise(model, n_steps, n_draws * len(starts), th.Generator().manual_seed(0)).numpy()
    path = _encoded(model, open_loop(model, data, starts, n_steps)[1:])
    noisy = _encoded(model, open_loop(model, data, np.tile(starts, n_draws), n_steps, noise)[1:])
    n_places, d = path.shape[1:]
    away = model.coordinates.difference(noisy.reshape(-1, d), path.repeat(1, n_draws, 1).reshape(-1, d))
    return path, away.reshape(n_steps, n_draws, n_places, d).square().mean(dim=1).sqrt()


def _encoded(model: DynamicsModel, observations: np.ndarray) -> th.Tensor:
    """(…, d_s) -> (…, d)."""
    flat = model.coordinates.encode(th.from_numpy(observations.reshape(-1, observations.shape[-1])))
    return flat.reshape(*observations.shape[:-1], -1)


def plot_flown(
    model: DynamicsModel,
    learned_from: TransitionDataset,
    flown: Mapping[str, TransitionDataset],
    path: str | os.PathLike[str],
    *,
    period_s: float,
    names: Sequence[str] | None = None,
) -> pathlib.Path:
    """
    A column for each flight, the worst four where there are more: its longest stretch without a gap, and what the model
    predicts of it from every fiftieth state on: a band as wide as the errors that it had promised, and in red what was flown
    outside of it.

    :param model: of the system, fitted before the flights
    :param learned_from: what it was fitted to
    :param flown: what was recorded, a flight each, by its name
    :param path: ``.png``, ``.pdf`` or ``.svg``
    :param period_s: of a step
    :param names: of the observation's columns
    """
    left_out = _left_out_by_step(model, learned_from)
    drawn = {name: _Stretch(*_beside_its_band(model, flight, left_out)) for name, flight in flown.items()}
    worst = sorted(drawn, key=lambda name: -drawn[name].share_outside)[:_MOST_DRAWN]
    drawn = {name: stretch for name, stretch in drawn.items() if name in worst}
    labels = model.coordinates.names(names)
    figure = Figure(figsize=(3.0 + 6.0 * len(drawn), 1.7 * len(labels) + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(labels), len(drawn), squeeze=False, sharex="col", sharey="row")
    for (name, stretch), column in zip(drawn.items(), panels.T, strict=True):
        stretch.draw(column, period_s)
        column[0].set_title(f"{name}: {stretch.told}")
        column[-1].set_xlabel("time / s")
    for panel, label in zip(panels[:, 0], labels, strict=True):
        panel.set_ylabel(label)
    panels[0, 0].legend(loc="upper right", ncols=3)
    of_which = f" (of {len(flown)} flights the worst {len(drawn)})" if len(flown) > len(drawn) else ""
    figure.suptitle(f"Predicted again from every fiftieth state on, with twice the promised errors{of_which}")
    save_picture(figure, pathlib.Path(path))
    return pathlib.Path(path)


@dataclass(frozen=True)
class _Stretch:
    """
    :param recorded: coordinates, (t + 1, d)
    :param low: end of the band, NaN where there is none, (t + 1, d)
    :param high: its other end, (t + 1, d)
    """

    recorded: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def outside(self) -> np.ndarray:
        """What was flown outside of the band, (t + 1, d)."""
        return (self.recorded < self.low) | (self.recorded > self.high)

    @property
    def share_outside(self) -> float:
        """Of what has a band; below 0 where there is none."""
        known = np.isfinite(self.low)
        return float(self.outside[known].mean()) if known.any() else -1.0

    @property
    def told(self) -> str:
        return "nothing was promised" if self.share_outside < 0.0 else f"{100 * self.share_outside:.0f} % flown outside"

    def draw(self, panels: np.ndarray, period_s: float) -> None:
        """
        :param panels: one for each coordinate
        :param period_s: of a step
        """
        time_s, outside = period_s * np.arange(len(self.recorded)), self.outside
        for number, panel in enumerate(panels):
            own = self.recorded[:, number]
            band = (self.low[:, number], self.high[:, number])
            panel.fill_between(time_s, *band, color=_PREDICTED, alpha=0.25, lw=0, label="predicted")
            panel.plot(time_s, own, color=_FLOWN, lw=1.0, label="flown")
            panel.plot(time_s, np.where(outside[:, number], own, np.nan), color=_OUTSIDE, lw=1.6, label="flown outside of it")


def beside_its_band(
    model: DynamicsModel, learned_from: TransitionDataset, flown: TransitionDataset
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    :param model: of the system, fitted before the flight
    :param learned_from: what it was fitted to
    :param flown: what was recorded
    :return: coordinates along the longest stretch without a gap, and the ends of the band that was predicted of it, NaN where
        there is none; (t + 1, d) each
    """
    return _beside_its_band(model, flown, _left_out_by_step(model, learned_from))


def _left_out_by_step(model: DynamicsModel, learned_from: TransitionDataset) -> _LeftOut:
    """The same with a row for each step of a stretch, NaN where none tells, (t, d)."""
    told = _left_out(model, learned_from, _ASKED_AFTER)
    if not told:
        unknown = th.full((_STRETCH, model.noise.shape[1]), th.nan, dtype=th.float64)
        return _LeftOut(unknown, unknown)
    steps, known = np.arange(1, _STRETCH + 1), np.stack([one.per_spread.numpy() for one in told.values()])
    between = np.stack([np.interp(steps, list(told), own, right=np.nan) for own in known.T], axis=1)
    return _LeftOut(next(iter(told.values())).scale.expand(_STRETCH, -1), th.from_numpy(between))


def _beside_its_band(
    model: DynamicsModel, flown: TransitionDataset, left_out: _LeftOut
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = _prepared(model, flown)
    rows = _longest_run(data)
    recorded = np.concatenate([data.states[rows[:1]].numpy(), data.next_states[rows].numpy()])
    low, high = (np.full_like(recorded, np.nan) for _ in range(2))
    for first in range(0, len(rows), _STRETCH):
        stretch = rows[first : first + _STRETCH]
        there = slice(first + 1, first + 1 + len(stretch))
        path, spread = (one[:, 0] for one in _predicted(model, data, stretch[:1], len(stretch), _N_DRAWS_OF_ONE))
        # Angles that have wrapped are shown beside what was flown.
        middle = recorded[there] + model.coordinates.difference(path, th.from_numpy(recorded[there])).numpy()
        half_width = _ROOT_MEAN_SQUARES * left_out.promised(spread, slice(len(stretch))).numpy()
        low[there], high[there] = middle - half_width, middle + half_width
    return recorded, low, high


def _prepared(model: DynamicsModel, data: TransitionDataset) -> Prepared:
    return Prepared.of(data, model.coordinates, np.array(data.rewards, dtype=np.float64))


def _longest_run(data: Prepared) -> np.ndarray:
    """Rows that follow each other in time, each from where the one before it led."""
    if data.labels is None:
        return np.arange(min(len(data.states), 1))
    begins = np.ones(len(data.states), dtype=bool)
    begins[rows_with_a_past(data.dataset, data.labels, 1)] = False
    runs = np.cumsum(begins)
    return np.flatnonzero(runs == np.argmax(np.bincount(runs)))
