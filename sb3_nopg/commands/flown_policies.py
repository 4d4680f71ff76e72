"""Policies in files, as ``nopg stress`` flies them: many carts' observations in, volts out."""

import pathlib
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from sb3_nopg.common.errors import InputError, one_line
from sb3_nopg.common.failures import note
from sb3_nopg.prediction.policy_files import checked_actor, load_policy
from sb3_nopg.prediction.rollouts import Actor

# Of the cart-pole's observations: upright and still, twice.
_SAMPLE = np.array([[0.0, 0.0, 1.0, 0.0, 0.0]] * 2)
# Observations by which a network that takes many at once is compared with the one that takes one, and by how many volts they
# may differ: sums in another order round differently.
_N_COMPARED, _TOLERANCE_VOLT = 64, 1e-4


@dataclass(frozen=True)
class FlownPolicy:
    """
    :param actor: from observations of the cart-pole, (m, 5), to volts, (m, 1)
    :param voltage_limit_volt: the policy never asks for more
    :param control_hz: how often it is asked; None where the file does not tell
    """

    actor: Actor
    voltage_limit_volt: float
    control_hz: float | None


def flown_policy(path: pathlib.Path, *, trust: bool = False) -> FlownPolicy:
    """
    :param path: of a file that exists, ``.onnx`` or ``.zip``
    :param trust: whether to read pickles in it
    """
    return _from_onnx(path) if path.suffix == ".onnx" else _from_zip(path, trust)


def largest_action(space: Any) -> float:
    """
    :param space: of the actions
    """
    return float(np.abs([space.low, space.high]).max())


def _from_zip(path: pathlib.Path, trust: bool) -> FlownPolicy:
    policy = load_policy(path, trust=trust)
    return FlownPolicy(checked_actor(policy, _SAMPLE, 1), largest_action(policy.action_space), None)


def _from_onnx(path: pathlib.Path) -> FlownPolicy:
    # The rig's own reader, which knows what the file says of itself.
    from nopg_robot.control.observation import NAMES, QUANTITIES
    from nopg_robot.control.policy import OnnxPolicy
    from nopg_robot.rig.errors import PolicyError

    try:
        policy = OnnxPolicy(path)
        policy.warm_up(1)
    except PolicyError as error:
        raise InputError("POLICY", one_line(error), "Give what model.export() wrote") from error
    told = policy.metadata
    unknown = [name for name in told.observation_names if name not in QUANTITIES]
    if unknown or len(told.action_names) != 1:
        problem = f"{path} takes {', '.join(told.observation_names)} and gives {', '.join(told.action_names)}"
        raise InputError("POLICY", problem, f"Give one that takes some of {', '.join(QUANTITIES)} and gives volts")
    network = _many_at_once(path, lambda seen: np.stack([policy(row) for row in seen]), len(told.observation_names))

    def act(observations: np.ndarray) -> np.ndarray:
        columns = dict(zip(NAMES, observations.T, strict=True))
        columns["theta"] = np.arctan2(columns["sin_theta"], columns["cos_theta"])
        return network(np.stack([columns[name] for name in told.observation_names], axis=1))

    control_hz = None if told.control_period_s is None else 1.0 / told.control_period_s
    return FlownPolicy(act, float(np.abs([told.action_low, told.action_high]).max()), control_hz)


def _many_at_once(path: pathlib.Path, one_by_one: Actor, n_observations: int) -> Actor:
    """
    An exported policy takes one observation at a time. Asked for many, most networks need no more than to be told.

    :param path: of the policy
    :param one_by_one: asks it for each observation, which takes many times as long
    :param n_observations: d_s
    :return: what takes (m, d_s), the same as ``one_by_one`` where nothing else gives the same actions
    """
    seen = np.random.default_rng(0).normal(size=(_N_COMPARED, n_observations)).astype(np.float32)
    try:
        network = _with_any_batch(path)
        difference = float(np.abs(np.asarray(network(seen)) - one_by_one(seen)).max())
        if difference <= _TOLERANCE_VOLT:
            return network
        problem = f"actions differ by {difference:.2g} V"
    # Whatever onnx and onnxruntime have against it: errors of the latter have no common ancestor below this.
    except Exception as error:
        problem = one_line(error)
    note(f"the policy is asked for one rig after the other, which takes longer ({problem}).")
    return one_by_one


def _with_any_batch(path: pathlib.Path) -> Actor:
    onnx, onnxruntime = import_module("onnx"), import_module("onnxruntime")
    # From memory, so that it reads no other file.
    network = onnx.load_from_string(path.read_bytes())
    for tensor in (*network.graph.input, *network.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "n"
    # Shapes in between, if the file has any, are those of one.
    del network.graph.value_info[:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(network.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda seen: session.run(None, {name: np.ascontiguousarray(seen, dtype=np.float32)})[0]
