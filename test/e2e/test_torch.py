#!/usr/bin/python3
"""With the network, data and order of PyTorch the losses are those of PyTorch; the exported network runs in ONNX Runtime; the
public safetensors package reads the checkpoint."""
import json
import os
import struct
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

from kit import BUILD, ROOT, Task, digits_job, expect_codes, main, test, use_venv, workdir

use_venv()

with open(os.path.join(ROOT, "test", "e2e", "torch_losses.json")) as f:
    TORCH = json.load(f)


def without_dropout(folder):
    """Writes the network of the demo with Dropout replaced by Identity."""
    path = os.path.join(folder, "digits_cnn.onnx")
    m = onnx.load(path)
    for n in m.graph.node:
        if n.op_type == "Dropout":
            n.CopyFrom(helper.make_node("Identity", [n.input[0]], [n.output[0]], n.name))
    os.remove(path)
    onnx.save(m, path)


def losses(optimizer, lanes=1):
    folder = workdir()
    job = digits_job(folder, data={"shuffle": False}, checkpoint=None, export=None, summary=None, optimizer=None)
    with open(job) as f:
        text = json.load(f)
    text["optimizer"] = optimizer
    text["train"] = {"seed": 1, "steps": 50, "global_batch_size": 64, "lanes": lanes, "log_every_steps": 1}
    with open(job, "w") as f:
        json.dump(text, f)
    without_dropout(folder)
    task = Task(job, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    return [r["loss"] for _, r in sorted(task.steps().items())]


def compare(ours, theirs):
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))
    assert len(ours) == len(theirs) and worst < 1e-4, "relative difference %g\nours   %s\ntheirs %s" % (
        worst, ours[:5], theirs[:5])


@test
def losses_fifty_steps_of_momentum_follow_pytorch():
    compare(losses({"type": "momentum", "learning_rate": 0.01, "momentum": 0.9, "weight_decay": 1e-4}), TORCH["momentum"])


@test
def losses_fifty_steps_of_adamw_follow_pytorch():
    compare(losses({"type": "adamw", "learning_rate": 0.001, "weight_decay": 0.01}), TORCH["adamw"])


def read_safetensors(path):
    """Reads a file as the format's specification states: u64 header length, JSON, data."""
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8:8 + n])
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            assert t["dtype"] == "F32"
            out[name] = np.frombuffer(data[8 + n + a:8 + n + b], "<f4").reshape(t["shape"])
    return out


@test
def export_and_checkpoint_open_in_other_programs():
    import onnxruntime
    import safetensors.numpy

    folder = workdir()
    job = digits_job(folder, train={"epochs": 3})
    task = Task(job, args=("--devices", "cpu:2"))
    expect_codes([task], [0])
    run = os.path.join(folder, "run")
    last = sorted(os.listdir(os.path.join(run, "checkpoints")))[-1]
    path = os.path.join(run, "checkpoints", last, "model.safetensors")
    ours, theirs = read_safetensors(path), safetensors.numpy.load_file(path)
    assert ours.keys() == theirs.keys() and all((ours[k] == theirs[k]).all() for k in ours)
    slots = safetensors.numpy.load_file(os.path.join(run, "checkpoints", last, "optimizer.safetensors"))
    assert "conv1.weight/momentum" in slots and slots["conv1.weight/momentum"].shape == ours["conv1.weight"].shape

    exported = onnx.load(os.path.join(run, "digits.onnx"))
    onnx.checker.check_model(exported, full_check=True)
    for i in exported.graph.initializer:
        if i.name in ours:
            assert (numpy_helper.to_array(i) == ours[i.name]).all(), i.name
    # accuracy, computed again with ONNX Runtime
    images, labels = test_set()
    session = onnxruntime.InferenceSession(os.path.join(run, "digits.onnx"))
    logits = session.run(None, {"x": images})[0]
    accuracy = float((logits.argmax(1) == labels).mean())
    said = task.events("eval")[-1]
    assert abs(accuracy - said["accuracy"]) < 1e-9, (accuracy, said)
    z = logits - logits.max(1, keepdims=True)
    loss = float((np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]).mean())
    assert abs(loss - said["loss"]) < 1e-5 * max(1, abs(loss)), (loss, said["loss"])


def test_set():
    """Returns the test digits, read by the independent reader of test/data."""
    sys.path.insert(0, os.path.join(ROOT, "test", "data"))
    import tfrecord

    images, labels = [], []
    folder = os.path.join(ROOT, "config", "digits")
    for name in sorted(os.listdir(folder)):
        if name.startswith("digits-test-"):
            for features in tfrecord.read(os.path.join(folder, name)):
                images.append(np.frombuffer(features["image"][1][0], np.uint8))
                labels.append(features["label"][1][0])
    return (np.stack(images).reshape(-1, 1, 8, 8).astype(np.float32) * np.float32(0.0625)), np.array(labels)


if __name__ == "__main__":
    assert os.path.isdir(BUILD)
    main()
