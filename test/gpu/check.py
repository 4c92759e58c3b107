"""check.py - runs the test programs of the kernels, several at a time. TRAINERD_TEST_CUDA makes them use the first GPU."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import time

from place import ROOT

PROGRAM_SECONDS = 240  # limit of one program
CONCURRENT_PROGRAMS = 6  # programs that share the GPU; each allocates half a GiB of its memory
# (tool of compute-sanitizer, test programs...). The chosen programs reach most kinds of kernels.
SANITIZED = (("memcheck", "test_row_norm", "test_softmax", "test_reduce", "test_gather", "test_losses", "test_batch_norm",
              "test_optim_cuda", "test_code_cuda", "test_residual_cuda"),
             ("racecheck", "test_row_norm", "test_softmax", "test_reduce", "test_batch_norm", "test_residual_cuda"))
SANITIZER = "/usr/local/cuda/bin/compute-sanitizer"
FAILURE_LINE = re.compile(r"^\[  ERROR|^\[   LINE|: not so: |^\[  FAILED  \] [^0-9]|^=========\s+\S.*(error|hazard|Invalid)|"
                    r"error while loading", re.M)


class Result:
    """The result of a program. code: its exit code; None: the time limit ended it."""

    def __init__(self, name, seconds, code, text):
        self.name, self.seconds, self.code, self.text = name, seconds, code, text
        self.passed = len(re.findall(r"^\[       OK \]", text, re.M))
        self.skipped = len(re.findall(r"^\[  SKIPPED \] [^0-9]", text, re.M))
        self.failed = sum(map(int, re.findall(r"^\[  FAILED  \] (\d+) test\(s\), listed below", text, re.M)))
        if self.failed == 0 and (code != 0 or self.passed + self.skipped == 0):
            self.failed = 1

    def failure_lines(self):
        lines = [line.strip() for line in self.text.splitlines() if FAILURE_LINE.search(line)]
        return (lines or self.text.splitlines()[-2:] or ["no output"])[:3] + (
            ["ended by the time limit"] if self.code is None else ["exit code %d" % self.code])


def run_one(name, cmd, env, seconds):
    begin = time.monotonic()
    try:
        p = subprocess.run(cmd, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=max(1, seconds))
        code, text = p.returncode, p.stdout
    except subprocess.TimeoutExpired as e:
        code, text = None, e.stdout or b""
    return Result(name, time.monotonic() - begin, code, text.decode("utf-8", "replace"))


def run_all(jobs, env, deadline, at_a_time, log):
    """Runs the jobs [(name, command)], at most `at_a_time` of them at once, and returns a list of Result."""
    def one(job):
        left = deadline - time.monotonic()
        if left < 1:
            return Result(job[0], 0, None, "not started: no time left")
        return run_one(*job, env, min(left, PROGRAM_SECONDS))

    out = []
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as pool:
        for ran in pool.map(one, jobs):
            log.write("==== %s: %.1f s, exit code %s\n%s\n" % (ran.name, ran.seconds, ran.code, ran.text))
            log.flush()
            out.append(ran)
    return out


def result(ran):
    """Returns (passed, summary, lines about the failures)."""
    bad = [r for r in ran if r.failed]
    text = "%d programs, %d tests passed, %d failed, %d skipped" % (
        len(ran), sum(r.passed for r in ran), sum(r.failed for r in ran), sum(r.skipped for r in ran))
    return not bad and bool(ran), text, ["%s: %s" % (r.name, line[:240]) for r in bad for line in r.failure_lines()]


def wanted(place, words):
    return [name for name in place.tests() if not words or any(w in name for w in words)]


def check(place, deadline, log, words):
    env = place.env(TRAINERD_TEST_CUDA="1", BUILD=os.path.relpath(place.build))
    if place.emulated:
        env["EMULATED_GPUS"] = "2"
    jobs = [(name, [place.program(name)]) for name in wanted(place, words)]
    return result(run_all(jobs, env, deadline, 2 if place.emulated else CONCURRENT_PROGRAMS, log))


def sanitize(place, deadline, log, words):
    tool = shutil.which("compute-sanitizer") or (SANITIZER if os.path.exists(SANITIZER) else None)
    if place.emulated or tool is None:
        return True, "not run: %s" % ("there is no GPU" if place.emulated else "compute-sanitizer not found"), []
    programs = {os.path.basename(name): name for name in wanted(place, words)}
    jobs = [("%s %s" % (what, name),
             [tool, "--tool", what, "--error-exitcode", "9", place.without_start_script(programs[name])[0]])
            for what, *names in SANITIZED for name in names if name in programs]
    env = dict(place.without_start_script("trainerd")[1], TRAINERD_TEST_CUDA="1")
    return result(run_all(jobs, env, deadline, 3, log))
