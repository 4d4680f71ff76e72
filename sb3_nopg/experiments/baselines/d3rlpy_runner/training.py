"""Train with d3rlpy in its own interpreter, and use here what it learned."""

import json
import os
import pathlib
import tempfile
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_nopg.common.checks import check_spaces
from sb3_nopg.common.errors import InputError
from sb3_nopg.data.buffer import spaces_of
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.episode_labels import episode_labels
from sb3_nopg.experiments.baselines.d3rlpy_runner import train_script
from sb3_nopg.experiments.baselines.d3rlpy_runner.environment import D3rlpyError, Progress, interpreter, run
from sb3_nopg.experiments.experiment import DEVICES

# Like those of their papers: batch size, hidden units, and whether critics normalise their layers. All else is d3rlpy's.
_SIZES: dict[str, dict[str, Any]] = {
    "iql": {"batch_size": 256, "hidden_units": (256, 256), "critic_layer_norm": False},
    "td3_bc": {"batch_size": 256, "hidden_units": (256, 256), "critic_layer_norm": False},
    "cql": {"batch_size": 256, "hidden_units": (256, 256, 256), "critic_layer_norm": False},
    "rebrac": {"batch_size": 1024, "hidden_units": (256, 256, 256), "critic_layer_norm": True},
}
ALGORITHMS = tuple(_SIZES)
# Imported too, so that results are known to come from it.
_SCRIPT = pathlib.Path(train_script.__file__)


class NumpyPolicy:
    """
    A network of ReLU layers with a tanh at its end, scaled to the action space; with SB3's ``predict``.

    :param layers: weight (outputs, inputs) and bias (outputs,) of each layer
    :param observation_mean: subtracted from observations, (d_s,)
    :param observation_std: divides them, (d_s,)
    :param action_space: bounded Box
    """

    def __init__(
        self,
        layers: list[tuple[np.ndarray, np.ndarray]],
        observation_mean: np.ndarray,
        observation_std: np.ndarray,
        action_space: spaces.Box,
    ):
        self.layers, self.action_space = layers, action_space
        self.observation_mean, self.observation_std = observation_mean, observation_std

    def predict(
        self,
        observation: np.ndarray,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """As in SB3, for one observation (d_s,) or several (m, d_s); always deterministic."""
        values = (np.asarray(observation, dtype=np.float64) - self.observation_mean) / self.observation_std
        for weight, bias in self.layers[:-1]:
            values = np.maximum(values @ weight.T + bias, 0.0)
        weight, bias = self.layers[-1]
        share = np.tanh(values @ weight.T + bias)
        low, high = self.action_space.low.astype(np.float64), self.action_space.high.astype(np.float64)
        return np.asarray(low + 0.5 * (share + 1.0) * (high - low), dtype=self.action_space.dtype), state


def train(
    environment: str | os.PathLike[str],
    dataset: TransitionDataset,
    algorithm: str,
    *,
    n_steps: int = 20_000,
    gamma: float = 0.99,
    batch_size: int | None = None,
    hidden_units: tuple[int, ...] | None = None,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
    timeout_s: float = 3600.0,
    **changes: Any,
) -> NumpyPolicy:
    """
    Observations are normalised by the data's mean and standard deviation, actions scaled to [-1, 1], and rewards divided by
    their standard deviation: IQL weighs advantages in the reward's units. Any data will do, trajectories or not, but for
    ReBRAC, which learns from those steps after which the next action is known or there is none.

    :param environment: folder that :func:`make_environment` made
    :param dataset: the data
    :param algorithm: ``"iql"``, ``"td3_bc"``, ``"cql"`` or ``"rebrac"``
    :param n_steps: gradient steps
    :param gamma: discount
    :param batch_size: transitions in each step; None for the algorithm's own
    :param hidden_units: of actor and critics; None for the algorithm's own
    :param seed: of networks and batches
    :param device: ``"cpu"`` or ``"cuda"``
    :param progress: called with every line that the training says, some twenty in all
    :param timeout_s: for the training
    :param changes: other arguments of d3rlpy's config, such as ``expectile`` and ``weight_temp`` or ``alpha``
    :raises D3rlpyError: where d3rlpy fails or takes too long
    """
    if algorithm not in ALGORITHMS:
        raise InputError("algorithm", f"{algorithm!r} is unknown", f"Give one of {', '.join(ALGORITHMS)}")
    if device not in DEVICES:
        raise InputError("device", f"{device!r} is unknown", f"Give {' or '.join(DEVICES)}")
    python = interpreter(pathlib.Path(environment).absolute())
    if not python.exists():
        raise InputError("environment", f"{python} is not there", "Call make_environment() with this folder first")
    observation_space, action_space = spaces_of(dataset)
    check_spaces(observation_space, action_space)
    mean, std = dataset.observations.mean(axis=0, dtype=np.float64), _spread(dataset.observations)
    low, high = action_space.low.astype(np.float64), action_space.high.astype(np.float64)
    arrays = {
        "observations": (dataset.observations - mean) / std,
        "next_observations": (dataset.next_observations - mean) / std,
        "actions": np.clip(2.0 * (dataset.actions - low) / (high - low) - 1.0, -1.0, 1.0),
        "rewards": dataset.rewards / _spread(dataset.rewards),
        "terminals": dataset.terminals,
    }
    arrays |= _next_actions(dataset, arrays["actions"]) if algorithm == "rebrac" else {}
    sizes = _SIZES[algorithm]
    settings = {
        **sizes,
        "algorithm": algorithm,
        "n_steps": n_steps,
        "gamma": gamma,
        "batch_size": batch_size or sizes["batch_size"],
        "hidden_units": hidden_units or sizes["hidden_units"],
        "seed": seed,
        "device": device,
        # As many as torch uses here: of several trials side by side each has one.
        "n_threads": th.get_num_threads(),
        "changes": changes,
    }
    with tempfile.TemporaryDirectory(prefix="d3rlpy-") as name:
        folder = pathlib.Path(name)
        np.savez(folder / "data.npz", **arrays)
        (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        run([str(python), str(_SCRIPT), str(folder)], timeout_s, progress)
        return NumpyPolicy(_read_layers(folder / "actor.npz"), mean, std, action_space)


def _next_actions(dataset: TransitionDataset, actions: np.ndarray) -> dict[str, np.ndarray]:
    """
    :param dataset: recorded in episodes
    :param actions: scaled, (n, d_a)
    :return: what was done next, (n, d_a), and which rows can be learned from: they know it, or end the task, (n,)
    """
    labels = episode_labels(dataset)
    if labels is None:
        raise InputError("dataset", "one-step samples have no next actions", "Use another algorithm, or data of episodes")
    goes_on = np.append((labels[1:] == labels[:-1]) & ~dataset.terminals[:-1], False)
    next_actions = np.where(goes_on[:, None], np.roll(actions, -1, axis=0), 0.0)
    return {"next_actions": next_actions, "rows": np.flatnonzero(goes_on | dataset.terminals)}


def _read_layers(path: pathlib.Path) -> list[tuple[np.ndarray, np.ndarray]]:
    if not path.is_file():
        raise D3rlpyError("The training ended without an actor. Run it again with progress=print to see what it says.")
    with np.load(path) as file:
        arrays = {name: file[name].astype(np.float64) for name in file.files}
    layers = [(arrays[f"weight_{index}"], arrays[f"bias_{index}"]) for index in range(len(arrays) // 2)]
    if not all(np.isfinite(array).all() for layer in layers for array in layer):
        raise D3rlpyError("The training diverged: the actor holds NaN or infinity. Use a lower learning rate.")
    return layers


def _spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation along rows, one where nothing varies."""
    std = values.std(axis=0, dtype=np.float64)
    return np.where(std > 1e-8 * np.maximum(1e-8, np.abs(values).max(axis=0)), std, 1.0)
