#!/usr/bin/env python3
"""An evaluator follows the checkpoints of a group and does not disturb it."""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import urllib.request

import clicks
import numpy
import onnx
import onnx.numpy_helper
import onnxruntime
from kit import (GUARD, Gate, ROOT, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, free_ports, main, read_tree, start, test,
                 tf_config, wait_until, with_faults, workdir)

sys.path.insert(0, os.path.join(ROOT, "test", "data"))
import tfrecord  # noqa: E402


def job(folder, **changes):
    changes = {"train": {"epochs": 4}, "checkpoint": {"every_steps": 10, "max_to_keep": 3}, **changes}
    return digits_job(folder, **changes)


def evaluator(path, ports, index=0, args=(), env=None, tasks=None):
    cluster = tf_config(ports, index, kind="evaluator", extra=tasks)
    return Task(path, cluster, ("--devices", "cpu:1", *args), env, "evaluator %d" % index)


def evaluations(*tasks):
    """{step: record}; each step may be evaluated once."""
    out = {}
    for t in tasks:
        for r in t.events("eval"):
            assert r["step"] not in out, "step %d is evaluated twice" % r["step"]
            out[r["step"]] = r
    return out


def tensors(path):
    with open(path, "rb") as f:
        blob = f.read()
    (n,) = struct.unpack_from("<Q", blob)
    header = json.loads(blob[8:8 + n])
    return {k: numpy.frombuffer(blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]], "<f4").reshape(v["shape"])
            for k, v in header.items() if k != "__metadata__"}


def loss_and_accuracy(folder, checkpoint):
    """Computes the figures of a checkpoint with ONNX Runtime, numpy and other readers of all files."""
    model = onnx.load(os.path.join(folder, "digits_cnn.onnx"))
    weights = tensors(os.path.join(checkpoint, "model.safetensors"))
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            node.attribute.remove(next(a for a in node.attribute if a.name == "training_mode"))
    for t in model.graph.initializer:
        if t.name in weights:
            t.CopyFrom(onnx.numpy_helper.from_array(weights[t.name], t.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    samples = tfrecord.read(os.path.join(folder, "digits-test-0.tfrecord"))
    x = numpy.stack([numpy.frombuffer(s["image"][1][0], numpy.uint8) for s in samples]).reshape(-1, 1, 8, 8) * numpy.float32(0.0625)
    labels = numpy.array([s["label"][1][0] for s in samples])
    logits = []
    for row in x:  # the batch of the model may be fixed
        logits.append(session.run(None, {"x": row[None].astype(numpy.float32)})[0][0])
    logits = numpy.array(logits, numpy.float64)
    top = logits.max(1, keepdims=True)
    losses = numpy.log(numpy.exp(logits - top).sum(1)) + top[:, 0] - logits[numpy.arange(len(labels)), labels]
    return losses.mean(), (logits.argmax(1) == labels).mean()


def read_curves(folder):
    out = subprocess.run([sys.executable, os.path.join(ROOT, "test", "metrics", "read_events.py"), folder], check=True,
                         capture_output=True, text=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def points(folder, tag):
    """[(step, value)] as TensorBoard shows them: SessionLog START discards the points from its step on."""
    out = []
    for e in read_curves(folder):
        if "session_log" in e:
            out = [p for p in out if p[0] < e["step"]]
        if tag in e.get("summary", {}):
            out.append((e["step"], e["summary"][tag]))
    return out


@test
def evaluator_that_is_killed_and_restarted_does_not_disturb_the_group():
    undisturbed, folder = workdir(), workdir()
    expect_codes(start(job(undisturbed), 2), [0, 0])
    path, ports = job(folder, detection={"stuck_factor": 0}), free_ports(2)
    run = os.path.join(folder, "run")
    first = evaluator(path, ports)  # before the job: the directory does not exist
    first.until(lambda t: t.events("evaluator"))
    middle, end = Gate(), Gate()  # of the 88 steps; a checkpoint every 10 steps
    group = start(path, 2, ports=ports, env=with_faults(None, middle.fault("train.forward", 32), end.fault("train.forward", 62)))
    wait_until(lambda: os.path.exists(os.path.join(run, "best", "evaluator.json")))  # the point is in the curves before
    first.kill()
    second = evaluator(path, ports)
    middle.open()
    second.until(lambda t: t.events("eval"))
    second.signal(signal.SIGTERM)
    assert second.wait() == 143
    third = evaluator(path, ports)
    third.until(lambda t: t.events("evaluator"))
    end.open()
    expect_codes(group, [0, 0])
    assert third.wait() == 0, third.log()
    assert "the job is complete" in third.final_message(), third.final_message()

    for name in ("checkpoints", "digits.onnx"):
        assert read_tree(os.path.join(run, name)) == read_tree(os.path.join(undisturbed, "run", name)), name
    for t in group:
        assert not [r for r in t.records if "evaluator" in json.dumps(r)], "the group noticed the evaluator"

    state = json.load(open(os.path.join(run, "best", "evaluator.json")))
    logged = {}
    for t in (first, second, third):
        logged.update({r["step"]: r for r in t.events("eval")})
    drawn = points(os.path.join(run, "logs", "eval"), "eval/loss")
    assert [s for s, _ in drawn] == sorted(logged), (drawn, sorted(logged))
    assert state["evaluated_step"] == max(logged), (state, sorted(logged))
    fourth = evaluator(path, ports)  # the job is complete and its last checkpoint is evaluated
    assert fourth.wait() == 0 and not fourth.events("eval"), fourth.log()


@test
def best_checkpoint_is_that_of_an_independent_computation():
    folder = workdir()
    path, ports = job(folder, checkpoint={"every_steps": 10, "max_to_keep": 0}, optimizer={"learning_rate": 0.4, "schedule": {"type": "constant", "warmup_steps": 0}},
                      evaluator={"metric": "accuracy"}), free_ports(1)
    expect_codes([Task(path, args=("--devices", "cpu:1"))], [0])
    checkpoints = os.path.join(folder, "run", "checkpoints")
    expected = {int(n[5:]): loss_and_accuracy(folder, os.path.join(checkpoints, n)) for n in os.listdir(checkpoints)
                if n.startswith("step-")}
    assert len(expected) >= 8, expected
    t = evaluator(path, ports)
    u = evaluator(path, ports, 1)  # another one, which has a folder of its own
    expect_codes([t, u], [0, 0])
    for task, best in ((t, "best"), (u, "best-1")):
        got = evaluations(task)
        assert sorted(got) == sorted(expected), (sorted(got), sorted(expected))
        for step, (loss, accuracy) in expected.items():
            assert abs(got[step]["loss"] - loss) < 1e-4 * max(1, loss) and got[step]["accuracy"] == accuracy, (step, got[step], loss, accuracy)
        highest = max(a for _, a in expected.values())
        step = min(s for s, (_, a) in expected.items() if a == highest)
        kept = os.path.join(folder, "run", best)
        assert sorted(os.listdir(kept)) == [".lock", "evaluator.json", "step-%08d" % step], (os.listdir(kept), step)
        state = json.load(open(os.path.join(kept, "evaluator.json")))
        assert state["best"] == {"step": step, "value": highest}, state
        name = "step-%08d" % step
        assert read_tree(os.path.join(kept, name)) == read_tree(os.path.join(checkpoints, name))
        shutil.rmtree(os.path.join(checkpoints, name))  # the kept one has its own names of the bytes
        assert subprocess.run([TRAINERCTL, "verify", kept], capture_output=True).returncode == 0
        shutil.copytree(os.path.join(kept, name), os.path.join(checkpoints, name))
    for r in (t.events("best")[-1], u.events("best")[-1]):
        assert r["metric"] == "accuracy" and r["value"] == highest, r


@test
def listed_evaluator_is_not_waited_for_and_evaluates_to_the_bits_of_the_group():
    folder = workdir()
    steps_per_epoch = 1438 // 64
    path, ports = job(folder, checkpoint={"every_steps": steps_per_epoch, "max_to_keep": 0}), free_ports(3)
    listed = {"evaluator": ["127.0.0.1:%d" % ports.pop()]}
    group = [Task(path, tf_config(ports, i, extra=listed), ("--devices", "cpu:1"), name="worker %d" % i) for i in range(2)]
    expect_codes(group, [0, 0])
    t = evaluator(path, ports, tasks=listed)
    assert t.wait() == 0, t.log()
    mine, theirs = evaluations(t), {r["step"]: r for g in group for r in g.events("eval")}
    assert len(theirs) == 4 and set(theirs) <= set(mine), (sorted(theirs), sorted(mine))
    for step, r in theirs.items():
        assert (mine[step]["loss"], mine[step]["accuracy"]) == (r["loss"], r["accuracy"]), (mine[step], r)


@test
def damaged_checkpoint_is_skipped_with_a_message():
    folder = workdir()
    path, ports = job(folder, checkpoint={"every_steps": 20, "max_to_keep": 0}), free_ports(1)
    expect_codes([Task(path, args=("--devices", "cpu:1"))], [0])
    checkpoints = os.path.join(folder, "run", "checkpoints")
    names = sorted(n for n in os.listdir(checkpoints) if n.startswith("step-"))
    with open(os.path.join(checkpoints, names[1], "model.safetensors"), "r+b") as f:
        f.seek(-5, os.SEEK_END)
        byte = f.read(1)
        f.seek(-5, os.SEEK_END)
        f.write(bytes([byte[0] ^ 1]))
    os.unlink(os.path.join(checkpoints, names[2], "manifest.json"))
    t = evaluator(path, ports)
    assert t.wait() == 0, t.log()
    damaged = t.events("damaged")
    assert [r["step"] for r in damaged] == [int(n[5:]) for n in names[1:3]], damaged
    assert "model.safetensors" in damaged[0]["message"] and "manifest.json" in damaged[1]["message"], damaged
    assert sorted(evaluations(t)) == [int(n[5:]) for n in names if n not in names[1:3]], t.log()


@test
def evaluator_that_is_slower_than_the_job_continues_with_the_newest():
    folder = workdir()
    path, ports = job(folder, checkpoint={"every_steps": 4, "max_to_keep": 2}, evaluator={"keep_best": False}), free_ports(1)
    t = evaluator(path, ports, env={"TRAINERD_FAULT": "train.evaluate=delay:60@1+"})
    trained = Task(path, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "train.forward=delay:15@1+"})
    expect_codes([trained, t], [0, 0])
    assert t.events("behind"), t.log()
    steps = [r["step"] for r in t.events("eval")]
    assert steps == sorted(set(steps)) and steps[-1] == 88, steps
    assert sorted(os.listdir(os.path.join(folder, "run", "best"))) == [".lock", "evaluator.json"]


@test
def another_run_in_the_same_directory_is_evaluated_from_its_first_checkpoint():
    folder = workdir()
    path, ports = job(folder), free_ports(1)
    expect_codes([Task(path, args=("--devices", "cpu:1"))], [0])
    t = evaluator(path, ports)
    assert t.wait() == 0, t.log()
    path = job(folder, optimizer={"learning_rate": 0.02})
    expect_codes([Task(path, args=("--devices", "cpu:1", "--restart"))], [0])
    u = evaluator(path, ports)
    assert u.wait() == 0, u.log()
    assert "another run" in "\n".join(r["message"] for r in u.events("evaluator")), u.log()
    assert sorted(evaluations(u)) == sorted(evaluations(t)), u.log()


@test
def status_of_an_evaluator_has_its_last_evaluation_and_lanes():
    folder = workdir()
    path, ports, (http,) = job(folder, detection={"stuck_factor": 0}), free_ports(1), free_ports(1)
    group = start(path, 1, env={"TRAINERD_FAULT": "train.forward=hang@32"}, ports=ports)
    t = evaluator(path, ports, args=("--metrics", "127.0.0.1:%d" % http))

    def status():
        with urllib.request.urlopen("http://127.0.0.1:%d/api/v1/status" % http, timeout=GUARD) as reply:
            return json.loads(reply.read())
    t.until(lambda t: t.events("eval"))
    told = {r["step"] for r in t.events("eval")}
    s = status()
    assert s["evaluation"]["step"] >= min(told) and s["evaluation"]["loss"] > 0, s
    assert s["lanes"] > 0 and s["global_batch"] > 0 and s["state"] == "evaluator", s
    for task in (t, *group):
        task.kill()


@test
def evaluator_that_is_stopped_as_its_evaluation_ends_leaves_with_143():
    """The stop arrives when the outcome of the evaluation is decided, so the evaluation is complete in spite of it."""
    folder, gate = workdir(), Gate()
    path, ports = job(folder), free_ports(1)
    expect_codes([Task(path, args=("--devices", "cpu:1"))], [0])
    reached = os.path.join(folder, "reached")
    t = evaluator(path, ports, env=with_faults(None, "train.ended=touch:" + reached, gate.fault("train.ended")))
    t.until(lambda t: os.path.exists(reached))
    t.signal(signal.SIGTERM)
    t.until(lambda t: t.events("signal"))
    gate.open()
    assert t.wait() == 143, t.log()


@test
def evaluator_waits_for_the_first_checkpoint_with_metrics_and_leaves_with_143():
    folder = workdir()
    (port,) = free_ports(1)
    cluster = tf_config([2222, 2222], 3, hosts=["10.255.255.1", "10.255.255.2"], kind="evaluator")
    t = Task(job(folder), cluster, ("--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % port), {"TRAINERD_TOKEN": ""}, "evaluator 3")
    t.until(lambda t: t.events("evaluator"))  # neither a token nor a connection is needed
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as reply:
        text = reply.read().decode()
    for name in ("trainerd_evaluated_step", "trainerd_best_step", "trainerd_best_value"):  # absent until known
        assert not any(line.startswith(name) for line in text.splitlines()), text
    with urllib.request.urlopen("http://127.0.0.1:%d/status" % port, timeout=GUARD) as reply:
        assert json.loads(reply.read())["phase"] == "wait for a checkpoint"
    t.signal(signal.SIGHUP)
    t.until(lambda t: t.events("reload"))
    t.signal(signal.SIGTERM)
    assert t.wait() == 143, t.log()
    assert os.listdir(os.path.join(folder, "run")) == ["best-3"], os.listdir(os.path.join(folder, "run"))


@test
def second_process_of_an_evaluator_ends_with_138():
    folder = workdir()
    path, ports = job(folder, train={"epochs": 4, "deadline_seconds": 2}), free_ports(1)
    first = evaluator(path, ports)
    first.until(lambda t: t.events("evaluator"))
    second = evaluator(path, ports)
    assert second.wait() == 138 and "another process of this evaluator" in second.final_message(), second.log()
    other = evaluator(path, ports, 1)
    other.until(lambda t: t.events("evaluator"))
    first.kill()
    third = evaluator(path, ports)
    third.until(lambda t: t.events("evaluator"))


@test
def check_prints_what_an_evaluator_does():
    folder = workdir()
    path = job(folder, evaluator={"metric": "accuracy", "directory": "kept"})
    env = {**os.environ, "TF_CONFIG": json.dumps(tf_config(free_ports(2), 1, kind="evaluator"))}
    p = subprocess.run([TRAINERD, "--check", "--job", path, "--devices", "cpu:1"], env=env, capture_output=True, text=True)
    assert p.returncode == 0, p.stderr
    plan = json.loads(p.stdout)
    assert plan["rank"] is None and plan["evaluator"] == {
        "follows": folder + "/run/checkpoints", "directory": folder + "/kept-1", "curves": folder + "/run/logs/eval-1",
        "metric": "accuracy", "mode": "max", "keeps_best": True}, plan["evaluator"]
    assert not os.path.exists(os.path.join(folder, "run"))


@test
def storage_that_fails_ends_with_138_after_retries():
    folder = workdir()
    path, ports = job(folder, train={"epochs": 4, "deadline_seconds": 2}), free_ports(1)
    expect_codes([Task(path, args=("--devices", "cpu:1"))], [0])
    t = evaluator(path, ports, env={"TRAINERD_FAULT": "ckpt.read=fail@1+"})
    assert t.wait() == 138, t.log()
    assert len(t.events("storage")) >= 2, t.log()
    u = evaluator(path, ports)
    assert u.wait() == 0, u.log()


@test
def evaluator_needs_checkpoints_and_data():
    folder = workdir()
    for changes, place in (({"checkpoint": None}, "/checkpoint/directory"),
                           ({"data": {"eval": None}, "model": {"metrics": []}, "train": {"eval_every_epochs": 0}}, "/data/eval")):
        t = evaluator(digits_job(folder, **changes), free_ports(1))
        assert t.wait() == 2 and place in t.log(), t.log()
    t = evaluator(digits_job(folder, evaluator={"metric": "auc"}), free_ports(1))
    assert t.wait() == 2 and "/evaluator/metric" in t.log() and "/model/metrics" in t.log(), t.log()
    t = evaluator(digits_job(folder, evaluator={"directory": "run/checkpoints"}), free_ports(1))
    assert t.wait() == 2 and "/evaluator/directory" in t.log(), t.log()


@test
def area_of_labels_of_one_class_is_not_defined_and_a_warning():
    source = clicks.make_data(os.path.join(workdir(), "data"))
    labels = numpy.load(os.path.join(source, "eval-click.npy"))
    numpy.save(os.path.join(source, "eval-click.npy"), numpy.zeros_like(labels))
    task = Task(clicks.job_file(workdir(), source, train={"epochs": None, "steps": 2}, export=None), args=("--devices", "cpu:1"))
    assert task.wait() == 0, task.log()
    assert "auc is not defined: the evaluation data have labels of one class only" in task.log() and "-nan" not in task.log(), task.log()


main()
