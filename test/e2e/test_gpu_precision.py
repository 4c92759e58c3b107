#!/usr/bin/python3
"""train.precision on emulated GPUs: each precision is as accurate as float32, float16 with a loss scale that is equal on all
tasks, also after failures. (The network has only matrix products: emulated convolutions are slow;
test/train/test_precision.c tests them.)"""
# needs: emulated
import json
import os
import signal
import subprocess
import urllib.request

import kit
from kit import BUILD, GUARD, TRAINERCTL, Task, digits_job, expect_codes, finish, free_ports, main, read_tree, test, workdir

kit.TRAINERD = os.path.join(BUILD, "emulated", "trainerd")
STEPS = 200  # nine epochs


def job_of(folder, precision, **changes):
    mlp = os.path.join(folder, "mlp.onnx")
    if not os.path.exists(mlp):
        subprocess.run([TRAINERCTL, "model", "mlp", "--set", "inputs=64", "--set", "hidden=32", "--seed", "2", "-o", mlp],
                       check=True, timeout=GUARD, capture_output=True)
    base = {"model": {"onnx": "mlp.onnx"},
            "data": {"features": {"image": {"shape": [64]}}},
            "train": {"precision": precision, "epochs": None, "steps": STEPS, "lanes": 2, "log_every_steps": 1,
                      "eval_every_epochs": 0},
            "optimizer": {"schedule": {"type": "constant", "warmup_steps": None}}, "summary": None}
    return digits_job(folder, **kit.merge(base, changes))


def two(job, env=None, args=()):
    """Starts two tasks with one GPU each; returns them and their ports. args: of the first task."""
    ports = free_ports(2)
    return [Task(job, kit.tf_config(ports, i), ("--devices", "cuda:%d" % i, *(args if i == 0 else ())), env, "worker %d" % i)
            for i in range(2)], ports


def manifest(folder, step):
    with open(os.path.join(folder, "run", "checkpoints", "step-%08d" % step, "manifest.json")) as f:
        return json.load(f)


@test
def precision_of_each_kind_is_as_accurate_as_float32():
    accuracy, first = {}, {}
    for precision in ("float32", "tf32", "bfloat16", "float16"):
        folder = workdir()
        scale = {"loss_scale": {"growth_interval": 40}} if precision == "float16" else {}
        t = Task(job_of(folder, precision, train=scale), args=("--devices", "cuda:0"))
        expect_codes([t], [0])
        accuracy[precision] = t.events("eval")[-1]["accuracy"]
        steps = [r for _, r in sorted(t.steps().items())]
        first[precision] = steps[9]["loss"]
        assert ("loss_scale" in manifest(folder, STEPS)) == (precision == "float16")
        if precision == "float16": # the scale can double a few times
            assert steps[0]["loss_scale"] == 65536 and steps[-1]["loss_scale"] >= 2 * 65536, steps[-1]
            assert manifest(folder, STEPS)["loss_scale"] == steps[-1]["loss_scale"]
        else:
            assert "loss_scale" not in steps[0]
    assert accuracy["float32"] > 0.93 and len(set(first.values())) == 4, (accuracy, first)
    assert all(a >= accuracy["float32"] - 0.01 for a in accuracy.values()), accuracy


@test
def overflow_is_skipped_by_all_tasks_and_a_restarted_task_has_the_same_scale():
    overflowing = {"train": {"steps": 24, "deadline_seconds": 30, "loss_scale": {
        "initial_scale": 2 ** 32, "max_scale": 2 ** 32, "growth_interval": 4}},
        "data": {"eval": None}, "model": {"metrics": None}, "checkpoint": {"every_steps": 1000}, "export": None}
    whole = workdir()
    tasks, _ = two(job_of(whole, "float16", **overflowing))
    expect_codes(tasks, [0, 0])
    skipped = [[r["message"] for r in t.events("overflowed")] for t in tasks]
    assert skipped[0] == skipped[1] and len(skipped[0]) > 5, skipped
    assert skipped[0][0] == ("step 1: the gradient overflows float16 with a loss scale of 4294967296; the step is skipped, "
                             "the scale is 2147483648 from now on"), skipped[0][0]
    losses = [r["loss"] for _, r in sorted(tasks[0].steps().items())]
    assert losses[0] < 4 and losses[-1] < 0.9 * losses[0], losses

    folder = workdir()
    job = job_of(folder, "float16", **overflowing)
    (web,) = free_ports(1)
    slow = {"TRAINERD_FAULT": "train.forward=delay:60@1+"}
    tasks, ports = two(job, slow, ("--metrics", "127.0.0.1:%d" % web))
    tasks[0].until_step(14)
    tasks[1].signal(signal.SIGKILL)
    tasks[1].wait()
    at = max(tasks[0].steps())
    scale = tasks[0].steps()[at]["loss_scale"]
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % web, timeout=GUARD).read().decode()
    seen = dict(line.rsplit(None, 1) for line in text.splitlines() if not line.startswith("#"))
    assert int(seen["trainerd_overflowed_steps_total"]) > 5 and int(seen["trainerd_skipped_steps_total"]) == 0, text
    assert float(seen["trainerd_loss_scale"]) == scale, (scale, text)
    status = lambda: subprocess.run([TRAINERCTL, "status", "127.0.0.1:%d" % ports[0]], capture_output=True, text=True,
                                    timeout=GUARD)
    # the log follows the step with a delay
    kit.wait_until(lambda: "loss scale  %d\n" % scale in status().stdout, lambda: (scale, status()))
    back = Task(job, kit.tf_config(ports, 1), ("--devices", "cuda:1"), slow, "worker 1 again")
    expect_codes([tasks[0], back], [0, 0])
    assert back.events("resume")[0]["step"] >= 14 and back.events("overflowed"), back.log()
    a, b = (read_tree(os.path.join(f, "run", "checkpoints")) for f in (whole, folder))
    assert manifest(folder, 24)["loss_scale"] < 2 ** 28 and a.keys() == b.keys()
    for name in a:
        assert a[name] == b[name], "%s differs from that of a run in which nobody died" % name


@test
def loss_scale_resumes_from_a_checkpoint_only_with_float16():
    short = {"data": {"eval": None}, "model": {"metrics": None}, "checkpoint": {"every_steps": 6}, "export": None}
    folder = workdir()
    for steps, precision, scale, want in ((6, "float16", {"initial_scale": 1024, "growth_interval": 4}, (2048, 2)),
                                          (8, "float16", {"initial_scale": 1024, "growth_interval": 4}, (4096, 0)),
                                          (10, "float16", {"initial_scale": 256, "max_scale": 512}, (512, 0)),
                                          (12, "bfloat16", None, (None, None)),
                                          (14, "float16", {"growth_interval": 0}, (65536, 0))):
        train = {"steps": steps, **({"loss_scale": scale} if scale else {})}
        t = Task(job_of(folder, precision, **kit.merge(short, {"train": train})), args=("--devices", "cuda:0"))
        expect_codes([t], [0])
        m = manifest(folder, steps)
        assert (m.get("loss_scale"), m.get("loss_scale_good_steps", 0 if scale else None)) == want, (steps, m)


@test
def precision_of_gpus_only_is_refused_on_cpus():
    for precision in ("float16", "tf32"):
        t = Task(job_of(workdir(), precision), args=("--devices", "cpu:1"))
        assert finish([t]) == [2], t.log()
        assert "/train/precision: %s is supported by GPUs only: use" % precision in t.log(), t.log()


if __name__ == "__main__":
    main()
