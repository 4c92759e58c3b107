"""linear.py - a job whose loss is linear in the weights, trained by SGD: the sum of all updates does not depend on the weights that the
gradients are computed from. All numbers are small multiples of powers of two, so no addition rounds, and the sum does not
depend on the order either."""
import json
import os

from kit import merge, use_venv

SAMPLES, BATCH, STEPS = 1024, 64, 32
WIDTH, OUT, ROWS, ROW_WIDTH = 40, 16, 300, 8


def make_data(folder):
    """Writes the network and the samples to the folder, unless it exists; returns the folder."""
    if os.path.exists(folder):
        return folder
    use_venv()
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    os.mkdir(folder)
    r = np.random.default_rng(7)
    weights = [numpy_helper.from_array((r.integers(-8, 9, shape) / 8).astype("f4"), name)
               for name, shape in (("w", (WIDTH, OUT)), ("emb", (ROWS, ROW_WIDTH)))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("ReduceMean", ["y"], ["a"], keepdims=0),
             helper.make_node("Gather", ["emb", "ids"], ["rows"], axis=0), helper.make_node("ReduceMean", ["rows"], ["b"], keepdims=0),
             helper.make_node("Add", ["a", "b"], ["loss"])]
    graph = helper.make_graph(
        nodes, "linear", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH]),
                          helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), os.path.join(folder, "linear.onnx"))
    x = r.integers(-4, 5, (SAMPLES, WIDTH)).astype("f4")
    np.save(os.path.join(folder, "train-x.npy"), x)
    np.save(os.path.join(folder, "train-ids.npy"), (r.zipf(1.3, (SAMPLES, 4)) % ROWS).astype("i8"))
    x[SAMPLES // 3, 5] = np.nan
    np.save(os.path.join(folder, "bad-x.npy"), x)
    np.save(os.path.join(folder, "bad-ids.npy"), np.load(os.path.join(folder, "train-ids.npy")))
    return folder


def job_file(folder, source, **changes):
    """Writes the job to the folder, with `changes` merged in; `source`: the result of make_data()."""
    job = {"name": "linear",
           "model": {"onnx": os.path.join(source, "linear.onnx"), "inputs": {"x": "x", "ids": "ids"},
                     "loss": {"type": "graph", "output": "loss"}},
           "data": {"format": "npy", "train": os.path.join(source, "train-{feature}.npy"),
                    "features": {"x": {"dtype": "float32", "shape": [WIDTH]}, "ids": {"dtype": "int64", "shape": [4]}}},
           "train": {"seed": 1, "epochs": 2, "global_batch_size": BATCH, "lanes": 4, "log_every_steps": 1, "deadline_seconds": 60}, "detection": {"stuck_factor": 0},
           "optimizer": {"type": "sgd", "learning_rate": 0.125},
           "checkpoint": {"directory": "checkpoints", "every_steps": 8, "every_seconds": 0, "max_to_keep": 1000},
           "export": {"onnx": "linear.onnx"}}
    path = os.path.join(folder, "job.json")
    with open(path, "w") as f:
        json.dump(merge(job, changes), f)
    return path
