#!/usr/bin/python3
"""Writes test/e2e/torch_losses.json: the losses that PyTorch computes with config/digits/digits_cnn.onnx.

The network is defined again in torch with the weights of the ONNX file; the samples are in file order; the optimizers are SGD
with momentum and AdamW. One lane is used, so batch statistics are those of the whole batch. The network has no Dropout here,
because PyTorch has other random numbers; the test removes it from its network too.
"""
import glob
import json
import os
import struct

import numpy as np
import onnx
import torch
from onnx import numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
DIGITS = os.path.join(HERE, "..", "..", "config", "digits")
BATCH, STEPS = 64, 50


def varint(b, i):
    n = shift = 0
    while True:
        n |= (b[i] & 127) << shift
        shift += 7
        i += 1
        if b[i - 1] < 128:
            return n, i


def fields(b):
    i = 0
    while i < len(b):
        key, i = varint(b, i)
        if key & 7 == 2:
            n, i = varint(b, i)
            yield key >> 3, b[i:i + n]
            i += n
        elif key & 7 == 0:
            v, i = varint(b, i)
            yield key >> 3, v
        else:
            raise ValueError("wire type")


def examples():
    for path in sorted(glob.glob(os.path.join(DIGITS, "digits-train-*.tfrecord"))):
        data = open(path, "rb").read()
        at = 0
        while at < len(data):
            n = struct.unpack_from("<Q", data, at)[0]
            record = data[at + 12:at + 12 + n]
            at += n + 16
            out = {}
            for _, features in fields(record):
                for _, entry in fields(features):
                    e = dict(fields(entry))
                    kind, value = next(iter(fields(e[2])))
                    inner = next(iter(fields(value)))[1]
                    out[e[1].decode()] = inner if kind == 1 else (varint(inner, 0)[0] if isinstance(inner, bytes) else inner)
            yield out["image"], out["label"]


def run(model, weights, optimizer):
    nodes, convs = model.graph.node, {}
    params = {k: torch.tensor(v, requires_grad=not k.endswith(("running_mean", "running_var")))
              for k, v in weights.items() if v.dtype == np.float32}
    opt = optimizer([p for p in params.values() if p.requires_grad])
    data = list(examples())
    per_epoch = len(data) // BATCH
    losses = []
    del convs
    for k in range(STEPS):
        first = k % per_epoch * BATCH
        batch = data[first:first + BATCH]
        values = {"x": torch.tensor(np.stack([np.frombuffer(i, np.uint8) for i, _ in batch]).reshape(-1, 1, 8, 8)
                                    .astype(np.float32) * np.float32(0.0625))}
        for n in nodes:
            a = {x.name: onnx.helper.get_attribute_value(x) for x in n.attribute}
            v = [params[i] if i in params else values.get(i) for i in n.input]
            f = torch.nn.functional
            if n.op_type == "Conv":
                y = f.conv2d(v[0], v[1], v[2] if len(v) > 2 else None, stride=a.get("strides", [1, 1]),
                             padding=a["pads"][:2])
            elif n.op_type == "BatchNormalization":
                y = f.batch_norm(v[0], v[3].clone(), v[4].clone(), v[1], v[2], training=True, eps=a["epsilon"])
            elif n.op_type == "Relu":
                y = f.relu(v[0])
            elif n.op_type == "MaxPool":
                y = f.max_pool2d(v[0], a["kernel_shape"], a["strides"])
            elif n.op_type == "GlobalAveragePool":
                y = v[0].mean((2, 3), keepdim=True)
            elif n.op_type == "Flatten":
                y = v[0].flatten(1)
            elif n.op_type == "Gemm":
                y = f.linear(v[0], v[1], v[2])
            elif n.op_type in ("Dropout", "Constant"):
                y = v[0] if v else None
            else:
                raise ValueError(n.op_type)
            if y is not None:
                values[n.output[0]] = y
        loss = torch.nn.functional.cross_entropy(values["logits"], torch.tensor([l for _, l in batch]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss))
    return losses


def main():
    torch.set_num_threads(1)
    model = onnx.load(os.path.join(DIGITS, "digits_cnn.onnx"))
    weights = {i.name: numpy_helper.to_array(i).copy() for i in model.graph.initializer}
    out = {
        "momentum": run(model, weights, lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, weight_decay=1e-4)),
        "adamw": run(model, weights, lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.01)),
    }
    with open(os.path.join(HERE, "torch_losses.json"), "w") as f:
        json.dump(out, f, indent=0)
        f.write("\n")


main()
