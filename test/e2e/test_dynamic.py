#!/usr/bin/python3
"""Dynamic tables: rows for any 64-bit ids on ps tasks, that are admitted, expire and have a limit.

The reference is the same training in numpy (ids.py), which shares no code with the program: losses and rows are equal within
rounding, and the set of rows is the same. Runs with other numbers of tasks, and with deaths, log the same bits."""
import json
import os
import subprocess
import urllib.request

import ids
from ids_group import Group, make_data
from kit import GUARD, TRAINERCTL, Task, free_ports, main, test, use_venv, wait_until, workdir

use_venv()
import numpy as np  # noqa: E402

_reference = []


def reference():
    """The losses of all steps with one worker and one ps, which are those of numpy."""
    if not _reference:
        losses = Group(1, 1).finish().losses()
        oracle = ids.Numpy(make_data())
        expected = [oracle.train() for _ in range(ids.STEPS)]
        assert sorted(losses) == list(range(1, ids.STEPS + 1)), len(losses)
        for step, loss in losses.items():
            assert abs(loss - expected[step - 1]) < 1e-4, "step %d: loss %r, numpy has %r" % (step, loss, expected[step - 1])
        _reference.append(losses)
    return _reference[0]


def expect_part(group, complete=False):
    expected = reference()
    found = group.losses()
    assert found and (not complete or len(found) == len(expected)), (len(found), group.logs())
    for step, loss in found.items():
        assert loss == expected[step], "step %d: loss %r, expected %r\n%s" % (step, loss, expected[step], group.logs())


@test
def losses_are_those_of_numpy_with_any_number_of_tasks():
    expect_part(Group(2, 3).finish(), complete=True)
    expect_part(Group(4, 2, parameter_server={"replicas": 1}).finish(), complete=True)
    expect_part(Group(1, 1, devices="cpu:2").finish(), complete=True)
    expect_part(Group(2, 2, parameter_server={"dense": "ps"}).finish(), complete=True)


@test
def rows_and_their_number_are_those_of_numpy():
    at = 2050  # after two sweeps
    oracle = ids.Numpy(make_data())
    for _ in range(at):
        oracle.train()
    port, = free_ports(1)
    group = Group(2, 3, fault="train.forward=hang@%d" % (at + 1), metrics={"ps 1": port}, detection={"stuck_factor": 0})
    untrained = [i for i in oracle.seen if i not in oracle.rows]
    removed = sorted({int(i) for i in oracle.ids[:at * ids.BATCH].ravel()} - set(oracle.seen))
    wanted = sorted({*list(oracle.rows)[::7], *ids.EXTREMES, *untrained[:5], *removed[:5], 123456789})
    assert any(i < 0 for i in wanted) and untrained and removed

    def is_at():
        p = group.rows("--json", wanted[:1])
        return p.returncode == 0 and json.loads(p.stdout)["step"] == at
    group.wait_until(is_at)
    for part in ("weights", "sum"):
        p = group.rows("--json", "--part", part, wanted)
        assert p.returncode == 0, p.stderr
        found = json.loads(p.stdout)
        assert found["step"] == at and list(found["rows"]) == [str(i) for i in wanted], found
        assert found["initial"] == [str(i) for i in wanted if i not in oracle.rows], found["initial"]
        for i in wanted:
            values = np.array(found["rows"][str(i)], "f4")
            if i in oracle.rows:
                assert np.allclose(values, oracle.rows[i][part == "sum"], rtol=1e-3, atol=1e-5), (part, i, values, oracle.rows[i])
            else:
                assert np.array_equal(values, ids.initial_row("emb", i) if part == "weights" else np.zeros(ids.WIDTH, "f4")), (part, i, values)
    servers = [group.status("ps %d" % k)["server"] for k in range(3)]
    tables = [s["tables"] for s in servers]
    assert all(len(t) == 1 and t[0]["name"] == "emb" for t in tables), tables
    assert sum(t[0]["rows"] for t in tables) == 2 * len(oracle.rows), (tables, len(oracle.rows))
    assert sum(t[0]["admitted"] for t in tables) == 2 * oracle.admitted, (tables, oracle.admitted)
    assert sum(t[0]["expired"] for t in tables) == 2 * (oracle.admitted - len(oracle.rows)), (tables, oracle.admitted)
    assert all(s["bytes"] > 0 for s in servers), servers
    def metrics():
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as f:
            return dict(line.rsplit(" ", 1) for line in f.read().decode().splitlines() if 'table="emb"' in line)
    expected = {'trainerd_ps_%s{table="emb"}' % name: tables[1][0][key] for name, key in (
        ("dynamic_rows", "rows"), ("admitted_rows_total", "admitted"), ("expired_rows_total", "expired"))}
    wait_until(lambda: {k: float(v) for k, v in metrics().items()} == expected, lambda: "%s, expected %s" % (metrics(), expected))
    text = subprocess.run([TRAINERCTL, "status", group.address("ps 0")], capture_output=True, text=True, timeout=GUARD).stdout
    assert "'emb': %d rows are trained; %d were admitted, %d expired" % tuple(tables[0][0][k] for k in ("rows", "admitted", "expired")) in text, text
    p = group.rows(["-9223372036854775809"])
    assert p.returncode != 0 and "expected the number of a row, or an id" in p.stderr, p
    group.kill(*group.names)


SLOWLY = "train.forward=delay:2@1+"


@test
def ps_is_killed_and_returns_the_losses_have_the_same_bits():
    group = Group(2, 2, fault=SLOWLY)
    group.until_step(300)
    group.kill("ps 0")
    group.until_step(500)
    group.start("ps 0")
    group.until_step(700)
    group.wait_until(lambda: group.status("ps 0")["server"]["shards"] > 0 and group.status("ps 0")["server"]["copying"] == 0)
    group.kill("ps 1")  # the rows are now on the one that returned
    group.until_step(1050)
    group.start("ps 1")
    expect_part(group.finish(), complete=True)


@test
def worker_and_ps_are_killed_at_once_the_losses_have_the_same_bits():
    group = Group(4, 3, fault=SLOWLY)
    group.until_step(200)
    group.kill("worker 0", "ps 2")
    group.until_step(450)
    group.start("worker 0")
    group.start("ps 2")
    expect_part(group.finish(), complete=True)


@test
def all_holders_are_killed_the_group_begins_again():
    """Without a checkpoint the beginning is the only state that is left; the steps have the same losses again."""
    group = Group(2, 2, fault=SLOWLY, parameter_server={"replicas": 1})
    group.until_step(150)
    group.kill("ps 1")
    group.start("ps 1")
    group.until_step(400)
    steps = [r["step"] for r in group.now("worker 0").events("step")]
    assert steps.count(100) == 2, group.logs()
    group.stop()
    expect_part(group)


@test
def cluster_without_ps_tasks_is_refused():
    group = Group(1, 0)
    assert group.now("worker 0").wait() == 2, group.logs()
    assert "/model/tables/emb/rows: only ps tasks keep dynamic tables, and this cluster has none" in group.now("worker 0").log(), group.logs()


@test
def evaluator_is_refused():
    job = ids.job_file(workdir(), make_data(), checkpoint={"directory": "checkpoints"}, data={"eval": os.path.join(make_data(), "train-{feature}.npy")})
    task = Task(job, {"cluster": {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}, "task": {"type": "evaluator", "index": 0}}, ("--devices", "cpu:1"))
    assert task.wait() == 2, task.log()
    assert "/model/tables/emb/rows: evaluator 0 has no rows of ps tasks" in task.log(), task.log()


if __name__ == "__main__":
    main()
