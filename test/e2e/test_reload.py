#!/usr/bin/python3
"""SIGHUP to a running job: keys that may change are applied, any other change is refused as a whole, and the weights stay
equal."""
# san: yes
import json
import os
import signal
import subprocess

from kit import GUARD, TRAINERCTL, Task, checkpoint_names, digits_job, expect_codes, main, merge, read_tree, start, test, workdir

SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:3@1+"}


def change(path, **changes):
    with open(path) as f:
        job = merge(json.load(f), changes)
    with open(path + ".new", "w") as f:
        json.dump(job, f)
    os.rename(path + ".new", path)


def hang_up(task, event, n=1):
    """Sends SIGHUP and returns the n records that follow."""
    before = len(task.events(event))
    task.signal(signal.SIGHUP)
    task.until(lambda t: len(t.events(event)) >= before + n)
    return task.events(event)[before:]


def pointers(records):
    return {r["key"]: (json.loads(r["from"]), json.loads(r["to"])) for r in records}


@test
def reload_every_live_key_applies_and_the_weights_stay_equal():
    quiet, loud = workdir(), workdir()
    short = {"train": {"epochs": 6, "lanes": 2, "log_every_steps": 50}, "summary": None,
             "checkpoint": {"every_steps": 1000, "every_seconds": 0, "max_to_keep": 1}}
    expect_codes([Task(digits_job(quiet, **short), args=("--devices", "cpu:2"))], [0])

    path = digits_job(loud, **short)
    task = Task(path, args=("--devices", "cpu:2"), env=SLOWLY)
    task.until_step(1)
    change(path, train={"log_every_steps": 1}, checkpoint={"every_steps": 5, "max_to_keep": 0},
           summary={"directory": "curves"}, log={"level": "debug"})
    changed = pointers(hang_up(task, "reload", 5))
    assert changed == {"/train/log_every_steps": (50, 1), "/checkpoint/every_steps": (1000, 5),
                       "/checkpoint/max_to_keep": (1, 0), "/log/level": ("info", "debug"),
                       "/summary/directory": (None, os.path.join(loud, "curves"))}, changed
    expect_codes([task], [0])
    steps = sorted(task.steps())
    first = steps[1]  # after step 1
    assert steps[1:] == list(range(first, steps[-1] + 1)) and first < 100, steps[:5]
    assert any(r["level"].lower() == "debug" for r in task.records)
    said = [r for r in task.events("step") if r["step"] > first + 1]
    assert all(r["gradient_norm"] is not None for r in said)
    saved = [r["step"] for r in task.events("checkpoint")]
    # a checkpoint that is due while the writer is busy is delayed
    assert len(saved) > 5 and sum(s % 5 == 0 for s in saved) >= 3, saved
    kept = checkpoint_names(os.path.join(loud, "run", "checkpoints"))
    assert len(kept) == len(saved), (kept, saved)
    assert [n for n in os.listdir(os.path.join(loud, "curves")) if n.startswith("events.")]
    last = "step-%08d" % saved[-1]
    trees = [read_tree(os.path.join(d, "run", "checkpoints", last)) for d in (quiet, loud)]
    assert trees[0] == trees[1] and trees[0]


@test
def reload_invalid_or_forbidden_change_is_refused_with_its_place():
    folder = workdir()
    path = digits_job(folder, train={"epochs": 1000, "log_every_steps": 1000}, checkpoint={"every_steps": 0})
    task = Task(path, args=("--devices", "cpu:1"), env=SLOWLY)
    task.until_step(1)
    with open(path) as f:
        good = f.read()
    rows = [
        ({"train": {"log_every_steps": 1}, "optimizer": {"learning_rate": 0.1}},
         "/optimizer/learning_rate changed from 0.05 to 0.1, which cannot change while the job runs"),
        ({"train": {"log_every_steps": 1}, "model": {"onnx": "other.onnx"}}, "/model/onnx changed from "),
        ({"train": {"log_every_steps": 1}, "checkpoint": {"directory": "other"}}, "/checkpoint/directory changed from "),
        ({"train": {"log_every_steps": 0}}, "/train/log_every_steps: expected an integer from 1"),
        ({"train": {"log_every_steps": 1, "logs": 1}}, "/train/logs: the key \"logs\" is not known"),
    ]
    for changes, words in rows:
        change(path, **changes)
        text = hang_up(task, "reload_refused")[0]
        assert words in text["message"] and "the job continues" in text["message"], text
        assert text["level"].lower() == "error" and path in text["message"], text
        with open(path, "w") as f:
            f.write(good)
    with open(path, "w") as f:
        f.write(good[:-5])
    assert "job.json:1:" in hang_up(task, "reload_refused")[0]["message"]
    os.remove(path)
    assert "No such file" in hang_up(task, "reload_refused")[0]["message"]
    assert len(task.steps()) == 1, sorted(task.steps())  # log_every_steps has not changed
    with open(path, "w") as f:
        f.write(good)
    assert "no key changed" in hang_up(task, "reload")[0]["message"]
    change(path, train={"log_every_steps": 1})
    hang_up(task, "reload")
    task.until(lambda t: len(t.steps()) > 3)
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])


@test
def reload_on_one_task_also_before_training_applies():
    folder = workdir()
    path = digits_job(folder, train={"epochs": 12, "lanes": 2, "log_every_steps": 1000, "deadline_seconds": 20},
                      checkpoint={"every_steps": 0})
    tasks = start(path, 2, env=SLOWLY)
    for t in tasks:
        t.until(lambda t: t.records)  # the task has read the job
    change(path, checkpoint={"every_steps": 10, "max_to_keep": 2})
    hang_up(tasks[0], "reload")  # as early as possible
    tasks[0].until_step(1)
    tasks[0].until(lambda t: t.events("checkpoint"))
    assert tasks[0].events("checkpoint")[0]["step"] % 10 == 0
    change(path, checkpoint={"every_steps": 7}, log={"level": "debug"})
    assert set(pointers(hang_up(tasks[1], "reload", 3))) == {"/checkpoint/every_steps", "/checkpoint/max_to_keep", "/log/level"}
    expect_codes(tasks, [0, 0])
    assert len(checkpoint_names(os.path.join(folder, "run", "checkpoints"))) == 2
    assert not any(r["level"].lower() == "debug" for r in tasks[0].records)


@test
def reload_log_level_flag_has_priority_over_the_job():
    folder = workdir()
    path = digits_job(folder, train={"epochs": 1000}, log={"level": "error"})
    task = Task(path, args=("--devices", "cpu:1", "--log-level", "info"))
    task.until_step(1)
    change(path, log={"level": "debug"})
    said = hang_up(task, "reload")[0]
    assert said["key"] == "/log/level" and "--log-level has priority" in said["message"], said
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    assert not any(r["level"].lower() == "debug" for r in task.records)
    task = Task(path, args=("--devices", "cpu:1"))
    task.until(lambda t: any(r["level"].lower() == "debug" for r in t.records))
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])


def ctl_reload(task):
    return subprocess.run([TRAINERCTL, "reload", "127.0.0.1:%d" % task.port], capture_output=True, text=True, timeout=GUARD)


@test
def reload_by_trainerctl_returns_the_changes_or_the_refusal():
    path = digits_job(workdir(), train={"epochs": 1000, "log_every_steps": 100}, log={"level": "info"})
    task = start(path, 1, args=("--log-level", "info"), env=SLOWLY)[0]
    task.until_step(1)
    p = ctl_reload(task)
    assert (p.returncode, p.stdout, p.stderr) == (0, "no key changed\n", ""), p
    change(path, train={"log_every_steps": 1}, log={"level": "debug"})
    p = ctl_reload(task)
    assert p.returncode == 0 and p.stdout.splitlines() == [
        "/train/log_every_steps: 100 -> 1",
        "/log/level: \"info\" -> \"debug\"; not applied: --log-level has priority"], p
    assert len(task.events("reload")) == 3, task.events("reload")  # the reply comes after the changes are applied
    change(path, optimizer={"learning_rate": 0.1}, checkpoint={"every_steps": 3})
    p = ctl_reload(task)
    assert p.returncode == 1 and p.stdout == "", p
    assert "/optimizer/learning_rate changed from 0.05 to 0.1, which cannot change while the job runs" in p.stderr, p.stderr
    os.remove(path)
    assert "No such file" in ctl_reload(task).stderr
    os.mkfifo(path)  # the reload does not end, but the task does
    waiting = subprocess.Popen([TRAINERCTL, "reload", "127.0.0.1:%d" % task.port], stderr=subprocess.PIPE, text=True)
    at = len(task.steps())
    task.until(lambda t: len(t.steps()) > at + 30)
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    text = waiting.communicate(timeout=GUARD)[1]
    assert waiting.returncode == 1 and text, text


@test
def reload_with_hung_storage_blocks_neither_training_nor_exit():
    path = digits_job(workdir(), train={"epochs": 1000})
    task = Task(path, args=("--devices", "cpu:1"), env=SLOWLY)
    task.until_step(1)
    os.remove(path)
    os.mkfifo(path)  # a FIFO without a writer
    task.signal(signal.SIGHUP)
    task.signal(signal.SIGHUP)
    at = len(task.steps())
    task.until(lambda t: len(t.steps()) > at + 5)
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    assert not task.events("reload") and not task.events("reload_refused")


if __name__ == "__main__":
    main()
