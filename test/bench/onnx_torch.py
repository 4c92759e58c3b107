"""onnx_torch.py - converts an ONNX graph to a trainable PyTorch module, so that both sides of a comparison do the same
arithmetic on the same network. Supports the operators of small networks and refuses others by name."""
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper


def _pair(attrs, name, default):
    """Returns a symmetric attribute [a, b] of the two image dimensions."""
    v = list(attrs.get(name, default))
    if name == "pads":
        if v[:2] != v[2:]:
            raise ValueError("pads %s are not the same on both sides" % v)
        v = v[:2]
    return tuple(v)


def _plain(node, attrs, **allowed):
    """Refuses attributes with a value that the conversion does not support."""
    for name, value in attrs.items():
        if name in allowed and value not in allowed[name]:
            raise ValueError("%s with %s = %s" % (node.op_type, name, value))


def _window(node, attrs):
    _plain(node, attrs, auto_pad=[b"NOTSET"], ceil_mode=[0], dilations=[[1, 1]])
    return dict(kernel_size=_pair(attrs, "kernel_shape", None), stride=_pair(attrs, "strides", [1, 1]),
                padding=_pair(attrs, "pads", [0, 0, 0, 0]))


def _conv(node, attrs, _):
    _plain(node, attrs, auto_pad=[b"NOTSET"])
    more = dict(stride=_pair(attrs, "strides", [1, 1]), padding=_pair(attrs, "pads", [0, 0, 0, 0]),
                dilation=_pair(attrs, "dilations", [1, 1]), groups=attrs.get("group", 1))
    return lambda x, w, b=None: F.conv2d(x, w, b, **more)


def _batch_norm(node, attrs, _):
    momentum, eps = 1 - attrs.get("momentum", 0.9), attrs.get("epsilon", 1e-5)
    return lambda x, w, b, mean, var: F.batch_norm(x, mean, var, w, b, True, momentum, eps)


def _gemm(node, attrs, _):
    _plain(node, attrs, alpha=[1.0], beta=[1.0], transA=[0])
    if attrs.get("transB", 0):
        return F.linear
    return lambda x, w, b: torch.addmm(b, x, w)


def _max_pool(node, attrs, _):
    window = _window(node, attrs)
    return lambda x: F.max_pool2d(x, **window)


def _average_pool(node, attrs, _):
    window = _window(node, attrs)
    include = bool(attrs.get("count_include_pad", 0))
    return lambda x: F.avg_pool2d(x, count_include_pad=include, **window)


def _flatten(node, attrs, _):
    axis = attrs.get("axis", 1)
    return lambda x: torch.flatten(x, axis)


def _reshape(node, attrs, constants):
    shape = [int(n) for n in constants[node.input[1]]]
    return lambda x, _: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape)])


def _dropout(node, attrs, constants):
    """Ratio and mode are attributes before opset 12 and constant inputs from then on; without a mode, Dropout is the
    identity."""
    if len(node.input) < 3 or not constants[node.input[2]]:
        return lambda x, *_: x
    ratio = float(constants[node.input[1]]) if node.input[1] else 0.5
    return lambda x, *_: F.dropout(x, ratio)


OPERATORS = {
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "Gemm": _gemm,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda *_: lambda x: F.adaptive_avg_pool2d(x, 1),
    "Flatten": _flatten,
    "Dropout": _dropout,
    "Reshape": _reshape,
    "Relu": lambda *_: F.relu,
    "Add": lambda *_: torch.add,
    "MatMul": lambda *_: torch.matmul,
    "Identity": lambda *_: lambda x: x,
}


class Network(torch.nn.Module):
    """forward(x) returns the tensor `logits` of the file; x is its only input."""

    def __init__(self, path, logits):
        super().__init__()
        graph = onnx.load(path).graph
        constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        constants.update((n.output[0], numpy_helper.to_array(a.t)) for n in graph.node for a in n.attribute
                         if n.op_type == "Constant" and a.name == "value")
        statistics = {name for n in graph.node if n.op_type == "BatchNormalization" for name in n.input[3:5]}
        inputs = [i for i in graph.input if i.name not in constants]
        if len(inputs) != 1:
            raise ValueError("%s: one input expected, found %d" % (path, len(inputs)))
        self.input, self.logits = inputs[0].name, logits
        self.sample = [d.dim_value for d in inputs[0].type.tensor_type.shape.dim][1:]
        self.weights = torch.nn.ParameterList()
        self.fixed = {}
        trained = {t.name for t in graph.initializer} - statistics
        for name, a in constants.items():
            tensor = torch.from_numpy(a.copy())
            if a.dtype == "float32" and a.ndim > 0 and name in trained:
                tensor = torch.nn.Parameter(tensor)
                self.weights.append(tensor)
            self.fixed[name] = tensor
        self.calls = []
        for n in graph.node:
            if n.output[0] in constants:
                continue
            if n.op_type not in OPERATORS:
                raise ValueError("%s: no translation of %s to PyTorch" % (path, n.op_type))
            attrs = {a.name: onnx.helper.get_attribute_value(a) for a in n.attribute}
            self.calls.append((OPERATORS[n.op_type](n, attrs, constants), list(n.input), n.output[0]))

    def forward(self, x):
        values = dict(self.fixed)
        values[self.input] = x
        for call, inputs, output in self.calls:
            values[output] = call(*[values[name] for name in inputs if name])
        return values[self.logits]
