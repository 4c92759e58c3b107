#!/usr/bin/env python3
"""make_forms.py - writes a network with BatchNormalization and padded embeddings, exported by PyTorch's current exporter
(net.onnx), and the results of PyTorch with several jobs (reference.json), to its own folder. test_forms.py compares.

Run with the Python of an environment that has torch and onnxscript; written with torch 2.15.0, onnxscript 0.7.2.
"""
import copy
import json
import os
import warnings

import numpy as np
import onnx
import torch
from torch import nn

from data import BATCH, JOBS, ROWS, STEPS, samples

HERE = os.path.dirname(os.path.abspath(__file__))
LINE = {"sgd": torch.optim.SGD, "momentum": torch.optim.SGD, "adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


class Net(nn.Module):
    """An embedding with a padding row; one that is tied to the projection and has another padding row; a norm with running
    averages, and one with only the statistics of its batch."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(ROWS, 6, padding_idx=0)
        self.tied = nn.Embedding(5, 6, padding_idx=2)
        self.fc = nn.Linear(6, 6, bias=False)  # the gradient of a bias before a norm is rounding noise
        self.bn = nn.BatchNorm1d(6, momentum=0.2)
        self.free = nn.BatchNorm1d(6, track_running_stats=False)
        self.norm = nn.BatchNorm1d(6, affine=False)

    def forward(self, x, kind):
        y = self.words(x).mean(1) + self.tied(kind)
        y = torch.relu(self.bn(self.fc(y)))
        y = self.norm(self.free(y) + y)
        return y @ self.tied.weight.t()


def batch_at(step):
    at = step * BATCH % len(samples())
    rows = samples()[at:at + BATCH]
    return [torch.tensor(np.stack([r[k] for r in rows])) for k in ("x", "kind", "label")]


def frozen_rows(net, rows):
    """Sets the gradients to zero before the norm is computed, and restores the values after the update."""
    for name, which in rows.items():
        p = dict(net.named_parameters())[name]
        yield p, which, p.detach()[which].clone()


def optimizer_of(net, options):
    o = dict(options)
    kind = o.pop("type")
    names = {"learning_rate": "lr", "weight_decay": "weight_decay", "momentum": "momentum", "epsilon": "eps"}
    return LINE[kind](net.parameters(), **{names[k]: v for k, v in o.items()})


def run(net, job):
    net = copy.deepcopy(net).train()
    if job["model"].get("batch_norm") == "frozen":
        for module in (net.bn, net.norm):
            module.eval()
    opt = optimizer_of(net, job["optimizer"])
    held = list(frozen_rows(net, job["model"].get("frozen_rows", {})))
    losses = []
    for step in range(STEPS):
        x, kind, label = batch_at(step)
        loss = nn.functional.cross_entropy(net(x, kind), label)
        opt.zero_grad()
        loss.backward()
        for p, which, _ in held:
            p.grad[which] = 0
        if "clip_norm" in job:
            torch.nn.utils.clip_grad_norm_(net.parameters(), job["clip_norm"])
        opt.step()
        with torch.no_grad():
            for p, which, old in held:
                p[which] = old
        losses.append(loss.item())
    state = {k: v.numpy().ravel().tolist() for k, v in net.state_dict().items() if v.dtype == torch.float32}
    return {"losses": losses, "state": state}


def strip(path):
    """Removes the stack traces, which name folders of the machine that exported."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [p for p in node.metadata_props if "stack_trace" not in p.key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    model.ir_version = 9  # the file needs no later version, and more versions of ONNX Runtime read it
    onnx.save(model, path)


def main():
    torch.manual_seed(3)
    net = Net()
    with torch.no_grad():  # equal values would be merged; a padding row that is not zero shows whether it moves
        for i, t in enumerate(net.state_dict().values()):
            if t.dtype == torch.float32:
                t.add_(0.1 * torch.rand(t.shape) + 0.01 * i)
    x, kind, _ = batch_at(0)
    warnings.simplefilter("ignore")
    batch = torch.export.Dim("batch", min=2)
    program = torch.onnx.export(net.train(), (x, kind), dynamo=True, optimize=False, verbose=False, input_names=["x", "kind"],
                                output_names=["logits"], dynamic_shapes=({0: batch}, {0: batch}))
    path = os.path.join(HERE, "net.onnx")
    program.save(path)
    strip(path)
    reference = {name: run(net, job) for name, job in JOBS.items()}
    reference["versions"] = {"torch": torch.__version__}
    with open(os.path.join(HERE, "reference.json"), "w") as out:
        json.dump(reference, out)


if __name__ == "__main__":
    main()
