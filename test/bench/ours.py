"""ours.py - trainerd's side of a comparison: the programs of the build, and running jobs to their end or to a step."""
import os
import re

import kit


def program(name):
    return os.path.join(kit.BUILD, "test", "bench", name)


def start_tasks(job, world, devices="cpu:1", args=(), env=None):
    """Starts the tasks of a cluster, or a single task without a cluster if world is 1; the caller ends them."""
    if world > 1:
        return kit.start(job, world, devices, args, env)
    return [kit.Task(job, args=("--devices", devices, *args), env=env)]


def run_tasks(job, world, use=None, env=None, devices="cpu:1", seconds=120):
    """Runs a job to its end; returns the chief's step records. Calls use(tasks) after all tasks are started."""
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
    """Returns the seconds per step for each block between two records, without the blocks that end at or before step
    `after` (warm-up)."""
    return [batch / r["samples_per_second"] for r in records if r["step"] > after]


def status(pid, key):
    """Returns a field of /proc/PID/status in KiB: VmRSS, VmHWM (the peak of VmRSS)."""
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^%s:\s+(\d+) kB" % key, f.read(), re.M).group(1))
