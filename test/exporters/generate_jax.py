#!/usr/bin/env python3
"""Exports networks of Flax (nnx) with jax2onnx, by default and by config/recipes/jax.py, and trains them in JAX.

    generate_jax.py [--out FOLDER] [NAME...]
"""
import argparse
import os
import re
import shutil
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import optax
from flax import nnx
from jax2onnx import to_onnx

from spec import FILES, OPTIMIZERS, RECIPES, STEPS, batch_of, fingerprint, floats, integers, pack, samples, versions, write_case


class MLP(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm, self.last = nnx.Linear(6, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs), nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, x):
        return self.last(0.5 * nnx.gelu(self.norm(self.first(x))))


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv, self.norm = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.last = nnx.Linear(8 * 36, 5, rngs=rngs)

    def __call__(self, x):
        h = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), window_shape=(2, 2), strides=(2, 2))
        return self.last(h.reshape(h.shape[0], -1))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.word, self.head = nnx.Embed(20, 16, rngs=rngs), nnx.Linear(16, 20, rngs=rngs)
        self.norms = nnx.List([nnx.RMSNorm(16, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(4, 16, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(16, 24, rngs=rngs), nnx.Linear(24, 16, rngs=rngs)

    def __call__(self, x):
        h = self.word(x)
        h = h + self.attention(self.norms[0](h))
        return self.head(h + self.down(nnx.silu(self.up(self.norms[1](h)))))


NETWORKS = {
    "flax_mlp": (MLP, {"x": floats(6)}, integers(below=5), {}, "momentum adamw"),
    "flax_cnn": (CNN, {"x": floats(12, 12, 3)}, integers(below=5), {"batch_norm": "train"}, "gentle_momentum gentle_adamw"),
    "flax_transformer": (Transformer, {"x": integers(8, below=20)}, integers(8, below=20), {}, "momentum adamw"),
}


def build(name):
    net = NETWORKS[name][0](nnx.Rngs(7))
    random = np.random.RandomState(7)

    def differ(path, v):
        value = np.asarray(v)
        if value.dtype == np.float32 and (value == value.flat[0]).all():
            value = value + np.abs(0.1 * random.standard_normal(value.shape)).astype(np.float32)
        return jnp.asarray(value)

    graph, weights, rest = nnx.split(net, (nnx.Param, nnx.BatchStat), ...)
    return nnx.merge(graph, jax.tree_util.tree_map_with_path(differ, weights), rest)


def example(case):
    x = case["inputs"]["x"]
    return jax.ShapeDtypeStruct(("batch", *x["shape"]), np.float32 if x["kind"] == "float" else np.int32)


def export_default(case, net):
    net.eval()
    to_onnx(net, [example(case)], input_names=["x"], output_names=["logits"], return_mode="file", output_path="net.onnx")


def export_recipe(case, net):
    with open(os.path.join(RECIPES, "jax.py")) as f:
        text, n = re.subn(r"^net, x = .*yours$", "net, x = _mine", f.read(), flags=re.M)
    assert n == 1, "the recipe has no line for the network"
    exec(compile(text, "recipe", "exec"), {"_mine": (net, example(case))})


def export(case, out):
    for key, call in (("default", export_default), ("recipe", export_recipe)):
        folder, before = tempfile.mkdtemp(), os.getcwd()
        os.chdir(folder)
        try:
            call(case, build(case["name"]))
            case["exports"][key] = sorted(os.listdir("."))
            case["outputs"][key] = onnx.load("net.onnx", load_external_data=False).graph.output[0].name
            for name in case["exports"][key]:
                pack(name, out, "%s.%s.%s" % (case["name"], key, name))
        except Exception as e:  # a failure of the exporter is a result
            case.setdefault("not_exported", {})[key] = "%s: %s" % (type(e).__name__, (str(e).strip().splitlines() or [""])[0][:200])
        finally:
            os.chdir(before)
            shutil.rmtree(folder)


def named(state):
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(p, simple=True, separator=".").removesuffix(".value"): np.asarray(v) for p, v in leaves}


def train(case, optimizer):
    net, o = build(case["name"]), OPTIMIZERS[optimizer]
    net.train()
    rule = (optax.sgd(o["learning_rate"], o["momentum"]) if o["type"] == "momentum" else
            optax.adamw(o["learning_rate"], eps=o["epsilon"], weight_decay=o["weight_decay"]))
    opt, data, losses = nnx.Optimizer(net, rule, wrt=nnx.Param), samples(case), []

    def loss_of(net, x, label):
        logits = net(x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], -1).mean()

    @nnx.jit
    def step(net, opt, x, label):
        loss, gradient = nnx.value_and_grad(loss_of)(net, x, label)
        opt.update(net, gradient)
        return loss

    for k in range(STEPS):
        batch = batch_of(data, k)
        losses.append(float("%.9g" % step(net, opt, batch["x"], batch["label"]).item()))
    weights = named(nnx.state(net, (nnx.Param, nnx.BatchStat)))
    return {"optimizer": o, "losses": losses, "weights": {k: fingerprint(k, v) for k, v in weights.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=FILES)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    out = os.path.abspath(options.out)
    for name in options.names or NETWORKS:
        _, inputs, label, job, optimizers = NETWORKS[name]
        net = build(name)
        trained = named(nnx.state(net, nnx.Param))
        state = {k: {"shape": list(v.shape), "kind": "parameter" if k in trained else "buffer"}
                 for k, v in named(nnx.state(net, (nnx.Param, nnx.BatchStat))).items()}
        case = {"name": name, "generator": "jax", "inputs": inputs, "label": label, "loss": "softmax_cross_entropy",
                "model": job, "exports": {}, "versions": versions("keras"), "outputs": {}, "state": state, "unnamed": ["default"]}
        export(case, out)
        case["reference"] = {o: train(case, o) for o in optimizers.split()}
        write_case(case, out)
        losses = next(iter(case["reference"].values()))["losses"]
        print("%s: loss %.6f to %.6f; %s" % (name, losses[0], losses[-1], case.get("not_exported", "exported")), flush=True)


if __name__ == "__main__":
    sys.exit(main())
