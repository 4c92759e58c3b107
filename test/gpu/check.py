"""check.py - the tests of kernels as programs, some at a time: with TRAINERD_TEST_CUDA they run on the first GPU."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import time

from place import ROOT

PROGRAM_SECONDS = 240
AT_A_TIME = 6  # they share the GPU, and each takes half a GiB of it
# Under the checkers of memory and of races: a few that reach most kinds of kernels.
SANITIZED = (("memcheck", "test_row_norm", "test_softmax", "test_reduce", "test_gather", "test_losses", "test_batch_norm",
              "test_optim_cuda"), ("racecheck", "test_row_norm", "test_softmax", "test_reduce", "test_batch_norm"))
SANITIZER = "/usr/local/cuda/bin/compute-sanitizer"
REASON = re.compile(r"^\[  ERROR|^\[   LINE|: not so: |^\[  FAILED  \] [^0-9]|^=========\s+\S.*(error|hazard|Invalid)|"
                    r"error while loading", re.M)


class Ran:
    """A program that ended, or had to be ended."""

    def __init__(self, name, seconds, code, text):
        self.name, self.seconds, self.code, self.text = name, seconds, code, text
        self.passed = len(re.findall(r"^\[       OK \]", text, re.M))
        self.skipped = len(re.findall(r"^\[  SKIPPED \] [^0-9]", text, re.M))
        self.failed = sum(map(int, re.findall(r"^\[  FAILED  \] (\d+) test\(s\), listed below", text, re.M)))
        if self.failed == 0 and (code != 0 or self.passed + self.skipped == 0):
            self.failed = 1

    def why(self):
        lines = [line.strip() for line in self.text.splitlines() if REASON.search(line)]
        return (lines or self.text.splitlines()[-2:] or ["no output"])[:3] + (
            ["ended by the limit of time"] if self.code is None else ["exit code %d" % self.code])


def run_one(name, cmd, env, seconds):
    begin = time.monotonic()
    try:
        p = subprocess.run(cmd, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           timeout=max(1, seconds))
        code, text = p.returncode, p.stdout
    except subprocess.TimeoutExpired as e:
        code, text = None, e.stdout or b""
    return Ran(name, time.monotonic() - begin, code, text.decode("utf-8", "replace"))


def run_all(jobs, env, deadline, at_a_time, log):
    """jobs: [(name, command)]"""
    def one(job):
        left = deadline - time.monotonic()
        if left < 1:
            return Ran(job[0], 0, None, "no time was left to begin")
        return run_one(*job, env, min(left, PROGRAM_SECONDS))

    out = []
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        for ran in pool.map(one, jobs):
            log.write("==== %s: %.1f s, exit code %s\n%s\n" % (ran.name, ran.seconds, ran.code, ran.text))
            log.flush()
            out.append(ran)
    return out


def result(ran):
    """(passed, sentence, lines about what failed)"""
    bad = [r for r in ran if r.failed]
    text = "%d programs, %d tests passed, %d failed, %d skipped" % (
        len(ran), sum(r.passed for r in ran), sum(r.failed for r in ran), sum(r.skipped for r in ran))
    return not bad and bool(ran), text, ["%s: %s" % (r.name, line[:240]) for r in bad for line in r.why()]


def wanted(place, words):
    return [name for name in place.tests() if not words or any(w in name for w in words)]


def check(place, deadline, log, words):
    env = place.env(TRAINERD_TEST_CUDA="1", BUILD=os.path.relpath(place.build))
    if place.emulated:
        env["EMULATED_GPUS"] = "2"
    jobs = [(name, [place.program(name)]) for name in wanted(place, words)]
    return result(run_all(jobs, env, deadline, 2 if place.emulated else AT_A_TIME, log))


def sanitize(place, deadline, log, words):
    tool = shutil.which("compute-sanitizer") or (SANITIZER if os.path.exists(SANITIZER) else None)
    if place.emulated or tool is None:
        return True, "not run: %s" % ("there is no GPU" if place.emulated else "compute-sanitizer is not here"), []
    there = {os.path.basename(name): name for name in wanted(place, words)}
    jobs = [("%s %s" % (what, name), [tool, "--tool", what, "--target-processes", "all", "--error-exitcode", "9",
                                      place.program(there[name])])
            for what, *names in SANITIZED for name in names if name in there]
    return result(run_all(jobs, place.env(TRAINERD_TEST_CUDA="1"), deadline, 3, log))
