#!/usr/bin/python3
"""Parameter servers (ps): embedding tables on ps tasks change no byte of a job, also when tasks are killed.

The reference of each test is the same job without the section, trained by one task without faults. Compared with it are
all files of all checkpoints, the exported model, the evaluations, and the loss of every step that any task has logged."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

import clicks
import shards
from clicks import OPTIMIZERS, ROWS
from kit import (FOLDERS, GUARD, TRAINERCTL, Task, await_process, disturb, enter_namespaces, few, free_ports, has_namespaces,
                 main, merge, need_namespaces, sample, test, use_venv, wait_until, workdir)

use_venv()
import numpy as np  # noqa: E402

_kept = tempfile.TemporaryDirectory(prefix="trainerd-test-", dir=FOLDERS)  # data and references, for all tests of the file
_references = {}

PS = {"tables": "auto", "min_shard_bytes": 1024, "replicas": 2}
WAITS = {"elastic": {"min_world": 2, "rejoin_seconds": 15}}  # no step while a task is missing
GOES_ON = {"elastic": {"min_world": 1, "rejoin_seconds": 0}}


def make_data():
    return clicks.make_data(os.path.join(_kept.name, "data"))


def job_file(folder, **changes):
    return clicks.job_file(folder, make_data(), **changes)


def checkpoints(folder):
    """{name of a step: {"manifest.json", "model", "optimizer"}}: the tensors, wherever the files have them; manifests
    without what differs between the jobs."""
    out = {}
    for step in sorted(os.listdir(os.path.join(folder, "checkpoints"))):
        path = os.path.join(folder, "checkpoints", step)
        if not step.startswith("step-"):
            continue
        manifest = json.loads(read(os.path.join(path, "manifest.json")))
        for name in ("job_digest", "evaluated_step", "format", "shards", "files", "checksum", "written_at"):
            manifest.pop(name, None)
        model, optimizer = shards.tensors(path)
        out[step] = {"manifest.json": manifest, "model": model, "optimizer": optimizer}
    return out


def read(path):
    with open(path, "rb") as f:
        return f.read()


def last(group):
    """The last checkpoint of a group; others are left out where the writer is busy."""
    found = checkpoints(group.folder)
    return found[max(found)]


class Group:
    """The tasks of a job. `lives`: {task: [fault of each process in order]}, as {"ps 0": ["ps.vote=kill@3"]}; `fault`: of all
    processes of the workers; `hosts`: {task or kind: (address, words in front of the command)}."""

    def __init__(self, workers, ps, lives=None, devices=None, env=None, fault="", folder=None, hosts=None, **changes):
        self.folder = folder or workdir()
        self.job = self.make_job(ps > 0, changes)
        ports = free_ports(workers + ps)
        self.hosts = hosts or {"worker": ("127.0.0.1", ()), "ps": ("127.0.0.1", ())}
        self.cluster = {kind: ["%s:%d" % (self.host("%s %d" % (kind, i))[0], p) for i, p in enumerate(some)]
                        for kind, some in (("worker", ports[:workers]), ("ps", ports[workers:]))}
        self.cluster = {kind: addresses for kind, addresses in self.cluster.items() if addresses}
        self.names = ["%s %d" % (kind, i) for kind, addresses in self.cluster.items() for i in range(len(addresses))]
        self.devices, self.env, self.fault = devices or {}, env or {}, fault
        self.lives = {name: list((lives or {}).get(name, ())) for name in self.names}
        self.tasks = {name: [] for name in self.names}  # all processes of a task in order
        for name in self.names:
            self.start(name)

    def make_job(self, with_ps, changes):
        return job_file(self.folder, **{**({"parameter_server": PS} if with_ps else {}), **changes})

    def host(self, name):
        return self.hosts.get(name) or self.hosts[name.split()[0]]

    def address(self, name):
        kind, index = name.split()
        return self.cluster[kind][int(index)]

    def start(self, name):
        kind, index = name.split()
        life = self.lives[name].pop(0) if self.lives[name] else ""
        faults = ",".join(f for f in (life, self.fault if kind == "worker" else "") if f)
        env = {"TRAINERD_LOG_LEVEL": "debug", **self.env, **({"TRAINERD_FAULT": faults} if faults else {})}
        task = Task(self.job, {"cluster": self.cluster, "task": {"type": kind, "index": int(index)}},
                    ("--devices", self.devices.get(kind, "cpu:1")), env, "%s (%s)" % (name, life), prefix=self.host(name)[1])
        task.life = life
        self.tasks[name].append(task)
        return task

    def now(self, name):
        return self.tasks[name][-1]

    def logs(self):
        return "\n".join("--- %s: exit %s\n%s" % (t.name, t.p.poll(), "\n".join(line[:300] for line in t.lines[-25:]))
                         for tasks in self.tasks.values() for t in tasks[-2:])

    def kill(self, *names):
        for name in names:
            self.now(name).signal(signal.SIGKILL)
        for name in names:
            await_process(self.now(name).p)

    def progress(self):
        return sum(len(t.lines) for tasks in self.tasks.values() for t in tasks)

    def finish(self, supervised=False):
        """Waits until all tasks are complete. Starts the next process of a task that its fault has killed, and with `supervised`
        of one that ended with 138."""
        def are_complete():
            codes = {name: self.now(name).p.poll() for name in self.names}
            for name, code in codes.items():
                if (code == -signal.SIGKILL and self.now(name).life) or (code == 138 and supervised):
                    self.start(name)
                    codes[name] = None
                assert code in (None, 0, -signal.SIGKILL, 138), "%s: exit %s\n%s" % (name, code, self.logs())
            return None not in codes.values()

        wait_until(are_complete, self.logs, progress=self.progress)
        codes = {name: self.now(name).wait() for name in self.names}
        assert all(code == 0 for code in codes.values()), "%s\n%s" % (codes, self.logs())
        left = {name: faults for name, faults in self.lives.items() if faults}
        assert not left, "not killed: %s\n%s" % (left, self.logs())
        return self

    def stop(self, codes=(0, 143)):
        """Stops all tasks that run. `codes`: those of tasks that may end by themselves meanwhile."""
        running = [name for name in self.names if self.now(name).p.poll() is None]
        for name in running:
            self.now(name).signal(signal.SIGTERM)
        ended = {name: self.now(name).wait() for name in running}
        assert set(ended.values()) <= set(codes), "%s\n%s" % (ended, self.logs())
        return self

    def records(self, event):
        return [r for tasks in self.tasks.values() for t in tasks for r in t.events(event)]

    def notes(self):
        return "\n".join(r["message"] for tasks in self.tasks.values() for t in tasks for r in list(t.records) if "message" in r)

    def verify(self):
        p = subprocess.run([TRAINERCTL, "verify", os.path.join(self.folder, "checkpoints")], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0, p.stdout + p.stderr


def changes_key(changes):
    return json.dumps(changes, sort_keys=True)


def reference(fault="", **changes):
    """Returns the Group of one task that has trained the job without the section; each is made once. It keeps its folder, which
    FOLDER in `fault` stands for."""
    changes = {k: v for k, v in changes.items() if k != "elastic"}
    key = fault + changes_key(changes)
    if key not in _references:
        folder = tempfile.mkdtemp(dir=_kept.name)
        group = Group(1, 0, folder=folder, fault=fault.replace("FOLDER", folder), **changes)
        codes = [t.wait() for tasks in group.tasks.values() for t in tasks]
        assert codes == [0], group.logs()
        _references[key] = group
    return _references[key]


def expect_equal(group, expected, complete=True, repeated=False):
    """Compares what the group wrote and logged with the reference. Not complete: only steps that the group has trained.
    repeated: a task may have been killed between a step or a checkpoint and its log line."""
    losses = {r["step"]: r["loss"] for r in expected.records("step")}
    found = group.records("step")
    for r in found:
        assert r["loss"] == losses[r["step"]], "step %d: loss %r, expected %r\n%s" % (r["step"], r["loss"], losses[r["step"]], group.logs())
    got, wanted = checkpoints(group.folder), checkpoints(expected.folder)
    for step, files in got.items():
        for name, data in files.items() if step in wanted else ():
            if name != "manifest.json" or complete:
                assert data == wanted[step][name], "%s/%s differs\n%s" % (step, name, group.logs())
    if not complete:
        assert found and set(got) & set(wanted), group.logs()
        return
    assert repeated or {r["step"] for r in found} == set(losses), "%d of %d steps\n%s" % (len({r["step"] for r in found}), len(losses), group.logs())
    # the last one, and any others: a step is left out where the writer is busy or killed
    assert max(got) == max(wanted), (sorted(got), sorted(wanted))
    assert read(os.path.join(group.folder, "clicks.onnx")) == read(os.path.join(expected.folder, "clicks.onnx"))
    found, wanted = ({r["step"]: (r["loss"], r["auc"]) for r in g.records("eval")} for g in (group, expected))
    assert found and all(wanted[step] == values for step, values in found.items()) and (repeated or len(found) == len(wanted)), (found, wanted)


# ---- the bytes ----

@test
def tables_on_any_number_of_ps_all_files_are_equal():
    for name, optimizer in sample(OPTIMIZERS.items()):
        expected = reference(optimizer=optimizer)
        expect_equal(Group(4, 3, optimizer=optimizer).finish(), expected)
    group = Group(4, 1, devices={"ps": "cpu:3"}, optimizer=OPTIMIZERS["adam"]).finish()
    expect_equal(group, reference(optimizer=OPTIMIZERS["adam"]))
    group.verify()


@test
def one_worker_or_workers_with_several_devices_all_files_are_equal():
    expect_equal(Group(1, 1).finish(), reference())
    expect_equal(Group(2, 2, devices={"worker": "cpu:2", "ps": "cpu:2"}).finish(), reference())
    expect_equal(Group(2, 3, parameter_server={**PS, "replicas": 1}).finish(), reference())


class OtherReplicas(Group):
    """The job file of worker 1 has another number of replicas, which may differ between tasks."""

    def start(self, name):
        job = self.job
        if name == "worker 1":
            self.job = job_file(workdir(), checkpoint={"directory": os.path.join(self.folder, "checkpoints")}, parameter_server={**PS, "replicas": 1})
        try:
            return super().start(name)
        finally:
            self.job = job


@test
def replicas_of_a_worker_differ_those_of_the_coordinator_apply():
    expect_equal(OtherReplicas(2, 3, train={"deadline_seconds": 10}).finish(), reference())


@test
def lanes_of_a_tree_all_files_are_equal():
    train = {"lanes": 6, "lane_tree": [2, 3], "global_batch_size": 48}
    expected = reference(train=train)
    for workers, devices in ((1, "cpu:2"), (2, "cpu:1"), (3, "cpu:1"), (2, "cpu:3")):
        expect_equal(Group(workers, 2, devices={"worker": devices}, train=train).finish(), expected)
    assert last(expected)["model"] != last(reference(train={**train, "lane_tree": []}))["model"]  # the tree has an effect


@test
def encrypted_between_tasks_all_files_are_equal():
    expect_equal(Group(2, 2, env={"TRAINERD_TOKEN": "a token of the parameter servers"}).finish(), reference())


@test
def gradients_are_clipped_by_value_all_files_are_equal():
    train = {"clip_value": 0.001}
    expect_equal(Group(4, 2, train=train).finish(), reference(train=train))
    assert last(reference(train=train))["model"] != last(reference())["model"]  # the limit has an effect


@test
def gradients_are_clipped_by_their_norm_all_files_are_equal():
    """A job with the section adds the squares of tables by shards, also where no ps task is in the cluster."""
    changes = {"train": {"clip_norm": 0.05}, "parameter_server": PS}
    expected = reference(**changes)
    expect_equal(Group(2, 0, **changes).finish(), expected)
    expect_equal(Group(4, 3, **changes).finish(), expected)
    assert last(expected)["model"] != last(reference())["model"]  # the limit has an effect


@test
def step_with_nan_is_skipped_all_files_are_equal():
    """In the gradient of the other parameters, by a fault; in all gradients, those of the tables too, by a bad sample."""
    skip = {"health": {"non_finite": "skip"}, "optimizer": OPTIMIZERS["momentum, weight decay"]}
    fault = "health.not_finite@5"
    expect_equal(Group(4, 2, fault=fault, **skip).finish(), reference(fault=fault, **skip))
    bad = {**skip, "data": {"train": os.path.join(make_data(), "bad-train-{feature}.npy")}}
    group = Group(4, 2, **bad).finish()
    assert "skipped" in group.notes(), group.logs()
    expect_equal(group, reference(**bad))


@test
def evaluator_follows_a_job_with_ps_its_results_are_equal():
    group = Group(2, 2, fault="train.forward=delay:5@1+")
    cluster = {**group.cluster, "evaluator": ["127.0.0.1:%d" % free_ports(1)[0]]}
    evaluator = Task(group.job, {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}, ("--devices", "cpu:1"), name="evaluator 0")
    group.finish()
    assert evaluator.wait() == 0, evaluator.log()
    found = {r["step"]: (r["loss"], r["auc"]) for r in evaluator.events("eval")}
    wanted = {r["step"]: (r["loss"], r["auc"]) for r in reference().records("eval")}
    assert found[32] == wanted[32], (found, wanted)
    expect_equal(group, reference())


# ---- stop and start ----

@test
def job_is_stopped_it_resumes_with_other_numbers_of_tasks():
    optimizer = OPTIMIZERS["adamw, average"]
    slow = "train.forward=delay:20@1+"
    group = Group(2, 1, optimizer=optimizer, fault=slow)
    group.now("worker 0").until_step(5)
    p = subprocess.run([TRAINERCTL, "stop", group.address("worker 0")], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stdout + p.stderr
    codes = {name: group.now(name).wait() for name in group.names}
    assert set(codes.values()) == {143}, "%s\n%s" % (codes, group.logs())
    first = group.records("step")
    group.verify()
    group = Group(4, 3, optimizer=optimizer, fault=slow, folder=group.folder)
    group.now("worker 0").until(lambda t: len(t.events("step")) >= 5)
    for name in group.names:
        group.now(name).signal(signal.SIGTERM)
    assert {group.now(name).wait() for name in group.names} == {143}, group.logs()
    first += group.records("step")
    group.verify()
    group = Group(1, 2, optimizer=optimizer, folder=group.folder).finish()
    group.verify()
    last, expected = "step-00000032", reference(optimizer=optimizer)
    assert checkpoints(group.folder)[last] == checkpoints(expected.folder)[last], group.logs()
    assert read(os.path.join(group.folder, "clicks.onnx")) == read(os.path.join(expected.folder, "clicks.onnx"))
    losses = {r["step"]: r["loss"] for r in expected.records("step")}
    found = {r["step"]: r["loss"] for r in first + group.records("step")}
    assert found == losses, (found, losses)


# ---- tasks are killed ----

LONG = {"train": {"epochs": 40}}  # 640 steps: the job does not end before the faults
SLOWLY = "train.forward=delay:10@1+"


def long_group(workers=2, ps=2, **changes):
    """A group that trains until stop(); compare with expect_part()."""
    return Group(workers, ps, fault=SLOWLY, **merge({**LONG, **GOES_ON}, changes))


def lose_all_holders(killed=("ps 1",), **changes):
    """Returns a group that has lost all holders of some rows, and has trained on from the newest checkpoint."""
    group = long_group(**changes)
    until_steps(group, 12)
    group.kill(*killed)
    for name in killed:
        group.start(name)
    until_view(group, "worker 0", 4)
    until_steps(group)
    assert "no parameter server that is left holds all rows after step" in group.notes(), group.logs()
    return group


def move_shards(**changes):
    """Returns a group in which a ps has ended and returned, and then another one has ended."""
    group = long_group(ps=3, **changes)
    group.kill("ps 2")
    group.now("worker 0").until_step(5)
    until_view(group, "worker 0", 4)
    group.start("ps 2")
    until_view(group, "worker 0", 5)
    until_steps(group)
    until_copied(group, "ps 2")
    group.kill("ps 0")
    until_view(group, "worker 0", 4)
    until_steps(group)
    return group


def long_reference(steps, **changes):
    """Returns a Group of one task that has trained at least so many steps of the long job without the section."""
    key = "part" + changes_key(changes)
    if key not in _references or newest(_references[key]) < steps:
        group = Group(1, 0, folder=tempfile.mkdtemp(dir=_kept.name), **merge(LONG, changes))
        group.now("worker 0").until_step(steps)
        _references[key] = group.stop()
    return _references[key]


def expect_part(group, **changes):
    group.stop()
    group.verify()
    expect_equal(group, long_reference(newest(group), **changes), complete=False)


def newest(group):
    return max([r["step"] for r in group.records("step")], default=0)


def until_steps(group, n=10):
    """Waits until the group has trained n more steps, and a checkpoint of one of them is complete."""
    first = newest(group)

    def is_done():
        return newest(group) >= first + n and any(r["step"] > first for r in group.records("checkpoint"))
    wait_until(is_done, group.logs)


def until_view(group, name, tasks):
    """Waits until the newest view of the task has this many tasks."""
    wait_until(lambda: [r["tasks"] for r in group.now(name).events("view")][-1:] == [tasks], group.logs)


def until_copied(group, name):
    """Waits until a ps has all rows of its shards in the newest generation, whose view the leader logs first."""
    def generation(task):
        return [r["generation"] for r in group.now(task).events("view")][-1:]

    def is_done():
        if generation(name) != generation("worker 0"):
            return False
        server = status(group, name)["server"]
        return server["shards"] > 0 and server["copying"] == 0
    wait_until(is_done, group.logs)


def expect_no_rollback(group):
    """No task has trained a step twice, and the group has not returned to a checkpoint."""
    for tasks in group.tasks.values():
        for t in tasks:
            steps = [r["step"] for r in t.events("step")]
            assert steps == sorted(set(steps)), "%s: %s" % (t.name, steps)
    assert "return to the newest checkpoint" not in group.notes(), group.logs()


@test
def ps_is_killed_the_others_continue_and_it_returns():
    group = long_group(optimizer=OPTIMIZERS["momentum, weight decay"])
    group.now("worker 0").until_step(12)
    group.kill("ps 0")
    until_view(group, "worker 0", 3)
    until_steps(group)
    group.start("ps 0")
    until_view(group, "worker 0", 4)
    until_steps(group)
    copied = [r["message"] for r in group.now("worker 0").events("note") if "copied between servers" in r["message"]]
    assert any(" 1024 being copied" in text for text in copied), copied
    until_copied(group, "ps 0")
    received = [r["message"] for r in group.now("ps 0").events("note") if "were received in" in r["message"]]
    assert received and "the rows of 416 shards were received in" in received[0], received  # the others have no rows
    group.kill("ps 1")  # the rows are now on the one that returned
    until_view(group, "worker 0", 3)
    until_steps(group)
    expect_no_rollback(group)
    expect_part(group, optimizer=OPTIMIZERS["momentum, weight decay"])


@test
def shards_move_to_a_ps_and_back_no_outdated_row_is_used():
    """A ps that returns takes shards from the two others, which get no gradients of them from then on. When it is killed,
    they hold these shards again: as they are now, not as they were."""
    adam = {"optimizer": OPTIMIZERS["adam"]}
    group = move_shards(**adam)
    group.start("ps 0")
    until_view(group, "worker 0", 5)
    until_steps(group)
    expect_no_rollback(group)
    expect_part(group, **adam)


@test
def worker_and_ps_are_killed_at_once_the_others_continue():
    group = long_group()
    group.now("worker 0").until_step(12)
    group.kill("worker 1", "ps 1")
    until_view(group, "worker 0", 2)
    until_steps(group)
    group.start("worker 1")
    group.start("ps 1")
    until_view(group, "worker 0", 4)
    until_steps(group)
    expect_no_rollback(group)
    expect_part(group)


@test
def coordinator_is_killed_the_others_continue():
    group = long_group()
    group.now("worker 0").until_step(12)
    group.kill("worker 0")
    until_view(group, "worker 1", 3)
    until_steps(group)
    group.start("worker 0")
    until_view(group, "worker 1", 4)
    until_steps(group)
    group.kill("worker 0", "ps 0")
    until_view(group, "worker 1", 2)
    until_steps(group)
    expect_no_rollback(group)
    expect_part(group)


@test
def all_holders_are_killed_the_group_returns_to_the_newest_checkpoint():
    for replicas, killed in sample(((2, ["ps 0", "ps 1"]), (1, ["ps 1"]))):
        group = lose_all_holders(killed, parameter_server={**PS, "replicas": replicas})
        assert all(len(tasks) == 1 + (name in killed) for name, tasks in group.tasks.items()), "a worker ended\n" + group.logs()
        expect_part(group)


@test
def all_holders_are_killed_before_the_first_checkpoint_the_job_starts_again():
    never = {"checkpoint": {"every_steps": 0}}
    group = Group(2, 2, fault=SLOWLY, **WAITS, **never)
    group.now("worker 0").until_step(3)
    group.kill("ps 0", "ps 1")
    group.start("ps 0")
    group.start("ps 1")
    group.finish()
    expect_equal(group, reference(**never))


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def cable():
    """Two hosts: network namespaces that a virtual cable connects."""
    for name, peer in (("east", None), ("west", "east")):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
        if peer:
            ip("-n", peer, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", name)
    for name, address in (("east", "10.78.0.1"), ("west", "10.78.0.2")):
        ip("-n", name, "addr", "add", address + "/24", "dev", "cable")
        ip("-n", name, "link", "set", "cable", "up")


@test
def ps_are_on_another_host_and_its_cable_is_unplugged_the_group_continues_later():
    """Between hosts the messages are encrypted, because such a cluster has a token."""
    need_namespaces()
    hosts = {"worker": ("10.78.0.1", ("ip", "netns", "exec", "east")), "ps": ("10.78.0.2", ("ip", "netns", "exec", "west"))}
    group = Group(2, 2, hosts=hosts, fault=SLOWLY, **LONG, **GOES_ON)
    until_steps(group)
    ip("-n", "west", "link", "set", "cable", "down")
    try:
        wait_until(lambda: "no parameter server is present" in group.notes(), group.logs)
        before = newest(group)
    finally:
        ip("-n", "west", "link", "set", "cable", "up")
    wait_until(lambda: newest(group) > before + 5, group.logs)
    assert all(len(tasks) == 1 for tasks in group.tasks.values())
    expect_no_rollback(group)  # the ps still have the rows
    expect_part(group)


@test
def coordinator_is_cut_off_from_two_of_three_ps_the_side_with_every_row_trains():
    """Two of three ps have every row, because each row is on two."""
    need_namespaces()
    east, west = (("10.78.0.%d" % i, ("ip", "netns", "exec", name)) for i, name in ((1, "east"), (2, "west")))
    hosts = {"worker 0": east, "ps 0": east, "worker": west, "ps": west}
    group = Group(2, 3, hosts=hosts, fault=SLOWLY, **LONG, **GOES_ON)
    until_steps(group)
    ip("-n", "west", "link", "set", "cable", "down")
    try:
        wait_until(lambda: "leaving the lease to another group" in group.notes(), group.logs)
        held = newest(group)
        group.now("worker 1").until_step(held + 5)
    finally:
        ip("-n", "west", "link", "set", "cable", "up")
    until_view(group, "worker 1", 5)
    assert all(len(tasks) == 1 for tasks in group.tasks.values())
    expect_no_rollback(group)
    expect_part(group)


# ---- wrong numbers ----

@test
def gradient_is_not_finite_the_group_returns_to_the_newest_checkpoint():
    """The ps are ahead of the checkpoint then: the coordinator fills them again."""
    group = Group(2, 2, fault="train.forward=delay:2@1+,health.not_finite@20", health={"non_finite": "restore"}).finish()
    assert "to the newest checkpoint" in group.notes(), group.logs()
    expect_equal(group, reference())


@test
def worker_has_a_wrong_gradient_it_is_named_and_all_files_are_equal():
    for name in ("worker 1", "worker 0"):
        group = Group(4, 2, lives={name: ["health.flip_gradient@9"]}).finish(supervised=True)
        assert "differs from" in group.notes(), group.logs()
        expect_equal(group, reference(), repeated=True)


@test
def row_of_a_ps_has_a_flipped_bit_both_holders_are_named_and_all_files_are_equal():
    """Holders compare 1/64 of the shards in each step; the group returns to the newest checkpoint."""
    changes = {"health": {"check_weights_every_steps": 1}, "train": {"epochs": 8}}
    group = Group(2, 2, lives={"ps 1": ["ps.flip@3"]}, checkpoint={"every_steps": 0}, **changes).finish()
    assert "ps 0 and ps 1 have different rows of shard" in group.notes() or "ps 1 and ps 0 have different rows of shard" in group.notes(), group.logs()
    assert last(group) == last(reference(checkpoint={"every_steps": 0}, **changes)), group.logs()


def data_with_a_wrong_id(part):
    """Returns the pattern of arrays whose record 77 has row 1007 of 1000 in one column."""
    source, pattern = make_data(), os.path.join(workdir(), "wrong-{feature}.npy")
    for name in ("dense", "sparse", "click"):
        values = np.load(os.path.join(source, "%s-%s.npy" % (part, name)))
        if name == "sparse":
            values[77, 5] = 1007
        np.save(pattern.format(feature=name), values)
    return pattern


@test
def id_out_of_range_names_input_file_and_record():
    """With tables in memory and on ps tasks, in a step and in an evaluation."""
    for part in ("train", "eval"):
        pattern = data_with_a_wrong_id(part)
        for ps in (0, 1):
            group = Group(1, ps, data={part: pattern})
            assert group.now("worker 0").wait() == 2, group.logs()
            text = group.now("worker 0").log()
            for words in ("is 1007; the axis has 1000 elements", "input 'sparse' has 1007 in record 77 of '%s'" % pattern.format(feature="sparse")):
                assert words in text, (part, ps, words, text)


# ---- fault points ----

def expect_kills(lives, fault="train.forward=delay:2@1+", optimizer=OPTIMIZERS["adagrad"], supervised=False, **changes):
    """One job in which every life of each task ends by its fault. No step is trained while a task is missing."""
    changes = merge({**WAITS, "optimizer": optimizer, "train": {"epochs": 4}}, changes)
    group = Group(2, 2, lives=lives, fault=fault, **changes).finish(supervised=supervised)
    group.verify()
    expect_equal(group, reference(**changes))
    return group


@test
def ps_is_killed_at_each_of_its_fault_points_all_files_are_equal():
    for ends in few(["ps.begin=kill@1", "ps.copy=kill@300", "ps.rows=kill@9", "ps.push=kill@7", "ps.vote=kill@5", "ps.commit=kill@6", "ps.committed=kill@6"]):
        expect_kills({"ps 0": ends}, optimizer=OPTIMIZERS["momentum, weight decay"])


@test
def ps_hangs_while_rows_are_settled_it_is_named_by_all_and_all_files_are_equal():
    changes = {"train": {"deadline_seconds": 4}, "elastic": {"min_world": 2, "rejoin_seconds": 4}}  # all begin together
    group = Group(2, 2, lives={"ps 1": ["ps.begin=hang@1"]}, **changes).finish(supervised=True)
    for name in ("worker 0", "worker 1"):
        said = [r["message"] for t in group.tasks[name] for r in list(t.records) if r.get("event") == "group" and r.get("level") == "warn"]
        assert said and "fewest so far from server 1 (ps 1)" in said[0], said
    expect_equal(group, reference(**changes), repeated=True)


@test
def each_ps_is_killed_in_turn_all_files_are_equal():
    expect_kills({"ps 0": ["ps.vote=kill@5", "ps.commit=kill@12"], "ps 1": ["ps.send=kill@300", "ps.committed=kill@5", "ps.push=kill@9"]},
                 optimizer=OPTIMIZERS["adam"])


@test
def worker_is_killed_at_each_fault_point_all_files_are_equal():
    points = ("connect@1", "agree@1", "forward@4", "reduce@4", "commit@4", "update@4", "update_end@4", "save@1")
    for ends in few(["train.%s" % p.replace("@", "=kill@") for p in points]):
        expect_kills({"worker 0": ends}, fault="", optimizer=OPTIMIZERS["adamw, average"])
    for ends in few(["train.%s" % p.replace("@", "=kill@") for p in points[1:] if "save" not in p]):  # others of them in make test
        expect_kills({"worker 1": ends}, fault="", optimizer=OPTIMIZERS["adamw, average"])


@test
def ps_and_worker_are_killed_at_the_same_step_all_files_are_equal():
    for point in ("ps.vote", "ps.commit", "ps.committed"):
        expect_kills({"ps 0": [point + "=kill@5"], "worker 0": ["train.update=kill@5"]})
        expect_kills({"ps 0": [point + "=kill@6"], "ps 1": [point + "=kill@6"], "worker 1": ["train.commit=kill@6"]})


@test
def task_is_killed_when_the_generation_ends_all_files_are_equal():
    expect_kills({"ps 0": ["ps.end=kill@1"], "ps 1": ["ps.end=kill@2"]}, supervised=True)
    expect_kills({"worker 1": ["train.evaluate=kill@3", "train.evaluated=kill@3"], "worker 0": ["train.export=kill@1"]}, supervised=True)


@test
def random_tasks_are_killed_all_files_are_equal():
    """KILL_SEEDS=n: so many runs; FIRST_SEED=n: from this one on."""
    first = int(os.environ.get("FIRST_SEED", 1))
    for seed in range(first, first + int(os.environ.get("KILL_SEEDS", 1))):
        r = random.Random(seed)
        changes = {**GOES_ON, "optimizer": OPTIMIZERS[r.choice(sorted(OPTIMIZERS))], "train": {"epochs": 8}}
        group = Group(2, r.randint(1, 3), fault=SLOWLY, **changes)
        group.now("worker 0").until_step(1)
        for _ in range(8):
            running = [name for name in group.names if group.now(name).p.poll() is None]
            names = r.sample(running, min(len(running), r.choice((1, 1, 1, 2, 3))))
            group.kill(*names)
            disturb(r.choice((0, 0.05, 0.3)))
            for name in group.names:
                if group.now(name).p.poll() not in (None, 0):
                    group.start(name)
            disturb(0.5)
        try:
            group.finish(supervised=True)
            group.verify()
            expect_equal(group, reference(**changes), repeated=True)
        except AssertionError as e:
            raise AssertionError("FIRST_SEED=%d: %s" % (seed, e)) from e


# ---- checkpoints ----

WITH = {"parameter_server": PS}


def files(folder, step):
    """{name: bytes} of a checkpoint, without the manifest, which has the time of writing."""
    path = os.path.join(folder, "checkpoints", step)
    return {name: read(os.path.join(path, name)) for name in sorted(os.listdir(path)) if name != "manifest.json"}


@test
def checkpoint_files_have_the_same_bytes_with_any_number_of_ps():
    """In a job with the section, also if no ps task is in the cluster; the tensors are those of a job without it."""
    optimizer = {"optimizer": OPTIMIZERS["adamw, average"]}
    expected = reference(**WITH, **optimizer)
    wanted = files(expected.folder, "step-00000032")
    assert set(wanted) == {"model-dense.safetensors", "optimizer-dense.safetensors", "model.safetensors.index.json",
                           *shards.names("model"), *shards.names("optimizer")}, sorted(wanted)
    for workers, ps, devices in ((2, 0, {}), (1, 1, {}), (2, 3, {"ps": "cpu:2"}), (1, 5, {})):
        group = Group(workers, ps, devices=devices, **{**WITH, **optimizer}).finish()
        group.verify()
        assert files(group.folder, "step-00000032") == wanted, "%d workers, %d ps\n%s" % (workers, ps, group.logs())
        expect_equal(group, reference(**optimizer))
    momentum = {"optimizer": {"type": "sgd", "learning_rate": 0.01}}  # without slots: no shard files of the optimizer
    group = Group(1, 2, **momentum).finish()
    assert set(files(group.folder, "step-00000032")) & set(shards.names("optimizer")) == set()
    assert files(group.folder, "step-00000032") == files(reference(**WITH, **momentum).folder, "step-00000032")
    expect_equal(group, reference(**momentum))


@test
def checkpoint_of_any_layout_is_resumed_with_any_number_of_ps():
    """Saved by three ps, by one task with the section, or without the section, which has whole tensors."""
    half, optimizer = {"train": {"epochs": 1}}, {"optimizer": OPTIMIZERS["adam"]}
    with_section, without = reference(**WITH, **optimizer), reference(**optimizer)
    saved = [Group(2, 3, **half, **optimizer).finish().folder, reference(**WITH, **half, **optimizer).folder,
             reference(**half, **optimizer).folder]
    for source, workers, ps, section in sample(((0, 1, 1, True), (0, 2, 2, True), (0, 1, 5, True), (0, 1, 0, True), (0, 1, 0, False),
                                                (1, 1, 2, True), (2, 2, 2, True), (2, 1, 0, True)), 3):
        folder = workdir()
        shutil.copytree(os.path.join(saved[source], "checkpoints"), os.path.join(folder, "checkpoints"))
        group = Group(workers, ps, folder=folder, **(WITH if section else {}), **optimizer).finish()
        group.verify()
        assert [r["step"] for r in group.records("step")][0] == 17, group.logs()
        expected = with_section if section else without
        assert files(folder, "step-00000032") == files(expected.folder, "step-00000032"), (source, workers, ps, section)


@test
def job_selects_other_tables_than_its_checkpoint_it_resumes():
    """The tables then have other numbers, and their rows are in other files."""
    half = {"train": {"epochs": 1}}
    some = {"parameter_server": {"tables": ["emb_l.[5-9].weight", "emb_l.1?.weight"], "replicas": 2}}
    for first, then in ((WITH, some), (some, WITH)):
        group = Group(1, 2, **{**half, **first}).finish()
        group = Group(2, 2, folder=group.folder, **then).finish()
        assert [r["step"] for r in group.records("step")][0] == 17, group.logs()
        assert files(group.folder, "step-00000032") == files(reference(**then).folder, "step-00000032")


@test
def task_is_killed_during_a_save_the_older_checkpoint_stays_and_all_files_are_equal():
    saves = ["ps.poll=kill@1", "ps.save=kill@5", "ps.save=kill@70", "ps.save_sync=kill@3", "ps.save_sync=kill@31"]
    # a ps that returns writes no files until its rows are copied, and a save takes as long as the storage needs: the steps are slow
    expect_kills({"ps 0": saves}, fault="train.forward=delay:20@1+", optimizer=OPTIMIZERS["momentum, weight decay"], train={"epochs": 4},
                 checkpoint={"every_steps": 4})
    expect_kills({"ps 0": ["ps.save_sync=kill@1"], "ps 1": ["ps.save=kill@30"]}, supervised=True)
    points = ("ckpt.mkdir@1", "ckpt.write@20", "ckpt.sync@32", "ckpt.write@34", "ckpt.read@3", "ckpt.rename@1")
    expect_kills({"worker 0": [p.replace("@", "=kill@") for p in points]}, fault="")


@test
def storage_of_a_ps_fails_it_is_named_and_a_later_checkpoint_is_complete():
    """Writes fail; the last byte of a disk is used; a file cannot be synced. Training goes on, and the last save is repeated."""
    for fault in ("ps.save=fail@30", "ps.save_sync=fail@4"):
        group = Group(2, 2, lives={"ps 1": [fault]}).finish()
        failed = [r["message"] for r in group.records("checkpoint_failed")] or group.notes().splitlines()
        assert any("ps 1: " in text and "/model-0" in text and "Input/output error" in text for text in failed), group.logs()
        group.verify()
        expect_equal(group, reference())
    group = Group(1, 1, lives={"ps 0": ["ps.save=fail@1+"]}, train={"deadline_seconds": 3})
    assert group.now("worker 0").wait() == 138, group.logs()
    assert not [name for name in os.listdir(os.path.join(group.folder, "checkpoints")) if name.startswith("step-")]


@test
def disk_is_full_during_a_save_it_is_named_with_the_ps_and_a_later_checkpoint_is_complete():
    need_namespaces()
    mount = os.path.join(workdir(), "full")
    os.mkdir(mount)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", mount], check=True)
    try:
        ballast = os.path.join(mount, "ballast")
        with open(ballast, "wb") as f:
            f.write(b"x" * (22 << 20))
        group = Group(2, 2, fault=SLOWLY, **LONG, checkpoint={"directory": os.path.join(mount, "checkpoints"), "max_to_keep": 1})
        wait_until(lambda: group.records("checkpoint_failed"), group.logs)
        text = group.records("checkpoint_failed")[0]["message"]
        assert ": ps " in text and "write '%s" % mount in text and "No space left on device" in text and "but '%s" % mount in text, text
        at = newest(group)
        wait_until(lambda: newest(group) > at + 10, group.logs)  # training goes on
        os.remove(ballast)
        wait_until(lambda: group.records("checkpoint"), group.logs)
        group.stop()
        p = subprocess.run([TRAINERCTL, "verify", os.path.join(mount, "checkpoints")], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0, p
    finally:
        wait_until(lambda: subprocess.run(["umount", mount], capture_output=True).returncode == 0)


@test
def storage_of_a_ps_hangs_the_save_is_abandoned_and_training_goes_on():
    changes = {"train": {"deadline_seconds": 3}}
    group = Group(2, 2, lives={"ps 1": ["ps.save=hang@30"]}, **changes).finish()
    assert "ps 1: the storage has not responded for" in group.notes(), group.logs()
    assert all(len(tasks) == 1 for tasks in group.tasks.values()), group.logs()
    assert {r["generation"] for r in group.records("view")} == {1}, group.logs()
    group.verify()
    expect_equal(group, reference(**changes))


@test
def save_takes_longer_than_the_deadline_no_task_is_lost():
    """Every write of ps 0 takes a while, all of them together two deadlines. The steps wait."""
    deadline = 3
    delay = int(2 * deadline * 1000 / 250)  # of more than 250 writes in a save
    changes = {"train": {"deadline_seconds": deadline}, "checkpoint": {"every_steps": 16}}
    group = Group(4, 2, lives={"ps 0": ["ps.save=delay:%d@1+" % delay]}, **changes).finish()
    assert {r["generation"] for r in group.records("view")} == {1}, group.logs()
    waited = [r["samples_per_second"] for r in group.records("step") if r["step"] == 17]
    assert min(waited) < clicks.BATCH / deadline, waited  # step 17 took longer than a deadline
    group.verify()
    expect_equal(group, reference(**changes))


@test
def ps_is_killed_while_it_reads_a_checkpoint_all_files_are_equal():
    half = {"train": {"epochs": 1}}
    folder = workdir()
    shutil.copytree(os.path.join(reference(**WITH, **half).folder, "checkpoints"), os.path.join(folder, "checkpoints"))
    group = Group(2, 2, folder=folder, lives={"ps 0": ["ps.load=kill@3", "ps.poll=kill@1"]}, **WAITS).finish()
    group.verify()
    assert files(folder, "step-00000032") == files(reference(**WITH).folder, "step-00000032")


@test
def servers_read_for_longer_than_the_deadline_no_task_is_lost():
    """At a resume every read of ps 0 takes a while, all of them together more than two deadlines."""
    half = {"train": {"epochs": 1}}
    folder = workdir()
    shutil.copytree(os.path.join(reference(**WITH, **half).folder, "checkpoints"), os.path.join(folder, "checkpoints"))
    deadline = 3
    delay = int(2 * deadline * 1000 / 52) + 1  # 26 tables with slots
    changes = {"train": {"deadline_seconds": deadline}}
    group = Group(4, 1, folder=folder, lives={"ps 0": ["ps.load=delay:%d@1+" % delay]}, **changes).finish()
    first = group.records("view")
    assert {r["generation"] for r in first} == {1}, group.logs()
    assert files(folder, "step-00000032") == files(reference(**WITH).folder, "step-00000032")


def one_row_model():
    """The network with one row in each table: the job states the rows, which are then generated."""
    path = os.path.join(_kept.name, "one_row.onnx")
    if not os.path.exists(path):
        subprocess.run([TRAINERCTL, "model", "dlrm", "--set", "rows=1", "-o", path], check=True, stdout=subprocess.DEVNULL)
    return path


@test
def servers_generate_rows_for_longer_than_the_deadline_no_task_is_lost():
    """Each shard of ps 0 takes a while, all of them together more than two deadlines. Before that, a process dies meanwhile."""
    deadline = 3
    tables = {"emb_l.%d.weight" % i: {"rows": ROWS} for i in range(26)}
    changes = {"model": {"onnx": one_row_model(), "tables": tables}, "train": {"deadline_seconds": deadline}}
    lives = ["ps.fill=kill@70", "ps.fill=delay:%d@1+" % (int(2 * deadline * 1000 / 1024) + 1)]
    group = Group(4, 1, lives={"ps 0": lives}, elastic={"min_world": 4, "rejoin_seconds": 0}, **changes).finish()
    assert [r["generation"] for r in group.now("worker 0").events("view")] == [1, 2], group.logs()
    expect_equal(group, reference(**changes))


def peak_bytes(pid):
    with open("/proc/%d/status" % pid) as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM:"))


@test
def memory_of_the_coordinator_does_not_grow_with_the_tables_nor_that_of_a_ps_with_a_save():
    """Tables of 200 MB and as many bytes of slots are saved, then read again. Each number is the largest amount of memory that
    a task has had: worker 0 while it waits after the save; ps 0 before the save and then."""
    peaks = {}
    onnx = one_row_model()
    for rows in (1000, 120000):
        tables = {"emb_l.%d.weight" % i: {"rows": rows} for i in range(26)}
        changes = {"model": {"onnx": onnx, "tables": tables}, "export": {"onnx": None}, "checkpoint": {"every_steps": 8, "max_to_keep": 1},
                   "train": {"epochs": 1, "deadline_seconds": 120}, "detection": {"stuck_factor": 0}, "parameter_server": {**PS, "replicas": 1}}
        group = Group(1, 2, fault="train.forward=delay:50@1+,train.forward=hang@16", **changes)
        group.now("worker 0").until_step(4)
        before = peak_bytes(group.now("ps 0").p.pid)
        wait_until(lambda: group.records("checkpoint"), group.logs)
        grown = peak_bytes(group.now("ps 0").p.pid) - before
        assert grown < 24 << 20, "ps 0 has grown by %d bytes" % grown
        saved = peak_bytes(group.now("worker 0").p.pid)
        assert group.records("checkpoint")[0]["bytes"] >= 26 * rows * 16 * 4 * 2
        for name in group.names:
            group.kill(name)
        group = Group(1, 2, fault="train.forward=hang@5", folder=group.folder, **changes)
        wait_until(lambda: newest(group) >= 11, group.logs)
        peaks[rows] = saved, peak_bytes(group.now("worker 0").p.pid)
        group.kill(*group.names)
    assert all(large < small + (40 << 20) for small, large in zip(peaks[1000], peaks[120000])), peaks


@test
def damaged_shard_files_are_named_and_the_previous_checkpoint_is_used():
    group = Group(1, 2, **WITH).finish()
    folder = os.path.join(group.folder, "checkpoints")
    last = os.path.join(folder, "step-00000032")
    for name, damage in (("model-00007-of-00016.safetensors", "flip"), ("optimizer-00000-of-00016.safetensors", "cut"),
                         ("model-00015-of-00016.safetensors", "gone"), ("model.safetensors.index.json", "flip")):
        copy = os.path.join(workdir(), "step-00000032")
        shutil.copytree(last, copy)
        path = os.path.join(copy, name)
        data = bytearray(read(path))
        if damage == "gone":
            os.remove(path)
        else:
            data[len(data) // 2] ^= 4
            with open(path, "wb") as f:
                f.write(data[:-1] if damage == "cut" else data)
        p = subprocess.run([TRAINERCTL, "verify", copy], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 1 and "BAD" in p.stdout and name in p.stdout, p
    with open(os.path.join(last, "model-00003-of-00016.safetensors"), "r+b") as f:
        f.seek(5000)
        f.write(b"damaged")
    group = Group(1, 2, folder=group.folder, **WITH).finish()
    assert "skipping checkpoint" in group.notes() and "model-00003-of-00016.safetensors" in group.notes(), group.logs()
    group.verify()
    assert files(group.folder, "step-00000032") == files(reference(**WITH).folder, "step-00000032")


@test
def converted_checkpoint_has_whole_tables_and_is_resumed():
    half = {"train": {"epochs": 1}}
    source = os.path.join(reference(**WITH, **half).folder, "checkpoints", "step-00000016")
    folder = workdir()
    os.mkdir(os.path.join(folder, "checkpoints"))
    to = os.path.join(folder, "checkpoints", "step-00000016")

    def convert():
        return subprocess.run([TRAINERCTL, "convert", "--out", to, source], capture_output=True, text=True, timeout=GUARD)
    p = convert()
    assert p.returncode == 0 and "step 16" in p.stdout, p
    assert sorted(os.listdir(to)) == ["manifest.json", "model.safetensors", "optimizer.safetensors"]
    assert shards.tensors(to) == shards.tensors(source)
    p = convert()
    assert p.returncode == 1 and "File exists" in p.stderr, p
    group = Group(1, 0, folder=folder).finish()  # without the section, as a release that does not know shard files
    group.verify()
    assert [r["step"] for r in group.records("step")][0] == 17, group.logs()
    assert files(folder, "step-00000032") == files(reference().folder, "step-00000032")


# ---- what is refused ----

def ended(job, config, code, *words, devices="cpu:1"):
    task = Task(job, config, ("--devices", devices))
    assert task.wait() == code, task.log()
    for word in words:
        assert word in task.final_message() or any(word in line for line in task.lines), "%s is not in\n%s" % (word, task.log())


@test
def ps_of_a_job_without_the_section_is_refused():
    ports = free_ports(2)
    config = {"cluster": {"worker": ["127.0.0.1:%d" % ports[0]], "ps": ["127.0.0.1:%d" % ports[1]]}, "task": {"type": "ps", "index": 0}}
    ended(job_file(workdir()), config, 2, "parameter_server")


@test
def ps_of_another_job_is_refused():
    group = Group(1, 2, fault=SLOWLY, **LONG, **GOES_ON)
    group.now("worker 0").until_step(3)
    group.kill("ps 1")
    other = job_file(workdir(), parameter_server=PS, optimizer=OPTIMIZERS["adam"], **LONG, **GOES_ON)
    ended(other, {"cluster": group.cluster, "task": {"type": "ps", "index": 1}}, 2, "the job differs")
    until_steps(group)
    group.stop()


@test
def only_ps_is_missing_the_group_waits_and_names_it():
    group = Group(2, 1, fault=SLOWLY, **LONG, **GOES_ON)
    until_steps(group)
    group.kill("ps 0")
    wait_until(lambda: "waiting: 1 of 3 tasks is missing: ps 0 (%s)" % group.address("ps 0") in group.notes(), group.logs)
    wait_until(lambda: "no parameter server is present" in group.notes(), group.logs)
    before = newest(group)
    group.start("ps 0")
    wait_until(lambda: newest(group) > before, group.logs)
    expect_part(group)


@test
def fewer_ps_than_min_ps_are_left_the_group_waits_and_all_files_are_equal():
    group = long_group(ps=3, parameter_server={**PS, "min_ps": 2})
    until_view(group, "worker 0", 5)
    until_steps(group)
    group.kill("ps 2")
    until_view(group, "worker 0", 4)
    until_steps(group, 1)
    until_copied(group, "ps 0")
    group.kill("ps 1")
    wait_until(lambda: "1 parameter server is present, and min_ps is 2" in group.notes(), group.logs)
    before = newest(group)
    group.start("ps 1")
    wait_until(lambda: newest(group) > before, group.logs)
    tasks = [r["tasks"] for r in group.now("worker 0").events("view")]
    assert all(n > 3 for n in tasks[tasks.index(5):]), tasks  # the workers stay, so 3 would be one ps
    expect_no_rollback(group)
    expect_part(group)


@test
def group_without_ps_is_stopped_all_tasks_end_and_the_job_resumes():
    """The rows cannot be read any more, so the steps after the newest checkpoint are not saved."""
    group = Group(2, 1, fault=SLOWLY, train={"grace_seconds": 1}, **GOES_ON)
    group.now("worker 0").until_step(10)
    group.kill("ps 0")
    wait_until(lambda: "no parameter server is present" in group.notes(), group.logs)
    for name in ("worker 0", "worker 1"):
        group.now(name).signal(signal.SIGTERM)
    for name in ("worker 0", "worker 1"):
        assert group.now(name).wait() in (138, 143), group.logs()
    ends = [group.now(name).final_message() for name in ("worker 0", "worker 1")]
    assert any("the tables are on parameter servers" in text for text in ends), ends
    again = Group(4, 2, folder=group.folder).finish()
    last = "step-00000032"
    assert checkpoints(again.folder)[last] == checkpoints(reference().folder)[last], again.logs()


@test
def optimizer_with_norms_of_whole_parameters_is_refused():
    group = Group(1, 1, optimizer={"type": "lamb", "learning_rate": 0.001})
    assert group.now("worker 0").wait() == 2, group.logs()
    assert "another optimizer" in group.now("worker 0").final_message(), group.logs()
    group.stop(codes=(2, 143))  # the worker ends a ps that has joined with 2


# ---- what a ps reports ----

def status(group, name):
    p = subprocess.run([TRAINERCTL, "status", "--json", group.address(name)], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stdout + p.stderr
    return json.loads(p.stdout)


def safetensors(path):
    """The arrays of a file, read as the format states: the length of the header, the header, the data."""
    data = read(path)
    at = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:at])
    return {name: np.frombuffer(data[at + e["data_offsets"][0]:at + e["data_offsets"][1]], "<f4").reshape(e["shape"])
            for name, e in header.items() if name != "__metadata__"}


def rows_by_grpc(address, table, part, wanted):
    """Calls Control.Rows with Python's gRPC: (step, {row: values})."""
    import grpc
    folder = os.path.join(_kept.name, "proto")
    if not os.path.exists(folder):
        os.mkdir(folder)
        proto = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "proto")
        subprocess.run(["protoc", "-I" + proto, "--python_out=" + folder, "trainerd.proto"], check=True)
        sys.path.insert(0, folder)
    import trainerd_pb2 as pb
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary("/trainerd.v1.Control/Rows", request_serializer=pb.RowsRequest.SerializeToString,
                                   response_deserializer=pb.RowsReply.FromString)
        r = call(pb.RowsRequest(table=table, part=part, rows=wanted), timeout=GUARD)
    values = np.frombuffer(r.values, "<f4").reshape(len(r.rows), r.width)
    return r.step, {row: values[i] for i, row in enumerate(r.rows)}


@test
def rows_that_clients_read_while_the_job_trains_are_those_of_the_checkpoint_of_that_step():
    group = Group(2, 3, fault="train.forward=hang@17", detection={"stuck_factor": 0})  # the rows are those after step 16 meanwhile
    table, wanted = "emb_l.3.weight", [0, 999, 64, 65, 700]

    def rows(*args):
        return subprocess.run([TRAINERCTL, "rows", *args], capture_output=True, text=True, timeout=GUARD)

    def printed():
        p = rows("--json", group.address("worker 1"), table, *map(str, wanted))
        return json.loads(p.stdout) if p.returncode == 0 else {"step": 0}
    wait_until(lambda: printed()["step"] == 16, group.logs)
    found = {}
    for i in range(3):
        step, some = rows_by_grpc(group.address("ps %d" % i), table, "sum", wanted)
        assert step == 16, step
        found.update(some)
    weights = printed()
    for arguments, why in ((("1000",), "rows 0 to 999"), (("--part", "momentum", "1"), "part 'momentum'")):
        p = rows(*arguments[:-1], group.address("ps 0"), table, arguments[-1])
        assert p.returncode == 1 and why in p.stderr, p
    group.kill(*group.names)
    expected = os.path.join(reference(fault="train.forward=delay:20@1+").folder, "checkpoints", "step-00000016")
    sums = safetensors(os.path.join(expected, "optimizer.safetensors"))[table + "/sum"]
    assert set(found) == set(wanted) and all(np.array_equal(values, sums[row]) for row, values in found.items()), found
    state = safetensors(os.path.join(expected, "model.safetensors"))[table]
    assert weights["step"] == 16 and list(weights["rows"]) == [str(row) for row in wanted], weights
    assert all(np.array_equal(np.array(weights["rows"][str(row)], "f4"), state[row]) for row in wanted), weights


@test
def status_and_metrics_of_a_ps_state_its_shards_and_rows():
    port = free_ports(1)[0]
    group = Group(2, 2, fault=SLOWLY, **LONG, **GOES_ON)
    group.kill("ps 1")
    group.env = {"TRAINERD_METRICS": str(port)}
    group.start("ps 1")
    until_view(group, "worker 0", 4)
    until_steps(group)
    until_copied(group, "ps 1")
    server = status(group, "ps 1")["server"]
    assert server["version"] > 0 and server["shards"] == 1024 and server["rows_read"] > 1000 and server["rows_updated"] > 1000, server
    assert server["bytes"] >= 26 * ROWS * 16 * 4 * 2, server  # weights and the sums of adagrad
    text = subprocess.run([TRAINERCTL, "status", group.address("ps 1")], capture_output=True, text=True, timeout=GUARD).stdout
    assert "tables      1024 shards (0 being copied) after step" in text, text
    leader = status(group, "worker 0")
    assert leader["server"] is None
    tasks = {"%s %d" % (t["task"]["type"], t["task"]["index"]): t for t in leader["tasks"]}
    assert tasks["ps 1"]["n_servers"] == 1 and tasks["ps 1"]["phase"] == "serve" and tasks["ps 1"]["phase_ms"] < 600000, tasks["ps 1"]
    top = subprocess.run([TRAINERCTL, "top", "--once", group.address("ps 0")], capture_output=True, text=True, timeout=GUARD)
    assert top.returncode == 0 and "ps 0" in top.stdout and "ps 1" in top.stdout and "serve" in top.stdout, top.stdout + top.stderr

    def series():
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as f:
            return dict(line.rsplit(" ", 1) for line in f.read().decode().splitlines() if line.startswith("trainerd_ps_"))
    # the page is written at intervals, and first after few steps
    counters = ("trainerd_ps_rows_read_total", "trainerd_ps_rows_updated_total")
    wait_until(lambda: all(float(series().get(c, 0)) > 1000 for c in counters), group.logs)
    found = series()
    assert float(found["trainerd_ps_shards"]) == 1024 and float(found["trainerd_ps_shards_copying"]) == 0 and float(found["trainerd_ps_bytes"]) == server["bytes"], found
    group.stop()


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        cable()
    main()
