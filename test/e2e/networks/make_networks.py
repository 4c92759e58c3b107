#!/usr/bin/python3
"""Writes <name>.onnx and their part of losses.json: the networks of nets.py, exported by PyTorch, and the losses
that PyTorch computes.

Needs PyTorch; its output is committed. Arguments select networks; the files of the others are not changed. The networks
have no Dropout, because its random numbers are not reproducible outside PyTorch.
"""
import json
import math
import os
import sys
import warnings

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nets import BATCH, NETWORKS, OPTIMIZERS, SAMPLES, STEPS, samples

warnings.filterwarnings("ignore")
HERE = os.path.dirname(os.path.abspath(__file__))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 5, padding=2), nn.Conv2d(4, 8, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(200, 32), nn.Linear(32, 24), nn.Linear(24, 10)

    def forward(self, x):
        x = F.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.flatten(x, 1)
        return self.fc3(torch.sigmoid(self.fc2(torch.relu(self.fc1(x)))))


def conv_bn(i, o, k, stride=1, groups=1):
    return nn.Sequential(nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(o))


class Block(nn.Module):
    def __init__(self, i, o, stride, bottleneck):
        super().__init__()
        if bottleneck:
            m = o // 2
            self.body = nn.Sequential(conv_bn(i, m, 1), nn.ReLU(), conv_bn(m, m, 3, stride), nn.ReLU(), conv_bn(m, o, 1))
        else:
            self.body = nn.Sequential(conv_bn(i, o, 3, stride), nn.ReLU(), conv_bn(o, o, 3))
        nn.init.constant_(self.body[-1][1].weight, 0.1)  # blocks are initialized near the identity, as in deep networks
        self.down = conv_bn(i, o, 1, stride) if i != o or stride != 1 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.down(x))


class ResNet(nn.Module):
    def __init__(self, bottleneck):
        super().__init__()
        widths = (16, 32, 48, 64) if bottleneck else (8, 12, 16, 24)
        layers, i = [], 8
        for s, w in enumerate(widths):
            for b in range(2):
                layers.append(Block(i, w, 2 if s == 1 and b == 0 else 1, bottleneck))  # as many values per channel as possible
                i = w
        self.stem, self.layers, self.fc = conv_bn(3, 8, 7, 2), nn.Sequential(*layers), nn.Linear(i, 10)

    def forward(self, x):
        x = F.max_pool2d(torch.relu(self.stem(x)), 3, 2, 1)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.layers(x), 1), 1))


class Inverted(nn.Module):
    def __init__(self, i, o, stride, expand):
        super().__init__()
        h = i * expand
        self.skip = stride == 1 and i == o
        self.body = nn.Sequential(conv_bn(i, h, 1), nn.ReLU6(), conv_bn(h, h, 3, stride, h), nn.ReLU6(), conv_bn(h, o, 1))

    def forward(self, x):
        return x + self.body(x) if self.skip else self.body(x)


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv_bn(3, 8, 3, 2), nn.ReLU6(), Inverted(8, 8, 1, 1), Inverted(8, 12, 2, 3),
                                  Inverted(12, 12, 1, 3), Inverted(12, 16, 2, 3), conv_bn(16, 32, 1), nn.ReLU6())
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        return self.fc(self.body(x).mean([2, 3]))


class VGG(nn.Module):
    def __init__(self):
        super().__init__()
        layers, i = [], 3
        for o in (8, 0, 12, 12, 0, 16, 16, 0):
            layers += [nn.MaxPool2d(2)] if o == 0 else [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]
            i = o or i
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        def double(i, o):
            return nn.Sequential(conv_bn(i, o, 3), nn.ReLU(), conv_bn(o, o, 3), nn.ReLU())
        self.down1, self.down2, self.bottom = double(3, 8), double(8, 12), double(12, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 12, 2, 2), nn.ConvTranspose2d(12, 8, 2, 2)
        self.join2, self.join1, self.out = double(24, 12), double(16, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        b = self.join2(torch.cat([b, self.up2(c)], 1))
        return self.out(self.join1(torch.cat([a, self.up1(b)], 1)))


class FPN(nn.Module):
    """A pyramid whose levels are resized to each other's size, the input's at the end, as for segmentation."""

    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([conv_bn(3, 8, 3, 2), conv_bn(8, 12, 3, 2), conv_bn(12, 16, 3, 2)])
        self.side = nn.ModuleList([nn.Conv2d(i, 8, 1) for i in (8, 12, 16)])
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        levels, h = [], x
        for body, side in zip(self.body, self.side):
            h = torch.relu(body(h))
            levels.append(side(h))
        top = levels[2]
        top = levels[1] + F.interpolate(top, size=levels[1].shape[2:], mode="nearest")
        top = levels[0] + F.interpolate(top, scale_factor=2, mode="bicubic", align_corners=False)
        return self.out(F.interpolate(torch.relu(top), size=x.shape[2:], mode="bilinear", align_corners=True))


class Attention(nn.Module):
    def __init__(self, d, heads, causal):
        super().__init__()
        self.qkv, self.proj, self.heads, self.causal = nn.Linear(d, 3 * d), nn.Linear(d, d), heads, causal

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.qkv(x).split(d, 2)
        q, k, v = (y.view(n, t, self.heads, d // self.heads).transpose(1, 2) for y in (q, k, v))
        w = q @ k.transpose(-2, -1) * (1 / math.sqrt(d // self.heads))
        if self.causal:
            w = w.masked_fill(torch.triu(torch.ones(t, t), 1).bool(), float("-inf"))
        return self.proj((F.softmax(w, -1) @ v).transpose(1, 2).reshape(n, t, d))


class Layer(nn.Module):
    def __init__(self, d, heads, causal=False):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = Attention(d, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch, self.cls = nn.Conv2d(3, 16, 4, 4), nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.randn(1, 17, 16) * 0.02)
        self.layers, self.ln, self.head = nn.Sequential(Layer(16, 4), Layer(16, 4)), nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.ln(self.layers(x))[:, 0])


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(50, 16), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.ln, self.layers = nn.LayerNorm(16), nn.ModuleList([Layer(16, 4), Layer(16, 4)])
        self.pool, self.head = nn.Linear(16, 16), nn.Linear(16, 4)
        del layer

    def forward(self, x):
        h = self.ln(self.word(x) + self.position(torch.arange(x.shape[1]))[None])
        for layer in self.layers:
            h = layer(h)
        return self.head(torch.tanh(self.pool(h[:, 0])))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, 16), nn.Embedding(16, 16)
        self.layers, self.ln = nn.Sequential(Layer(16, 4, True), Layer(16, 4, True)), nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, x):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        return self.head(self.ln(self.layers(h))).transpose(1, 2)


class DecoderLayer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        h, t = self.ln1(x), x.shape[1]
        later = torch.triu(torch.full((t, t), float("-inf")), 1)
        x = x + self.attention(h, h, h, attn_mask=later, need_weights=False)[0]
        return x + self.mlp(self.ln2(x))


class Decoder(nn.Module):  # PyTorch's attention, long enough to be fused without the matrix of scores
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(40, 16), nn.Embedding(72, 16)
        self.layers, self.ln = nn.Sequential(DecoderLayer(16, 4), DecoderLayer(16, 4)), nn.LayerNorm(16)
        self.head = nn.Linear(16, 40)

    def forward(self, x):
        h = self.word(x) + self.position(torch.arange(x.shape[1]))
        return self.head(self.ln(self.layers(h))).transpose(1, 2)


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.lstm, self.head = nn.Embedding(30, 12), nn.LSTM(12, 16, batch_first=True), nn.Linear(16, 30)

    def forward(self, x):
        return self.head(self.lstm(self.word(x))[0]).transpose(1, 2)


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.tables = nn.ModuleList([nn.Embedding(20, 8) for _ in range(4)])
        self.top = nn.Sequential(nn.Linear(8 + 25, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, dense, sparse):
        d = self.bottom(dense)
        t = torch.stack([d] + [table(sparse[:, i]) for i, table in enumerate(self.tables)], 1)
        return self.top(torch.cat([d, torch.flatten(torch.bmm(t, t.transpose(1, 2)), 1)], 1))


MAKE = {"lenet": LeNet, "resnet18": lambda: ResNet(False), "resnet50": lambda: ResNet(True), "mobilenet_v2": MobileNetV2,
        "vgg": VGG, "unet": UNet, "fpn": FPN, "vit": ViT, "bert": Bert, "gpt2": GPT2, "decoder": Decoder,
        "lstm": LSTM, "dlrm": DLRM}


def export(name, net, inputs):
    names = sorted(NETWORKS[name][0])
    torch.onnx.export(net, tuple(inputs[k][:2] for k in names), os.path.join(HERE, name + ".onnx"), input_names=names,
                      output_names=["logits"], opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
                      do_constant_folding=False, dynamic_axes={k: {0: "batch"} for k in [*names, "logits"]})


def train(name, net, inputs, labels):
    o = OPTIMIZERS[NETWORKS[name][2]]
    opt = (torch.optim.SGD(net.parameters(), o["learning_rate"], o["momentum"]) if o["type"] == "momentum" else
           torch.optim.Adam(net.parameters(), o["learning_rate"]))
    losses = []
    for k in range(STEPS):
        at = slice(k * BATCH % SAMPLES, k * BATCH % SAMPLES + BATCH)
        loss = F.cross_entropy(net(*(inputs[n][at] for n in sorted(inputs))), labels[at])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(float(loss))
    return losses


def main():
    torch.set_num_threads(1)
    path = os.path.join(HERE, "losses.json")
    with open(path) as f:
        losses = json.load(f)
    for name in sys.argv[1:] or MAKE:
        torch.manual_seed(7)
        net = MAKE[name]().train()
        data = samples(name)
        inputs = {k: torch.from_numpy(np.stack([s[k] for s, _ in data])) for k in NETWORKS[name][0]}
        labels = torch.from_numpy(np.stack([label for _, label in data]))
        state = {k: v.clone() for k, v in net.state_dict().items()}
        export(name, net, inputs)
        net.load_state_dict(state)  # exporting runs the network and updates its running averages
        losses[name] = train(name, net, inputs, labels)
        print(name, losses[name][0], losses[name][-1])
    with open(path, "w") as f:
        json.dump(losses, f, indent=0)
        f.write("\n")


main()
