#!/usr/bin/python3
"""A task is killed in every phase; the result is equal, bit by bit, to that of a run without failures.

A scenario assigns a list of lives (processes) to some tasks: each life has a fault (base/fault.h) that ends it, and the
next life starts at once; the last life has no fault. One run of a job thus has many kills, in the order of the list.
Compared with an undisturbed run of one task are: the loss of every step as each task reported it, weights and optimizer
state of the last checkpoint, and the exported model, byte by byte."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import numpy as np

from kit import (FOLDERS, ROOT, TRAINERCTL, Gate, Task, digits_job, disturb, few, free_ports, main, sample, status, test, tf_config,
                 until_listening, wait_until, with_faults, workdir)

sys.path.insert(1, os.path.join(ROOT, "test", "chaos"))
import sample_log  # noqa: E402

WAITS = {"min_world": 4, "rejoin_seconds": 10}  # no step while a task is missing
GOES_ON = {"min_world": 1, "rejoin_seconds": 0}
STUCK = {"stuck_factor": 10}  # of jobs whose subject is the limit of a phase
ALL = {"min_world": 4, "rejoin_seconds": 0}
ALL_BUT_ONE = {"min_world": 3, "rejoin_seconds": 0}
SAMPLES = 719  # in the data file of the job

_undisturbed, _making = {}, threading.Lock()
_kept = tempfile.TemporaryDirectory(prefix="trainerd-test-", dir=FOLDERS)  # kept for all tests of the file


def job_file(folder, steps=60, **changes):
    """Writes a job with three gradient buckets, two state chunks, an evaluation every 5 steps and a checkpoint every 4."""
    subprocess.run([TRAINERCTL, "model", "mlp", "--set", "inputs=64", "--set", "hidden=704", "--set", "layers=2",
                    "-o", os.path.join(folder, "mlp.onnx")], check=True, stdout=subprocess.DEVNULL)
    base = {"model": {"onnx": "mlp.onnx"},
            "data": {"train": "digits-train-0.tfrecord", "features": {"image": {"shape": [64]}}},
            "train": {"epochs": None, "steps": steps, "global_batch_size": 128, "lanes": 4, "log_every_steps": 1,
                      "deadline_seconds": 30},
            "optimizer": {"schedule": {"warmup_steps": 2}}, "communication": {"shared_memory": False},
            "checkpoint": {"directory": "run/checkpoints", "every_steps": 4, "every_seconds": 0, "max_to_keep": 2},
            "summary": None}
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) and value is not None else value
    return digits_job(folder, **base)


def pace(ms):
    """Returns a fault that delays each step."""
    return "train.forward=delay:%d@1+" % ms


def read(path):
    with open(path, "rb") as f:
        return f.read()


def results(folder, steps):
    last = os.path.join(folder, "run", "checkpoints", "step-%08d" % steps)
    return {name: read(path) for name, path in (("model", os.path.join(last, "model.safetensors")),
                                                ("optimizer", os.path.join(last, "optimizer.safetensors")),
                                                ("export", os.path.join(folder, "run", "digits.onnx")))}


def without_n(changes):
    return {k: v for k, v in changes.items() if k != "_n"}


def undisturbed(steps, changes):
    """Returns (folder, losses, files) of an undisturbed run of one task; for three tasks, of three tasks, because only powers
    of two have equal bits. Each run is made once and shared by the scenarios with the same job."""
    key = (steps, json.dumps(changes, sort_keys=True))
    with _making:
        if key not in _undisturbed:
            _undisturbed[key] = make_undisturbed(steps, changes)
    return _undisturbed[key]


def make_undisturbed(steps, changes):
    folder = tempfile.mkdtemp(dir=_kept.name)
    keep = {"checkpoint": {**changes.get("checkpoint", {}), "max_to_keep": 100}}
    n, log = changes.get("_n", 1), os.path.join(folder, "samples.txt")
    job, ports = job_file(folder, steps, **{**without_n(changes), **keep}), free_ports(n)
    tasks = [Task(job, tf_config(ports, i) if n > 1 else None,
                  ("--devices", "cpu:1" if n > 1 else "cpu:2", "--sample-log", log), name="undisturbed") for i in range(n)]
    task = tasks[0]
    assert [t.wait() for t in tasks] == [0] * n, task.log()
    losses = {k: r["loss"] for k, r in task.steps().items()}
    assert sorted(losses) == list(range(1, steps + 1)), task.log()
    return folder, losses, results(folder, steps)


class CompleteTooEarly(AssertionError):
    """The job was complete before every fault had happened."""


def at_a_pace(ms, scenario):
    """Calls scenario(fault), where the fault delays each step. A task that was killed must rejoin before the job is complete: if
    it does not, the scenario is repeated with a longer delay."""
    for factor in (1, 4, 16):
        try:
            return scenario(pace(factor * ms))
        except CompleteTooEarly:
            if factor == 16:
                raise
            print("# the job was complete before the last fault, with a delay of %d ms in each step" % (factor * ms))


class Run:
    """The tasks of one cluster. `lives` lists the faults of the lives of each rank. A task that ends by its fault is started
    again: at once, or `after` the running tasks have no fault left ("faults") or every other task has ended ("ends").
    `resumes`: the job starts at a checkpoint of the undisturbed run."""

    def __init__(self, lives=None, n=4, steps=60, elastic=WAITS, resumes=False, after="", always="", supervised=False, **changes):
        self.steps, self.after, self.always = steps, after, always
        self.is_elastic = elastic["min_world"] < n
        self.supervised = supervised  # a task that ends with 138 is started again
        self.folder, self.n = workdir(), n
        self.changes = {**changes, **({"_n": n} if n & (n - 1) else {})}
        self.lanes = changes.get("train", {}).get("lanes", 4)
        self.job = job_file(self.folder, steps, elastic={**elastic, "min_world": min(n, elastic["min_world"])}, **changes)
        self.ports = free_ports(n)
        self.lives = {rank: list((lives or {}).get(rank, ())) for rank in range(n)}
        self.tasks = {rank: [] for rank in range(n)}  # all lives of a rank in order
        self.faults = {}  # {rank: fault of its running life}
        self.first = 1
        if resumes:
            folder = os.path.join(undisturbed(steps, self.changes)[0], "run", "checkpoints")
            name = sorted(n for n in os.listdir(folder) if n < "step-%08d" % steps)[-1]
            shutil.copytree(os.path.join(folder, name), os.path.join(self.folder, "run", "checkpoints", name))
            self.first = int(name[5:]) + 1

    def start(self, rank, hold=""):
        fault = self.lives[rank].pop(0) if self.lives[rank] else ""
        env = with_faults({"TRAINERD_LOG_LEVEL": "debug"}, fault, hold, self.always)  # at level info only the leader logs steps
        log = os.path.join(self.folder, "samples.txt")
        task = Task(self.job, tf_config(self.ports, rank), ("--devices", "cpu:1", "--sample-log", log), env,
                    "worker %d, life %d (%s)" % (rank, len(self.tasks[rank]) + 1, fault))
        self.faults[rank] = fault
        self.tasks[rank].append(task)
        return task

    def start_all(self):
        """Starts all tasks. The first group is complete, also where the job goes on with fewer tasks."""
        gate = Gate()
        for rank in range(self.n):
            self.start(rank, gate.fault("data.open") if self.is_elastic and rank == 0 else "")
            if self.is_elastic and rank == 0:
                until_listening(self.ports[0])
        if self.is_elastic:
            gate.open_when_joined([self.now(rank) for rank in range(self.n)], self.ports[0])
        return self

    def now(self, rank):
        return self.tasks[rank][-1]

    def logs(self):
        if os.environ.get("PHASES_DEBUG"):
            for rank, tasks in self.tasks.items():
                with open(os.path.join(os.environ["PHASES_DEBUG"], "w%d.log" % rank), "w") as f:
                    for t in tasks:
                        f.write("=== %s\n%s\n" % (t.name, "\n".join(t.lines)))
        return "\n".join("--- %s: exit %s\n%s" % (t.name, t.p.poll(), "\n".join(t.lines[-25:]))
                         for tasks in self.tasks.values() for t in tasks[-2:])

    def has_more(self, rank):
        """Whether the others have done what the next life of this task waits for."""
        others = [r for r in range(self.n) if r != rank]
        if self.after == "faults":
            return not any(self.now(r).p.poll() is None and self.faults[r] for r in others)
        return self.after == "" or all(len(self.tasks[r]) > 1 or self.now(r).p.poll() is not None for r in others)

    def relay(self, done=0, hurry=False):
        """Waits until every task has ended, and starts the next life of tasks that their fault ended. The machine may be slow, so
        the guard applies to progress, which is a line in a log. `hurry`: a task that hangs and has logged its end needs long to
        exit; it is killed when all others know its end."""
        def have_ended():
            codes = {rank: self.now(rank).p.poll() for rank in range(self.n)}
            for rank, code in codes.items():
                if hurry and code is None and "=hang" in self.faults[rank] and self.is_end_known(rank):
                    self.now(rank).kill()
                if code in (-signal.SIGKILL, 138) and (self.faults[rank] or (code == 138 and self.supervised)):
                    codes[rank] = None
                    if code == 138 or self.has_more(rank):
                        self.start(rank)
            assert max(len(tasks) for tasks in self.tasks.values()) < 60, self.logs()
            return None not in codes.values()

        wait_until(have_ended, self.logs, progress=lambda: sum(len(t.lines) for tasks in self.tasks.values() for t in tasks))
        for rank in range(self.n):
            code = self.now(rank).wait()
            left = [f for f in [self.faults[rank], *self.lives[rank]] if f]
            text = "worker %d: exit %s, did not happen: %s\n%s" % (rank, code, left, self.logs())
            assert code == done, text
            if left:
                raise CompleteTooEarly(text)
        return self

    def is_end_known(self, rank):
        """Returns true if the task has logged its end, and all others the reason."""
        return self.now(rank).events("end") and all(
            any("worker %d " % rank in r["message"] for life in self.tasks[other] for r in loss_records(life))
            for other in range(self.n) if other != rank)

    def losses(self):
        """Returns {step: loss}; all tasks that logged a step must have logged the same loss."""
        said = {}
        for tasks in self.tasks.values():
            for task in tasks:
                for r in task.events("step"):
                    assert said.setdefault(r["step"], r["loss"]) == r["loss"], "step %d: loss %r and %r" % (
                        r["step"], said[r["step"]], r["loss"])
        return said

    def is_as_undisturbed(self):
        _, losses, files = undisturbed(self.steps, self.changes)
        got = self.losses()
        wrong = {k: (got.get(k), losses[k]) for k in range(self.first, self.steps + 1) if got.get(k) != losses[k]}
        assert not wrong, "loss per step (here, undisturbed): %s\n%s" % (wrong, self.logs())
        self.used_every_sample_once()
        here = results(self.folder, self.steps)
        for name in files:
            assert here[name] == files[name], "%s differs\n%s" % (name, self.logs())
        return self

    def used_every_sample_once(self):
        h = sample_log.History([life for rank in range(self.n) for life in
                                sample_log.read(os.path.join(self.folder, "samples.worker-%d.txt" % rank), "worker %d" % rank)],
                               self.lanes)
        if self.first > 1:
            return
        assert not h.problems and [step for _, step, _ in h.chain] == list(range(1, self.steps + 1)), h.problems
        batch = len([s for lane in range(self.lanes) for s in h.samples[1, lane]])
        assert h.epochs(SAMPLES // batch, batch, SAMPLES) == (0, 0), h.epochs(SAMPLES // batch, batch, SAMPLES)


def kills(*points):
    return [p if "=" in p else "%s=kill@%s" % tuple(p.split("@")) for p in points]


# A life starts with connect, agree, and the state of a peer; the numbers count how often the life reaches the point.
STEP_POINTS = kills("train.forward@2", "train.bucket@1", "train.bucket@5", "train.bucket@6", "train.reduce@2",
                    "train.commit@2", "train.update@2", "train.update_middle@2", "train.update_end@2")
JOIN_POINTS = kills("rdzv.join.out@1", "rdzv.ready.out@1", "rdzv.view.in@1", "train.connect@1", "train.agree@1")
TAKE_POINTS = kills("train.state_recv@1", "train.state_recv@2", "train.agree@1", "train.connect@1")
EVAL_POINTS = kills("train.evaluate@1", "train.evaluated@1")
SAVE_POINTS = kills("train.save@1", "ckpt.mkdir@1", "ckpt.write@1", "ckpt.write@3", "ckpt.sync@1", "ckpt.sync@4",
                    "ckpt.rename@1", "ckpt.verify@1")
END_POINTS = kills("train.save@1", "ckpt.write@2", "ckpt.rename@1", "train.export@1", "export.sync@1", "export.rename@1")
LEAD_POINTS = kills("rdzv.join.in@1", "rdzv.wait.out@1", "rdzv.ready.in@2", "rdzv.view.out@1", "rdzv.view.out@2", "rdzv.view.out@3",
                    "rdzv.beat.in@4")


@test
def worker_killed_in_every_phase_loses_no_bit():
    Run({2: JOIN_POINTS + STEP_POINTS + TAKE_POINTS + EVAL_POINTS}).start_all().relay().is_as_undisturbed()


@test
def chief_killed_in_every_phase_and_a_task_that_joins_lose_no_bit():
    Run({0: kills("train.load@1", "train.connect@1", "train.agree@1") + LEAD_POINTS + STEP_POINTS + TAKE_POINTS + EVAL_POINTS,
         2: JOIN_POINTS[:3]}).start_all().relay().is_as_undisturbed()  # task 0 leads, so another one joins


@test
def chief_killed_in_every_stage_of_a_checkpoint_loses_no_bit():
    for points in few(SAVE_POINTS):
        Run({0: points}, steps=24).start_all().relay().is_as_undisturbed()
    # However slow the disk is, two checkpoints are written: the first one that is due and the last one.
    Run({0: kills("ckpt.remove@1")}, checkpoint={"max_to_keep": 1}).start_all().relay().is_as_undisturbed()


@test
def chief_killed_during_the_last_save_or_export_loses_no_bit():
    rare = {"checkpoint": {"every_steps": 0}}
    Run({0: END_POINTS, 2: kills("rdzv.complete.out@1")}, steps=12, **rare).start_all().relay().is_as_undisturbed()
    Run({0: kills("train.save@1"), 1: kills("ckpt.rename@1"), 2: kills("train.export@1"), 3: kills("export.rename@1")}, steps=12,
        elastic=GOES_ON, after="faults", **rare).start_all().relay().is_as_undisturbed()
    Run({0: kills("rdzv.complete.in@2")}, steps=12, elastic=GOES_ON, **rare).start_all().relay().is_as_undisturbed()


@test
def task_killed_while_the_group_forms_rejoins():
    run = Run(steps=12)
    for rank in (0, 1, 2):
        run.start(rank)
    for rank in (1, 0):
        wait_until(lambda: [t["state"] for t in (status("127.0.0.1:%d" % run.ports[0]) or {"tasks": []})["tasks"]] == [*["joined"] * 3, "missing"],
                   run.logs)
        assert not run.now(rank).events("view")
        run.now(rank).kill()
        run.start(rank)
    run.start(3)
    run.relay().is_as_undisturbed()


@test
def checkpoint_reader_killed_loses_no_bit():
    run = Run({0: kills("train.load@1", "train.state_send@1", "train.state_send@2"), 2: kills("train.state_recv@1", "train.state_recv@2")},
              resumes=True, steps=24)
    run.start_all().relay().is_as_undisturbed()



@test
def state_sender_and_receiver_killed_lose_no_bit():
    run = Run({0: kills("train.forward@3", "train.state_recv@2", "train.forward@2"), 1: kills("train.state_send@2", "train.state_send@2"),
               2: kills("train.commit@7", "train.state_recv@2")}, steps=24)
    run.start_all().relay().is_as_undisturbed()


@test
def several_tasks_killed_together_lose_no_bit():
    others = {0: kills("train.update_middle@9"), 1: kills("train.bucket@7", "train.commit@2"), 2: kills("train.commit@9"),
              3: kills("train.bucket@7", "train.commit@2")}
    every = {r: kills("train.update_end@%d" % (9 + r % 2), "train.forward@%d" % (4 + r)) for r in range(4)}
    for lives, elastic, steps in sample(((others, GOES_ON, 40), (others, WAITS, 40), (every, WAITS, 24))):
        Run(lives, elastic=elastic, steps=steps).start_all().relay().is_as_undisturbed()


def tasks_killed_others_continue_and_restarted_tasks_rejoin():
    lives = {2: kills("train.bucket@5", "train.state_recv@2", "train.update_middle@2", "rdzv.view.in@1"), 3: kills("rdzv.pause.in@1"),
             0: kills("rdzv.pause.out@1", "train.forward@12", "train.state_recv@2", "train.agree@1", "train.connect@1", "train.commit@2",
                      "rdzv.join.in@1", "train.update@2")}
    at_a_pace(50, lambda slowly: Run(lives, elastic=GOES_ON, steps=240, always=slowly).start_all().relay().is_as_undisturbed())


def either_of_two_tasks_killed_loses_no_bit():
    lives = {1: kills("train.forward@4", "train.state_recv@2", "train.bucket@4", "train.update_middle@2"),
             0: kills("train.forward@14", "train.bucket@5", "train.state_recv@1", "train.connect@1", "train.commit@3")}
    for elastic in (WAITS, GOES_ON):
        at_a_pace(50, lambda slowly, elastic=elastic: Run(lives, n=2, elastic=elastic, steps=120,
                                                          always=slowly).start_all().relay().is_as_undisturbed())


# ---- tasks that hang; tasks that fail ----

def task_suspended_is_evicted_and_rejoins_with_the_state_of_the_others():
    at_a_pace(20, suspend_a_task)


def suspend_a_task(slowly):
    points = ("train.forward=stop@3", "train.bucket=stop@20", "train.commit=stop@16", "train.update_middle=stop@26")
    run = Run({2: [",".join(points)]}, elastic=GOES_ON, steps=220, always=slowly,
              detection={"silent_seconds": 0.8}).start_all()
    task = run.now(2)
    for n in range(1, len(points) + 1):
        task.until(lambda t: stat(t.p.pid) in "TZ")
        if stat(task.p.pid) == "Z":
            assert task.wait() == 0, task.log()
            raise CompleteTooEarly("worker 2 was complete before it reached %s" % points[n - 1])
        run.now(0).until(lambda t: len(lost(t, "worker 2", "silent for")) >= n)
        before = max(run.now(0).steps(), default=0)
        if before >= run.steps:
            raise CompleteTooEarly("the others completed the job while worker 2 was suspended at %s" % points[n - 1])
        run.now(0).until_step(before + 1)
        task.signal(signal.SIGCONT)
    run.faults[2] = ""
    run.relay().is_as_undisturbed()
    for rank in (0, 1, 3):
        text = lost(run.now(rank), "worker 2", "silent for")[-1]
        assert_names(text, run, 2)


def stat(pid):
    """Returns the state of a process; Z: it has ended."""
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


def lost(task, *words):
    """Returns the messages about lost tasks that contain these words."""
    return [r["message"] for r in list(task.records) if r.get("event") == "group" and r.get("level") == "warn" and
            all(w in r["message"] for w in words)]


def assert_names(text, run, rank, phase="in "):
    for word in ("worker %d (127.0.0.1:%d), step " % (rank, run.ports[rank]), phase, " s,"):
        assert word in text, "'%s' is not in: %s" % (word, text)


def task_that_hangs_is_named_and_ends_and_the_others_continue():
    places = {1: ("train.forward=hang@12", "begin"), 2: ("train.update=hang@40", "update"),
              3: ("train.reduce=hang@70", "forward and backward"), 0: ("train.commit=hang@100", "check the gradient")}
    run = Run({rank: [fault] for rank, (fault, _) in places.items()}, elastic=GOES_ON, steps=300,
              always="train.forward=delay:15@1+", detection=STUCK).start_all()
    run.relay().is_as_undisturbed()
    for rank, (_, phase) in places.items():
        seen = [t for r in range(4) for life in run.tasks[r] for t in lost(life, "worker %d" % rank, "makes no progress")]
        assert seen, "nobody says that worker %d hung\n%s" % (rank, run.logs())
        first = run.tasks[rank][0]
        for text in seen:
            assert_names(text, run, rank, "step %d, in %s for " % (max(first.steps()) + 1, phase))
            assert "this phase has a limit of" in text, text
        assert first.p.returncode == 138, first.log()


def loss_records(task):
    """Returns the records with the reason of a loss. A task that joined at that time has only the reason of the view."""
    return [r for r in list(task.records) if r.get("event") in ("group", "view") and
            any(w in r["message"] for w in ("makes no progress", "within"))]


def expect_named_during_all_reduce(rank, fault, elastic=GOES_ON, **changes):
    """Lets a task hang by `fault`: all others name it, by the limit of its phase and not by the deadline, and the job continues."""
    run = Run({rank: [fault]}, elastic=elastic, steps=30, always="train.forward=delay:15@1+", detection=STUCK, **changes).start_all()
    first, others = run.now(rank), [r for r in range(4) if r != rank]
    for other in others:
        run.now(other).until(loss_records)
    first.until(lambda t: t.events("end"))
    assert "exit 138" in first.events("end")[0]["message"], first.log()
    done = max(first.steps(), default=0)
    first.kill()  # it would end with 138, but slowly
    for other in others:
        said = loss_records(run.now(other))[0]["message"]
        assert_names(said, run, rank, "step %d, in reduce for " % (done + 1))
        assert "makes no progress, and the others wait for it; this phase has a limit of" in said, said
    run.relay().is_as_undisturbed()


def task_that_hangs_in_any_bucket_is_named():
    """The reducer thread reduces the first two of three buckets, the thread of the replica the last one."""
    for rank, bucket in ((2, 1), (0, 2), (1, 3)):
        expect_named_during_all_reduce(rank, "train.bucket=hang@%d" % (3 * 11 + bucket))


def task_that_hangs_in_a_bucket_is_named_and_waited_for():
    for rank, bucket in ((0, 1), (3, 2)):
        expect_named_during_all_reduce(rank, "train.bucket=hang@%d" % (3 * 11 + bucket), WAITS)


def task_that_hangs_before_the_first_step_is_named_at_the_deadline():
    """All tasks name the task that hangs, whichever task they wait for."""
    expect_named_during_all_reduce(3, "train.bucket=hang@1", train={"deadline_seconds": 6})


def task_that_hangs_within_a_bucket_is_named():
    """The task hangs between two parts that it sends, receives, or adds up in shared memory."""
    never = {"model": {"metrics": None}, "train": {"eval_every_epochs": None}, "data": {"eval": None}}  # every call belongs to a step
    expect_named_during_all_reduce(3, "comm.send=hang@300", **never)
    expect_named_during_all_reduce(1, "comm.recv=hang@600", **never)
    expect_named_during_all_reduce(2, "comm.write=hang@20", communication={"shared_memory": True}, **never)


def expect_named_before_the_first_step(rank, lives, phase, elastic=ALL_BUT_ONE, **changes):
    """The last life of this task hangs while a generation forms. At the deadline the others name this task, and not the
    leader, which waits too; only this task ends, and the job continues."""
    run = Run(lives, elastic=elastic, steps=40, always="train.forward=delay:15@1+", train={"deadline_seconds": 8}, **changes)
    run.start_all().relay(hurry=True).is_as_undisturbed()
    for r in range(4):
        said = [e["message"] for life in run.tasks[r] for e in loss_records(life)]
        assert said, "worker %d does not say that worker %d hung\n%s" % (r, rank, run.logs())
        for text in said:
            assert_names(text, run, rank, "in %s for " % phase)
    hung = run.tasks[rank][len(lives[rank]) - 1]
    assert "exit 138: worker %d" % rank in hung.final_message() and "in %s for " % phase in hung.final_message(), hung.log()
    for r in range(4):
        assert len(run.tasks[r]) == 1 + len(lives.get(r, [])), "worker %d ended too\n%s" % (r, run.logs())


def task_that_hangs_before_the_first_step_is_named(rank, point, phase, **changes):
    expect_named_before_the_first_step(rank, {rank: ["%s=hang@1" % point]}, phase, **changes)


def task_that_hangs_in_connect_is_named():
    task_that_hangs_before_the_first_step_is_named(2, "train.connect", "connect")


def task_that_hangs_between_two_connections_is_named():
    task_that_hangs_before_the_first_step_is_named(3, "comm.settle", "connect")


def task_that_hangs_while_sharing_memory_is_named():
    task_that_hangs_before_the_first_step_is_named(1, "comm.share", "connect", communication={"shared_memory": True})


def task_that_hangs_in_agree_is_named():
    task_that_hangs_before_the_first_step_is_named(1, "train.agree", "agree")


def chief_that_hangs_in_load_is_named():
    task_that_hangs_before_the_first_step_is_named(0, "train.load", "load", elastic=ALL)  # the chief would not load if the others had started





def task_that_hangs_while_receiving_the_state_is_named():
    expect_named_before_the_first_step(3, {3: ["train.forward=kill@5", "train.state_recv=hang@1"]}, "transfer", ALL)


def task_that_hangs_while_sending_the_state_is_named():
    expect_named_before_the_first_step(0, {3: ["train.forward=kill@5"], 0: ["train.state_send=hang@1"]}, "transfer", ALL)


FAILS = ("train.connect@1", "train.agree@1", "train.forward@2", "train.bucket@5", "train.reduce@2", "train.commit@2", "train.update@2",
         "train.update_middle@1", "train.update_end@2", "train.evaluate@1", "train.evaluated@1")


@test
def failure_on_one_task_ends_it_and_all_end_with_the_same_message():
    for rank in sample((2, 0)):
        run = Run({rank: list(FAILS)}).start_all().relay().is_as_undisturbed()
        for fault, task in zip(FAILS, run.tasks[rank]):
            end = task.events("end")[-1]["message"]
            assert task.p.returncode == 138 and "worker %d" % rank in end and fault.split("@")[0] in end, task.log()
            for other in (r for r in range(4) if r != rank):
                assert lost(run.now(other), "worker %d" % rank, fault.split("@")[0]), "worker %d on %s\n%s" % (
                    other, fault, run.logs())


# ---- messages about lost tasks ----

@test
def task_killed_is_named_with_phase_and_step_by_all():
    for rank in sample((2, 0)):
        run = Run(steps=100000, elastic=GOES_ON, always="train.forward=delay:10@1+").start_all()
        for r in range(4):
            run.now(r).until_step(5)
        # heartbeats have reported the phase of every task to the leader
        wait_until(lambda: any(all(t["step"] > 0 for t in status("127.0.0.1:%d" % run.ports[r])["tasks"]) for r in range(4)), run.logs)
        run.now(rank).kill()
        for other in (r for r in range(4) if r != rank):
            run.now(other).until(lambda t: lost(t, "worker %d" % rank, "was lost"))
            text = lost(run.now(other), "worker %d" % rank)[-1]
            assert_names(text, run, rank)
        run.now(3).until_step(max(max(run.now(r).steps(), default=0) for r in range(4)) + 2)
        for other in [r for r in range(4) if r != rank]:
            run.now(other).kill()


@test
def first_cause_is_the_final_message_of_every_task():
    run = Run({2: ["train.forward=kill@6"]}, elastic={"min_world": 4, "rejoin_seconds": 1}, train={"deadline_seconds": 2}).start_all()
    assert run.now(2).wait() == -signal.SIGKILL
    for other in (0, 1, 3):
        assert run.now(other).wait() == 138, run.logs()
        end = run.now(other).events("end")[-1]["message"]
        assert "worker 2 (127.0.0.1:%d)" % run.ports[2] in end, end


def unreadable_data_is_named_by_all():
    words = ("-0.tfrecord", "Input/output error")
    run = Run({1: ["data.read@30+"]}, steps=12, elastic={"min_world": 4, "rejoin_seconds": 1},
              data={"cache": "none"}, train={"deadline_seconds": 5}).start_all()
    assert run.now(1).wait() == 138, run.logs()
    mine = run.now(1).events("end")[-1]["message"]
    assert all(w in mine for w in (*words, "worker 1 (127.0.0.1:%d)" % run.ports[1])), mine
    for other in (0, 2, 3):
        run.now(other).until(lambda t: lost(t, "worker 1 (", *words))
    run.relay().is_as_undisturbed()


def unwritable_disk_is_named_by_all_and_another_task_writes():
    run = Run({0: ["ckpt.write@1+"]}, steps=12, elastic={"min_world": 4, "rejoin_seconds": 1}, checkpoint={"every_steps": 0})
    run.start_all()
    run.faults[0] = ""  # the fault does not end the life
    run.relay().is_as_undisturbed()
    for rank in range(4):
        # the watch of the storage may report it before the wait for the last checkpoint ends
        assert lost(run.now(rank), "worker 0 (", "step 12", "Input/output error"), run.logs()
    assert not run.now(0).events("checkpoint") and sum(len(run.now(r).events("checkpoint")) for r in (1, 2, 3)) == 1, run.logs()


# ---- divergence and non-finite numbers ----

THREE = {"train": {"lanes": 6, "global_batch_size": 96}}


@test
def divergence_of_one_of_three_tasks_is_named_and_it_receives_the_state():
    for rank in sample((1, 0)):
        for fault, what in (("health.flip_gradient@7", "reduced gradient of step 7"), ("health.flip_weight@9", "of step 9")):
            run = Run(n=3, steps=24, always="", health={"check_weights_every_steps": 1}, **THREE)
            run.lives[rank] = [fault]
            run.start_all()
            run.faults[rank] = ""
            run.relay().is_as_undisturbed()
            for r in range(3):
                assert any("worker %d" % rank in x["message"] and "differs from the others" in x["message"] and
                           what in x["message"] for x in run.now(r).records if "message" in x), run.logs()


@test
def divergence_of_two_tasks_rolls_back_to_the_last_equal_state():
    run = Run({0: ["train.forward=delay:1@1"], 1: ["health.flip_gradient@18"]}, n=2, steps=24,
              health={"check_weights_every_steps": 1})
    run.start_all().relay().is_as_undisturbed()
    for r in range(2):
        first, second = run.tasks[r]
        end = first.events("end")[-1]["message"]
        assert first.p.returncode == 138 and "no majority shows which are right: the reduced gradient of step 18" in end, end
    assert 0 < run.now(0).events("resume")[0]["step"] < 18, run.logs()


@test
def non_finite_number_on_one_task_has_no_effect_on_the_result():
    for rank in (2, 0):
        run = Run({}, n=4, steps=24)
        run.lives[rank] = ["health.not_finite@7"]
        run.start_all()
        run.faults[rank] = ""
        run.relay().is_as_undisturbed()


HOLE = 300  # index of the sample with a NaN


def holed_job():
    """Returns changes of a job: arrays in which one sample has a NaN."""
    folder = os.path.join(_kept.name, "holed")
    if not os.path.exists(folder):
        os.mkdir(folder)
        random = np.random.default_rng(1)
        x = random.standard_normal((SAMPLES, 64)).astype(np.float32)
        x[HOLE, 7] = np.nan
        np.save(os.path.join(folder, "image.npy"), x)
        np.save(os.path.join(folder, "label.npy"), random.integers(0, 10, SAMPLES))
    return {"model": {"metrics": None}, "train": {"eval_every_epochs": None},
            "data": {"format": "npy", "train": os.path.join(folder, "{feature}.npy"), "eval": None,
                     "features": {"image": {"dtype": "float32", "shape": [64], "scale": None},
                                  "label": {"dtype": "int64", "shape": []}}}}


@test
def non_finite_samples_are_skipped_equally_after_kills():
    run = Run({2: kills("train.commit@3", "train.forward@2", "train.update_end@2"), 0: kills("train.commit@4", "train.bucket@8")},
              steps=15, **holed_job(), health={"non_finite": "skip"})
    run.start_all().relay().is_as_undisturbed()
    told = {r["message"] for rank in range(4) for task in run.tasks[rank] for r in task.events("skipped")}
    assert told and all("sample %d of the data" % HOLE in t and "the step is skipped" in t for t in told), told


@test
def non_finite_samples_stop_the_job_with_one_message_on_all_tasks():
    for policy, why in (("stop", 'health.non_finite is "stop"'), ("restore", "so it was before, from the checkpoint on")):
        run = Run(steps=15, **holed_job(), health={"non_finite": policy}).start_all()
        for rank in range(4):
            assert run.now(rank).wait() == 2, run.logs()
            end = run.now(rank).events("end")[-1]["message"]
            assert "sample %d of the data" % HOLE in end and why in end, end
        back = [t for rank in range(4) for t in lost(run.now(rank), "all tasks return to the newest checkpoint")]
        assert bool(back) == (policy == "restore"), run.logs()


# ---- simultaneous failures, and requests during them ----

@test
def two_tasks_killed_within_milliseconds_repeatedly_lose_no_bit():
    random = np.random.default_rng(int(os.environ.get("SEED", "7")))
    run = Run(steps=200, elastic=GOES_ON, always=pace(8)).start_all()
    run.now(0).until_step(2)
    for i in range(6):
        pair = [int(r) for r in random.choice(4, 2, replace=False)]
        for rank in pair:
            run.now(rank).kill()
            disturb(random.choice((0, 0.001, 0.004)))
        disturb(random.choice((0, 0.002, 0.02, 0.1)))
        for rank in pair:
            run.start(rank)
        disturb(random.choice((0.01, 0.05, 0.2, 0.4)))
        if all(run.now(r).p.poll() == 0 for r in range(4)):
            break
    run.relay().is_as_undisturbed()


@test
def sigterm_while_the_group_re_forms_saves_and_ends_the_task():
    for late in (0.0, 0.01, 0.03):
        run = Run(steps=100000, elastic=GOES_ON, always="train.forward=delay:8@1+", checkpoint={"every_steps": 0}).start_all()
        run.now(3).until_step(4)
        run.now(2).kill()
        disturb(late)
        run.now(0).signal(signal.SIGTERM)
        assert run.now(0).wait() == 143, run.logs()
        at = max(run.now(1).steps(), default=0)
        run.now(1).until_step(at + 3)
        for rank in (1, 3):
            run.now(rank).signal(signal.SIGTERM)
        for rank in (1, 3):
            assert run.now(rank).wait() == 143, run.logs()
        saved = sorted(os.listdir(os.path.join(run.folder, "run", "checkpoints")))
        steps = [int(n[5:]) for n in saved if n.startswith("step-")]
        assert steps and steps[-1] >= at + 3, saved


@test
def sigterm_on_all_while_one_is_killed_saves_and_the_next_start_continues():
    run = Run(steps=60, always=pace(8)).start_all()
    run.now(3).until_step(6)
    run.now(1).kill()
    for rank in (0, 2, 3):
        run.now(rank).signal(signal.SIGTERM)
    for rank in (0, 2, 3):
        assert run.now(rank).wait() == 143, run.logs()
    for rank in range(4):
        run.start(rank)
    run.relay().is_as_undisturbed()


def short_deadline_ends_all_tasks_and_the_next_start_continues():
    run = Run({2: kills("train.forward@6", "train.commit@3")}, steps=24, after="ends", elastic={"min_world": 4, "rejoin_seconds": 0.5},
              train={"deadline_seconds": 4}, detection={"silent_seconds": 0.9}, supervised=True)
    run.start_all().relay().is_as_undisturbed()


# ---- scenarios that mostly wait run in parallel ----

def side_by_side(*functions):
    failed = []

    def run(f):
        try:
            f()
        except Exception as e:  # raised below, with the errors of the other scenarios
            failed.append("%s: %s: %s" % (f.__name__, type(e).__name__, e))

    threads = [threading.Thread(target=run, args=(f,)) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, "\n".join(failed)


@test
def tasks_lost_or_hung_others_continue():
    side_by_side(tasks_killed_others_continue_and_restarted_tasks_rejoin,
                 either_of_two_tasks_killed_loses_no_bit,
                 task_suspended_is_evicted_and_rejoins_with_the_state_of_the_others,
                 task_that_hangs_is_named_and_ends_and_the_others_continue,
                 unreadable_data_is_named_by_all,
                 unwritable_disk_is_named_by_all_and_another_task_writes,
                 short_deadline_ends_all_tasks_and_the_next_start_continues)


@test
def tasks_that_hang_while_a_generation_forms_are_named():
    side_by_side(*sample((task_that_hangs_in_connect_is_named,
                          task_that_hangs_between_two_connections_is_named,
                          task_that_hangs_while_sharing_memory_is_named,
                          task_that_hangs_in_agree_is_named,
                          chief_that_hangs_in_load_is_named,
                          task_that_hangs_while_receiving_the_state_is_named,
                          task_that_hangs_while_sending_the_state_is_named), 2))


@test
def tasks_that_hang_during_all_reduce_are_named():
    side_by_side(*sample((task_that_hangs_in_any_bucket_is_named,
                          task_that_hangs_in_a_bucket_is_named_and_waited_for,
                          task_that_hangs_before_the_first_step_is_named_at_the_deadline,
                          task_that_hangs_within_a_bucket_is_named)))


if __name__ == "__main__":
    main()
