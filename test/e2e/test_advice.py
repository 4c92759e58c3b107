#!/usr/bin/python3
"""Advice of real groups: an injected cause is named on every task, and a healthy group gets none. The work of a step is a
pause, so the shares do not depend on the speed of the machine."""
# san: yes
import json
import os
import subprocess
import sys
import urllib.request

from kit import (GUARD, TRAINERCTL, Task, digits_job, enter_namespaces, free_ports, has_namespaces, main, need_namespaces, test,
                 tf_config, wait_until, workdir)

WINDOW = {"window_steps": 8, "window_seconds": 0.2}
BATCH = 48  # divisible by the lanes of 2, 3 and 4 tasks


def make_job(tasks, balance="off", **advice):
    return digits_job(workdir(), train={"epochs": 100000, "lanes": 2 * tasks, "global_batch_size": BATCH, "log_every_steps": 1},
                      health={"advice": {**WINDOW, **advice}}, elastic={"balance": balance, "balance_seconds": 1})


def works(ms):
    """The environment of a task whose work of a step is a pause of `ms` milliseconds."""
    return {"TRAINERD_FAULT": "train.forward=delay:%d@1+" % ms}


def start_with(job, envs, ports, args=()):
    return [Task(job, tf_config(ports, i), ("--devices", "cpu:1", *args), env, "worker %d" % i) for i, env in enumerate(envs)]


def advice(task, kind):
    return [r for r in task.events("advice") if r["kind"] == kind]


def until_advice(tasks, kind):
    """Waits until the leader has logged one, and returns its record. No other task logs it."""
    def find():
        ended = [t for t in tasks if t.p.poll() is not None]
        assert not ended, ended[0].log()
        return [t for t in tasks if advice(t, kind)]
    found = wait_until(find, lambda: tasks[0].log())
    assert len(found) == 1, [t.name for t in found]
    return advice(found[0], kind)[0]


def status(port):
    p = subprocess.run([TRAINERCTL, "status", "--json", "127.0.0.1:%d" % port], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def metrics(port):
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as r:
        return r.read().decode()


@test
def slow_worker_is_named_by_the_log_of_the_leader_and_the_status_of_every_task():
    ports, pages = free_ports(3), free_ports(3)
    job = make_job(3)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1", "--metrics", str(pages[i])), env, "worker %d" % i)
             for i, env in enumerate([works(200), works(600), works(200)])]
    for kind in ("reduce_share", "lane_spread"):
        first = until_advice(tasks, kind)
        assert first["culprit"] == "worker 1", first
        assert first["value"] > first["limit"] and first["level"] == "warn" and first["remedy"] in first["message"], first
        assert "worker 1 " in first["message"], first
        for port in ports:
            wait_until(lambda: [a for a in status(port)["advice"] if "%s: %s; %s" % (a["kind"], a["text"], a["remedy"]) == first["message"]],
                       lambda: (first, status(port)["advice"]))
    # status and metrics of each task
    assert len([t for t in tasks if t.events("advice")]) == 1, [t.events("advice") for t in tasks]
    for port, page in zip(ports, pages):
        wait_until(lambda: {a["kind"] for a in status(port)["advice"]} == {"reduce_share", "lane_spread"}, lambda: status(port)["advice"])
        assert all(a["culprit"] == "worker 1" and a["remedy"] for a in status(port)["advice"]), status(port)["advice"]
        wait_until(lambda: 'trainerd_advice{kind="reduce_share"} 1\n' in metrics(page), lambda: metrics(page))
        assert 'trainerd_advice{kind="data_share"} 0\n' in metrics(page), metrics(page)
    p = subprocess.run([TRAINERCTL, "status", "127.0.0.1:%d" % ports[2]], capture_output=True, text=True, timeout=GUARD)
    assert "\nadvice      reduce_share: " in p.stdout and "worker 1 is late by" in p.stdout, p.stdout


@test
def limit_of_zero_gives_no_advice_and_advice_is_repeated():
    tasks = start_with(make_job(2, lane_spread=0, repeat_seconds=1), [works(100), works(300)], free_ports(2))
    wait_until(lambda: [t for t in tasks if len(advice(t, "reduce_share")) >= 3], lambda: tasks[0].log())
    assert not [t for t in tasks if advice(t, "lane_spread")], tasks[0].log()


@test
def healthy_group_beside_busy_processes_gets_no_advice_and_its_lanes_stay():
    """TRAINERD_SOAK_WINDOWS: so many windows of the default size."""
    soak = int(os.environ.get("TRAINERD_SOAK_WINDOWS", "0"))
    window, ms = ({"window_steps": 50, "window_seconds": 10}, 200) if soak else ({"window_steps": 6}, 800)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        tasks = start_with(make_job(2, "auto", **window), [works(ms)] * 2, free_ports(2))
        for n in range(1, 1 + max(4, soak)):
            tasks[0].until_step(1 + n * window["window_steps"])
        assert not [r for t in tasks for r in t.events("advice")], tasks[0].log()
        assert all(len(t.events("view")) == 1 for t in tasks), tasks[0].log()
    finally:
        for p in busy:
            p.kill()
            p.wait()


@test
def task_without_a_cluster_waits_for_its_samples():
    task = Task(make_job(1, data_share=1e-9), args=("--devices", "cpu:1"), env=works(20))
    assert until_advice([task], "data_share")["culprit"] == "local"


# ---- hosts in namespaces ----

HOSTS = 4
NET = "10.81.0.%d"


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def network():
    ip("link", "add", "switch", "type", "bridge")
    ip("link", "set", "switch", "up")
    for i in range(HOSTS):
        host, port = "host%d" % i, "port%d" % i
        ip("netns", "add", host)
        ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
        ip("link", "set", port, "master", "switch", "up")
        ip("-n", host, "link", "set", "lo", "up")
        ip("-n", host, "addr", "add", NET % (i + 1) + "/24", "dev", "eth0")
        ip("-n", host, "link", "set", "eth0", "up")


TBF = ("root", "tbf", "burst", "64kb", "latency", "200ms", "rate")


SHORT = ("root", "tbf", "burst", "3kb", "limit", "4kb", "rate")  # a queue of less than three packets


def shape(host, rate, queue=TBF):
    """Both directions of the cable of a host."""
    subprocess.run(["tc", "qdisc", "replace", "dev", "port%d" % host, *queue, rate], check=True)
    subprocess.run(["tc", "-n", "host%d" % host, "qdisc", "replace", "dev", "eth0", *queue, rate], check=True)


def unshape(host):
    subprocess.run(["tc", "qdisc", "del", "dev", "port%d" % host, "root"], check=True)
    subprocess.run(["tc", "-n", "host%d" % host, "qdisc", "del", "dev", "eth0", "root"], check=True)


def start_on_hosts(job, n, env):
    workers = ["%s:2222" % (NET % (i + 1)) for i in range(n)]
    return [Task(job, {"cluster": {"worker": workers}, "task": {"type": "worker", "index": i}}, ("--devices", "cpu:1"), env,
                 "worker %d" % i, prefix=("ip", "netns", "exec", "host%d" % i)) for i in range(n)]


@test
def slow_cable_of_a_host_is_named():
    need_namespaces("tc", "-n", "host0", "qdisc", "replace", "dev", "lo", *TBF, "1gbit")
    shape(2, "1mbit")
    try:
        tasks = start_on_hosts(make_job(3, window_steps=2), 3, works(20))
        first = until_advice(tasks, "reduce_share")
        assert first["culprit"] == "network of worker 2", first
        assert "MB/s" in first["message"], first
    finally:
        unshape(2)


@test
def cable_with_a_short_queue_that_loses_packets_is_named():
    """The messages of 48 KB are longer than the queue, so segments of each are lost, also first ones."""
    need_namespaces("tc", "-n", "host0", "qdisc", "replace", "dev", "lo", *TBF, "1gbit")
    shape(2, "20mbit", SHORT)
    try:
        tasks = start_on_hosts(make_job(4, window_steps=4), 4, works(20))
        first = until_advice(tasks, "reduce_share")
        assert first["culprit"] == "network of worker 2", first
        assert "lose packets" in first["message"], first
    finally:
        unshape(2)


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        network()
    main()
