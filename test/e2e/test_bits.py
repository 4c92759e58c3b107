#!/usr/bin/python3
"""The weights after step k depend only on the job and on k."""
# san: yes
import os
import re
import signal
import urllib.request

from kit import GUARD, Task, digits_job, expect_codes, free_ports, main, read_tree, start, test, tf_config, wait_until, workdir
from random_net import random_net

RANDOM_NET = {"onnx": "random.onnx", "batch_norm": "train"}


def job_in(folder, changes):
    """Writes the job of the demo; its network is random_net() if `changes` name RANDOM_NET."""
    if changes.get("model") is RANDOM_NET:
        random_net(os.path.join(folder, RANDOM_NET["onnx"]))
    return digits_job(folder, **changes)


def run(n, devices, **changes):
    """Trains in a new folder; returns the content of the last checkpoint, and the losses."""
    folder = workdir()
    job = job_in(folder, changes)
    tasks = start(job, n, devices) if n > 1 else [Task(job, args=("--devices", devices))]
    expect_codes(tasks, [0] * n)
    losses = [(k, r["loss"]) for k, r in sorted(tasks[0].steps().items())]
    return read_tree(os.path.join(folder, "run", "checkpoints")), losses


def short(lanes, **train):
    return {"train": {"epochs": None, "steps": 30, "lanes": lanes, "log_every_steps": 1, **train},
            "checkpoint": {"every_steps": 10}}


def held_back(ms, steps):
    """Delays training so that a signal arrives during the run: after `steps` steps each lane takes one second."""
    return {"TRAINERD_FAULT": "train.forward=delay:%d@1+,train.forward=delay:1000@%d+" % (ms, steps)}


def newest(folder):
    return max(int(name.split("/")[0][5:]) for name in read_tree(os.path.join(folder, "run", "checkpoints"))
               if name.startswith("step-"))


def same(a, b, what):
    assert a[1] == b[1], "%s: losses differ, first at step %d" % (
        what, next(x[0] for x, y in zip(a[1], b[1]) if x != y))
    # a checkpoint that is due while the previous one is written is delayed by a step; only the last one always exists
    assert max(a[0]) == max(b[0]), "%s: files %s and %s" % (what, sorted(a[0]), sorted(b[0]))
    for name in a[0].keys() & b[0].keys():
        assert a[0][name] == b[0][name], "%s: %s differs" % (what, name)


@test
def bit_that_changes_in_clear_text_names_the_link_is_counted_and_changes_no_loss():
    """A bit of a message from worker 1 changes after its checksum was computed."""
    changes = {"communication": {"shared_memory": False, "encrypt": False}, **short(2, steps=100000)}
    job, ports, pages = job_in(workdir(), changes), free_ports(2), free_ports(2)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % pages[i]), fault, "worker %d" % i)
             for i, fault in enumerate(({}, {"TRAINERD_FAULT": "comm.flip@40"}))]

    def counted():
        text = urllib.request.urlopen("http://127.0.0.1:%d/metrics" % pages[0], timeout=GUARD).read().decode()
        return "\ntrainerd_changed_messages_total 1\n" in text
    for t in tasks:
        t.until(lambda t: any(re.search(r"a message from rank 1 \(worker 1\) at 127\.0\.0\.1:\d+ to rank 0 \(worker 0\) at "
                                        r"127\.0\.0\.1:\d+ was changed on its way \(call ", r.get("message", "")) for r in t.records))
    wait_until(counted)
    one = Task(job_in(workdir(), changes), args=("--devices", "cpu:1"))
    for t in (tasks[0], one):
        t.until_step(30)
    for t in (*tasks, one):
        t.signal(signal.SIGTERM)
    expect_codes([*tasks, one], [143] * 3)
    losses, expected = ({k: r["loss"] for k, r in t.steps().items() if k <= 30} for t in (tasks[0], one))
    assert losses == expected and len(losses) == 30, (losses, expected)


@test
def weights_four_lanes_are_equal_on_one_two_and_four_tasks():
    one = run(1, "cpu:1", **short(4))
    assert len(one[1]) == 30
    same(one, run(2, "cpu:1", **short(4)), "2 tasks x 2 lanes")
    same(one, run(4, "cpu:1", **short(4)), "4 tasks x 1 lane")


@test
def weights_four_lanes_are_equal_on_one_two_and_four_replicas():
    one = run(1, "cpu:1", **short(4))
    same(one, run(1, "cpu:2", **short(4)), "2 replicas")
    same(one, run(1, "cpu:4", **short(4)), "4 replicas")
    same(one, run(2, "cpu:2", **short(4)), "2 tasks x 2 replicas")


@test
def weights_lanes_not_a_power_of_two_are_equal_on_any_number_of_replicas():
    twelve = short(12, global_batch_size=60)
    one = run(1, "cpu:1", **twelve)
    for n, devices in ((1, "cpu:2"), (2, "cpu:1"), (3, "cpu:1"), (4, "cpu:1"), (2, "cpu:3"), (3, "cpu:4")):
        same(one, run(n, devices, **twelve), "%d tasks x %s" % (n, devices))
    three = short(3, global_batch_size=60)
    same(run(1, "cpu:1", **three), run(3, "cpu:1", **three), "3 lanes on 3 tasks")


def lane_tree_job(**changes):
    return {**short(None, lane_tree=[3, 3], global_batch_size=45), **changes}


@test
def weights_lanes_of_a_tree_are_equal_on_any_number_of_tasks():
    """Without "lanes", which is the product. Groups of 2, 5 and 8 tasks are 9 tasks of which some are absent."""
    job = lane_tree_job()
    one, plain = run(1, "cpu:1", **job), run(1, "cpu:1", **short(9, global_batch_size=45))
    assert one[0] != plain[0] and one[1] != plain[1], "the tree has no effect"
    for n, devices in ((1, "cpu:3"), (3, "cpu:1"), (3, "cpu:3"), (9, "cpu:1")):
        same(one, run(n, devices, **job), "%d tasks x %s" % (n, devices))
    for n in (2, 5, 8):
        folder = workdir()
        path = job_in(folder, lane_tree_job(elastic={"min_world": n, "rejoin_seconds": 0.1}))
        tasks = start(path, n, ports=free_ports(9))
        expect_codes(tasks, [0] * n)
        same((one[0], []), (read_tree(os.path.join(folder, "run", "checkpoints")), []), "%d of 9 tasks" % n)


@test
def weights_lanes_of_a_tree_are_equal_after_deaths_and_a_return():
    folder = workdir()
    path = job_in(folder, lane_tree_job(elastic={"min_world": 5, "rejoin_seconds": 0}))
    ports = free_ports(9)
    slowly = {"TRAINERD_FAULT": "train.forward=delay:40@1+"}
    debug = ("--log-level", "debug")
    tasks = start(path, 9, args=debug, env=slowly, ports=ports)
    for lost, step in ((4, 6), (0, 12)):
        tasks[8].until_step(step)
        tasks[lost].signal(signal.SIGKILL)
        tasks[lost].p.wait()
    tasks[8].until_step(16)
    tasks[4] = Task(path, tf_config(ports, 4), ("--devices", "cpu:1", *debug), slowly, "worker 4")
    expect_codes(tasks, [-9] + [0] * 8)
    views = [r["tasks"] for r in tasks[8].events("view")]
    assert 8 in views and 7 in views, views
    same((run(1, "cpu:1", **lane_tree_job())[0], []), (read_tree(os.path.join(folder, "run", "checkpoints")), []), "after deaths")


@test
def job_with_another_lane_tree_continues_from_the_checkpoint_with_a_warning():
    folder = workdir()
    expect_codes([Task(job_in(folder, short(9, steps=20, global_batch_size=45)), args=("--devices", "cpu:1"))], [0])
    job = short(9, lane_tree=[3, 3], global_batch_size=45)
    task = Task(job_in(folder, job), args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    assert min(task.steps()) == 21, task.log()
    assert any("job file that differed in what decides the result" in r["message"] for r in task.events("warning")), task.log()


@test
def weights_clipping_and_adamw_are_equal_on_one_and_two_tasks():
    job = short(4, clip_norm=0.5)
    job["optimizer"] = {"type": "adamw", "momentum": None, "learning_rate": 0.001, "weight_decay": 0.01,
                        "scaling": None}
    same(run(1, "cpu:1", **job), run(2, "cpu:2", **job), "2 x 2 replicas")


@test
def weights_random_ops_and_running_averages_are_equal_on_any_number_of_tasks():
    one = run(1, "cpu:1", **short(4), model=RANDOM_NET)
    assert len({loss for _, loss in one[1]}) > 20, "the network does not train"
    same(one, run(2, "cpu:1", **short(4), model=RANDOM_NET), "2 tasks x 2 lanes")
    same(one, run(4, "cpu:1", **short(4), model=RANDOM_NET), "4 tasks x 1 lane")
    same(one, run(2, "cpu:2", **short(4), model=RANDOM_NET), "2 tasks x 2 replicas")


@test
def weights_random_ops_and_running_averages_are_equal_after_a_kill():
    job = {"train": {"epochs": 2, "lanes": 2, "log_every_steps": 1, "deadline_seconds": 8},
           "checkpoint": {"every_steps": 7, "max_to_keep": 1}, "model": RANDOM_NET}
    whole = run(2, "cpu:1", **job)
    folder = workdir()
    path = job_in(folder, job)
    tasks = start(path, 2, env=held_back(10, 24))
    tasks[0].until_step(17)
    tasks[1].signal(signal.SIGKILL)
    expect_codes(tasks, [138, -9])
    expect_codes(start(path, 2), [0, 0])
    same((whole[0], []), (read_tree(os.path.join(folder, "run", "checkpoints")), []), "after a kill")


@test
def weights_over_tcp_equal_those_over_shared_memory():
    job = dict(short(4), communication={"shared_memory": False})
    same(run(1, "cpu:1", **short(4)), run(4, "cpu:1", **job), "4 tasks over TCP")


@test
def weights_stopped_in_an_epoch_and_resumed_equal_an_undisturbed_run():
    job = {"train": {"epochs": 3, "lanes": 4, "log_every_steps": 1}, "checkpoint": {"every_steps": 0, "max_to_keep": 1}}
    whole = run(2, "cpu:1", **job)
    folder = workdir()
    path = digits_job(folder, **job)
    losses = {}
    for stop_after in (5, 29):
        tasks = start(path, 2, env=held_back(20, 30))
        tasks[0].until_step(stop_after)
        for t in tasks:
            t.signal(signal.SIGTERM)
        expect_codes(tasks, [143, 143])
        losses.update((k, r["loss"]) for k, r in tasks[0].steps().items())
    tasks = start(path, 1 + 1)
    expect_codes(tasks, [0, 0])
    assert min(tasks[0].steps()) > 5, "did not resume"
    losses.update((k, r["loss"]) for k, r in tasks[0].steps().items())
    same(whole, (read_tree(os.path.join(folder, "run", "checkpoints")), sorted(losses.items())), "resumed")


@test
def weights_killed_at_any_moment_and_restarted_equal_an_undisturbed_run():
    job = {"train": {"epochs": 2, "lanes": 2, "log_every_steps": 1, "deadline_seconds": 8},
           "checkpoint": {"every_steps": 7, "max_to_keep": 1}}
    whole = run(2, "cpu:1", **job)
    folder = workdir()
    path = digits_job(folder, **job)
    tasks = start(path, 2, env=held_back(10, 24))
    tasks[0].until_step(17)
    tasks[1].signal(signal.SIGKILL)
    expect_codes(tasks, [138, -9])
    saved = newest(folder)
    tasks = start(path, 2)
    expect_codes(tasks, [0, 0])
    assert 7 <= saved and min(tasks[0].steps()) == saved + 1, "resumed at %d, saved %d" % (min(tasks[0].steps()), saved)
    same((whole[0], []), (read_tree(os.path.join(folder, "run", "checkpoints")), []), "after a kill")


@test
def complete_job_started_again_exits_with_0():
    folder = workdir()
    path = digits_job(folder, **short(2))
    expect_codes(start(path, 2), [0, 0])
    before = read_tree(os.path.join(folder, "run", "checkpoints"))
    os.remove(os.path.join(folder, "run", "digits.onnx"))
    again = start(path, 2)
    expect_codes(again, [0, 0])
    assert not again[0].steps()
    assert read_tree(os.path.join(folder, "run", "checkpoints")) == before
    assert os.path.exists(os.path.join(folder, "run", "digits.onnx"))


@test
def weights_resumed_on_another_number_of_tasks_equal_an_undisturbed_run():
    job = {"train": {"epochs": 2, "lanes": 4, "log_every_steps": 1}, "checkpoint": {"every_steps": 9, "max_to_keep": 1}}
    whole = run(4, "cpu:1", **job)
    folder = workdir()
    path = digits_job(folder, **job)
    task = Task(path, args=("--devices", "cpu:1"), env=held_back(10, 20))
    task.until_step(12)
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    expect_codes(start(path, 2, "cpu:2"), [0, 0])
    same((whole[0], []), (read_tree(os.path.join(folder, "run", "checkpoints")), []), "1 task, then 2 x 2")


if __name__ == "__main__":
    main()
