"""train.py - whole runs of the program on one GPU, with the demo's network and data. Lines as those of test/e2e.

    train.py [--emulated] [TEST...]    --emulated: on the emulated GPU, shorter"""
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
NEAR = 2e-3       # of a loss, after some steps of float32
LOOSE = 0.1       # the same for shorter numbers
GPU = ("--devices", "cuda:0")


def few(steps=12, **more):
    """A loss of each step, no evaluation, checkpoints."""
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


SOME = 4 if EMULATED else 12  # steps, of runs in every precision


def near(got, want, far, what):
    assert len(got) == len(want), "%s: %d losses, expected %d" % (what, len(got), len(want))
    for k, (a, b) in enumerate(zip(got, want)):
        assert abs(a - b) <= far * (1 + abs(b)), "%s: loss %d is %g, expected %g" % (what, k + 1, a, b)


def precisions():
    schema = subprocess.run([kit.TRAINERD, "--schema"], capture_output=True, text=True, timeout=60, check=True).stdout
    return json.loads(schema)["properties"]["train"]["properties"]["precision"]["enum"]


def cpu_losses(steps=12):
    return losses(run(("--devices", "cpu:1"), **few(steps)))


# ---- one process ----

def learns(precision):
    if EMULATED:  # which takes seconds for a step of short numbers
        got = losses(run(**few(6, train={"precision": precision, "lanes": 1})))
        assert got[-1] < got[0], "%s: %s" % (precision, got)
        return
    task = run(train={"precision": precision}, checkpoint=None, summary=None)
    last = task.events("eval")[-1]
    assert last["accuracy"] >= ACCURACY, "%s: %s" % (precision, last)


@test
def digits_are_learned_in_every_precision():
    for precision in precisions():
        learns(precision)


@test
def losses_are_those_of_a_cpu():
    want = cpu_losses(SOME)
    for precision in precisions():
        got = losses(run(**few(SOME, train={"precision": precision})))
        near(got, want, NEAR if precision == "float32" else LOOSE, precision)


@test
def a_run_is_the_same_bits_again():
    for precision in precisions():
        a, b = (losses(run(**few(SOME, train={"precision": precision}))) for _ in range(2))
        assert a == b, precision


@test
def killed_and_started_again_it_ends_as_if_nothing_had_been():
    folder, want = workdir(), losses(run(**few(16)))
    slow = {"TRAINERD_FAULT": "train.forward=delay:50@1+"}
    task = Task(digits_job(folder, **few(16)), args=GPU, env=slow)
    task.until_step(9, 60)
    task.signal(signal.SIGKILL)
    task.wait()
    back = run(folder=folder, **few(16))
    first = min(back.steps())
    assert 5 <= first <= 13, first
    assert losses(back) == want[first - 1:], "behind step %d" % first


@test
def a_checkpoint_goes_from_cpu_to_gpu_and_back():
    want, folder = cpu_losses(), workdir()
    run(("--devices", "cpu:1"), folder, **few(4))
    there = run(GPU, folder, **few(8))
    back = run(("--devices", "cpu:1"), folder, **few(12))
    assert min(there.steps()) == 5 and min(back.steps()) == 9
    near(losses(there) + losses(back), want[4:], NEAR, "CPU, GPU, CPU")


# ---- two processes on one GPU: NCCL takes them for two hosts if their names for the host differ ----

def as_host(i):
    return {"NCCL_HOSTID": "host-%d" % i}


def two(job, ports, env=None):
    return [Task(job, tf_config(ports, i), GPU, dict(as_host(i), **(env or {})), "worker %d" % i) for i in range(2)]


@test
def two_processes_on_one_gpu_sum_up_by_nccl():
    want = cpu_losses()
    tasks = two(digits_job(workdir(), **few()), free_ports(2))
    expect_codes(tasks, [0, 0], 120)
    near(losses(tasks[0]), want, NEAR, "two processes")


@test
def one_of_two_dies_and_comes_back_and_nothing_is_lost():
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
    near(losses(tasks[0]), want, NEAR, "with a death")


if __name__ == "__main__":
    main()
