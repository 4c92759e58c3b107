#!/usr/bin/env python3
"""Every job in config/ trains for two steps, on a small network of its kind and on data as the job describes them. The test
changes only sizes."""
# needs: emulated
import glob
import gzip
import json
import os
import struct
import subprocess
import sys
import zlib

import numpy as np

sys.path.insert(1, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data"))
import tfrecord  # noqa: E402
import kit  # noqa: E402
from kit import BUILD, ROOT, TRAINERCTL, Task, expect_codes, free_ports, main, start, test, use_venv, workdir  # noqa: E402
from segment_net import segment_net  # noqa: E402

use_venv()
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

kit.TRAINERD = os.path.join(BUILD, "emulated", "trainerd")  # the same program, with the emulated CUDA plugin in its folder
rng = np.random.default_rng(3)
BATCH = {"global_batch_size": 4, "lanes": 2}


def model(folder, name, out, *settings):
    args = [a for s in settings for a in ("--set", s)]
    subprocess.run([TRAINERCTL, "model", name, *args, "-o", os.path.join(folder, out)], check=True)


def records(folder, name, examples):
    with open(os.path.join(folder, name), "wb") as f:
        for e in examples:
            f.write(tfrecord.frame(tfrecord.example(e)))


def picture(width=52, height=40):
    """Returns a PNG file of random colors."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + rng.bytes(3 * width) for _ in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def images(folder, job):
    model(folder, "resnet18", "resnet50.onnx", "size=32")
    for name in ("images-train-0.tfrecord", "images-eval-0.tfrecord"):
        records(folder, name, [{"image": ("bytes", [picture()]), "label": ("int64", [i])} for i in range(8)])
    job["data"]["features"]["image"]["shape"] = [3, 32, 32]


def tokens(folder, job):
    model(folder, "gpt2", "gpt2.onnx", "vocabulary=64", "context=16", "sequence=16", "width=16", "layers=1", "heads=2")
    for name in ("text-train-0.u16", "text-eval.u16"):
        rng.integers(0, 64, 200).astype("<u2").tofile(os.path.join(folder, name))
    for f in job["data"]["features"].values():
        f["shape"] = [16]


def packed(folder, job):
    segment_net(os.path.join(folder, "segments.onnx"), 64, 16)
    for name in ("text-train-0.tfrecord", "text-eval.tfrecord"):
        words = [[int(x) for x in rng.integers(0, 64, rng.integers(1, 17))] for _ in range(32)]
        records(folder, name, [{"tokens": ("int64", w), "labels": ("int64", w[1:] + [0])} for w in words])
    for f in job["data"]["features"].values():
        f["shape"] = [16]


def table(folder, job):
    model(folder, "dlrm", "dlrm.onnx", "rows=50")
    for name in ("clicks-old-0.tfrecord", "clicks-new-0.tfrecord", "clicks-eval.tfrecord"):
        records(folder, name, [{"dense": ("float", [float(x) for x in rng.standard_normal(13)]),
                                "sparse": ("int64", [int(x) for x in rng.integers(0, 50, 26)]),
                                "click": ("float", [float(i % 2)])} for i in range(12)])


def csv(folder, job):
    model(folder, "mlp", "net.onnx", "inputs=8", "hidden=4", "classes=1")
    for name in ("house-1.csv", "house-eval.csv"):
        with open(os.path.join(folder, name), "w") as f:
            f.write("area,rooms,floor,year,lat,lon,tax,noise,price\n")
            for _ in range(16):
                f.write(",".join("%.4f" % x for x in rng.standard_normal(9)) + "\n")


def weights(folder, job):
    exporters = os.path.join(ROOT, "test", "exporters")
    with gzip.open(os.path.join(exporters, "files", "bert.recipe.net.onnx.gz")) as f:
        with open(os.path.join(folder, "net.onnx"), "wb") as out:
            out.write(f.read())
    os.symlink(os.path.join(exporters, "finetune", "bert"), os.path.join(folder, "bert-base"))
    for name in ("reviews-train-0.tfrecord", "reviews-eval-0.tfrecord"):
        records(folder, name, [{"input_ids": ("int64", [int(x) for x in rng.integers(0, 30, 8)]), "label": ("int64", [i % 5])}
                               for i in range(8)])
    job["data"]["features"]["input_ids"]["shape"] = [8]


def arrays(folder, job):
    model(folder, "mlp", "net.onnx", "inputs=8", "hidden=4", "classes=3")
    os.mkdir(os.path.join(folder, "arrays"))
    for part in ("train", "eval"):
        np.save(os.path.join(folder, "arrays", part + "-x.npy"), rng.standard_normal((16, 8)).astype(np.float32))
        np.save(os.path.join(folder, "arrays", part + "-label.npy"), rng.integers(0, 3, 16))


def dynamic(folder, job):
    """logit: the sum over the items of user row * item row, plus a bias."""
    def constant(name, values):
        return numpy_helper.from_array(np.array(values), name)

    def node(op, inputs, output, **attributes):
        return helper.make_node(op, inputs, [output], **attributes)

    zeros = np.zeros((1, 8), np.float32)
    graph = helper.make_graph(
        [node("Gather", ["user.weight", "user"], "u"), node("Gather", ["item.weight", "items"], "i"), node("Mul", ["u", "i"], "ui"),
         node("ReduceSum", ["ui", "axes"], "sum", keepdims=0), node("Reshape", ["sum", "column"], "product"), node("Add", ["product", "bias"], "logit")],
        "recommend",
        [helper.make_tensor_value_info("user", TensorProto.INT64, ["batch", 1]), helper.make_tensor_value_info("items", TensorProto.INT64, ["batch", 8])],
        [helper.make_tensor_value_info("logit", TensorProto.FLOAT, ["batch", 1])],
        [constant("user.weight", zeros), constant("item.weight", zeros), constant("bias", np.zeros(1, np.float32)),
         constant("axes", [1, 2]), constant("column", [-1, 1])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), os.path.join(folder, "recommend.onnx"))
    records(folder, "visits-train-0.tfrecord", [{"user": ("int64", [int(rng.integers(-1 << 63, 1 << 63))]),
                                                 "items": ("int64", [int(x) for x in rng.integers(-1 << 63, 1 << 63, 8)]),
                                                 "click": ("float", [float(i % 2)])} for i in range(12)])


MAKE = {"arrays_npy": arrays, "finetune_safetensors": weights, "images_resnet50": images, "tokens_gpt2": tokens, "packed_text": packed, "table_dlrm": table, "table_dlrm_ps": table, "finetune_csv": csv,
        "table_dynamic_ps": dynamic, "async": table}
# These jobs use the data of the demo.
READY = {"minimal", "adamw_cosine", "elastic", "evaluator", "health", "gpu_float16", "local_sgd", "compression", "compression_top_k", "racks"}
TASKS = {"elastic": 4, "racks": 9}
GPU_ALONE = {"gpu_float16"}
CPU_ALONE = {"racks", "local_sgd", "table_dynamic_ps", "async"}
PS = {"table_dynamic_ps", "async"}  # jobs that need a ps task


@test
def example_jobs_all_have_a_test():
    names = {os.path.basename(p)[:-len(".json")] for p in glob.glob(os.path.join(ROOT, "config", "*.json"))}
    assert names - {"job.schema", "cluster-two-hosts", "cluster-ps", "grafana-dashboard"} == set(MAKE) | READY, names


def run_small(name, prepare, devices):
    folder = workdir()
    with open(os.path.join(ROOT, "config", name + ".json")) as f:
        job = json.load(f)
    if prepare is None:
        os.symlink(os.path.join(ROOT, "config", "digits"), os.path.join(folder, "digits"))
    else:
        prepare(folder, job)
        job["train"].update(BATCH)
    if devices == "cuda:0" and prepare is None:  # the digits take seconds on an emulated GPU
        for part, key in ("data", "eval"), ("model", "metrics"), ("train", "eval_every_epochs"):
            job[part].pop(key, None)
        job.pop("evaluator", None)  # its metric
    job["train"].pop("epochs", None)
    job["train"]["steps"] = 2
    if "phases" in job["train"]:  # one step of each of the first two
        job["train"]["phases"] = [{**job["train"]["phases"][0], "until_step": 1}, {**job["train"]["phases"][1], "until_step": 0}]
    job["optimizer"].get("schedule", {}).pop("warmup_steps", None)
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as f:
        json.dump(job, f)
    n = TASKS.get(name, 1)
    args = ("--log-level", "info")
    if name in PS:
        ports = free_ports(2)
        cluster = {kind: ["127.0.0.1:%d" % port] for kind, port in zip(("worker", "ps"), ports)}
        tasks = [Task(path, {"cluster": cluster, "task": {"type": kind, "index": 0}}, ("--devices", devices, *args)) for kind in cluster]
    else:
        tasks = start(path, n, devices, args) if n > 1 else [Task(path, args=("--devices", devices, *args))]
    expect_codes(tasks, [0] * len(tasks))
    assert [r["step"] for r in tasks[0].events("step")][-1] == 2
    for path in job.get("export", {}).values():
        assert os.path.exists(os.path.join(folder, path)), path


def _make(name, prepare, devices, where):
    def check():
        run_small(name, prepare, devices)
    check.__name__ = "the_example_%s_trains_%s" % (name, where)
    test(check)


for _name in sorted(MAKE) + sorted(READY):
    if _name not in GPU_ALONE:
        _make(_name, MAKE.get(_name), "cpu:1", "on_cpus")
    if _name not in CPU_ALONE:
        _make(_name, MAKE.get(_name), "cuda:0", "on_a_gpu")  # emulated

main()
