#!/usr/bin/python3
"""test_launchers.py: scripts/trainerd-mpirun, trainerd-pdsh and trainerd-srun with the real programs, on hosts that are
network namespaces."""
import os
import re
import shutil
import signal
import socket
import subprocess

from kit import (GUARD, ROOT, Skip, TRAINERCTL, TRAINERD, await_process, digits_job, enter_namespaces, free_ports, main,
                 need_namespaces, need_program, test, wait_until, workdir)

SLOWLY = "train.forward=delay:10@1+"
HOSTS = {"h1": "10.79.0.1", "h2": "10.79.0.2"}
BRIDGE = "10.79.0.254"
_daemons = []  # processes of this file, ended by end_daemons()
_state = {}


def job_in(folder, **train):
    return digits_job(folder, checkpoint={"directory": folder + "/ck", "every_steps": 100}, train={"deadline_seconds": 300, **train},
                      detection={"stuck_factor": 0})  # a busy machine is no reason to end


class Script:
    """One of the scripts, with its log in a file: tasks that survive it must not keep a pipe of this test open."""

    def __init__(self, name, *args, env=None, folder):
        self.log_path = os.path.join(folder, "log")
        e = {k: v for k, v in os.environ.items() if not k.startswith(("TRAINERD_", "OMPI_", "SLURM_")) and k != "TF_CONFIG"}
        e.update({"TRAINERD": TRAINERD, "TRAINERCTL": TRAINERCTL, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                  "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **(env or {})})
        self.file = open(self.log_path, "w")
        self.p = subprocess.Popen([os.path.join(ROOT, "scripts", name), *args], env=e, stdout=self.file, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, cwd=folder)
        _daemons.append(self.p)

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def until(self, text):
        wait_until(lambda: self.p.poll() is not None or re.search(text, self.log()), lambda: "%s\n%s" % (text, self.log()[-3000:]))
        assert re.search(text, self.log()), "%s did not appear; exit %s\n%s" % (text, self.p.poll(), self.log()[-3000:])

    def expect(self, code):
        got = await_process(self.p)
        assert got == code, "exit %d, expected %d\n%s" % (got, code, self.log()[-3000:])
        return self.log()


def tasks_of(job):
    """Returns the ids of the processes that train a job."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read().split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == b"trainerd" and job.encode() in words:
            found.append(int(pid))
    return found


def until_no_task_of(job):
    try:
        wait_until(lambda: not tasks_of(job), lambda: "tasks survived their launcher: %s" % tasks_of(job))
    finally:
        for pid in tasks_of(job):
            os.kill(pid, signal.SIGKILL)


def children_of(pid, name):
    """Returns the ids of the descendants of a process whose program name begins with this, or with one of these."""
    out, todo = [], [pid]
    while todo:
        parent = todo.pop()
        for child in subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(parent)], capture_output=True, text=True).stdout.splitlines():
            number, comm = child.split(None, 1)
            todo.append(int(number))
            if comm.strip().startswith(name):
                out.append(int(number))
    return out


def checkpoints(folder):
    return sorted(n for n in os.listdir(folder + "/ck") if n.startswith("step-")) if os.path.isdir(folder + "/ck") else []


def ends(script, job, folder, signum, target=None):
    """Sends a signal to the script, or to the process `target`: every task saves and ends."""
    script.until("step 30 ")
    os.kill(target or script.p.pid, signum)
    await_process(script.p)
    until_no_task_of(job)
    saved = checkpoints(folder)
    assert saved and not saved[-1].endswith("440"), (saved, script.log()[-2000:])


def secret_of(script, job, n_tasks):
    """Returns the token that every task has. No command line of this host and no line of the log contains it."""
    script.until("step 20 ")
    secrets = []
    for pid in tasks_of(job):
        with open("/proc/%d/environ" % pid, "rb") as f:
            secrets += [v.partition(b"=")[2].decode() for v in f.read().split(b"\0") if v.startswith(b"TRAINERD_TOKEN=")]
    assert len(secrets) == n_tasks and len(set(secrets)) == 1, "%d tokens in %d tasks" % (len(set(secrets)), len(secrets))
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/cmdline" % pid, "rb") as f:
                words = f.read()
        except OSError:
            continue
        assert secrets[0].encode() not in words, words.replace(secrets[0].encode(), b"TOKEN")
    assert secrets[0] not in script.log()
    return secrets[0]


# ---- mpirun ----

def mpirun(folder, *args, env=None, ports=None):
    need_program("mpirun")
    ports = ports or free_ports(2)
    job = job_in(folder)
    hosts = ["127.0.0.1:%d" % p for p in ports]
    return job, Script("trainerd-mpirun", *args, job, *hosts, "--", "--devices", "cpu:1", env=env, folder=folder)


@test
def mpirun_runs_a_task_for_each_entry_with_prefixed_lines():
    folder = workdir()
    _, script = mpirun(folder)
    log = script.expect(0)
    assert re.search(r"\[1,0\]<stderr>: ?\S+ INFO  worker 0: the job is complete", log), log[-2000:]
    assert re.search(r"\[1,1\]<stderr>: ?\S+ INFO  worker 1: the job is complete", log), log[-2000:]
    assert checkpoints(folder)[-1] == "step-00000440"


@test
def mpirun_stopped_by_a_signal_saves_and_exits_with_143():
    for signum in (signal.SIGTERM, signal.SIGINT):
        folder = workdir()
        job, script = mpirun(folder, "--no-check", env={"TRAINERD_FAULT": SLOWLY})
        ends(script, job, folder, signum)
        script.expect(143)


@test
def mpirun_or_its_script_killed_takes_the_tasks_along_after_saving():
    for victim in ("script", "mpirun"):
        folder = workdir()
        job, script = mpirun(folder, "--no-check", env={"TRAINERD_FAULT": SLOWLY})
        script.until("step 20 ")
        target = script.p.pid if victim == "script" else children_of(script.p.pid, ("mpirun", "prterun"))[0]  # 5.0: mpirun becomes prterun
        ends(script, job, folder, signal.SIGKILL, target)


@test
def mpirun_preflight_check_fails_and_no_task_starts():
    folder = workdir()
    need_program("mpirun")
    job = digits_job(folder, model={"onnx": "absent.onnx"})
    script = Script("trainerd-mpirun", job, "127.0.0.1", "127.0.0.1", folder=folder)
    log = script.expect(2)
    for rank in range(2):
        assert re.search(r"^\[1,%d\]<stderr>.*absent.onnx" % rank, log, re.M), log
    assert "the check failed with exit code 2 (see above); no task was started" in log, log
    assert not checkpoints(folder)


@test
def mpirun_failing_task_ends_the_job_with_its_exit_code():
    folder = workdir()
    _, script = mpirun(folder, "--no-check", env={"TRAINERD_FAULT": "train.forward=fail@5"})
    code = await_process(script.p)
    assert code in (2, 138), (code, script.log()[-2000:])


def matrix_in(log, n_tasks):
    """Whether the first task logged the matrix before the first generation, with a row for each task."""
    before = log[:log.index("INFO  worker 0: generation 1: ")]
    rows = re.findall(r"INFO  worker 0: worker (\d+) .*(?:us|ms) ", before)
    return rows == [str(i) for i in range(n_tasks)] and before.count("INFO  worker 0: measures %d tasks" % n_tasks) == 1


@test
def mpirun_preflight_option_measures_before_training_and_prints_the_matrix():
    folder = workdir()
    _, script = mpirun(folder, "--preflight", "120")
    log = script.expect(0)
    assert matrix_in(log, 2) and checkpoints(folder)[-1] == "step-00000440", log[:6000]


@test
def mpirun_alone_without_a_cluster_trains_once():
    """The command of the manual page of Open MPI, without any script."""
    folder = workdir()
    need_program("mpirun")
    job = job_in(folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_") and k != "TF_CONFIG"}
    port = free_ports(1)[0]
    p = subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", TRAINERD, "--job", job, "--devices", "cpu:1",
                        "--port", str(port)], env=env, capture_output=True, text=True, timeout=GUARD, stdin=subprocess.DEVNULL)
    assert p.returncode == 0 and "no cluster is given: it is formed on this host" in p.stderr, p.stderr
    assert p.stderr.count("worker 0: step 440 of 440") == 1, p.stderr
    assert "worker 1: the job is complete" in p.stderr, p.stderr


@test
def token_is_made_only_for_tasks_that_other_hosts_can_reach():
    folder = workdir()
    for program in ("mpirun", "pdsh", "srun"):  # writes the token that the tasks would get
        with open(os.path.join(folder, program), "w") as f:
            f.write("#!/bin/sh\nprintf %s \"${TRAINERD_TOKEN-none}\" >>token\n")
        os.chmod(os.path.join(folder, program), 0o755)
    plain, given = digits_job(workdir()), "a token of the user"
    with_file = digits_job(workdir(), communication={"token_file": "token"})
    with_keys = digits_job(workdir(), communication={"tls": "keys"})
    made = set()
    for args, env, expected in (
            ((plain, "127.0.0.1", "localhost:7000", "[::1]:7001"), {}, "none"),
            ((plain, "127.0.0.1", "node2"), {}, None),
            ((plain, "node1"), {}, None),
            ((plain, "node1"), {"TRAINERD_TOKEN": given}, given),
            ((plain, "node1"), {"TRAINERD_TLS": "keys"}, "none"),
            ((plain, "node1"), {"TRAINERD_INSECURE": "1"}, "none"),
            ((plain, "node1", "--", "--insecure"), {}, "none"),
            ((with_file, "node1"), {}, "none"),
            ((with_keys, "node1"), {}, "none")):
        for program in ("mpirun", "pdsh", "srun"):
            if program == "srun" and ":" in "".join(args[1:]) or program == "pdsh" and "127.0.0.1" in args:
                continue
            e = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_")}
            p = subprocess.run([os.path.join(ROOT, "scripts", "trainerd-" + program), "--no-check", *args], cwd=folder, timeout=GUARD,
                               capture_output=True, text=True, env={**e, **env, "PATH": folder + ":" + os.environ["PATH"]})
            assert p.returncode == 0, p
            with open(os.path.join(folder, "token")) as f:
                found = f.read()
            os.unlink(os.path.join(folder, "token"))
            assert found == expected if expected else re.fullmatch("[0-9a-f]{64}", found), (program, args, env, found)
            assert expected or found not in made, "the same token in two runs"
            made.add(found)


@test
def scripts_refuse_invalid_arguments():
    folder = workdir()
    for script, args, text in (
            ("trainerd-mpirun", ["job.json"], "no hosts; expected JOB HOST"),
            ("trainerd-mpirun", ["--fast", "job.json", "a"], "unknown option '--fast'"),
            ("trainerd-mpirun", ["--port", "x", "job.json", "a"], "--port: expected 1 to 65535, found 'x'"),
            ("trainerd-mpirun", ["--preflight", "1s", "job.json", "a"], "--preflight: expected seconds, found '1s'"),
            ("trainerd-mpirun", ["job.json", "a;b"], "host 'a;b': expected HOST or HOST:PORT"),
            ("trainerd-mpirun", ["--hostfile", "absent", "job.json"], "--hostfile 'absent': cannot read it"),
            ("trainerd-pdsh", ["job.json", "a", "a:2"], "host 'a' is listed twice; pdsh starts one task on each host"),
            ("trainerd-srun", ["job.json", "a:1"], "a port is not possible here; use --port N"),
            ("trainerd-srun", [], "runs the tasks of a job as one step of Slurm")):
        need_program(script.removeprefix("trainerd-"))
        p = subprocess.run([os.path.join(ROOT, "scripts", script), *args], capture_output=True, text=True, cwd=folder, timeout=GUARD)
        assert p.returncode == 2 and text in p.stderr, (script, args, p.returncode, p.stderr)


# ---- hosts that are namespaces ----

def run(*args):
    subprocess.run(args, check=True, capture_output=True, text=True)


def daemon(command, **kwargs):
    p = subprocess.Popen(command, stdin=subprocess.DEVNULL, **kwargs)
    _daemons.append(p)
    return p


def make_hosts():
    """Two network namespaces with names, behind a bridge that the launcher is connected to."""
    if "hosts" in _state:
        return
    need_namespaces("ip", "link", "add", "bridge0", "type", "bridge")
    _state["hosts"] = True
    folder = _state["folder"] = subprocess.run(["mktemp", "-d", "/tmp/trainerd-hosts-XXXXXX"], capture_output=True, text=True).stdout.strip()
    with open(folder + "/hosts", "w") as f:
        f.write("127.0.0.1 localhost\n%s launcher %s\n" % (BRIDGE, socket.gethostname()) + "".join("%s %s\n" % (a, n) for n, a in HOSTS.items()))
    run("mount", "--bind", folder + "/hosts", "/etc/hosts")
    run("ip", "addr", "add", BRIDGE + "/24", "dev", "bridge0")
    run("ip", "link", "set", "bridge0", "up")
    for name, address in HOSTS.items():
        run("ip", "netns", "add", name)
        run("ip", "link", "add", "to-" + name, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", "to-" + name, "master", "bridge0", "up")
        run("ip", "-n", name, "addr", "add", address + "/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")


def read_text(path):
    """Returns the log of a daemon; empty before it exists."""
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except FileNotFoundError:
        return ""


def on_host(name, *command):
    return ["nsenter", "--net=/run/netns/" + name, "unshare", "--uts", "sh", "-c", "hostname %s; exec \"$@\"" % name, "sh", *command]


def start_ssh():
    """An ssh server on each host, with keys of this test. Returns the options of a client."""
    need_program("pdsh", "ssh", "sshd", "ssh-keygen")
    if os.geteuid() != 0:
        raise Skip("an ssh server that accepts this user needs root")
    make_hosts()
    folder = _state["folder"]
    options = "-i %s/key -o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o LogLevel=ERROR" % folder
    if "ssh" in _state:
        return options
    _state["ssh"] = True
    os.makedirs("/run/sshd", exist_ok=True)
    for key in ("key", "host"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "%s/%s" % (folder, key))
    with open(folder + "/sshd_config", "w") as f:
        f.write("HostKey %s/host\nAuthorizedKeysFile %s/key.pub\nPermitRootLogin yes\nStrictModes no\nUsePAM no\nPidFile none\n" % (
            folder, folder))
    for name in HOSTS:
        daemon(on_host(name, need_program("sshd"), "-D", "-f", folder + "/sshd_config", "-E", folder + "/sshd-" + name))
    for name in HOSTS:
        wait_until(lambda n=name: subprocess.run(["ssh", *options.split(), n, "true"], capture_output=True).returncode == 0,
                   lambda n=name: read_text("%s/sshd-%s" % (folder, n)))
    return options


def pdsh(folder, *args, env=None):
    options = start_ssh()
    job = job_in(folder)
    wrapper = os.path.join(folder, "trainerd")  # ssh passes no variables: the fault is in the command
    with open(wrapper, "w") as f:
        f.write("#!/bin/sh\nTRAINERD_FAULT='%s' exec %s \"$@\"\n" % ((env or {}).get("TRAINERD_FAULT", ""), TRAINERD))
    os.chmod(wrapper, 0o755)
    return job, Script("trainerd-pdsh", *args, job, *HOSTS, "--", "--devices", "cpu:1",
                       env={**(env or {}), "PDSH_SSH_ARGS_APPEND": options, "TRAINERD": wrapper}, folder=folder)


@test
def pdsh_runs_a_task_on_each_host_with_prefixed_lines():
    folder = workdir()
    _, script = pdsh(folder, "--preflight", "120")
    log = script.expect(0)
    assert matrix_in(log, 2), log[:6000]
    for index, name in enumerate(HOSTS):
        assert re.search(r"^%s: \S+ INFO  worker %d: the job is complete" % (name, index), log, re.M), log[-2000:]
    assert checkpoints(folder)[-1] == "step-00000440"


@test
def pdsh_stopped_by_a_signal_saves_and_exits_with_143():
    for signum in (signal.SIGTERM, signal.SIGINT):
        folder = workdir()
        job, script = pdsh(folder, "--no-check", env={"TRAINERD_FAULT": SLOWLY})
        ends(script, job, folder, signum)
        script.expect(143)


@test
def pdsh_or_its_script_killed_takes_the_tasks_along_after_saving():
    for victim in ("script", "pdsh"):
        folder = workdir()
        job, script = pdsh(folder, "--no-check", env={"TRAINERD_FAULT": SLOWLY})
        script.until("step 20 ")
        target = script.p.pid if victim == "script" else children_of(script.p.pid, "pdsh")[0]
        ends(script, job, folder, signal.SIGKILL, target)


@test
def pdsh_passes_one_secret_to_all_tasks_in_no_command_line():
    for given in (None, "a 'token' of \\ \"the\" user $HOME"):
        folder = workdir()
        env = {"TRAINERD_FAULT": SLOWLY, **({"TRAINERD_TOKEN": given} if given else {})}
        job, script = pdsh(folder, "--no-check", env=env)
        secret = secret_of(script, job, 2)
        assert secret == given or not given and re.fullmatch("[0-9a-f]{64}", secret)
        ends(script, job, folder, signal.SIGTERM)
        script.expect(143)


@test
def pdsh_missing_program_on_a_host_fails_the_check():
    folder = workdir()
    options = start_ssh()
    script = Script("trainerd-pdsh", job_in(folder), *HOSTS, env={"PDSH_SSH_ARGS_APPEND": options, "TRAINERD": "/absent/trainerd"}, folder=folder)
    log = script.expect(2)
    assert "/absent/trainerd" in log and "no task was started" in log, log


@test
def mpirun_runs_a_task_with_one_secret_on_each_of_two_hosts():
    folder = workdir()
    options = start_ssh()
    need_program("mpirun")
    job = job_in(folder)
    args = "--mca plm_rsh_agent 'ssh %s' --mca oob_tcp_if_include 10.79.0.0/24" % options
    script = Script("trainerd-mpirun", job, *HOSTS, "--", "--devices", "cpu:1", env={"TRAINERD_MPIRUN_ARGS": args}, folder=folder)
    log = script.expect(0)
    assert "worker 1: the job is complete" in log and "the job is complete" in log, log[-2000:]
    folder = workdir()
    job = job_in(folder)
    script = Script("trainerd-mpirun", "--no-check", job, *HOSTS, "--", "--devices", "cpu:1",
                    env={"TRAINERD_MPIRUN_ARGS": args, "TRAINERD_FAULT": SLOWLY}, folder=folder)
    assert re.fullmatch("[0-9a-f]{64}", secret_of(script, job, 2))
    ends(script, job, folder, signal.SIGTERM)
    script.expect(143)


# ---- Slurm ----

SLURM = """ClusterName=test
SlurmctldHost=launcher
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
StateSaveLocation=%(folder)s/state
SlurmdSpoolDir=%(folder)s/spool-%%n
SlurmctldPidFile=%(folder)s/ctld.pid
SlurmdPidFile=%(folder)s/%%n.pid
SlurmctldLogFile=%(folder)s/ctld.log
SlurmdLogFile=%(folder)s/%%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=h1 NodeAddr=10.79.0.1 CPUs=2 State=UNKNOWN
NodeName=h2 NodeAddr=10.79.0.2 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=h1,h2 Default=YES MaxTime=INFINITE State=UP
"""


def start_slurm():
    need_program("srun", "slurmctld", "slurmd", "munged", "scancel")
    if os.geteuid() != 0:
        raise Skip("the daemons of Slurm need root")
    make_hosts()
    folder = _state["folder"]
    if "slurm" in _state:
        return
    _state["slurm"] = True
    os.makedirs("/run/munge", exist_ok=True)
    for name in ("state", "munge"):
        os.makedirs("%s/%s" % (folder, name), mode=0o700)
    with open(folder + "/munge/key", "wb") as f:
        f.write(os.urandom(64))
    os.chmod(folder + "/munge/key", 0o600)
    with open(folder + "/slurm.conf", "w") as f:
        f.write(SLURM % {"folder": folder})
    os.environ["SLURM_CONF"] = folder + "/slurm.conf"
    log = open(folder + "/slurm.out", "w")
    daemon([need_program("munged"), "--foreground", "--force", "--key-file", folder + "/munge/key", "--pid-file", folder + "/munge/pid",
            "--socket", "/run/munge/munge.socket.2", "--log-file", folder + "/munge/log", "--seed-file", folder + "/munge/seed"],
           stdout=log, stderr=log)
    wait_until(lambda: os.path.exists("/run/munge/munge.socket.2"), lambda: read_text(folder + "/munge/log") + read_text(folder + "/slurm.out"))
    daemon(["unshare", "--uts", "sh", "-c", "hostname launcher; exec \"$@\"", "sh", need_program("slurmctld"), "-D"], stdout=log, stderr=log)
    for name in HOSTS:
        daemon(on_host(name, need_program("slurmd"), "-D", "-N", name), stdout=log, stderr=log)
    wait_until(lambda: subprocess.run(["srun", "-N2", "-n2", "true"], capture_output=True, timeout=GUARD).returncode == 0,
               lambda: "".join(read_text("%s/%s" % (folder, n)) for n in ("slurm.out", "ctld.log", "h1.log", "h2.log"))[-4000:])


def srun(folder, *args, env=None):
    start_slurm()
    job = job_in(folder)
    return job, Script("trainerd-srun", *args, "--", "--devices", "cpu:1", env={"SLURM_CONF": os.environ["SLURM_CONF"], **(env or {})},
                       folder=folder)


@test
def srun_alone_without_a_cluster_trains_once():
    start_slurm()
    folder = workdir()
    job = job_in(folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRAINERD_") and k != "TF_CONFIG"}
    env["TRAINERD_TOKEN"] = "a token of this test"  # the hosts reach each other
    p = subprocess.run(["srun", "-n2", "-l", TRAINERD, "--job", job, "--devices", "cpu:1"], env=env, capture_output=True, text=True,
                       timeout=GUARD, stdin=subprocess.DEVNULL)
    assert p.returncode == 0 and "it is formed from the Slurm step (SLURM_STEP_NUM_TASKS=2" in p.stderr, p.stderr
    assert p.stderr.count("step 440 of 440") == 1 and "worker 1: the job is complete" in p.stderr, p.stderr


@test
def srun_block_and_cyclic_distributions_train_with_a_chosen_port():
    for distribution, second in (("block", "h1:7001"), ("cyclic", "h2:7000")):
        folder = workdir()
        start_slurm()
        _, script = srun(folder, "-n", "4", "--distribution", distribution, "--port", "7000", "--preflight", "120", job_in(folder), *HOSTS,
                         env={"TRAINERD_INSECURE": "1"})  # the warning about it names the control port
        log = script.expect(0)
        assert matrix_in(log, 4), log[:6000]
        assert re.search(r"^[0-3]: \S+ INFO  worker 3: the job is complete", log, re.M), log[-3000:]
        assert re.search(r"^1: .* control port %s: " % second, log, re.M), log[:3000]


@test
def srun_stopped_by_a_signal_saves_with_one_secret_and_exits_with_143():
    folder = workdir()
    start_slurm()
    job, script = srun(folder, "--no-check", job_in(folder), *HOSTS, env={"TRAINERD_FAULT": SLOWLY})
    assert re.fullmatch("[0-9a-f]{64}", secret_of(script, job, 2))
    ends(script, job, folder, signal.SIGTERM)
    script.expect(143)


@test
def slurm_step_daemon_killed_takes_its_task_along_after_saving():
    folder = workdir()
    start_slurm()
    job, script = srun(folder, "--no-check", "-n", "2", job_in(folder), "h1", env={"TRAINERD_FAULT": SLOWLY})
    script.until("step 20 ")
    with open("/proc/%d/stat" % tasks_of(job)[0]) as f:
        parent = int(f.read().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    until_no_task_of(job)  # srun itself waits for its step daemon for ever
    assert checkpoints(folder) and not checkpoints(folder)[-1].endswith("440"), script.log()[-2000:]
    script.p.kill()


def end_daemons():
    for p in reversed(_daemons):
        if p.poll() is None:
            p.terminate()
    for p in _daemons:
        try:
            p.wait(GUARD)
        except subprocess.TimeoutExpired:
            p.kill()
            p.wait()
    shutil.rmtree(_state.get("folder", "/nonexistent"), ignore_errors=True)


if __name__ == "__main__":
    enter_namespaces()
    try:
        main()
    finally:
        end_daemons()
