#!/usr/bin/python3
"""Output for users and their tools: metrics, curves, logs, a local cluster."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import urllib.request

from kit import (BUILD, GUARD, ROOT, TRAINERCTL, Task, await_process, digits_job, expect_codes, free_ports, main, test, wait_until,
                 workdir)


@test
def metrics_prometheus_text_is_served_and_updated():
    job = digits_job(workdir(), train={"epochs": 1000})
    port = free_ports(1)[0]
    task = Task(job, args=("--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % port))
    task.until_step(20)

    def get(path):
        with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=GUARD) as r:
            return r.read().decode()

    def steps(text):
        return float(re.search(r"^trainerd_steps_total ([0-9.e+]+)$", text, re.M).group(1))

    text = get("/metrics")
    assert steps(text) > 0, text
    wait_until(lambda: steps(get("/metrics")) > steps(text))
    for line in text.splitlines():
        assert re.match(r"^(# (HELP|TYPE) \w+ .+|\w+(\{[^}]*\})? (-?[0-9.e+-]+|\+Inf|-Inf|NaN))$", line), line
    status = json.loads(get("/status"))
    assert status["phase"] in ("train", "evaluate") and status["step"] > 0, status
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])


@test
def curves_are_in_the_event_file():
    folder = workdir()
    job = digits_job(folder, train={"epochs": 2, "log_every_steps": 5})
    task = Task(job, args=("--devices", "cpu:1"))
    expect_codes([task], [0])
    logs = os.path.join(folder, "run", "logs")
    names = os.listdir(logs)
    assert len(names) == 1 and names[0].startswith("events.out.tfevents."), names
    points = {}
    out = subprocess.run([sys.executable, os.path.join(ROOT, "test", "metrics", "read_events.py"), logs],
                         capture_output=True, text=True, check=True).stdout
    for e in map(json.loads, out.splitlines()):
        for tag, value in e.get("summary", {}).items():
            if tag.startswith("_hparams_/"):
                continue
            points.setdefault(tag, {})[e["step"]] = value
    said = task.steps()
    assert sorted(points) == ["eval/accuracy", "eval/loss", "gradient_norm", "learning_rate", "loss", "samples_per_second"], sorted(points)
    for k, r in said.items():
        assert abs(points["loss"][k] - r["loss"]) < 1e-6 * abs(r["loss"]), k


@test
def local_cluster_restarts_a_killed_task_and_completes():
    folder = workdir()
    job = digits_job(folder, train={"epochs": 30, "lanes": 2}, checkpoint={"every_steps": 20})
    p = subprocess.Popen([TRAINERCTL, "local", "-n", "2", "--devices", "cpu:1", job], stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "TRAINERD_FAULT": "train.forward=delay:2@1+"})
    lines, killed = [], False
    try:
        for line in p.stderr:
            lines.append(line)
            if not killed and re.search(r"worker 0 \| .*step 1[0-9]0 of", line):
                pids = subprocess.run(["pgrep", "-P", str(p.pid)], capture_output=True, text=True).stdout.split()
                os.kill(int(pids[1]), signal.SIGKILL)
                killed = True
        code = await_process(p)
    finally:
        p.kill()
    text = "".join(lines)
    assert killed and code == 0, text[-3000:]
    assert "restarting" in text and "resuming after step" in text and "complete on all 2 tasks" in text, text[-3000:]


@test
def local_cluster_ctrl_c_saves_and_ends_all_tasks():
    folder = workdir()
    job = digits_job(folder, train={"epochs": 10000, "lanes": 2})
    p = subprocess.Popen([TRAINERCTL, "local", "-n", "2", "--devices", "cpu:1", job], stderr=subprocess.PIPE, text=True)
    try:
        for line in p.stderr:
            if "step 100 of" in line:
                break
        p.send_signal(signal.SIGINT)
        rest = p.stderr.read()
        assert await_process(p) == 143, rest
    finally:
        p.kill()
    assert rest.count("state saved") >= 1, rest
    out = subprocess.run([TRAINERCTL, "verify", os.path.join(folder, "run", "checkpoints")], capture_output=True, text=True)
    assert out.returncode == 0, out.stdout


@test
def local_lines_have_the_name_once_and_a_short_time_on_a_terminal():
    job = digits_job(workdir(), train={"steps": 30, "epochs": None, "log_every_steps": 10})
    command = [TRAINERCTL, "local", "-n", "2", "--devices", "cpu:1", job]
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 80, 0, 0))
    p = subprocess.Popen(command, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while select.select([master], [], [], GUARD)[0]:
            data = os.read(master, 65536)
            if not data:
                break
            shown += data
    except OSError:  # the other end is closed
        pass
    finally:
        assert await_process(p) == 0
        os.close(master)
    lines = re.findall(r"worker [01] \| .*", shown.decode())
    steps = [line for line in lines if re.search(r"  step \d+ of 30, ", line)]
    assert len(steps) >= 3, lines
    for line in lines:
        assert re.match(r"worker [01] \| \d\d:\d\d:\d\d (INFO |WARN ) (?!worker)", line), line
    for line in steps:
        assert len(line.rstrip()) <= 2 * 80, line
    os.rename(os.path.join(os.path.dirname(job), "run"), os.path.join(os.path.dirname(job), "earlier"))
    text = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True).stderr
    lines = re.findall(r"^worker [01] \| .*$", text, re.M)
    assert len(lines) > 6, text
    for line in lines:
        assert re.match(r"worker [01] \| \d{4}-\d\d-\d\dT[\d:.]{12}Z (INFO |WARN ) (?!worker)", line), line


@test
def terminal_has_one_progress_line():
    job = digits_job(workdir(), train={"epochs": 40, "log_every_steps": 1000000})
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 140, 0, 0))
    p = subprocess.Popen([os.path.join(BUILD, "trainerd"), "--job", job, "--devices", "cpu:1"], stderr=slave)
    os.close(slave)
    seen = b""
    try:
        while True:
            if not select.select([master], [], [], GUARD)[0]:
                break
            data = os.read(master, 65536)
            if not data:
                break
            seen += data
    except OSError:  # the other end is closed
        pass
    finally:
        assert await_process(p) == 0
        os.close(master)
    text = seen.decode()
    assert re.search(r"step \d+/880  epoch \d+  loss [\d.e-]+  [\d.]+ samples/s  ETA .+data \d+% compute \d+% reduction \d+%", text), text[-2000:]


@test
def memory_over_ten_thousand_steps_stays_constant():
    job = digits_job(workdir(), train={"epochs": None, "steps": 10000, "lanes": 1, "global_batch_size": 4, "log_every_steps": 100,
                                       "eval_every_epochs": 0}, checkpoint=None, export=None,
                     model={"metrics": None}, data={"eval": None})
    task = Task(job, args=("--devices", "cpu:1"))

    def resident():
        with open("/proc/%d/status" % task.p.pid) as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))

    task.until_step(1000)
    early = resident()
    task.until_step(9500)
    late = resident()
    assert late - early <= 256, "grew by %d KiB" % (late - early)
    expect_codes([task], [0])


if __name__ == "__main__":
    main()
