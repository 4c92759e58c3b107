"""bench_nets.py - training whole networks: step time and memory compared with PyTorch, the time to load a model, the
cost of the all-reduce. Both sides have the same two cores, read the same job file and begin with the same weights."""
import datetime
import json
import os
import re
import tempfile

import numpy as np

import kit
import ours
import peers
import samples
from table import Side, duration, interleave

CORES = 2
TASK_SECONDS = 300
SAME_LOSS = 0.002  # limit of the relative difference of the losses at the first step
HALF_BATCHES = 0.05  # the same limit if one side computes batch statistics over half a batch
MEMORY_STEPS, MEMORY_BATCHES = 2, 4
LOAD_RUNS, LOAD_LIMIT = 7, 0.300
EXPOSED_STEPS, EXPOSED_WARM, EXPOSED_LIMIT = 6, 2, 0.10
HEALTH_LIMIT = 0.01
KIB = 1 << 10


def with_compiled(eager):
    """Returns the peers, and each of them with torch.compile."""
    return eager + [(name.replace("PyTorch", "compiled"), dict(keys, compile=True), threads)
                    for name, keys, threads in eager]


class Net:
    """A network, its training and the length of its measurement; `quick`: keys that --quick changes."""

    def __init__(self, title, name, batch, data, optimizer, at_least=None, aim=None, keys=None, precision="float32",
                 rounds=3, warm=1, steps=2, block=1, batches=16, ways=None, peers=None, also=None, tolerance=SAME_LOSS,
                 quick=None, at_least_eager=None, beside=None):
        self.title, self.name, self.batch, self.data, self.optimizer = title, name, batch, data, optimizer
        self.batches = batches  # number of batches in the data
        self.at_least, self.aim, self.keys, self.precision = at_least, aim, keys or {}, precision
        self.rounds, self.warm, self.steps, self.block = rounds, warm, steps, block  # warm and steps count blocks
        self.ways = ways or [("trainerd", CORES)]  # (title, replicas); the fastest counts
        self.peers = peers or with_compiled([("PyTorch", {}, CORES)])  # (title, additional keys, threads)
        self.also = also or []  # further peers, without an aim
        self.tolerance, self.quick = tolerance, quick or {}
        self.at_least_eager = at_least_eager  # compared with eager mode; the other aims with torch.compile
        self.beside = beside  # (name of the same network of `trainerctl model`, allowed ratio of the times)

    def what(self):
        return self.title if self.precision == "float32" else "%s, %s" % (self.title, self.precision)

    def shorter(self):
        """Reduces the network and the measurement, to check that everything runs."""
        self.keys = dict(self.keys, **self.quick)
        self.rounds, self.warm, self.steps = 1, 1, 2
        self.block = min(self.block, 10)
        return self


# ---- data: each function writes files of random samples and returns their description for the job file ----

def _arrays(folder, **arrays):
    for name, a in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), a)


def images(folder, net):
    size, rng, n = net.keys.get("size", 224), np.random.default_rng(1), net.batches * net.batch
    _arrays(folder, image=rng.integers(0, 256, (n, 3, size, size), dtype=np.uint8), label=rng.integers(0, 1000, n))
    return {"inputs": {"image": "x"}, "output": "logits", "label": "label", "format": "npy", "train": "{feature}.npy",
            "features": {"image": {"dtype": "uint8", "shape": [3, size, size], "scale": 1 / 255},
                         "label": {"dtype": "int64", "shape": []}}}


def digits(folder, net):
    pixels, classes = net.keys.get("inputs", 784), net.keys.get("classes", 10)
    rng, n = np.random.default_rng(1), net.batches * net.batch
    _arrays(folder, image=rng.integers(0, 256, (n, pixels), dtype=np.uint8), label=rng.integers(0, classes, n))
    return {"inputs": {"image": "x"}, "output": "logits", "label": "label", "format": "npy", "train": "{feature}.npy",
            "features": {"image": {"dtype": "uint8", "shape": [pixels], "scale": 1 / 255},
                         "label": {"dtype": "int64", "shape": []}}}


def clicks(folder, net):
    rng, n = np.random.default_rng(1), net.batches * net.batch
    _arrays(folder, dense=rng.random((n, 13), dtype=np.float32), sparse=rng.integers(0, net.keys["rows"], (n, 26)),
            click=rng.integers(0, 2, (n, 1)).astype(np.float32))
    return {"inputs": {"dense": "dense", "sparse": "sparse"}, "output": "logit", "label": "click",
            "loss": "binary_cross_entropy", "format": "npy", "train": "{feature}.npy",
            "features": {"dense": {"dtype": "float32", "shape": [13]}, "sparse": {"dtype": "int64", "shape": [26]},
                         "click": {"dtype": "float32", "shape": [1]}}}


def text(folder, net):
    length, n = net.keys["sequence"], net.batches * net.batch * net.keys["sequence"] + 1
    tokens = np.random.default_rng(1).integers(0, net.keys["vocabulary"], n, dtype=np.uint16)
    tokens.tofile(os.path.join(folder, "tokens.bin"))
    window = {"dtype": "uint16", "shape": [length]}
    return {"inputs": {"tokens": "ids"}, "output": "logits", "label": "labels", "format": "tokens",
            "train": "tokens.bin", "features": {"tokens": window, "labels": window}}


# ---- the networks ----

SGD, MOMENTUM = {"type": "sgd", "learning_rate": 0.01}, {"type": "momentum", "learning_rate": 0.001, "momentum": 0.9}
ADAMW = {"type": "adamw", "learning_rate": 1e-5}
# A short step may be faster on one core than on several.
FEW_CORES = {"ways": [("trainerd", CORES), ("trainerd, a core", 1)],
             "peers": with_compiled([("PyTorch", {}, CORES), ("PyTorch, a thread", {}, 1)])}
GPT2 = {"sequence": 256, "context": 256, "vocabulary": 50257}
GPT2_QUICK = {"sequence": 32, "context": 32, "vocabulary": 1000, "layers": 2, "width": 64, "heads": 2}


LLAMA = {"sequence": 512, "vocabulary": 8000, "width": 512, "hidden": 1408, "layers": 8, "heads": 8, "kv_heads": 2}
LLAMA_QUICK = {"sequence": 64, "vocabulary": 500, "width": 64, "hidden": 96, "layers": 2}


def resnet50(**more):
    return Net("ResNet-50, batch 16", "resnet50", 16, images, MOMENTUM, batches=4, tolerance=HALF_BATCHES,
               quick={"size": 64}, **more)


def resnet50_bfloat16():
    return resnet50(at_least=1.3, aim=1.5, precision="bfloat16")


def gpt2():
    return Net("GPT-2 124M, 4 x 256 tokens", "gpt2", 4, text, ADAMW, 1.3, 1.5, GPT2, quick=GPT2_QUICK)


def gpt2_of_transformers():
    return Net("GPT-2 124M of transformers", "transformers_gpt2", 4, text, ADAMW, None, None, GPT2, quick=GPT2_QUICK,
               beside=("gpt2", 1.03))


def llama():
    return Net("Llama of transformers, 8 layers of 512, 4 x 512", "transformers_llama", 4, text, ADAMW, 1.0, None, LLAMA,
               quick=LLAMA_QUICK, at_least_eager=1.2)


def mlp():
    return Net("MLP 784-128-10, batch 64", "mlp", 64, digits, MOMENTUM, 3, 5, rounds=4, warm=5, steps=20, block=200,
               batches=256, **FEW_CORES)


def dlrm():
    return Net("DLRM, 26 x 100000 rows, batch 256", "dlrm", 256, clicks, SGD, 4, 6, {"rows": 100000}, warm=2, steps=6,
               block=10, also=[("PyTorch, sparse=True", {"sparse": True}, CORES)], quick={"rows": 1000})


def lstm():
    return Net("LSTM, 32 x 64 tokens, width 256", "lstm", 32, text, ADAMW, 1.2, 2,
               {"sequence": 64, "vocabulary": 1000, "width": 256}, warm=2, steps=10, block=2,
               quick={"sequence": 8}, **FEW_CORES)


NETS = [lambda: resnet50(at_least=1.3, aim=1.4), resnet50_bfloat16, gpt2, gpt2_of_transformers, llama, mlp, dlrm, lstm]


def names():
    return sorted({make().name for make in NETS})


def keep_only(chosen):
    """Measures the networks with these names; no name means all."""
    NETS[:] = [make for make in NETS if not chosen or make().name in chosen]


# ---- files ----

def model_keys(net):
    """Returns the options of `trainerctl model`."""
    return [a for k in sorted(net.keys) for a in ("--set", "%s=%d" % (k, net.keys[k]))]


def write_model(net, path):
    if net.name == "lstm":
        samples.write_lstm(path, net.keys["vocabulary"], net.keys["width"], net.keys["sequence"])
    elif net.name.startswith("transformers_"):
        peers.run_checked([peers.PYTHON, os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_export.py"),
                           net.name, json.dumps(net.keys), path], TASK_SECONDS)
    else:
        peers.run_checked([kit.TRAINERCTL, "model", net.name, *model_keys(net), "-o", path])


def buffers_that_train(model):
    """Returns the names of the frequencies of rotary embeddings. They are buffers of the module, but an export without
    metadata does not mark them."""
    output = json.loads(peers.run_checked([kit.TRAINERCTL, "inspect", model, "--json", "--batch", "1"]))
    return [p["name"] for p in output["parameters"] if p["kind"] == "trained" and p["name"].endswith("inv_freq")]


def write_job(net, folder, steps, replicas=CORES):
    """Writes the job file, and the model once per folder; returns the path of the job file."""
    os.makedirs(folder, exist_ok=True)
    model = os.path.join(folder, "model.onnx")
    if not os.path.exists(model):
        write_model(net, model)
    data = net.data(folder, net)
    job = {
        "name": net.name,
        "model": {"onnx": "model.onnx", "inputs": data["inputs"],
                  "loss": {"type": data.get("loss", "softmax_cross_entropy"), "logits": data["output"],
                           "labels": data["label"]}},
        "data": {"format": data["format"], "train": data["train"], "features": data["features"], "shuffle": False,
                 "cache": "memory"},
        "train": {"seed": 1, "steps": steps, "global_batch_size": net.batch, "lanes": replicas,
                  "precision": net.precision, "log_every_steps": net.block, "deadline_seconds": 120},
        "optimizer": net.optimizer,
    }
    if net.name.startswith("transformers_") and buffers_that_train(model):
        job["model"]["frozen"] = buffers_that_train(model)
    path = os.path.join(folder, "job-%d.json" % replicas)
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def torch_side(net, job, weights, keys, threads):
    keys = dict(net.keys, **keys)
    spec = {"net": net.name, "compile": keys.pop("compile", False), "keys": keys, "job": job, "weights": weights}
    return peers.Torch(1, json.dumps(spec), threads=threads)


# ---- cores ----

def core_of(cpu):
    """Returns a name that is the same for all hyperthreads of a core."""
    try:
        with open("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu) as f:
            return f.read().strip()
    except OSError:
        return str(cpu)


class OnTheseCores:
    """A context in which started processes have CORES processors, on different cores if possible."""

    def __enter__(self):
        self.all = os.sched_getaffinity(0)
        by_core = {}
        for cpu in sorted(self.all):
            by_core.setdefault(core_of(cpu), cpu)
        chosen = (sorted(by_core.values()) + sorted(self.all - set(by_core.values())))[:CORES]
        if len(chosen) < CORES:
            raise peers.Unavailable("%d processors are needed, here is %d" % (CORES, len(chosen)))
        os.sched_setaffinity(0, chosen)

    def __exit__(self, *_):
        os.sched_setaffinity(0, self.all)


# ---- nets ----

PEAK = re.compile(r"^(\w+) ([\d.]+) GFLOP/s$", re.M)


def training_flops(net, model):
    """Returns the FLOP of a step: the forward pass, and twice that in the backward pass, for the gradients of the inputs
    and of the weights."""
    figures = json.loads(peers.run_checked([kit.TRAINERCTL, "inspect", model, "--json", "--batch",
                                            str(net.batch // CORES)]))
    return 3 * net.batch * figures["training"]["forward_flops_per_sample"]


class Race:
    """The step of one network on both sides."""

    def __init__(self, net, folder):
        self.net, self.first_loss = net, None
        steps = (net.warm + net.steps) * net.block
        jobs = [write_job(net, folder, steps, replicas) for _, replicas in net.ways]
        self.torch = [torch_side(net, jobs[0], True, keys, threads) for _, keys, threads in net.peers + net.also]
        self.us = [Side(name, lambda j=job, n=replicas: self.run(j, n))
                   for (name, replicas), job in zip(net.ways, jobs)]
        sides = [Side(name, lambda t=t: self.ask(t)) for (name, _, _), t in zip(net.peers + net.also, self.torch)]
        self.them, self.also = sides[:len(net.peers)], sides[len(net.peers):]
        self.compiled = [s for s, (_, keys, _) in zip(self.them, net.peers) if keys.get("compile")]
        self.eager = [s for s in self.them if s not in self.compiled]

    def run(self, job, replicas):
        net = self.net
        records = ours.run_tasks(job, 1, devices="cpu:%d" % replicas, seconds=TASK_SECONDS)
        self.first_loss = records[0]["loss"]
        return {None: ours.seconds_per_step(records, net.batch, net.warm * net.block)}

    def ask(self, torch):
        """Measures a peer. The first call checks that its first loss is the same, so that it is the same network."""
        if not torch.ranks:
            [loss] = torch.ask("losses 1")
            if self.first_loss is not None and abs(loss - self.first_loss) > self.net.tolerance * abs(loss):
                raise peers.Unavailable("not the same network: the first loss is %.4f, trainerd's %.4f"
                                        % (loss, self.first_loss))
            torch.ask("steps %d %d" % (self.net.warm, self.net.block))
        return {None: torch.ask("steps %d %d" % (self.net.steps, self.net.block))}

    def run_rounds(self):
        try:
            interleave(self.net.rounds, *self.us, *self.them, *self.also)
        finally:
            for t in self.torch:
                t.close()


def fastest(sides):
    able = [s for s in sides if s.why is None]
    return min(able, key=Side.median) if able else sides[0]


def each_net(table, title, measure, folder, *more):
    """Measures each network in its own directory, which is removed afterwards because its files are large."""
    for make in NETS:
        net = make().shorter() if table.quick else make()
        with tempfile.TemporaryDirectory(dir=folder) as own:
            table.group(title + net.what(), measure, net, own, *more)


def nets(table, folder):
    with OnTheseCores():
        peak = Side("peak", lambda: {m.group(1): float(m.group(2)) for m in
                                     PEAK.finditer(peers.run_checked([ours.program("bench_fma")]))})
        each_net(table, "step of ", one_net, folder, peak)


def one_net(table, net, folder, peak):
    race = Race(net, folder)
    interleave(1, peak)
    race.run_rounds()
    us, eager, compiled = fastest(race.us), fastest(race.eager), fastest(race.compiled)
    has_compiled = compiled.why is None
    table.faster("step of " + net.what(), us, compiled if has_compiled else eager, None, net.at_least, net.aim)
    if us.why is not None:
        return  # the first row has the reason
    if has_compiled:
        table.faster("  the same beside PyTorch as it is", us, eager, None, net.at_least_eager)
    if net.beside is not None:
        beside_ours(table, net, folder, us)
    for side in race.also:
        table.faster("  the same beside it", us, side)

    def share():
        speed = training_flops(net, os.path.join(folder, "model.onnx")) / us.median() / 1e9
        most = peak.median(net.precision)
        return "%.0f GFLOP/s" % speed, "%s %.0f GFLOP/s" % (
            "FMA" if net.precision == "float32" else "matmul", most), "%.0f %%" % (100 * speed / most), True

    table.row("  of what %d cores can do%s" % (CORES, "" if us is race.us[0] else ", on one"), "", share)


def beside_ours(table, net, folder, us):
    """Compares an exported file with the same network from `trainerctl model`: their plans should be equal."""
    name, most = net.beside
    own = Net(net.title, name, net.batch, net.data, net.optimizer, keys=net.keys, rounds=net.rounds, warm=net.warm,
              steps=net.steps, block=net.block)
    job = write_job(own, os.path.join(folder, "own"), (net.warm + net.steps) * net.block)
    side = Side("our own form", lambda: {None: ours.seconds_per_step(
        ours.run_tasks(job, 1, devices="cpu:%d" % CORES, seconds=TASK_SECONDS), net.batch, net.warm * net.block)})
    again = Side(us.name, us.measure)  # measured again in alternation, because a few percent matter
    interleave(net.rounds, side, again)
    table.faster("  the same beside our own form", again, side, None, round(1 / most, 2))


# ---- peak ----

SMALLEST = {"inputs": 1, "hidden": 1, "classes": 2}


def peak(table, folder):
    """The peak resident memory of the training process, and the same minus that of a process with a minimal network."""
    with OnTheseCores():
        base = Memory(Net("", "mlp", 2 * CORES, digits, SGD, keys=SMALLEST), os.path.join(folder, "least"))
        base.measure()
        each_net(table, "memory of ", one_peak, folder, base)


class Memory:
    """The peak memory of both sides in KiB; for PyTorch the smallest of all variants."""

    def __init__(self, net, folder):
        net.batches, net.block = MEMORY_BATCHES, 1
        job = write_job(net, folder, 1000)
        self.us = Side("trainerd", lambda: {None: our_peak(job)})
        self.them = Side("PyTorch", lambda: {None: min(torch_peak(torch_side(net, job, False, keys, threads))
                                                       for _, keys, threads in net.peers + net.also)})

    def measure(self):
        interleave(1, self.us, self.them)


def our_peak(job):
    [task] = ours.start_tasks(job, 1, "cpu:%d" % CORES)
    try:
        task.until_step(MEMORY_STEPS, TASK_SECONDS)
        return ours.status(task.p.pid, "VmHWM")
    finally:
        task.kill()


def torch_peak(torch):
    try:
        torch.ask("steps 1 %d" % MEMORY_STEPS)
        return ours.status(torch.ranks[0].p.pid, "VmHWM")
    finally:
        torch.close()


def one_peak(table, net, folder, base):
    both = Memory(net, folder)
    both.measure()
    if both.us.why is not None:
        raise peers.Unavailable(both.us.why)

    def row(less):
        a, b = both.us.median(), both.them.median()
        if less:
            a, b = a - base.us.median(), b - base.them.median()
        return "%.0f MiB" % (a / KIB), "PyTorch %.0f MiB" % (b / KIB), "%.2f x" % (a / b), a < b

    table.row("memory of " + net.what(), "< 1 x", lambda: row(False))
    table.row("  without that of the smallest network", "", lambda: row(True))


# ---- load ----

def at_ms(record):
    return datetime.datetime.strptime(record["time"], "%Y-%m-%dT%H:%M:%S.%fZ").timestamp()


def load(table, folder):
    """The time from the model file to an executable plan: reading, checking, shapes, kernels, memory layout."""
    net = resnet50()
    job = write_job(net, os.path.join(folder, "load"), 1)

    def measure():
        [task] = ours.start_tasks(job, 1, "cpu:%d" % CORES, ("--log-level", "debug"))
        try:
            task.until(lambda t: any(r["message"] == "train" for r in t.events("phase")), TASK_SECONDS)
        finally:
            task.kill()
        phases = task.events("phase")
        names = [r["message"] for r in phases]
        return {None: at_ms(phases[names.index("plan") + 1]) - at_ms(phases[names.index("import")])}

    def row():
        return duration(us.median()), "limit %s" % duration(LOAD_LIMIT), "", us.median() < LOAD_LIMIT

    us = Side("trainerd", measure)
    with OnTheseCores():
        table.interleave(LOAD_RUNS, us)
    table.row("import and plan of ResNet-50, 2 x 8 images", "< %.0f ms" % (1e3 * LOAD_LIMIT), row)


# ---- exposed ----

def exposed(table, folder):
    """The share of the step in which the task waits for the all-reduce of gradients."""
    net = resnet50()
    if table.quick:
        net.shorter()
    job = write_job(net, os.path.join(folder, "exposed"), EXPOSED_WARM + EXPOSED_STEPS)

    def measure():
        records = ours.run_tasks(job, CORES, seconds=TASK_SECONDS)
        return {None: [r["reduce_share"] for r in records if r["step"] > EXPOSED_WARM]}

    def row():
        share = us.median()
        return "%.1f %%" % (100 * share), "limit %.0f %%" % (100 * EXPOSED_LIMIT), "", share < EXPOSED_LIMIT

    us = Side("trainerd", measure)
    with OnTheseCores():
        interleave(1, us)
    table.row("reduction in a step of ResNet-50, 2 tasks", "< %.0f %%" % (100 * EXPOSED_LIMIT), row)


# ---- health ----

def health(table, folder):
    """The share of the step for checking the gradient and computing its checksum for the other tasks."""
    for net, steps, traced in ((resnet50(), 8, 3), (mlp(), 6000, 2000)):
        if table.quick:
            net.shorter()
            steps, traced = 8, 3
        job = write_job(net, os.path.join(folder, "health", net.name), steps)
        one_health(table, net, job, ("--trace", os.path.join(folder, "health.json"), "--trace-steps", str(traced)))


def one_health(table, net, job, args):
    def measure():
        tasks = []
        try:
            tasks = ours.start_tasks(job, CORES, args=args)
            kit.expect_codes(tasks, [0] * CORES, TASK_SECONDS)
        finally:
            for t in tasks:
                t.kill()
        [profile] = tasks[0].events("profile")
        check = sum(p["seconds"] for p in profile["parts"] if p["what"] == "check")
        return {"check": check, "step": profile["step_seconds"]}

    def row():
        check, step = us.median("check"), us.median("step")
        return duration(check), "step %s" % duration(step), "%.2f %%" % (100 * check / step), check < HEALTH_LIMIT * step

    us = Side("trainerd", measure)
    with OnTheseCores():
        table.interleave(3, us)
    table.row("check of the gradient of %s, %d tasks" % (net.title, CORES), "< %.0f %%" % (100 * HEALTH_LIMIT), row)


GROUPS = {"nets": nets, "peak": peak, "load": load, "exposed": exposed, "health": health}
