"""Gradients of a diagonal linear controller by each method, from the same data, and the paths that they lead along."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th

from sb3_nopg.bellman.settings import grouped
from sb3_nopg.common.errors import SolverError
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines import PWIS, OfflineDPG, linear_gaussian_behavior
from sb3_nopg.experiments.lqr_problem import SETTINGS, input_space
from sb3_nopg.nopg import NOPG, NOPGD, NOPGS
from sb3_nopg.paper import AS_IN_THE_PAPER

GAMMA = 0.9
GradientFunction = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Method:
    """
    :param kind: of data and policy, ``"deterministic"`` or ``"stochastic"``
    :param learning_rate: of Adam, the paper's
    :param n_updates: of the path; the paper does not tell. PWIS makes small steps
    :param n_quick_updates: of the path in a quick run
    """

    kind: str
    learning_rate: float
    n_updates: int = 60
    n_quick_updates: int = 25


METHODS = {
    "NOPG-D": Method("deterministic", 0.5),
    "NOPG-D, local-linear": Method("deterministic", 0.5),
    "DPG": Method("deterministic", 0.5),
    "DPG, cross terms": Method("deterministic", 0.5),
    "NOPG-S": Method("stochastic", 0.25),
    "PWIS": Method("stochastic", 2.5e-4, 4000, 200),
    "PWIS, self-normalised": Method("stochastic", 2.5e-4, 4000, 200),
}
_OF_THE_PAPER: dict[str, Any] = AS_IN_THE_PAPER["estimator_kwargs"]
# How the paper chooses bandwidths.
BY_DENSITY: dict[str, Any] = {name: value for name, value in _OF_THE_PAPER.items() if name.endswith("bandwidth")}
# The paper's estimate, without what our defaults add to it.
PAPER_ESTIMATE: dict[str, Any] = {name: value for name, value in _OF_THE_PAPER.items() if name not in BY_DENSITY}
# The paper's, on average over its data sets, and how many entries of each row of P̂ it keeps.
_WIDE = {"state_bandwidth": [0.03, 0.05], "action_bandwidth": [0.33, 0.27], "keep_largest": 5}
_NARROW = {"state_bandwidth": [0.008, 0.003], "action_bandwidth": [0.02, 0.02], "keep_largest": 10}


def nopg(setting: str, kind: str, data: TransitionDataset, seed: int = 0, device: str = "cpu", **changes: Any) -> NOPG:
    """
    :param setting: a key of ``SETTINGS``
    :param kind: ``"stochastic"`` for NOPG-S with the behaviour's noise, ``"deterministic"`` for NOPG-D
    :param data: transitions
    :param seed: of the draws of actions
    :param device: to compute on
    :param changes: arguments of NOPG or of its estimator in place of the paper's
    """
    # The narrow ones belong to the paper's stochastic data, which hardly leave one curve.
    paper: dict[str, Any] = _NARROW if (setting, kind) == ("paper", "stochastic") else _WIDE
    arguments = {"transitions": AS_IN_THE_PAPER["transitions"], **PAPER_ESTIMATE, **paper}
    arguments = {**arguments, "next_state_bandwidth": paper["state_bandwidth"], **changes}
    return (NOPGS if kind == "stochastic" else NOPGD)(
        "LinearPolicy",
        None,
        dataset=data,
        initial_states=[[1.0, 1.0]],
        gamma=GAMMA,
        policy_kwargs=_policy(setting, kind),
        seed=seed,
        device=device,
        **grouped(arguments),
    )


def _policy(setting: str, kind: str) -> dict[str, Any]:
    """Arguments of a linear policy that starts as the behaviour does."""
    policy: dict[str, Any] = {"diagonal": True, "initial_gain": np.diag(SETTINGS[setting].behavior_gains(kind)).tolist()}
    return {**policy, "std": SETTINGS[setting].input_std} if kind == "stochastic" else policy


def gradient_function(method: str, setting: str, data: TransitionDataset, seed: int, device: str = "cpu") -> GradientFunction:
    """
    :param method: a key of :data:`METHODS`
    :param setting: a key of ``SETTINGS``
    :param data: of the method's kind
    :param seed: of the draws of NOPG-S
    :param device: that NOPG computes on
    :return: from k₁ and k₂ to the estimated gradient, both (2,)
    """
    kind = METHODS[method].kind
    if method.startswith("NOPG"):
        changes = {"weights": "local_linear", "keep_largest": None} if method.endswith("local-linear") else {}
        return nopg_gradient(nopg(setting, kind, data, seed, device, **changes))
    policy = _policy(setting, kind)
    if method.startswith("DPG"):
        return dpg_gradient(OfflineDPG("LinearPolicy", data, gamma=GAMMA, cross_terms=method != "DPG", policy_kwargs=policy))
    behavior = linear_gaussian_behavior(policy["initial_gain"], policy["std"], input_space(setting))
    self_normalized = method != "PWIS"
    return pwis_gradient(
        PWIS("LinearPolicy", data, behavior.log_density, gamma=GAMMA, self_normalized=self_normalized, policy_kwargs=policy)
    )


def nopg_gradient(model: NOPG) -> GradientFunction:
    """:param model: with a diagonal linear policy"""

    def gradient(gains: np.ndarray) -> np.ndarray:
        set_gains(model.policy, gains)
        return model.policy_gradient().astype(np.float64)

    return gradient


def dpg_gradient(model: OfflineDPG) -> GradientFunction:
    """The critic is put where its learning would rest: what is left is the semi-gradient's own bias, and the critic's form."""

    def gradient(gains: np.ndarray) -> np.ndarray:
        set_gains(model.policy, gains)
        model.fit_critic()
        return model.semi_gradient()

    return gradient


def pwis_gradient(model: PWIS) -> GradientFunction:
    """:param model: with a diagonal linear policy"""

    def gradient(gains: np.ndarray) -> np.ndarray:
        set_gains(model.policy, gains)
        return model.estimate().gradient

    return gradient


def set_gains(policy: Any, gains: np.ndarray) -> None:
    """
    :param policy: diagonal and linear
    :param gains: of its diagonal
    """
    with th.no_grad():
        policy.weight.copy_(th.as_tensor(gains))


def gradient_or_none(gradient: GradientFunction, gains: np.ndarray) -> np.ndarray | None:
    """The gradient, or None where the method has none to give: no fixed point, or numbers past what a float holds."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            estimate = gradient(gains)
    except SolverError:
        return None
    return estimate if np.isfinite(estimate).all() else None


def ascend(gradient: GradientFunction, start: np.ndarray, learning_rate: float, n_updates: int) -> list[list[float]]:
    """
    :param gradient: estimated or true
    :param start: k₁ and k₂
    :param learning_rate: of Adam
    :param n_updates: at most; fewer where there is no gradient any more
    :return: k₁ and k₂ before the first update and after each
    """
    gains = th.tensor(start, dtype=th.float64)
    optimizer = th.optim.Adam([gains], lr=learning_rate)
    path = [gains.tolist()]
    for _ in range(n_updates):
        estimate = gradient_or_none(gradient, gains.numpy().copy())
        if estimate is None:
            break
        # Minus, because optimisers descend.
        gains.grad = th.tensor(-estimate, dtype=th.float64)
        optimizer.step()
        path.append(gains.tolist())
    return path
