#!/usr/bin/python3
"""FIFOs in place of files, and signals while they are read: no unlimited wait."""
import json
import os
import signal
import subprocess
import threading

from kit import GUARD, TRAINERD, await_handler, digits_job, disturb, main, merge, test, workdir


def begin(*args):
    env = {k: v for k, v in os.environ.items() if k != "TF_CONFIG" and not k.startswith("TRAINERD_")}
    return subprocess.Popen([TRAINERD, *args], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def fifo(folder, name="pipe"):
    path = os.path.join(folder, name)
    os.mkfifo(path)
    return path


def ends(p, code, *words):
    try:
        text = p.communicate(timeout=GUARD)[1]
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
    assert p.returncode == code and all(w in text for w in words), (p.returncode, text)


@test
def fifo_without_writer_as_job_or_cluster_is_refused_by_name():
    job = digits_job(workdir())
    waiting = [begin("--job", fifo(workdir()), "--check"), begin("--job", job, "--cluster", fifo(workdir()), "--check")]
    for p in waiting:
        ends(p, 2, "/pipe'", "this FIFO received no data")


@test
def fifo_with_writer_as_job_is_read():
    folder = workdir()
    job = digits_job(folder, train={"epochs": 1})
    path = fifo(folder)

    def write():
        with open(job) as source, open(path, "w") as out:
            out.write(source.read())
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    ends(begin("--job", path, "--devices", "cpu:1"), 0)
    writer.join(GUARD)


@test
def fifo_as_data_or_model_is_refused():
    folder = workdir()
    for change in ({"data": {"train": fifo(folder, "data")}}, {"model": {"onnx": fifo(folder, "model")}}):
        job = digits_job(folder)
        with open(job) as f:
            text = merge(json.load(f), change)
        with open(job, "w") as f:
            json.dump(text, f)
        ends(begin("--job", job, "--devices", "cpu:1"), 2, "/" + os.path.basename(list(list(change.values())[0].values())[0]))


@test
def sigterm_while_the_job_is_read_ends_the_process():
    for number in (signal.SIGTERM, signal.SIGINT):
        p = begin("--job", fifo(workdir()))
        await_handler(p.pid, number)
        disturb(0.3)  # mostly the process waits for the writer of the FIFO then
        p.send_signal(number)
        ends(p, 143, "stopped before the job began")


if __name__ == "__main__":
    main()
