"""torch_plain.py - networks written with torch.nn alone."""
import torch
from torch import nn
from torch.nn import functional as F

from registry import BATCH_NORM, network
from spec import floats, integers


@network({"x": floats(6)}, integers(below=5))
def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.word, self.rnn, self.head = nn.Embedding(20, 8), kind(8, 12, batch_first=True), nn.Linear(12, 20)

    def forward(self, x):
        return self.head(self.rnn(self.word(x))[0])


@network({"x": integers(10, below=20)}, integers(10, below=20))
def lstm():
    return Recurrent(nn.LSTM)


@network({"x": integers(10, below=20)}, integers(10, below=20))
def gru():
    return Recurrent(nn.GRU)


class VAE(nn.Module):
    """A variational autoencoder whose noise is an input, so that both sides train on the same noise."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 12))

    def forward(self, x, noise):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        divergence = -0.5 * (1 + log_variance - mean ** 2 - log_variance.exp()).mean()
        return ((self.decoder(mean + noise * (0.5 * log_variance).exp()) - x) ** 2).mean() + 0.1 * divergence


@network({"x": floats(12), "noise": floats(4)}, integers(below=2), loss="graph")
def vae():
    return VAE()


class WaveNet(nn.Module):
    """Gated, dilated, causal convolutions with weight normalization."""

    def __init__(self, norm):
        super().__init__()
        self.word = nn.Embedding(16, 8)
        self.gates = nn.ModuleList(norm(nn.Conv1d(8, 16, 2, dilation=2 ** k)) for k in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(3))
        self.head = nn.Conv1d(8, 16, 1)

    def forward(self, x):
        h, total = self.word(x).transpose(1, 2), 0.0
        for k, (gate, skip) in enumerate(zip(self.gates, self.skips)):
            a, b = gate(F.pad(h, (2 ** k, 0))).chunk(2, 1)
            s = skip(torch.tanh(a) * torch.sigmoid(b))
            h, total = h + s, total + s
        return self.head(F.relu(total))


@network({"x": integers(12, below=16)}, integers(12, below=16))
def wavenet():
    return WaveNet(nn.utils.parametrizations.weight_norm)


@network({"x": floats(2, 8, 8, 8)}, integers(below=5), **BATCH_NORM)
def conv3d():
    return nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2),
                         nn.Conv3d(6, 8, 3, padding=1), nn.GELU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5))


class Siamese(nn.Module):
    """One tower for two images: its normalizations run twice in a step, and their averages are updated twice."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                                   nn.Flatten(), nn.Linear(24, 8), nn.BatchNorm1d(8))
        self.head = nn.Linear(8, 2)

    def forward(self, a, b):
        return self.head((self.tower(a) - self.tower(b)).abs())


@network({"a": floats(3, 8, 8), "b": floats(3, 8, 8)}, integers(below=2), **BATCH_NORM)
def siamese():
    return Siamese()


@network({"x": floats(6)}, integers(below=5))
def frozen_layer():
    """The recipe prints which parameters are frozen; no exporter writes that to the file."""
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 5))
    net[0].requires_grad_(False)
    return net
