"""sample_log.py - reads the files of `trainerd --sample-log` (format and reasoning:
lib/train/sample_log.h), and checks that every step was applied once, on the right samples.
"""
import graphlib


def generation(group):
    """Returns the generation of "12.0a1b2c3d"."""
    return int(group.split(".")[0])


class Life:
    """The records of one process."""

    def __init__(self, task, opened):
        self.task, self.opened = task, opened
        self.gives = []  # (group, step, lane, samples)
        self.dones = []  # (group, step, microseconds)


def read(path, task):
    """Returns the lives of a task in order. Lines that a death truncated are skipped; any other
    invalid line raises a ValueError."""
    lives = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            words = line.split()
            if not line.endswith("\n") or line.endswith("# torn\n"):
                continue
            try:
                numbers = [int(w) for w in words[2:]]
                if words[0] == "open":
                    lives.append(Life(task, int(words[1])))
                elif words[0] == "give":
                    step, lane, *samples = numbers
                    lives[-1].gives.append((words[1], step, lane, tuple(samples)))
                elif words[0] == "done":
                    step, at = numbers
                    lives[-1].dones.append((words[1], step, at))
                elif words[0] == "lost":
                    raise ValueError("the storage stalled, and %d lines were dropped: the files prove nothing" % int(words[1]))
                else:
                    raise ValueError("unknown word")
            except (ValueError, IndexError) as e:
                raise ValueError("%s:%d: %r: %s" % (path, number, line[:80], e))
    return lives


class History:
    """The history of all lives. `problems` has a text for each violation. `returns`: a process may
    return to a checkpoint, as in a group of which all ps that held some rows have died."""

    def __init__(self, lives, lanes, returns=False):
        self.lives, self.lanes, self.problems, self.returns = lives, lanes, [], returns
        self.returned = set()  # groups that began with a return of a running process
        self.gives = {}    # (group, step) -> {lane: life that computed it}
        self.first = {}    # (group, step) -> when first done
        self.samples = {}  # (step, lane) -> samples
        for life in lives:
            self._check_life(life)
            for give in life.gives:
                self._add_give(life, *give)
            for g, step, at in life.dones:
                self.first[g, step] = min(at, self.first.get((g, step), at))
        order = self._order()
        self._check_groups(order)
        self.chain = self._settle({g: i for i, g in enumerate(order)})

    def _problem(self, text, *args):
        self.problems.append(text % args)

    def _check_life(self, life):
        """Checks that a process applies steps in order, without a gap inside a group, and that its
        generations increase."""
        before = None
        for g, step, _ in life.dones:
            is_back = before is not None and step <= before[1]
            if is_back and self.returns and g != before[0]:
                self.returned.add(g)
            elif is_back or (before is not None and g == before[0] and step != before[1] + 1):
                self._problem("%s applied step %d in generation %s after step %d in generation %s", life.task, step, g,
                              before[1], before[0])
            if before is not None and g != before[0] and generation(g) <= generation(before[0]):
                self._problem("%s went from generation %s to %s", life.task, before[0], g)
            before = g, step

    def _add_give(self, life, g, step, lane, samples):
        lanes = self.gives.setdefault((g, step), {})
        if lane in lanes:
            self._problem("lane %d of step %d in generation %s was computed by %s and by %s", lane, step, g,
                          lanes[lane].task, life.task)
        lanes.setdefault(lane, life)
        if self.samples.setdefault((step, lane), samples) != samples:
            self._problem("step %d, lane %d: other samples in generation %s than before", step, lane, g)

    def _begin(self):
        """Returns {group: time of its first step}."""
        begin = {}
        for (g, _), at in self.first.items():
            begin[g] = min(at, begin.get(g, at))
        return begin

    def _order(self):
        """Returns the groups in order: each after those that precede it in some file; groups that
        no file orders, by the time of their first step."""
        begin, last = self._begin(), {}
        earlier = {g: set() for g in begin}
        for life in self.lives:
            for g, *_ in life.gives:
                if last.get(life.task) != g:
                    earlier.setdefault(g, set()).update({last[life.task]} - {g} if life.task in last else ())
                    last[life.task] = g
        sorter, out = graphlib.TopologicalSorter(earlier), []
        try:
            sorter.prepare()
        except graphlib.CycleError as e:
            self._problem("the files order these groups differently: %s", " ".join(e.args[1]))
            return sorted(begin, key=begin.get)
        ready = []
        while sorter.is_active():
            ready = sorted(ready + list(sorter.get_ready()), key=lambda g: begin.get(g, 0))
            out.append(ready.pop(0))
            sorter.done(out[-1])
        return out

    def _check_groups(self, order):
        """Finds two groups at once: a group that does two more steps while a later one trains. One
        more step is allowed: a task may have been delayed between the end of a reduction and its
        update."""
        begin, after = self._begin(), None
        for g in reversed([g for g in order if g in begin]):
            late = sorted(step for (h, step), at in self.first.items() if after and h == g and at > begin[after])
            if len(late) > 1:
                self._problem("two groups at once: generation %s did steps %s while generation %s trained", g, late, after)
            if after is None or begin[g] < begin[after]:
                after = g

    def _settle(self, place):
        """Returns [(group, step, time)] for steps 1, 2, ...: the surviving history, found from its
        end. It ends with the last group that did the last step. Where a group begins, its state
        came from a member that had done the previous step in another group, or else from a
        checkpoint of the last group that had done it."""
        made, members = {}, {}
        for g, step in self.first:
            made.setdefault(step, []).append(g)
        for life in self.lives:
            for g, *_ in life.gives:
                members.setdefault(g, set()).add(life)
        out, missing, g = [], [], None
        for step in range(max(made, default=0), 0, -1):
            groups = sorted((h for h in made.get(step, ()) if g is None or place[h] <= place[g]), key=place.get)
            if not groups:
                missing.insert(0, step)
                continue
            if g not in groups:
                held = {h for life in members.get(g, ()) for h, k, _ in life.dones if k == step}
                g = ([h for h in groups if h in held] or groups)[-1]
            lanes = sorted(self.gives.get((g, step), {}))
            if lanes != list(range(self.lanes)):
                self._problem("step %d in generation %s is done with lanes %s of %d", step, g, lanes, self.lanes)
            out.insert(0, (g, step, self.first[g, step]))
        if missing:
            self._problem("steps lost: %s", missing)
        self.lost, self.redone = len(missing), len(self.first) - len(out)
        return out

    def epochs(self, steps_per_epoch, batch, samples):
        """Returns (samples repeated, samples lost) in the chain, by epoch. Samples that do not fill
        a batch at the end of an epoch are not lost."""
        repeated = lost = 0
        n = self.chain[-1][1] if self.chain else 0
        for begin in range(1, n + 1, steps_per_epoch):
            steps = range(begin, min(begin + steps_per_epoch, n + 1))
            used = [s for step in steps for lane in range(self.lanes) for s in self.samples.get((step, lane), ())]
            known = {s for s in used if 0 <= s < samples}
            repeated += len(used) - len(known)
            lost += min(batch * len(steps), samples) - len(known)
        return repeated, lost

    def differences(self, other):
        """Returns the number of (step, lane) of the chain with other samples than `other`, an
        undisturbed run."""
        return sum(self.samples.get((step, lane)) != other.samples.get((step, lane))
                   for _, step, _ in self.chain for lane in range(self.lanes))
