#!/usr/bin/python3
"""Checks of the job against the cluster: requirements that the group cannot meet are refused before the task joins."""
# san: yes
import json
import subprocess

from kit import SLOW, TRAINERD, digits_job, free_ports, main, test, tf_config, workdir


def check(n, **changes):
    """Runs trainerd --check for worker 0 of n (0: no cluster); returns the exit code, the plan and stderr."""
    path = digits_job(workdir(), **changes)
    env = {"TF_CONFIG": json.dumps(tf_config(free_ports(n), 0))} if n > 0 else {}
    p = subprocess.run([TRAINERD, "--check", "--job", path, "--devices", "cpu:1"], env=env, capture_output=True, text=True,
                       timeout=60 * SLOW)
    return p.returncode, json.loads(p.stdout) if p.stdout else None, p.stderr


@test
def min_world_by_default_is_the_whole_cluster():
    for n, asked, settled in ((0, {}, 1), (4, {}, 4), (4, {"min_world": 3}, 3), (4, {"min_world": 4}, 4), (1, {"min_world": 1}, 1)):
        code, plan, said = check(n, elastic=asked)
        assert code == 0 and plan["min_world"] == settled, (n, asked, said)
        assert plan["job"]["elastic"] == {"min_world": asked.get("min_world", 0), "rejoin_seconds": 10}, plan["job"]["elastic"]


@test
def min_world_above_the_cluster_or_a_minority_without_lease_is_refused():
    for n in (0, 2):
        code, _, said = check(n, elastic={"min_world": 3})
        assert code == 2 and "/elastic/min_world: 3 tasks, but the cluster has %d: write at most that" % max(n, 1) in said, said
    code, _, said = check(2, elastic={"min_world": 1}, checkpoint=None)
    assert code == 2 and "1 of 2 tasks are no majority and may go on only while they hold the lease in /checkpoint/directory" in said, said
    for n, least in ((2, 2), (4, 3)):  # a majority needs no lease
        code, _, said = check(n, elastic={"min_world": least}, checkpoint=None)
        assert code == 0, said
        code, _, said = check(n, elastic={"min_world": least - 1}, checkpoint=None)
        assert code == 2 and "give it, or at least %d" % least in said, said


@test
def lanes_uneven_shares_are_reported_with_numbers_that_divide_evenly():
    for n, lanes, words in ((0, 12, None), (3, 12, None), (2, 8, None),
                            (2, 12, "12 lanes on 2 replicas make unequal parts: a replica computes up to 8 of them in a "
                                    "step, 6 on average"),
                            (4, 12, "up to 4 of them in a step, 3 on average, so that the bits are the same for any "
                                    "number of replicas; 8 or 16 lanes make equal parts")):
        code, plan, said = check(n, train={"lanes": lanes, "global_batch_size": 96})
        assert code == 0, said
        assert (words is None) == ("uneven" not in plan["lanes"]) and (words or "") in plan["lanes"].get("uneven", ""), plan


@test
def waits_that_contradict_the_deadline_are_refused_with_their_place():
    rows = ((dict(elastic={"rejoin_seconds": 40}), "/elastic/rejoin_seconds: expected at most 30 s, after which the job ends"),
            (dict(train={"deadline_seconds": 2}, detection={"silent_seconds": 2}), "/detection/silent_seconds: "),
            (dict(detection={"stuck_factor": 1}), "/detection/stuck_factor: "))
    for changes, words in rows:
        code, _, said = check(2, **changes)
        assert code == 2 and "job.json:1:" in said and words in said, said


if __name__ == "__main__":
    main()
