#!/usr/bin/env python3
"""Runs chaos (scripts/chaos) for a minute, and tests the basis of its verdict: the schedule depends only on the seed, and
a history with any error is rejected."""
# needs: emulated
import json
import os
import subprocess
import sys

from kit import GUARD, ROOT, Skip, TRAINERD, Task, digits_job, expect_codes, main, start, test, workdir

sys.path.insert(1, os.path.join(ROOT, "test", "chaos"))
import hosts  # noqa: E402
import roster  # noqa: E402
import sample_log  # noqa: E402
import verdict  # noqa: E402
from schedule import DECKS, PS_PHASES, kinds_of, schedule  # noqa: E402

SEED = 3
SAMPLES = {(step, lane): (8 * step + 2 * lane, 8 * step + 2 * lane + 1) for step in range(20) for lane in range(2)}


@test
def schedule_is_a_function_of_the_seed_and_a_minute_has_every_kind():
    def shown(seed, seconds):
        return ["%.6f %s %.6f" % (e.at, e, e.back) for e in schedule(seed, seconds, kinds_of(["hard"]))]

    assert shown(7, 600) == shown(7, 600) != shown(8, 600)
    assert shown(7, 600)[:len(shown(7, 60))] == shown(7, 60)
    for seed in range(200):
        events = schedule(seed, 600, kinds_of(["hard"]))
        assert {e.kind for e in events} == {kind for kind, _ in DECKS["hard"]}
        assert all(0 < b.at - a.at < 5 for a, b in zip(events, events[1:]))
        assert all(t in range(4) for e in events for t in e.tasks)


def lives(text):
    """Writes a sample log for each task; `text` has a line `task: line; line; ...` for each."""
    folder, out = workdir(), []
    for i, line in enumerate(t.strip() for t in text.strip().splitlines()):
        task, lines = line.split(": ", 1)
        path = os.path.join(folder, "%d.txt" % i)
        with open(path, "w") as f:
            for part in lines.split("; "):
                word, *numbers = part.split()
                if word != "open":  # "2" is the first group with number 2; "2.b" is another group with this number
                    numbers[0] += "" if "." in numbers[0] else ".a"
                if word == "give":
                    numbers += map(str, SAMPLES[int(numbers[1]), int(numbers[2])])
                f.write(" ".join([word, *numbers]) + "\n")
        out += sample_log.read(path, task)
    return out


WHOLE = """a: open 1 1; give 1 1 0; done 1 1 10; give 1 2 0; done 1 2 20; give 2 3 0; done 2 3 30
           b: open 1 2; give 1 1 1; done 1 1 11; give 1 2 1; open 25 3; give 2 3 1; done 2 3 31"""


def history(text):
    return sample_log.History(lives(text), 2)


@test
def history_with_a_killed_task_is_accepted():
    h = history(WHOLE)
    assert not h.problems and h.lost == 0 and h.redone == 0, h.problems
    assert [(g, step) for g, step, _ in h.chain] == [("1.a", 1), ("1.a", 2), ("2.a", 3)]
    assert h.epochs(3, 4, 100) == (0, 0) and h.differences(h) == 0
    # killed between the all-reduce and its "done": the lane counts, because the other task finished the step
    h = history("a: open 1 1; give 1 1 0; done 1 1 10\nb: open 1 2; give 1 1 1")
    assert not h.problems and len(h.chain) == 1
    # a step that no task finished is repeated, and so is a step if all tasks that finished it were killed
    h = history("a: open 1 1; give 1 1 0; give 2 1 0; done 2 1 9\nb: open 1 2; give 1 1 1; give 2 1 1")
    assert not h.problems and [(g, step) for g, step, _ in h.chain] == [("2.a", 1)] and h.redone == 0
    h = history("a: open 1 1; give 1 1 0; done 1 1 5; open 6 1; give 2 1 0; done 2 1 9\n"
                "b: open 1 2; give 1 1 1; open 6 2; give 2 1 1")
    assert not h.problems and [(g, step) for g, step, _ in h.chain] == [("2.a", 1)] and h.redone == 1
    # no task that knew the number of the generation was left
    h = history("a: open 1 1; give 7 1 0; done 7 1 5; give 7 2 0; done 7 2 6; open 7 1; give 1.b 2 0; done 1.b 2 9\n"
                "b: open 1 2; give 7 1 1; give 7 2 1; open 6 2; give 1.b 2 1")
    assert not h.problems and [g for g, _, _ in h.chain] == ["7.a", "1.b"] and h.redone == 1, h.problems
    # a task that resumed from a checkpoint trained one step alone before it joined the task with the newest state
    h = history("a: open 1 1; give 1 1 0; done 1 1 5; give 1 2 0; done 1 2 6; give 1 3 0; done 1 3 7; open 7 1; "
                "give 1.b 2 0; give 1.b 2 1; done 1.b 2 9; give 2 4 0; done 2 4 12\n"
                "b: open 1 2; give 1 1 1; give 1 2 1; done 1 2 6; give 1 3 1; done 1 3 7; give 2 4 1; done 2 4 12")
    assert not h.problems and [g for g, _, _ in h.chain] == ["1.a", "1.a", "1.a", "2.a"] and h.redone == 1, h.problems
    # a task was suspended between all-reduce and update while the others repeated the step
    h = history("a: open 1 1; give 1 1 0; give 2 1 0; give 2 1 1; done 2 1 9; give 2 2 0; give 2 2 1; done 2 2 10\n"
                "b: open 1 2; give 1 1 1; done 1 1 12")
    assert not h.problems, h.problems


@test
def history_with_an_error_is_rejected():
    rows = (
        ("order these groups differently", "a: open 1 1; give 1 1 0; give 2 1 0; give 1 2 0\nb: open 1 1; give 2 1 1; give 1 1 1"),
        ("done with lanes [0] of 2", WHOLE.replace("give 2 3 1; ", "")),
        ("steps lost: [2]", WHOLE.replace("; done 1 2 20", "")),
        ("was computed by a and by b", WHOLE.replace("give 2 3 1", "give 2 3 1; give 2 3 0")),
        ("was computed by b and by b", WHOLE.replace("give 2 3 1", "give 2 3 1; give 2 3 1")),
        ("step 4 in generation 3.a is done with lanes [] of 2", WHOLE + "\nc: open 1 9; done 3 4 40"),
        ("other samples", WHOLE + "\nc: open 1 9; give 3 21 0"),
        ("applied step 2 in generation 2.a after step 2", WHOLE.replace("give 2 3 0", "give 2 2 0; done 2 2 25; give 2 3 0")),
        ("applied step 3 in generation 1.a after step 1", WHOLE.replace("give 1 2 0; done 1 2 20; give 2 3 0; done 2 3 30",
                                                                      "give 1 3 0; done 1 3 30")),
        ("two groups at once", WHOLE + "\nc: open 1 3; give 1 4 0; give 1 4 1; done 1 4 40; give 1 5 0; give 1 5 1; done 1 5 50"),
        ("went from generation 2.a to 1.a", WHOLE.replace("done 2 3 30", "done 2 3 30; give 1 4 0; done 1 4 40")),
    )
    SAMPLES[21, 0] = (0, 1)
    for word, text in rows:
        if "give 3 21" in text:
            found = lives(text)
            found[-1].gives = [("3.a", 3, 0, (5, 6))]
            h = sample_log.History(found, 2)
        else:
            h = history(text)
        assert any(word in p for p in h.problems), (word, h.problems)


@test
def history_lost_repeated_or_foreign_samples_are_counted():
    good, found = history(WHOLE), lives(WHOLE)
    found[0].gives[1] = ("1.a", 2, 0, found[0].gives[0][3])  # step 2 has the samples of step 1
    h = sample_log.History(found, 2)
    assert h.epochs(3, 4, 100) == (2, 2) and h.differences(good) == 1


@test
def history_truncated_line_is_skipped_and_unknown_line_is_rejected():
    path = os.path.join(workdir(), "s.txt")
    with open(path, "w") as f:
        f.write("open 1 1\ngive 1.a 1 0 12 # torn\nopen 2 2\ngive 1.a 1 0 123\ndone 1.a 1 1")
    a, b = sample_log.read(path, "a")
    assert a.gives == [] and b.gives == [("1.a", 1, 0, (123,))] and b.dones == []
    with open(path, "a") as f:
        f.write("\nwhat is this\n")
    try:
        sample_log.read(path, "a")
        assert False, "it was read"
    except ValueError as e:
        assert "s.txt:6" in str(e), e


@test
def verdict_with_other_weights_other_losses_or_a_missing_step_is_failed():
    folder = workdir()
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        with open(os.path.join(folder, name), "w") as f:
            f.write(text)
    a, b, c = (os.path.join(folder, n) for n in "abc")
    for pairs, losses, failed in (([("w", a, b)], [0.5] * 100, []), ([("w", a, c)], [0.5] * 100, ["final weights"]),
                                  ([("w", a, a + "x")], [0.5] * 99 + [0.25], ["final weights", "loss per step"]),
                                  ([("w", a, b)], [], ["loss per step"]), ([("w", a, b)], [0.5] * 99, ["loss per step"])):
        v = verdict.Verdict()
        verdict.files(v, pairs)
        verdict.losses(v, list(enumerate(losses)), [(k, 0.5) for k in range(100)])
        assert v.failed == failed and ("PASSED" in v.text()) == (not failed), v.text()


@test
def sample_log_four_tasks_and_one_are_equal_for_each_lane():
    alone, together = workdir(), workdir()
    changes = {"train": {"epochs": 3, "lanes": 4}, "checkpoint": None, "summary": None}
    t = Task(digits_job(alone, **changes), args=("--devices", "cpu:2", "--sample-log", os.path.join(alone, "s.txt")))
    expect_codes([t], [0])
    expect_codes(start(digits_job(together, **changes), 4, args=("--sample-log", os.path.join(together, "s.txt"))), [0] * 4)
    one = sample_log.History(sample_log.read(os.path.join(alone, "s.txt"), "alone"), 4)
    four = sample_log.History([life for i in range(4) for life in
                               sample_log.read(os.path.join(together, "s.worker-%d.txt" % i), "worker %d" % i)], 4)
    assert not one.problems and not four.problems and len(one.chain) == len(four.chain) == 66
    assert one.epochs(22, 64, 1438) == four.epochs(22, 64, 1438) == (0, 0), one.epochs(22, 64, 1438)
    assert four.differences(one) == 0 and len(one.samples) == 66 * 4


@test
def sample_log_check_does_not_create_it_and_non_file_is_refused():
    folder = workdir()
    job, path = digits_job(folder), os.path.join(folder, "s.txt")
    p = subprocess.run([TRAINERD, "--job", job, "--check", "--sample-log", path], capture_output=True, text=True)
    assert p.returncode == 0 and json.loads(p.stdout)["sample_log"] == path and not os.path.exists(path), p
    p = subprocess.run([TRAINERD, "--job", job, "--sample-log", "/dev/null"], capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 2 and "--sample-log: '/dev/null' is a device; expected" in p.stderr, p


@test
def schedule_with_ps_is_a_function_of_the_seed_and_hits_only_its_tasks():
    kinds, phases = kinds_of(["hard", "ps"]), set()
    roster.set_trainers(3)
    try:
        assert [roster.task_name(i) for i in (0, 2, 3, 5)] == ["chief 0", "worker 1", "ps 0", "ps 2"]
        assert all(roster.number_of(roster.task_name(i)) == i for i in range(6))
        for seed in range(50):
            events = schedule(seed, 600, kinds, 6)
            assert list(map(str, events)) == list(map(str, schedule(seed, 600, kinds, 6)))
            assert {e.kind for e in events} == set(kinds)
            for e in events:
                assert all(t in range(6) for t in e.tasks) and all(w in range(3) for w in e.culprits(6)), e
                servers = [t for t in e.tasks if t >= 3]
                if " ps" in e.kind:
                    count = 3 if "all" in e.kind else 2 if "two" in e.kind else 1
                    assert len(servers) == count and len(e.tasks) == count + ("chief" in e.kind), e
                elif e.kind == "kill in phase":
                    assert not servers, e
            phases |= {e.fault.split("=")[0] for e in events if e.kind == "kill ps in phase"}
    finally:
        roster.set_trainers(4)
    assert phases == {point for point, _ in PS_PHASES}


@test
def history_that_returns_to_a_checkpoint_is_accepted_only_with_ps():
    text = WHOLE.replace("give 2 3 0; done 2 3 30", "give 2 2 0; done 2 2 30; give 2 3 0; done 2 3 40").replace(
        "open 25 3; give 2 3 1; done 2 3 31", "give 2 2 1; done 2 2 31; give 2 3 1; done 2 3 41")
    assert any("applied step 2 in generation 2.a after step 2" in p for p in history(text).problems)
    h = sample_log.History(lives(text), 2, returns=True)
    assert not h.problems and [g for g, _, _ in h.chain] == ["1.a", "2.a", "2.a"] and h.redone == 1 and h.returned == {"2.a"}, h.problems
    h = sample_log.History(lives(WHOLE.replace("give 2 3 0", "give 2 3 0; done 2 3 29; give 2 3 0")), 2, returns=True)
    assert any("applied step 3 in generation 2.a after step 3" in p for p in h.problems), h.problems


def expect_chaos_passes(seconds, *args):
    folder = os.path.join(workdir(), "chaos")
    p = subprocess.Popen([os.path.join(ROOT, "scripts", "chaos"), "--seconds", str(seconds), "--seed", str(SEED), "--folder", folder, *args],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out, _ = p.communicate(timeout=10 * GUARD)
    except subprocess.TimeoutExpired:
        p.kill()  # the kernel then ends all processes of the namespace
        out = p.communicate()[0] + "\nnot through after 500 s"
    if p.returncode == hosts.REFUSED:
        raise Skip(out.strip().splitlines()[-1])
    wrong = [line.strip() for line in out.splitlines() if "<-- WRONG" in line or line.startswith(("verdict", "not through"))]
    assert p.returncode == 0, "seed %d: exit code %d: %s\n%s" % (SEED, p.returncode, "; ".join(wrong), out[-12000:])
    print(out[out.index("---- verdict"):])
    return out


@test
def chaos_loses_no_step():
    expect_chaos_passes(30, "--decks", "hard")


@test
def chaos_with_compressed_gradients_loses_no_step():
    expect_chaos_passes(20, "--decks", "hard", "--compression", "int8")


@test
def chaos_with_residuals_loses_no_step():
    out = expect_chaos_passes(40, "--decks", "hard", "--compression", "top_k")
    assert "residuals were lost" in out and "residuals were lost     0" not in out, out  # so a return was tested


@test
def chaos_with_residuals_on_gpus_loses_no_step():
    out = expect_chaos_passes(30, "--decks", "hard", "--devices", "cuda:0", "--compression", "power_sgd")
    assert "residuals were lost" in out and "residuals were lost     0" not in out, out


@test
def chaos_with_ps_loses_no_step():
    out = expect_chaos_passes(40, "--ps", "3", "--decks", "ps")
    assert "rows were lost" in out and "rows were lost         0" not in out, out  # so a return was tested


if __name__ == "__main__":
    main()
