#!/usr/bin/python3
"""Compressed gradients on emulated GPUs (test/cuda): the same bytes on any number of GPUs and after a death."""
# needs: emulated
import functools
import json
import os
import signal

import kit
from kit import BUILD, Task, digits_job, expect_codes, main, read_tree, start, test, with_faults, workdir

kit.TRAINERD = os.path.join(BUILD, "emulated", "trainerd")


def job_with(code, groups=4, steps=3, min_bytes=1024, **more):
    compression = {"code": code, "groups": groups, "min_bytes": min_bytes}
    return kit.merge({"train": {"epochs": None, "steps": steps, "lanes": 8, "global_batch_size": 16, "log_every_steps": 1, "eval_every_epochs": None},
                      "data": {"eval": None}, "model": {"metrics": None}, "summary": None, "export": None,
                      "optimizer": {"schedule": {"type": "constant", "warmup_steps": None}},
                      "checkpoint": {"every_steps": 100}, "communication": {"compression": compression}}, more)


def losses(task):
    return [r["loss"] for _, r in sorted(task.steps().items())]


def checkpoint(folder):
    """Returns the files of the last checkpoint, except the manifest, which has times."""
    files = read_tree(os.path.join(folder, "run", "checkpoints"))
    last = max(name.split("/")[0] for name in files if name.startswith("step-"))
    return {name: data for name, data in files.items() if name.startswith(last) and name.endswith(".safetensors")}


def train(job, devices, n=1, env=None):
    folder = workdir()
    path = digits_job(folder, **job)
    env = dict({"EMULATED_GPUS": "4"}, **(env or {}))
    tasks = start(path, n, devices, (), env) if n > 1 else [Task(path, args=("--devices", devices), env=env)]
    expect_codes(tasks, [0] * n)
    return checkpoint(folder), tasks


def check_placements(code, placements):
    want, (one,) = train(job_with(code), "cuda:0")
    assert any("coded as %s between 4 groups of 2 lanes" % code in r["message"] for r in one.events("note")), one.log()
    for devices, n in placements:
        got, tasks = train(job_with(code), devices, n)
        assert losses(tasks[0]) == losses(one), (code, devices, n)
        assert got == want, (code, devices, n)
    return want


@test
def int8_and_int4_have_equal_bytes_on_one_to_four_gpus_of_one_or_two_tasks():
    int8 = check_placements("int8", (("cuda:0,1,2,3", 1), ("cuda:0", 2)))
    int4 = check_placements("int4", (("cuda:0,1", 1), ("cuda:0,1", 2)))
    plain, _ = train(kit.merge(job_with("int8"), {"communication": {"compression": None}}), "cuda:0")
    assert len({tuple(sorted(c.items())) for c in (int8, int4, plain)}) == 3


@test
def int4_has_equal_bytes_after_a_task_was_killed_and_returned():
    """Of four tasks with a part of a group each, three continue: one with a group, two with parts of the other one."""
    job = job_with("int4", groups=2, steps=14)
    want, _ = train(job, "cuda:0")
    folder = workdir()
    path = digits_job(folder, **kit.merge(job, {"elastic": {"min_world": 1, "rejoin_seconds": 0}, "detection": {"stuck_factor": 0}}))
    gate, ports = kit.Gate(), kit.free_ports(4)
    tasks = start(path, 4, "cuda:0", env={"TRAINERD_FAULT": gate.holds_step(11)}, ports=ports, together=True)
    tasks[0].until_step(4)
    tasks[3].signal(signal.SIGKILL)
    tasks[3].wait()
    tasks[0].until_step(8)
    back = Task(path, kit.tf_config(ports, 3), ("--devices", "cuda:0"), with_faults(None, gate.fault("data.open")), "worker 3 again")
    gate.open_when_joined([*tasks[:3], back], ports[0], phases=("", "opening"))
    expect_codes([*tasks[:3], back], [0] * 4)
    assert checkpoint(folder) == want


@test
def bytes_on_the_wire_are_those_of_the_codes():
    """Two GPUs send a quarter of the bytes of sums in float32, where all large parameters are coded."""
    sent = {}
    for name, communication in (("int8", {}), ("float32", {"compression": None, "deterministic": True})):
        path = os.path.join(workdir(), "traffic")
        job = kit.merge(job_with("int8", groups=2, steps=2, min_bytes=0), {"communication": communication})
        train(job, "cuda:0,1", env={"EMULATED_NCCL_TRAFFIC": path})
        with open(path) as f:
            ranks = [int(line.split()[1]) for line in f]
        assert len(ranks) == 2, ranks
        sent[name] = sum(ranks)
    assert 0.25 < sent["int8"] / sent["float32"] < 0.30, sent


@test
def network_decides_once_also_between_gpus():
    """Tasks of one host share memory, so the job is not compressed, and a later group keeps that decision."""
    job = kit.merge(job_with("int8"), {"communication": {"compression": {"when": "network"}, "deterministic": True}})
    plain, _ = train(kit.merge(job, {"communication": {"compression": None}}), "cuda:0")
    off, tasks = train(job, "cuda:0,1")
    assert off == plain and any("gradients are not coded" in r["message"] for r in tasks[0].events("note"))
    on, _ = train(kit.merge(job, {"communication": {"shared_memory": False}}), "cuda:0", 2)
    always, _ = train(job_with("int8"), "cuda:0")
    assert on == always


# ---- codes with residuals ----

RESIDUAL = {"top_k": {"fraction": 0.05, "copy_every_steps": 4}, "power_sgd": {"rank": 2, "copy_every_steps": 4}}


def residual_job(code, steps=12, **more):
    return job_with(code, steps=steps, **kit.merge({"communication": {"compression": RESIDUAL[code]}}, more))


@functools.cache
def of_one_gpu(code):
    """The checkpoint and the task of residual_job() on one GPU."""
    files, (task,) = train(residual_job(code), "cuda:0")
    return files, task


def residuals_of(files):
    """Returns {name: bytes} of the tensors of residuals in a checkpoint."""
    blob = next(data for name, data in files.items() if name.endswith("optimizer.safetensors"))
    n = int.from_bytes(blob[:8], "little")
    return {k: blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]]
            for k, v in json.loads(blob[8:8 + n]).items() if "/residual." in k}


@test
def codes_with_residuals_have_equal_bytes_on_one_to_four_gpus_of_one_or_two_tasks():
    for code in RESIDUAL:
        want, one = of_one_gpu(code)
        notes = [r["message"] for r in one.events("note")]
        assert any("coded as %s between 4 groups of 2 lanes" % code in note for note in notes), one.log()
        residuals = residuals_of(want)
        assert len(residuals) >= 8 and all(any(x) for x in residuals.values()), sorted(residuals)
        for devices, n in (("cuda:0,1,2,3", 1), ("cuda:0", 2), ("cuda:0,1", 2)):
            got, tasks = train(residual_job(code), devices, n)
            assert losses(tasks[0]) == losses(one), (code, devices, n)
            assert got == want, (code, devices, n)


@test
def loss_decreases_on_gpus_with_residuals():
    for code in RESIDUAL:
        _, (task,) = train(residual_job(code, 24, optimizer={"learning_rate": 0.4}), "cuda:0")
        assert sum(losses(task)[-8:]) < 0.95 * sum(losses(task)[:8]), losses(task)


@test
def gpus_return_to_their_copy_of_the_state_after_a_kill_and_leave_equal_bytes():
    """A killed task takes the residuals of its groups with it. It returns, or the others continue without it."""
    for code in RESIDUAL:
        want, _ = of_one_gpu(code)
        for fault, returns, devices in (("train.update=kill@7", True, "cuda:0"), ("train.copies=kill@2", False, "cuda:0"),
                                        ("train.reduce=kill@8", False, "cuda:0,1")):
            folder = workdir()
            elastic = {"min_world": 2 if returns else 1, "rejoin_seconds": 10 if returns else 0}
            path = digits_job(folder, **kit.merge(residual_job(code), {"elastic": elastic}))
            ports = kit.free_ports(2)
            env = {"EMULATED_GPUS": "4"}
            tasks = start(path, 2, devices, env=env, ports=ports, faults={1: fault}, together=True)
            assert tasks[1].wait() == -signal.SIGKILL, tasks[1].log()
            if returns:
                tasks[1] = Task(path, kit.tf_config(ports, 1), ("--devices", devices), env, "worker 1 again")
            expect_codes(tasks if returns else tasks[:1], [0] * (2 if returns else 1))
            notes = [r["message"] for r in tasks[0].events("note") if "returns from step" in r["message"]]
            assert notes or fault.startswith("train.copies"), tasks[0].log()
            assert checkpoint(folder) == want, (code, fault)


@test
def checkpoint_with_residuals_is_continued_by_another_number_of_gpus():
    for code, first, then in (("top_k", "cuda:0,1", "cuda:0"), ("power_sgd", "cuda:0", "cuda:0,1,2,3")):
        folder = workdir()
        for steps, devices in ((5, first), (12, then)):
            task = Task(digits_job(folder, **residual_job(code, steps)), args=("--devices", devices), env={"EMULATED_GPUS": "4"})
            expect_codes([task], [0])
        assert min(task.steps()) == 6, task.log()
        assert checkpoint(folder) == of_one_gpu(code)[0], (code, first, then)


@test
def residuals_are_combined_with_nccl_and_network_on_gpus():
    """The implementation of the sums may be named. A group that has decided against compression keeps no residuals."""
    job = kit.merge(residual_job("top_k"), {"communication": {"implementation": "nccl"}})
    want, _ = of_one_gpu("top_k")
    got, _ = train(job, "cuda:0,1")
    assert got == want
    job = kit.merge(residual_job("top_k"), {"communication": {"compression": {"when": "network"}, "deterministic": True}})
    off, tasks = train(job, "cuda:0,1")
    assert any("gradients are not coded" in r["message"] for r in tasks[0].events("note")), tasks[0].log()
    assert not any(any(x) for x in residuals_of(off).values())
    on, _ = train(kit.merge(job, {"communication": {"shared_memory": False}}), "cuda:0", 2)
    assert on == want


if __name__ == "__main__":
    main()
