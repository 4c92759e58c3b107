#!/usr/bin/python3
"""`"dense": "ps"`: all parameters that train are on parameter servers (ps).

The reference of each test is the same job trained by one task without ps tasks, which all-reduces and updates them itself."""
import json
import os
import signal
import subprocess

import numpy as np

import shards
from clicks import OPTIMIZERS
from kit import GUARD, TRAINERCTL, Task, digits_job, expect_codes, few, free_ports, main, merge, read_tree, test, wait_until, workdir
from random_net import random_net
from test_ps import PS, WAITS, Group, checkpoints, ended, expect_equal, expect_no_rollback, expect_part, job_file, last, lose_all_holders, \
    make_data, move_shards, reference


def dense(**changes):
    keys = {k: v for k, v in PS.items() if k not in ("tables", "min_shard_bytes")}
    return merge({"parameter_server": {**keys, "dense": "ps"}}, changes)


# ---- the bytes ----

@test
def any_number_of_ps_and_workers_all_files_are_equal():
    for optimizer in OPTIMIZERS.values():
        changes = dense(optimizer=optimizer)
        expected = reference(**changes)
        for workers, ps in ((4, 1), (4, 3), (2, 0), (1, 2)):
            expect_equal(Group(workers, ps, **changes).finish(), expected)


@test
def without_a_norm_the_files_are_those_of_a_job_without_ps():
    expected, found = (last(reference(**changes)) for changes in ({}, dense()))
    assert found == expected


@test
def several_devices_are_on_each_task_all_files_are_equal():
    changes = dense(optimizer=OPTIMIZERS["adamw, average"])
    expect_equal(Group(2, 2, devices={"worker": "cpu:2", "ps": "cpu:3"}, **changes).finish(), reference(**changes))


@test
def gradients_are_clipped_all_files_are_equal():
    for train in ({"clip_value": 0.001}, {"clip_norm": 0.05}):
        changes = dense(train=train)
        expected = reference(**changes)
        expect_equal(Group(4, 3, **changes).finish(), expected)
        assert last(expected)["model"] != last(reference(**dense()))["model"]  # the limit has an effect


@test
def lanes_read_older_parameters_all_files_are_equal():
    for k, name in ((1, "adam"), (4, "momentum, weight decay")):
        changes = dense(parameter_server={"staleness": k}, optimizer=OPTIMIZERS[name])
        expected = reference(**changes)
        for workers, ps in ((4, 2), (2, 0)):
            expect_equal(Group(workers, ps, **changes).finish(), expected)
        tables = reference(parameter_server={**PS, "staleness": k}, optimizer=OPTIMIZERS[name])
        assert last(tables)["model"] != last(expected)["model"]  # the other parameters are older too


@test
def step_with_nan_is_skipped_all_files_are_equal():
    changes = dense(health={"non_finite": "skip"}, optimizer=OPTIMIZERS["momentum, weight decay"],
                    data={"train": os.path.join(make_data(), "bad-train-{feature}.npy")})
    group = Group(4, 2, **changes).finish()
    assert "skipped" in group.notes(), group.logs()
    expect_equal(group, reference(**changes))


@test
def network_without_tables_and_with_running_statistics_all_files_are_equal():
    """Parameters of many sizes; statistics of batch normalization stay on the workers."""
    def run(workers, ps):
        folder = workdir()
        random_net(os.path.join(folder, "random.onnx"))
        job = digits_job(folder, model={"onnx": "random.onnx", "batch_norm": "train"}, parameter_server={"dense": "ps"},
                         train={"epochs": None, "steps": 20, "lanes": 4, "log_every_steps": 1}, checkpoint={"every_steps": 10})
        addresses = ["127.0.0.1:%d" % p for p in free_ports(workers + ps)]
        cluster = {kind: some for kind, some in (("worker", addresses[:workers]), ("ps", addresses[workers:])) if some}
        tasks = [Task(job, {"cluster": cluster, "task": {"type": kind, "index": i}}, ("--devices", "cpu:1"))
                 for kind, some in cluster.items() for i in range(len(some))]
        expect_codes(tasks, [0] * len(tasks))
        tree = read_tree(os.path.join(folder, "run", "checkpoints"))
        return [(k, r["loss"]) for k, r in sorted(tasks[0].steps().items())], {n: d for n, d in tree.items() if n.startswith("step-00000020")}
    expected = run(1, 0)
    assert len(expected[0]) == 20
    for workers, ps in ((4, 2), (2, 1)):
        losses, files = run(workers, ps)
        assert losses == expected[0], (workers, ps, losses, expected[0])
        different = [n for n in expected[1] if files.get(n) != expected[1][n] and not n.endswith("manifest.json")]
        assert not different and set(files) == set(expected[1]), different


# ---- stop and start ----

@test
def job_is_stopped_it_resumes_with_other_numbers_of_tasks():
    changes = dense(optimizer=OPTIMIZERS["adamw, average"])
    folder, found = workdir(), []
    for workers, ps in ((2, 1), (1, 0), (4, 3), (2, 2)):
        group = Group(workers, ps, fault="train.forward=delay:20@1+", folder=folder, **changes)
        group.now("worker 0").until(lambda t: len(t.events("step")) >= 4)
        for name in group.names:
            group.now(name).signal(signal.SIGTERM)
        assert {group.now(name).wait() for name in group.names} == {143}, group.logs()
        found += group.records("step")
        group.verify()
    group = Group(1, 2, folder=folder, **changes).finish()
    expected = reference(**changes)
    assert last(group) == last(expected), group.logs()
    losses = {r["step"]: r["loss"] for r in expected.records("step")}
    assert {r["step"]: r["loss"] for r in found + group.records("step")} == losses


@test
def job_continues_with_dense_parameters_on_workers_and_back():
    """Which tasks hold the parameters is no part of a checkpoint; small tables only change their files."""
    folder, jobs = workdir(), (dense(), {"parameter_server": {"tables": "none"}}, dense())
    for epochs, changes in enumerate(jobs, 1):
        group = Group(2, 2, folder=folder, **merge(changes, {"train": {"epochs": epochs}})).finish()
        group.verify()
    assert checkpoints(folder)["step-00000048"]["model"] == checkpoints(reference(train={"epochs": 3}).folder)["step-00000048"]["model"]


# ---- tasks are killed ----

def expect_kills(lives, fault="train.forward=delay:2@1+", **changes):
    changes = merge(dense(train={"epochs": 4}, **changes), WAITS)
    group = Group(2, 2, lives=lives, fault=fault, **changes).finish()
    group.verify()
    expect_equal(group, reference(**changes))


@test
def ps_is_killed_at_each_of_its_fault_points_all_files_are_equal():
    for ends in few(["ps.begin=kill@1", "ps.copy=kill@40", "ps.rows=kill@9", "ps.push=kill@7", "ps.vote=kill@5", "ps.commit=kill@6", "ps.committed=kill@6"]):
        expect_kills({"ps 0": ends}, optimizer=OPTIMIZERS["adam"])


@test
def worker_is_killed_at_each_fault_point_all_files_are_equal():
    points = ("connect@1", "agree@1", "forward@4", "reduce@4", "commit@4", "update@4", "update_end@4", "save@1")
    for name in ("worker 0", "worker 1"):
        for ends in few(["train.%s" % p.replace("@", "=kill@") for p in points if name == "worker 0" or "save" not in p]):
            expect_kills({name: ends}, fault="", optimizer=OPTIMIZERS["momentum, weight decay"], parameter_server={"staleness": 1})


@test
def all_holders_are_killed_the_group_returns_to_the_newest_checkpoint():
    changes = dense(parameter_server={"replicas": 1})
    expect_part(lose_all_holders(**changes), **changes)


@test
def parameters_move_between_ps_during_steps():
    changes = dense(optimizer=OPTIMIZERS["adam"])
    group = move_shards(**changes)
    expect_no_rollback(group)
    expect_part(group, **changes)


# ---- what operators see ----

@test
def rows_of_a_dense_parameter_are_those_of_the_checkpoint():
    changes = dense(optimizer=OPTIMIZERS["adam"])
    group = Group(2, 2, fault="train.forward=hang@17", detection={"stuck_factor": 0}, **changes)
    written = reference(fault="train.commit=wait:FOLDER/checkpoints/step-00000008@10", **changes)  # else the writer may be busy at step 16
    weights, _ = shards.tensors(os.path.join(written.folder, "checkpoints", "step-00000016"))
    name, (_, data) = max(((n, x) for n, x in weights.items() if not n.startswith("emb")), key=lambda item: len(item[1][1]))
    flat = np.frombuffer(data, "<f4")
    assert flat.size > 300, name

    def printed():
        p = subprocess.run([TRAINERCTL, "rows", "--json", group.address("worker 1"), name, "0", "1"], capture_output=True, text=True, timeout=GUARD)
        return json.loads(p.stdout) if p.returncode == 0 else {"step": 0}
    wait_until(lambda: printed()["step"] == 16, group.logs)
    rows = printed()["rows"]
    group.kill(*group.names)
    expected = np.concatenate([flat, np.zeros(512, "f4")])[:512]
    assert np.array_equal(np.array(rows["0"] + rows["1"], "f4"), expected), name


@test
def what_ps_tasks_do_not_support_is_refused_with_its_place():
    folder = workdir()
    cluster = {"worker": ["127.0.0.1:%d" % free_ports(1)[0]], "ps": ["127.0.0.1:%d" % free_ports(1)[0]]}
    context = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    ended(job_file(folder, **dense(model={"frozen_rows": {"bot_l.0.weight": [0]}})), context, 2, "/model/frozen_rows of this parameter")
    ended(job_file(folder, **dense(parameter_server={"tables": "none"})), context, 2, "/parameter_server/tables")


if __name__ == "__main__":
    main()
