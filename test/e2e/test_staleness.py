#!/usr/bin/python3
"""Staleness k: step t reads the tables on parameter servers (ps) as they were after step max(0, t - 1 - k).

The reference of each test is the same job trained by one task without ps tasks, which keeps k older copies of the tables; the
ps tasks keep undo logs. One test compares both with NumPy."""
import json
import os
import random
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import shards
from clicks import OPTIMIZERS
from kit import GUARD, TRAINERCTL, TRAINERD, Task, disturb, few, free_ports, main, merge, test, wait_until, workdir
from test_ps import GOES_ON, LONG, PS, SLOWLY, WAITS, Group, checkpoints, ended, expect_equal, expect_no_rollback, expect_part, job_file, last, \
    lose_all_holders, move_shards, reference, status, until_steps


def stale(k, **changes):
    return {"parameter_server": {**PS, "staleness": k}, **changes}


# ---- the bytes ----

@test
def tables_on_any_number_of_ps_and_workers_all_files_are_equal():
    optimizers = list(OPTIMIZERS.values())
    for k in (1, 2, 4):
        changes = stale(k, optimizer=optimizers[k % len(optimizers)])
        expected = reference(**changes)
        for workers, ps in ((4, 1), (4, 3), (2, 0), (1, 2)):
            expect_equal(Group(workers, ps, **changes).finish(), expected)
        for other in (0, k - 1):
            assert last(reference(**stale(other, optimizer=changes["optimizer"])))["model"] != last(expected)["model"]


@test
def several_devices_and_averages_all_files_are_equal():
    for name in ("adamw, average", "adam, lazy rows", "momentum, weight decay"):
        changes = stale(2, optimizer=OPTIMIZERS[name])
        expect_equal(Group(2, 2, devices={"worker": "cpu:2", "ps": "cpu:3"}, **changes).finish(), reference(**changes))
        expect_equal(Group(1, 0, devices={"worker": "cpu:2"}, **changes).finish(), reference(**changes))


@test
def step_with_nan_is_skipped_all_files_are_equal():
    """A skipped step changes no row, and counts as a version."""
    fault = "health.not_finite@5"
    changes = stale(2, health={"non_finite": "skip"}, optimizer=OPTIMIZERS["momentum, weight decay"])
    expect_equal(Group(4, 2, fault=fault, **changes).finish(), reference(fault=fault, **changes))


@test
def without_staleness_a_checkpoint_is_unchanged():
    expected, found = (last(reference(**changes)) for changes in ({}, stale(0)))
    assert expected == found
    assert "staleness" not in found["manifest.json"] and not any("/delayed" in name for name in found["optimizer"])


# ---- the formula ----

ROWS, WIDTH, SAMPLES, BATCH, STEPS = 50, 4, 64, 8, 20


def table_net(path):
    """logits = mean of three rows of a table, times w."""
    rng = np.random.default_rng(7)
    shapes = {"table": (ROWS, WIDTH), "w": (WIDTH, 3)}
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
         helper.make_node("MatMul", ["mean", "w"], ["logits"])],
        "table", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array((rng.standard_normal(s) * 0.5).astype(np.float32), n) for n, s in shapes.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return {t.name: numpy_helper.to_array(t) for t in graph.initializer}


def table_job(folder, k, rate):
    rng = np.random.default_rng(8)
    ids, labels = (rng.zipf(1.5, (SAMPLES, 3)) % ROWS).astype("i8"), rng.integers(0, 3, SAMPLES).astype("i8")
    np.save(os.path.join(folder, "train-ids.npy"), ids)
    np.save(os.path.join(folder, "train-label.npy"), labels)
    job = {"name": "table",
           "model": {"onnx": "table.onnx", "inputs": {"ids": "ids"}, "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label"}},
           "data": {"format": "npy", "train": "train-{feature}.npy", "shuffle": False,
                    "features": {"ids": {"dtype": "int64", "shape": [3]}, "label": {"dtype": "int64", "shape": []}}},
           "train": {"seed": 1, "steps": STEPS, "global_batch_size": BATCH, "lanes": 4, "log_every_steps": 1, "deadline_seconds": 60},
           "optimizer": {"type": "sgd", "learning_rate": rate},
           "parameter_server": {"min_shard_bytes": 1, "staleness": k},
           "checkpoint": {"directory": "checkpoints", "every_steps": STEPS, "every_seconds": 0}}
    with open(os.path.join(folder, "job.json"), "w") as f:
        json.dump(job, f)
    return ids, labels


def oracle(weights, ids, labels, k, rate):
    """SGD in double precision, the table k steps older; returns the losses, and the tables after each step."""
    tables, w, losses = [weights["table"].astype(np.float64)], weights["w"].astype(np.float64), []
    for t in range(1, STEPS + 1):
        read = tables[max(0, t - 1 - k)]
        at = np.arange((t - 1) * BATCH, t * BATCH) % SAMPLES
        x = read[ids[at]].mean(1)
        z = x @ w
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(-np.log(p[np.arange(BATCH), labels[at]]).mean())
        dz = p.copy()
        dz[np.arange(BATCH), labels[at]] -= 1
        dz /= BATCH
        table = tables[-1].copy()
        np.add.at(table, ids[at], -rate * (dz @ w.T)[:, None, :] / 3)
        tables.append(table)
        w = w - rate * (x.T @ dz)
    return losses, tables, w


def arrays(path):
    model, optimizer = shards.tensors(path)
    return {name: np.frombuffer(data, "<f4").reshape(shape) for name, (shape, data) in {**model, **optimizer}.items()}


@test
def losses_tables_and_older_tables_equal_numpy():
    rate, ends = 0.5, []
    for k in (0, 1, 2, 4):
        folder = workdir()
        weights = table_net(os.path.join(folder, "table.onnx"))
        ids, labels = table_job(folder, k, rate)
        task = Task(os.path.join(folder, "job.json"), None, ("--devices", "cpu:1"))
        assert task.wait() == 0, task.log()
        losses, tables, w = oracle(weights, ids, labels, k, rate)
        found = [r["loss"] for r in task.events("step")]
        assert np.allclose(found, losses, rtol=2e-5), (k, found, losses)
        path = os.path.join(folder, "checkpoints", "step-%08d" % STEPS)
        state = arrays(path)
        wanted = {"table": tables[-1], "w": w, **{"table/delayed.%d" % i: tables[-1 - i] for i in range(1, k + 1)}}
        assert set(state) == set(wanted), state.keys()
        assert all(np.allclose(state[name], x, rtol=2e-5, atol=2e-6) for name, x in wanted.items()), k
        with open(os.path.join(path, "manifest.json")) as f:
            assert json.load(f).get("staleness", 0) == k
        ends.append(state["table"])
    assert all(not np.allclose(ends[0], x, rtol=1e-3) for x in ends[1:])  # the age has an effect


# ---- stop and start ----

@test
def job_is_stopped_it_resumes_with_other_numbers_of_tasks():
    changes = stale(2, optimizer=OPTIMIZERS["adam, lazy rows"])
    slow = "train.forward=delay:20@1+"
    folder, found = workdir(), []
    for workers, ps in ((2, 1), (1, 0), (4, 3), (2, 2)):
        group = Group(workers, ps, fault=slow, folder=folder, **changes)
        group.now("worker 0").until(lambda t: len(t.events("step")) >= 4)
        for name in group.names:
            group.now(name).signal(signal.SIGTERM)
        assert {group.now(name).wait() for name in group.names} == {143}, group.logs()
        found += group.records("step")
        group.verify()
    group = Group(1, 2, folder=folder, **changes).finish()
    group.verify()
    expected = reference(**changes)
    assert last(group) == last(expected), group.logs()
    losses = {r["step"]: r["loss"] for r in expected.records("step")}
    assert {r["step"]: r["loss"] for r in found + group.records("step")} == losses


@test
def checkpoint_of_another_staleness_is_refused():
    folder = workdir()
    Group(1, 0, folder=folder, **stale(1)).finish()
    for k in (0, 2):
        job = job_file(folder, **stale(k, train={"epochs": 3}))
        ended(job, None, 2, "/parameter_server/staleness")


# ---- tasks are killed ----

def expect_kills(k, lives, fault="train.forward=delay:2@1+", optimizer="adagrad", replicas=2):
    """One job in which every life of each task ends by its fault. No step is trained while a task is missing."""
    changes = merge(stale(k, optimizer=OPTIMIZERS[optimizer], train={"epochs": 4}), {**WAITS, "parameter_server": {"replicas": replicas}})
    group = Group(2, 2, lives=lives, fault=fault, **changes).finish()
    group.verify()
    expect_equal(group, reference(**changes))


@test
def ps_is_killed_at_each_of_its_fault_points_all_files_are_equal():
    for ends in few(["ps.begin=kill@1", "ps.copy=kill@300", "ps.rows=kill@9", "ps.push=kill@7", "ps.vote=kill@5", "ps.commit=kill@6", "ps.committed=kill@6"]):
        expect_kills(2, {"ps 0": ends}, optimizer="momentum, weight decay")
    expect_kills(1, {"ps 0": ["ps.vote=kill@5", "ps.commit=kill@12"], "ps 1": ["ps.send=kill@300", "ps.committed=kill@5", "ps.push=kill@9"]})


@test
def worker_is_killed_at_each_fault_point_all_files_are_equal():
    points = ("connect@1", "agree@1", "forward@4", "reduce@4", "commit@4", "update@4", "update_end@4", "save@1")
    for ends in few(["train.%s" % p.replace("@", "=kill@") for p in points if "save" not in p]):
        expect_kills(2, {"worker 1": ends}, fault="")
    for ends in few(["train.%s" % p.replace("@", "=kill@") for p in points]):
        expect_kills(4, {"worker 0": ends}, fault="", optimizer="adam, lazy rows")


@test
def worker_of_a_group_without_ps_is_killed_it_receives_the_older_tables():
    changes = stale(2, optimizer=OPTIMIZERS["adam"], train={"epochs": 4}, **WAITS)
    lives = {"worker 1": ["train.update=kill@4", "train.reduce=kill@5"], "worker 0": ["train.commit=kill@9"]}
    group = Group(2, 0, lives=lives, fault="train.forward=delay:2@1+", **changes).finish()
    assert "received the state after step" in group.notes(), group.logs()
    expect_equal(group, reference(**changes))


@test
def all_holders_are_killed_the_group_returns_to_the_older_rows_of_the_newest_checkpoint():
    changes = merge(stale(2), {"parameter_server": {"replicas": 1}})
    expect_part(lose_all_holders(**changes), **changes)


@test
def shards_move_during_steps_with_their_older_rows():
    changes = stale(2, optimizer=OPTIMIZERS["adam"])
    group = move_shards(**changes)
    expect_no_rollback(group)
    expect_part(group, **changes)


@test
def random_tasks_are_killed_all_files_are_equal():
    """KILL_SEEDS=n: so many runs; FIRST_SEED=n: from this one on."""
    first = int(os.environ.get("FIRST_SEED", 1))
    for seed in range(first, first + int(os.environ.get("KILL_SEEDS", 1))):
        r = random.Random(seed)
        changes = stale(r.randint(1, 4), **GOES_ON, optimizer=OPTIMIZERS[r.choice(sorted(OPTIMIZERS))], train={"epochs": 8})
        group = Group(2, r.randint(1, 3), fault=SLOWLY, **changes)
        group.now("worker 0").until_step(1)
        for _ in range(8):
            running = [name for name in group.names if group.now(name).p.poll() is None]
            group.kill(*r.sample(running, min(len(running), r.choice((1, 1, 1, 2, 3)))))
            disturb(r.choice((0, 0.05, 0.3)))
            for name in group.names:
                if group.now(name).p.poll() not in (None, 0):
                    group.start(name)
            disturb(0.5)
        try:
            group.finish(supervised=True)
            group.verify()
            expect_equal(group, reference(**changes), repeated=True)
        except AssertionError as e:
            raise AssertionError("FIRST_SEED=%d: %s" % (seed, e)) from e


# ---- what a task reports ----

def check(k):
    job = job_file(workdir(), **stale(k))
    p = subprocess.run([TRAINERD, "--job", job, "--check", "--devices", "cpu:1"], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout), p.stderr


@test
def check_prints_the_version_that_a_step_reads_and_a_high_staleness_is_a_warning():
    plan, log = check(2)
    assert plan["staleness"]["steps"] == 2 and plan["staleness"]["kind"] == "exact" and "step max(0, t - 3)" in plan["staleness"]["meaning"], plan
    assert "/parameter_server/staleness" not in log, log
    plan, log = check(3)
    assert plan["staleness"]["steps"] == 3 and "learning rate 0.01, first try 0.0025" in log, log
    assert "staleness" not in check(0)[0]


@test
def status_and_metrics_of_a_ps_count_rows_by_their_age():
    """The lanes of steps 1, 2 and of all others read rows that are 0, 1 and 2 steps older; evaluations are not counted."""
    port = free_ports(1)[0]
    group = Group(2, 1, fault=SLOWLY, **stale(2), **LONG, **GOES_ON)
    group.kill("ps 0")
    group.env = {"TRAINERD_METRICS": str(port)}
    group.start("ps 0")
    until_steps(group, 20)
    server = status(group, "ps 0")["server"]
    assert server["staleness"] == 2 and len(server["rows_stale"]) == 17 and server["rows_stale"][2] > 1000, server
    assert not any(server["rows_stale"][3:]) and sum(server["rows_stale"]) <= server["rows_read"], server
    text = subprocess.run([TRAINERCTL, "status", group.address("ps 0")], capture_output=True, text=True, timeout=GUARD).stdout
    assert "staleness   steps read rows that are 2 steps older" in text, text

    def series():
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as f:
            lines = f.read().decode().splitlines()
        return {line.split("{", 1)[-1].rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("trainerd_staleness_steps")}
    wait_until(lambda: series().get('le="2"}', 0) > 1000, group.logs)
    found = series()
    assert [label for label in found if label.startswith("le=")] == ['le="%s"}' % x for x in (0, 1, 2, 4, 8, 16, "+Inf")], found
    assert found['le="1"}'] < found['le="2"}'] == found['le="4"}'] == found['le="+Inf"}'], found
    group.stop()


if __name__ == "__main__":
    main()
