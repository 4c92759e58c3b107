#!/usr/bin/python3
"""`trainerctl top | logs | events | trace | explain`: what they print agrees with the logs and traces of the tasks."""
import json
import os
import pty
import re
import select
import signal
import subprocess

from kit import (GUARD, Skip, TRAINERCTL, TRAINERD, Task, digits_job, expect_codes, free_ports, main, test, tf_config, wait_until,
                 workdir)
from trace_file import EPSILON, tree

SLOWER = {"TRAINERD_FAULT": "train.forward=delay:2@1+"}
AHEAD = 5000  # seconds by which the clock of a task in a time namespace is ahead


def ctl(*args, codes=(0,)):
    p = subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode in codes, (args, p.returncode, p.stdout, p.stderr)
    return p


def start(folder, n, args=None, prefix=lambda i: (), **changes):
    job = digits_job(folder, **{"train": {"epochs": 100000, "lanes": 6, "global_batch_size": 60},
                                "checkpoint": {"every_steps": 50}, "elastic": {"min_world": 1, "rejoin_seconds": 0.5},
                                **changes})
    ports, tasks = free_ports(n), []
    for i in range(n):
        more = args(i) if args else ()
        tasks.append(Task(job, tf_config(ports, i), ("--devices", "cpu:1", *more), SLOWER, "worker %d" % i, prefix=prefix(i)))
        tasks[i].address, tasks[i].job, tasks[i].ports = "127.0.0.1:%d" % ports[i], job, ports
    return tasks


def own_messages(task, shown):
    return [r["message"] for r in shown if r["task"] == task.name]


@test
def logs_of_all_tasks_are_those_of_their_logs_in_the_order_of_time():
    tasks = start(workdir(), 2)
    tasks[0].until(lambda t: t.events("checkpoint"))
    for t in tasks:
        t.signal(signal.SIGSTOP)  # no record is added while the two are compared ...
    for t in tasks:
        t.signal(signal.SIGCONT)
    p = ctl("logs", "--lines", "1000", "--json", tasks[1].address)
    shown = [json.loads(line) for line in p.stdout.splitlines()]
    assert [r["time"] for r in shown] == sorted(r["time"] for r in shown)
    assert {r["task"] for r in shown} == {"worker 0", "worker 1"}
    for t in tasks:
        mine = own_messages(t, shown)
        wait_until(lambda: len(t.records) >= len(mine))
        written = [r["message"] for r in t.records]
        assert mine == written[:len(mine)], (mine, written[:len(mine)])  # ... so each is a beginning of the log
    assert any(r["event"] == "step" for r in shown)
    events = [json.loads(line) for line in ctl("events", "--json", tasks[0].address).stdout.splitlines()]
    assert {"view", "start", "checkpoint"} <= {r["event"] for r in events}
    assert not {"step", "eval", "note"} & {r["event"] for r in events}
    text = ctl("events", "--lines", "3", tasks[0].address).stdout.splitlines()
    assert len(text) == 3 and all(re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z (INFO |WARN |ERROR) worker \d: ", x) for x in text), text


@test
def event_that_one_other_task_logs_twice_names_it_once():
    tasks = start(workdir(), 2)
    tasks[0].until_step(2)
    for t, n in ((tasks[0], 1), (tasks[1], 1), (tasks[1], 2)):
        t.signal(signal.SIGHUP)
        t.until(lambda t: len(t.events("reload")) == n)
    found = [x for x in ctl("events", tasks[0].address).stdout.splitlines() if "no key changed" in x]
    assert len(found) == 1 and found[0].endswith(" (also worker 1)"), found


@test
def events_of_the_group_are_printed_once():
    tasks = start(workdir(), 3)
    tasks[0].until_step(20)
    tasks[2].kill()
    for t in tasks[:2]:
        t.until(lambda t: any(r["tasks"] == 2 for r in t.events("view")))
    text = ctl("events", tasks[1].address, codes=(0,)).stdout
    found = [line for line in text.splitlines() if "was lost" in line and " WARN " in line]
    assert len(found) == 1 and re.search(r" worker ([01]): worker 2 .*was lost: its connection closed \(also worker (?!\1)[01]\)$", found[0]), text
    assert len(re.findall(r"generation \d+: 2 of 3 tasks", text)) == 1, text
    events = [json.loads(line) for line in ctl("events", "--json", tasks[0].address, codes=(0,)).stdout.splitlines()]
    assert [r["other_tasks"] for r in events if r["level"] == "warn" and "was lost" in r["message"]] == [1], events
    logs = [json.loads(line) for line in ctl("logs", "--json", "--lines", "10000", tasks[0].address, codes=(0,)).stdout.splitlines()]
    assert len([r for r in logs if r["level"] == "warn" and "was lost" in r["message"]]) == 2, logs


@test
def events_follow_shows_the_loss_of_a_task_and_its_next_process():
    tasks = start(workdir(), 3)
    tasks[0].until_step(20)
    p = subprocess.Popen([TRAINERCTL, "events", "--follow", tasks[0].address], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        os.set_blocking(p.stdout.fileno(), False)
        seen = []

        def has(pattern):
            seen.append(p.stdout.read() or b"")
            return re.search(pattern, b"".join(seen).decode())

        wait_until(lambda: has(r"worker \d: generation \d+: 3 of 3 tasks"))
        tasks[2].kill()
        wait_until(lambda: has(r"WARN  worker [01]: worker 2 .* was lost: its connection closed"))
        Task(tasks[0].job, tf_config(tasks[0].ports, 2), ("--devices", "cpu:1"), SLOWER, "worker 2")
        wait_until(lambda: has(r"worker 2: trainerd .*\n(.*\n)*.*worker 2: trainerd "))  # the new process numbers from 1
        lines = b"".join(seen).decode().splitlines()
        assert len(lines) == len(set(lines)), "a record was printed twice"
        p.send_signal(signal.SIGINT)
        p.wait(GUARD)
        errors = p.stderr.read().decode()
        # The loss is reported once, unless the next process answered before it was asked again.
        assert errors.count("worker 2: Logs of ") <= 1 and "worker 0" not in errors, errors
    finally:
        p.kill()
        p.wait()
        p.stdout.close()
        p.stderr.close()


@test
def top_shows_every_task_from_any_task():
    tasks = start(workdir(), 3)
    tasks[0].until_step(60)
    tasks[0].until(lambda t: any(r["tasks"] == 3 for r in t.events("view")))
    tasks[2].kill()
    text = wait_until(lambda: (lambda s: s if re.search(r"worker 2 +missing .*Connection refused", s) and "2 of 3 tasks" in s and
                          len(re.findall(r"^worker [01] .* % .* % ", s, re.M)) == 2 else None)(ctl("top", "--once", tasks[1].address).stdout))
    assert "\x1b" not in text and re.match(r"digits  generation \d+: 2 of 3 tasks, leading", text), text
    rows = {m.group(1): m.group(0) for m in re.finditer(r"^(worker \d) .*$", text, re.M)}
    assert set(rows) == {"worker 0", "worker 1", "worker 2"}
    for name in ("worker 0", "worker 1"):
        shares = [int(x) for x in re.findall(r"(\d+) %", rows[name])]
        assert len(shares) == 4 and 97 <= sum(shares) <= 103 and " active " in rows[name], rows[name]
    assert {re.search(r" 1/(\d)$", rows[n]).group(1) for n in ("worker 0", "worker 1")} == {"2", "4"}, rows  # 6 lanes


@test
def top_on_a_terminal_draws_until_q_and_restores_it():
    tasks = start(workdir(), 2)
    tasks[0].until_step(20)
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(TRAINERCTL, [TRAINERCTL, "top", tasks[0].address])
    try:
        seen = b""
        while seen.count(b"\x1b[H") < 2:
            assert select.select([fd], [], [], GUARD)[0], seen
            seen += os.read(fd, 65536)
        os.write(fd, b"q")
        while b"\x1b[?1049l" not in seen:
            assert select.select([fd], [], [], GUARD)[0], seen
            seen += os.read(fd, 65536)
        assert os.waitpid(pid, 0)[1] == 0
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(fd)
    assert seen.startswith(b"\x1b[?1049h\x1b[?25l") and b"\x1b[?25h" in seen
    plain = re.sub(rb"\x1b\[[?0-9]*[A-Za-z]", b"", seen).decode()
    assert "worker 1" in plain and max(len(x) for x in plain.split("\r\n")) <= 80 * 2  # 80 columns; two screens may meet


def read_spans(path):
    """Returns {task: {step: (begin, end)}} of the first replicas; checks what every trace promises."""
    with open(path) as f:
        document = json.load(f)
    events = document["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert len(names) == len(set(names.values())), names
    rows = {}
    for e in events:
        if e["ph"] == "X":
            assert e["ts"] >= 0 and e["dur"] >= 0, e
            rows.setdefault((names[e["pid"]], e["tid"]), []).append(e)
    for spans in rows.values():
        tree(spans)  # spans of a row nest
    steps = {}
    for (name, _), spans in rows.items():
        for s in spans:
            if s["name"] == "step":
                steps.setdefault(name, {})[s["args"]["step"]] = (s["ts"], s["ts"] + s["dur"])
    return document, steps


def check_merged(folder, tasks, file_of):
    for t in tasks:
        t.until(lambda t: t.events("profile"))
    merged = os.path.join(folder, "all.json")
    p = ctl("trace", "--out", merged, tasks[1].address)
    assert "%d of %d tasks" % (len(tasks), len(tasks)) in p.stdout, p.stdout
    document, steps = read_spans(merged)
    assert set(steps) == {t.name for t in tasks}, steps.keys()
    # Each task waits for the others inside a step, so the spans of one step overlap on the common clock.
    for k in steps["worker 0"]:
        begin, end = max(s[k][0] for s in steps.values()), min(s[k][1] for s in steps.values())
        assert begin < end, (k, {name: s[k] for name, s in steps.items()})
    n = 0
    for i, t in enumerate(tasks):
        with open(file_of(i)) as f:
            single = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X"]
        shift = document["otherData"]["clocks"][i]["shift_ns"] / 1000
        mine = [e for e in document["traceEvents"] if e["pid"] == i and e["ph"] == "X"]
        assert len(mine) == len(single) > 100
        for a, b in zip(single, mine):
            assert abs(a["ts"] + shift - b["ts"]) < EPSILON and {**a, "ts": 0, "pid": 0} == {**b, "ts": 0, "pid": 0}, (a, b)
        n += len(mine)
    assert n == sum(e["ph"] == "X" for e in document["traceEvents"])
    return document


def trace_flag(folder):
    return lambda i: ("--trace", os.path.join(folder, "t.json"), "--trace-steps", "8")


@test
def traces_of_all_tasks_are_merged_and_steps_overlap():
    d = workdir()
    tasks = start(d, 3, trace_flag(d))
    document = check_merged(d, tasks, lambda i: os.path.join(d, "t.worker-%d.json" % i))
    assert all(abs(c["shift_ns"]) <= 2 * (c["error_ns"] + document["otherData"]["clocks"][0]["error_ns"])
               for c in document["otherData"]["clocks"]), document["otherData"]  # all read one clock


@test
def traces_of_hosts_with_different_clocks_are_put_on_one_clock():
    unshare = ("unshare", "--time", "--monotonic", str(AHEAD), "--fork", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        raise Skip("this machine does not allow a time namespace (unshare --time)")
    d = workdir()
    tasks = start(d, 2, trace_flag(d), prefix=lambda i: unshare if i == 1 else ())
    document = check_merged(d, tasks, lambda i: os.path.join(d, "t.worker-%d.json" % i))
    shifts = [c["shift_ns"] for c in document["otherData"]["clocks"]]
    assert shifts[0] == 0 and abs(shifts[1] + AHEAD * 10**9) < 10**9, shifts


@test
def trace_without_a_trace_is_refused_and_a_task_without_one_is_left_out():
    d = workdir()
    tasks = start(d, 2, lambda i: trace_flag(d)(i) if i == 0 else ())
    merged = os.path.join(d, "all.json")
    tasks[0].until(lambda t: t.events("profile"))
    p = ctl("trace", "--out", merged, tasks[0].address)
    assert "1 of 2 tasks" in p.stdout and "worker 1 is left out: " in p.stderr and "--trace FILE" in p.stderr, p
    assert set(read_spans(merged)[1]) == {"worker 0"}
    other = start(workdir(), 1, elastic=None)
    other[0].until_step(5)
    p = ctl("trace", "--out", os.path.join(d, "none.json"), other[0].address, codes=(2,))
    assert "no task has written a trace" in p.stderr and not os.path.exists(os.path.join(d, "none.json"))


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
    assert ctl("explain", "SIGUSR1").stdout == ctl("explain", "usr2").stdout == ctl("explain", "143").stdout
    for name in ("SIGXFSZ", "SIGXCPU"):
        assert "signal %d (%s" % (getattr(signal, name), name) in ctl("explain", name).stdout
    for wrong in ("9", "1", "300", "SIGNONE", "-1", ""):
        assert "expected an exit code" in ctl("explain", wrong, codes=(2,)).stderr, wrong
    every = ctl("explain").stdout
    for code in (0, 2, 137, 138, 143):
        assert ctl("explain", str(code)).stdout in every
    usage = subprocess.run([TRAINERD, "--help"], capture_output=True, text=True).stdout
    for code in (0, 2, 138, 143):
        assert re.search(r"^.* %d +%s$" % (code, re.escape(re.search(r"^%d: (.*)$" % code, every, re.M).group(1))), usage, re.M), code


@test
def commands_without_a_task_fail_with_a_reason():
    port = free_ports(1)[0]
    for command in (("top", "--once"), ("logs",), ("events",), ("trace", "--out", os.path.join(workdir(), "x"))):
        p = ctl(*command, "127.0.0.1:%d" % port, codes=(1,))
        assert "Connection refused" in p.stderr and p.stdout == "", p
        ctl(*command, "nonsense", codes=(2,))
        ctl(*command, codes=(2,))


if __name__ == "__main__":
    main()
