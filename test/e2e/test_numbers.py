#!/usr/bin/python3
"""Jobs whose numbers would be others than their author expects: they are computed as expected, refused, or warned about."""
# san: yes
import json
import os

from kit import Task, main, merge, test, use_venv, workdir

use_venv()
import numpy as np  # noqa: E402
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def model(folder, nodes, values, inputs, outputs):
    """Writes m.onnx; inputs and outputs: {name: shape}."""
    def infos(shapes):
        return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph([helper.make_node(op, i, o, name=o[0], **a) for op, i, o, a in nodes], "g", infos(inputs), infos(outputs),
                              [numpy_helper.from_array(np.array(v, "f4"), n) for n, v in values.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), os.path.join(folder, "m.onnx"))


def run(folder, samples, loss, lanes=1, batch=4, steps=1, **changes):
    """Trains with x and t of `samples` ({"train": (x, t), "eval": ...}); returns the task, which has ended."""
    features = {}
    for part, arrays in samples.items():
        for name, a in zip("xt", arrays):
            a = np.array(a, None if np.issubdtype(np.array(a).dtype, np.integer) else "f4")
            np.save(os.path.join(folder, "%s-%s.npy" % (part, name)), a)
            features[name] = {"dtype": "int64" if a.dtype == np.int64 else "float32", "shape": list(a.shape[1:])}
    inputs = {i.name: i.name for i in onnx.load(os.path.join(folder, "m.onnx")).graph.input}
    job = {"model": {"onnx": "m.onnx", "inputs": inputs, "trainable": ["*"], "loss": loss},
           "data": {"format": "npy", "shuffle": False, "features": features, **{part: part + "-{feature}.npy" for part in samples}},
           "train": {"steps": steps, "global_batch_size": batch, "lanes": lanes}, "optimizer": {"type": "sgd", "learning_rate": 1e-30}}
    with open(os.path.join(folder, "job.json"), "w") as f:
        json.dump(merge(job, changes), f)
    task = Task(os.path.join(folder, "job.json"), args=("--devices", "cpu:1"))
    task.wait()
    return task


def warnings(task):
    return [r["message"] for r in task.events("warning")]


X = [[1., 2], [3, 4], [5, 6], [7, 8]]
LINEAR = ("Gemm", ["x", "w", "b"], ["z"], {"transB": 1})


def classifier(folder, *nodes, classes=3, output="y"):
    model(folder, [LINEAR, *nodes], {"w": [[.1 * i, .2] for i in range(classes)], "b": [0] * classes}, {"x": ["batch", 2]},
          {output: ["batch", classes]})


def squares(folder):
    """The loss is the mean of the squares of x / 2 + y / 4 - t, of each sample 1, 6.25, 16, 30.25."""
    model(folder, [LINEAR, ("Sub", ["z", "t"], ["d"], {}), ("Mul", ["d", "d"], ["q"], {}), ("ReduceMean", ["q"], ["loss"], {"keepdims": 0})],
          {"w": [[.5, .25]], "b": [0]}, {"x": ["batch", 2], "t": ["batch", 1]}, {"loss": []})


ZEROS = [[0.]] * 4
OF_GRAPH = {"type": "graph", "output": "loss"}


@test
def evaluation_of_a_loss_of_the_graph_is_its_mean_over_the_samples():
    folder = workdir()
    squares(folder)
    for batch, lanes, samples in ((4, 1, 3), (4, 2, 3), (4, 1, 4)):
        task = run(folder, {"train": (X, ZEROS), "eval": (X[:samples], ZEROS[:samples])}, OF_GRAPH, lanes, batch)
        expected = sum([1, 6.25, 16, 30.25][:samples]) / samples
        assert task.p.returncode == 0, task.log()
        loss = task.events("eval")[-1]["loss"]
        assert abs(loss - expected) < 1e-5, (batch, lanes, samples, loss, expected)


@test
def padding_that_a_mean_of_the_graph_would_count_is_refused():
    folder = workdir()
    squares(folder)
    pad = {"data": {"remainder": "pad"}}
    task = run(folder, {"train": (X[:3], ZEROS[:3])}, OF_GRAPH, **pad)
    assert task.p.returncode == 2 and "a multiple of 4 (the global batch size), found 3; use \"drop\"" in task.final_message(), task.log()
    task = run(folder, {"train": (X[:3], ZEROS[:3])}, OF_GRAPH, lanes=4, **pad)  # a lane has one sample: none is filled partly
    assert task.p.returncode == 0, task.log()
    model(folder, [LINEAR, ("BatchNormalization", ["z", "s", "c", "mean", "var"], ["y", "m", "v"], {"training_mode": 1})],
          {"w": [[.5, .25]], "b": [0], "s": [1], "c": [0], "mean": [0], "var": [1]}, {"x": ["batch", 2]}, {"y": ["batch", 1]})
    for samples, code in ((3, 2), (4, 0)):
        task = run(folder, {"train": (X[:samples], ZEROS[:samples])}, {"type": "mean_squared_error", "predictions": "y", "labels": "t"},
                   lanes=2, batch=4, **pad)
        assert task.p.returncode == code and (code == 0 or "running averages of batch normalization" in task.final_message()), task.log()


@test
def probabilities_as_logits_are_warned_about_with_the_tensor_to_name():
    folder = workdir()
    soft, sigmoid, log = (("Softmax", ["z"], ["y"], {"axis": 1}), ("Sigmoid", ["z"], ["y"], {}), ("LogSoftmax", ["z"], ["y"], {"axis": 1}))
    classes, sides = [0, 1, 2, 0], [[0.], [1], [1], [0]]
    for node, loss, key, labels, is_warned in (
            (soft, "softmax_cross_entropy", "logits", classes, True), (log, "softmax_cross_entropy", "logits", classes, False),
            (soft, "negative_log_likelihood", "log_probabilities", classes, True),
            (log, "negative_log_likelihood", "log_probabilities", classes, False), (sigmoid, "binary_cross_entropy", "logits", sides, True)):
        classifier(folder, node, classes=1 if labels is sides else 3)
        task = run(folder, {"train": (X, labels)}, {"type": loss, key: "y", "labels": "t"})
        found = warnings(task)
        assert task.p.returncode == 0, task.log()
        assert len(found) == is_warned, (node, loss, found)
        assert not found or ("'y', which are probabilities" in found[0] and found[0].endswith("'z'")), found


@test
def job_that_trains_nothing_is_warned_about():
    folder = workdir()
    classifier(folder, ("Identity", ["z"], ["y"], {}))
    logits = {"type": "softmax_cross_entropy", "logits": "y", "labels": "t"}
    data = {"train": (X, [0, 1, 2, 0])}
    assert warnings(run(folder, data, logits)) == []
    found = warnings(run(folder, data, logits, model={"trainable": None, "frozen": ["*"]}))
    assert len(found) == 1 and "nothing is trained: the model has no trained parameters; check /model/frozen" in found[0], found
    found = warnings(run(folder, {"train": (X, [0, 1, 1, 0])}, {**logits, "logits": "x"}))
    assert len(found) == 1 and "nothing is trained: the loss does not depend on any trained parameter" in found[0], found
    classifier(folder, ("Identity", ["z"], ["y"], {}), classes=1)
    task = run(folder, {"train": (X, [0, 0, 0, 0])}, logits)
    assert [w for w in warnings(task) if "the logits have one class" in w and "binary_cross_entropy" in w], task.log()


@test
def label_of_binary_cross_entropy_outside_0_to_1_is_refused_with_its_record():
    folder = workdir()
    classifier(folder, ("Identity", ["z"], ["y"], {}), classes=1)
    loss = {"type": "binary_cross_entropy", "logits": "y", "labels": "t"}
    for wrong in (2, 255, -1, float("nan")):
        task = run(folder, {"train": (X, [[0.], [1], [wrong], [.5]])}, loss)
        text = task.final_message()
        assert task.p.returncode == 2 and "/train-t.npy': record 2 at" in text and "value 0 is %g, expected" % wrong in text, task.log()
    assert run(folder, {"train": (X, [[0], [255], [1], [0]])}, loss, data={"features": {"t": {"scale": 1 / 255}}}).p.returncode == 0


@test
def export_of_a_number_that_float16_cannot_hold_is_refused():
    folder = workdir()
    model(folder, [LINEAR], {"w": [[.5, 70000]], "b": [0]}, {"x": ["batch", 2]}, {"z": ["batch", 1]})
    loss = {"type": "mean_squared_error", "predictions": "z", "labels": "t"}
    for dtype, code in (("float16", 2), ("bfloat16", 0)):
        task = run(folder, {"train": (X, ZEROS)}, loss, export={"safetensors": "o.safetensors", "dtype": dtype})
        assert task.p.returncode == code, task.log()
        assert os.path.exists(os.path.join(folder, "o.safetensors")) == (code == 0)
        assert code == 0 or "tensor 'w': element 1 is 70000, which would become infinite in float16" in task.final_message(), task.log()


if __name__ == "__main__":
    main()
