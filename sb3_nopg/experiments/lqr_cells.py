"""Data of the kinds that the paper's table of applicability names, on the regulator, and what each method makes of them."""

import inspect
from dataclasses import fields
from typing import Any

import numpy as np

from sb3_nopg.bellman.settings import SampleSettings
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.experiments.baselines import PWIS, OfflineDPG, linear_gaussian_behavior
from sb3_nopg.experiments.lqr_methods import (
    BY_DENSITY,
    GAMMA,
    PAPER_ESTIMATE,
    GradientFunction,
    dpg_gradient,
    nopg,
    nopg_gradient,
    pwis_gradient,
)
from sb3_nopg.experiments.lqr_problem import N_STEPS, SETTINGS, Row, as_dataset, collect, input_space, make_env
from sb3_nopg.nopg import NOPG
from sb3_nopg.policies.nopg_policy import DeterministicLinearPolicy, GaussianLinearPolicy

SETTING = "regulator"
METHODS = (
    "semi-gradient",
    "semi-gradient, cross terms",
    "PWIS",
    "PWIS, self-normalised",
    "NOPG",
    "NOPG, our defaults",
)
CASES = ("demonstrations", "unordered", "deterministic policy", "trajectories")
# The operator's hand moves in steps of this size, and the operator's gains differ by this much from one time to the next.
_HAND_STEP, _MOOD_SPREAD = 0.5, 0.5
# Half-width of the box that unordered samples come from: where the start and the way to zero are.
_BOX = 1.2


def case_data(case: str, n_trajectories: int, seed: int) -> TransitionDataset:
    """
    :param case: one of :data:`CASES`
    :param n_trajectories: or as many samples as they have
    :param seed: of the draws
    """
    if case == "demonstrations":
        return _demonstrations(n_trajectories, seed)
    if case == "unordered":
        return _one_step_samples(n_trajectories * N_STEPS, seed)
    return collect(SETTING, "stochastic", n_trajectories, seed)


def policy_kind(method: str, case: str) -> str:
    """Kind of the policy whose gradient is asked for: the semi-gradient is that of a deterministic one."""
    return "deterministic" if method.startswith("semi") or case == "deterministic policy" else "stochastic"


def case_gradient(method: str, case: str, data: TransitionDataset, seed: int, device: str = "cpu") -> GradientFunction:
    """
    :param method: one of :data:`METHODS`
    :param case: one of :data:`CASES`
    :param data: of it
    :param seed: of the draws of NOPG-S
    :param device: that NOPG computes on
    :raises InputError: where the method does not apply
    """
    kind = policy_kind(method, case)
    if method.startswith("NOPG"):
        changes = {**BY_DENSITY, "keep_largest": None} if method == "NOPG" else _our_defaults()
        return nopg_gradient(nopg(SETTING, kind, data, seed, device, **changes))
    setting = SETTINGS[SETTING]
    gain = np.diag(setting.behavior_gains("stochastic")).tolist()
    policy: dict[str, Any] = {"diagonal": True, "initial_gain": gain}
    if method.startswith("semi"):
        cross_terms = method != "semi-gradient"
        return dpg_gradient(OfflineDPG("LinearPolicy", data, gamma=GAMMA, cross_terms=cross_terms, policy_kwargs=policy))
    # Nobody can write down how the operator chooses.
    density = None
    if case != "demonstrations":
        density = linear_gaussian_behavior(gain, setting.input_std, input_space(SETTING)).log_density
    policy_class = DeterministicLinearPolicy if kind == "deterministic" else GaussianLinearPolicy
    noise = {} if kind == "deterministic" else {"std": setting.input_std}
    self_normalized = method != "PWIS"
    return pwis_gradient(
        PWIS(policy_class, data, density, gamma=GAMMA, self_normalized=self_normalized, policy_kwargs={**policy, **noise})
    )


def _our_defaults() -> dict[str, Any]:
    """In place of what the LQR experiment takes from the paper."""
    defaults = {field.name: field.default for field in fields(SampleSettings)}
    changed = {name: defaults[name] for name in (*BY_DENSITY, *PAPER_ESTIMATE, "keep_largest")}
    return {"transitions": inspect.signature(NOPG).parameters["transitions"].default, **changed}


def _demonstrations(n_trajectories: int, seed: int) -> TransitionDataset:
    """An operator who steers as a hand does: in steps, and differently every time."""
    env, rng, rows = make_env(SETTING), np.random.default_rng(seed), list[Row]()
    gain = np.diag(SETTINGS[SETTING].behavior_gains("deterministic"))
    for _ in range(n_trajectories):
        mood = gain + _MOOD_SPREAD * rng.standard_normal((2, 2))
        state, _ = env.reset()
        for _ in range(N_STEPS):
            action = _HAND_STEP * np.round(mood @ state / _HAND_STEP)
            next_state, reward, *_ = env.step(action)
            rows.append((state, action, reward, next_state))
            state = next_state
    return as_dataset(rows, np.repeat(np.arange(n_trajectories), N_STEPS))


def _one_step_samples(n_samples: int, seed: int) -> TransitionDataset:
    env, rng, rows = make_env(SETTING), np.random.default_rng(seed), list[Row]()
    setting = SETTINGS[SETTING]
    gain = np.diag(setting.behavior_gains("stochastic"))
    for _ in range(n_samples):
        state, _ = env.reset(options={"state": rng.uniform(-_BOX, _BOX, size=2)})
        action = gain @ state + setting.input_std * rng.standard_normal(2)
        next_state, reward, *_ = env.step(action)
        rows.append((state, action, reward, next_state))
    return as_dataset(rows, None)
