"""The policy on the rig's side: an ONNX file that sb3-nopg wrote, run by onnxruntime."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from nopg_envs.checks import is_finite_number
from nopg_robot.rig.errors import PolicyError

FORMAT_VERSION = 1
# A policy network has some kilobytes.
LARGEST_FILE_BYTES = 64 * 2**20
# The first call may have to make ready what later ones only use, and must end nevertheless.
FIRST_CALL_S, LATER_CALL_S = 5.0, 1.0
EXPORT_AGAIN = "Export the policy again with model.export(), from sb3-nopg"


@dataclass(frozen=True)
class PolicyMetadata:
    """
    What a policy file says of itself.

    :param observation_names: one for each dimension, in order, as are all that follow
    :param observation_units: ``""`` where unknown, ``"1"`` where there is none
    :param action_names: the same for the action
    :param action_units: the same for the action
    :param action_low: the policy never asks for less
    :param action_high: nor for more
    :param control_period_s: time between two actions that the policy was made for, None if unknown
    :param data_low: smallest observation of the training data in each dimension, None if unknown
    :param data_high: largest
    :param digest: SHA-256 of the file, computed here: what a file says of itself may be another one's
    :param algorithm: what trained it
    :param created_by: what wrote the file
    """

    observation_names: tuple[str, ...]
    observation_units: tuple[str, ...]
    action_names: tuple[str, ...]
    action_units: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_period_s: float | None
    data_low: tuple[float, ...] | None
    data_high: tuple[float, ...] | None
    digest: str
    algorithm: str
    created_by: str


class OnnxPolicy:
    """
    A policy file, ready to be asked for actions, one observation at a time and from one thread.

    :param path: of the file that ``model.export()`` wrote
    :raises PolicyError: if the file is missing, damaged or not one of ours
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        content = _read_file(self.path)
        session = _open_session(self.path, content)
        sizes, texts = _sizes(self.path, session), session.get_modelmeta().custom_metadata_map
        n_observations = sizes[0]
        self.metadata = _read_metadata(self.path, texts, *sizes, hashlib.sha256(content).hexdigest())
        self._shape = (n_observations,)
        # The same memory at every call: the session reads its input from there.
        self._input = np.zeros((1, n_observations), dtype=np.float32)
        self._run, self._make_run_options = session.run, import_module("onnxruntime").RunOptions
        self._output_names, self._feed = [session.get_outputs()[0].name], {session.get_inputs()[0].name: self._input}

    def __call__(self, observation: np.ndarray) -> np.ndarray:
        """
        :param observation: raw, in the units of :attr:`metadata`, (d,)
        :return: action in the units of :attr:`metadata`, a new array of float32, (d_a,). NaN is passed on, not hidden
        :raises PolicyError: for an observation that is not d numbers
        """
        try:
            shape = np.shape(observation)
            if shape == self._shape:
                self._input[0] = observation
        except (TypeError, ValueError) as error:
            raise PolicyError(f"observation: {observation!r} does not hold numbers only ({error})") from error
        if shape != self._shape:
            names = ", ".join(self.metadata.observation_names)
            raise PolicyError(f"observation: shape {shape} where {self.path} takes {self._shape}: {names}")
        return self._run(self._output_names, self._feed)[0][0]

    def warm_up(self, n_calls: int = 100) -> None:
        """
        Run the policy a few times, for nothing: the first calls take longer than all later ones.

        :param n_calls: how often
        :raises PolicyError: if it does not answer, or so late that it is of no use to any rig
        """
        self._call_once_within(FIRST_CALL_S)
        for _ in range(n_calls):
            begin_s = time.perf_counter()
            self(np.zeros(self._shape))
            took_s = time.perf_counter() - begin_s
            if took_s > LATER_CALL_S:
                raise PolicyError(
                    f"{self.path}: one action took {took_s:.1f} s, at most {LATER_CALL_S:g} s are of use to a rig."
                )

    def _call_once_within(self, limit_s: float) -> None:
        """A file may hold a loop without an end, which nothing but another thread can tell from a long one."""
        options, errors = self._make_run_options(), []
        options.log_severity_level = 4

        def call() -> None:
            try:
                self._run(self._output_names, self._feed, options)
            # Its errors have no common ancestor below this.
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=call, name="first call of the policy", daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            # Ends it between two of its operations, and then waits: a program that ends before its threads do may crash.
            options.terminate = True
            thread.join(LATER_CALL_S)
            raise PolicyError(
                f"{self.path}: no action after {limit_s:g} s: the network is endless or far too large for a rig."
            )
        if errors:
            raise PolicyError(f"{self.path}: onnxruntime cannot run it ({errors[0]}). {EXPORT_AGAIN}.") from errors[0]


def _read_file(path: Path) -> bytes:
    if not path.is_file():
        raise PolicyError(f"{path}: there is no such file. Give the ONNX file that model.export() wrote.")
    n_bytes = path.stat().st_size
    if n_bytes > LARGEST_FILE_BYTES:
        raise PolicyError(
            f"{path}: {n_bytes / 2**20:.0f} MiB are no policy for a rig, at most {LARGEST_FILE_BYTES >> 20} MiB."
        )
    return path.read_bytes()


def _open_session(path: Path, content: bytes) -> Any:
    try:
        onnxruntime: Any = import_module("onnxruntime")
    except ImportError as error:
        raise PolicyError("Running a policy needs the package onnxruntime: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    # A network this small is done before a second thread wakes up, and a waiting thread would take time from the loop.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        # From memory: weights that lie in another file are not found, and the digest is that of all there is.
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    # Its errors have no common ancestor below this.
    except Exception as error:
        raise PolicyError(f"{path}: onnxruntime cannot load it ({error}). {EXPORT_AGAIN}.") from error


def _sizes(path: Path, session: Any) -> tuple[int, int]:
    """:return: number of observations and actions"""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    found = [(tensor.name, tensor.type, tensor.shape) for tensor in (*inputs, *outputs)]
    fits = len(inputs) == len(outputs) == 1 and all(
        kind == "tensor(float)" and len(shape) == 2 and shape[0] == 1 and isinstance(shape[1], int) for _, kind, shape in found
    )
    if not fits:
        raise PolicyError(
            f"{path}: inputs and outputs {found}, where one input (1, d) and one output (1, d_a) in float32 are expected. "
            f"{EXPORT_AGAIN}."
        )
    return inputs[0].shape[1], outputs[0].shape[1]


def _read_metadata(path: Path, texts: Mapping[str, str], n_observations: int, n_actions: int, digest: str) -> PolicyMetadata:
    reader = _MetadataReader(path, texts)
    version = reader.value("format_version")
    if version != FORMAT_VERSION:
        raise PolicyError(
            f"{path}: format_version {version!r} where {FORMAT_VERSION} is understood. Install the nopg_robot that belongs to "
            f"the sb3-nopg which wrote it, or export the policy again."
        )
    metadata = PolicyMetadata(
        observation_names=reader.texts("observation_names", n_observations),
        observation_units=reader.texts("observation_units", n_observations),
        action_names=reader.texts("action_names", n_actions),
        action_units=reader.texts("action_units", n_actions),
        action_low=reader.numbers("action_low", n_actions),
        action_high=reader.numbers("action_high", n_actions),
        control_period_s=reader.period_s("control_period_s"),
        data_low=reader.numbers("data_low", n_observations, or_none=True) or None,
        data_high=reader.numbers("data_high", n_observations, or_none=True) or None,
        digest=digest,
        algorithm=reader.text("algorithm"),
        created_by=reader.text("created_by"),
    )
    reader.check_ordered("action_low", metadata.action_low, "action_high", metadata.action_high)
    reader.check_ordered("data_low", metadata.data_low or (), "data_high", metadata.data_high or ())
    return metadata


@dataclass(frozen=True)
class _MetadataReader:
    """
    Values out of a file's metadata, each checked to be what it must be.

    :param path: for errors
    :param json_texts: metadata as it is in the file
    """

    path: Path
    json_texts: Mapping[str, str]

    def value(self, field: str) -> Any:
        if field not in self.json_texts:
            raise PolicyError(f"{self.path}: the metadata lacks {field}. {EXPORT_AGAIN}.")
        try:
            return json.loads(self.json_texts[field])
        except ValueError as error:
            raise self._error(field, self.json_texts[field], "JSON") from error

    def text(self, field: str) -> str:
        value = self.value(field)
        if not isinstance(value, str):
            raise self._error(field, value, "a string")
        return value

    def texts(self, field: str, n: int) -> tuple[str, ...]:
        value = self.value(field)
        if not isinstance(value, list) or len(value) != n or not all(isinstance(item, str) for item in value):
            raise self._error(field, value, f"{n} strings")
        return tuple(value)

    def numbers(self, field: str, n: int, or_none: bool = False) -> tuple[float, ...]:
        value = self.value(field)
        if or_none and value == []:
            return ()
        if not isinstance(value, list) or len(value) != n or not all(is_finite_number(item) for item in value):
            raise self._error(field, value, f"{n} finite numbers")
        return tuple(float(item) for item in value)

    def period_s(self, field: str) -> float | None:
        value = self.value(field)
        if value is not None and not (is_finite_number(value) and value > 0):
            raise self._error(field, value, "a positive number of seconds")
        return None if value is None else float(value)

    def check_ordered(self, low_field: str, low: tuple[float, ...], high_field: str, high: tuple[float, ...]) -> None:
        if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
            raise self._error(low_field, low, f"below {high_field} {high}")

    def _error(self, field: str, value: Any, wanted: str) -> PolicyError:
        return PolicyError(f"{self.path}: {field} {value!r} in the metadata is not {wanted}. {EXPORT_AGAIN}.")
