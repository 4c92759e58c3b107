"""segment_net.py - a network for packed sequences, made without an exporter."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def segment_net(path, vocabulary, length, width=8):
    """One attention layer in which a token attends to its own segment; inputs ids, segment, position [batch, length]."""
    rng = np.random.default_rng(7)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], **attributes)

    nodes = [
        node("Gather", ["words", "ids"], "w"), node("Gather", ["places", "position"], "p"), node("Add", ["w", "p"], "e"),
        node("Transpose", ["e"], "et", perm=[0, 2, 1]), node("MatMul", ["e", "et"], "scores"),
        node("Unsqueeze", ["segment", "two"], "rows"), node("Unsqueeze", ["segment", "one"], "columns"),
        node("Equal", ["rows", "columns"], "same"), node("Where", ["same", "zero", "far"], "bias"),
        node("Add", ["scores", "bias"], "masked"), node("Softmax", ["masked"], "share", axis=-1),
        node("MatMul", ["share", "e"], "seen"), node("MatMul", ["seen", "out"], "logits")]
    constants = [numpy_helper.from_array(np.array(v, t), n) for n, v, t in (
        ("one", [1], np.int64), ("two", [2], np.int64), ("zero", 0, np.float32), ("far", -1e9, np.float32))]
    graph = helper.make_graph(
        nodes, "segments",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", length]) for n in ("ids", "segment", "position")],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", length, vocabulary])],
        [weight("words", vocabulary, width), weight("places", length, width), weight("out", width, vocabulary), *constants])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
