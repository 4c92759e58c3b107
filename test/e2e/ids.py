"""ids.py - a job with a dynamic table, its data, and the same training in numpy.

The network adds the rows of four ids and a bias: logit = sum over the rows @ w + b. The ids are any 64-bit numbers, few
frequent ones and many rare ones."""
import json
import os

from kit import merge, use_venv

use_venv()
import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SAMPLES, BATCH, IDS, WIDTH, RANGE, RATE, SEED = 17600, 8, 4, 6, 0.5, 0.05, 3  # 2200 steps: two sweeps
STEPS = SAMPLES // BATCH
EXTREMES = (-(1 << 63), (1 << 63) - 1, 0, -1)
RULES = {"rows": "dynamic", "initializer": {"type": "uniform", "range": RANGE}, "admit_after": 2, "expire_steps": 400, "max_rows": 1100}
MASK = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = ((x ^ x >> 30) * 0xbf58476d1ce4e5b9) & MASK
    x = ((x ^ x >> 27) * 0x94d049bb133111eb) & MASK
    return x ^ x >> 31


def signed(x):
    return x - (1 << 64) if x >> 63 else x


def make_data(folder):
    """Writes the network and the samples to the folder, unless it exists; returns the folder."""
    if os.path.exists(folder):
        return folder
    os.mkdir(folder)
    r = np.random.default_rng(5)
    weights = {"emb": np.zeros((1, WIDTH)), "w": r.standard_normal((WIDTH, 1)), "b": r.standard_normal(1) * 0.1}
    graph = helper.make_graph(
        [helper.make_node("Gather", ["emb", "ids"], ["rows"]), helper.make_node("ReduceSum", ["rows", "one"], ["sum"], keepdims=0),
         helper.make_node("Gemm", ["sum", "w", "b"], ["logit"])], "ids",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", IDS])],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["batch", 1])],
        [numpy_helper.from_array(v.astype("f4"), k) for k, v in weights.items()] + [numpy_helper.from_array(np.array([1], "i8"), "one")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), os.path.join(folder, "ids.onnx"))
    known = np.array([*EXTREMES, *(signed(mix64(i)) for i in range(6000))], "i8")
    ids = known[np.minimum(r.zipf(1.2, (SAMPLES, IDS)) - 1, len(known) - 1)]
    np.save(os.path.join(folder, "train-ids.npy"), ids)
    np.save(os.path.join(folder, "train-click.npy"), (r.random((SAMPLES, 1)) < 0.3).astype("f4"))
    return folder


def job_file(folder, source, **changes):
    """Writes the job to the folder, with `changes` merged in; `source`: the result of make_data()."""
    job = {"name": "ids",
           "model": {"onnx": os.path.join(source, "ids.onnx"), "inputs": {"ids": "ids"}, "tables": {"emb": RULES},
                     "loss": {"type": "binary_cross_entropy", "logits": "logit", "labels": "click"}},
           "data": {"format": "npy", "train": os.path.join(source, "train-{feature}.npy"), "shuffle": False,
                    "features": {"ids": {"dtype": "int64", "shape": [IDS]}, "click": {"dtype": "float32", "shape": [1]}}},
           "train": {"seed": SEED, "epochs": 1, "global_batch_size": BATCH, "lanes": 4, "log_every_steps": 1, "deadline_seconds": 60}, "detection": {"stuck_factor": 0},
           "optimizer": {"type": "adagrad", "learning_rate": RATE},
           "parameter_server": {"replicas": 2}}
    path = os.path.join(folder, "job.json")
    with open(path, "w") as f:
        json.dump(merge(job, changes), f)
    return path


# ---- the same training in numpy ----

def philox(key, counter):
    """Philox4x32-10 (Salmon et al., SC11)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xffffffff, (a >> 32) ^ c[3] ^ k[1], a & 0xffffffff]
        k = [(k[0] + 0x9E3779B9) & 0xffffffff, (k[1] + 0xBB67AE85) & 0xffffffff]
    return c


def initial_row(table, row_id):
    """Uniform in [-RANGE, RANGE), of the seed, the name, the id and the column."""
    h = 0xcbf29ce484222325
    for c in table.encode():
        h = ((h ^ c) * 0x100000001b3) & MASK
    seed = SEED ^ 0x7461626c65207365 ^ h >> 32 << 16
    row = row_id & MASK
    words = [w for block in range((WIDTH + 3) // 4)
             for w in philox((seed & 0xffffffff, seed >> 32), (block, row & 0xffffffff, row >> 32, h & 0xffffffff))]
    return np.array([RANGE * (w / 2147483648.0 - 1) for w in words[:WIDTH]], "f4")


class Numpy:
    """Trains step by step: .rows {id: (weights, sums)} of the admitted ids, .seen {id: [count, newest step]}."""

    def __init__(self, source):
        model = onnx.load(os.path.join(source, "ids.onnx"))
        values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.w, self.b = values["w"].copy(), values["b"].copy()
        self.w_sum, self.b_sum = np.zeros_like(self.w), np.zeros_like(self.b)
        self.ids = np.load(os.path.join(source, "train-ids.npy"))
        self.labels = np.load(os.path.join(source, "train-click.npy"))
        self.step, self.rows, self.seen, self.admitted = 0, {}, {}, 0

    def row(self, i):
        return self.rows[i][0] if i in self.rows else initial_row("emb", i)

    def sweep(self):
        for i in [i for i, (_, last) in self.seen.items() if last < self.step - RULES["expire_steps"]]:
            del self.seen[i]
            self.rows.pop(i, None)
        shards = {}
        for i in self.seen:
            shards.setdefault((mix64(i & MASK) >> 54, i in self.rows), []).append(i)
        for (shard, _), ids in shards.items():
            most = RULES["max_rows"] // 1024 + (shard < RULES["max_rows"] % 1024)
            for i in sorted(ids, key=lambda i: (self.seen[i][1], i))[:max(len(ids) - most, 0)]:
                del self.seen[i]
                self.rows.pop(i, None)

    def train(self):
        """One step; returns the loss."""
        at = slice(self.step * BATCH, (self.step + 1) * BATCH)
        ids, y = self.ids[at], self.labels[at]
        self.step += 1
        x = np.array([sum(self.row(int(i)) for i in sample) for sample in ids], "f4")
        z = x @ self.w + self.b
        loss = float(np.mean(np.maximum(z, 0) - z * y + np.log1p(np.exp(-np.abs(z)))))
        dz = ((1 / (1 + np.exp(-z)) - y) / BATCH).astype("f4")
        dx = dz @ self.w.T
        gradients = {}
        for sample, g in zip(ids, dx):
            for i in sample:
                gradients[int(i)] = gradients.get(int(i), 0) + g
        for i, g in gradients.items():
            count = self.seen.get(i, (0, 0))[0] + 1
            self.seen[i] = (count, self.step)
            if count < RULES["admit_after"]:
                continue
            self.admitted += i not in self.rows
            weights, sums = self.rows.get(i) or (initial_row("emb", i), np.zeros(WIDTH, "f4"))
            sums = sums + g * g
            self.rows[i] = (weights - np.float32(RATE) * g / (np.sqrt(sums) + np.float32(1e-10)), sums)
        for name, g in (("w", x.T @ dz), ("b", dz.sum(0))):
            sums = getattr(self, name + "_sum")
            sums += g * g
            setattr(self, name, (getattr(self, name) - np.float32(RATE) * g / (np.sqrt(sums) + np.float32(1e-10))).astype("f4"))
        if self.step % 1000 == 0:
            self.sweep()
        return loss
