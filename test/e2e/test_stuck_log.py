#!/usr/bin/python3
"""Blocked stderr (Ctrl-S, a pager, a stuck journal), and closed standard files: the job completes nevertheless."""
import fcntl
import json
import os
import shutil
import subprocess
import threading

from kit import GUARD, TRAINERCTL, TRAINERD, Gate, await_process, digits_job, main, test, wait_until, workdir

F_SETPIPE_SZ = 1031


@test
def stderr_blocked_job_completes_and_written_lines_are_whole():
    job = digits_job(workdir(), train={"epochs": 50, "log_every_steps": 1, "eval_every_epochs": 0})
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
    p = subprocess.Popen([TRAINERD, "--job", job, "--devices", "cpu:1", "--log-format", "json"], env=env, stdout=subprocess.DEVNULL,
                         stderr=writer)
    os.close(writer)
    try:
        assert await_process(p) == 0
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
    text = os.read(reader, 1 << 20).decode()
    os.close(reader)
    lines = text.splitlines(True)
    assert len(lines) > 3 and all(json.loads(line) for line in lines if line.endswith("\n")), text


@test
def stderr_unblocked_log_states_the_number_of_lost_lines():
    job = digits_job(workdir(), train={"epochs": 50, "log_every_steps": 1, "eval_every_epochs": 0})
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
    late, read = Gate(), Gate()  # many lines are lost; they are read before the export
    env["TRAINERD_FAULT"] = "train.forward=touch:%s@900,%s" % (late.path, read.fault("train.export"))
    p = subprocess.Popen([TRAINERD, "--job", job, "--devices", "cpu:1", "--log-format", "json"], env=env, stdout=subprocess.DEVNULL,
                         stderr=writer)
    os.close(writer)
    chunks = []
    thread = threading.Thread(target=lambda: [chunks.append(c) for c in iter(lambda: os.read(reader, 65536), b"")])
    try:
        wait_until(lambda: os.path.exists(late.path))
        thread.start()
        wait_until(lambda: b"were lost" in b"".join(chunks))
        read.open()
        assert await_process(p) == 0
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        thread.join(GUARD)
    os.close(reader)
    records = [json.loads(line) for line in b"".join(chunks).decode().splitlines()]
    steps = [r for r in records if r["event"] == "step"]
    lost = sum(int(r["message"].split()[0]) for r in records if "were lost" in r["message"])
    last = max(r["step"] for r in steps)
    assert len(steps) + lost >= last, (len(steps), lost, last)


@test
def standard_files_closed_job_completes_and_no_log_line_is_in_its_files():
    folder = workdir()
    job = digits_job(folder, train={"epochs": 1, "log_every_steps": 1, "eval_every_epochs": 0})
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
    for closed in ("2>&-", "0<&- 1>&- 2>&-"):
        shutil.rmtree(os.path.join(folder, "run"), ignore_errors=True)
        p = subprocess.Popen(["sh", "-c", 'exec "$0" --job "$1" --devices cpu:1 ' + closed, TRAINERD, job], env=env)
        assert await_process(p) == 0, closed
        for base, _, names in os.walk(os.path.join(folder, "run")):
            for name in names:
                with open(os.path.join(base, name), "rb") as f:
                    assert b" INFO " not in f.read(), (closed, name)
        p = subprocess.run(["sh", "-c", 'exec "$0" verify "$1" 2>&-', TRAINERCTL, os.path.join(folder, "run", "checkpoints")],
                           capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0, p.stdout


if __name__ == "__main__":
    main()
