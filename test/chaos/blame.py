"""blame.py - finds the task that the logs blame for a fault, and scores whether that task is right.
Pure: records in, a score out.

A log line blames a task if it states why the group aborted a step: the task was lost, makes no
progress, cannot be reached, or failed. read_sentence() reads the culprit from the line; a line that
states a loss without a culprit blames no task. The refusal of a foreign process blames no task.

A witness is a task that the fault did not hit, and that was in the group before the fault. For each
fault and witness:

    right     each task that the witness blamed is a culprit of this fault
    wrong     the witness blamed another task
    missing   the fault stopped the steps for NOTICE seconds or more (or ended a process), and the
              witness blamed no task
    silent    no blame, and no reason for one

A false alarm is a blame outside the window of every fault. The thresholds are in limits().
"""
import collections
import re
import statistics

import roster

NOTICE = 3.0  # seconds without a step after which each witness must know a culprit
NEWS = 4.0    # seconds after the end of a fault in which a blame still belongs to the fault
RIGHT_SHARE = 0.999    # of the schedules
SAVED_SECONDS = 8.0      # limit without a checkpoint while the storage fails for one task, or its folder was removed
NEXT_STEP_SECONDS = 3.0  # median over the schedules of a kind until a step is done again, on an idle machine

SAVES_ANYWAY = ("storage hang", "storage EIO", "storage slow", "storage read-only", "storage deleted")

NO_TASK = None
# The first expression that matches decides. The group `culprit` is the name of the culprit; if it
# is empty, the line blames no task.
SENTENCES = (
    # A task that quotes the task that found the loss: the culprits are in the lines before.
    ("rows", re.compile(r"no parameter server that is left holds all rows(?P<culprit>)")),
    ("refused", re.compile(r"^(?P<culprit>\w+ \d+) \([^)]*\) was refused: ")),
    ("lost", re.compile(r"^\w+ \d+ \([^)]*\) reports: .*?(?P<culprit>(chief|worker|ps) \d+)\b")),
    ("lost", re.compile(r"^\w+ \d+ \([^)]*\) reports: (?P<culprit>)")),
    ("lost", re.compile(r"^(?P<culprit>\w+ \d+) \([^)]*\).* (was lost: |leads the group and was lost: |makes no progress|"
                        r"left the group and came back|cannot be reached over the data path|did not run for |"
                        r"sent nothing to |received nothing from any task|failed: )")),
    ("lost", re.compile(r"^(?P<culprit>\w+ \d+) \([^)]*\) was asked to ")),
    ("lost", re.compile(r"^no task makes progress(?P<culprit>)")),
    ("lost", re.compile(r"^the data path .*?(?P<culprit>(chief|worker|ps) \d+)\b")),
)
VIEW_CAUSE = re.compile(r"^generation \d+: \d+ of \d+ tasks, led by [^(]*\((?P<cause>.*)\)$", re.DOTALL)

Blame = collections.namedtuple("Blame", "witness at culprit what text")  # culprit: rank, or NO_TASK


def rank_of(name):
    """Returns the number of "chief 0" or "worker 2" in a cluster with a chief; NO_TASK for an empty
    name."""
    return roster.number_of(name)


def read_sentence(text):
    """Returns (what, culprit) of a log line; None if it blames no task. `what` is "lost",
    "refused" or "rows"; only "lost" is scored."""
    for what, form in SENTENCES:
        found = form.search(text)
        if found:
            return what, rank_of(found.group("culprit"))
    return None


def blames(witness, records):
    """Returns the blames in the records of a task. A record is a parsed line of its JSON log, with
    "_at": seconds since 1970."""
    out = []
    for r in records:
        text = r.get("message", "")
        if r.get("event") == "view":
            found = VIEW_CAUSE.match(text)
            text = found.group("cause") if found else ""
        elif r.get("event") != "group" or r.get("level") != "warn":
            continue
        read = read_sentence(text)
        if read is not None:
            out.append(Blame(witness, r["_at"], read[1], read[0], text))
    return out


class Case:
    """A fault without other faults around it, and the blames of the witnesses. `culprits`:
    {witness: ranks that it may blame}; `must`: each witness must blame one."""

    def __init__(self, kind, begin, end, culprits, must):
        self.kind, self.begin, self.end, self.culprits, self.must = kind, begin, end, culprits, must
        self.gap = self.whole = None  # seconds without a step; seconds until all tasks stepped in one group again
        self.saved = None  # seconds without a checkpoint; only for failures of the storage
        self.ended = []  # log lines of healthy tasks that ended
        self.stalled = False
        self.right, self.wrong, self.missing = [], [], []  # witnesses; Blame; witnesses

    def judge(self, found):
        """found: [Blame] of all tasks in the window of this fault."""
        needs = self.must or (self.gap or 0) >= NOTICE
        for witness, culprits in sorted(self.culprits.items()):
            own = [b for b in found if b.witness == witness and b.what == "lost"]
            wrong = [b for b in own if b.culprit not in culprits and b.culprit is not NO_TASK]
            named = [b for b in own if b.culprit in culprits]
            self.wrong += wrong
            if not wrong and named:
                self.right.append(witness)
            elif not wrong and (own or needs):
                self.missing.append(witness)
        return self

    def judge_late(self, found):
        """Judges the blames after the end of the fault: none is required."""
        self.wrong += [b for b in found if b.what == "lost" and b.witness in self.culprits and
                       b.culprit is not NO_TASK and b.culprit not in self.culprits[b.witness]]

    @property
    def is_detected(self):
        return bool(self.right or self.wrong)

    @property
    def is_right(self):
        return not (self.wrong or self.missing or self.ended or self.stalled or self.is_unsaved)

    @property
    def is_unsaved(self):
        """True if a checkpoint was due that a task could have written."""
        return self.kind in SAVES_ANYWAY and (self.saved or 0) > SAVED_SECONDS

    def sentence(self):
        parts = ["wrong: %s blames %s: %s" % (task(b.witness), task(b.culprit), b.text[:160]) for b in self.wrong[:2]]
        parts += ["no culprit on " + ", ".join(task(w) for w in self.missing)] if self.missing else []
        parts += self.ended[:2] + (["the group did not recover"] if self.stalled else [])
        parts += ["no checkpoint for %.1f s" % self.saved] if self.is_unsaved else []
        return "; ".join(parts)


def task(rank):
    return "no task" if rank is NO_TASK else roster.task_name(rank)


def false_alarms(found, windows):
    """Returns the blames outside all windows [(begin, end)]."""
    return [b for b in found if b.what == "lost" and not any(begin <= b.at <= end for begin, end in windows)]


def middle_and_most(values):
    values = [v for v in values if v is not None]
    return "%5.2f %6.2f" % (statistics.median(values), max(values)) if values else "    -      -"


def table(cases):
    """Returns one line per kind of fault."""
    lines = ["%-22s %8s %8s %6s %6s %8s %6s %8s %13s %13s" % (
        "fault", "injected", "detected", "right", "wrong", "missing", "ended", "stalled", "next step (s)", "all again (s)"),
        "%-22s %8s %8s %6s %6s %8s %6s %8s %13s %13s" % (("",) * 8 + ("median   max",) * 2)]
    for kind in sorted({c.kind for c in cases}):
        own = [c for c in cases if c.kind == kind]
        lines.append("%-22s %8d %8d %6d %6d %8d %6d %8d %13s %13s" % (
            kind, len(own), sum(c.is_detected for c in own), sum(c.is_right for c in own), sum(bool(c.wrong) for c in own),
            sum(bool(c.missing) for c in own), sum(len(c.ended) for c in own), sum(c.stalled for c in own),
            middle_and_most([c.gap for c in own]), middle_and_most([c.whole for c in own])))
    return lines


def limits(cases, alarms, is_idle):
    """Returns [(name, text, ok)]: the thresholds that a run must meet."""
    out = []
    if cases:
        right = sum(c.is_right for c in cases)
        out.append(("blame", "the right culprit on every task in %d of %d isolated faults (at least %.1f %%)" % (
            right, len(cases), 100 * RIGHT_SHARE), right >= RIGHT_SHARE * len(cases)))
    out.append(("false alarms", "%d%s" % (len(alarms), ": " + alarms[0].text[:200] if alarms else ""), not alarms))
    if cases and is_idle:
        slow = ["%s %.2f s" % (kind, m) for kind in sorted({c.kind for c in cases})
                for m in [statistics.median([c.gap for c in cases if c.kind == kind and c.gap is not None] or [0])]
                if m > NEXT_STEP_SECONDS]
        out.append(("next step", "median of each kind below %.1f s%s" % (
            NEXT_STEP_SECONDS, ", but not of " + ", ".join(slow) if slow else ""), not slow))
    return out
