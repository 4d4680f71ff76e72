"""Whether the settings of a model go with the data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.common.checks import check_states
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count, check_number
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.dynamics.bounds import Bounds
from sb3_nopg.dynamics.coordinates import Coordinates
from sb3_nopg.dynamics.past import MOST_EARLIER
from sb3_nopg.dynamics.prepared import float_tensor, whole_steps
from sb3_nopg.dynamics.rewards import rewards_of

#: transitions per coefficient of one affine model, at least
LEAST_ROWS = 2
# Fewer have nothing between them; more take longer than anybody waits.
_LEAST_NODES, _MOST_NODES = 2, 1_000_000
# A column that never changes may be rounded otherwise.
_SAME = 1e-6


def check_model_settings(dataset: TransitionDataset, settings: Mapping[str, Any], starts: Any = None) -> None:
    """
    :param dataset: recorded transitions
    :param settings: angles, limits, reward, … as for :meth:`DynamicsModel.fit`
    :param starts: observations that a user says the task starts from; None for none
    :raises InputError: where they do not go with the data
    """
    observations = float_tensor(np.concatenate([dataset.observations, dataset.next_observations]))
    coordinates = Coordinates.of(observations, settings.get("angles"), column_names(dataset))
    states = coordinates.encode(float_tensor(dataset.observations))
    nothing = th.zeros(len(states), dtype=th.bool)
    bounds = Bounds.of(coordinates, states, states, nothing, settings.get("limits"))
    if starts is not None:
        check_starts("initial_states", check_states("initial_states", starts, dataset.observation_dim), bounds)
    if settings.get("reward") is not None:
        rewards_of(settings["reward"], dataset)
    check_numbers(*(settings.get(name) for name in ("bandwidth", "n_earlier_steps", "n_nodes")))
    check_enough(dataset, coordinates)


def check_numbers(bandwidth: Any, n_earlier_steps: Any, n_nodes: Any) -> None:
    """:raises InputError: where one of them cannot be"""
    fix = "Give a larger number, or leave it out"
    check_number("bandwidth", bandwidth, 0.0, np.inf, high_included=True, optional=True, fix=fix)
    check_count("n_earlier_steps", n_earlier_steps, 0, MOST_EARLIER, optional=True)
    check_count("n_nodes", n_nodes, _LEAST_NODES, _MOST_NODES, optional=True)


def check_starts(name: str, starts: np.ndarray, bounds: Bounds) -> None:
    """
    :param name: what to call them in an error
    :param starts: observations, (m, d_s)
    :param bounds: of the model
    :raises InputError: where the task is lost before it begins, or a start differs from the data where these never change
    """
    coordinates, lost = bounds.coordinates, ~bounds.within_limits(starts)
    if lost.any():
        row, limits = int(lost.argmax()), bounds.limits.cpu().numpy()
        columns = bounds.limit_columns.cpu().numpy()
        beyond = np.maximum(limits[:, 0] - starts[row, columns], starts[row, columns] - limits[:, 1])
        column, (low, high) = int(columns[beyond.argmax()]), limits[beyond.argmax()]
        what = f"row {row} has {starts[row, column]:g} in {coordinates.column_name(column)}"
        raise InputError(name, f"{what}, beyond its limits, {low:g} to {high:g}", "Start within the limits")
    for column, value in zip(coordinates.still_columns, coordinates.still.tolist(), strict=True):
        differs = ~np.isclose(starts[:, column], value, rtol=_SAME, atol=_SAME)
        if differs.any():
            row = int(differs.argmax())
            what = f"row {row} has {starts[row, column]:g} in {coordinates.column_name(column)}"
            raise InputError(name, f"{what}, which is {value:g} in all of the data", "Start from what was recorded")


def check_enough(dataset: TransitionDataset, coordinates: Coordinates) -> None:
    """:raises InputError: where there are too few transitions for any model"""
    n_steps = int(whole_steps(dataset.terminals).sum())
    if n_steps < LEAST_ROWS * (1 + coordinates.dim + dataset.action_dim):
        among = "" if n_steps == len(dataset) else " that did not end the task"
        raise InputError("dataset", f"{n_steps} transitions{among} are too few for an affine model", "Record more")


def column_names(dataset: TransitionDataset) -> tuple[str, ...] | None:
    """Of the observation, where the data have some."""
    return None if dataset.quantities is None else dataset.quantities.observation_names
