#!/usr/bin/env python3
"""supervise.py COMMAND...: runs a command and leaves no process of it, however the command or this program ends.

Between this program and the command is a supervisor, a process of its own:
  - Processes of the command whose parent has ended become children of the supervisor (PR_SET_CHILD_SUBREAPER). When the
    command has ended, the supervisor kills all that still run, also those with a session or a group of their own.
  - The kernel sends it SIGTERM when this program ends, also by SIGKILL (PR_SET_PDEATHSIG). At SIGTERM, SIGINT and SIGHUP it
    sends SIGTERM to the group of the command, and SIGKILL if that does not end within seconds.
  - The kernel kills the command when the supervisor ends.
The exit code is that of the command, or 128 and the number of the signal that ended it. scripts/test imports start().
"""
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE = 5  # seconds between SIGTERM and SIGKILL, and for a killed process to end
OUTER_GRACE = 3 * GRACE  # between SIGTERM and SIGKILL of a command that may have supervisors itself
EXPIRED = 124  # exit code: the time limit expired, as that of `timeout`

prctl = ctypes.CDLL(None, use_errno=True).prctl


def children():
    """Returns {process id: name} of the children of this process."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, errors="replace") as f:
                name, _, rest = f.read().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has ended
        if int(rest.split()[1]) == os.getpid():
            found[int(pid)] = name
    return found


def reap():
    """Waits for the children that have ended. Returns {process id: status}, and whether others run."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def kill_children():
    """Kills all children, and their children, which become ours. Returns the names of all, and of those that do not end."""
    killed = {}
    while reap()[1]:
        for pid, name in children().items():
            killed[pid] = name
            os.kill(pid, signal.SIGKILL)
        if signal.sigtimedwait({signal.SIGCHLD}, GRACE) is None and not reap()[0]:
            return list(killed.values()), list(children().values())  # the kernel holds them
    return list(killed.values()), []


def run(command, seconds, grace, mask, awaited, options):
    """The supervisor: runs the command for at most `seconds` (0: no limit) and returns its exit code. The signals `awaited` are
    blocked; the command has the mask `mask`."""
    def prepare():
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    p = subprocess.Popen(command, preexec_fn=prepare, **options)
    ends_at = time.monotonic() + seconds if seconds else None
    code, is_ending = None, False
    while (status := reap()[0].get(p.pid)) is None:
        got = signal.sigwaitinfo(awaited) if ends_at is None else signal.sigtimedwait(awaited, max(0.0, ends_at - time.monotonic()))
        if got is not None and (got.si_signo == signal.SIGCHLD or is_ending):
            continue
        if is_ending:
            os.killpg(p.pid, signal.SIGKILL)
            ends_at = None
            continue
        code = EXPIRED if got is None else None
        is_ending, ends_at = True, time.monotonic() + grace
        for signum in (signal.SIGTERM, signal.SIGCONT):
            os.killpg(p.pid, signum)
    p.returncode = 0  # reap() has waited for it
    killed, stuck = kill_children()
    output = options.get("stdout")
    if output:
        for names, what in (killed, "killed what the program left"), (stuck, "these processes do not end"):
            if names:
                output.write(("supervise: %s: %s\n" % (what, " ".join(names))).encode())
        output.flush()
    exit_code = os.waitstatus_to_exitcode(status)
    return code or (exit_code if exit_code >= 0 else 128 - exit_code)


def start(command, seconds=0, grace=GRACE, **options):
    """Starts a supervisor with a command, as subprocess.Popen(command, **options). Returns the process id of the supervisor;
    the caller waits for it. `stdout`, if given, is a binary file: its last line names the processes that were killed."""
    caller = os.getpid()
    awaited = {signal.SIGCHLD} | {s for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return pid
    code = 1
    try:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() == caller:  # else it has ended before the first call
            code = run(command, seconds, grace, mask, awaited, options)
    except FileNotFoundError as e:
        print("supervise: %s" % e, file=sys.stderr)
        code = 127
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main():
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0
    pid = start(sys.argv[1:], grace=OUTER_GRACE)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, lambda *_: os.kill(pid, signal.SIGTERM))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
