"""``cartpole-random``: keep the pole up, learned from a random agent's episodes, figure 2 of the paper, center-right."""

from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.cartpole_trials import COST, SYSTEMS, run
from sb3_nopg.experiments.comparison import Bar, Comparison
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_trials
from sb3_nopg.experiments.experiment import Experiment, Trial
from sb3_nopg.experiments.random_agent import (
    NOTES,
    ONLINE_STEPS,
    QUICK_ONLINE_STEPS,
    offline_trials,
    online_trials,
)

_SIZES, _QUICK_SIZES = (100, 500, 1000, 2500, 5000, 10_000), (100, 500)
COMPARISON = Comparison(
    name="cartpole-random",
    across="samples",
    label="samples",
    paper={},
    notes=(
        "Sum of cos θ until |θ| passes 3° or the cart leaves its rail, over at most 10,000 steps of 20 ms, 1,000 with "
        "--quick, from rest, upright, at the centre: very nearly the number of steps. The data start there too.",
        "The simulator has what a rig adds: friction, delay, encoders, and velocities that a filter makes of them.",
        "Methods that are told where the task starts get 15 states within 1 cm and 0.5° of it, as many as the paper draws; "
        "the perturbed starts are ten others of that kind.",
        *NOTES,
        first_tries.riccati_note(COST, in_episodes=True),
    ),
    logarithmic_returns=True,
    solved=Bar(0.99, "the pole never falls, as a share of the steps", share_of="evaluation_steps"),
    also={"perturbed": "The same from ten perturbed starts, mean over the starts"},
)


def _trials(quick: bool, n_seeds: int) -> list[Trial]:
    online = QUICK_ONLINE_STEPS if quick else ONLINE_STEPS
    return _for_systems(offline_trials(_sizes(quick), quick, n_seeds) + online_trials(*online, n_seeds), quick)


def _d3rlpy_trials(quick: bool, n_seeds: int) -> list[Trial]:
    return _for_systems(d3rlpy_trials([{"samples": samples} for samples in _sizes(quick)], quick, n_seeds), quick)


def _for_systems(trials: list[Trial], quick: bool) -> list[Trial]:
    steps = 1_000 if quick else 10_000
    return [{"system": system, **trial, "evaluation_steps": steps} for system in SYSTEMS for trial in trials]


def _sizes(quick: bool) -> tuple[int, ...]:
    return _QUICK_SIZES if quick else _SIZES


EXPERIMENT = Experiment("cartpole-random", "figure 2, center-right", _trials, run, COMPARISON.summarize, _d3rlpy_trials)
