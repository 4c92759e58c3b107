#!/usr/bin/python3
"""Tasks without labels: the leader finds slow links in the steps, and places the tasks of a rack together."""
# san: yes
from kit import enter_namespaces, expect_codes, has_namespaces, main, need_namespaces, test
from racks_net import GRADIENT, alone, cables, job_of, limit, limit_hosts, sent, start, weights

LANES, STEPS = 8, 220
PLACES = [(0, 0), (1, 0), (0, 1), (1, 1)]  # neighbours in the order of tasks are in different racks


def make_job():
    return job_of(LANES, steps=STEPS, health={"advice": {"window_steps": 10, "window_seconds": 0.1, "reduce_share": 0}})


def has_step(task, step):
    return task.events("step") and task.events("step")[-1]["step"] >= step


@test
def without_labels_tasks_behind_a_slow_uplink_are_placed_together_and_send_half():
    need_namespaces()
    last = 8
    job = make_job()
    limit("rack0", 250)
    try:
        tasks = start(job, PLACES, [""] * 4)
        tasks[0].until(lambda t: any("tasks are placed" in r["message"] for r in t.events("view")))
        said = [r["message"] for r in tasks[0].events("view") if "tasks are placed" in r["message"]][0]
        first = int(tasks[0].events("step")[-1]["step"]) + 2
        tasks[0].until(lambda t: has_step(t, first))
        before = [sent("rack%d" % r) for r in range(2)]
        tasks[0].until(lambda t: has_step(t, first + last))
        after = [sent("rack%d" % r) for r in range(2)]
        expect_codes(tasks, [0] * 4)
    finally:
        limit("rack0", None)
    assert "2 racks: worker 0, worker 2 | worker 1, worker 3; a rack sends 2 gradients per step and will send 1;" in said, said
    assert ": that between worker " in said and "is predicted to take" in said, said
    for a, b in zip(before, after):  # a step at each border is counted in part
        assert (b - a) / GRADIENT < 1.3 * last, (before, after)
    assert weights(job) == alone(LANES, STEPS)
    assert sum("tasks are placed" in r["message"] for r in tasks[0].events("view")) == 1, tasks[0].log()


@test
def group_whose_links_are_equal_is_never_placed():
    """The same job on the same hosts, without a slow uplink: as fast as the machine is, and with every link as slow as the uplink
    of the test above."""
    need_namespaces()
    for mbit in (None, 250):
        job = make_job()
        if mbit:
            limit_hosts(PLACES, mbit)
        try:
            tasks = start(job, PLACES, [""] * 4)
            expect_codes(tasks, [0] * 4)
        finally:
            if mbit:
                limit_hosts(PLACES, None)
        for t in tasks:
            assert len(t.events("view")) == 1 and not any("placed" in r.get("message", "") for r in t.records), (mbit, t.log())
        assert weights(job) == alone(LANES, STEPS), mbit


if __name__ == "__main__":
    enter_namespaces()
    if has_namespaces():
        cables()
    main()
