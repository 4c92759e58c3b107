#!/usr/bin/python3
"""Local SGD: the weights depend only on the job and the step, not on the number of tasks and on failures. The arithmetic is
compared with numpy, which shares no code with the program."""
# san: yes
import json
import os
import signal
import subprocess
import sys
import urllib.request

import clicks
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kit import (GUARD, Gate, ROOT, Skip, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, free_ports, main, read_tree, start,
                 test, tf_config, with_faults, workdir)
from random_net import random_net

sys.path.append(os.path.join(ROOT, "test", "data"))
sys.path.append(os.path.join(ROOT, "test", "chaos"))
import sample_log  # noqa: E402
import tfrecord  # noqa: E402

LOCAL = {"mode": "local_sgd", "groups": 4, "sync_every": 5, "outer": {"learning_rate": 0.7, "momentum": 0.9}}
# sync, then local SGD twice, then sync
PHASES = [{"mode": "sync", "until_step": 6}, {**LOCAL, "until_step": 19, "groups": 2},
          {**LOCAL, "until_step": 25, "sync_every": 3, "inner_slots": "reset"}, {"mode": "sync"}]
ADAMW = {"type": "adamw", "momentum": None, "learning_rate": 0.002, "weight_decay": 0.01, "scaling": None,
         "schedule": {"type": "cosine", "warmup_steps": 3}}


def job_with(phases, steps=30, lanes=4, **changes):
    """A job that logs every step and keeps all checkpoints."""
    return {"train": {"epochs": None, "steps": steps, "lanes": lanes, "log_every_steps": 1, "deadline_seconds": 10,
                      "phases": phases},
            "optimizer": ADAMW, "checkpoint": {"every_steps": 7, "every_seconds": 0, "max_to_keep": 100}, **changes}


def checkpoints(folder):
    return read_tree(os.path.join(folder, "run", "checkpoints"))


def losses(tasks):
    """Returns {step: loss} from the logs of all tasks: the coordinator logs a step, or a task that knows its line after the
    coordinator has died."""
    return {k: r["loss"] for t in tasks for k, r in t.steps().items()}


def run(n, job, net=None):
    """Trains in a new folder; returns the content of the checkpoints, and the losses."""
    folder = workdir()
    if net is not None:
        net(os.path.join(folder, job["model"]["onnx"]))
    path = digits_job(folder, **job)
    tasks = start(path, n) if n > 1 else [Task(path, args=("--devices", "cpu:1"))]
    expect_codes(tasks, [0] * n)
    return checkpoints(folder), losses(tasks)


def same(a, b, what):
    """A checkpoint that is due while the one before is written comes with the next state; only the last one always exists."""
    assert a[1] == b[1], "%s: losses differ: %s and %s" % (what, a[1], b[1])
    assert max(a[0]) == max(b[0]), "%s: files %s and %s" % (what, sorted(a[0]), sorted(b[0]))
    for name in a[0].keys() & b[0].keys():
        assert a[0][name] == b[0][name], "%s: %s differs" % (what, name)


def manifest(files, step):
    return json.loads(files["step-%08d/manifest.json" % step])


# ---- the number of tasks ----

@test
def four_groups_on_one_two_and_four_tasks_have_equal_bytes():
    job = job_with([LOCAL])
    one = run(1, job)
    assert list(one[1]) == [5, 10, 15, 20, 25, 30], one[1]
    same(one, run(2, job), "2 tasks with 2 groups")
    same(one, run(4, job), "4 tasks with 1 group")
    same(one, run(4, {**job, "communication": {"shared_memory": False}}), "4 tasks over TCP")


@test
def groups_of_several_tasks_have_the_bytes_of_one_task():
    two = job_with([{**LOCAL, "groups": 2}], lanes=8)
    one = run(1, two)
    for n in (2, 4, 8):
        same(one, run(n, two), "%d tasks, 2 groups" % n)
    same(one, run(8, {**two, "communication": {"shared_memory": False}}), "8 tasks over TCP, 2 groups")
    whole = job_with([{**LOCAL, "groups": 1}])
    same(run(1, whole), run(4, whole), "4 tasks, 1 group")


@test
def running_averages_random_numbers_clipping_and_average_of_weights_are_equal_on_any_number_of_tasks():
    job = job_with([{**LOCAL, "groups": 2}], model={"onnx": "random.onnx", "batch_norm": "train"})
    job["train"]["clip_norm"] = 0.5
    job["optimizer"] = {**ADAMW, "average": {"decay": 0.9}}
    one = run(1, job, random_net)
    assert len(set(one[1].values())) == 6, "the network does not train"
    same(one, run(2, job, random_net), "2 tasks")
    same(one, run(4, job, random_net), "4 tasks")


@test
def rows_of_embedding_tables_are_equal_on_any_number_of_tasks():
    source = clicks.make_data(os.path.join(workdir(), "data"))

    def trained(n, name):
        folder = workdir()
        path = clicks.job_file(folder, source, optimizer=clicks.OPTIMIZERS[name], train={
            "phases": [{"mode": "sync", "until_step": 5}, {**LOCAL, "groups": 2, "until_step": 24}, {"mode": "sync"}]})
        tasks = start(path, n) if n > 1 else [Task(path, args=("--devices", "cpu:1"))]
        expect_codes(tasks, [0] * n)
        return read_tree(os.path.join(folder, "checkpoints")), losses(tasks)

    for name in ("adagrad", "adam, lazy rows", "adamw, average"):
        one = trained(1, name)
        same(one, trained(2, name), name + ", 2 tasks")
        same(one, trained(4, name), name + ", 4 tasks")


@test
def class_weights_and_other_optimizers_are_equal_on_any_number_of_tasks():
    for optimizer in ({"type": "lamb", "learning_rate": 0.01, "momentum": None}, {"type": "sgd", "learning_rate": 0.05, "momentum": None},
                      {"type": "rmsprop", "learning_rate": 0.001, "momentum": 0.5, "centered": True}):
        job = job_with([LOCAL], model={"loss": {"class_weights": [1, 2, 1, 1, 0.5, 1, 1, 1, 1, 1]}})
        job["optimizer"] = {**optimizer, "scaling": None}
        one = run(1, job)
        same(one, run(2, job), optimizer["type"] + ", 2 tasks")
        same(one, run(4, job), optimizer["type"] + ", 4 tasks")


@test
def bfloat16_is_equal_on_any_number_of_tasks():
    with open("/proc/cpuinfo") as f:
        if "avx512_bf16" not in f.read():
            raise Skip("the processor has no avx512_bf16")
    job = job_with([{**LOCAL, "groups": 2}])
    job["train"]["precision"] = "bfloat16"
    one = run(1, job)
    same(one, run(2, job), "2 tasks")
    same(one, run(4, job), "4 tasks")


@test
def phases_sync_local_and_sync_are_equal_on_one_two_and_four_tasks():
    job = job_with(PHASES)
    one = run(1, job)
    assert list(one[1]) == [1, 2, 3, 4, 5, 6, 11, 16, 19, 22, 25, 26, 27, 28, 29, 30], one[1]
    saved = sorted({int(name[5:13]) for name in one[0]})
    assert all(k <= 6 or k >= 25 or k in (11, 16, 19, 22) for k in saved), "checkpoints between outer steps: %s" % saved
    last = manifest(one[0], 30)
    assert (last["phase"], last.get("groups"), last["outer_step"]) == (4, None, 5), last
    for k in set(saved) & {11, 16, 19}:
        m = manifest(one[0], k)
        assert (m["phase"], m["groups"], m["outer_step"]) == (2, 2, {11: 1, 16: 2, 19: 3}[k]), m
    same(one, run(2, job), "2 tasks")
    same(one, run(4, job), "4 tasks")


# ---- the rule ----

@test
def quadratic_rule_takes_outer_steps_where_its_formula_says():
    rule = {"rule": "quadratic", "base": 2, "alpha": 0.004}
    job = job_with([{"mode": "sync", "until_step": 4}, {**LOCAL, "sync_every": rule}], steps=60)
    job["optimizer"] = {**ADAMW, "schedule": {"type": "polynomial", "warmup_steps": 0, "power": 1}}
    files, seen = run(1, job)
    expected, step = list(range(1, 5)), 4
    while step < 60:  # the rate falls from 0.002 at step 1 to 0 at step 60; H is from the rate of the first step
        rate = 0.002 * (1 - step / 59)
        step = min(60, step + (60 if rate == 0 else max(2, int((0.004 / rate) ** 2))))
        expected.append(step)
    assert list(seen) == expected, "%s, expected %s" % (list(seen), expected)
    assert len({b - a for a, b in zip(expected[4:], expected[5:])}) > 3, "the periods have equal lengths"
    same((files, seen), run(4, job), "4 tasks")


# ---- numpy ----

HIDDEN = 16


def tanh_net(path):
    rng = np.random.default_rng(5)
    shapes = {"w1": (64, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("Gemm", ["flat", "w1", "b1"], ["h"]),
         helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("Gemm", ["t", "w2", "b2"], ["logits"])],
        "tanh", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array((rng.standard_normal(s) * 0.2).astype(np.float32), n) for n, s in shapes.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def digits():
    folder = os.path.join(ROOT, "config", "digits")
    samples = [s for name in ("digits-train-0.tfrecord", "digits-train-1.tfrecord")
               for s in tfrecord.read(os.path.join(folder, name))]
    images = np.stack([np.frombuffer(s["image"][1][0], np.uint8) for s in samples]) * 0.0625
    return images, np.array([s["label"][1][0] for s in samples])


def oracle(weights, groups, every, outer_steps, batch, rate, resets):
    """DiLoCo with Adam in double precision; returns all that a checkpoint has."""
    images, labels = digits()
    theta = {n: w.astype(np.float64) for n, w in weights.items()}
    zeros = {n: np.zeros_like(w) for n, w in theta.items()}
    m, v, velocity = dict(zeros), dict(zeros), dict(zeros)
    for outer in range(outer_steps):
        models = []
        for g in range(groups):
            w, gm, gv = dict(theta), dict(m), dict(v)
            for k in range(outer * every, (outer + 1) * every):
                at = slice(k * batch + g * batch // groups, k * batch + (g + 1) * batch // groups)
                x, y = images[at], labels[at]
                t = np.tanh(x @ w["w1"] + w["b1"])
                z = t @ w["w2"] + w["b2"]
                p = np.exp(z - z.max(1, keepdims=True))
                dz = p / p.sum(1, keepdims=True)
                dz[np.arange(len(y)), y] -= 1
                dz /= len(y)
                dh = (dz @ w["w2"].T) * (1 - t * t)
                grads = {"w1": x.T @ dh, "b1": dh.sum(0), "w2": t.T @ dz, "b2": dz.sum(0)}
                count = k + 1 - (outer * every if resets else 0)
                for n, d in grads.items():
                    gm[n] = 0.9 * gm[n] + 0.1 * d
                    gv[n] = 0.999 * gv[n] + 0.001 * d * d
                    w[n] = w[n] - rate * (gm[n] / (1 - 0.9 ** count)) / (np.sqrt(gv[n] / (1 - 0.999 ** count)) + 1e-8)
            models.append((w, gm, gv))
        for n in theta:
            delta = np.mean([theta[n] - w[n] for w, _, _ in models], axis=0)
            velocity[n] = 0.9 * velocity[n] + delta
            theta[n] = theta[n] - 0.7 * (delta + 0.9 * velocity[n])
            m[n], v[n] = (np.zeros_like(m[n]), np.zeros_like(v[n])) if resets else (
                np.mean([x[i][n] for x in models], axis=0) for i in (1, 2))
    slots = {"exp_avg": m, "exp_avg_sq": v, "outer_momentum": velocity}
    return {**theta, **{"%s/%s" % (n, s): x for s, of in slots.items() for n, x in of.items()}}


def read_safetensors(blob):
    n = int.from_bytes(blob[:8], "little")
    return {k: np.frombuffer(blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], "<f4").reshape(v["shape"])
            for k, v in json.loads(blob[8:8 + n]).items() if k != "__metadata__"}


def compare_with_numpy(inner_slots):
    folder = workdir()
    tanh_net(os.path.join(folder, "tanh.onnx"))
    path = digits_job(folder, **job_with(
        [{**LOCAL, "groups": 2, "sync_every": 4, "inner_slots": inner_slots}, {"mode": "sync"}][:1], steps=20,
        model={"onnx": "tanh.onnx"}, data={"shuffle": False}))
    with open(path) as f:
        job = json.load(f)
    job["optimizer"] = {"type": "adam", "learning_rate": 0.01}
    job["train"]["clip_norm"] = 0
    # the outer momentum becomes zero when the phase ends: the job ends after a phase that follows
    job["train"]["phases"][0]["until_step"] = 24
    job["train"]["phases"].append({"mode": "sync"})
    job["train"]["steps"] = 25
    job["checkpoint"]["every_steps"] = 20
    with open(path, "w") as f:
        json.dump(job, f)
    expect_codes(start(path, 2), [0, 0])
    files = checkpoints(folder)
    ours = {**read_safetensors(files["step-00000020/model.safetensors"]),
            **read_safetensors(files["step-00000020/optimizer.safetensors"])}
    weights = {i.name: numpy_helper.to_array(i) for i in onnx.load(os.path.join(folder, "tanh.onnx")).graph.initializer}
    expected = oracle(weights, 2, 4, 5, 64, 0.01, inner_slots == "reset")
    assert ours.keys() == expected.keys(), (sorted(ours), sorted(expected))
    for name, x in expected.items():
        worst = np.abs(ours[name] - x).max() / max(np.abs(x).max(), 1e-6)
        assert worst < 2e-4, "%s: relative difference %g" % (name, worst)
    moved = max(np.abs(expected[n] - weights[n]).max() for n in weights)
    assert moved > 0.05, "the weights moved by %g only" % moved


@test
def five_outer_steps_equal_numpy_with_averaged_slots():
    compare_with_numpy("average")


@test
def five_outer_steps_equal_numpy_with_slots_that_are_reset():
    compare_with_numpy("reset")


# ---- failures ----

def train_with_deaths(job, lives, n=4, min_world=4):
    """Trains in a new folder. lives: {rank: faults of its processes}; a process that its fault has killed is started again
    without a fault. Returns as run()."""
    folder = workdir()
    path = digits_job(folder, **job, elastic={"min_world": min_world, "rejoin_seconds": 5})
    ports, lives = free_ports(n), dict(lives)
    env = {"TRAINERD_LOG_LEVEL": "debug"}  # at level info only the leader logs steps
    args = ("--devices", "cpu:1", "--sample-log", os.path.join(folder, "samples.txt"))
    tasks = [Task(path, tf_config(ports, i), args, {**env, "TRAINERD_FAULT": lives[i]} if i in lives else env, "worker %d" % i)
             for i in range(n)]
    every = list(tasks)
    for rank in lives:
        assert tasks[rank].wait() == -signal.SIGKILL, tasks[rank].log()
        tasks[rank] = Task(path, tf_config(ports, rank), args, env, "worker %d, second life" % rank)
        every.append(tasks[rank])
    expect_codes(tasks, [0] * n)
    history = sample_log.History([life for i in range(n) for life in sample_log.read(
        os.path.join(folder, "samples.worker-%d.txt" % i), "worker %d" % i)], job["train"]["lanes"])
    assert not history.problems, history.problems
    assert [step for _, step, *_ in history.chain] == list(range(1, job["train"]["steps"] + 1)), history.chain
    assert history.epochs(22, 64, 1438) == (0, 0), "samples repeated and lost: %s" % (history.epochs(22, 64, 1438),)
    return checkpoints(folder), losses(every)


def check_deaths(faults, job, undisturbed, ranks=(1, 0)):
    for i, fault in enumerate(faults):
        rank = ranks[i % len(ranks)]
        got = train_with_deaths(job, {rank: fault})
        same(undisturbed, got, "worker %d with %s" % (rank, fault))


@test
def task_killed_in_each_step_of_a_period_leaves_the_bytes_unchanged():
    job = job_with([{**LOCAL, "groups": 2}], steps=15)
    check_deaths(["train.inner=kill@%d" % k for k in range(5, 11)], job, run(1, job))


@test
def task_killed_at_each_point_of_an_outer_step_leaves_the_bytes_unchanged():
    job = job_with([LOCAL], steps=15)
    points = ("train.reduce", "train.commit", "train.update", "train.update_middle", "train.update_end")
    check_deaths(["%s=kill@2" % point for point in points], job, run(1, job))


@test
def smaller_group_trains_the_groups_of_a_dead_task():
    job = job_with([LOCAL], steps=30)
    folder = workdir()
    path = digits_job(folder, **job, elastic={"min_world": 3, "rejoin_seconds": 0.1})
    ports = free_ports(4)
    tasks = start(path, 4, ports=ports, env={"TRAINERD_LOG_LEVEL": "debug"}, faults={2: "train.inner=kill@6"}, together=True)
    assert tasks[2].wait() == -signal.SIGKILL, tasks[2].log()
    rest = [tasks[0], tasks[1], tasks[3]]
    expect_codes(rest, [0, 0, 0])
    assert any("trains 2 of them" in r["message"] for t in rest for r in t.events("note")), tasks[0].log()
    same(run(1, job), (checkpoints(folder), losses(rest)), "after the death of worker 2")


@test
def task_that_joins_receives_the_state_of_the_outer_step():
    job = job_with([LOCAL], steps=40)
    folder = workdir()
    path = digits_job(folder, **job, elastic={"min_world": 3, "rejoin_seconds": 0.1}, detection={"stuck_factor": 0})
    ports = free_ports(4)
    env, gate = {"TRAINERD_LOG_LEVEL": "debug"}, Gate()
    tasks = [Task(path, tf_config(ports, i), ("--devices", "cpu:1"), with_faults(env, gate.holds_step(7)), "worker %d" % i)
             for i in range(3)]
    tasks[0].until_step(5)
    late = Task(path, tf_config(ports, 3), ("--devices", "cpu:1"), with_faults(env, gate.fault("data.open")), "worker 3")
    gate.open_when_joined([*tasks, late], ports[0], phases=("", "opening"))
    expect_codes([*tasks, late], [0] * 4)
    received = [r for r in late.events("note") if "received the state after step" in r["message"]]
    assert len(received) == 1 and int(received[0]["message"].split(" step ")[1].split()[0]) % 5 == 0, late.log()
    same(run(1, job), (checkpoints(folder), losses([*tasks, late])), "after worker 3 joined")


@test
def job_stopped_in_the_second_phase_continues_there():
    job = job_with(PHASES, detection={"stuck_factor": 0}, checkpoint={"every_steps": 0, "every_seconds": 0, "max_to_keep": 100})
    folder = workdir()
    path = digits_job(folder, **job)
    gate = Gate()
    first = start(path, 2, env={"TRAINERD_FAULT": gate.fault("train.forward", 12)})
    first[0].until_step(11)
    for t in first:
        t.signal(signal.SIGTERM)
        t.until(lambda t: t.events("signal"))
    gate.open()
    expect_codes(first, [143, 143])
    saved = max(int(name[5:13]) for name in checkpoints(folder))
    assert saved in (11, 16, 19), "saved after step %d, which is no outer step of the second phase" % saved
    second = start(path, 4)
    expect_codes(second, [0] * 4)
    same(run(1, job), (checkpoints(folder), {**losses(first), **losses(second)}), "after a stop")


@test
def stop_that_waits_longer_than_its_grace_saves_the_last_outer_step():
    job = job_with([{**LOCAL, "sync_every": 20}], steps=40,
                   checkpoint={"every_steps": 0, "every_seconds": 0, "max_to_keep": 100})
    job["train"]["grace_seconds"] = 0.2
    folder = workdir()
    path = digits_job(folder, **job)
    # the second period would take 8 s; a step must end within a second after it is aborted
    first = start(path, 2, env={"TRAINERD_FAULT": "train.forward=delay:400@21+"})
    first[0].until_step(20)
    for t in first:
        t.signal(signal.SIGTERM)
    expect_codes(first, [143, 143])
    assert any("is not complete after 0.2 s" in line for line in first[0].lines), first[0].log()
    assert {name[5:13] for name in checkpoints(folder)} == {"00000020"}, sorted(checkpoints(folder))
    second = start(path, 2)
    expect_codes(second, [0, 0])
    same(run(1, job), (checkpoints(folder), {**losses(first), **losses(second)}), "after a stop")


@test
def group_killed_between_outer_steps_continues_from_the_checkpoint_of_the_last_one():
    job = job_with([LOCAL], steps=30)
    folder = workdir()
    path = digits_job(folder, **job)
    ports = free_ports(2)
    tasks = [Task(path, tf_config(ports, i), ("--devices", "cpu:1"), {"TRAINERD_FAULT": "train.inner=kill@23"} if i == 1 else None,
                  "worker %d" % i) for i in range(2)]
    assert tasks[1].wait() == -signal.SIGKILL, tasks[1].log()
    tasks[0].kill()  # it waits for the other one
    assert max(checkpoints(folder)) < "step-00000021", sorted(checkpoints(folder))
    again = start(path, 4)
    expect_codes(again, [0] * 4)
    undisturbed = run(1, job)
    same((undisturbed[0], {}), (checkpoints(folder), {}), "after the death of all tasks")
    assert {**losses(tasks), **losses(again)} == undisturbed[1]


@test
def local_sgd_is_added_to_a_job_that_has_trained_without_phases():
    folder = workdir()
    before = job_with([], steps=10)
    before["optimizer"] = {**ADAMW, "schedule": None}
    expect_codes([Task(digits_job(folder, **before), args=("--devices", "cpu:1"))], [0])
    after = job_with([{"mode": "sync", "until_step": 10}, LOCAL], steps=30)
    after["optimizer"] = before["optimizer"]
    path = digits_job(folder, **after)
    tasks = start(path, 2)
    expect_codes(tasks, [0, 0])
    undisturbed = run(1, after)[0]
    for name in ("step-00000030/model.safetensors", "step-00000030/optimizer.safetensors"):
        assert checkpoints(folder)[name] == undisturbed[name], name
    before["train"]["steps"] = 40
    task = Task(digits_job(folder, **before), args=("--devices", "cpu:1"))
    expect_codes([task], [2])
    assert "has the outer momentum of local SGD, but /train/phases has no phase" in task.final_message()


@test
def tasks_of_a_group_with_different_models_end_the_generation_before_the_outer_step():
    folder = workdir()
    path = digits_job(folder, **job_with([{**LOCAL, "groups": 2}]), elastic={"min_world": 4})
    ports = free_ports(4)
    tasks = [Task(path, tf_config(ports, i), ("--devices", "cpu:1"),
                  {"TRAINERD_FAULT": "health.flip_weight@8"} if i == 3 else None, "worker %d" % i) for i in range(4)]
    for t in tasks[2:]:
        assert t.wait() == 138, t.log()
        assert "the tasks of group 1 hold different models after step 10" in t.final_message(), t.log()
        assert "the state after step 5 is valid" in t.final_message(), t.log()
    rest = [Task(path, tf_config(ports, i), ("--devices", "cpu:1"), None, "worker %d, second life" % i) for i in (2, 3)]
    expect_codes(tasks[:2] + rest, [0] * 4)
    undisturbed = run(1, job_with([{**LOCAL, "groups": 2}]))
    same((undisturbed[0], {}), (checkpoints(folder), {}), "after a flipped bit")


# ---- numbers that are not finite ----

def with_nan(policy, phases, faults, n=2, steps=20):
    """Trains with a gradient that a fault makes NaN on tasks; returns the tasks and the folder."""
    folder = workdir()
    path = digits_job(folder, **job_with(phases, steps=steps, health={"non_finite": policy}))
    ports = free_ports(n)
    tasks = [Task(path, tf_config(ports, i), ("--devices", "cpu:1"),
                  {"TRAINERD_FAULT": faults[i], "TRAINERD_LOG_LEVEL": "debug"} if i in faults
                  else {"TRAINERD_LOG_LEVEL": "debug"}, "worker %d" % i) for i in range(n)]
    return tasks, folder


@test
def step_of_a_group_that_is_not_finite_is_skipped_and_named_on_every_task():
    tasks, folder = with_nan("skip", [LOCAL], {1: "health.not_finite@15"})  # its 8th step, of its first group
    expect_codes(tasks, [0, 0])
    for t in tasks:
        skipped = t.events("skipped")
        assert len(skipped) == 1 and skipped[0]["message"].startswith("step 8, lanes 2 to 2 of a local model"), t.log()
    assert max(checkpoints(folder)).startswith("step-00000020")


@test
def step_of_a_group_that_is_not_finite_stops_the_job_with_the_state_of_the_outer_step():
    tasks, folder = with_nan("stop", [LOCAL], {1: "health.not_finite@15"})
    expect_codes(tasks, [2, 2])
    for t in tasks:
        assert "step 8, lanes 2 to 2 of a local model" in t.final_message(), t.log()
        assert "the state after step 5 is kept" in t.final_message(), t.log()
    assert max(checkpoints(folder)).startswith("step-00000005")


@test
def step_of_a_group_that_is_not_finite_sends_all_tasks_back_to_the_checkpoint():
    tasks, folder = with_nan("restore", [LOCAL], {1: "health.not_finite@25"}, steps=30)  # step 13; saved after step 10
    expect_codes(tasks, [0, 0])
    assert any("all tasks return to the newest checkpoint" in line for line in tasks[0].lines), tasks[0].log()
    undisturbed = run(1, job_with([LOCAL], health={"non_finite": "restore"}))
    same((undisturbed[0], {}), (checkpoints(folder), {}), "after the return to a checkpoint")


# ---- other tasks of the cluster ----

def role(ports, kind, extra=None):
    config = tf_config(ports, 0, extra=extra)
    return {**config, "task": {"type": kind, "index": 0}}


@test
def cluster_with_a_parameter_server_without_tables_trains_with_local_sgd():
    job = job_with([LOCAL], parameter_server={"tables": "none"})
    folder = workdir()
    path = digits_job(folder, **job)
    *ports, ps = free_ports(3)
    extra = {"ps": ["127.0.0.1:%d" % ps]}
    tasks = [Task(path, tf_config(ports, i, extra=extra), ("--devices", "cpu:1"), None, "worker %d" % i) for i in range(2)]
    expect_codes([*tasks, Task(path, role(ports, "ps", extra), (), None, "ps 0")], [0, 0, 0])
    same(run(1, job), (checkpoints(folder), losses(tasks)), "with a ps task")


@test
def evaluator_with_two_replicas_evaluates_the_checkpoints_of_all_phases():
    folder = workdir()
    path = digits_job(folder, **job_with(PHASES))
    ports = free_ports(1)
    expect_codes([Task(path, tf_config(ports, 0), ("--devices", "cpu:1"), None, "worker 0")], [0])
    evaluator = Task(path, role(ports, "evaluator"), ("--devices", "cpu:2"), None, "evaluator 0")
    expect_codes([evaluator], [0])
    evaluated = [r["step"] for r in evaluator.events("eval")]
    assert evaluated == sorted({int(name[5:13]) for name in checkpoints(folder)}), evaluated


# ---- what users see ----

@test
def status_and_metrics_name_the_phase_and_the_outer_step():
    job = job_with(PHASES, steps=26, detection={"stuck_factor": 0})
    job["optimizer"] = {**ADAMW, "schedule": None}
    folder = workdir()
    path = digits_job(folder, **job)
    port, page = free_ports(2)
    task = Task(path, tf_config([port], 0), ("--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % page),
                {"TRAINERD_FAULT": "train.forward=hang@12"})
    task.until_step(11)
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % page, timeout=GUARD).read().decode()
    seen = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("trainerd_") and "{" not in line)
    assert (seen["trainerd_train_phase"], seen["trainerd_local_groups"]) == ("2", "2"), text
    outer = int(float(seen["trainerd_outer_step"]))
    assert 1 <= outer <= 3, text
    shown = subprocess.run([TRAINERCTL, "status", "127.0.0.1:%d" % port], capture_output=True, text=True, timeout=GUARD)
    assert "phase 2, local SGD with 2 groups, " in shown.stdout, shown.stdout + shown.stderr
    shown = subprocess.run([TRAINERCTL, "status", "--json", "127.0.0.1:%d" % port], capture_output=True, text=True,
                           timeout=GUARD)
    status = json.loads(shown.stdout)
    assert (status["train_phase"], status["groups"]) == (2, 2) and status["outer_step"] >= outer, shown.stdout
    task.kill()


@test
def check_prints_the_steps_and_the_memory_of_each_phase():
    folder = workdir()
    path = digits_job(folder, **job_with(PHASES, lanes=8))
    out = subprocess.run([TRAINERD, "--check", "--job", path], capture_output=True, text=True, timeout=GUARD,
                         env={**os.environ, "TF_CONFIG": json.dumps(tf_config(free_ports(2), 1))})
    plan = json.loads(out.stdout)
    placed = subprocess.run([TRAINERD, "--check", "--job", path], capture_output=True, text=True, timeout=GUARD,
                            env={**os.environ, "TF_CONFIG": json.dumps(tf_config(free_ports(2), 1)), "TRAINERD_LOCATION": "a/b"})
    phase, of_placed = plan["phases"][1], json.loads(placed.stdout)["phases"][1]
    assert of_placed == {**phase, "mine": None}, of_placed  # the group of the task depends on the locations of the others
    assert plan["devices_from"].startswith("auto: 1 of ") or len(plan["devices"]) == 1, plan["devices_from"]
    assert [p["steps"] for p in plan["phases"]] == [[1, 6], [7, 19], [20, 25], [26, 30]], plan["phases"]
    assert [p.get("outer_steps") for p in plan["phases"]] == [None, 3, 2, None], plan["phases"]
    assert [p.get("mine") for p in plan["phases"]] == [None, [1, 1], [2, 3], None], plan["phases"]
    model = plan["plan"]["state_bytes"] * 3 // 4  # adamw: weights and two slots; the state has the outer momentum too
    assert [p.get("model_bytes") for p in plan["phases"]][1:3] == [plan["phases"][1]["model_bytes"], 2 * plan["phases"][1]["model_bytes"]]
    assert abs(plan["phases"][1]["model_bytes"] - model) < 8192, (plan["phases"], model)


# ---- mistakes ----

def refused(message, devices="cpu:1", **job):
    folder = workdir()
    task = Task(digits_job(folder, **job_with(**job)), args=("--devices", devices))
    assert task.wait() == 2, task.log()
    assert message in task.final_message(), task.final_message()


@test
def combinations_that_local_sgd_does_not_support_are_refused_with_place_and_remedy():
    refused("/train/phases/0/mode: \"local_sgd\" needs one replica in each task", devices="cpu:2", phases=[LOCAL])
    refused("/train/phases/0/until_step: the job ends after step 30, so phase 1 has no steps",
            phases=[{**LOCAL, "until_step": 30}, {"mode": "sync"}])
    refused("/train/phases/0/groups: expected a power of two, found 3", phases=[{**LOCAL, "groups": 3}])
    refused("/train/phases/0/groups: 8 groups cannot have equal aligned blocks of 4 lanes", phases=[{**LOCAL, "groups": 8}])


@test
def tables_of_parameter_servers_are_refused_with_local_sgd():
    refused("/train/phases/0/mode: groups of local_sgd have weights of their own, but the parameters of /parameter_server are shared",
            phases=[LOCAL], parameter_server={})


if __name__ == "__main__":
    main()
