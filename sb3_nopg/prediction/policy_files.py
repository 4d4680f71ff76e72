"""Policies from anywhere, as functions of observations: a function, an SB3 model, a ``.zip`` of one, or an ONNX file."""

import json
import os
import pathlib
from typing import Any

import numpy as np
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.save_util import load_from_zip_file

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.data.dataset import TransitionDataset
from sb3_nopg.data.quantities import FIELDS, Quantities, check_same
from sb3_nopg.policies.model_archive import PLAIN, UNREADABLE, read_model, settings_in
from sb3_nopg.policies.plain_values import from_plain
from sb3_nopg.prediction.rollouts import Actor

# Settings of a model that its policy is made from.
_OF_POLICY = ("observation_space", "action_space", "policy_class", "full_policy_kwargs", "policy_kwargs", "use_sde")


def actor_of(policy: Any, data: TransitionDataset, *, name: str = "it", trust: bool = False) -> Actor:
    """
    :param policy: a function of observations (m, d_s), an SB3 model, or the path of a ``.zip`` or ``.onnx`` file
    :param data: whose observations it must take
    :param name: of the policy, for errors
    :param trust: whether to read pickles in a file
    """
    check_same("policies", data.quantities, "the data", _named_by(policy, data), "the policy")
    return checked_actor(policy, data.observations, data.action_dim, name=name, trust=trust)


def _named_by(policy: Any, data: TransitionDataset) -> Quantities | None:
    """Names of what a policy takes and gives, where it or its file tells; a file that cannot be read is refused later."""
    if not isinstance(policy, str | os.PathLike):
        return getattr(policy, "quantities", None)
    path = pathlib.Path(policy)
    try:
        if path.suffix == ".zip":
            plain = ((settings_in(path) or {}).get("quantities") or {}).get(PLAIN)
            return None if plain is None else from_plain(plain, (Quantities,))
        if path.suffix == ".onnx" and path.is_file():
            texts = _onnx_session(path).get_modelmeta().custom_metadata_map
            told = {field: json.loads(texts[field]) for field in FIELDS if field in texts}
            return Quantities.told_by(told, data.observation_dim, data.action_dim)
    except (ValueError, TypeError, AttributeError):
        return None
    return None


def checked_actor(policy: Any, observations: np.ndarray, n_actions: int, *, name: str = "it", trust: bool = False) -> Actor:
    """
    :param policy: as for :func:`actor_of`
    :param observations: some that it must take, (m, d_s)
    :param n_actions: d_a
    :param name: of the policy, for errors
    :param trust: whether to read pickles in a file
    :return: one whose actions are numbers, wherever it is asked
    """
    if isinstance(policy, str | os.PathLike):
        policy = load_policy(pathlib.Path(policy), trust=trust)
    actor = _predicting(policy) if hasattr(policy, "predict") else policy
    if not callable(actor):
        raise InputError("policies", f"{policy!r} is no policy", "Give a function, an SB3 model, or a .zip or .onnx file")

    def act(seen: np.ndarray) -> np.ndarray:
        try:
            actions = np.asarray(actor(seen), dtype=np.float64).reshape(len(seen), -1)
        except InputError:
            raise
        except Exception as error:
            raise InputError("policies", f"{name} fails ({error!r})", "Give one for this system") from error
        wrong = np.flatnonzero(~np.isfinite(actions).all(axis=1))
        if actions.shape[1] != n_actions or len(wrong):
            row = int(wrong[0]) if len(wrong) else 0
            raise InputError(
                "policies",
                f"the action of {name} at {np.round(seen[row], 4).tolist()} is {actions[row].tolist()}",
                f"It must be {n_actions} finite number(s)",
            )
        return actions

    act(np.array(observations[:2], dtype=np.float64))
    return act


def load_policy(path: pathlib.Path, *, trust: bool = False) -> Any:
    """
    :param path: of a ``.zip`` file that SB3 wrote, or of an ``.onnx`` file
    :param trust: whether to read pickles in it
    """
    if not path.is_file():
        raise InputError("policies", f"there is no file {path}", "Give a model's .zip or .onnx file")
    if path.suffix == ".onnx":
        return _onnx_actor(path)
    if path.suffix == ".zip":
        return _load_zip(path, trust)
    raise InputError("policies", f"{path} is neither .zip nor .onnx", "Give a model's file")


def data_learned_from(policy: Any) -> str | None:
    """
    :param policy: as for :func:`actor_of`
    :return: fingerprint of the data that it was trained on, where it says so
    """
    if isinstance(policy, str | os.PathLike) and str(policy).endswith(".zip"):
        known = (settings_in(str(policy)) or {}).get("learned_from")
        return known if isinstance(known, str) else None
    return getattr(policy, "learned_from", None)


def _predicting(model: Any) -> Actor:
    return lambda observations: model.predict(observations.astype(np.float32), deterministic=True)[0]


def _load_zip(path: pathlib.Path, trust: bool) -> BasePolicy:
    """The policy alone: what trained it does not matter."""
    file, objects = read_model(path, trust=trust, only=_OF_POLICY)
    try:
        saved, parameters, _ = load_from_zip_file(file, load_data=True, custom_objects=objects, device="cpu")
    except UNREADABLE as error:
        raise InputError("policies", f"{path} is no model's file ({one_line(error)})", "Give one that save() wrote") from error
    saved = saved or {}
    try:
        spaces = saved["observation_space"], saved["action_space"]
        arguments = dict(saved.get("full_policy_kwargs") or saved.get("policy_kwargs") or {})
        if saved.get("use_sde"):
            # Algorithms that act as they learn hand it over beside the others.
            arguments.setdefault("use_sde", True)
        policy = saved["policy_class"](*spaces, lambda _: 0.0, **arguments)
        policy.load_state_dict(parameters["policy"])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        fix = "Load it yourself and give the model"
        raise InputError("policies", f"the policy in {path} cannot be built ({one_line(error)})", fix) from error
    policy.set_training_mode(False)
    return policy


def _onnx_session(path: pathlib.Path) -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("policies", f"{path} needs onnxruntime", "pip install sb3-nopg[robot]") from error
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise InputError("policies", f"{path} is no ONNX policy ({error})", "Give one that export() wrote") from error


def _onnx_actor(path: pathlib.Path) -> Actor:
    session = _onnx_session(path)
    taken = session.get_inputs()[0]
    one_at_a_time = isinstance(taken.shape[0], int)

    def act(observations: np.ndarray) -> np.ndarray:
        batch = observations.astype(np.float32)
        if not one_at_a_time:
            return np.asarray(session.run(None, {taken.name: batch})[0])
        return np.concatenate([np.asarray(session.run(None, {taken.name: row[None]})[0]) for row in batch])

    return act
