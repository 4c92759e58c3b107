"""control_group.py - a control group of Linux whose memory or processor time a test limits."""
import os
import subprocess

from kit import GUARD, Skip, wait_until


def read(path):
    with open(path) as f:
        return f.read()


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


FILES = {"memory": ("memory.max", "memory.limit_in_bytes"), "cpu": ("cpu.max", "cpu.cfs_quota_us")}


def candidates(controller):
    """[(folder, name of the file with the limit)]: control groups in which a new one may have this controller: the own one and those
    that contain it, of version 1 and 2."""
    groups = {(controller if controller in names.split(",") else names): path
              for names, path in (line.split(":", 2)[1:] for line in read("/proc/self/cgroup").splitlines())}
    out = []
    for line in read("/proc/self/mountinfo").splitlines():
        front, _, back = line.partition(" - ")
        kind, options = back.split()[0], back.split()[-1].split(",")
        name, limit = {"cgroup2": ("", FILES[controller][0]), "cgroup": (controller, FILES[controller][1])}.get(kind, (None, None))
        if name not in groups or (kind == "cgroup" and controller not in options):
            continue
        mount = front.split()[4]
        path = groups[name]
        while True:
            out.append((mount + path.rstrip("/"), limit))
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return out


class ControlGroup:
    """A control group for one process at a time; `with` removes it. Skips the test where this machine permits none. `name`
    distinguishes the groups of one test."""

    def __init__(self, name="0", controller="memory"):
        self.folder, why = None, "no control groups with the controller %s are mounted" % controller
        for parent, limit in candidates(controller):
            folder = os.path.join(parent, "trainerd-test-%d-%s" % (os.getpid(), name))
            try:
                os.mkdir(folder)
            except OSError as e:
                why = "%s: %s" % (folder, e.strerror)
                continue
            self.limit = os.path.join(folder, limit)
            if os.access(self.limit, os.W_OK):
                self.folder = folder
                break
            os.rmdir(folder)
            why = "%s: no file %s" % (folder, limit)
        if self.folder is None:
            raise Skip("no control group with the controller %s for user %d: %s" % (controller, os.geteuid(), why))
        self.procs = os.path.join(self.folder, "cgroup.procs")
        # the words in front of a command that runs in the group, with the same process id
        self.prefix = ("sh", "-c", 'echo $$ >"$0" && exec "$@"', self.procs)
        p = subprocess.run([*self.prefix, "true"], capture_output=True, text=True, timeout=GUARD)
        if p.returncode != 0:
            os.rmdir(self.folder)
            raise Skip("no process can be moved to the control group %s: %s" % (self.folder, p.stderr.strip()))

    def set_limit(self, bytes_):
        write(self.limit, str(bytes_))

    def set_processors(self, n):
        """Of a group with the controller cpu, whose period is 100 ms."""
        write(self.limit, "%d 100000" % (n * 100000) if self.limit.endswith("max") else str(int(n * 100000)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # the group is empty when the task, which Job.__exit__ has killed, has left it
        wait_until(lambda: read(self.procs) == "")
        os.rmdir(self.folder)
