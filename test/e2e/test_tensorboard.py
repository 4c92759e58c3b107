#!/usr/bin/env python3
"""Event files describe a run once: hyper-parameters and graph, read by an independent reader; the graph is compared with
the package onnx. (TensorBoard itself is no dependency of the tests.)"""
import json
import os
import signal
import subprocess
import sys

import onnx
from kit import ROOT, Task, digits_job, expect_codes, free_ports, main, start, test, workdir


def read(logs):
    out = subprocess.run([sys.executable, os.path.join(ROOT, "test", "metrics", "read_events.py"), logs], check=True,
                         capture_output=True, text=True).stdout
    events = [json.loads(line) for line in out.splitlines()]
    return ([e["graph"] for e in events if "graph" in e],
            [e["summary"][t] for t in ("_hparams_/experiment", "_hparams_/session_start_info") for e in events
             if t in e.get("summary", {})])


@test
def group_describes_its_run_once_with_resolved_hyper_parameters():
    folder = workdir()
    job = digits_job(folder, train={"epochs": 2, "lanes": 2, "global_batch_size": 128, "steps": None})
    ports = free_ports(2)
    tasks = start(job, 2, ports=ports, env={"TRAINERD_FAULT": "train.forward=delay:50@1+"})
    tasks[0].until_step(1)
    tasks[0].signal(signal.SIGTERM)
    assert tasks[0].wait() == 143
    again = start(job, 1, ports=ports)  # the coordinator resumes: a second event file
    expect_codes([*again, tasks[1]], [0, 0])
    logs = os.path.join(folder, "run", "logs")
    assert len(os.listdir(logs)) >= 2, os.listdir(logs)
    graphs, (experiment, session) = read(logs)
    assert len(graphs) == 1
    assert experiment["name"] == "digits"
    assert experiment["metrics"] == [["loss", "training"], ["eval/loss", "validation"], ["eval/accuracy", "validation"]]
    words = {str: "string", bool: "bool", float: "number"}
    assert experiment["hparams"] == {k: words[type(v)] for k, v in session["hparams"].items()}
    expected = {"optimizer.type": "momentum", "optimizer.momentum": 0.9, "optimizer.learning_rate": 0.1,  # scaled by 128 / 64
                "train.global_batch_size": 128, "train.lanes": 2, "replicas": 2, "train.epochs": 2, "train.seed": 1,
                "optimizer.schedule.type": "cosine", "model.loss.type": "softmax_cross_entropy", "model.onnx": "digits_cnn.onnx",
                "optimizer.nesterov": False}
    assert {k: session["hparams"][k] for k in expected} == expected, session


@test
def graph_has_the_nodes_shapes_and_connections_of_the_onnx_file():
    folder = workdir()
    expect_codes([Task(digits_job(folder, train={"epochs": 1}), args=("--devices", "cpu:1"))], [0])
    (nodes,), _ = read(os.path.join(folder, "run", "logs"))
    by_name = {n["name"]: n for n in nodes}
    assert len(by_name) == len(nodes)
    model = onnx.load(os.path.join(folder, "digits_cnn.onnx")).graph
    ops = [n for n in model.node if n.op_type not in ("Constant", "Identity")]
    drawn = [n for n in nodes if n["op"] not in ("Input", "Parameter", "Statistic", "Constant")]
    assert [n["op"] for n in drawn] == [n.op_type for n in ops]
    makers = {o: d["name"] if i == 0 else "%s:%d" % (d["name"], i) for n, d in zip(ops, drawn) for i, o in enumerate(n.output)}
    for n, d in zip(ops, drawn):
        assert d["inputs"] == [makers.get(i, i.replace(":", "_").lstrip("/")) for i in n.input if i], (n, d)
        assert all(i.split(":")[0] in by_name for i in d["inputs"]), d
    for t in model.initializer:
        if t.name in by_name:
            assert by_name[t.name]["_output_shapes"] == [list(t.dims)], t.name
    parameters = {n["name"] for n in nodes if n["op"] == "Parameter"}
    assert {"conv1.weight", "fc.weight", "fc.bias"} <= parameters, parameters
    assert [n["_output_shapes"] for n in nodes if n["op"] == "Input" and n["name"] == "x"] == [
        [[d.dim_value if d.HasField("dim_value") else -1 for d in i.type.tensor_type.shape.dim]]
        for i in model.input if i.name == "x"]


main()
