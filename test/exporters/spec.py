"""spec.py - definitions shared by both sides of the comparison: the samples, the optimizers, and the fingerprint of a weight.

The generators (PyTorch, Keras, TensorFlow, JAX) and the test import this file, so it needs NumPy only. A case is the JSON
file of a network: its inputs and labels, the reference losses, and the name, shape and fingerprint of each weight.
"""
import gzip
import importlib.metadata
import json
import os
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = os.path.join(HERE, "files")
RECIPES = os.path.join(HERE, "..", "..", "config", "recipes")
SAMPLES, BATCH, STEPS = 32, 8, 50

# In the form of a job file. The epsilon of adamw is large because gradients that are zero except for rounding (the bias of a
# key in attention, a bias before a norm) would otherwise become steps of full size in a random direction.
OPTIMIZERS = {
    "momentum": {"type": "momentum", "learning_rate": 0.01, "momentum": 0.9},
    "adamw": {"type": "adamw", "learning_rate": 0.001, "epsilon": 1e-4, "weight_decay": 0.01},
    # For networks with BatchNormalization over few values: larger steps make them chaotic in PyTorch, too.
    "gentle_momentum": {"type": "momentum", "learning_rate": 0.0005, "momentum": 0.9},
    "gentle_adamw": {"type": "adamw", "learning_rate": 0.00005, "epsilon": 1e-4, "weight_decay": 0.01},
}


def floats(*shape):
    return {"kind": "float", "shape": list(shape)}


def integers(*shape, below):
    return {"kind": "int", "shape": list(shape), "below": below}


def ones(*shape):
    """An attention mask without masked positions."""
    return {"kind": "ones", "shape": list(shape)}


def position():
    """The index of the sample in its batch: the label of a contrastive loss."""
    return {"kind": "position", "shape": []}


def draw(feature, random, index):
    if feature["kind"] == "int":
        return random.randint(0, feature["below"], feature["shape"]).astype(np.int64)
    if feature["kind"] == "ones":
        return np.ones(feature["shape"], np.int64)
    if feature["kind"] == "position":
        return np.asarray(index % BATCH, np.int64)
    return random.standard_normal(feature["shape"]).astype(np.float32)


def samples(case):
    """{feature: array of SAMPLES rows}; the loss compares with the feature `label`."""
    rows = []
    for i in range(SAMPLES):
        random = np.random.RandomState(1000 + i)  # the legacy generator: its stream is frozen
        row = {k: draw(f, random, i) for k, f in sorted(case["inputs"].items())}
        row["label"] = draw(case["label"], random, i)
        rows.append(row)
    return {k: np.stack([r[k] for r in rows]) for k in rows[0]}


def batch_of(data, step):
    """The rows of the batch of a step that counts from 0."""
    at = step * BATCH % SAMPLES
    return {k: v[at:at + BATCH] for k, v in data.items()}


def fingerprint(name, weight):
    """Eight products with vectors of random signs: two weights whose difference has norm d differ by about d in each."""
    flat = np.asarray(weight, np.float64).ravel()
    signs = np.random.RandomState(zlib.crc32(name.encode())).randint(0, 2, (8, flat.size)) * 2 - 1
    return [float("%.9g" % v) for v in signs @ flat]


def fingerprint_error(name, weight, reference):
    """The estimated norm of the difference, relative to the norm of the weight (at least 1e-2 a number)."""
    flat = np.asarray(weight, np.float64).ravel()
    difference = np.asarray(fingerprint(name, weight)) - np.asarray(reference)
    return float(np.sqrt(np.mean(difference ** 2)) / max(np.linalg.norm(flat), 1e-2 * np.sqrt(flat.size)))


def versions(environment):
    """{package: installed version} of the packages that requirements/<environment>.txt lists."""
    with open(os.path.join(HERE, "requirements", environment + ".txt")) as f:
        names = [line.split("==")[0] for line in f if not line.startswith("#")]
    return {name: importlib.metadata.version(name) for name in names}


def read_case(name, folder=FILES):
    with open(os.path.join(folder, name + ".json")) as f:
        return json.load(f)


def write_case(case, folder):
    with open(os.path.join(folder, case["name"] + ".json"), "w") as f:
        json.dump(case, f, indent=None, separators=(",", ":"), sort_keys=True)
        f.write("\n")


def pack(path, folder, name):
    """Stores an exported file as the exporter wrote it, compressed: most of it is the exporter's metadata."""
    with open(path, "rb") as source:
        data = gzip.compress(source.read(), 9, mtime=0)
    with open(os.path.join(folder, name + ".gz"), "wb") as out:
        out.write(data)


def unpack(case, export, folder, files=FILES):
    """Writes the files of an export into `folder` under the names that the exporter chose; returns the path of the model."""
    for name in case["exports"][export]:
        with gzip.open(os.path.join(files, "%s.%s.%s.gz" % (case["name"], export, name)), "rb") as source:
            with open(os.path.join(folder, name), "wb") as out:
                out.write(source.read())
    return os.path.join(folder, "net.onnx")
