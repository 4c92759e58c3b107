#!/usr/bin/python3
"""A task that is started again after the job is complete logs that and exits, whether other tasks run or not."""
# san: yes
import datetime
import json
import os
import shutil
import signal
import subprocess

from kit import BUILD, GUARD, Task, digits_job, expect_codes, free_ports, main, merge, read_tree, start, test, tf_config, workdir

CTL = os.path.join(BUILD, "trainerctl")


def one(path, ports, index):
    """Starts one task of a group without the others."""
    return Task(path, tf_config(ports, index), ("--devices", "cpu:1", "--log-level", "debug"), None, "worker %d" % index)


def is_complete(path, ports, index):
    task = one(path, ports, index)
    expect_codes([task], [0])
    assert not task.events("group"), task.log()  # the task did not wait for the group
    return task.events("end")[0]["message"]


def has_work_to_do(path, ports, index):
    task = one(path, ports, index)
    task.until(lambda t: t.events("phase"))
    task.kill()
    assert not task.events("end")


def change(path, **changes):
    with open(path) as f:
        job = merge(json.load(f), changes)
    with open(path, "w") as f:
        json.dump(job, f)


def trained(n=2, **changes):
    """Completes a job of n tasks; returns folder, job file and ports."""
    folder = workdir()
    path = digits_job(folder, train={"epochs": 2, "lanes": n})
    change(path, **changes)
    ports = free_ports(n)
    expect_codes(start(path, n, ports=ports), [0] * n)
    return folder, path, ports


@test
def complete_job_single_task_started_exits_with_0_at_once():
    folder, path, ports = trained()
    for index in (1, 0):
        said = is_complete(path, ports, index)
        assert said.startswith("the job is complete: ") and "step-00000044" in said, said
        assert os.path.join(folder, "run", "digits.onnx") in said, said


@test
def complete_job_without_export_by_steps_or_alone_exits_with_0():
    _, path, ports = trained(export=None)
    is_complete(path, ports, 1)
    _, path, ports = trained(train={"epochs": None, "steps": 7}, optimizer={"schedule": None})
    is_complete(path, ports, 1)
    _, path, _ = trained(1)
    task = Task(path, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    assert "the job is complete: " in task.events("end")[0]["message"]


@test
def complete_job_without_exported_model_exports_it():
    folder, path, ports = trained()
    exported = os.path.join(folder, "run", "digits.onnx")
    with open(exported, "rb") as f:
        before = f.read()
    os.remove(exported)
    has_work_to_do(path, ports, 1)
    assert not os.path.exists(exported)
    expect_codes(start(path, 2, ports=ports), [0, 0])
    with open(exported, "rb") as f:
        assert f.read() == before


@test
def complete_other_job_or_earlier_step_continues_training():
    folder, path, ports = trained(checkpoint={"every_steps": 10, "max_to_keep": 0})
    checkpoints = os.path.join(folder, "run", "checkpoints")
    with open(path) as f:
        job = f.read()
    for changes in ({"train": {"epochs": 3}}, {"optimizer": {"learning_rate": 0.01}}, {"health": {"non_finite": "skip"}}):
        change(path, **changes)
        has_work_to_do(path, ports, 1)
        with open(path, "w") as f:
            f.write(job)
    is_complete(path, ports, 1)
    # the last checkpoint is damaged, and an earlier one is not of the last step
    last = os.path.join(checkpoints, "step-00000044")
    with open(os.path.join(last, "model.safetensors"), "ab") as f:
        f.write(b"x")
    has_work_to_do(path, ports, 1)
    with open(os.path.join(last, "model.safetensors"), "rb+") as f:
        f.truncate(os.path.getsize(f.name) - 1)
    is_complete(path, ports, 1)
    with open(os.path.join(last, "model.safetensors"), "rb+") as f:
        f.seek(-20, os.SEEK_END)
        kept = f.read(1)
        f.seek(-20, os.SEEK_END)
        f.write(bytes([kept[0] ^ 1]))
    has_work_to_do(path, ports, 1)
    with open(os.path.join(last, "model.safetensors"), "rb+") as f:
        f.seek(-20, os.SEEK_END)
        f.write(kept)
    is_complete(path, ports, 1)
    with open(os.path.join(last, "manifest.json"), "r+") as f:
        f.write("}")
    has_work_to_do(path, ports, 1)
    shutil.rmtree(last)
    has_work_to_do(path, ports, 1)
    shutil.rmtree(checkpoints)
    has_work_to_do(path, ports, 1)
    expect_codes(start(path, 2, ports=ports), [0, 0])
    is_complete(path, ports, 0)


def now_text():
    """The current time in the form of the log."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


@test
def task_suspended_past_the_end_of_the_job_trains_no_step_again():
    folder = workdir()
    path = digits_job(folder, train={"epochs": 2, "lanes": 2, "log_every_steps": 1})
    change(path, elastic={"min_world": 1, "rejoin_seconds": 0})
    tasks = start(path, 2, args=("--log-level", "debug"), env={"TRAINERD_FAULT": "train.forward=delay:20@1+"})
    tasks[0].until_step(5)
    tasks[1].signal(signal.SIGSTOP)
    expect_codes(tasks[:1], [0])
    resumed = now_text()
    tasks[1].signal(signal.SIGCONT)
    expect_codes(tasks[1:], [0])
    # Lines that the suspended process had not yet written have earlier times; it may still end the step that it was in.
    late = [k for k, r in tasks[1].steps().items() if r["time"] >= resumed]
    assert len(late) <= 1 and max(late, default=0) < 44, (resumed, late)
    assert "the job is complete" in tasks[1].events("end")[0]["message"], tasks[1].events("end")


@test
def sigterm_while_a_large_checkpoint_is_verified_ends_the_task():
    _, path, ports = trained()
    slow = {"TRAINERD_FAULT": "ckpt.verify=delay:1500@1+"}
    task = Task(path, tf_config(ports, 1), ("--devices", "cpu:1"), slow, "worker 1")
    task.until(lambda t: t.events("plan"))
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    assert "while the last checkpoint was verified" in task.events("end")[0]["message"], task.log()
    expect_codes([Task(path, tf_config(ports, 1), ("--devices", "cpu:1"), slow, "worker 1")], [0])


@test
def restart_complete_job_keeps_its_checkpoints_and_trains_again():
    folder, path, _ = trained(1)
    checkpoints = os.path.join(folder, "run", "checkpoints")
    before = read_tree(checkpoints)
    first = Task(path, args=("--devices", "cpu:1"))
    expect_codes([first], [0])
    assert "to train again, remove %s" % checkpoints in first.events("end")[0]["message"]
    again = Task(path, args=("--devices", "cpu:1", "--restart"))
    expect_codes([again], [0])
    assert len(again.steps()) > 0 and checkpoints + ".1" in again.events("restart")[0]["message"], again.log()
    assert read_tree(checkpoints + ".1") == before
    after = read_tree(checkpoints)
    same = [n for n in after if n.endswith(".safetensors")]
    assert same and all(after[n] == before[n] for n in same)
    expect_codes([Task(path, args=("--devices", "cpu:1", "--restart"))], [0])
    assert read_tree(checkpoints + ".2").keys() == after.keys() and read_tree(checkpoints + ".1") == before


@test
def restart_incomplete_run_continues_it():
    """A supervisor starts a task again with the same arguments; no progress may be lost."""
    folder, path, _ = trained(1, checkpoint={"every_steps": 10})
    checkpoints = os.path.join(folder, "run", "checkpoints")
    task = Task(path, args=("--devices", "cpu:1", "--restart"),
                env={"TRAINERD_FAULT": "train.update=exit@25,train.forward=delay:10@1+"})
    expect_codes([task], [138])
    newest = int(sorted(n for n in os.listdir(checkpoints) if n.startswith("step-"))[-1][5:])
    assert 10 <= newest <= 20, newest
    task = Task(path, args=("--devices", "cpu:1", "--restart"))
    expect_codes([task], [0])
    assert min(task.steps()) > newest and "continues from it" in task.events("restart")[0]["message"], task.log()
    assert not os.path.exists(checkpoints + ".2")


@test
def restart_changed_job_trains_it():
    folder, path, _ = trained(1)
    change(path, optimizer={"learning_rate": 0.01})
    task = Task(path, args=("--devices", "cpu:1", "--restart"))
    expect_codes([task], [0])
    assert min(task.steps()) == 1
    change(path, checkpoint=None)
    task = Task(path, args=("--devices", "cpu:1", "--restart"))
    expect_codes([task], [2])
    assert "/checkpoint/directory" in task.final_message()


@test
def restart_command_before_the_tasks_start_restarts_the_group():
    folder, path, ports = trained()
    task = Task(path, tf_config(ports, 1), ("--devices", "cpu:1", "--restart"), None, "worker 1")
    expect_codes([task], [2])
    assert "trainerctl restart JOB" in task.final_message(), task.log()
    said = subprocess.run([CTL, "restart", path], capture_output=True, text=True)
    assert said.returncode == 0 and "checkpoints.1" in said.stdout + said.stderr, said
    said = subprocess.run([CTL, "restart", path], capture_output=True, text=True)
    assert said.returncode == 0 and "has no checkpoint" in said.stdout + said.stderr, said
    tasks = start(path, 2, ports=ports)
    expect_codes(tasks, [0, 0])
    assert len(tasks[0].steps()) > 0
    env = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINERD_", "TF_CONFIG"))}
    local = subprocess.run([CTL, "local", "-n", "2", "--devices", "cpu:1", "--restart", "--log-format", "json", path],
                           capture_output=True, text=True, timeout=GUARD, env=env)
    assert local.returncode == 0 and '"event":"step"' in local.stdout + local.stderr, local
    assert os.path.isdir(os.path.join(folder, "run", "checkpoints.2"))


if __name__ == "__main__":
    main()
