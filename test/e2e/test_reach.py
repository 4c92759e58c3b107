#!/usr/bin/python3
"""Four hosts in network namespaces: the data path of one host fails while its control path works."""
import json
import os
import subprocess

from kit import (GUARD, TOKEN, TRAINERCTL, Task, digits_job, enter_namespaces, expect_codes, has_namespaces, main, need_namespaces,
                 test, wait_until, workdir)

CONTROL = 2222
ADDRESSES = ["10.78.0.%d" % (i + 1) for i in range(4)]
SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:5@1+"}
JOB = {"train": {"epochs": 100000, "lanes": 4, "log_every_steps": 1, "eval_every_epochs": 0}, "checkpoint": {"every_steps": 0},
       "elastic": {"min_world": 1, "rejoin_seconds": 0}}
# Packets of the data plane that a host drops: all, those of one host, large ones.
DEAD = ["-p", "tcp", "-m", "multiport", "!", "--ports", str(CONTROL)]


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def network():
    ip("link", "add", "switch", "type", "bridge")
    ip("link", "set", "switch", "up")
    for i, address in enumerate(ADDRESSES):
        host, port = "host%d" % i, "port%d" % i
        ip("netns", "add", host)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("link", "set", port, "master", "switch", "up")
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "addr", "add", address + "/24", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")


class Fault:
    """Drops packets that match `what` on arrival at the host; or `then`, the arguments of another target."""

    def __init__(self, host, *what, then=("DROP",)):
        self.host, self.what, self.then = host, what, then

    def table(self, action):
        subprocess.run(["ip", "netns", "exec", "host%d" % self.host, "iptables", "-w", action, "INPUT", *self.what, "-j", *self.then],
                       check=True)

    def __enter__(self):
        self.table("-A")

    def __exit__(self, *_):
        self.table("-D")


def need_network():
    need_namespaces("ip", "netns", "exec", "host0", "iptables", "-w", "-A", "FORWARD", *DEAD, "-m", "length", "--length", "1000:65535",
                    "-j", "ACCEPT")  # a host forwards nothing: the rule has no effect


def start_all(**changes):
    job = digits_job(workdir(), **{**JOB, **changes})
    cluster = {"worker": ["%s:%d" % (a, CONTROL) for a in ADDRESSES]}
    return [Task(job, {"cluster": cluster, "task": {"type": "worker", "index": i}}, ("--devices", "cpu:1"), SLOWLY,
                 "worker %d" % i, prefix=("ip", "netns", "exec", "host%d" % i)) for i in range(4)]


def start():
    need_network()
    tasks = start_all()
    tasks[0].until_step(20)
    wait(lambda: all(t.events("view") for t in tasks) and len(views(tasks, 4)) == 4, tasks)
    return tasks


def newest(tasks):
    return max(max(t.steps(), default=0) for t in tasks)


def wait(what, tasks):
    wait_until(what, lambda: "\n".join("--- %s\n%s" % (t.name, t.log()) for t in tasks))


def views(tasks, n):
    """Returns the tasks whose view has n tasks."""
    return [t for t in tasks if t.events("view")[-1]["tasks"] == n]


def names(task, culprit):
    return any("worker %d (" % culprit in r["message"] and "cannot be reached over the data path" in r["message"]
               for r in task.events("group"))


def status_of(victim, leader):
    """Returns the victim's entry in the status of the leader; {} while the leader does not answer."""
    p = subprocess.run(["ip", "netns", "exec", "host%d" % leader, TRAINERCTL, "status", "--json", "%s:%d" % (ADDRESSES[leader], CONTROL)],
                       capture_output=True, text=True, timeout=GUARD, env={**os.environ, "TRAINERD_TOKEN": TOKEN})
    return json.loads(p.stdout)["tasks"][victim] if p.returncode == 0 else {}


def fail_a_test_of_its_paths(victim, leader, tasks):
    """Waits until the quarantine of the victim becomes longer: a test of its paths has failed."""
    left = [1e9]

    def is_extended():
        left.append(status_of(victim, leader).get("quarantine_ms") or left[-1])
        return left[-1] > left[-2]
    wait(is_extended, tasks)


def survives(victim, *faults):
    """Checks that the others continue and every task names the victim, that the group is complete again after the fault,
    and that no task ends."""
    tasks = start()
    others = [t for i, t in enumerate(tasks) if i != victim]
    leader = 1 if victim == 0 else 0
    entered = []
    try:
        for fault in faults:
            fault.__enter__()
            entered.append(fault)
        wait(lambda: len(views(others, 3)) == 3, tasks)
        wait(lambda: all(names(t, victim) for t in tasks), tasks)
        held = newest(tasks)
        wait(lambda: newest(tasks) > held + 50, tasks)
        wait(lambda: "quarantine" in status_of(victim, leader).get("last_error", ""), tasks)
        before = len(others[0].events("view"))
        fail_a_test_of_its_paths(victim, leader, tasks)
        new = [r["message"] for r in others[0].events("view")[before:]]  # on a busy machine another task may be lost
        assert not any("worker %d" % victim in m or " 4 of 4 " in m for m in new), "the dead path interrupted the group again: %s" % new
    finally:
        for fault in entered:
            fault.__exit__()
    wait(lambda: len(views(tasks, 4)) == 4, tasks)
    held = newest(tasks)
    wait(lambda: newest(tasks) > held + 20, tasks)
    told = {}

    def is_forgotten():  # the leader may not answer, or the group may regroup
        told.clear()
        told.update(status_of(victim, leader))
        return told.get("quarantine_ms") == 0 and "quarantine" not in told["last_error"]
    wait_until(is_forgotten, lambda: str(told))
    assert all(t.p.poll() is None for t in tasks), [t.p.poll() for t in tasks]


@test
def worker_without_a_data_path_is_evicted_and_rejoins():
    survives(3, Fault(3, *DEAD))


@test
def chief_without_a_data_path_hands_over_and_rejoins():
    survives(0, Fault(0, *DEAD))


@test
def worker_whose_large_packets_are_dropped_is_evicted_and_rejoins():
    survives(2, *[Fault(i, *DEAD, "-s", ADDRESSES[2], "-m", "length", "--length", "1000:65535") for i in (0, 1, 3)],
             Fault(2, *DEAD, "-m", "length", "--length", "1000:65535"))


@test
def chief_whose_large_packets_are_dropped_hands_over_and_rejoins():
    survives(0, *[Fault(i, *DEAD, "-s", ADDRESSES[0], "-m", "length", "--length", "1000:65535") for i in (1, 2, 3)],
             Fault(0, *DEAD, "-m", "length", "--length", "1000:65535"))


@test
def one_way_path_failure_evicts_at_most_one_task():
    tasks = start()
    with Fault(1, *DEAD, "-s", ADDRESSES[3]):
        held = newest(tasks)
        wait(lambda: newest(tasks) > held + 50, tasks)
    assert all(t.p.poll() is None for t in tasks), [t.p.poll() for t in tasks]


@test
def data_port_refuses_only_that_task_is_evicted():
    need_network()
    with Fault(1, "-p", "tcp", "--syn", "-m", "multiport", "!", "--ports", str(CONTROL), then=("REJECT", "--reject-with", "tcp-reset")):
        tasks = start_all(train={**JOB["train"], "deadline_seconds": 12})
        wait(lambda: all(t.events("view") for t in tasks), tasks)
        wait(lambda: len(views([t for i, t in enumerate(tasks) if i != 1], 3)) == 3, tasks)
        wait(lambda: all(names(t, 1) for t in tasks), tasks)
        held = newest(tasks)
        wait(lambda: newest(tasks) > held + 50, tasks)
    assert all(t.p.poll() is None for t in tasks), [t.p.poll() for t in tasks]


@test
def needed_task_has_no_data_path_from_the_start_all_end_at_the_deadline_with_the_reason():
    need_network()
    with Fault(2, *DEAD):
        tasks = start_all(elastic=None, train={**JOB["train"], "deadline_seconds": 6})
        expect_codes(tasks, [138] * 4)
    for t in tasks:
        assert "worker 2 (%s:%d): in quarantine" % (ADDRESSES[2], CONTROL) in t.final_message(), t.log()
        assert "opening model and data" not in t.final_message(), t.log()


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        network()
    main()
