"""job.py - a job that trains a network of this folder on the data of nets.py, and the losses that PyTorch or TensorFlow
computes in each step."""
import json
import os
import shutil
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "data")]

import tfrecord  # noqa: E402
from nets import BATCH, NETWORKS, OPTIMIZERS, STEPS, samples  # noqa: E402

with open(os.path.join(HERE, "losses.json")) as f:
    THEIRS = json.load(f)


def prepare(name, folder, **train):
    features, (label_shape, _), optimizer = NETWORKS[name]
    shutil.copy(os.path.join(HERE, name + ".onnx"), os.path.join(folder, "net.onnx"))
    records = []
    for one, label in samples(name):
        r = {k: ("float" if v.dtype == np.float32 else "int64", v.ravel().tolist()) for k, v in one.items()}
        r["label"] = ("int64", label.ravel().tolist())
        records.append(r)
    tfrecord.write(os.path.join(folder, "data.tfrecord"), records)
    table = {k: {"dtype": "float32" if kind == "float" else "int64", "shape": list(shape)} for k, (kind, shape, _) in features.items()}
    table["label"] = {"dtype": "int64", "shape": list(label_shape)}
    job = {"model": {"onnx": "net.onnx", "inputs": {k: k for k in features},
                     "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label"}},
           "data": {"train": "data.tfrecord", "features": table, "shuffle": False, "cache": "memory"},
           "train": {"steps": STEPS, "global_batch_size": BATCH, "lanes": 1, "log_every_steps": 1, **train},
           "optimizer": OPTIMIZERS[optimizer], "export": {"onnx": "trained.onnx"},
           "checkpoint": {"directory": "checkpoints"}}
    path = os.path.join(folder, "job.json")
    with open(path, "w") as out:
        json.dump(job, out)
    return path
