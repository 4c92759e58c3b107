"""check.py - trains an exported network of this folder with trainerd and compares it with the reference of its case.

train_and_compare() returns a verdict: ("trains", ""), ("refused", message), ("wrong", what differs) or ("failed", message).
Used by test/e2e/test_exporters.py and by scripts/exporters. The exported ONNX file is executed by ONNX Runtime.
"""
import json
import os
import subprocess
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "data")]

import tfrecord  # noqa: E402
from spec import BATCH, FILES, SAMPLES, STEPS, fingerprint_error, samples, unpack  # noqa: E402

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}  # by ONNX Runtime's names
LOSS_20, LOSS_50, WEIGHT = 1e-5, 1e-4, 1e-4  # largest relative difference: in the first 20 steps, in all, of final weights


def write_records(case, path):
    data = samples(case)
    rows = []
    for i in range(SAMPLES):
        rows.append({k: ("float" if v.dtype == np.float32 else "int64", v[i].ravel().tolist()) for k, v in data.items()})
    tfrecord.write(path, rows)


def output_of(case, export):
    return case.get("outputs", {}).get(export, "logits")


def loss_of_job(case, output):
    if case["loss"] == "graph":
        return {"type": "graph", "output": output}
    key = "predictions" if case["loss"] == "mean_squared_error" else "logits"
    return {"type": case["loss"], key: output, "labels": "label"}


def write_job(case, export, optimizer, folder, onnx="net.onnx", model=None):
    """A job that trains `onnx` on the samples of the case; `model` are further keys of "model". Returns its path."""
    write_records(case, os.path.join(folder, "data.tfrecord"))
    table = {k: {"dtype": "float32" if f["kind"] == "float" else "int64", "shape": f["shape"]} for k, f in case["inputs"].items()}
    if case["loss"] != "graph":
        label = case["label"]
        table["label"] = {"dtype": "float32" if label["kind"] == "float" else "int64", "shape": label["shape"]}
    job = {"model": {"onnx": onnx, "inputs": {k: k for k in case["inputs"]}, "loss": loss_of_job(case, output_of(case, export)), **(model or {})},
           "data": {"train": "data.tfrecord", "eval": "data.tfrecord", "features": table, "shuffle": False, "cache": "memory"},
           "train": {"steps": STEPS, "global_batch_size": BATCH, "lanes": 1, "log_every_steps": 1, "eval_every_epochs": 0},
           "optimizer": case["reference"][optimizer]["optimizer"], "export": {"onnx": "trained.onnx", "safetensors": "trained.safetensors"}, "checkpoint": {"directory": "checkpoints"}}
    path = os.path.join(folder, "job.json")
    with open(path, "w") as out:
        json.dump(job, out, indent=1)
    return path


def run_trainerd(trainerd, job, seconds=120):
    """The exit code, the log records, and the final message."""
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
    p = subprocess.run([trainerd, "--job", job, "--devices", "cpu:1", "--log-format", "json"], env=env, timeout=seconds,
                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    records = []
    for line in p.stderr.splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            pass
    ends = [r["message"] for r in records if r.get("event") == "end"] or [p.stderr.strip()[-2000:]]
    return p.returncode, records, ends[-1]


def relative(a, b):
    return max((abs(x - y) / abs(y) if np.isfinite(x) else np.inf for x, y in zip(a, b)), default=0.0)


def compare_losses(case, optimizer, records):
    ours = [r["loss"] for r in sorted((r for r in records if r.get("event") == "step"), key=lambda r: r["step"])]
    theirs = case["reference"][optimizer]["losses"]
    if len(ours) != STEPS:
        return ["%d steps in place of %d" % (len(ours), STEPS)]
    out = []
    for n, limit in ((20, LOSS_20), (STEPS, LOSS_50)):
        if not relative(ours[:n], theirs[:n]) <= limit:
            k = next(i for i in range(n) if not relative(ours[i:i + 1], theirs[i:i + 1]) <= limit)
            out.append("losses of %d steps differ by %.1e (from step %d on: %.9g, reference %.9g)" % (
                n, relative(ours[:n], theirs[:n]), k + 1, ours[k], theirs[k]))
    return out


def compare_weights(case, optimizer, weights):
    """`weights`: {name: array} of the exported weights. load_state_dict(strict=True) loads them: every parameter and every buffer of
    state_dict() is present, tied ones under each of their names, and nothing else. PyTorch itself adds num_batches_tracked."""
    out, state = [], case["state"]
    reference = case["reference"][optimizer]["weights"]
    for name, entry in state.items():
        if name not in weights and not name.endswith("num_batches_tracked"):
            out.append("%s '%s' is not among the exported weights" % (entry["kind"], name))
    for name, array in weights.items():
        if name not in state:
            out.append("'%s' %s of the exported weights is no name of state_dict()" % (name, list(array.shape)))
        elif list(array.shape) != state[name]["shape"]:
            out.append("'%s' has shape %s in place of %s" % (name, list(array.shape), state[name]["shape"]))
        elif name in reference:
            error = fingerprint_error(name, array, reference[name])
            if not error <= WEIGHT:
                out.append("'%s' differs by %.1e" % (name, error))
    return out


def read_exported(folder):
    from safetensors.numpy import load_file

    return load_file(os.path.join(folder, "trained.safetensors"))


def loss_of_scores(scores, labels):
    """Mean cross entropy; classes are the last axis, or axis 1 as in PyTorch."""
    scores = scores.astype(np.float64)
    if scores.shape[:-1] != labels.shape:
        scores = np.moveaxis(scores, 1, -1)
    scores = scores - scores.max(-1, keepdims=True)
    logs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    return float(-np.take_along_axis(logs, labels[..., None], -1).mean())


def compare_with_runtime(case, export, folder, records):
    """ONNX Runtime gets the exported model and all samples, in the batches of the evaluation; its loss is trainerd's."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(os.path.join(folder, "trained.onnx"), options)
    data, losses = samples(case), []
    for at in range(0, SAMPLES, BATCH):
        feed = {i.name: data[i.name][at:at + BATCH].astype(TYPES[i.type]) for i in session.get_inputs()}
        got = session.run([output_of(case, export)], feed)[0]
        losses.append(float(got) if case["loss"] == "graph" else loss_of_scores(got, data["label"][at:at + BATCH]))
    ours = [r["loss"] for r in records if r.get("event") == "eval"][-1]
    theirs = float(np.mean(losses))
    if not abs(ours - theirs) <= 1e-4 * abs(theirs):
        return ["ONNX Runtime computes loss %.7g with the export, trainerd's evaluation %.7g" % (theirs, ours)]
    return []


def train_and_compare(trainerd, case, export, optimizer, folder, model=None, files=FILES):
    """Trains in `folder`, which is empty. `model` are keys of the job's "model" in addition to those of the case."""
    unpack(case, export, folder, files)
    job = write_job(case, export, optimizer, folder, model={**case["model"], **case.get("models", {}).get(export, {}), **(model or {})})
    try:
        code, records, message = run_trainerd(trainerd, job)
    except subprocess.TimeoutExpired:
        return "failed", "trainerd did not end"
    if code == 2 and not any(r.get("event") == "step" for r in records) and "step 1:" not in message:
        return "refused", message
    if code != 0:
        return "failed", "exit %d: %s" % (code, message)
    problems = compare_losses(case, optimizer, records)
    if export not in case.get("unnamed", []):  # this exporter does not keep the names
        problems += compare_weights(case, optimizer, read_exported(folder))
    try:
        if export not in case.get("no_runtime", []):
            problems += compare_with_runtime(case, export, folder, records)
    except Exception as e:  # ONNX Runtime raises no specific type
        problems.append("ONNX Runtime refuses the export: %s" % str(e).splitlines()[0][:300])
    return ("wrong", "; ".join(problems)) if problems else ("trains", "")
