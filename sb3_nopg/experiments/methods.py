"""Every algorithm that is compared, from a data set to the return that what it learned earns."""

import os
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from sb3_nopg.bellman.settings import grouped
from sb3_nopg.common.errors import InputError, SolverError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines import (
    PAPER_SETTINGS,
    PWIS,
    BehaviorPolicy,
    BestEvaluation,
    KernelValueIteration,
    offline_ddpg,
    online_ddpg,
)
from sb3_nopg.experiments.baselines.d3rlpy_runner import train as train_d3rlpy
from sb3_nopg.experiments.baselines.d3rlpy_runner.environment import D3RLPY_VERSION
from sb3_nopg.experiments.experiment import Result, Trial, device_of
from sb3_nopg.experiments.first_tries import FIRST_TRIES, refused
from sb3_nopg.experiments.task import Stopwatch, Task
from sb3_nopg.nopg import NOPG, NOPGD, NOPGS
from sb3_nopg.paper import AS_IN_THE_PAPER

_BANDWIDTHS = ("state_bandwidth", "action_bandwidth", "next_state_bandwidth")
# The paper's stay what they are when this library's defaults change. Each task adds its factors to them.
_NOPG_SETTINGS: dict[str, dict[str, Any]] = {
    "paper": {
        "transitions": AS_IN_THE_PAPER["transitions"],
        "keep": AS_IN_THE_PAPER["keep"],
        "learning_rate": 1e-2,
        **AS_IN_THE_PAPER["estimator_kwargs"],
        "n_next_state_samples": 1,
    },
    "defaults": {},
}
_KBRL_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(_BANDWIDTHS, "effective_neighbors"),
    "weights": "local_constant",
    "pessimism": 0.0,
}
#: added to "paper": its factor on actions also where these have a few levels, which our bandwidth rule has bridged by then
AS_PRINTED = "factor as printed"
#: who is compared where actions have a few levels, and nobody knows with which density they were chosen
ON_LEVELS_OF_ACTIONS = (
    "NOPG-D, paper",
    f"NOPG-D, paper, {AS_PRINTED}",
    "NOPG-D, defaults",
    "NOPG-S, paper",
    f"NOPG-S, paper, {AS_PRINTED}",
    "NOPG-S, defaults",
    "KBRL",
)
# Fewer distinct values than this share of the samples are levels: most samples repeat another's.
_LEVELS_SHARE = 0.5
# The paper shrinks σ linearly and does not say to what.
_FINAL_STD_SCALE = 0.1
_N_EVALUATIONS = 20


def run_method(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
    """
    :param task: to learn
    :param trial: with ``method``, ``seed`` and, where the method learns by them, ``updates``
    :param dataset: to learn from; methods that do not learn from data do not look at it
    :param behavior: that recorded the data
    :return: ``return``, what the paper would report; ``learning_seconds``, what it took without judging; and what else is
        worth keeping
    """
    watch = Stopwatch()
    result = _run(watch.over(task), trial, dataset, behavior)
    return {**result, "learning_seconds": round(watch.learning_seconds(), 3)}


def _run(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
    name = trial["method"]
    if name in FIRST_TRIES:
        return FIRST_TRIES[name](task, trial, dataset)
    if name.startswith("NOPG-"):
        variant, _, settings = name.removeprefix("NOPG-").partition(", ")
        return _nopg(task, trial, dataset, variant, settings)
    return _OTHERS[name](task, trial, dataset, behavior)


def nopg_model(task: Task, dataset: TransitionDataset, variant: str, settings: str, trial: Trial) -> NOPG:
    """
    :param task: to learn
    :param dataset: to learn from
    :param variant: ``"D"`` or ``"S"``
    :param settings: ``"paper"``, ``"paper, "`` and :data:`AS_PRINTED`, or ``"defaults"``, this library's
    :param trial: with the policy's ``seed``, and where to compute
    """
    whose, _, reading = settings.partition(", ")
    arguments = dict(_NOPG_SETTINGS[whose])
    if whose == "defaults" and task.model_settings:
        arguments.update(model_kwargs=dict(task.model_settings))
    if whose == "paper":
        arguments.update(task.paper_nopg)
        if reading != AS_PRINTED:
            factor = arguments.get("action_bandwidth_factor", 1.0)
            arguments["action_bandwidth_factor"] = _action_factors(dataset.actions, factor)
        if variant == "S":
            arguments["policy_kwargs"] = {"final_std_scale": _FINAL_STD_SCALE, "max_std": task.max_std}
    return (NOPGS if variant == "S" else NOPGD)(
        "MlpPolicy",
        None,
        dataset=dataset,
        gamma=task.gamma,
        initial_states=task.initial_states,
        seed=trial["seed"],
        device=device_of(trial),
        **grouped(arguments),
    )


def _action_factors(actions: np.ndarray, factor: float) -> list[float]:
    """
    The paper's factor is there to fill the gaps between a few levels of actions, on a narrow bandwidth. Where values repeat
    our rule gives half of the gap by itself, and fifty times that would make all actions alike.

    :param actions: of the data, (n, d_a)
    :param factor: the paper's
    :return: what the bandwidth of each dimension is multiplied by
    """
    return [1.0 if len(np.unique(values)) < _LEVELS_SHARE * len(values) else factor for values in actions.T]


def _nopg(task: Task, trial: Trial, dataset: TransitionDataset, variant: str, settings: str) -> Result:
    try:
        model = nopg_model(task, dataset, variant, settings, trial)
        # Nobody reads its log.
        model.learn(trial["updates"], log_interval=10**9)
    except InputError as error:
        if error.field != "dataset":
            raise
        return refused(task, dataset, str(error))
    estimated_return = model.estimated_return()
    # Step by step a processor is the quicker one.
    model.policy.to("cpu")
    return {**task.judge(model), "estimated_return": estimated_return}


def _kbrl(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
    settings: dict[str, Any] = {**_KBRL_SETTINGS, "gamma": task.gamma, "initial_states": task.initial_states}
    model = KernelValueIteration(dataset, **settings, seed=trial["seed"], device=device_of(trial))
    return {**task.judge(model), "estimated_return": model.estimated_return, "rounds": model.n_rounds}


def _pwis(
    task: Task,
    trial: Trial,
    dataset: TransitionDataset,
    behavior: BehaviorPolicy | None,
    self_normalized: bool = False,
) -> Result:
    assert task.paper_name is not None
    assert behavior is not None
    paper = PAPER_SETTINGS[task.paper_name, "pwis"]
    model = PWIS(
        dataset=dataset,
        behavior_log_density=behavior.log_density,
        self_normalized=self_normalized,
        seed=trial["seed"],
        **paper.arguments,
    )
    best = _best(task, trial)
    try:
        model.learn(trial["updates"], best)
    except SolverError as error:
        # Weights that overflow are what the method does; its best until then counts.
        return {**_best_result(task, best, model), "stopped": str(error)}
    return _best_result(task, best, model)


def _offline_ddpg(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
    assert task.paper_name is not None
    paper, best = PAPER_SETTINGS[task.paper_name, "offline_ddpg"], _best(task, trial)
    model = offline_ddpg(dataset, seed=trial["seed"], **paper.arguments)
    model.learn(trial["updates"], best, log_interval=10**9)
    return _best_result(task, best, model)


def _online_ddpg(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
    assert task.paper_name is not None
    paper, curve = PAPER_SETTINGS[task.paper_name, "online_ddpg"], BestEvaluation(task.evaluate, every=trial["every"])
    model = online_ddpg(task.make_env(), seed=trial["seed"], **paper.arguments)
    model.learn(trial["steps"], curve, log_interval=10**9)
    points = [[point.n_updates, point.value] for point in curve.evaluations]
    return {"return": curve.last.value, **task.look(model), "curve": points}


def _behavior(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
    assert behavior is not None
    return task.judge(behavior)


def _d3rlpy(algorithm: str) -> Callable[..., Result]:
    def run(task: Task, trial: Trial, dataset: TransitionDataset, behavior: BehaviorPolicy | None) -> Result:
        settings = {"n_steps": trial["updates"], "gamma": task.gamma, "seed": trial["seed"], "device": device_of(trial)}
        model = train_d3rlpy(d3rlpy_folder(), dataset, algorithm, **settings)
        return {**task.judge(model), "d3rlpy": D3RLPY_VERSION}

    return run


def d3rlpy_folder() -> pathlib.Path:
    """Where d3rlpy's virtual environment is, or is to be: as ``NOPG_D3RLPY_ENVIRONMENT`` says, or in the user's cache."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("NOPG_D3RLPY_ENVIRONMENT") or cache / "sb3-nopg" / "d3rlpy")


def _best(task: Task, trial: Trial) -> BestEvaluation:
    return BestEvaluation(task.evaluate, every=max(1, trial["updates"] // _N_EVALUATIONS))


def _best_result(task: Task, best: BestEvaluation, model: Any) -> Result:
    values = [point.value for point in best.evaluations]
    best.restore_best()
    return {
        "return": best.best.value,
        **task.look(model),
        "last": best.last.value,
        "evaluations": [[point.n_updates, value] for point, value in zip(best.evaluations, values, strict=True)],
    }


_OTHERS: dict[str, Callable[..., Result]] = {
    "KBRL": _kbrl,
    "PWIS": _pwis,
    "PWIS, self-normalised": partial(_pwis, self_normalized=True),
    "DDPG offline": _offline_ddpg,
    "DDPG online": _online_ddpg,
    "behaviour": _behavior,
    "IQL": _d3rlpy("iql"),
    "TD3+BC": _d3rlpy("td3_bc"),
    "ReBRAC": _d3rlpy("rebrac"),
    "CQL": _d3rlpy("cql"),
}
