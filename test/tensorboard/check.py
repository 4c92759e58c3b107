#!/usr/bin/env python3
"""Called by scripts/tensorboard, in an environment with TensorBoard: trains, evaluates, and compares the answers of a
TensorBoard server, and of its EventAccumulator, with test/metrics/read_events.py."""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from tensorboard import version
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run_job(folder):
    """Trains the digits for two epochs and runs an evaluator; returns the folder of the event files."""
    source = os.path.join(ROOT, "config", "digits")
    for name in os.listdir(source):
        shutil.copy(os.path.join(source, name), folder)
    path = os.path.join(folder, "digits.json")
    with open(path) as f:
        job = json.load(f)
    job["train"]["epochs"] = 2
    job["checkpoint"]["every_steps"] = 10
    with open(path, "w") as f:
        json.dump(job, f)
    command = [os.path.join(ROOT, "build", "trainerd"), "--job", path, "--devices", "cpu:1", "--log-level", "warn"]
    cluster = {"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "evaluator", "index": 0}}
    subprocess.run(command, check=True, timeout=120)
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "TF_CONFIG": json.dumps(cluster)})
    return os.path.join(folder, "run", "logs")


def read(logs):
    """Returns the graph, the session, and {tag: [(step, value)]} by the independent reader."""
    out = subprocess.run([sys.executable, os.path.join(ROOT, "test", "metrics", "read_events.py"), logs], check=True,
                         capture_output=True, text=True).stdout
    graph, session, curves = None, None, {}
    for e in map(json.loads, out.splitlines()):
        graph = e.get("graph", graph)
        for tag, value in e.get("summary", {}).items():
            if tag == "_hparams_/session_start_info":
                session = value
            elif not tag.startswith("_hparams_/"):
                curves.setdefault(tag, []).append((e["step"], value))
    return graph, session, curves


class Server:
    def __init__(self, logs):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.process = subprocess.Popen([sys.executable, "-m", "tensorboard.main", "--logdir", logs, "--host", "127.0.0.1", "--port",
                                         str(self.port), "--load_fast", "false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request("http://127.0.0.1:%d/data/%s" % (self.port, path), data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.read().decode()

    def wait_for_runs(self, runs):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            try:
                if sorted(json.loads(self.get("runs"))) == runs:
                    return
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError("the server does not list the runs %s within 120 s" % runs)


def check_curves(server, run, curves):
    for tag, points in curves.items():
        got = [(step, value) for _, step, value in json.loads(server.get("plugin/scalars/scalars?run=%s&tag=%s" % (run, tag)))]
        assert got == points, (run, tag, got, points)
    print("ok - curves of run '%s': %s" % (run, ", ".join(sorted(curves))))


def check_hparams(server, session):
    body = {"startIndex": 0, "sliceSize": 10, "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"]}
    (group,) = json.loads(server.get("plugin/hparams/session_groups", body))["sessionGroups"]
    assert group["hparams"] == session["hparams"], (group["hparams"], session["hparams"])
    metrics = {m["name"]["tag"] for m in group["metricValues"]}
    assert metrics == {"loss", "eval/loss", "eval/accuracy"}, metrics
    columns = {i["name"] for i in json.loads(server.get("plugin/hparams/experiment", {}))["hparamInfos"]}
    assert columns == set(session["hparams"]), columns
    print("ok - %d hyper-parameters and the metrics %s" % (len(columns), ", ".join(sorted(metrics))))


def check_graph(server, logs, graph):
    accumulator = EventAccumulator(logs)
    accumulator.Reload()
    nodes = accumulator.Graph().node
    got = [(n.name, n.op, list(n.input), [[d.size for d in s.dim] for s in n.attr["_output_shapes"].list.shape]) for n in nodes]
    assert got == [(n["name"], n["op"], n["inputs"], n.get("_output_shapes", [])) for n in graph]
    text = server.get("plugin/graphs/graph?run=.&conceptual=false")
    assert text.count("node {") == len(graph) and all('name: "%s"' % n["name"] in text for n in graph), text[:1000]
    print("ok - graph of %d nodes" % len(graph))


def main():
    folder = tempfile.mkdtemp(prefix="trainerd-tensorboard-")
    server = None
    try:
        logs = run_job(folder)
        graph, session, curves = read(logs)
        server = Server(logs)
        server.wait_for_runs([".", "eval"])
        check_curves(server, ".", curves)
        check_curves(server, "eval", read(os.path.join(logs, "eval"))[2])
        check_hparams(server, session)
        check_graph(server, logs, graph)
        print("TensorBoard %s agrees with test/metrics/read_events.py" % version.VERSION)
    finally:
        if server is not None:
            server.process.kill()
            server.process.wait()
        shutil.rmtree(folder)


main()
