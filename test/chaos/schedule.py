"""schedule.py - the faults and their times: a pure function of (seed, seconds, tasks), so a seed
repeats its faults in the same order. Kinds are drawn from a shuffled deck, so that a short run also
contains each of them.

Decks:
    hard      a process dies, is suspended or leaves; a cable is unplugged; the storage is full,
              slow or corrupt
    gray      only one plane, one pair, one direction or large packets are dropped; a link is slow,
              loses packets or flaps; the leader is suspended; the standard error of a task is not
              read
    storage   the storage fails for the one task that writes, or for all
    stranger  a second process of a task, or invalid input on the control port
    ps        (only of a run with ps tasks) ps tasks die or are suspended: one, two, which together
              hold all copies of some rows, or all; one together with the chief; or in a phase
"""
import collections
import random

import roster
from roster import task_name

# The number of cards of each kind in a deck.
DECKS = {
    "hard": (("kill", 3), ("kill chief", 2), ("kill two", 1), ("stop", 2), ("link down", 2), ("split 2|2", 1),
             ("split 1|3", 1), ("full disk", 1), ("corrupt checkpoint", 1), ("slow storage", 1), ("drain", 1),
             ("kill in phase", 4)),
    "gray": (("control plane", 2), ("data plane", 3), ("control port", 1), ("data port", 1), ("control pair", 1),
             ("data pair", 2), ("control one way", 1), ("data one way", 2), ("control pair one way", 1),
             ("data pair one way", 1), ("control mtu", 1), ("data mtu", 2), ("flapping", 2), ("slow link", 1),
             ("lossy link", 1), ("stop leader", 2), ("blocked stderr", 1)),
    "storage": (("storage hang", 1), ("storage EIO", 1), ("storage full", 1), ("storage read-only", 1),
                ("storage deleted", 1), ("storage slow", 1)),
    "stranger": (("twin: other job", 1), ("twin: other version", 1), ("twin: other token", 1), ("twin: same", 1),
                 ("junk", 1)),
    "ps": (("kill ps", 3), ("kill two ps", 4), ("kill all ps", 3), ("kill ps and chief", 2), ("stop two ps", 2),
           ("kill ps in phase", 8)),
}
WITHOUT_PS = [deck for deck in DECKS if deck != "ps"]  # of a run without ps tasks
KINDS = tuple(kind for deck in DECKS.values() for kind, _ in deck)
GAP = (0.8, 4.4)  # seconds between two events
SILENT = 2.5  # seconds: all tasks detect a silence that is longer
BACK = (0.05, 1.5)  # seconds until a task that ended is started again
LARGE = 1400  # bytes: an MTU black hole drops packets of this size and above
LEADER = -1   # instead of a number: the task that leads when the fault begins

# (fault point, largest passage, only on the writer) at which a restarted task is killed. The writer
# of checkpoints is the chief.
PHASES = (("comm.connect", 2, False), ("comm.send", 400, False), ("comm.recv", 400, False), ("train.connect", 1, False),
          ("train.agree", 1, False), ("train.state_recv", 2, False), ("train.state_send", 2, False),
          ("train.forward", 60, False), ("train.reduce", 60, False), ("train.commit", 60, False), ("train.update", 60, False),
          ("train.update_middle", 60, False), ("train.update_end", 60, False), ("train.evaluate", 3, False),
          ("train.evaluated", 3, False), ("samples.write", 120, False), ("train.save", 2, True), ("ckpt.write", 12, True),
          ("ckpt.sync", 6, True), ("ckpt.rename", 3, True), ("ckpt.verify", 6, True))

# (fault point, largest passage) at which a restarted ps is killed.
PS_PHASES = (("ps.begin", 2), ("ps.copy", 300), ("ps.send", 300), ("ps.rows", 120), ("ps.push", 120), ("ps.vote", 60),
             ("ps.commit", 60), ("ps.committed", 60), ("ps.end", 1))

# Dropped packets: those of `plane` ("control", "data" or "both") between `host` and `peer` (None:
# all others) that go `way` as seen from the host ("in", "out" or "both"). at_least: bytes, 0: any;
# share: of the packets, 1: all of them; port: only those of connections that the host accepted.
Drop = collections.namedtuple("Drop", "plane host peer way at_least share port", defaults=(None, "both", 0, 1.0, False))


class Event:
    """`at`, `lasts` in seconds; `tasks`: the tasks that are hit; `back`: delay before a task that
    ended is started again; `every`: interval in seconds of a flapping link; `rate`: of a slow link,
    in kbit/s."""

    def __init__(self, at, kind, tasks, lasts=0.0, back=0.0, sides=None, fault=None, drop=None, every=0.0, rate=0):
        self.at, self.kind, self.tasks, self.lasts, self.back = at, kind, tasks, lasts, back
        self.sides, self.fault, self.drop, self.every, self.rate = sides, fault, drop, every, rate

    @property
    def names_task(self):
        """True if the other tasks must name the task that was hit. A silence below the detection
        limit is no loss. A gray failure must be named if steps wait for it, which blame.py
        determines."""
        return self.kind in ("kill", "kill chief", "kill in phase", "kill ps", "kill ps in phase",
                             "slow storage", "storage hang", "storage EIO", "storage slow", "drain") or (
            self.kind in ("stop", "stop leader", "link down", "split 1|3", "control plane", "data plane") and
            self.lasts > SILENT)

    def culprits(self, n):
        """Returns {witness: the tasks that it may blame}. A task that is cut off is no witness: it
        cannot know whether it or the others are cut off; a task that was suspended can. A ps is no
        witness: it learns from the training tasks which task was lost."""
        return {w: culprits for w, culprits in self._culprits(range(n)).items() if w < roster.trainers}

    def _culprits(self, everyone):
        if self.kind == "split 2|2":  # each half blames the other, and the next view carries the blame of its leader to all tasks
            return {w: set(everyone) for w in everyone}
        if self.sides:
            return {w: {t for t in everyone if self.sides[t] != self.sides[w]} for w in everyone
                    if sum(self.sides[t] == self.sides[w] for t in everyone) > 1}
        if self.drop and self.drop.peer is not None or self.kind in ("stop", "stop leader", "stop two ps"):
            return {w: set(self.tasks) for w in everyone}
        if DECK_OF[self.kind] == "stranger" or self.kind in ("blocked stderr", "full disk"):
            return {w: set() for w in everyone}
        if not self.tasks:  # the storage failed: any task may have been the writer
            return {w: set(everyone) for w in everyone}
        return {w: set(self.tasks) for w in everyone if w not in self.tasks}

    def __str__(self):
        more = ["%.2f s" % self.lasts] if self.lasts else []
        more += ["sides %s" % "".join(map(str, self.sides))] if self.sides else []
        more += [self.fault] if self.fault else []
        more += [self.drop.way + (", %.0f %%" % (100 * self.drop.share) if self.drop.share < 1 else "")] if self.drop else []
        more += ["every %.2f s" % self.every] if self.every else []
        more += ["%d kbit/s" % self.rate] if self.rate else []
        names = ", ".join("the leader" if i == LEADER else task_name(i) for i in self.tasks)
        return self.kind + (": " + names if names else "") + (" (%s)" % ", ".join(more) if more else "")


DECK_OF = {kind: deck for deck, kinds in DECKS.items() for kind, _ in kinds}


def draw_hard(r, at, kind, n):
    back = r.uniform(*BACK)
    one = [r.randrange(n)]
    if kind == "kill":
        return Event(at, kind, [r.randrange(1, n)], back=back)
    if kind == "kill chief":
        return Event(at, kind, [0], back=back)
    if kind == "kill two":
        return Event(at, kind, sorted(r.sample(range(n), 2)), back=back)
    if kind == "stop":
        return Event(at, kind, one, lasts=r.choice((r.uniform(0.2, 1), r.uniform(1, 3), r.uniform(3, 6))))
    if kind == "link down":
        return Event(at, kind, one, lasts=r.choice((r.uniform(0.2, 1), r.uniform(1, 5))))
    if kind == "split 2|2":
        ones = r.sample(range(n), 2)
        return Event(at, kind, sorted(ones), lasts=r.uniform(0.5, 5), sides=[int(i in ones) for i in range(n)])
    if kind == "split 1|3":
        return Event(at, kind, one, lasts=r.uniform(0.5, 5), sides=[int(i in one) for i in range(n)])
    if kind == "full disk":
        return Event(at, kind, [], lasts=r.uniform(1, 4))
    if kind == "corrupt checkpoint":  # it is read only if no task holds the state
        return Event(at, kind, list(range(n)), back=back)
    if kind == "slow storage":  # of the task that will lead; it dies meanwhile
        return Event(at, kind, [0], fault=slow_storage(r), lasts=r.uniform(2, 5), back=back)
    if kind == "drain":
        return Event(at, kind, one, back=back + 0.5)
    point, most, is_writer = r.choice(PHASES)
    one = [one[0] % roster.trainers]
    return Event(at, kind, [0] if is_writer else one, back=back, fault="%s=kill@%d" % (point, r.randint(1, most)))


def slow_storage(r):
    ms = r.choice((50, 200, 800))
    return "ckpt.write=delay:%d@1+,ckpt.sync=delay:%d@1+,ckpt.rename=delay:%d@1+" % (ms // 10, ms, ms)


def draw_gray(r, at, kind, n):
    lasts = r.choice((r.uniform(0.3, 1.2), r.uniform(2, 4), r.uniform(4, 7)))
    host, peer = r.sample(range(n), 2)
    way = r.choice(("in", "out"))
    plane = kind.split()[0]
    if kind == "stop leader":
        return Event(at, kind, [LEADER], lasts=lasts)
    if kind == "blocked stderr":
        return Event(at, kind, [host], lasts=lasts)
    if kind == "slow link":
        return Event(at, kind, [host], lasts=lasts, rate=r.choice((500, 2000, 8000)))
    if kind == "lossy link":
        return Event(at, kind, [host], lasts=lasts, drop=Drop("both", host, way="in", share=r.uniform(0.05, 0.25)))
    if kind == "flapping":
        return Event(at, kind, [host], lasts=lasts + 3, every=r.uniform(0.3, 1.6),
                     drop=Drop(r.choice(("control", "data", "both")), host))
    tasks = sorted([host, peer]) if " pair" in kind else [host]
    return Event(at, kind, tasks, lasts=lasts, drop=Drop(
        plane, host, peer if " pair" in kind else None, way if "one way" in kind else "both",
        LARGE if "mtu" in kind else 0, port="port" in kind))


def draw_storage(r, at, kind, n):
    """Storage failures of one task that use fault points hit the chief, which is restarted with
    them."""
    lasts, back = r.uniform(9, 13), r.uniform(*BACK)  # longer than the limit without a checkpoint
    point = r.choice(("ckpt.write", "ckpt.sync", "ckpt.rename"))
    if kind in ("storage hang", "storage EIO"):
        return Event(at, kind, [0], lasts=lasts, back=back, fault="%s=%s@1+" % (point, "fail" if "EIO" in kind else "hang"))
    if kind == "storage slow":
        return Event(at, kind, [0], lasts=lasts, back=back, fault=slow_storage(r))
    if kind == "storage read-only":
        return Event(at, kind, [LEADER], lasts=lasts)
    return Event(at, kind, [], lasts=lasts)


def draw_stranger(r, at, kind, n):
    return Event(at, kind, [r.randrange(n)], lasts=r.uniform(0.8, 2))


def draw_ps(r, at, kind, n):
    servers, back = range(roster.trainers, n), r.uniform(*BACK)
    if kind == "kill ps in phase":
        point, most = r.choice(PS_PHASES)
        return Event(at, kind, [r.choice(servers)], back=back, fault="%s=kill@%d" % (point, r.randint(1, most)))
    killed = sorted(r.sample(servers, len(servers) if "all" in kind else min(2, len(servers)) if "two" in kind else 1))
    if kind == "stop two ps":
        return Event(at, kind, killed, lasts=r.choice((r.uniform(0.2, 1), r.uniform(3, 6))))
    return Event(at, kind, ([0] if "chief" in kind else []) + killed, back=back)


DRAWS = {"hard": draw_hard, "gray": draw_gray, "storage": draw_storage, "stranger": draw_stranger, "ps": draw_ps}


def draw(r, at, kind, n):
    return DRAWS[DECK_OF[kind]](r, at, kind, n)


def kinds_of(decks, without=()):
    """Returns the cards of these decks."""
    return [kind for d in decks for kind, times in DECKS[d] for _ in range(times) if kind not in without]


def dealt(r, kinds):
    """Yields the cards endlessly: shuffled, dealt, shuffled again."""
    while True:
        yield from r.sample(kinds, len(kinds))


def schedule(seed, seconds, kinds, n=4, lead=4.0):
    """Returns the events between `lead` and `seconds`, ordered by time."""
    r = random.Random("trainerd chaos %d" % seed)
    out, deck, at = [], dealt(r, kinds), lead
    while at < seconds:
        out.append(draw(r, at, next(deck), n))
        at += r.uniform(*GAP)
    return out


def one_by_one(seed, count, kinds, n=4):
    """Returns `count` events without times: each begins after the previous one has ended and all
    tasks train again."""
    r = random.Random("trainerd schedules %d" % seed)
    deck = dealt(r, kinds)
    return [draw(r, 0.0, next(deck), n) for _ in range(count)]
