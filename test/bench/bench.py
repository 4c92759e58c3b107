"""bench.py - compares trainerd with its peers and with limits. All sides are measured in this run, on this machine, in
alternation.

    scripts/bench [--quick] [GROUP...]    groups: start overhead reduce files memory cnn data nets peak load exposed health
                                          operation ps compression racks faults; alarms (takes ten minutes), tables (needs 14 GB of
                                          memory, 26 GB of disk): only if named;
                                          default: all; --quick: small and once, to check that everything runs
    The name of a network (resnet50 gpt2 transformers_llama mlp dlrm lstm ...) restricts nets and peak to the
    networks that are named.

Times are medians. A missed aim is printed. A row that cannot run prints the reason, and the exit code is then 1.
Run it on an otherwise idle machine, because other load affects all figures.
"""
import json
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(HERE), "e2e"))
import bench_compression  # noqa: E402
import bench_data  # noqa: E402
import bench_dynamic  # noqa: E402
import bench_faults  # noqa: E402
import bench_nets  # noqa: E402
import bench_operation  # noqa: E402
import bench_ps  # noqa: E402
import bench_racks  # noqa: E402
import bench_tables  # noqa: E402
import kit  # noqa: E402
import peers  # noqa: E402
import samples  # noqa: E402
from ours import program, run_tasks, seconds_per_step, status  # noqa: E402
from peers import run_checked  # noqa: E402
from table import Side, Table, duration  # noqa: E402

KIB, MIB = 1 << 10, 1 << 20
WORLD = 2
BUSY = 0.05  # a warning is printed if more than this share of the processors is busy at the start

START_RUNS, START_STEPS, START_LIMIT = 15, 40, 0.100
MLP_BATCH, MLP_RECORDS = 64, 32768
MLP_ROUNDS, MLP_WARM, MLP_STEPS, MLP_BLOCK = 5, 1000, 4000, 100
REDUCE_ROUNDS, REDUCE_AIMED, REDUCE_CONTEXT = 5, (MIB, 2 * MIB, 4 * MIB, 8 * MIB), (KIB, 25 * MIB)
FILE_ROUNDS = 3
FLAT_FROM, FLAT_STEPS, FLAT_AFTER = 1000, 10000, 1000
FLAT_KIB = 64  # allows pages that are touched late for the first time, such as log buffers and stacks
CNN_ROUNDS, CNN_BATCH, CNN_WARM, CNN_STEPS, CNN_BLOCK = 5, 64, 200, 600, 20


# ---- start ----

def start(table, folder):
    """The time from just before both processes are started to the chief's record of the first step."""
    def ours():
        with tempfile.TemporaryDirectory(dir=folder) as d:
            job = kit.digits_job(d, train={"epochs": None, "steps": START_STEPS, "log_every_steps": 1})
            begin = time.monotonic()
            return {None: run_tasks(job, WORLD)[0]["_at"] - begin}

    def torch():
        job = digits()
        return {None: peers.torch_first_step(WORLD, job["model"]["onnx"], job["model"]["loss"]["logits"],
                                             CNN_BATCH // WORLD)}

    def make():
        seconds = us.median()
        return duration(seconds), "limit %s" % duration(START_LIMIT), "", seconds < START_LIMIT

    us, ddp = Side("trainerd", ours), Side("PyTorch DDP", torch)
    table.interleave(1, ddp)
    table.interleave(START_RUNS, us)
    table.row("exec to the first step, 2 tasks, digits CNN", "< %.0f ms" % (1e3 * START_LIMIT), make)
    table.faster("the same beside PyTorch", us, ddp)


def digits():
    """Returns the job of the demo, with an absolute path of the model."""
    folder = os.path.join(kit.ROOT, "config", "digits")
    with open(os.path.join(folder, "digits.json")) as f:
        job = json.load(f)
    job["model"]["onnx"] = os.path.join(folder, job["model"]["onnx"])
    return job


# ---- overhead ----

def mlp_job(folder, steps, log_every):
    """Writes the job of a small network with records in memory, without checkpoints and evaluations. The model is
    written once."""
    model, records = os.path.join(folder, "mlp.onnx"), os.path.join(folder, "mlp.tfrecord")
    if not os.path.exists(model):
        samples.write_mlp(model)
        samples.write_records(records, MLP_RECORDS)
    job = {
        "name": "mlp",
        "model": {"onnx": model, "inputs": {"image": "x"},
                  "loss": {"type": "softmax_cross_entropy", "logits": "logits", "labels": "label"}},
        "data": {"train": records, "cache": "memory",
                 "features": {"image": {"dtype": "uint8", "shape": [samples.PIXELS], "scale": 1 / 255},
                              "label": {"dtype": "int64", "shape": []}}},
        "train": {"seed": 1, "steps": steps, "global_batch_size": MLP_BATCH * WORLD, "log_every_steps": log_every},
        "optimizer": {"type": "momentum", "learning_rate": 0.01, "momentum": 0.9},
    }
    path = os.path.join(folder, "mlp-%d.json" % steps)
    with open(path, "w") as f:
        json.dump(job, f)
    return path


def overhead(table, folder):
    """The MLP 784-128-10, batch 64 in each of two tasks: about half of such a step is overhead."""
    job = mlp_job(folder, MLP_WARM + MLP_STEPS, MLP_BLOCK)
    torch = peers.Torch(WORLD, os.path.join(folder, "mlp.onnx"), "logits", MLP_BATCH)
    us = Side("trainerd", lambda: {None: seconds_per_step(run_tasks(job, WORLD), MLP_BATCH * WORLD, MLP_WARM)})
    ddp = Side("PyTorch DDP", lambda: {None: torch.ask("steps 12 %d" % MLP_BLOCK)[2:]})
    try:
        table.interleave(MLP_ROUNDS, us, ddp)
    finally:
        torch.close()
    table.faster("step of a small MLP, 2 tasks", us, ddp, at_least=3)


# ---- reduce ----

def bench_allreduce(sizes, *more):
    out = {}
    text = run_checked([program("bench_allreduce"), "--ranks", str(WORLD), "--bytes", ",".join(map(str, sizes)), *more])
    for m in re.finditer(r"^ *(\d+) +([\d.]+) +[\d.]+$", text, re.M):
        out[int(m.group(1))] = float(m.group(2)) / 1e6
    return out


def open_generation(*more):
    """Returns the seconds from the end of a generation of 4 tasks until the next is connected, for the slowest task."""
    text = run_checked([program("bench_allreduce"), "--ranks", "4", "--open", "--bytes", str(MIB), *more])
    return {None: float(re.search(r"^ *open +([\d.]+)$", text, re.M).group(1)) / 1e6}


def reduce(table, folder):
    sizes = sorted(REDUCE_AIMED + REDUCE_CONTEXT)
    torch, mpi = peers.Torch(WORLD), peers.OpenMPI(kit.BUILD)
    shm = Side("trainerd", lambda: bench_allreduce(sizes))
    tcp = Side("trainerd", lambda: bench_allreduce(sizes, "--tcp"))
    gloo = Side("Gloo", lambda: {n: torch.ask("reduce %d" % n) for n in sizes})
    openmpi = Side("Open MPI", lambda: mpi.reduce(sizes))
    try:
        table.interleave(REDUCE_ROUNDS, shm, gloo, tcp, openmpi)
    finally:
        torch.close()
    for what, us, peer, aim in (("shared memory", shm, gloo, 5), ("shared memory", shm, openmpi, 2),
                                ("TCP", tcp, gloo, 1)):
        for n in sizes:
            size = "%d MiB" % (n // MIB) if n >= MIB else "%d KiB" % (n // KIB)
            table.faster("all-reduce, %s, %s" % (what, size), us, peer, n, aim if n in REDUCE_AIMED else None)
    for hosts in (1, 2):
        side = Side("trainerd", lambda: open_generation("--hosts", str(hosts)))
        table.interleave(REDUCE_ROUNDS, side)
        table.within("open a generation, 4 tasks on %d host%s" % (hosts, "s" if hosts > 1 else ""), side, 0.005)


# ---- files ----

CKPT = re.compile(r"^checkpoint of (\d+) MiB: bare write and fsync ([\d.]+) GB/s, saved and synced ([\d.]+) GB/s", re.M)
TFRECORD = re.compile(r"^records of +(\d+) bytes: bare read and CRC ([\d.]+) GB/s.*in order ([\d.]+)", re.M)


def files(table, folder):
    """The programs write to `folder` and measure both sides in alternation themselves."""
    def run(name):
        return run_checked([program(name)], env=dict(os.environ, TMPDIR=folder))

    def tfrecord():
        out = {}
        for n, bare, ours in TFRECORD.findall(run("bench_tfrecord")):
            out["bare loop", int(n)], out["in order", int(n)] = float(bare), float(ours)
        return out

    def ckpt():
        [(_, bare, ours)] = CKPT.findall(run("bench_ckpt"))
        return {("write and fsync",): float(bare), ("saved",): float(ours)}

    records, saved = Side("bench_tfrecord", tfrecord), Side("bench_ckpt", ckpt)
    table.interleave(FILE_ROUNDS, records, saved)
    for n in (784, 3072, 150528):
        table.share("TFRecord read and checked, %d bytes" % n, records, ("in order", n), ("bare loop", n), 0.7)
    table.share("checkpoint saved and synced, 256 MiB", saved, ("saved",), ("write and fsync",), 0.8)


# ---- memory ----

def process_memory(pid):
    """Returns (resident KiB, minor faults, major faults)."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return status(pid, "VmRSS"), int(fields[7]), int(fields[9])


def busiest_thread(pid):
    def used(tid):
        with open("/proc/%d/task/%s/stat" % (pid, tid)) as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    return int(max(os.listdir("/proc/%d/task" % pid), key=used))


def calls_per_thread(path):
    """Returns {thread: (allocations by oneDNN, others)} from the file that count_malloc.c writes."""
    with open(path, "rb") as f:
        return {tid: (onednn, other) for tid, _, onednn, other in struct.iter_unpack("=IIQQ", f.read())}


def over_the_steps(job, look, env=None):
    """Calls look(pid) for every task at step FLAT_FROM and FLAT_STEPS later; returns a list of (before, after)."""
    seen = []

    def use(tasks):
        for step in (FLAT_FROM, FLAT_FROM + FLAT_STEPS):
            tasks[0].until_step(step, 120)
            seen.append([look(t.p.pid) for t in tasks])

    run_tasks(job, WORLD, use, env)
    return list(zip(*seen))


def memory(table, folder):
    job = mlp_job(folder, FLAT_FROM + FLAT_STEPS + FLAT_AFTER, FLAT_FROM)

    def measure():
        """Returns the maximum over the tasks."""
        seen = over_the_steps(job, process_memory)
        more = [max(after[i] - before[i] for before, after in seen) for i in range(3)]
        return {"resident": max(after[0] for _, after in seen), "growth": more[0], "minor": more[1], "major": more[2]}

    def growth():
        kib = flat.median("growth")
        return "%+d KiB" % kib, "resident %.1f MiB" % (flat.median("resident") / KIB), "", kib <= FLAT_KIB

    def faults():
        return "%d" % flat.median("minor"), "major %d" % flat.median("major"), "", True

    flat = Side("trainerd", measure)
    table.interleave(1, flat)
    table.row("memory, growth over %d steps" % FLAT_STEPS, "<= %d KiB" % FLAT_KIB, growth)
    table.row("page faults in %d steps" % FLAT_STEPS, "", faults)
    table.row("requests for memory in %d steps" % FLAT_STEPS, "0", lambda: requests(job, folder))


def requests(job, folder):
    """Counts the allocations of the replica's thread, which is the busiest. The other threads allocate for heartbeats
    and log lines."""
    library, counts = program("count_malloc.so"), os.path.join(folder, "counts")
    os.makedirs(os.path.dirname(library), exist_ok=True)
    run_checked([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O2", "-o", library,
                 os.path.join(HERE, "count_malloc.c")])

    def look(pid):
        return busiest_thread(pid), calls_per_thread("%s.%d" % (counts, pid))

    seen = over_the_steps(job, look, {"LD_PRELOAD": library, "COUNT_MALLOC": counts})
    onednn, other = (max(after[tid][i] - before[tid][i] for (_, before), (tid, after) in seen) for i in (0, 1))
    return "%d" % other, "oneDNN %.1f a step" % (onednn / FLAT_STEPS), "", other == 0


# ---- cnn ----

def cnn(table, folder):
    """The demo's network with one replica, the whole batch in one micro-batch on both sides."""
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = kit.digits_job(d, train={"epochs": None, "steps": CNN_WARM + CNN_STEPS, "lanes": 1, "clip_norm": 0,
                                       "global_batch_size": CNN_BATCH, "log_every_steps": CNN_BLOCK,
                                       "eval_every_epochs": 0},
                             checkpoint=None, summary=None, export=None)
        model = digits()["model"]
        torch = peers.Torch(1, model["onnx"], model["loss"]["logits"], CNN_BATCH)
        us = Side("trainerd", lambda: {None: seconds_per_step(run_tasks(job, 1), CNN_BATCH, CNN_WARM)})
        eager = Side("PyTorch eager", lambda: {None: torch.ask("steps 12 %d" % CNN_BLOCK)[2:]})
        try:
            table.interleave(CNN_ROUNDS, us, eager)
        finally:
            torch.close()
    table.faster("step of the digits CNN, 1 replica, batch %d" % CNN_BATCH, us, eager)


GROUPS = {"start": start, "overhead": overhead, "reduce": reduce, "files": files, "memory": memory, "cnn": cnn,
          "data": bench_data.data, **bench_nets.GROUPS, "operation": bench_operation.operation, "ps": bench_ps.ps,
          "compression": bench_compression.compression, "racks": bench_racks.racks,
          "faults": lambda table, folder: bench_faults.faults(table, folder, mlp_job)}

LONG = {"alarms": bench_faults.alarms, "tables": bench_tables.tables, "dynamic": bench_dynamic.dynamic}  # runs only if named


def busy_share():
    """Returns the busy share of the processors over one second."""
    def times():
        with open("/proc/stat") as f:
            fields = [int(t) for t in f.readline().split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    before = times()
    time.sleep(1)
    after = times()
    return 1 - (after[1] - before[1]) / max(1, after[0] - before[0])


def processor():
    with open("/proc/cpuinfo") as f:
        names = re.findall(r"^model name\s*: (.*)$", f.read(), re.M)
    return "%s, %d cores" % (names[0] if names else "unknown processor", len(os.sched_getaffinity(0)))


def main():
    quick = sys.argv[1:2] == ["--quick"]
    words = sys.argv[1 + quick:]
    known, networks = {**GROUPS, **LONG}, bench_nets.names()
    for word in words:
        if word not in known and word not in networks:
            sys.exit("bench: no group or network '%s'; there are %s" % (word, " ".join([*known, *networks])))
    wanted = [w for w in words if w in known] or list(GROUPS)
    bench_nets.keep_only([w for w in words if w in networks])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs the cleanup below
    folder, table = tempfile.mkdtemp(prefix="trainerd-bench-"), Table(quick)
    try:
        print("%s; %s" % (processor(), "; ".join(peers.versions())))
        if quick:
            print("quick: small networks, one round: the figures are meaningless")
        busy = busy_share()
        if busy > BUSY:
            print("the processors are %.0f %% busy with other load: the figures are unreliable" % (100 * busy))
        table.line("what", "trainerd", "peer or limit", "ratio", "aim")
        for name in wanted:
            table.group(name, known[name], folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return table.end()


sys.exit(main())
