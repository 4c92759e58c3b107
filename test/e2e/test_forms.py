#!/usr/bin/python3
"""Training form and frozen rows: a network of PyTorch's current exporter, with BatchNormalization in inference form and
padded embeddings, trains like its module with each job of forms/data.py; ONNX Runtime computes the same with the export.
forms/make_forms.py computed the reference."""
import os
import subprocess
import sys

import numpy as np

from kit import ROOT, Task, expect_codes, main, start, test, use_venv, workdir

sys.path.insert(0, os.path.join(ROOT, "test", "e2e", "forms"))

from forms_job import BATCH, JOBS, compare, prepare, samples, tensors  # noqa: E402


def runtime_is_silent_and_agrees(folder, name):
    """Checks that ONNX Runtime logs no warning about the export and that its outputs are those of the trained weights."""
    use_venv()
    import onnx
    import onnxruntime

    path = os.path.join(folder, "trained.onnx")
    model = onnx.load(path)
    for n in model.graph.node:
        assert n.op_type != "BatchNormalization" or (len(n.output) == 1 and not any(a.name == "training_mode" for a in n.attribute))
    warned = subprocess.run([sys.executable, "-c", "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])", path],
                            capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)))
    assert warned.returncode == 0 and "initializer" not in warned.stderr, warned.stderr
    session = onnxruntime.InferenceSession(path)
    rows = samples()[:BATCH]
    logits = session.run(None, {k: np.stack([r[k] for r in rows]) for k in ("x", "kind")})[0]
    assert np.isfinite(logits).all(), name


def add(name):
    def run():
        folder = workdir()
        job = JOBS[name]
        task = Task(prepare(folder, job["model"], job["optimizer"], job.get("clip_norm", 0)), args=("--devices", "cpu:1"))
        expect_codes([task], [0])
        compare(name, folder, task)
        runtime_is_silent_and_agrees(folder, name)
    run.__name__ = "%s_follows_the_module_of_pytorch" % name
    test(run)


for job_name in JOBS:
    add(job_name)


@test
def frozen_rows_keep_their_bits_and_their_slots_are_zero():
    folder = workdir()
    job = JOBS["rows_adamw"]
    task = Task(prepare(folder, job["model"], job["optimizer"], job["clip_norm"]), args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    use_venv()
    import onnx
    from onnx import numpy_helper

    before = {t.name: numpy_helper.to_array(t) for t in onnx.load(os.path.join(folder, "net.onnx")).graph.initializer}
    after, slots = tensors(folder), tensors(folder, "optimizer")
    for name, rows in job["model"]["frozen_rows"].items():
        shape = before[name].shape
        assert (after[name].reshape(shape)[rows] == before[name][rows]).all()
        assert (after[name].reshape(shape) != before[name]).any()
        for slot in ("exp_avg", "exp_avg_sq"):
            assert not slots["%s/%s" % (name, slot)].reshape(shape)[rows].any()


@test
def frozen_rows_give_the_same_bytes_on_one_and_two_tasks():
    def run(n):
        folder = workdir()
        job = JOBS["rows_adamw"]
        path = prepare(folder, job["model"], job["optimizer"], job["clip_norm"], lanes=2)
        tasks = start(path, n, "cpu:1") if n > 1 else [Task(path, args=("--devices", "cpu:1"))]
        expect_codes(tasks, [0] * n)
        return {**tensors(folder), **tensors(folder, "optimizer")}

    one, two = run(1), run(2)
    assert one.keys() == two.keys() and all((one[k] == two[k]).all() for k in one)


@test
def inference_form_without_a_key_is_refused_with_both_interpretations():
    folder = workdir()
    task = Task(prepare(folder, {}, JOBS["train_adamw"]["optimizer"]), args=("--devices", "cpu:1"))
    expect_codes([task], [2])
    for part in ("model.batch_norm", '"batch_norm": "train"', '"batch_norm": "frozen"', "in train() when it was exported"):
        assert part in task.final_message(), task.final_message()


@test
def invalid_frozen_rows_are_refused_with_their_place():
    for model, part in (({"frozen_rows": {"words.weight": [20]}}, "'words.weight' has 20 rows, expected 0 to 19"),
                        ({"frozen_rows": {"words.wieght": [1]}}, "'words.wieght' matches no parameter that trains"),
                        ({"frozen_rows": {"tied.weight": [0, 1, 2, 3, 4]}}, "all rows of 'tied.weight' are frozen"),
                        ({"padding_idx": {"words.weight": 20}}, "expected a row from 0 to 19"),
                        ({"padding_idx": {"bn.weight": 0}}, "'bn.weight' matches no table")):
        task = Task(prepare(workdir(), {"batch_norm": "train", **model}, JOBS["train_adamw"]["optimizer"]),
                    args=("--devices", "cpu:1"))
        expect_codes([task], [2])
        assert part in task.final_message(), task.final_message()


if __name__ == "__main__":
    main()
