#!/usr/bin/python3
"""Compression of gradients: the weights depend only on the job and the step, not on the number of tasks, their links and
failures. The arithmetic of a step is compared with numpy, which shares no code with the program."""
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
import shards
from onnx import TensorProto, helper, numpy_helper

from kit import (GUARD, Gate, ROOT, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, free_ports, main, start, test, tf_config,
                 with_faults, workdir, writes_every_checkpoint)
from random_net import random_net
from test_local_sgd import checkpoints, losses, manifest, same

sys.path.append(os.path.join(ROOT, "test", "data"))
sys.path.append(os.path.join(ROOT, "test", "chaos"))
import sample_log  # noqa: E402
import tfrecord  # noqa: E402

TCP = {"shared_memory": False}
ALONE = ("--devices", "cpu:1")


def merge(base, changes):
    """As in kit.py, but keeps None, with which digits_job() removes a key."""
    return {**base, **{k: merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
                       for k, v in changes.items()}}


def job_with(code, groups=4, steps=12, lanes=8, when="always", min_bytes=0, communication=None, **changes):
    """A job that logs every step and keeps all checkpoints."""
    compression = {"code": code, "groups": groups, "min_bytes": min_bytes, "when": when} if code else None
    job = {"train": {"epochs": None, "steps": steps, "lanes": lanes, "log_every_steps": 1, "deadline_seconds": 10},
           "optimizer": {"schedule": None},
           "communication": {"compression": compression, **(communication or {})},
           "checkpoint": {"every_steps": 5, "every_seconds": 0, "max_to_keep": 100}}
    if not compression:
        job["communication"].pop("compression")
    return merge(job, changes)


def over_tcp(job):
    return merge(job, {"communication": TCP})


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


def tensors(files, step):
    return files["step-%08d/model.safetensors" % step], files["step-%08d/optimizer.safetensors" % step]


# ---- the number of tasks ----

def check_worlds(code):
    job = job_with(code)
    one = run(1, job)
    assert manifest(one[0], 12)["compression"] == code, manifest(one[0], 12)
    assert tensors(one[0], 12) != tensors(run(1, job_with(None))[0], 12), "the code changed no bit"
    same(one, run(2, job), "2 tasks")
    same(one, run(4, over_tcp(job), missing=1), "3 tasks over TCP")
    same(one, run(4, over_tcp(job)), "4 tasks over TCP")


@test
def bfloat16_has_equal_bytes_on_one_to_four_tasks():
    check_worlds("bfloat16")


@test
def float16_has_equal_bytes_on_one_to_four_tasks():
    check_worlds("float16")


@test
def int8_has_equal_bytes_on_one_to_four_tasks():
    check_worlds("int8")


@test
def int4_has_equal_bytes_on_one_to_four_tasks():
    check_worlds("int4")


@test
def any_number_of_groups_has_equal_bytes_on_any_number_of_tasks():
    seen = set()
    for groups in (1, 2, 8):
        job = job_with("int8", groups)
        one = run(1, job)
        seen.add(tensors(one[0], 12))
        same(one, run(4, over_tcp(job)), "%d groups, 4 tasks over TCP" % groups)
        same(one, run(4, job, missing=1), "%d groups, 3 tasks in one memory" % groups)
    assert len(seen) == 3, "the number of groups changed no bit"


@test
def tasks_with_several_replicas_have_the_bytes_of_one_replica():
    job = job_with("int4")
    one = run(1, job)
    same(one, run(1, job, devices="cpu:4"), "1 task with 4 replicas")
    same(one, run(2, over_tcp(job), devices="cpu:2"), "2 tasks with 2 replicas over TCP")


@test
def small_parameters_stay_float32():
    """fc2 of the network has 640 weights, and biases; the seven codes of a float32 job differ in the large layers alone."""
    one = run(1, job_with("int4", min_bytes=1 << 30))
    plain = run(1, job_with(None))
    assert tensors(one[0], 12) == tensors(plain[0], 12) and one[1] == plain[1], "no parameter is that large"


@test
def random_numbers_running_averages_and_clipping_are_equal_on_any_number_of_tasks():
    job = job_with("int8", model={"onnx": "random.onnx", "batch_norm": "train"}, train={"clip_norm": 0.5},
                   optimizer={"average": {"decay": 0.9}})
    one = run(1, job, random_net)
    same(one, run(2, over_tcp(job), random_net), "2 tasks over TCP")
    same(one, run(4, job, random_net), "4 tasks")


@test
def rows_of_embedding_tables_stay_float32_and_are_equal_on_any_number_of_tasks_also_on_ps_tasks():
    source = clicks.make_data(os.path.join(workdir(), "data"))
    compression = {"code": "int8", "groups": 4, "min_bytes": 1024}

    def trained(workers, ps=0, **changes):
        folder = workdir()
        if ps > 0:
            changes["parameter_server"] = {"tables": "auto", "min_shard_bytes": 1024}
        job = clicks.job_file(folder, source, train={"epochs": None, "steps": 10},
                              communication={"compression": compression, "shared_memory": workers < 3}, **changes)
        ports = free_ports(workers + ps)
        cluster = {"worker": ["127.0.0.1:%d" % p for p in ports[:workers]]}
        if ps > 0:
            cluster["ps"] = ["127.0.0.1:%d" % p for p in ports[workers:]]
        tasks = [Task(job, {"cluster": cluster, "task": {"type": kind, "index": i}}, ALONE, name="%s %d" % (kind, i))
                 for kind in cluster for i in range(len(cluster[kind]))]
        expect_codes(tasks, [0] * len(tasks))
        return shards.tensors(os.path.join(folder, "checkpoints", "step-00000010"))

    one = trained(1)
    assert one == trained(2), "2 workers"
    assert one == trained(4), "4 workers over TCP"
    assert one == trained(2, 2), "2 workers and 2 ps"


def wide_net(path):
    """Two layers without bias of 1 MiB and 256 KiB: more than one bucket, and every block of 256 numbers is in one tensor."""
    dense_net(path, 4096)


def dense_net(path, hidden):
    rng = np.random.default_rng(5)
    shapes = {"w1": (64, hidden), "w2": (hidden, 16)}
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w1"], ["h"]),
         helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("MatMul", ["t", "w2"], ["logits"])],
        "dense", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array((rng.standard_normal(s) * (0.2 if s[0] == 64 else 2 / hidden ** 0.5)).astype(np.float32), n)
         for n, s in shapes.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@test
def buckets_that_are_reduced_while_backward_computes_have_the_bytes_of_one_task():
    job = job_with("int8", model={"onnx": "wide.onnx"}, optimizer={"learning_rate": 0.001})
    one = run(1, job, wide_net)
    folder = workdir()
    wide_net(os.path.join(folder, "wide.onnx"))
    tasks = start(digits_job(folder, **over_tcp(job)), 2)
    expect_codes(tasks, [0, 0])
    assert any("reduced while backward computes, in 2 buckets" in r["message"] for r in tasks[0].events("note")), tasks[0].log()
    same(one, (checkpoints(folder), losses(tasks)), "2 tasks with buckets")
    same(one, run(4, over_tcp(job), wide_net, missing=1), "3 tasks with buckets")


@test
def sixteen_tasks_with_larger_buckets_have_the_bytes_of_one_task():
    job = job_with("int8", 16, steps=3, lanes=16, model={"onnx": "wide.onnx"}, optimizer={"learning_rate": 0.001})
    same(run(1, job, wide_net), run(16, over_tcp(job), wide_net), "16 tasks over TCP")


# ---- numpy ----

BATCH, LANES, GROUPS, HIDDEN, RATE = 64, 4, 2, 16, 0.5


def through_bfloat16(x):
    u = x.view(np.uint32).astype(np.uint64)
    return (((u + 0x7fff + ((u >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32)


def through_float16(x):
    exponent = np.floor(np.log2(np.abs(x).max(1, keepdims=True))) - 14
    return ((x * 2.0 ** -exponent).astype(np.float16) * 2.0 ** exponent).astype(np.float32)


def through_int8(x):
    scale = np.abs(x).max(1, keepdims=True) / np.float32(127)
    return np.rint(x / scale).astype(np.float32) * scale


def coded_sum(lanes, through):
    """(lane 0 + lane 1), (lane 2 + lane 3), each rounded; their sum rounded."""
    blocks = [g.astype(np.float32).reshape(-1, 256) for g in lanes]
    groups = [through(blocks[0] + blocks[1]), through(blocks[2] + blocks[3])]
    return through(groups[0] + groups[1]).reshape(lanes[0].shape)


def gradients(w, x, y):
    t = np.tanh(x @ w["w1"])
    z = t @ w["w2"]
    p = np.exp(z - z.max(1, keepdims=True))
    dz = p / p.sum(1, keepdims=True)
    dz[np.arange(len(y)), y] -= 1
    dz /= BATCH
    return {"w1": x.T @ ((dz @ w["w2"].T) * (1 - t * t)), "w2": t.T @ dz}


def read_safetensors(blob):
    n = int.from_bytes(blob[:8], "little")
    return {k: np.frombuffer(blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], "<f4").reshape(v["shape"])
            for k, v in json.loads(blob[8:8 + n]).items() if k != "__metadata__"}


def digits():
    folder = os.path.join(ROOT, "config", "digits")
    samples = [s for name in ("digits-train-0.tfrecord", "digits-train-1.tfrecord")
               for s in tfrecord.read(os.path.join(folder, name))]
    return (np.stack([np.frombuffer(s["image"][1][0], np.uint8) for s in samples]) * 0.0625,
            np.array([s["label"][1][0] for s in samples]))


def compare_with_numpy(code, through, quantum):
    """Three steps of SGD, each from the weights before it. A number on the border of two codes may be rounded either way:
    few gradients may differ, and by a quantum at most."""
    job = job_with(code, GROUPS, steps=3, lanes=LANES, model={"onnx": "dense.onnx"}, data={"shuffle": False},
                   train={"clip_norm": None}, checkpoint={"every_steps": 1})
    folder = workdir()
    dense_net(os.path.join(folder, "dense.onnx"), HIDDEN)
    path = digits_job(folder, **over_tcp(job))
    with open(path) as f:
        changed = json.load(f)
    changed["optimizer"] = {"type": "sgd", "learning_rate": RATE}
    with open(path, "w") as f:
        json.dump(changed, f)
    expect_codes(start(path, 2, env=writes_every_checkpoint(folder, 3)), [0, 0])
    files = checkpoints(folder)
    images, labels = digits()
    w = {i.name: numpy_helper.to_array(i) for i in onnx.load(os.path.join(folder, "dense.onnx")).graph.initializer}
    for step in range(1, 4):
        lanes = []
        for lane in range(LANES):
            at = slice((step - 1) * BATCH + lane * BATCH // LANES, (step - 1) * BATCH + (lane + 1) * BATCH // LANES)
            lanes.append(gradients({n: x.astype(np.float64) for n, x in w.items()}, images[at], labels[at]))
        ours = read_safetensors(files["step-%08d/model.safetensors" % step])
        for name in w:
            want = coded_sum([g[name] for g in lanes], through)
            got = (w[name] - ours[name]) / RATE
            exact = sum(g[name] for g in lanes)
            off = np.abs(got - want) > 2e-5 * np.abs(want).max()
            assert off.mean() < 0.01, "%s, step %d, %s: %.1f %% of the gradients differ" % (code, step, name, 100 * off.mean())
            assert np.abs(got - want).max() <= 3.1 * quantum * np.abs(exact).max(), (code, step, name)
            assert np.abs(got - exact).max() > 0.01 * quantum * np.abs(exact).max(), "%s: nothing was rounded" % code
        w = ours


@test
def three_steps_with_int8_equal_numpy():
    compare_with_numpy("int8", through_int8, 1 / 127)


@test
def three_steps_with_bfloat16_equal_numpy():
    compare_with_numpy("bfloat16", through_bfloat16, 1 / 128)


@test
def three_steps_with_float16_equal_numpy():
    compare_with_numpy("float16", through_float16, 1 / 1024)


# ---- bytes ----

@test
def status_and_metrics_have_the_bytes_of_the_formula():
    for groups in (1, 2):
        check_bytes(groups)


def check_bytes(groups):
    """Two tasks with `groups` groups each. Both layers are coded; what follows them (loss, control words) stays float32 and
    fits into a block."""
    folder = workdir()
    dense_net(os.path.join(folder, "dense.onnx"), 1024)
    numbers = (64 + 16) * 1024
    job = over_tcp(job_with("int8", 2 * groups, steps=100000, lanes=4, model={"onnx": "dense.onnx"}, optimizer={"learning_rate": 1e-5}))
    path = digits_job(folder, **job)
    ports, page = free_ports(2), free_ports(1)[0]
    tasks = [Task(path, tf_config(ports, i), ALONE + (("--metrics", "127.0.0.1:%d" % page) if i == 0 else ()), name="worker %d" % i)
             for i in range(2)]
    tasks[0].until_step(100)  # the next one, which may have begun, is within the tolerances
    shown = subprocess.run([TRAINERCTL, "status", "--json", "127.0.0.1:%d" % ports[0]], capture_output=True, text=True,
                           timeout=GUARD)
    status = json.loads(shown.stdout)
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % page, timeout=GUARD).read().decode()
    plain_text = subprocess.run([TRAINERCTL, "status", "127.0.0.1:%d" % ports[0]], capture_output=True, text=True,
                                timeout=GUARD).stdout
    for t in tasks:
        t.signal(signal.SIGTERM)
    expect_codes(tasks, [143, 143])
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    sent = float(values["trainerd_compression_sent_bytes_total"])
    saved = float(values["trainerd_compression_saved_bytes_total"])
    steps = float(values["trainerd_steps_total"])
    # this task sends the codes of its groups of one half, and the code of the sum of the other half
    coded = steps * (numbers / 2 * groups + numbers / 2) * 260 / 256
    plain = steps * numbers * 4
    assert coded <= sent <= 1.03 * coded, (groups, sent, coded)
    assert plain <= sent + saved <= 1.02 * plain, (sent, saved, plain)
    assert 0 < status["compression_sent_bytes"] <= sent and status["compression_saved_bytes"] > status["compression_sent_bytes"], status
    assert "saved by compression" in plain_text, plain_text


# ---- network ----

def run_here(folder, job, n):
    path = digits_job(folder, **job)
    tasks = start(path, n) if n > 1 else [Task(path, args=ALONE)]
    expect_codes(tasks, [0] * n)
    return tasks


@test
def network_is_decided_at_the_first_step_and_kept():
    always, plain = run(1, job_with("int8", steps=20)), run(1, job_with(None, steps=20))
    job = job_with("int8", when="network", steps=20)
    # alone at first: not coded, also after the tasks were moved to several hosts
    folder = workdir()
    run_here(folder, merge(job, {"train": {"steps": 10}}), 1)
    assert manifest(checkpoints(folder), 10)["compression"] == "none"
    tasks = run_here(folder, over_tcp(job), 2)
    assert any("gradients are not coded" in r["message"] for r in tasks[0].events("note")), tasks[0].log()
    assert manifest(checkpoints(folder), 20)["compression"] == "none"
    unchanged = run(1, job_with(None, steps=20))
    assert tensors(checkpoints(folder), 20) == tensors(unchanged[0], 20), "a decision against compression was not kept"
    # over a network at first: coded, also alone
    folder = workdir()
    run_here(folder, over_tcp(merge(job, {"train": {"steps": 10}})), 2)
    assert manifest(checkpoints(folder), 10)["compression"] == "int8"
    run_here(folder, job, 1)
    coded = run(1, job_with("int8", steps=20))
    assert tensors(checkpoints(folder), 20) == tensors(coded[0], 20), "a decision for compression was not kept"
    same((always[0], {}), (run(4, over_tcp(job_with("int8", steps=20)))[0], {}), "always, 4 tasks")
    assert tensors(always[0], 20) != tensors(plain[0], 20)


@test
def task_that_joins_receives_the_decision():
    """Two tasks in one memory decide against compression; the tasks that replace them never decided."""
    job = merge(job_with("int8", when="network", steps=40, lanes=4),
                {"elastic": {"min_world": 1, "rejoin_seconds": 0.1}, "detection": {"stuck_factor": 0}})
    folder = workdir()
    path = digits_job(folder, **job)
    ports = free_ports(2)
    env, gate = {"TRAINERD_LOG_LEVEL": "debug"}, Gate()
    first = Task(path, tf_config(ports, 0), ALONE, with_faults(env, gate.holds_step(6)), "worker 0")
    first.until_step(5)
    second = Task(path, tf_config(ports, 1), ALONE, with_faults(env, gate.fault("data.open")), "worker 1")
    gate.open_when_joined([first, second], ports[0], phases=("", "opening"))
    expect_codes([first, second], [0, 0])
    assert any("received the state after step" in r["message"] for r in second.events("note")), second.log()
    assert manifest(checkpoints(folder), 40)["compression"] == "none"
    assert tensors(checkpoints(folder), 40) == tensors(run(1, job_with(None, steps=40, lanes=4))[0], 40)


@test
def evaluator_follows_a_compressed_job():
    folder = workdir()
    path = digits_job(folder, **over_tcp(job_with("int8", steps=20)))
    ports = free_ports(2)
    tasks = [Task(path, tf_config(ports, i), ALONE, name="worker %d" % i) for i in range(2)]
    follower = Task(path, tf_config(ports, 0, kind="evaluator"), ALONE, name="evaluator 0")
    expect_codes([*tasks, follower], [0, 0, 0])
    ours = [r for t in tasks for r in t.events("eval") if r["step"] == 20]
    theirs = [r for r in follower.events("eval") if r["step"] == 20]
    assert len(theirs) == 1 and (theirs[0]["loss"], theirs[0]["accuracy"]) == (ours[0]["loss"], ours[0]["accuracy"]), (ours, theirs)


# ---- failures ----

def train_with_deaths(job, lives, n=4):
    """Trains in a new folder. lives: {rank: faults of its processes}; a process that its fault has killed is started again
    without a fault. Returns as run()."""
    folder = workdir()
    path = digits_job(folder, **job, elastic={"min_world": 4, "rejoin_seconds": 5})
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
        os.path.join(folder, "samples.worker-%d.txt" % i), "worker %d" % i)], job["train"]["lanes"])
    assert not history.problems, history.problems
    assert [step for _, step, *_ in history.chain] == list(range(1, job["train"]["steps"] + 1)), history.chain
    return checkpoints(folder), losses(every)


@test
def task_killed_at_each_point_of_a_step_leaves_the_bytes_unchanged():
    job = job_with("int4", steps=10)
    undisturbed = run(1, job)
    points = ("train.forward", "train.reduce", "train.bucket", "train.commit", "train.update", "train.update_end")
    for i, point in enumerate(points):
        rank = i % 2
        same(undisturbed, train_with_deaths(over_tcp(job) if i % 3 else job, {rank: "%s=kill@5" % point}),
             "worker %d with %s" % (rank, point))


@test
def task_killed_while_it_sends_codes_leaves_the_bytes_unchanged():
    job = job_with("int8", steps=10)
    undisturbed = run(1, job)
    for fault in ("comm.send=kill@40", "comm.recv=kill@75"):
        same(undisturbed, train_with_deaths(over_tcp(job), {1: fault}), fault)


@test
def smaller_group_after_a_death_has_the_bytes_of_the_full_group():
    job = job_with("int8", steps=30)
    folder = workdir()
    path = digits_job(folder, **over_tcp(job), elastic={"min_world": 3, "rejoin_seconds": 0.1})
    ports = free_ports(4)
    tasks = start(path, 4, ports=ports, env={"TRAINERD_LOG_LEVEL": "debug"}, faults={2: "train.commit=kill@6"}, together=True)
    assert tasks[2].wait() == -signal.SIGKILL, tasks[2].log()
    rest = [tasks[0], tasks[1], tasks[3]]
    expect_codes(rest, [0, 0, 0])
    same(run(1, job), (checkpoints(folder), losses(rest)), "after the death of worker 2")


@test
def gradient_that_is_not_finite_is_found_through_the_code():
    """One sample has a NaN: in one lane of one step of each epoch all gradients are NaN."""
    source = clicks.make_data(os.path.join(workdir(), "data"))
    for code in ("int4", "bfloat16"):
        results = []
        for n in (1, 2):
            folder = workdir()
            path = clicks.job_file(folder, source, data={"train": os.path.join(source, "bad-train-{feature}.npy")},
                                   train={"epochs": 1}, health={"non_finite": "skip"},
                                   communication={"compression": {"code": code, "groups": 2, "min_bytes": 1024}, **TCP})
            tasks = start(path, n)
            expect_codes(tasks, [0] * n)
            skipped = [[r["message"].split(":")[0] for r in t.events("skipped")] for t in tasks]
            assert len(skipped[0]) == 1 and skipped[-1] == skipped[0], skipped
            results.append((shards.tensors(os.path.join(folder, "checkpoints", "step-00000016")), skipped[0]))
        assert results[0] == results[1], (results[0][1], results[1][1])


# ---- refusals and changes ----

@test
def compression_is_added_to_a_job_that_has_trained_without():
    folder = workdir()
    before = job_with(None, steps=10)
    run_here(folder, before, 1)
    after = job_with("int8", steps=20)
    tasks = run_here(folder, over_tcp(after), 2)
    assert any("differed in what decides the result" in r["message"] for r in tasks[0].records), tasks[0].log()
    assert manifest(checkpoints(folder), 20)["compression"] == "int8"
    other = workdir()
    run_here(other, before, 1)
    run_here(other, after, 1)
    assert tensors(checkpoints(folder), 20) == tensors(checkpoints(other), 20)


@test
def unsupported_jobs_are_refused_with_place_and_remedy():
    for code, changes, place, remedy in (
            ("int8", {"train": {"lanes": None}}, "/communication/compression/groups", "set /train/lanes to a power of two"),
            ("int8", {"train": {"phases": [{"mode": "local_sgd", "groups": 2, "sync_every": 2}]}}, "/communication/compression/code",
             "remove that phase")):
        path = digits_job(workdir(), **merge(job_with(code), changes))
        shown = subprocess.run([TRAINERD, "--job", path, "--check", *ALONE], capture_output=True, text=True, timeout=GUARD)
        assert shown.returncode == 2 and place in shown.stderr and remedy in shown.stderr, shown.stderr


main()
