#!/usr/bin/python3
"""Foreign clients flood the ports of a task while it trains: training continues, no task is named as the cause, and the
memory of the task stays constant."""
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import threading

from kit import GUARD, TRAINERCTL, digits_job, expect_codes, main, merge, start, test, workdir

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = b"\x83\x86\x84\x41\x01x"  # :method POST, :scheme http, :path /, :authority x
GROWTH = 40 << 20  # bytes; without a limit such an attack costs 60 MB a second
STEPS = {"train": {"epochs": 1000, "log_every_steps": 100, "eval_every_epochs": 0}, "checkpoint": {"every_steps": 0}}
SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:5@1+"}


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def resident(pid):
    with open("/proc/%d/statm" % pid) as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid):
    return len(os.listdir("/proc/%d/fd" % pid))


class Attack:
    """Runs `what` in threads against a port until the block ends. Socket errors are expected and ignored."""

    def __init__(self, what, port, threads=1):
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(what, port), daemon=True) for _ in range(threads)]

    def run(self, what, port):
        while not self.over:
            try:
                what(self, port)
            except OSError:
                self.ended.wait()

    @property
    def over(self):
        return self.ended.is_set()

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for t in self.threads:
            t.join(GUARD)


def rapid_reset(attack, port):
    """Opens HTTP/2 streams and resets them immediately."""
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD) as s:
        s.sendall(PREFACE + frame(4, 0, 0))
        stream = 1
        while not attack.over:
            s.sendall(b"".join(frame(1, 4, k, HEADERS) + frame(3, 0, k, struct.pack(">I", 8))
                               for k in range(stream, stream + 400, 2)))
            stream += 400


def junk(attack, port):
    """Sends bytes of no protocol."""
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD) as s:
        s.sendall(random.randbytes(random.randrange(1, 4096)))
        attack.ended.wait()


def idle(attack, port):
    """Opens as many connections as possible and sends nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(6000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) +
                       resource.getrlimit(resource.RLIMIT_NOFILE)[1:])
    kept = []
    try:
        while not attack.over and len(kept) < 5000:
            kept.append(socket.create_connection(("127.0.0.1", port), timeout=GUARD))
        while not attack.over:
            attack.ended.wait()
    finally:
        for s in kept:
            s.close()


def group_of_two(**changes):
    job = digits_job(workdir(), **merge(STEPS, changes))
    tasks = start(job, 2, env=SLOWLY)
    tasks[0].until_step(100)  # only the chief logs steps
    return tasks


def survives(what, threads=1):
    """The attack lasts for 400 steps, which take more than 2 s."""
    tasks = group_of_two()
    before = [resident(t.p.pid) for t in tasks]
    reached = max(tasks[0].steps())
    with Attack(what, tasks[0].port, threads):
        tasks[0].until_step(reached + 400)  # training continues during the attack
        assert descriptors(tasks[0].p.pid) < 1000, descriptors(tasks[0].p.pid)
        during = [resident(t.p.pid) for t in tasks]
        # the task answers requests; the limit of an address is shared with the attack, so the answer may be slow
        p = subprocess.run([TRAINERCTL, "status", "127.0.0.1:%d" % tasks[1].port], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0, p.stderr
    if os.environ.get("VERBOSE"):
        print(what.__name__, [(b - a) >> 10 for a, b in zip(before, during)], "KiB")
    for a, b in zip(before, during):
        assert b - a < GROWTH, "grew by %.0f MiB" % ((b - a) / (1 << 20))
    p = subprocess.run([TRAINERCTL, "stop", "127.0.0.1:%d" % tasks[0].port], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    expect_codes(tasks, [143, 143])
    for t in tasks:
        gone = [r["message"] for r in t.events("group") if "removed" in r["message"] or "left" in r["message"]]
        assert not gone, gone


@test
def stream_reset_flood_costs_no_memory_and_no_member():
    survives(rapid_reset, threads=4)


@test
def idle_connection_flood_does_not_exhaust_the_descriptors():
    survives(idle)


@test
def junk_bytes_on_the_control_port_are_dropped():
    survives(junk, threads=4)


if __name__ == "__main__":
    main()
