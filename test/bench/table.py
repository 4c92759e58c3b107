"""table.py - collects measurements and prints the table: trainerd, the peer or the limit, their ratio, the aim."""
import statistics
import subprocess
import sys

from peers import Unavailable

TROUBLE = (Unavailable, AssertionError, KeyError, OSError, ValueError, subprocess.SubprocessError)
WIDTHS = (44, 10, 26, 8, 10)


def one_line(trouble):
    """Returns an exception as one line: its first line and, of a longer text, the last."""
    lines = [t.strip() for t in str(trouble).splitlines() if t.strip()] or [type(trouble).__name__]
    return lines[0][:300] if len(lines) == 1 else "%s ... %s" % (lines[0][:200], lines[-1][:300])


def duration(seconds):
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "us"))
    value = seconds / scale
    return "%.*f %s" % (0 if value >= 100 else 1 if value >= 10 else 2, value, unit)


class Side:
    """One side of a comparison: numbers by key, added in each round, or the reason why there are none."""

    def __init__(self, name, measure):
        self.name, self.measure, self.values, self.why = name, measure, {}, None

    def take(self):
        """Measures once more, unless an earlier attempt failed."""
        if self.why is not None:
            return
        try:
            for key, value in self.measure().items():
                self.values.setdefault(key, []).extend(value if isinstance(value, list) else [value])
        except TROUBLE as trouble:
            self.why = one_line(trouble)

    def figures(self, key=None):
        if self.why is not None:
            raise Unavailable("%s: %s" % (self.name, self.why))
        if not self.values.get(key):
            raise Unavailable("%s: no figure for %s" % (self.name, key))
        return self.values[key]

    def median(self, key=None):
        return statistics.median(self.figures(key))

    def best(self, key=None):
        """The smallest: of times, the one that other load disturbed least."""
        return min(self.figures(key))


def interleave(rounds, *sides):
    for _ in range(rounds):
        for side in sides:
            side.take()


class Table:
    def __init__(self, quick=False):
        self.quick = quick  # one round of each, to check that everything runs
        self.targets = self.met = self.failed = 0

    def interleave(self, rounds, *sides):
        interleave(1 if self.quick else rounds, *sides)

    def line(self, *cells):
        text = "  ".join("%-*s" % (w, c) for w, c in zip(WIDTHS, cells))
        print((text + "  " + cells[len(WIDTHS)] if len(cells) > len(WIDTHS) else text).rstrip(), flush=True)

    def row(self, name, aim, make):
        """Adds a row. make() returns trainerd's figure, the peer or limit, the ratio, whether the aim is met, and
        optionally a remark. aim "": no aim, for context only."""
        self.targets += aim != ""
        try:
            ours, other, ratio, met, *more = make()
        except TROUBLE as trouble:
            self.failed += 1
            self.line(name, "cannot run: " + one_line(trouble))
            return
        self.met += aim != "" and met
        self.line(name, ours, other, ratio, aim, ("met" if met else "NOT MET") + "".join(more) if aim else "")

    def faster(self, name, ours, peer, key=None, at_least=None, better=None):
        """Adds a row of two times; the ratio is the speed-up of trainerd. `at_least` is the aim, `better` a further
        goal."""
        def make():
            a, b = ours.median(key), peer.median(key)
            ratio = b / a
            met = at_least is not None and ratio >= at_least
            return (duration(a), "%s %s" % (peer.name, duration(b)), "%.2f x" % ratio, met,
                    ", %s %g x" % ("and" if ratio >= better else "not", better) if met and better is not None else "")

        self.row(name, ">= %g x" % at_least if at_least is not None else "", make)

    def share(self, name, side, ours, limit, at_least):
        """Adds a row of two speeds in GB/s measured by one program; the ratio is trainerd's share of the limit."""
        def make():
            a, b = side.median(ours), side.median(limit)
            return "%.2f GB/s" % a, "%s %.2f GB/s" % (limit[0], b), "%.0f %%" % (100 * a / b), a >= at_least * b

        self.row(name, ">= %.0f %%" % (100 * at_least), make)

    def within(self, name, side, seconds):
        """Adds a row of one time without a peer."""
        def make():
            a = side.median()
            return duration(a), "", "", a <= seconds

        self.row(name, "<= %s" % duration(seconds), make)

    def group(self, name, measure, *args):
        """Runs measure(), which adds rows; an error outside of its rows is reported as a row of the group."""
        try:
            measure(self, *args)
        except TROUBLE as trouble:
            self.failed += 1
            self.line(name, "cannot run: " + one_line(trouble))

    def end(self):
        """Prints the last line; returns the exit code: 1 if a row could not run; a missed aim is not an error."""
        if self.failed:
            print("%d row%s could not run" % (self.failed, "" if self.failed == 1 else "s"), file=sys.stderr)
        print("bench: %d of %d targets met" % (self.met, self.targets), flush=True)
        return 1 if self.failed else 0
