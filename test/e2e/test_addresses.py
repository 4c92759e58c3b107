#!/usr/bin/python3
"""Names and addresses of tasks on two hosts, which are network namespaces with an /etc/hosts of their own: IPv6 alone, names that
appear late, and names that mean the loopback interface."""
import json
import os
import signal
import subprocess
import sys

from kit import (GUARD, TOKEN, TRAINERCTL, Task, digits_job, enter_namespaces, expect_codes, free_ports, has_namespaces, main,
                 need_namespaces, test, workdir)

HOSTS = {"h1": ("10.78.0.1", "fd78::1"), "h2": ("10.78.0.2", "fd78::2")}
STEPS = {"epochs": None, "steps": 25, "lanes": 2, "log_every_steps": 1}


def ip(*args):
    subprocess.run(["ip", *args], check=True)


def make_hosts():
    for name in HOSTS:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    ip("-n", "h1", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", "h2")
    for name in HOSTS:
        ip("-n", name, "link", "set", "cable", "up")


def set_addresses(*families):
    """Gives the hosts addresses of these families alone: 4, 6."""
    need_namespaces()
    for name, (v4, v6) in HOSTS.items():
        ip("-n", name, "addr", "flush", "dev", "cable")
        if 4 in families:
            ip("-n", name, "addr", "add", v4 + "/24", "dev", "cable")
        if 6 in families:
            ip("-n", name, "addr", "add", v6 + "/64", "dev", "cable", "nodad")


class Pair:
    """A task on each host. `lines`: those of /etc/hosts, of both hosts or a list with a text for each."""

    def __init__(self, addresses, lines="", env=None, **job):
        self.folder = workdir()
        self.job = digits_job(self.folder, train={**STEPS, **job, **({"global_batch_size": 66} if job.get("lanes") == 3 else {})})
        self.config = [{"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}} for i in (0, 1)]
        for i, name in enumerate(HOSTS):
            self.write(name, "127.0.0.1 localhost\n::1 localhost\n" + (lines if isinstance(lines, str) else lines[i]))
        self.env = env or {}

    def hosts(self, name):
        return os.path.join(self.folder, "hosts-" + name)

    def write(self, name, text):
        with open(self.hosts(name), "a") as f:
            f.write(text)

    def prefix(self, name):
        return ("nsenter", "--net=/run/netns/" + name, "unshare", "--mount", "sh", "-c",
                "mount --bind %s /etc/hosts && exec \"$@\"" % self.hosts(name), "sh")

    def start(self):
        return [Task(self.job, self.config[i], ("--devices", "cpu:1"), self.env, "worker %d" % i, prefix=self.prefix(name))
                for i, name in enumerate(HOSTS)]


@test
def ipv6_cluster_with_bind_any_trains_by_literal_addresses_and_names():
    set_addresses(6)
    port = free_ports(1)[0]
    env = {"TRAINERD_BIND": "any", "TRAINERD_METRICS": "0.0.0.0:%d" % port}
    for hosts in (["[fd78::1]", "[fd78::2]"], ["one", "two"]):
        pair = Pair([h + ":2222" for h in hosts], "fd78::1 one\nfd78::2 two\n", {**env, "TRAINERD_FAULT": "train.forward=delay:20@1+"},
                    steps=100000)
        tasks = pair.start()
        tasks[0].until_step(3)
        assert any("at [fd78::1]:" in r["message"] for r in tasks[0].events("address")) == (hosts[0] == "one"), tasks[0].log()
        prefix = pair.prefix("h2")
        read = "import urllib.request as r; print(r.urlopen('http://[fd78::1]:%d/metrics').read().decode())" % port
        page = subprocess.run([*prefix, sys.executable, "-c", read], capture_output=True, text=True, timeout=GUARD)
        assert "trainerd_steps_total" in page.stdout, page
        measured = subprocess.run([*prefix, TRAINERCTL, "netcheck", "[fd78::1]:2222"], capture_output=True, text=True,
                                  timeout=GUARD, env={**os.environ, "TRAINERD_TOKEN": TOKEN})
        assert measured.returncode == 0 and "worker 1" in measured.stdout, measured
        for t in tasks:
            t.signal(signal.SIGTERM)
        expect_codes(tasks, [143, 143])


@test
def dual_stack_hosts_with_bind_any_reach_the_data_plane_by_the_address_of_their_name():
    set_addresses(4, 6)
    pair = Pair(["one:2222", "two:2222"], "fd78::1 one\nfd78::2 two\n", {"TRAINERD_BIND": "any"})
    tasks = pair.start()
    expect_codes(tasks, [0, 0])
    assert any("at [fd78::1]:" in r["message"] for r in tasks[0].events("address")), tasks[0].log()


@test
def certificates_for_host_names_above_64_characters_are_accepted():
    set_addresses(4)
    names = ["%s-%d.%s.team.svc.cluster.local" % ("w" * 60, i, "n" * 60) for i in (0, 1)]
    pair = Pair([n + ":2222" for n in names], "10.78.0.1 %s\n10.78.0.2 %s\n" % tuple(names), steps=100000)
    folder = os.path.join(pair.folder, "keys")
    made = subprocess.run([TRAINERCTL, "keys", "--out", folder], capture_output=True, text=True, timeout=GUARD,
                          env={**os.environ, "TF_CONFIG": json.dumps(pair.config[0])})
    assert made.returncode == 0, made
    for i, name in enumerate(names):
        text = subprocess.run(["openssl", "x509", "-noout", "-subject", "-ext", "subjectAltName", "-in", "%s/%s/tls.crt" % (folder, name)],
                              capture_output=True, text=True, timeout=GUARD, check=True).stdout
        assert "CN" not in text and "Alternative Name: critical" in text and "DNS:" + name in text, text
    tasks = [Task(pair.job, pair.config[i], ("--devices", "cpu:1"), {"TRAINERD_TOKEN": "", "TRAINERD_TLS": "%s/%s" % (folder, name)},
                  "worker %d" % i, prefix=pair.prefix(host)) for (i, name), host in zip(enumerate(names), HOSTS)]
    tasks[0].until_step(3)
    stopped = subprocess.run([*pair.prefix("h2"), TRAINERCTL, "stop", names[0] + ":2222"], capture_output=True, text=True, timeout=GUARD,
                             env={**os.environ, "TRAINERD_TLS": folder + "/operator"})
    assert stopped.returncode == 0, stopped
    expect_codes(tasks, [143, 143])


@test
def tasks_of_two_hosts_that_know_rank_0_alone_meet_and_train():
    """The environment of a PyTorchJob, with two tasks on the host of rank 0, which knows itself as localhost. Without a token the list
    has addresses that other hosts reach, and no task starts."""
    set_addresses(4)
    for env, code in (({"TRAINERD_TOKEN": TOKEN}, 0), ({}, 2)):
        pair = Pair([], ["", "10.78.0.1 job-master-0\n"], lanes=3)
        tasks = []
        for rank, (host, master, local) in enumerate((("h1", "localhost", 0), ("h1", "localhost", 1), ("h2", "job-master-0", 0))):
            e = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": str(local), "MASTER_ADDR": master, "MASTER_PORT": "23456", **env}
            tasks.append(Task(pair.job, None, ("--devices", "cpu:1"), e, "worker %d" % rank, prefix=pair.prefix(host)))
        expect_codes(tasks, [code] * 3)
        if code == 2:
            assert [t.final_message().split(":")[0] for t in tasks] == ["control port 10.78.0.1"] * 2 + ["control port 10.78.0.2"], tasks[0].log()


@test
def own_name_that_appears_late_is_waited_for():
    set_addresses(4)
    # the second name first belongs to another host, as in a cache of DNS after a pod was moved
    pair = Pair(["one:2222", "two:2222"], ["10.78.0.2 two\n", "10.78.0.1 one\n10.78.0.1 two\n"])
    tasks = pair.start()
    tasks[0].until(lambda t: any("'one' has no address: " in r["message"] for r in t.events("address")))
    tasks[1].until(lambda t: any("'two' resolves to 10.78.0.1, which is not an address of this host" in r["message"]
                                 for r in t.events("address")))
    pair.write("h1", "10.78.0.1 one\n")
    with open(pair.hosts("h2"), "r+") as f:
        f.write("127.0.0.1 localhost\n10.78.0.1 one\n10.78.0.2 two\n")
        f.truncate()
    expect_codes(tasks, [0, 0])


@test
def own_name_that_never_appears_ends_the_task_and_a_signal_at_once():
    set_addresses(4)
    for deadline, code, text in ((1, 138, "listen on one:2222: for 1 s (train.deadline_seconds) 'one' has no address"),
                                 (600, 143, "stopped while it waited for its name: 'one' has no address")):
        pair = Pair(["one:2222", "10.78.0.2:2222"], deadline_seconds=deadline)
        task = Task(pair.job, pair.config[0], ("--devices", "cpu:1"), None, "worker 0", prefix=pair.prefix("h1"))
        if code == 143:
            task.until(lambda t: t.events("address"))
            task.signal(signal.SIGTERM)
        expect_codes([task], [code])
        assert text in task.final_message(), task.log()


@test
def own_name_with_a_loopback_address_is_refused_with_the_remedy():
    set_addresses(4)
    pair = Pair(["one:2222", "two:2222"], ["127.0.1.1 one\n10.78.0.2 two\n", "127.0.1.1 two\n10.78.0.1 one\n"])
    tasks = pair.start()
    expect_codes(tasks, [2, 2])
    assert tasks[0].final_message() == (
        "exit 2: listen on one:2222: 'one' resolves on this host to 127.0.1.1, a loopback address, to which 'two' and other hosts "
        "cannot connect; remove that line from /etc/hosts, write an address of this host into the cluster, or use --bind any")
    assert "'two' resolves on this host to 127.0.1.1" in tasks[1].final_message(), tasks[1].log()
    measured = subprocess.run([*pair.prefix("h1"), TRAINERCTL, "preflight", "--seconds", "1", pair.job], capture_output=True, text=True,
                              timeout=GUARD, env={**os.environ, "TF_CONFIG": json.dumps(pair.config[0]), "TRAINERD_TOKEN": TOKEN,
                                                  "TRAINERD_DEVICES": "cpu:1"})
    assert "own address: worker 0: 'one' resolves on this host to 127.0.1.1, a loopback address" in measured.stdout, measured
    # the remedy that needs no other file
    pair.env = {"TRAINERD_BIND": "any"}
    expect_codes(pair.start(), [0, 0])


@test
def loopback_names_of_one_host_train():
    set_addresses(4)
    pair = Pair(["one:2222", "10.78.0.1:2223"], ["127.0.1.1 one\n", ""])
    tasks = [Task(pair.job, c, ("--devices", "cpu:1"), None, "worker", prefix=pair.prefix("h1")) for c in pair.config]
    expect_codes(tasks, [0, 0])


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        make_hosts()
    main()
