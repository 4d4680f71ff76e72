"""``pendulum-grid``: swing-up learned from a grid of one-step transitions, figure 2 left of the paper."""

from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.comparison import Bar, Comparison
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_trials
from sb3_nopg.experiments.experiment import Experiment, Trial
from sb3_nopg.experiments.methods import AS_PRINTED, ON_LEVELS_OF_ACTIONS
from sb3_nopg.experiments.pendulum_trials import COST, run_on_grid
from sb3_nopg.experiments.random_agent import OWN_MODEL, QUICK_OWN_UPDATES

# Samples of the grid: levels of angle, angular velocity and torque.
_GRIDS = {
    200: [10, 10, 2],
    450: [15, 15, 2],
    800: [20, 20, 2],
    1250: [25, 25, 2],
    1800: [30, 30, 2],
    3200: [40, 40, 2],
}
_QUICK_SIZES = (200, 450)
_QUICK_METHODS = ("NOPG-D, paper", "NOPG-D, defaults", "NOPG-S, paper", "NOPG-S, defaults", "KBRL", *first_tries.LEARNING)
# Without randomness, on data that have none.
_CERTAIN = ("KBRL", first_tries.RICCATI)
COMPARISON = Comparison(
    name="pendulum-grid",
    across="samples",
    label="samples of the grid",
    paper={
        "NOPG-D": {200: -3775.2, 450: -593.7, 800: -579.1, 1250: -579.7, 1800: -502.7, 3200: -431.9},
        "NOPG-S": {200: -3793.4, 450: -593.1, 800: -580.3, 1250: -582.2, 1800: -472.0, 3200: -430.0},
    },
    notes=(
        "Undiscounted return over 500 steps from hanging, by the last policy. Value iteration on the true dynamics gets -369 "
        "with the same γ = 0.97.",
        '"paper": bandwidths by cross-validation; 1,500 updates; σ of NOPG-S shrinks to a tenth. The paper multiplies those '
        "of actions by 50; our rule gives half of the gap between two levels, 2 for torques of ±2, and no factor is applied. "
        f'"{AS_PRINTED}": it is applied all the same. Others: '
        "this library's defaults, 500 updates. A quick run makes fewer. NOPG's policies see normalised observations, of which "
        "the paper says nothing.",
        "KBRL (kernel value iteration) has no policy and no randomness: one run. Its bandwidth rule is `effective_neighbors`.",
        *first_tries.NOTES,
        first_tries.riccati_note(COST, in_episodes=False),
        "PWIS cannot be run: a grid has no trajectories.",
    ),
    solved=Bar(-1000.0, "gets up and stays there"),
)


def _trials(quick: bool, n_seeds: int) -> list[Trial]:
    trials = []
    for method in _QUICK_METHODS if quick else (*ON_LEVELS_OF_ACTIONS, *first_tries.LEARNING):
        for grid in _grids(quick)[-1:] if quick and method in OWN_MODEL else _grids(quick):
            for seed in range(1 if method in _CERTAIN else n_seeds):
                trial: Trial = {"method": method, **grid, "seed": seed}
                trials.append({**trial, "updates": _updates(method, quick)} if method.startswith("NOPG") else trial)
    return [*trials, {"method": first_tries.NOTHING, "levels": [2, 2, 2], "seed": 0}]


def _d3rlpy_trials(quick: bool, n_seeds: int) -> list[Trial]:
    return d3rlpy_trials(_grids(quick), quick, n_seeds, one_step_samples=True)


def _grids(quick: bool) -> list[Trial]:
    return [{"samples": samples, "levels": _GRIDS[samples]} for samples in (_QUICK_SIZES if quick else _GRIDS)]


def _updates(method: str, quick: bool) -> int:
    if quick:
        return QUICK_OWN_UPDATES if method in OWN_MODEL else 100
    return 1500 if ", paper" in method else 500


EXPERIMENT = Experiment("pendulum-grid", "figure 2, left", _trials, run_on_grid, COMPARISON.summarize, _d3rlpy_trials)
