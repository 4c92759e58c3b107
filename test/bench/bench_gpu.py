"""bench_gpu.py - trainerd on one GPU: compares its kernels with copies and products, and whole networks with PyTorch, in one run.

    scripts/bench gpu [--seconds N] [--devices D] [--small] [--emulated] [GROUP...]

Groups (default: all); parts of a group are selected like kernels:Relu,adamw and follow:gpt2:

    kernels     the speed of each kernel (`ops speed`), as a share of a copy or of a product on the same GPU
    resnet50    images/s in bfloat16, channels last, batch 256, compared with torch.compile with the same batch,
    gpt2        optimizer and weights; tokens/s, 16 x 1024
    follow      the loss over 50 steps, compared with PyTorch's: same weights, same samples

trainerd reads its records from arrays that it keeps in memory (data.cache); a separate row has the share of the time
that it waits for data. PyTorch's batches are on the GPU before the measurement. The networks are those of torch_nets.py,
exported to ONNX by PyTorch.
--seconds: no group begins later than this. --devices: for trainerd, default cuda:0. --small: small networks and shapes,
to check that everything runs; --emulated: the same on the emulated GPU of test/cuda, with PyTorch on the CPU.
Exit code 0: all rows ran, whether aims are met or not; 1: some could not run; 2: there is no GPU.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [os.path.join(os.path.dirname(HERE), folder) for folder in ("e2e", "gpu")]
import libraries  # noqa: E402
import numpy as np  # noqa: E402

import bench_nets  # noqa: E402
import kit  # noqa: E402
import ours  # noqa: E402
import peers  # noqa: E402
from bench_nets import Net  # noqa: E402
from place import Place  # noqa: E402
from table import Side, Table, duration  # noqa: E402

NO_GPU = 2
SHARE, SWEEP_SHARE = 0.85, 0.90  # of a copy
IDLE_LIMIT, DATA_LIMIT = 0.03, 0.01
FOLLOW_STEPS = 50
# Limits of the relative difference of the loss, mean over all steps. An untrained ResNet-50 amplifies rounding: after one
# step PyTorch's float32 differs from its float64 by some tenths of a percent.
NEAR = {"resnet50": {"float32": 1e-2, "bfloat16": 5e-2}, "gpt2": {"float32": 1e-4, "bfloat16": 1e-2}}
TASK_SECONDS = 240
NEEDS = {"kernels": 60, "resnet50": 60, "gpt2": 60, "follow": 60}  # seconds that must be left to begin a group


# ---- the networks ----

def images(folder, net):
    """Random images with ten of the thousand classes, so that the loss decreases."""
    out = bench_nets.images(folder, net)
    label = os.path.join(folder, "label.npy")
    np.save(label, np.load(label) % 10)
    return out


def words(folder, net):
    """Random tokens with an uneven distribution, so that the loss decreases."""
    length, rng = net.keys["sequence"], np.random.default_rng(1)
    n = net.batches * net.batch * length + 1
    (rng.random(n) ** 4 * net.keys["vocabulary"]).astype(np.uint16).tofile(os.path.join(folder, "tokens.bin"))
    window = {"dtype": "uint16", "shape": [length]}
    return {"inputs": {"tokens": "ids"}, "output": "logits", "label": "labels", "format": "tokens",
            "train": "tokens.bin", "features": {"tokens": window, "labels": window}}


MOMENTUM = {"type": "momentum", "learning_rate": 0.001, "momentum": 0.9}
ADAMW = {"type": "adamw", "learning_rate": 3e-4, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
GPT2 = {"sequence": 1024, "context": 1024, "vocabulary": 50304}


class OnGpu:
    """A network, its batch sizes, and the aims in samples or tokens per second."""

    def __init__(self, name, title, unit, per_sample, at_least, better, batch, follow, small, **more):
        self.name, self.title, self.unit, self.per_sample = name, title, unit, per_sample
        self.at_least, self.better, self.batch, self.follow, self.small, self.more = (at_least, better, batch, follow,
                                                                                      small, more)

    def net(self, folder, options, precision="bfloat16", follow=False):
        """Returns the network, with its model exported once."""
        keys = self.small if options.small else self.more.get("keys", {})
        batch = self.follow if follow else self.batch
        block = 1 if follow or options.small else 10
        net = Net(self.title, self.name, 2 if options.small else batch, self.more["data"], self.more["optimizer"],
                  keys=keys, precision=precision, batches=8, block=block, warm=1 if options.small else 3,
                  steps=1 if options.small else 10)
        model = os.path.join(folder, self.name, "model.onnx")
        if not os.path.exists(model):
            os.makedirs(os.path.dirname(model))
            peers.run_checked([peers.PYTHON, os.path.join(HERE, "torch_export.py"), self.name, json.dumps(keys), model])
        return net

    def tokens(self, options):
        return self.per_sample(self.small if options.small else self.more.get("keys", {}))


NETS = [
    OnGpu("resnet50", "ResNet-50", "images", lambda keys: 1, 3500, 6000, 256, 64, {"size": 64}, data=images,
          optimizer=MOMENTUM),
    OnGpu("gpt2", "GPT-2 124M", "tokens", lambda keys: keys["sequence"], 520000, 600000, 16, 4,
          {"sequence": 64, "context": 64, "vocabulary": 500, "layers": 1, "width": 32, "heads": 2}, data=words,
          optimizer=ADAMW, keys=GPT2),
]


# ---- trainerd's side ----

def idle_share(port):
    """Returns the idle share of the GPU within steps from the metrics; None: the metric is absent."""
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10) as answer:
        values = re.findall(r"^trainerd_device_idle_ratio(?:\{.*\})? ([\d.e+-]+)$", answer.read().decode(), re.M)
    return max(map(float, values)) if values else None


def run_ours(job, net, steps, options):
    """Runs the job to its end; returns the figures by name."""
    [port] = kit.free_ports(1)
    task = kit.Task(job, args=("--devices", options.devices, "--metrics", "127.0.0.1:%d" % port))
    idle = None
    try:
        task.until_step(max(1, steps - net.block), TASK_SECONDS)
        try:
            idle = idle_share(port)
        except OSError:
            pass  # the task has ended in the meantime
        kit.expect_codes([task], [0], TASK_SECONDS)
    finally:
        task.kill()
    records = task.events("step")
    late = [r for r in records if r["step"] > net.warm * net.block]
    return {None: [net.batch / r["samples_per_second"] for r in late], "data": [r["data_share"] for r in late],
            "first": records[0]["_at"] - task.started, "idle": [] if idle is None else [idle],
            "losses": [r["loss"] for r in records]}


def torch_side(net, job, options, compiled):
    spec = {"net": net.name, "keys": net.keys, "job": job, "weights": True,
            "device": "cuda" if options.has_gpu else "cpu", "compile": compiled and options.has_gpu}
    return peers.Torch(1, json.dumps(spec), threads=len(os.sched_getaffinity(0)))


# ---- groups ----

KERNEL = re.compile(r"(?P<name>\S+) +(?P<way>forward|backward|update|scan) +(?P<type>\S+) +(?:ERROR: (?P<error>.*)|"
                    r"(?P<shape>\S+) +(?P<us>\S+) us +(?P<speed>\S+) \S+ +\S+ % of a "
                    r"(?P<what>\w+), (?P<limit>\S+) (?P<unit>\S+))")


def kernels(table, folder, options, parts):
    """Adds the rows of one run of `ops speed`, which also measures the limits."""
    if options.devices not in ("cpu", "cuda", "cuda:0"):
        raise peers.Unavailable("kernels run on cpu or cuda:0, not on %s; select another GPU with CUDA_VISIBLE_DEVICES" %
                                options.devices)
    cmd = [options.place.program("test/ops/ops"), "speed", "--device", options.devices.partition(":")[0],
           *(["--quick"] if options.small else []), *parts]
    p = subprocess.run(cmd, env=options.place.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                       timeout=options.left())
    if p.returncode not in (0, 1):
        raise peers.Unavailable("ops speed: exit code %d: %s" % (p.returncode, p.stderr.strip()[-300:]))
    for line in filter(None, map(KERNEL.fullmatch, p.stdout.splitlines())):
        kernel_row(table, **line.groupdict())


def kernel_row(table, name, way, type, error, shape, us, speed, what, limit, unit):
    def make():
        if error is not None:
            raise peers.Unavailable(error)
        ratio = float(speed) / float(limit)
        return ("%s %s" % (speed, unit), "%s %.0f %s, %s us" % (what, float(limit), unit, us), "%.0f %%" % (100 * ratio),
                ratio >= share)

    share = SWEEP_SHARE if way in ("update", "scan") else SHARE
    short = {"forward": "fwd", "backward": "bwd"}
    table.row("%s %s %s %s" % (name, short.get(way, way), type.replace("float", "f"), shape or ""),
              "" if what == "product" else ">= %.0f %%" % (100 * share), make)


def refuse_parts(name, parts):
    if parts:
        raise peers.Unavailable("%s has no parts" % name)


def step_of(which):
    def group(table, folder, options, parts):
        refuse_parts(which.name, parts)
        net = which.net(folder, options)
        steps = (net.warm + net.steps) * net.block
        job = bench_nets.write_job(net, os.path.join(folder, which.name), steps, 1)
        us = Side("trainerd", lambda: run_ours(job, net, steps, options))
        peers_here = [("PyTorch compiled" if options.has_gpu else "PyTorch", torch_side(net, job, options, True))]
        if options.has_gpu:
            peers_here.append(("PyTorch eager", torch_side(net, job, options, False)))
        them = [Side(name, lambda t=t: ask(t, net)) for name, t in peers_here]
        try:
            table.interleave(2, us, *them)
        finally:
            for _, t in peers_here:
                t.close()
        rows(table, which, net, options, us, them)

    return group


def ask(torch, net):
    if not torch.ranks:
        torch.ask("steps %d %d" % (net.warm, net.block))
    return {None: torch.ask("steps %d %d" % (net.steps, net.block))}


def rows(table, which, net, options, us, them):
    title = "%s, bfloat16, batch %d" % (which.title, net.batch)
    each = net.batch * which.tokens(options)

    def speed():
        a = each / us.median()
        return ("%.0f/s" % a, "%s a second" % which.unit, "", a >= which.at_least,
                ", %s %d/s" % ("and" if a >= which.better else "not", which.better) if a >= which.at_least else "")

    def share(key, limit):
        a = us.median(key)
        return "%.1f %%" % (100 * a), "", "", a < limit

    table.row(title, ">= %d/s" % which.at_least, speed)
    if us.why is not None:
        return  # the first row has the reason
    for side in them:
        table.faster("  the same beside " + side.name, us, side)
    table.row("  of it waiting for data", "< %.0f %%" % (100 * DATA_LIMIT), lambda: share("data", DATA_LIMIT))
    if us.values["idle"]:
        table.row("  of it the GPU idle", "< %.0f %%" % (100 * IDLE_LIMIT), lambda: share("idle", IDLE_LIMIT))
    table.row("  exec to the first step", "", lambda: (duration(us.median("first")), "", "", True))


def follow(table, folder, options, parts):
    for which in [n for n in NETS if not parts or n.name in parts]:
        for precision in NEAR[which.name]:
            net = which.net(folder, options, precision, True)
            steps = 3 if options.small else FOLLOW_STEPS
            net.warm, net.steps = 0, steps
            table.group("loss of " + which.title, one_follow, os.path.join(folder, which.name), options, which, net)


def one_follow(table, folder, options, which, net):
    limit = NEAR[which.name][net.precision]
    job = bench_nets.write_job(net, folder, net.steps, 1)
    torch = torch_side(net, job, options, False)
    try:
        a, b = run_ours(job, net, net.steps, options)["losses"], torch.ask("losses %d" % net.steps)
    finally:
        torch.close()

    def row():
        apart = [abs(x - y) / abs(y) for x, y in zip(a, b)]
        far = sum(apart) / len(apart)
        return ("%.1e" % far, "%.3f .. %.3f" % (a[0], a[-1]), "%.3f" % b[-1], len(a) == len(b) and far <= limit)

    table.row("loss of %s over %d steps, %s" % (which.title, net.steps, net.precision),
              "<= %g" % limit, row)


GROUPS = {"kernels": kernels, **{which.name: step_of(which) for which in NETS}, "follow": follow}


# ---- the GPU ----

def look_for_gpu(where, options):
    """Returns the description of the GPU from --check. Without a GPU, prints the found libraries and the remedy, and
    exits."""
    p = subprocess.run([kit.TRAINERD, "--check", "--devices", options.devices], stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=120)
    if p.returncode != 0:
        print("no GPU to measure on: %s" % " ".join(p.stderr.split()))
        print("libraries: %s" % libraries.text(where))
        print("needed: an NVIDIA driver for CUDA 13, cuBLASLt 13, cuDNN 9 and NCCL 2 on the loader's path or as Python "
              "packages (nvidia-cublas, nvidia-cudnn-cu13, nvidia-nccl-cu13), and build/trainerd-cuda.so, which `make` "
              "builds where nvcc is, or `scripts/gpu pack` brings along; `--emulated` shows that this script runs")
        sys.exit(NO_GPU)
    found = json.loads(p.stdout)
    gpu = found["devices"][0]
    if "gpu" not in gpu:
        return "no GPU, but %s" % options.devices
    return "%s, compute capability %s; kernels %s; NCCL %s" % (gpu["gpu"], gpu["compute_capability"], found["kernels"],
                                                              found["nccl"])


def torch_there(options):
    code = "import torch; print(torch.__version__, torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'no GPU')"
    output = peers.run_checked([peers.PYTHON, "-c", code]).strip()
    if output.endswith("no GPU") and options.has_gpu:
        print("PyTorch %s (%s): its rows cannot run" % (output, peers.PYTHON))
    return "PyTorch " + output


def arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    options = parser.parse_args()
    for name in [group.split(":")[0] for group in options.groups]:
        if name not in GROUPS:
            parser.exit(2, "bench gpu: no group '%s'; there are %s\n" % (name, " ".join(GROUPS)))
    end = time.monotonic() + options.seconds
    options.left = lambda: max(1, end - time.monotonic())
    options.small = options.small or options.emulated
    options.has_gpu = options.devices.startswith("cuda") and not options.emulated
    return options


def begin(table, group, folder, options):
    name, _, parts = group.partition(":")
    if options.left() < min(NEEDS[name], options.seconds / 2):
        table.failed += 1
        table.line(name, "not begun: %d s of %d are left" % (options.left(), options.seconds))
        return
    table.group(name, GROUPS[name], folder, options, parts.split(",") if parts else [])


def main():
    options = arguments()
    peers.PYTHON = sys.executable
    peers.START_SECONDS = 120
    where = {} if options.emulated else libraries.add_to_library_path()
    options.place = Place(options.emulated)
    kit.TRAINERD = options.place.trainerd()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print("%s; %s" % (look_for_gpu(where, options), torch_there(options)))
    if options.small:
        print("small: the figures are meaningless")
    folder, table = tempfile.mkdtemp(prefix="trainerd-bench-"), Table(options.small)
    try:
        table.line("what", "trainerd", "peer or limit", "ratio", "aim")
        for name in options.groups or GROUPS:
            begin(table, name, folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return table.end()


sys.exit(main())
