#!/usr/bin/env python3
"""`trainerd --trace`: the file is a Chrome trace whose spans nest, name the nodes of the model and account for the step; the
rows of the table in the log sum to the step; a trace that cannot be written or kept is refused before training."""
# san: yes
import json
import os
import subprocess

import onnx

from kit import GUARD, ROOT, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, main, merge, start, test, workdir
from trace_file import EPSILON, check_profile, read, steps_of, tree

INSIDE = {"data", "forward", "backward", "lane sums", "reduction", "check", "update"}  # parts of a step


def ops_of_model():
    m = onnx.load(os.path.join(ROOT, "config", "digits", "digits_cnn.onnx"))
    return {n.name: n.op_type for n in m.graph.node}


def accounted(step, parts):
    """Returns the share of a step that named spans cover: in forward and backward the calls and lane sums, else the parts."""
    return sum(sum(c["dur"] for c, _ in calls) if p["name"] in ("forward", "backward") else p["dur"]
               for p, calls in parts) / step["dur"]


def check_row(spans, first, n, lanes):
    """Checks the steps of a row, their parts and the names of the calls; returns the mean duration of a step in us. A thread
    may be interrupted anywhere, so the step with the fewest interruptions shows which share has no span."""
    model = ops_of_model()
    steps, calls_share = steps_of(spans), {}
    assert n < 5 or max(accounted(*s) for s in steps) >= 0.8, [accounted(*s) for s in steps]
    assert [s["args"]["step"] for s, _ in steps] == list(range(first, first + n))
    for step, parts in steps:
        assert {p["name"] for p, _ in parts} == INSIDE
        assert all(p["args"]["step"] == step["args"]["step"] for p, _ in parts)
        assert sum(p["dur"] for p, _ in parts) <= step["dur"] + len(parts) * EPSILON
        for what in ("data", "forward", "backward"):
            assert [p["args"]["lane"] for p, _ in parts if p["name"] == what] == lanes
        for p, calls in parts:
            if p["name"] not in ("forward", "backward"):
                assert not calls
                continue
            calls = [c for c, below in calls if c["name"] != "lane sums" and not below]
            assert calls
            for c in calls:
                assert c["args"]["direction"] == p["name"]
                # a call has the name of a node of this op, or of the first node of a fused call
                assert c["cat"] == model.get(c["name"], c["cat"]) or c["cat"] not in model.values(), c
                assert c["name"] in model or c["cat"] not in model.values(), c
            convolutions = [name for name, op in model.items() if op == "Conv"]
            got = [c["name"] for c in calls if c["name"] in convolutions]
            assert got == (convolutions if p["name"] == "forward" else convolutions[::-1])
            calls_share[p["name"]] = max(calls_share.get(p["name"], 0), sum(c["dur"] for c in calls) / p["dur"])
    assert min(calls_share.values()) >= 0.5, calls_share  # only lane sums are between the calls
    return sum(s["dur"] for s, _ in steps) / n


@test
def trace_two_replicas_spans_nest_name_nodes_and_sum_to_the_step():
    d = workdir()
    job = digits_job(d, train={"epochs": 1})
    t = Task(job, args=("--devices", "cpu:2", "--trace", os.path.join(d, "t.json")))
    expect_codes([t], [0])
    name, rows = read(os.path.join(d, "t.json"))
    assert name == "local" and set(rows) == {"replica 0", "replica 1"}, rows.keys()
    for r in (0, 1):
        check_row(rows["replica %d" % r], 4, 5, [2 * r, 2 * r + 1])
    (profile,) = t.events("profile")
    check_profile(profile, list(rows.values()), 4, 5, INSIDE)


@test
def trace_evaluation_is_between_steps_and_checkpoint_in_the_comparing_step():
    d = workdir()
    job = digits_job(d, train={"epochs": None, "steps": 30, "eval_every_epochs": 1}, checkpoint={"every_steps": 20})
    t = Task(job, args=("--devices", "cpu:1",), env={"TRAINERD_TRACE": os.path.join(d, "t"),
                                                     "TRAINERD_TRACE_STEPS": "26"})
    expect_codes([t], [0])
    _, rows = read(os.path.join(d, "t"))
    top = tree(rows["replica 0"])
    steps = [(s["args"]["step"], below) for s, below in top if s["name"] == "step"]
    assert [k for k, _ in steps] == list(range(4, 30))
    assert [s["name"] for s, _ in top if s["name"] != "step"] == ["evaluation"]  # after the epoch's 22 steps
    assert [k for k, below in steps if any(p["name"] == "checkpoint" for p, _ in below)] == [21]  # the checkpoint of step 20
    check_profile(t.events("profile")[0], list(rows.values()), 4, 26, INSIDE)


@test
def trace_several_tasks_write_separate_files_and_tables():
    d = workdir()
    tasks = start(digits_job(d, train={"epochs": 1}), 2, args=("--trace", os.path.join(d, "a.b", "t.json"),
                                                               "--trace-steps", "3"))
    expect_codes(tasks, [2, 2])  # no such folder
    os.mkdir(os.path.join(d, "a.b"))
    tasks = start(digits_job(d, train={"epochs": 1}), 2, args=("--trace", os.path.join(d, "a.b", "t.json"),
                                                               "--trace-steps", "3"))
    expect_codes(tasks, [0, 0])
    assert sorted(os.listdir(os.path.join(d, "a.b"))) == ["t.worker-0.json", "t.worker-1.json"]
    pids = set()
    for i, t in enumerate(tasks):
        path = os.path.join(d, "a.b", "t.worker-%d.json" % i)
        name, rows = read(path)
        assert name == "worker %d" % i
        check_row(rows["replica 0"], 4, 3, [2 * i, 2 * i + 1])
        (profile,) = t.events("profile")
        assert profile["path"] == path
        check_profile(profile, [rows["replica 0"]], 4, 3, INSIDE)
        pids.add(rows["replica 0"][0]["pid"])
    assert len(pids) == 2


OVERLAPPED = {"model": {"onnx": "mlp.onnx"}, "data": {"features": {"image": {"shape": [64]}}},
              "train": {"epochs": None, "steps": 12, "log_every_steps": 1},
              "optimizer": {"schedule": None}, "communication": {"shared_memory": False}}


def train_overlapped():
    """Returns the folder, the tasks, and how many all-reduces began before the end of backward."""
    d = workdir()
    subprocess.run([TRAINERCTL, "model", "mlp", "--set", "inputs=64", "--set", "hidden=704", "--set", "layers=2",
                    "-o", os.path.join(d, "mlp.onnx")], check=True, stdout=subprocess.DEVNULL)
    tasks = start(digits_job(d, **OVERLAPPED), 2, args=("--trace", os.path.join(d, "t.json")))
    expect_codes(tasks, [0, 0])
    early = 0
    for i, t in enumerate(tasks):
        notes = [r["message"] for r in t.events("note")]
        assert any("while backward computes, in 3 buckets" in n for n in notes), notes
        _, rows = read(os.path.join(d, "t.worker-%d.json" % i))
        assert set(rows) == {"replica 0", "reduction 0"}
        assert all(not below for _, below in tree(rows["reduction 0"]))
        assert len(rows["reduction 0"]) == 2 * 5  # the thread of the replica reduces the third bucket
        for step, parts in steps_of(rows["replica 0"]):
            last_backward = [p for p, _ in parts if p["name"] == "backward"][-1]
            waited = [p for p, _ in parts if p["name"] == "reduction"]
            pieces = [s for s in rows["reduction 0"] if s["args"]["step"] == step["args"]["step"]]
            assert len(pieces) == 2 and len(waited) == 1
            assert pieces[1]["ts"] + pieces[1]["dur"] <= waited[0]["ts"] + waited[0]["dur"] + EPSILON
            early += pieces[0]["ts"] < last_backward["ts"] + last_backward["dur"]
        check_profile(t.events("profile")[0], [rows["replica 0"]], 4, 5, INSIDE)
    return d, tasks, early


@test
def trace_over_tcp_buckets_are_reduced_during_backward():
    for _ in range(8):  # a busy machine may run the reducer thread late
        d, tasks, early = train_overlapped()
        if early > 0:
            break
    assert early > 0
    for r in tasks[0].events("step"):
        assert 0 < r["reduce_share"] < 1 and 0 < r["reduce_work"], r
    alone = Task(digits_job(d, **merge(OVERLAPPED, {"checkpoint": {"directory": "alone"}})), args=("--devices", "cpu:1"))
    expect_codes([alone], [0])
    assert not [r for r in alone.events("note") if "reduced" in r["message"]]
    assert [r["loss"] for r in alone.events("step")] == [r["loss"] for r in tasks[0].events("step")]


@test
def trace_job_with_few_steps_left_has_the_remaining_steps():
    d = workdir()
    path = os.path.join(d, "t.json")
    for steps, first, n in ((2, 1, 2), (6, 2, 5)):
        job = digits_job(d, train={"epochs": None, "steps": steps}, checkpoint=None, export=None,
                         optimizer={"schedule": None})
        t = Task(job, args=("--devices", "cpu:1", "--trace", path))
        expect_codes([t], [0])
        _, rows = read(path)
        check_row(rows["replica 0"], first, n, [0, 1, 2, 3])
        assert t.events("profile")[0]["steps"] == n


@test
def trace_table_in_a_text_log_has_a_line_for_each_part():
    d = workdir()
    p = subprocess.run([TRAINERD, "--job", digits_job(d, train={"epochs": 1}), "--devices", "cpu:1", "--trace",
                        os.path.join(d, "t.json")], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    shares = [float(line.split(" %  ")[0].split()[-1]) for line in p.stderr.splitlines() if " %  " in line]
    assert len(shares) > 10 and abs(sum(shares) - 100) <= 0.005 * len(shares) + 1e-9, p.stderr


@test
def trace_impossible_request_is_refused_before_the_first_step():
    d = workdir()
    job = digits_job(d, train={"epochs": 1})
    os.mkfifo(os.path.join(d, "pipe"))
    where = os.path.join(d, "t.json")
    rows = [
        (["--trace", os.path.join(d, "no", "t.json")], "No such file or directory"),
        (["--trace", d], "is a folder; expected the name of a file"),
        (["--trace", os.path.join(d, "pipe")], "is a FIFO; expected the name of a file"),
        (["--trace", "/dev/null"], "is a device; expected the name of a file"),
        (["--trace", where, "--trace-steps", "0"], "--trace-steps: expected a number from 1"),
        (["--trace", where, "--trace-steps", "5x"], "--trace-steps: expected a number from 1"),
        (["--trace", where, "--trace-steps", "1000000"], "trace at most"),
        (["--trace-steps", "5"], "--trace FILE says where"),
    ]
    for args, words in rows:
        t = Task(job, args=["--devices", "cpu:1", *args])
        expect_codes([t], [2])
        assert words in t.log(), (args, t.log())
        assert not t.events("step")
    assert not os.path.exists(where)
    p = subprocess.run([TRAINERD, "--job", job, "--trace", where, "--check"], capture_output=True, text=True,
                       timeout=GUARD)
    assert p.returncode == 0 and not os.path.exists(where), p.stderr


if __name__ == "__main__":
    main()
