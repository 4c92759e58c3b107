#!/usr/bin/env python3
"""Writes test/graph/data/module_<name>.onnx, networks as PyTorch's default exporter writes them, and modules.txt: the
parameters that each module has, as state_dict() lists them. With arguments, only the files of these names.

Needs torch 2.15.0, onnx 1.23 and onnxscript 0.7.2 (pip install torch==2.15.0 onnx==1.23.2 onnxscript==0.7.2); its output is
committed. A line of modules.txt: file, name, CRC-32 of the float32 values, shape. Metadata that trainerd does not read are
removed, so that the files stay small.
"""
import os
import sys
import warnings
import zlib

import onnx
import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
KEPT = ("fx_node", "name_scopes", "InputSpec.kind", "folded_from", "ExportedProgram.graph_signature")


class Tied(nn.Module):
    """One norm under two names, a weight of two layers, and an equal norm that is not tied."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight
        self.n1, self.n3 = nn.LayerNorm(6), nn.LayerNorm(6)
        self.n2 = self.n1

    def forward(self, x):
        return self.n3(self.n2(self.b(self.n1(self.a(x)))))


class Shared(nn.Module):
    """Modules under two names, of which forward() calls one, and a module that it does not call."""

    def __init__(self):
        super().__init__()
        self.a, self.n = nn.Linear(6, 6), nn.LayerNorm(6)
        self.n.register_buffer("scale", torch.full((6,), 0.5))
        self.b, self.more = self.a, nn.ModuleList([self.n])
        self.spare = nn.Linear(6, 6)

    def forward(self, x):
        return self.more[0](self.b(x)) * self.more[0].scale


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v, self.u = (nn.Parameter(torch.randn(*s)) for s in ((6, 6), (5, 6), (4, 5)))
        self.register_buffer("factor", torch.full((4,), 0.5))

    def forward(self, x):
        return ((x @ self.w.t()) @ self.v.T) @ self.u.transpose(0, 1) * self.factor ** 2


class Convolutions(nn.Module):
    """Biases of zeros, which the exporter removes; scales that it reshapes; equal norms that it merges."""

    def __init__(self):
        super().__init__()
        self.c, self.t = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 6, 2, groups=2)
        self.g1, self.g2, self.p, self.l = nn.GroupNorm(2, 6), nn.GroupNorm(3, 6), nn.PReLU(6), nn.Linear(6, 3)
        for m in (self.c, self.t, self.l):
            nn.init.zeros_(m.bias)

    def forward(self, x):
        return self.l(self.p(self.g2(self.g1(self.t(self.c(x))))).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind, **more):
        super().__init__()
        self.rnn = kind(5, 6, batch_first=True, **more)
        self.fc = nn.Linear(12 if more else 6, 2)

    def forward(self, x):
        return self.fc(self.rnn(x)[0][:, -1])


class Functions(nn.Module):
    """1 + w: the file contains a function of a parameter."""

    def __init__(self):
        super().__init__()
        self.fc, self.w = nn.Linear(6, 8), nn.Parameter(torch.randn(8))

    def forward(self, x):
        return self.fc(x) * (1 + self.w)


class Part(nn.Module):
    """Reads a part of the position table."""

    def __init__(self):
        super().__init__()
        self.fc, self.pos = nn.Linear(6, 8), nn.Parameter(torch.randn(1, 20, 8))

    def forward(self, x):
        return self.fc(x) + self.pos[:, :x.shape[1]]


class Vanished(nn.Module):
    """A scale of one, whose multiplication the exporter removes, and a module that is not used."""

    def __init__(self):
        super().__init__()
        self.fc, self.scale = nn.Linear(6, 6), nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return (self.fc(x) * self.scale).relu()


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.a(x)
        return self.b(h.detach()) + h


class DetachedWeight(nn.Module):
    """One weight, read as it is and detached: by different nodes, or by equal nodes, which the exporter merges."""

    def __init__(self, merged):
        super().__init__()
        self.w, self.merged = nn.Parameter(torch.randn(3, 6)), merged

    def forward(self, x):
        return F.linear(x, self.w) + F.linear(x if self.merged else x.cos(), self.w.detach())


class MergedNorms(nn.Module):
    """Two norms of equal values and equal input, as in GPT-NeoX: the exporter merges tensors and nodes."""

    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.a, self.b = nn.LayerNorm(6), nn.LayerNorm(6), nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.a(self.n1(x)) + self.b(self.n2(x)).tanh()


class MergedTokens(nn.Module):
    """A class token and a distillation token of zeros, as in DeiT."""

    def __init__(self):
        super().__init__()
        self.cls, self.dist = nn.Parameter(torch.zeros(1, 1, 6)), nn.Parameter(torch.zeros(1, 1, 6))
        self.head, self.head_dist = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        first = x[:, :1]
        x = torch.cat((torch.maximum(first, self.cls), torch.maximum(first, self.dist), x), 1)
        x = x + x.mean(1, keepdim=True)
        return self.head(x[:, 0]) + self.head_dist(x[:, 1])


class Repeated(nn.Module):
    """Calls whose results are copied, sliced and read twice, and a module that is not used."""

    def __init__(self):
        super().__init__()
        self.a, self.spare = nn.Linear(6, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x).relu()
        return (h.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8) * h)[:, :3]


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.spare = nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x) ** 2 * 0.5


def norm_net():
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def conv_norm():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


NETS = {  # name: (module, input, optimize)
    "linear": (Unused, (4, 5, 6), True),
    "norms": (norm_net, (4, 5, 6), True),
    "tied": (Tied, (2, 3, 6), True),
    "tied_raw": (Tied, (2, 3, 6), False),
    "shared_raw": (Shared, (4, 6), False),
    "transposed": (Transposed, (2, 3, 6), True),
    "convolutions": (Convolutions, (2, 3, 6, 6), True),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), (3, 7, 5), True),
    "gru": (lambda: Recurrent(nn.GRU), (3, 7, 5), True),
    "functions": (Functions, (4, 5, 6), True),
    "functions_raw": (Functions, (4, 5, 6), False),
    "part": (Part, (4, 5, 6), True),
    "vanished": (Vanished, (4, 6), True),
    "detached": (Detached, (4, 6), True),
    "detached_raw": (Detached, (4, 6), False),
    "detached_weight": (lambda: DetachedWeight(False), (4, 6), True),
    "detached_weight_raw": (lambda: DetachedWeight(False), (4, 6), False),
    "merged_detach": (lambda: DetachedWeight(True), (4, 6), True),
    "merged_norms": (MergedNorms, (4, 6), True),
    "merged_norms_raw": (MergedNorms, (4, 6), False),
    "merged_tokens": (MergedTokens, (2, 4, 6), True),
    "repeated": (Repeated, (4, 6), True),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), (4, 6), True),
    "batch_norm": (conv_norm, (2, 3, 6, 6), True),
}


def strip(model):
    graph = model.graph
    for thing in [graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output]:
        kept = [p for p in thing.metadata_props if p.key.endswith(KEPT)]
        del thing.metadata_props[:]
        thing.metadata_props.extend(kept)
    for node in graph.node:
        node.doc_string = ""
    return model


def main():
    warnings.filterwarnings("ignore")
    lines, listed = [], os.path.join(HERE, "data", "modules.txt")
    with open(listed) as f:
        old = f.read().splitlines()
    for name, (make, shape, optimize) in NETS.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            lines += [line for line in old if line.startswith("module_%s.onnx " % name)]
            continue
        torch.manual_seed(1)
        module = make().train()
        path = os.path.join(HERE, "data", "module_%s.onnx" % name)
        torch.onnx.export(module, (torch.randn(*shape),), path, dynamo=True, optimize=optimize, external_data=False, verbose=False)
        onnx.save(strip(onnx.load(path)), path)
        names = dict(module.named_parameters(remove_duplicate=False))
        for key, value in names.items():
            data = value.detach().contiguous().numpy()
            lines.append("module_%s.onnx %s %08x %s" % (name, key, zlib.crc32(data.tobytes()), " ".join(map(str, data.shape))))
    with open(listed, "w") as f:
        f.write("\n".join(line.rstrip() for line in lines) + "\n")


if __name__ == "__main__":
    main()
