"""Racks of hosts for tests: network namespaces on bridges, each bridge a rack, which has one uplink to the switch of its zone.
The counters of the uplinks show what a rack or a zone sends."""
import functools
import json
import os
import subprocess

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kit import Task, digits_job, expect_codes, read_tree, workdir

RACKS, HOSTS = 4, 3  # at most
PORT = 2222
SHAPES = {"w1": (64, 4096), "w2": (4096, 16)}  # of the parameters
GRADIENT = 4 * sum(a * b for a, b in SHAPES.values())  # bytes: so many that start, end and control plane are within the tolerance
STEPS = 15


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.DEVNULL)


def address(rack, host):
    return "10.79.%d.%d" % (rack + 1, host + 1)


def cable(space, switch, port):
    """Connects the uplink of a switch with another one."""
    ip("-n", space, "link", "add", "uplink", "type", "veth", "peer", "name", port, "netns", switch)
    ip("-n", space, "link", "set", "uplink", "master", "switch", "up")
    ip("-n", switch, "link", "set", port, "master", "switch", "up")


def switch(space):
    ip("netns", "add", space)
    ip("-n", space, "link", "add", "switch", "type", "bridge")
    ip("-n", space, "link", "set", "switch", "up")


def cables():
    """Racks 0 and 1 are on the switch of a zone, 2 and 3 on that of another one; the core connects the zones."""
    switch("core")
    for zone in range(2):
        switch("zone%d" % zone)
        cable("zone%d" % zone, "core", "zone%d" % zone)
    for rack in range(RACKS):
        space = "rack%d" % rack
        switch(space)
        cable(space, "zone%d" % (rack // 2), space)
        for host in range(HOSTS):
            name = "host%d%d" % (rack, host)
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", space, "link", "add", "port%d" % host, "type", "veth", "peer", "name", "cable", "netns", name)
            ip("-n", space, "link", "set", "port%d" % host, "master", "switch", "up")
            ip("-n", name, "addr", "add", address(rack, host) + "/16", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")


def sent(space):
    """Returns the bytes that a rack or a zone has sent to the others so far."""
    p = subprocess.run(["ip", "-n", space, "-s", "-j", "link", "show", "uplink"], capture_output=True, text=True, check=True)
    return json.loads(p.stdout)[0]["stats64"]["tx"]["bytes"]


def start(job, places, locations=None, absent=0):
    """Starts a task for each (rack, host); `places` is the order of the workers. absent: more workers of the cluster."""
    workers = ["%s:%d" % (address(*p), PORT) for p in places] + ["10.79.99.%d:%d" % (i + 1, PORT) for i in range(absent)]
    tasks = []
    for i, (rack, host) in enumerate(places):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}
        path = "zone/rack%d/host%d" % (rack, host) if locations is None else locations[i]
        tasks.append(Task(job, config, ("--devices", "cpu:1"), {"TRAINERD_LOCATION": path}, "worker %d" % i,
                          prefix=("ip", "netns", "exec", "host%d%d" % (rack, host))))
    return tasks


def net(path):
    rng = np.random.default_rng(5)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w1"], ["h"]),
         helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("MatMul", ["t", "w2"], ["logits"])],
        "wide", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 16])],
        [numpy_helper.from_array((0.03 * rng.standard_normal(shape)).astype(np.float32), name) for name, shape in SHAPES.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def job_of(lanes, topology="auto", steps=STEPS, tree=None, **keys):
    folder = workdir()
    net(os.path.join(folder, "wide.onnx"))
    return digits_job(folder, model={"onnx": "wide.onnx"},
                      train={"epochs": None, "steps": steps, "lanes": lanes, "global_batch_size": 4 * lanes, "log_every_steps": 1,
                             **({"lane_tree": list(tree)} if tree else {})},
                      optimizer={"learning_rate": 0.001, "scaling": None, "schedule": None}, communication={"topology": topology},
                      checkpoint={"every_steps": 0}, **keys)


def weights(job):
    """The last checkpoint and the exported model."""
    tree = read_tree(os.path.join(os.path.dirname(job), "run"))
    out = {k: v for k, v in tree.items() if k.endswith((".safetensors", ".onnx"))}
    assert len(out) >= 3, sorted(tree)
    return out


@functools.lru_cache
def alone(lanes, steps=STEPS, tree=None):
    job = job_of(lanes, steps=steps, tree=tree)
    expect_codes([Task(job, args=("--devices", "cpu:1"))], [0])
    return weights(job)


def limit(space, mbit):
    """Limits what the uplink of a rack carries, in both directions; None: removes the limit."""
    shape(((space, "uplink"), ("zone0", space)), mbit)


def limit_hosts(places, mbit):
    """Limits what each host sends; None: removes the limits."""
    shape([("host%d%d" % place, "cable") for place in places], mbit)


def shape(devices, mbit):
    for where, device in devices:
        how = ("add", "dev", device, "root", "tbf", "rate", "%dmbit" % mbit, "burst", "64kb", "latency", "50ms") if mbit else \
            ("del", "dev", device, "root")
        subprocess.run(["ip", "netns", "exec", where, "tc", "qdisc", *how], check=True)
