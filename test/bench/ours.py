"""ours.py - trainerd's side of a comparison: the programs of the build, and jobs run to their end or to a step."""
import os
import re

import kit


def program(name):
    return os.path.join(kit.BUILD, "test", "bench", name)


def start_tasks(job, world, devices="cpu:1", args=(), env=None):
    """Tasks of one cluster, or of none if there is one; the caller ends them."""
    if world > 1:
        return kit.start(job, world, devices, args, env)
    return [kit.Task(job, args=("--devices", devices, *args), env=env)]


def run_tasks(job, world, use=None, env=None, devices="cpu:1", seconds=120):
    """Runs a job to its end; returns the chief's step records. `use(tasks)` is called when all are started."""
    tasks = []
    try:
        tasks = start_tasks(job, world, devices, env=env)
        if use is not None:
            use(tasks)
        kit.expect_codes(tasks, [0] * world, seconds)
    finally:
        for t in tasks:
            t.kill()
    return tasks[0].events("step")


def seconds_per_step(records, batch, after):
    """Of each block of steps between two records; the blocks that end at `after` or before are warm-up."""
    return [batch / r["samples_per_second"] for r in records if r["step"] > after]


def status(pid, key):
    """A number of KiB that the system keeps of a process: VmRSS, VmHWM (the highest VmRSS so far)."""
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^%s:\s+(\d+) kB" % key, f.read(), re.M).group(1))
