#!/usr/bin/env python3
"""test_lock.py: a checkpoint directory belongs to one running job, with or without a cluster."""
import os
import re
import signal
import subprocess
import sys

from kit import Skip, Task, digits_job, expect_codes, free_ports, main, start, test, tf_config, workdir

SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:10@1+"}
ALONE = ("--devices", "cpu:1")
HOLDER = r"checkpoint.directory '%s': %s, process %s on \S+, holds lease \d+ since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"


def job(folder, **changes):
    changes = {"checkpoint": {"directory": folder + "/ck", "every_steps": 20, "max_to_keep": 100}, **changes}
    return digits_job(folder, **changes)


def folders(folder):
    return sorted(n for n in os.listdir(folder + "/ck") if n.startswith("step-"))


def expect_conflict(task, folder, name, pid, code=2):
    assert task.wait() == code, task.log()
    said = task.final_message()
    assert re.search(HOLDER % (re.escape(folder + "/ck"), re.escape(name), pid), said), said
    assert "and renews it; expected one running job for each directory" in said, said
    assert not task.events("step"), task.log()


@test
def second_task_without_a_cluster_ends_with_2_and_names_the_holder():
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first")
    first.until_step(30)
    with_pruning = workdir()
    second = Task(job(with_pruning, checkpoint={"directory": folder + "/ck", "every_steps": 1, "max_to_keep": 1}), args=ALONE)
    expect_conflict(second, folder, "a task without a cluster", first.p.pid)
    assert "step-00000020" in folders(folder), folders(folder)
    expect_codes([first], [0])
    assert folders(folder)[0] == "step-00000020", folders(folder)


@test
def two_tasks_started_at_once_train_the_job_once():
    folder = workdir()
    tasks = [Task(job(folder), args=ALONE, env=SLOWLY, name="task %d" % i) for i in range(2)]
    codes = sorted(t.wait() for t in tasks)
    assert codes == [0, 2], (codes, tasks[0].log(), tasks[1].log())
    assert sum(bool(t.events("step")) for t in tasks) == 1


@test
def group_beside_a_group_or_a_lone_task_ends_with_2_on_every_task():
    folder = workdir()
    first = start(job(folder), 2, env=SLOWLY)
    first[0].until_step(10)
    others = start(job(workdir(), checkpoint={"directory": folder + "/ck"}), 2)
    alone = Task(job(workdir(), checkpoint={"directory": folder + "/ck"}), args=ALONE)
    expect_codes(others, [2, 2])
    for t in others:
        assert re.search(HOLDER % (re.escape(folder + "/ck"), r"worker 0 \(127.0.0.1:%d\)" % first[0].port, first[0].p.pid),
                         t.final_message()), t.final_message()
        assert not t.events("step"), t.log()
    expect_conflict(alone, folder, "worker 0 (127.0.0.1:%d)" % first[0].port, first[0].p.pid)
    expect_codes(first, [0, 0])


@test
def elastic_group_beside_a_lone_task_ends_with_2_on_every_task():
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first")
    first.until_step(10)
    others = start(job(workdir(), checkpoint={"directory": folder + "/ck"}, elastic={"min_world": 1}), 2)
    expect_codes(others, [2, 2])
    assert "a task without a cluster" in others[0].final_message(), others[0].final_message()
    expect_codes([first], [0])


@test
def task_killed_on_this_host_is_followed_at_once():
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first")
    first.until_step(30)
    first.p.kill()
    first.wait()
    second = Task(job(folder), args=ALONE)
    expect_codes([second], [0])
    assert not second.events("lock"), second.log()
    assert min(second.steps()) > 20, sorted(second.steps())[:3]


@test
def stopped_task_is_followed_at_once():
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first")
    first.until_step(30)
    first.signal(signal.SIGTERM)
    expect_codes([first], [143])
    second = Task(job(folder), args=ALONE)
    expect_codes([second], [0])
    assert not second.events("lock"), second.log()


@test
def lease_of_a_dead_task_elsewhere_expires_and_the_next_task_trains():
    """The process number of a task in another namespace of processes proves nothing here."""
    probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise Skip("no namespace of processes: " + probe.stderr.strip())
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first",
                 prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    first.until_step(30)
    first.p.kill()
    first.wait()
    second = Task(job(folder), args=ALONE)
    second.until(lambda t: t.events("lock"))
    waited = second.events("lock")[0]["message"]
    assert re.search(HOLDER % (re.escape(folder + "/ck"), "a task without a cluster", r"\d+") +
                     "; waiting until it is released, or not renewed for 4 s", waited), waited
    expect_codes([second], [0])
    assert min(second.steps()) > 20, sorted(second.steps())[:3]


@test
def suspended_task_whose_lease_expired_does_not_write_again():
    """The first is suspended for longer than its lease; the second, in another namespace of processes, takes it over."""
    probe = subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise Skip("no namespace of processes: " + probe.stderr.strip())
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first")
    first.until_step(30)
    first.signal(signal.SIGSTOP)
    second = Task(job(folder), args=ALONE, env=SLOWLY, prefix=("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"))
    second.until(lambda t: t.events("step"))
    first.signal(signal.SIGCONT)
    assert first.wait() == 2, first.log()
    assert "and renews it" in first.final_message(), first.final_message()
    expect_codes([second], [0])


@test
def task_that_waits_for_the_lease_ends_at_sigterm():
    folder = workdir()
    first = Task(job(folder), args=ALONE, env=SLOWLY, name="first")
    first.until_step(10)
    first.signal(signal.SIGSTOP)
    second = Task(job(folder), args=ALONE)
    second.until(lambda t: t.events("lock"))
    second.signal(signal.SIGTERM)
    expect_codes([second], [143])
    assert not second.events("step"), second.log()


@test
def same_cluster_text_on_two_hosts_ends_the_second_with_2():
    host = ("unshare", "--net", "sh", "-c", "ip link set lo up && ip addr add 10.99.0.1/32 dev lo && exec \"$@\"", "sh")
    probe = subprocess.run([*host, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise Skip("no network namespace: " + probe.stderr.strip())
    folder = workdir()
    config = {"cluster": {"worker": ["10.99.0.1:2222"]}, "task": {"type": "worker", "index": 0}}
    path = job(folder)
    first = Task(path, config, ALONE, SLOWLY, "first", prefix=host)
    first.until_step(10)
    second = Task(path, config, ALONE, name="second", prefix=host)
    expect_conflict(second, folder, "worker 0 (10.99.0.1:2222)", first.p.pid)
    expect_codes([first], [0])


@test
def chief_that_dies_hands_the_directory_to_its_group_without_a_wait():
    folder = workdir()
    ports = free_ports(2)
    tasks = start(job(folder), 2, env=SLOWLY, ports=ports)
    tasks[1].until(lambda t: os.path.isdir(folder + "/ck/step-00000020"))
    tasks[0].p.kill()
    again = Task(job(folder), tf_config(ports, 0), ALONE, name="worker 0 again")
    expect_codes([again, tasks[1]], [0, 0])
    assert not again.events("lock") and not tasks[1].events("lock"), (again.log(), tasks[1].log())


if __name__ == "__main__":
    main()
