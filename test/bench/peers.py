"""peers.py - the peers of the comparison: PyTorch with Gloo, Open MPI, TensorFlow. Their processes sleep between two requests, so
that rounds can alternate with those of trainerd."""
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH_PEER = os.path.join(HERE, "torch_peer.py")
TORCH_ELASTIC = os.path.join(HERE, "torch_elastic.py")
OWN_PYTHON = os.path.join(HERE, "..", "..", "build", "venv-bench", "bin", "python")  # created by scripts/setup bench
TENSORFLOW_PYTHON = os.path.join(HERE, "..", "..", "build", "venv-bench-tensorflow", "bin", "python")
TENSORFLOW_PS = os.path.join(HERE, "tensorflow_ps.py")
DEBIAN_PYTHON = "/usr/bin/python3"
START_SECONDS, TENSORFLOW_SECONDS, ANSWER_SECONDS = 120, 300, 600  # the first answer includes torch.compile


def find_python():
    """Returns TRAINERD_BENCH_PYTHON if it is set, else the Python of the pinned PyTorch, else Debian's, whose PyTorch is
    years older."""
    own = os.environ.get("TRAINERD_BENCH_PYTHON", OWN_PYTHON)
    return own if os.access(own, os.X_OK) else DEBIAN_PYTHON


PYTHON = find_python()


class Unavailable(Exception):
    """The reason why a side cannot be measured."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Process:
    """A child process that receives requests and sends answers as lines; every wait has a limit."""

    def __init__(self, name, cmd, env=None):
        self.name, self.rest = name, b""
        self.errors = tempfile.TemporaryFile()
        self.p = subprocess.Popen(cmd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=self.errors, bufsize=0)

    def ask(self, text):
        try:
            self.p.stdin.write(text.encode() + b"\n")
        except BrokenPipeError:
            raise self.trouble("ended")

    def line(self, seconds):
        end = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.p.stdout], [], [], left)[0]:
                raise self.trouble("no answer within %d s" % seconds)
            got = os.read(self.p.stdout.fileno(), 65536)
            if not got:
                raise self.trouble("ended")
            self.rest += got
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode()

    def trouble(self, what):
        self.close()
        self.errors.seek(0)
        last = [t for t in self.errors.read().decode("utf-8", "replace").splitlines() if t.strip()][-1:]
        return Unavailable("%s: %s%s" % (self.name, what, ": " + last[0].strip()[:200] if last else ""))

    def close(self):
        """Ends the process by closing its input, then by SIGKILL."""
        if self.p.stdin and not self.p.stdin.closed:
            self.p.stdin.close()
        try:
            self.p.wait(5)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        self.p.stdout.close()


def start_torch(world, *arguments, threads=1):
    """Starts `world` PyTorch processes that connect over loopback; see torch_peer.py."""
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), OMP_NUM_THREADS=str(threads),
               GLOO_SOCKET_IFNAME="lo", WORLD_SIZE=str(world))
    return [Process("torch_peer %d" % rank, [PYTHON, TORCH_PEER] + [str(a) for a in arguments],
                    dict(env, RANK=str(rank))) for rank in range(world)]


def torch_first_step(world, *model):
    """Returns the seconds from just before the processes are started to the first completed step."""
    start = time.monotonic()
    ranks = start_torch(world, "first", *model)
    try:
        ranks[0].line(START_SECONDS)
        return time.monotonic() - start
    finally:
        for p in ranks:
            p.close()


def start_tensorflow_ps(*arguments):
    """Starts the tasks of TensorFlow's ParameterServerStrategy; see tensorflow_ps.py."""
    python = os.environ.get("TRAINERD_BENCH_TENSORFLOW", TENSORFLOW_PYTHON)
    if not os.access(python, os.X_OK):
        raise Unavailable("build/venv-bench-tensorflow does not exist; scripts/setup bench creates it")
    process = Process("tensorflow_ps", [python, TENSORFLOW_PS] + [str(a) for a in arguments])
    process.line(TENSORFLOW_SECONDS)
    return process


class Torch:
    """Processes that wait for requests; started by the first request."""

    def __init__(self, world, *model, threads=1):
        self.world, self.model, self.threads, self.ranks = world, model, threads, []

    def ask(self, text):
        """Returns a list of seconds, each of the slowest process."""
        if not self.ranks:
            self.ranks = start_torch(self.world, "serve", *self.model, threads=self.threads)
            for p in self.ranks:
                p.line(START_SECONDS)
        for p in self.ranks:
            p.ask(text)
        return [max(of_ranks) for of_ranks in zip(*[json.loads(p.line(ANSWER_SECONDS)) for p in self.ranks])]

    def close(self):
        for p in self.ranks:
            if p.p.poll() is None:
                p.close()


class TorchElastic:
    """A job under torchrun, which restarts all workers when one ends. The best case for torchrun: one agent for all
    workers that checks them ten times per second (its default is every 5 s), as many restarts as it needs, and workers that
    give up a restart that hangs after 10 s (the default is 30 minutes)."""

    def __init__(self, world, model, logits, batch, folder, snapshot_steps):
        self.world, self.folder = world, folder
        self.log = open(os.path.join(folder, "torchrun.log"), "w")
        # Redirects something, because with Python 3.11 torchrun fails to parse its own default "no redirect".
        cmd = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=%d" % world,
               "--max_restarts=1000", "--monitor_interval=0.1", "--redirects=1", "--tee=2",
               "--log_dir=" + folder, TORCH_ELASTIC, model, logits, str(batch), folder,
               str(snapshot_steps)]
        self.p = subprocess.Popen(cmd, env=dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo"),
                                  stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def lines(self, rank, word):
        try:
            with open(os.path.join(self.folder, "rank-%d.txt" % rank)) as f:
                return [line.split()[1:] for line in f if line.startswith(word + " ") and line.endswith("\n")]
        except OSError:
            return []

    def signal(self, rank, number):
        """Sends a signal to the current worker; returns its pid, or None if torchrun has ended it and started none yet."""
        pid = int(self.lines(rank, "start")[-1][1])
        return pid if send(pid, number) else None

    def steps(self):
        """Returns [(step, seconds since 1970)], including repeated steps."""
        return [(int(k), float(at)) for k, at in self.lines(0, "step")]

    def step_after(self, when, seconds, after_start=True):
        """Returns the time of the first step after `when`, by workers that were started after it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.p.poll() is not None:
                raise self.trouble("ended")
            begun = max([float(at) for at, *_ in self.lines(0, "start")], default=0)
            done = [at for _, at in self.steps() if at > when and (not after_start or at > begun > when)]
            if done:
                return done[0]
            time.sleep(0.02)
        raise self.trouble("no step within %d s" % seconds)

    def trouble(self, what):
        self.log.flush()
        with open(self.log.name) as f:
            last = [t for t in f.read().splitlines() if t.strip()][-1:]
        return Unavailable("torchrun: %s%s" % (what, ": " + last[0][:200] if last else ""))

    def close(self):
        """Ends the agent, which ends its workers; remaining workers are killed by pid."""
        self.p.terminate()
        try:
            self.p.wait(15)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        for rank in range(self.world):
            for _, pid, _ in self.lines(rank, "start"):
                if runs_ours(int(pid), self.folder):
                    send(int(pid), signal.SIGKILL)
        self.log.close()


def send(pid, number):
    """Sends a signal; returns False if the process has ended."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def runs_ours(pid, word):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            return word.encode() in f.read()
    except OSError:
        return False


class OpenMPI:
    """mpi_allreduce.c, compiled for the Open MPI of this machine."""

    def __init__(self, build):
        self.program = os.path.join(build, "test", "bench", "mpi_allreduce")

    def compile(self):
        if shutil.which("mpicc") is None or shutil.which("mpirun") is None:
            raise Unavailable("mpicc and mpirun are not installed: openmpi-bin, libopenmpi-dev")
        os.makedirs(os.path.dirname(self.program), exist_ok=True)
        run_checked(["mpicc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", self.program,
                     os.path.join(HERE, "mpi_allreduce.c")])

    def reduce(self, sizes):
        """Returns {bytes: seconds}."""
        if not os.path.exists(self.program):
            self.compile()
        cmd = ["mpirun", "-n", "2"]
        if os.geteuid() == 0:
            cmd.insert(1, "--allow-run-as-root")
        if len(os.sched_getaffinity(0)) < 2:
            cmd.insert(1, "--oversubscribe")
        out = {}
        for line in run_checked(cmd + [self.program] + [str(n) for n in sizes]).splitlines():
            n, seconds = line.split()
            out[int(n)] = float(seconds)
        return out


def run_checked(cmd, seconds=ANSWER_SECONDS, env=None):
    """Returns the standard output of a command that must succeed."""
    try:
        p = subprocess.run(cmd, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, env=env)
    except FileNotFoundError:
        raise Unavailable("%s does not exist" % cmd[0])
    except subprocess.TimeoutExpired:
        raise Unavailable("%s did not end within %d s" % (os.path.basename(cmd[0]), seconds))
    if p.returncode != 0:
        output = (p.stderr or p.stdout).decode("utf-8", "replace").strip().splitlines()
        raise Unavailable("%s: exit code %d%s" % (os.path.basename(cmd[0]), p.returncode,
                                                  ": " + output[-1][:200] if output else ""))
    return p.stdout.decode()


def versions():
    out = []
    for name, cmd in (("PyTorch", [PYTHON, "-c", "import torch; print(torch.__version__)"]),
                      ("Open MPI", ["mpirun", "--version"])):
        try:
            out.append("%s %s" % (name, run_checked(cmd).split("\n")[0].split()[-1]))
        except Unavailable as e:
            out.append("no %s (%s)" % (name, e))
    if PYTHON == DEBIAN_PYTHON:
        out.append("PyTorch is Debian's, because build/venv-bench does not exist (scripts/setup bench creates it): older, "
                   "and without torch.compile")
    return out
