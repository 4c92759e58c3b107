#!/usr/bin/python3
"""test_mistakes.py: a table of user mistakes: what is wrong, how to make it, the message, and the exit code.

A row of ROWS runs one process. `how` has: job (changes of the job of the demo, or the text of the file), args, env, cluster
(TF_CONFIG), file (a name that is created as a file), folder (a name that is created as a folder). {} in args and texts is
the folder of the row. A row of PAIRS runs two tasks of one cluster that differ: the second must be refused.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import threading

from kit import GUARD, TRAINERCTL, TRAINERD, Task, digits_job, free_ports, main, read_tree, test, tf_config, workdir

def worker(addresses, index=0, kind="worker", **jobs):
    return {"cluster": {"worker": addresses, **jobs}, "task": {"type": kind, "index": index}}


TWO = ["127.0.0.1:15991", "127.0.0.1:15992"]
CHECK = ["--check"]
CLEAR = {"TRAINERD_INSECURE": "1"}

ROWS = [
    # what is wrong, how, message, exit code
    # ---- the job file ----
    ("job file is absent", {"args": ["--job", "{}/absent.json"]}, r"open '.*/absent.json': No such file or directory", 2),
    ("job file is a folder", {"args": ["--job", "{}"]}, r"job file: read '.*': it is a folder, expected a file", 2),
    ("no job file is given", {"args": ["--devices", "cpu:1"], "job": None}, r"--job FILE is needed", 2),
    ("job file is empty", {"job": ""}, r"job.json:1:1: ", 2),
    ("job file is not JSON", {"job": "train: 3"}, r"job.json:1:1: ", 2),
    ("job file has a trailing comma", {"job": '{"a": 1,}'}, r"job.json:1:9: ", 2),
    ("job file has single quotes", {"job": "{'model': 1}"}, r"job.json:1:2: ", 2),
    ("job file has a key twice", {"job": '{"train": {}, "train": {}}'}, r"job.json:1:15: .*train", 2),
    ("job file has NaN", {"job": '{"train": {"clip_norm": NaN}}'}, r"job.json:1:25: ", 2),
    ("key has a typo", {"job": {"train": {"epoch": 3}}}, r"/train/epoch: .*did you mean .epochs.", 2),
    ("section has a typo", {"job": {"optimiser": {}}}, r"/optimiser: .*did you mean .optimizer.", 2),
    ("value has the wrong type", {"job": {"train": {"global_batch_size": "64"}}}, r"/train/global_batch_size: ", 2),
    ("value is out of range", {"job": {"train": {"deadline_seconds": 0}}}, r"/train/deadline_seconds: ", 2),
    ("learning rate is negative", {"job": {"optimizer": {"learning_rate": -1}}}, r"/optimizer/learning_rate: ", 2),
    ("both epochs and steps are given", {"job": {"train": {"epochs": 3, "steps": 3}}}, r"epochs.*steps|steps.*epochs", 2),
    ("model is missing", {"job": {"model": None}}, r"/model|\"model\"", 2),
    ("lanes do not divide the batch", {"job": {"train": {"lanes": 5}}}, r"lanes", 2),
    ("optimizer is unknown", {"job": {"optimizer": {"type": "adan"}}}, r"/optimizer/type: .*adan", 2),
    ("schedule is unknown", {"job": {"optimizer": {"schedule": {"type": "cosin"}}}}, r"/optimizer/schedule/type: .*cosin", 2),
    ("loss is unknown", {"job": {"model": {"loss": {"type": "crossentropy"}}}}, r"/model/loss/type: ", 2),
    ("metric is unknown", {"job": {"model": {"metrics": ["acuracy"]}}}, r"/model/metrics", 2),
    ("data format is unknown", {"job": {"data": {"format": "parquet"}}}, r"/data/format: .*parquet", 2),
    ("dtype is unknown", {"job": {"data": {"features": {"label": {"dtype": "int"}}}}}, r"/data/features/label/dtype: ", 2),
    ("precision is not of this device", {"job": {"train": {"precision": "float16"}}}, r"float16", 2),
    ("min_world is larger than the cluster", {"job": {"elastic": {"min_world": 3}}, "cluster": worker(TWO)}, r"/elastic/min_world: ", 2),
    ("min_world is a minority without checkpoints",
     {"job": {"elastic": {"min_world": 1}, "checkpoint": None}, "cluster": worker(TWO)}, r"/elastic/min_world: .*lease", 2),
    ("gRPC does not know its own setting", {"cluster": worker(["127.0.0.1:{port}", "127.0.0.1:15992"]), "env": {"GRPC_POLL_STRATEGY": "epollex"}},
     r"gRPC ended the process: .*epollex.*; environment: .*GRPC_POLL_STRATEGY=epollex", -6),
    ("pinning is a number", {"args": CHECK + ["--pin", "1"]}, r"--pin: expected auto, on or off, found '1'", 2),
    ("signals have an unknown effect", {"args": CHECK + ["--usr-signals", "save"]}, r"--usr-signals: expected stop or ignore, found 'save'", 2),
    ("task has a line break", {"args": CHECK, "env": {"TRAINERD_TASK": "worker:0\nx"}}, r"--task 'worker:0 x': expected TYPE:INDEX", 2),
    ("TF_CONFIG is in quotes", {"args": CHECK, "env": {"TF_CONFIG": "'{}'"}}, r"TF_CONFIG:1:1: .*remove the quotes around the text", 2),
    ("TF_CONFIG is a path", {"args": CHECK, "env": {"TF_CONFIG": "/etc/tf.json"}}, r"TF_CONFIG:1:1: .*or the path of a file", 2),
    ("learning rate has the name of PyTorch", {"job": {"optimizer": {"lr": 1}}}, r'/optimizer/lr: .*did you mean "learning_rate"', 2),
    ("batch size has another name", {"job": {"train": {"batch_size": 8}}}, r'/train/batch_size: .*did you mean "global_batch_size"', 2),
    ("job names its schema", {"job": {"$schema": "job.schema.json"}, "args": CHECK}, r"", 0),
    # ---- files ----
    ("checkpoints are a URL", {"job": {"checkpoint": {"directory": "s3://bucket/run"}}},
     r"/checkpoint/directory: 's3://bucket/run' is a URL; expected a path .*mount the storage", 2),
    ("export is a URL", {"job": {"export": {"onnx": "gs://bucket/m.onnx"}}}, r"/export/onnx: 'gs://bucket/m.onnx' is a URL", 2),
    ("curves are a URL of a file", {"job": {"summary": {"directory": "file:///run"}}}, r"/summary/directory: .*without 'file://'", 2),
    ("data are in a home folder", {"job": {"data": {"train": "~/digits-*.tfrecord"}}}, r"/data/train: .*'~', which is not expanded", 2),
    ("checkpoints have a variable", {"job": {"checkpoint": {"directory": "/scratch/$USER/run"}}},
     r"/checkpoint/directory: .*'\$USER' is not expanded; write its value", 2),
    ("export is a folder", {"job": {"export": {"onnx": "there"}}, "folder": "there"}, r"/export/onnx: '.*/there' is a folder; expected the name of a file", 2),
    ("trace is in a home folder", {"env": {"TRAINERD_TRACE": "~/step.json"}}, r"TRAINERD_TRACE: .*'~', which is not expanded", 2),
    ("trace is a URL", {"args": ["--trace", "s3://a/step.json"]}, r"--trace: 's3://a/step.json' is a URL", 2),
    ("job file is a URL", {"args": ["--job", "gs://a/job.json"], "job": None}, r"--job: 'gs://a/job.json' is a URL", 2),
    ("certificates are a URL", {"env": {"TRAINERD_TLS": "s3://a/tls"}, "cluster": worker(TWO)}, r"TRAINERD_TLS: 's3://a/tls' is a URL", 2),
    ("checkpoints are on a drive of Windows", {"job": {"checkpoint": {"directory": "C:\\run"}}},
     r"/checkpoint/directory: 'C:\\run' is a path of Windows", 2),
    ("curves have a specifier of systemd", {"job": {"summary": {"directory": "%h/run"}}}, r"/summary/directory: .*'%h' is not expanded", 2),
    ("model file is absent", {"job": {"model": {"onnx": "absent.onnx"}}}, r"absent.onnx", 2),
    ("model file is a folder", {"job": {"model": {"onnx": "there"}}, "folder": "there"}, r"there' is not a regular file", 2),
    ("model file is not ONNX", {"job": {"model": {"onnx": "there"}}, "file": "there"}, r"there", 2),
    ("logits are not in the model", {"job": {"model": {"loss": {"logits": "logit"}}}}, r"logit", 2),
    ("labels are not in the data", {"job": {"model": {"loss": {"labels": "lable"}}}}, r"lable", 2),
    ("data files are absent", {"job": {"data": {"train": "absent-*.tfrecord"}}}, r"no file matches '.*absent-\*.tfrecord'", 2),
    ("data file is not a TFRecord", {"job": {"data": {"train": "there"}}, "file": "there"}, r"there", 2),
    ("feature is not in the records", {"job": {"data": {"features": {"weight": {"dtype": "float32", "shape": []}}}}}, r"weight", 2),
    ("checkpoint directory is a file", {"job": {"checkpoint": {"directory": "there"}}, "file": "there"},
     r"/checkpoint/directory: '.*/there' or a part of its path is a file; expected a folder", 2),
    ("checkpoint directory is below a file", {"job": {"checkpoint": {"directory": "there/ck"}}, "file": "there"},
     r"/checkpoint/directory: '.*/there/ck' or a part of its path is a file", 2),
    ("checkpoint directory is a file, with --check", {"job": {"checkpoint": {"directory": "there"}}, "file": "there", "args": CHECK},
     r"/checkpoint/directory: '.*/there' or a part of its path is a file", 2),
    ("token file is absent", {"job": {"communication": {"token_file": "absent"}}, "cluster": worker(TWO)}, r"absent", 2),
    ("token is too short", {"env": {"TRAINERD_TOKEN": "secret"}, "cluster": worker(TWO)},
     r"TRAINERD_TOKEN: the token: expected at least 16 characters, found 6", 2),
    ("token has a line end", {"env": {"TRAINERD_TOKEN": "a secret\n of two lines"}, "cluster": worker(TWO)},
     r"TRAINERD_TOKEN: the token: expected printable ASCII characters, found byte 10 at position 9", 2),
    ("top_k is not below the number of classes", {"job": {"model": {"metrics": ["top_k_accuracy"], "top_k": 10}}},
     r"k is 10, but there are 10 classes, so every sample would be right; expected a smaller k \(/model/top_k\)", 2),
    # ---- flags ----
    ("flag is unknown", {"args": ["--device", "cpu"]}, r"--device\b.*--devices", 2),
    ("flag has no value", {"args": ["--job", "{}/job.json", "--devices"]}, r"--devices", 2),
    ("argument without a flag", {"args": ["job.json"]}, r"unexpected argument 'job.json'", 2),
    ("devices are unknown", {"args": ["--devices", "gpu"]}, r"--devices gpu: ", 2),
    ("device is absent", {"args": ["--devices", "cuda"]}, r"--devices cuda: ", 2),
    ("more cores than the host has", {"args": ["--devices", "cpu:5000"]}, r"--devices cpu:5000: ", 2),
    ("profile is unknown", {"args": ["--profile", "lax"]}, r"--profile: expected strict or tf, found 'lax'", 2),
    ("log format is unknown", {"args": ["--log-format", "xml"]}, r"--log-format: expected text or json, found 'xml'", 2),
    ("log level is unknown", {"env": {"TRAINERD_LOG_LEVEL": "loud"}}, r"--log-level: expected .*, found 'loud'", 2),
    ("bind is unknown", {"args": ["--bind", "all"], "cluster": worker(TWO)}, r"--bind: expected named or any, found 'all'", 2),
    ("port is 0", {"args": ["--port", "0"]}, r"--port: expected 1 to 65535, found '0'", 2),
    ("task is malformed", {"args": ["--task", "1"], "cluster": worker(TWO)}, r"--task '1': expected TYPE:INDEX", 2),
    ("number of traced steps is malformed", {"args": ["--trace", "{}/t.json", "--trace-steps", "x"]}, r"--trace-steps", 2),
    ("metrics address has no port", {"args": ["--metrics", "localhost"]}, r"metrics at 'localhost': the port is missing; expected a port", 2),
    ("metrics port is malformed", {"args": ["--metrics", "127.0.0.1:x"]}, r"metrics at '127.0.0.1:x': invalid port 'x'", 2),
    ("restart in a group", {"args": ["--restart"], "cluster": worker(TWO)}, r"--restart: .*trainerctl restart JOB", 2),
    ("cluster is required and absent", {"args": ["--require-cluster"]}, r"--require-cluster is set, but TF_CONFIG is unset or empty", 2),
    # ---- the cluster ----
    ("data port is the own control port", {"job": {"communication": {"data_port": 15991}}, "cluster": worker(["127.0.0.1:15991", "127.0.0.1:15992"])},
     r"/communication/data_port: 15991 is the control port of worker 0 \(127.0.0.1:15991\), a task of this host; expected a port", 2),
    ("data port is the control port of another task of the host, with --check",
     {"job": {"communication": {"data_port": 15992}}, "cluster": worker(["127.0.0.1:15991", "localhost:15992"]), "args": CHECK},
     r"/communication/data_port: 15992 is the control port of worker 1", 2),
    ("all data ports are control ports",
     {"job": {"communication": {"data_port": "15991-15992"}}, "cluster": worker(["127.0.0.1:15991"], ps=["127.0.0.1:15992"])},
     r"/communication/data_port: 15991 is .*, and so are the others of the range", 2),
    ("data port is a control port of another host",
     {"job": {"communication": {"data_port": 15992}}, "cluster": worker(["127.0.0.1:15991", "198.51.100.7:15992"]), "args": CHECK + ["--insecure"]},
     r"", 0),
    ("TF_CONFIG is not JSON", {"cluster": "{'cluster': 1}"}, r"TF_CONFIG:1:2: ", 2),
    ("TF_CONFIG has the cluster twice", {"cluster": '{"cluster": {}, "cluster": {}}'}, r"TF_CONFIG:1:17: .*cluster", 2),
    ("task is missing", {"cluster": {"cluster": {"worker": TWO}}}, r"does not define which task this is", 2),
    ("task has an unknown type", {"cluster": worker(TWO, kind="trainer")}, r"/task/type: task type must be chief, worker, ps or evaluator", 2),
    ("task has a type in capitals", {"cluster": worker(TWO, kind="Worker")}, r"did you mean \"worker\"\?", 2),
    ("task index is out of range", {"cluster": worker(TWO, 2)}, r"/task/index: task index 2 .* is out of range", 2),
    ("task index is negative", {"cluster": worker(TWO, -1)}, r"/task/index: ", 2),
    ("task index is a fraction", {"cluster": worker(TWO, 0.5)}, r"/task/index: ", 2),
    ("address has no port", {"cluster": worker(["127.0.0.1", "b:2"])}, r"/cluster/worker/0: address '127.0.0.1' is not host:port", 2),
    ("address has a scheme", {"cluster": worker(["grpc://a:1", "b:2"])}, r"/cluster/worker/0: ", 2),
    ("port is too large", {"cluster": worker(["a:70000", "b:2"])}, r"/cluster/worker/0: .*70000", 2),
    ("address is listed twice", {"cluster": worker(["a:1", "a:1"])}, r"is also the address of worker 0", 2),
    ("cluster has an unknown job", {"cluster": worker(TWO, tensorboard=["c:3"])}, r"/cluster/tensorboard: ", 2),
    ("cluster has no workers", {"cluster": worker([])}, r"the job \"worker\" is empty and there is no chief", 2),
    ("addresses are one text", {"cluster": worker("a:1")}, r"/cluster/worker: ", 2),
    ("cluster file is absent", {"args": ["--cluster", "{}/absent"]}, r"--cluster \(expected a file, 'slurm' or 'none'\): .*absent", 2),
    ("cluster file is a folder", {"args": ["--cluster", "{}"]}, r"read '.*': it is a folder, expected a file", 2),
    ("slurm outside a step", {"args": ["--cluster", "slurm"]}, r"SLURM_STEP_NODELIST is not set; start the tasks with srun", 2),
    ("both hosts and a cluster", {"args": ["--cluster", "slurm", "--hosts", "a"]}, r"both --cluster and --hosts are given", 2),
    ("host list has an empty entry", {"args": ["--hosts", "a,,b"]}, r"--hosts: entry 1 of 'a,,b' is empty", 2),
    ("launcher on several hosts without a cluster",
     {"env": {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "3"}},
     r"a launcher started several tasks \(OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_SIZE=2, OMPI_COMM_WORLD_RANK=3\).*--hosts", 2),
    ("two launchers disagree", {"env": {"PMI_RANK": "1", "SLURM_PROCID": "0"}, "cluster": {"cluster": {"worker": TWO}}},
     r"PMI_RANK has the task index 1, but SLURM_PROCID has 0", 2),
    ("ps task", {"cluster": worker(TWO, 0, "ps", ps=["c:3"])}, r"ps 0 has no part in synchronous data-parallel training", 2),
    ("ps task, with --check", {"cluster": worker(TWO, 0, "ps", ps=["c:3"]), "args": CHECK}, r"ps 0 has no part in", 2),
    ("evaluator of a job without checkpoints", {"job": {"checkpoint": None}, "cluster": worker(TWO, 0, "evaluator")},
     r"/checkpoint/directory: evaluator 0 follows it, and it is not given", 2),
    ("evaluator of a job without evaluation data", {"job": {"data": {"eval": None}, "model": {"metrics": None}, "train": {"eval_every_epochs": None}},
      "cluster": worker(TWO, 0, "evaluator")}, r"/data/eval: evaluator 0 evaluates on it, and it is not given", 2),
    ("other hosts can reach the task and it has no token", {"cluster": worker(["192.0.2.1:2222", "127.0.0.1:3333"])},
     r"control port 192.0.2.1:2222: other hosts can reach it, .*set the same secret in TRAINERD_TOKEN", 2),
    ("own address is not on this host", {"env": CLEAR, "cluster": worker(["192.0.2.1:2222", "127.0.0.1:3333"])},
     r"listen at '192.0.2.1': not an address of this host; the cluster must name this host for this task, or use --bind any", 2),
    ("own name does not resolve", {"env": CLEAR, "cluster": worker(["absent.invalid:2222", "127.0.0.1:3333"]),
                                   "job": {"train": {"deadline_seconds": 1}}},
     r"listen on absent.invalid:2222: for 1 s \(train.deadline_seconds\) 'absent.invalid' has no address: .*; register the name", 138),
    ("own address is a loopback one in a cluster of several hosts",
     {"env": CLEAR, "cluster": worker(["127.0.0.1:2222", "192.0.2.1:3333"])},
     r"listen on 127.0.0.1:2222: 127.0.0.1 is a loopback address, to which '192.0.2.1' and other hosts cannot connect", 2),
    ("port is in use", {"cluster": worker(["127.0.0.1:{port}", "127.0.0.1:3333"])}, r"address already in use, perhaps by another run", 138),
    ("other task does not start", {"job": {"train": {"deadline_seconds": 2}}, "cluster": worker(TWO)},
     r"no step for 2.0 s \(train.deadline_seconds\): 1 of 2 tasks is missing: worker 1", 138),
    # ---- no mistakes: TensorFlow accepts them ----
    ("no workers beside a chief", {"cluster": worker([], 0, "chief", chief=["127.0.0.1:15991"]), "args": CHECK}, r"", 0),
    ("evaluator that is not listed", {"cluster": worker(TWO, 3, "evaluator"), "args": CHECK, "job": None}, r"", 0),
]

# What differs, changes of the second task, message of the second task.
# The process at the address of the first task does not prove that it is that task, which is therefore absent: 138.
UNPROVEN = [
    ("tokens differ", {"env": {"TRAINERD_TOKEN": "b" * 20}}, r"the certificate of the other side is not accepted.*; either the token differs or is absent there, or another program has this address"),
    ("token is missing", {"env": {"TRAINERD_TOKEN": None}}, r"this cluster has a token, so it requires TLS: set the same TRAINERD_TOKEN"),
    ("token is on the second task only", {"env": {"TRAINERD_TOKEN": "b" * 20}},
     r"the other side does not use TLS.*; either the token differs or is absent there, or another program has this address: compare TRAINERD_TOKEN"),
]

# Both tasks belong to the cluster, and one sees that its values differ: 2.
PAIRS = [
    ("jobs differ in two keys", {"job": {"train": {"seed": 7}, "optimizer": {"learning_rate": 0.5}}},
     r"the job differs: (?=.*/train/seed: it has 7, the coordinator has 1)(?=.*/optimizer/learning_rate: it has 0.5, the coordinator has 0.05)"
     r".*give every task the same job file"),
    ("job lacks a key", {"job": {"train": {"clip_norm": None}}}, r"the job differs: /train/clip_norm: "),
    ("clusters differ", {"has_ps": True}, r"the cluster differs: "),
    ("numbers of devices differ", {"args": ["--devices", "cpu:2"]}, r"the number of devices differs: it has 2, the coordinator has 1"),
    ("a byte of the training data differs", {"flip": "digits-train-1.tfrecord", "code": 138},
     r"the training data of this task differs from that of worker 0 in '.*/digits-train-1.tfrecord' between offsets \d+ and \d+ .*sha256sum"),
    ("a byte of the evaluation data differs", {"flip": "digits-test-0.tfrecord", "code": 138},
     r"the evaluation data of this task differs from that of worker 0 in '.*/digits-test-0.tfrecord' between offsets"),
]


def write_job(folder, job):
    if isinstance(job, str):
        with open(folder + "/job.json", "w") as f:
            f.write(job)
        return folder + "/job.json"
    return digits_job(folder, **job)


def flip(path):
    """Replaces a link by a copy with another byte in the middle."""
    with open(path, "rb") as f:
        data = bytearray(f.read())
    data[len(data) // 2] ^= 1
    os.remove(path)
    with open(path, "wb") as f:
        f.write(data)


def fill(value, folder, port):
    return value.replace("{}", folder).replace("{port}", str(port)) if isinstance(value, str) else value


def run_row(what, how, message, code):
    folder = workdir()
    occupied = socket.socket()
    occupied.bind(("127.0.0.1", 0))
    occupied.listen()
    port = occupied.getsockname()[1]
    try:
        if "file" in how:
            with open(os.path.join(folder, how["file"]), "w") as f:
                f.write("this is a text\n")
        if "folder" in how:
            os.mkdir(os.path.join(folder, how["folder"]))
        args = [fill(a, folder, port) for a in how.get("args", [])]
        if how.get("job", {}) is not None and "--job" not in args:
            args += ["--job", write_job(folder, how.get("job", {}))]
        if "--devices" not in args:
            args += ["--devices", "cpu:1"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINERD_", "SLURM_", "OMPI_", "PMI")) and k != "TF_CONFIG"}
        if "cluster" in how:
            c = how["cluster"]
            env["TF_CONFIG"] = fill(c if isinstance(c, str) else json.dumps(c), "{}", port)
        env.update(how.get("env", {}))
        p = subprocess.run([TRAINERD, *args], env=env, capture_output=True, text=True, timeout=GUARD, cwd=folder)
        if p.returncode != code or not re.search(message, p.stderr):
            return "%s: exit %d, expected %d; expected /%s/, found:\n%s" % (what, p.returncode, code, message, p.stderr[-900:])
    except subprocess.TimeoutExpired:
        return "%s: did not end" % what
    finally:
        occupied.close()
        shutil.rmtree(folder, ignore_errors=True)
    return None


@test
def each_mistake_has_its_message_and_exit_code():
    assert len(ROWS) + len(PAIRS) + len(UNPROVEN) >= 60
    wrong = [w for w in (run_row(*row) for row in ROWS) if w]
    assert not wrong, "%d of %d rows\n%s" % (len(wrong), len(ROWS), "\n".join(wrong))


OUTPUTS = [
    # the outputs, the message; sub is a folder, link.json a hard link to the job file, null a link to a device, data changes of the job
    ({"onnx": "sub/../digits_cnn.onnx"}, r"/export/onnx: '.*' is the same file as /model/onnx, which it would overwrite: name another file"),
    ({"safetensors": "digits_cnn.onnx"}, r"/export/safetensors: '.*' is the same file as /model/onnx,"),
    ({"onnx": "link.json"}, r"/export/onnx: '.*/link.json' is the same file as --job,"),
    ({"onnx": "digits-train-1.tfrecord"}, r"/export/onnx: '.*' is the same file as '.*/digits-train-1.tfrecord' of /data/train,"),
    ({"safetensors": "sub/../digits-test-0.tfrecord"}, r"/export/safetensors: .* '.*/digits-test-0.tfrecord' of /data/eval,"),
    ({"onnx": "new", "safetensors": "sub/../new"}, r"/export/safetensors: '.*' is the same file as /export/onnx,"),
    ({"onnx": "token"}, r"/export/onnx: '.*' is the same file as /communication/token_file,"),
    ({"onnx": "cluster.json"}, r"/export/onnx: '.*' is the same file as --cluster,"),
    ({"onnx": "output"}, r"/export/onnx: '.*' is the same file as standard output,"),
    ({"onnx": "null"}, r"/export/onnx: '.*/null' is a device; expected the name of a file; name a file that does not exist"),
    ({"trace": "{}/job.json"}, r"--trace: '.*' is the same file as --job,"),
    ({"trace": "{}/new", "sample-log": "{}/sub/../new"}, r"--sample-log: '.*' is the same file as --trace,"),
    ({"sample-log": "{}/digits-train-0.tfrecord"}, r"--sample-log: '.*' is the same file as '.*/digits-train-0.tfrecord' of /data/train,"),
    ({"data": {"train": None, "mixture": [{"files": "digits-train-0*", "weight": 1}, {"files": "digits-train-1*", "weight": 2}]},
      "onnx": "digits-train-1.tfrecord"}, r"/export/onnx: '.*' is the same file as '.*/digits-train-1.tfrecord' of /data/mixture,"),
    ({"data": {"format": "npy", "train": "x-{feature}.npy", "eval": "y-{feature}.npy"}, "onnx": "x-image.npy"}, r"/export/onnx: '.*' is the same file as '.*/x-image.npy' of /data/train,"),
]


def run_with_outputs(outputs, message, check):
    """Returns what is wrong with the refusal, or None; no file may be new or changed."""
    folder = workdir()
    os.mkdir(folder + "/sub")
    export = {k: v for k, v in outputs.items() if k in ("onnx", "safetensors")}
    job = digits_job(folder, export=export, communication={"token_file": "token"}, data=outputs.get("data", {}))
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.path.islink(path):  # a copy, so that no defect changes the demo
            source = os.readlink(path)
            os.remove(path)
            shutil.copy(source, path)
    os.link(job, folder + "/link.json")
    os.symlink("/dev/null", folder + "/null")
    for name, text in (("token", "a" * 20), ("cluster.json", json.dumps(worker(TWO))), ("x-image.npy", "x"), ("x-label.npy", "x")):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    args = ["--job", job, "--devices", "cpu:1"] + check
    for flag in ("trace", "sample-log"):
        args += ["--" + flag, outputs[flag].replace("{}", folder)] if flag in outputs else []
    if outputs.get("onnx") == "cluster.json":
        args += ["--cluster", folder + "/cluster.json"]
    with open(folder + "/output", "w") as out:
        before = read_tree(folder)
        p = subprocess.run([TRAINERD, *args], stdout=out, stderr=subprocess.PIPE, text=True, timeout=GUARD)
    after = read_tree(folder)
    if p.returncode != 2 or not re.search(message, p.stderr) or after != before:
        return "%s: exit %d; expected /%s/, found:\n%s" % (outputs, p.returncode, message, p.stderr[-600:])
    return None


@test
def output_in_the_place_of_an_input_or_a_device_is_refused_and_nothing_changes():
    wrong = [run_with_outputs(*row, check) for row in OUTPUTS for check in ([], CHECK)]
    wrong = [w for w in wrong if w]
    assert not wrong, "%d of %d\n%s" % (len(wrong), 2 * len(OUTPUTS), "\n".join(wrong))


def differing(rows, expected):
    """Runs each pair of tasks; returns what was wrong with the exit code and the message of the second."""
    wrong = []
    for what, changes, message in rows:
        folder, other, ports = workdir(), workdir(), free_ports(2)
        env = {"TRAINERD_TOKEN": "a" * 20} if "token" in what and "only" not in what else {}
        theirs = {k: v for k, v in {**env, **changes.get("env", {})}.items() if v is not None}
        first = Task(digits_job(folder), tf_config(ports, 0), ("--devices", "cpu:1"), env, "worker 0")
        first.until(lambda t: t.events("plan"))
        config = tf_config(ports, 1)
        if changes.get("has_ps"):
            config["cluster"]["ps"] = ["127.0.0.1:%d" % free_ports(1)[0]]
        short = {"train": {"deadline_seconds": 2}} if expected == 138 else {}
        job = digits_job(other, **changes.get("job", short))
        if "flip" in changes:
            flip(os.path.join(other, changes["flip"]))
        second = Task(job, config, changes.get("args", ("--devices", "cpu:1")), theirs, "worker 1")
        code = second.wait()
        first.kill()
        if code != changes.get("code", expected) or not re.search(message, second.final_message()):
            wrong.append("%s: exit %d; expected /%s/, found:\n%s" % (what, code, message, second.final_message()))
    return "\n".join(wrong)


@test
def each_difference_between_two_tasks_has_its_message_and_exit_code():
    wrong = differing(PAIRS, 2)
    assert not wrong, wrong


@test
def each_process_that_is_not_accepted_is_absent_with_the_reason_and_138():
    wrong = differing(UNPROVEN, 138)
    assert not wrong, wrong


class Stranger(threading.Thread):
    """Serves one kind of stranger on the address of an absent task: answers each connection with the same bytes."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.answer, self.socket = answer, socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                with self.socket.accept()[0] as c:
                    c.recv(4096)
                    c.sendall(self.answer)
            except OSError:
                return


@test
def stranger_on_the_address_of_an_absent_task_ends_no_task_with_2():
    answers = {"a web server": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "a mail server": b"220 ready\r\n",
               "a server that closes": b"", "a server of HTTP/2 without TLS": b"\0\0\0\4\0\0\0\0\0"}
    for what, answer in answers.items():
        for env in ({"TRAINERD_TOKEN": "a" * 20}, {}):
            stranger = Stranger(answer)
            task = Task(digits_job(workdir(), train={"deadline_seconds": 2}), tf_config([stranger.port, *free_ports(1)], 1),
                        ("--devices", "cpu:1"), env, "worker 1")
            assert task.wait() == 138, (what, task.log())
            assert "1 of 2 tasks is missing: worker 0 (127.0.0.1:%d): " % stranger.port in task.final_message(), (what, task.log())
            stranger.socket.close()


@test
def trainerctl_names_the_remedy():
    folder = workdir()
    utf16, words = os.path.join(folder, "a.csv"), os.path.join(folder, "b.csv")
    os.mkdir(os.path.join(folder, "empty"))
    with open(utf16, "w", encoding="utf-16") as f:
        f.write("x,y\n1,2\n")
    with open(words, "w") as f:
        f.write("x,y\n1,2\n1,cat\n")
    for args, code, text in ((["train"], 2, "`trainerd --job FILE` trains"), (["status", "http://127.0.0.1:1"], 2, "expected HOST:PORT"),
                             (["keys", "--out", folder], 2, "certificates are for the hosts of a cluster, but TF_CONFIG is unset or empty; set TF_CONFIG"),
                             (["convert", "--out", os.path.join(folder, "o"), utf16], 2, "a.csv' is text in UTF-16, expected a CSV file in UTF-8"),
                             (["convert", "--out", os.path.join(folder, "o"), words], 2,
                              "line 3: column 'y' is 'cat', expected a number: write a number for each word"),
                             (["verify", os.path.join(folder, "empty")], 1, "has no checkpoint (step-*); expected checkpoint.directory of a job")):
        p = subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == code and text in p.stderr, (args, p)


@test
def trainerctl_refuses_urls_in_every_path_that_a_command_takes():
    url, folder = "s3://bucket/x", workdir()
    with open(os.path.join(folder, "a.csv"), "w") as f:
        f.write("x,y\n1,2\n")
    csv = os.path.join(folder, "a.csv")
    for args in (["convert", "--out", url, csv], ["convert", "--out", csv, url], ["convert", "--out", csv, "x=" + url + ".npy"],
                 ["convert", "--classes=" + url, "--out", csv, folder], ["model", "mlp", "-o", url], ["inspect", url], ["verify", url],
                 ["run", url, "-o", folder], ["run", csv, "-o", url], ["data", url], ["restart", url], ["preflight", url],
                 ["local", "-n", "2", url], ["local", "--restart", url], ["keys", "--out", url], ["keys", "--cluster", url, "--out", folder],
                 ["trace", "--out", url, "127.0.0.1:1"]):
        p = subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD, cwd=folder)
        assert p.returncode == 2 and "' is a URL; expected a path of a mounted file system" in p.stderr, (args, p)
    assert os.listdir(folder) == ["a.csv"], os.listdir(folder)


@test
def output_that_cannot_be_written_is_a_failure_unless_its_reader_ended():
    for program, args, code in ((TRAINERD, ["--schema"], 2), (TRAINERD, ["--help"], 2), (TRAINERD, ["--version"], 2),
                                (TRAINERD, ["--check", "--job", digits_job(workdir())], 2), (TRAINERCTL, ["--help"], 1),
                                (TRAINERCTL, ["explain", "2"], 1)):
        with open("/dev/full", "w") as full:
            p = subprocess.run([program, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=GUARD)
        assert p.returncode == code and "cannot write to standard output" in p.stderr, (args, p)
    read, write = os.pipe()
    os.close(read)
    p = subprocess.run([TRAINERD, "--schema"], stdout=write, stderr=subprocess.PIPE, text=True, timeout=GUARD)
    assert p.returncode == 0 and p.stderr == "", p
    os.close(write)


if __name__ == "__main__":
    main()
