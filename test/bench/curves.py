"""curves.py - loss curves of a ResNet and a GPT-2 that learn: data with a rule, so that the loss falls within a few steps."""
import os
import statistics
import tempfile

import numpy as np

import kit
import peers

CLASSES, SIZE, BATCH, SAMPLES = 8, 16, 32, 512
TOKENS, LENGTH = 64, 32
TASK_SECONDS = 300


def images(folder):
    """Each class has a pattern of its own, under noise."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, SAMPLES)
    patterns = rng.standard_normal((CLASSES, 3, SIZE, SIZE))
    np.save(os.path.join(folder, "image.npy"), (patterns[labels] + 2 * rng.standard_normal((SAMPLES, 3, SIZE, SIZE))).astype(np.float32))
    np.save(os.path.join(folder, "label.npy"), labels)
    return {"format": "npy", "train": "{feature}.npy",
            "features": {"image": {"dtype": "float32", "shape": [3, SIZE, SIZE]}, "label": {"dtype": "int64", "shape": []}}}


def text(folder):
    """A chain of tokens: each has four that may follow."""
    rng = np.random.default_rng(1)
    follow, tokens = rng.integers(0, TOKENS, (TOKENS, 4)), [0]
    for choice in rng.integers(0, 4, SAMPLES * LENGTH):
        tokens.append(int(follow[tokens[-1], choice]))
    np.array(tokens, np.uint16).tofile(os.path.join(folder, "tokens.bin"))
    window = {"dtype": "uint16", "shape": [LENGTH]}
    return {"format": "tokens", "train": "tokens.bin", "features": {"tokens": window, "labels": window}}


# name: (network, its keys, data, inputs, labels, optimizer, steps)
CURVES = {
    "ResNet-18": ("resnet18", ["size=%d" % SIZE, "classes=%d" % CLASSES], images, {"image": "x"}, "label",
                  {"type": "momentum", "learning_rate": 0.005, "momentum": 0.9}, 64),
    "GPT-2": ("gpt2", ["vocabulary=%d" % TOKENS, "context=%d" % LENGTH, "sequence=%d" % LENGTH, "width=64", "layers=2", "heads=2"], text,
              {"tokens": "ids"}, "labels", {"type": "adamw", "learning_rate": 0.003}, 96),
}


def losses(folder, name, code):
    """Returns the mean losses of the four quarters of the steps. One task computes what any number would."""
    network, keys, data, inputs, labels, optimizer, steps = CURVES[name]
    with tempfile.TemporaryDirectory(dir=folder) as d:
        peers.run_checked([kit.TRAINERCTL, "model", network, *(word for key in keys for word in ("--set", key)), "--seed", "1",
                           "-o", os.path.join(d, "model.onnx")])
        job = {"name": "curve", "model": {"onnx": "model.onnx", "inputs": inputs,
                                          "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": labels}},
               "data": data(d), "optimizer": optimizer,
               "train": {"seed": 1, "steps": steps, "global_batch_size": BATCH, "lanes": 4, "log_every_steps": 1}}
        if code:
            job["communication"] = {"compression": {"code": code, "groups": 4, "min_bytes": 1024}}
        path = os.path.join(d, "job.json")
        with open(path, "w") as f:
            f.write(kit.json.dumps(job))
        task = kit.Task(path, args=("--devices", "cpu:1"))
        try:
            kit.expect_codes([task], [0], TASK_SECONDS)
        finally:
            task.kill()
        found = [r["loss"] for r in task.events("step")]
        assert len(found) == steps, "%d losses" % len(found)
        return [statistics.mean(found[i * steps // 4:(i + 1) * steps // 4]) for i in range(4)]
