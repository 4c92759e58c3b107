"""forms_job.py - a job that trains the network of this folder, and the comparison with the results of PyTorch."""
import json
import os
import shutil
import struct
import sys

import numpy as np

FORMS = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [FORMS, os.path.join(FORMS, "..", "..", "data")]

import tfrecord  # noqa: E402
from data import BATCH, JOBS, STEPS, samples  # noqa: E402

with open(os.path.join(FORMS, "reference.json")) as f:
    REFERENCE = json.load(f)


def prepare(folder, model, optimizer, clip_norm=0, lanes=1):
    shutil.copy(os.path.join(FORMS, "net.onnx"), folder)
    tfrecord.write(os.path.join(folder, "data.tfrecord"),
                   [{k: ("int64", np.atleast_1d(v).tolist()) for k, v in s.items()} for s in samples()])
    scalar = {"dtype": "int64", "shape": []}
    job = {"model": {"onnx": "net.onnx", "inputs": {"x": "x", "kind": "kind"}, **model,
                     "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label"}},
           "data": {"train": "data.tfrecord", "shuffle": False,
                    "features": {"x": {"dtype": "int64", "shape": [5]}, "kind": scalar, "label": scalar}},
           "train": {"steps": STEPS, "global_batch_size": BATCH, "lanes": lanes, "log_every_steps": 1, "clip_norm": clip_norm},
           "optimizer": optimizer, "checkpoint": {"directory": "checkpoints"}, "export": {"onnx": "trained.onnx"}}
    path = os.path.join(folder, "job.json")
    with open(path, "w") as out:
        json.dump(job, out)
    return path


def tensors(folder, name="model"):
    """{name: float32 array} of the newest checkpoint."""
    step = sorted(n for n in os.listdir(os.path.join(folder, "checkpoints")) if n.startswith("step-"))[-1]
    with open(os.path.join(folder, "checkpoints", step, name + ".safetensors"), "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    return {k: np.frombuffer(data[slice(*v["data_offsets"])], "<f4") for k, v in header.items() if k != "__metadata__"}


def compare(name, folder, task, of_losses=1e-5, of_weights=1e-4):
    ours = [r["loss"] for _, r in sorted(task.steps().items())]
    theirs = REFERENCE[name]
    assert len(ours) == STEPS
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs["losses"]))
    assert worst < of_losses, "losses differ by %.2g" % worst
    got = tensors(folder)
    fixed = {k for k in theirs["state"] if ".running_" in k} if JOBS[name]["model"]["batch_norm"] == "frozen" else set()
    assert set(got) | fixed == set(theirs["state"]), sorted(set(got) ^ set(theirs["state"]))
    for key, value in got.items():
        want = np.asarray(theirs["state"][key])
        off = np.abs(value - want).max() / np.abs(want).max()
        # The batch norm after `free` subtracts the mean: the gradient of free.bias is rounding noise, which AdamW scales up.
        allowed = 10 * of_weights if key == "free.bias" else of_weights
        assert off < allowed, "%s differs by %.2g" % (key, off)
