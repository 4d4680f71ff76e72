"""What ``--with-d3rlpy`` adds to every experiment that compares algorithms."""

from collections.abc import Iterable

from sb3_nopg.experiments.experiment import Result, Trial

_METHODS = ("IQL", "TD3+BC")
# Of 256 samples each: a hundred passes over the largest of these data sets, and thousands over most.
_N_UPDATES, _N_QUICK_UPDATES = 5_000, 500


def d3rlpy_trials(data: Iterable[Trial], quick: bool, n_seeds: int) -> list[Trial]:
    """
    :param data: of each size, the parameters that say which data it is
    :param quick: few updates
    :param n_seeds: runs of each algorithm on each
    """
    updates = _N_QUICK_UPDATES if quick else _N_UPDATES
    return [
        {"method": method, **parameters, "seed": seed, "updates": updates}
        for method in _METHODS
        for parameters in data
        for seed in range(n_seeds)
    ]


def d3rlpy_notes(results: Iterable[tuple[Trial, Result]]) -> list[str]:
    """
    :param results: parameters and result of each trial
    :return: what a reader must know of those by d3rlpy's algorithms; nothing where there are none
    """
    trials = [trial for trial, _ in results if trial["method"] in _METHODS]
    if not trials:
        return []
    updates, n_seeds = max(trial["updates"] for trial in trials), len({trial["seed"] for trial in trials})
    return [
        f"{' and '.join(_METHODS)}: d3rlpy's, with its own settings but for two layers of 256 units and normalised inputs; "
        f"the last policy after {updates:,} updates of 256 samples; {n_seeds} seeds."
    ]
