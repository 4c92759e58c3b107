#!/usr/bin/python3
"""Groups of tasks on emulated GPUs (test/cuda): exchange of devices and versions, refusals, sensors, and a library that
does not return."""
# needs: emulated
import json
import os
import subprocess
import urllib.request

import kit
from kit import BUILD, GUARD, TRAINERCTL, Task, digits_job, expect_codes, finish, free_ports, main, start, test, workdir

kit.TRAINERD = os.path.join(BUILD, "emulated", "trainerd")
NVML = {"LD_LIBRARY_PATH": os.path.join(BUILD, "emulated")}
SHORT = {"train": {"epochs": None, "steps": 20, "lanes": 2, "log_every_steps": 1}, "checkpoint": None,
         "summary": None, "export": None}


def check(devices, job=None, **env):
    p = subprocess.run([kit.TRAINERD, "--check", "--devices", devices, *(("--job", job) if job else ())],
                       env=dict(os.environ, **env), capture_output=True, text=True, timeout=GUARD)
    return p.returncode, p.stdout, p.stderr


@test
def check_command_prints_gpus_and_versions():
    code, out, said = check("cuda")
    plan = json.loads(out)
    assert code == 0 and plan["nccl"] == "2.28.9" and plan["kernels"].startswith("cuda 13.0, driver for 13.0, "), said
    assert [d["name"] for d in plan["devices"]] == ["cuda:0", "cuda:1"], plan
    assert plan["devices"][1]["gpu"] == "emulated GPU" and plan["devices"][1]["compute_capability"] == "9.0", plan
    assert plan["devices"][0]["uuid"] != plan["devices"][1]["uuid"]


@test
def gpus_missing_or_unusable_are_refused_with_versions():
    rows = (("cuda", {"EMULATED_DRIVER": "0"}, "no NVIDIA driver (plugin of CUDA 13.0)"),
            ("cuda", {"EMULATED_DRIVER": "12080"}, "driver is for CUDA 12.8, this plugin needs one for CUDA 13.0"),
            ("cuda", {"EMULATED_GPUS": "0"}, "lists no GPU (driver for CUDA 13.0, plugin of CUDA 13.0)"),
            ("cuda:0,5", {}, "there is no GPU 5, the driver lists 2, the first is emulated GPU (driver for CUDA 13.0"),
            ("cuda:1", {"EMULATED_CAPABILITY": "75"}, "has compute capability 7.5, the plugin has code for 8.0 and later"))
    for devices, env, words in rows:
        code, _, said = check(devices, **env)
        assert code != 0 and words in said, (devices, env, said)


@test
def communication_kind_must_match_the_devices():
    for asked, devices, words in (("cpu", "cuda", "cpu sums up between CPUs, this task has GPUs"),
                                  ("nccl", "cpu:1", "nccl needs CUDA devices")):
        job = digits_job(workdir(), **kit.merge(SHORT, {"communication": {"implementation": asked}}))
        code, _, said = check(devices, job)
        assert code == 2 and "/communication/implementation: " + words in said, said


def refused(devices, envs, words, changes=SHORT):
    """Starts two tasks that do not match; one of them is refused when it joins, and the message states both values."""
    job = digits_job(workdir(), **kit.merge(changes, {"train": {"deadline_seconds": 4}}))
    ports = free_ports(2)
    tasks = [Task(job, kit.tf_config(ports, i), ("--devices", devices[i]), envs[i], "worker %d" % i) for i in range(2)]
    codes = finish(tasks)
    said = "\n".join(t.log() for t in tasks)
    assert 2 in codes and 0 not in codes and words in said, (codes, said)


@test
def tasks_with_different_devices_or_nccl_are_refused_at_join():
    refused(("cuda:0", "cpu:1"), ({}, {}), "the kind of device differs: it has 'cpu', the coordinator has 'cuda'")
    refused(("cuda:0", "cuda:0"), ({}, {"EMULATED_NCCL_VERSION": "22703"}),
            "the version of NCCL differs: it has '2.27.3', the coordinator has '2.28.9'")


@test
def tasks_that_share_a_gpu_are_refused_by_name():
    same = {"NCCL_HOSTID": "one and the same"}
    refused(("cuda:1", "cuda:1"), (same, same), "worker 0 and worker 1 of this host use one GPU, cuda:1 of this task; "
            "expected a separate GPU for each")


@test
def deterministic_job_needs_gpus_of_one_model():
    names = {"EMULATED_NAMES": "NVIDIA H100,NVIDIA H200"}
    ordered = kit.merge(SHORT, {"communication": {"deterministic": True}})
    job = digits_job(workdir(), **ordered)
    code, _, said = check("cuda", job, **names)
    assert code == 2 and ("/communication/deterministic: found true, but cuda:0 is NVIDIA H100 and cuda:1 NVIDIA H200" in said
                          and "write false" in said), said
    for devices, changes in (("cuda:1", ordered), ("cuda", SHORT), ("cpu:2", ordered)):
        code, out, said = check(devices, digits_job(workdir(), **changes), **names)
        assert code == 0, (devices, said)
        assert ("NVIDIA H200" in json.loads(out)["kernels"]) == (devices == "cuda:1"), out
    refused(("cuda:0", "cuda:0"), ({"EMULATED_NAMES": "NVIDIA H100"}, {"EMULATED_NAMES": "NVIDIA H200"}),
            "kernel library and instruction set differs: it has '", ordered)


@test
def nccl_rank_missing_wait_ends_at_the_deadline():
    job = digits_job(workdir(), **kit.merge(SHORT, {"train": {"deadline_seconds": 2}}))
    ports = free_ports(2)
    tasks = [Task(job, kit.tf_config(ports, i), ("--devices", "cuda:0"), env, "worker %d" % i)
             for i, env in enumerate(({}, {"EMULATED_NCCL_FAULT": "init"}))]
    codes = finish(tasks)
    assert codes == [138, 138], codes
    for t in tasks:
        assert t.p.returncode == 138
        for words in ("no step for ", "connect the GPUs (NCCL): the other GPUs did not respond within 2.5 s"):
            assert words in t.final_message(), t.log()


@test
def nccl_error_ends_the_generation_and_the_job_continues():
    job = digits_job(workdir(), **dict(SHORT, train=dict(SHORT["train"], steps=6, eval_every_epochs=None),
                                       data={"eval": None}, model={"metrics": None},
                                       optimizer={"schedule": {"warmup_steps": 2}}))
    ports = free_ports(2)
    tasks = [Task(job, kit.tf_config(ports, i), ("--devices", "cuda:0"), env, "worker %d" % i)
             for i, env in enumerate(({}, {"EMULATED_NCCL_FAULT": "error:4"}))]
    expect_codes(tasks, [0, 0])
    # the first message is that of the task with the error or that of the task that loses it
    assert any("step 4: sum up the gradients (NCCL)" in r["message"] for r in tasks[0].events("view")), tasks[0].log()
    assert sorted(tasks[0].steps()) == list(range(1, 7)) and len(tasks[0].events("step")) == 6


@test
def gpu_failed_or_hung_is_named_and_ends_the_process():
    for fault, words in (("launch@220", "GPU work: an illegal memory access was encountered"),
                         ("hang@220", "the GPU does not come to rest within 2.0 s")):
        t = Task(digits_job(workdir(), **kit.merge(SHORT, {"train": {"deadline_seconds": 2}})), args=("--devices", "cuda"),
                 env={"EMULATED_FAULT": fault})
        assert t.wait() == 138, t.log()
        said = t.events("end")[0]["message"]
        assert words in said and (": cuda:0: " in said or ": cuda:1: " in said), said


@test
def gpu_sensors_are_in_status_http_and_metrics():
    job = digits_job(workdir(), **kit.merge(SHORT, {"train": {"steps": 1000000}}))
    ports, (web,) = free_ports(1), free_ports(1)
    t = Task(job, kit.tf_config(ports, 0), ("--devices", "cuda", "--metrics", "127.0.0.1:%d" % web),
             dict(NVML, EMULATED_NVML="hot"))
    t.until_step(2)
    get = lambda path: urllib.request.urlopen("http://127.0.0.1:%d%s" % (web, path), timeout=GUARD).read().decode()
    label = '{gpu="1",name="emulated GPU",uuid="GPU-656d756c-6174-6564-0000-000000000001"} '
    metrics = get("/metrics")
    for name, value in (("utilization_ratio", "0.91"), ("memory_used_bytes", "1073741825"),
                        ("temperature_celsius", "61"), ("power_watts", "513.5"), ("ecc_uncorrected_errors", "1"),
                        ("sm_clock_hertz", "1979000000"), ("throttled", "1")):
        assert "trainerd_gpu_" + name + label + value + "\n" in metrics, (name, metrics)
    idle = float(metrics.split("trainerd_device_idle_ratio" + label)[1].split()[0])
    status = json.loads(get("/status"))["gpus"][1]
    assert 0 <= idle < 1 and 0 <= status["idle"] < 1, (idle, status)
    assert status["throttled"] == "power cap, software thermal"
    address = "127.0.0.1:%d" % ports[0]
    ctl = lambda *args: subprocess.run([TRAINERCTL, "status", *args, address], capture_output=True, text=True, timeout=GUARD).stdout
    kit.wait_until(lambda: "idle" in json.loads(ctl("--json"))["gpus"][0])  # a status may be up to 0.1 s old
    gpu = json.loads(ctl("--json"))["gpus"][0]
    assert gpu["power_watts"] == 512.5 and 0 <= gpu["idle"] < 1, gpu
    said = ctl()
    assert "GPUs        cuda:0 emulated GPU, 90 % busy, " in said and " % of a step without work, 1.0 of 2.0 GiB, 60 C" in said, said
    t.kill()


@test
def nccl_abort_that_hangs_ends_the_process_with_138():
    job = digits_job(workdir(), **kit.merge(SHORT, {"train": {"steps": 1000000}}))
    tasks = start(job, 2, "cuda:0", env={"EMULATED_NCCL_FAULT": "abort"})
    tasks[0].until_step(2)
    tasks[1].kill()
    code = tasks[0].wait()
    assert code == 138, (code, tasks[0].log())


if __name__ == "__main__":
    main()
