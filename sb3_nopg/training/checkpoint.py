"""
Checkpoints: everything that a training run needs to go on, bit for bit, as if it had not been interrupted.

A file is a ZIP archive of three parts. ``about.json`` says what it belongs to, in words a person can read; ``model.zip`` is
the model as ``save`` writes it; ``state.pt`` holds what ``save`` leaves out: the solvers' memory and the random generators.
The archive's checksums tell a damaged file.
"""

import io
import json
import logging
import os
import pathlib
import random
import zipfile
from typing import Any, Protocol

import numpy as np
import torch as th
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import get_device

from sb3_nopg.common.errors import InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import dataset_fingerprint

_logger = logging.getLogger(__name__)
_FORMAT = 11


class Resumable(Protocol):
    """A model whose training can be interrupted at any time, and resumed."""

    num_timesteps: int
    dataset: TransitionDataset | None
    processes: Processes

    def save(self, path: str | pathlib.Path | io.BufferedIOBase) -> None: ...
    def settings(self) -> dict[str, str]: ...
    def run_state(self) -> dict[str, Any]:
        """What ``save`` leaves out."""
        ...

    def restore_run(self, dataset: TransitionDataset, state: dict[str, Any]) -> None:
        """Go on from such a state."""
        ...


def save(model: Resumable, path: pathlib.Path) -> None:
    """
    :param model: in the midst of its training
    :param path: of the file, which stays as it was until the new one is complete
    """
    # All processes prepare what there is to prepare; the main one writes, and all wait for it.
    state = {**model.run_state(), "generators": _generator_states()}
    if model.processes.is_main:
        saved = io.BytesIO()
        model.save(saved)
        _write(path, _about(model), saved.getvalue(), state)
        # Also for an exchange that never takes place.
        model.processes.last_checkpoint = str(path)
    model.processes.all_agree(True)
    model.processes.last_checkpoint = str(path)


def resume(
    algorithm: type[Any],
    path: pathlib.Path,
    dataset: TransitionDataset,
    env: GymEnv | None,
    device: th.device | str,
    arguments: dict[str, Any],
    *,
    trust: bool = False,
) -> Any:
    """
    :param algorithm: class of the model
    :param path: file of a checkpoint
    :param dataset: that the run learned from
    :param env: of the model; None for none
    :param device: to go on with
    :param arguments: that may change
    :param trust: whether to read pickles in the model's file
    :return: the model in the midst of its training
    """
    unknown = set(arguments) - {"verbose", "tensorboard_log", "distributed", "held_out"}
    if unknown:
        raise InputError(sorted(unknown)[0], "cannot change in the midst of a run", "Leave it out: it is in the checkpoint")
    about, model_file, state = _read(path, device)
    if about["dataset"] != dataset_fingerprint(dataset):
        raise InputError(
            "dataset",
            f"these {len(dataset)} transitions are not the {about['n_transitions']} that {path} learned from",
            "Give the same transitions in the same order, or train a new model",
        )
    model = algorithm.load(io.BytesIO(model_file), env=env, device=device, trust=trust, **arguments)
    _check_settings(path, about["settings"], model.settings())
    _announce_differences(about, model.processes)
    model.restore_run(dataset, state)
    # Last, because building a model draws random numbers.
    _set_generator_states(state["generators"])
    model.processes.last_checkpoint = str(path)
    return model


def _about(model: Resumable) -> dict[str, Any]:
    assert model.dataset is not None
    return {
        "format": _FORMAT,
        "num_timesteps": model.num_timesteps,
        "n_transitions": len(model.dataset),
        "dataset": dataset_fingerprint(model.dataset),
        "settings": model.settings(),
        **_circumstances(model.processes),
    }


def _circumstances(processes: Processes) -> dict[str, Any]:
    """What rounding depends on."""
    return {
        "torch version": th.__version__,
        "torch threads": th.get_num_threads(),
        "processor": th.backends.cpu.get_cpu_capability(),
        "processes": processes.n_processes,
    }


def _announce_differences(about: dict[str, Any], processes: Processes) -> None:
    for name, now in _circumstances(processes).items():
        if about[name] != now:
            _logger.warning(
                "The checkpoint was made with %s %s and is resumed with %s: numbers may be rounded differently from here on.",
                name,
                about[name],
                now,
            )


def _check_settings(path: str | os.PathLike[str], then: dict[str, str], now: dict[str, str]) -> None:
    different = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if different:
        name = different[0]
        raise InputError(
            name,
            f"{now.get(name, 'unknown')} where {path} was made with {then.get(name, 'none')}",
            "Give it as it was, or use the version of sb3-nopg that wrote the checkpoint",
        )


def _generator_states() -> dict[str, Any]:
    name, keys, *position = np.random.get_state()  # noqa: NPY002
    return {
        "python": random.getstate(),
        "numpy": (name, th.from_numpy(np.asarray(keys).astype(np.int64)), *position),
        "torch": th.get_rng_state(),
        "cuda": th.cuda.get_rng_state_all() if th.cuda.is_available() else [],
    }


def _set_generator_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    name, keys, *position = states["numpy"]
    np.random.set_state((name, keys.cpu().numpy().astype(np.uint32), *position))  # noqa: NPY002
    th.set_rng_state(states["torch"].cpu())
    for number, state in enumerate(states["cuda"][: th.cuda.device_count()]):
        th.cuda.set_rng_state(state.cpu(), number)


def _write(path: pathlib.Path, about: dict[str, Any], model: bytes, state: dict[str, Any]) -> None:
    with replacing(path) as partial, zipfile.ZipFile(partial, "w") as archive:
        archive.writestr("about.json", json.dumps(about, indent=1))
        archive.writestr("model.zip", model)
        with archive.open("state.pt", "w", force_zip64=True) as part:
            th.save(state, part)


def _read(path: pathlib.Path, device: th.device | str) -> tuple[dict[str, Any], bytes, dict[str, Any]]:
    if not path.is_file():
        raise InputError("path", f"there is no checkpoint {path}", "Give the file that NOPGCheckpointCallback wrote")
    try:
        with zipfile.ZipFile(path) as archive:
            about, model, state = (archive.read(name) for name in ("about.json", "model.zip", "state.pt"))
    except (zipfile.BadZipFile, KeyError, EOFError, OSError) as error:
        raise InputError(
            "path",
            f"{path} is damaged or no checkpoint ({error})",
            "Resume from another copy; a file that save() wrote is for load()",
        ) from error
    described = json.loads(about)
    if described["format"] != _FORMAT:
        raise InputError(
            "path", f"{path} has format {described['format']}, not {_FORMAT}", "Use the version of sb3-nopg that wrote it"
        )
    return described, model, th.load(io.BytesIO(state), map_location=get_device(device), weights_only=True)
