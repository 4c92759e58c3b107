#!/usr/bin/env python3
"""test_parent.py: a task ends with its launcher. The launcher is a copy of sh whose name is that of the program."""
import os
import shutil
import signal

from kit import Task, digits_job, expect_codes, main, test, wait_until, workdir

SLOWLY = {"TRAINERD_FAULT": "train.forward=delay:10@1+"}
RUNS = '"$@" & echo $! >"$PID_FILE"; wait $!'


def below(program, variable, shell=RUNS, inner=()):
    """Starts a task whose parent is a process with this name. Returns it, the folder and a function that gives its id."""
    folder = workdir()
    launcher = os.path.join(folder, program)
    shutil.copy("/bin/sh", launcher)
    job = digits_job(folder, checkpoint={"directory": folder + "/ck", "every_steps": 0})
    task = Task(job, args=("--devices", "cpu:1", "--cluster", "none"), env={**SLOWLY, variable: "0", "PID_FILE": folder + "/pid"},
                prefix=(launcher, "-c", shell, "sh", *inner))
    task.until_step(20)
    with open(folder + "/pid") as f:
        return task, folder, int(f.read())


def is_alive(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_gone(pid):
    wait_until(lambda: not is_alive(pid), lambda: "the task survived")


def trains_on(task):
    """Waits until the task, which looks for its launcher every second, has trained for longer, without its parent."""
    at = max(task.steps())
    wait_until(lambda: max(task.steps()) >= at + 150, task.log)


@test
def launcher_killed_task_saves_and_ends():
    for program, variable in (("mpirun", "OMPI_COMM_WORLD_RANK"), ("orted", "OMPI_COMM_WORLD_RANK"), ("prted", "PMIX_RANK"),
                              ("slurmstepd", "SLURM_PROCID"), ("hydra_pmi_proxy", "PMI_RANK")):
        task, folder, pid = below(program, variable)
        task.p.kill()
        until_gone(pid)
        task.wait()
        said = task.events("launcher")[0]["message"]
        assert said.startswith("%s (process %d), which started this task, has ended" % (program, task.p.pid)), said
        assert task.final_message() == "exit 143: stopped, state saved", task.log()
        assert any(n.startswith("step-") for n in os.listdir(folder + "/ck")), os.listdir(folder + "/ck")


@test
def launcher_behind_a_shell_is_found():
    task, _, pid = below("mpirun", "OMPI_COMM_WORLD_RANK", shell='sh -c \'"$@" & echo $! >"$PID_FILE"; wait $!\' sh "$@"; true')
    task.p.kill()
    until_gone(pid)
    task.wait()
    assert task.events("launcher"), task.log()


@test
def parent_that_is_no_launcher_may_end():
    for program, variable in (("supervisor", "OMPI_COMM_WORLD_RANK"), ("mpirun", "SOME_VARIABLE")):
        task, _, pid = below(program, variable)
        task.p.kill()
        trains_on(task)
        try:
            assert is_alive(pid) and not task.events("launcher"), task.log()
        finally:
            os.kill(pid, signal.SIGTERM)
        until_gone(pid)


@test
def task_below_ssh_ends_unless_it_ignores_the_hangup():
    for inner, ends in ((("setsid",), True), (("setsid", "nohup"), False)):
        task, _, pid = below("sshd", "SSH_CONNECTION", inner=inner)
        task.p.kill()
        try:
            if ends:
                wait_until(lambda: task.events("launcher"), task.log)
            else:
                trains_on(task)
                assert not task.events("launcher"), task.log()
        finally:
            if is_alive(pid):
                os.kill(pid, signal.SIGTERM)
        until_gone(pid)


@test
def stop_signal_doubled_by_a_launcher_counts_once():
    task, _, pid = below("mpirun", "OMPI_COMM_WORLD_RANK")
    for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        os.kill(pid, signum)
    expect_codes([task], [143])
    assert task.final_message() == "exit 143: stopped, state saved", task.log()


if __name__ == "__main__":
    main()
