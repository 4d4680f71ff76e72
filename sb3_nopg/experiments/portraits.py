"""
Experiment ``portraits``: what NOPG-D believes of the pendulum before it learns and after 300 updates, beside what is true.

The paper shows the estimates. Here the simulator tells the true ones as well: the value from every cell of the picture, and
the share of its time that the policy really spends near upright.
"""

import math
import pathlib
from typing import Any

import gymnasium as gym
import numpy as np

import nopg_envs  # noqa: F401  registers the environments
from sb3_nopg.experiments.experiment import Experiment, Result, Trial, device_of
from sb3_nopg.experiments.extent import Extent
from sb3_nopg.experiments.report import interval_cell, markdown_table, new_figure, save_figure
from sb3_nopg.nopg import NOPG
from sb3_nopg.paper import AS_IN_THE_PAPER
from sb3_nopg.recipes import make_dataset

NAME = "portraits"
_GAMMA = 0.97
# The paper's estimate, and whatever our defaults are.
_SETTINGS: dict[str, dict[str, Any]] = {"paper": AS_IN_THE_PAPER, "our defaults": {}}
_LEVELS, _QUICK_LEVELS = [20, 20, 2], [15, 15, 2]
_N_UPDATES, _N_QUICK_UPDATES = 300, 60
_N_CELLS, _N_QUICK_CELLS = 41, 21
# Steps after which 0.97ᵗ leaves less than a thousandth of a value.
_HORIZON = 230
# Within these of upright and still, in rad and rad/s.
_NEAR = (0.5, 1.5)
_SPEED = 8.0


def trials(quick: bool, n_seeds: int) -> list[Trial]:
    """
    :param quick: less data, fewer updates, coarser pictures
    :param n_seeds: first policies
    """
    return [
        {
            "settings": settings,
            "seed": seed,
            "levels": _QUICK_LEVELS if quick else _LEVELS,
            "n_updates": _N_QUICK_UPDATES if quick else _N_UPDATES,
            "n_cells": _N_QUICK_CELLS if quick else _N_CELLS,
        }
        for settings in _SETTINGS
        for seed in range(n_seeds)
    ]


def run(trial: Trial) -> Result:
    """
    :param trial: from :func:`trials`
    :return: for the policy before and after learning, the pictures and what the simulator says
    """
    env = gym.make("nopg/Pendulum-v0")
    model = NOPG(
        "MlpPolicy",
        env,
        dataset=make_dataset({"grid": {"levels": trial["levels"]}}, env, seed=0),
        gamma=_GAMMA,
        # Hanging still.
        initial_states=[[-1.0, 0.0, 0.0]],
        seed=trial["seed"],
        device=device_of(trial),
        **_SETTINGS[trial["settings"]],
    )
    before = _portrait(model, trial["n_cells"])
    model.learn(trial["n_updates"])
    return {"before": before, "after": _portrait(model, trial["n_cells"]), "n_samples": math.prod(trial["levels"])}


def _portrait(model: NOPG, n_cells: int) -> dict[str, Any]:
    angles, speeds = _axes(n_cells)
    states = np.stack([axis.ravel() for axis in np.meshgrid(angles, speeds, indexing="ij")], axis=1)
    observations = observe(states)
    value, true_value = model.value(observations), simulate(model, states)[0]
    assert model.dataset is not None
    visits = model.visitation / model.visitation.sum()
    seen = model.dataset.observations
    upright = near_upright(np.stack([np.arctan2(seen[:, 1], seen[:, 0]), seen[:, 2]], axis=1))
    true_return, true_share = simulate(model, np.array([[np.pi, 0.0]]))
    return {
        "value": value.reshape(n_cells, n_cells).tolist(),
        "true_value": true_value.reshape(n_cells, n_cells).tolist(),
        "state_distribution": model.state_distribution(observations).reshape(n_cells, n_cells).tolist(),
        "estimated_return": model.estimated_return(),
        "true_return": float(true_return[0]),
        "share_upright": float(visits[upright].sum()),
        "true_share_upright": float(true_share[0]),
        "value_correlation": float(np.corrcoef(value, true_value)[0, 1]),
        "value_error": float(np.sqrt(np.mean((value - true_value) ** 2))),
    }


def observe(states: np.ndarray) -> np.ndarray:
    """
    :param states: angle from upright and its velocity, (m, 2)
    :return: as the environment shows them, (m, 3)
    """
    return np.stack([np.cos(states[:, 0]), np.sin(states[:, 0]), states[:, 1]], axis=1)


def near_upright(states: np.ndarray) -> np.ndarray:
    """:param states: angle, wrapped, and velocity, (m, 2)"""
    return np.asarray((np.abs(states) < _NEAR).all(axis=1))


def simulate(model: Any, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    All states at once, by the pendulum's own equations; the environment takes one after the other.

    :param model: with ``predict``
    :param states: where to start, angle and velocity, (m, 2)
    :return: discounted return, and share of the discounted time near upright, (m,) each
    """
    angle, speed = states.T.copy()
    returns, upright = np.zeros(len(states)), np.zeros(len(states))
    for t in range(_HORIZON):
        wrapped = (angle + np.pi) % (2.0 * np.pi) - np.pi
        upright += _GAMMA**t * near_upright(np.stack([wrapped, speed], axis=1))
        actions, _ = model.predict(observe(np.stack([angle, speed], axis=1)).astype(np.float32), deterministic=True)
        torque = np.clip(np.asarray(actions, dtype=np.float64)[:, 0], -2.0, 2.0)
        returns -= _GAMMA**t * (wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2)
        speed = np.clip(speed + 0.05 * (15.0 * np.sin(angle) + 3.0 * torque), -_SPEED, _SPEED)
        angle = angle + 0.05 * speed
    return returns, upright * (1.0 - _GAMMA) / (1.0 - _GAMMA**_HORIZON)


def summarize(results: list[tuple[Trial, Result]], folder: pathlib.Path, extent: Extent) -> str:
    """
    :param results: of all trials
    :param folder: for the figures
    :param extent: how much of the experiment it is
    :return: table of what was believed and what is true
    """
    rows = []
    for settings in dict.fromkeys(trial["settings"] for trial, _ in results):
        chosen = [(trial, result) for trial, result in results if trial["settings"] == settings]
        suffix = "" if settings == "paper" else f"-{settings.replace(' ', '-')}"
        _draw(*chosen[0], folder / f"{extent.file_name(NAME)}{suffix}.png", extent)
        for moment in ("before", "after"):
            rows.append(_row(settings, moment, chosen))
    return (
        "Believed and true, before and after the updates. Returns are discounted and start hanging still; shares are of the "
        "discounted time near upright; correlation and error of V̂ are over all cells of the picture. Means over first "
        f"policies with 95 % intervals.\n\n{markdown_table(rows)}"
    )


def _row(settings: str, moment: str, chosen: list[tuple[Trial, Result]]) -> dict[str, Any]:
    def cell(name: str, digits: int) -> str:
        return interval_cell([result[moment][name] for _, result in chosen], digits)

    updates = 0 if moment == "before" else chosen[0][0]["n_updates"]
    return {
        "settings": settings,
        "samples": chosen[0][1]["n_samples"],
        "updates": updates,
        "believed return": cell("estimated_return", 0),
        "true return": cell("true_return", 0),
        "believed share upright": cell("share_upright", 2),
        "true share upright": cell("true_share_upright", 2),
        "correlation of V̂": cell("value_correlation", 2),
        "error of V̂": cell("value_error", 0),
    }


def _axes(n_cells: int) -> tuple[np.ndarray, np.ndarray]:
    return np.linspace(-np.pi, np.pi, n_cells), np.linspace(-_SPEED, _SPEED, n_cells)


def _draw(trial: Trial, result: Result, path: pathlib.Path, extent: Extent) -> None:
    figure = new_figure(11.0, 6.4)
    axes = figure.subplots(2, 3)
    for line, moment in zip(axes, ("before", "after"), strict=True):
        portrait = result[moment]
        updates = 0 if moment == "before" else trial["n_updates"]
        values = np.array([portrait["value"], portrait["true_value"]])
        pictures = (
            ("state_distribution", f"believed μ̃ after {updates} updates", {"vmin": 0.0}),
            ("value", f"believed V̂ after {updates} updates", {"vmin": values.min(), "vmax": values.max()}),
            ("true_value", "true V of the same policy", {"vmin": values.min(), "vmax": values.max()}),
        )
        for panel, (name, title, limits) in zip(line, pictures, strict=True):
            image = panel.imshow(
                np.array(portrait[name]).T, origin="lower", aspect="auto", extent=(-np.pi, np.pi, -_SPEED, _SPEED), **limits
            )
            panel.set_title(title, fontsize="small")
            panel.set(xlabel="α", ylabel="dα/dt")
            figure.colorbar(image, ax=panel)
    save_figure(figure, path, extent)


EXPERIMENT = Experiment(NAME, "figure 3", trials, run, summarize)
