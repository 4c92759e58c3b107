#!/usr/bin/python3
"""Racks of hosts: network namespaces on bridges, each bridge a rack, which have one uplink each to a switch between the racks.
The counters of the uplinks show what a rack sends."""
# san: yes
import functools
import json
import os
import subprocess

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kit import (TOKEN, TRAINERCTL, Task, digits_job, enter_namespaces, expect_codes, has_namespaces, main, need_namespaces, read_tree,
                 test, workdir)

RACKS, HOSTS = 4, 3  # at most
PORT = 2222
SHAPES = {"w1": (64, 4096), "w2": (4096, 16)}  # of the parameters
GRADIENT = 4 * sum(a * b for a, b in SHAPES.values())  # bytes: so many that start, end and control plane are within the tolerance
STEPS = 15
TOLERANCE = 0.03


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


def job_of(lanes, topology="auto", **keys):
    folder = workdir()
    net(os.path.join(folder, "wide.onnx"))
    return digits_job(folder, model={"onnx": "wide.onnx"},
                      train={"epochs": None, "steps": STEPS, "lanes": lanes, "global_batch_size": 4 * lanes, "log_every_steps": 1},
                      optimizer={"learning_rate": 0.001, "scaling": None, "schedule": None}, communication={"topology": topology},
                      checkpoint={"every_steps": 0}, **keys)


def weights(job):
    """The last checkpoint and the exported model."""
    tree = read_tree(os.path.join(os.path.dirname(job), "run"))
    out = {k: v for k, v in tree.items() if k.endswith((".safetensors", ".onnx"))}
    assert len(out) >= 3, sorted(tree)
    return out


def per_step(places, lanes, locations=None, topology="auto", absent=0):
    """Returns what each rack and then each zone sends in a step, in gradients of the whole model, the weights, and the tasks."""
    elastic = {"min_world": len(places), "rejoin_seconds": 0.1} if absent > 0 else {}
    job = job_of(lanes, topology, elastic=elastic)
    switches = ["rack%d" % r for r in range(RACKS)] + ["zone0", "zone1"]
    before = [sent(x) for x in switches]
    tasks = start(job, places, locations, absent)
    expect_codes(tasks, [0] * len(tasks))
    return [(sent(x) - b) / STEPS / GRADIENT for x, b in zip(switches, before)], weights(job), tasks


@functools.lru_cache
def alone(lanes):
    job = job_of(lanes)
    expect_codes([Task(job, args=("--devices", "cpu:1"))], [0])
    return weights(job)


def expect_traffic(found, racks, vectors):
    for rack in range(RACKS):
        low, high = (-0.01, 0.01) if rack >= racks else (vectors * (1 - TOLERANCE), vectors * (1 + TOLERANCE))
        assert low <= found[rack] <= high, (found, vectors)


def sorted_places(racks, hosts):
    return [(r, h) for r in range(racks) for h in range(hosts)]


@test
def two_racks_of_two_hosts_send_one_gradient_each_in_any_order_of_tasks():
    need_namespaces()
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 1, 2)):
        places = [sorted_places(2, 2)[i] for i in order]
        found, result, tasks = per_step(places, 8)
        expect_traffic(found, 2, 2 * (1 - 1 / 2))
        assert result == alone(8), order
        said = " ".join(r["message"] for r in tasks[0].events("order"))
        assert "in the order of locations, since all training tasks have one; 2 racks: zone/rack%d with 2 tasks" % places[0][0] in said, said


@test
def without_locations_alternating_racks_send_twice_as_much():
    need_namespaces()
    places = [(0, 0), (1, 0), (0, 1), (1, 1)]
    full = ["a/1", "b/1", "a/2", "b/2"]
    for how, words in (({"locations": ["", "", "", ""]}, None), ({"locations": full[:3] + [""]}, "since worker 3 has no location"),
                       ({"locations": full, "topology": "flat"}, None)):
        found, result, tasks = per_step(places, 8, **how)
        expect_traffic(found, 2, 2)
        assert result == alone(8), how
        said = " ".join(r["message"] for r in tasks[0].events("order"))
        assert (words in said) if words else said == "", (how, said)


@test
def racks_that_are_subtrees_send_the_least_and_others_as_much_as_their_subtrees_require():
    """The racks of 3 hosts are two subtrees each, of two hosts and of one, so they send 3 (1 - 1/R) gradients in place of 2 (1 - 1/R).
    If every host exchanged with every other one, that would be 8/3, 3 and 4."""
    need_namespaces()
    for racks, hosts, vectors in ((3, 2, 2 * (1 - 1 / 3)), (2, 3, 3 * (1 - 1 / 2)), (3, 3, 3 * (1 - 1 / 3))):
        places = sorted_places(racks, hosts)
        lanes = len(places)
        for order in (places, places[::2] + places[1::2]):
            found, result, tasks = per_step(order, lanes)
            expect_traffic(found, racks, vectors)
            assert result == alone(lanes), order
            assert any("; %d racks" % racks in r["message"] for r in tasks[0].events("note")), tasks[0].log()


@test
def zones_and_the_racks_of_a_zone_send_the_least_at_the_same_time():
    """A zone sends 2 (1 - 1/2) gradients. A rack of 2 in a zone of 2 racks sends as much to the other rack, and its part to the other
    zone: the blocks of two vectors. 6 tasks, 2 + 2 and 2, are no power of two, so halving/doubling is not possible."""
    need_namespaces()
    places = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    names = ["zone%d/rack%d/host%d" % (rack // 2, rack, host) for rack, host in places]
    order = [0, 4, 2, 5, 1, 3]
    found, result, tasks = per_step([places[i] for i in order], 6, locations=[names[i] for i in order])
    assert all(abs(zone - 1) < TOLERANCE for zone in found[RACKS:]), found
    assert all(abs(rack - 1.5) < TOLERANCE for rack in found[:2]), found
    assert result == alone(6)
    assert any("; 2 zones, 2 racks" in r["message"] for r in tasks[0].events("note")), tasks[0].log()


@test
def lanes_are_cut_along_racks_where_the_largest_share_does_not_grow():
    """6 of 8 tasks have 8 lanes: in the order of ranks 1, 1, 1, 1, 2, 2, so the second rack would be two subtrees; in racks 1, 1, 2 twice."""
    need_namespaces()
    found, result, tasks = per_step(sorted_places(2, 3), 8, absent=2)
    expect_traffic(found, 2, 2 * (1 - 1 / 2))
    assert result == alone(8)
    said = " ".join(r["message"] for r in tasks[0].events("order"))
    assert said.endswith("; 8 lanes: 1 1 2 | 1 1 2"), said


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        cables()
    main()
