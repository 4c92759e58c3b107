#!/usr/bin/python3
"""How tasks end: at the deadline they save what they hold, and after the last step every task has seen the last
checkpoint."""
import os

from kit import (Gate, Task, checkpoint_names, digits_job, expect_codes, finish, free_ports, main, merge, start, status, test, tf_config,
                 wait_until, workdir)

KILLED_AT = 10
# No checkpoint is due before the last step.
JOB = {"train": {"epochs": None, "steps": 24, "lanes": 2, "log_every_steps": 1, "deadline_seconds": 10, "eval_every_epochs": None},
       "optimizer": {"schedule": {"warmup_steps": 2}}, "data": {"eval": None}, "model": {"metrics": None}, "summary": None, "export": None,
       "checkpoint": {"directory": "run/checkpoints", "every_steps": 1000000, "every_seconds": 0, "max_to_keep": 3}}


def job(folder, **changes):
    return digits_job(folder, **merge(JOB, changes))


def lose(folder, victim, faults=None, **changes):
    """Trains with two tasks of which `victim` is killed in a step; returns the survivor, which has ended."""
    path = job(folder, **changes)
    faults = {victim: "train.commit=kill@%d" % KILLED_AT, 1 - victim: faults or ""}
    tasks = start(path, 2, faults=faults)
    codes = finish(tasks)
    assert codes[victim] == -9 and codes[1 - victim] == 138, (codes, tasks[1 - victim].log())
    return path, tasks[1 - victim]


def checkpoints(folder):
    return checkpoint_names(os.path.join(folder, "run", "checkpoints"))


def expect_saved(folder, victim):
    """The survivor saved the step that it held, and both tasks continue from there."""
    path, survivor = lose(folder, victim)
    assert "no step for" in survivor.final_message() and "not saved" not in survivor.final_message(), survivor.log()
    saved = checkpoints(folder)
    assert saved in (["step-%08d" % (KILLED_AT - 1)], ["step-%08d" % KILLED_AT]), (saved, survivor.log())
    tasks = start(path, 2)
    expect_codes(tasks, [0, 0])
    assert min(tasks[0].steps()) == int(saved[0][-8:]) + 1, tasks[0].log()


@test
def worker_is_away_beyond_the_deadline_the_chief_saves_the_held_step():
    expect_saved(workdir(), 1)


@test
def chief_is_away_beyond_the_deadline_the_worker_takes_the_lease_and_saves():
    expect_saved(workdir(), 0)


@test
def storage_fails_at_the_deadline_the_survivor_ends_and_names_the_step():
    folder = workdir()
    _, survivor = lose(folder, 1, "train.save_rest=fail@1+", train={"grace_seconds": 0.2})
    assert "was not saved" in survivor.final_message(), survivor.log()
    assert checkpoints(folder) == [], checkpoints(folder)


@test
def storage_hangs_at_the_deadline_the_survivor_ends_nevertheless():
    folder = workdir()
    _, survivor = lose(folder, 1, "ckpt.write=hang@1+", train={"grace_seconds": 0.2})
    assert "was not saved" in survivor.final_message(), survivor.log()


@test
def worker_sees_the_last_checkpoint_later_than_the_chief_both_end_with_0():
    gate = Gate()
    tasks = start(job(workdir(), train={"steps": 4}), 2, faults={1: "complete.find=fail@1-3,%s" % gate.fault("complete.find", 4)})

    def is_looking():
        assert tasks[1].p.poll() is None, tasks[1].log()
        s = status("127.0.0.1:%d" % tasks[1].port)
        return s is not None and s["phase"] == "wait for the last checkpoint"

    expect_codes(tasks[:1], [0])
    wait_until(is_looking, tasks[1].log)
    gate.open()
    expect_codes(tasks[1:], [0])


@test
def worker_without_the_folder_of_the_chief_does_not_end_with_0():
    folders, ports = (workdir(), workdir()), free_ports(2)
    tasks = [Task(job(folder, train={"steps": 4}), tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i)
             for i, folder in enumerate(folders)]
    expect_codes(tasks, [0, 138])
    assert checkpoints(folders[0]) == ["step-00000004"], checkpoints(folders[0])
    said = tasks[1].final_message()
    assert "the checkpoint of the last step is not in" in said and folders[1] in said, said


if __name__ == "__main__":
    main()
