"""rl_zoo3's experiment manager, taught that some algorithms learn from data and never act."""

import inspect
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import optuna
import yaml
from rl_zoo3.exp_manager import ExperimentManager
from rl_zoo3.utils import ALGOS, get_wrapper_class
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_nopg.bellman.settings import NAMES
from sb3_nopg.common.errors import InputError, SolverError
from sb3_nopg.nopg import NOPG
from sb3_nopg.recipes import check_recipe, make_dataset
from sb3_nopg.training.fixed_data_ddpg import FixedDataLearner
from sb3_nopg.training.settings import check_no_old_names
from sb3_nopg.zoo.configs import shipped_configs

_NOBODY_ACTS = "nothing is collected while it learns"
# What rl_zoo3 offers and an algorithm that only reads cannot use, and why.
_REFUSED = {
    "normalize": "VecNormalize takes its statistics from steps that never happen here; NOPG normalises by the data's instead",
    "frame_stack": "the data hold single observations, not stacks of them",
    "vec_env_wrapper": "the data did not pass through it; use env_wrapper, which recipes apply",
    "noise_type": _NOBODY_ACTS,
    "noise_std": _NOBODY_ACTS,
    "action_noise": _NOBODY_ACTS,
    "train_freq": _NOBODY_ACTS,
    "gradient_steps": "n_timesteps counts them",
    "learning_starts": _NOBODY_ACTS,
    "buffer_size": "the data set is the buffer",
    "replay_buffer_class": "the data set is the buffer",
    "replay_buffer_kwargs": "the data set is the buffer",
    "optimize_memory_usage": "the data set is the buffer",
    "use_sde": _NOBODY_ACTS,
}
# Keys of a config that rl_zoo3 takes for itself.
_ZOO_KEYS = {"n_timesteps", "n_envs", "env_wrapper", "env_kwargs", "callback", "monitor_kwargs", "data"}
# Arguments that rl_zoo3 passes itself.
_PASSED_ANYWAY = {"env", "tensorboard_log", "seed", "verbose", "device", "dataset", "_init_setup_model"}


class OfflineExperimentManager(ExperimentManager):
    """
    An experiment whose config may name its ``data``; the data reach the algorithm as ``dataset=``.

    Configs that come with the package are found by the algorithm's name; where they do not know the environment, and for
    algorithms of others, rl_zoo3 looks into its own.

    :param arguments: of rl_zoo3's manager
    """

    def __init__(self, args: Any, algo: str, env_id: str, *arguments: Any, **keywords: Any):
        keywords["config"] = keywords.get("config") or _shipped_config(algo, env_id)
        super().__init__(args, algo, env_id, *arguments, **keywords)

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self.trial_id is not None:
            # Here, because rl_zoo3 takes trial 0 for none.
            self.custom_hyperparams = {**self._from_trial(self.trial_id), **(self.custom_hyperparams or {})}
            self.trial_id = None
        hyperparams, saved = super().read_hyperparameters()
        if "data" not in hyperparams:
            if issubclass(ALGOS[self.algo], NOPG):
                raise InputError(
                    "data", f"{self.config} names none for {self.env_name.gym_id}", "Add data: {file: ...} or a recipe"
                )
            return hyperparams, saved
        self._check_offline(hyperparams)
        if "env_kwargs" in hyperparams:
            # rl_zoo3's video recorder looks for them among the arguments only.
            self.args.env_kwargs = self.args.env_kwargs or hyperparams["env_kwargs"]
            if self._eval_env_kwargs_args is None:
                self.eval_env_kwargs = self.args.env_kwargs
        hyperparams["data"] = self._with_seed(hyperparams["data"])
        # A plain dictionary, which unlike rl_zoo3's ordered one can be read without running code from the file.
        return hyperparams, {**saved, "data": hyperparams["data"]}

    def _from_trial(self, trial_id: int) -> dict[str, Any]:
        if self.storage is None or self.study_name is None:
            raise InputError("trial-id", "the study is not named", "Give --storage and --study-name too")
        try:
            return self.load_trial(self.storage, self.study_name, trial_id)
        except LookupError as error:
            raise InputError(
                "trial-id", f"{self.storage} has no trial {trial_id} of {self.study_name}", "Look it up in the search's report"
            ) from error

    def _check_offline(self, hyperparams: dict[str, Any]) -> None:
        algorithm = ALGOS[self.algo]
        if not issubclass(algorithm, NOPG | FixedDataLearner):
            raise InputError("data", f"{self.algo} does not learn from a data set", "Use nopg_d, nopg_s, ddpg or td3")
        check_recipe(hyperparams["data"])
        for name, reason in _REFUSED.items():
            # `normalize: false` asks for nothing.
            if hyperparams.get(name):
                raise InputError(name, f"means nothing to an algorithm that learns from data: {reason}", "Remove it")
            hyperparams.pop(name, None)
        if hyperparams.get("n_envs", 1) != 1:
            raise InputError(
                "n_envs", f"{hyperparams['n_envs']} environments would stand idle, learning never steps one", "Remove it"
            )
        if "n_timesteps" not in hyperparams:
            raise InputError("n_timesteps", "is missing", "Give the number of policy updates")
        rate = hyperparams.get("learning_rate", "lin_1")
        if isinstance(rate, str) and not rate.startswith("lin_"):
            # YAML reads 1e-3 as text.
            raise InputError("learning_rate", f"{rate!r} is text", "Give a number such as 0.001, or lin_0.001 to let it fall")
        if self.optimize_hyperparameters and not issubclass(algorithm, NOPG):
            raise InputError(
                "algo", f"rl_zoo3 searches how {self.algo} acts, which it does not on data", "Search nopg_d or nopg_s"
            )
        known = _arguments_of(algorithm)
        unknown = sorted(set(hyperparams) - known - _ZOO_KEYS)
        if unknown:
            if issubclass(algorithm, NOPG) and unknown[0] in {*NAMES, "variant"}:
                check_no_old_names({unknown[0]: hyperparams[unknown[0]]})
            offered = ", ".join(sorted(known - _PASSED_ANYWAY - set(_REFUSED)))
            raise InputError(unknown[0], f"is not an argument of {algorithm.__name__}", f"It takes {offered}")

    def _with_seed(self, data: dict[str, Any]) -> dict[str, Any]:
        """The recipe with its seed written out: the run's, or, where a run continues, that of its first part."""
        if "file" in data or "seed" in data:
            return data
        seed = self.seed
        if self.continue_training:
            saved = os.path.join(os.path.dirname(self.trained_agent), self.env_name, "config.yml")
            before = dict(_read_yaml(saved).get("data", {})) if os.path.isfile(saved) else {}
            first_seed = before.pop("seed", seed)
            seed = first_seed if before == dict(data) else seed
        return {**data, "seed": seed}

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        data = hyperparams.pop("data", None)
        wrapper = get_wrapper_class(hyperparams)
        # Before anything is written, so that a mistake leaves no folder behind.
        dataset = None if data is None else self._dataset(data, hyperparams.get("env_kwargs") or self.env_kwargs, wrapper)
        result = super()._preprocess_hyperparams(hyperparams)
        if dataset is not None:
            result[0]["dataset"] = dataset
            if issubclass(ALGOS[self.algo], FixedDataLearner):
                # SB3 reserves memory for a million transitions otherwise.
                result[0]["buffer_size"] = 1
        return result

    def _dataset(self, data: dict[str, Any], env_kwargs: dict[str, Any], wrapper: Callable[[gym.Env], gym.Env] | None) -> Any:
        env = gym.make(self.env_name.gym_id, **env_kwargs)
        try:
            return make_dataset(data, env if wrapper is None else wrapper(env), self.seed, os.path.dirname(self.config))
        finally:
            env.close()

    def _load_pretrained_agent(self, hyperparams: dict[str, Any], env: VecEnv) -> BaseAlgorithm:
        saved_buffer = os.path.join(os.path.dirname(self.trained_agent), "replay_buffer.pkl")
        if os.path.exists(saved_buffer) and "data" in (self.custom_hyperparams or {}):
            raise InputError(
                "data", f"{saved_buffer} would replace it", "Move that file away, or continue on the data that it holds"
            )
        return super()._load_pretrained_agent(hyperparams, env)

    def learn(self, model: BaseAlgorithm) -> None:
        if isinstance(model, NOPG):
            # What can be wrong with the data shows here. In learn() rl_zoo3's progress bar would hide it behind an error of
            # its own.
            _ = model.estimator.model if model.transitions == "model" else model.estimator.problem
        super().learn(model)

    def objective(self, trial: optuna.Trial) -> float:
        try:
            return super().objective(trial)
        except SolverError as error:
            # Of these hyper-parameters, not of the search; rl_zoo3 prunes for other errors in the same way.
            raise optuna.TrialPruned(str(error)) from error


def _shipped_config(algo: str, env_id: str) -> str | None:
    """Our config, unless rl_zoo3 has one for the algorithm and ours does not know the environment."""
    path = shipped_configs().get(algo if algo != "nopg" else "nopg_d")
    if path is None or (not issubclass(ALGOS[algo], NOPG) and env_id not in yaml.safe_load(path.read_text(encoding="utf-8"))):
        return None
    return str(path)


def _arguments_of(algorithm: type[BaseAlgorithm]) -> set[str]:
    """Names of all keyword arguments, those that a subclass hands on included."""
    names: set[str] = set()
    for ancestor in algorithm.__mro__:
        if "__init__" not in vars(ancestor):
            continue
        parameters = inspect.signature(ancestor.__init__).parameters.values()  # type: ignore[misc]
        names.update(parameter.name for parameter in parameters if parameter.kind in (1, 3))
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
            break
    return names - {"self"}


def _read_yaml(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        return dict(yaml.safe_load(file))
