#!/usr/bin/python3
"""Codes of gradients with residuals (top_k, power_sgd): weights and residuals depend only on the job and the step, not on the
number of tasks and on failures. The arithmetic of the steps is compared with numpy, which shares no code with the program."""
# san: yes
import json
import math
import os
import signal
import subprocess
import sys

import clicks
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kit import (GUARD, ROOT, TRAINERCTL, TRAINERD, Gate, Task, digits_job, expect_codes, free_ports, main,
                 read_tree, sample, start, test, tf_config, with_faults, workdir, writes_every_checkpoint)
from random_net import random_net

sys.path.append(os.path.join(ROOT, "test", "data"))
sys.path.append(os.path.join(ROOT, "test", "chaos"))
import sample_log  # noqa: E402
import tfrecord  # noqa: E402

TCP = {"shared_memory": False}
ALONE = ("--devices", "cpu:1")
TOP_K = {"code": "top_k", "groups": 4, "fraction": 0.05}
POWER_SGD = {"code": "power_sgd", "groups": 4, "rank": 2}
CODES = (TOP_K, POWER_SGD)


def merge(base, changes):
    """As in kit.py, but keeps None, with which digits_job() removes a key."""
    return {**base, **{k: merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
                       for k, v in changes.items()}}


def job_with(compression, steps=12, lanes=8, communication=None, **changes):
    """A job that logs every step, keeps all checkpoints, and copies its state at steps 4, 8, ..."""
    compression = {"min_bytes": 0, "copy_every_steps": 4, **compression}
    return merge({"train": {"epochs": None, "steps": steps, "lanes": lanes, "log_every_steps": 1, "deadline_seconds": 10},
                  "optimizer": {"schedule": None},
                  "communication": {"compression": compression, **(communication or {})},
                  "checkpoint": {"every_steps": 5, "every_seconds": 0, "max_to_keep": 100}}, changes)


def over_tcp(job):
    return merge(job, {"communication": TCP})


def checkpoints(folder):
    return read_tree(os.path.join(folder, "run", "checkpoints"))


def losses(tasks):
    """Returns {step: loss} of all tasks; a step that was trained again has the same loss."""
    out = {}
    for t in tasks:
        for r in t.events("step"):
            assert out.setdefault(r["step"], r["loss"]) == r["loss"], "step %d has two losses" % r["step"]
    return out


def run(n, job, net=None, devices="cpu:1", missing=0):
    """Trains with n tasks in a new folder, of which the last `missing` never start; returns the content of the checkpoints,
    and the losses."""
    folder = workdir()
    if net is not None:
        net(os.path.join(folder, job["model"]["onnx"]))
    if missing > 0:
        job = merge(job, {"elastic": {"min_world": n - missing, "rejoin_seconds": 0.1}})
    path = digits_job(folder, **job)
    ports = free_ports(n)
    tasks = [Task(path, tf_config(ports, i) if n > 1 else None, ("--devices", devices), {"TRAINERD_LOG_LEVEL": "debug"},
                  "worker %d" % i) for i in range(n - missing)]
    expect_codes(tasks, [0] * len(tasks))
    return checkpoints(folder), losses(tasks)


def last(files):
    return {name: files[name] for name in files if name.startswith(max(files).split("/")[0])}


def same(a, b, what):
    """Compares the last checkpoint, which always exists, and the losses."""
    assert a[1] == b[1], "%s: losses differ: %s and %s" % (what, a[1], b[1])
    ours, theirs = last(a[0]), last(b[0])
    assert sorted(ours) == sorted(theirs), "%s: files %s and %s" % (what, sorted(ours), sorted(theirs))
    for name in ours:
        assert ours[name] == theirs[name], "%s: %s differs" % (what, name)


def tensors_of(blob):
    n = int.from_bytes(blob[:8], "little")
    return {k: np.frombuffer(blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], "<f4").reshape(v["shape"])
            for k, v in json.loads(blob[8:8 + n]).items() if k != "__metadata__"}


def slots(files, step):
    return tensors_of(files["step-%08d/optimizer.safetensors" % step])


def manifest(files, step):
    return json.loads(files["step-%08d/manifest.json" % step])


# ---- the number of tasks ----

def check_worlds(code):
    job = job_with(code)
    one = run(1, job)
    assert manifest(one[0], 12)["compression"] == code["code"] and manifest(one[0], 12)["residual_groups"] == 4
    residuals = [x for name, x in slots(one[0], 12).items() if "/residual." in name]
    assert len(residuals) >= 8 and sum(np.any(x != 0) for x in residuals) >= 8, sorted(slots(one[0], 12))
    same(one, run(2, job), "2 tasks")
    same(one, run(4, over_tcp(job), missing=1), "3 tasks over TCP")
    same(one, run(4, over_tcp(job)), "4 tasks over TCP")
    same(one, run(4, job), "4 tasks in one memory")


@test
def top_k_has_equal_bytes_on_one_to_four_tasks():
    check_worlds(TOP_K)


@test
def power_sgd_has_equal_bytes_on_one_to_four_tasks():
    check_worlds(POWER_SGD)


@test
def any_number_of_groups_fraction_and_rank_has_equal_bytes_on_any_number_of_tasks():
    seen = set()
    for changes in ({"groups": 8}, {"groups": 4, "fraction": 1}, {"groups": 8, "fraction": 0.001}):
        job = job_with({**TOP_K, **changes})
        one = run(1, job)
        seen.add(one[0]["step-00000012/model.safetensors"])
        same(one, run(4, over_tcp(job), missing=1), "%s, 3 tasks over TCP" % changes)
    for changes in ({"groups": 8, "rank": 1}, {"rank": 5}):
        job = job_with({**POWER_SGD, **changes})
        one = run(1, job)
        seen.add(one[0]["step-00000012/model.safetensors"])
        same(one, run(4, over_tcp(job)), "%s, 4 tasks over TCP" % changes)
    assert len(seen) == 5, "a key changed no bit"


@test
def tasks_with_several_replicas_have_the_bytes_of_one_replica():
    for code in CODES:
        job = job_with(code)
        one = run(1, job)
        same(one, run(1, job, devices="cpu:4"), "1 task with 4 replicas")
        same(one, run(2, over_tcp(job), devices="cpu:2"), "2 tasks with 2 replicas over TCP")


@test
def all_numbers_of_top_k_are_the_float32_sums_of_groups():
    """With fraction 1 nothing remains, and sums of groups of one lane are sums of lanes: the bytes of a job without a code."""
    coded = run(1, job_with({**TOP_K, "groups": 8, "fraction": 1}))
    plain = run(1, job_without())
    assert tensors_of(last(coded[0])["step-00000012/model.safetensors"]).keys() == tensors_of(
        last(plain[0])["step-00000012/model.safetensors"]).keys()
    assert coded[0]["step-00000012/model.safetensors"] == plain[0]["step-00000012/model.safetensors"] and coded[1] == plain[1]
    assert not any(np.any(x) for name, x in slots(coded[0], 12).items() if "/residual." in name), "something was left"


def job_without(**changes):
    job = job_with({}, **changes)
    job["communication"].pop("compression")
    return job


@test
def random_numbers_running_averages_and_clipping_are_equal_on_any_number_of_tasks():
    for code in CODES:
        job = job_with(code, model={"onnx": "random.onnx", "batch_norm": "train"}, train={"clip_norm": 0.5},
                       optimizer={"average": {"decay": 0.9}})
        one = run(1, job, random_net)
        same(one, run(2, over_tcp(job), random_net), "2 tasks over TCP")
        same(one, run(4, job, random_net), "4 tasks")


@test
def rows_of_embedding_tables_stay_float32_and_are_equal_on_any_number_of_tasks():
    source = clicks.make_data(os.path.join(workdir(), "data"))
    for code in sample(CODES):
        files = []
        for n in (1, 2, 4):
            folder = workdir()
            path = clicks.job_file(folder, source, train={"epochs": None, "steps": 10},
                                   communication={"compression": {**code, "min_bytes": 1024}, "shared_memory": n < 3})
            tasks = start(path, n) if n > 1 else [Task(path, args=ALONE)]
            expect_codes(tasks, [0] * n)
            files.append(read_tree(os.path.join(folder, "checkpoints", "step-00000010")))
        assert files[0] == files[1] and files[0] == files[2], code
        names = {name.split("/residual.")[0] for name in tensors_of(files[0]["optimizer.safetensors"]) if "/residual." in name}
        assert names and not any("emb" in name or "table" in name for name in names), names


# ---- numpy ----

BATCH, LANES, GROUPS, HIDDEN, RATE, STEPS = 64, 4, 2, 96, 0.5, 5


def dense_net(path):
    """Two layers without bias of 1.5 blocks of top_k, and of a part of a block."""
    rng = np.random.default_rng(5)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w1"], ["h"]),
         helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("MatMul", ["t", "w2"], ["logits"])],
        "dense", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array((rng.standard_normal(s) * 0.2).astype(np.float32), n)
         for n, s in {"w1": (64, HIDDEN), "w2": (HIDDEN, 16)}.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def gradients(w, x, y):
    t = np.tanh(x @ w["w1"])
    z = t @ w["w2"]
    p = np.exp(z - z.max(1, keepdims=True))
    dz = p / p.sum(1, keepdims=True)
    dz[np.arange(len(y)), y] -= 1
    dz /= BATCH
    return {"w1": x.T @ ((dz @ w["w2"].T) * (1 - t * t)), "w2": t.T @ dz}


def digits():
    folder = os.path.join(ROOT, "config", "digits")
    samples = [s for name in ("digits-train-0.tfrecord", "digits-train-1.tfrecord")
               for s in tfrecord.read(os.path.join(folder, name))]
    return (np.stack([np.frombuffer(s["image"][1][0], np.uint8) for s in samples]) * 0.0625,
            np.array([s["label"][1][0] for s in samples]))


def gradients_of_groups(w, images, labels, step):
    """Returns {name: [gradient of group 0, of group 1]}: a group has every lane of its half of the batch."""
    out = {name: [] for name in w}
    for g in range(GROUPS):
        at = slice((step - 1) * BATCH + g * BATCH // GROUPS, (step - 1) * BATCH + (g + 1) * BATCH // GROUPS)
        for name, x in gradients({n: x.astype(np.float64) for n, x in w.items()}, images[at], labels[at]).items():
            out[name].append(x)
    return out


def trained_step_by_step(code):
    """Trains with two tasks, without shuffling, and returns the first weights and the files of a checkpoint of each step."""
    job = job_with(code, STEPS, LANES, model={"onnx": "dense.onnx"}, data={"shuffle": False}, train={"clip_norm": None},
                   checkpoint={"every_steps": 1})
    folder = workdir()
    dense_net(os.path.join(folder, "dense.onnx"))
    path = digits_job(folder, **over_tcp(job))
    with open(path) as f:
        changed = json.load(f)
    changed["optimizer"] = {"type": "sgd", "learning_rate": RATE}
    with open(path, "w") as f:
        json.dump(changed, f)
    expect_codes(start(path, 2, env=writes_every_checkpoint(folder, job["train"]["steps"])), [0, 0])
    first = {i.name: numpy_helper.to_array(i) for i in onnx.load(os.path.join(folder, "dense.onnx")).graph.initializer}
    return first, checkpoints(folder)


def few_differ(got, want, share, what):
    """A number that is as large as the last one that is sent may be sent or not: few numbers may differ."""
    off = np.abs(got - want) > 3e-5 * np.abs(want).max()
    assert off.mean() <= share, "%s: %.2f %% of the numbers differ, by %g at most" % (what, 100 * off.mean(), np.abs(got - want).max())


def top_k_of(x, fraction):
    """Returns what is sent of x: the largest numbers of each 4096."""
    flat, out = x.ravel(), np.zeros(x.size)
    for at in range(0, x.size, 4096):
        block = flat[at:at + 4096]
        kept = np.lexsort((np.arange(block.size), -np.abs(block)))[:math.ceil(fraction * block.size)]
        out[at + kept] = block[kept]
    return out.reshape(x.shape)


@test
def steps_with_top_k_equal_numpy():
    code = {**TOP_K, "groups": GROUPS}
    w, files = trained_step_by_step(code)
    images, labels = digits()
    residuals = {name: [np.zeros(x.shape)] * GROUPS for name, x in w.items()}
    for step in range(1, STEPS + 1):
        ours, held = tensors_of(files["step-%08d/model.safetensors" % step]), slots(files, step)
        for name, grads in gradients_of_groups(w, images, labels, step).items():
            sums = [g + r for g, r in zip(grads, residuals[name])]
            sent = [top_k_of(x, code["fraction"]) for x in sums]
            what = "step %d, %s" % (step, name)
            few_differ((w[name] - ours[name]) / RATE, sum(sent), 0.003, what)
            for g in range(GROUPS):
                few_differ(held["%s/residual.%d" % (name, g)], sums[g] - sent[g], 0.003, "%s, residual %d" % (what, g))
                assert np.any(sums[g] != sent[g]) and np.any(sent[g]), what
        residuals = {name: [held["%s/residual.%d" % (name, g)].astype(np.float64) for g in range(GROUPS)] for name in w}
        w = ours


def orthonormal(p):
    q, r = np.linalg.qr(p)
    return q * np.sign(np.diag(r))


def near(got, want, what):
    assert np.abs(got - want).max() <= 2e-4 * np.abs(want).max(), "%s differs by %g of %g" % (
        what, np.abs(got - want).max(), np.abs(want).max())


@test
def steps_with_power_sgd_equal_numpy():
    code = {**POWER_SGD, "groups": GROUPS}
    w, files = trained_step_by_step(code)
    images, labels = digits()
    residuals = {name: [np.zeros(x.shape)] * GROUPS for name, x in w.items()}
    factors = None
    for step in range(1, STEPS + 1):
        ours, held = tensors_of(files["step-%08d/model.safetensors" % step]), slots(files, step)
        for name, grads in gradients_of_groups(w, images, labels, step).items():
            sums = [g + r for g, r in zip(grads, residuals[name])]
            what, got = "step %d, %s" % (step, name), (w[name].astype(np.float64) - ours[name]) / RATE
            left = [held["%s/residual.%d" % (name, g)] for g in range(GROUPS)]
            near(got + sum(left), sum(sums), what + ", what was sent and what was left")
            assert np.linalg.matrix_rank(got, tol=1e-4 * np.linalg.norm(got)) == code["rank"], what
            if step == 1:  # from random factors
                continue
            p = orthonormal(sum(x @ factors[name].T for x in sums))
            q = sum(x.T @ p for x in sums)
            near(got, p @ q.T, what)
            near(held[name + "/power_sgd_q"], q.T, what + ", Q")
            for g in range(GROUPS):
                near(left[g], sums[g] - p @ (sums[g].T @ p).T, "%s, residual %d" % (what, g))
        residuals = {name: [held["%s/residual.%d" % (name, g)].astype(np.float64) for g in range(GROUPS)] for name in w}
        factors = {name: held[name + "/power_sgd_q"].astype(np.float64) for name in w}
        w = ours


# ---- failures ----

def train_with_deaths(job, lives, n=4):
    """Trains in a new folder. lives: {rank: faults of its processes}; a process that its fault has killed is started again
    without a fault. Returns as run()."""
    folder = workdir()
    path = digits_job(folder, **job, elastic={"min_world": n, "rejoin_seconds": 5})
    ports, lives = free_ports(n), dict(lives)
    env = {"TRAINERD_LOG_LEVEL": "debug"}  # at level info only the leader logs steps
    args = ALONE + ("--sample-log", os.path.join(folder, "samples.txt"))
    tasks = [Task(path, tf_config(ports, i), args, {**env, "TRAINERD_FAULT": lives[i]} if i in lives else env, "worker %d" % i)
             for i in range(n)]
    every = list(tasks)
    for rank in lives:
        assert tasks[rank].wait() == -signal.SIGKILL, tasks[rank].log()
        tasks[rank] = Task(path, tf_config(ports, rank), args, env, "worker %d, second life" % rank)
        every.append(tasks[rank])
    expect_codes(tasks, [0] * n)
    history = sample_log.History([life for i in range(n) for life in sample_log.read(
        os.path.join(folder, "samples.worker-%d.txt" % i), "worker %d" % i)], job["train"]["lanes"], returns=True)
    assert not history.problems, history.problems
    assert [step for _, step, *_ in history.chain] == list(range(1, job["train"]["steps"] + 1)), history.chain
    return checkpoints(folder), losses(every), every


@test
def task_killed_at_each_point_of_a_step_leaves_the_bytes_unchanged():
    for code in CODES:
        job = job_with(code)
        undisturbed = run(1, job)
        points = ("train.bucket@9", "train.update@2", "train.reduce@8", "train.forward@7", "train.commit@6", "train.update@7", "train.update_end@8",
                  "train.copies@2", "train.update_end@4")
        notes = []
        for i, point in sample(enumerate(points), 2):
            rank = i % 2
            *result, tasks = train_with_deaths(over_tcp(job) if i % 3 else job, {rank: point.replace("@", "=kill@")})
            same(undisturbed, result, "worker %d with %s" % (rank, point))
            notes += [r["message"] for t in tasks for r in t.events("note") if "returns from step" in r["message"]]
        # a survivor that holds the step of its copy has nothing to return from
        assert notes and all("to its copy of the state after step " in note for note in notes), notes


@test
def task_killed_while_it_exchanges_leaves_the_bytes_unchanged():
    for code in CODES:
        job = job_with(code)
        undisturbed = run(1, job)
        for fault in ("comm.send=kill@40", "comm.recv=kill@75", "comm.send=kill@61"):
            *result, _ = train_with_deaths(over_tcp(job), {1: fault})
            same(undisturbed, result, fault)


@test
def several_tasks_killed_at_different_steps_leave_the_bytes_unchanged():
    for code in CODES:
        job = job_with(code, 20)
        *result, _ = train_with_deaths(over_tcp(job), {1: "train.reduce=kill@6", 3: "train.update=kill@13"})
        same(run(1, job), result, "workers 1 and 3")


@test
def smaller_group_after_a_death_has_the_bytes_of_the_full_group():
    for code in CODES:
        job = job_with(code, 30)
        folder = workdir()
        path = digits_job(folder, **over_tcp(job), elastic={"min_world": 3, "rejoin_seconds": 0.1})
        ports = free_ports(4)
        tasks = start(path, 4, ports=ports, env={"TRAINERD_LOG_LEVEL": "debug"}, faults={2: "train.commit=kill@7"}, together=True)
        assert tasks[2].wait() == -signal.SIGKILL, tasks[2].log()
        rest = [tasks[0], tasks[1], tasks[3]]
        expect_codes(rest, [0, 0, 0])
        same(run(1, job), (checkpoints(folder), losses(rest)), "after the death of worker 2")


@test
def task_that_joins_changes_no_bit():
    for code in CODES:
        job = merge(job_with(code, 40), {"elastic": {"min_world": 1, "rejoin_seconds": 0.1}, "detection": {"stuck_factor": 0}})
        folder = workdir()
        path = digits_job(folder, **job)
        ports = free_ports(2)
        env, gate = {"TRAINERD_LOG_LEVEL": "debug"}, Gate()
        first = Task(path, tf_config(ports, 0), ALONE, with_faults(env, gate.holds_step(7)), "worker 0")
        first.until_step(6)
        second = Task(path, tf_config(ports, 1), ALONE, with_faults(env, gate.fault("data.open")), "worker 1")
        gate.open_when_joined([first, second], ports[0], phases=("", "opening"))
        expect_codes([first, second], [0, 0])
        assert any("received the state after step" in r["message"] for r in second.events("note")), second.log()
        assert not any("returns from step" in r["message"] for r in first.events("note")), first.log()
        same(run(1, job), (checkpoints(folder), losses([first, second])), "with a task that joined")


def run_here(folder, job, n):
    path = digits_job(folder, **job)
    tasks = start(path, n) if n > 1 else [Task(path, args=ALONE)]
    expect_codes(tasks, [0] * n)
    return tasks


@test
def checkpoint_is_continued_by_another_number_of_tasks():
    for code in CODES:
        job = job_with(code, 20)
        whole, half = run(1, job), merge(job, {"train": {"steps": 10}})
        for before, after in ((1, 4), (4, 2)):
            folder = workdir()
            run_here(folder, over_tcp(half) if before > 1 else half, before)
            run_here(folder, over_tcp(job), after)
            for name, blob in last(whole[0]).items():
                if "manifest" not in name:
                    assert checkpoints(folder)[name] == blob, "%s from %d to %d tasks: %s" % (code, before, after, name)


@test
def all_tasks_killed_continue_from_the_checkpoint():
    for code in CODES:
        job = job_with(code, 20, detection={"stuck_factor": 0})
        folder = workdir()
        path = digits_job(folder, **over_tcp(job))
        ports = free_ports(2)
        first = os.path.join(folder, "run", "checkpoints", "step-00000005")  # is written when step 11 ends
        env = {"TRAINERD_LOG_LEVEL": "debug", "TRAINERD_FAULT": "train.commit=wait:%s@11,train.forward=hang@14" % first}
        tasks = [Task(path, tf_config(ports, i), ALONE, env, "worker %d" % i) for i in range(2)]
        tasks[0].until_step(13)
        for t in tasks:
            t.signal(signal.SIGKILL)
        assert [t.wait() for t in tasks] == [-signal.SIGKILL] * 2
        again = run_here(folder, over_tcp(job), 2)
        begun = [r["step"] for r in again[0].events("resume")]
        assert begun and 5 <= begun[0] <= 10, begun
        same(run(1, job), (checkpoints(folder), losses(tasks + again)), "killed at step 13")


@test
def stopped_task_saves_its_residuals():
    for code in CODES:
        job = job_with(code, 20, checkpoint={"every_steps": 1000}, detection={"stuck_factor": 0})
        folder = workdir()
        path = digits_job(folder, **over_tcp(job))
        ports = free_ports(2)
        gate = Gate()
        env = {"TRAINERD_LOG_LEVEL": "debug", "TRAINERD_FAULT": gate.fault("train.forward", 7)}
        tasks = [Task(path, tf_config(ports, i), ALONE, env, "worker %d" % i) for i in range(2)]
        tasks[0].until_step(6)
        for t in tasks:
            t.signal(signal.SIGTERM)
            t.until(lambda t: t.events("signal"))
        gate.open()
        expect_codes(tasks, [143, 143])
        saved = int(max(checkpoints(folder)).split("/")[0][5:])
        assert 5 < saved < 20, saved
        run_here(folder, job, 1)
        for name, blob in last(run(1, job)[0]).items():
            assert checkpoints(folder)[name] == blob, "%s, stopped after step %d: %s" % (code, saved, name)


@test
def gradient_that_is_not_finite_is_found_through_the_code():
    """One sample has a NaN: in one lane of one step of each epoch all gradients are NaN. The residuals do not change then."""
    source = clicks.make_data(os.path.join(workdir(), "data"))
    for code in CODES:
        results = []
        for n in (1, 2):
            folder = workdir()
            path = clicks.job_file(folder, source, data={"train": os.path.join(source, "bad-train-{feature}.npy")},
                                   train={"epochs": 1}, health={"non_finite": "skip"},
                                   communication={"compression": {**code, "groups": 2, "min_bytes": 1024}, **TCP})
            tasks = start(path, n) if n > 1 else [Task(path, args=ALONE)]
            expect_codes(tasks, [0] * n)
            skipped = [[r["message"].split(":")[0] for r in t.events("skipped")] for t in tasks]
            assert len(skipped[0]) == 1 and skipped[-1] == skipped[0], skipped
            files = read_tree(os.path.join(folder, "checkpoints", "step-00000016"))
            assert all(np.all(np.isfinite(x)) for x in tensors_of(files["optimizer.safetensors"]).values())
            results.append((files["model.safetensors"], files["optimizer.safetensors"], skipped[0]))
        assert results[0] == results[1], (results[0][2], results[1][2])


@test
def job_that_stops_at_a_gradient_that_is_not_finite_keeps_its_residuals():
    """The state before the step is saved, with the residuals of all tasks; a job without the sample continues from it."""
    source = clicks.make_data(os.path.join(workdir(), "data"))
    for code in CODES:
        files = []
        for n in (1, 2):
            folder = workdir()
            path = clicks.job_file(folder, source, data={"train": os.path.join(source, "bad-train-{feature}.npy")},
                                   train={"epochs": 1}, health={"non_finite": "stop"},
                                   communication={"compression": {**code, "groups": 2, "min_bytes": 1024}, **TCP})
            tasks = start(path, n) if n > 1 else [Task(path, args=ALONE)]
            expect_codes(tasks, [2] * n)
            files.append(read_tree(os.path.join(folder, "checkpoints")))
        assert max(files[0]) == max(files[1]), (sorted(files[0]), sorted(files[1]))
        assert files[0][max(files[0])] == files[1][max(files[1])], max(files[0])


# ---- the evaluator, and changes of a job ----

@test
def evaluator_follows_a_job_with_residuals():
    for code in CODES:
        folder = workdir()
        path = digits_job(folder, **over_tcp(job_with(code, 20)))
        ports = free_ports(2)
        tasks = [Task(path, tf_config(ports, i), ALONE, name="worker %d" % i) for i in range(2)]
        follower = Task(path, tf_config(ports, 0, kind="evaluator"), ALONE, name="evaluator 0")
        expect_codes([*tasks, follower], [0, 0, 0])
        ours = [r for t in tasks for r in t.events("eval") if r["step"] == 20]
        theirs = [r for r in follower.events("eval") if r["step"] == 20]
        assert len(theirs) == 1 and (theirs[0]["loss"], theirs[0]["accuracy"]) == (ours[0]["loss"], ours[0]["accuracy"]), (ours, theirs)


@test
def code_with_residuals_is_added_to_a_job_that_has_trained_without():
    files = []
    for n in (1, 2):
        folder = workdir()
        run_here(folder, job_without(steps=10), 1)
        run_here(folder, over_tcp(job_with(TOP_K, 20)), n)
        files.append(checkpoints(folder))
    assert files[0]["step-00000020/model.safetensors"] == files[1]["step-00000020/model.safetensors"]
    assert files[0]["step-00000020/optimizer.safetensors"] == files[1]["step-00000020/optimizer.safetensors"]


@test
def residuals_of_another_code_or_number_of_groups_are_refused():
    folder = workdir()
    run_here(folder, job_with(TOP_K, 10), 1)
    for job in (job_with({**TOP_K, "groups": 8}, 20), job_with(POWER_SGD, 20), job_without(steps=20)):
        task = Task(digits_job(folder, **job), args=ALONE)
        expect_codes([task], [2])
        said = task.events("end")[-1]["message"]
        assert 'has the residuals of 4 groups of the code "top_k"' in said and "use another checkpoint directory" in said, said


@test
def network_is_decided_at_the_first_step_and_kept():
    for code in CODES:
        job = job_with({**code, "when": "network"}, 20)
        folder = workdir()
        run_here(folder, merge(job, {"train": {"steps": 10}}), 1)
        assert manifest(checkpoints(folder), 10)["compression"] == "none"
        run_here(folder, over_tcp(job), 2)
        plain = run(1, job_without(steps=20))
        assert checkpoints(folder)["step-00000020/model.safetensors"] == plain[0]["step-00000020/model.safetensors"], code


@test
def unsupported_jobs_are_refused_with_place_and_remedy():
    ps = {"parameter_server": {"tables": "auto"}}
    for code in CODES:
        for changes, place, remedy in (
                ({"train": {"lanes": None}}, "/communication/compression/groups", "set /train/lanes to a power of two"),
                ({"train": {"phases": [{"mode": "local_sgd", "groups": 2, "sync_every": 2}]}}, "/communication/compression/code",
                 "remove that phase"),
                (ps, "/communication/compression/code", "remove that section")):
            path = digits_job(workdir(), **merge(job_with(code), changes))
            shown = subprocess.run([TRAINERD, "--job", path, "--check", *ALONE], capture_output=True, text=True, timeout=GUARD)
            assert shown.returncode == 2 and place in shown.stderr and remedy in shown.stderr, shown.stderr
    path = digits_job(workdir(), **job_with({**TOP_K, "groups": 2}))
    tasks = start(path, 4)
    expect_codes(tasks, [2] * 4)
    assert "2 groups are too few for 4 replicas" in tasks[0].log(), tasks[0].log()


# ---- bytes ----

@test
def status_has_the_bytes_of_the_formula():
    """Two tasks with one group each: every step sends the message of a group to the other task."""
    folder = workdir()
    dense_net(os.path.join(folder, "dense.onnx"))
    path = digits_job(folder, **over_tcp(job_with({**TOP_K, "groups": 2, "fraction": 0.01}, 100000, 4, model={"onnx": "dense.onnx"},
                                                  optimizer={"learning_rate": 1e-5})))
    ports = free_ports(2)
    tasks = [Task(path, tf_config(ports, i), ALONE, name="worker %d" % i) for i in range(2)]
    tasks[0].until_step(5)
    shown = subprocess.run([TRAINERCTL, "status", "--json", "127.0.0.1:%d" % ports[0]], capture_output=True, text=True,
                           timeout=GUARD)
    for t in tasks:
        t.signal(signal.SIGTERM)
    expect_codes(tasks, [143, 143])
    status = json.loads(shown.stdout)
    message = sum(4 * k + (12 * k + 31) // 32 * 4 for k in (41, 21, 16))  # blocks of 4096, 2048 and 1536 numbers
    message = (message + 63) // 64 * 64
    sent, saved = status["compression_sent_bytes"], status["compression_saved_bytes"]
    steps = sent // message
    assert steps > 0 and sent == steps * message, (sent, message)
    assert sent + saved == steps * (64 + 16) * HIDDEN * 4, (sent, saved)


main()
