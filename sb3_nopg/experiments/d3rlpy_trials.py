"""What ``--with-d3rlpy`` adds to every experiment that compares algorithms."""

import json
from collections.abc import Iterable

from sb3_nopg.experiments.experiment import Result, Trial

# ReBRAC holds next actions against the recorded ones: one-step samples have none, and CQL stands in.
_ON_EPISODES, _ON_SAMPLES = ("IQL", "TD3+BC", "ReBRAC"), ("IQL", "TD3+BC", "CQL")
#: all that there are
METHODS = (*_ON_EPISODES, "CQL")
# Each takes minutes, and none of our own methods decides which settings they get.
_MOST_SEEDS = 3
# Of 256 samples each, of ReBRAC's 1,024: five hundred passes over the largest of these data sets, and thousands over most.
_N_UPDATES, _N_QUICK_UPDATES = 20_000, 500


def d3rlpy_trials(data: Iterable[Trial], quick: bool, n_seeds: int, one_step_samples: bool = False) -> list[Trial]:
    """
    :param data: of each size, the parameters that say which data it is
    :param quick: few updates
    :param n_seeds: runs of each algorithm on each, of which there are three at most
    :param one_step_samples: whether the data have no episodes
    """
    updates = _N_QUICK_UPDATES if quick else _N_UPDATES
    return [
        {"method": method, **parameters, "seed": seed, "updates": updates}
        for method in (_ON_SAMPLES if one_step_samples else _ON_EPISODES)
        for parameters in data
        for seed in range(min(n_seeds, _MOST_SEEDS))
    ]


def d3rlpy_notes(results: Iterable[tuple[Trial, Result]]) -> list[str]:
    """
    :param results: parameters and result of each trial
    :return: what a reader must know of those by d3rlpy's algorithms; nothing where there are none
    """
    trials = [trial for trial, _ in results if trial["method"] in METHODS]
    if not trials:
        return []
    updates = max(trial["updates"] for trial in trials)
    n_seeds = _numbers_of_seeds(trials)
    most = max(max(numbers) for numbers in n_seeds.values())
    fewer = "".join(f", {method} {_from_to(numbers)}" for method, numbers in n_seeds.items() if min(numbers) < most)
    return [
        f"{', '.join(n_seeds)}: d3rlpy's, with its own settings but for sizes of batches and networks like those of their "
        f"papers, and with normalised inputs; the last policy after {updates:,} updates; "
        f"{most} seed{'s' * (most > 1)}{fewer}."
    ]


def _numbers_of_seeds(trials: Iterable[Trial]) -> dict[str, list[int]]:
    """Of each method, with how many seeds it was run on each of the data that any was run on."""
    seeds: dict[str, dict[str, set[int]]] = {}
    for trial in trials:
        of_data = {name: value for name, value in trial.items() if name not in ("method", "seed", "device")}
        seeds.setdefault(trial["method"], {}).setdefault(json.dumps(of_data, sort_keys=True), set()).add(trial["seed"])
    all_data = {data for of_method in seeds.values() for data in of_method}
    return {method: [len(of_method.get(data, ())) for data in all_data] for method, of_method in seeds.items()}


def _from_to(numbers: Iterable[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least}" if least == most else f"{least} to {most}"
