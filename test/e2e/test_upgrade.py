#!/usr/bin/python3
"""test_upgrade.py - tasks of the next patch version replace those of the previous one while the job trains."""
import json
import os
import re
import shutil
import signal
import subprocess

import kit
from kit import TRAINERD, Task, digits_job, expect_codes, free_ports, main, read_tree, test, tf_config, workdir

SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:10@1+"}


def changed(old, new):
    """Returns a copy of trainerd in which one string of equal length is replaced."""
    assert len(old) == len(new)
    with open(TRAINERD, "rb") as f:
        data = f.read()
    assert old in data
    path = os.path.join(workdir(), "trainerd")
    with open(path, "wb") as f:
        f.write(data.replace(old, new))
    shutil.copymode(TRAINERD, path)
    return path


def version():
    return subprocess.run([TRAINERD, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def other_version(part):
    """The own version with another number at this place: 1 minor, 2 patch."""
    numbers = version().split(".")
    numbers[part] = str((int(numbers[part][:-1] + "0") + (int(numbers[part][-1]) + 1) % 10))
    return ".".join(numbers)


def next_release(part):
    return changed(version().encode(), other_version(part).encode())


def task(job, ports, index, program=TRAINERD):
    kept, kit.TRAINERD = kit.TRAINERD, program
    try:
        return Task(job, tf_config(ports, index), ("--devices", "cpu:1"), SLOWLY, "worker %d" % index)
    finally:
        kit.TRAINERD = kept


def job_in(folder, **elastic):
    return digits_job(folder, train={"epochs": None, "steps": 400, "lanes": 6, "global_batch_size": 66, "log_every_steps": 1},
                      elastic=elastic)


@test
def next_patch_version_replaces_the_tasks_one_by_one():
    quiet, folder = workdir(), workdir()
    expect_codes([Task(job_in(quiet), None, ("--devices", "cpu:2"))], [0])
    job, ports, program = job_in(folder, min_world=2, rejoin_seconds=0), free_ports(3), next_release(2)
    tasks = [task(job, ports, i) for i in range(3)]
    for t in tasks:
        t.until(lambda t: any(r["tasks"] == 3 for r in t.events("view")))
    tasks[0].until_step(3)
    ended = []
    for i in (2, 1, 0):  # the chief last
        others = [t for k, t in enumerate(tasks) if k != i]
        tasks[i].signal(signal.SIGTERM)
        expect_codes([tasks[i]], [143])
        ended.append(tasks[i])
        tasks[i] = task(job, ports, i, program)
        tasks[i].until(lambda t: any(r["tasks"] == 3 for r in t.events("view")))
        assert ("trainerd %s:" % other_version(2)) in tasks[i].events("plan")[0]["message"]
        seen = max((max(t.steps(), default=0) for t in others), default=0)
        tasks[i].until(lambda _: max(max(t.steps(), default=0) for t in tasks) > seen + 3)
    expect_codes(tasks, [0, 0, 0])
    steps = set()
    for t in tasks + ended:
        steps |= set(t.steps())
    assert steps == set(range(1, 401)), sorted(set(range(1, 401)) - steps)
    name = "step-00000400"
    a, b = (read_tree(os.path.join(f, "run", "checkpoints", name)) for f in (quiet, folder))
    assert a["model.safetensors"] == b["model.safetensors"]


def refused(program, expected):
    folder = workdir()
    job, ports = job_in(folder, min_world=2, rejoin_seconds=0), free_ports(3)
    tasks = [task(job, ports, i) for i in range(2)]
    tasks[0].until_step(3)
    other = task(job, ports, 2, program)
    assert other.wait() == 2 and re.search(expected, other.final_message()), other.final_message()
    before = max(tasks[0].steps())
    tasks[0].until_step(before + 5)
    assert len(tasks[0].events("view")) == 1, "the refused task interrupted the group"


@test
def other_release_is_refused():
    refused(next_release(1), "the version of trainerd differs: it has '%s'" % re.escape(other_version(1)))


@test
def version_with_other_code_is_refused():
    plan = json.loads(subprocess.run([TRAINERD, "--check", "--devices", "cpu:1"], capture_output=True, text=True, check=True).stdout)
    digest = plan["code"].encode()
    assert re.fullmatch(rb"[0-9a-f]{16}", digest), plan["code"]
    refused(changed(digest, digest[::-1]), "the code that computes differs: .*stop all tasks, then start them with one version")


if __name__ == "__main__":
    main()
