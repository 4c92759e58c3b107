"""verdict.py - compares the logs of a run under faults with those of an undisturbed run, and prints
a verdict.

    steps       steps 1..n are each applied once in the surviving history (sample_log.py)
    samples     each sample is used once per epoch, in the same lane as in the undisturbed run
    loss        each step is in the log of at least one task, and its loss in every log equals that
                of the undisturbed run
    weights     model, optimizer state and exported model are byte-equal to those of the undisturbed
                run
    gap         the longest time in which no task completed a step
    goodput     (steps of the history * time of a step before the first fault, with evaluations and
                checkpoints) / time from the first step to the last: 100 % if no fault cost any
                time. A repeated step counts once
    causes      for isolated faults: the number of other tasks that named the task that was hit
    blame       whether the logs blame the right tasks (blame.py)
"""
import statistics

import blame

ALONE = 1.5  # a fault with this many seconds without another fault around it is isolated
LATE = 20.0  # limit in seconds until an armed task has reached its fault point
NEWS = 4.0   # seconds until a fault must be known; its gap is searched until then


def shown(seconds):
    return "%.0f ms" % (1e3 * seconds) if seconds < 1 else "%.2f s" % seconds


class Verdict:
    def __init__(self):
        self.lines, self.failed = [], []

    def row(self, name, text, ok=True):
        self.lines.append("%-22s %s%s" % (name, text, "" if ok else "   <-- WRONG"))
        if not ok:
            self.failed.append(name)

    def text(self):
        word = "PASSED" if not self.failed else "FAILED: " + ", ".join(self.failed)
        return "\n".join(["---- verdict ----"] + self.lines + ["verdict: " + word])


def steps(v, history):
    v.row("steps", "%d applied once each, lost %d; %d repeated" % (
        len(history.chain), history.lost, history.redone), history.lost == 0)
    v.row("history", "; ".join(history.problems[:5]) or "one chain over %d generations, never two groups at once" % len(
        {g for g, _, _ in history.chain}), not history.problems)


def samples(v, history, reference, steps_per_epoch, batch, n):
    repeated, lost = history.epochs(steps_per_epoch, batch, n)
    other = history.differences(reference)
    v.row("samples", "lost %d, repeated %d, lanes with others than undisturbed %d%s" % (
        lost, repeated, other, "; undisturbed: " + reference.problems[0] if reference.problems else ""),
          repeated == lost == other == 0 and not reference.problems)


def losses(v, logged, reference, near=0):
    """Compares two lists [(step, loss)]. No step may be missing in all logs, and no loss may differ by
    more than `near`."""
    expected = dict(reference)
    wrong = sorted({step for step, loss in logged if not abs(expected.get(step, float("nan")) - loss) <= near})
    missing = sorted(set(expected) - {step for step, _ in logged})
    v.row("loss per step", "%d of %d steps seen%s, different %d%s" % (
        len(expected) - len(missing), len(expected), ", not: " + " ".join(map(str, missing[:20])) if missing else "",
        len(wrong), " (first: step %d)" % wrong[0] if wrong else ""), bool(expected) and not missing and not wrong)


def files(v, pairs):
    """pairs: [(name, path of this run, path of the undisturbed run)]"""
    if not pairs:
        return
    different = []
    for name, ours, theirs in pairs:
        try:
            with open(ours, "rb") as a, open(theirs, "rb") as b:
                if a.read() != b.read():
                    different.append(name)
        except OSError as e:
            different.append("%s (%s)" % (name, e))
    v.row("final weights", "%s: %s" % (", ".join(p[0] for p in pairs), "byte-equal to the undisturbed run" if not different
                                       else "different: " + ", ".join(different)), not different)


def phases(v, tasks):
    """Counts the armed kills: some tasks reach their fault point before another fault hits them."""
    lives = [life for t in tasks for life in t.lives if "=kill@" in life.fault]
    fired = [life for life in lives if life.was_armed_kill]
    v.row("kills in a phase", "%d armed, %d happened: %s" % (len(lives), len(fired),
                                                            " ".join(sorted(life.fault for life in fired)) or "none"))


def returns(v, history):
    v.row("rows were lost", "%d times all ps with some rows; the processes of the workers returned to a checkpoint" % len(
        history.returned))


def copies(v, history):
    v.row("residuals were lost", "%d groups began with a return of running processes to their copies" % len(history.returned))


def gaps(times):
    """Returns [(seconds, begin, end)] between consecutive steps."""
    return [(b - a, a, b) for a, b in zip(times, times[1:])]


def speed(v, history, events, begin, end):
    """events: with their actual times since `begin`; begin, end: the evaluated time, in seconds
    since 1970."""
    between = gaps(sorted(at / 1e6 for at in history.first.values() if at / 1e6 <= end))
    n = sum(at / 1e6 <= end for _, _, at in history.chain)
    if not between or not events:
        v.row("gap", "no steps or no faults to evaluate", False)
        return
    longest = max(between)
    v.row("longest gap", "%s, at %.1f s" % (shown(longest[0]), longest[1] - begin))
    calm = [g for g in between if g[2] < begin + events[0].at]
    if len(calm) < 10:
        v.row("goodput", "%d steps before the first fault are too few to compare with" % len(calm), False)
        return
    step = sum(g[0] for g in calm) / len(calm)
    wall = between[-1][2] - between[0][1]
    v.row("goodput", "%.1f %% (%d steps of %s undisturbed, in %.1f s)" % (
        100 * step * (n - 1) / wall, n, shown(step), wall))
    for kind in sorted({e.kind for e in events}):
        seen = [largest(between, begin + e.at, begin + e.at + e.lasts + NEWS,
                        min([begin + o.at for o in events if o.at > e.at], default=float("inf")))
                for e in events if e.kind == kind]
        alone = [s for s, e in zip(seen, [e for e in events if e.kind == kind]) if is_isolated(e, events)]
        v.row("  gap, " + kind, "longest %s of %d; isolated faults: %s" % (
            shown(max(seen)), len(seen), "median %s, of %d" % (shown(statistics.median(alone)), len(alone)) if alone else "none"))


def is_isolated(e, events):
    return not any(o is not e and (o.at - e.at < ALONE + e.lasts if o.at > e.at else e.at - o.at < ALONE + o.lasts + o.back)
                   for o in events)


def largest(between, begin, end, next_fault):
    """Returns the largest gap that a fault can have caused: one that contains it, or that begins
    before the next fault."""
    return max((g[0] for g in between if g[2] > begin and g[1] < min(end, next_fault)), default=0)


def causes(v, events, tasks, begin):
    """Checks that every task that ran before and after the fault named the task that ended, or was
    silent for longer than the detection limit. Only isolated faults, because overlapping faults
    have several causes."""
    asked = named = 0
    silent = []
    for e in events:
        if not e.names_task or not is_isolated(e, events):
            continue
        for t in tasks:
            if t.number in e.tasks or not was_up(t, begin + e.at):
                continue
            asked += 1
            if says(t, e, tasks, begin):
                named += 1
            else:
                silent.append("%s at %.1f s: %s" % (t.name, e.at, e))
    v.row("causes", "%d of %d survivors named the task that was hit%s" % (
        named, asked, "; not: " + "; ".join(silent[:3]) if silent else "" if asked else ": no fault was isolated"), named == asked)


def was_up(t, at):
    """True if the task had done a step before that time, and its process continued after the
    fault."""
    return any(any(r["_at"] < at - 0.2 and r.get("event") == "step" for r in life.records) and
               life.records[-1]["_at"] > at + NEWS for life in t.lives)


def says(t, e, tasks, begin):
    words = [w for n in e.tasks for w in (tasks[n].name, tasks[n].address)]
    return any(begin + e.at <= r["_at"] <= begin + e.at + NEWS and r.get("event") not in ("step", "note", "plan") and
               any(w in r.get("message", "") for w in words) for life in t.lives for r in life.records)


def blamed(tasks):
    return [b for t in tasks for life in t.lives for b in blame.blames(t.number, list(life.records))]


def cases_alone(events, tasks, begin):
    """Returns a blame.Case for each isolated event. causes() counts whether a task was named at
    all."""
    found, out = blamed(tasks), []
    for e in (e for e in events if is_isolated(e, events)):
        at = begin + e.at
        until = min([begin + o.at for o in events if o.at > e.at] + [at + e.lasts + blame.NEWS])
        witnesses = {w: c for w, c in e.culprits(len(tasks)).items() if was_up(tasks[w], at)}
        out.append(blame.Case(e.kind, at, at + e.lasts, witnesses, False).judge([b for b in found if at <= b.at < until]))
    return out


def alarms(events, tasks, begin):
    """Returns the blames outside the windows of all faults. An armed fault may happen late."""
    return blame.false_alarms(blamed(tasks), [
        (begin + e.at, begin + e.at + e.lasts + e.back + (LATE if e.fault else blame.NEWS)) for e in events])


def blame_rows(v, cases, found, is_idle, is_judged=True):
    """is_judged: False if faults overlap; one fault may then be the cause of a blame during
    another."""
    for name, text, ok in blame.limits(cases, found, is_idle):
        v.row(name, text, ok or not is_judged)
    for case in [c for c in cases if not c.is_right][:8]:
        v.row("  " + case.kind, case.sentence()[:300])
    v.lines += blame.table(cases) if cases else []
