#!/usr/bin/python3
"""The log of a task whose stderr is the journal of systemd. Two sockets stand for the journal: the stream to which systemd
connects stderr, and the socket for entries with fields."""
# san: yes
import json
import os
import re
import socket
import struct
import subprocess

from kit import GUARD, TRAINERD, digits_job, enter_namespaces, free_ports, main, need_namespaces, test, tf_config, workdir

SOCKET = "/run/systemd/journal/socket"


def run(args=(), env=None, is_journal=True, job=None):
    """Runs one task that has a warning (no token); returns the lines of its stderr."""
    job = job or digits_job(workdir(), train={"epochs": 1, "lanes": 2})
    ours, theirs = socket.socketpair()
    s = os.fstat(theirs.fileno())
    e = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_")}
    e["TF_CONFIG"] = json.dumps(tf_config(free_ports(1), 0))
    e["JOURNAL_STREAM"] = "%d:%d" % (s.st_dev, s.st_ino + (0 if is_journal else 1))
    e.update(env or {})
    p = subprocess.Popen([TRAINERD, "--job", job, "--devices", "cpu:1", "--bind", "any", "--insecure", *args], env=e, stderr=theirs)
    theirs.close()
    ours.settimeout(GUARD)
    text = b""
    while True:
        got = ours.recv(65536)
        if not got:
            break
        text += got
    p.wait(GUARD)
    return text.decode().splitlines()


def fields_of(datagram):
    """Parses an entry: NAME=value lines, and NAME, length, value for a value with line breaks."""
    out = {}
    while datagram:
        line, datagram = datagram.split(b"\n", 1)
        if b"=" in line:
            name, value = line.split(b"=", 1)
        else:
            name = line
            n = struct.unpack("<Q", datagram[:8])[0]
            value, datagram = datagram[8:8 + n], datagram[9 + n:]
        out[name.decode()] = value.decode()
    return out


def received(s):
    out = []
    while True:
        try:
            out.append(s.recv(1 << 20))
        except BlockingIOError:
            return out


def check_priorities(lines, level):
    """Compares the prefix of each line with its level; level(line) returns debug, info, warn or error."""
    numbers = {"debug": "<7>", "info": "<6>", "warn": "<4>", "error": "<3>"}
    found = set()
    for line in lines:
        name = level(line)
        assert line.startswith(numbers[name]), line
        found.add(name)
    assert found >= {"info", "warn"}, found


@test
def journal_stream_lines_begin_with_their_priority():
    need_namespaces()  # without the socket of the journal
    check_priorities(run(), lambda line: re.search(r"Z (\w+) +worker 0: ", line).group(1).lower())
    check_priorities(run(("--log-format", "json")), lambda line: json.loads(line[3:])["level"])


@test
def journal_stream_invalid_job_is_an_error():
    job = digits_job(workdir(), train={"epochs": -1})
    for args in ((), ("--log-format", "json"), ("--no-such-flag",)):
        lines = run(args, job=job)
        assert lines and lines[-1].startswith("<3>"), lines


@test
def journal_lines_of_another_stderr_have_no_prefix():
    for env in ({}, {"JOURNAL_STREAM": ""}, {"JOURNAL_STREAM": "8"}):
        lines = run(env=env, is_journal=False)
        assert lines and all(re.match(r"\d{4}-\d\d-\d\dT", line) for line in lines), lines


@test
def journal_socket_receives_priority_message_and_fields():
    need_namespaces()
    os.makedirs(os.path.dirname(SOCKET), exist_ok=True)
    with open("/proc/sys/net/unix/max_dgram_qlen", "w") as f:  # of this network namespace
        f.write("4096")
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    s.bind(SOCKET)
    s.setblocking(False)
    try:
        assert run() == []
        entries = [fields_of(e) for e in received(s)]
        for e in entries:
            assert e["SYSLOG_IDENTIFIER"] == "trainerd" and e["MESSAGE"] and e["PRIORITY"] in "3467", e
            assert all(re.match(r"[A-Z][A-Z0-9_]*$", name) for name in e), e
        warning = [e for e in entries if e["TRAINERD_EVENT"] == "tls"]
        assert len(warning) == 1 and warning[0]["PRIORITY"] == "4" and warning[0]["TRAINERD_TASK"] == "worker 0", warning
        steps = [e for e in entries if e["TRAINERD_EVENT"] == "step"]
        assert steps and steps[-1]["TRAINERD_STEP"] == "22" and float(steps[-1]["TRAINERD_LOSS"]) > 0, steps
        assert steps[-1]["PRIORITY"] == "6" and steps[-1]["MESSAGE"].startswith("step 22 of 22"), steps
        assert entries[-1]["TRAINERD_EVENT"] == "end", entries[-1]
        # JSON lines stay on stderr: a program parses them
        assert run(("--log-format", "json")) and not received(s)
    finally:
        s.close()
        os.unlink(SOCKET)


if __name__ == "__main__":
    enter_namespaces()
    main()
