#!/usr/bin/python3
"""The losses of common networks follow those of PyTorch or TensorFlow, from the same ONNX file and samples in the same order;
the exported model has finite outputs in ONNX Runtime. make_networks.py and make_keras.py in test/e2e/networks wrote the
networks and the reference losses."""
import json
import os
import sys

import numpy as np

from kit import ROOT, Task, expect_codes, main, read_tree, start, test, use_venv, workdir

sys.path.insert(0, os.path.join(ROOT, "test", "e2e", "networks"))

from job import THEIRS, prepare  # noqa: E402
from nets import NETWORKS, STEPS, samples  # noqa: E402


def follow(name):
    folder = workdir()
    task = Task(prepare(name, folder), args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    ours = [r["loss"] for _, r in sorted(task.steps().items())]
    if os.environ.get('TRACE'): print(name, ['%.0e' % (abs(a - b) / abs(b)) for a, b in zip(ours, THEIRS[name])])
    worst = max(abs(a - b) / abs(b) for a, b in zip(ours, THEIRS[name]))
    assert len(ours) == STEPS and worst < 1e-4, "relative difference %.2g; first ours %s theirs %s" % (worst, ours[:3], THEIRS[name][:3])
    use_venv()
    import onnxruntime

    session = onnxruntime.InferenceSession(os.path.join(folder, "trained.onnx"))
    feed = {k: np.stack([s[k] for s, _ in samples(name)[:3]]) for k in NETWORKS[name][0]}
    logits = session.run(None, feed)[0]
    assert np.isfinite(logits).all() and logits.shape[0] == 3


def add(name):
    def run():
        follow(name)
    run.__name__ = "%s_follows_%s" % (name, "tensorflow" if name.startswith("keras_") else "pytorch")
    test(run)


for network in NETWORKS:
    add(network)


@test
def tables_weights_are_equal_on_one_two_and_four_tasks():
    """Few rows of each table have a gradient, and other rows on every task: the tasks merge the marks, pack the rows and
    all-reduce them."""
    def run(n, **changes):
        folder = workdir()
        path = prepare("dlrm", folder)
        with open(path) as f:
            job = json.load(f)
        job["train"].update(lanes=4, clip_norm=0.5)
        job["optimizer"] = {"type": "adagrad", "learning_rate": 0.05}
        job.update(changes)
        with open(path, "w") as out:
            json.dump(job, out)
        tasks = start(path, n, "cpu:1") if n > 1 else [Task(path, args=("--devices", "cpu:1"))]
        expect_codes(tasks, [0] * n)
        losses = [r["loss"] for _, r in sorted(tasks[0].steps().items())]
        return losses, read_tree(os.path.join(folder, "checkpoints"))

    one = run(1)
    assert len(one[0]) == STEPS and one[0][-1] < one[0][0]
    assert run(2) == one, "2 tasks"
    assert run(4) == one, "4 tasks"
    assert run(4, communication={"shared_memory": False}) == one, "4 tasks over TCP"

if __name__ == "__main__":
    main()
