"""bench_ps.py - parameter servers (ps): how fast rows are read and updated, what a step costs beside the same job without
ps, the start, and the loss of a ps. The peer is TensorFlow's ParameterServerStrategy."""
import json
import os
import re
import statistics
import tempfile
import time

import numpy as np

import kit
import ours
import peers
from table import Side, duration

MB, WORKERS = 1e6, 2
ROWS, WIDTH, IDS = 1_000_000, 64, 16384  # of the table; ids that a worker looks up in a step
RATE_ROUNDS, RATE_STEPS, RATE_LIMIT, MEMORY_LIMIT, RATE_PEER = 5, 100, 2e6, 4e6, 3
BOUND = 4  # steps, of an asynchronous phase
DENSE, DENSE_STEPS = 6_250_000, 20  # floats
DLRM_ROWS, DLRM_QUICK_ROWS, DLRM_WIDTH, DLRM_TABLES = 1_000_000, 1000, 16, 26
STEP_ROUNDS, STEP_WARM, STEP_STEPS, STEP_BATCH, STEP_LIMIT = 3, 10, 60, 2048, 1.5
LATE_MS, LATE_WARM, LATE_STEPS, LATE_GAIN = 40, 16, 96, 1.25
START_ROUNDS, START_ROWS, START_STEPS, START_LIMIT = 15, 1000, 40, 0.100
COPY_BYTES, KILL_ROUNDS, KILL_LIMIT, COPY_LIMIT = 100 * MB, 7, 0.050, 0.300
START_SECONDS, FAULT_SECONDS = 300, 30
ENDLESS = 10 ** 7


# ---- rows per second ----

def our_rate(tcp=False, bound=0):
    """The ps has as many service threads as the machine has cores for it. bound 0: the workers wait for each step."""
    text = peers.run_checked([ours.program("bench_ps"), "--ranks", str(WORKERS), "--threads", str(WORKERS), "--rows", str(ROWS),
                              "--width", str(WIDTH), "--ids", str(IDS), "--steps", str(RATE_STEPS), "--tcp", str(int(tcp)),
                              "--bound", str(bound)])
    return {None: 1 / float(re.search(r"rows/s +(\d+)", text).group(1))}


def our_dense():
    """Seconds of a worker to read all parameters and to push their gradients."""
    text = peers.run_checked([ours.program("bench_ps"), "--ranks", str(WORKERS), "--threads", str(WORKERS), "--dense", str(DENSE),
                              "--steps", str(DENSE_STEPS)])
    return {None: float(re.search(r"step us +([0-9.]+)", text).group(1)) / 1e6 / WORKERS}


class TensorFlow:
    """Its tasks, started when they are first asked."""

    def __init__(self):
        self.process = None

    def rate(self):
        if self.process is None:
            self.process = peers.start_tensorflow_ps(WORKERS, ROWS, WIDTH, IDS, DENSE)
        self.process.ask("rows %d" % RATE_STEPS)
        return {None: json.loads(self.process.line(peers.ANSWER_SECONDS)) / (RATE_STEPS * WORKERS * IDS)}

    def dense(self):
        if self.process is None:
            self.process = peers.start_tensorflow_ps(WORKERS, ROWS, WIDTH, IDS, DENSE)
        self.process.ask("dense %d" % DENSE_STEPS)
        return {None: json.loads(self.process.line(peers.ANSWER_SECONDS)) / (DENSE_STEPS * WORKERS)}

    def close(self):
        if self.process is not None:
            self.process.close()


def rates(table):
    """Side values are seconds per row."""
    def make(side, limit):
        rate = 1 / side.median()
        return "%.2f M/s" % (rate / 1e6), "limit %.2f M/s" % (limit / 1e6), "", rate >= limit

    peer = TensorFlow()
    us, tensorflow = Side("trainerd", our_rate), Side("TensorFlow", peer.rate)
    tcp = Side("trainerd over TCP", lambda: our_rate(tcp=True))
    asynchronous = Side("trainerd, asynchronous", lambda: our_rate(bound=BOUND))
    dense, dense_tensorflow = Side("trainerd", our_dense), Side("TensorFlow", peer.dense)
    try:
        table.interleave(RATE_ROUNDS, us, tcp, asynchronous, tensorflow)
        table.interleave(RATE_ROUNDS, dense, dense_tensorflow)
    finally:
        peer.close()
    for kind, side, limit in (("shared memory", us, MEMORY_LIMIT), ("TCP", tcp, RATE_LIMIT)):
        table.row("rows of 64 pulled and pushed, %s, 2 workers" % kind, ">= %.0f M/s" % (limit / 1e6),
                  lambda side=side, limit=limit: make(side, limit))
    table.faster("time of a row beside TensorFlow, both asynchronous", asynchronous, tensorflow, at_least=RATE_PEER)
    table.faster("time of a row beside TensorFlow, which does not wait for each step", us, tensorflow)
    table.faster("25 MB of dense parameters beside TensorFlow", dense, dense_tensorflow, at_least=RATE_PEER)


# ---- jobs ----

class Clicks:
    """The network DLRM and random clicks in a folder."""

    def __init__(self, folder, rows, samples):
        self.folder, rng = folder, np.random.default_rng(1)
        peers.run_checked([kit.TRAINERCTL, "model", "dlrm", "--set", "rows=%d" % rows, "--seed", "1", "-o", self.path("dlrm.onnx")])
        np.save(self.path("dense.npy"), rng.random((samples, 13), dtype=np.float32))
        np.save(self.path("sparse.npy"), rng.integers(0, rows, (samples, DLRM_TABLES)))
        np.save(self.path("click.npy"), rng.integers(0, 2, (samples, 1)).astype(np.float32))

    def path(self, name):
        return os.path.join(self.folder, name)

    def job(self, with_ps, settings=None, **train):
        job = {
            "name": "clicks",
            "model": {"onnx": "dlrm.onnx", "inputs": {"dense": "dense", "sparse": "sparse"},
                      "loss": {"type": "binary_cross_entropy", "logits": "logit", "labels": "click"}},
            "data": {"format": "npy", "train": "{feature}.npy",
                     "features": {"dense": {"dtype": "float32", "shape": [13]}, "click": {"dtype": "float32", "shape": [1]},
                                  "sparse": {"dtype": "int64", "shape": [DLRM_TABLES]}}},
            "train": {"seed": 1, "lanes": WORKERS, "log_every_steps": 1, **train},
            "optimizer": {"type": "sgd", "learning_rate": 0.01},
            "elastic": {"min_world": WORKERS, "rejoin_seconds": 0},
        }
        if with_ps:
            job["parameter_server"] = settings or {"tables": "auto", "min_shard_bytes": 1024, "replicas": 2}
        path = self.path("ps.json" if with_ps else "without.json")
        with open(path, "w") as f:
            json.dump(job, f)
        return path


class Cluster:
    """Workers, then ps. `faults`: of each worker, as TRAINERD_FAULT. The caller ends them with close()."""

    def __init__(self, job, workers, servers, faults=()):
        self.job, self.workers, self.ports, self.faults = job, workers, kit.free_ports(workers + servers), faults
        self.tasks = [None] * len(self.ports)
        for i in range(len(self.ports)):
            self.start(i)

    def start(self, i):
        kind, index = ("worker", i) if i < self.workers else ("ps", i - self.workers)
        extra = {"ps": ["127.0.0.1:%d" % p for p in self.ports[self.workers:]]} if len(self.ports) > self.workers else None
        env = {"TRAINERD_FAULT": self.faults[i]} if i < len(self.faults) else None
        self.tasks[i] = kit.Task(self.job, kit.tf_config(self.ports[:self.workers], index, kind=kind, extra=extra),
                                 ("--devices", "cpu:1"), env, name="%s %d" % (kind, index))

    def close(self):
        for t in self.tasks:
            if t is not None:
                t.kill()


def run(job, servers, faults=()):
    """Runs a job of two workers to its end; returns the first worker's records of steps."""
    cluster = Cluster(job, WORKERS, servers, faults)
    try:
        kit.expect_codes(cluster.tasks, [0] * len(cluster.tasks), START_SECONDS)
        return cluster.tasks[0].events("step")
    finally:
        cluster.close()


# ---- a step ----

def steps(table, folder):
    rows = DLRM_QUICK_ROWS if table.quick else DLRM_ROWS

    def side(servers):
        job = clicks.job(servers > 0, steps=STEP_WARM + STEP_STEPS, global_batch_size=STEP_BATCH)
        return {None: ours.seconds_per_step(run(job, servers), STEP_BATCH, STEP_WARM)}

    def make():
        a, b = us.median(), without.median()
        return duration(a), "without ps %s" % duration(b), "%.2f x" % (a / b), a <= STEP_LIMIT * b

    clicks = Clicks(folder, rows, STEP_BATCH * 4)
    us, without = Side("trainerd with a ps", lambda: side(1)), Side("trainerd", lambda: side(0))
    table.interleave(STEP_ROUNDS, us, without)
    table.row("step of DLRM, 26 x %d rows, 1 ps" % rows, "<= %.1f x" % STEP_LIMIT, make)


# ---- late workers ----

def late(table, folder):
    """Each worker is late in every eighth step, in turn: synchronous steps wait each time, asynchronous ones do not."""
    faults = [",".join("train.forward=delay:%d@%d" % (LATE_MS, step) for step in range(first, LATE_WARM + LATE_STEPS, 8))
              for first in (4, 8)]
    clicks = Clicks(folder, DLRM_QUICK_ROWS, STEP_BATCH)

    def side(settings):
        job = clicks.job(True, {"dense": "ps", **settings}, steps=LATE_WARM + LATE_STEPS, global_batch_size=256)
        at = {r["step"]: r["_at"] for r in run(job, 1, faults)}
        return {None: (at[LATE_WARM + LATE_STEPS] - at[LATE_WARM]) / LATE_STEPS}

    us = Side("bounded, 4", lambda: side({"staleness_kind": "bounded", "staleness": 4}))
    synchronous = Side("synchronous", lambda: side({}))
    table.interleave(STEP_ROUNDS, us, synchronous)
    table.faster("steps with late workers, asynchronous beside synchronous", us, synchronous, at_least=LATE_GAIN)


# ---- start ----

def start(table, folder):
    def ours_first():
        begin = time.monotonic()
        return {None: run(job, 1)[0]["_at"] - begin}

    def make():
        seconds = us.median()
        return duration(seconds), "limit %s" % duration(START_LIMIT), "", seconds < START_LIMIT

    job = Clicks(folder, START_ROWS, STEP_BATCH).job(True, steps=START_STEPS, global_batch_size=256)
    us = Side("trainerd", ours_first)
    table.interleave(START_ROUNDS, us)
    table.row("exec to the first step, 2 workers, 1 ps", "< %s" % duration(START_LIMIT), make)


# ---- the loss of a ps ----

class Loss:
    """Two workers and two ps that both hold all rows. The second ps is killed and started again."""

    def __init__(self, job):
        self.cluster = Cluster(job, WORKERS, 2)
        self.chief = self.cluster.tasks[0]
        self.chief.until_step(50, START_SECONDS)
        self.step = statistics.median(b["_at"] - a["_at"] for a, b in zip(self.steps(0)[10:], self.steps(0)[11:]))

    def steps(self, since):
        return [r for r in self.chief.records[since:] if r.get("event") == "step"]

    def next_group(self, since):
        """Waits for the next group and its first step. Returns the time of that step, and of the last one before it."""
        def group():
            return [i for i, r in enumerate(self.chief.records) if i >= since and r.get("event") == "view"]

        self.chief.until(lambda t: group() and self.steps(group()[0]), FAULT_SECONDS)
        at = group()[0]
        before = [r for r in self.chief.records[:at] if r.get("event") == "step"]
        return self.steps(at)[0]["_at"], before[-1]["_at"]

    def once(self):
        since, at = len(self.chief.records), time.monotonic()
        self.cluster.tasks[-1].kill()
        lost = self.next_group(since)[0] - at
        time.sleep(0.3)
        since = len(self.chief.records)
        self.cluster.start(WORKERS + 1)
        first, last = self.next_group(since)
        started = self.cluster.tasks[WORKERS + 1]
        started.until(lambda t: self.received(t), FAULT_SECONDS)
        received = self.received(started)[0]["message"]
        return {"lost": lost, "pause": first - last, "copied": int(re.search(r"in (\d+) ms", received).group(1)) / 1000, "step": self.step}

    def received(self, task):
        return [r for r in task.events("note") if "were received in" in r["message"]]


def losses(table, folder):
    rows = DLRM_QUICK_ROWS if table.quick else round(COPY_BYTES / (4 * DLRM_WIDTH * DLRM_TABLES))
    job = Clicks(folder, rows, STEP_BATCH).job(True, steps=ENDLESS, global_batch_size=256)
    loss = Loss(job)
    us = Side("trainerd", loss.once)
    try:
        table.interleave(KILL_ROUNDS, us)
    finally:
        loss.cluster.close()

    def kill():
        limit = KILL_LIMIT + us.median("step")
        return duration(us.median("lost")), "limit %s" % duration(limit), "", us.median("lost") <= limit

    def pause():
        limit = KILL_LIMIT + us.median("step")
        return duration(us.median("pause")), "limit %s" % duration(limit), "", us.median("pause") <= limit

    def copy():
        return duration(us.median("copied")), "limit %s" % duration(COPY_LIMIT), "", us.median("copied") <= COPY_LIMIT

    table.row("kill -9 of a ps to the next step", "<= %s + step" % duration(KILL_LIMIT), kill)
    table.row("pause when a ps joins", "<= %s + step" % duration(KILL_LIMIT), pause)
    table.row("a new second copy of %.0f MB" % (rows * 4 * DLRM_WIDTH * DLRM_TABLES / MB), "<= %s" % duration(COPY_LIMIT), copy)


def ps(table, folder):
    rates(table)
    for part in (start, losses, steps, late):
        with tempfile.TemporaryDirectory(dir=folder) as d:
            table.group(part.__name__, lambda t, d=d, part=part: part(t, d))
