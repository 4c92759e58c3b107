#!/usr/bin/python3
"""Tasks with the variables of torchrun: rank 0 collects the addresses at MASTER_ADDR and MASTER_PORT. TORCHRUN=PATH names the real
torchrun of PyPI for the last tests, which the nightly ring has; else that of `scripts/setup bench`."""
import os
import re
import signal
import subprocess

from kit import GUARD, ROOT, TOKEN, TRAINERD, Skip, Task, digits_job, expect_codes, free_ports, main, test, workdir

STEPS = {"epochs": None, "steps": 40, "lanes": 2, "log_every_steps": 1}


def variables(rank, size, port, **more):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}


def ports_after(port, n):
    """Whether the next n ports can be used too."""
    import socket
    held = []
    try:
        for p in range(port + 1, port + 1 + n):
            s = socket.socket()
            held.append(s)
            s.bind(("127.0.0.1", p))
    except OSError:
        return False
    finally:
        for s in held:
            s.close()
    return True


def free_master(n=3):
    while True:
        port = free_ports(1)[0]
        if ports_after(port, n):
            return port


def task(job, rank, size, port, **env):
    return Task(job, None, ("--devices", "cpu:1"), variables(rank, size, port, **env), "worker %d" % rank)


@test
def tasks_that_know_the_address_of_rank_0_meet_there_and_train():
    folder, port = workdir(), free_master()
    job = digits_job(folder, train={**STEPS, "lanes": 3, "global_batch_size": 66, "deadline_seconds": 600})
    tasks = [task(job, r, 3, port, TRAINERD_TOKEN=TOKEN) for r in (1, 2)]
    for t in tasks:  # rank 0 is late
        t.until(lambda t: t.events("cluster"))
    tasks.insert(0, task(job, 0, 3, port, TRAINERD_TOKEN=TOKEN))
    expect_codes(tasks, [0, 0, 0])
    for r, t in enumerate(tasks):
        assert "worker %d of 3 (cluster from MASTER_ADDR)" % r in t.events("plan")[0]["message"], t.log()
    again = [task(job, r, 3, port, TRAINERD_TOKEN=TOKEN) for r in range(3)]  # the job is complete: rank 0 ends at once
    expect_codes(again, [0, 0, 0])


@test
def task_that_is_killed_and_starts_again_gets_the_addresses_again():
    folder, port = workdir(), free_master()
    job = digits_job(folder, train={**STEPS, "steps": 200, "deadline_seconds": 600})
    slowly = {"TRAINERD_FAULT": "train.forward=delay:5@1+"}
    tasks = [task(job, r, 2, port, **slowly) for r in (0, 1)]
    tasks[1].until(lambda t: t.events("view"))
    tasks[0].until_step(3)
    tasks[1].signal(signal.SIGKILL)
    tasks[1].wait()
    tasks[1] = task(job, 1, 2, port)
    expect_codes(tasks, [0, 0])
    assert "newest_step" in tasks[1].events("view")[0] and tasks[1].events("view")[0]["newest_step"] >= 2, tasks[1].log()


@test
def tasks_that_cannot_meet_end_with_the_reason():
    job = digits_job(workdir(), train={**STEPS, "deadline_seconds": 2})
    for first, second, codes, texts in (
            ({"WORLD_SIZE": "3"}, {"WORLD_SIZE": "3"}, [138, 138],
             [r"port \d+ for 2 s \(train.deadline_seconds\): 1 of 3 tasks did not come: rank 2", "rank 0 waits for other tasks|connect: "]),
            ({}, {"WORLD_SIZE": "3"}, [138, 2], ["rank 1", "WORLD_SIZE is 3 at rank 1 and 2 at rank 0"]),
            ({"TRAINERD_TOKEN": TOKEN}, {"TRAINERD_TOKEN": TOKEN + "x"}, [138, 138], ["rank 1", "another token: compare TRAINERD_TOKEN|connect: "]),
            ({"RANK": "2"}, {"MASTER_PORT": "0"}, [2, 2], ["RANK='2': expected a number below WORLD_SIZE", "MASTER_PORT='0': expected a port"])):
        port = free_master()
        tasks = [task(job, 0, 2, port, **first), task(job, 1, 2, port, **second)]
        expect_codes(tasks, codes)
        for t, text in zip(tasks, texts):
            assert re.search(text, t.log()), t.log()


@test
def ranks_of_one_host_form_a_cluster_after_the_master_port():
    job, port = digits_job(workdir(), train=STEPS), free_master()
    tasks = [task(job, r, 2, port, LOCAL_WORLD_SIZE="2") for r in (0, 1)]
    expect_codes(tasks, [0, 0])
    assert "with the ports from %d, because all tasks of torchrun are here" % (port + 1) in tasks[0].events("cluster")[0]["message"], tasks[0].log()


def torchrun(*args, **env):
    """Starts the real torchrun."""
    path = os.environ.get("TORCHRUN", os.path.join(ROOT, "build", "venv-bench", "bin", "torchrun"))
    if not os.path.exists(path):
        raise Skip("%s does not exist; scripts/setup bench creates it" % path)
    e = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_") and k != "TF_CONFIG"}
    return subprocess.Popen([path, *args], env={**e, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@test
def real_torchrun_on_one_host_trains_once():
    job = digits_job(workdir(), train=STEPS)
    p = torchrun("--standalone", "--nproc-per-node", "2", "--no-python", TRAINERD, "--job", job, "--devices", "cpu:1")
    log = p.communicate(timeout=GUARD)[0]
    assert p.returncode == 0 and "all tasks of torchrun are here" in log and log.count("step 40 of 40") == 1, log[-3000:]


@test
def real_torchrun_on_two_nodes_trains_once():
    job, port = digits_job(workdir(), train={**STEPS, "lanes": 4}), free_master(6)
    nodes = [torchrun("--nnodes", "2", "--node-rank", str(i), "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port),
                      "--no-python", "sh", "-c", "exec %s --job %s --devices cpu:1 --port %d" % (TRAINERD, job, port + 3 + i)) for i in (0, 1)]
    logs = [p.communicate(timeout=GUARD)[0] for p in nodes]
    assert [p.returncode for p in nodes] == [0, 0] and "cluster from MASTER_ADDR" in logs[0], "\n".join(logs)[-4000:]
    assert "".join(logs).count("step 40 of 40") == 1, "\n".join(logs)[-4000:]


if __name__ == "__main__":
    main()
