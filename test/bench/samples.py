"""samples.py - small networks and random records of the size of MNIST's for the comparisons."""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data"))
import tfrecord  # noqa: E402

PIXELS, HIDDEN, CLASSES = 784, 128, 10


def _weights():
    """Returns a list of weights, and weight(name, *shape), which adds a weight."""
    rng = np.random.default_rng(1)

    def weight(name, *shape):
        a = rng.standard_normal(shape) / np.sqrt(shape[-1])
        return numpy_helper.from_array(a.astype(np.float32), name)

    return weight


def _save(graph, path):
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def write_mlp(path):
    """Writes Gemm, Relu, Gemm: x [batch, 784] to logits [batch, 10]."""
    weight = _weights()
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
         helper.make_node("Relu", ["h"], ["a"], "relu"),
         helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1)],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", PIXELS])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [weight("fc1.weight", HIDDEN, PIXELS), weight("fc1.bias", HIDDEN),
         weight("fc2.weight", CLASSES, HIDDEN), weight("fc2.bias", CLASSES)])
    _save(graph, path)


def write_lstm(path, vocabulary, width, steps):
    """Writes a language model in the form that PyTorch exports with batch_first: ids [batch, steps] to logits [batch,
    steps, vocabulary]."""
    weight = _weights()

    def ints(name, *values):
        return numpy_helper.from_array(np.array(values, dtype=np.int64), name)

    graph = helper.make_graph(
        [helper.make_node("Gather", ["embedding.weight", "ids"], ["rows"]),
         helper.make_node("Transpose", ["rows"], ["x"], perm=[1, 0, 2]),
         helper.make_node("LSTM", ["x", "lstm.W", "lstm.R", "lstm.B"], ["y"], "lstm", hidden_size=width),
         helper.make_node("Squeeze", ["y", "axis"], ["states"]),
         helper.make_node("Transpose", ["states"], ["h"], perm=[1, 0, 2]),
         helper.make_node("MatMul", ["h", "head.weight.T"], ["product"], "head"),
         helper.make_node("Add", ["product", "head.bias"], ["logits"])],
        "lstm",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", steps])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", steps, vocabulary])],
        [weight("embedding.weight", vocabulary, width), weight("lstm.W", 1, 4 * width, width),
         weight("lstm.R", 1, 4 * width, width), weight("lstm.B", 1, 8 * width),
         weight("head.weight.T", width, vocabulary), weight("head.bias", vocabulary), ints("axis", 1)])
    _save(graph, path)


def _masked_crc32c(rows):
    """Computes the checksums of all rows of a [n, length] array of bytes."""
    table = np.array(tfrecord.TABLE, dtype=np.uint32)
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = table[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc ^= np.uint32(0xFFFFFFFF)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def write_records(path, n, seed=1):
    """Writes n records {image: 784 random bytes, label: 0 to 9}. All have the same length, so one is encoded by the
    simple writer, and the others are copies with other pixels and another label."""
    rng = np.random.default_rng(seed)
    marker = bytes(range(200, 208)) * (PIXELS // 8)
    model = tfrecord.example({"image": ("bytes", [marker]), "label": ("int64", [CLASSES])})
    pixels_at = model.index(marker)
    label_at = len(model) - 1 if model[-1] == CLASSES else model.rindex(bytes([CLASSES]), pixels_at + PIXELS)
    rows = np.empty((n, len(model)), dtype=np.uint8)
    rows[:] = np.frombuffer(model, dtype=np.uint8)
    rows[:, pixels_at:pixels_at + PIXELS] = rng.integers(0, 256, (n, PIXELS), dtype=np.uint8)
    rows[:, label_at] = rng.integers(0, CLASSES, n)
    head = np.frombuffer(tfrecord.frame(model)[:12], dtype=np.uint8)
    tail = _masked_crc32c(np.ascontiguousarray(rows.T).T).astype("<u4").view(np.uint8).reshape(n, 4)
    np.hstack([np.broadcast_to(head, (n, 12)), rows, tail]).tofile(path)
