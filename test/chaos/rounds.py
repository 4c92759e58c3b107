"""rounds.py - many short schedules against one job: a fault, its end, all tasks train again, the
next fault. Each fault is therefore isolated, and every blame in its round belongs to it.
"""
import os
import time

import blame
from schedule import DECK_OF

SETTLE = 0.6    # seconds in which all tasks train, before each fault
RECOVER = 45.0  # limit in seconds after the end of a fault; then the round has stalled, and the group is restarted
ARMED = 4.0     # limit in seconds for an armed task to reach its fault point
REPORT_EVERY = 20


class Rounds:
    def __init__(self, run, group, faults, folder):
        self.run, self.group, self.faults, self.folder = run, group, faults, os.path.join(folder, "failures")
        self.cases, self.alarms, self.n = [], [], len(group.tasks)

    def play(self, events):
        begin = time.time()
        for number, event in enumerate(events, 1):
            self.between()
            case = self.one(event)
            self.cases.append(case)
            if not case.is_right:
                self.run.say("round %d, %s: %s" % (number, event, case.sentence()))
                self.keep(number, event, case)
            if case.stalled:
                self.start_again()
            if number % REPORT_EVERY == 0 or number == len(events):
                self.run.say("%d rounds, %d right, %.1f a minute" % (
                    number, sum(c.is_right for c in self.cases), 60 * number / (time.time() - begin)))

    def wait(self, done, seconds):
        until = time.time() + seconds
        while not done() and time.time() < until:
            self.group.look()
            self.faults.look()
            time.sleep(0.005)
        return done()

    def between(self):
        """Waits until all tasks train. A late blame must be right for the previous fault."""
        self.group.forget(time.time())
        begin = time.time()
        self.wait(lambda: time.time() >= begin + SETTLE and self.group.is_whole(begin), RECOVER)
        late = self.found()
        if self.cases:
            self.cases[-1].judge_late(late)
        else:
            self.alarms += blame.false_alarms(late, [])

    def found(self):
        return [b for t in self.group.tasks for life in t.lives for b in blame.blames(t.number, list(life.records))]

    def one(self, event):
        self.group.forget(time.time() - 1)
        begin, ends = time.time(), len(self.group.ends)
        self.faults.begin(event)
        if event.fault and "=kill@" in event.fault:
            for i in event.tasks:
                self.faults.at(ARMED, "", self.faults.end_armed, event, self.group.tasks[i])
        self.wait(lambda: not self.faults.later, event.lasts + ARMED + RECOVER)
        end = time.time()
        case = blame.Case(event.kind, begin, end, event.culprits(self.n), event.names_task)
        case.stalled = not self.wait(lambda: self.is_over(end), RECOVER)
        whole = time.time()
        case.whole = None if case.stalled else whole - end
        self.wait(lambda: time.time() >= whole + SETTLE, 2 * SETTLE)
        case.gap = self.gap(begin, whole)
        if DECK_OF[event.kind] == "storage":
            case.saved = self.gap(begin, whole + SETTLE, "checkpoint")
        case.ended = [text for t, life, text in self.group.ends[ends:] if self.is_healthy(t, life, event)]
        return case.judge([b for b in self.found() if b.at >= begin])

    def is_over(self, end):
        return self.group.is_whole(end) and not self.faults.later and not any(t.life.fault for t in self.group.tasks)

    def is_healthy(self, t, life, event):
        """Returns True if no fault explains the end of this process; a task that was hit may end
        with 138."""
        return t.number not in event.tasks or not any(event.culprits(self.n).values()) or life.p.returncode != 138

    def gap(self, begin, whole, event="step"):
        """Returns the longest time without a step (or another record) that the fault can have
        caused."""
        times = sorted(r["_at"] for t in self.group.tasks for life in t.lives for r in list(life.records)
                       if r.get("event") == event)
        return max((b - a for a, b in zip([begin, *times], [*times, whole]) if b > begin and a < whole), default=0)

    def start_again(self):
        self.faults.end_all()
        for t in self.group.tasks:
            t.kill(9, 0)
        self.wait(lambda: self.group.is_whole(time.time() - 1), RECOVER)

    def keep(self, number, event, case):
        """Writes the log records of a failed round in order of time, without steps and traces."""
        os.makedirs(self.folder, exist_ok=True)
        records = sorted(((r["_at"], t.name, r) for t in self.group.tasks for life in t.lives for r in list(life.records)
                          if r.get("level") != "debug" and r.get("event") not in ("step", "plan")), key=lambda x: x[:2])
        name = "round-%04d-%s.log" % (number, "".join(c if c.isalnum() else "-" for c in event.kind))
        with open(os.path.join(self.folder, name), "w") as f:
            f.write("%s\n%s\n" % (event, case.sentence()))
            for at, task, r in records:
                f.write("%8.3f %-8s %-5s %-8s %s\n" % (at - case.begin, task, r.get("level", ""), r.get("event", ""),
                                                       r.get("message", "")))
