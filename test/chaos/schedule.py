"""schedule.py - what goes wrong when: a pure function of (seed, seconds, tasks), so that a seed that failed fails again
in the same order. Kinds are dealt from a shuffled deck, so that a short run meets each of them too.
"""
import random

# How often each kind is in a deck.
DECK = (("kill", 3), ("kill chief", 2), ("kill two", 1), ("stop", 2), ("link down", 2), ("split 2|2", 1), ("split 1|3", 1),
        ("full disk", 1), ("corrupt checkpoint", 1), ("slow storage", 1), ("drain", 1), ("kill in phase", 4))
GAP = (0.8, 4.4)  # seconds between two events
SILENT = 2.5  # seconds: whoever is silent for longer is known to be by all
BACK = (0.05, 1.5)  # until a task that ended is started again

# Where a task that comes back is killed, and at which passage at most. The writer of checkpoints is the chief.
PHASES = (("comm.connect", 2, False), ("comm.send", 400, False), ("comm.recv", 400, False), ("train.connect", 1, False),
          ("train.agree", 1, False), ("train.state_recv", 2, False), ("train.state_send", 2, False),
          ("train.forward", 60, False), ("train.reduce", 60, False), ("train.commit", 60, False), ("train.update", 60, False),
          ("train.update_middle", 60, False), ("train.update_end", 60, False), ("train.evaluate", 3, False),
          ("train.evaluated", 3, False), ("samples.write", 120, False), ("train.save", 2, True), ("ckpt.write", 12, True),
          ("ckpt.sync", 6, True), ("ckpt.rename", 3, True), ("ckpt.verify", 6, True))


def task_name(number):
    return "chief 0" if number == 0 else "worker %d" % (number - 1)


class Event:
    """`at`, `lasts` in seconds; `tasks`: who is hit; `back`: pause before what ended is started again."""

    def __init__(self, at, kind, tasks, lasts=0.0, back=0.0, sides=None, fault=None):
        self.at, self.kind, self.tasks, self.lasts, self.back = at, kind, tasks, lasts, back
        self.sides, self.fault = sides, fault

    @property
    def names_task(self):
        """Must the others learn who was hit? A silence that is shorter than what a network may swallow is none."""
        return self.kind in ("kill", "kill chief", "kill in phase", "slow storage", "drain") or (
            self.kind in ("stop", "link down", "split 1|3") and self.lasts > SILENT)

    def __str__(self):
        more = ["%.2f s" % self.lasts] if self.lasts else []
        more += ["sides %s" % "".join(map(str, self.sides))] if self.sides else []
        more += [self.fault] if self.fault else []
        who = ", ".join(task_name(i) for i in self.tasks)
        return self.kind + (": " + who if who else "") + (" (%s)" % ", ".join(more) if more else "")


def draw(r, at, kind, n):
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
    if kind == "corrupt checkpoint":  # which is read only when nobody holds the state
        return Event(at, kind, list(range(n)), back=back)
    if kind == "slow storage":  # for who will lead; it dies in the middle of it
        ms = r.choice((50, 200, 800))
        return Event(at, kind, [0], lasts=r.uniform(2, 5), back=back,
                     fault="ckpt.write=delay:%d@1+,ckpt.sync=delay:%d@1+,ckpt.rename=delay:%d@1+" % (ms // 10, ms, ms))
    if kind == "drain":
        return Event(at, kind, one, back=back + 0.5)
    point, most, is_writer = r.choice(PHASES)
    return Event(at, kind, [0] if is_writer else one, back=back, fault="%s=kill@%d" % (point, r.randint(1, most)))


def schedule(seed, seconds, n=4, lead=4.0, only=None):
    """Events between `lead` and `seconds`, by time. Deck by deck, in an order of its own each; `only`: all of one kind."""
    r = random.Random("trainerd chaos %d" % seed)
    out, deck, at = [], [], lead
    while at < seconds:
        if not deck:
            deck = [kind for kind, times in DECK for _ in range(times) if only in (None, kind)]
            r.shuffle(deck)
        out.append(draw(r, at, deck.pop(), n))
        at += r.uniform(*GAP)
    return out
