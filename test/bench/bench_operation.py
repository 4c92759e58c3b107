"""bench_operation.py - what operation costs: the memory of a task that waits, the start of many tasks on one machine, the
status page and the metrics, hostile connections, encryption, and a task that is late by a pause."""
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import bench_nets
import kit
import ours
import peers
from table import Side, duration

MB = 1e6
TOKEN = {"TRAINERD_TOKEN": "a token for the benchmark of trainerd"}
ENDLESS = 10 ** 7
IDLE_SECONDS, IDLE_LIMIT = 8, 16 * MB  # memory is released 3 s after the wait began
MANY, MANY_ROUNDS, MANY_LIMIT = 64, 3, 2.0
READS, READ_EVERY, READ_ROUNDS, READ_LIMIT = 100, 0.05, 3, 0.005
HOSTILE, HOSTILE_ROUNDS, HOSTILE_SECONDS, HOSTILE_LIMIT = 1000, 5, 4, 1.05
LATE_ROUNDS, LATE_TASKS, LATE_LANES, LATE_LANE, LATE_PAUSE, LATE_TURNS, LATE_FIRST, LATE_LIMIT = 3, 4, 4, 20, 200, 12, 6, 0.9
TLS_ROUNDS, TLS_WARM, TLS_STEPS, TLS_LIMIT = 5, 1, 3, 1.03


def endless_job(folder, tasks=2, log_every=1):
    """Writes a job with the demo's network that never ends and writes nothing."""
    return kit.digits_job(folder, train={"epochs": None, "steps": ENDLESS, "lanes": tasks, "global_batch_size": 64,
                                         "log_every_steps": log_every, "eval_every_epochs": 0, "deadline_seconds": 60},
                          checkpoint=None, summary=None, export=None)


def end(tasks):
    for t in tasks:
        t.kill()


# ---- memory of a task that waits ----

def idle_memory(folder):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        task = kit.Task(endless_job(d), kit.tf_config(kit.free_ports(2), 0), ("--devices", "cpu:1"))
        try:
            task.until(lambda t: t.events("group"), 30)
            time.sleep(IDLE_SECONDS)
            pid = task.p.pid
            return {"resident": 1024 * ours.status(pid, "VmRSS"), "private": 1024 * ours.status(pid, "RssAnon")}
        finally:
            task.kill()


def idle(table, folder):
    """The peer is the least that gRPC allows: a process with one server and one channel, linked with gRPC alone."""
    def row():
        resident = us.median("resident")
        return ("%.1f MB" % (resident / MB), "bare gRPC %.1f MB" % (1024 * bare.median() / MB), "",
                resident < IDLE_LIMIT, ", private %.1f MB" % (us.median("private") / MB))

    us = Side("trainerd", lambda: idle_memory(folder))
    bare = Side("bare gRPC", lambda: {None: int(peers.run_checked([ours.program("bench_bare")]))})
    table.interleave(3, us, bare)
    table.row("memory of a task that waits for its group", "< %.0f MB" % (IDLE_LIMIT / MB), row)


# ---- many tasks on one machine ----

def many_first_step(folder):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        tasks, begin = [], time.monotonic()
        try:
            tasks = kit.start(endless_job(d, MANY), MANY)
            tasks[0].until(lambda t: t.events("step"), 120)
            return {None: tasks[0].events("step")[0]["_at"] - begin}
        finally:
            end(tasks)


def many_execs():
    """Returns the seconds in which as many processes load the same libraries and end."""
    begin = time.monotonic()
    started = [subprocess.Popen([kit.TRAINERD, "--version"], stdout=subprocess.DEVNULL) for _ in range(MANY)]
    for p in started:
        p.wait()
    return {None: time.monotonic() - begin}


def many(table, folder):
    def row():
        a, b = us.median(), bare.median()
        return duration(a), "exec of %d %s" % (MANY, duration(b)), "%.2f x" % (a / b), a < MANY_LIMIT

    us, bare = Side("trainerd", lambda: many_first_step(folder)), Side("exec", many_execs)
    table.interleave(MANY_ROUNDS, us, bare)
    table.row("exec to the first step, %d tasks" % MANY, "< %.0f s" % MANY_LIMIT, row)


# ---- status page and metrics ----

def other_threads(pid, replica):
    """Returns the processor seconds of all threads but that of the replica."""
    seconds = 0
    for path in glob.glob("/proc/%d/task/*/schedstat" % pid):
        if path.split("/")[4] != str(replica):
            with open(path) as f:
                seconds += int(f.read().split()[0]) / 1e9
    return seconds


def seconds_per_read(folder):
    """Returns the processor seconds for one reading of the page's data and of the metrics. They are read more often than
    once a second, so that the difference from a time without readers is measurable. HTTP and the loop run beside the
    replica, so that their seconds are the most that a step can lose."""
    with tempfile.TemporaryDirectory(dir=folder) as d:
        port, tasks = kit.free_ports(1)[0], []
        kit._reserved.pop().close()  # libmicrohttpd does not share a port
        try:
            ports = kit.free_ports(2)
            job = endless_job(d, 2, 100)
            tasks = [kit.Task(job, kit.tf_config(ports, i), ("--devices", "cpu:1", *(("--metrics", str(port)) if i == 0 else ())),
                              name="worker %d" % i) for i in range(2)]
            tasks[0].until(lambda t: len(t.events("step")) >= 3, 30)
            pid = tasks[0].p.pid
            threads = {t: other_threads(pid, t) for t in os.listdir("/proc/%d/task" % pid)}
            replica = min(threads, key=threads.get)  # without it the least is left
            used = []
            for paths in ((), ("/api/v1/status", "/metrics")):
                before = other_threads(pid, replica)
                for _ in range(READS):
                    for path in paths:
                        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=10) as r:
                            r.read()
                    time.sleep(READ_EVERY)
                used.append(other_threads(pid, replica) - before)
            return {None: (used[1] - used[0]) / READS}
        finally:
            end(tasks)


def readers(table, folder):
    def row():
        share = max(0, us.median())
        return "%.3f %%" % (100 * share), "limit %.1f %%" % (100 * READ_LIMIT), "", share < READ_LIMIT

    us = Side("trainerd", lambda: seconds_per_read(folder))
    table.interleave(READ_ROUNDS, us)
    table.row("status and metrics at 1 Hz, share of a step", "< %.1f %%" % (100 * READ_LIMIT), row)


# ---- hostile connections ----

def listening_ports(pid):
    inodes = {os.readlink(p)[8:-1] for p in glob.glob("/proc/%d/fd/*" % pid) if os.readlink(p).startswith("socket:")}
    with open("/proc/%d/net/tcp" % pid) as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return [int(r[1].split(":")[1], 16) for r in rows if r[3] == "0A" and r[9] in inodes]


def attack_seconds(folder):
    """Returns the median seconds of a step without and with hostile connections. Both tasks run on the first processor,
    the attacker (hostile.py) on the second, so that its own work does not count."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise peers.Unavailable("needs two processors")
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job, tasks, attacker = endless_job(d, 2, 20), [], None
        try:
            ports = kit.free_ports(2)
            tasks = [kit.Task(job, kit.tf_config(ports, i), ("--devices", "cpu:1"), TOKEN, "worker %d" % i,
                              prefix=("taskset", "-c", str(cores[0]))) for i in range(2)]
            tasks[0].until(lambda t: len(t.events("step")) >= 20, 60)

            def median_step():
                before = len(tasks[0].events("step"))
                time.sleep(HOSTILE_SECONDS)
                return statistics.median(64 / r["samples_per_second"] for r in tasks[0].events("step")[before:])

            out = {"calm": [], "attack": []}
            for _ in range(HOSTILE_ROUNDS):
                out["calm"].append(median_step())
                attacker = subprocess.Popen(["taskset", "-c", str(cores[1]), sys.executable,
                                             os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile.py"),
                                             str(HOSTILE), *map(str, listening_ports(tasks[0].p.pid))],
                                            stdout=subprocess.PIPE)
                attacker.stdout.readline()  # all connections were opened
                out["attack"].append(median_step())
                attacker.kill()
                attacker.wait()
            return out
        finally:
            if attacker is not None:
                attacker.kill()
                attacker.wait()
            end(tasks)


def hostile(table, folder):
    def row():
        a, b = us.median("attack"), us.median("calm")
        return duration(a), "calm %s" % duration(b), "%.2f x" % (a / b), a <= HOSTILE_LIMIT * b

    us = Side("trainerd", lambda: attack_seconds(folder))
    table.interleave(1, us)
    table.row("step under %d hostile connections, TLS" % HOSTILE, "<= %.2f x" % HOSTILE_LIMIT, row)


# ---- encryption ----

def encryption(table, folder):
    """The aim is judged by the processor time of a step of both tasks, which fill both processors: other load changes it
    little, whereas the wall time of a shared machine varies by more than the aim. The wall time is for context."""
    net = bench_nets.resnet50()
    if table.quick:
        net.shorter()
    path = bench_nets.write_job(net, os.path.join(folder, "tls"), TLS_WARM + TLS_STEPS + 1)
    with open(path) as f:
        job = json.load(f)
    job["communication"] = {"shared_memory": False}
    with open(path, "w") as f:
        json.dump(job, f)

    def measure(env):
        seen = []

        def use(tasks):
            for step in (TLS_WARM, TLS_WARM + TLS_STEPS):
                tasks[0].until_step(step, 300)
                seen.append(sum(other_threads(t.p.pid, None) for t in tasks))

        records = ours.run_tasks(path, 2, use, env, seconds=300)
        return {"wall": ours.seconds_per_step(records, net.batch, TLS_WARM), "cpu": (seen[1] - seen[0]) / TLS_STEPS}

    def row(key):
        a, b = us.median(key), clear.median(key)
        return duration(a), "clear text %s" % duration(b), "%.3f x" % (a / b), a <= TLS_LIMIT * b

    us, clear = Side("trainerd", lambda: measure(TOKEN)), Side("clear text", lambda: measure({}))
    table.interleave(TLS_ROUNDS, clear, us)
    table.row("%s, TLS on TCP, processor time" % net.title, "<= %.2f x" % TLS_LIMIT, lambda: row("cpu"))
    table.row("  wall time of the same step", "", lambda: row("wall"))


# ---- a task that is late ----

def late_step(folder, spare):
    """Seconds of the steps in which one task, in turn, pauses before its first lane. A lane is a pause too, so other load changes
    little. A task that leaves out spare lanes passes its fault point less often."""
    def faults(i):
        left_out = LATE_LANES // 2 if spare == "auto" else 0
        at = [LATE_LANES * (LATE_FIRST + LATE_TASKS * turn + i - 1) + 1 - left_out * turn for turn in range(LATE_TURNS)]
        return ",".join(["train.lane=delay:%d@1+,train.spare=delay:%d@1+" % (LATE_LANE, LATE_LANE)] +
                        ["train.lane=delay:%d@%d" % (LATE_PAUSE, n) for n in at])

    steps = LATE_FIRST + LATE_TASKS * LATE_TURNS
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = kit.digits_job(d, train={"epochs": None, "steps": steps, "lanes": LATE_TASKS * LATE_LANES, "global_batch_size": 64,
                                       "log_every_steps": 1, "eval_every_epochs": 0},
                             elastic={"balance": "off", "spare": spare}, communication={"shared_memory": False}, checkpoint=None,
                             summary=None, export=None)
        ports = kit.free_ports(LATE_TASKS)
        tasks = [kit.Task(job, kit.tf_config(ports, i), ("--devices", "cpu:1"), {"TRAINERD_FAULT": faults(i)}, "worker %d" % i)
                 for i in range(LATE_TASKS)]
        try:
            kit.expect_codes(tasks, [0] * LATE_TASKS, 300)
            at = {r["step"]: r["_at"] for r in tasks[0].events("step")}
            return {None: [at[k] - at[k - 1] for k in range(LATE_FIRST, steps)]}
        finally:
            end(tasks)


def late(table, folder):
    def row():
        a, b = us.median(), off.median()
        return duration(a), "without %s" % duration(b), "%.3f x" % (a / b), a <= LATE_LIMIT * b

    us, off = Side("spare lanes", lambda: late_step(folder, "auto")), Side("without", lambda: late_step(folder, "off"))
    table.interleave(LATE_ROUNDS, off, us)
    table.row("step of %d tasks, one pauses %d ms, spare lanes" % (LATE_TASKS, LATE_PAUSE), "<= %.2f x" % LATE_LIMIT, row)


def operation(table, folder):
    for part in (idle, many, readers, hostile, encryption, late):
        table.group(part.__name__, part, folder)
