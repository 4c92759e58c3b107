#!/usr/bin/python3
"""`trainerctl explain` agrees with the exit codes of real processes and with `trainerd --help`."""
import re
import signal
import subprocess

from kit import SLOW, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, main, test, workdir


def ctl(*args, codes=(0,)):
    p = subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode in codes, (args, p.returncode, p.stdout, p.stderr)
    return p


@test
def explain_knows_the_codes_that_a_process_can_end_with():
    job = digits_job(workdir(), train={"epochs": 100000})
    task = Task(job, args=("--devices", "cpu:1"))
    task.until_step(5)
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    assert ctl("explain", "143").stdout == ctl("explain", "SIGTERM").stdout == ctl("explain", "sigint").stdout
    assert ctl("explain", "143").stdout.startswith("143: stopped by SIGTERM")
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "train.forward=kill@5"})
    assert task.wait() == -signal.SIGKILL
    assert ctl("explain", "KILL").stdout == ctl("explain", "137").stdout != ""
    for name in ("SIGUSR1", "SIGXCPU"):
        assert "signal %d (%s" % (getattr(signal, name), name) in ctl("explain", name).stdout
    for wrong in ("9", "1", "300", "SIGNONE", "-1", ""):
        assert "expected an exit code" in ctl("explain", wrong, codes=(2,)).stderr, wrong
    every = ctl("explain").stdout
    for code in (0, 2, 137, 138, 143):
        assert ctl("explain", str(code)).stdout in every
    usage = subprocess.run([TRAINERD, "--help"], capture_output=True, text=True).stdout
    for code in (0, 2, 138, 143):
        assert re.search(r"^.* %d +%s$" % (code, re.escape(re.search(r"^%d: (.*)$" % code, every, re.M).group(1))), usage, re.M), code


if __name__ == "__main__":
    main()
