"""strangers.py - foreign processes: a second process of a task, and a client that sends invalid
input."""
import json
import os
import shutil
import subprocess
import sys

import kit

JUNK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "junk.py")
SAMPLES = "samples-of-twins"  # a twin may join the group, and then its steps count
VERSION, OTHER_VERSION = b"0.1.0", b"0.1.9"


class Strangers:
    """Runs the processes on the host of the stranger, one at a time."""

    def __init__(self, net, group, folder, say):
        self.net, self.group, self.folder, self.say = net, group, folder, say
        self.p = self.posed = None

    def twin(self, how, t):
        """Starts a second process of the task, like a pod that was started too early or by mistake.
        `how`: the difference ("other job", "other version", "other token"), or "same"."""
        self.end()
        program, job, token = kit.TRAINERD, t.job, t.token
        if how == "other job":
            job = self._other_job(t.job)
        elif how == "other version":
            program = self._other_version()
        elif how == "other token":
            token = "another " + token
        self.net.pose(t.number, True)
        self.posed = t.number
        config = {"cluster": t.cluster, "task": {"type": t.kind, "index": t.index}}
        self._start([program, "--job", job, "--log-format", "json", "--devices", "cpu:1", "--sample-log",
                     os.path.join(self.folder, SAMPLES + ".txt")],
                    {"TF_CONFIG": json.dumps(config), "TRAINERD_TOKEN": token})

    def junk(self, t, seconds):
        self.end()
        self._start([sys.executable, JUNK, t.address, "%.2f" % seconds], {})

    def end(self):
        if self.p is not None:
            code = self.p.poll()
            if code is None:
                self.p.kill()
                self.p.wait()
            self.say("the foreign process %s" % ("was ended" if code is None else "had ended with %d" % code))
            self.p = None
        if self.posed is not None:
            self.net.pose(self.posed, False)
            self.posed = None

    def _start(self, command, env):
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_")}, **env}
        with open(os.path.join(self.folder, "stranger.log"), "ab") as log:
            self.p = subprocess.Popen([*self.net.prefix(self.net.stranger), *command], env=env, stdout=log, stderr=log)

    def _other_job(self, path):
        other = os.path.join(self.folder, "other-job.json")
        with open(path) as f:
            job = json.load(f)
        job["train"]["seed"] = 4711
        with open(other, "w") as f:
            json.dump(job, f)
        return other

    def _other_version(self):
        """Returns a copy of the program with another version of the same length."""
        path = os.path.join(self.folder, "trainerd-other")
        if not os.path.exists(path):
            with open(kit.TRAINERD, "rb") as f:
                program = f.read().replace(VERSION, OTHER_VERSION)
            with open(path, "wb") as f:
                f.write(program)
            shutil.copymode(kit.TRAINERD, path)
        return path
