"""bench_compression.py - compression of gradients: accuracy of the digits over three seeds, loss curves of a
ResNet and a GPT-2, the speed of the codes beside memcpy, ResNet-50 over a network of 1 Gbit/s: the wait for the reduction
beside float32, and the step beside PyTorch with its hooks that send bfloat16 and PowerSGD's factors; and its step over one of
100 Mbit/s, beside float32.

Scaled for a machine without GPUs: the images of ResNet-50 are 32 x 32 instead of 224 x 224, and a host has two of them, so that
the exchange takes most of a step, as on a GPU. The gradients (102 MB) and the rates of the network are not scaled.

The network is a cable between two network namespaces with a token bucket at each end. As a program of its own this file
enters them and measures one code:

    bench_compression.py CODE JOB WARM STEPS RATE    prints {"exposed": seconds, "step": seconds, "bytes": sent by one host in a step}
    bench_compression.py torch HOOK SPEC WARM STEPS RATE    prints the output of torch_hooks.py
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(HERE), "e2e"))
import curves  # noqa: E402
import kit  # noqa: E402
import ours  # noqa: E402

CODES = ("bfloat16", "float16", "int8", "int4", "top_k", "power_sgd")
SEEDS, EPOCHS, ACCURACY_LIMIT = (1, 2, 3), 20, 0.005
# Of the fall of float32's loss. A code with residuals sends a part of each gradient some steps later, so its curve follows
# behind in these few steps.
CURVE_LIMITS = {"top_k": 0.5, "power_sgd": 0.5}
CURVE_LIMIT = 0.15
# share of the speed of memcpy; int4 makes four random numbers for each 16 bytes, top_k counts numbers some ten times, and
# power_sgd multiplies each number 12 times
ENCODE_LIMITS = {"bfloat16": 1.0, "float16": 0.9, "int8": 1.0, "int4": 0.2, "top_k": 0.1, "power_sgd": 0.2}
NETWORK_ROUNDS, NETWORK_WARM, NETWORK_STEPS = 3, 2, 6
NETWORK_IMAGES, NETWORK_SIZE = 4, 32  # images of both hosts together, and their height and width
EXPOSED_LIMITS = {"bfloat16": 0.7, "int8": 0.4, "int4": 0.3}
RATE = "1gbit"
# Codes with residuals are for networks on which the reduction of float32 does not fit beside backward.
SLOW_RATE, SLOW_STEPS = "100mbit", 3
SLOW_LIMITS = {"int8": 0.5, "top_k": 0.5, "power_sgd": 0.5}
HOOKS = {"bf16": "bf16 hook", "powersgd": "PowerSGD hook"}  # of PyTorch; see torch_hooks.py
HOOK_WARM = 3
# (our code, the hooks of which the faster one counts, how many times their speed). The cable carries int8 in 0.21 s, bfloat16 in
# 0.41 s, and the factors of rank 1 in 5 ms, so the aim beside PowerSGD depends on the time that its hook computes.
HOOK_LIMITS = (("int8", ("bf16", "powersgd"), 1.5), ("bfloat16", ("bf16",), 1.0), ("power_sgd", ("powersgd",), 1.0))
MORE_KEYS = {"power_sgd": {"rank": 1}}  # as PyTorch's hook
TASK_SECONDS = 600


# ---- accuracy ----

def trained(folder, code, seed):
    """Returns the accuracy on the test set, and the mean loss of the last epoch. One task computes what any number would."""
    compression = {"code": code, "groups": 4, "min_bytes": 0} if code else None
    with tempfile.TemporaryDirectory(dir=folder) as d:
        job = kit.digits_job(d, train={"epochs": EPOCHS, "lanes": 8, "seed": seed, "log_every_steps": 1, "eval_every_epochs": 0},
                             checkpoint=None, summary=None, export=None,
                             **({"communication": {"compression": compression}} if code else {}))
        task = kit.Task(job, args=("--devices", "cpu:1"))
        try:
            kit.expect_codes([task], [0], TASK_SECONDS)
        finally:
            task.kill()
        steps = task.events("step")
        last = [r["loss"] for r in steps if r["epoch"] == EPOCHS - 1]
        return {"accuracy": task.events("eval")[-1]["accuracy"], "loss": statistics.mean(last)}


def accuracy(table, folder, side_of):
    def measure(code):
        results = [trained(folder, code, seed) for seed in SEEDS[:1 if table.quick else None]]
        return {key: statistics.mean(r[key] for r in results) for key in ("accuracy", "loss")}

    sides = {code: side_of(code or "float32", lambda code=code: measure(code)) for code in (None, *CODES)}
    table.interleave(1, *sides.values())
    for code in CODES:
        def make(us=sides[code], plain=sides[None]):
            a, b = us.median("accuracy"), plain.median("accuracy")
            return ("%.2f %%" % (100 * a), "float32 %.2f %%" % (100 * b), "", abs(a - b) <= ACCURACY_LIMIT,
                    ", last loss %.4f, float32 %.4f" % (us.median("loss"), plain.median("loss")))

        table.row("accuracy of the digits with %s, %d seeds" % (code, len(SEEDS)), "+- %.1f %%" % (100 * ACCURACY_LIMIT), make)


# ---- loss curves ----

def loss_curves(table, folder, side_of):
    """The losses of a job are those of any run of it, so one run is enough."""
    for name in curves.CURVES:
        def measure(code, name=name):
            return dict(enumerate(curves.losses(folder, name, code)))

        sides = {code: side_of(code or "float32", lambda code=code: measure(code)) for code in (None, *CODES)}
        table.interleave(1, *sides.values())
        for code in CODES:
            limit = CURVE_LIMITS.get(code, CURVE_LIMIT)

            def make(us=sides[code], plain=sides[None], limit=limit):
                ours_, theirs = ([side.median(quarter) for quarter in range(4)] for side in (us, plain))
                fall = theirs[0] - theirs[3]
                return (" ".join("%.3f" % x for x in ours_), "float32 " + " ".join("%.3f" % x for x in theirs), "",
                        abs(ours_[3] - theirs[3]) <= limit * fall)

            table.row("losses of %s with %s, by quarters" % (name, code), "+- %.0f %% of the fall" % (100 * limit), make)


# ---- speed ----

def speeds(run_checked):
    out = {}
    for name, encode, decode, copy in re.findall(r"^(\w+) encode ([\d.]+) decode ([\d.]+) copy ([\d.]+)$",
                                                 run_checked([ours.program("bench_code")]), re.M):
        out.update({("encode", name): float(encode), ("decode", name): float(decode), ("memcpy", name): float(copy)})
    return out


def speed(table, side_of, run_checked):
    us = side_of("trainerd", lambda: speeds(run_checked))
    table.interleave(3, us)
    for code in CODES:
        table.share("encode %s, one core, from memory" % code, us, ("encode", code), ("memcpy", code), ENCODE_LIMITS[code])


# ---- network ----

def sides_of(table, folder, nets, side_of, run_checked, rate, steps, codes):
    """Each measurement yields the medians of its steps."""
    net = nets.resnet50(keys={"size": NETWORK_SIZE})
    net.batch = NETWORK_IMAGES
    steps = 1 if table.quick else steps
    job = nets.write_job(net, os.path.join(folder, "network-" + rate), NETWORK_WARM + steps)

    def measure(code):
        return json.loads(run_checked([sys.executable, os.path.abspath(__file__), code, job, str(NETWORK_WARM), str(steps), rate],
                                      TASK_SECONDS))

    return {code: side_of(code, lambda code=code: measure(code)) for code in ("none", *codes)}


def hook_sides(table, folder, nets, side_of, run_checked, rate, steps):
    """PyTorch on the same two hosts, each with half of the images."""
    net = nets.resnet50(keys={"size": NETWORK_SIZE})
    net.batch = NETWORK_IMAGES // 2
    steps = 1 if table.quick else steps
    job = nets.write_job(net, os.path.join(folder, "torch-" + rate), HOOK_WARM + steps)
    spec = {"net": net.name, "keys": net.keys, "job": job, "weights": True}

    def measure(hook):
        out = json.loads(run_checked([sys.executable, os.path.abspath(__file__), "torch", hook, json.dumps(spec), str(HOOK_WARM),
                                      str(steps), rate], TASK_SECONDS))
        return {"step": statistics.median(out["step"])}

    return {hook: side_of(name, lambda hook=hook: measure(hook)) for hook, name in HOOKS.items()}


def slow_network(table, *args):
    sides = sides_of(table, *args, SLOW_RATE, SLOW_STEPS, SLOW_LIMITS)
    table.interleave(1, *sides.values())
    for code, limit in SLOW_LIMITS.items():
        def make(us=sides[code], plain=sides["none"], limit=limit):
            a, b = us.median("step"), plain.median("step")
            return "%.2f s" % a, "float32 %.2f s" % b, "%.2f x" % (a / b), a <= limit * b, ""

        table.row("step of ResNet-50, %s, %s" % (code, SLOW_RATE), "<= %g x" % limit, make)


def waits(table, sides):
    for code, limit in EXPOSED_LIMITS.items():
        def make(us=sides[code], plain=sides["none"], limit=limit):
            a, b = us.best("exposed"), plain.best("exposed")
            return ("%.0f ms" % (1e3 * a), "float32 %.0f ms" % (1e3 * b), "%.2f x" % (a / b), a <= limit * b,
                    ", step %.0f ms, float32 %.0f ms; %.1f MB, float32 %.1f MB" % (
                        1e3 * us.best("step"), 1e3 * plain.best("step"), us.median("bytes") / 1e6, plain.median("bytes") / 1e6))

        table.row("wait for the reduction, %s, %s" % (code, RATE), "<= %g x" % limit, make)


def beside_hooks(table, sides, hooks):
    for code, names, limit in HOOK_LIMITS:
        def make(us=sides[code], peers=[hooks[name] for name in names], limit=limit):
            a = us.best("step")
            times = sorted((peer.best("step"), peer.name) for peer in peers)
            better, name = times[0]
            return ("%.0f ms" % (1e3 * a), "%s %.0f ms" % (name, 1e3 * better), "%.2f x" % (better / a), better >= limit * a,
                    "".join(", %s %.0f ms" % (other, 1e3 * seconds) for seconds, other in times[1:]))

        table.row("step of ResNet-50, %s, %s" % (code, RATE), ">= %g x" % limit, make)


def network(table, *args):
    """Takes the best of the rounds: other load on the machine makes each figure larger, never smaller."""
    sides = sides_of(table, *args, RATE, NETWORK_STEPS, dict.fromkeys([*EXPOSED_LIMITS, *(code for code, *_ in HOOK_LIMITS)]))
    hooks = hook_sides(table, *args, RATE, NETWORK_STEPS)
    loads = [os.getloadavg()[0]]
    for _ in range(1 if table.quick else NETWORK_ROUNDS):
        table.interleave(1, *sides.values(), *hooks.values())
        loads.append(os.getloadavg()[0])
    waits(table, sides)
    beside_hooks(table, sides, hooks)

    def computing():
        plain = sides["none"]
        return "%.0f ms" % (1e3 * (plain.best("step") - plain.best("exposed"))), "", "", True

    table.row("the same without the wait, float32", "", computing)
    table.line("ResNet-50 with images of %d x %d, %d on each of two hosts of one core, best of the rounds, load %s" % (
        NETWORK_SIZE, NETWORK_SIZE, NETWORK_IMAGES // 2, " ".join("%.1f" % load for load in loads)))


def sent_bytes():
    """Bytes that the first host has sent, according to its network device."""
    text = subprocess.run(["ip", "-n", "east", "-s", "-j", "link", "show", "cable"], capture_output=True, text=True, check=True).stdout
    return json.loads(text)[0]["stats64"]["tx"]["bytes"]


def make_hosts(rate):
    def run(*command):
        subprocess.run(command, check=True, capture_output=True)

    for name in ("east", "west"):
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", "east", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", "west")
    for name, address in (("east", "10.78.0.1"), ("west", "10.78.0.2")):
        run("ip", "-n", name, "addr", "add", address + "/24", "dev", "cable")
        run("ip", "-n", name, "link", "set", "cable", "up")
        run("tc", "-n", name, "qdisc", "add", "dev", "cable", "root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms")


def measure_network(code, job, warm, steps, rate):
    """Trains on two hosts of one core; returns the figures of the steps after the first `warm`."""
    kit.need_namespaces("tc", "qdisc", "show")
    make_hosts(rate)
    with open(job) as f:
        text = json.load(f)
    keys = {"groups": 2, **MORE_KEYS.get(code, {})} if code != "none" else {}
    text["communication"] = {"encrypt": False, "compression": {"code": code, **keys}}
    text["train"].update(lanes=2, log_every_steps=1)
    path = os.path.join(os.path.dirname(job), "network-%s.json" % code)
    with open(path, "w") as f:
        json.dump(text, f)
    cluster = {"worker": ["10.78.0.1:7000", "10.78.0.2:7000"]}
    tasks = [kit.Task(path, {"cluster": cluster, "task": {"type": "worker", "index": i}}, ("--devices", "cpu:1"),
                      {"TRAINERD_LOG_LEVEL": "debug"}, "worker %d" % i, prefix=("ip", "netns", "exec", host))
             for i, host in enumerate(("east", "west"))]
    try:
        tasks[0].until_step(warm, TASK_SECONDS)
        before = sent_bytes()
        kit.expect_codes(tasks, [0, 0], TASK_SECONDS)
        sent = sent_bytes() - before
    finally:
        for t in tasks:
            t.kill()
    records = [[r for r in t.events("step") if r["step"] > warm] for t in tasks]
    batch = text["train"]["global_batch_size"]
    # the later of the two tasks waits for the network, the other one also for it
    exposed = [min(r["reduce_share"] * batch / r["samples_per_second"] for r in pair) for pair in zip(*records)]
    return {"exposed": statistics.median(exposed), "step": statistics.median(batch / r["samples_per_second"] for r in records[0]),
            "bytes": sent / steps}


def measure_torch(hook, spec, warm, steps, rate):
    """Trains with PyTorch on two hosts of one core; returns what its first process prints."""
    import peers

    kit.need_namespaces("tc", "qdisc", "show")
    make_hosts(rate)
    env = dict(os.environ, MASTER_ADDR="10.78.0.1", MASTER_PORT="7000", GLOO_SOCKET_IFNAME="cable", OMP_NUM_THREADS="1",
               WORLD_SIZE="2")
    ranks = []
    try:
        for i, host in enumerate(("east", "west")):
            command = ["ip", "netns", "exec", host, peers.PYTHON, os.path.join(HERE, "torch_hooks.py"), hook, spec, warm, steps]
            ranks.append(subprocess.Popen(command, env=dict(env, RANK=str(i)), stdout=subprocess.PIPE, text=True))
        out = [p.communicate(timeout=TASK_SECONDS)[0] for p in ranks]
        if any(p.returncode != 0 for p in ranks):
            sys.exit("torch_hooks.py: exit codes %s" % [p.returncode for p in ranks])
        return json.loads(out[0].splitlines()[-1])
    finally:
        for p in ranks:
            if p.poll() is None:
                p.kill()
                p.wait()


def compression(table, folder):
    import bench_nets
    from peers import run_checked
    from table import Side

    accuracy(table, folder, Side)
    loss_curves(table, folder, Side)
    speed(table, Side, run_checked)
    network(table, folder, bench_nets, Side, run_checked)
    slow_network(table, folder, bench_nets, Side, run_checked)


if __name__ == "__main__":
    kit.enter_namespaces()
    try:
        if sys.argv[1] == "torch":
            print(json.dumps(measure_torch(*sys.argv[2:])))
        else:
            print(json.dumps(measure_network(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])))
    except kit.Skip as lacking:
        sys.exit(str(lacking))
