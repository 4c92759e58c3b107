"""faults.py - injects the faults of the schedule, and removes each at the end of its time."""
import signal
import time

from schedule import DECK_OF, LEADER
from strangers import Strangers

RETRY_SECONDS = 0.05


class Faults:
    def __init__(self, run, net, storage, group, folder):
        self.run, self.net, self.storage, self.group = run, net, storage, group
        self.strangers = Strangers(net, group, folder, run.say)
        self.later = []  # (time, log text or "", function)
        self.do = {"kill": self.kill, "kill chief": self.kill, "kill two": self.kill, "kill in phase": self.kill,
                   "kill ps": self.kill, "kill two ps": self.kill, "kill all ps": self.kill, "kill ps and chief": self.kill,
                   "kill ps in phase": self.kill, "stop two ps": self.stop,
                   "stop": self.stop, "stop leader": self.stop, "link down": self.link_down, "split 2|2": self.split,
                   "split 1|3": self.split, "full disk": self.full_disk, "corrupt checkpoint": self.corrupt,
                   "slow storage": self.armed, "drain": self.drain, "slow link": self.slow_link, "flapping": self.flap,
                   "blocked stderr": self.block, "storage full": self.full_disk, "storage deleted": self.delete,
                   "storage read-only": self.read_only, "storage hang": self.armed, "storage EIO": self.armed,
                   "storage slow": self.armed, "junk": self.junk}

    def begin(self, event):
        event.tasks = [self.group.leader() if i == LEADER else i for i in event.tasks]
        self.run.say("== %s" % event)
        other = self.twin if DECK_OF[event.kind] == "stranger" else self.drop
        self.do.get(event.kind, other)(event, [self.group.tasks[i] for i in event.tasks])

    def end_of(self, event, text, undo, *args):
        self.at(event.lasts, text, undo, *args)

    def at(self, seconds, text, do, *args):
        self.later.append((time.time() + seconds, text, lambda: do(*args)))

    def look(self):
        due = [x for x in self.later if x[0] <= time.time()]
        self.later = [x for x in self.later if x not in due]
        for _, text, do in due:
            if text:
                self.run.say("== over: %s" % text)
            do()

    def end_all(self):
        """Removes all faults, also those that a task has armed and not reached."""
        self.later.clear()
        self.storage.empty()
        self.strangers.end()
        self.net.heal_all()
        for t in self.group.tasks:
            t.stop(False)
            t.arm = []
            if t.is_up():
                t.life.read_on(True)
                self.storage.read_only(t.life.p.pid, False)
                if t.life.fault:
                    t.kill(signal.SIGKILL, 0)

    # ---- kinds ----

    def kill(self, event, tasks):
        for t in tasks:
            t.arm = [event.fault] if event.fault else []
            t.kill(signal.SIGKILL, event.back)

    def stop(self, event, tasks):
        for t in tasks:
            t.stop(True)
            self.end_of(event, "%s is resumed" % t.name, t.stop, False)

    def link_down(self, event, tasks):
        for t in tasks:
            self.net.cable(t.number, False)
            self.end_of(event, "the cable of %s is plugged in" % t.name, self.net.cable, t.number, True)

    def split(self, event, _):
        self.net.split(event.sides)
        self.end_of(event, "the partition is healed", self.net.heal, event.sides)

    def full_disk(self, event, _):
        self.run.say("storage: the last %d bytes are used" % self.storage.fill())
        self.end_of(event, "the storage has free space", self.storage.empty)

    def corrupt(self, event, tasks):
        self.kill(event, tasks)
        for t in tasks:
            t.life.wait(5)
        self.run.say("storage: bits of %s are flipped" % self.storage.corrupt())

    def armed(self, event, tasks):
        """Restarts the tasks with fault points of the storage, and without them at the end of the
        fault."""
        self.kill(event, tasks)
        for t in tasks:
            self.end_of(event, "%s of %s" % (event.kind, t.name), self.end_armed, event, t)

    def end_armed(self, event, t):
        """Restarts the task without the fault, unless it was already restarted."""
        t.arm = []
        if t.is_up() and t.life.fault == event.fault:
            t.kill(signal.SIGKILL, event.back)

    def drain(self, event, tasks):
        for t in tasks:
            t.stop(False)
            t.kill(signal.SIGTERM, event.back)

    def drop(self, event, _):
        rules = self.net.drop(event.drop, True)
        self.end_of(event, event.kind, self.net.drop, rules, False)

    def flap(self, event, _, is_on=True, rules=(), until=None):
        until = until or time.time() + event.lasts
        rules = self.net.drop(event.drop, True) if is_on else self.net.drop(rules, False)
        if is_on or time.time() < until:
            self.at(event.every, "" if time.time() < until else event.kind, self.flap, event, _, not is_on, rules, until)

    def slow_link(self, event, tasks):
        for t in tasks:
            self.net.slow(t.number, event.rate)
            self.end_of(event, "slow link of %s" % t.name, self.net.slow, t.number, 0)

    def block(self, event, tasks):
        for t in tasks:
            t.life.read_on(False)
            self.end_of(event, "the standard error of %s is read" % t.name, t.life.read_on, True)

    def delete(self, event, _):
        self.storage.delete()
        self.end_of(event, "the time in which a checkpoint must be written again", lambda: None)

    def read_only(self, event, tasks):
        for t in tasks:
            self.make_read_only(t, t.life, time.time() + event.lasts)

    def make_read_only(self, t, life, until):
        """Retries while a file is open for writing."""
        if self.storage.read_only(life.p.pid, True):
            self.run.say("storage: read-only for %s" % t.name)
            self.at(until - time.time(), "storage of %s is writable" % t.name, self.storage.read_only, life.p.pid, False)
        elif time.time() < until and life.p.poll() is None:
            self.at(RETRY_SECONDS, "", self.make_read_only, t, life, until)

    def twin(self, event, tasks):
        for t in tasks:
            self.strangers.twin(event.kind.split(": ")[1], t)
            self.end_of(event, event.kind, self.strangers.end)

    def junk(self, event, tasks):
        for t in tasks:
            self.strangers.junk(t, event.lasts)
            self.end_of(event, "junk", self.strangers.end)
