"""``pendulum-random``: swing-up learned from trajectories of a random agent, figure 2 of the paper, second from the left."""

from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.comparison import Bar, Comparison
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_trials
from sb3_nopg.experiments.experiment import Experiment, Trial
from sb3_nopg.experiments.pendulum_trials import COST, run_on_random_data
from sb3_nopg.experiments.random_agent import (
    NOTES,
    ONLINE_STEPS,
    QUICK_ONLINE_STEPS,
    offline_trials,
    online_trials,
)

_SIZES, _QUICK_SIZES = (100, 500, 1000, 2000, 5000, 10_000), (100, 500)
COMPARISON = Comparison(
    name="pendulum-random",
    across="samples",
    label="samples",
    paper={},
    notes=(
        "Undiscounted return over 500 steps from hanging; the data start upright. Value iteration on the true dynamics gets "
        "-369 with the same γ = 0.97, and doing nothing -4935.",
        "PWIS with 100 or 500 samples sees a single episode, which starts upright where the task starts hanging: its number "
        "is the best of nearly arbitrary policies.",
        *NOTES,
        first_tries.riccati_note(COST, in_episodes=True),
    ),
    solved=Bar(-1000.0, "gets up and stays there"),
)


def _trials(quick: bool, n_seeds: int) -> list[Trial]:
    online = QUICK_ONLINE_STEPS if quick else ONLINE_STEPS
    return offline_trials(_sizes(quick), quick, n_seeds) + online_trials(*online, n_seeds)


def _d3rlpy_trials(quick: bool, n_seeds: int) -> list[Trial]:
    return d3rlpy_trials([{"samples": samples} for samples in _sizes(quick)], quick, n_seeds)


def _sizes(quick: bool) -> tuple[int, ...]:
    return _QUICK_SIZES if quick else _SIZES


EXPERIMENT = Experiment(
    "pendulum-random", "figure 2, center-left", _trials, run_on_random_data, COMPARISON.summarize, _d3rlpy_trials
)
