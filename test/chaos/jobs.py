"""jobs.py - the jobs that are trained: the digits, and for ps tasks clicks, which have embedding
tables. A job has: name; n_samples; lanes; batch; exported: the path of the exported model;
storage_bytes; and write(folder, steps, **more), which writes its file with `more` merged in, and
returns the path.
"""
import os
import random

import clicks
import kit

COMMON = {
    "train": {"epochs": None, "log_every_steps": 1, "deadline_seconds": None},
    "checkpoint": {"directory": "storage/checkpoints", "every_steps": 50, "max_to_keep": 3},
}
DIGITS = {**COMMON, "optimizer": {"schedule": {"type": "constant", "warmup_steps": None}}, "summary": None}


def records_of(path):
    """Returns the number of samples in a file of the demo: framed records with a length field."""
    n = 0
    with open(path, "rb") as f:
        while head := f.read(12):
            f.seek(int.from_bytes(head[:8], "little") + 4, os.SEEK_CUR)
            n += 1
    return n


def small_network(folder):
    """Writes a network for the slow emulated GPUs: an input, two products, and constant weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    import numpy
    draw = numpy.random.default_rng(7)
    weights = [numpy_helper.from_array(draw.normal(0, n ** -0.5, (n, m)).astype(numpy.float32), name)
               for name, n, m in (("w", 64, 16), ("v", 16, 10))]
    shape = numpy_helper.from_array(numpy.array([-1, 64]), "flat")
    nodes = [helper.make_node("Reshape", ["x", "flat"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["h"]),
             helper.make_node("Relu", ["h"], ["r"]), helper.make_node("MatMul", ["r", "v"], ["logits"])]
    tensor = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "small", [tensor("x", ["batch", 1, 8, 8])], [tensor("logits", ["batch", 10])],
                              [shape, *weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), os.path.join(folder, "small.onnx"))


def on_gpus():
    return kit.TRAINERD.endswith("emulated/trainerd")


def has_equal_bits(job):
    """Sums of NCCL have an order of its own; compressed ones follow the tree over lanes."""
    return not on_gpus() or bool(job.communication)


class Digits:
    """`code`: of communication.compression; None: gradients are float32. `returns`: the processes return to copies of their
    state, because the code keeps residuals."""
    exported, storage_bytes, name = os.path.join("run", "digits.onnx"), 8 << 20, "digits"
    lanes, batch = 4, 64

    def __init__(self, code=None):
        self.communication = {"compression": {"code": code, "groups": self.lanes, "min_bytes": 1024}} if code else {}
        self.returns = code in ("top_k", "power_sgd")
        folder = os.path.join(kit.ROOT, "config", "digits")
        self.n_samples = sum(records_of(os.path.join(folder, f)) for f in sorted(os.listdir(folder)) if f.startswith("digits-train"))

    def write(self, folder, steps, **more):
        changes = {"train": {"steps": steps, "lanes": self.lanes, "global_batch_size": self.batch, "eval_every_epochs": 1}}
        changes["communication"] = self.communication
        if on_gpus():
            small_network(folder)
            changes["model"] = {"onnx": "small.onnx"}
        return kit.digits_job(folder, **kit.merge(kit.merge(DIGITS, changes), more))


class Clicks:
    """`folder`: of the data. The seed determines the optimizer."""
    exported, storage_bytes, n_samples, returns, communication = "clicks.onnx", 64 << 20, clicks.SAMPLES, False, {}
    lanes, batch = 6, 48  # 2 and 3 training tasks divide the lanes
    PS = {"parameter_server": {"tables": "auto", "min_shard_bytes": 1024, "replicas": 2}}

    def __init__(self, folder, seed):
        self.name = random.Random("trainerd optimizer %d" % seed).choice(sorted(clicks.OPTIMIZERS))
        self.data = clicks.make_data(folder)

    def write(self, folder, steps, **more):
        changes = {"train": {"steps": steps, "lanes": self.lanes, "global_batch_size": self.batch, "eval_every_epochs": 8},
                   "optimizer": clicks.OPTIMIZERS[self.name]}
        return clicks.job_file(folder, self.data, **kit.merge(kit.merge(COMMON, changes), more))
