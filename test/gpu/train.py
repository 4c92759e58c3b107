"""train.py - complete runs of trainerd on one GPU, with the demo's network and data. Prints lines as test/e2e does.

    train.py [--emulated] [TEST...]    --emulated: shorter runs on the emulated GPU"""
import json
import os
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import kit  # noqa: E402
from kit import Task, digits_job, expect_codes, free_ports, main, merge, test, tf_config, workdir  # noqa: E402
from place import Place  # noqa: E402

EMULATED = "--emulated" in sys.argv[1:]
sys.argv = [a for a in sys.argv if a != "--emulated"]
kit.TRAINERD = Place(EMULATED).trainerd()
if EMULATED:
    os.environ.setdefault("EMULATED_GPUS", "2")

ACCURACY = 0.98
FLOAT32_TOLERANCE = 2e-3  # relative tolerance of a loss in float32
NARROW_TOLERANCE = 0.1    # the same in narrower types
GPU = ("--devices", "cuda:0")


def few(steps=12, **more):
    """Returns job settings: a logged loss for each step, checkpoints, no evaluation."""
    return merge({"train": {"epochs": None, "steps": steps, "lanes": 4, "log_every_steps": 1, "eval_every_epochs": None},
                  "data": {"eval": None}, "model": {"metrics": None},
                  "optimizer": {"schedule": {"type": "constant", "warmup_steps": None}},
                  "checkpoint": {"every_steps": 4}, "summary": None}, more)


def run(args=GPU, folder=None, env=None, seconds=120, **changes):
    task = Task(digits_job(folder or workdir(), **changes), args=args, env=env)
    expect_codes([task], [0], seconds)
    return task


def losses(task):
    return [r["loss"] for _, r in sorted(task.steps().items())]


PRECISION_STEPS = 4 if EMULATED else 12  # steps of a run that is made in every precision


def assert_near(got, want, tolerance, what):
    assert len(got) == len(want), "%s: %d losses, expected %d" % (what, len(got), len(want))
    for k, (a, b) in enumerate(zip(got, want)):
        assert abs(a - b) <= tolerance * (1 + abs(b)), "%s: loss %d is %g, expected %g" % (what, k + 1, a, b)


def precisions():
    schema = subprocess.run([kit.TRAINERD, "--schema"], capture_output=True, text=True, timeout=60, check=True).stdout
    return json.loads(schema)["properties"]["train"]["properties"]["precision"]["enum"]


def cpu_losses(steps=12):
    return losses(run(("--devices", "cpu:1"), **few(steps)))


# ---- one process ----

def train_in(precision):
    if EMULATED:  # a step in a narrow type needs seconds
        got = losses(run(**few(6, train={"precision": precision, "lanes": 1})))
        assert got[-1] < got[0], "%s: %s" % (precision, got)
        return
    task = run(train={"precision": precision}, checkpoint=None, summary=None)
    last = task.events("eval")[-1]
    assert last["accuracy"] >= ACCURACY, "%s: %s" % (precision, last)


@test
def digits_in_every_precision_reach_the_accuracy():
    for precision in precisions():
        train_in(precision)


@test
def losses_on_gpu_are_near_those_of_a_cpu():
    want = cpu_losses(PRECISION_STEPS)
    for precision in precisions():
        got = losses(run(**few(PRECISION_STEPS, train={"precision": precision})))
        assert_near(got, want, FLOAT32_TOLERANCE if precision == "float32" else NARROW_TOLERANCE, precision)


@test
def run_repeated_is_bitwise_equal():
    for precision in precisions():
        a, b = (losses(run(**few(PRECISION_STEPS, train={"precision": precision}))) for _ in range(2))
        assert a == b, precision


@test
def run_killed_and_restarted_has_the_same_losses():
    folder, want = workdir(), losses(run(**few(16)))
    slow = {"TRAINERD_FAULT": "train.forward=delay:50@1+"}
    task = Task(digits_job(folder, **few(16)), args=GPU, env=slow)
    task.until_step(9, 60)
    task.signal(signal.SIGKILL)
    task.wait()
    back = run(folder=folder, **few(16))
    first = min(back.steps())
    assert 5 <= first <= 13, first
    assert losses(back) == want[first - 1:], "from step %d on" % first


@test
def checkpoint_of_cpu_continues_on_gpu_and_back():
    want, folder = cpu_losses(), workdir()
    run(("--devices", "cpu:1"), folder, **few(4))
    on_gpu = run(GPU, folder, **few(8))
    on_cpu = run(("--devices", "cpu:1"), folder, **few(12))
    assert min(on_gpu.steps()) == 5 and min(on_cpu.steps()) == 9
    assert_near(losses(on_gpu) + losses(on_cpu), want[4:], FLOAT32_TOLERANCE, "CPU, GPU, CPU")


# ---- two processes on one GPU: NCCL treats them as two hosts if their values of NCCL_HOSTID differ ----

def as_host(i):
    return {"NCCL_HOSTID": "host-%d" % i}


def two(job, ports, env=None):
    return [Task(job, tf_config(ports, i), GPU, dict(as_host(i), **(env or {})), "worker %d" % i) for i in range(2)]


@test
def two_processes_on_one_gpu_have_the_losses_of_one():
    want = cpu_losses()
    tasks = two(digits_job(workdir(), **few()), free_ports(2))
    expect_codes(tasks, [0, 0], 120)
    assert_near(losses(tasks[0]), want, FLOAT32_TOLERANCE, "two processes")


@test
def compressed_gradients_have_equal_losses_in_one_and_two_processes():
    """One process makes the roundings alone; of two, each sends the codes of its two groups. Sums follow the tree over lanes."""
    for code in ("bfloat16", "float16", "int8", "int4"):
        job = few(4, communication={"compression": {"code": code, "groups": 4, "min_bytes": 1024}, "deterministic": True})
        want = losses(run(**job))
        tasks = two(digits_job(workdir(), **job), free_ports(2))
        expect_codes(tasks, [0, 0], 120)
        assert losses(tasks[0]) == want, code


@test
def member_killed_and_restarted_leaves_the_losses_unchanged():
    want = cpu_losses(40)
    job = digits_job(workdir(), **few(40, elastic={"min_world": 1, "rejoin_seconds": 0}))
    slow = {"TRAINERD_FAULT": "train.forward=delay:50@1+"}
    ports = free_ports(2)
    tasks = two(job, ports, slow)
    tasks[0].until_step(5, 90)
    tasks[1].signal(signal.SIGKILL)
    tasks[1].wait()
    tasks[0].until_step(12, 90)
    back = Task(job, tf_config(ports, 1), GPU, dict(as_host(1), **slow), "worker 1 again")
    expect_codes([tasks[0], back], [0, 0], 180)
    assert_near(losses(tasks[0]), want, FLOAT32_TOLERANCE, "with a killed member")


if __name__ == "__main__":
    main()
