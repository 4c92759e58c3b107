#!/usr/bin/python3
"""The limit of the memory: a ps in a control group of its own reports that it approaches the limit, in its log, its status and
its metrics, while it lives; and tables that exceed the limit are refused before the kernel kills the task.

A limit is derived from what the ps reports about itself, not from a guess of what a process needs on this machine."""
import json
import os
import re
import signal
import subprocess
import tempfile
import urllib.request

import clicks
import ids
from control_group import ControlGroup, read
from kit import FOLDERS, GUARD, Skip, TRAINERCTL, Task, await_process, free_ports, main, test, use_venv, wait_until, workdir

use_venv()
import numpy as np  # noqa: E402

# Rows of each of the 26 tables. All shards have equally many, and SGD has no state: the ps has written all of its tables, and its
# use is stable, when the first step begins.
clicks.ROWS = 131072
TABLES = 26 * clicks.ROWS * 16 * 4  # 208 MiB
_kept = tempfile.TemporaryDirectory(prefix="trainerd-test-", dir=FOLDERS)  # the data, for all tests of the file


class Job:
    """One worker, and one ps that runs in the control group; `with` kills both."""

    def __init__(self, group):
        source = clicks.make_data(os.path.join(_kept.name, "data"))
        self.group, self.tasks = group, {}
        self.ports = free_ports(3)
        self.cluster = {"worker": ["127.0.0.1:%d" % self.ports[0]], "ps": ["127.0.0.1:%d" % self.ports[1]]}
        self.path = clicks.job_file(workdir(), source, parameter_server={"tables": "auto", "replicas": 1}, train={"epochs": 100000},
                                    checkpoint={"every_steps": 1000000}, optimizer={"type": "sgd", "learning_rate": 0.01},
                                    elastic={"min_world": 1, "rejoin_seconds": 0})

    def start(self, kind):
        env = {"TRAINERD_METRICS": str(self.ports[2])} if kind == "ps" else {"TRAINERD_FAULT": "train.forward=delay:20@1+"}
        config = {"cluster": self.cluster, "task": {"type": kind, "index": 0}}
        self.tasks[kind] = Task(self.path, config, ("--devices", "cpu:1"), env, kind, prefix=self.group.prefix if kind == "ps" else ())
        return self.tasks[kind]

    def status(self, text=False):
        p = subprocess.run([TRAINERCTL, "status", *(() if text else ("--json",)), self.cluster["ps"][0]], capture_output=True, text=True,
                           timeout=GUARD)
        if p.returncode != 0:
            return "" if text else {"memory": None}
        return p.stdout if text else json.loads(p.stdout)

    def memory(self):
        return self.status()["memory"] or {"used_bytes": 0, "limit_bytes": 0, "source": "", "warning": ""}

    def metrics(self):
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % self.ports[2], timeout=GUARD) as f:
            return dict(line.rsplit(" ", 1) for line in f.read().decode().splitlines() if line.startswith("trainerd_memory_"))

    def logs(self):
        return "\n".join("--- %s: exit %s\n%s" % (name, t.p.poll(), t.log()) for name, t in self.tasks.items())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for t in self.tasks.values():
            t.kill()


def warnings(task, words):
    return [r["message"] for r in task.events("memory") if r["level"] == "warn" and words in r["message"]]


def until_steps(job, n=3):
    """Waits until n more steps were made."""
    worker = job.tasks["worker"]
    worker.until_step(max(worker.steps(), default=0) + n)


@test
def use_of_a_ps_approaches_the_limit_it_warns_once_and_lives():
    with ControlGroup() as group, Job(group) as job:
        group.set_limit(2 * TABLES)
        ps = job.start("ps")
        job.start("worker")
        until_steps(job)
        wait_until(lambda: job.memory()["used_bytes"] > TABLES, job.logs)
        before = job.memory()
        assert before["limit_bytes"] == 2 * TABLES and before["source"] == "cgroup " + group.limit and before["warning"] == "", before
        assert not warnings(ps, ""), job.logs()

        group.set_limit(before["used_bytes"] * 100 // 91 // 4096 * 4096)
        wait_until(lambda: job.memory()["warning"] != "", job.logs)
        after = job.memory()
        assert re.search(r" are in use \((8[5-9]|9\d) %\)", after["warning"]) and group.limit in after["warning"] and \
            "start more ps tasks, or raise the limit" in after["warning"], after
        assert after["limit_bytes"] == before["used_bytes"] * 100 // 91 // 4096 * 4096, (before, after)
        text = job.status(text=True)
        assert re.search(r"^memory      .* in use, limit: cgroup %s\n {12}memory: .* are in use" % re.escape(group.limit), text, re.M), text
        until_steps(job)
        assert len(warnings(ps, " are in use (")) == 1, job.logs()
        wait_until(lambda: float(job.metrics()["trainerd_memory_limit_bytes"]) == after["limit_bytes"], job.logs)
        assert float(job.metrics()["trainerd_memory_used_bytes"]) > 0.8 * after["limit_bytes"], job.metrics()
        assert "are in use" in job.status()["last_trouble"], job.status()

        group.set_limit(2 * TABLES)
        wait_until(lambda: job.memory()["warning"] == "", job.logs)
        group.set_limit(job.memory()["used_bytes"] * 100 // 91)
        wait_until(lambda: len(warnings(ps, " are in use (")) == 2, job.logs)
        until_steps(job)
        assert ps.p.poll() is None, job.logs()


@test
def tables_of_a_ps_fit_barely_it_warns_before_it_allocates_them():
    with ControlGroup() as group, Job(group) as job:
        group.set_limit(TABLES * 100 // 87)
        ps = job.start("ps")
        job.start("worker")
        until_steps(job)
        found = warnings(ps, "the tables of this task need 208.0 MiB")
        assert len(found) == 1 and group.limit in found[0] and "start more ps tasks, or raise the limit" in found[0], job.logs()
        assert job.memory()["warning"] != "" and ps.p.poll() is None, job.logs()


@test
def tables_of_a_ps_exceed_the_limit_they_are_refused():
    with ControlGroup() as group, Job(group) as job:
        if int(re.search(r"SwapTotal: *(\d+) kB", read("/proc/meminfo")).group(1)) > 0:
            raise Skip("this machine has swap space, in which the tables may fit")
        group.set_limit(TABLES * 3 // 4)
        ps = job.start("ps")
        worker = job.start("worker")
        assert await_process(ps.p) == 138, job.logs()
        ps.reader.join(GUARD)
        end = ps.final_message()
        assert "the tables of this task need at least 208.0 MiB" in end and "exceeds the limit of 156.0 MiB: cgroup " + group.limit in end and \
            "start more ps tasks, or raise the limit" in end, end
        wait_until(lambda: any("exceeds the limit of 156.0 MiB" in r["message"] for r in list(worker.records)), job.logs)
        worker.signal(signal.SIGTERM)
        assert worker.wait() in (138, 143), job.logs()


class ThreePs(Job):
    """Three ps, each in a control group of its own, that hold two copies of the rows."""

    def __init__(self, groups):
        super().__init__(groups[0])
        self.groups = groups
        ports = free_ports(4)
        self.cluster = {"worker": ["127.0.0.1:%d" % ports[0]], "ps": ["127.0.0.1:%d" % p for p in ports[1:]]}
        with open(self.path) as f:
            job = json.load(f)
        job["parameter_server"]["replicas"] = 2
        del job["checkpoint"]  # its files may be in memory, which would count
        with open(self.path, "w") as f:
            json.dump(job, f)

    def start_ps(self, i):
        name = "ps %d" % i
        if name in self.tasks:
            self.tasks[name].kill()
        self.tasks[name] = Task(self.path, {"cluster": self.cluster, "task": {"type": "ps", "index": i}}, ("--devices", "cpu:1"), {}, name,
                                prefix=self.groups[i].prefix)

    def until_view(self, tasks):
        wait_until(lambda: [r["tasks"] for r in self.tasks["worker"].events("view")][-1:] == [tasks], self.logs)
        until_steps(self)


@test
def second_copy_does_not_fit_the_survivors_keep_one_and_no_step_is_lost():
    """Each of three ps has 2/3 of the rows, and memory for less than all of them, which each of two would have."""
    with ControlGroup("0") as a, ControlGroup("1") as b, ControlGroup("2") as c, ThreePs([a, b, c]) as job:
        if int(re.search(r"SwapTotal: *(\d+) kB", read("/proc/meminfo")).group(1)) > 0:
            raise Skip("this machine has swap space, in which the tables may fit")
        for i, group in enumerate((a, b, c)):
            group.set_limit(TABLES)
            job.start_ps(i)
        worker = job.start("worker")
        job.until_view(4)
        assert not warnings(worker, "parameter_server/replicas"), job.logs()
        job.tasks["ps 1"].signal(signal.SIGKILL)
        await_process(job.tasks["ps 1"].p)
        job.until_view(3)
        found = [r["message"] for r in list(worker.records) if "each row is on 1 of 2 parameter servers" in r.get("message", "")]
        assert len(found) == 1 and "has room for" in found[0] and "start more ps tasks, or raise the limit" in found[0], job.logs()
        job.start_ps(1)
        job.until_view(4)
        assert job.tasks["ps 0"].p.poll() is None and job.tasks["ps 2"].p.poll() is None, job.logs()
        steps = [r["step"] for r in worker.events("step")]
        assert steps == sorted(set(steps)) and len(worker.events("view")) == 3, job.logs()


class GrowingJob(Job):
    """One dynamic table, to which each step adds 2000 rows of 1 KiB."""

    def __init__(self, group):
        super().__init__(group)
        # on a disk: files in memory would count as memory of the ps
        self.disk = tempfile.TemporaryDirectory(prefix="trainerd-test-", dir="/var/tmp")
        self.checkpoints = os.path.join(self.disk.name, "checkpoints")
        ids.SAMPLES, ids.BATCH, ids.IDS, ids.WIDTH = 80000, 200, 10, 256
        source = ids.make_data(os.path.join(_kept.name, "ids"))
        np.save(os.path.join(source, "train-ids.npy"), np.random.default_rng(1).integers(-(1 << 63), (1 << 63) - 1, (ids.SAMPLES, ids.IDS)))
        self.path = ids.job_file(workdir(), source, parameter_server={"replicas": 1}, train={"lanes": 1}, optimizer={"type": "sgd"},
                                 model={"tables": {"emb": {"admit_after": 1, "expire_steps": 0, "max_rows": 0}}}, elastic={"min_world": 1, "rejoin_seconds": 0},
                                 checkpoint={"directory": self.checkpoints, "every_steps": 0})


@test
def dynamic_table_grows_it_warns_and_is_refused_before_a_row_changes():
    with ControlGroup() as group, GrowingJob(group) as job:
        if int(re.search(r"SwapTotal: *(\d+) kB", read("/proc/meminfo")).group(1)) > 0:
            raise Skip("this machine has swap space, in which the rows may fit")
        group.set_limit(256 << 20)
        ps = job.start("ps")
        worker = job.start("worker")
        assert await_process(ps.p) == 138, job.logs()
        ps.reader.join(GUARD)
        end = ps.final_message()
        assert "with its new rows table 'emb' needs more than this task may use" in end and group.limit in end and \
            "set /model/tables/emb/max_rows or expire_steps, start more ps tasks, or raise the limit" in end, end
        assert warnings(ps, " are in use ("), job.logs()
        # holes in the heap are returned before rows are refused: most of the limit is rows
        tables = float(re.search(r"the tables need ([\d.]+) MiB", end).group(1))
        assert tables > 0.9 * 256, end
        assert max(worker.steps()) > 60, job.logs()
        # the job saves none by itself: the ps asked for it
        saved = max(int(name[5:]) for name in os.listdir(job.checkpoints) if name.startswith("step-"))
        assert saved > 0.75 * max(worker.steps()), (saved, job.logs())
        worker.signal(signal.SIGTERM)
        assert worker.wait() in (138, 143), job.logs()


if __name__ == "__main__":
    main()
