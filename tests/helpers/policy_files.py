"""Policies in files, for rigs."""

import json

import numpy as np
import pytest

from helpers.rigs import balancing_gain, metadata

onnx = pytest.importorskip("onnx")

# sin θ stands for θ.
BALANCE = -np.insert(balancing_gain(), 2, 0.0)


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
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    seen = {"data_low": (-9.0,) * 5, "data_high": (9.0,) * 5}
    fields = {**metadata(**seen, **description).__dict__, "versions": {}, "format_version": 1}
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in fields.items()})
    onnx.save(model, path)
    return path
