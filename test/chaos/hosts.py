"""hosts.py - four hosts on one machine: a network namespace each, with a cable to a switch that can be unplugged
and split, and shared storage that can be full. All of it lives in namespaces of this process and vanishes with it.

Cables end in bridges of a namespace of their own: a cable that is out is a port that is down (both sides
notice); a partition is ports on different bridges (frames are lost in silence).
"""
import os
import subprocess
import sys

NET = "10.78.0.%d"
PORT = 2222
BRIDGES = 4 # as many sides as there can be
MARK = "_TRAINERD_CHAOS"
REFUSED = 77 # exit code: this machine does not let us


def enter():
    """Goes on in namespaces of mounts, networks and processes: root's, or those of a user who is root in one of his
    own. When this process ends, in whatever way, the system ends every process started here."""
    if os.environ.get(MARK) == "1":
        subprocess.run(["mount", "-t", "tmpfs", "none", "/run"], check=True)
        return
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child"]
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


class Hosts:
    def __init__(self, n):
        self.n = n
        self.addresses = [NET % (i + 1) + ":%d" % PORT for i in range(n)]
        self.splits = []
        ip("netns", "add", "switch")
        for side in range(BRIDGES):
            ip("-n", "switch", "link", "add", "side%d" % side, "type", "bridge")
            ip("-n", "switch", "link", "set", "side%d" % side, "up")
        for i in range(n):
            ip("netns", "add", "host%d" % i)
            ip("-n", "host%d" % i, "link", "set", "lo", "up")
            ip("-n", "switch", "link", "add", "port%d" % i, "type", "veth", "peer", "name", "cable", "netns", "host%d" % i)
            ip("-n", "host%d" % i, "addr", "add", NET % (i + 1) + "/24", "dev", "cable")
            ip("-n", "host%d" % i, "link", "set", "cable", "up")
            ip("-n", "switch", "link", "set", "port%d" % i, "master", "side0", "up")

    def prefix(self, i):
        return ("ip", "netns", "exec", "host%d" % i)

    def cable(self, i, is_in):
        ip("-n", "switch", "link", "set", "port%d" % i, "up" if is_in else "down")

    def split(self, sides):
        """sides: the number of the side of each host. Several splits may be on; the last one counts."""
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

    def _connect(self):
        sides = self.splits[-1] if self.splits else [0] * self.n
        for i, side in enumerate(sides):
            ip("-n", "switch", "link", "set", "port%d" % i, "master", "side%d" % side)


class Storage:
    """A file system of `size` bytes that all tasks see."""

    def __init__(self, path, size):
        self.path, self.filler = path, os.path.join(path, "filler")
        os.makedirs(path, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", path], check=True)

    def fill(self):
        """Returns how many bytes were free."""
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

    def newest(self):
        """Folder of the newest checkpoint; None: there is none."""
        root = os.path.join(self.path, "checkpoints")
        try:
            names = sorted(n for n in os.listdir(root) if n.startswith("step-") and n[5:].isdigit())
        except OSError:
            return None
        return os.path.join(root, names[-1]) if names else None

    def corrupt(self):
        """Flips bits in the middle of the newest checkpoint's weights; returns its folder, or None."""
        folder = self.newest()
        if folder is None:
            return None
        with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
            f.seek(0, os.SEEK_END)
            at = f.tell() // 2
            f.seek(at)
            bits = f.read(16)
            f.seek(at)
            f.write(bytes(b ^ 0x40 for b in bits))
        return folder
