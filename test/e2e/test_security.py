#!/usr/bin/python3
"""test_security.py - the token and the certificates: who can join, read and command, and what an eavesdropper sees."""
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time

from kit import (BUILD, GUARD, ROOT, Task, await_process, digits_job, enter_namespaces, expect_codes, free_ports, main, need_namespaces, start,
                 test, tf_config, wait_until, workdir)

CTL = os.path.join(BUILD, "trainerctl")
SECRET = "a secret of this test"
READING = ("status", "--json"), ("top", "--once"), ("logs",), ("events",)


def ctl(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_")}
    return subprocess.run([CTL, *args], capture_output=True, text=True, timeout=GUARD, env={**clean, **env})


def long_job(folder=None, **changes):
    return digits_job(folder or workdir(), train={"epochs": 1000, "lanes": 2, "log_every_steps": 1}, **changes)


def keys(folder, *hosts):
    """Writes certificates for the hosts; returns the folder."""
    cluster = json.dumps({"cluster": {"worker": ["%s:%d" % (h, 7000 + i) for i, h in enumerate(hosts)]}})
    out = ctl("keys", "--out", folder, TF_CONFIG=cluster)
    assert out.returncode == 0, out
    return folder


@test
def clock_of_1970_is_named_and_the_task_may_be_started_again():
    folder = workdir()
    library = os.path.join(folder, "clock.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-DAHEAD_S=-%d" % (int(time.time()) - 86400), "-o", library,
                    os.path.join(os.path.dirname(os.path.abspath(__file__)), "clock_ahead.c")], check=True)
    files = keys(os.path.join(folder, "keys"), "127.0.0.1", "127.0.0.1")
    for env in ({"TRAINERD_TOKEN": SECRET}, {"TRAINERD_TLS": os.path.join(files, "127.0.0.1")}):
        task, = start(long_job(), 1, env={**env, "LD_PRELOAD": library})
        assert task.wait() == 138, task.log()
        assert "certificate is not yet valid; the clock of this host shows 1970-01-02T" in task.final_message(), task.log()


@test
def configuration_of_openssl_that_excludes_tls_1_3_is_named():
    folder = workdir()
    with open(os.path.join(folder, "openssl.cnf"), "w") as f:
        f.write("openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n[c]\nMaxProtocol = TLSv1.2\n")
    task, = start(long_job(), 1, env={"TRAINERD_TOKEN": SECRET, "OPENSSL_CONF": os.path.join(folder, "openssl.cnf")})
    assert task.wait() == 2 and "openssl.cnf) limits MaxProtocol to a version below TLS 1.3" in task.final_message(), task.log()


@test
def cluster_reachable_by_other_hosts_needs_a_token_certificates_or_insecure():
    job = digits_job(workdir(), train={"epochs": 1, "lanes": 2})
    for args, env, code in ((("--bind", "any"), {}, 2), (("--bind", "any"), {"TRAINERD_TOKEN": SECRET}, 0),
                            (("--bind", "any", "--insecure"), {}, 0), ((), {}, 0)):
        ports = free_ports(2)
        tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1", *args), env, "worker %d" % i) for i in range(2)]
        expect_codes(tasks, [code, code])
        for t in tasks:
            if code == 2:
                assert "TRAINERD_TOKEN" in t.final_message() and "--insecure" in t.final_message(), t.final_message()
            assert bool(t.events("tls")) == ("--insecure" in args), (args, env, t.events("tls"))  # loopback needs no warning


@test
def token_invalid_is_refused():
    for token, expected in (("short", "at least 16 characters, found 5"), ("sixteen chars \x01..", "found byte 1 at position 15"),
                            ("x" * 256, "at most 255 characters, found 256")):
        task = Task(digits_job(workdir()), tf_config(free_ports(1), 0), ("--devices", "cpu:1"), {"TRAINERD_TOKEN": token})
        assert task.wait() == 2 and expected in task.final_message(), task.final_message()
        out = ctl("status", "127.0.0.1:1", TRAINERD_TOKEN=token)
        assert out.returncode == 2 and expected in out.stderr, out


@test
def tokens_that_differ_name_the_variable():
    ports = free_ports(2)
    job = digits_job(workdir(), train={"deadline_seconds": 3})
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1"), {"TRAINERD_TOKEN": SECRET + str(i)}, "worker %d" % i)
             for i in range(2)]
    expect_codes(tasks, [138, 138])  # the other process may be a stranger
    for t in tasks:
        # in its last message, too, unless the other task has ended before
        assert any("compare TRAINERD_TOKEN" in r["message"] for r in t.records if r.get("event") == "group"), t.log()
        assert any("connections were refused" in r["message"] for r in t.records if r.get("level") == "warn"), t.log()


@test
def commands_need_the_token():
    path = os.path.join(workdir(), "trace.json")
    tasks = start(long_job(), 2, env={"TRAINERD_TOKEN": SECRET, "TRAINERD_FAULT": "train.forward=delay:50@1+"})
    tasks[0].until_step(2)
    address = "127.0.0.1:%d" % tasks[1].port
    for env, expected in (({}, "set the same TRAINERD_TOKEN"), ({"TRAINERD_TOKEN": SECRET + "x"}, "compare the token")):
        for command in (*READING, ("trace", "--out", path), ("stop",)):
            out = ctl(*command, address, **env)
            assert out.returncode == 1 and expected in out.stderr, out
    for command in READING:
        out = ctl(*command, address, TRAINERD_TOKEN=SECRET)
        assert out.returncode == 0 and "worker" in out.stdout and SECRET not in out.stdout + out.stderr, out
    out = ctl("trace", "--out", path, address, TRAINERD_TOKEN=SECRET)
    assert out.returncode == 2 and "no task has written a trace" in out.stderr, out
    out = ctl("stop", address, TRAINERD_TOKEN=SECRET)
    assert out.returncode == 0, out
    expect_codes(tasks, [143, 143])
    assert not any(SECRET in line for t in tasks for line in t.lines)


def has_unread_bytes(port):
    """Whether a connection to this port has bytes that its process has not read."""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return any(int(r[1].split(":")[1], 16) == port and r[3] == "01" and int(r[4].split(":")[1], 16) > 0 for r in rows)


@test
def task_killed_during_a_call_is_not_reported_as_a_wrong_token():
    """A connection that closes after an answered call is no failed handshake."""
    task, = start(long_job(), 1, env={"TRAINERD_TOKEN": SECRET})
    task.until_step(2)
    top = subprocess.Popen([CTL, "top", "127.0.0.1:%d" % task.port], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, env={**os.environ, "TRAINERD_TOKEN": SECRET})
    try:
        while "worker 0" not in top.stdout.readline():
            assert top.poll() is None, top.stderr.read()
        task.signal(signal.SIGSTOP)
        wait_until(lambda: has_unread_bytes(task.port))  # top calls again, and gets no answer
        task.signal(signal.SIGKILL)
        line = top.stderr.readline()
        assert line.startswith("trainerctl: Status of ") and "token" not in line, line
    finally:
        top.kill()
        top.communicate()


@test
def keys_are_valid_for_openssl_and_private():
    folder = os.path.join(workdir(), "keys")
    keys(folder, "127.0.0.1", "host-b.example")
    with open(os.path.join(folder, "ca.crt")) as f:
        authority = f.read()
    keys(folder, "127.0.0.1", "host-b.example")
    with open(os.path.join(folder, "ca.crt")) as f:
        assert f.read() == authority
    for name, option, host in (("127.0.0.1", "-verify_ip", "127.0.0.1"), ("host-b.example", "-verify_hostname", "host-b.example"),
                               ("operator", "-verify_hostname", "operator.trainerd")):
        out = subprocess.run(["openssl", "verify", "-x509_strict", "-purpose", "sslserver", option, host, "-CAfile",
                              os.path.join(folder, "ca.crt"), os.path.join(folder, name, "tls.crt")], capture_output=True, text=True)
        assert out.returncode == 0, out
    for base, folders, files in os.walk(folder):
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(base, name)).st_mode) == 0o600, name
        for name in folders:
            assert stat.S_IMODE(os.stat(os.path.join(base, name)).st_mode) == 0o700, name


def serial(port, folder):
    """The serial number of the certificate that the task presents."""
    context = ssl.create_default_context(cafile=os.path.join(folder, "ca.crt"))
    context.load_cert_chain(os.path.join(folder, "operator", "tls.crt"), os.path.join(folder, "operator", "tls.key"))
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), 10) as s, context.wrap_socket(s, server_hostname="127.0.0.1") as t:
        assert t.version() == "TLSv1.3" and t.selected_alpn_protocol() == "h2", (t.version(), t.selected_alpn_protocol())
        return t.getpeercert()["serialNumber"]


@test
def certificates_replaced_are_used_without_restart():
    folder = keys(os.path.join(workdir(), "keys"), "127.0.0.1")
    own = os.path.join(folder, "127.0.0.1")
    tasks = start(long_job(), 2, env={"TRAINERD_TLS": own, "TRAINERD_FAULT": "train.forward=delay:50@1+"})
    tasks[0].until_step(2)
    port = tasks[0].port
    before = serial(port, folder)
    for t in tasks:
        out = subprocess.run([sys.executable, os.path.join(ROOT, "test", "rdzv", "client.py"), "127.0.0.1:%d" % t.port,
                              own], capture_output=True, text=True, timeout=GUARD)
        assert out.returncode == 0, out.stdout + out.stderr
    keys(folder, "127.0.0.1")
    tasks[0].until(lambda t: any("new certificates" in r["message"] for r in t.events("tls")))
    assert serial(port, folder) != before
    with open(os.path.join(own, "tls.key"), "w") as f:
        f.write("junk")
    tasks[0].until(lambda t: any("not used: " in r["message"] and "tls.key" in r["message"] for r in t.events("tls")))
    assert serial(port, folder) != before
    out = ctl("stop", "127.0.0.1:%d" % port, TRAINERD_TLS=os.path.join(folder, "operator"))
    assert out.returncode == 0, out
    expect_codes(tasks, [143, 143])


@test
def certificate_file_that_hangs_stops_neither_training_nor_the_exit():
    for is_for_ever in (False, True):
        folder = keys(os.path.join(workdir(), "keys"), "127.0.0.1")
        own = os.path.join(folder, "127.0.0.1")
        fault = "train.forward=delay:50@1+" + (",tls.read=hang@4" if is_for_ever else "")  # three files are read at the start
        tasks = start(long_job(), 2, env={"TRAINERD_TLS": own, "TRAINERD_FAULT": fault})
        tasks[0].until_step(2)
        certificate = os.path.join(own, "tls.crt")
        if not is_for_ever:  # a read of a FIFO without a writer lasts 10 s
            os.rename(certificate, certificate + ".moved")
            os.mkfifo(certificate)
        for t in tasks:
            t.until(lambda t: any("reading '%s' has hung for" % certificate in r["message"] for r in t.events("tls")))
        step = max(tasks[0].steps())
        tasks[0].until_step(step + 20)
        for t in tasks:  # a loop that waits for the file would not answer, and its peers would log that
            out = ctl("status", "--json", "127.0.0.1:%d" % t.port, TRAINERD_TLS=os.path.join(folder, "operator"))
            assert out.returncode == 0 and json.loads(out.stdout)["generation"] == 1, out
            assert sum("has hung for" in r["message"] for r in t.events("tls")) == 1, t.log()
        for t in tasks:
            t.signal(signal.SIGTERM)
        expect_codes(tasks, [143, 143])
        assert not any("shutdown exceeded" in line for t in tasks for line in t.lines)


@test
def bits_are_the_same_in_clear_text_and_under_tls():
    sums = []
    for env, encrypt in (({}, True), ({"TRAINERD_TOKEN": SECRET}, True), ({"TRAINERD_TOKEN": SECRET}, False)):
        folder = workdir()
        job = digits_job(folder, train={"epochs": 2, "lanes": 4}, communication={"shared_memory": False, "encrypt": encrypt})
        expect_codes(start(job, 2, env=env), [0, 0])
        with open(os.path.join(folder, "run", "checkpoints", "step-00000044", "model.safetensors"), "rb") as f:
            sums.append(f.read())
    assert sums[0] == sums[1] == sums[2]


LAST_PACKET = b"the packet after those of the tasks"


class Eavesdropper:
    """Collects every packet of the loopback interface of this namespace."""

    def __enter__(self):
        self.bytes = bytearray()
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
        self.socket.bind(("lo", 0))
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def run(self):
        while LAST_PACKET not in self.bytes:
            packet, source = self.socket.recvfrom(1 << 17)
            if source[2] != 4:  # each packet comes twice: also as an outgoing one
                self.bytes += packet[42:]  # without the headers of Ethernet, IP and UDP, and some of TCP

    def __exit__(self, *_):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.sendto(LAST_PACKET, ("127.0.0.1", 9))
        self.thread.join()
        self.socket.close()


@test
def eavesdropper_reads_nothing_under_tls():
    need_namespaces()
    for secret in ("", SECRET):
        folder = workdir()
        job = digits_job(folder, train={"epochs": 2, "lanes": 2}, communication={"shared_memory": False},
                         elastic={"min_world": 2})
        env = {"TRAINERD_TOKEN": secret} if secret else {}
        with Eavesdropper() as ear:
            expect_codes(start(job, 2, env=env), [0, 0])
        seen = bytes(ear.bytes)
        assert len(seen) > 100000, len(seen)
        for text in (b"PRI * HTTP/2.0", b"onednn", b"xchg"):
            assert (text in seen) == (secret == ""), (text, secret)
        assert not secret or secret.encode() not in seen
        assert (seen.count(b"xchg") > 100) == (secret == ""), (seen.count(b"xchg"), secret)  # the heads of exchanges


@test
def address_that_is_not_in_the_certificate_is_named_with_the_remedy():
    folder, port = workdir(), free_ports(1)[0]
    keys(folder, "127.0.0.2")
    task = Task(long_job(), {"cluster": {"worker": ["127.0.0.2:%d" % port]}, "task": {"type": "worker", "index": 0}},
                ("--devices", "cpu:1", "--bind", "any"), {"TRAINERD_TLS": os.path.join(folder, "127.0.0.2")})
    operator = {"TRAINERD_TLS": os.path.join(folder, "operator")}
    wait_until(lambda: ctl("status", "127.0.0.2:%d" % port, **operator).returncode == 0, task.log)
    for command in READING:
        out = ctl(*command, "127.0.0.1:%d" % port, **operator)
        assert out.returncode == 1 and ("the certificate of the task does not contain '127.0.0.1:%d': call the task by a name in its certificate, such "
                                        "as its address in the cluster text" % port) in out.stderr, out


class Local:
    """`trainerctl local` with two slow tasks; ports[i] is that of worker i. Use as a context manager."""

    def __init__(self, job, *args, prefix=(), **env):
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_")}
        self.p = subprocess.Popen([*prefix, CTL, "local", "-n", "2", "--devices", "cpu:1", *args, job], stderr=subprocess.PIPE, text=True, env={
            **clean, "TRAINERD_FAULT": "train.forward=delay:5@1+", **env})
        self.lines = []
        for line in self.p.stderr:
            self.lines.append(line)
            if "step 2 of" in line:
                break
        self.ports = re.findall(r"worker \d at 127\.0\.0\.1:(\d+)", "".join(self.lines))
        assert len(self.ports) == 2, self.lines

    def rest(self):
        """Returns the other lines, after the command has ended with its code."""
        text = self.p.stderr.read()
        return text, await_process(self.p)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            self.rest()


@test
def local_cluster_is_stopped_by_its_user_alone():
    for folder in ({"XDG_RUNTIME_DIR": workdir()}, {"XDG_RUNTIME_DIR": ""}):
        with Local(long_job(), **folder) as local:
            address = "127.0.0.1:" + local.ports[1]
            path = os.path.join(folder["XDG_RUNTIME_DIR"] or "/tmp", "trainerd" if folder["XDG_RUNTIME_DIR"] else "trainerd-%d" % os.geteuid(),
                                "local-" + local.ports[0])
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600 and stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
            for command in READING:
                out = ctl(*command, address, **folder)
                assert out.returncode == 0, out
            other = {"XDG_RUNTIME_DIR": workdir()} if folder["XDG_RUNTIME_DIR"] else {**folder, "TRAINERD_TOKEN": "x" * 20}
            for command in ("status", "stop", "drain", "checkpoint"):
                out = ctl(command, address, **other)
                assert out.returncode != 0 and "token" in out.stderr, out
            if os.geteuid() == 0 and os.access(CTL, os.X_OK):
                out = subprocess.run([CTL, "stop", address], capture_output=True, text=True, timeout=GUARD, user=65534, group=65534, extra_groups=[])
                assert out.returncode != 0 and "TRAINERD_TOKEN" in out.stderr, out
            assert ctl("stop", "localhost:" + local.ports[1], **folder).returncode == 0
            text, code = local.rest()
            assert code == 143 and not os.path.exists(path), text


def with_read_only(*parents):
    """Words in front of a command in whose view this user's folder below each parent is read-only."""
    folders = [os.path.join(parent, "trainerd-%d" % os.geteuid()) for parent in parents]
    for folder in folders:
        os.makedirs(folder, 0o700, exist_ok=True)
    mounts = " && ".join("mount -t tmpfs -o ro,mode=700 none " + folder for folder in folders)
    return "unshare", "--mount", "sh", "-c", mounts + " && exec \"$@\"", "sh"


@test
def local_cluster_on_a_read_only_system_keeps_its_token_in_memory_or_in_no_file():
    need_namespaces()
    with Local(long_job(), XDG_RUNTIME_DIR="", prefix=with_read_only("/tmp")) as local:
        out = ctl("stop", "127.0.0.1:" + local.ports[0], XDG_RUNTIME_DIR="")
        assert out.returncode == 0, out
        assert local.rest()[1] == 143
    with Local(long_job(), XDG_RUNTIME_DIR="", prefix=with_read_only("/tmp", "/dev/shm")) as local:
        assert "other commands need TRAINERD_TOKEN" in "".join(local.lines), local.lines
        out = ctl("stop", "127.0.0.1:" + local.ports[0], XDG_RUNTIME_DIR="")
        assert out.returncode != 0 and "token" in out.stderr, out


@test
def local_cluster_uses_the_token_of_the_user_and_ignores_that_of_a_killed_one():
    folder = {"XDG_RUNTIME_DIR": workdir()}
    with Local(long_job(), **folder, TRAINERD_TOKEN=SECRET) as local:
        assert not os.path.exists(os.path.join(folder["XDG_RUNTIME_DIR"], "trainerd"))
        assert ctl("status", "127.0.0.1:" + local.ports[0], **folder).returncode != 0
        assert ctl("status", "127.0.0.1:" + local.ports[0], **folder, TRAINERD_TOKEN=SECRET).returncode == 0
    with Local(long_job(), "--insecure", **folder) as local:
        assert not os.path.exists(os.path.join(folder["XDG_RUNTIME_DIR"], "trainerd"))
        # the file of a command that was killed has no lock
        os.mkdir(os.path.join(folder["XDG_RUNTIME_DIR"], "trainerd"), 0o700)
        with open(os.path.join(folder["XDG_RUNTIME_DIR"], "trainerd", "local-1"), "w") as f:
            f.write("%s\n%s\n" % ("0" * 64, local.ports[0]))
        assert ctl("status", "127.0.0.1:" + local.ports[0], **folder).returncode == 0


@test
def local_cluster_refuses_a_folder_for_its_token_that_others_can_read():
    folder = workdir()
    os.mkdir(os.path.join(folder, "trainerd"), 0o755)
    out = ctl("local", "-n", "2", long_job(), XDG_RUNTIME_DIR=folder)
    assert out.returncode == 2 and "is not a folder that only this user can read (mode 700): remove it, or set TRAINERD_TOKEN" in out.stderr, out


if __name__ == "__main__":
    enter_namespaces()
    main()
