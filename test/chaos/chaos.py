"""chaos.py - runs a job of tasks on hosts of their own under injected faults, and prints a verdict.

    scripts/chaos [--seconds N] [--schedules N] [--calm SECONDS] [--decks LIST] [--only KIND]
                  [--load N] [--seed N] [--folder DIR] [--events N] [--devices LIST] [--ps N] [--compression CODE]

A chief and three workers, each in a network namespace of its own, train the digits on shared
storage. A schedule drawn from the seed (schedule.py) kills, suspends, cuts off and drains them, and
fills, slows and corrupts their storage. A task that ends is started again. At the end all tasks are
asked to stop with SIGTERM, are started again from their checkpoint for two more epochs, and
complete the job. One undisturbed task then trains the same job, and verdict.py compares both. A
seed replays the same schedule.

--seconds   approximate duration of the run (default 60): faults at random times, which may overlap
--schedules run this many short schedules instead, with one fault each; the next begins when all
            tasks train again
--calm      run this many seconds without a fault instead: every blame is a false alarm
--decks     hard,gray,storage,stranger,ps (default: all but ps; schedule.py lists the faults of
            each)
--only      only faults of this kind
--events    only the first N faults
--ps        train clicks, a job with embedding tables, with this many ps tasks (each row on two of
            them), a chief, and one or two workers by the seed. The decks are then hard,ps. The
            undisturbed task trains without ps tasks
--compression  compress the gradients with this code (int8, ...), each lane a group; not with --ps
--load      this many busy processes beside the tasks
--folder    folder of the logs (default build/chaos)
--devices   devices of each task (default cpu:1). With cuda:0 each has an emulated GPU and a small
            network. The undisturbed task uses a CPU; values that depend on rounding are then
            compared with a tolerance
Exit codes: 0 nothing was lost, and the right tasks were blamed; 1 the verdict names the errors; 2
usage; 77 this machine does not allow the namespaces.
"""
import argparse
import glob
import os
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(os.path.dirname(HERE), "e2e"))
import hosts  # noqa: E402
import jobs  # noqa: E402
import kit  # noqa: E402
import roster  # noqa: E402
import sample_log  # noqa: E402
import strangers  # noqa: E402
import verdict  # noqa: E402
from faults import Faults  # noqa: E402
from jobs import has_equal_bits, on_gpus  # noqa: E402
from rounds import Rounds  # noqa: E402
from schedule import DECK_OF, DECKS, KINDS, WITHOUT_PS, kinds_of, one_by_one, schedule  # noqa: E402
from tasks import Group, verify  # noqa: E402

AROUND = 10  # seconds of the start, the end and the comparison
QUIET = 4    # seconds at the end without new faults
END_SECONDS, START_SECONDS = 60, 60
MORE_EPOCHS = 2
ENDLESS = 10 ** 7
NEAR = 0.05  # tolerance of a loss, between GPUs in changing numbers and one CPU
ELASTIC = {"elastic": {"min_world": 1, "rejoin_seconds": 0}}


class Run:
    def __init__(self, folder):
        self.folder, self.begin, self.log = folder, time.time(), open(os.path.join(folder, "chaos.log"), "w")

    def say(self, text):
        line = "[%8.3f] %s" % (time.time() - self.begin, text)
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()


def wait_for(group, what, seconds, sentence):
    until = time.time() + seconds
    while not what():
        if time.time() > until:
            group.troubles.append("%s did not happen within %d s" % (sentence, seconds))
            group.say(group.troubles[-1])
            return False
        group.look()
        time.sleep(0.01)
    return True


def disturb(run, group, faults, events, seconds):
    """Injects the events for `seconds`. Returns the events that happened, with their actual
    times."""
    left, happened = list(events), []
    while time.time() - run.begin < seconds:
        group.look()
        faults.look()
        while left and time.time() - run.begin >= left[0].at:
            e = left.pop(0)
            e.at = time.time() - run.begin
            faults.begin(e)
            happened.append(e)
        time.sleep(0.005)
    return happened


def stop_and_complete(run, group, folder, storage, job):
    """Sends SIGTERM to all tasks and expects one checkpoint and 143; then completes the job.
    Returns the saved step and the last step."""
    run.say("== SIGTERM to all")
    for t in group.tasks:
        t.expected = signal.SIGTERM
        t.life.signal(signal.SIGTERM)
    codes = group.wait_end(END_SECONDS)
    saved = storage.newest()
    run.say("exit codes %s, newest checkpoint %s" % (codes, saved))
    if codes != [143] * len(codes) or saved is None:
        group.troubles.append("SIGTERM to all: exit codes %s, newest checkpoint %s" % (codes, saved))
    ok, text = verify(os.path.dirname(saved)) if saved else (False, "no checkpoint")
    if not ok:
        group.troubles.append("trainerctl verify: %s" % text)
    step = int(os.path.basename(saved)[5:]) if saved else 0
    last = (step // steps_per_epoch(job) + MORE_EPOCHS) * steps_per_epoch(job)
    job.write(folder, last, **(job.PS if has_ps(group) else {}))
    run.say("== started again, to complete the job at step %d" % last)
    group.start()
    codes = group.wait_end(END_SECONDS)
    run.say("exit codes %s" % codes)
    if codes != [0] * len(codes):
        group.troubles.append("the job did not complete: exit codes %s" % codes)
    return step, last


def steps_per_epoch(job):
    return job.n_samples // job.batch


def has_ps(group):
    return not all(t.is_trainer for t in group.tasks)


def undisturbed(run, folder, last, job, section):
    """Runs one task with one replica and no faults. With the section of parameter servers, because it decides in which files
    a checkpoint has tables. Returns the task and its folder."""
    alone = os.path.join(folder, "undisturbed")
    os.makedirs(alone)
    run.say("== one undisturbed task, to step %d" % last)
    devices = "cuda:0" if on_gpus() and has_equal_bits(job) else "cpu:1"
    t = kit.Task(job.write(alone, last, **section), args=("--devices", devices, "--sample-log", os.path.join(alone, "samples.txt")))
    kit.expect_codes([t], [0], 600)
    return t, alone


def judge_history(run, v, group, folder, step, last, job):
    """Compares the sample logs, the losses and the files with an undisturbed run."""
    lives = [life for t in group.tasks if t.is_trainer for life in sample_log.read(t.samples, t.name)]
    lives += [life for path in sorted(glob.glob(os.path.join(folder, strangers.SAMPLES + "*")))
              for life in sample_log.read(path, "a twin")]
    history = sample_log.History(lives, job.lanes, returns=has_ps(group) or job.returns)
    alone, theirs = undisturbed(run, folder, last, job, job.PS if has_ps(group) else {})
    reference = sample_log.History(sample_log.read(os.path.join(theirs, "samples.txt"), "undisturbed"), job.lanes)
    verdict.steps(v, history)
    v.row("last step", "%d done, %d saved at SIGTERM, %d to do" % (len(history.chain), step, last), len(history.chain) == last)
    verdict.samples(v, history, reference, steps_per_epoch(job), job.batch, job.n_samples)
    verdict.losses(v, group.steps(), [(r["step"], r["loss"]) for r in alone.events("step")], 0 if has_equal_bits(job) else NEAR)
    final = os.path.join("storage", "checkpoints", "step-%08d" % last)
    verdict.files(v, [] if not has_equal_bits(job) else [(f, os.path.join(folder, final, f), os.path.join(theirs, final, f))
                      for f in sorted(os.listdir(os.path.join(theirs, final))) if f != "manifest.json"] +
                  [("exported ONNX", os.path.join(folder, job.exported), os.path.join(theirs, job.exported))])
    if has_ps(group):
        verdict.returns(v, history)
    if job.returns:
        verdict.copies(v, history)
    v.row("supervision", "; ".join(group.troubles[:5]) or "each process ended as expected", not group.troubles)
    return history


def judge_overlapping(run, v, group, history, events, is_idle):
    verdict.causes(v, events, group.tasks, run.begin)
    verdict.phases(v, group.tasks)
    verdict.speed(v, history, events, run.begin, run.begin + run.seconds)
    verdict.blame_rows(v, verdict.cases_alone(events, group.tasks, run.begin),
                       verdict.alarms(events, group.tasks, run.begin), is_idle, is_judged=False)


class Load:
    """Busy processes that compete with the tasks for the processors."""

    def __init__(self, n):
        self.processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]

    def end(self):
        for p in self.processes:
            p.kill()
            p.wait()


def kinds_for(run, net, args):
    """Returns the kinds of faults that this machine can inject, and logs the others."""
    without = set(KINDS) - {args.only} if args.only else set()
    for tool, why in net.cannot().items():
        needs = {k for k in KINDS if k == "slow link" or tool == "iptables" and DECK_OF[k] == "gray" and k not in (
            "stop leader", "blocked stderr")}
        run.say("not injected, %s: %s" % (why, ", ".join(sorted(needs - without))))
        without |= needs
    return kinds_of([DECK_OF[args.only]] if args.only else args.decks, without)


def begin_group(run, group):
    group.start()
    wait_for(group, lambda: group.is_whole(0), START_SECONDS, "the first step of all")
    run.begin = time.time()
    run.say("== all train; times count from here")


def disturb_and_judge(args, run, group, faults, kinds, folder, is_idle):
    """Injects the faults. Returns a function of (verdict, history) that adds the rows of the
    verdict when the job is complete."""
    if args.schedules:
        rounds = Rounds(run, group, faults, folder)
        rounds.play(one_by_one(args.seed, args.schedules, kinds, len(group.tasks))[:args.events])
        return lambda v, _: verdict.blame_rows(v, rounds.cases, rounds.alarms, is_idle)
    events = [] if args.calm else schedule(args.seed, run.seconds - QUIET, kinds, len(group.tasks))[:args.events]
    for e in events:
        run.say("  at %6.2f s: %s" % (e.at, e))
    events = disturb(run, group, faults, events, run.seconds)
    if args.calm:
        found = verdict.alarms([], group.tasks, run.begin)
        return lambda v, _: verdict.blame_rows(v, [], found, is_idle)
    return lambda v, history: judge_overlapping(run, v, group, history, events, is_idle)


def chaos(args, folder):
    run = Run(folder)
    run.seconds = args.calm or max(args.seconds - AROUND, 10)
    is_idle = not args.load and os.getloadavg()[0] < os.cpu_count()
    if args.ps:
        roster.set_trainers(2 + args.seed % 2)
    job = jobs.Clicks(os.path.join(folder, "data"), args.seed) if args.ps else jobs.Digits(args.compression)
    net, storage = hosts.Hosts(roster.trainers + args.ps), hosts.Storage(os.path.join(folder, "storage"), job.storage_bytes)
    kinds = kinds_for(run, net, args)
    run.say("seed %d, load %d, %s" % (args.seed, args.load, "%d schedules" % args.schedules if args.schedules else
                                      "%d s%s" % (run.seconds, " without faults" if args.calm else "")))
    if args.ps:
        run.say("%d training tasks and %d ps tasks, optimizer: %s" % (roster.trainers, args.ps, job.name))
    group = Group(folder, job.write(folder, ENDLESS, **ELASTIC, **(job.PS if args.ps else {})), net, run.say, args.devices)
    faults, load = Faults(run, net, storage, group, folder), Load(args.load)
    begin_group(run, group)
    judge = disturb_and_judge(args, run, group, faults, kinds, folder, is_idle)
    faults.end_all()
    load.end()
    wait_for(group, lambda: group.is_whole(time.time() - 1), START_SECONDS, "a step of all after the last fault")
    step, last = stop_and_complete(run, group, folder, storage, job)
    v = verdict.Verdict()
    judge(v, judge_history(run, v, group, folder, step, last, job))
    for line in v.text().splitlines() + ["seed %d; logs in %s" % (args.seed, folder)]:
        print(line, flush=True)
        run.log.write(line + "\n")
    shutil.copytree(os.path.join(folder, "storage"), os.path.join(folder, "storage-copy"))
    return 1 if v.failed else 0


def decks(text):
    for name in text.split(","):
        if name not in DECKS:
            raise argparse.ArgumentTypeError("unknown deck '%s'; expected one of %s" % (name, ", ".join(DECKS)))
    return text.split(",")


def main():
    p = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--folder", default=os.path.join(kit.BUILD, "chaos"))
    p.add_argument("--events", type=int)
    p.add_argument("--devices", default="cpu:1")
    p.add_argument("--schedules", type=int, default=0)
    p.add_argument("--calm", type=float, default=0.0)
    p.add_argument("--load", type=int, default=0)
    p.add_argument("--decks", type=decks, help="default: %s; with --ps: hard,ps" % ",".join(WITHOUT_PS))
    p.add_argument("--only", choices=KINDS)
    p.add_argument("--ps", type=int, default=0)
    p.add_argument("--compression", choices=("bfloat16", "float16", "int8", "int4", "top_k", "power_sgd"))
    args = p.parse_args()
    args.decks = args.decks or (["hard", "ps"] if args.ps else WITHOUT_PS)
    if not args.ps and ("ps" in args.decks or DECK_OF.get(args.only) == "ps"):
        p.error("the faults of the deck ps need --ps N")
    if args.ps and args.devices.startswith("cuda"):
        p.error("--ps needs devices on the CPU")
    if args.compression and args.ps:
        p.error("--compression and --ps are not combined")
    hosts.enter()
    if args.devices.startswith("cuda"):
        kit.TRAINERD = os.path.join(kit.BUILD, "emulated", "trainerd")
    for signum in (signal.SIGTERM, signal.SIGINT):  # also Ctrl-C, which a shell in the background ignores
        signal.signal(signum, lambda n, _: sys.exit(128 + n))
    folder = os.path.abspath(args.folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    try:
        return chaos(args, folder)
    finally:
        for t in kit._tasks:
            t.kill()


if __name__ == "__main__":
    sys.exit(main())
