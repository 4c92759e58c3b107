"""bench_faults.py - the cost of a failed task: the time from the fault to the next step, and the goodput of a minute in
which a task is killed every ten seconds. Compared with PyTorch's DistributedDataParallel under torchrun, which restarts
all its workers: same machine, same network, same batch, a snapshot in memory every few steps.

The times of steps are those of trainerd's sample logs ("done") and of the files of torch_elastic.py: both are the times
of completed steps, on the same clock.
"""
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import kit
import ours
import peers
from table import Side, duration

sys.path.insert(1, os.path.join(kit.ROOT, "test", "chaos"))
import sample_log  # noqa: E402

WORLD, BATCH, SNAPSHOT_STEPS = 4, 64, 10
ROUNDS, TORCH_ROUNDS = 7, 3
START_SECONDS, FAULT_SECONDS, CALM_SECONDS = 30, 20, 1.0
TORCH_SECONDS = 60  # in which torchrun must make a step after a fault, or it has no figure
KILL_LIMIT, KILL_GOAL = 0.100, 0.025
CHIEF_LIMIT, CHIEF_GOAL = 0.500, 0.200
BACK_LIMIT, BACK_WORLD, BACK_BATCH, BACK_ROUNDS = 0.300, 2, 8, 5
SILENT_LIMIT, SILENT_GOAL, SILENT_ROUNDS = 2.0, 0.5, 3
GOODPUT_SECONDS, GOODPUT_EVERY, GOODPUT_LIMIT, GOODPUT_GOAL = 60, 10, 0.98, 0.99
ALARM_SECONDS, ALARM_QUICK_SECONDS = 600, 20
LOOP_WARM, LOOP_STEPS, LOOP_LIMIT = 1000, 20000, 50e-6
SIM_LIMIT, SIM_TASKS = 1.0, 1024
ENDLESS = 10 ** 7
TICKS = os.sysconf("SC_CLK_TCK")


class Group:
    """trainerd's side: the tasks of one cluster, which the benchmark restarts."""

    def __init__(self, folder, job, world=WORLD):
        self.folder, self.job, self.world, self.ports = folder, job, world, kit.free_ports(world)
        self.tasks = [None] * world
        for i in range(world):
            self.start(i)
        for i in range(world):
            self.wait_step(i)

    def start(self, i):
        """Starts task i; returns the time in seconds since 1970."""
        at = time.time()
        self.tasks[i] = kit.Task(self.job, kit.tf_config(self.ports, i), (
            "--devices", "cpu:1", "--log-level", "debug", "--sample-log", os.path.join(self.folder, "samples.txt")),
            name="worker %d" % i)
        return at

    def wait_step(self, i):
        self.tasks[i].until(lambda t: t.events("step"), START_SECONDS)

    def signal(self, i, signum):
        at = time.time()
        self.tasks[i].signal(signum)
        return at

    def dones(self):
        """Returns [(group, step, seconds since 1970)], the time at which the first task completed the step, sorted by
        time."""
        first = {}
        for i in range(self.world):
            for life in sample_log.read(os.path.join(self.folder, "samples.worker-%d.txt" % i), "worker %d" % i):
                for g, step, at in life.dones:
                    first[g, step] = min(at / 1e6, first.get((g, step), float("inf")))
        return sorted(((g, step, at) for (g, step), at in first.items()), key=lambda d: d[2])

    def step_after(self, when, seconds=FAULT_SECONDS):
        """Returns the time of the first step of a group that had completed no step at `when`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            dones = self.dones()
            old = {g for g, _, at in dones if at <= when}
            new = [at for g, _, at in dones if g not in old]
            if new:
                return new[0]
            time.sleep(0.1)
        raise peers.Unavailable("no step within %d s of the fault: %s" % (seconds, [t.lines[-1:] for t in self.tasks]))

    def close(self):
        for t in self.tasks:
            if t is not None:
                t.kill()


def faults_job(folder, **changes):
    """Writes a job with the demo's network and practically unlimited steps."""
    return kit.digits_job(folder, **kit.merge({
        "train": {"epochs": None, "steps": ENDLESS, "lanes": WORLD, "global_batch_size": BATCH, "log_every_steps": 1,
                  "eval_every_epochs": 0},
        "optimizer": {"schedule": {"type": "constant", "warmup_steps": None}},
        "elastic": {"min_world": 1, "rejoin_seconds": 0},
        "checkpoint": {"directory": "checkpoints", "every_steps": 1000, "max_to_keep": 2},
        "summary": None, "export": None}, changes))


def step_seconds(times):
    """Returns the median seconds of a step without faults."""
    return statistics.median(b - a for a, b in zip(times, times[1:]))


# ---- kill -9 ----

def ours_after_kill(folder, victim):
    """Returns the seconds from each of several kills to the next step, and the seconds of a step."""
    with tempfile.TemporaryDirectory(dir=folder) as d:
        group = Group(d, faults_job(d))
        try:
            time.sleep(CALM_SECONDS)
            step = step_seconds([at for _, _, at in group.dones()])
            seen = []
            for _ in range(ROUNDS):
                at = group.signal(victim, signal.SIGKILL)
                seen.append(group.step_after(at) - at)
                group.start(victim)
                group.wait_step(victim)
                time.sleep(0.3)
            return {"next": seen, "step": step}
        finally:
            group.close()


def torch_after_kill(folder, victim):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = peers.TorchElastic(WORLD, digits_model(), "logits", BATCH // WORLD, d, SNAPSHOT_STEPS)
        try:
            job.step_after(0, TORCH_SECONDS)
            seen = []
            for _ in range(TORCH_ROUNDS):
                time.sleep(CALM_SECONDS)
                at = time.time()
                if job.signal(victim, signal.SIGKILL) is not None:
                    seen.append(job.step_after(at, TORCH_SECONDS) - at)
            return {"next": signaled(seen)}
        finally:
            job.close()


def signaled(result):
    """Returns the result of signals, if a worker was there to receive one."""
    if not result:
        raise peers.Unavailable("torchrun: had no worker to signal")
    return result


def digits_model():
    return os.path.join(kit.ROOT, "config", "digits", "digits_cnn.onnx")


def without_figure(peer, trouble):
    """Returns the text of a row for a peer that did not run, or made no step after the fault."""
    found = re.search(r"no step within \d+ s", str(trouble))
    return "%s: %s" % (peer.name, found[0] if found else "cannot run")


def within(table, name, us, key, limit, goal, peer, peer_key="next", plus=None, beside=None):
    """Adds a row: trainerd's figure `key` must be below `limit` (plus one step, the figure `plus`), and should be below
    `goal`. The peer's figure is compared with trainerd's figure `beside` (default `key`)."""
    def make():
        seconds, step = us.median(key), us.median(plus) if plus else 0
        try:
            other = peer.median(peer_key)
            shown, ratio = "%s %s" % (peer.name, duration(other)), "%.1f x" % (other / us.median(beside or key))
        except peers.Unavailable as trouble:
            shown, ratio = without_figure(peer, trouble), ""
        met = seconds <= limit + step
        more = "" if goal is None or not met else ", %s %s" % ("and" if seconds <= goal + step else "not", duration(goal))
        return duration(seconds), shown, ratio, met, more

    table.row(name, "< %s%s" % (duration(limit), " + step" if plus else ""), make)


def kills(table, folder):
    for victim, what, limit, goal in ((WORLD - 1, "a worker", KILL_LIMIT, KILL_GOAL), (0, "the chief", CHIEF_LIMIT, CHIEF_GOAL)):
        us = Side("trainerd", lambda: ours_after_kill(folder, victim))
        torch = Side("torchrun", lambda: torch_after_kill(folder, victim))
        table.interleave(1, us, torch)
        within(table, "kill -9 of %s of 4 to the next step" % what, us, "next", limit, goal, torch, plus="step")
        table.row("  a step of the four", "", lambda: (duration(us.median("step")), "", "", True))


# ---- the full world is back ----

def big_model(folder):
    """Writes a model with 12.5 million weights, 100 MB with their momentum; returns its path."""
    path = os.path.join(folder, "big.onnx")
    peers.run_checked([kit.TRAINERCTL, "model", "mlp", "--set", "inputs=64", "--set", "hidden=3500", "--set", "layers=2",
                       "-o", path])
    return path


def ours_back(folder):
    """Returns the seconds from the start of the replacement's process until it has the state and all tasks are
    connected, and until the first step with it."""
    with tempfile.TemporaryDirectory(dir=folder) as d:
        big_model(d)
        group = Group(d, faults_job(d, model={"onnx": "big.onnx"}, data={"features": {"image": {"shape": [64]}}},
                                    train={"lanes": BACK_WORLD, "global_batch_size": BACK_BATCH},
                                    checkpoint={"every_steps": 100000}), BACK_WORLD)
        try:
            time.sleep(CALM_SECONDS)
            step = step_seconds([at for _, _, at in group.dones()])
            seen, steps = [], []
            for _ in range(BACK_ROUNDS):
                at = group.signal(BACK_WORLD - 1, signal.SIGKILL)
                group.step_after(at)
                at = group.start(BACK_WORLD - 1)
                group.wait_step(BACK_WORLD - 1)
                time.sleep(0.1)
                lives = sample_log.read(os.path.join(group.folder, "samples.worker-%d.txt" % (BACK_WORLD - 1)), "")
                steps.append(lives[-1].dones[0][2] / 1e6 - at)
                task = group.tasks[-1]
                seen.append(task.events("resume")[0]["_at"] - task.started)
            return {"back": seen, "first": steps, "step": step}
        finally:
            group.close()


def torch_back(folder):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = peers.TorchElastic(BACK_WORLD, big_model(d), "logits", BACK_BATCH // BACK_WORLD, d, SNAPSHOT_STEPS)
        try:
            job.step_after(0, TORCH_SECONDS)
            seen = []
            for _ in range(TORCH_ROUNDS):
                time.sleep(2 * CALM_SECONDS)
                at = time.time()
                if job.signal(BACK_WORLD - 1, signal.SIGKILL) is None:
                    continue
                done = job.step_after(at, TORCH_SECONDS)
                seen.append(done - min(float(job.lines(r, "start")[-1][0]) for r in range(BACK_WORLD)))
            return {"back": signaled(seen)}
        finally:
            job.close()


def back(table, folder):
    us, torch = Side("trainerd", lambda: ours_back(folder)), Side("torchrun", lambda: torch_back(folder))
    table.interleave(1, us, torch)
    within(table, "full world of 2 back, 100 MB, from exec", us, "back", BACK_LIMIT, None, torch, "back", plus="step", beside="first")
    table.row("  and to the first step with it", "", lambda: (duration(us.median("first")), "", "", True))
    table.row("  a step of the two", "", lambda: (duration(us.median("step")), "", "", True))


# ---- a silent host ----

def ours_silent(folder):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        group = Group(d, faults_job(d))
        try:
            known, resumed = [], []
            for _ in range(SILENT_ROUNDS):
                time.sleep(CALM_SECONDS)
                victim, begin = group.tasks[1], time.monotonic()
                at = group.signal(1, signal.SIGSTOP)
                resumed.append(group.step_after(at) - at)
                time.sleep(0.2)
                known.append(max(heard(t, victim.name, begin) for t in group.tasks if t is not victim) - begin)
                victim.kill()
                group.start(1)
                group.wait_step(1)
            return {"known": known, "next": resumed}
        finally:
            group.close()


def heard(task, name, begin):
    for r in list(task.records):
        if r["_at"] >= begin and r.get("event") not in ("step", "note") and name in r.get("message", ""):
            return r["_at"]
    raise peers.Unavailable("%s never named %s: %s" % (task.name, name, task.lines[-3:]))


def torch_silent(folder):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = peers.TorchElastic(WORLD, digits_model(), "logits", BATCH // WORLD, d, SNAPSHOT_STEPS)
        stopped = None
        try:
            job.step_after(0, TORCH_SECONDS)
            time.sleep(CALM_SECONDS)
            at = time.time() + 0.2  # ignores a step that was already running
            stopped = job.signal(1, signal.SIGSTOP)
            signaled(stopped)
            return {"next": job.step_after(at, TORCH_SECONDS, after_start=False) - at}
        finally:
            if stopped is not None:
                peers.send(stopped, signal.SIGKILL)
            job.close()


def silent(table, folder):
    us, torch = Side("trainerd", lambda: ours_silent(folder)), Side("torchrun", lambda: torch_silent(folder))
    table.interleave(1, us, torch)
    within(table, "SIGSTOP of a worker until all report it", us, "known", SILENT_LIMIT, SILENT_GOAL, torch)
    table.row("  and to the next step", "", lambda: (duration(us.median("next")), "", "", True))


# ---- goodput ----

def worth(times, begin, end, kills):
    """Returns the steps per second from `begin` to `end` as a share of those in the intervals before each kill, so that
    a temporarily slower machine affects both."""
    def count(a, b):
        return sum(a <= at < b for at in times)

    calm = sum(count(k - GOODPUT_EVERY / 2, k) for k in kills) / (len(kills) * GOODPUT_EVERY / 2)
    return count(begin, end) / (end - begin) / calm


def kill_by_the_clock(seconds, kill):
    """Calls kill(victim) every GOODPUT_EVERY seconds, first after half of that time. Returns (begin, end, kills)."""
    begin, kills = time.time(), []
    while len(kills) < seconds // GOODPUT_EVERY:
        time.sleep(begin + (len(kills) + 0.5) * GOODPUT_EVERY - time.time())
        kills.append(time.time())
        kill((3 * len(kills)) % WORLD)  # 3, 2, 1, 0
    time.sleep(begin + seconds - time.time())
    return begin, begin + seconds, kills


def goodput_seconds(table):
    return 2 * GOODPUT_EVERY if table.quick else GOODPUT_SECONDS


def ours_goodput(folder, seconds):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        group = Group(d, faults_job(d))
        try:
            def kill(victim):
                group.signal(victim, signal.SIGKILL)
                group.start(victim)

            time.sleep(CALM_SECONDS)
            run = kill_by_the_clock(seconds, kill)
            last = {step: at for _, step, at in group.dones()}  # a repeated step counts once
            return {None: worth(last.values(), *run)}
        finally:
            group.close()


def torch_goodput(folder, seconds):
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = peers.TorchElastic(WORLD, digits_model(), "logits", BATCH // WORLD, d, SNAPSHOT_STEPS)
        try:
            job.step_after(0, TORCH_SECONDS)
            time.sleep(CALM_SECONDS)
            run = kill_by_the_clock(seconds, lambda victim: job.signal(victim, signal.SIGKILL))
            job.step_after(run[2][-1], TORCH_SECONDS)  # a job that makes no step after the last kill has no goodput
            return {None: worth(dict(job.steps()).values(), *run)}
        finally:
            job.close()


def goodput(table, folder):
    seconds = goodput_seconds(table)
    us = Side("trainerd", lambda: ours_goodput(folder, seconds))
    torch = Side("torchrun", lambda: torch_goodput(folder, seconds))
    table.interleave(1, us, torch)

    def make():
        a = us.median()
        try:
            b = torch.median()
            shown, ratio = "torchrun %.1f %%" % (100 * b), "%.2f x" % (a / b)
        except peers.Unavailable as trouble:
            shown, ratio = without_figure(torch, trouble), ""
        return ("%.1f %%" % (100 * a), shown, ratio, a >= GOODPUT_LIMIT,
                ", %s %.0f %%" % ("and" if a >= GOODPUT_GOAL else "not", 100 * GOODPUT_GOAL) if a >= GOODPUT_LIMIT else "")

    table.row("goodput, a kill every %d s for %d s" % (GOODPUT_EVERY, seconds), ">= %.0f %%" % (100 * GOODPUT_LIMIT), make)


# ---- false alarms on an overloaded machine ----

def steal(cores_times):
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"])
            for _ in range(cores_times * len(os.sched_getaffinity(0)))]


def false_alarms(folder, seconds):
    """Counts the changes of the group without a fault, while two other processes compete for every core."""
    with tempfile.TemporaryDirectory(dir=folder) as d:
        group, thieves = Group(d, faults_job(d, train={"log_every_steps": 100})), steal(2)
        try:
            first = len([t for task in group.tasks for t in task.events("view")])
            time.sleep(seconds)
            gone = [t for t in group.tasks if t.p.poll() is not None]
            return {None: len([t for task in group.tasks for t in task.events("view")]) - first + len(gone)}
        finally:
            for p in thieves:
                p.kill()
                p.wait()
            group.close()


def alarms(table, folder):
    """Takes ten minutes; runs only if named."""
    seconds = ALARM_QUICK_SECONDS if table.quick else ALARM_SECONDS
    us = Side("trainerd", lambda: false_alarms(folder, seconds))
    table.interleave(1, us)
    table.row("false alarms in %d s, all cores stolen" % seconds, "0",
              lambda: ("%d" % us.median(), "", "", us.median() == 0))


# ---- heartbeats and status; the simulator ----

def thread_seconds(pid):
    """Returns {thread: processor seconds}."""
    out = {}
    for tid in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/stat" % (pid, tid)) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        out[tid] = (int(fields[11]) + int(fields[12])) / TICKS
    return out


def beside_training(job):
    """Returns the processor seconds per step of all threads of a task except the training thread: heartbeats, status,
    log, gRPC."""
    seen = []

    def use(tasks):
        for step in (LOOP_WARM, LOOP_WARM + LOOP_STEPS):
            tasks[0].until_step(step, 120)
            seen.append([thread_seconds(t.p.pid) for t in tasks])

    ours.run_tasks(job, 2, use)
    costs = []
    for before, after in zip(*seen):
        spent = sorted(after[tid] - before.get(tid, 0) for tid in after)
        costs.append(sum(spent[:-1]) / LOOP_STEPS)
    return {None: max(costs)}


def loop(table, folder, mlp_job):
    job = mlp_job(folder, LOOP_WARM + LOOP_STEPS + LOOP_WARM, LOOP_WARM)
    us = Side("trainerd", lambda: beside_training(job))
    table.interleave(1, us)

    def make():
        return duration(us.median()), "limit %s" % duration(LOOP_LIMIT), "", us.median() < LOOP_LIMIT

    table.row("heartbeats and status, per step of 2 tasks", "< %.0f us" % (1e6 * LOOP_LIMIT), make)


def simulated():
    """Returns {event: processor seconds of all tasks}."""
    text = peers.run_checked([os.path.join(kit.BUILD, "test", "member", "test_node_many")])
    found = re.findall(r"(?:^|\s)%d tasks: ([\d.]+) s \(([^,]*)," % SIM_TASKS, text)
    if not found:
        raise peers.Unavailable("test_node_many printed no line '%d tasks: X s (what, ...)'" % SIM_TASKS)
    return {what: float(seconds) for seconds, what in found}


def sim(table, folder):
    us = Side("trainerd", simulated)
    table.interleave(3, us)

    def make():
        worst = max(us.values, key=us.median) if us.why is None else None
        return duration(us.median(worst)), worst, "", us.median(worst) < SIM_LIMIT

    table.row("%d simulated tasks regroup, processor time" % SIM_TASKS, "< %s" % duration(SIM_LIMIT), make)


def faults(table, folder, mlp_job):
    """mlp_job: the function of bench.py that writes a job with short steps."""
    for part in (kills, back, silent, goodput, sim):
        part(table, folder)
    loop(table, folder, mlp_job)
