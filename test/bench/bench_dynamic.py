"""bench_dynamic.py - a dynamic table whose nominal size no host has: 390 million 64-bit ids of 64 floats, 100 GB, on three ps. A
stream of 10^7 ids by Zipf's law touches a part of them; the memory follows the rows that exist, not the nominal size. The
number of rows is compared with that of numpy. It needs 5 GB of memory and 3 GB of disk."""
import json
import os
import re
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import kit
import peers
from table import duration

GB = 10 ** 9
NOMINAL, WIDTH = 390_000_000, 64
STREAM, QUICK_STREAM, IDS, BATCH = 10 ** 7, 10 ** 5, 8, 1250  # 10^4 ids in a step
SERVERS, SECONDS = 3, 600
ROW_BYTES = (2 * WIDTH * 4 + 40) * 1.25 + 8  # adagrad: one slot; an id is counted in 40 bytes, arrays grow by a quarter


def stream(n):
    """Rank k has a frequency of 1 / k; the id of a rank is its hash, as a hash of a string is."""
    ranks = np.floor(NOMINAL ** np.random.default_rng(3).random(n)).astype("u8")
    x = ranks + np.uint64(0x9e3779b97f4a7c15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
    return (x ^ x >> np.uint64(31)).view("i8")


class Job:
    def __init__(self, folder, n):
        self.folder, ids = folder, stream(n)
        self.touched = len(np.unique(ids))
        np.save(self.path("ids.npy"), ids.reshape(-1, IDS))
        np.save(self.path("click.npy"), np.random.default_rng(4).integers(0, 2, (n // IDS, 1)).astype("f4"))
        r = np.random.default_rng(5)
        weights = {"emb": np.zeros((1, WIDTH)), "w": r.standard_normal((WIDTH, 1)), "b": np.zeros(1)}
        graph = helper.make_graph(
            [helper.make_node("Gather", ["emb", "ids"], ["rows"]), helper.make_node("ReduceSum", ["rows", "one"], ["sum"], keepdims=0),
             helper.make_node("Gemm", ["sum", "w", "b"], ["logit"])], "ids",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", IDS])],
            [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["batch", 1])],
            [numpy_helper.from_array(v.astype("f4"), k) for k, v in weights.items()] + [numpy_helper.from_array(np.array([1], "i8"), "one")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.path("ids.onnx"))
        job = {"name": "ids",
               "model": {"onnx": "ids.onnx", "inputs": {"ids": "ids"}, "tables": {"emb": {"rows": "dynamic"}},
                         "loss": {"type": "binary_cross_entropy", "logits": "logit", "labels": "click"}},
               "data": {"format": "npy", "train": "{feature}.npy", "shuffle": False,
                        "features": {"ids": {"dtype": "int64", "shape": [IDS]}, "click": {"dtype": "float32", "shape": [1]}}},
               "train": {"seed": 1, "epochs": 1, "global_batch_size": BATCH, "lanes": 1, "log_every_steps": 1},
               "optimizer": {"type": "adagrad", "learning_rate": 0.01}, "parameter_server": {"replicas": 1},
               "checkpoint": {"directory": "checkpoints"}}
        with open(self.path("job.json"), "w") as f:
            json.dump(job, f)

    def path(self, name):
        return os.path.join(self.folder, name)

    def saved(self):
        """Returns the rows in the last checkpoint, by the headers of its files."""
        folder = max(os.path.join(self.path("checkpoints"), n) for n in os.listdir(self.path("checkpoints")) if n.startswith("step-"))
        rows = 0
        for i in range(16):
            with open(os.path.join(folder, "model-%05d-of-00016.safetensors" % i), "rb") as f:
                header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            rows += header["emb/ids/rows-%05d-of-00016" % i]["shape"][0]
        return rows


def peak(pid):
    """Returns the most resident memory of a process in bytes; 0: it has ended."""
    try:
        with open("/proc/%d/status" % pid) as f:
            found = re.search(r"VmHWM:\s+(\d+) kB", f.read())
    except OSError:
        found = None
    return int(found.group(1)) * 1024 if found else 0


def run(job):
    """Returns the seconds from the first to the last step, those of the save, and the peaks of the ps."""
    ports, tasks = kit.free_ports(1 + SERVERS), []
    peaks = [0] * SERVERS
    try:
        for i in range(1 + SERVERS):
            kind, index = ("worker", 0) if i == 0 else ("ps", i - 1)
            config = kit.tf_config(ports[:1], index, kind=kind, extra={"ps": ["127.0.0.1:%d" % p for p in ports[1:]]})
            tasks.append(kit.Task(job.path("job.json"), config, ("--devices", "cpu:1"), name="%s %d" % (kind, index)))

        def measure(_=None):
            for i in range(SERVERS):
                peaks[i] = max(peaks[i], peak(tasks[1 + i].p.pid))
            return tasks[0].p.poll() is not None
        tasks[0].until(measure, SECONDS)
        assert [t.wait() for t in tasks] == [0] * len(tasks), tasks[0].log()
    finally:
        for t in tasks:
            t.kill()
    steps = [r["_at"] for r in tasks[0].records if r.get("event") == "step"]
    return steps[-1] - steps[0], len(steps), peaks


def dynamic(table, folder):
    n = QUICK_STREAM if table.quick else STREAM
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = Job(d, n)
        try:
            seconds, steps, peaks = run(job)
        except kit.Skip as e:
            raise peers.Unavailable(str(e))
        rows = job.saved()
    nominal = NOMINAL * WIDTH * 4
    limit = rows * ROW_BYTES / SERVERS * 1.1 + GB // 10  # shards are not equal; a process without rows
    table.row("rows of a dynamic table of nominally %d GB" % round(nominal / GB), "= numpy",
              lambda: ("%.2f M" % (rows / 1e6), "%.2f M distinct" % (job.touched / 1e6), "", rows == job.touched))
    table.row("most memory of each ps, %d ps" % SERVERS, "< limit",
              lambda: (" ".join("%.2f" % (p / GB) for p in peaks) + " GB", "limit %.2f GB" % (limit / GB), "", 0 < max(peaks) <= limit))
    table.row("a stream of 10^%d ids, %d ids a step" % (len(str(n)) - 1, BATCH * IDS), "",
              lambda: (duration(seconds), "%.2f M ids/s" % (steps * BATCH * IDS / seconds / 1e6), "", True))
