"""What a data set holds, and what about it should make one look twice before learning from it."""

from typing import Any

import numpy as np
import scipy
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from sb3_nopg.data.action_lag import find_action_lag
from sb3_nopg.data.breaks import find_breaks
from sb3_nopg.data.continuity import find_jumps
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels, numbered_as_they_begin

# Coverage is judged at so many transitions, against so many; more would not change the median.
_N_JUDGED, _N_AGAINST = 500, 20_000
# Where this share of the episodes is exactly as long as the longest and ends in a terminal, a clock ended them.
_SUSPICIOUS_SHARE = 0.1
# As many rows of a kind are named.
_N_NAMED = 5

_STATISTICS = ("min", "max", "mean", "std")


def describe_data(dataset: TransitionDataset) -> dict[str, Any]:
    """
    :param dataset: the data
    :return: plain numbers, lists and texts, ready for JSON; ``remarks`` says in words what is suspicious
    """
    description: dict[str, Any] = {
        "transitions": len(dataset),
        "observation_dims": dataset.observation_dim,
        "action_dims": dataset.action_dim,
        "named": dataset.quantities is not None,
        **dataset.columns.described(),
        "dtypes": {name: str(getattr(dataset, name).dtype) for name in ("observations", "actions", "rewards")},
        "bytes": sum(value.nbytes for value in vars(dataset).values() if isinstance(value, np.ndarray)),
        "observations": _ranges(dataset.observations),
        "actions": _ranges(dataset.actions),
        "rewards": _ranges(dataset.rewards[:, None])[0],
        "observation_space": None if dataset.observation_space is None else str(dataset.observation_space),
        "action_space": None if dataset.action_space is None else str(dataset.action_space),
        "terminals": int(dataset.terminals.sum()),
        "timeouts": None if dataset.timeouts is None else int(dataset.timeouts.sum()),
        "episodes": _episodes(dataset),
        "duplicates": _n_duplicates(dataset),
        "constant_observation_dims": _constant(dataset.observations),
        "constant_action_dims": _constant(dataset.actions),
        "constant_reward": bool(_constant(dataset.rewards[:, None])),
        "coverage": _coverage(dataset),
    }
    description["jumps"] = _jumps(dataset)
    lag = find_action_lag(dataset)
    description["action_lag"] = None if lag is None else {"lag": lag.lag, "unexplained": list(lag.unexplained)}
    description["remarks"] = _remarks(description) + ([lag.remark] if lag is not None and lag.lag else [])
    return description


def _ranges(array: np.ndarray) -> list[dict[str, float]]:
    columns = array.astype(np.float64).T
    # Of numbers near the largest there are, the mean is out of range.
    with np.errstate(all="ignore"):
        return [
            {"min": float(column.min()), "max": float(column.max()), "mean": float(column.mean()), "std": float(column.std())}
            for column in columns
        ]


def _constant(array: np.ndarray) -> list[int]:
    return np.flatnonzero((array == array[:1]).all(axis=0)).tolist()


def _n_duplicates(dataset: TransitionDataset) -> int:
    """Transitions that are equal, bit for bit, to an earlier one."""
    columns = (dataset.observations, dataset.actions, dataset.rewards[:, None], dataset.next_observations)
    rows = np.ascontiguousarray(np.concatenate([column.astype(np.float64) for column in columns], axis=1))
    return len(rows) - len(np.unique(rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))))


def _episodes(dataset: TransitionDataset) -> dict[str, Any] | None:
    ids = episode_labels(dataset)
    if ids is None:
        return None
    number = numbered_as_they_begin(ids)
    # Rows of an episode together.
    order = np.argsort(number, kind="stable")
    lengths = np.bincount(number)
    last = np.cumsum(lengths) - 1
    with np.errstate(all="ignore"):
        returns = np.bincount(number, weights=dataset.rewards.astype(np.float64))
    terminals = dataset.terminals[order]
    inside = np.ones(len(order) - 1, dtype=bool)
    inside[last[:-1]] = False
    breaks = find_breaks(dataset)
    at_limit = terminals[last] & (lengths == lengths.max())
    return {
        "count": len(lengths),
        "lengths": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "returns": _ranges(returns[:, None])[0],
        "ending_in_terminal": int(terminals[last].sum()),
        "longest_ending_in_terminal": int(at_limit.sum()),
        "terminals_before_the_end": int(terminals[:-1][inside].sum()),
        "time_gaps": len(breaks),
        "rows_before_gaps": breaks[:_N_NAMED].tolist(),
    }


def _jumps(dataset: TransitionDataset) -> dict[str, Any]:
    """Transitions that cannot be steps of one process."""
    ids = episode_labels(dataset)
    number = np.arange(len(dataset)) if ids is None else numbered_as_they_begin(ids)
    order = np.argsort(number, kind="stable")
    states, actions, next_states = dataset.observations[order], dataset.actions[order], dataset.next_observations[order]
    found = find_jumps(states, actions, next_states, number[order])
    rows, names = np.sort(order[found.steps]), dataset.columns.observation_names
    return {
        "count": len(rows),
        "rows": rows[:_N_NAMED].tolist(),
        "columns": [names[column] for column in found.columns],
        "wrapped": [names[column] for column in found.wrapped],
    }


def _coverage(dataset: TransitionDataset) -> dict[str, float]:
    """
    How densely states and actions lie, measured in their own standard deviations.

    ``effective_samples`` is how many transitions a kernel estimate rests on, in the median: (Σw)²/Σw² with Gaussian kernels
    of Scott's width, counting the transition itself.
    """
    points = np.concatenate([dataset.observations, dataset.actions], axis=1).astype(np.float64)
    with np.errstate(all="ignore"):
        spread = points.std(axis=0)
        varying = np.isfinite(spread) & (spread > 0)
        points = (points[:, varying] - points[:, varying].mean(axis=0)) / spread[varying]
    if not varying.any():
        return {"nearest_neighbor_median": 0.0, "nearest_neighbor_95": 0.0, "effective_samples": float(len(points))}
    rng = np.random.default_rng(0)
    against = points[rng.permutation(len(points))[:_N_AGAINST]]
    judged = against[:_N_JUDGED]
    # The nearest is the point itself.
    nearest = np.asarray(scipy.spatial.KDTree(against).query(judged, k=2)[0])[:, 1]
    n, d = against.shape
    width = n ** (-1.0 / (d + 4))
    weights = np.exp(-0.5 * (scipy.spatial.distance.cdist(judged, against) / width) ** 2)
    effective = weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1)
    return {
        "nearest_neighbor_median": float(np.median(nearest)),
        "nearest_neighbor_95": float(np.quantile(nearest, 0.95)),
        "effective_samples": float(np.median(effective)),
    }


def _remarks(description: dict[str, Any]) -> list[str]:
    remarks = []
    episodes = description["episodes"]
    if episodes is None:
        remarks.append("No episodes are recorded: every transition counts as a sample of its own, and as a possible start.")
    else:
        remarks += _episode_remarks(episodes)
    remarks += _jump_remarks(description["jumps"])
    if description["duplicates"]:
        share = description["duplicates"] / description["transitions"]
        remarks.append(f"{description['duplicates']} transitions ({share:.1%}) repeat an earlier one bit for bit.")
    for what in ("observation", "action"):
        constant = description[f"constant_{what}_dims"]
        if constant:
            told = ", ".join(description[f"{what}_names"][number] for number in constant) if description["named"] else constant
            remarks.append(f"{what.capitalize()} dimension(s) {told} never change: nothing can be learned about them.")
    if description["constant_reward"]:
        remarks.append("All rewards are equal: every policy looks equally good, unless episodes end.")
    if description["coverage"]["effective_samples"] < 2:
        remarks.append("Half of all transitions have no neighbours: too few data for so many dimensions.")
    return remarks


def _jump_remarks(jumps: dict[str, Any]) -> list[str]:
    remarks = []
    if jumps["count"]:
        remarks.append(
            f"{jumps['count']} transition(s) jump in {', '.join(jumps['columns'])}, the first in row "
            f"{_named_rows(jumps['rows'], jumps['count'])}: no others go as far in one step."
        )
    for name in jumps["wrapped"]:
        remarks.append(f"{name} wraps around, and a step across counts as one all the way back: log its cosine and sine.")
    return remarks


def _named_rows(rows: list[int], count: int) -> str:
    return ", ".join(map(str, rows)) + (", …" if count > len(rows) else "")


def _episode_remarks(episodes: dict[str, Any]) -> list[str]:
    remarks = []
    longest, at_limit = episodes["lengths"]["max"], episodes["longest_ending_in_terminal"]
    if longest > 1 and at_limit >= max(2, _SUSPICIOUS_SHARE * episodes["count"]):
        remarks.append(
            f"{at_limit} of {episodes['count']} episodes end in a terminal after exactly {longest} steps, the longest: "
            "probably a time limit recorded as an end of the task. Time limits belong in `timeouts`."
        )
    if episodes["terminals_before_the_end"]:
        remarks.append(f"{episodes['terminals_before_the_end']} terminal(s) lie before the end of their episode.")
    if episodes["time_gaps"]:
        remarks.append(
            f"{episodes['time_gaps']} gap(s) in time: the next row of an episode does not begin where the one before it "
            f"ended, the first after row {_named_rows(episodes['rows_before_gaps'], episodes['time_gaps'])}."
        )
    return remarks


def _column_rows(description: dict[str, Any], kind: str, neutral: str) -> list[tuple[str, str, dict[str, float]]]:
    """Name, unit and statistics of each column."""
    ranges = description[f"{kind}s"]
    names = description[f"{kind}_names"] if description["named"] else [f"{neutral} {i}" for i in range(len(ranges))]
    return list(zip(names, description[f"{kind}_units"], ranges, strict=True))


def info_table(description: dict[str, Any]) -> RenderableType:
    """
    :param description: that `describe_data` made
    :return: for a rich console
    """
    episodes, timeouts, coverage = (description[name] for name in ("episodes", "timeouts", "coverage"))
    rows = [*_column_rows(description, "observation", "state"), *_column_rows(description, "action", "action")]
    rows.append(("reward", "", description["rewards"]))
    facts = Table(show_header=False, box=None)
    if description["control_period_s"] is not None:
        facts.add_row("a step takes", f"{description['control_period_s']:g} s")
    if episodes is not None:
        lengths = episodes["lengths"]
        rows.append(("return", "", episodes["returns"]))
        facts.add_row("episodes", f"{episodes['count']:,}")
        facts.add_row("steps in one", f"{lengths['min']} to {lengths['max']}, median {lengths['median']:g}")
        facts.add_row("gaps in time", f"{episodes['time_gaps']:,}")
    facts.add_row("terminals", f"{description['terminals']:,}")
    facts.add_row("timeouts", "not recorded" if timeouts is None else f"{timeouts:,}")
    facts.add_row("duplicates", f"{description['duplicates']:,}")
    facts.add_row("nearest neighbour", f"{coverage['nearest_neighbor_median']:.3g} standard deviations away, in the median")
    facts.add_row("effective samples", f"{coverage['effective_samples']:.3g} for an estimate, in the median")
    ranges = Table(title=f"{description['transitions']:,} transitions", title_justify="left")
    ranges.add_column("")
    if description["named"]:
        ranges.add_column("unit")
    for key in _STATISTICS:
        ranges.add_column(key, justify="right")
    for name, unit, row in rows:
        cells = [escape(name), escape(unit)] if description["named"] else [name]
        ranges.add_row(*cells, *(f"{row[key]:.5g}" for key in _STATISTICS))
    return Group(ranges, facts, *(Text(f"• {remark}") for remark in description["remarks"]))
