#!/usr/bin/python3
"""SIGTERM in every state of a task, with real processes: the task soon ends with 143 and logs whether its state was saved;
the other tasks continue."""
# san: yes
import os
import signal
import subprocess

from kit import (GUARD, Gate, TRAINERCTL, TRAINERD, Task, await_process, digits_job, expect_codes, free_ports, have_joined, main,
                 start, test, tf_config, wait_until, workdir)

SLOWLY = "train.forward=delay:3@1+"
LONG = {"epochs": 100000, "log_every_steps": 10}


def one_of(ports, index, job, fault=""):
    return Task(job, tf_config(ports, index), ("--devices", "cpu:1"), {"TRAINERD_FAULT": fault} if fault else None,
                "worker %d" % index)


def has_open(pid, text):
    """Whether a process has opened a file whose path contains `text`."""
    folder = "/proc/%d/fd" % pid
    try:
        return any(text in os.readlink(os.path.join(folder, n)) for n in os.listdir(folder))
    except OSError:  # a file was closed meanwhile
        return False


def ctl(*args):
    return subprocess.run([TRAINERCTL, *args], capture_output=True, text=True, timeout=GUARD)


@test
def sigterm_while_model_and_data_are_opened_ends_the_task():
    job = digits_job(workdir(), train=LONG)
    alone = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "data.read=hang"})
    wait_until(lambda: has_open(alone.p.pid, ".tfrecord"))
    alone.signal(signal.SIGTERM)
    expect_codes([alone], [143])
    assert "stopped before the first step" in alone.final_message()


@test
def sigterm_while_others_wait_for_the_data_of_the_leader_ends_the_task():
    ports = free_ports(2)
    job = digits_job(workdir(), train=LONG)
    leader = one_of(ports, 0, job, "data.read=hang")
    other = one_of(ports, 1, job)
    wait_until(lambda: has_open(leader.p.pid, ".tfrecord") and have_joined(ports[0]))
    leader.signal(signal.SIGTERM)
    expect_codes([leader], [143])
    other.signal(signal.SIGTERM)
    expect_codes([other], [143])


@test
def stop_command_while_the_leader_opens_its_data_ends_all_tasks():
    ports = free_ports(2)
    job = digits_job(workdir(), train=LONG)
    leader = one_of(ports, 0, job, "data.read=hang")
    other = one_of(ports, 1, job)
    wait_until(lambda: has_open(leader.p.pid, ".tfrecord") and have_joined(ports[0]))
    r = ctl("stop", "127.0.0.1:%d" % ports[1])
    assert r.returncode == 0, r.stderr
    expect_codes([leader, other], [143, 143])


@test
def sigterm_before_joining_ends_the_task():
    ports = free_ports(2)
    job = digits_job(workdir(), train=LONG)
    for index in range(2):
        task = one_of(ports, index, job)
        task.until(lambda t: t.events("group"))
        task.signal(signal.SIGTERM)
        expect_codes([task], [143])
        assert "stopped before the first step" in task.final_message()
    task = one_of(ports, 0, job)
    task.signal(signal.SIGTERM)  # as early as possible
    assert task.wait() in (143, -signal.SIGTERM)


@test
def sigterm_while_the_state_is_transferred_ends_the_task():
    for who in range(2):
        ports = free_ports(2)
        folder = workdir()
        job = digits_job(folder, train=LONG, elastic={"min_world": 1, "rejoin_seconds": 1})
        gate = Gate()
        first = one_of(ports, 0, job, SLOWLY + "," + gate.fault("train.state_send"))
        first.until_step(10)
        second = one_of(ports, 1, job, SLOWLY)
        second.until(lambda t: any(r.get("message") == "state" for r in t.events("phase")) or t.events("view"))
        leaver, other = (first, second) if who == 0 else (second, first)
        leaver.signal(signal.SIGTERM)
        leaver.until(lambda t: t.events("signal"))
        gate.open()
        expect_codes([leaver], [143])
        at = max(other.steps() or {0: 0})
        other.until_step(at + 20)
        other.signal(signal.SIGTERM)
        expect_codes([other], [143])


@test
def sigterm_while_waiting_for_the_lease_ends_the_task():
    job = digits_job(workdir(), train=LONG, elastic={"min_world": 1, "rejoin_seconds": 1})
    tasks = start(job, 2, env={"TRAINERD_FAULT": SLOWLY})
    tasks[0].until_step(20)
    tasks[0].signal(signal.SIGSTOP)
    tasks[1].until(lambda t: "was lost" in t.log())
    tasks[1].signal(signal.SIGTERM)
    expect_codes([tasks[1]], [143])
    assert "state saved" in tasks[1].final_message(), tasks[1].log()
    tasks[0].signal(signal.SIGCONT)
    tasks[0].until_step(max(tasks[0].steps()) + 50)
    tasks[0].signal(signal.SIGTERM)
    expect_codes([tasks[0]], [143])


@test
def sigterm_while_waiting_for_a_lost_task_ends_the_task():
    job = digits_job(workdir(), train=LONG)
    tasks = start(job, 2, env={"TRAINERD_FAULT": SLOWLY})
    tasks[0].until_step(20)
    tasks[1].kill()
    tasks[0].until(lambda t: "was lost" in t.log())
    tasks[0].signal(signal.SIGTERM)
    expect_codes([tasks[0]], [143])
    assert "state saved" in tasks[0].final_message()


@test
def sigterm_repeated_while_a_save_hangs_ends_the_task_at_once():
    job = digits_job(workdir(), train={**LONG, "grace_seconds": 60}, checkpoint={"every_steps": 0, "every_seconds": 0})
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": SLOWLY + ",ckpt.sync=hang"})
    task.until_step(20)
    task.signal(signal.SIGTERM)
    task.until(lambda t: t.events("signal"))
    wait_until(lambda: has_open(task.p.pid, "/run/checkpoints/"))  # the save, which hangs

    def is_repeated():  # signals within a second count as one
        task.signal(signal.SIGTERM)
        return len(task.events("signal")) > 1
    wait_until(is_repeated, explain=task.log)
    expect_codes([task], [138])
    assert "second signal" in task.final_message()


@test
def sigterm_of_timeout_to_the_process_and_its_group_saves_the_state():
    job = digits_job(workdir(), train=LONG, checkpoint={"every_steps": 0, "every_seconds": 0})
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": SLOWLY}, prefix=("timeout", "600"))
    task.until_step(20)
    task.signal(signal.SIGTERM)  # timeout passes it on, as at its limit
    expect_codes([task], [143])
    assert task.final_message() == "exit 143: stopped, state saved", task.log()


@test
def signal_of_a_batch_system_saves_and_ends_the_task():
    for signum in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
        job = digits_job(workdir(), train=LONG, checkpoint={"every_steps": 0, "every_seconds": 0})
        task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": SLOWLY})
        task.until_step(5)
        task.signal(signal.SIGXFSZ)  # ignored: the write that it belongs to fails
        task.signal(signum)
        expect_codes([task], [143])
        assert task.final_message() == "exit 143: stopped, state saved", task.log()
        assert signum.name in task.events("signal")[0]["message"], task.log()


@test
def sigusr1_while_model_and_data_are_opened_ends_the_task():
    alone = Task(digits_job(workdir(), train=LONG), args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "data.read=hang"})
    wait_until(lambda: has_open(alone.p.pid, ".tfrecord"))
    alone.signal(signal.SIGUSR1)
    expect_codes([alone], [143])


@test
def sigusr1_before_sigterm_is_no_first_of_two_signals():
    gate = Gate()
    job = digits_job(workdir(), train={**LONG, "log_every_steps": 1, "grace_seconds": 60}, checkpoint={"every_steps": 0, "every_seconds": 0})
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": SLOWLY + "," + gate.fault("ckpt.sync")})
    task.until_step(3)
    for n, signum in enumerate((signal.SIGUSR1, signal.SIGTERM)):
        task.signal(signal.SIGUSR1)
        task.signal(signum)
        task.until(lambda t: len(t.events("signal")) > n)
    gate.open()
    expect_codes([task], [143])
    assert task.final_message() == "exit 143: stopped, state saved", task.log()


@test
def usr_signals_ignored_by_the_flag_do_not_end_the_task():
    job = digits_job(workdir(), train=LONG, checkpoint={"every_steps": 0, "every_seconds": 0})
    task = Task(job, args=("--devices", "cpu:1", "--usr-signals", "ignore"), env={"TRAINERD_FAULT": SLOWLY})
    task.until_step(5)
    task.signal(signal.SIGUSR1)
    task.signal(signal.SIGUSR2)
    task.until_step(max(task.steps()) + 20)
    task.signal(signal.SIGTERM)
    expect_codes([task], [143])
    assert [r["message"].split(":")[0] for r in task.events("signal")] == ["SIGTERM"], task.log()


@test
def sigterm_after_the_final_message_keeps_the_exit_code():
    job = digits_job(workdir(), train={"epochs": 2, "log_every_steps": 1})
    task = Task(job, args=("--devices", "cpu:1"), env={"TRAINERD_FAULT": "fs.write=delay:50@1+"})
    task.until(lambda t: t.events("end"))
    wait_until(lambda: task.p.poll() is not None or task.signal(signal.SIGTERM))
    expect_codes([task], [0])


@test
def sigterm_during_check_ends_the_command():
    job = digits_job(workdir())
    for signum in (signal.SIGINT, signal.SIGTERM):
        p = subprocess.Popen([TRAINERD, "--job", job, "--check"], env={**os.environ, "TRAINERD_FAULT": "data.read=hang"},
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: has_open(p.pid, ".tfrecord"))  # the check reads the data, where it hangs
        p.send_signal(signum)
        try:
            assert await_process(p) == -signum
        finally:
            p.kill()
            p.wait()


if __name__ == "__main__":
    main()
