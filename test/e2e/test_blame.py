#!/usr/bin/env python3
"""Tests test/chaos/blame.py: which task a message names as the cause; what counts as right, wrong, missing and false
alarm; the schedules of gray failures; the packets that they drop. No task is started."""
import os
import sys

from kit import ROOT, main, test

sys.path.insert(1, os.path.join(ROOT, "test", "chaos"))
import blame  # noqa: E402
import hosts  # noqa: E402
from schedule import DECK_OF, DECKS, KINDS, WITHOUT_PS, LARGE, Drop, Event, kinds_of, one_by_one, schedule  # noqa: E402

AT = {i: "%s (10.78.0.%d:2222)" % (blame.task(i), i + 1) for i in range(4)}
LOST = "%s, step 12, in reduce for 0.2 s, was lost: silent for 1.2 s"
ALL_DECKS = kinds_of(WITHOUT_PS)


def warn(text, at=1.0):
    return {"event": "group", "level": "warn", "message": text, "_at": at}


@test
def blame_each_form_of_message_yields_its_culprit():
    rows = (
        (LOST % AT[2], ("lost", 2)),
        (AT[0] + ", step 3, in begin for 0.1 s, leads the group and was lost: Socket closed", ("lost", 0)),
        (AT[1] + ", step 3, in forward for 4.0 s, makes no progress, and the others wait for it; this phase has a limit of 3.0 s",
         ("lost", 1)),
        (AT[3] + " left the group and came back", ("lost", 3)),
        (AT[0] + " failed: save: No space left on device", ("lost", 0)),
        (AT[1] + " was asked to leave", ("lost", 1)),
        (AT[3] + " reports: step 1353: worker 1 died (Connection timed out)", ("lost", 2)),
        (AT[3] + " reports: step 1353: lost rank 0 (chief 0): reset", ("lost", 0)),
        (AT[3] + " reports: all-reduce: cancelled", ("lost", blame.NO_TASK)),
        ("no task makes progress: %s like the others; this phase has a limit of 3.0 s" % AT[0], ("lost", blame.NO_TASK)),
        ("ps 0 (10.78.0.5:2222), in serve for 0.6 s, was lost: its connection closed", ("lost", 4)),
        ("ps 0 (10.78.0.5:2222) reports: chief 0: parameter servers: no parameter server that is left holds all rows after step 3; "
         "all tasks return to the newest checkpoint", ("rows", blame.NO_TASK)),
        (AT[1] + " was refused: the version of trainerd differs", ("refused", 1)),
        ("waiting: 1 of 4 tasks is missing: " + AT[2], None),
        (AT[2] + " joins", None),
        ("lease: open: Read-only file system", None),
    )
    for text, expected in rows:
        assert blame.read_sentence(text) == expected, (text, blame.read_sentence(text))


@test
def blame_is_read_only_from_warnings_and_causes_of_views():
    view = {"event": "view", "level": "info", "_at": 2.0,
            "message": "generation 5: 3 of 4 tasks, led by chief 0 (%s)" % (LOST % AT[2])}
    records = [warn(LOST % AT[1]), view, {**view, "message": "generation 6: 4 of 4 tasks, led by chief 0 (%s joins)" % AT[2]},
               {**view, "message": "generation 7: 4 of 4 tasks, led by chief 0"},
               {"event": "step", "level": "info", "message": LOST % AT[3], "_at": 3.0}, {**warn(LOST % AT[3]), "level": "info"}]
    assert [(b.witness, b.at, b.culprit) for b in blame.blames(0, records)] == [(0, 1.0, 1), (0, 2.0, 2)]


def case(culprits, sentences, must=True, gap=0.5, kind="kill"):
    """Judges the messages of the witnesses. sentences: {witness: [text]}"""
    c = blame.Case(kind, 0.0, 1.0, culprits, must)
    c.gap = gap
    return c.judge([b for w, texts in sentences.items() for b in blame.blames(w, [warn(t) for t in texts])])


@test
def blame_right_wrong_and_missing_are_counted_for_each_task():
    of_two = {w: {2} for w in (0, 1, 3)}
    c = case(of_two, {w: [LOST % AT[2]] for w in (0, 1, 3)})
    assert c.is_right and c.right == [0, 1, 3]
    c = case(of_two, {0: [LOST % AT[2]], 1: [LOST % AT[3]]})
    assert not c.is_right and c.right == [0] and [b.culprit for b in c.wrong] == [3] and c.missing == [3]
    # a wrong message after a right one is wrong
    assert case({0: {2}}, {0: [LOST % AT[2], LOST % AT[1]]}).wrong
    # the messages of a task that is no witness do not count
    assert case({0: {2}}, {0: [LOST % AT[2]], 2: [LOST % AT[0]]}).is_right
    # no task had to wait, so no culprit is required; the second case has a gap, so a culprit is required
    assert case(of_two, {}, must=False).is_right
    assert case(of_two, {}, must=False, gap=blame.NOTICE + 1).missing == [0, 1, 3]
    # a message about a loss without a culprit does not count, and a refusal is not a blame
    assert case({0: {2}}, {0: ["no task makes progress: all"]}, must=False).missing == [0]
    assert case({0: set()}, {0: [AT[2] + " was refused: another job"]}, must=False).is_right
    assert case({0: set()}, {0: [LOST % AT[2]]}, must=False).wrong
    late = case(of_two, {w: [LOST % AT[2]] for w in (0, 1, 3)})
    late.judge_late(blame.blames(1, [warn(LOST % AT[2])]))
    assert late.is_right
    late.judge_late(blame.blames(1, [warn(LOST % AT[0])]))
    assert not late.is_right


@test
def blame_outside_every_window_is_a_false_alarm():
    found = blame.blames(0, [warn(LOST % AT[2], 1.0), warn(LOST % AT[2], 5.0), warn(AT[1] + " was refused: x", 9.0)])
    assert [b.at for b in blame.false_alarms(found, [(0.5, 2.0)])] == [5.0]
    assert len(blame.false_alarms(found, [])) == 2


@test
def limits_wrong_case_false_alarm_or_slow_median_fail():
    good = case({0: {2}}, {0: [LOST % AT[2]]})
    assert all(ok for _, _, ok in blame.limits([good] * 10, [], True))
    wrong, slow = case({0: {2}}, {}), case({0: {2}}, {0: [LOST % AT[2]]}, gap=9.0)
    assert [name for name, _, ok in blame.limits([good] * 99 + [wrong], [], True) if not ok] == ["blame"]
    assert [ok for _, _, ok in blame.limits([good] * 999 + [wrong], [], True)] == [True] * 3
    assert [name for name, _, ok in blame.limits([good], blame.blames(0, [warn(LOST % AT[2])]), True) if not ok] == [
        "false alarms"]
    assert [name for name, _, ok in blame.limits([slow], [], True) if not ok] == ["next step"]
    assert all(ok for _, _, ok in blame.limits([slow], [], False))
    ended = case({0: {2}}, {0: [LOST % AT[2]]})
    ended.ended.append("worker 2 ended with 138")
    assert not ended.is_right and "kill" in "\n".join(blame.table([good, ended]))
    unsaved = case({0: {0}}, {0: [LOST % AT[0]]}, kind="storage hang")
    unsaved.saved = blame.SAVED_SECONDS + 1
    assert not unsaved.is_right and "no checkpoint" in unsaved.sentence()


@test
def schedule_is_a_function_of_the_seed_and_every_kind_has_culprits():
    def shown(seed):
        return [str(e) for e in one_by_one(seed, 200, ALL_DECKS)]

    assert shown(1) == shown(1) != shown(2)
    assert [str(e) for e in one_by_one(1, 50, ALL_DECKS)] == shown(1)[:50]
    assert {e.kind for e in one_by_one(1, 2 * len(ALL_DECKS), ALL_DECKS)} == set(KINDS) - {k for k, _ in DECKS["ps"]}
    assert set(KINDS) == set(DECK_OF)
    assert {e.kind for e in schedule(3, 600, kinds_of(["gray"], without={"flapping"}))} == {
        k for k, _ in DECKS["gray"]} - {"flapping"}
    for e in one_by_one(5, 1000, ALL_DECKS):
        assert str(e) and all(0 <= w < 4 for w in e.culprits(4)), e
        assert e.drop is None or e.drop.host != e.drop.peer, e


@test
def culprits_of_pair_split_and_stranger_are_ends_other_side_and_none():
    def culprits(kind, tasks, **more):
        return Event(0, kind, tasks, **more).culprits(4)

    assert culprits("kill", [2]) == {0: {2}, 1: {2}, 3: {2}}
    assert culprits("stop leader", [0]) == {w: {0} for w in range(4)}
    assert culprits("data pair", [1, 3], drop=Drop("data", 1, 3)) == {w: {1, 3} for w in range(4)}
    assert culprits("data plane", [1], drop=Drop("data", 1)) == {w: {1} for w in (0, 2, 3)}
    assert culprits("split 1|3", [1], sides=[0, 1, 0, 0]) == {w: {1} for w in (0, 2, 3)}
    assert culprits("split 2|2", [0, 1], sides=[1, 1, 0, 0]) == {w: {0, 1, 2, 3} for w in range(4)}
    assert culprits("twin: same", [1]) == culprits("junk", [1]) == {w: set() for w in range(4)}


def rules_of(drop, listening=()):
    h = object.__new__(hosts.Hosts)
    h.n, h._listening = 4, lambda i: list(listening)
    return [(host, " ".join(rule)) for host, rule in h._rules_of(drop)]


@test
def drop_becomes_rules_on_the_receiving_host():
    assert rules_of(Drop("control", 1, 2, "in")) == [
        (1, "-s 10.78.0.3 -p tcp -m multiport --ports 2222 -j DROP")]
    assert rules_of(Drop("data", 1, 2, "out", LARGE)) == [
        (2, "-s 10.78.0.2 -p tcp -m multiport ! --ports 2222 -m length --length 1400:65535 -j DROP")]
    assert [host for host, _ in rules_of(Drop("data", 1, None, "out"))] == [0, 2, 3]
    assert rules_of(Drop("both", 0, 3, "in", share=0.25)) == [
        (0, "-s 10.78.0.4 -p tcp -m statistic --mode random --probability 0.2500 -j DROP")]
    assert rules_of(Drop("control", 1, 2, "out", port=True)) == [(2, "-s 10.78.0.2 -p tcp --sport 2222 -j DROP")]
    assert rules_of(Drop("data", 1, 2, "in", port=True), ["4000"]) == [(1, "-s 10.78.0.3 -p tcp --dport 4000 -j DROP")]


if __name__ == "__main__":
    main()
