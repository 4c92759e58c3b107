"""clicks.py - a job with embedding tables, which ps tasks can hold, and its data."""
import json
import os
import subprocess

from kit import TRAINERCTL, merge, use_venv

ROWS, SAMPLES, BATCH = 1000, 1024, 64  # 16 steps in an epoch
OPTIMIZERS = {
    "adagrad": {"type": "adagrad", "learning_rate": 0.01},
    "adam": {"type": "adam", "learning_rate": 0.001},
    "adam, lazy rows": {"type": "adam", "learning_rate": 0.001, "groups": [{"match": ["emb*"], "lazy_rows": True}]},
    "momentum, weight decay": {"type": "momentum", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.001},
    "adamw, average": {"type": "adamw", "learning_rate": 0.001, "weight_decay": 0.01, "average": {"decay": 0.9}},
}


def make_data(folder):
    """Writes the network and the samples to the folder, unless it exists; returns the folder. A sample has 13 numbers and one
    row of each of 26 tables, with few frequent rows and many rare ones (Zipf)."""
    if os.path.exists(folder):
        return folder
    use_venv()
    import numpy as np
    os.mkdir(folder)
    subprocess.run([TRAINERCTL, "model", "dlrm", "--set", "rows=%d" % ROWS, "--seed", "3", "-o", os.path.join(folder, "dlrm.onnx")],
                   check=True, stdout=subprocess.DEVNULL)
    r = np.random.default_rng(1)
    for part in ("train", "eval"):
        arrays = {"dense": r.standard_normal((SAMPLES, 13)).astype("f4"),
                  "sparse": (r.zipf(1.3, (SAMPLES, 26)) % ROWS).astype("i8"),
                  "click": (r.random((SAMPLES, 1)) < 0.3).astype("f4")}
        for name, values in arrays.items():
            np.save(os.path.join(folder, "%s-%s.npy" % (part, name)), values)
            if name == "dense":
                values[SAMPLES // 3, 5] = np.nan
            np.save(os.path.join(folder, "bad-%s-%s.npy" % (part, name)), values)
    return folder


def job_file(folder, source, **changes):
    """Writes the job to the folder, with `changes` merged in; `source`: the result of make_data()."""
    job = {"name": "clicks",
           "model": {"onnx": os.path.join(source, "dlrm.onnx"), "inputs": {"dense": "dense", "sparse": "sparse"},
                     "loss": {"type": "binary_cross_entropy", "logits": "logit", "labels": "click"}, "metrics": ["auc"]},
           "data": {"format": "npy", "train": os.path.join(source, "train-{feature}.npy"), "eval": os.path.join(source, "eval-{feature}.npy"),
                    "features": {"dense": {"dtype": "float32", "shape": [13]}, "sparse": {"dtype": "int64", "shape": [26]},
                                 "click": {"dtype": "float32", "shape": [1]}}},
           "train": {"seed": 1, "epochs": 2, "global_batch_size": BATCH, "lanes": 4, "log_every_steps": 1, "deadline_seconds": 60}, "detection": {"stuck_factor": 0},
           "optimizer": OPTIMIZERS["adagrad"],
           "checkpoint": {"directory": "checkpoints", "every_steps": 8, "every_seconds": 0, "max_to_keep": 1000},
           "export": {"onnx": "clicks.onnx"}}
    job = merge(job, {k: v for k, v in changes.items() if k != "optimizer"})
    job["optimizer"] = changes.get("optimizer", job["optimizer"])
    path = os.path.join(folder, "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path
