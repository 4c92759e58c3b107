#!/usr/bin/python3
"""Tasks are lost, stopped and restarted while the others continue: every step is trained once, and the result has the bytes
of an undisturbed run."""
import glob
import os
import signal
import subprocess

from kit import (GUARD, Gate, TRAINERCTL, Task, digits_job, expect_codes, free_ports, main, merge, test, tf_config,
                 until_listening, wait_until, workdir)

STEPS = 250
JOB = {"train": {"epochs": None, "steps": STEPS, "lanes": 4, "global_batch_size": 64, "log_every_steps": 1,
                 "eval_every_epochs": 3, "deadline_seconds": 10},
       "checkpoint": {"every_steps": 50, "every_seconds": 0, "max_to_keep": 0}}
ELASTIC = {"elastic": {"min_world": 1, "rejoin_seconds": 0}}
PACE = "train.forward=delay:8@1+"  # for each lane: a step takes 8 ms with four tasks, 32 ms with one


class Group:
    """n tasks of one job, which a test can kill and start again."""

    def __init__(self, n, job=None, faults=None, **changes):
        self.folder = workdir()
        self.job = digits_job(self.folder, **merge(merge(JOB, ELASTIC), changes))
        self.ports = free_ports(n)
        self.all = []  # all processes of the test
        self.tasks, gate = [None] * n, Gate()
        for i in range(n):
            self.start(i, ",".join(f for f in ((faults or {}).get(i, ""), gate.fault("data.open") if i == 0 else "") if f))
            if i == 0:
                until_listening(self.ports[0])
        if n > 0:
            gate.open_when_joined(self.tasks, self.ports[0])  # the first group is complete

    def start(self, i, fault=""):
        # of two faults with the same name the first one that matches applies
        self.tasks[i] = Task(self.job, tf_config(self.ports, i), ("--devices", "cpu:1", "--log-level", "debug"),
                             {"TRAINERD_FAULT": fault + ("," if fault else "") + PACE}, "worker %d" % i)
        self.all.append(self.tasks[i])
        return self.tasks[i]

    def __getitem__(self, i):
        return self.tasks[i]

    def kill(self, *ranks):
        for i in ranks:
            self.tasks[i].signal(signal.SIGKILL)
        for i in ranks:
            self.tasks[i].p.wait()

    def until_step(self, k, ranks=None):
        """Waits until each task of `ranks` (None: all) has finished step k."""
        for i in range(len(self.tasks)) if ranks is None else ranks:
            self.tasks[i].until_step(k)

    def lose(self, *ranks, steps=30):
        """Kills tasks; waits until the others have trained `steps` steps. Returns the views of the first of the others since
        then."""
        left = [i for i in range(len(self.tasks)) if i not in ranks]
        before = len(self.tasks[left[0]].events("view"))
        self.kill(*ranks)
        self.until_step(max(self.tasks[left[0]].steps()) + steps, left)
        return lambda: sizes(self.tasks[left[0]], before)

    def complete(self):
        """Waits until all running tasks complete the job, and checks the result."""
        there = [t for t in self.tasks if t.p.poll() != -signal.SIGKILL]
        expect_codes(there, [0] * len(there))
        self.nothing_is_lost()

    def checkpoints(self):
        return sorted(os.path.basename(p) for p in glob.glob(os.path.join(self.folder, "run", "checkpoints", "step-*")))

    def files(self):
        out = {}
        for path in glob.glob(os.path.join(self.folder, "run", "checkpoints", "step-%08d" % STEPS, "*.safetensors")) + [
                os.path.join(self.folder, "run", "digits.onnx")]:
            with open(path, "rb") as f:
                out[os.path.basename(path)] = f.read()
        return out

    def nothing_is_lost(self):
        """Checks that the losses of all steps on all tasks, the weights, the optimizer state and the exported model are those
        of an undisturbed run."""
        losses, files = undisturbed()
        seen = set()
        for t in self.all:
            for r in t.events("step"):
                assert r["loss"] == losses[r["step"]], "%s, step %d: loss %r, not %r" % (
                    t.name, r["step"], r["loss"], losses[r["step"]])
                seen.add(r["step"])
        assert seen == set(losses), "steps that no task logged: %s" % sorted(set(losses) - seen)
        mine = self.files()
        assert mine.keys() == files.keys() and len(files) == 3, mine.keys()
        for name in files:
            assert mine[name] == files[name], name
        out = subprocess.run([TRAINERCTL, "verify", os.path.join(self.folder, "run", "checkpoints")], capture_output=True,
                             text=True, timeout=GUARD)
        assert out.returncode == 0, out.stdout


_reference = []


def undisturbed():
    """Returns {step: loss} and {file: bytes} of one task without a cluster."""
    if not _reference:
        g = Group(0)
        task = Task(g.job, args=("--devices", "cpu:2"))
        expect_codes([task], [0])
        _reference.append(({k: r["loss"] for k, r in task.steps().items()}, g.files()))
    return _reference[0]


def sizes(task, before=0):
    """Returns the number of tasks in each view after the first `before` views."""
    return [r["tasks"] for r in task.events("view")[before:]]


def expect_message(task, *words):
    task.until(lambda t: any(all(w in r["message"] for w in words) for r in t.events("group")))


@test
def worker_killed_group_continues_and_its_replacement_joins():
    g = Group(4)
    g.until_step(40)
    since = g.lose(2)
    assert since() == [3], since()
    expect_message(g[0], "worker 2 (127.0.0.1:%d), step " % g.ports[2], "was lost: its connection closed")
    g.start(2)
    g.complete()
    assert g[2].events("resume")[0]["message"].endswith("state"), g[2].log()
    assert min(g[2].steps()) > 70 and since() == [3, 4], since()


@test
def chief_killed_leads_again_after_its_restart():
    g = Group(4)
    g.until_step(40)
    g.lose(0, steps=40)
    assert "3 of 4 tasks, led by worker 1" in g[1].events("view")[-1]["message"], g[1].events("view")
    for i in (1, 2, 3):
        expect_message(g[i], "worker 0 (127.0.0.1:%d)" % g.ports[0], "was lost: ")
    g.start(0)
    g.complete()
    for t in g.tasks:
        assert "4 of 4 tasks, led by worker 0" in t.events("view")[-1]["message"], t.log()
    assert g[0].events("checkpoint") and g[0].events("export"), g[0].log()


@test
def two_of_four_tasks_killed_together_rejoin_together():
    g = Group(4)
    g.until_step(40)
    since = g.lose(0, 2)
    assert since()[-1] == 2, since()
    g.start(0), g.start(2)
    g.complete()
    assert since()[-1] == 4, since()


@test
def either_of_two_tasks_continues_with_the_lease_and_the_other_rejoins():
    g = Group(2)
    g.until_step(30)
    g.lose(1, steps=20)
    g.start(1)
    g[1].until_step(1)
    since = g.lose(0)
    g.start(0)
    g.complete()
    assert since() == [1, 2], since()


@test
def group_below_min_world_waits_and_at_min_world_continues():
    g = Group(4, elastic={"min_world": 3})
    g.until_step(30)
    g.kill(3)
    g.until_step(50, (0, 1, 2))
    g.kill(2)
    g[0].until(lambda t: any("2 of 4 tasks are missing" in r["message"] for r in t.events("group")))
    g.start(3)
    g.complete()
    assert min(sizes(g[0])) >= 3, sizes(g[0])


@test
def lost_task_back_within_rejoin_seconds_is_waited_for():
    g = Group(4, elastic={"min_world": 2, "rejoin_seconds": 60}, train={"deadline_seconds": 120})
    g.until_step(30)
    g.kill(1)
    expect_message(g[0], "worker 1 (127.0.0.1:%d)" % g.ports[1], "was lost: ")
    g.start(1)
    g.complete()
    assert sizes(g[0]) == [4, 4], sizes(g[0])


@test
def lost_task_not_back_within_rejoin_seconds_the_others_continue():
    g = Group(4, elastic={"min_world": 2, "rejoin_seconds": 1})
    g.until_step(30)
    g.kill(2)
    g.complete()
    assert sizes(g[0]) == [4, 3], sizes(g[0])


@test
def minority_without_storage_waits_and_states_the_reason():
    g = Group(4, elastic={"min_world": 3}, checkpoint=None, train={"deadline_seconds": 3})
    g.until_step(20)
    g.kill(2)
    g.until_step(40, (0, 1, 3))  # three of four tasks are a majority
    g.kill(3)
    expect_codes(g.tasks[:2], [138] * 2)
    for t in g.tasks[:2]:
        for words in ("no step for 3.", "2 of 4 tasks are missing: worker 2", "first cause: worker 3 "):
            assert words in t.final_message(), t.final_message()


@test
def sigterm_on_one_task_ends_it_and_the_others_continue():
    g = Group(4)
    g.until_step(30)
    before = len(g[2].events("view"))
    g[1].signal(signal.SIGTERM)
    expect_codes([g[1]], [143])
    left = [int(n[5:]) for n in g.checkpoints()]
    assert len(left) == 1 and abs(left[0] - max(g[1].steps())) <= 1, (left, max(g[1].steps()))
    g.until_step(left[0] + 20, (0, 2, 3))
    g[0].signal(signal.SIGTERM)  # the chief
    expect_codes([g[0]], [143])
    expect_codes(g.tasks[2:], [0] * 2)
    assert sizes(g[2], before) == [3, 2], sizes(g[2], before)
    g.nothing_is_lost()


@test
def sigterm_on_all_tasks_writes_one_checkpoint_and_all_end_with_143():
    g = Group(4)
    g.until_step(20)
    for t in g.tasks:
        t.signal(signal.SIGTERM)
    expect_codes(g.tasks, [143] * 4)
    assert len(g.checkpoints()) == 1, g.checkpoints()
    for i in range(4):
        g.start(i)
    g.complete()


def all_stop(g, ranks):
    """Sends SIGTERM to all while the tasks `ranks` are stopped inside step 2, which is then longer than the grace time; checks
    that the state is saved once and that all end with 143."""
    wait_until(lambda: all(state(g[i].p.pid) == "T" for i in ranks))
    for t in g.tasks:
        t.signal(signal.SIGTERM)
    for i in ranks:
        g[i].signal(signal.SIGCONT)
    expect_codes(g.tasks, [143] * len(g.tasks))
    assert g.checkpoints() == ["step-00000001"], g.checkpoints()


def state(pid):
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()[0]


@test
def sigterm_in_a_long_step_ends_all_tasks_within_the_grace_time():
    # the delay is longer than the grace time and less than until exit 138
    slow = "train.forward=stop@2,train.forward=delay:800@2+"
    g = Group(4, faults={i: slow for i in range(4)}, train={"grace_seconds": 0.3}, elastic={"min_world": 4})
    all_stop(g, range(4))
    expect_message(g[0], "the step is not complete after 0.3 s", "the step is aborted (train.grace_seconds)")
    for i in range(4):
        g.start(i)
    expect_codes(g.tasks, [0] * 4)
    assert g[0].events("resume")[0]["step"] == 1
    g.nothing_is_lost()


@test
def sigterm_with_one_task_stuck_ends_the_other_tasks():
    g = Group(4, faults={1: "train.forward=stop@2,train.forward=delay:20000@2"}, train={"grace_seconds": 0.3}, elastic={"min_world": 4})
    all_stop(g, [1])


@test
def task_started_after_the_job_is_complete_exits_with_0():
    g = Group(2, train={"steps": 60})
    g.until_step(20)
    g.kill(1)
    expect_codes([g[0]], [0])
    g.start(1)
    expect_codes([g[1]], [0])
    assert "the job is complete" in g[1].final_message()


@test
def storage_failure_of_one_task_is_named_and_the_group_continues():
    g = Group(2, faults={0: "ckpt.write@1+"})
    g[0].until(lambda t: t.events("checkpoint_failed"))
    assert "again" in g[0].events("checkpoint_failed")[0]["message"], g[0].log()
    g.kill(0)  # the other task writes
    g[1].until(lambda t: t.events("checkpoint"))
    g.start(0)
    g.complete()


if __name__ == "__main__":
    main()
