#!/usr/bin/python3
"""trainerctl netcheck beside running tasks: on loopback, and on hosts in namespaces in two racks with a slow uplink."""
# san: yes
import json
import os
import subprocess

from kit import (GUARD, TOKEN, TRAINERCTL, Task, digits_job, enter_namespaces, free_ports, has_namespaces, main, need_namespaces,
                 start, test, tf_config, workdir)

NET = "10.82.0.%d"
HOSTS, PER_RACK = 4, 2
JOB = {"train": {"epochs": 100000, "lanes": 12, "global_batch_size": 60, "log_every_steps": 1}}
SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:100@1+"}


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def network():
    """A switch for each rack, and a cable between the switches."""
    for rack in range(HOSTS // PER_RACK):
        ip("link", "add", "rack%d" % rack, "type", "bridge")
        ip("link", "set", "rack%d" % rack, "up")
    ip("link", "add", "up0", "type", "veth", "peer", "name", "up1")
    for rack in range(HOSTS // PER_RACK):
        ip("link", "set", "up%d" % rack, "master", "rack%d" % rack, "up")
    for i in range(HOSTS):
        host, port = "host%d" % i, "port%d" % i
        ip("netns", "add", host)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("link", "set", port, "master", "rack%d" % (i // PER_RACK), "up")
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "addr", "add", NET % (i + 1) + "/24", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")


TBF = ("root", "tbf", "burst", "32kb", "latency", "100ms", "rate")


class Shaped:
    """Limits the rate at which the kernel sends on these devices, (namespace or None, device)."""

    def __init__(self, rate, *devices):
        self.rate, self.devices = rate, devices

    def _tc(self, verb, device, *what):
        space = ["-n", device[0]] if device[0] else []
        subprocess.run(["tc", *space, "qdisc", verb, "dev", device[1], *what], check=True)

    def __enter__(self):
        for d in self.devices:
            self._tc("replace", d, *TBF, self.rate)

    def __exit__(self, *_):
        for d in self.devices:
            self._tc("del", d, "root")


def start_on_hosts(job, hosts):
    workers = ["%s:2222" % (NET % (i + 1)) for i in range(HOSTS)]
    tasks = [Task(job, {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}, ("--devices", "cpu:1"), SLOWLY,
                  "worker %d" % i, prefix=("ip", "netns", "exec", "host%d" % i)) for i in hosts]
    return tasks


def netcheck(address, *args, prefix=(), env=None):
    e = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_")}
    return subprocess.run([*prefix, TRAINERCTL, "netcheck", *args, address], capture_output=True, text=True, timeout=GUARD,
                          env={**e, **(env or {})})


def check_hosts(*args):
    return netcheck(NET % 1 + ":2222", *args, prefix=("ip", "netns", "exec", "host0"), env={"TRAINERD_TOKEN": TOKEN})


def need_tbf():
    need_namespaces("tc", "-n", "host0", "qdisc", "replace", "dev", "lo", *TBF, "1gbit")


@test
def running_tasks_measure_every_pair_in_both_directions_and_train_on():
    tasks = start(digits_job(workdir(), **JOB), 3, env=SLOWLY)
    tasks[0].until_step(2)
    p = netcheck("127.0.0.1:%d" % tasks[1].port, "--json")
    r = json.loads(p.stdout)
    assert [t["name"] for t in r["tasks"]] == ["worker 0", "worker 1", "worker 2"], p.stdout
    for i, t in enumerate(r["tasks"]):
        assert [k for k, e in enumerate(t["to"]) if e is None] == [i], t
        assert all(e["round_trip_us"] > 0 and e["bytes_per_second"] > 0 for k, e in enumerate(t["to"]) if k != i), t
    assert p.returncode == (1 if r["findings"] else 0), p
    step = max(tasks[0].steps())
    tasks[0].until_step(step + 2)
    assert not [x for t in tasks for x in t.events("view")[1:]], "the group has changed"


@test
def tasks_that_wait_for_others_are_measured_and_the_missing_ones_reported():
    ports = free_ports(3)
    job = digits_job(workdir(), **JOB)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), name="worker %d" % i) for i in range(2)]
    for t in tasks:
        t.until(lambda t: t.events("group"))
    p = netcheck("127.0.0.1:%d" % ports[0])
    assert p.returncode == 1 and p.stderr.count("not measured: ") == 2 and "worker 2" in p.stderr, p
    line = [x for x in p.stdout.splitlines() if x.startswith("worker 0 ")][0].split()
    assert line[2] == "-" and line[3].endswith(("us", "ms")) and line[-1] == "failed", p.stdout


@test
def invalid_arguments_and_addresses_are_refused():
    for args, word in ((("--ms", "5", "127.0.0.1:1"), "--ms: expected a number from 20 to 2000"), ((), "expected one address"),
                       (("nonsense",), "nonsense")):
        p = subprocess.run([TRAINERCTL, "netcheck", *args], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode in (1, 2) and word in p.stderr, (args, p)


@test
def two_racks_with_a_slow_uplink_have_a_location_each():
    need_tbf()
    tasks = start_on_hosts(digits_job(workdir(), **JOB), range(HOSTS))
    tasks[0].until_step(1)
    with Shaped("20mbit", (None, "up0"), (None, "up1")):
        p = check_hosts("--json")
        r = json.loads(p.stdout)
        text = check_hosts().stdout
    assert r["racks"] == 2, p.stdout
    assert [t["location"] for t in r["tasks"]] == ["zone0/rack%d/%s" % (i // PER_RACK, NET % (i + 1)) for i in range(HOSTS)], p.stdout
    assert "TRAINERD_LOCATION=zone0/rack1/10.82.0.3" in text, text


@test
def slow_cable_of_a_host_is_named_beside_the_median():
    need_tbf()
    tasks = start_on_hosts(digits_job(workdir(), **JOB), range(HOSTS))
    tasks[0].until_step(1)
    with Shaped("20mbit", (None, "port2"), ("host2", "eth0")):
        p = check_hosts("--json")
        r = json.loads(p.stdout)
    slow = [f for f in r["findings"] if f["what"] == "rate"]
    assert p.returncode == 1 and [(f["task"], f["other"]) for f in slow] == [("worker 2", None)], p.stdout
    assert "the median" in slow[0]["text"] and "ethtool" in slow[0]["remedy"], slow


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        network()
    main()
