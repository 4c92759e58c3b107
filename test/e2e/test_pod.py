#!/usr/bin/python3
"""The life of pods: names that appear late, another address, SIGTERM with a grace period, eviction, and what the controllers
make of the exit codes. A pod is a network namespace with a host name and an address; /etc/hosts stands for the DNS of the
cluster; environment and policies are those of config/kubernetes."""
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import kit
from kit import (GUARD, ROOT, Task, digits_job, disturb, enter_namespaces, expect_codes, free_ports, has_namespaces, main,
                 need_namespaces, read_tree, test, tf_config, wait_until, workdir)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
SLOWLY = "train.forward=delay:3@1+"
STEPS = {"epochs": None, "steps": 600, "lanes": 2, "log_every_steps": 1}
KEEP = os.path.join(ROOT, "scripts", "trainerd-keep")


def manifest():
    import yaml
    with open(os.path.join(ROOT, "config", "kubernetes", "job.yaml")) as f:
        return yaml.safe_load(f)["spec"]


def ip(*args):
    subprocess.run(["ip", *args], check=True)


_numbers = itertools.count(2)  # of pods and their addresses


class Cluster:
    """Two pods of one job: their addresses, and the names that DNS knows."""

    def __init__(self, job):
        self.job, self.names, self.spaces = job, {}, {}
        container = manifest()["template"]["spec"]["containers"][0]
        self.env = {e["name"]: e["value"] for e in container["env"] if "value" in e}
        for name in ("TRAINERD_JOB", "TRAINERD_LOG_FORMAT"):  # the job of this test; Task sets the format
            self.env.pop(name)
        self.env.update(TRAINERD_DEVICES="cpu:1", TRAINERD_TOKEN="a-secret-of-this-test", TRAINERD_FAULT=SLOWLY)
        self.resolve()

    def resolve(self, **names):
        """Sets the addresses of names: resolve(digits_0=address)."""
        self.names.update({k.replace("_", "-"): v for k, v in names.items()})
        with open("/etc/hosts", "w") as f:
            f.write("127.0.0.1 localhost\n")
            for name, address in self.names.items():
                f.write("%s %s.digits %s\n" % (address, name, name))

    def start(self, index):
        """Starts the pod `digits-INDEX` with a new address, which has no name yet. Returns (task, address)."""
        name, number = "digits-%d" % index, next(_numbers)
        space, address = "pod%d" % number, "10.79.0.%d" % number
        ip("netns", "add", space)
        ip("link", "add", "veth%d" % number, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", "veth%d" % number, "master", "bridge", "up")
        ip("-n", space, "addr", "add", address + "/24", "dev", "eth0")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "link", "set", "eth0", "up")
        self.spaces[index] = space
        task = Task(self.job, None, (), self.env, "worker %d" % index,
                    prefix=("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name))
        return task, address

    def remove(self, index):
        """The address of the pod vanishes from the network; its name keeps the old address for a while, as DNS does."""
        ip("netns", "del", self.spaces.pop(index))


def bridge():
    ip("link", "add", "bridge", "type", "bridge")
    ip("addr", "add", "10.79.0.1/24", "dev", "bridge")
    ip("link", "set", "bridge", "up")
    path = os.path.join("/run", "hosts")
    open(path, "w").close()
    subprocess.run(["mount", "--bind", path, "/etc/hosts"], check=True)  # in the mount namespace of this process


def start_both(job):
    """Starts two pods; returns (cluster, [task, task])."""
    c = Cluster(job)
    (a, at_a), (b, at_b) = c.start(0), c.start(1)
    c.resolve(digits_0=at_a, digits_1=at_b)
    return c, [a, b]


def job(folder, **changes):
    return digits_job(folder, **kit.merge({"train": STEPS, "checkpoint": {"every_steps": 0}}, changes))


def weights(folder, steps=600):
    return read_tree(os.path.join(folder, "run", "checkpoints", "step-%08d" % steps))["model.safetensors"]


def undisturbed():
    folder = workdir()
    expect_codes([Task(job(folder), args=("--devices", "cpu:1"))], [0])
    return weights(folder)


@test
def pod_names_that_appear_late_are_waited_for():
    need_namespaces()
    c = Cluster(job(workdir()))
    (a, at_a), (b, _) = c.start(0), c.start(1)
    for t, other in ((a, "digits-1.digits"), (b, "digits-0.digits")):
        t.until(lambda t: any("resolve '%s" % other in r["message"] for r in t.events("group")))
    assert not a.events("view") and a.p.poll() is None and b.p.poll() is None
    c.resolve(digits_0=at_a)  # one name is enough: the other task connects to it
    a.until_step(5)
    assert [r["tasks"] for r in a.events("view")] == [2], a.events("view")
    assert "the only address of this host, interface eth0" in a.events("address")[0]["message"], a.events("address")


@test
def pod_with_several_interfaces_is_reached_at_the_address_of_its_name_or_default_route():
    need_namespaces()
    c = Cluster(job(workdir()))
    space = "pod%d" % next(_numbers)
    ip("netns", "add", space)
    for i in (0, 1):
        ip("-n", space, "link", "add", "net%d" % i, "type", "veth", "peer", "name", "end%d" % i)
        ip("-n", space, "addr", "add", "10.8%d.0.1/24" % i, "dev", "net%d" % i)
        for name in ("net%d" % i, "end%d" % i):
            ip("-n", space, "link", "set", name, "up")
    config = tf_config([2222, 2222], 0, ["digits-0.digits", "digits-1.digits"])

    def start():
        t = Task(c.job, config, ("--devices", "cpu:1", "--bind", "any"), None, "worker 0", prefix=("ip", "netns", "exec", space))
        t.until(lambda t: t.events("address") or t.events("end"))
        t.kill()
        return t.events("address")[0]["message"] if t.events("address") else t.final_message()

    text = start()
    assert "cannot choose the address" in text and "write the address into the cluster" in text, text
    ip("-n", space, "route", "add", "default", "via", "10.81.0.2")
    assert re.search(r"at 10\.81\.0\.1:\d+ \(the default route uses it", start()), start()
    c.resolve(digits_0="10.80.0.1")
    assert re.search(r"at 10\.80\.0\.1:\d+ \('digits-0.digits' resolves to it, interface net0", start()), start()


def check_replacement(lost):
    """Kills the pod `lost`, whose replacement has another address; the other pod trains on with it."""
    folder = workdir()
    c, tasks = start_both(job(folder))
    tasks[0].until_step(20)
    tasks[lost].signal(signal.SIGKILL)
    c.remove(lost)
    again, address = c.start(lost)
    again.until(lambda t: t.records)  # the pod runs before DNS has its new address
    c.resolve(**{"digits_%d" % lost: address})
    stayed = tasks[1 - lost]
    expect_codes([stayed, again], [0, 0])
    assert stayed.events("view")[-1]["tasks"] == 2 and len(stayed.events("start")) == 1, stayed.log()
    assert weights(folder) == undisturbed()


@test
def pod_replacement_with_another_address_joins_the_running_group():
    need_namespaces()
    check_replacement(1)


@test
def pod_replacement_of_the_chief_with_another_address_joins_the_running_group():
    need_namespaces()
    check_replacement(0)


@test
def pod_drained_saves_within_its_grace_period_and_its_replacement_continues():
    need_namespaces()
    folder = workdir()
    c, (a, b) = start_both(job(folder))
    a.until_step(20)
    b.signal(signal.SIGTERM)
    assert b.wait() == 143
    assert a.p.poll() is None and os.listdir(os.path.join(folder, "run", "checkpoints"))
    c.remove(1)
    again, address = c.start(1)
    c.resolve(digits_1=address)
    expect_codes([a, again], [0, 0])
    assert weights(folder) == undisturbed()


@test
def pods_all_evicted_continue_from_the_checkpoint_with_new_addresses():
    need_namespaces()
    folder = workdir()
    c, tasks = start_both(job(folder))
    tasks[0].until_step(20)
    for t in tasks:
        t.signal(signal.SIGTERM)
    expect_codes(tasks, [143, 143])
    for i in (0, 1):
        c.remove(i)
    again = [c.start(i) for i in (0, 1)]
    c.resolve(digits_0=again[0][1], digits_1=again[1][1])
    expect_codes([t for t, _ in again], [0, 0])
    assert min(again[0][0].steps()) > 10, min(again[0][0].steps())  # not from the beginning
    assert weights(folder) == undisturbed()


class Controller:
    """What the Job controller makes of a failed pod, by the rules of job.yaml in their order."""

    def __init__(self, limit=None):
        spec = manifest()
        self.rules, self.limit, self.failures = spec["podFailurePolicy"]["rules"], spec["backoffLimit"] if limit is None else limit, 0

    def action(self, code, is_disrupted):
        for rule in self.rules:
            if is_disrupted and any(p == {"type": "DisruptionTarget", "status": "True"} for p in rule["onPodConditions"]):
                return rule["action"]
            if "onExitCodes" in rule and code in rule["onExitCodes"]["values"]:
                assert rule["onExitCodes"]["operator"] == "In", rule
                return rule["action"]
        return "Count"

    def goes_on(self, code, is_disrupted=False):
        """Handles the end of a pod; returns whether the controller creates another pod."""
        action = self.action(code, is_disrupted)
        self.failures += action == "Count"
        return code != 0 and action != "FailJob" and self.failures <= self.limit


@test
def job_policy_ends_on_invalid_input_and_replaces_what_was_disrupted():
    assert not Controller().goes_on(0)
    assert not Controller().goes_on(2)
    c = Controller(limit=0)
    for code, is_disrupted in ((143, True), (143, False), (137, True), (138, True)):
        assert c.goes_on(code, is_disrupted) and c.failures == 0, (code, is_disrupted)
    c = Controller()
    for code in (138, 137, 139):
        assert c.goes_on(code)
    assert c.failures == 3


@test
def job_policy_ends_a_job_whose_peer_never_appears():
    """Every pod ends with 138; the Job fails after backoffLimit of them."""
    controller, ends = Controller(limit=2), []
    path = job(workdir(), train={"deadline_seconds": 1})
    ports = free_ports(2)
    while not ends or controller.goes_on(ends[-1]):
        assert len(ends) < 10
        ends.append(Task(path, tf_config(ports, 0), ("--devices", "cpu:1"), None, "worker 0").wait())
    assert ends == [138, 138, 138], ends


@test
def job_policy_real_exit_code_of_an_invalid_job_ends_the_job():
    code = Task(digits_job(workdir(), train={"epochs": -1}), args=("--devices", "cpu:1")).wait()
    assert not Controller().goes_on(code), code


class Keep:
    """trainerd-keep with a folder of programs at the beginning of PATH."""

    def __init__(self, folder, env, args=()):
        self.env = {**os.environ, "PATH": folder + ":" + os.environ["PATH"], "TMPDIR": folder, "TRAINERD_KEEP_PAUSE": "0", **env}
        self.log = os.path.join(folder, "log")
        with open(self.log, "w") as f:
            self.p = subprocess.Popen([KEEP, *args], env=self.env, stderr=f, start_new_session=True)

    def until(self, words):
        def is_said():
            assert self.p.poll() is None, (words, self.p.poll(), self.text())
            return words in self.text()
        wait_until(is_said, lambda: "%s: %s" % (words, self.text()))

    def text(self):
        with open(self.log) as f:
            return f.read()

    def is_alive(self):
        return subprocess.run([KEEP, "--alive"], env=self.env, capture_output=True, timeout=GUARD).returncode == 0

    def stop(self):
        self.p.terminate()
        return self.p.wait(GUARD)

    def kill(self):
        if self.p.poll() is None:
            os.killpg(self.p.pid, signal.SIGKILL)
            self.p.wait()


def stub(folder, code):
    """A trainerd that ends with this code and counts its starts."""
    with open(os.path.join(folder, "trainerd"), "w") as f:
        f.write('#!/bin/sh\necho start >>"$TMPDIR/starts"\nexit %d\n' % code)
    os.chmod(os.path.join(folder, "trainerd"), 0o755)


@test
def keep_restarts_after_temporary_failures_and_waits_after_an_end():
    for code, starts in ((138, 4), (137, 4), (0, 1), (2, 1), (143, 1)):
        folder = workdir()
        stub(folder, code)
        keep = Keep(folder, {"TRAINERD_KEEP_RESTARTS": "3"})
        try:
            keep.until("waiting until the container is stopped")
            with open(os.path.join(folder, "starts")) as f:
                assert len(f.readlines()) == starts, code
            assert keep.p.poll() is None and keep.is_alive()
            assert keep.stop() == code
        finally:
            keep.kill()


@test
def keep_ends_on_a_sigterm_at_any_moment():
    """Also between two commands of the shell, and before a child has executed its program."""
    folder = workdir()
    with open(os.path.join(folder, "trainerd"), "w") as f:
        f.write("#!/bin/sh\ntest -e \"$TMPDIR/ends\" || exec sleep 1000\n")
    os.chmod(os.path.join(folder, "trainerd"), 0o755)
    for i in range(60):
        if i == 30:
            open(os.path.join(folder, "ends"), "w").close()  # trainerd-keep itself waits then
        keep = Keep(folder, {})
        try:
            disturb(0.02)
            assert keep.stop() in (0, 143, -signal.SIGTERM), i
        finally:
            keep.kill()


@test
def keep_passes_sigterm_and_probes_the_task():
    folder = workdir()
    for name in ("trainerd", "trainerctl"):
        os.symlink(os.path.join(kit.BUILD, name), os.path.join(folder, name))
    port = free_ports(1)[0]
    path = digits_job(folder, train={"epochs": 100000, "log_every_steps": 1})
    env = {"TF_CONFIG": json.dumps(tf_config([port], 0)), "TRAINERD_KEEP_PORT": str(port), "TRAINERD_FAULT": SLOWLY}
    keep = Keep(folder, env, ("--job", path, "--devices", "cpu:1"))
    try:
        keep.until(" step 20 ")
        assert keep.is_alive()
        assert keep.stop() == 143, keep.text()
        assert "waiting" not in keep.text(), keep.text()
        assert os.listdir(os.path.join(folder, "run", "checkpoints"))
    finally:
        keep.kill()


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        bridge()
    main()
