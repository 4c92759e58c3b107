#!/usr/bin/python3
"""Two hosts: network namespaces with a cable between them, two tasks on each."""
# san: yes
import os
import subprocess
import time

from kit import SLOW, Task, digits_job, expect_codes, main, need_root, read_tree, test, workdir

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
    """One task per address; `order` says which address is worker 0, 1, ..."""
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
def two_hosts_with_two_tasks_each_give_the_bytes_of_one_task():
    alone = workdir()
    expect_codes([Task(digits_job(alone, **JOB), args=("--devices", "cpu:1"))], [0])
    for order, words in (((0, 1, 2, 3), "2 hosts"), ((0, 2, 1, 3), "2 hosts")):
        folder = workdir()
        tasks = start(digits_job(folder, **JOB), order)
        expect_codes(tasks, [0] * 4)
        notes = " ".join(r["message"] for r in tasks[0].events("note"))
        assert words in notes and "tcp" in notes.lower(), notes
        assert last_checkpoint(folder) == last_checkpoint(alone), order


@test
def a_cable_that_is_pulled_ends_the_job_on_both_sides_with_names():
    tasks = start(digits_job(workdir(), train={"epochs": 100000, "lanes": 4, "log_every_steps": 1}), env=SLOWLY)
    tasks[0].until_step(5)
    at = time.monotonic()
    ip("-n", "west", "link", "set", "cable", "down")
    try:
        expect_codes(tasks, [138] * 4, 20)
    finally:
        ip("-n", "west", "link", "set", "cable", "up")
    for t in tasks:
        assert t.ended - at < 3 * SLOW, "%s needed %.1f s" % (t.name, t.ended - at)
        last = [r for r in t.records if r.get("event") == "end"][-1]["message"]
        others = [o.name for o in tasks if o.host != t.host]
        assert any(o in last for o in others), "%s: %s" % (t.name, last)


if __name__ == "__main__":
    need_root()
    cable()
    main()
