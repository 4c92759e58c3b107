"""sample_log.py - reads what `trainerd --sample-log` left (lib/train/sample_log.h has the format and the argument)
and says whether every step happened once, on every sample it should have.
"""


class Life:
    """What one process appended."""

    def __init__(self, task, opened):
        self.task, self.opened = task, opened
        self.gives = []  # (generation, step, lane, samples)
        self.dones = []  # (generation, step, microseconds)


def read(path, task):
    """The lives of a task, in order. Lines cut off by a death are skipped; any other that is no line of this format
    is a ValueError."""
    lives = []
    with open(path) as f:
        for number, line in enumerate(f, 1):
            words = line.split()
            if not line.endswith("\n") or line.endswith("# torn\n"):
                continue
            try:
                numbers = [int(w) for w in words[1:]]
                if words[0] == "open":
                    lives.append(Life(task, numbers[0]))
                elif words[0] == "give":
                    g, step, lane, *samples = numbers
                    lives[-1].gives.append((g, step, lane, tuple(samples)))
                elif words[0] == "done":
                    g, step, at = numbers
                    lives[-1].dones.append((g, step, at))
                else:
                    raise ValueError("unknown word")
            except (ValueError, IndexError) as e:
                raise ValueError("%s:%d: %r: %s" % (path, number, line[:80], e))
    return lives


class History:
    """All lives together. `problems` has a sentence for each thing that must not be."""

    def __init__(self, lives, lanes):
        self.lives, self.lanes, self.problems = lives, lanes, []
        self.gives = {}   # (generation, step) -> {lane: (samples, task)}
        self.first = {}   # (generation, step) -> when first done
        self.samples = {} # (step, lane) -> samples
        for life in lives:
            self._check_life(life)
            for give in life.gives:
                self._add_give(life, *give)
            for g, step, at in life.dones:
                self.first[g, step] = min(at, self.first.get((g, step), at))
        self._check_generations()
        self.chain = self._settle()

    def _problem(self, text, *args):
        self.problems.append(text % args)

    def _check_life(self, life):
        """A process applies steps in order; while its generation lasts, without a gap."""
        before = None
        for g, step, _ in life.dones:
            if before is not None and (step <= before[1] or (g == before[0] and step != before[1] + 1)):
                self._problem("%s applied step %d in generation %d after step %d in generation %d", life.task, step, g,
                              before[1], before[0])
            if before is not None and g < before[0]:
                self._problem("%s went from generation %d back to %d", life.task, before[0], g)
            before = g, step

    def _add_give(self, life, g, step, lane, samples):
        known = self.gives.setdefault((g, step), {}).setdefault(lane, (samples, life))
        if known[1] is not life:
            self._problem("lane %d of step %d in generation %d was computed by %s and by %s", lane, step, g,
                          known[1].task, life.task)
        if self.samples.setdefault((step, lane), samples) != samples:
            self._problem("step %d, lane %d: other samples in generation %d than before", step, lane, g)

    def _check_generations(self):
        """Two groups at once: a generation that goes on for two steps while a later one works. One more step is that of a
        task that was held up between the end of a reduction and its update."""
        begin = {}
        for (g, _), at in self.first.items():
            begin[g] = min(at, begin.get(g, at))
        for g in begin:
            after = min(((at, h) for h, at in begin.items() if h > g), default=None)
            late = sorted(step for (h, step), at in self.first.items() if after and h == g and at > after[0])
            if len(late) > 1:
                self._problem("two groups at once: generation %d did steps %s while generation %d trained", g, late, after[1])

    def _settle(self):
        """[(generation, step, when)] for steps 1, 2, ...: of several generations that did a step the last counts."""
        last = {}
        for (g, step), at in self.first.items():
            if step not in last or g > last[step][0]:
                last[step] = g, at
        out, missing = [], []
        for step in range(1, max(last, default=0) + 1):
            if step not in last:
                missing.append(step)
                continue
            g, at = last[step]
            if out and g < out[-1][0]:
                self._problem("step %d is of generation %d, but step %d before it of %d", step, g, out[-1][1], out[-1][0])
            lanes = sorted(self.gives.get((g, step), {}))
            if lanes != list(range(self.lanes)):
                self._problem("step %d in generation %d is done with lanes %s of %d", step, g, lanes, self.lanes)
            out.append((g, step, at))
        if missing:
            self._problem("steps lost: %s", missing)
        self.lost, self.redone = len(missing), len(self.first) - len(out)
        return out

    def epochs(self, steps_per_epoch, batch, samples):
        """(samples repeated, samples lost) in the chain, epoch by epoch; what does not fill a batch at an epoch's end is
        not lost."""
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
        """How many (step, lane) of the chain name other samples than `other`, an undisturbed run, has."""
        return sum(self.samples.get((step, lane)) != other.samples.get((step, lane))
                   for _, step, _ in self.chain for lane in range(self.lanes))
