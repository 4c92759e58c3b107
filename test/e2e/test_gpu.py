#!/usr/bin/python3
"""Training on emulated GPUs: the CPU computes the plugin's kernels and the host code of the program (test/cuda). The results
are compared with those of the CPU kernels; they are close, not equal, because sums have another order."""
# needs: emulated
import json
import os
import shutil
import signal
import struct
import subprocess
import sys

import kit
from kit import BUILD, ROOT, Task, digits_job, expect_codes, main, read_tree, start, test, with_faults, workdir

sys.path.insert(0, os.path.join(ROOT, "test", "data"))
import tfrecord  # noqa: E402
import trace_file  # noqa: E402

kit.TRAINERD = os.path.join(BUILD, "emulated", "trainerd")
NEAR = 2e-3  # tolerance of a loss after 20 steps of float32


def short(steps=12, **more):
    return kit.merge({"train": {"epochs": None, "steps": steps, "lanes": 4, "log_every_steps": 1, "eval_every_epochs": None},
                      "data": {"eval": None}, "model": {"metrics": None},
                      "optimizer": {"schedule": {"type": "constant", "warmup_steps": None}},
                      "checkpoint": {"every_steps": 10}, "summary": None}, more)


def run(devices, n=1, env=None, folder=None, codes=None, args=(), **changes):
    folder = folder or workdir()
    job = digits_job(folder, **changes)
    if n > 1:
        tasks = start(job, n, devices, args, env)
    else:
        tasks = [Task(job, args=("--devices", devices, *args), env=env)]
    expect_codes(tasks, codes or [0] * n)
    return folder, tasks


def losses(task):
    return [r["loss"] for _, r in sorted(task.steps().items())]


def near(got, want, what):
    assert len(got) == len(want), "%s: %d losses, expected %d" % (what, len(got), len(want))
    for k, (a, b) in enumerate(zip(got, want)):
        assert abs(a - b) <= NEAR * (1 + abs(b)), "%s: loss %d is %g, the CPU's %g" % (what, k + 1, a, b)


def tensors(path):
    """Reads a safetensors file: 8 bytes with the length of the header, a JSON header, data."""
    with open(path, "rb") as f:
        head = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    out = {}
    for name, t in head.items():
        if name != "__metadata__":
            begin, end = t["data_offsets"]
            out[name] = struct.unpack("<%df" % ((end - begin) // 4), data[begin:end])
    return out


def near_weights(a, b, step, what):
    for name in ("model", "optimizer"):
        x, y = (tensors(os.path.join(f, "run", "checkpoints", "step-%08d" % step, name + ".safetensors")) for f in (a, b))
        assert x.keys() == y.keys(), what
        for key in x:
            top = max(map(abs, y[key]))
            for p, q in zip(x[key], y[key]):
                assert abs(p - q) <= 5 * NEAR * (abs(q) + top), "%s: %s %s: %g, the CPU has %g" % (what, name, key, p, q)


@test
def gpu_installed_program_finds_the_plugin_in_lib_trainerd():
    folder = workdir()
    program, plugin = (os.path.join(folder, d) for d in ("bin/trainerd", "lib/trainerd/trainerd-cuda.so"))
    for path in (program, plugin):
        os.makedirs(os.path.dirname(path))
        shutil.copy(os.path.join(BUILD, "emulated", os.path.basename(path)), path)
    command = [program, "--job", digits_job(folder), "--devices", "cuda:0", "--check"]
    p = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and '"cuda:0"' in p.stdout, p
    os.rename(plugin, plugin + ".removed")
    p = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert p.returncode == 2 and "into ../lib/trainerd of that folder" in p.stderr, p


@test
def padding_rows_and_frozen_rows_on_a_gpu_follow_pytorch():
    sys.path.insert(0, os.path.join(ROOT, "test", "e2e", "forms"))
    import forms_job

    for name in ("rows_adamw", "rows_momentum", "train_clipped"):
        folder, job = workdir(), forms_job.JOBS[name]
        path = forms_job.prepare(folder, job["model"], job["optimizer"], job.get("clip_norm", 0))
        task = Task(path, args=("--devices", "cuda:0"))
        expect_codes([task], [0])
        forms_job.compare(name, folder, task, 1e-4, 1e-3)


@test
def losses_on_one_gpu_follow_the_cpu():
    cpu, (c,) = run("cpu:1", **short())
    gpu, (g,) = run("cuda:0", **short())
    near(losses(g), losses(c), "one GPU")
    near_weights(gpu, cpu, 12, "one GPU")
    assert any("cuda:0 computed lanes 0 to 3" in r["message"] for r in g.events("note")), g.log()


@test
def gpu_run_repeated_with_other_stream_timing_has_equal_bits():
    """The checkpoints are equal too, whether the GPU has memory for a snapshot of the state or not. The log states the time
    in which the GPU is idle."""
    job = short(6, checkpoint={"every_steps": 2, "max_to_keep": None})
    folder, (a,) = run("cuda:0", **job)
    want = read_tree(os.path.join(folder, "run", "checkpoints"))
    assert any("a snapshot of the state" in r["message"] for r in a.events("note")), a.log()
    assert len({os.path.dirname(name) for name in want}) >= 2, want.keys()
    slow = {"EMULATED_SEED": "3", "EMULATED_MEMORY": str(1 << 29), "TRAINERD_FAULT": "train.commit=delay:300@1+"}
    for env in ({"EMULATED_SEED": "2"}, slow):
        folder, (b,) = run("cuda:0", env=env, **job)
        assert losses(a) == losses(b), env
        got = read_tree(os.path.join(folder, "run", "checkpoints"))
        for name in got.keys() & want.keys(): # a checkpoint that is still written delays the next one
            assert got[name] == want[name], (env, name)
        assert "step-00000006/model.safetensors" in got, got.keys()
    assert any("too little for a snapshot" in r["message"] for r in b.events("note")), b.log()
    for k, r in b.steps().items():  # 64 samples
        assert ("device_idle" in r) == (k > 1) and (k == 1 or r["device_idle"] * 64 / r["samples_per_second"] > 0.25), r


def too_large(env):
    """Returns (exit code, last error) of a job on a GPU with too little memory."""
    job = digits_job(workdir(), **short(2, train={"global_batch_size": 512, "lanes": 1}))
    t = Task(job, args=("--devices", "cuda:0"), env=env)
    return t.wait(), errors(t)[-1]


@test
def gpu_memory_exhausted_error_names_the_purpose():
    """If the GPU has too little memory in total, the job must change (2); else another process may release memory (138)."""
    code, said = too_large({"EMULATED_MEMORY": str(2 << 20)})
    for words in ("cuda:0 has too little memory: weights and optimizer state take ", " KiB, gradients ", " MiB",
                  "a lane of 512 samples ", "; more lanes (/train/lanes, now 1) are smaller ones: ", " of 2.0 MiB are free"):
        assert words in said, said
    assert code == 2, (code, said)
    codes = {code for code, said in (too_large({"EMULATED_FAULT": "malloc@%d" % n}) for n in range(8, 20, 3))
             if "cuda:0 has too little memory" in said}
    assert codes == {138}, codes


def wrong_label(folder, name, record, label):
    """Writes the digits file of this name, with one label that is out of range."""
    path = os.path.join(ROOT, "config", "digits", name)
    with open(path, "rb") as f:
        records = [tfrecord.parse(data) for data in tfrecord.frames(f.read())]
    records[record]["label"] = ("int64", [label])
    with open(os.path.join(folder, name), "wb") as f:
        for r in records:
            f.write(tfrecord.frame(tfrecord.example(r)))


def errors(task):
    return [r["message"] for r in map(json.loads, task.lines) if r.get("level") == "error"]


@test
def label_out_of_range_on_a_gpu_ends_the_run_and_is_named():
    said = {}
    for devices in ("cpu:1", "cuda:0"):
        folder = workdir()
        wrong_label(folder, "digits-test-0.tfrecord", 3, 12)
        job = digits_job(folder, **short(2, data={"eval": "digits-test-*.tfrecord"}, train={"eval_every_epochs": 1}))
        t = Task(job, args=("--devices", devices))
        said[devices] = (t.wait(), errors(t)[-1].replace(folder, ""))
    assert said["cuda:0"] == said["cpu:1"], said


@test
def label_out_of_range_on_one_task_prevents_the_step_on_all_tasks():
    said = {}
    for devices in ("cpu:1", "cuda:0"):
        folder = workdir()
        wrong_label(folder, "digits-train-0.tfrecord", 64 + 40, 77)  # step 2, lane 2
        job = digits_job(folder, **short(6, data={"shuffle": False}))
        tasks = start(job, 2, devices)
        expect_codes(tasks, [2, 2])
        # a GPU reads the samples of step 2 during step 1
        said[devices] = [errors(t)[-1].split(": data of ")[-1].replace(folder, "") for t in tasks]
        assert all(max(t.steps(), default=1) == 1 for t in tasks), [t.log() for t in tasks]  # the log may lack step 1
    assert said["cuda:0"] == said["cpu:1"], said
    assert "step 2, lane 2: '/digits-train-0.tfrecord': record 104 " in said["cpu:1"][0], said
    assert "value 0 is 77, expected 0 to 9" in said["cpu:1"][0], said


@test
def checkpoint_of_cpu_or_gpu_resumes_on_the_other():
    cpu, (c,) = run("cpu:1", **short())
    mixed, _ = run("cpu:1", **short(4))
    _, (g,) = run("cuda:0", folder=mixed, **short(8))
    _, (d,) = run("cpu:1", folder=mixed, **short())
    assert min(g.steps()) == 5 and min(d.steps()) == 9
    near(losses(g) + losses(d), losses(c)[4:], "CPU, GPU, CPU")
    near_weights(mixed, cpu, 12, "CPU, GPU, CPU")


OF_A_GPU = {"data", "forward", "backward", "lane sums", "reduction", "check", "update"}  # parts of a step on its work stream


def check_trace(task, path, replicas, lanes, steps):
    """Checks that each stream has its own row, in GPU time, and that the row of the work stream accounts for the steps."""
    _, rows = trace_file.read(path)
    assert set(rows) == {"%s %d" % (row, i) for row in ("replica", "work", "feed", "sums") for i in range(replicas)}, rows.keys()
    for row in rows.values():
        trace_file.tree(row)
    for i in range(replicas):
        traced = trace_file.steps_of(rows["work %d" % i])
        assert [s["args"]["step"] for s, _ in traced] == steps, traced
        for step, parts in traced:
            assert {p["name"] for p, _ in parts} == OF_A_GPU, parts
            for what in ("data", "forward", "backward"):
                assert [p["args"]["lane"] for p, _ in parts if p["name"] == what] == lanes[i]
            for p, calls in parts:
                assert bool(calls) == (p["name"] in ("forward", "backward"))
                convolutions = [c["name"] for c, _ in calls if c["cat"] == "Conv"]
                assert len(convolutions) == (3 if calls else 0), convolutions
                assert all(c["args"].get("direction", p["name"]) == p["name"] for c, _ in calls)
            ends = step["ts"] + step["dur"]
            for row in ("feed", "sums"):
                mine = [s for s in rows["%s %d" % (row, i)] if s["args"]["step"] == step["args"]["step"]]
                assert mine and all(s["ts"] + s["dur"] <= ends + trace_file.EPSILON for s in mine), (row, mine, step)
    (profile,) = task.events("profile")
    trace_file.check_profile(profile, [rows["work %d" % i] for i in range(replicas)], steps[0], len(steps), OF_A_GPU, "idle")
    assert trace_file.parts_of(profile)["idle", ""] <= 0.3 * profile["step_seconds"], profile


@test
def nccl_two_gpus_of_one_or_two_tasks_all_reduce_gradients():
    """With a trace of all tasks, of one task, or without one: NCCL's all-reduces are captured by all tasks or by none."""
    _, (c,) = run("cpu:1", **short())
    folder = workdir()
    path = os.path.join(folder, "trace.json")
    _, (g,) = run("cuda", folder=folder, args=("--trace", path, "--trace-steps", "2"), **short(8))
    near(losses(g), losses(c)[:8], "two GPUs")
    check_trace(g, path, 2, ([0, 1], [2, 3]), [4, 5])
    job, ports = digits_job(workdir(), **short()), kit.free_ports(2)
    tasks = [Task(job, kit.tf_config(ports, i), ("--devices", "cuda:0", *more), name="worker %d" % i)
             for i, more in enumerate(((), ("--trace", path)))]
    expect_codes(tasks, [0, 0])
    near(losses(tasks[0]), losses(c), "two tasks")
    check_trace(tasks[1], os.path.join(folder, "trace.worker-1.json"), 1, ([2, 3],), list(range(4, 9)))


@test
def gpu_task_killed_rejoins_and_loses_no_step():
    _, (c,) = run("cpu:1", **short(30))
    folder = workdir()
    job = digits_job(folder, **kit.merge(short(30), {"elastic": {"min_world": 1, "rejoin_seconds": 0}, "detection": {"stuck_factor": 0}}))
    gate, ports = kit.Gate(), kit.free_ports(2)
    tasks = start(job, 2, "cuda:0", env={"TRAINERD_FAULT": gate.holds_step(20)}, ports=ports, together=True)
    tasks[0].until_step(5)
    tasks[1].signal(signal.SIGKILL)
    tasks[1].wait()
    tasks[0].until_step(15)
    back = Task(job, kit.tf_config(ports, 1), ("--devices", "cuda:0"), with_faults(None, gate.fault("data.open")), "worker 1 again")
    gate.open_when_joined([tasks[0], back], ports[0], phases=("", "opening"))
    expect_codes([tasks[0], back], [0, 0])
    near(losses(tasks[0]), losses(c), "with a death")
    assert any("lanes 2 to 3" in r["message"] for r in back.events("note")), back.log()


ORDERED = {"communication": {"deterministic": True}}


def checkpoints(folder, step=12):
    """Returns the files of the last checkpoint, except the manifest, which has times."""
    path = os.path.join(folder, "run", "checkpoints", "step-%08d" % step)
    return {name: data for name, data in read_tree(path).items() if name.endswith(".safetensors")}


@test
def deterministic_sums_give_equal_bytes_on_any_number_of_gpus():
    """One, two and four GPUs of a task, and two tasks with one or two GPUs; without the key four GPUs differ."""
    job = kit.merge(short(train={"lanes": 8}), ORDERED)
    env = {"EMULATED_GPUS": "4"}
    one, (a,) = run("cuda:0", env=env, **job)
    want = checkpoints(one)
    assert {"model.safetensors", "optimizer.safetensors"} <= want.keys(), want.keys()
    for devices, n in (("cuda:0,1", 1), ("cuda:0,1,2,3", 1), ("cuda:0", 2), ("cuda:0,1", 2)):
        many, tasks = run(devices, n, env=env, **job)
        assert losses(tasks[0]) == losses(a), (devices, n)
        assert checkpoints(many) == want, (devices, n)
        assert any("along the tree over lanes" in r["message"] for r in tasks[0].events("note")), tasks[0].log()
    plain, _ = run("cuda:0,1,2,3", env=env, **kit.merge(job, {"communication": None}))
    assert checkpoints(plain) != want


@test
def deterministic_sums_along_a_lane_tree_give_equal_bytes_on_any_number_of_gpus():
    """Of six lanes three GPUs have 2, 1 and 3."""
    job = kit.merge(short(train={"lanes": 6, "lane_tree": [2, 3], "global_batch_size": 48}), ORDERED)
    env = {"EMULATED_GPUS": "3"}
    one, (a,) = run("cuda:0", env=env, **job)
    for devices, n in (("cuda:0,1", 1), ("cuda:0,1,2", 1), ("cuda:0,1,2", 2)):
        many, tasks = run(devices, n, env=env, **job)
        assert losses(tasks[0]) == losses(a) and checkpoints(many) == checkpoints(one), (devices, n)
    plain, _ = run("cuda:0", env=env, **kit.merge(job, {"train": {"lane_tree": None}}))
    assert checkpoints(plain) != checkpoints(one)


@test
def deterministic_sums_have_the_same_bytes_after_a_task_was_killed():
    """A group of four continues with three GPUs, then with four again."""
    job = kit.merge(short(30, train={"lanes": 8}), ORDERED)
    calm, _ = run("cuda:0", **job)
    folder = workdir()
    path = digits_job(folder, **kit.merge(job, {"elastic": {"min_world": 1, "rejoin_seconds": 0}, "detection": {"stuck_factor": 0}}))
    gate, ports = kit.Gate(), kit.free_ports(4)
    tasks = start(path, 4, "cuda:0", env={"TRAINERD_FAULT": gate.holds_step(20)}, ports=ports, together=True)
    tasks[0].until_step(5)
    tasks[3].signal(signal.SIGKILL)
    tasks[3].wait()
    tasks[0].until_step(12)
    back = Task(path, kit.tf_config(ports, 3), ("--devices", "cuda:0"), with_faults(None, gate.fault("data.open")), "worker 3 again")
    gate.open_when_joined([*tasks[:3], back], ports[0], phases=("", "opening"))
    expect_codes([*tasks[:3], back], [0] * 4)
    assert checkpoints(folder, 30) == checkpoints(calm, 30)


@test
def copies_to_the_gpu_and_its_idle_time_are_measured_for_advice():
    limits = {"h2d_ms": 1e-6, "device_use": 1, "data_share": 0, "window_steps": 4, "window_seconds": 0}
    job = digits_job(workdir(), **short(steps=1000000), health={"advice": limits})
    task = Task(job, args=("--devices", "cuda"))
    for kind in ("h2d_ms", "device_use"):
        task.until(lambda t: any(r["kind"] == kind for r in t.events("advice")))
        record = next(r for r in task.events("advice") if r["kind"] == kind)
        assert record["culprit"] == "GPUs of local" and record["limit"] == limits[kind], record
        assert record["value"] > 0 and (record["value"] > limits[kind]) == (kind == "h2d_ms"), record


if __name__ == "__main__":
    main()
