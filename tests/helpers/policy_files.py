"""Policies in files, for rigs."""

import json

import numpy as np
import pytest

from helpers.rigs import balancing_gain, metadata

onnx = pytest.importorskip("onnx")

# sin θ stands for θ.
BALANCE = -np.insert(balancing_gain(), 2, 0.0)


def write_endless_policy(path):
    """
    Answers 0 V while cos θ is zero, as in a trial call on zeros, and never once there is a pole.
    """
    helper, kind = onnx.helper, onnx.TensorProto

    def value(name, type_, shape=()):
        return helper.make_tensor_value_info(name, type_, shape)

    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["volt"], ["same_volt"])],
        "again",
        [value("number", kind.INT64), value("go", kind.BOOL), value("volt", kind.FLOAT, (1, 1))],
        [value("go_on", kind.BOOL), value("same_volt", kind.FLOAT, (1, 1))],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["observation"], ["sizes"]),
            helper.make_node("ReduceMax", ["sizes"], ["size"], keepdims=0),
            helper.make_node("Ceil", ["size"], ["rounded"]),
            helper.make_node("Cast", ["rounded"], ["some"], to=kind.INT64),
            helper.make_node("Mul", ["some", "many"], ["times"]),
            helper.make_node("Loop", ["times", "yes", "start"], ["action"], body=body),
        ],
        "policy",
        [value("observation", kind.FLOAT, (1, 5))],
        [value("action", kind.FLOAT, (1, 1))],
        [
            onnx.numpy_helper.from_array(np.array(2**50), "many"),
            onnx.numpy_helper.from_array(np.array(True), "yes"),
            onnx.numpy_helper.from_array(np.zeros((1, 1), dtype=np.float32), "start"),
        ],
    )
    return _save(graph, path)


def write_policy(path, gain=BALANCE, bias=0.0, **description):
    """volts = gain · observation + bias"""
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["observation", "gain"], ["product"]),
            onnx.helper.make_node("Add", ["product", "bias"], ["action"]),
        ],
        "policy",
        [onnx.helper.make_tensor_value_info("observation", kind, (1, 5))],
        [onnx.helper.make_tensor_value_info("action", kind, (1, 1))],
        [
            onnx.numpy_helper.from_array(np.asarray(gain, dtype=np.float32).reshape(5, 1), "gain"),
            onnx.numpy_helper.from_array(np.full((1, 1), bias, dtype=np.float32), "bias"),
        ],
    )
    return _save(graph, path, **description)


def _save(graph, path, **description):
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    seen = {"data_low": (-9.0,) * 5, "data_high": (9.0,) * 5}
    fields = {**metadata(**seen, **description).__dict__, "versions": {}, "format_version": 1}
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in fields.items()})
    onnx.save(model, path)
    return path
