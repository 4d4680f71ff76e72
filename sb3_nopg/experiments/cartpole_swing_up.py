"""``cartpole-swing-up``: from hanging to upright, learned from random voltages. The paper has no such row."""

from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.comparison import Bar, Comparison
from sb3_nopg.experiments.d3rlpy_trials import d3rlpy_trials
from sb3_nopg.experiments.experiment import Experiment, Trial
from sb3_nopg.experiments.random_agent import OWN_MODEL, updates_of
from sb3_nopg.experiments.swing_up_trials import UPRIGHT_COST, run

_VOLTS, _QUICK_VOLTS = (8, 5), (8,)
_SIZES, _QUICK_SIZES = (1000, 2500, 5000, 10_000), (1000,)
_METHODS = ("NOPG-D, paper", "NOPG-D, defaults", "NOPG-S, paper", "NOPG-S, defaults", "KBRL", *first_tries.LEARNING)
_QUICK_METHODS = ("NOPG-D, paper", "NOPG-D, defaults", "KBRL", *first_tries.LEARNING)
COMPARISON = Comparison(
    name="cartpole-swing-up",
    across="samples",
    label="samples",
    paper={},
    notes=(
        "Steps upright (cos θ above 0.95) of the last 250 of 750 steps of 20 ms, from ten starts about hanging; none where "
        "the cart has left its rail; mean over the starts.",
        "The data: uniform voltages, each held for 2 to 19 steps, in episodes of 100 steps that begin about hanging or about "
        "upright, on the identified rig.",
        '"paper": bandwidths by cross-validation times the factors that the paper has for balancing, 2,000 updates; it has no '
        'swing-up itself. "defaults": this library\'s, 500 updates.',
        "The budget of MC-PILCO (Amadio et al., 2022), by its authors' program for the swing-up of a simulated cart-pole: "
        "3 s of random exploration and five trials of 3 s at 20 Hz by policies learned on the way, 360 samples. It chooses "
        "its data by flying; here nobody flies before the evaluation, and 1,000 samples are 20 s.",
        *first_tries.NOTES,
        first_tries.riccati_note(UPRIGHT_COST, in_episodes=True),
    ),
    solved=Bar(245.0, "upright in the last five seconds"),
    also={"held": "Share of the ten starts from which it stays upright through the last five seconds"},
)


def _trials(quick: bool, n_seeds: int) -> list[Trial]:
    trials: list[Trial] = [
        {"method": method, "samples": samples, "seed": seed, **updates_of(method, quick)}
        for method in (_QUICK_METHODS if quick else _METHODS)
        for samples in (_QUICK_SIZES if quick else _SIZES)
        # A model of this system takes half a minute, which a quick run spends once.
        for seed in range(1 if quick and method in OWN_MODEL else n_seeds)
    ]
    return _for_volts([*trials, {"method": first_tries.NOTHING, "seed": 0}], quick)


def _d3rlpy_trials(quick: bool, n_seeds: int) -> list[Trial]:
    sizes: list[Trial] = [{"samples": samples} for samples in (_QUICK_SIZES if quick else _SIZES)]
    return _for_volts(d3rlpy_trials(sizes, quick, n_seeds), quick)


def _for_volts(trials: list[Trial], quick: bool) -> list[Trial]:
    return [
        {"system": f"{volts} V", "volts": volts, **trial} for volts in (_QUICK_VOLTS if quick else _VOLTS) for trial in trials
    ]


EXPERIMENT = Experiment("cartpole-swing-up", "not in the paper", _trials, run, COMPARISON.summarize, _d3rlpy_trials)
