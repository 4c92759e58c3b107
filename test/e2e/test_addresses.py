#!/usr/bin/python3
"""Names and addresses of tasks on two hosts, which are network namespaces with an /etc/hosts of their own: IPv6 alone, names that
appear late, and names that mean the loopback interface."""
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
        self.job = digits_job(self.folder, train={**STEPS, **job})
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


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        make_hosts()
    main()
