"""Models on disk: files without pickles, and checkpoints that a run goes on from as if it had not been interrupted."""

import inspect
import io
import os
import pathlib
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.type_aliases import GymEnv

from sb3_nopg.common.processes import Processes
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import settings_of
from sb3_nopg.policies.model_archive import read_model, write_model
from sb3_nopg.training import checkpoint
from sb3_nopg.training.loop import FixedDataAlgorithm
from sb3_nopg.training.model_file import check_version
from sb3_nopg.training.settings import check_no_old_names

SelfAlgorithm = TypeVar("SelfAlgorithm", bound="ResumableAlgorithm")


class ResumableAlgorithm(FixedDataAlgorithm):
    """An algorithm on fixed data whose models can be saved at any time, and whose training can be resumed."""

    dataset: TransitionDataset | None
    processes: Processes
    # Names of the constructor's arguments.
    _argument_names: ClassVar[tuple[str, ...]] = ()
    # Classes of ours that a saved model may hold.
    _saved_records: ClassVar[tuple[type, ...]] = ()

    def settings(self) -> dict[str, str]:
        """The arguments that have a say in what is computed, described."""
        return settings_of(self, ["policy_class", *self._argument_names])

    @abstractmethod
    def run_state(self) -> dict[str, Any]:
        """What :meth:`save` leaves out, for a checkpoint."""

    @abstractmethod
    def restore_run(self, dataset: TransitionDataset, state: dict[str, Any]) -> None:
        """
        :param dataset: that the run learned from
        :param state: of :meth:`run_state`
        """

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        Write the model to a file, without the data. In a distributed run the main process does it. It holds no pickle unless a
        function or class of your own is among the settings; then :meth:`load` needs ``trust=True``.

        :param path: of the file
        :param exclude: attributes to leave out
        :param include: attributes to write although they would be left out
        """
        if self.processes.is_main:
            write_model(path, vars(self), lambda file: super(ResumableAlgorithm, self).save(file, exclude, include))

    @classmethod
    def load(
        cls: type[SelfAlgorithm],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        *,
        trust: bool = False,
        **keywords: Any,
    ) -> SelfAlgorithm:
        """
        :param path: of a file that :meth:`save` wrote, or the open file
        :param env: as for the constructor
        :param device: as for the constructor
        :param custom_objects: settings that take the place of those in the file
        :param print_system_info: as for SB3's ``load``
        :param force_reset: as for SB3's ``load``
        :param trust: whether to read pickles in it, which can run any program
        :param keywords: arguments of the constructor that are to change
        """
        check_version(path)
        known = {*inspect.signature(BaseAlgorithm.load).parameters, *cls._argument_names}
        check_no_old_names({name: value for name, value in keywords.items() if name not in known})
        file, objects = read_model(path, trust=trust, records=cls._saved_records, replaced=custom_objects)
        return super().load(file, env, device, objects, print_system_info, force_reset, **keywords)

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """
        Write all that :meth:`resume` needs. A file of this name stays as it was until the new one is complete.

        :param path: of the file. In a distributed run all processes must call this; the main one writes, and all wait for it
        """
        checkpoint.save(self, pathlib.Path(path))

    @classmethod
    def resume(
        cls: type[SelfAlgorithm],
        path: str | os.PathLike[str],
        dataset: TransitionDataset,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        *,
        trust: bool = False,
        **arguments: Any,
    ) -> SelfAlgorithm:
        """
        A model in the midst of its training. ``learn(n - model.num_timesteps, reset_num_timesteps=False)`` takes it to update
        n, with the same bits on the CPU as without the interruption.

        :param path: file of a checkpoint
        :param dataset: that the run learned from
        :param env: as for the constructor
        :param device: as for the constructor
        :param trust: as for :meth:`load`
        :param arguments: ``verbose``, ``tensorboard_log`` and ``distributed``, which may change, and ``held_out`` where that
            was a data set; all else is in the file
        """
        return checkpoint.resume(cls, pathlib.Path(path), dataset, env, device, arguments, trust=trust)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []
