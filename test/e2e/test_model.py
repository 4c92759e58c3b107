#!/usr/bin/env python3
"""`trainerctl model`: networks of the published sizes, which onnx.checker and ONNX Runtime accept and which are equal for
equal seeds; one of them is trained."""
# san: yes
import json
import os
import struct
import subprocess

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from kit import GUARD, TRAINERCTL, Task, digits_job, expect_codes, main, test, workdir


def make(name, *sets, seed=0):
    path = os.path.join(workdir(), name + ".onnx")
    flags = [f for s in sets for f in ("--set", s)]
    p = subprocess.run([TRAINERCTL, "model", name, *flags, "--seed", str(seed), "-o", path], capture_output=True,
                       text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    return path


def load(path):
    m = onnx.load(path)
    onnx.checker.check_model(m) if m.opset_import[0].version <= 17 else None
    return m


def trained(m):
    """Returns {name: array} of the float initializers except running statistics."""
    return {t.name: numpy_helper.to_array(t) for t in m.graph.initializer
            if t.data_type == 1 and "running_" not in t.name}


def count(path):
    return sum(a.size for a in trained(load(path)).values())


def for_inference(m):
    for n in m.graph.node:
        if n.op_type == "BatchNormalization":
            del n.output[1:]
            kept = [a for a in n.attribute if a.name != "training_mode"]
            del n.attribute[:]
            n.attribute.extend(kept)
    return m


def same_as_onnx_runtime(path, arrays):
    s = onnxruntime.InferenceSession(for_inference(load(path)).SerializeToString(), providers=["CPUExecutionProvider"])
    folder = workdir()
    flags = []
    for name, a in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), a)
        flags += ["--input", "%s=%s.npy" % (name, os.path.join(folder, name))]
    p = subprocess.run([TRAINERCTL, "run", path, *flags, "-o", folder, "--inference"], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    name = s.get_outputs()[0].name
    want, got = s.run(None, arrays)[0], np.load(os.path.join(folder, name + ".npy"))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    return got


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@test
def model_command_networks_have_the_published_sizes():
    assert count(make("mlp")) == 784 * 128 + 128 + 1280 + 10
    assert count(make("lenet")) == 61706
    assert count(make("resnet18")) == 11689512
    assert count(make("resnet50")) == 25557032
    one = {n: a.size for n, a in trained(load(make("gpt2", "layers=1", "vocabulary=100", "sequence=8"))).items()}
    layer = sum(n for name, n in one.items() if ".h.0." in name)
    assert layer == 7087872 and one["transformer.wpe.weight"] == 1024 * 768
    assert 12 * layer + 50257 * 768 + 1024 * 768 + 2 * 768 == 124439808


@test
def model_command_networks_agree_with_onnx_runtime():
    same_as_onnx_runtime(make("mlp", "layers=2", "hidden=33"), {"x": normal(5, 784)})
    same_as_onnx_runtime(make("lenet"), {"x": normal(3, 1, 28, 28)})
    same_as_onnx_runtime(make("resnet18", "size=64", "classes=7"), {"x": normal(2, 3, 64, 64)})
    same_as_onnx_runtime(make("resnet50", "size=64", "classes=7"), {"x": normal(2, 3, 64, 64)})
    index = np.random.default_rng(4).integers(0, 50, (4, 26))
    same_as_onnx_runtime(make("dlrm", "rows=50"), {"dense": normal(4, 13), "sparse": index})
    ids = np.random.default_rng(4).integers(0, 60, (2, 9))
    path = make("gpt2", "vocabulary=60", "context=16", "sequence=9", "width=24", "layers=2", "heads=3")
    before = same_as_onnx_runtime(path, {"ids": ids})
    later = ids.copy()
    later[:, 5:] = (later[:, 5:] + 1) % 60
    after = same_as_onnx_runtime(path, {"ids": later})
    np.testing.assert_array_equal(before[:, :5], after[:, :5])  # no token depends on a later one
    assert np.abs(before[:, 5:] - after[:, 5:]).max() > 1e-3


@test
def model_command_weights_depend_on_the_seed_and_have_the_expected_variance():
    a, b, c = (open(make("resnet18", "size=32", seed=s), "rb").read() for s in (1, 1, 2))
    assert a == b and a != c
    w = trained(load(make("gpt2", "layers=2", "vocabulary=1000", "sequence=8")))
    assert abs(w["transformer.wte.weight"].std() - 0.02) < 2e-4 and abs(w["transformer.wte.weight"].mean()) < 2e-4
    assert abs(w["transformer.h.1.mlp.c_proj.weight"].std() - 0.01) < 1e-4
    conv = trained(load(make("resnet18")))["layer2.0.conv1.weight"]
    assert abs(conv.std() - (2 / (128 * 9)) ** 0.5) < 1e-3


@test
def model_command_unknown_name_is_refused_with_the_nearest_name():
    for args, words in ((["resnet19"], "did you mean resnet18?"), (["mlp", "--set", "hiden=3"], "did you mean hidden?"),
                        (["mlp", "--set", "hidden=0"], "from 1 to"), (["gpt2", "--set", "heads=5"], "heads must divide"),
                        (["dlrm", "--set", "rows=1000000000"], "2 GiB"), ([], "the name of a network is missing")):
        p = subprocess.run([TRAINERCTL, "model", *args, "-o", os.path.join(workdir(), "m.onnx")], capture_output=True,
                           text=True, timeout=GUARD)
        assert p.returncode in (2, 3) and words in p.stderr, (args, p.returncode, p.stderr)


def losses(job, steps, **model):
    task = Task(job, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    got = task.steps()
    return [got[k]["loss"] for k in range(1, steps + 1)], task


@test
def model_command_network_learns_digits_with_every_loss():
    net = make("mlp", "inputs=64", "hidden=32")
    rows = [
        {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label", "label_smoothing": 0.1},
        {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label", "ignore_index": 3,
         "class_weights": [1, 2, 1, 1, 0.5, 1, 1, 1, 1, 1]},
    ]
    for loss in rows:
        folder = workdir()
        job = digits_job(folder)
        with open(job) as f:
            text = json.load(f)
        text["model"] = {"onnx": net, "inputs": {"image": "x"}, "loss": loss,
                         "metrics": ["accuracy", "top_k_accuracy", "perplexity"], "top_k": 3}
        text["data"]["features"]["image"]["shape"] = [64]
        text["train"] = {"steps": 120, "global_batch_size": 64, "lanes": 4, "log_every_steps": 1}
        with open(job, "w") as f:
            json.dump(text, f)
        curve, task = losses(job, 120)
        assert np.mean(curve[-10:]) < 0.6 * curve[0], curve
        end = task.events("eval")[-1]
        assert end["accuracy"] > 0.7 and end["top_k_accuracy"] > end["accuracy"], end
        assert abs(end["perplexity"] / np.exp(end["loss"]) - 1) < 0.5, end


if __name__ == "__main__":
    main()
