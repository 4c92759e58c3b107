#!/usr/bin/python3
"""Writes data/reference.txt: the expected results of the models of make_models.py.

Forward in double precision, written from the definitions of the operators; gradients are central
differences of it. No code is shared with the program under test, and there is no backward pass.

  model NAME                      a model, batch of 4 (inputs: see sample())
  loss VALUE                      training form, loss_scale 0.25
  eval LOSS ACCURACY              inference form
  grad PARAMETER V0 V1 ...        d loss / d parameter; running statistics: the batch's value
"""
import os
import sys

import numpy as np
import onnx
from onnx import numpy_helper

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
BATCH = 4
SCALE = 0.25
STEP = 1e-5


def sample(shape):
    """Element j of sample s, exact in float32."""
    n = int(np.prod(shape))
    x = [[((s * 1009 + j * 37) % 61 - 30) / 16 for j in range(n)] for s in range(BATCH)]
    return np.array(x).reshape([BATCH] + list(shape))


def labels(classes):
    return [s % classes for s in range(BATCH)]


def weights():
    return [1 + 0.5 * (s % 2) for s in range(BATCH)]


def conv(x, w, b, pads):
    n, _, h, v = x.shape
    x = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    o, _, kh, kw = w.shape
    y = np.zeros((n, o, x.shape[2] - kh + 1, x.shape[3] - kw + 1))
    for i in range(kh):
        for j in range(kw):
            part = x[:, :, i:i + y.shape[2], j:j + y.shape[3]]
            y += np.einsum("nchw,oc->nohw", part, w[:, :, i, j])
    return y if b is None else y + b[None, :, None, None]


def max_pool(x, k, s):
    n, c, h, w = x.shape
    y = np.full((n, c, (h - k) // s + 1, (w - k) // s + 1), -np.inf)
    for i in range(k):
        for j in range(k):
            y = np.maximum(y, x[:, :, i:i + s * y.shape[2]:s, j:j + s * y.shape[3]:s])
    return y


class Net:
    def __init__(self, path):
        self.model = onnx.load(path)  # external data is loaded with it
        g = self.model.graph
        self.opset = self.model.opset_import[0].version
        self.params, self.constants = {}, {}
        for t in g.initializer:
            a = numpy_helper.to_array(t)
            (self.params if a.dtype == np.float32 else self.constants)[t.name] = a
        for n in g.node:  # copies by Identity are separate parameters
            if n.op_type == "Identity" and n.input[0] in self.params:
                self.params[n.output[0]] = self.params[n.input[0]]
        self.params = {k: v.astype(np.float64) for k, v in self.params.items()}
        self.statistics = {}
        for n in g.node:
            if n.op_type == "BatchNormalization":
                self.statistics[n.input[3]] = self.statistics[n.input[4]] = None
        shape = [d.dim_value for d in g.input[0].type.tensor_type.shape.dim][1:]
        self.x = sample(shape)

    def forward(self, training):
        v = dict(self.params)
        v.update(self.constants)
        v["x"] = self.x
        for n in self.model.graph.node:
            if n.output[0] in v:
                continue
            a = {t.name: onnx.helper.get_attribute_value(t) for t in n.attribute}
            i = [v[name] if name else None for name in n.input]
            v[n.output[0]] = self.run(n.op_type, a, i, n, training)
        return v["logits"]

    def run(self, op, a, i, n, training):
        if op == "Constant":
            t = a.get("value")
            return numpy_helper.to_array(t) if t is not None else np.float64(a["value_float"])
        if op == "Gemm":
            x = i[0].T if a.get("transA") else i[0]
            w = i[1].T if a.get("transB") else i[1]
            y = a.get("alpha", 1) * (x @ w)
            return y if len(i) < 3 else y + a.get("beta", 1) * i[2]
        if op == "BatchNormalization":
            mean, var = i[3], i[4]
            if training:
                mean, var = i[0].mean(axis=(0, 2, 3)), i[0].var(axis=(0, 2, 3))
                self.statistics[n.input[3]], self.statistics[n.input[4]] = mean, var
            each = lambda p: p[None, :, None, None]
            return each(i[1]) * (i[0] - each(mean)) / np.sqrt(each(var) + a["epsilon"]) + each(i[2])
        if op == "Reshape":
            return i[0].reshape([i[0].shape[k] if d == 0 else d for k, d in enumerate(i[1])])
        return {
            "MatMul": lambda: i[0] @ i[1],
            "Add": lambda: i[0] + i[1],
            "Mul": lambda: i[0] * i[1],
            "Relu": lambda: np.maximum(i[0], 0),
            "Tanh": lambda: np.tanh(i[0]),
            "Sigmoid": lambda: 1 / (1 + np.exp(-i[0])),
            "Identity": lambda: i[0],
            "Dropout": lambda: i[0],  # inference only
            "Conv": lambda: conv(i[0], i[1], i[2] if len(i) > 2 else None,
                                 a.get("pads", [0, 0, 0, 0])),
            "MaxPool": lambda: max_pool(i[0], a["kernel_shape"][0], a["strides"][0]),
            "GlobalAveragePool": lambda: i[0].mean(axis=(2, 3), keepdims=True),
            "Flatten": lambda: i[0].reshape(i[0].shape[0], -1),
        }[op]()

    def loss(self, training):
        x = self.forward(training)
        lse = np.log(np.exp(x - x.max(1, keepdims=True)).sum(1)) + x.max(1)
        picked = x[np.arange(BATCH), labels(x.shape[1])]
        return SCALE * float(np.dot(weights(), lse - picked))

    def accuracy(self):
        x = self.forward(False)
        return float(np.dot(weights(), x.argmax(1) == labels(x.shape[1])))

    def gradient(self, name):
        p = self.params[name]
        g = np.zeros(p.size)
        for k in range(p.size):
            keep = p.flat[k]
            p.flat[k] = keep + STEP
            up = self.loss(True)
            p.flat[k] = keep - STEP
            g[k] = (up - self.loss(True)) / (2 * STEP)
            p.flat[k] = keep
        return g


def main():
    lines = []
    for name in ("mlp", "mlp_external", "cnn_11", "cnn_13", "cnn_17", "residual", "tied",
                 "identity", "dropout_11", "dropout_17"):
        net = Net(os.path.join(DATA, name + ".onnx"))
        lines.append("model " + name)
        lines.append("eval %.9g %.9g" % (net.loss(False), net.accuracy()))
        if name.startswith("dropout") or name in ("mlp_external", "cnn_13"):
            continue  # random; the same network as another
        lines.append("loss %.9g" % net.loss(True))
        for p in net.params:
            if p in net.statistics:
                net.loss(True)
                values = net.statistics[p]
            else:
                values = net.gradient(p)
            lines.append("grad %s %s" % (p, " ".join("%.7g" % v for v in values)))
    with open(os.path.join(DATA, "reference.txt"), "w") as f:
        f.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
