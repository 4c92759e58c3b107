"""ids_group.py - the tasks of the job of ids.py, as processes."""
import json
import os
import signal
import subprocess
import tempfile

import ids
import test_ps
from kit import FOLDERS, GUARD, TRAINERCTL, wait_until

_kept = tempfile.TemporaryDirectory(prefix="trainerd-test-", dir=FOLDERS)  # data, for all tests of a file


def make_data():
    return ids.make_data(os.path.join(_kept.name, "data"))


def kept_folder():
    """Returns a new folder that exists until all tests of the file have ended."""
    return tempfile.mkdtemp(dir=_kept.name)


class Group(test_ps.Group):
    """As in test_ps.py, with the job of ids.py. `devices`: of every task; `metrics`: {task: port}."""

    def __init__(self, workers, ps, devices="cpu:1", metrics=None, **changes):
        self.metrics = metrics or {}
        elastic = {"min_world": max(1, workers - workers // 3), "rejoin_seconds": 0}  # a majority, as there is no lease
        super().__init__(workers, ps, devices={"worker": devices, "ps": devices}, **{"elastic": elastic, **changes})

    def make_job(self, with_ps, changes):
        return ids.job_file(self.folder, make_data(), **changes)

    def start(self, name):
        self.env = {"TRAINERD_METRICS": str(self.metrics[name])} if name in self.metrics else {}
        return super().start(name)

    def losses(self):
        """{step: loss} of all records; a step that was trained again has the same loss."""
        out = {}
        for tasks in self.tasks.values():
            for t in tasks:
                for r in t.events("step"):
                    assert out.setdefault(r["step"], r["loss"]) == r["loss"], "step %d has two losses\n%s" % (r["step"], self.logs())
        return out

    def newest(self):
        return max(self.losses(), default=0)

    def wait_until(self, condition):
        """No task may end meanwhile, unless kill() has ended it."""
        def is_done():
            codes = {name: self.now(name).p.poll() for name in self.names}
            assert set(codes.values()) <= {None, -signal.SIGKILL}, "%s\n%s" % (codes, self.logs())
            return condition()
        wait_until(is_done, self.logs)

    def until_step(self, step):
        self.wait_until(lambda: self.newest() >= step)

    def status(self, name):
        p = subprocess.run([TRAINERCTL, "status", "--json", self.address(name)], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0, p.stdout + p.stderr
        return json.loads(p.stdout)

    def rows(self, *args):
        return subprocess.run([TRAINERCTL, "rows", *args[:-1], self.address("ps 0"), "emb", *map(str, args[-1])],
                              capture_output=True, text=True, timeout=GUARD)
