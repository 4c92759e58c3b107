#!/usr/bin/python3
"""Messages to the service manager, received on a socket in place of systemd; and whether the unit matches them."""
# san: yes
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from kit import (GUARD, ROOT, Skip, Task, checkpoint_names, digits_job, expect_codes, free_ports, main, need_program, test, tf_config,
                 wait_until, workdir)

SLOWLY = "train.forward=delay:3@1+"


class Manager:
    """Receives messages; collects {variable: value} of each, in order."""

    def __init__(self, watchdog_ms=None):
        self.path = os.path.join(workdir(), "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.env = {"NOTIFY_SOCKET": self.path}
        if watchdog_ms is not None:
            self.env["WATCHDOG_USEC"] = str(watchdog_ms * 1000)
        self.messages = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            text = self.socket.recv(65536).decode()
            assert all("=" in line for line in text.split("\n")), text
            self.messages.append(dict(line.split("=", 1) for line in text.split("\n")))

    def all(self, key):
        return [m[key] for m in list(self.messages) if key in m]

    def order(self, *keys):
        """Returns the messages that have one of the keys, as "KEY=value"."""
        return ["%s=%s" % (k, m[k]) for m in list(self.messages) for k in keys if k in m]

    def until(self, what):
        wait_until(lambda: what(self), lambda: self.messages[-20:])


@test
def service_ready_status_watchdog_reload_and_stop_are_sent_in_order():
    manager = Manager(watchdog_ms=800)
    path = digits_job(workdir(), train={"epochs": 10000, "log_every_steps": 20})
    task = Task(path, args=("--devices", "cpu:1"), env={**manager.env, "TRAINERD_FAULT": SLOWLY})
    task.until_step(20)
    manager.until(lambda m: any(re.match(r"train: step \d+ of 220000 \(0 %\), loss [0-9.]+$", s)
                                for s in m.all("STATUS")))
    ready = manager.all("READY")
    assert len(ready) == 1, ready
    # a quarter of WATCHDOG_USEC, from the start
    manager.until(lambda m: len(m.all("WATCHDOG")) >= 10)

    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    task.signal(signal.SIGHUP)
    manager.until(lambda m: len(m.all("READY")) == 2)
    at = [int(m["MONOTONIC_USEC"]) / 1e6 for m in manager.messages if m.get("RELOADING") == "1"]
    assert len(at) == 1 and before <= at[0] <= time.clock_gettime(time.CLOCK_MONOTONIC), (before, at)
    with open(path, "a") as f:
        f.write("x")
    task.signal(signal.SIGHUP)  # refused: READY follows nevertheless
    manager.until(lambda m: len(m.all("READY")) == 3)

    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    manager.until(lambda m: m.all("STOPPING"))
    assert manager.order("READY", "RELOADING", "STOPPING") == [
        "READY=1", "RELOADING=1", "READY=1", "RELOADING=1", "READY=1", "STOPPING=1"], manager.messages
    manager.until(lambda m: "stopped" in m.all("STATUS")[-1])


@test
def service_waiting_task_extends_the_timeout_and_names_the_missing_tasks():
    manager = Manager()
    ports = free_ports(2)
    path = digits_job(workdir(), train={"deadline_seconds": 5})
    task = Task(path, tf_config(ports, 0), ("--devices", "cpu:1"), manager.env, "worker 0")
    expect_codes([task], [138])
    manager.until(lambda m: m.all("STOPPING"))
    assert not manager.all("READY") and not manager.all("WATCHDOG")
    extended = manager.all("EXTEND_TIMEOUT_USEC")
    assert len(extended) >= 2 and all(int(v) >= 10000000 for v in extended), extended
    assert any(re.match(r"waiting for [34] s, 1 of 2 tasks present; last trouble: waiting: 1 of 2 tasks is missing: "
                        r"worker 1 \(127.0.0.1:\d+\): connect: Connection refused$", s)
               for s in manager.all("STATUS")), manager.all("STATUS")


@test
def service_long_final_save_extends_the_timeout():
    manager = Manager()
    folder = workdir()
    path = digits_job(folder, train={"epochs": 10000, "log_every_steps": 10, "grace_seconds": 60},
                      checkpoint={"every_steps": 0, "every_seconds": 0})
    task = Task(path, args=("--devices", "cpu:1"),
                env={**manager.env, "TRAINERD_FAULT": SLOWLY + ",ckpt.sync=delay:3000@1"})
    task.until_step(10)
    manager.until(lambda m: m.all("READY"))
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    manager.until(lambda m: m.all("STOPPING"))
    stopping = [i for i, m in enumerate(manager.messages) if "STOPPING" in m][0]
    assert any("EXTEND_TIMEOUT_USEC" in m for m in manager.messages[stopping:]), manager.messages
    assert len(checkpoint_names(os.path.join(folder, "run", "checkpoints"))) == 1


@test
def service_complete_job_sends_ready_before_it_ends():
    folder = workdir()
    path = digits_job(folder, train={"epochs": 1})
    expect_codes([Task(path, args=("--devices", "cpu:1"))], [0])
    manager = Manager()
    expect_codes([Task(path, args=("--devices", "cpu:1"), env=manager.env)], [0])
    manager.until(lambda m: m.all("STOPPING"))
    assert manager.order("READY", "STOPPING") == ["READY=1", "STOPPING=1"], manager.messages
    assert "complete" in manager.all("STATUS")[-1]


@test
def service_error_is_the_last_status():
    manager = Manager()
    folder = workdir()
    path = digits_job(folder, model={"inputs": {"image": "y"}})
    expect_codes([Task(path, args=("--devices", "cpu:1"), env=manager.env)], [2])
    manager.until(lambda m: m.all("STOPPING"))
    assert not manager.all("READY")
    assert "has no input 'y'" in manager.all("STATUS")[-1], manager.all("STATUS")


def unit():
    with open(os.path.join(ROOT, "systemd", "trainerd@.service")) as f:
        return dict(line.strip().split("=", 1) for line in f if "=" in line and not line.startswith("#"))


@test
def service_unit_timeouts_exceed_the_shutdown_time():
    with open(os.path.join(ROOT, "config", "job.schema.json")) as f:
        keys = json.load(f)["properties"]
    grace = keys["train"]["properties"]["grace_seconds"]["default"]
    u = unit()
    assert u["Type"] == "notify" and u["ExecReload"] == '/bin/sh -c "kill -HUP $MAINPID"', u
    assert u["SuccessExitStatus"] == "143" and u["RestartPreventExitStatus"] == "2"
    assert u["Restart"] == "on-failure" and u["RestartForceExitStatus"] == "138"
    assert int(u["TimeoutStopSec"]) > 2 * grace and int(u["WatchdogSec"]) > 0 and int(u["TimeoutStartSec"]) > 0



def installed_unit(program):
    """Writes the unit as it is installed; returns its path."""
    path = os.path.join(workdir(), "trainerd@.service")
    with open(os.path.join(ROOT, "systemd", "trainerd@.service")) as f, open(path, "w") as out:
        out.write(f.read().replace("@BINDIR@/trainerd", program).replace("@DATADIR@", "/usr/share/trainerd"))
    return path


@test
def service_unit_has_only_known_settings():
    p = subprocess.run([need_program("systemd-analyze"), "verify", "--man=no", installed_unit("/bin/true")], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0 and p.stderr == "", p.stderr


@test
def service_unit_exposure_is_below_2():
    p = subprocess.run([need_program("systemd-analyze"), "security", "--offline=true", "--no-pager", "--threshold=19", installed_unit("/bin/true")],
                       capture_output=True, text=True, timeout=GUARD)
    if "unrecognized option" in p.stderr:
        raise Skip("this systemd-analyze does not rate unit files")
    assert p.returncode == 0, p.stdout[-200:] + p.stderr


@test
def service_unit_watchdog_exceeds_the_limits_of_the_task():
    """With the default job the task ends by itself before systemd kills it; for a longer deadline it raises the limit."""
    with open(os.path.join(ROOT, "config", "job.schema.json")) as f:
        keys = json.load(f)["properties"]["train"]["properties"]
    own = keys["deadline_seconds"]["default"] + 2 * keys["grace_seconds"]["default"] + 10 + 10
    assert int(unit()["WatchdogSec"]) >= 2 * own, own
    manager = Manager(watchdog_ms=int(unit()["WatchdogSec"]) * 1000)
    path = digits_job(workdir(), train={"deadline_seconds": 300, "epochs": 1}, optimizer={"schedule": {"warmup_steps": 2}})
    expect_codes([Task(path, args=("--devices", "cpu:1"), env=manager.env)], [0])
    manager.until(lambda m: m.all("STOPPING"))
    assert manager.all("WATCHDOG_USEC") == ["%d" % (2e6 * (300 + 2 * keys["grace_seconds"]["default"] + 20))], manager.messages


@test
def service_unit_permanent_temporary_failure_ends():
    """A task that fails with 138 at every start reaches the limit of starts, whether it fails at once or waits for absent
    peers until the deadline."""
    with open(os.path.join(ROOT, "config", "job.schema.json")) as f:
        deadline = json.load(f)["properties"]["train"]["properties"]["deadline_seconds"]["default"]
    u = unit()
    window = int(re.fullmatch(r"(\d+)h", u["StartLimitIntervalSec"]).group(1)) * 3600
    starts = int(u["StartLimitBurst"])
    assert starts * (deadline + int(u["RestartSec"])) < window, (starts, deadline, window)
    assert starts >= 100, starts  # temporary failures do not reach it


if __name__ == "__main__":
    main()
