#!/usr/bin/python3
"""Damaged files, full disks and invalid configuration are reported with place and remedy, and no data is lost."""
# san: yes
import glob
import json
import os
import signal
import subprocess

from kit import (GUARD, TRAINERCTL, TRAINERD, Task, checkpoint_names, digits_job, enter_namespaces, expect_codes, main,
                 need_namespaces, read_tree, start, test, workdir)


def trained(**changes):
    folder = workdir()
    job = digits_job(folder, **{"train": {"epochs": None, "steps": 40, "lanes": 2, "log_every_steps": 1},
                                "checkpoint": {"every_steps": 10, "max_to_keep": 0}, **changes})
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "train.forward=delay:4@1+"})
    expect_codes([task], [0])
    ckpts = os.path.join(folder, "run", "checkpoints")
    # A checkpoint that is due while another is written is delayed and replaces the next one; the last one always exists.
    written = [r["step"] for r in task.events("checkpoint")]
    assert written[-1] == 40 and len(written) >= 2, written
    keep = changes.get("checkpoint", {}).get("max_to_keep", 0)
    assert checkpoint_names(ckpts) == ["step-%08d" % k for k in written[-keep:]], (written, checkpoint_names(ckpts))
    return folder, job, ckpts


def more(job, steps):
    with open(job) as f:
        text = json.load(f)
    text["train"]["steps"] = steps
    with open(job, "w") as f:
        json.dump(text, f)


def verify(folder):
    return subprocess.run([TRAINERCTL, "verify", folder], capture_output=True, text=True, timeout=GUARD)


def damage(path, how):
    with open(path, "rb") as f:
        data = bytearray(f.read())
    if how == "flip":
        data[len(data) // 2] ^= 1
    elif how == "cut":
        data = data[:len(data) - 7]
    elif how == "head":
        data[3] ^= 0x40
    elif how == "empty":
        data = b""
    elif how == "gone":
        os.remove(path)
        return
    with open(path, "wb") as f:
        f.write(data)


@test
def damaged_checkpoint_is_skipped_with_a_reason_and_the_previous_one_used():
    folder, job, ckpts = trained()
    whole = read_tree(os.path.join(ckpts, "step-00000040"))
    for name in ("model.safetensors", "optimizer.safetensors", "manifest.json"):
        for how in ("flip", "cut", "head", "empty", "gone"):
            there = checkpoint_names(ckpts)
            before = int(there[-2].removeprefix("step-"))
            damage(os.path.join(ckpts, "step-00000040", name), how)
            out = verify(ckpts)
            assert out.returncode == 1 and out.stdout.count("ok   ") == len(there) - 1 and out.stdout.count("BAD  ") == 1, (
                name, how, out.stdout)
            bad = [line for line in out.stdout.splitlines() if line.startswith("BAD")][0]
            assert "step-00000040" in bad and name in bad, bad
            task = Task(job, args=("--devices", "cpu:1"))
            expect_codes([task], [0])
            assert min(task.steps()) == before + 1, (name, how)
            warning = [r["message"] for r in task.events("warning")]
            assert any("step-00000040" in w and name in w for w in warning), (name, how, warning)
            assert read_tree(os.path.join(ckpts, "step-00000040")) == whole, (name, how)
    assert verify(ckpts).returncode == 0


@test
def kill_while_a_checkpoint_is_written_leaves_no_partial_checkpoint():
    for point in ("ckpt.mkdir", "ckpt.write", "ckpt.sync", "ckpt.rename", "ckpt.verify", "ckpt.remove"):
        folder = workdir()
        job = digits_job(folder, train={"epochs": None, "steps": 30, "lanes": 1},
                         checkpoint={"every_steps": 10, "max_to_keep": 1})
        task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": point + "=kill@2,train.forward=delay:5@1+"})
        task.wait()
        ckpts = os.path.join(folder, "run", "checkpoints")
        if glob.glob(os.path.join(ckpts, "step-*")):
            assert verify(ckpts).returncode == 0, (point, verify(ckpts).stdout)
        again = Task(job, args=("--devices", "cpu:1"))
        expect_codes([again], [0])
        assert verify(ckpts).returncode == 0
        left = checkpoint_names(ckpts)
        assert left[-1] == "step-00000030" and all(n.startswith("step-") for n in left), (point, left)


@test
def full_disk_is_reported_and_retried_and_training_continues():
    need_namespaces()
    folder = workdir()
    mount = os.path.join(folder, "full")
    os.mkdir(mount)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mount], check=True)
    try:
        ballast = os.path.join(mount, "ballast")
        with open(ballast, "wb") as f:
            f.write(b"x" * 900000)
        job = digits_job(folder, train={"epochs": None, "steps": 600, "lanes": 1, "log_every_steps": 1,
                                          "eval_every_epochs": None},
                         checkpoint={"directory": os.path.join(mount, "ckpt"), "every_steps": 50, "max_to_keep": 1},
                         data={"eval": None}, model={"metrics": None})
        task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "train.forward=delay:5@1+"})
        task.until(lambda t: t.events("checkpoint_failed"))
        failed = task.events("checkpoint_failed")[0]
        assert "No space left" in failed["message"] and "again" in failed["message"], failed
        at = max(task.steps())
        task.until_step(at + 20)
        os.remove(ballast)
        task.until(lambda t: t.events("checkpoint"))
        expect_codes([task], [0])
        assert verify(os.path.join(mount, "ckpt")).returncode == 0
    finally:
        for t in range(50):
            if subprocess.run(["umount", mount], capture_output=True).returncode == 0:
                break


@test
def checkpoints_above_max_to_keep_are_removed():
    for n in (1, 2):
        _, _, ckpts = trained(checkpoint={"every_steps": 5, "max_to_keep": n})
        assert len(checkpoint_names(ckpts)) == n and verify(ckpts).returncode == 0


@test
def corrupted_record_is_named_with_file_and_offset_and_ends_its_task():
    folder = workdir()
    # The second task continues without the first one until it reads a damaged record itself.
    job = digits_job(folder, train={"epochs": 1, "lanes": 2}, elastic={"min_world": 1, "rejoin_seconds": 0})
    path = os.path.join(folder, "digits-train-1.tfrecord")
    with open(path, "rb") as f:
        data = bytearray(f.read())
    os.remove(path)
    length = int.from_bytes(data[:8], "little")
    at = 0
    for i in range(100):  # of 719, so that any order soon has a damaged one
        at = 7 * i * (length + 16)
        data[at + 40] ^= 1
    with open(path, "wb") as f:
        f.write(data)
    tasks = start(job, 2)
    for t in tasks:
        t.wait()
    codes = [t.p.returncode for t in tasks]
    assert codes == [138, 138], codes
    task = Task(job, args=("--devices", "cpu:1"))
    assert task.wait() == 2, task.log()
    text = "\n".join(t.log() for t in tasks)
    assert "digits-train-1.tfrecord" in text and "offset" in text, text


@test
def resume_with_another_network_or_other_data_is_refused():
    folder, job, ckpts = trained()
    more(job, 60)
    with open(job) as f:
        text = json.load(f)
    text["train"]["seed"] = 7
    with open(job, "w") as f:
        json.dump(text, f)
    task = Task(job, args=("--devices", "cpu:1"))
    assert task.wait() == 2
    assert "seed 1" in task.log() and "7" in task.log(), task.log()
    text["train"]["seed"] = 1
    with open(job, "w") as f:
        json.dump(text, f)
    path = os.path.join(folder, "digits-train-1.tfrecord")
    with open(path, "rb") as f:
        data = bytearray(f.read())
    os.remove(path)
    data[len(data) // 2] ^= 1
    with open(path, "wb") as f:
        f.write(data)
    task = Task(job, args=("--devices", "cpu:1"))
    assert task.wait() == 2 and "trained on data with other content in '%s' between offsets" % path in task.log(), task.log()
    os.remove(path)
    task = Task(job, args=("--devices", "cpu:1"))
    assert task.wait() == 2 and "other record files" in task.log(), task.log()


def mlp(folder, hidden):
    subprocess.run([TRAINERCTL, "model", "mlp", "--set", "inputs=64", "--set", "hidden=%d" % hidden, "--set", "layers=1",
                    "-o", os.path.join(folder, "mlp.onnx")], check=True, stdout=subprocess.DEVNULL)


def trained_mlp(steps, fault=""):
    folder = workdir()
    mlp(folder, 16)
    job = digits_job(folder, model={"onnx": "mlp.onnx"}, data={"features": {"image": {"shape": [64]}}},
                     train={"epochs": None, "steps": steps, "lanes": 2}, checkpoint={"every_steps": 10, "max_to_keep": 2})
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": fault})
    task.wait()
    return folder, job, os.path.join(folder, "run", "checkpoints")


@test
def model_changed_during_a_run_is_refused_and_its_checkpoints_stay():
    folder, job, ckpts = trained_mlp(40, "train.forward=kill@35,train.forward=delay:4@1+")
    before = read_tree(ckpts)
    assert before
    mlp(folder, 24)
    for tasks in ([Task(job, args=("--devices", "cpu:1"))], start(job, 2)):
        expect_codes(tasks, [2] * len(tasks))
        assert all("another model" in t.final_message() and "checkpoint.directory" in t.final_message() for t in tasks), tasks[0].log()
        assert read_tree(ckpts) == before
    mlp(folder, 16)
    expect_codes([Task(job, args=("--devices", "cpu:1"))], [0])


@test
def model_changed_after_a_complete_run_is_refused_and_trained_by_restart():
    folder, job, ckpts = trained_mlp(20)
    before = read_tree(ckpts)
    mlp(folder, 24)
    for tasks in ([Task(job, args=("--devices", "cpu:1"))], start(job, 2)):
        expect_codes(tasks, [2] * len(tasks))
        assert all("another model" in t.final_message() and "restart" in t.final_message() for t in tasks), tasks[0].log()
    assert read_tree(ckpts) == before
    task = Task(job, args=("--devices", "cpu:1", "--restart"))
    expect_codes([task], [0])
    assert task.events("restart") and read_tree(ckpts + ".1") == before, task.log()


@test
def resume_all_checkpoints_damaged_starts_at_step_1_only_if_allowed():
    folder, job, ckpts = trained()
    more(job, 60)
    for name in checkpoint_names(ckpts):
        damage(os.path.join(ckpts, name, "model.safetensors"), "flip")
    before = read_tree(ckpts)
    for tasks in ([Task(job, args=("--devices", "cpu:1"))], start(job, 2)):
        expect_codes(tasks, [2] * len(tasks))
        for t in tasks:
            assert all(w in t.final_message() for w in ("restart_from_scratch", "step-00000040", "checksum")), t.final_message()
    assert read_tree(ckpts) == before
    with open(job) as f:
        text = json.load(f)
    text["checkpoint"]["restart_from_scratch"] = True
    with open(job, "w") as f:
        json.dump(text, f)
    task = Task(job, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    assert min(task.steps()) == 1 and any("restart_from_scratch" in r["message"] for r in task.events("warning")), task.log()


def data_job(folder):
    """Writes a job with copies of the data, which are read from the disk in every epoch and may be changed."""
    job = digits_job(folder, train={"epochs": None, "steps": 400, "lanes": 2, "log_every_steps": 1, "eval_every_epochs": None},
                     data={"cache": "none", "eval": None}, model={"metrics": None}, elastic={"min_world": 1, "rejoin_seconds": 0},
                     checkpoint={"every_steps": 50})
    for path in glob.glob(os.path.join(folder, "*.tfrecord")):
        with open(path, "rb") as f:
            data = f.read()
        os.remove(path)
        with open(path, "wb") as f:
            f.write(data)
    return job


@test
def data_file_with_new_time_stamp_is_read_and_logged_once():
    folder = workdir()
    job = data_job(folder)
    tasks = start(job, 2, env={"TRAINERD_FAULT": "train.forward=delay:3@1+"})
    tasks[0].until_step(20)
    for path in glob.glob(os.path.join(folder, "*.tfrecord")):
        os.utime(path, (1, 1))
    expect_codes(tasks, [0, 0])
    for t in tasks:
        told = [r["message"] for r in t.records if "another modification time" in r.get("message", "")]
        assert len(told) == len(set(told)) and told, told


@test
def data_file_with_new_content_ends_the_task_and_the_next_start_continues():
    folder = workdir()
    job = data_job(folder)
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "train.forward=delay:3@1+"})
    task.until_step(20)
    path = os.path.join(folder, "digits-train-1.tfrecord")
    with open(path, "rb+") as f:  # exchange records of equal size
        data = f.read()
        size = 16 + int.from_bytes(data[:8], "little")
        if int.from_bytes(data[size:size + 8], "little") + 16 == size:
            f.seek(0)
            f.write(data[size:2 * size] + data[:size])
    assert task.wait() == 138, task.log()
    assert "digits-train-1.tfrecord" in task.final_message() and "restart" in task.final_message(), task.final_message()
    expect_codes([Task(job, args=("--devices", "cpu:1"))], [0])


@test
def check_command_prints_the_plan_and_reports_missing_files():
    folder = workdir()
    job = digits_job(folder)
    out = subprocess.run([TRAINERD, "--job", job, "--check", "--devices", "cpu:2"], capture_output=True, text=True)
    plan = json.loads(out.stdout)
    assert out.returncode == 0, out.stderr
    assert plan["lanes"]["count"] == 4 and plan["replicas"] == 2 and plan["plan"]["records"] == 1438, plan
    assert plan["job"]["data"]["prefetch"] == 2 and plan["job"]["checkpoint"]["max_to_keep"] == 5, plan
    assert not os.path.exists(os.path.join(folder, "run"))
    os.remove(os.path.join(folder, "digits_cnn.onnx"))
    out = subprocess.run([TRAINERD, "--job", job, "--check"], capture_output=True, text=True)
    assert out.returncode == 2 and "digits_cnn.onnx" in out.stderr and "problem" in json.loads(out.stdout), out
    out = subprocess.run([TRAINERD, "--check", "--devices", "cpu:1"], capture_output=True, text=True, env={
        **os.environ, "TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:2", "c:3"]}, "task": {"type": "worker", "index": 1}}'})
    plan = json.loads(out.stdout)
    assert out.returncode == 0 and plan["rank"] == 2 and plan["world"] == 3 and not plan["is_chief"], out
    out = subprocess.run([TRAINERD, "--check"], capture_output=True, text=True, env={
        **os.environ, "TF_CONFIG": '{"cluster": {"worker": ["a:1"]},\n "task": {"type": "Worker", "index": 0}}'})
    assert out.returncode == 2 and "/task/type" in out.stderr and ":2:" in out.stderr and "worker" in out.stderr, out


@test
def job_below_a_folder_with_the_characters_of_patterns_trains_and_continues():
    folder = os.path.join(workdir(), "a[1]?b*\\{feature}")
    os.mkdir(folder)
    for steps in (22, 24):
        job = digits_job(folder, train={"epochs": None, "steps": steps, "lanes": 1})
        expect_codes([Task(job, args=("--devices", "cpu:1"))], [0])
        assert "step-%08d" % steps in checkpoint_names(os.path.join(folder, "run", "checkpoints"))
    # the resolved plan is a job whose patterns name the same files
    p = subprocess.run([TRAINERD, "--check", "--job", job], capture_output=True, text=True, timeout=GUARD)
    with open(os.path.join(workdir(), "resolved.json"), "w") as f:
        json.dump(json.loads(p.stdout)["job"], f)
    q = subprocess.run([TRAINERD, "--check", "--job", f.name], capture_output=True, text=True, timeout=GUARD)
    assert q.returncode == 0 and json.loads(q.stdout)["plan"] == json.loads(p.stdout)["plan"], q.stderr


@test
def devices_auto_use_as_many_cores_as_the_job_has_lanes():
    job = digits_job(workdir(), train={"lanes": 1})
    out = subprocess.run([TRAINERD, "--job", job, "--check"], capture_output=True, text=True)
    plan = json.loads(out.stdout)
    assert out.returncode == 0 and len(plan["devices"]) == 1 and "auto" in plan["devices_from"], out
    out = subprocess.run([TRAINERD, "--job", job, "--check", "--devices", "cpu:2"], capture_output=True, text=True)
    assert out.returncode == 2 and "/train/lanes" in out.stderr, out


@test
def devices_that_do_not_exist_are_refused():
    job = digits_job(workdir())
    for spec, word in (("cuda", "cuda"), ("cuda:0,1", "cuda"), ("cpu:0", "cpu"), ("tpu", "auto"), ("cpu:x", "cpu")):
        out = subprocess.run([TRAINERD, "--job", job, "--check", "--devices", spec], capture_output=True, text=True)
        assert out.returncode == 2 and word in out.stderr and spec in out.stderr, (spec, out)


@test
def sigterm_while_waiting_or_loading_ends_the_task_at_once():
    job = digits_job(workdir())
    task = Task(job, {"cluster": {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}, "task": {"type": "worker", "index": 1}},
                ("--devices", "cpu:1"))
    task.until(lambda t: t.events("plan"))
    task.signal(signal.SIGTERM)
    assert task.wait() in (143, 138), task.log()


if __name__ == "__main__":
    enter_namespaces()
    main()
