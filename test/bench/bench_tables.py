"""bench_tables.py - tables that no host of the group can hold: 26 tables of 12 GB over three ps, each in a control group of 5 GB.
The job trains, saves, loses a ps with kill -9 (one holder of each shard: the group returns to the checkpoint), and resumes.
It needs 14 GB of memory and 26 GB of disk."""
import json
import os
import shutil
import tempfile

import numpy as np

import kit
from bench_dynamic import dynamic
from bench_ps import DLRM_TABLES, DLRM_WIDTH, STEP_BATCH, Clicks
from control_group import ControlGroup
from peers import Unavailable
from table import duration

GB = 10 ** 9
BYTES, QUICK_BYTES = 12 * GB, GB // 20
SERVERS, LIMIT, QUICK_LIMIT = 3, 5 * GB, GB // 5
SAVE_EVERY, SECONDS = 20, 900


class Demo:
    """One worker, and ps in control groups. `with` kills the tasks and removes the groups."""

    def __init__(self, folder, quick):
        rows = (QUICK_BYTES if quick else BYTES) // (4 * DLRM_WIDTH * DLRM_TABLES)
        self.bytes = rows * 4 * DLRM_WIDTH * DLRM_TABLES
        clicks = Clicks(folder, 1, STEP_BATCH)  # the job states the rows: a file cannot hold them
        np.save(clicks.path("sparse.npy"), np.random.default_rng(2).integers(0, rows, (STEP_BATCH, DLRM_TABLES)))
        self.job = clicks.job(True, steps=10 ** 7, global_batch_size=256, lanes=1)
        with open(self.job) as f:
            job = json.load(f)
        job["parameter_server"].update(replicas=1, min_ps=SERVERS)  # fewer cannot hold all tables
        job["train"]["deadline_seconds"] = 600  # until the ps have generated 4 GB each
        job["model"]["tables"] = {"emb_l.%d.weight" % i: {"rows": rows} for i in range(DLRM_TABLES)}
        job["elastic"] = {"min_world": 1, "rejoin_seconds": 0}
        job["checkpoint"] = {"directory": "checkpoints", "every_steps": SAVE_EVERY, "max_to_keep": 1}
        with open(self.job, "w") as f:
            json.dump(job, f)
        self.ports, self.groups, self.tasks = kit.free_ports(1 + SERVERS), [], {}
        for i in range(SERVERS):
            self.groups.append(ControlGroup(str(i)))
            self.groups[-1].set_limit(QUICK_LIMIT if quick else LIMIT)

    def start(self, i):
        kind, index = ("worker", 0) if i == 0 else ("ps", i - 1)
        config = kit.tf_config(self.ports[:1], index, kind=kind, extra={"ps": ["127.0.0.1:%d" % p for p in self.ports[1:]]})
        self.tasks[i] = kit.Task(self.job, config, ("--devices", "cpu:1"), name="%s %d" % (kind, index),
                                 prefix=self.groups[i - 1].prefix if i > 0 else ())
        return self.tasks[i]

    def worker(self):
        return self.tasks[0]

    def first(self, event, since=0):
        """Waits for a record of the worker after number `since`. Returns its number."""
        def found():
            return [i for i, r in enumerate(self.worker().records) if i >= since and r.get("event") == event]
        self.worker().until(lambda t: found(), SECONDS)
        return found()[0]

    def largest(self):
        """Returns the most memory that one of the ps has used, as the control group has counted it; 0: not counted."""
        most = 0
        for g in self.groups:
            for name in ("memory.max_usage_in_bytes", "memory.peak"):
                path = os.path.join(g.folder, name)
                if os.path.exists(path):
                    with open(path) as f:
                        most = max(most, int(f.read()))
        return most

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for t in self.tasks.values():
            t.kill()
        for g in self.groups:
            g.__exit__()


def run(demo):
    times = {}
    for i in range(1 + SERVERS):
        demo.start(i)
    step = demo.first("step")
    times["first step"] = demo.worker().records[step]["_at"] - demo.worker().started
    saved = demo.first("checkpoint")
    since = len(demo.worker().records)
    demo.tasks[SERVERS].kill()
    killed = demo.start(SERVERS).started
    view = demo.first("view", since)  # a group of all tasks: two ps cannot hold the tables, so the others wait
    assert demo.worker().records[view]["tasks"] == 1 + SERVERS, demo.worker().log()
    resumed = demo.first("step", view)
    times["resumed"] = demo.worker().records[resumed]["_at"] - killed
    assert demo.worker().records[resumed]["step"] == demo.worker().records[saved]["step"] + 1, demo.worker().log()
    demo.first("checkpoint", resumed)
    assert all(demo.tasks[i].p.poll() is None for i in range(1 + SERVERS)), "a task has ended"
    return times, demo.largest()


def tables(table, folder):
    needed = 26 * GB
    if not table.quick and shutil.disk_usage(folder).free < needed:
        table.row("tables of 12 GB", "", lambda: (_ for _ in ()).throw(Unavailable("%d GB of disk are needed" % (needed // GB))))
        return
    with tempfile.TemporaryDirectory(dir=folder) as d:
        try:
            with Demo(d, table.quick) as demo:
                times, most = run(demo)
        except kit.Skip as e:
            why = str(e)
            table.row("tables of 12 GB", "", lambda: (_ for _ in ()).throw(Unavailable(why)))
            return
    size, limit = "%.2f GB" % (demo.bytes / GB), "limit %.2f GB" % ((QUICK_LIMIT if table.quick else LIMIT) / GB)
    table.row("most memory of a ps, tables of %s on %d ps" % (size, SERVERS), "< limit",
              lambda: ("%.2f GB" % (most / GB), limit, "", 0 < most <= (QUICK_LIMIT if table.quick else LIMIT)))
    table.row("exec to the first step", "", lambda: (duration(times["first step"]), "", "", True))
    table.row("kill -9 of a ps to the next step, 1 holder", "", lambda: (duration(times["resumed"]), "", "", True))
    dynamic(table, folder)
