#!/usr/bin/python3
"""Lanes move from a slow task to the others, and the weights are those of one task. The work of a lane is a pause, so which
task is slow does not depend on the machine."""
# san: yes
import json
import os
import subprocess

from kit import (GUARD, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, free_ports, main, merge, read_tree, test, tf_config,
                 wait_until, workdir)

LANES = 16
FAST, SLOWER = 10, 40  # milliseconds of a lane


def make_job(steps, **changes):
    job = {"train": {"epochs": None, "steps": steps, "lanes": LANES, "global_batch_size": 3 * LANES, "log_every_steps": 1},
           "elastic": {"balance_seconds": 1},
           "health": {"advice": {"window_steps": 4, "window_seconds": 0.2}},
           "checkpoint": {"every_steps": 1000000, "max_to_keep": 100}}
    return digits_job(workdir(), **merge(job, changes))


def takes(ms, *slow):
    """The environment of a task that pauses in each lane; slow: more faults."""
    return {"TRAINERD_FAULT": ",".join(["train.lane=delay:%d@1+" % ms, *slow])}


def start_with(job, pauses, ports, locations=None):
    return [Task(job, tf_config(ports, i), ("--devices", "cpu:1"),
                 takes(ms) | ({"TRAINERD_LOCATION": locations[i]} if locations else {}), "worker %d" % i) for i, ms in enumerate(pauses)]


def results(job):
    """The weights and the state of the optimizer in the last checkpoint, and the exported model."""
    tree = read_tree(os.path.join(os.path.dirname(job), "run"))
    out = {k: v for k, v in tree.items() if k.endswith((".safetensors", ".onnx"))}
    assert len(out) >= 3, sorted(tree)
    return out


def of_one_task(steps, **changes):
    job = make_job(steps, **changes)
    expect_codes([Task(job, args=("--devices", "cpu:1"))], [0])
    return results(job)


def moves(task):
    return [r["message"] for r in task.events("group") if r["message"].startswith("lanes move: ")]


def of_tasks(port, key):
    """Returns what the status of the task at `port` says of each task."""
    p = subprocess.run([TRAINERCTL, "status", "--json", "127.0.0.1:%d" % port], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    return [t[key] for t in json.loads(p.stdout)["tasks"]]


def lanes(port):
    return of_tasks(port, "lanes")


@test
def slow_worker_loses_lanes_and_the_weights_are_those_of_one_task():
    steps = 240
    ports = free_ports(4)
    job = make_job(steps)
    tasks = start_with(job, [FAST, FAST, SLOWER, FAST], ports)
    tasks[0].until(moves)
    first = moves(tasks[0])[0]
    assert first.startswith("lanes move: worker 2 computes a lane in ") and "its lanes change from 4 to " in first, first
    assert "those of each other task from 4 to " in first and "is predicted to take" in first, first
    for t in tasks:  # the cause of the next generation
        t.until(lambda t: any(first in r["message"] for r in t.events("view")))
    wait_until(lambda: lanes(ports[0])[2] in (1, 2), lambda: lanes(ports[0]))
    assert sum(lanes(ports[0])) == LANES, lanes(ports[0])
    expect_codes(tasks, [0] * 4)
    assert results(job) == of_one_task(steps)


@test
def worker_loses_lanes_by_its_name_where_locations_order_the_ranks():
    steps = 240
    ports = free_ports(4)
    locations = ["a/1", "b/1", "b/2", "a/2"]  # the order of ranks: worker 0, 3, 1, 2
    job = make_job(steps)
    tasks = start_with(job, [FAST, SLOWER, FAST, FAST], ports, locations)
    tasks[0].until(moves)
    assert moves(tasks[0])[0].startswith("lanes move: worker 1 computes a lane in "), moves(tasks[0])
    wait_until(lambda: lanes(ports[0])[1] in (1, 2), lambda: lanes(ports[0]))
    now = lanes(ports[0])
    assert sum(now) == LANES and now[1] < min(now[0], now[2], now[3]), now
    assert of_tasks(ports[0], "location") == locations, of_tasks(ports[0], "location")
    expect_codes(tasks, [0] * 4)
    assert all("2 racks: a with 2 tasks, b with 2 tasks" in r["message"] for t in tasks for r in t.events("order")), tasks[0].log()
    assert results(job) == of_one_task(steps)


@test
def divided_lanes_over_tcp_become_equal_when_a_task_is_lost_and_move_again():
    steps = 260
    changes = {"communication": {"shared_memory": False}, "elastic": {"balance_seconds": 0}}
    ports = free_ports(3)
    job = make_job(steps, train={"lanes": 12, "global_batch_size": 48}, **changes)
    tasks = start_with(job, [FAST, SLOWER, FAST], ports)
    tasks[0].until(moves)
    wait_until(lambda: lanes(ports[0])[1] < 4, lambda: lanes(ports[0]))
    tasks[2].kill()
    killed = len(moves(tasks[0]))
    tasks[2] = Task(job, tf_config(ports, 2), ("--devices", "cpu:1"), takes(FAST), "worker 2")
    tasks[0].until(lambda t: len(moves(t)) > killed)
    assert all(moves(tasks[0])[i].startswith("lanes move: worker 1 ") for i in (0, killed)), moves(tasks[0])
    views = ["lanes move" in r["message"] for r in tasks[0].events("view")]
    assert views[:2] == [False, True] and False in views[2:], tasks[0].log()
    expect_codes(tasks, [0] * 3)
    assert results(job) == of_one_task(steps, train={"lanes": 12, "global_batch_size": 48}, **changes)


@test
def task_that_is_slow_in_turns_moves_few_lanes():
    steps, turn = 160, 20
    ports = free_ports(4)
    job = make_job(steps)
    # longer pauses in every second turn, if it computes 4 lanes in a step
    slow = ["train.lane=delay:20@%d-%d" % (4 * begin + 1, 4 * (begin + turn)) for begin in range(0, steps, 2 * turn)]
    tasks = start_with(job, [5] * 3, ports)
    tasks.append(Task(job, tf_config(ports, 3), ("--devices", "cpu:1"), takes(5, *slow), "worker 3"))
    expect_codes(tasks, [0] * 4)
    assert len(moves(tasks[0])) <= 4, moves(tasks[0])  # of seven changes of its speed
    assert results(job) == of_one_task(steps)


@test
def lanes_stay_if_the_job_says_so_and_check_states_why():
    for balance, train, why in (("off", {}, '/elastic/balance is "off"'), ("auto", {"lanes": 2}, "each replica computes one lane"),
                                ("auto", {"lanes": 4}, None), ("auto", {}, None)):
        job = make_job(30, elastic={"balance": balance}, train=train)
        p = subprocess.run([TRAINERD, "--job", job, "--check", "--devices", "cpu:1"], capture_output=True, text=True, timeout=GUARD,
                           env={**os.environ, "TF_CONFIG": json.dumps(tf_config(free_ports(2), 0))})
        assert p.returncode == 0, p.stderr
        found = json.loads(p.stdout)["balance"]
        if why is None:
            assert found == ("auto" if not train else "auto, in large portions: 2 lanes for each replica; 4 or more are useful"), found
        else:
            assert found.startswith("off: ") and why in found, found
    steps = 40
    job = make_job(steps, elastic={"balance": "off"})
    tasks = start_with(job, [FAST, SLOWER], free_ports(2))
    expect_codes(tasks, [0, 0])
    assert not any(moves(t) for t in tasks) and len(tasks[0].events("view")) == 1, tasks[0].log()


if __name__ == "__main__":
    main()
