"""What both experiments with a random agent's data have in common: who is compared, on how much data."""

from sb3_nopg.experiments import first_tries
from sb3_nopg.experiments.experiment import Trial

_OFFLINE = (
    "NOPG-D, paper",
    "NOPG-D, defaults",
    "NOPG-S, paper",
    "NOPG-S, defaults",
    "KBRL",
    "PWIS",
    "PWIS, self-normalised",
    "DDPG offline",
    *first_tries.LEARNING,
)
# Of policies, by the paper, and of ours.
_PAPER_UPDATES, _OWN_UPDATES, _QUICK_UPDATES = 2000, 500, 60
_BY_THE_PAPER = ("NOPG-D, paper", "NOPG-S, paper", "PWIS", "PWIS, self-normalised", "DDPG offline")
_NOT_QUICK = ("NOPG-S, defaults",)
#: those that make a model of the system, which takes a while however small the data: one size of a quick run is enough
OWN_MODEL = ("NOPG-D, defaults", "NOPG-S, defaults", first_tries.GREEDY)
#: updates of a quick run, beside which the candidates take most of the time
QUICK_OWN_UPDATES = 20


def offline_trials(sizes: tuple[int, ...], quick: bool, n_seeds: int) -> list[Trial]:
    """
    :param sizes: numbers of transitions
    :param quick: a small part
    :param n_seeds: data sets of each size
    """
    return [
        {"method": method, "samples": samples, "seed": seed, **updates_of(method, quick)}
        for method in _OFFLINE
        if not (quick and method in _NOT_QUICK)
        for samples in (sizes[-1:] if quick and method in OWN_MODEL else sizes)
        for seed in range(n_seeds)
    ]


def online_trials(n_steps: int, every: int, n_seeds: int) -> list[Trial]:
    """
    Those who learn by acting, or not at all.

    :param n_steps: of DDPG
    :param every: steps between its evaluations
    :param n_seeds: runs of each
    """
    online: Trial = {"method": "DDPG online", "steps": n_steps, "every": every}
    trials = [{**kind, "seed": seed} for kind in (online, {"method": "behaviour"}) for seed in range(n_seeds)]
    return [*trials, {"method": first_tries.NOTHING, "seed": 0}]


def updates_of(method: str, quick: bool) -> Trial:
    """
    :param method: its name
    :param quick: few of them
    :return: number of its ``updates``; nothing for a method that makes none
    """
    if method == "KBRL" or method in first_tries.FIRST_TRIES:
        return {}
    if quick:
        return {"updates": QUICK_OWN_UPDATES if method in OWN_MODEL else _QUICK_UPDATES}
    return {"updates": _PAPER_UPDATES if method in _BY_THE_PAPER else _OWN_UPDATES}


#: what a reader of either table must know
NOTES = (
    "NOPG and KBRL: the last policy. PWIS, self-normalised or not, and DDPG offline: the best of 20 evaluations on the way, "
    "as in the paper, which flatters them; the JSON has the last one too. Behaviour: one episode a seed.",
    '"paper": bandwidths by cross-validation times the paper\'s factors, 2,000 updates. "defaults": this library\'s, 500 '
    "updates. A quick run makes fewer. Policies of NOPG and PWIS see normalised observations, of which the paper says "
    "nothing; DDPG sees them raw.",
    "KBRL is kernel value iteration with bandwidths by the rule `effective_neighbors`.",
    *first_tries.NOTES,
    "The paper goes to 25,000 samples for DDPG offline and PWIS, ours to 10,000.",
    "DDPG online acts for 100,000 steps; the paper lets it act for two or three times as many.",
    "The paper shows this as a figure whose numbers are not printed: there is nothing to set beside ours.",
)
#: steps of DDPG online, and steps between its evaluations
ONLINE_STEPS, QUICK_ONLINE_STEPS = (100_000, 1_000), (1_000, 500)
