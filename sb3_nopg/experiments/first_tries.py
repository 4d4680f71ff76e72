"""What a control engineer would try before learning anything, and what doing nothing gets; each from data to its judgement."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from sb3_nopg.common.errors import InputError
from sb3_nopg.data.buffer import spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines.cloning import Nothing, clone_behavior
from sb3_nopg.experiments.baselines.greedy_on_nodes import GreedyOnNodes
from sb3_nopg.experiments.baselines.least_squares_riccati import QuadraticCost, least_squares_riccati
from sb3_nopg.experiments.experiment import Result, Trial, device_of
from sb3_nopg.experiments.task import Task

NOTHING, RICCATI, CLONING, GREEDY = "doing nothing", "least squares + Riccati", "behaviour cloning", "greedy on nodes"
#: those that learn from data
LEARNING = (RICCATI, CLONING, GREEDY)
#: what a reader of a table with them must know
NOTES = (
    f'"{RICCATI}": a linear model by least squares, and the best controller for it. "{CLONING}": a network fitted to the '
    f'recorded actions. "{GREEDY}": NOPG\'s model and value iteration on its nodes, and then the best of nine actions one '
    "step ahead; no network and no gradient.",
)
# What a refusal begins with where it is not for too few data.
_NO_CONTROLLER = "no linear controller"


def riccati_note(cost: QuadraticCost, in_episodes: bool) -> str:
    """
    What a reader must know of the linear model of one experiment.

    :param cost: of its task
    :param in_episodes: whether its samples follow each other
    """
    samples = "all samples" if cost.cosine is None else "samples within 26° of upright"
    if cost.remembers and in_episodes:
        return f'"{RICCATI}" fits {samples}; its state has the action before.'
    return f'"{RICCATI}" fits {samples}; it does not know the action before.'


def refused(task: Task, dataset: TransitionDataset, reason: str) -> Result:
    """
    Of a method that gives no policy, which is a result too: whoever uses it does nothing.

    :param task: that was to be learned
    :param dataset: the data
    :param reason: why not
    """
    return {**task.judge(Nothing(spaces_of(dataset)[1])), "refused": reason}


def refusal_notes(results: Iterable[tuple[Trial, Result]]) -> list[str]:
    """
    :param results: parameters and result of each trial
    :return: how often each method gave no policy, a sentence for each reason
    """
    too_few, unsolved = Counter[str](), Counter[str]()
    for trial, result in results:
        if "refused" in result:
            counts = unsolved if result["refused"].startswith(_NO_CONTROLLER) else too_few
            counts[trial["method"]] += 1
    reasons = {"too few data for it": too_few, "its linear model has no best controller": unsolved}
    return [
        f"Refused, as {reason}, and so counted as {NOTHING}: "
        + "; ".join(f"{method} in {n} trials" for method, n in counts.items())
        + "."
        for reason, counts in reasons.items()
        if counts
    ]


def _nothing(task: Task, trial: Trial, dataset: TransitionDataset) -> Result:
    return task.judge(Nothing(spaces_of(dataset)[1]))


def _riccati(task: Task, trial: Trial, dataset: TransitionDataset) -> Result:
    assert task.cost is not None
    names = ("observations", "actions", "next_observations", "episode_ids")
    space = spaces_of(dataset)[1]
    try:
        data = {name: getattr(dataset, name) for name in names}
        controller = least_squares_riccati(data, task.cost, space.low.astype(np.float64), space.high.astype(np.float64))
    except InputError as error:
        return refused(task, dataset, str(error))
    except (np.linalg.LinAlgError, ValueError) as error:
        return refused(task, dataset, f"{_NO_CONTROLLER} ({error})")
    return task.judge(controller)


def _cloning(task: Task, trial: Trial, dataset: TransitionDataset) -> Result:
    return task.judge(clone_behavior(dataset, trial["seed"]))


def _greedy(task: Task, trial: Trial, dataset: TransitionDataset) -> Result:
    try:
        model = GreedyOnNodes(
            dataset, task.initial_states, task.gamma, trial["seed"], device_of(trial), **dict(task.model_settings)
        )
    except InputError as error:
        if error.field != "dataset":
            raise
        return refused(task, dataset, str(error))
    return {**task.judge(model), "estimated_return": model.estimated_return}


#: by name, from the task, the trial and the data
FIRST_TRIES: dict[str, Callable[[Task, Trial, TransitionDataset], Result]] = {
    NOTHING: _nothing,
    RICCATI: _riccati,
    CLONING: _cloning,
    GREEDY: _greedy,
}
