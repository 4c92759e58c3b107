#!/usr/bin/python3
"""Tasks join, wait, are refused and are lost; every task logs the reason."""
# san: yes
import json
import os
import re
import signal
import socket
import subprocess
import sys

from kit import (GUARD, Gate, ROOT, TRAINERCTL, Task, checkpoint_names, digits_job, expect_codes, finish, free_ports, have_joined,
                 main, merge, start, test, tf_config, until_listening, wait_until, with_faults, workdir)

LONG = {"train": {"epochs": 10000, "lanes": 12, "global_batch_size": 96, "log_every_steps": 1}}
SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:5@1+"}  # a step takes at least 5 ms


def long_job(**changes):
    return digits_job(workdir(), **{**LONG, **changes})


def said(task, *words):
    text = "\n".join(r.get("message", "") for r in task.records)
    for w in words:
        assert w in text, "%s does not say '%s':\n%s" % (task.name, w, task.log())


def ctl(*args, env=None):
    return subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD,
                          env={**os.environ, **(env or {})})


def sentences(task):
    return [r["message"] for r in task.events("group")]


def expect_message(task, *words):
    """Waits for a message about the group that contains all of these words."""
    task.until(lambda t: any(all(w in m for w in words) for m in sentences(t)))


def ended_waiting_for(tasks, *words):
    """Checks that all tasks ended with 138 at the deadline, and with these words."""
    assert finish(tasks) == [138] * len(tasks), [t.log() for t in tasks]
    for t in tasks:
        for word in ("no step for ", *words):
            assert word in t.final_message(), "%s: no '%s' in %s" % (t.name, word, t.final_message())


@test
def waiting_task_names_the_missing_tasks_and_the_reason():
    ports = free_ports(2)
    for me, other in ((0, 1), (1, 0)):
        task = Task(long_job(), tf_config(ports, me), ("--devices", "cpu:1"))
        expect_message(task, "waiting", "worker %d (127.0.0.1:%d)" % (other, ports[other]), "refused")
        task.kill()


@test
def waiting_task_at_the_deadline_ends_with_138():
    ports = free_ports(2)
    job = long_job(train={**LONG["train"], "deadline_seconds": 2})
    tasks = [Task(job, tf_config(ports, 1), ("--devices", "cpu:1"), name="worker 1")]
    ended_waiting_for(tasks, "worker 0 (127.0.0.1:%d)" % ports[0], "train.deadline_seconds")


@test
def worker_killed_others_wait_and_name_it_until_the_deadline():
    tasks = start(long_job(train={**LONG["train"], "deadline_seconds": 2.5}), 4, env=SLOWLY)
    tasks[0].until_step(5)
    tasks[2].signal(signal.SIGKILL)
    expect_message(tasks[0], "worker 2 (127.0.0.1:%d)" % tasks[2].port, "was lost: its connection closed")
    ended_waiting_for([tasks[i] for i in (0, 1, 3)], "worker 2 (127.0.0.1:%d)" % tasks[2].port)


@test
def chief_killed_others_wait_and_name_it_until_the_deadline():
    tasks = start(long_job(train={**LONG["train"], "deadline_seconds": 2.5}), 3, env=SLOWLY)
    tasks[0].until_step(5)
    tasks[0].signal(signal.SIGKILL)
    ended_waiting_for(tasks[1:], "worker 0 (127.0.0.1:%d)" % tasks[0].port)


@test
def worker_killed_during_backward_and_all_reduce_is_named():
    folder = workdir()
    subprocess.run([TRAINERCTL, "model", "mlp", "--set", "inputs=64", "--set", "hidden=704", "--set", "layers=2",
                    "-o", os.path.join(folder, "mlp.onnx")], check=True, stdout=subprocess.DEVNULL)
    job = digits_job(folder, model={"onnx": "mlp.onnx"}, data={"features": {"image": {"shape": [64]}}},
                     train={"epochs": 1000, "log_every_steps": 1, "deadline_seconds": 2.5},
                     communication={"shared_memory": False})
    ports = free_ports(2)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i,
                  env={"TRAINERD_FAULT": "train.bucket=kill@32"} if i == 1 else None) for i in range(2)]
    tasks[1].wait()
    assert tasks[1].p.returncode == -signal.SIGKILL
    ended_waiting_for(tasks[:1], "worker 1 (127.0.0.1:%d)" % ports[1])
    said(tasks[0], "while backward computes, in 3 buckets")
    assert tasks[0].steps().keys() >= {5, 9}, sorted(tasks[0].steps())


@test
def worker_suspended_is_lost_by_its_silence_and_rejoins():
    tasks = start(long_job(), 3, env=SLOWLY)
    tasks[0].until_step(5)
    tasks[1].signal(signal.SIGSTOP)
    for t in (tasks[0], tasks[2]):
        expect_message(t, "worker 1 (127.0.0.1:%d), step " % tasks[1].port, "was lost: silent for ")
    held = max(tasks[0].steps())
    tasks[1].signal(signal.SIGCONT)
    tasks[0].until_step(held + 5)


@test
def task_error_ends_only_that_task_and_waiting_tasks_name_it():
    job = long_job(data={"cache": "none"}, train={**LONG["train"], "deadline_seconds": 2.5})
    ports = free_ports(2)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i,
                  env=SLOWLY if i == 0 else {"TRAINERD_FAULT": "train.forward@20"}) for i in range(2)]
    expect_codes(tasks[1:], [138])
    assert "train.forward" in tasks[1].final_message(), tasks[1].final_message()
    ended_waiting_for(tasks[:1], "worker 1 (127.0.0.1:%d)" % ports[1], "train.forward")


@test
def input_error_ends_all_tasks_with_2():
    features = {"image": {"dtype": "uint8", "shape": [1, 8, 8], "scale": 0.0625}, "label": {"dtype": "int64", "shape": [2]}}
    tasks = start(long_job(data={"features": features}), 3)
    expect_codes(tasks, [2] * 3)


@test
def damaged_record_on_one_host_ends_only_that_task_with_138():
    folder = workdir()
    elastic = {"min_world": 1, "rejoin_seconds": 0}
    job = digits_job(folder, **{**LONG, "elastic": elastic, "train": {**LONG["train"], "epochs": None, "steps": 200}})
    other = workdir()
    for name in os.listdir(folder):
        os.symlink(os.path.realpath(os.path.join(folder, name)), os.path.join(other, name))
    path = os.path.join(other, "digits-train-1.tfrecord")
    with open(path, "rb") as f:
        data = bytearray(f.read())
    os.remove(path)
    length = int.from_bytes(data[:8], "little")
    for i in range(0, len(data) - 60, length + 16):  # damage every record, because the order is unknown
        data[i + 40] ^= 1
    with open(path, "wb") as f:
        f.write(data)
    damaged = os.path.join(other, "job.json")
    with open(job) as f:
        text = json.load(f)
    text["checkpoint"]["directory"] = os.path.join(folder, text["checkpoint"]["directory"])
    os.remove(damaged)
    for path in (job, damaged):
        with open(path, "w") as f:
            json.dump(text, f)
    ports = free_ports(2)
    gate = Gate()
    tasks = [Task(job, tf_config(ports, 0), ("--devices", "cpu:1"), with_faults(None, gate.fault("data.open")), "worker 0")]
    until_listening(ports[0])
    tasks.append(Task(damaged, tf_config(ports, 1), ("--devices", "cpu:1"), name="worker 1"))
    wait_until(lambda: tasks[1].p.poll() is not None or have_joined(ports[0]))
    gate.open()
    expect_codes(tasks, [0, 138])
    assert "digits-train-1.tfrecord" in tasks[1].final_message(), tasks[1].final_message()


@test
def task_with_another_job_is_refused_at_join_with_both_values():
    ports = free_ports(2)
    a, b = long_job(), long_job(train={**LONG["train"], "seed": 99})
    tasks = [Task(j, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i) for i, j in enumerate((a, b))]
    assert tasks[1].wait() == 2, tasks[1].log()
    said(tasks[1], "the job differs", "/train/seed: it has 99, the coordinator has 1")
    said(tasks[0], "the job differs", "/train/seed: it has 99, the coordinator has 1")


@test
def task_with_other_devices_or_another_cluster_is_refused():
    ports = free_ports(3)
    job = long_job()
    tasks = [Task(job, tf_config(ports[:2], i), ("--devices", "cpu:%d" % (i + 1)), name="worker %d" % i) for i in range(2)]
    assert tasks[1].wait() == 2, tasks[1].log()
    said(tasks[1], "device")
    tasks[0].kill()
    configs = (tf_config(ports[:2], 0), tf_config(ports[:2], 1, hosts=["127.0.0.1", "localhost"]))
    for first in (0, 1):  # in both orders of arrival
        tasks = [None, None]
        for i in (first, 1 - first):
            tasks[i] = Task(job, configs[i], ("--devices", "cpu:1"), name="worker %d" % i)
            if i == first:
                tasks[i].until(lambda t: t.events("group"))
        assert tasks[1].wait() == 2, tasks[1].log()
        said(tasks[1], "cluster", "localhost:%d" % ports[1], "127.0.0.1:%d" % ports[1])
        tasks[0].kill()


@test
def sigterm_on_one_task_saves_and_ends_that_task():
    folder = workdir()
    job = digits_job(folder, **merge(LONG, {"train": {"deadline_seconds": 2.5}}))
    tasks = start(job, 2, env=SLOWLY)
    tasks[0].until_step(7)
    tasks[1].signal(signal.SIGTERM)
    expect_codes(tasks[1:], [143])
    names = checkpoint_names(os.path.join(folder, "run", "checkpoints"))
    assert len(names) == 1 and ctl("verify", os.path.join(folder, "run", "checkpoints")).returncode == 0
    ended_waiting_for(tasks[:1], "worker 1 (127.0.0.1:%d)" % tasks[1].port)


def status_of(task):
    return json.loads(ctl("status", "--json", "127.0.0.1:%d" % task.port).stdout)


@test
def trainerctl_status_checkpoint_drain_and_stop_work():
    folder = workdir()
    job = digits_job(folder, **LONG, checkpoint={"every_steps": 0, "every_seconds": 0})
    tasks = start(job, 2, env=SLOWLY)
    tasks[0].until_step(5)
    chief, worker = ("127.0.0.1:%d" % t.port for t in tasks)
    wait_until(lambda: status_of(tasks[0])["step"] >= 4)  # the status follows the log with a delay
    status = status_of(tasks[0])
    assert status["state"] == "leading" and status["phase"] in ("train", "evaluate") and status["step"] >= 4, status
    assert [t["state"] for t in status["tasks"]] == ["active", "active"], status
    assert status["total_steps"] == 140000 and status["generation"] == 1, status
    before = max(tasks[0].steps())  # the status of the other task follows with its heartbeats
    wait_until(lambda: all(t["step"] >= before for t in status_of(tasks[0])["tasks"]), lambda: status_of(tasks[0]))
    for t in status_of(tasks[0])["tasks"]:
        assert t["phase"] != "" and t["step_held"] == t["step"], t
    text = ctl("status", worker).stdout
    assert "worker 1" in text and ("train for " in text or "evaluate for " in text), text
    saved = ctl("checkpoint", chief)
    assert saved.returncode == 0 and "step-" in saved.stdout, saved
    path = saved.stdout.split(": ", 1)[1].strip()
    assert ctl("verify", path).returncode == 0
    refused = ctl("checkpoint", worker)
    assert refused.returncode == 1 and "chief" in refused.stderr, refused
    assert ctl("stop", worker).returncode == 0
    expect_codes(tasks, [143, 143])
    tasks = start(job, 2, env=SLOWLY)
    tasks[0].until(lambda t: t.steps())
    # the step of the checkpoint or a later one, as soon as both have sent a heartbeat
    wait_until(lambda: all(t["step_held"] > 0 for t in status_of(tasks[0])["tasks"]))
    assert ctl("drain", "127.0.0.1:%d" % tasks[1].port).returncode == 0
    expect_codes(tasks[1:], [143])
    expect_message(tasks[0], "waiting", "worker 1 ", "it was asked to leave")
    wait_until(lambda: status_of(tasks[0])["phase_ms"] > 500)
    status = status_of(tasks[0])
    assert [t["state"] for t in status["tasks"]] == ["joined", "missing"], status
    assert status["tasks"][1]["last_error"] != "" and status["phase"] == "waiting", status


@test
def checkpoint_command_failure_returns_the_reason():
    tasks = start(long_job(checkpoint={"every_steps": 0, "every_seconds": 0}), 2,
                  env={"TRAINERD_FAULT": SLOWLY["TRAINERD_FAULT"] + ",ckpt.sync=fail@1+"})
    tasks[0].until_step(2)
    failed = ctl("checkpoint", "127.0.0.1:%d" % tasks[0].port)
    assert failed.returncode == 1, failed
    assert re.search(r"checkpoint of step \d+: .*Input/output error", failed.stderr), failed


@test
def grpc_python_client_finds_health_reflection_and_status():
    tasks = start(long_job(), 2, env=SLOWLY)
    tasks[0].until_step(2)
    for t in tasks:
        out = subprocess.run([sys.executable, os.path.join(ROOT, "test", "rdzv", "client.py"), "127.0.0.1:%d" % t.port],
                             capture_output=True, text=True, timeout=GUARD)
        assert out.returncode == 0, out.stdout + out.stderr


@test
def foreign_connections_on_the_ports_have_no_effect():
    ports = free_ports(2)
    job = digits_job(workdir(), train={"epochs": 2, "lanes": 2, "log_every_steps": 1})
    first = Task(job, tf_config(ports, 0), ("--devices", "cpu:1"), name="worker 0", env={"TRAINERD_FAULT": "train.forward=delay:5@1+"})
    first.until(lambda t: t.events("group"))  # it waits for the other task, and its ports are open
    listening = [int(line.split()[1].split(":")[1], 16) for line in open("/proc/%d/net/tcp" % first.p.pid)
                 if line.split()[3] == "0A"]
    socks = []
    for port in listening:
        for junk in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(300), b"\0" * 4096):
            try:
                s = socket.create_connection(("127.0.0.1", port), 1)
                s.sendall(junk)
                socks.append(s)
            except OSError:
                pass
    second = Task(job, tf_config(ports, 1), ("--devices", "cpu:1"), name="worker 1")
    expect_codes([first, second], [0, 0])
    for s in socks:
        s.close()


@test
def port_in_use_is_reported():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    task = Task(long_job(), tf_config([s.getsockname()[1]], 0), ("--devices", "cpu:1"))
    assert task.wait() == 138
    assert "%d" % s.getsockname()[1] in task.log() and "in use" in task.log().lower(), task.log()


if __name__ == "__main__":
    main()
