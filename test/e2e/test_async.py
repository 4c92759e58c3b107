#!/usr/bin/python3
"""Asynchronous steps: `"staleness_kind": "bounded"` (stale synchronous parallel).

The bits of such steps depend on time, so most tests train the job of linear.py: its weights after any step are those of the
synchronous job, whichever task applies which lanes when, if each lane of each step is applied once."""
import json
import os
import random
import signal
import subprocess

import clicks
import ids
import ids_group
import linear
import test_ps
from clicks import OPTIMIZERS
from kit import GUARD, TRAINERCTL, Task, disturb, free_ports, main, merge, sample, test, wait_until, workdir
from test_ps import GOES_ON, WAITS, ended, expect_no_rollback, last, lose_all_holders, move_shards, newest, status, until_steps

BOUNDED = {"parameter_server": {"dense": "ps", "replicas": 2, "staleness": 2, "staleness_kind": "bounded"}}
PHASES = [{"mode": "sync", "until_step": 9}, {"mode": "async", "until_step": 22}, {"mode": "sync"}]
SLOWLY = "train.forward=delay:10@1+"


class Group(test_ps.Group):
    """As in test_ps.py, with the job of linear.py."""

    def make_job(self, with_ps, changes):
        source = linear.make_data(os.path.join(test_ps._kept.name, "linear"))
        return linear.job_file(self.folder, source, **merge(BOUNDED if with_ps else {}, changes))


_references = {}


def reference(epochs):
    """{step: weights} and {step: loss} of the synchronous job of one task."""
    if epochs not in _references:
        group = Group(1, 0, train={"epochs": epochs}).finish()
        weights = {step: files["model"] for step, files in test_ps.checkpoints(group.folder).items()}
        _references[epochs] = weights, {r["step"]: r["loss"] for r in group.records("step")}
    return _references[epochs]


def expect_weights(group, epochs=2, complete=True):
    """All checkpoints have the weights of the synchronous job."""
    expected, _ = reference(epochs)
    found = {step: files["model"] for step, files in test_ps.checkpoints(group.folder).items()}
    assert found and (not complete or max(found) == max(expected)), (sorted(found), group.logs())
    for step in set(found) & set(expected):
        assert found[step] == expected[step], "%s differs\n%s" % (step, group.logs())
    group.verify()
    return group


def expect_steps(group, n=linear.STEPS):
    assert {r["step"] for r in group.records("step")} == set(range(1, n + 1)), group.logs()
    return group


# ---- the result ----

@test
def any_number_of_tasks_each_lane_is_applied_once():
    for workers, ps in ((1, 1), (2, 1), (4, 3)):
        expect_steps(expect_weights(Group(workers, ps).finish()))
    expect_steps(expect_weights(Group(4, 2, devices={"ps": "cpu:3"}).finish()))


@test
def one_worker_has_the_bits_of_the_synchronous_job():
    """Its units are whole steps, one after the other: clipping, average, decay and the count of updates are the same."""
    dense = {"parameter_server": {"dense": "ps"}}
    for name, optimizer in sample(OPTIMIZERS.items(), 2):
        changes = {"optimizer": optimizer, "train": {"clip_norm": 0.05}}
        group = test_ps.Group(1, 2, **merge(BOUNDED, changes)).finish()
        test_ps.expect_equal(group, test_ps.reference(**merge(dense, changes)))


@test
def dynamic_tables_of_one_worker_have_the_bits_of_the_synchronous_job():
    losses = [ids_group.Group(1, 1, folder=ids_group.kept_folder(), **changes).finish().losses()
              for changes in ({"parameter_server": {"dense": "ps"}}, BOUNDED)]
    assert losses[0] == losses[1]
    found = ids_group.Group(4, 2, folder=ids_group.kept_folder(), **BOUNDED).finish().losses()
    assert set(found) == set(losses[0])


@test
def phases_change_between_synchronous_and_asynchronous_steps():
    group = expect_steps(expect_weights(Group(4, 2, train={"phases": PHASES}).finish()))
    _, losses = reference(2)
    found = {r["step"]: r["loss"] for r in group.records("step")}
    assert all(found[step] == losses[step] for step in list(range(1, 10)) + list(range(23, 33))), (found, losses)


@test
def job_is_stopped_in_each_phase_and_resumes_with_other_numbers_of_tasks():
    folder, phases = workdir(), [{"mode": "sync", "until_step": 100}, {"mode": "async", "until_step": 400}, {"mode": "sync"}]
    for workers, ps, until in ((2, 1, 40), (4, 3, 180), (1, 2, 300), (2, 2, 440)):
        group = Group(workers, ps, folder=folder, fault="train.forward=delay:2@1+", train={"epochs": 40, "phases": phases})
        wait_until(lambda: newest(group) >= until, group.logs)
        group.stop()
        assert "asynchronous phases: tasks are at most 2 steps apart" in group.notes()
    expect_weights(Group(4, 2, folder=folder, train={"epochs": 40, "phases": phases}).finish(), 40)


# ---- tasks die ----

@test
def any_task_is_killed_each_lane_is_applied_once():
    """Each fault point of a unit, on workers, on the first ps, which orders the units, and on another ps."""
    for lives in sample(({"worker 1": ["train.forward=kill@5"]}, {"worker 0": ["train.reduce=kill@9"]}, {"worker 2": ["train.unit=kill@7"]},
                  {"ps 0": ["ps.push=kill@20"]}, {"ps 1": ["ps.vote=kill@21"]}, {"ps 0": ["ps.commit=kill@22"]},
                  {"ps 1": ["ps.committed=kill@23"]}, {"ps 0": ["ps.go=kill@24"]}, {"ps 0": ["ps.vote=kill@40"], "worker 0": ["train.unit=kill@12"]}), 3):
        expect_steps(expect_weights(Group(4, 2, lives=lives, **WAITS).finish()))


@test
def phase_ends_while_tasks_are_killed_each_lane_is_applied_once():
    for lives in ({"worker 1": ["train.unit=kill@13"]}, {"ps 0": ["ps.commit=kill@52"]}, {"worker 3": ["train.unit=kill@12", "train.update=kill@2"]}):
        expect_weights(Group(4, 2, lives=lives, train={"phases": PHASES}, **WAITS).finish())


@test
def workers_leave_and_come_back_each_lane_is_applied_once():
    """The others go on without them: lanes that a worker has applied are not computed again by the one that takes its share."""
    lives = {"worker 1": ["train.forward=kill@4", "train.reduce=kill@15"], "worker 3": ["train.unit=kill@6", "train.forward=kill@12"]}
    for _ in range(5):  # on a busy machine the group can begin before the second ps has started; the rows then have one holder
        group = Group(4, 2, lives=lives, fault="train.forward=delay:2@1+", train={"epochs": 20}, **GOES_ON).finish()
        expect_weights(group, 20)
        if group.tasks["worker 2"][0].events("view")[0]["tasks"] == 6:
            break
    expect_no_rollback(group)


def of_linear(scene, **changes):
    """A scene of test_ps.py with the job of linear.py."""
    kept, test_ps.Group = test_ps.Group, Group
    try:
        return scene(**changes)
    finally:
        test_ps.Group = kept


@test
def all_holders_are_killed_the_group_returns_to_the_newest_checkpoint():
    group = of_linear(lose_all_holders, parameter_server={"replicas": 1})
    expect_weights(group.stop(), 40, complete=False)


@test
def parameters_move_between_ps_during_asynchronous_steps():
    group = of_linear(move_shards)
    expect_no_rollback(group)
    expect_weights(group.stop(), 40, complete=False)


def kill_at_random(draw):
    """Trains a job while random tasks are killed, also two at once and all holders of rows; each is started again."""
    workers, ps, epochs = draw.choice((1, 2, 4)), draw.randint(1, 3), 20
    phases = draw.choice(([], [{"mode": "sync", "until_step": 50}, {"mode": "async", "until_step": 200}, {"mode": "sync"}]))
    group = Group(workers, ps, devices={"ps": "cpu:%d" % draw.randint(1, 3)}, fault="train.forward=delay:2@1+",
                  parameter_server={"staleness": draw.randint(1, 4)}, train={"epochs": epochs, "phases": phases},
                  checkpoint={"every_steps": draw.choice((8, 30))}, **GOES_ON)
    kills = 0
    while True:
        codes = {name: group.now(name).p.poll() for name in group.names}
        assert set(codes.values()) <= {None, 0, -signal.SIGKILL, 138}, "%s\n%s" % (codes, group.logs())
        if 0 in codes.values():  # the job is complete
            break
        for name, code in codes.items():
            if code is not None:
                group.start(name)
        disturb(0.25)
        name = draw.choice(group.names)
        if kills < 40 and group.now(name).p.poll() is None:
            group.now(name).signal(signal.SIGKILL)
            kills += 1
    codes = {group.now(name).wait() for name in group.names}  # a task that is dead now has no job to return to
    assert codes <= {0, -signal.SIGKILL, 138}, group.logs()
    expect_weights(group, epochs)
    return kills


@test
def tasks_are_killed_at_random_each_lane_is_applied_once():
    """KILL_SEEDS=n: so many runs; FIRST_SEED=n: from this one on."""
    first = int(os.environ.get("FIRST_SEED", 3))
    for seed in range(first, first + int(os.environ.get("KILL_SEEDS", 1))):
        print("# seed %d: %d kills" % (seed, kill_at_random(random.Random(seed))), flush=True)


# ---- the bound ----

def ages(group):
    """Rows that units have read, by the number of older steps whose updates they may lack."""
    servers = [status(group, name)["server"] for name in group.names if name.startswith("ps")]
    assert all(s["bounded"] and s["staleness"] for s in servers)
    return [sum(counts) for counts in zip(*(s["rows_stale"] for s in servers))]


@test
def no_unit_is_further_ahead_than_the_bound():
    for k in (1, 3):
        lives = {"worker 2": ["train.forward=delay:500@4+"]}  # the others reach the bound
        group = Group(4, 2, lives=lives, parameter_server={"staleness": k}, train={"epochs": 40})
        wait_until(lambda: newest(group) >= 4 and ages(group)[k] > 0, group.logs)
        found = ages(group)
        assert len(found) == 17 and sum(found[k + 1:]) == 0, found
        group.kill(*group.names)


@test
def checkpoint_is_requested_all_tasks_stop_after_the_same_step():
    group = Group(4, 2, fault=SLOWLY, train={"epochs": 40}, checkpoint={"every_steps": 0})
    wait_until(lambda: newest(group) >= 5, group.logs)
    p = subprocess.run([TRAINERCTL, "checkpoint", group.address("worker 0")], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stdout + p.stderr
    until_steps_without_checkpoint(group)
    saved = [r["step"] for r in group.records("checkpoint")]
    group.stop()
    weights = {step: files["model"] for step, files in test_ps.checkpoints(group.folder).items()}
    assert "step-%08d" % saved[0] in weights, (saved, sorted(weights))
    expected = Group(1, 0, train={"epochs": None, "steps": saved[0]}).finish()
    assert last(expected)["model"] == weights["step-%08d" % saved[0]], group.logs()


def until_steps_without_checkpoint(group, n=5):
    first = newest(group)
    wait_until(lambda: newest(group) >= first + n, group.logs)


# ---- numbers that are not finite ----

def bad(policy, **changes):
    source = linear.make_data(os.path.join(test_ps._kept.name, "linear"))
    return merge({"data": {"train": os.path.join(source, "bad-{feature}.npy")}, "health": {"non_finite": policy}}, changes)


@test
def gradient_is_not_finite_its_lanes_are_left_out():
    group = expect_steps(Group(4, 2, **bad("skip")).finish())
    assert "loss or gradient of 1 of 4 lanes are not finite; these lanes were left out" in group.notes(), group.logs()
    weights, expected = last(group)["model"], reference(2)[0]["step-00000032"]
    assert weights != expected  # without these lanes


@test
def gradient_is_not_finite_the_job_stops_after_a_complete_step():
    group = Group(4, 2, **bad("stop"))
    codes = {name: group.now(name).wait() for name in group.names}
    assert set(codes.values()) == {2} or all(code not in (0, 138) for code in codes.values()), (codes, group.logs())
    assert "of 4 lanes are not finite" in group.notes() and 'health.non_finite is "stop"' in group.notes(), group.logs()
    group.verify()


# ---- refused, and warnings ----

@test
def large_bound_is_a_warning_that_names_a_rate():
    for k, is_warned in ((2, False), (4, True)):
        group = Group(1, 1, parameter_server={"staleness": k}).finish()
        assert ("with rows that are up to 4 steps older" in group.notes()) == is_warned, group.notes()
        assert not is_warned or "learning rate 0.125, first try 0.025" in group.notes(), group.notes()


@test
def what_asynchronous_steps_do_not_support_is_refused_with_its_place():
    folder = workdir()
    source = linear.make_data(os.path.join(test_ps._kept.name, "linear"))
    job = linear.job_file(folder, source, **BOUNDED)
    ports = free_ports(2)
    cluster = {"worker": ["127.0.0.1:%d" % ports[0]], "ps": ["127.0.0.1:%d" % ports[1]]}
    context = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    for args, cluster_of, text in ((("--devices", "cpu:2"), context, "needs one replica in each task"),
                                   (("--devices", "cpu:1"), None, "all parameters are on ps tasks, and the cluster has none"),
                                   (("--devices", "cpu:1", "--sample-log", os.path.join(folder, "log")), context, "--sample-log")):
        task = Task(job, cluster_of, args)
        assert task.wait() == 2 and text in task.log(), task.log()


if __name__ == "__main__":
    main()
