"""torch_nets.py - the networks of bench_nets.py in PyTorch, in the form that is fastest there, and the training step of
a job file.

The parameters have the names of the ONNX file of the same network, so both sides begin with the same weights. An equal
first loss on the same samples shows that the networks are the same."""
import contextlib
import json
import math
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


BATCHES = 16  # in memory


# ---- MLP ----

class Mlp(nn.Module):
    def __init__(self, keys):
        super().__init__()
        hidden = keys.get("hidden", 128)
        self.fc1, self.fc2 = nn.Linear(keys.get("inputs", 784), hidden), nn.Linear(hidden, keys.get("classes", 10))

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


# ---- ResNet-50: torchvision's names ----

class Bottleneck(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or width_in != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(width_in, 4 * width, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    def __init__(self, keys):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        width_in = 64
        for i, (width, blocks, stride) in enumerate(((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))):
            layer = []
            for k in range(blocks):
                layer.append(Bottleneck(width_in, width, stride if k == 0 else 1))
                width_in = 4 * width
            setattr(self, "layer%d" % (i + 1), nn.Sequential(*layer))
        self.fc = nn.Linear(width_in, keys.get("classes", 1000))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


# ---- GPT-2: Hugging Face's names, weights [in, out] ----

FUSED = hasattr(F, "scaled_dot_product_attention")  # PyTorch 2 and later


class Conv1D(nn.Module):
    def __init__(self, width_in, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width_in, width)), nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x, mask):
        mixed = (self.fused if FUSED else self.by_matrix)(self.c_attn(x), mask)
        return self.c_proj(mixed.transpose(1, 2).reshape(x.shape))

    def fused(self, qkv, mask):
        t, width = mask.shape[-1], qkv.shape[1] // 3
        q, k, v = (a.view(-1, t, self.heads, width // self.heads).transpose(1, 2) for a in qkv.split(width, 1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def by_matrix(self, qkv, mask):
        t, each = mask.shape[-1], qkv.shape[1] // 3 // self.heads
        q, k, v = qkv.view(-1, t, 3, self.heads, each).permute(2, 0, 3, 1, 4).flatten(1, 2).unbind()
        weights = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=1 / math.sqrt(each)).softmax(-1)
        return (weights @ v).view(-1, self.heads, t, each)


class Mlp4(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = Attention(width, heads), Mlp4(width)

    def forward(self, x, mask):
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """The tokens of the batch form one dimension, so all operations except attention are on matrices."""

    def __init__(self, keys):
        super().__init__()
        t, width = keys["sequence"], keys.get("width", 768)
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(keys.get("vocabulary", 50257), width), "wpe": nn.Embedding(keys["context"], width),
            "h": nn.ModuleList([Block(width, keys.get("heads", 12)) for _ in range(keys.get("layers", 12))]),
            "ln_f": nn.LayerNorm(width)})
        for name in ("wte", "wpe"):
            nn.init.normal_(self.transformer[name].weight, std=0.02)
        self.register_buffer("mask", torch.full((1, t, t), float("-inf")).triu(1), persistent=False)

    def forward(self, ids):
        parts = self.transformer
        x = (parts["wte"](ids) + parts["wpe"].weight[:ids.shape[1]]).flatten(0, 1)
        for block in parts["h"]:
            x = block(x, self.mask)
        return F.linear(parts["ln_f"](x), parts["wte"].weight).view(-1, self.mask.shape[-1], parts["wte"].num_embeddings)


# ---- DLRM: Meta's names ----

def tower(*widths):
    layers = []
    for a, b in zip(widths, widths[1:]):
        layers += [nn.Linear(a, b), nn.ReLU(inplace=True)]
    return layers


class Dlrm(nn.Module):
    def __init__(self, keys):
        super().__init__()
        tables, width = keys.get("tables", 26), keys.get("width", 16)
        self.emb_l = nn.ModuleList([nn.Embedding(keys.get("rows", 100000), width, sparse=keys.get("sparse", False))
                                    for _ in range(tables)])
        self.bot_l = nn.Sequential(*tower(13, 512, 256, 64, width))
        self.top_l = nn.Sequential(*tower(width + (tables + 1) * tables // 2, 512, 256, 1)[:-1])
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1), persistent=False)

    def forward(self, dense, sparse):
        bottom = self.bot_l(dense)
        rows = torch.stack([bottom] + [e(i) for e, i in zip(self.emb_l, sparse.unbind(1))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top_l(torch.cat([bottom, products], 1))


# ---- a language model of one LSTM ----

class Lstm(nn.Module):
    def __init__(self, keys):
        super().__init__()
        vocabulary, width = keys["vocabulary"], keys["width"]
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.lstm = nn.LSTM(width, width)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids.t()))[0].transpose(0, 1))


def of_transformers(name):
    def make(keys):
        import torch_language

        return torch_language.make(name, keys)

    return make


NETS = {"mlp": Mlp, "resnet50": ResNet50, "gpt2": Gpt2, "dlrm": Dlrm, "lstm": Lstm,
        **{name: of_transformers(name) for name in ("transformers_llama", "transformers_gpt2")}}


# ---- weights and samples of trainerd's side ----

def torch_gates(a):
    """Reorders the gates of an LSTM [4 h, ...]: ONNX has the order i o f c, PyTorch i f c o."""
    return a.reshape(4, -1, *a.shape[1:])[[0, 2, 3, 1]].reshape(a.shape)


def onnx_weights(path):
    """Returns {name in PyTorch: tensor} for the floats of a file. NAME.T is a matrix that is transposed in PyTorch; an
    LSTM has lstm.W, lstm.R and lstm.B in the file."""
    import onnx
    from onnx import TensorProto, numpy_helper

    out = {}
    for t in onnx.load(path).graph.initializer:
        if t.data_type == TensorProto.FLOAT:
            a = numpy_helper.to_array(t)
            out[t.name[:-2] if t.name.endswith(".T") else t.name] = a.T if t.name.endswith(".T") else a
    if "lstm.W" in out:
        for name, a in (("weight_ih", out.pop("lstm.W")[0]), ("weight_hh", out.pop("lstm.R")[0])):
            out["lstm.%s_l0" % name] = torch_gates(a)
        for name, a in zip(("bias_ih", "bias_hh"), np.split(out.pop("lstm.B")[0], 2)):
            out["lstm.%s_l0" % name] = torch_gates(a)
    return {name: torch.from_numpy(a.copy()) for name, a in out.items()}


def take_weights(net, path):
    """Loads the weights. The file must contain every parameter and statistic of the net; a tied parameter under one of
    its names."""
    given = onnx_weights(path)
    wrong = net.load_state_dict(given, strict=False)
    state = net.state_dict()
    taken = {state[name].data_ptr() for name in given if name in state}
    missing = [name for name in wrong.missing_keys
               if not name.endswith("num_batches_tracked") and state[name].data_ptr() not in taken]
    if missing:
        raise ValueError("%s has no %s" % (path, ", ".join(missing[:4])))


def read_feature(job, folder, name, samples):
    """Returns the first samples in the form in which the graph receives them."""
    feature = job["data"]["features"][name]
    path = os.path.join(folder, job["data"]["train"].replace("{feature}", name))
    if job["data"]["format"] == "tokens":
        tokens, length = np.fromfile(path, feature["dtype"]), feature["shape"][0]
        first = 1 if name == "labels" else 0
        a = tokens[first:first + (len(tokens) - 1) // length * length].reshape(-1, length)
    else:
        a = np.load(path, mmap_mode="r")
    a = np.array(a[:samples])
    if "scale" in feature:
        a = a.astype(np.float32) * np.float32(feature["scale"])
    return torch.from_numpy(a if a.dtype == np.float32 else a.astype(np.int64))


# ---- the step ----

OPTIMIZERS = {
    "sgd": lambda w, o, **way: torch.optim.SGD(w, o["learning_rate"], **way),
    "momentum": lambda w, o, **way: torch.optim.SGD(w, o["learning_rate"], o.get("momentum", 0.9), **way),
    "adamw": lambda w, o, **way: torch.optim.AdamW(w, o["learning_rate"], **way),
}
LOSSES = {
    "softmax_cross_entropy": lambda y, t: F.cross_entropy(y.reshape(-1, y.shape[-1]), t.reshape(-1)),
    "binary_cross_entropy": F.binary_cross_entropy_with_logits,
}
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class JobTrainer:
    """Trains a job file with PyTorch. spec is a JSON object {net, keys, job: path, weights: whether to load those of the
    file, device: default "cpu", compile: whether to use torch.compile}."""

    def __init__(self, spec):
        spec = json.loads(spec)
        folder = os.path.dirname(spec["job"])
        with open(spec["job"]) as f:
            job = json.load(f)
        torch.manual_seed(1)
        self.device = torch.device(spec.get("device", "cpu"))
        net = NETS[spec["net"]](spec["keys"])
        if spec["weights"]:
            take_weights(net, os.path.join(folder, job["model"]["onnx"]))
        self.net = net.to(self.device).train()
        self.set_precision(job["train"]["precision"])
        newer = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 4)
        fused = self.device.type == "cuda" or (newer and not spec["keys"].get("sparse"))
        way = {"fused": True} if fused else {"foreach": True}
        self.optimizer = OPTIMIZERS[job["optimizer"]["type"]](list(net.parameters()), job["optimizer"], **way)
        self.loss = LOSSES[job["model"]["loss"]["type"]]
        self.forward = torch.compile(self.loss_of) if spec.get("compile") else self.loss_of
        names = list(job["model"]["inputs"]) + [job["model"]["loss"]["labels"]]
        batch = job["train"]["global_batch_size"]
        columns = [[self.laid_out(x).to(self.device) for x in
                    read_feature(job, folder, name, BATCHES * batch).split(batch)] for name in names]
        self.batches = list(zip(*columns))
        self.at = 0

    def set_precision(self, precision):
        """Enables tf32 only if the job requests it; bfloat16 and float16 use autocast."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        torch.backends.cudnn.benchmark = True
        half = AUTOCAST.get(precision)
        self.precision = (lambda: torch.autocast(self.device.type, half)) if half else contextlib.nullcontext
        self.scaler = torch.amp.GradScaler(self.device.type) if precision == "float16" else None

    @staticmethod
    def laid_out(x):
        return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()

    def loss_of(self, x, y):
        with self.precision():
            return self.loss(self.net(*x), y)

    def begin_step(self):
        """Starts a step; returns its loss as a tensor, which a GPU may not have computed yet."""
        *x, y = self.batches[self.at % len(self.batches)]
        self.at += 1
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(x, y)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def step(self):
        return self.begin_step().item()

    def steps(self, n):
        """Runs n steps like a training loop that reads the loss occasionally."""
        for _ in range(n):
            loss = self.begin_step()
        return loss.item()
