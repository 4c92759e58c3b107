#!/usr/bin/python3
"""A task that cannot start one of its threads ends with 138 and names the thread; tested for every thread."""
# san: yes
import os
import re
import signal
import subprocess

from kit import GUARD, IS_SANITIZED, TRAINERCTL, TRAINERD, Skip, Task, digits_job, main, start, test, workdir

JOB = {"train": {"epochs": None, "steps": 30, "lanes": 2, "log_every_steps": 1}, "checkpoint": {"every_steps": 10}}
MOST = 60  # upper limit of the threads that a task starts
OPTIONAL = ("writes curves",)  # the task continues without this thread and warns


def refusals(in_cluster):
    """Lets the start of the 1st, 2nd, ... thread fail until the job completes; returns the final messages."""
    said = []
    for nth in range(1, MOST):
        env, path = {"TRAINERD_FAULT": "thread.start@%d" % nth}, digits_job(workdir(), **JOB)
        task = start(path, 1, "cpu:2", env=env)[0] if in_cluster else Task(path, args=("--devices", "cpu:2"), env=env)
        code = task.wait()
        found = re.search("start the thread that ([a-z A-Z]+): Resource temporarily unavailable", task.log())
        if found is None:
            assert code == 0, (nth, code, task.log())
            return said
        assert code == 138 or found[1] in OPTIONAL and code == 0, (nth, code, task.log())
        said.append(found[1])
    raise AssertionError("more than %d threads: %s" % (MOST, said))


def expect_refusals(in_cluster, names):
    said = set()
    for _ in range(10):  # threads that start concurrently, or only while another one works, have no fixed number: one run may miss them
        said |= set(refusals(in_cluster))
        if names <= said:
            return
    raise AssertionError("not refused: %s; refused: %s" % (sorted(names - said), sorted(said)))


@test
def thread_start_failure_ends_the_task_with_138_and_is_named():
    expect_refusals(False, {"opens model and data", "trains a replica", "writes files"})


@test
def thread_start_failure_in_a_cluster_ends_the_task_with_138_and_is_named():
    expect_refusals(True, {"opens model and data", "trains a replica", "receives gRPC events", "admits connections"})


@test
def room_for_the_threads_of_grpc_is_missing_the_task_ends_with_138_and_names_it():
    task, = start(digits_job(workdir(), **JOB), 1, "cpu:2", env={"TRAINERD_FAULT": "thread.room"})
    assert task.wait() == 138 and "start the threads of gRPC: Resource temporarily unavailable" in task.final_message(), task.log()


@test
def limit_of_addresses_ends_the_task_with_138_and_is_named_or_suffices():
    """From too few addresses for the first thread to enough for the job; a library that crashes would be a signal."""
    if IS_SANITIZED:
        raise Skip("a sanitizer reserves terabytes of addresses")
    codes = set()
    for mib in range(100, 240, 18):
        task, = start(digits_job(workdir(), **JOB), 1, "cpu:2", prefix=("prlimit", f"--as={mib << 20}"))
        code = task.wait()
        assert code == 0 or code == 138 and "RLIMIT_AS (ulimit -v) is" in task.final_message(), (mib, code, task.log())
        codes.add(code)
    assert codes == {0, 138}, codes


@test
def limit_of_the_stack_is_raised_or_ends_the_program_with_2():
    task, = start(digits_job(workdir(), **JOB), 1, "cpu:2", prefix=("prlimit", "--stack=65536:2000000"))
    assert task.wait() == 0, task.log()
    for program, args in ((TRAINERD, ["--job", digits_job(workdir())]), (TRAINERCTL, ["--help"])):
        p = subprocess.run(["prlimit", "--stack=65536:65536", program, *args], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 2 and "RLIMIT_STACK (ulimit -s) is 64.0 KiB, expected at least 256.0 KiB" in p.stderr, p


@test
def start_hangs_the_task_ends_with_138_after_the_deadline():
    job = digits_job(workdir(), **{**JOB, "train": {**JOB["train"], "deadline_seconds": 1}})
    task, = start(job, 1, "cpu:2", env={"TRAINERD_FAULT": "thread.room=hang"})
    task.until(lambda t: t.events("plan"))
    task.signal(signal.SIGTERM)  # no loop runs that could handle it
    assert task.wait() == 138 and any("the start exceeded 2 s in the control plane" in line for line in task.lines), task.log()


if __name__ == "__main__":
    main()
