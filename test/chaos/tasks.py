"""tasks.py - the tasks of a job, each on a host of its own, and their supervisor, which restarts
them.
"""
import fcntl
import json
import os
import re
import signal
import subprocess
import threading
import time

import kit
import roster

AGAIN = 0.3  # seconds until a task that ended by itself is started again
TEMPORARY = (138, 143)
TOKEN = "the token of the chaos runs"
SMALL_PIPE = 4096
LED_BY = re.compile(r", led by (\w+ \d+)")
FORWARD_MS = 8  # minimum duration of a step, so that faults hit all of its parts, and four tasks fit on two cores


class Life(kit.Task):
    """One process of a task. Its log is written to a file, and kept as records."""

    def __init__(self, task, faults):
        self.lock, self.path = threading.Lock(), task.log
        self.fault = ",".join(faults)  # the armed fault points
        self.reads = threading.Event()
        self.reads.set()
        self.is_noted = False  # its end was noted
        self.view_at = self.step_at = self.whole_at = 0.0  # the last view, step, and step of a view with all tasks
        self.view_tasks, self.leader = 0, None
        env = {"TRAINERD_TOKEN": task.token, "TRAINERD_FAULT": ",".join(list(faults) + ["train.forward=delay:%d@1+" % FORWARD_MS])}
        self.n_tasks = sum(map(len, task.cluster.values()))
        config = {"cluster": task.cluster, "task": {"type": task.kind, "index": task.index}}
        super().__init__(task.job, config, task.args, env, task.name, prefix=task.prefix)
        self.was_armed_kill = False

    def _read(self):
        with open(self.path, "ab", 0) as f:
            for raw in self.p.stderr:
                self.reads.wait()
                f.write(raw)
                try:
                    record = json.loads(raw)
                except ValueError:
                    record = {"event": "text", "message": raw.decode("utf-8", "replace").strip()}
                record["_at"] = time.time()
                self.records.append(record)
                self.lines.append(record.get("message", ""))
                self._follow(record)

    def _follow(self, record):
        if record.get("event") == "view":
            self.view_at, self.view_tasks = record["_at"], record["tasks"]
            self.leader = LED_BY.search(record["message"]).group(1)
        elif record.get("event") == "step":
            self.step_at = record["_at"]
            if self.view_tasks == self.n_tasks:
                self.whole_at = self.step_at

    def read_on(self, is_on):
        """Starts or stops the reading of its standard error. If stopped, the pipe is made small."""
        if is_on:
            self.reads.set()
            return
        self.reads.clear()
        try:
            fcntl.fcntl(self.p.stderr.fileno(), fcntl.F_SETPIPE_SZ, SMALL_PIPE)
        except OSError:
            pass  # the pipe holds more already


class Task:
    def __init__(self, number, folder, job, cluster, address, prefix, devices, args):
        self.kind, self.index = roster.kind_of(number)
        self.name, self.token = roster.task_name(number), TOKEN
        self.number, self.job, self.cluster, self.address, self.prefix = number, job, cluster, address, prefix
        self.args = ("--devices", devices, "--log-level", "debug", "--sample-log", os.path.join(folder, "samples.txt"), *args)
        self.log = os.path.join(folder, "%s-%d.log" % (self.kind, self.index))
        self.samples = os.path.join(folder, "samples.%s-%d.txt" % (self.kind, self.index))
        self.lives, self.arm, self.again_at, self.stopped = [], [], None, False
        self.expected = None  # the signal with which the test ended it

    @property
    def life(self):
        return self.lives[-1]

    @property
    def is_trainer(self):
        return self.kind != "ps"

    def is_whole(self, after):
        """True if its process is in a group of all tasks, and has done a step there after this
        time. A ps logs no steps."""
        if not self.is_up():
            return False
        if not self.is_trainer:
            return self.life.view_tasks == self.life.n_tasks
        return self.life.whole_at > max(after, self.life.view_at)

    def is_up(self):
        return bool(self.lives) and self.life.p.poll() is None

    def start(self):
        self.lives.append(Life(self, self.arm))
        self.arm, self.again_at, self.stopped, self.expected = [], None, False, None

    def kill(self, signum, back):
        """Ends the process, if it runs; the supervisor starts the task again after `back`
        seconds."""
        self.expected = signum
        if self.is_up():
            self.life.signal(signum)
            if signum == signal.SIGKILL:
                self.life.p.wait(5)
        self.again_at = time.time() + back

    def stop(self, is_stopped):
        self.stopped = is_stopped
        if self.is_up():
            self.life.signal(signal.SIGSTOP if is_stopped else signal.SIGCONT)

    def end_word(self):
        code = self.life.p.returncode
        if code < 0:
            return "was killed by %s" % signal.Signals(-code).name + (
                ", as %s had it" % self.life.fault if self.life.was_armed_kill else "")
        return "ended with %d: %s" % (code, (self.life.lines or ["nothing was said"])[-1][:300])


class Group:
    """The tasks of the job. `say(text)` logs; `troubles` collects what no fault explains."""

    def __init__(self, folder, job, hosts, say, devices="cpu:1", args=()):
        cluster = {"chief": hosts.addresses[:1], "worker": hosts.addresses[1:roster.trainers]}
        if hosts.n > roster.trainers:
            cluster["ps"] = hosts.addresses[roster.trainers:]
        self.say, self.troubles, self.supervised = say, [], True
        self.tasks = [Task(i, folder, job, cluster, hosts.addresses[i], hosts.prefix(i), devices, args) for i in range(hosts.n)]
        self.losses, self.ends = {}, []  # {step: losses} of deleted records; (task, life, text) of processes that ended by themselves

    def start(self):
        for t in self.tasks:
            t.start()

    def look(self):
        """Records the tasks that ended, and restarts those that are due."""
        for t in self.tasks:
            if t.is_up():
                continue
            if not t.life.is_noted:
                t.life.is_noted = True
                t.life.read_on(True)
                t.life.wait(5)
                self._ended(t)
            elif self.supervised and t.again_at is not None and time.time() >= t.again_at:
                t.start()
                self.say("%s starts again%s" % (t.name, " with " + t.life.fault if t.life.fault else ""))

    def _ended(self, t):
        code = t.life.p.returncode
        t.life.was_armed_kill = code == -signal.SIGKILL and not t.expected and "=kill@" in t.life.fault
        self.say("%s %s" % (t.name, t.end_word()))
        if not t.expected and not t.life.was_armed_kill:
            self.ends.append((t, t.life, "%s %s" % (t.name, t.end_word())))
        if not self.supervised:
            return
        if t.again_at is None:
            t.again_at = time.time() + AGAIN
        if not (code in TEMPORARY or code == -signal.SIGKILL and (t.expected or t.life.was_armed_kill)):
            self.troubles.append("%s %s" % (t.name, t.end_word()))

    def wait_end(self, seconds):
        """Waits until all tasks have ended. Returns their exit codes; a task that still runs is
        killed and has None."""
        self.supervised, until = False, time.time() + seconds
        while time.time() < until and any(t.is_up() for t in self.tasks):
            self.look()
            time.sleep(0.02)
        codes = [t.life.p.poll() for t in self.tasks]
        for t in self.tasks:
            t.life.kill()
        self.look()
        return codes

    def steps(self):
        """Returns the (step, loss) that the tasks logged."""
        return [(step, loss) for step, losses in self.losses.items() for loss in losses] + [
            (r["step"], r["loss"]) for t in self.tasks for life in t.lives for r in list(life.records)
            if r.get("event") == "step"]

    def is_whole(self, after):
        """True if every present process has done a step after this time in a group of all tasks."""
        return all(t.is_whole(after) for t in self.tasks)

    def leader(self):
        """Returns the number of the leader, from the newest view that a task has logged."""
        newest = max((t.life for t in self.tasks), key=lambda life: life.view_at)
        return next((t.number for t in self.tasks if t.name == newest.leader), 0)

    def forget(self, before):
        """Deletes the records before this time, and keeps the losses of their steps."""
        for t in self.tasks:
            for life in t.lives:
                n = next((i for i, r in enumerate(life.records) if r["_at"] >= before), len(life.records))
                for r in life.records[:n]:
                    if r.get("event") == "step":
                        self.losses.setdefault(r["step"], set()).add(r["loss"])
                del life.records[:n]
                del life.lines[:-40]
            t.lives = [life for life in t.lives if life.records or life is t.life]


def verify(folder):
    """Runs `trainerctl verify`. Returns (success, output)."""
    p = subprocess.run([kit.TRAINERCTL, "verify", folder], capture_output=True, text=True, timeout=kit.GUARD)
    return p.returncode == 0, (p.stdout + p.stderr).strip()
