"""kit.py - starts real trainerd tasks on loopback and examines their logs and files.

Every process started here is ended here, by its id, also if a test fails. A test file is a list of functions decorated
with @test; main() runs them, prints a line for each test ("ok - ...", "not ok - ..." or "skip - ...: reason"), and
"N passed, N failed" at the end, followed by ", N skipped" if a test raised Skip. No library of the project is used: logs
are parsed as JSON lines, and files have independent readers.
"""
import collections
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
TRAINERD = os.path.join(BUILD, "trainerd")
TRAINERCTL = os.path.join(BUILD, "trainerctl")
# Folders are created in memory if there is room, because the load of a disk must not influence a test.
FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2 << 30 else None


IS_SANITIZED = "san" in os.path.basename(BUILD)
GUARD = 60 * (4 if IS_SANITIZED else 1)  # seconds: ends a wait that would never end, and proves nothing


class Guard:
    """Ends a wait that would never end: GUARD seconds, times the number of processes for each core where the machine is busy.
    The load of the machine is a mean of about a minute, and is read whenever the time expires. The outcome of a test must not
    depend on a guard."""

    def __init__(self, seconds=GUARD):
        self.seconds = seconds
        self.renew()

    def renew(self):
        self.began, self.allowed = time.monotonic(), self.seconds

    def expired(self):
        if time.monotonic() - self.began < self.allowed:
            return False
        self.allowed = self.seconds * max(1.0, os.getloadavg()[0] / os.cpu_count())
        return time.monotonic() - self.began >= self.allowed


def wait_until(what, explain=lambda: "", seconds=GUARD, progress=lambda: None):
    """Waits until what() is true and returns its value; raises AssertionError with the text of explain() if it never is. The
    time of the guard begins again whenever the value of progress() changes."""
    guard, seen, pause = Guard(seconds), None, 0.01
    while True:
        value = what()
        if value:
            return value
        now = progress()
        if now != seen:
            seen = now
            guard.renew()
        if guard.expired():
            raise AssertionError("did not happen within %.1f s: %s" % (guard.allowed, explain()))
        time.sleep(pause)
        pause = min(pause * 1.02, 0.05)  # a long wait must not use the processor that its tasks need
    return value


def await_process(p):
    """Returns the exit code of the process p."""
    wait_until(lambda: p.poll() is not None, lambda: "process %d has not ended" % p.pid)
    return p.returncode


def disturb(seconds):
    """Waits for a random time up to `seconds`, in a test that disturbs a job at random moments and passes at every one."""
    time.sleep(random.uniform(0, seconds))


def await_handler(pid, signum):
    """Waits until the process handles the signal or has blocked it, so that the signal does not end it."""
    def is_handled():
        with open("/proc/%d/status" % pid) as f:
            masks = dict(line.split(":", 1) for line in f)
        return any(int(masks[key], 16) >> (signum - 1) & 1 for key in ("SigCgt", "SigBlk"))
    wait_until(is_handled)


TOKEN = "a token for the tests of trainerd"  # of clusters with hosts other than loopback


def is_exposed(text):
    """Whether a cluster text has addresses outside of this host, so that trainerd requires a token."""
    try:
        cluster = json.loads(text).get("cluster", {})
    except (ValueError, AttributeError):
        return False
    addresses = [a for tasks in cluster.values() if isinstance(tasks, list) for a in tasks]
    return any(not str(a).startswith(("127.", "localhost", "[::1]")) for a in addresses)


def use_venv():
    """Makes the packages of build/venv importable in any Python interpreter."""
    folder = os.path.join(ROOT, "build", "venv", "lib")
    for name in os.listdir(folder):
        sys.path.insert(0, os.path.join(folder, name, "site-packages"))


_tests = []
_tasks = []
_dirs = []
_reserved = []  # sockets


def test(f):
    """Registers a test of the script that runs, not of one that it imports."""
    if f.__module__ == "__main__":
        _tests.append(f)
    return f


def free_ports(n):
    """Returns n ports that stay reserved until the test ends, also while the task of a port is not running. A socket that
    does not listen is bound to each port; only sockets with SO_REUSEADDR, as of servers, can then bind to it. The ports
    are below the ephemeral range, so that no outgoing connection occupies them."""
    ports = []
    while len(ports) < n:
        s = socket.socket()
        try:
            s.bind(("127.0.0.1", random.randrange(12000, 30000)))
        except OSError:
            s.close()
            continue
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after bind(): a bind() as above now fails
        _reserved.append(s)
        ports.append(s.getsockname()[1])
    return ports


def workdir():
    d = tempfile.mkdtemp(prefix="trainerd-test-", dir=FOLDERS)
    _dirs.append(d)
    return d


def remove_folder(folder):
    """Removes a folder, but nothing on a file system that is mounted below it: that may be a folder of this machine."""
    subprocess.run(["rm", "-rf", "--one-file-system", folder], stderr=subprocess.DEVNULL, timeout=60)


class Task:
    """A trainerd process; a thread parses its log as the lines arrive."""

    def __init__(self, job, tf_config=None, args=(), env=None, name="local", cwd=None, prefix=()):
        e = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
        if tf_config is not None:
            e["TF_CONFIG"] = tf_config if isinstance(tf_config, str) else json.dumps(tf_config)
        if is_exposed(e.get("TF_CONFIG", "")):
            e["TRAINERD_TOKEN"] = TOKEN
        e["NCCL_HOSTID"] = name  # NCCL refuses tasks on one (emulated) GPU unless they appear to be on different hosts
        e.update(env or {})
        self.name = name
        self.records, self.lines = [], []
        self.by_event = collections.defaultdict(list)
        self.started = time.monotonic()
        cmd = list(prefix) + [TRAINERD, "--job", job, "--log-format", "json", *args]
        self.p = subprocess.Popen(cmd, env=e, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        _tasks.append(self)

    def _read(self):
        for raw in self.p.stderr:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            self.lines.append(line)
            try:
                record = json.loads(line)
                record["_at"] = time.monotonic()
                self.by_event[record.get("event")].append(record)
                self.records.append(record)
            except ValueError:
                pass

    def wait(self, seconds=GUARD):
        """Returns the exit code; the log is complete then. A task that writes lines may need longer than `seconds`."""
        wait_until(lambda: self.p.poll() is not None, lambda: "%s has not ended; log:\n%s" % (self.name, self.log()), seconds,
                   lambda: len(self.lines))
        self.reader.join(GUARD)
        return self.p.returncode

    def signal(self, signum):
        self.p.send_signal(signum)

    def events(self, event, since=0):
        """Returns the records of an event; `since`: without the first `since` records of any event."""
        return [r for r in self.records[since:] if r.get("event") == event] if since else list(self.by_event.get(event, ()))

    def steps(self):
        return {r["step"]: r for r in self.events("step")}

    def until(self, what, seconds=GUARD):
        """Waits until what(self) is true; fails with the log if it never is, or if the task ends before."""
        def is_over():
            if self.p.poll() is None:
                return what(self)
            self.reader.join(GUARD)
            assert what(self), "%s: did not happen (exit %s); log:\n%s" % (self.name, self.p.returncode, self.log())
            return True
        wait_until(is_over, lambda: "%s; log:\n%s" % (self.name, self.log()), seconds)

    def until_step(self, k, seconds=GUARD):
        self.until(lambda t: any(r.get("step", 0) >= k for r in t.events("step")), seconds)

    def log(self):
        return "\n".join(self.lines[-40:])

    def final_message(self):
        """Returns the message with which the task ended."""
        return (self.events("end") or self.records or [{"message": "no log line"}])[-1]["message"]

    def kill(self):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGCONT)
            self.p.kill()
            self.p.wait()


def tf_config(ports, index, hosts=None, kind="worker", extra=None):
    hosts = hosts or ["127.0.0.1"] * len(ports)
    cluster = {"worker": ["%s:%d" % hp for hp in zip(hosts, ports)]}
    cluster.update(extra or {})
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


def with_faults(env, *faults):
    """Returns a copy of the environment `env` (or None) with more faults; empty ones are left out."""
    env = dict(env or {})
    env["TRAINERD_FAULT"] = ",".join(f for f in (env.get("TRAINERD_FAULT"), *faults) if f)
    return env


def status(address, prefix=(), env=None):
    """Returns the status of the task at this address as trainerctl prints it, or None if the task does not answer."""
    p = subprocess.run([*prefix, TRAINERCTL, "status", "--json", address], capture_output=True, text=True, timeout=GUARD,
                       env={**os.environ, **(env or {}), "TRAINERD_FAULT": ""})
    return json.loads(p.stdout) if p.returncode == 0 else None


def have_joined(port, env=None, phases=("",)):
    """Whether the leader, which listens on `port` of this host, reports that all tasks of the cluster have joined and have opened
    model and data; with "opening" in `phases` they may still open it."""
    s = status("127.0.0.1:%d" % port, env=env)
    return s is not None and all(t["state"] == "active" or (t["state"] == "joined" and t["phase"] in phases) for t in s["tasks"])


def until_listening(port, env=None):
    """Waits until the task at this port of this host answers, so that no other task takes its place as the leader."""
    wait_until(lambda: status("127.0.0.1:%d" % port, env=env) is not None)


class Gate:
    """Orders the events of several processes: a fault point holds a process until the test opens the gate.

    holds_step(9) holds a task before its ninth step, so that the job is not complete before another one has joined, which has
    the fault "data.open" of the same gate: a task that trains must be able to stop when the other one is ready.
    fault("data.open") holds the first task, before the first group begins: start it, until it listens (until_listening), and then the
    others. The group is complete then, although the job goes on with fewer tasks (elastic.min_world)."""

    def __init__(self):
        self.path = os.path.join(workdir(), "open")

    def fault(self, point, passage=1):
        return "%s=wait:%s@%s" % (point, self.path, passage)

    def holds_step(self, k):
        """Returns the faults that hold step k, and make the steps after it slow."""
        return "%s,train.forward=delay:50@%d+" % (self.fault("train.forward", k), k + 1)

    def open(self):
        with open(self.path, "w"):
            pass

    def open_when_joined(self, tasks, port, env=None, phases=("",)):
        """Opens the gate when have_joined() is true; fails if one of `tasks` ends before."""
        def is_ready():
            ended = [t for t in tasks if t.p.poll() is not None]
            assert not ended, "%s ended with %s; log:\n%s" % (ended[0].name, ended[0].p.returncode, ended[0].log())
            return have_joined(port, env, phases)
        wait_until(is_ready, lambda: "\n".join("--- %s\n%s" % (t.name, t.log()) for t in tasks))
        self.open()


def writes_every_checkpoint(folder, steps):
    """Returns the environment of a job that writes a checkpoint after each of a few steps; others are left out while the writer
    is busy. The writer receives step k in step k + 1, whose commit waits until the writer is ready for the next one."""
    saved = os.path.join(folder, "saved-%d")
    return with_faults(None, *[f for k in range(1, steps) for f in ("ckpt.saved=touch:%s@%d" % (saved % k, k),
                                                                  "train.commit=wait:%s@%d" % (saved % k, k + 1))])


def start(job, n, devices="cpu:1", args=(), env=None, ports=None, faults=None, together=False, prefix=()):
    """Starts n tasks of one cluster; returns a list with the chief first. `faults`: {index: fault of this task}. `together`: the
    first group is complete, although the job goes on with fewer tasks."""
    ports, gate = ports or free_ports(n), Gate() if together else None
    tasks = []
    for i in range(n):
        hold = gate.fault("data.open") if gate and i == 0 else ""
        tasks.append(Task(job, tf_config(ports, i), ("--devices", devices, *args),
                          with_faults(env, (faults or {}).get(i, ""), hold), "worker %d" % i, prefix=prefix))
        if gate and i == 0:
            until_listening(ports[0], env)
    for t, p in zip(tasks, ports):
        t.port = p
    if gate:
        gate.open_when_joined(tasks, ports[0], env)
    return tasks


def finish(tasks, seconds=GUARD):
    return [t.wait(seconds) for t in tasks]


def expect_codes(tasks, codes, seconds=GUARD):
    got = finish(tasks, seconds)
    if got != list(codes):
        raise AssertionError("exit codes %s, expected %s\n%s\n%s" % (
            got, list(codes), "\n".join("%s: %s" % (t.name, t.final_message()[:120]) for t in tasks),
            "\n".join("--- %s\n%s" % (t.name, t.log()) for t in tasks)))


def merge(base, changes):
    out = dict(base)
    for k, v in changes.items():
        out[k] = merge(out[k], v) if isinstance(v, dict) and isinstance(out.get(k), dict) else v
        if v is None:
            out.pop(k)
    return out


def digits_job(folder, **changes):
    """Writes the job of the demo, with links to its data, to `folder`. `changes` are merged in; None removes a key. A task that is
    slow on a busy machine is not taken for stuck; a test of that limit sets detection.stuck_factor."""
    source = os.path.join(ROOT, "config", "digits")
    with open(os.path.join(source, "digits.json")) as f:
        job = json.load(f)
    for name in os.listdir(source):
        target = os.path.join(folder, name)
        if name.endswith((".tfrecord", ".onnx")) and not os.path.exists(target):
            os.symlink(os.path.join(source, name), target)
    job = merge({**job, "detection": {"stuck_factor": 0}}, changes)
    path = os.path.join(folder, "job.json")
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def sample(cases, n=1):
    """Returns all cases as a list. In `make test` n of them, taken evenly: the nightly ring has the others."""
    cases = list(cases)
    step = -(-len(cases) // n) if os.environ.get("TEST_RING") == "test" else 1
    return cases[::step]


def few(faults):
    """Divides the faults that kill a task into lists of at most three: a task that is lost four times within seconds is
    quarantined, so that the others would be complete before its last life. In `make test` only one list, whose faults are
    taken evenly from all."""
    lists = -(-len(faults) // 3)
    return sample(faults[i::lists] for i in range(lists))


def checkpoint_names(folder):
    """Returns the sorted names in a checkpoint directory, without the records of its lease."""
    return sorted(name for name in os.listdir(folder) if not name.startswith("lease-"))


def read_tree(folder):
    """Returns {relative path: bytes} of a folder; manifests without the time of writing, and no records of the lease."""
    out = {}
    for base, _, names in os.walk(folder):
        for name in names:
            if name.startswith("lease-"):
                continue
            path = os.path.join(base, name)
            with open(path, "rb") as f:
                data = f.read()
            if name == "manifest.json":
                m = json.loads(data)
                m.pop("written_at")
                m.pop("checksum")  # depends on written_at
                data = json.dumps(m, sort_keys=True).encode()
            out[os.path.relpath(path, folder)] = data
    return out


class Skip(Exception):
    """The hardware or the permission that this machine lacks for a test: main() reports the test as skipped, with this text.
    A missing program is a failure instead: see need_program()."""


PACKAGES = {  # program: the package of Debian 12 that has it; `scripts/setup test` installs each
    "busybox": "busybox-static", "ccache": "ccache", "chromium-headless-shell": "chromium-headless-shell", "dpkg-deb": "dpkg-dev", "dpkg-shlibdeps": "dpkg-dev",
    "git": "git", "ip": "iproute2", "iptables": "iptables", "lintian": "lintian", "mandoc": "mandoc", "mpirun": "openmpi-bin",
    "munged": "munge", "pdsh": "pdsh", "promtool": "prometheus", "scancel": "slurm-wlm", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm",
    "srun": "slurm-wlm", "ssh": "openssh-client", "ssh-keygen": "openssh-client", "sshd": "openssh-server", "systemd-analyze": "systemd",
    "systemd-sysusers": "systemd", "tc": "iproute2",
}


def need_program(*programs):
    """Returns the path of the first of the programs of a test. If one is not installed, the test fails with the name of the package; it is
    skipped only if WITHOUT_PACKAGES, as for scripts/setup, has this name."""
    paths = [shutil.which(p, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin") for p in programs]
    for program, path in zip(programs, paths):
        package = PACKAGES[program]
        if path is None and package in os.environ.get("WITHOUT_PACKAGES", "").split():
            raise Skip("%s is not installed, and WITHOUT_PACKAGES has its package %s" % (program, package))
        assert path, "%s is not installed: `scripts/setup test` installs its package %s; WITHOUT_PACKAGES=%s skips the tests that need it" % (
            program, package, package)
    return paths[0]


_lacking = None  # why this process has no namespaces of its own


def enter_namespaces():
    """Called before main() by files with tests that mount or make networks: restarts this process in namespaces of
    mounts and networks, as root or as a user who is root in a namespace of his own. Where the machine refuses,
    the process goes on without them, and need_namespaces() skips the tests that cannot."""
    global _lacking
    setup = "mount -t tmpfs none /run && ip link set lo up"
    if os.environ.get("_IN_NAMESPACE") == "1":
        subprocess.run(["sh", "-c", setup], check=True)
        return
    command = ["unshare", "--mount", "--net", *(["--map-root-user"] if os.geteuid() != 0 else [])]
    try:
        p = subprocess.run([*command, "sh", "-c", setup + " && ip netns add probe"], capture_output=True, text=True, timeout=GUARD)
        why = "" if p.returncode == 0 else (p.stderr.strip().splitlines() or ["exit code %d" % p.returncode])[-1]
    except (OSError, subprocess.TimeoutExpired) as e:
        why = str(e)
    if why:
        _lacking = "no namespaces of mounts and networks for user %d: %s" % (os.geteuid(), why)
        return
    os.environ["_IN_NAMESPACE"] = "1"
    # mounts and namespaces made here vanish with us, also when we are killed
    os.execvp(command[0], [*command, sys.executable, *sys.argv])


def has_namespaces():
    """Whether enter_namespaces() succeeded."""
    return os.environ.get("_IN_NAMESPACE") == "1"


def need_namespaces(*probe):
    """Skips the test that calls it where this machine gives no namespaces, or where the command `probe` fails in them."""
    need_program("ip", *(word for word in probe if word in PACKAGES))
    if not has_namespaces():
        raise Skip(_lacking or "enter_namespaces() was not called")
    if probe:
        try:
            p = subprocess.run(probe, capture_output=True, text=True, timeout=GUARD)
            why = "" if p.returncode == 0 else (p.stderr.strip().splitlines() or ["exit code %d" % p.returncode])[-1]
        except OSError as e:
            why = str(e)
        if why:
            raise Skip("`%s` does not work here: %s" % (" ".join(probe), why))


def print_tasks():
    """Prints the last log lines and the exit code of each task of a failed test."""
    for t in _tasks[-16:]:
        print("--- %s: exit %s, %d lines, the last:\n%s" % (t.name, t.p.poll(), len(t.lines), "\n".join(t.lines[-15:])))


class Stopped(Exception):
    pass


def on_sigterm(*_):
    raise Stopped("SIGTERM: the time limit expired, or the run was stopped")


def processor_seconds():
    """Returns the processor time of this process and of the processes that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def choose(tests, names):
    """Returns the tests with these names (none: all), of which the variables of scripts/test choose: TEST_ONLY=TEXT those with
    TEXT in their name, TEST_EXCEPT=A,B all but these."""
    only, left_out = os.environ.get("TEST_ONLY", ""), os.environ.get("TEST_EXCEPT", "").split(",")
    return [f for f in tests if (not names or f.__name__ in names) and only in f.__name__ and f.__name__ not in left_out]


def main():
    chosen = choose(_tests, sys.argv[1:])
    if "TEST_LIST" in os.environ:
        print("\n".join(f.__name__ for f in chosen))
        return
    signal.signal(signal.SIGTERM, on_sigterm)
    passed = failed = skipped = 0
    ended = False
    for f in chosen:
        before, used = time.monotonic(), processor_seconds()
        try:
            f()
            passed += 1
            for t in _tasks:
                t.kill()  # now, so that their processor time is counted
            print("ok - %s (%.1f s, processor %.1f s)" % (
                f.__name__.replace("_", " "), time.monotonic() - before, processor_seconds() - used), flush=True)
        except Skip as e:
            skipped += 1
            print("skip - %s: %s" % (f.__name__.replace("_", " "), e), flush=True)
        except Exception as e:
            failed += 1
            ended = isinstance(e, Stopped)
            frames = [x for x in traceback.extract_tb(e.__traceback__)[1:] if x.filename.startswith(ROOT)]
            what = str(e) or traceback.extract_tb(e.__traceback__)[-1].line  # a bare assert
            print("not ok - %s (%.1f s): %s: %s: %s" % (
                f.__name__.replace("_", " "), time.monotonic() - before,
                " > ".join("%s:%d" % (os.path.basename(x.filename), x.lineno) for x in frames),
                type(e).__name__, " ".join(what.split())[:450]))
            traceback.print_exc(file=sys.stdout)
            print_tasks()
            sys.stdout.flush()
        finally:
            for t in _tasks:
                t.kill()
            _tasks.clear()
            for s in _reserved:
                s.close()
            _reserved.clear()
            for d in _dirs:
                remove_folder(d)
            _dirs.clear()
        if ended:
            break
    print("%d passed, %d failed%s" % (passed, failed, ", %d skipped" % skipped if skipped else ""))
    sys.exit(1 if failed or chosen and not passed + skipped else 0)
