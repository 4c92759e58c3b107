"""hosts.py - simulates four hosts on one machine: each is a network namespace with a cable to a
switch, which can be unplugged and partitioned, and shared storage that can be full. All of it is in
namespaces of this process and ends with it.

The cables end in bridges of a namespace of their own. An unplugged cable is a port that is down
(both sides detect it); a partition is ports on different bridges (frames are lost silently). Gray
failures are rules of iptables at the receiver, so the sender detects nothing, as in a lossy
network. One more host, the stranger, has no task.
"""
import os
import shutil
import subprocess
import sys

NET = "10.78.0.%d"
PORT = 2222
BRIDGES = 4 # the largest number of sides of a partition
MARK = "_TRAINERD_CHAOS"
TBF = ("tbf", "burst", "16kb", "latency", "400ms", "rate")
REFUSED = 77 # exit code: this machine does not allow the namespaces


def enter():
    """Continues in namespaces of mounts, networks and processes: as root, or as a user who is root
    in a user namespace. When this process ends in any way, the system ends every process that was
    started here."""
    if os.environ.get(MARK) == "1":
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        return
    unshare = ["unshare", "--mount", "--mount-proc", "--net", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        unshare.insert(1, "--map-root-user")
    probe = ("mount -t tmpfs none /run && ip netns add host0 && ip link add name side0 type bridge && "
             "ip link add name port0 type veth peer name cable netns host0 && ip link set port0 master side0")
    try:
        p = subprocess.run(unshare + ["sh", "-c", probe], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as e:
        p = subprocess.CompletedProcess(unshare, 1, "", str(e))
    if p.returncode != 0:
        said = (p.stderr.strip().splitlines() or ["exit code %d" % p.returncode])[-1]
        print("chaos: cannot make network namespaces with a bridge here (%s): run it as root, or where "
              "unprivileged user namespaces are allowed; nothing was tested" % said, file=sys.stderr)
        sys.exit(REFUSED)
    os.environ[MARK] = "1"
    sys.stdout.flush()
    os.execvp(unshare[0], unshare + [sys.executable] + sys.argv)


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.DEVNULL)


def works(*command):
    """Returns True if this machine has and allows the command."""
    try:
        return subprocess.run(command, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Hosts:
    def __init__(self, n):
        self.n = self.stranger = n
        self.addresses = [NET % (i + 1) + ":%d" % PORT for i in range(n)]
        self.splits = []
        self.rules = []  # active (host, rule)
        self.slow_hosts = set()
        ip("netns", "add", "switch")
        for side in range(BRIDGES):
            ip("-n", "switch", "link", "add", "side%d" % side, "type", "bridge")
            ip("-n", "switch", "link", "set", "side%d" % side, "up")
        for i in range(n + 1):
            ip("netns", "add", "host%d" % i)
            ip("-n", "host%d" % i, "link", "set", "lo", "up")
            ip("-n", "switch", "link", "add", "port%d" % i, "type", "veth", "peer", "name", "cable", "netns", "host%d" % i)
            ip("-n", "host%d" % i, "addr", "add", NET % (i + 1) + "/24", "dev", "cable")
            ip("-n", "host%d" % i, "link", "set", "cable", "up")
            ip("-n", "switch", "link", "set", "port%d" % i, "master", "side0", "up")
        # the stranger takes the addresses of tasks, but does not answer for them on the network
        subprocess.run([*self.prefix(n), "sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore"], check=True)

    def cannot(self):
        """Returns {missing tool: reason}."""
        out = {}
        if not works(*self.prefix(0), "iptables", "-w", "-A", "INPUT", "-p", "tcp", "-m", "multiport", "!", "--ports", "9", "-m",
                     "length", "--length", "65535", "-m", "statistic", "--mode", "random", "--probability", "0.5", "-j", "DROP"):
            out["iptables"] = "iptables with multiport, length and statistic does not work here"
        else:
            subprocess.run([*self.prefix(0), "iptables", "-w", "-F"], check=True)
        if works("tc", "-n", "host0", "qdisc", "add", "dev", "lo", "root", *TBF, "1mbit"):
            subprocess.run(["tc", "-n", "host0", "qdisc", "del", "dev", "lo", "root"], check=True)
        else:
            out["tc"] = "tc with the queueing discipline tbf does not work here"
        return out

    def prefix(self, i):
        return ("ip", "netns", "exec", "host%d" % i)

    def cable(self, i, is_in):
        ip("-n", "switch", "link", "set", "port%d" % i, "up" if is_in else "down")

    def split(self, sides):
        """sides: the number of the side of each host. Several splits may be active; the last one is
        effective."""
        self.splits.append(sides)
        self._connect()

    def heal(self, sides):
        self.splits.remove(sides)
        self._connect()

    def heal_all(self):
        self.splits.clear()
        self._connect()
        for i in range(self.n):
            self.cable(i, True)
            self.slow(i, 0)
        while self.rules:
            self._rule("-D", *self.rules[-1])

    def drop(self, drop, is_on):
        """drop: a schedule.Drop."""
        if is_on:
            drop = [r for d in ([drop._replace(way="in"), drop._replace(way="out")] if drop.way == "both" else [drop])
                    for r in self._rules_of(d)]
            for rule in drop:
                self._rule("-A", *rule)
            return drop
        for rule in drop:
            if rule in self.rules:
                self._rule("-D", *rule)
        return []

    def _rule(self, what, host, rule):
        subprocess.run([*self.prefix(host), "iptables", "-w", what, "INPUT", *rule], check=True)
        if what == "-A":
            self.rules.append((host, rule))
        else:
            self.rules.remove((host, rule))

    def _rules_of(self, d):
        """Returns [(host, rule)] for one direction: packets to the host, or packets from it to the
        others."""
        others = [i for i in range(self.n) if i != d.host and d.peer in (None, i)]
        ports = self._ports(d)
        tail = (["-m", "length", "--length", "%d:65535" % d.at_least] if d.at_least else []) + (
            ["-m", "statistic", "--mode", "random", "--probability", "%.4f" % d.share] if d.share < 1 else []) + ["-j", "DROP"]
        return [(d.host if d.way == "in" else o, ["-s", NET % ((o if d.way == "in" else d.host) + 1), "-p", "tcp", *p, *tail])
                for o in others for p in ports]

    def _ports(self, d):
        """Returns [part of a rule] that selects a plane, and with `port` only connections that the
        host accepted."""
        end = "--dport" if d.way == "in" else "--sport"
        if d.plane == "both":
            return [[]]
        if d.plane == "control":
            return [[end, str(PORT)]] if d.port else [["-m", "multiport", "--ports", str(PORT)]]
        if d.port:
            return [[end, p] for p in self._listening(d.host)]
        return [["-m", "multiport", "!", "--ports", str(PORT)]]

    def _listening(self, i):
        """Returns the ports of the data plane of this host."""
        out = subprocess.run([*self.prefix(i), "ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
        return sorted({line.split()[3].rsplit(":", 1)[1] for line in out.splitlines()} - {str(PORT)})

    def slow(self, i, rate):
        """Limits the cable of a host to `rate` kbit/s in both directions; 0: no limit."""
        ends = (("host%d" % i, "cable"), ("switch", "port%d" % i))
        for space, device in ends if rate or i in self.slow_hosts else ():
            how = [*TBF, "%dkbit" % rate] if rate else []
            subprocess.run(["tc", "-n", space, "qdisc", "replace" if rate else "del", "dev", device, "root", *how], check=True)
        (self.slow_hosts.add if rate else self.slow_hosts.discard)(i)

    def pose(self, i, is_on):
        """Adds the address of this host to the stranger, without answering for it on the network;
        or removes it."""
        ip("-n", "host%d" % self.stranger, "addr", "add" if is_on else "del", NET % (i + 1) + "/32", "dev", "lo")

    def _connect(self):
        sides = self.splits[-1] if self.splits else [0] * self.n
        for i, side in enumerate(sides):
            ip("-n", "switch", "link", "set", "port%d" % i, "master", "side%d" % side)


class Storage:
    """A file system of `size` bytes that all tasks share."""

    def __init__(self, path, size):
        self.path, self.filler = path, os.path.join(path, "filler")
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", path], check=True)

    def fill(self):
        """Fills the storage. Returns the number of bytes that were free."""
        n = 0
        with open(self.filler, "ab", 0) as f:
            for block in (1 << 20, 4096, 1):
                try:
                    while True:
                        n += f.write(b"\0" * block)
                except OSError:
                    pass
        return n

    def empty(self):
        if os.path.exists(self.filler):
            os.remove(self.filler)

    def all(self):
        """Returns the folders of the checkpoints, oldest first."""
        root = os.path.join(self.path, "checkpoints")
        try:
            names = sorted(n for n in os.listdir(root) if n.startswith("step-") and n[5:].isdigit())
        except OSError:
            return []
        return [os.path.join(root, n) for n in names]

    def newest(self):
        """Returns the folder of the newest checkpoint, or None."""
        return self.all()[-1] if self.all() else None

    def corrupt(self):
        """Flips bits in the middle of the newest checkpoint's weights; returns its folder. None: it is
        the only checkpoint, and the job would end without it."""
        if len(self.all()) < 2:
            return None
        folder = self.newest()
        names = ("model.safetensors", "model-00005-of-00016.safetensors")  # the second one with tables on ps tasks
        name = next(name for name in names if os.path.exists(os.path.join(folder, name)))
        with open(os.path.join(folder, name), "r+b") as f:
            f.seek(0, os.SEEK_END)
            at = f.tell() // 2
            f.seek(at)
            bits = f.read(16)
            f.seek(at)
            f.write(bytes(b ^ 0x40 for b in bits))
        return folder

    def delete(self):
        shutil.rmtree(os.path.join(self.path, "checkpoints"), ignore_errors=True)

    def read_only(self, pid, is_on):
        """Makes the storage read-only for one process, which has a namespace of mounts from `ip
        netns exec`. Returns True on success; the system refuses it while a file is open for
        writing."""
        return works("nsenter", "-t", str(pid), "-m", "mount", "-o", "remount,bind," + ("ro" if is_on else "rw"), self.path)
