"""New data sets from old ones: put together, cut down, relabelled, in other units."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from gymnasium import spaces

from sb3_nopg.common.arrays import regular_array
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.numbers import check_count
from sb3_nopg.data.episode_labels import episode_labels, numbered_as_they_begin, units_of_each
from sb3_nopg.data.files.expression import evaluate
from sb3_nopg.data.quantities import Quantities, common_quantities
from sb3_nopg.data.transitions import Transitions

_logger = logging.getLogger(__name__)
Data = TypeVar("Data", bound=Transitions)
_WAYS = ("episode", "transition")
#: reward from states (n, d_s), actions (n, d_a) and the states that followed (n, d_s)
RewardFunction = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def take(dataset: Data, rows: np.ndarray) -> Data:
    """
    :param dataset: the data
    :param rows: numbers of the transitions to keep, in the order wanted
    """
    ids, starts = episode_labels(dataset), dataset.episode_starts
    if ids is not None and starts is not None:
        headless = np.setdiff1d(ids[rows], ids[np.intersect1d(starts, rows)])
        if len(headless):
            _logger.warning(
                "%d episode(s) lost their first transition: the first one left counts as where they start. "
                "Pass initial_states to say where the task starts.",
                len(headless),
            )
    return replace(
        dataset,
        observations=dataset.observations[rows],
        actions=dataset.actions[rows],
        rewards=dataset.rewards[rows],
        next_observations=dataset.next_observations[rows],
        terminals=dataset.terminals[rows],
        timeouts=None if dataset.timeouts is None else dataset.timeouts[rows],
        episode_ids=None if ids is None else ids[rows],
    )


def merge(datasets: Sequence[Data]) -> Data:
    """
    One after the other; episodes get new numbers, in the order in which they begin, so that none are taken for one.

    :param datasets: of the same system; a space that only some of them know is taken to be that of all
    """
    if not datasets:
        raise InputError("datasets", "none given", "Give at least one")
    for name in ("observation_dim", "action_dim"):
        dims = [getattr(dataset, name) for dataset in datasets]
        if len(set(dims)) > 1:
            raise InputError("datasets", f"their {name}s differ: {dims}", "Merge data of the same system only")
    merged_ids: list[np.ndarray] = []
    n_episodes = 0
    for dataset in datasets:
        numbers = numbered_as_they_begin(units_of_each(dataset))
        merged_ids.append(n_episodes + numbers)
        n_episodes += int(numbers.max()) + 1
    know_episodes = any(dataset.episode_starts is not None for dataset in datasets)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(dataset, name) for dataset in datasets])

    def joined_timeouts() -> np.ndarray | None:
        found = [dataset.timeouts for dataset in datasets]
        if all(timeouts is None for timeouts in found):
            return None
        # What only some of them know is false for the others.
        return np.concatenate([np.zeros(len(d), dtype=bool) if f is None else f for d, f in zip(datasets, found, strict=True)])

    return type(datasets[0])(
        observations=joined("observations"),
        actions=joined("actions"),
        rewards=joined("rewards"),
        next_observations=joined("next_observations"),
        terminals=joined("terminals"),
        timeouts=joined_timeouts(),
        episode_ids=np.concatenate(merged_ids) if know_episodes else None,
        observation_space=_common_space("observation_space", [dataset.observation_space for dataset in datasets]),
        action_space=_common_space("action_space", [dataset.action_space for dataset in datasets]),
        quantities=common_quantities([dataset.quantities for dataset in datasets]),
    )


def _common_space(name: str, found: Sequence[spaces.Box | None]) -> spaces.Box | None:
    known = [space for space in found if space is not None]
    if any(space != known[0] for space in known):
        raise InputError(name, "not the same in all data sets", "Merge data of the same system, in the same units, only")
    return known[0] if known else None


def select(dataset: Data, where: str | np.ndarray, observation_names: Sequence[str], action_names: Sequence[str]) -> Data:
    """:param where: condition as in `TransitionDataset.filter`"""
    if isinstance(where, str):
        kept = _compute(dataset, where, observation_names, action_names)
    else:
        kept = regular_array("where", where)
    if kept.shape != (len(dataset),) or kept.dtype != bool:
        raise InputError(
            "where", f"{kept.dtype} of shape {kept.shape}", f"Give true or false for each of the {len(dataset)} transitions"
        )
    if not kept.any():
        raise InputError("where", "no transition is left", "Ask for less")
    return take(dataset, np.flatnonzero(kept))


def split(dataset: Data, fractions: Sequence[float], by: str, seed: int) -> tuple[Data, ...]:
    """:param fractions: as in `TransitionDataset.split`"""
    shares = np.array(fractions, dtype=np.float64)
    if shares.ndim != 1 or len(shares) == 0 or not (shares > 0).all() or not np.isclose(shares.sum(), 1.0):
        raise InputError("fractions", f"{list(fractions)} are not positive or do not add up to one", "Give e.g. (0.8, 0.2)")
    units, n_units = _units(dataset, by)
    if n_units < len(shares):
        raise InputError("fractions", f"{len(shares)} parts of {n_units} {by}(s)", "Ask for fewer parts")
    bounds = np.round(np.cumsum(shares) * n_units).astype(int)[:-1]
    # No part is empty, however small its share.
    bounds = np.clip(bounds, np.arange(1, len(shares)), n_units - len(shares) + np.arange(1, len(shares)))
    parts = np.split(np.random.default_rng(seed).permutation(n_units), np.maximum.accumulate(bounds))
    return tuple(take(dataset, np.flatnonzero(np.isin(units, part))) for part in parts)


def subsample(dataset: Data, n: int, by: str, seed: int) -> Data:
    """:param n: as in `TransitionDataset.subsample`"""
    units, n_units = _units(dataset, by)
    check_count("n", n, at_most=n_units, fix=f"Give a number from 1 to {n_units}, how many {by}s there are")
    chosen = np.random.default_rng(seed).choice(n_units, size=n, replace=False)
    return take(dataset, np.flatnonzero(np.isin(units, chosen)))


def _units(dataset: Transitions, by: str) -> tuple[np.ndarray, int]:
    """Number of each transition's unit, (n,), and how many units there are."""
    if by not in _WAYS:
        raise InputError("by", f"{by!r} is unknown", f"Use one of {', '.join(_WAYS)}")
    if by == "transition":
        return np.arange(len(dataset)), len(dataset)
    if dataset.episode_starts is None:
        raise InputError("by", "the data knows no episodes", 'Use by="transition"')
    units = units_of_each(dataset)
    return units, int(units.max()) + 1


def relabel(
    dataset: Data, reward: str | RewardFunction, observation_names: Sequence[str], action_names: Sequence[str]
) -> Data:
    """:param reward: as in `TransitionDataset.relabel`"""
    if isinstance(reward, str):
        rewards = _compute(dataset, reward, observation_names, action_names).astype(np.float64)
    else:
        rewards = regular_array("reward", reward(dataset.observations, dataset.actions, dataset.next_observations))
    return replace(dataset, rewards=rewards)


def with_units(dataset: Data, observation_scale: float | Sequence[float], action_scale: float | Sequence[float]) -> Data:
    """:param observation_scale: as in `TransitionDataset.with_units`"""
    state_factors = _factors("observation_scale", observation_scale, dataset.observation_dim)
    action_factors = _factors("action_scale", action_scale, dataset.action_dim)
    return replace(
        dataset,
        observations=(dataset.observations * state_factors).astype(dataset.observations.dtype),
        next_observations=(dataset.next_observations * state_factors).astype(dataset.next_observations.dtype),
        actions=(dataset.actions * action_factors).astype(dataset.actions.dtype),
        observation_space=_scaled(dataset.observation_space, state_factors),
        action_space=_scaled(dataset.action_space, action_factors),
        quantities=_without_units(dataset.quantities, state_factors, action_factors),
    )


def _without_units(quantities: Quantities | None, *factors: np.ndarray) -> Quantities | None:
    """A unit that was multiplied is another one, which nobody has named."""
    if quantities is None:
        return None
    units = zip((quantities.observation_units, quantities.action_units), factors, strict=True)
    kept = [tuple(unit if factor == 1 else "" for unit, factor in zip(*pair, strict=True)) for pair in units]
    return replace(quantities, observation_units=kept[0], action_units=kept[1])


def _factors(name: str, scale: float | Sequence[float], n_dims: int) -> np.ndarray:
    factors = regular_array(name, scale)
    if factors.dtype.kind not in "fiu" or factors.shape not in ((), (1,), (n_dims,)):
        raise InputError(name, f"{scale!r} is neither one number nor {n_dims}", "Give one factor, or one for each dimension")
    if not (np.isfinite(factors) & (factors > 0)).all():
        raise InputError(name, f"{scale!r} is not positive and finite", "Give factors like 0.01 for centimetres to metres")
    return np.broadcast_to(factors.astype(np.float64), (n_dims,))


def _scaled(space: spaces.Box | None, factors: np.ndarray) -> spaces.Box | None:
    if space is None:
        return None
    dtype = space.dtype.type if np.issubdtype(space.dtype, np.floating) else np.float32
    return spaces.Box((space.low * factors).astype(dtype), (space.high * factors).astype(dtype), dtype=dtype)


def _compute(
    dataset: Transitions, expression: str, observation_names: Sequence[str], action_names: Sequence[str]
) -> np.ndarray:
    """
    Variables of an expression: ``s``, ``a``, ``s2`` (columns ``s[0]``, …), ``r``, ``terminal``, ``timeout``, ``episode``,
    and the names of columns, the data's own and those given, with ``next_`` before them for the state that followed. Of
    equal names, those given count first and the data's own last.
    """
    n = len(dataset)
    ids = episode_labels(dataset)
    variables = {
        "s": dataset.observations,
        "a": dataset.actions,
        "s2": dataset.next_observations,
        "r": dataset.rewards,
        "terminal": dataset.terminals,
        "timeout": np.zeros(n, dtype=bool) if dataset.timeouts is None else dataset.timeouts,
        "episode": np.arange(n) if ids is None else ids,
    }
    for option, names, width in (
        ("observation_names", observation_names, dataset.observation_dim),
        ("action_names", action_names, dataset.action_dim),
    ):
        if names and len(names) != width:
            raise InputError(option, f"{len(names)} name(s) for {width} column(s)", "Give one name for each")
    named = {name: dataset.observations[:, number] for number, name in enumerate(observation_names)}
    named.update({f"next_{name}": dataset.next_observations[:, number] for number, name in enumerate(observation_names)})
    named.update({name: dataset.actions[:, number] for number, name in enumerate(action_names)})
    parts = {name: getattr(dataset, name) for name in ("observations", "actions", "next_observations")}
    own = {} if dataset.quantities is None else dataset.quantities.variables(**parts)
    return evaluate(expression, {**own, **variables, **named}, n)
