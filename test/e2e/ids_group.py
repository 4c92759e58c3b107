"""ids_group.py - the tasks of the job of ids.py, as processes."""
import json
import os
import signal
import subprocess
import tempfile
import time

import ids
from kit import FOLDERS, SLOW, TRAINERCTL, Limit, Task, await_process, free_ports, wait_until, workdir

_kept = tempfile.TemporaryDirectory(prefix="trainerd-test-", dir=FOLDERS)  # data, for all tests of a file


def make_data():
    return ids.make_data(os.path.join(_kept.name, "data"))


def kept_folder():
    """Returns a new folder that exists until all tests of the file have ended."""
    return tempfile.mkdtemp(dir=_kept.name)


class Group:
    """The tasks of a job, by name. `fault`: of all workers; `lives`: {task: [fault of each process in order]}; `folder`: of the
    job and its checkpoints, of an earlier group; `metrics`: {task: port}."""

    def __init__(self, workers, ps, devices="cpu:1", fault="", lives=None, folder=None, metrics=None, **changes):
        elastic = {"min_world": max(1, workers - workers // 3), "rejoin_seconds": 0}  # a majority, as there is no lease
        self.folder = folder or workdir()
        self.job = ids.job_file(self.folder, make_data(), **{"elastic": elastic, **changes})
        self.lives = {name: list(faults) for name, faults in (lives or {}).items()}
        ports = free_ports(workers + ps)
        self.cluster = {"worker": ["127.0.0.1:%d" % p for p in ports[:workers]], "ps": ["127.0.0.1:%d" % p for p in ports[workers:]]}
        self.cluster = {kind: addresses for kind, addresses in self.cluster.items() if addresses}
        self.names = ["%s %d" % (kind, i) for kind, addresses in self.cluster.items() for i in range(len(addresses))]
        self.devices, self.fault, self.metrics = devices, fault, metrics or {}
        self.tasks = {name: [] for name in self.names}  # all processes of a task in order
        for name in self.names:
            self.start(name)

    def address(self, name):
        kind, index = name.split()
        return self.cluster[kind][int(index)]

    def start(self, name):
        kind, index = name.split()
        life = self.lives[name].pop(0) if self.lives.get(name) else ""
        faults = ",".join(f for f in (life, self.fault if kind == "worker" else "") if f)
        env = {"TRAINERD_FAULT": faults} if faults else {}
        if name in self.metrics:
            env["TRAINERD_METRICS"] = str(self.metrics[name])
        task = Task(self.job, {"cluster": self.cluster, "task": {"type": kind, "index": int(index)}}, ("--devices", self.devices), env, name)
        task.life = life
        self.tasks[name].append(task)

    def now(self, name):
        return self.tasks[name][-1]

    def logs(self):
        return "\n".join("--- %s: exit %s\n%s" % (t.name, t.p.poll(), "\n".join(line[:300] for line in t.lines[-20:]))
                         for tasks in self.tasks.values() for t in tasks[-2:])

    def kill(self, *names):
        for name in names:
            self.now(name).signal(signal.SIGKILL)
        for name in names:
            await_process(self.now(name).p, 20)

    def losses(self):
        """{step: loss} of all records; a step that was trained again has the same loss."""
        out = {}
        for tasks in self.tasks.values():
            for t in tasks:
                for r in t.events("step"):
                    assert out.setdefault(r["step"], r["loss"]) == r["loss"], "step %d has two losses\n%s" % (r["step"], self.logs())
        return out

    def newest(self):
        return max(self.losses(), default=0)

    def wait_until(self, condition):
        """No task may end meanwhile, unless kill() has ended it."""
        def is_done():
            codes = {name: self.now(name).p.poll() for name in self.names}
            assert set(codes.values()) <= {None, -signal.SIGKILL}, "%s\n%s" % (codes, self.logs())
            return condition()
        wait_until(is_done, 60, self.logs)

    def until_step(self, step):
        self.wait_until(lambda: self.newest() >= step)

    def finish(self, seconds=60, supervised=False):
        """Waits until all tasks are complete. Starts the next process of a task that its fault has killed, and with `supervised`
        of one that ended with 138. `seconds` without a log line are a hang."""
        seen, limit = None, None
        while True:
            for name in self.names:
                code = self.now(name).p.poll()
                if (code == -signal.SIGKILL and self.now(name).life) or (code == 138 and supervised):
                    self.start(name)
            if all(self.now(name).p.poll() is not None for name in self.names):
                break
            progress = [len(t.records) for tasks in self.tasks.values() for t in tasks]
            if progress != seen:
                seen, limit = progress, Limit(seconds)
            assert not limit.expired(), "no progress\n" + self.logs()
            time.sleep(0.01)
        codes = {name: self.now(name).wait() for name in self.names}
        assert set(codes.values()) == {0}, "%s\n%s" % (codes, self.logs())
        assert not any(self.lives.values()), "not killed: %s\n%s" % (self.lives, self.logs())
        return self

    def stop(self):
        running = [name for name in self.names if self.now(name).p.poll() is None]
        for name in running:
            self.now(name).signal(signal.SIGTERM)
        codes = {name: self.now(name).wait() for name in running}
        assert set(codes.values()) <= {0, 143}, "%s\n%s" % (codes, self.logs())
        return self

    def status(self, name):
        p = subprocess.run([TRAINERCTL, "status", "--json", self.address(name)], capture_output=True, text=True, timeout=60 * SLOW)
        assert p.returncode == 0, p.stdout + p.stderr
        return json.loads(p.stdout)

    def rows(self, *args):
        return subprocess.run([TRAINERCTL, "rows", *args[:-1], self.address("ps 0"), "emb", *map(str, args[-1])],
                              capture_output=True, text=True, timeout=60 * SLOW)
