"""A model's file, and the record beside it of what it was trained on, so that you need not repeat it to later commands."""

import dataclasses
import json
import pathlib
import pickle
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import stable_baselines3 as sb3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_nopg.commands.arguments import load_data, make_env
from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.common.failures import note
from sb3_nopg.common.files import replacing
from sb3_nopg.common.trust import UntrustedError, check_trusted
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.fingerprint import dataset_fingerprint
from sb3_nopg.nopg import NOPG
from sb3_nopg.policies.model_archive import UNREADABLE, read_model

ALGORITHMS: dict[str, type[BaseAlgorithm]] = {
    "nopg": NOPG,
    "a2c": sb3.A2C,
    "ddpg": sb3.DDPG,
    "ppo": sb3.PPO,
    "sac": sb3.SAC,
    "td3": sb3.TD3,
}
MODEL_HELP = "Model file that `nopg train` or model.save() wrote. One that holds a pickle is read only with --trust."
# How records of older versions tell which data it was.
_OLD_DIGEST = "data_digest"
ENV_HELP = "Environment, as Gymnasium knows it; without it, the one that `nopg train` was given."


@dataclasses.dataclass(frozen=True)
class TrainingRecord:
    """
    What a model was trained on, kept as JSON beside it.

    :param data: file or recipe; None where it was neither
    :param env: id, None where there was none
    :param seed: of everything random
    :param data_fingerprint: of the data set; None in records of older versions, whose digest left episodes out
    :param env_options: with which the environment was made
    """

    data: str | None
    env: str | None
    seed: int
    data_fingerprint: str | None = None
    env_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def save(self, model_path: pathlib.Path) -> None:
        """
        :param model_path: of the model
        """
        with replacing(record_path(model_path)) as partial:
            partial.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model_path: pathlib.Path) -> "TrainingRecord | None":
        """
        :param model_path: of the model
        :return: None where there is no record
        """
        path = record_path(model_path)
        if not path.is_file():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{name: value for name, value in fields.items() if name != _OLD_DIGEST})
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(
                str(path), f"no record of `nopg train` ({one_line(error)})", "Remove it, and pass --data and --env"
            ) from error

    def make_env(self) -> gym.Env | None:
        """The environment, as it was."""
        return None if self.env is None else make_env(self.env, options=self.env_options)

    def is_of(self, data: TransitionDataset) -> bool | None:
        """
        :param data: in question
        :return: whether the model was trained on them; None where the record does not tell
        """
        return None if self.data_fingerprint is None else self.data_fingerprint == dataset_fingerprint(data)


def record_path(model_path: pathlib.Path) -> pathlib.Path:
    return model_path.with_suffix(".json")


def progress_path(model_path: pathlib.Path) -> pathlib.Path:
    return model_path.with_suffix(".progress.csv")


def find_model(path: pathlib.Path) -> pathlib.Path:
    """
    :param path: as given, with or without its ending
    """
    return _found("MODEL", path, "Give what `nopg train` or model.save() wrote")


def find_policy(path: pathlib.Path) -> pathlib.Path:
    """
    :param path: of a model or an exported policy, with or without a model's ending
    """
    return _found("POLICY", path, "Give a model's .zip or .onnx file")


def _found(argument: str, path: pathlib.Path, fix: str) -> pathlib.Path:
    # A folder like "." has no name to add an ending to.
    for candidate in (path, path.with_name(path.name + ".zip") if path.name else path):
        if candidate.is_file():
            return candidate
    raise InputError(argument, f"there is no file {path}", fix)


def load_model(path: pathlib.Path, algo: str = "nopg", env: gym.Env | None = None, *, trust: bool = False) -> BaseAlgorithm:
    """
    :param path: of a file that exists
    :param algo: a name of `ALGORITHMS`
    :param env: to go with it
    :param trust: whether to read pickles in it; files of other algorithms than ours always hold some
    """
    if algo not in ALGORITHMS:
        raise InputError("--algo", f"{algo!r} is unknown", f"Use one of {', '.join(ALGORITHMS)}")
    try:
        # Models are small, and whoever evaluates them may have no GPU.
        if algo == "nopg":
            return NOPG.load(path, env=env, device="cpu", trust=trust)
        file, objects = read_model(path, trust=trust)
        return ALGORITHMS[algo].load(file, env=env, device="cpu", custom_objects=objects)
    except UntrustedError:
        raise
    except InputError as error:
        fix = "Give what `nopg train` or model.save() wrote; --algo names another algorithm where a command takes any"
        raise InputError("MODEL", f"{path} is no model of {algo} ({one_line(error)})", fix) from error
    except UNREADABLE as error:
        raise InputError(
            "MODEL",
            f"{path} is no model of {algo}, or does not fit the environment ({one_line(error)})",
            "Give what `nopg train` or model.save() wrote",
        ) from error


def load_with_data(
    path: pathlib.Path, data: str | None, env_id: str | None, *, trust: bool, algo: str = "nopg", needs_data: bool = True
) -> tuple[BaseAlgorithm, TrainingRecord | None]:
    """
    A model with its data attached, and its environment where there is one.

    :param path: of the model, a file that exists
    :param data: file or recipe; None for what the model was trained on
    :param env_id: None for the one it was trained with
    :param trust: whether to read pickles
    :param algo: a name of `ALGORITHMS`; only NOPG gets its data
    :param needs_data: whether it is of no use without
    """
    record = TrainingRecord.load(path)
    if env_id is not None or record is None:
        made = None if env_id is None else make_env(env_id)
    else:
        env_id, made = record.env, record.make_env()
    model = load_model(path, algo, made, trust=trust)
    if not isinstance(model, NOPG):
        return model, record
    if data is None and (record is None or record.data is None):
        if needs_data:
            raise InputError("--data", f"nothing beside {path} tells what it was trained on", "Pass --data")
        return model, record
    transitions = _find_data(data, record, env_id, trust=trust)
    known = None if record is None else record.is_of(transitions)
    if record is not None and known is None:
        note("the record beside the model is of an older version: whether it was trained on these data is not checked.")
    elif known is False:
        note("this is not the data that the model was trained on.")
    model.set_dataset(transitions)
    return model, record


def attach_normalization(
    model: BaseAlgorithm, model_path: pathlib.Path, given: pathlib.Path | None, env_id: str | None, *, trust: bool
) -> None:
    """
    SB3 keeps the normalisation of observations in a file of its own: a policy without it would act on the wrong numbers.

    :param model: of any algorithm but ours, which carries its own
    :param model_path: of its file
    :param given: file that ``VecNormalize.save`` wrote; None if there was none
    :param env_id: of the environment
    :param trust: whether to read it, a pickle
    """
    if given is None:
        beside = [path for path in model_path.absolute().parent.glob("**/vecnormalize.pkl") if path.is_file()]
        if beside:
            raise InputError("--vec-normalize", f"{beside[0]} lies beside the model and is not named", "Pass it, with --trust")
        note("if the model was trained behind a VecNormalize, its file does not say so: pass --vec-normalize, with --trust.")
        return
    check_trusted(given, "a file of this kind, a pickle,", trust)
    if env_id is None:
        raise InputError("--vec-normalize", "needs the environment that it normalises", "Pass --env")
    try:
        model.set_env(VecNormalize.load(str(given), DummyVecEnv([lambda: make_env(env_id)])))
    except (pickle.UnpicklingError, EOFError, AttributeError, AssertionError, ValueError) as error:
        fix = "Give what VecNormalize.save() wrote, and the environment that it was made for"
        raise InputError("--vec-normalize", f"{given} cannot be used ({one_line(error)})", fix) from error


def _find_data(data: str | None, record: TrainingRecord | None, env_id: str | None, *, trust: bool) -> TransitionDataset:
    if data is not None:
        return load_data(data, env_id, 0 if record is None else record.seed, trust=trust)
    assert record is not None
    assert record.data is not None
    try:
        return load_data(record.data, env_id, record.seed, trust=trust)
    except FileNotFoundError as error:
        raise InputError("--data", f"{record.data}, which the model was trained on, is gone", "Pass --data") from error


def check_fits_env(model: BaseAlgorithm, env: gym.Env) -> None:
    """:raises InputError: unless the model can act in the environment"""
    pairs: list[tuple[str, Any, Any]] = [
        ("observations", model.observation_space, env.observation_space),
        ("actions", model.action_space, env.action_space),
    ]
    for name, own, other in pairs:
        if own.shape != other.shape or type(own) is not type(other):
            raise InputError("--env", f"its {name} are {other}, those of the model {own}", "Give the model's own environment")
