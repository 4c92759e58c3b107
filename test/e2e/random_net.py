"""random_net.py - a classifier of the digits whose step draws random numbers and updates running averages."""
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, KV_HEADS, TOKENS, WIDTH = 4, 2, 4, 16


def random_net(path):
    """BatchNormalization in inference form, RandomNormalLike, Bernoulli, and Attention with grouped heads."""
    rng = np.random.default_rng(11)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.2).astype(np.float32), name)

    def constant(name, value, dtype):
        return numpy_helper.from_array(np.array(value, dtype), name)

    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], **attributes)

    hidden, kv = TOKENS * WIDTH, WIDTH * KV_HEADS // HEADS
    nodes = [
        node("Flatten", ["x"], "flat"), node("Gemm", ["flat", "in.weight", "in.bias"], "dense"),
        node("BatchNormalization", ["dense", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], "normal"),
        node("RandomNormalLike", ["normal"], "noise", scale=0.1), node("Add", ["normal", "noise"], "noisy"),
        node("Sigmoid", ["noisy"], "probability"), node("Bernoulli", ["probability"], "mask"),
        node("Mul", ["noisy", "mask"], "kept"), node("Reshape", ["kept", "tokens"], "h"),
        node("MatMul", ["h", "q.weight"], "q"), node("MatMul", ["h", "k.weight"], "k"),
        node("MatMul", ["h", "v.weight"], "v"),
        node("Attention", ["q", "k", "v"], "seen", q_num_heads=HEADS, kv_num_heads=KV_HEADS, is_causal=1),
        node("Flatten", ["seen"], "all"), node("Gemm", ["all", "out.weight", "out.bias"], "logits")]
    graph = helper.make_graph(
        nodes, "random", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [weight("in.weight", 64, hidden), weight("in.bias", hidden), weight("q.weight", WIDTH, WIDTH),
         weight("k.weight", WIDTH, kv), weight("v.weight", WIDTH, kv), weight("out.weight", hidden, 10),
         weight("out.bias", 10), constant("bn.weight", np.ones(hidden), np.float32),
         constant("bn.bias", np.zeros(hidden), np.float32), constant("bn.running_mean", np.zeros(hidden), np.float32),
         constant("bn.running_var", np.ones(hidden), np.float32),
         constant("tokens", [-1, TOKENS, WIDTH], np.int64)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path)
