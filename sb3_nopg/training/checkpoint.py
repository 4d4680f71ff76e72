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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.utils import get_device

from sb3_nopg.bellman.on_samples import WarmStart
from sb3_nopg.bellman.problem import BellmanProblem
from sb3_nopg.common.errors import InputError
from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import dataset_fingerprint
from sb3_nopg.training.course import Course
from sb3_nopg.training.keeping import BestSoFar

_logger = logging.getLogger(__name__)
_FORMAT = 8

SelfResumable = TypeVar("SelfResumable", bound="ResumableAlgorithm")


class ResumableAlgorithm(OffPolicyAlgorithm):
    """An algorithm whose training can be interrupted at any time, and resumed."""

    if TYPE_CHECKING:
        dataset: TransitionDataset | None
        initial_states: np.ndarray | None
        processes: Processes
        transitions: str
        _course: Course | None
        _course_before: dict[str, Any] | None
        _warm_start: WarmStart
        _start_states: np.ndarray | None
        _best: BestSoFar | None
        _best_before: BestSoFar | None

        def set_dataset(self, dataset: TransitionDataset) -> None: ...
        @property
        def start_states(self) -> np.ndarray: ...
        def settings(self) -> dict[str, str]: ...
        def prepared_problem(self) -> BellmanProblem: ...
        def held_out_problem(self) -> BellmanProblem | None: ...

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """
        Write all that :meth:`resume` needs. A file of this name stays as it was until the new one is complete.

        :param path: of the file. In a distributed run all processes must call this; the main one writes, and all wait for it
        """
        path = pathlib.Path(path)
        problem = self.prepared_problem() if self.transitions == "samples" else None
        if self.processes.is_main:
            model = io.BytesIO()
            self.save(model)
            _write(path, self._about(), model.getvalue(), self._state(problem))
            # Also for an exchange that never takes place.
            self.processes.last_checkpoint = str(path)
        self.processes.all_agree(True)
        self.processes.last_checkpoint = str(path)

    @classmethod
    def resume(
        cls: type[SelfResumable],
        path: str | os.PathLike[str],
        dataset: TransitionDataset,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        **arguments: Any,
    ) -> SelfResumable:
        """
        A model in the midst of its training. ``learn(n - model.num_timesteps, reset_num_timesteps=False)`` takes it to update
        n, with the same bits on the CPU as without the interruption. The file holds a pickle: trust its source.

        :param path: file of a checkpoint
        :param dataset: that the run learned from
        :param env: as for the constructor
        :param device: likewise
        :param arguments: ``verbose``, ``tensorboard_log`` and ``distributed``, which may change, and ``held_out`` where that
            was a data set; all else is in the file
        """
        unknown = set(arguments) - {"verbose", "tensorboard_log", "distributed", "held_out"}
        if unknown:
            raise InputError(
                sorted(unknown)[0], "cannot change in the midst of a run", "Leave it out: it is in the checkpoint"
            )
        about, model_file, state = _read(pathlib.Path(path), device)
        if about["dataset"] != dataset_fingerprint(dataset):
            raise InputError(
                "dataset",
                f"these {len(dataset)} transitions are not the {about['n_transitions']} that {path} learned from",
                "Give the same transitions in the same order, or train a new model",
            )
        model = cls.load(io.BytesIO(model_file), env=env, device=device, **arguments)
        _check_settings(path, about["settings"], model.settings())
        _announce_differences(about, model.processes)
        model._restore(dataset, state)
        model.processes.last_checkpoint = str(path)
        return model

    def _about(self) -> dict[str, Any]:
        assert self.dataset is not None
        return {
            "format": _FORMAT,
            "num_timesteps": self.num_timesteps,
            "n_transitions": len(self.dataset),
            "dataset": dataset_fingerprint(self.dataset),
            "settings": self.settings(),
            **_circumstances(self.processes),
        }

    def _state(self, problem: BellmanProblem | None) -> dict[str, Any]:
        held_out = None if problem is None else self.held_out_problem()
        return {
            "start_states": th.tensor(self.start_states),
            "q_history": self._warm_start.q_history.values,
            "visitation_history": self._warm_start.visitation_history.values,
            "coarse_model": None if problem is None else problem.coarse_model.state(),
            "course": None if self._course is None else self._course.state(),
            "held_out_coarse_model": None if held_out is None else held_out.coarse_model.state(),
            "best": None if self._best is None else self._best.state(),
            "generators": _generator_states(),
        }

    def _restore(self, dataset: TransitionDataset, state: dict[str, Any]) -> None:
        start_states = state["start_states"].cpu().numpy()
        # They may have come from an environment that is not at hand any more.
        given, self.initial_states = self.initial_states, start_states
        try:
            self.set_dataset(dataset)
        finally:
            self.initial_states = given
        self._start_states = start_states
        self._course_before = state["course"]
        held_out = None
        if state["coarse_model"] is not None:
            self.prepared_problem().coarse_model.restore(state["coarse_model"], self.gamma)
            held_out = self.held_out_problem()
        if held_out is not None:
            held_out.coarse_model.restore(state["held_out_coarse_model"], self.gamma)
        if state["best"] is not None:
            self._best_before = BestSoFar.restored(state["best"])
        for value in state["q_history"]:
            self._warm_start.q_history.add(value)
        for value in state["visitation_history"]:
            self._warm_start.visitation_history.add(value)
        # Last, because building a model draws random numbers.
        _set_generator_states(state["generators"])


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
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("about.json", json.dumps(about, indent=1))
            archive.writestr("model.zip", model)
            with archive.open("state.pt", "w", force_zip64=True) as part:
                th.save(state, part)
        file.flush()
        # On the disk before it takes the name of the one before: a power cut must not leave neither.
        os.fsync(file.fileno())
    os.replace(partial, path)


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
