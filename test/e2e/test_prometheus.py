#!/usr/bin/python3
"""The alerts and the dashboard of config/: promtool accepts them, each alert fires for the series it is about and is silent for a healthy
group, also with the series of real tasks of each type, and every series they name exists."""
import json
import os
import re
import subprocess
import time
import urllib.request

import clicks
from kit import (GUARD, ROOT, TRAINERCTL, Gate, Task, digits_job, expect_codes, free_ports, main, need_program, test, wait_until,
                 workdir)

ALERTS = os.path.join(ROOT, "config", "prometheus-alerts.yml")
DASHBOARD = os.path.join(ROOT, "config", "grafana-dashboard.json")
TASK = 'job="trainerd",instance="a"'
# The series of a task that trains well, for two hours: (series, values in promtool's notation).
HEALTHY = {
    "up{%s}": "1x120",
    "trainerd_steps_total{%s}": "0+60x120",
    "trainerd_remaining_seconds{%s}": "36000-60x120",
    'trainerd_task_present{%s,task="worker 1"}': "1x120",
    'trainerd_task_restarts_total{%s,task="worker 1"}': "0x60 1x60",
    "trainerd_leads{%s}": "1x120",
    "trainerd_checkpoint_timestamp_seconds{%s}": "0+60x120",
    "trainerd_checkpoint_failures_total{%s}": "0x120",
    "trainerd_divergences_total{%s}": "0x120",
    "trainerd_skipped_steps_total{%s}": "0x120",
    "trainerd_skipped_records_total{%s}": "0x120",
    "trainerd_step_seconds_sum{%s}": "0+55x120",
    "trainerd_data_wait_seconds_total{%s}": "0+1x120",
    "trainerd_reduce_seconds_total{%s}": "0+10x120",
    'trainerd_gpu_ecc_uncorrected_errors{%s,gpu="0"}': "0x120",
    'trainerd_advice{%s,kind="reduce_share"}': "0x120",
    "trainerd_memory_used_bytes{%s}": "84x120",
    "trainerd_memory_limit_bytes{%s}": "100x120",
    "trainerd_certificate_expiry_timestamp_seconds{%s}": "864000x120",
    "process_open_fds{%s}": "100x120",
    "process_max_fds{%s}": "1000x120",
}
# What is wrong with the series when the alert fires at the end.
FAULTS = {
    "TrainerdNotReachable": ("up{%s}", "1x100 0x20"),
    "TrainerdNoProgress": ("trainerd_steps_total{%s}", "0+60x90 5400x30"),
    "TrainerdTaskMissing": ('trainerd_task_present{%s,task="worker 1"}', "1x100 0x20"),
    "TrainerdTaskRestarts": ('trainerd_task_restarts_total{%s,task="worker 1"}', "0x100 1+1x20"),
    "TrainerdTwoLeaders": ('trainerd_leads{job="trainerd",instance="b"}', "1x120"),
    "TrainerdCheckpointOld": ("trainerd_checkpoint_timestamp_seconds{%s}", "0+60x50 3000x70"),
    "TrainerdCheckpointFails": ("trainerd_checkpoint_failures_total{%s}", "0x110 2x10"),
    "TrainerdTasksDiffer": ("trainerd_divergences_total{%s}", "0x110 1x10"),
    "TrainerdStepsSkipped": ("trainerd_skipped_steps_total{%s}", "0x110 1x10"),
    "TrainerdRecordsSkipped": ("trainerd_skipped_records_total{%s}", "0x110 1x10"),
    "TrainerdWaitsForData": ("trainerd_data_wait_seconds_total{%s}", "0+20x120"),
    "TrainerdWaitsForAllReduce": ("trainerd_reduce_seconds_total{%s}", "0+40x120"),
    "TrainerdGpuErrors": ('trainerd_gpu_ecc_uncorrected_errors{%s,gpu="0"}', "0x110 1x10"),
    "TrainerdAdvice": ('trainerd_advice{%s,kind="reduce_share"}', "0x100 1x20"),
    "TrainerdMemoryNearLimit": ("trainerd_memory_used_bytes{%s}", "84x100 86x20"),
    "TrainerdCertificateEnds": ("trainerd_certificate_expiry_timestamp_seconds{%s}", "600000x120"),
    "TrainerdFewDescriptors": ("process_open_fds{%s}", "100x80 900x40"),
}


def promtool(*args, **more):
    return subprocess.run([need_program("promtool"), *args], capture_output=True, text=True, timeout=10 * GUARD, **more)


def case(series, alerts, fires):
    """A test of promtool: after two hours, these alerts fire, or none of them does."""
    lines = ["  - interval: 1m", "    input_series:"]
    for name, values in series.items():
        lines += ["      - series: '%s'" % (name % TASK if "%s" in name else name), "        values: '%s'" % values]
    lines += ["    promql_expr_test:"]
    for alert in alerts:
        lines += ["      - expr: 'count(ALERTS{alertname=\"%s\",alertstate=\"firing\"}) or vector(0)'" % alert,
                  "        eval_time: 119m", "        exp_samples: [{labels: '{}', value: %d}]" % fires]
    return "\n".join(lines)


@test
def alerts_and_scrape_configuration_are_accepted():
    for command in (("check", "rules", ALERTS), ("check", "config", os.path.join(ROOT, "config", "prometheus.yml"))):
        p = promtool(*command)
        assert p.returncode == 0, p.stdout + p.stderr


@test
def every_alert_fires_for_its_fault_and_none_for_a_healthy_task():
    with open(ALERTS) as f:
        names = re.findall(r"^ +- alert: (\w+)$", f.read(), re.M)
    assert sorted(names) == sorted(FAULTS) and len(names) >= 10, set(names) ^ set(FAULTS)
    cases = [case(HEALTHY, names, 0)]
    for name, (series, values) in FAULTS.items():
        cases.append(case({**HEALTHY, series: values}, [name], 1))
    expect(cases)


# ---- series of real tasks ----

ROLES = ("chief", "worker", "ps", "evaluator")
END = 30  # minute in which the group or a task ends
STEPS, EXPIRY = ("trainerd_steps_total", ""), "trainerd_certificate_expiry_timestamp_seconds"


def scrape(port):
    """Returns {(name, labels): value} of a task."""
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as r:
        found = re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", r.read().decode(), re.M)
    return {(name, labels): float(value) for name, labels, value in found}


def start_each_role(fault, **changes):
    """Starts a task of each role, with certificates. Returns ({role: Task}, {role: port of its metrics})."""
    folder = workdir()
    job = clicks.job_file(folder, clicks.make_data(os.path.join(folder, "data")), checkpoint={"every_steps": 20, "max_to_keep": 3}, parameter_server={
        "tables": "auto", "min_shard_bytes": 1024, "replicas": 1}, **changes)
    ports, http = free_ports(4), dict(zip(ROLES, free_ports(4)))
    cluster = {role: ["127.0.0.1:%d" % port] for role, port in zip(ROLES, ports)}
    keys = os.path.join(folder, "keys")
    subprocess.run([TRAINERCTL, "keys", "--out", keys], check=True, stdout=subprocess.DEVNULL, timeout=GUARD, env={
        **os.environ, "TF_CONFIG": json.dumps({"cluster": cluster})})
    env = {"TRAINERD_TLS": os.path.join(keys, "127.0.0.1"), "TRAINERD_FAULT": fault}
    tasks = {role: Task(job, {"cluster": cluster, "task": {"type": role, "index": 0}}, ("--devices", "cpu:1", "--metrics", str(http[role])), env,
                        role + " 0") for role in ROLES}
    for task in tasks.values():
        task.until(lambda t: t.events("page"))
    return tasks, http


def scrape_steps(http, more_than):
    """Scrapes all roles, once both training tasks have made more steps than in the scrape `more_than`."""
    return wait_until(lambda: (lambda s: s if all(s[r].get(STEPS, 0) > more_than.get(r, {}).get(STEPS, 0) for r in ROLES[:2]) else None)(
        {role: scrape(http[role]) for role in ROLES}))


def record_each_role():
    """Trains with a task of each role. Returns {role: (an earlier scrape, a later one)}: between them every task has worked."""
    tasks, http = start_each_role("train.forward=delay:5@1+", train={"epochs": 100000})
    tasks["evaluator"].until(lambda t: t.events("eval"))
    first = scrape_steps(http, {})
    steps = tasks["evaluator"].events("eval")[-1]["step"]
    tasks["evaluator"].until(lambda t: t.events("eval")[-1]["step"] > steps)
    second = scrape_steps(http, first)
    for task in tasks.values():
        task.kill()
    assert STEPS not in second["ps"] and STEPS not in second["evaluator"]
    assert all(second[r]["trainerd_remaining_seconds", ""] > 60 for r in ROLES[:2])
    assert second["ps"]["trainerd_phase", 'phase="serve"'] == 1
    for role, values in second.items():
        assert values["trainerd_job_info", 'name="clicks",task="%s 0"' % role] == 1 and values["trainerd_complete", ""] == 0, role
        assert (("trainerd_total_steps", "") in values) == (role != "ps"), role
        assert ((EXPIRY, "") in values) == (role != "evaluator"), role
    return {role: (first[role], second[role]) for role in ROLES}


def record_complete_job():
    """The same of a job that ends with 0 after the second scrape."""
    gate = Gate()
    tasks, http = start_each_role("train.forward=delay:5@1+," + gate.fault("train.forward", 40), train={"steps": 40, "epochs": None})
    first = scrape_steps(http, {})
    second = wait_until(lambda: (lambda s: s if all(s[r].get(STEPS, 0) == 39 and s[r]["trainerd_remaining_seconds", ""] == 0 for r in ROLES[:2])
                                 else None)({role: scrape(http[role]) for role in ROLES}))
    assert all(second[r]["trainerd_total_steps", ""] == 40 for r in ROLES[:2])
    gate.open()
    expect_codes(tasks.values(), [0] * len(ROLES))
    return {role: (first[role], second[role]) for role in ROLES}


def series_of(records, expressions, ends, missing=None):
    """Series for promtool, of those that the expressions name: the group trains from minute 0 on as recorded, and the tasks `ends` end at
    END; the leader then misses the task `missing`."""
    out = []
    for role, (first, second) in records.items():
        instance = 'job="trainerd",instance="%s"' % role
        out.append(("up{%s}" % instance, "1x%d %s" % (END - 1, "0x300" if role in ends else "1x300")))
        for (name, labels), value in second.items():
            if name not in expressions:
                continue
            if name == "trainerd_checkpoint_timestamp_seconds":
                start, rise = 0, 60
            elif name.endswith("_seconds_total"):  # waits: those of a busy machine say nothing of the roles
                start, rise = value, 0
            elif name.endswith(("_total", "_sum")):
                start, rise = value, value - first[name, labels]
            elif name == EXPIRY:  # the clock of promtool begins with 0
                start, rise = value - time.time(), 0
            else:
                start, rise = value, 0
            values = "%f%+fx%d" % (start, rise, END - 1)
            if role in ends:
                values += " stale"
            elif name == "trainerd_task_present" and labels == 'task="%s 0"' % missing:
                values += " 0x300"
            else:
                values += " %f%+fx300" % (start + END * rise, rise)
            out.append(("%s{%s%s}" % (name, labels + "," if labels else "", instance), values))
    return out


@test
def alerts_fire_for_each_role_that_ended_and_none_for_a_group_that_trains_or_is_complete():
    with open(ALERTS) as f:
        expressions = " ".join(re.findall(r"^ +expr: (.*)$", f.read(), re.M))
    names = set(re.findall(r"\w+", expressions))
    records = record_each_role()
    leader = next(role for role in ROLES[:2] if records[role][1]["trainerd_leads", ""] == 1)
    complete, left = record_complete_job(), ("trainerd_remaining_seconds", "")
    minute_before = {role: (first, {**second, **{left: 65.0 for key in second if key == left}}) for role, (first, second) in complete.items()}
    cases = [ends_case("trains", series_of(records, names, ()), {}),
             ends_case("is complete", series_of(complete, names, ROLES), {}),
             ends_case("was scraped a minute before it was complete", series_of(minute_before, names, ROLES), {}),
             ends_case("is stopped or dies", series_of(records, names, ROLES), {"TrainerdNotReachable": len(ROLES)})]
    for role in ROLES:
        known = role != leader and ("trainerd_task_present", 'task="%s 0"' % role) in records[leader][1]
        assert known == (role in ROLES[:3] and role != leader), (role, leader)
        cases.append(ends_case(role + " ends", series_of(records, names, (role,), missing=role),
                               {"TrainerdNotReachable": 1, **({"TrainerdTaskMissing": 1} if known else {})}))
    expect(cases)


def ends_case(title, series, alerts):
    """A test of promtool: no alert fires before END; a quarter of an hour later, these many alerts of each name do, and none without them
    after three hours, when no series of the group is left in any range."""
    lines = ["  - name: %s" % title, "    interval: 1m", "    input_series:"]
    for name, values in series:
        lines += ["      - series: '%s'" % name, "        values: '%s'" % values]
    lines += ["    promql_expr_test:"]
    for minute, fires in ((END - 1, {}), (END + 15, alerts), *(() if alerts else ((END + 180, {}),))):
        lines += ["      - expr: 'count by (alertname) (ALERTS{alertstate=\"firing\"})'", "        eval_time: %dm" % minute,
                  "        exp_samples: [%s]" % ", ".join("{labels: '{alertname=\"%s\"}', value: %d}" % x for x in fires.items())]
    return "\n".join(lines)


def expect(cases):
    path = os.path.join(workdir(), "alerts.test.yml")
    with open(path, "w") as f:
        f.write("rule_files: [%s]\nevaluation_interval: 1m\ntests:\n%s\n" % (ALERTS, "\n".join(cases)))
    p = promtool("test", "rules", path)
    assert p.returncode == 0, (p.stdout + p.stderr)[:4000]


# ---- names ----

def dashboard_expressions():
    with open(DASHBOARD) as f:
        document = json.load(f)
    found = []
    for panel in document["panels"]:
        g = panel["gridPos"]
        assert panel["targets"] and g["x"] + g["w"] <= 24, panel["title"]
        found += [t["expr"] for t in panel["targets"]]
    cells = [(x, y) for p in document["panels"] for x in range(p["gridPos"]["x"], p["gridPos"]["x"] + p["gridPos"]["w"])
             for y in range(p["gridPos"]["y"], p["gridPos"]["y"] + p["gridPos"]["h"])]
    assert len(cells) == len(set(cells)), "panels overlap"
    assert len({p["id"] for p in document["panels"]}) == len(document["panels"])
    return [e.replace("$__rate_interval", "5m").replace("$job", "trainerd") for e in found]


@test
def dashboard_has_valid_expressions():
    path = os.path.join(workdir(), "dashboard.yml")
    with open(path, "w") as f:
        f.write("groups:\n  - name: dashboard\n    rules:\n" + "".join(
            "      - record: panel:%d\n        expr: '%s'\n" % (i, e) for i, e in enumerate(dashboard_expressions())))
    p = promtool("check", "rules", path)
    assert p.returncode == 0, p.stdout + p.stderr


def names_of_gpus():
    with open(os.path.join(ROOT, "daemon", "sensors.c")) as f:
        return set(re.findall(r'"(trainerd_\w+)"', f.read()))


@test
def every_series_of_alerts_and_dashboard_is_served():
    port = free_ports(1)[0]
    task = Task(digits_job(workdir(), train={"epochs": 100000}, checkpoint={"every_steps": 20}),
                args=("--devices", "cpu:1", "--metrics", str(port)))  # a port alone: on 127.0.0.1
    task.until(lambda t: t.events("checkpoint"))
    with open(ALERTS) as f:
        expressions = re.findall(r"^ +expr: (.*)$", f.read(), re.M) + dashboard_expressions()
    named = {n for e in expressions for n in re.findall(r"\b((?:trainerd|process)_\w+|up)\b", re.sub(r'"[^"]*"', "", e))}
    assert len(named) > 30, named

    def missing():  # a series appears with its first value
        return named - {name for name, _ in scrape(port)} - names_of_gpus() - {"up", EXPIRY}  # of a task with certificates: record_each_role()
    wait_until(lambda: not missing(), missing)
    with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=GUARD) as r:
        text = r.read().decode()
    p = promtool("check", "metrics", input=text)
    assert p.returncode == 0, p.stdout + p.stderr


if __name__ == "__main__":
    main()
