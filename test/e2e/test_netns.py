#!/usr/bin/python3
"""Two hosts with two tasks each: network namespaces that a virtual cable connects."""
# san: yes
import os
import subprocess

from kit import Task, digits_job, enter_namespaces, expect_codes, has_namespaces, main, need_namespaces, read_tree, test, workdir

HOSTS = {"east": "10.77.0.1", "west": "10.77.0.2"}
ADDRESSES = ["10.77.0.1:2222", "10.77.0.1:2223", "10.77.0.2:2222", "10.77.0.2:2223"]
SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:5@1+"}


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def cable():
    for name in HOSTS:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("-n", "east", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", "west")
    for name, address in HOSTS.items():
        ip("-n", name, "addr", "add", address + "/24", "dev", "cable")
        ip("-n", name, "link", "set", "cable", "up")


def start(job, order=(0, 1, 2, 3), env=None):
    """Starts a task for each address; `order` lists the addresses of worker 0, 1, ..."""
    workers = [ADDRESSES[i] for i in order]
    tasks = []
    for i, address in enumerate(workers):
        host = [n for n, a in HOSTS.items() if address.startswith(a + ":")][0]
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}
        tasks.append(Task(job, config, ("--devices", "cpu:1"), env, "worker %d" % i, prefix=("ip", "netns", "exec", host)))
        tasks[-1].host = host
    return tasks


JOB = {"train": {"epochs": None, "steps": 25, "lanes": 4, "log_every_steps": 1}, "checkpoint": {"every_steps": 0}}


def last_checkpoint(folder):
    return read_tree(os.path.join(folder, "run", "checkpoints"))


@test
def weights_two_hosts_with_two_tasks_each_equal_those_of_one_task():
    need_namespaces()
    alone = workdir()
    expect_codes([Task(digits_job(alone, **JOB), args=("--devices", "cpu:1"))], [0])
    for order, words in (((0, 1, 2, 3), "2 hosts"), ((0, 2, 1, 3), "2 hosts")):
        folder = workdir()
        tasks = start(digits_job(folder, **JOB), order)
        expect_codes(tasks, [0] * 4)
        notes = " ".join(r["message"] for r in tasks[0].events("note"))
        assert words in notes and "tcp" in notes.lower(), notes
        assert last_checkpoint(folder) == last_checkpoint(alone), order


def expect_message(task, *words):
    task.until(lambda t: any(all(w in r["message"] for w in words) for r in t.events("group")))


def pull():
    ip("-n", "west", "link", "set", "cable", "down")


def plug():
    ip("-n", "west", "link", "set", "cable", "up")


@test
def network_cut_is_detected_on_both_sides_and_all_continue_after_it():
    need_namespaces()
    tasks = start(digits_job(workdir(), train={"epochs": 100000, "lanes": 4, "log_every_steps": 1}), env=SLOWLY)
    tasks[0].until_step(5)
    pull()
    try:
        for t in tasks:
            other = "worker 2 (10.77.0.2:2222)" if t.host == "east" else "worker 0 (10.77.0.1:2222)"
            expect_message(t, other, "was lost: ")
        for t in (tasks[0], tasks[2]):
            expect_message(t, "waiting: 2 of 4 tasks are missing")
        held = max(tasks[0].steps())
    finally:
        plug()
    tasks[0].until_step(held + 10)
    assert all(t.p.poll() is None for t in tasks)


@test
def network_partition_half_with_the_lease_trains():
    need_namespaces()
    steps = {"train": {"epochs": None, "steps": 300, "lanes": 4, "log_every_steps": 1}, "checkpoint": {"every_steps": 0}}
    alone, folder = workdir(), workdir()
    expect_codes([Task(digits_job(alone, **steps), args=("--devices", "cpu:1"))], [0])
    tasks = start(digits_job(folder, **steps, elastic={"min_world": 2, "rejoin_seconds": 0}), env={"TRAINERD_FAULT": "train.forward=delay:20@1+"})
    tasks[0].until_step(20)
    tasks[0].until(lambda t: t.events("view")[-1]["tasks"] == 4)
    before = [len(t.events("view")) for t in tasks]
    pull()
    try:
        tasks[0].until(lambda t: t.events("view")[-1]["tasks"] == 2)
        held = max(tasks[0].steps())
        tasks[0].until_step(held + 20)
        expect_message(tasks[2], "waiting: 2 of 4 tasks are missing", "less than a majority of the last group is present")
        assert [len(t.events("view")) for t in tasks[2:]] == before[2:], tasks[2].log()
    finally:
        plug()
    expect_codes(tasks, [0] * 4)
    assert tasks[0].events("view")[-1]["tasks"] == 4, tasks[0].log()
    for name in ("model.safetensors", "optimizer.safetensors"):
        path = os.path.join("step-00000300", name)
        assert last_checkpoint(folder)[path] == last_checkpoint(alone)[path], name


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        cable()
    main()
