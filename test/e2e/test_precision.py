#!/usr/bin/python3
"""train.precision "bfloat16": as accurate as float32, with bits that depend only on the job; refused on a processor without
the instructions. The refusal is tested on every processor, with a limit on the instructions of the kernel library; the other
tests need a processor with the instructions."""
import json
import os
import subprocess
import sys

from kit import GUARD, ROOT, TRAINERCTL, Task, digits_job, expect_codes, main, read_tree, start, test, workdir

sys.path.insert(0, os.path.join(ROOT, "test", "e2e", "networks"))

from job import THEIRS, prepare  # noqa: E402

CAPPED = {"ONEDNN_MAX_CPU_ISA": "AVX2"}


def has_bfloat16():
    with open("/proc/cpuinfo") as f:
        return any("avx512_bf16" in line.split() for line in f if line.startswith("flags"))


def if_able(f):
    """Runs the test, or, on a processor without the instructions, checks that the job is refused."""
    def run():
        if has_bfloat16():
            f()
        else:
            refused({})
    run.__name__ = f.__name__ if has_bfloat16() else f.__name__ + " (processor without avx512_bf16: is refused)"
    return run


def refused(env):
    t = Task(digits_job(workdir(), train={"precision": "bfloat16"}), args=("--devices", "cpu:1"), env=env)
    assert t.wait() != 0
    assert "/train/precision: bfloat16 needs a processor" in t.log() and "avx512_bf16" in t.log(), t.log()
    assert not t.events("step"), t.log()


def run(n, devices, precision, **train):
    folder = workdir()
    job = digits_job(folder, train={"precision": precision, "lanes": 4, "log_every_steps": 1, **train})
    tasks = start(job, n, devices) if n > 1 else [Task(job, args=("--devices", devices))]
    expect_codes(tasks, [0] * n)
    return tasks[0], read_tree(os.path.join(folder, "run", "checkpoints"))


@test
def bfloat16_on_a_processor_without_the_instructions_is_refused():
    refused(CAPPED)
    model = os.path.join(ROOT, "config", "digits", "digits_cnn.onnx")
    p = subprocess.run([TRAINERCTL, "inspect", model, "--precision", "bfloat16"], env={**os.environ, **CAPPED},
                       capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 3 and "bfloat16 needs a processor" in p.stdout, (p.returncode, p.stdout, p.stderr)
    p = subprocess.run([TRAINERCTL, "inspect", model, "--precision", "half"], capture_output=True, text=True,
                       timeout=GUARD)
    assert p.returncode == 2 and "--precision: expected float32, tf32, bfloat16 or float16, found 'half'" in p.stderr, p.stderr


@test
@if_able
def bfloat16_losses_follow_float32_with_equal_accuracy():
    wide, _ = run(1, "cpu:1", "float32")
    half, _ = run(1, "cpu:1", "bfloat16")
    a, b = wide.steps(), half.steps()
    assert a.keys() == b.keys() and len(a) > 100
    assert any(a[k]["loss"] != b[k]["loss"] for k in a), "nothing was computed in bfloat16"
    for k in sorted(a)[:20]:
        assert abs(a[k]["loss"] - b[k]["loss"]) < 0.02 * (1 + a[k]["loss"]), (k, a[k]["loss"], b[k]["loss"])
    first, second = wide.events("eval")[-1], half.events("eval")[-1]
    assert first["accuracy"] > 0.95 and second["accuracy"] >= first["accuracy"] - 0.015, (first, second)


@test
@if_able
def bfloat16_weights_are_equal_on_one_two_and_four_tasks():
    short = {"epochs": None, "steps": 30}
    one, files = run(1, "cpu:1", "bfloat16", **short)
    for n, devices in ((2, "cpu:1"), (4, "cpu:1"), (1, "cpu:4")):
        other, theirs = run(n, devices, "bfloat16", **short)
        what = "%d tasks with %s" % (n, devices)
        assert {k: r["loss"] for k, r in one.steps().items()} == {k: r["loss"] for k, r in other.steps().items()}, what
        assert max(files) == max(theirs), what
        for name in files.keys() & theirs.keys():
            assert files[name] == theirs[name], "%s: %s differs" % (what, name)


@test
@if_able
def bfloat16_activations_need_half_the_memory():
    model = os.path.join(ROOT, "config", "digits", "digits_cnn.onnx")
    bytes_of = {}
    for precision in ("float32", "bfloat16"):
        p = subprocess.run([TRAINERCTL, "inspect", model, "--batch", "64", "--precision", precision, "--plan", "--json"],
                           capture_output=True, text=True, timeout=GUARD)
        got = json.loads(p.stdout)
        assert p.returncode == 0 and got["precision"] == precision, (p.returncode, p.stderr)
        assert ("bfloat16" in got["plan"]) == (precision == "bfloat16")
        bytes_of[precision] = got["training"]["work_bytes"]
    assert bytes_of["bfloat16"] < 0.7 * bytes_of["float32"], bytes_of


def add(name):
    @if_able
    def near():
        task = Task(prepare(name, workdir(), precision="bfloat16"), args=("--devices", "cpu:1"))
        expect_codes([task], [0])
        ours = [r["loss"] for _, r in sorted(task.steps().items())]
        worst = max(abs(a - b) / abs(b) for a, b in zip(ours, THEIRS[name]))
        assert len(ours) == len(THEIRS[name]) and 1e-7 < worst < 0.01, (worst, ours[-3:], THEIRS[name][-3:])
    near.__name__ = near.__name__.replace("near", name + "_stays_near_pytorch_in_float32")
    test(near)


for network in ("resnet18", "mobilenet_v2", "unet", "vit", "gpt2", "lstm", "dlrm"):
    add(network)

if __name__ == "__main__":
    main()
