"""A trained policy as one ONNX file that a PC without torch can run: raw observation in, the environment's action out."""

import inspect
import io
import json
import os
import pathlib
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecNormalize

from sb3_nopg.common.checks import check_spaces
from sb3_nopg.common.errors import ExportError, InputError
from sb3_nopg.common.files import replacing
from sb3_nopg.data.fingerprint import parameter_fingerprint
from sb3_nopg.policies.description import data_range, describe

# Of ONNX: read by every onnxruntime since 1.12.
OPSET_VERSION = 17
INPUT_NAME, OUTPUT_NAME = "observation", "action"
N_COMPARED = 256


class DeployedPolicy(th.nn.Module):
    """
    All that ``predict(deterministic=True)`` does between a raw observation and an action in the environment's units.

    :param policy: of any SB3 algorithm with continuous actions
    :param normalization: what normalised the observations that the policy was trained on, None if nothing did
    """

    action_low: th.Tensor
    action_high: th.Tensor
    observation_mean: th.Tensor
    observation_std: th.Tensor

    def __init__(self, policy: BasePolicy, normalization: VecNormalize | None):
        super().__init__()
        assert isinstance(policy.action_space, spaces.Box)
        self.policy = policy
        self.register_buffer("action_low", th.as_tensor(policy.action_space.low.ravel(), dtype=th.float32))
        self.register_buffer("action_high", th.as_tensor(policy.action_space.high.ravel(), dtype=th.float32))
        self.clip_observation: float | None = None
        if normalization is not None:
            statistics: Any = normalization.obs_rms
            self.clip_observation = float(normalization.clip_obs)
            # In float64, as VecNormalize has them: a small spread about a large mean would drown in rounding.
            self.register_buffer("observation_mean", th.as_tensor(statistics.mean, dtype=th.float64))
            std = np.sqrt(statistics.var + normalization.epsilon)
            self.register_buffer("observation_std", th.as_tensor(std, dtype=th.float64))
        self.to(policy.device)

    def forward(self, observation: th.Tensor) -> th.Tensor:
        """
        :param observation: (1, d_s)
        :return: (1, d_a)
        """
        if self.clip_observation is not None:
            normalized = (observation.double() - self.observation_mean) / self.observation_std
            limit = th.full_like(normalized, self.clip_observation)
            observation = _clip(normalized, -limit, limit).float()
        action = self.policy._predict(observation, deterministic=True).float()
        if self.policy.squash_output:
            action = self.action_low + 0.5 * (action + 1.0) * (self.action_high - self.action_low)
        return _clip(action, self.action_low, self.action_high)


def _clip(values: th.Tensor, low: th.Tensor, high: th.Tensor) -> th.Tensor:
    # By comparison, because NaN must stay NaN for whoever supervises the motor; a minimum may make it a bound.
    values = th.where(values < low, low, values)
    return th.where(values > high, high, values)


def export(
    model: BaseAlgorithm,
    path: str | os.PathLike[str],
    *,
    control_period_s: float | None = None,
    observation_names: Sequence[str] | None = None,
    observation_units: Sequence[str] | None = None,
    action_names: Sequence[str] | None = None,
    action_units: Sequence[str] | None = None,
    tolerance: float = 1e-5,
) -> pathlib.Path:
    """
    Write a model's policy as an ONNX file: one raw observation in, the action of ``predict(deterministic=True)`` out.

    Normalisation (``VecNormalize`` too, where the model has its environment), squashing, scaling and clipping are inside. The
    file appears whole or not at all, after its actions were compared with the model's. What is not given here is taken from
    the environment's ``metadata`` under the same name. Names default to ``observation_0`` and so on, units to ``""``, which
    means unknown; ``"1"`` means that there is none. Ranges of the training data are those of the data set or replay buffer.

    :param model: any SB3 model with continuous actions and vectors as observations
    :param path: of the file, for instance ``policy.onnx``
    :param control_period_s: time between two actions
    :param observation_names: one for each dimension, as are the other three
    :param observation_units: for instance ``["m", "1", "1", "m/s", "rad/s"]``
    :param action_names: for instance ``["voltage"]``
    :param action_units: for instance ``["V"]``
    :param tolerance: largest difference allowed between the actions of file and model, as a share of the action range
    :return: the path
    :raises InputError: for a model or a path that does not allow it
    :raises ExportError: where ONNX cannot express the policy, or the file's actions differ from the model's
    """
    path = pathlib.Path(path)
    onnx = _import_onnx()
    _check_path(path)
    _check_model(model)
    given = {
        "control_period_s": control_period_s,
        "observation_names": observation_names,
        "observation_units": observation_units,
        "action_names": action_names,
        "action_units": action_units,
    }
    deployed, normalization = _deployed(model)
    description = describe(model, deployed, given)
    content = _onnx_bytes(onnx, deployed, description)
    _compare(model, normalization, content, description, tolerance)
    _write_whole(path, content)
    return path


def policy_digest(model: BaseAlgorithm) -> str:
    """
    :param model: as for :func:`export`
    :return: what the exported file gives as its digest
    """
    return parameter_fingerprint(_deployed(model)[0])


def acts_like(model: BaseAlgorithm, content: bytes, tolerance: float = 1e-5) -> bool:
    """
    :param model: as for :func:`export`
    :param content: of an ONNX file from anywhere
    :param tolerance: as for :func:`export`
    :return: whether the file gives the model's actions
    """
    space = model.action_space
    assert isinstance(space, spaces.Box)
    low, high = data_range(model)
    ranges = {"action_low": space.low.ravel(), "action_high": space.high.ravel(), "data_low": low, "data_high": high}
    try:
        _compare(model, _deployed(model)[1], content, ranges, tolerance)
    # A file from anywhere: what its evaluator raises has no common ancestor below this.
    except Exception:
        return False
    return True


def _deployed(model: BaseAlgorithm) -> tuple[DeployedPolicy, VecNormalize | None]:
    """What is exported, and what normalises its observations."""
    normalization = model.get_vec_normalize_env()
    observed = normalization if normalization is not None and normalization.norm_obs else None
    return DeployedPolicy(model.policy, observed), normalization


def _check_path(path: pathlib.Path) -> None:
    if path.is_dir():
        raise InputError("path", f"{path} is a folder", "Give the name of a file, for instance policy.onnx")
    if not path.parent.is_dir():
        raise InputError("path", f"there is no folder {path.parent}", "Create it first, or choose another")


def _check_model(model: BaseAlgorithm) -> None:
    if not isinstance(model, BaseAlgorithm):
        raise InputError("model", f"a {type(model).__name__} is given", "Give the model, not its policy or its file")
    check_spaces(model.observation_space, model.action_space)
    # More than observation and deterministic: hidden states.
    if len(inspect.signature(model.policy._predict).parameters) > 2:
        raise InputError(
            "model", f"{type(model.policy).__name__} keeps a memory between steps", "Only policies without one can be exported"
        )


def _onnx_bytes(onnx: Any, deployed: DeployedPolicy, description: dict[str, Any]) -> bytes:
    n_observations = deployed.policy.observation_space.shape[0]  # type: ignore[index]
    example = th.zeros((1, n_observations), device=deployed.policy.device)
    deployed.eval()
    buffer = io.BytesIO()
    try:
        # Warned of are the age of this exporter, which alone writes old opsets and needs no further packages, and branches on
        # shapes in torch's distributions; the comparison with the model covers what could go wrong with either.
        with warnings.catch_warnings(), th.no_grad():
            warnings.simplefilter("ignore")
            th.onnx.export(
                deployed,
                (example,),
                buffer,  # type: ignore[arg-type]
                input_names=[INPUT_NAME],
                output_names=[OUTPUT_NAME],
                opset_version=OPSET_VERSION,
                dynamo=False,
            )
    except Exception as error:
        raise ExportError(f"torch cannot write {type(deployed.policy).__name__} as ONNX: {error}") from error
    graph = onnx.load_from_string(buffer.getvalue())
    onnx.helper.set_model_props(graph, {name: json.dumps(value) for name, value in description.items()})
    onnx.checker.check_model(graph, full_check=True)
    return graph.SerializeToString(deterministic=True)


def _import_onnx() -> Any:
    try:
        for part in ("onnx.checker", "onnx.helper"):
            import_module(part)
        return import_module("onnx")
    except ImportError as error:
        raise ImportError("Exporting a policy needs the package onnx: pip install onnx") from error


def _compare(
    model: BaseAlgorithm, normalization: VecNormalize | None, content: bytes, description: dict[str, Any], tolerance: float
) -> None:
    """:raises ExportError: unless the file gives the model's actions at random observations"""
    observations = _random_observations(model, normalization, description)
    seen: Any = observations if normalization is None else normalization.normalize_obs(observations)
    wanted, _ = model.predict(seen, deterministic=True)
    if not np.isfinite(wanted).all():
        raise InputError("model", "its actions are not finite", "Export a model whose training did not diverge")
    wanted = wanted.reshape(len(observations), -1)
    infer = _evaluator(content)
    actions = np.concatenate([infer(observation[None]) for observation in observations])
    action_range = np.subtract(description["action_high"], description["action_low"])
    difference = float((np.abs(actions - wanted) / action_range).max())
    # Not "greater": NaN must not pass.
    if not difference <= tolerance:
        raise ExportError(
            f"The file's actions differ from the model's by {difference:.2g} of the action range, where {tolerance:g} is "
            "allowed. A very steep policy amplifies rounding in float32; if that is what it is, pass a larger tolerance."
        )


def _random_observations(model: BaseAlgorithm, normalization: VecNormalize | None, description: dict[str, Any]) -> np.ndarray:
    """Observations where the policy is at home and somewhat beyond, (N_COMPARED, d_s)."""
    space = model.observation_space
    assert isinstance(space, spaces.Box)
    if description["data_low"]:
        low, high = np.array(description["data_low"]), np.array(description["data_high"])
    elif normalization is not None and normalization.norm_obs:
        statistics: Any = normalization.obs_rms
        low, high = statistics.mean - 2.0 * np.sqrt(statistics.var), statistics.mean + 2.0 * np.sqrt(statistics.var)
    else:
        # Beyond a thousand, a bound only says that there is none.
        bounded = (space.low > -1e3) & (space.high < 1e3)
        low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
    center, half_range = (low + high) / 2.0, (high - low) / 2.0
    shares = np.random.default_rng(0).uniform(-2.0, 2.0, (N_COMPARED, len(center)))
    return (center + half_range * shares).astype(np.float32)


def _evaluator(content: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """What runs the file: onnxruntime, as on a rig, or else the slow evaluator that onnx brings along."""
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError:
        evaluator = import_module("onnx.reference").ReferenceEvaluator(content)
        return lambda observation: evaluator.run(None, {INPUT_NAME: observation})[0]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return lambda observation: session.run(None, {INPUT_NAME: observation})[0]


def _write_whole(path: pathlib.Path, content: bytes) -> None:
    if not path.parent.is_dir():
        raise InputError("path", f"there is no folder {path.parent}", "Make it, or choose another place")
    try:
        with replacing(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise InputError("path", f"{path} cannot be written ({error})", "Choose a place that can be written to") from error
