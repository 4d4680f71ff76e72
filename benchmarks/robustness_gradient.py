"""The regulator of the paper's gradient experiment in its stable version: how well an estimated gradient points uphill."""

from typing import Any

import numpy as np

from sb3_nopg import NOPGD, NOPGS
from sb3_nopg.bellman.settings import grouped
from sb3_nopg.experiments.lqr_cells import SETTING, case_data
from sb3_nopg.experiments.lqr_methods import GAMMA, gradient_or_none, nopg_gradient
from sb3_nopg.experiments.lqr_problem import SETTINGS, true_gradient

PLACES = ("S, at the behaviour", "S, 1.6 away", "D, at the behaviour", "D, 1.6 away")
# Gains at these distances from the behaviour's are 1.6 away on average.
_RING = (1.0, 2.5)


def gradient_cosines(case: str, n_trajectories: int, seed: int, settings: dict[str, Any], device: str) -> list[float]:
    """
    Cosine between estimated and true gradient of a diagonal linear controller, 0 where there is no gradient to be had; 1.6
    away the mean over the gains there.

    :param case: one of ``GRADIENT_CASES`` of the rows
    :param n_trajectories: of thirty steps, or as many samples as they have
    :param seed: of the data and of the model
    :param settings: arguments of the model
    :param device: to compute on
    :return: in the order of :data:`PLACES`
    """
    data, setting = case_data(case, n_trajectories, seed), SETTINGS[SETTING]
    behavior = setting.behavior_gains("stochastic")
    distances = np.linalg.norm(setting.field_gains("stochastic", quick=False) - behavior, axis=1)
    ring = setting.field_gains("stochastic", quick=False)[(_RING[0] <= distances) & (distances < _RING[1])]
    cosines = []
    for variant, kind in (("S", "stochastic"), ("D", "deterministic")):
        policy: dict[str, Any] = {"diagonal": True, "initial_gain": np.diag(behavior).tolist()}
        if variant == "S":
            policy["std"] = setting.input_std
        model = (NOPGS if variant == "S" else NOPGD)(
            "LinearPolicy",
            None,
            dataset=data,
            initial_states=[[1.0, 1.0]],
            gamma=GAMMA,
            policy_kwargs=policy,
            seed=seed,
            device=device,
            **grouped(settings),
        )
        gradient = nopg_gradient(model)
        for places in ([behavior], ring):
            each = [_cosine(gradient_or_none(gradient, gains), true_gradient(SETTING, kind, gains)) for gains in places]
            cosines.append(float(np.mean(each)))
    return cosines


def _cosine(estimate: np.ndarray | None, truth: np.ndarray) -> float:
    if estimate is None or not np.any(estimate):
        return 0.0
    return float(estimate @ truth / np.linalg.norm(estimate) / np.linalg.norm(truth))
