#!/usr/bin/python3
"""Checks of the job against the cluster: requirements that the group cannot meet are refused before the task joins."""
# san: yes
import json
import os
import subprocess

from control_group import ControlGroup
from kit import GUARD, Skip, TRAINERCTL, TRAINERD, Task, digits_job, free_ports, main, test, tf_config, workdir


def check(n, env=None, **changes):
    """Runs trainerd --check for worker 0 of n (0: no cluster); returns the exit code, the plan and stderr."""
    path = digits_job(workdir(), **changes)
    env = env or {}
    env |= {"TF_CONFIG": json.dumps(tf_config(free_ports(n), 0))} if n > 0 else {}
    p = subprocess.run([TRAINERD, "--check", "--job", path, "--devices", "cpu:1"], env=env, capture_output=True, text=True,
                       timeout=GUARD)
    return p.returncode, json.loads(p.stdout) if p.stdout else None, p.stderr


@test
def location_is_that_of_the_environment_and_a_wrong_one_is_refused():
    slurm = {"SLURM_TOPOLOGY_ADDR": "root.leaf3.n7", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}
    own = {"TRAINERD_LOCATION": "zone-1/rack_2/host.3"}
    flat = {"communication": {"topology": "flat"}}
    rows = (({}, {}, "", ""), (own, {}, "zone-1/rack_2/host.3", "TRAINERD_LOCATION"),
            (slurm, {}, "root/leaf3/n7", "SLURM_TOPOLOGY_ADDR"), (slurm | own, {}, "zone-1/rack_2/host.3", "TRAINERD_LOCATION"),
            (own, flat, "", '/communication/topology is "flat"'))
    for env, changes, path, source in rows:
        for n in (0, 2):
            code, plan, said = check(n, dict(env), **changes)
            assert code == 0 and plan["location"] == {"path": path, "from": source}, (env, said, plan)
    for env, words in (({"TRAINERD_LOCATION": "a/b/c/d/e"}, "TRAINERD_LOCATION: 'a/b/c/d/e' has more than 4 names"),
                       ({"TRAINERD_LOCATION": "rack 1"}, "TRAINERD_LOCATION: character 0x20; expected a path such as zone/rack/host"),
                       (slurm | {"SLURM_TOPOLOGY_ADDR": "root.n7"}, "does not describe SLURM_TOPOLOGY_ADDR 'root.n7'")):
        code, _, said = check(2, dict(env))
        assert code == 2 and words in said, said


def devices(*args, env=None, prefix=()):
    """Returns [core of each replica; -1: not pinned], the reason for their number, and stderr."""
    p = subprocess.run([*prefix, TRAINERD, "--check", "--job", digits_job(workdir()), *args], env={**os.environ, **(env or {})},
                       capture_output=True, text=True, timeout=GUARD)
    assert p.returncode == 0, p.stderr
    plan = json.loads(p.stdout)
    return [d["core"] for d in plan["devices"]], plan["devices_from"], p.stderr


@test
def replicas_are_pinned_only_to_all_cores_of_the_task_or_on_request():
    cores = sorted(os.sched_getaffinity(0))
    one = ("taskset", "-c", str(cores[-1]))
    assert devices("--devices", "cpu:1", prefix=one)[0] == [cores[-1]]
    assert devices("--devices", "cpu:1", "--pin", "off", prefix=one)[0] == [-1]
    assert devices("--devices", "cpu:2", "--pin", "on", prefix=one)[0] == [-1, -1]  # more replicas than cores
    if len(cores) < 2:
        raise Skip("this machine has one core")
    two = {"TF_CONFIG": json.dumps(tf_config(free_ports(2), 1))}
    for env in ({}, two):
        assert devices("--devices", "cpu:1", env=env)[0] == [-1]  # other jobs of the host may be pinned to the same core
    assert devices("--devices", "cpu:1", "--pin", "on")[0] == [cores[0]]
    assert devices("--devices", "cpu:1", "--pin", "on", env=two)[0] == [cores[1]]  # the task before it has core 0


@test
def processor_quota_limits_the_replicas_that_are_not_given_by_number():
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("this machine has one core")
    with ControlGroup(controller="cpu") as group:
        group.set_processors(1.5)
        for args in ((), ("--devices", "cpu")):
            found, why, _ = devices(*args, prefix=group.prefix)
            assert len(found) == 1 and "by the processor quota of 1.5 in /" in why, (found, why)
        task = Task(digits_job(workdir(), train={"epochs": 1}), args=("--devices", "cpu:2"), prefix=group.prefix)
        assert task.wait() == 0
        assert "2 replicas have a processor quota of 1.5" in task.log() and "use cpu:1" in task.log(), task.log()
        group.set_processors(len(os.sched_getaffinity(0)))
        assert "quota" not in devices(prefix=group.prefix)[1]


@test
def number_of_hosts_that_no_power_of_two_of_lanes_divides_is_named_as_the_reason():
    """No number of lanes is both a multiple of 3 and a power of two: the advice must be one that can be followed."""
    codes = {"communication": {"compression": {"code": "int8", "groups": 2}}}
    local = {"train": {"phases": [{"mode": "local_sgd", "groups": 2, "sync_every": 2}]}}
    for key, changes in (("/communication/compression", codes), ("local_sgd", local)):
        for n, fewer, more in ((3, 2, 4), (5, 4, 8), (6, 4, 8), (7, 4, 8), (12, 8, 16)):
            for lanes in (8, 16):
                train = {"lanes": lanes, "global_batch_size": 16 * lanes, **changes.get("train", {})}
                code, _, said = check(n, **{**changes, "train": train})
                assert code == 2 and key in said, said
                assert "expected a power of two of replicas, such as %d or %d" % (fewer, more) in said, said
        train = {"lanes": 2, "global_batch_size": 64, **changes.get("train", {})}
        code, _, said = check(4, **{**changes, "train": train})
        assert code == 2 and "choose a power of two that is at least 4" in said, said
        train["lanes"] = 4
        code, _, said = check(4, **{**changes, "train": train})
        assert code == 0, said
    code, _, said = check(3, train={"lanes": 8, "global_batch_size": 64})
    assert code == 2 and "choose a multiple of 3" in said and "power of two" not in said, said


@test
def min_world_by_default_is_the_whole_cluster():
    for n, asked, settled in ((0, {}, 1), (4, {}, 4), (4, {"min_world": 3}, 3), (4, {"min_world": 4}, 4), (1, {"min_world": 1}, 1)):
        code, plan, said = check(n, elastic=asked)
        assert code == 0 and plan["min_world"] == settled, (n, asked, said)
        assert plan["job"]["elastic"]["min_world"] == asked.get("min_world", 0), plan["job"]["elastic"]
        assert plan["job"]["elastic"]["rejoin_seconds"] == 10, plan["job"]["elastic"]


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
                                    "number of replicas; 8 or 16 lanes make equal parts, and so does \"lane_tree\": [4, 3] with "
                                    "12 lanes")):
        code, plan, said = check(n, train={"lanes": lanes, "global_batch_size": 96})
        assert code == 0, said
        assert (words is None) == ("uneven" not in plan["lanes"]) and (words or "") in plan["lanes"].get("uneven", ""), plan


@test
def lane_tree_with_a_factor_of_the_replicas_makes_equal_parts():
    for tree, count in (([4, 3], None), ([4, 3], 12), ([2, 2, 3], None)):
        code, plan, said = check(4, train={"lane_tree": tree, "lanes": count, "global_batch_size": 96})
        assert code == 0 and "uneven" not in plan["lanes"], said
        assert plan["lanes"]["count"] == 12 and plan["lanes"]["tree"] == [4, 3] and plan["lanes"]["mine"] == [0, 2], plan["lanes"]
        assert plan["balance"] == "off: jobs with /train/lane_tree have fixed lanes", plan["balance"]
    code, plan, said = check(3, train={"lanes": None, "lane_tree": [3, 4], "global_batch_size": 96})
    assert code == 0 and plan["lanes"]["tree"] == [12] and plan["balance"].startswith("auto"), (plan, said)
    code, plan, said = check(4, train={"lanes": None, "lane_tree": [2, 6], "global_batch_size": 96})  # 4 and 2 of each block
    assert code == 0 and "up to 4 of them in a step, 3 on average" in plan["lanes"]["uneven"], plan["lanes"]
    code, _, said = check(4, train={"lanes": None, "lane_tree": [3, 3], "global_batch_size": 36})
    assert code == 2 and "9 lanes cannot be shared evenly by 4 replicas" in said, said


@test
def lanes_of_a_task_with_a_location_depend_on_the_locations_of_the_others():
    for n, env, mine in ((2, {}, [0, 1]), (2, {"TRAINERD_LOCATION": "a/b"}, None), (0, {"TRAINERD_LOCATION": "a/b"}, [0, 3])):
        code, plan, said = check(n, env=dict(env), train={"lanes": 4, "global_batch_size": 64})
        assert code == 0 and plan["lanes"]["mine"] == mine, (said, plan["lanes"])
        assert ("in the order of locations" in plan["lanes"].get("unknown", "")) == (mine is None), plan["lanes"]
        path = digits_job(workdir(), train={"lanes": 4, "global_batch_size": 64})
        env = {**env, **({"TF_CONFIG": json.dumps(tf_config(free_ports(n), 0))} if n else {})}
        p = subprocess.run([TRAINERCTL, "data", path], env=env, capture_output=True, text=True, timeout=GUARD)
        assert p.returncode == 0 and "lanes 0 to %d" % (1 if n else 3) in p.stdout, p.stdout + p.stderr
        assert ("in the order of locations" in p.stdout) == (mine is None), p.stdout


@test
def waits_that_contradict_the_deadline_are_refused_with_their_place():
    rows = ((dict(elastic={"rejoin_seconds": 40}), "/elastic/rejoin_seconds: expected at most 30 s, after which the job ends"),
            (dict(train={"deadline_seconds": 2}, detection={"silent_seconds": 2}), "/detection/silent_seconds: "),
            (dict(detection={"stuck_factor": 1}), "/detection/stuck_factor: "))
    for changes, words in rows:
        code, _, said = check(2, **changes)
        assert code == 2 and "job.json:1:" in said and words in said, said


def check_ps(task, n_ps=1, devices=None, section=True, **keys):
    """Runs trainerd --check for "worker" or "ps" 0 of two workers and n_ps ps tasks; `keys`: of the section. Returns as check()."""
    ports = free_ports(2 + n_ps)
    at = ["127.0.0.1:%d" % p for p in ports]
    path = digits_job(workdir(), **({"parameter_server": {"tables": "none", **keys}} if section else {}))
    env = {"TF_CONFIG": json.dumps({"cluster": {"worker": at[:2], "ps": at[2:]}, "task": {"type": task, "index": 0}})}
    p = subprocess.run([TRAINERD, "--check", "--job", path] + (["--devices", devices] if devices else []), env=env,
                       capture_output=True, text=True, timeout=GUARD)
    return p.returncode, json.loads(p.stdout) if p.stdout else None, p.stderr


@test
def ps_task_has_a_rank_after_the_workers_and_service_threads():
    for devices, threads in ((None, 1), ("auto", 1), ("cpu:3", 3)):
        code, plan, said = check_ps("ps", devices=devices)
        assert code == 0 and plan["rank"] == 2 and plan["world"] == 2 and plan["task"] == "ps 0", said
        assert plan["parameter_servers"] == {"tasks": 1, "min_ps": 1, "replicas": 1, "threads": threads} and plan["devices"] == [], plan
        assert "lanes" not in plan and plan["min_world"] == 2 and not plan["is_chief"], plan
    code, _, said = check_ps("ps", devices="cpu:65")
    assert code == 2 and "65 service threads of ps 0, expected at most 64" in said, said


@test
def worker_counts_lanes_and_replicas_of_workers_alone():
    code, plan, said = check_ps("worker", n_ps=3, devices="cpu:1")
    assert code == 0 and plan["world"] == plan["replicas"] == 2 and plan["lanes"]["mine"] == [0, plan["lanes"]["count"] // 2 - 1], said
    assert plan["parameter_servers"] == {"tasks": 3, "min_ps": 1, "replicas": 2}, plan
    assert not any("not used" in note for note in plan["cluster"]["notes"]), plan["cluster"]["notes"]


@test
def min_ps_is_1_by_default_and_refused_above_the_ps_tasks_of_the_cluster():
    for n_ps, keys, settled in ((3, {}, 1), (3, {"min_ps": 2}, 2), (3, {"min_ps": 3}, 3)):
        for task in ("worker", "ps"):
            code, plan, said = check_ps(task, n_ps=n_ps, devices="cpu:1", **keys)
            assert code == 0 and plan["parameter_servers"]["min_ps"] == settled, said
            assert plan["job"]["parameter_server"]["min_ps"] == settled, plan["job"]
    for n_ps, task in ((3, "worker"), (3, "ps"), (0, "worker")):
        code, _, said = check_ps(task, n_ps=n_ps, devices="cpu:1", min_ps=4)
        assert code == 2 and "/parameter_server/min_ps: 4 ps tasks, but the cluster has %d: write at most that" % n_ps in said, said
    code, _, said = check_ps("worker", devices="cpu:1", min_ps=0)
    assert code == 2 and "/parameter_server/min_ps: " in said and "an integer from 1 to" in said, said
    code, plan, said = check_ps("worker", n_ps=0, devices="cpu:1", min_ps=1)
    assert code == 0 and "parameter_servers" not in plan, said


@test
def job_without_the_section_refuses_a_ps_task_and_ignores_it_on_a_worker():
    code, _, said = check_ps("ps", section=False)
    assert code == 2 and "ps 0 has no part in synchronous data-parallel training" in said and '"parameter_server"' in said, said
    code, plan, said = check_ps("worker", section=False, devices="cpu:1")
    assert code == 0 and "parameter_servers" not in plan and any("not used" in note for note in plan["cluster"]["notes"]), said


@test
def job_with_the_section_keeps_tables_on_the_workers_of_a_cluster_without_ps_tasks():
    code, plan, said = check_ps("worker", n_ps=0, devices="cpu:1")
    assert code == 0 and "parameter_servers" not in plan and plan["world"] == 2, said


if __name__ == "__main__":
    main()
