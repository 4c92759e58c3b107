#!/usr/bin/python3
"""Spare lanes: the next task computes the last lanes of a task that is late, and the weights are those of one task. Every task
is a host of its own: they share no memory. A lane takes a pause, so which task is late does not depend on the machine."""
# san: yes
import json
import os
import re
import signal
import subprocess
import urllib.request

from kit import (GUARD, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, free_ports, main, merge, read_tree, test, tf_config,
                 wait_until, workdir)

TASKS = 3
LANES = 4 * TASKS  # the last two of each task are spare
PAUSE = 600  # milliseconds
USES = re.compile(r"(.+) was late: this task computed lanes of it up to step \d+, (\d+) in its place, (\d+) to compare")


def make_job(steps, **changes):
    job = {"train": {"epochs": None, "steps": steps, "lanes": LANES, "global_batch_size": 3 * LANES, "log_every_steps": 1},
           "elastic": {"balance": "off", "spare": "auto"},
           "communication": {"shared_memory": False},
           "checkpoint": {"every_steps": 1000000, "max_to_keep": 100}}
    return digits_job(workdir(), **merge(job, changes))


def start(job, faults, ports=None, pages=()):
    """A task for each of the faults. pages: ports of the metrics."""
    ports = ports or free_ports(len(faults))
    args = [("--metrics", "127.0.0.1:%d" % page) for page in pages] or [()] * len(faults)
    return [Task(job, tf_config(ports, i), ("--devices", "cpu:1", *args[i]), {"TRAINERD_FAULT": f} if f else {}, "worker %d" % i)
            for i, f in enumerate(faults)]


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


def uses(task):
    """Which task this one helped, and the lanes that it contributed and compared."""
    found = [USES.fullmatch(r["message"]) for r in task.events("spare")]
    found = [m for m in found if m]
    return {m[1] for m in found}, sum(int(m[2]) for m in found), sum(int(m[3]) for m in found)


def last_use(task):
    """The last step in which this task helped."""
    return max(int(m[1]) for r in task.events("spare") for m in [re.search(r"up to step (\d+), ", r["message"])] if m)


def given(task):
    return [r["message"] for r in task.events("spare") if r["message"].startswith("this task was late: ")]


def pauses(point, passages):
    return ",".join("%s=delay:%d@%d" % (point, PAUSE, n) for n in passages)


@test
def next_task_computes_the_lanes_of_a_late_one_and_the_weights_are_those_of_one_task():
    steps = 40
    job = make_job(steps)
    # pauses in lanes of every kind: before the spare ones and, since spare ones that are left out shift the numbers, inside
    tasks = start(job, ["", pauses("train.lane", (21, 42, 63, 84)), ""])
    expect_codes(tasks, [0] * TASKS)
    helped, used, _ = uses(tasks[2])
    assert helped == {"worker 1"} and used >= 2, tasks[2].log()
    assert any("worker 2 computed" in m for m in given(tasks[1])), tasks[1].log()
    on = [r["message"] for r in tasks[2].events("note") if r["message"].startswith("spare lanes: ")]
    assert on == ["spare lanes: if worker 1 is late, this task computes its last 2 lanes; if this task is late, worker 0 computes its last 2"], on
    assert results(job) == of_one_task(steps)


@test
def copies_are_compared_and_a_wrong_one_names_both_tasks():
    steps, why = 30, "worker 1 and worker 2 computed different gradients of lanes 6 to 7"
    for _ in range(5):  # a task that the machine itself delays can take the place of a pause
        job = make_job(steps)
        # late between the lanes and the exchange, more often than necessary: the first copy is right, the second one wrong
        tasks = start(job, ["", pauses("train.reduce", (8, 12, 16, 20, 24)), "health.flip_spare=fail@2"])
        expect_codes(tasks, [0] * TASKS)
        if any(why in r.get("message", "") for t in tasks for r in t.records):
            break
    else:
        raise AssertionError("\n".join(t.log() for t in tasks))
    assert "worker 1" in uses(tasks[2])[0], tasks[2].log()
    assert results(job) == of_one_task(steps)


def shown(port, *options):
    p = subprocess.run([TRAINERCTL, "status", *options, "127.0.0.1:%d" % port], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    return p.stdout


def lanes_of(port):
    """The counts in the status of a task."""
    status = json.loads(shown(port, "--json"))["spare"]
    assert status.pop("mode") == "auto", status
    return {key.removesuffix("_lanes"): n for key, n in status.items()}


def metrics_of(page):
    """The same in its metrics."""
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % page, timeout=GUARD).read().decode()
    return {what: float(n) for what, n in re.findall(r'^trainerd_spare_lanes_total\{what="(\w+)"\} (\S+)$', text, re.M)}


@test
def status_and_metrics_count_copies_and_wrong_ones():
    ports, pages = free_ports(TASKS), free_ports(TASKS)
    # copies are contributed, then compared: the first one is right, the second one wrong; more pauses than necessary
    faults = ["", pauses("train.lane", (21, 42, 63, 84)) + "," + pauses("train.reduce", (8, 12, 16, 20, 24, 28, 32, 36)), "health.flip_spare=fail@2"]
    tasks = start(make_job(1000000), faults, ports, pages)

    def is_counted():
        late, helper = lanes_of(ports[1]), lanes_of(ports[2])
        # the first task adds up the element that differs
        return late["given"] >= 2 and helper["used"] >= 2 and helper["compared"] >= 2 and lanes_of(ports[0])["wrong"] >= 2
    tasks[0].until_step(6)
    wait_until(is_counted, lambda: str([lanes_of(p) for p in ports]))
    for port, page in zip(ports, pages):
        before, metrics, after = lanes_of(port), metrics_of(page), lanes_of(port)
        assert metrics.keys() == before.keys(), (metrics, before)
        assert all(before[k] <= metrics[k] <= after[k] for k in metrics), (before, metrics, after)
        assert all(n % 2 == 0 for n in after.values()) and after["offered"] >= after["used"] + after["compared"], after
    wrong = lanes_of(ports[0])["wrong"]
    text = next(line for line in shown(ports[0]).splitlines() if line.startswith("spare lanes"))
    assert text.startswith("spare lanes auto: ") and "wrong copies: %d lanes" % wrong in text, text
    why = "worker 1 and worker 2 computed different gradients of lanes 6 to 7"
    assert any(why in r["message"] for r in tasks[0].events("differs")), tasks[0].log()
    for t in tasks:
        t.signal(signal.SIGTERM)
    expect_codes(tasks, [143] * TASKS)


def kill(steps, faults, victim):
    ports = free_ports(TASKS)
    job = make_job(steps)
    tasks = start(job, faults, ports)
    code = tasks[victim].wait()
    assert code == -signal.SIGKILL, (code, tasks[victim].log())
    tasks[victim] = Task(job, tf_config(ports, victim), ("--devices", "cpu:1"), {}, "worker %d" % victim)
    expect_codes(tasks, [0] * TASKS)
    assert results(job) == of_one_task(steps)


@test
def helper_that_is_killed_around_its_offer_loses_no_step():
    for point in ("comm.offer", "comm.offered"):
        kill(30, ["", pauses("train.lane", (25,)), point + "=kill"], 2)


@test
def late_task_that_is_killed_after_the_offer_loses_no_step():
    # in the seventh step it leaves out its spare lanes, and dies before it says so
    kill(30, ["", pauses("train.lane", (25,)) + ",train.spare_exchange=kill@7", ""], 1)


@test
def check_and_log_state_where_spare_lanes_are_off():
    for elastic, train, why in (({"spare": "off"}, {}, 'off: /elastic/spare is "off"'), ({}, {"lanes": 3}, "off: each replica computes one lane"),
                                ({}, {}, "auto, if each task is alone on its host"), ({"spare": "always"}, {}, "always, if each task is alone")):
        job = make_job(30, elastic=elastic, train=train)
        p = subprocess.run([TRAINERD, "--job", job, "--check", "--devices", "cpu:1"], capture_output=True, text=True, timeout=GUARD,
                           env={**os.environ, "TF_CONFIG": json.dumps(tf_config(free_ports(TASKS), 0))})
        assert p.returncode == 0, p.stderr
        assert json.loads(p.stdout)["spare"].startswith(why), p.stdout
    job = make_job(30, communication={"shared_memory": True})
    tasks = start(job, ["", ""])
    expect_codes(tasks, [0, 0])
    assert any(r["message"] == "spare lanes are off: several replicas are on one host" for r in tasks[0].events("note")), tasks[0].log()


@test
def lanes_that_have_moved_are_spare_too_and_the_weights_are_those_of_one_task():
    """Lanes move away from a slow task, and in later steps another task is late after its lanes, so both copies of its moved
    lanes are compared."""
    steps = 240
    changes = {"elastic": {"balance": "auto", "balance_seconds": 1}, "health": {"advice": {"window_steps": 4, "window_seconds": 0.2}}}
    job = make_job(steps, **changes)
    lane = "train.lane=delay:%d@1+"
    tasks = start(job, [lane % 10, lane % 40, lane % 10 + "," + pauses("train.reduce", range(150, 210, 10))])
    expect_codes(tasks, [0] * TASKS)
    views = [r["message"] for r in tasks[0].events("view")]
    moved = [r["newest_step"] for r in tasks[0].events("view") if "lanes move: worker 1 computes a lane in" in r["message"]]
    assert len(views) >= 2 and moved and moved[0] < 150, views
    helped, used, compared = uses(tasks[0])
    assert helped == {"worker 2"} and used + compared >= 1, tasks[0].log()
    assert last_use(tasks[0]) >= 150, tasks[0].log()
    helped, used, _ = uses(tasks[2])  # until its lanes moved, worker 1 was late in each step
    assert helped == {"worker 1"} and used >= 2, tasks[2].log()
    assert results(job) == of_one_task(steps)


@test
def lanes_move_until_two_tasks_have_one_lane_and_all_tasks_exchange_spare_lanes_in_the_same_way():
    """A task with one lane whose helped task has one lane, too, has no spare lane and computes none of another task."""
    steps = 120
    changes = {"train": {"lanes": 8, "global_batch_size": 24}, "elastic": {"balance": "auto", "balance_seconds": 1},
               "health": {"advice": {"window_steps": 5, "window_seconds": 0.2}}}
    job = make_job(steps, **changes)
    tasks = start(job, ["train.lane=delay:%d@1+" % ms for ms in (5, 5, 25, 25)])
    expect_codes(tasks, [0] * 4)
    assert any("lanes move: " in r["message"] for r in tasks[0].events("view")), tasks[0].log()
    last = [[r["message"] for r in t.events("note") if r["message"].startswith("spare lanes")][-1] for t in tasks]
    assert all(m.startswith("spare lanes: ") for m in last), last  # and not "spare lanes are off: "
    assert last[3] == "spare lanes: worker 2 computes one lane, which is not spare; this task computes one lane", last
    assert results(job) == of_one_task(steps, **changes)


if __name__ == "__main__":
    main()
