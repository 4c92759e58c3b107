#!/usr/bin/python3
"""Storage that fails on the task that writes: another task writes within seconds; if no task can, all end with 138
and the reason. Nothing is repeated without a pause."""
import os
import re
import shutil
import signal
import sys

from kit import Task, digits_job, enter_namespaces, expect_codes, free_ports, main, need_namespaces, start, test, tf_config, workdir

SLOWLY = "train.forward=delay:3@1+"
GOES_ON = {"min_world": 1, "rejoin_seconds": 0}


def job_in(folder, steps=60, every=None, deadline=12, **changes):
    return digits_job(folder, **{"train": {"epochs": None, "steps": steps, "lanes": 4, "log_every_steps": 1,
                                           "eval_every_epochs": None, "deadline_seconds": deadline},
                                 "data": {"eval": None}, "model": {"metrics": None}, "export": None,
                                 "checkpoint": {"every_steps": every, "every_seconds": None, "max_to_keep": 2}, **changes})


def run(job, n, faults, prefix=()):
    """Starts n tasks; `faults` are the faults of the chief, `prefix` is the command that starts it."""
    ports = free_ports(n)
    return [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i, prefix=prefix if i == 0 else (),
                 env={"TRAINERD_FAULT": ",".join([SLOWLY] + (faults if i == 0 else []))}) for i in range(n)]


def checkpoints(folder):
    path = os.path.join(folder, "run", "checkpoints")
    return sorted(int(name[5:]) for name in os.listdir(path) if name.startswith("step-")) if os.path.isdir(path) else []


def left_overs(folder):
    path = os.path.join(folder, "run", "checkpoints")
    return [name for name in os.listdir(path) if not name.startswith("step-")]


@test
def storage_last_checkpoint_fails_on_the_chief_another_task_writes_it():
    for fault in ("ckpt.write", "ckpt.sync", "ckpt.mkdir", "ckpt.rename"):
        folder = workdir()
        tasks = run(job_in(folder), 2, [fault + "@1+"])
        expect_codes(tasks, [0, 0])
        assert checkpoints(folder) == [60], (fault, checkpoints(folder))
        assert tasks[1].events("checkpoint"), fault


@test
def storage_last_checkpoint_hangs_on_the_chief_another_task_writes_it():
    folder = workdir()
    tasks = run(job_in(folder), 2, ["ckpt.write=hang"])
    tasks[1].until(lambda t: t.events("checkpoint"))
    expect_codes(tasks, [0, 0])
    assert checkpoints(folder) == [60]


@test
def storage_checkpoints_fail_on_the_chief_others_write_on_time():
    folder = workdir()
    tasks = run(job_in(folder, steps=3000, every=50), 2, ["ckpt.sync@1+"])
    tasks[1].until(lambda t: len(t.events("checkpoint")) >= 2)
    assert tasks[0].p.poll() is None
    for t in tasks:
        t.kill()


@test
def storage_last_checkpoint_fails_on_all_tasks_end_with_138_and_reason():
    folder = workdir()
    ports = free_ports(2)
    job = job_in(folder)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i,
                  env={"TRAINERD_FAULT": SLOWLY + ",ckpt.write@1+"}) for i in range(2)]
    expect_codes(tasks, [138, 138])
    for t in tasks:
        assert "Input/output error" in t.final_message() and "step 60" in t.final_message(), t.final_message()
    assert len(left_overs(folder)) <= 4, left_overs(folder)
    expect_codes(run(job, 2, []), [0, 0])


@test
def storage_checkpoint_fails_verification_only_that_task_ends_with_138():
    for steps, every in ((60, None), (400, 50)):
        folder = workdir()
        tasks = run(job_in(folder, steps=steps, every=every, elastic=GOES_ON), 2, ["ckpt.verify@1+"])
        expect_codes(tasks, [138, 0])
        assert "checksum" in tasks[0].final_message(), tasks[0].final_message()
        assert checkpoints(folder)[-1] == steps, checkpoints(folder)
    alone = workdir()
    task = Task(job_in(alone), args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "ckpt.verify@1+"})
    assert task.wait() == 138, task.log()


@test
def lease_not_renewable_another_task_becomes_leader():
    folder = workdir()
    tasks = run(job_in(folder, steps=4000, every=100, elastic=GOES_ON), 4, ["lease.beat@4+", "lease.create@2+"])
    tasks[1].until_step(5)
    tasks[3].kill()
    tasks[1].until(lambda t: len(t.events("checkpoint")) >= 2)
    assert tasks[0].p.poll() is None and tasks[1].p.poll() is None and tasks[2].p.poll() is None
    assert len(left_overs(folder)) < 20, left_overs(folder)
    for t in tasks:
        t.kill()


@test
def lease_not_acquirable_is_retried_with_pauses_and_ends_with_138():
    folder = workdir()
    ports = free_ports(2)
    job = job_in(folder, steps=4000, elastic=GOES_ON)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i,
                  env={"TRAINERD_FAULT": SLOWLY + ",lease.sync@1+"}) for i in range(2)]
    tasks[0].until_step(5)
    tasks[1].kill()
    assert tasks[0].wait() == 138, tasks[0].log()
    assert "Input/output error" in tasks[0].final_message(), tasks[0].final_message()
    assert len(left_overs(folder)) < 20, left_overs(folder)


@test
def storage_hangs_and_a_task_dies_the_others_step():
    tasks = run(job_in(workdir(), steps=100000, elastic=GOES_ON), 2, ["ckpt.check=hang@2+"])  # the first is at the start
    tasks[0].until_step(5)
    tasks[1].kill()
    tasks[0].until(lambda t: any(v["tasks"] == 1 for v in t.events("view")))
    tasks[0].until_step(max(tasks[0].steps()) + 50)
    tasks[0].kill()


@test
def storage_directory_removed_during_the_job_is_created_again():
    folder = workdir()
    tasks = run(job_in(folder, steps=400, every=50), 2, [])
    tasks[0].until(lambda t: t.events("checkpoint"))
    shutil.rmtree(os.path.join(folder, "run"), ignore_errors=True)
    expect_codes(tasks, [0, 0])
    assert checkpoints(folder)[-1] == 400


def mounted(command):
    """Returns a prefix that starts a task in a new mount namespace after `command`."""
    need_namespaces()
    return ("unshare", "--mount", "sh", "-c", command + ' && exec "$@"', "sh")


@test
def storage_directory_read_only_on_the_chief_another_task_writes():
    folder = workdir()
    path = os.path.join(folder, "run", "checkpoints")
    os.makedirs(path)
    prefix = mounted("mount --bind %s %s && mount -o remount,ro,bind %s" % (path, path, path))
    tasks = run(job_in(folder, steps=600, every=50), 2, [], prefix)
    tasks[1].until(lambda t: t.events("checkpoint"))
    expect_codes(tasks, [0, 0])
    assert checkpoints(folder)[-1] == 600


@test
def storage_directory_full_on_the_chief_another_task_writes():
    folder = workdir()
    path = os.path.join(folder, "run", "checkpoints")
    os.makedirs(path)
    tasks = run(job_in(folder, deadline=4), 2, [], mounted("mount -t tmpfs -o size=16k none %s" % path))
    expect_codes(tasks, [138, 0])  # the chief has another folder, in which the last checkpoint is not
    assert checkpoints(folder) == [60]
    assert "the checkpoint of the last step is not in" in tasks[0].final_message(), tasks[0].log()
    assert any("No space left" in t.log() for t in tasks)


def refusing(*calls):
    """Returns a prefix that starts a task whose system calls fail, as in "link=EPERM"."""
    return (sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "refuse_calls.py"), *calls, "--")


@test
def outputs_that_cannot_be_written_end_a_task_before_its_first_step():
    export = {"onnx": "models/digits.onnx"}
    for call, changes, text in (
            ("mkdir=EACCES", {}, "/checkpoint/directory: this task cannot write to '.*run/checkpoints': create a folder.*: Permission denied"),
            ("rename=EPERM", {}, "rename a folder .*: Operation not permitted"),
            ("mkdir=EROFS", {"checkpoint": None, "export": export}, "/export/onnx: .*: Read-only file system; mount it for writing"),
            ("mkdir=EACCES", {"checkpoint": None, "summary": {"directory": "curves"}},
             "/summary/directory: this task cannot write to '.*/curves': create a folder.*: Permission denied")):
        task = Task(job_in(workdir(), **changes), args=("--devices", "cpu:1"), prefix=refusing(call))
        expect_codes([task], [2])
        assert re.search(text, task.final_message()) and not task.steps(), task.log()


@test
def outputs_that_an_evaluator_cannot_write_end_it_before_its_first_evaluation():
    for changes, text in (({}, "/evaluator/directory: this task cannot write to '.*': create a folder.*: Permission denied"),
                          ({"evaluator": {"directory": "/dev/null"}}, "/evaluator/directory: .*/dev/null.*: Not a directory")):
        job = digits_job(workdir(), summary=None, **changes)
        task = Task(job, tf_config(free_ports(1), 0, kind="evaluator"), prefix=refusing("mkdir=EACCES") if not changes else ())
        expect_codes([task], [2])
        assert re.search(text, task.final_message()), task.log()


@test
def outputs_that_no_task_can_write_end_the_group_before_its_first_step():
    for changes in ({}, {"elastic": GOES_ON}):
        tasks = start(job_in(workdir(), **changes), 2, prefix=refusing("mkdir=EACCES"))
        expect_codes(tasks, [2, 2])
        for t in tasks:
            assert re.search(r"no task can write the results of the job: worker 0 .*: /checkpoint/directory.*: Permission denied",
                             t.final_message()) and not t.steps(), t.log()


@test
def outputs_that_the_chief_cannot_write_are_written_by_another_task():
    folder = workdir()
    tasks = run(job_in(folder), 2, [], refusing("mkdir=EACCES"))
    expect_codes(tasks, [0, 0])
    assert checkpoints(folder)[-1] == 60 and tasks[1].events("checkpoint"), tasks[1].log()
    assert any("Permission denied" in r["message"] for r in tasks[0].events("storage")), tasks[0].log()


@test
def output_that_fails_for_a_while_is_a_warning():
    task = Task(job_in(workdir()), args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "fs.probe@1"})
    expect_codes([task], [0])
    assert any("Input/output error; training begins" in r["message"] for r in task.events("storage")), task.log()


@test
def file_system_without_inodes_is_named_before_the_first_step():
    folder = workdir()
    path = os.path.join(folder, "run", "checkpoints")
    os.makedirs(path)
    task = Task(job_in(folder, deadline=2, steps=21), args=("--devices", "cpu:1"), prefix=mounted("mount -t tmpfs -o nr_inodes=1 none %s" % path))
    expect_codes([task], [138])
    assert any("has no inode left: remove files; training begins" in r["message"] for r in task.events("storage")), task.log()
    assert any("no inode left" in r["message"] for r in task.events("checkpoint_failed")), task.log()


@test
def output_that_hangs_is_a_warning():
    task = Task(job_in(workdir(), steps=20), args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "fs.probe=hang"})
    expect_codes([task], [0])
    assert any("does not answer within 3000 ms" in r["message"] for r in task.events("storage")), task.log()


@test
def file_system_without_hard_links_is_used_by_one_job():
    folder = workdir()
    job = job_in(folder, steps=100000)
    first = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": SLOWLY}, prefix=refusing("link=EPERM"))
    first.until_step(5)
    second = Task(job, args=("--devices", "cpu:1"), prefix=refusing("link=EPERM"))
    expect_codes([second], [2])
    assert "a task without a cluster, process %d on" % first.p.pid in second.final_message(), second.log()
    first.signal(signal.SIGTERM)
    expect_codes([first], [143])
    elastic = workdir()
    tasks = start(job_in(elastic, elastic=GOES_ON), 2, prefix=refusing("link=ENOSYS"))
    expect_codes(tasks, [0, 0])
    assert checkpoints(elastic) == [60]


if __name__ == "__main__":
    enter_namespaces()
    main()
