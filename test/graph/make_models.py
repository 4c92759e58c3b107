#!/usr/bin/python3
"""Writes the models of test/graph/data, and some of them as seeds of test/fuzz/fuzz_onnx.c.
Deterministic: same files from every run."""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "data")
SEEDS = os.path.join(HERE, "..", "fuzz", "onnx_seeds.h")


def weight(rng, name, *shape, scale=None):
    fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
    a = rng.standard_normal(shape) * (scale if scale is not None else (1.5 / fan) ** 0.5)
    return numpy_helper.from_array(a.astype(np.float32), name)


def constant(name, values):
    return numpy_helper.from_array(np.asarray(values), name)


def save(name, nodes, inits, x_shape, y_shape, opset, ir=8, **more):
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)] + more.get("inputs", []),
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, y_shape)],
        inits)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                              producer_name="make_models", ir_version=ir)
    helper.set_model_props(model, {"author": name})
    if more.get("training_info"):  # fields that trainerd does not read
        model.training_info.add().initialization.name = "start"
        model.graph.quantization_annotation.add().tensor_name = "x"
        model.graph.node[0].doc_string = "the first"
    if more.get("check", True):
        onnx.checker.check_model(model)
    with open(os.path.join(OUT, name + ".onnx"), "wb") as f:
        f.write(model.SerializeToString())
    return model


def mlp(opset=17, name="mlp", classes=3):
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["a"], "relu"),
        helper.make_node("Gemm", ["a", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1),
    ]
    inits = [weight(rng, "fc1.weight", 7, 5), weight(rng, "fc1.bias", 7),
             weight(rng, "fc2.weight", classes, 7), weight(rng, "fc2.bias", classes)]
    return save(name, nodes, inits, ["batch", 5], ["batch", classes], opset, training_info=True)


def batch_norm(rng, i, x, y, channels, opset):
    p = "bn%d." % i
    inits = [weight(rng, p + "weight", channels, scale=0.5), weight(rng, p + "bias", channels),
             weight(rng, p + "running_mean", channels, scale=0.1),
             constant(p + "running_var", np.linspace(0.5, 1.5, channels).astype(np.float32))]
    ins = [x] + [t.name for t in inits]
    if opset >= 14:
        return helper.make_node("BatchNormalization", ins, [y, y + "_mean", y + "_var"], p[:-1],
                                momentum=0.9, epsilon=1e-5, training_mode=1), inits
    outs = [y] + [y + s for s in ("_mean", "_var", "_saved_mean", "_saved_var")]
    return helper.make_node("BatchNormalization", ins, outs, p[:-1], momentum=0.9,
                            epsilon=1e-5), inits


def cnn(opset, name):
    rng = np.random.default_rng(2)
    bn1, bn1_inits = batch_norm(rng, 1, "c1", "n1", 4, opset)
    bn2, bn2_inits = batch_norm(rng, 2, "c2", "n2", 6, opset)
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight", "conv1.bias"], ["c1"], "conv1",
                         kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        bn1,
        helper.make_node("Relu", ["n1"], ["r1"], "relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "conv2.weight"], ["c2"], "conv2", kernel_shape=[3, 3],
                         pads=[1, 1, 1, 1]),
        bn2,
        helper.make_node("Relu", ["n2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"], "gap"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten", axis=1),
        helper.make_node("Gemm", ["f", "fc.weight", "fc.bias"], ["logits"], "fc", transB=1),
    ]
    inits = ([weight(rng, "conv1.weight", 4, 2, 3, 3), weight(rng, "conv1.bias", 4)] + bn1_inits +
             [weight(rng, "conv2.weight", 6, 4, 3, 3)] + bn2_inits +
             [weight(rng, "fc.weight", 3, 6), weight(rng, "fc.bias", 3)])
    # BatchNormalization before opset 14 with five outputs, which the checker's inference accepts.
    return save(name, nodes, inits, ["batch", 2, 8, 8], ["batch", 3], opset, ir=7)


def dropout(opset, name):
    rng = np.random.default_rng(3)
    nodes = [helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], "fc1", transB=1)]
    inits = [weight(rng, "fc1.weight", 16, 5), weight(rng, "fc1.bias", 16),
             weight(rng, "fc2.weight", 3, 16), weight(rng, "fc2.bias", 3)]
    if opset >= 12:
        nodes += [helper.make_node("Constant", [], ["mode"], "mode",
                                   value=numpy_helper.from_array(np.array(True))),
                  helper.make_node("Constant", [], ["ratio"], "ratio", value_float=0.25),
                  helper.make_node("Dropout", ["h", "ratio", "mode"], ["d", "mask"], "dropout")]
    else:
        nodes += [helper.make_node("Dropout", ["h"], ["d"], "dropout", ratio=0.25)]
    nodes += [helper.make_node("Gemm", ["d", "fc2.weight", "fc2.bias"], ["logits"], "fc2",
                               transB=1)]
    return save(name, nodes, inits, ["batch", 5], ["batch", 3], opset, ir=7)


def residual():
    """A residual branch, a value with three readers, constants folded, a broadcast scale, Add of a
    value to itself, plain and channels-last mixed."""
    rng = np.random.default_rng(4)
    nodes = [
        helper.make_node("Conv", ["x", "conv1.weight"], ["c1"], "conv1", kernel_shape=[3, 3],
                         pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight"], ["c2"], "conv2", kernel_shape=[1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["s1"], "add1"),
        helper.make_node("Mul", ["s1", "scale"], ["m1"], "mul1"),      # [1, 4, 1, 1]
        helper.make_node("Add", ["m1", "position.weight"], ["s2"], "add2"),   # [1, 4, 6, 6]
        helper.make_node("Constant", [], ["two"], "two", value_float=2.0),
        helper.make_node("Constant", [], ["half"], "half", value_float=0.25),
        helper.make_node("Mul", ["two", "half"], ["factor"], "factor"),
        helper.make_node("Mul", ["s2", "factor"], ["m2"], "mul2"),
        helper.make_node("Add", ["m2", "m2"], ["s3"], "add3"),
        helper.make_node("Sigmoid", ["s3"], ["g3"], "sigmoid"),
        helper.make_node("Mul", ["g3", "r1"], ["m3"], "mul3"),
        helper.make_node("Reshape", ["m3", "shape"], ["flat"], "reshape"),
        helper.make_node("MatMul", ["flat", "fc.weight"], ["y"], "matmul"),
        helper.make_node("Add", ["y", "fc.bias"], ["logits"], "bias"),
    ]
    inits = [weight(rng, "conv1.weight", 4, 3, 3, 3), weight(rng, "conv2.weight", 4, 4, 1, 1),
             weight(rng, "scale", 1, 4, 1, 1), weight(rng, "position.weight", 1, 4, 6, 6, scale=0.3),
             constant("shape", np.array([0, -1], dtype=np.int64)),
             weight(rng, "fc.weight", 144, 3, scale=0.1), weight(rng, "fc.bias", 3)]
    return save("residual", nodes, inits, ["batch", 3, 6, 6], ["batch", 3], 13, ir=7)


def tied():
    """One initializer with two consumers: a real tie."""
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("Gemm", ["x", "shared.weight", "b1"], ["h"], "first", transB=1),
        helper.make_node("Tanh", ["h"], ["t"], "tanh"),
        helper.make_node("Gemm", ["t", "shared.weight", "b2"], ["y"], "second", transB=0),
        helper.make_node("Gemm", ["y", "head.weight"], ["logits"], "head", transB=1),
    ]
    inits = [weight(rng, "shared.weight", 6, 5), weight(rng, "b1", 6), weight(rng, "b2", 5),
             weight(rng, "head.weight", 3, 5)]
    return save("tied", nodes, inits, ["batch", 5], ["batch", 3], 13, ir=7)


def identity():
    """Biases of equal value that the exporter merged and distributes through Identity nodes, one of
    them through two; weights with generated names."""
    rng = np.random.default_rng(6)
    zero = constant("onnx::Bias_9", np.full(5, 0.125, dtype=np.float32))
    nodes = [
        helper.make_node("Identity", ["onnx::Bias_9"], ["fc1.bias"], "Identity_0"),
        helper.make_node("Identity", ["fc1.bias"], ["fc2.bias"], "Identity_1"),
        helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["m1"], "MatMul_2"),
        helper.make_node("Add", ["m1", "fc1.bias"], ["h1"], "Add_3"),
        helper.make_node("Relu", ["h1"], ["a1"], "Relu_4"),
        helper.make_node("MatMul", ["a1", "onnx::MatMul_8"], ["m2"], "MatMul_5"),
        helper.make_node("Add", ["m2", "fc2.bias"], ["h2"], "Add_6"),
        helper.make_node("Relu", ["h2"], ["a2"], "Relu_7"),
        helper.make_node("Gemm", ["a2", "head.weight", "onnx::Bias_9"], ["logits"], "Gemm_8"),
    ]
    inits = [zero, weight(rng, "onnx::MatMul_7", 4, 5), weight(rng, "onnx::MatMul_8", 5, 5),
             weight(rng, "head.weight", 5, 5)]
    return save("identity", nodes, inits, ["batch", 4], ["batch", 5], 13, ir=7)


def control():
    """A function with an attribute, a Loop over a captured weight, an If, a Scan and shape arithmetic."""
    rng = np.random.default_rng(8)
    info = helper.make_tensor_value_info
    leaky = helper.make_node("LeakyRelu", ["a"], ["t"])
    ref = leaky.attribute.add()
    ref.name, ref.ref_attr_name, ref.type = "alpha", "slope", onnx.AttributeProto.FLOAT
    function = helper.make_function("own", "Squash", ["a"], ["b"], [leaky, helper.make_node("Tanh", ["t"], ["b"])],
                                    [helper.make_opsetid("", 17)], ["slope"])
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("MatMul", ["h", "w"], ["m"]),
         helper.make_node("Squash", ["m"], ["n"], domain="own", slope=0.5)], "turn",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("h", TensorProto.FLOAT, None)],
        [info("go_on", TensorProto.BOOL, []), info("n", TensorProto.FLOAT, None)])
    step = helper.make_graph([helper.make_node("Add", ["s", "e"], ["s2"])], "step",
                             [info("s", TensorProto.FLOAT, None), info("e", TensorProto.FLOAT, None)],
                             [info("s2", TensorProto.FLOAT, None)])
    then = helper.make_graph([helper.make_node("Neg", ["l"], ["p"])], "then", [], [info("p", TensorProto.FLOAT, None)])
    other = helper.make_graph([helper.make_node("Relu", ["l"], ["q"])], "else", [], [info("q", TensorProto.FLOAT, None)])
    nodes = [
        helper.make_node("Loop", ["two", "", "x"], ["l"], "loop", body=body),
        helper.make_node("If", ["yes"], ["k"], "if", then_branch=then, else_branch=other),
        helper.make_node("Scan", ["zeros", "k"], ["sum"], "scan", body=step, num_scan_inputs=1, scan_input_axes=[1]),
        helper.make_node("Reshape", ["sum", "column"], ["c"]), helper.make_node("Add", ["k", "c"], ["logits"]),
    ]
    graph = helper.make_graph(nodes, "control", [info("x", TensorProto.FLOAT, [2, 3])],
                              [info("logits", TensorProto.FLOAT, [2, 3])],
                              [weight(rng, "w", 3, 3), constant("two", np.int64(2)), constant("yes", np.array(True)),
                               constant("zeros", np.zeros(2, np.float32)), constant("column", np.array([2, 1]))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)],
                              functions=[function], producer_name="make_models", ir_version=8)
    with open(os.path.join(OUT, "control.onnx"), "wb") as f:
        f.write(model.SerializeToString())


def external(model):
    """The MLP with its weights as external data."""
    m = onnx.ModelProto()
    m.CopyFrom(model)
    blob = b""
    for t in m.graph.initializer:
        blob += b"\0" * (-len(blob) % 64)
        offset, raw = len(blob), numpy_helper.to_array(t).tobytes()
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "mlp_external.bin"), ("offset", offset),
                           ("length", len(raw)), ("checksum", "0" * 40)):
            entry = t.external_data.add()
            entry.key, entry.value = key, str(value)
        blob += raw
    with open(os.path.join(OUT, "mlp_external.onnx"), "wb") as f:
        f.write(m.SerializeToString())
    with open(os.path.join(OUT, "mlp_external.bin"), "wb") as f:
        f.write(blob)


def rare():
    """A chain of ops with many attributes."""
    rng = np.random.default_rng(9)
    node = helper.make_node
    save("rare", [
        node("Conv", ["x", "w"], ["c"]),
        node("Resize", ["c", "", "", "sizes"], ["r"], mode="linear", antialias=1, axes=[2, 3]),
        node("Pad", ["r", "pads"], ["p"], mode="reflect"),
        node("Reshape", ["p", "steps"], ["s"]),
        node("LSTM", ["s", "lstm.w", "lstm.r", "lstm.b", "", "", "", "lstm.p"], ["y"], hidden_size=2, clip=1.5, layout=1,
             activations=["HardSigmoid", "Tanh", "Elu"], activation_alpha=[0.3, 1.0], activation_beta=[0.4]),
        node("Squeeze", ["y", "axis"], ["z"]),
        node("Einsum", ["z", "a", "b"], ["e"], equation="...ti,ij,tk->...jk"),
        node("LRN", ["e"], ["n"], size=3),
        node("Flatten", ["n"], ["logits"]),
    ], [weight(rng, "w", 2, 1, 1, 1), constant("sizes", np.array([6, 3])), constant("pads", np.array([0, 0, 0, 3, 0, 0, 0, 4])),
        constant("steps", np.array([-1, 12, 10])), weight(rng, "lstm.w", 1, 8, 10), weight(rng, "lstm.r", 1, 8, 2),
        weight(rng, "lstm.b", 1, 16), weight(rng, "lstm.p", 1, 6), constant("axis", np.array([2])), weight(rng, "a", 2, 3),
        weight(rng, "b", 12, 2)], ["batch", 1, 4, 4], ["batch", 6], 18, check=False)  # newer than the checker


def literal(data):
    """A C string of these bytes. Octal escapes end after three digits, so the next character is separate."""
    plain = set(range(32, 127)) - set(b'"\\?')
    text = ["%c" % b if b in plain else "\\%03o" % b for b in data]
    lines, line = [], ""
    for piece in text:
        if len(line) + len(piece) > 90:
            lines.append(line)
            line = ""
        line += piece
    return "\n    ".join('"%s"' % part for part in lines + [line])


def seeds(names):
    out = ["/* Models of test/graph/data, written by test/graph/make_models.py. */"]
    for name in names:
        with open(os.path.join(OUT, name + ".onnx"), "rb") as f:
            out.append("/* %s */\nFUZZ_SEED(\n    %s),\n" % (name, literal(f.read())))
    with open(SEEDS, "w") as f:
        f.write("\n".join(out))


def main():
    os.makedirs(OUT, exist_ok=True)
    external(mlp())
    for opset in (11, 13, 17):
        cnn(opset, "cnn_%d" % opset)
    dropout(11, "dropout_11")
    dropout(17, "dropout_17")
    residual()
    tied()
    identity()
    control()
    rare()
    seeds(["mlp", "mlp_external", "cnn_17", "dropout_11", "dropout_17", "tied", "identity", "control", "rare", "module_norms",
           "module_tied", "module_transposed", "module_convolutions", "module_gru", "module_functions", "module_vanished",
           "module_detached", "module_batch_norm"])  # those of make_modules.py
    return 0


if __name__ == "__main__":
    sys.exit(main())
