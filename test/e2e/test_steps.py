#!/usr/bin/python3
"""The coordinator of a group is killed again and again: each step of the job is in the log of at least one task."""
import collections
import fcntl
import glob
import os
import signal
import threading

from kit import (GUARD, Gate, Task, await_handler, digits_job, disturb, expect_codes, free_ports, main, merge, test, tf_config,
                 until_listening, wait_until, workdir)

STEPS = 60
JOB = {"train": {"epochs": None, "steps": STEPS, "lanes": 12, "global_batch_size": 96, "log_every_steps": 1,
                 "eval_every_epochs": 0, "deadline_seconds": 20},
       "checkpoint": {"every_steps": 0, "every_seconds": 0, "max_to_keep": 0},
       "elastic": {"min_world": 1, "rejoin_seconds": 0}}
PACE = "train.forward=delay:5@1+"  # of each step
F_SETPIPE_SZ = 1031
SAME = ("epoch", "loss", "learning_rate", "gradient_norm")  # on each task that writes a step


class Unread(Task):
    """Its standard error is read after read() was called; before, little fits into the pipe."""

    def _read(self):
        fcntl.fcntl(self.p.stderr.fileno(), F_SETPIPE_SZ, 4096)
        self.may_read.wait()
        super()._read()

    def __init__(self, *args, **more):
        self.may_read = threading.Event()
        super().__init__(*args, **more)

    def read(self):
        self.may_read.set()
        self.reader.join(GUARD)


class Group:
    """Three tasks. Only the coordinator writes steps at the level of these logs, unless it cannot."""

    def __init__(self, faults=None, kind=None, **changes):
        self.folder = workdir()
        self.job = digits_job(self.folder, **merge(JOB, changes))
        self.ports = free_ports(3)
        self.lives = []  # every process that ever ran
        self.tasks, gate = [None] * 3, Gate()
        for i in range(3):
            hold = "," + gate.fault("data.open") if i == 0 else ""
            self.start(i, (faults or {}).get(i, PACE) + hold, (kind or {}).get(i, Task))
            if i == 0:
                until_listening(self.ports[0])
        gate.open_when_joined(self.tasks, self.ports[0])  # the three begin together, so worker 0 leads from step 1

    def start(self, i, fault=PACE, kind=Task):
        self.tasks[i] = kind(self.job, tf_config(self.ports, i), ("--devices", "cpu:1"), env={"TRAINERD_FAULT": fault},
                             name="worker %d" % i)
        self.lives.append(self.tasks[i])
        return self.tasks[i]

    def again(self, i):
        """Waits until a fault point has killed the task, and starts it without faults. Returns the killed one."""
        task = self.tasks[i]
        assert task.wait() == -signal.SIGKILL, task.log()
        self.start(i)
        return task

    def leader(self):
        """The number of the coordinator of the newest view."""
        views = [v for t in self.tasks for v in t.events("view")]
        newest = max(views, key=lambda v: v["_at"], default={"message": "led by worker 0"})
        return int(newest["message"].split("led by worker ")[1][0])

    def newest_step(self):
        """The last step that the coordinator has logged after its newest view, or 0."""
        task = self.tasks[self.leader()]
        since = max((v["_at"] for v in task.events("view")), default=0)
        return max((r["step"] for r in task.events("step") if r["_at"] > since), default=0)

    def complete(self):
        expect_codes(self.tasks, [0] * 3)
        return self.lines(STEPS)

    def lines(self, last, event="step"):
        """{step: the processes that wrote its line}, after a check that no step is missing and that the lines agree."""
        found, values = collections.defaultdict(list), {}
        for life in self.lives:
            for r in life.events(event):
                found[r["step"]].append(life)
                value = values.setdefault(r["step"], [r[k] for k in SAME if k in r])
                assert value == [r[k] for k in SAME if k in r], (r, value)
        missing = [k for k in range(1, last + 1) if k not in found]
        assert event != "step" or not missing, "steps %s of %d are in no log" % (missing, last)
        return found


def repeated(lines, end):
    """The lines of steps before `end` that more than one process has written."""
    return {k: [t.name for t in lives] for k, lives in lines.items() if k < end and len(lives) > 1}


@test
def coordinator_killed_before_its_line_of_a_step_the_others_write_it():
    for k in (1, 20, STEPS):
        g = Group({0: PACE + ",report.line=kill@%d" % k})
        killed = g.again(0)
        lines = g.complete()
        assert killed not in lines[k] and lines[k], (k, lines[k])
        again = repeated(lines, k - 1)  # a task that did not get the sum of step k writes the line of the step before
        assert not again, again


@test
def coordinator_killed_before_its_line_of_the_evaluation_the_others_write_it():
    g = Group({0: PACE + ",report.line=kill@%d" % (STEPS + 1)})  # the job ends with an evaluation
    killed = g.again(0)
    g.complete()
    writers = g.lines(STEPS, "eval")[STEPS]
    assert writers and killed not in writers, writers


@test
def coordinator_and_its_successor_are_killed_before_their_lines_no_step_is_missing():
    g = Group({i: PACE + ",report.line=kill@7" for i in (0, 1)}, train={"steps": 200})
    for t in g.tasks[:2]:
        assert t.wait() == -signal.SIGKILL, t.log()
    g.tasks[2].until_step(max(g.lines(0)) + 5)
    g.start(0)
    g.start(1)
    expect_codes(g.tasks, [0] * 3)
    g.lines(200)


@test
def coordinator_that_leaves_in_order_each_line_is_written_once():
    g = Group(train={"steps": 600})
    for _ in range(2):
        g.tasks[1].until(lambda t: any(v["tasks"] == 3 for v in t.events("view")[-1:]))
        i = g.leader()
        g.tasks[i].until_step(max(g.lines(0), default=0) + 5)
        g.tasks[i].signal(signal.SIGTERM)
        assert g.tasks[i].wait() == 143, g.tasks[i].log()
        n = len(g.lines(0))
        g.tasks[(i + 1) % 3].until(lambda t: len(g.lines(0)) > n + 5)
        g.start(i)
    expect_codes(g.tasks, [0] * 3)
    again = repeated(g.lines(600), 601)
    assert not again, again


@test
def coordinator_whose_log_takes_nothing_the_others_write_its_lines_also_after_its_death():
    g = Group(kind={0: Unread}, train={"steps": 400})
    first, other = g.tasks[0], g.tasks[1]
    other.until_step(60)
    first.signal(signal.SIGKILL)
    first.p.wait()
    first.read()
    assert max(first.steps()) < 60, max(first.steps())  # its last lines were queued, and died with it
    g.start(0)
    expect_codes(g.tasks, [0] * 3)
    g.lines(400)


@test
def coordinator_killed_at_random_moments_no_step_is_missing():
    slow_line = "train.forward=delay:3@1+,report.line=delay:3@1+"  # a kill often comes before the line
    g = Group({i: slow_line for i in range(3)}, train={"steps": 10 ** 6})
    kills = 15
    for _ in range(kills):
        disturb(0.7)
        i = g.leader()
        g.tasks[i].signal(signal.SIGKILL)
        g.tasks[i].p.wait()
        disturb(0.3)
        g.start(i, slow_line)
    wait_until(lambda: g.newest_step() >= 50)
    for t in g.tasks:
        await_handler(t.p.pid, signal.SIGTERM)  # of the last start
        t.signal(signal.SIGTERM)
    expect_codes(g.tasks, [143] * 3)
    saved = max((int(p[-8:]) for p in glob.glob(os.path.join(g.folder, "run", "checkpoints", "step-*"))), default=0)
    assert saved >= 50, "%d steps, %d kills" % (saved, kills)
    g.lines(saved)


if __name__ == "__main__":
    main()
