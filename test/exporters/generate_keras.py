#!/usr/bin/env python3
"""Exports the networks of keras_networks.py with one backend: writes the files, and with JAX the reference, into --out.

    generate_keras.py --backend jax|tensorflow [--out FOLDER] [--saved FOLDER] [NAME...]

With JAX each network is built, saved into the folder --saved as NAME.keras, exported by Model.export() (`default`) and by
config/recipes/keras.py (`recipe`), and trained. With TensorFlow the saved networks are exported by Model.export(), which calls
tf2onnx (`tensorflow_default`), and by config/recipes/tensorflow.py (`tensorflow_recipe`); the reference is not changed.
"""
import argparse
import os
import re
import shutil
import sys
import tempfile

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--backend", choices=["jax", "tensorflow"], required=True)
parser.add_argument("--out")
parser.add_argument("--saved", required=True)
parser.add_argument("names", nargs="*")
options = parser.parse_args()
os.environ.update(KERAS_BACKEND=options.backend, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu")

import keras
import numpy as np
import onnx

from keras_networks import NETWORKS
from spec import FILES, OPTIMIZERS, RECIPES, STEPS, batch_of, fingerprint, pack, read_case, samples, versions, write_case


def build(name):
    """Initializes all weights with different random numbers: exporters remove added zeros and multiplied ones."""
    keras.utils.set_random_seed(7)
    net = NETWORKS[name][0]()
    random = np.random.RandomState(7)
    for w in net.weights:
        if w.dtype == "float32" and (np.asarray(w) == np.asarray(w).flat[0]).all():
            w.assign(np.asarray(w) + np.abs(0.1 * random.standard_normal(w.shape)).astype(np.float32))
    return call_once(net)


def call_once(net):
    """Calls the model once, which Model.export() requires."""
    net(np.zeros((2, *net.inputs[0].shape[1:]), net.inputs[0].dtype))
    return net


def export_default(net):
    net.export("net.onnx", format="onnx", verbose=False)


def export_recipe(net):
    with open(os.path.join(RECIPES, "keras.py" if options.backend == "jax" else "tensorflow.py")) as f:
        text, n = re.subn(r"^net = .*yours$", "net = _mine", f.read(), flags=re.M)
    assert n == 1, "the recipe has no line for the network"
    exec(compile(text, "recipe", "exec"), {"_mine": net})


def export(case, net, out, prefix):
    for how, call in (("default", export_default), ("recipe", export_recipe)):
        key, folder, before = prefix + how, tempfile.mkdtemp(), os.getcwd()
        os.chdir(folder)
        try:
            call(net)
            case["exports"][key] = sorted(os.listdir("."))
            case["outputs"][key] = onnx.load("net.onnx", load_external_data=False).graph.output[0].name
            for name in case["exports"][key]:
                pack(name, out, "%s.%s.%s" % (case["name"], key, name))
        except Exception as e:  # a failure of the exporter is a result
            case.setdefault("not_exported", {})[key] = "%s: %s" % (type(e).__name__, (str(e).strip().splitlines() or [""])[0][:200])
        finally:
            os.chdir(before)
            shutil.rmtree(folder)
        if how == "recipe":  # the keys that the recipe prints for the job
            case.setdefault("models", {})[key] = {"trainable": [w.path for w in net.trainable_variables]}
    if case["name"] == "keras_cnn":  # jax2onnx writes a MaxPool with four spatial axes, which ONNX Runtime refuses
        case["no_runtime"] = ["default", "recipe"]
    case["unnamed"] = [k for k in case["exports"] if k.endswith("default")]


def train(name, net, case):
    """SGD with momentum. Keras' Adam adds epsilon at another position than PyTorch and trainerd, so adamw has no reference here."""
    import jax
    import jax.numpy as jnp

    o = OPTIMIZERS["momentum"]
    data, losses = samples(case), []

    def loss_of(w, state, x, label):
        logits, state = net.stateless_call(w, state, x, training=True)
        logs = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(logs, label[..., None], -1).mean(), state

    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    w, state = [v.value for v in net.trainable_variables], [v.value for v in net.non_trainable_variables]
    velocity = [jnp.zeros_like(v) for v in w]
    for k in range(STEPS):
        batch = batch_of(data, k)
        (loss, state), gradient = step(w, state, batch["x"], batch["label"])
        velocity = [o["momentum"] * v + g for v, g in zip(velocity, gradient)]
        w = [v - o["learning_rate"] * u for v, u in zip(w, velocity)]
        losses.append(float("%.9g" % loss.item()))
    named = [*zip(net.trainable_variables, w), *zip(net.non_trainable_variables, state)]
    weights = {v.path: fingerprint(v.path, np.asarray(value)) for v, value in named if value.dtype == np.float32}
    return {"momentum": {"optimizer": o, "losses": losses, "weights": weights}}


def describe(net):
    trained = {w.path for w in net.trainable_variables}
    return {w.path: {"shape": list(w.shape), "kind": "parameter" if w.path in trained else "buffer"} for w in net.weights}


def main():
    out = os.path.abspath(options.out or FILES)
    for name in options.names or NETWORKS:
        path = os.path.join(options.saved, name + ".keras")
        if options.backend == "jax":
            _, inputs, label, job = NETWORKS[name]
            net = build(name)
            net.save(path)
            case = {"name": name, "generator": "keras", "inputs": inputs, "label": label, "loss": "softmax_cross_entropy",
                    "model": job, "exports": {}, "versions": versions("keras"), "outputs": {}, "state": describe(net)}
            export(case, net, out, "")
            case["reference"] = train(name, net, case)
        else:
            case = read_case(name, out)
            case["versions"].update(versions("tensorflow"))
            export(case, call_once(keras.models.load_model(path)), out, "tensorflow_")
        write_case(case, out)
        losses = case["reference"]["momentum"]["losses"]
        print("%s: loss %.6f to %.6f; %s" % (name, losses[0], losses[-1], case.get("not_exported", "exported")), flush=True)


if __name__ == "__main__":
    sys.exit(main())
