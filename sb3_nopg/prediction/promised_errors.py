"""
What a model of a system promises: how far off its predictions are to be expected.

The recorded actions are followed along episodes that the model is fitted without. Its errors elsewhere are theirs, times how
much farther its noise takes it astray there. Near the top of a pendulum small errors grow a hundredfold in a second, however
good the model, and below it they do not.
"""

import numpy as np
import torch as th

from sb3_nopg.data.action_lag import rows_with_a_past
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.model import DynamicsModel
from sb3_nopg.dynamics.prepared import Prepared
from sb3_nopg.dynamics.quality import fit_without, open_loop, windows
from sb3_nopg.dynamics.trajectories import draw_noise

_MOST_PLACES = 300
# How often the noise is drawn along one way: of many places a few times tell, of a single one they do not.
_N_DRAWS, _N_DRAWS_OF_ONE = 8, 64
#: of a band: predictions start again after so many steps
STRETCH = 50
# What a model promises is asked after these steps, and lies between them else.
_ASKED_AFTER = (1, 2, 5, 10, 20, 35, STRETCH)
# Spreads below this share of a coordinate's are rounding errors.
_LEAST_SPREAD = 1e-12
# Of a band that holds 95 % of errors that are normally distributed.
_ROOT_MEAN_SQUARES = 1.96


class PromisedErrors:
    """
    Fits the model again, without a fifth of the episodes.

    :param model: of the system, fitted before the flights that are to be held against it
    :param learned_from: what it was fitted to
    """

    def __init__(self, model: DynamicsModel, learned_from: TransitionDataset):
        self.model = model
        self._fitted_without, self._left_out_rows = fit_without(learned_from, model, 0)
        self._data = _prepared(self._fitted_without, learned_from)
        # Standard deviation of each coordinate.
        self._scale = self._data.states.std(dim=0).clamp_min(_LEAST_SPREAD)
        self._known: dict[int, th.Tensor | None] = {}

    def found_and_promised(self, flight: TransitionDataset, n_steps: int) -> tuple[float | None, float | None]:
        """
        :param flight: what was recorded
        :param n_steps: for which the recorded actions are followed, from places of the flight
        :return: root mean square errors there, and those that were promised, in standard deviations of each coordinate of the
            data; None where flight or data are too short
        """
        per_spread, data = self._per_spread(n_steps), _prepared(self.model, flight)
        # Without its past a flight is predicted as if from rest, and would be blamed for it.
        has_past = data.n_past >= self.model.choices.n_earlier_steps
        along = None if per_spread is None else _along(self.model, data, has_past, n_steps)
        if per_spread is None or along is None:
            return None, None
        away, spread = along
        promised = self._promised(per_spread, spread)
        return float(_root_mean_square(away / self._scale)), float(_root_mean_square(promised / self._scale))

    def band(self, flight: TransitionDataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """
        Where 95 % of what is flown should lie, predicted again every :data:`STRETCH` steps.

        :param flight: what was recorded
        :return: coordinates along its longest stretch without a gap, and the ends of the band that was predicted of it, NaN
            where there is none; (t + 1, d) each
        """
        per_spread, data = self._per_spread_by_step(), _prepared(self.model, flight)
        rows = _longest_run(data)
        recorded = np.concatenate([data.states[rows[:1]].numpy(), data.next_states[rows].numpy()])
        low, high = (np.full_like(recorded, np.nan) for _ in range(2))
        for first in range(0, len(rows), STRETCH):
            stretch = rows[first : first + STRETCH]
            there = slice(first + 1, first + 1 + len(stretch))
            path, spread = (one[:, 0] for one in _predicted(self.model, data, stretch[:1], len(stretch), _N_DRAWS_OF_ONE))
            # Angles that have wrapped are shown beside what was flown.
            middle = recorded[there] + self.model.coordinates.difference(path, th.from_numpy(recorded[there])).numpy()
            half_width = _ROOT_MEAN_SQUARES * self._promised(per_spread[: len(stretch)], spread).numpy()
            low[there], high[there] = middle - half_width, middle + half_width
        return recorded, low, high

    def _promised(self, per_spread: th.Tensor, spread: th.Tensor) -> th.Tensor:
        """
        :param per_spread: errors along left-out episodes, in how far the noise takes predictions astray there
        :param spread: how far it takes them astray somewhere else
        :return: the errors to be expected there
        """
        return per_spread * spread.maximum(_LEAST_SPREAD * self._scale)

    def _per_spread(self, n_steps: int) -> th.Tensor | None:
        """
        Of left-out episodes, after so many steps: root mean square of each coordinate's errors, in that of how far the noise
        takes it astray there, (d,); None where no episode is long enough.
        """
        if n_steps not in self._known:
            along = _along(self._fitted_without, self._data, self._left_out_rows, n_steps)
            self._known[n_steps] = None if along is None else self._ratio(*along)
        return self._known[n_steps]

    def _ratio(self, away: th.Tensor, spread: th.Tensor) -> th.Tensor:
        return _root_mean_square(away, 0) / _root_mean_square(spread, 0).maximum(_LEAST_SPREAD * self._scale)

    def _per_spread_by_step(self) -> th.Tensor:
        """After each step of a stretch, NaN where no episode is long enough, (t, d)."""
        told = {n_steps: one.numpy() for n_steps in _ASKED_AFTER if (one := self._per_spread(n_steps)) is not None}
        if not told:
            return th.full((STRETCH, len(self._scale)), th.nan, dtype=th.float64)
        steps = np.arange(1, STRETCH + 1)
        by_coordinate = np.stack(list(told.values())).T
        return th.from_numpy(np.stack([np.interp(steps, list(told), own, right=np.nan) for own in by_coordinate], axis=1))


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
