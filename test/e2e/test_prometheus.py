#!/usr/bin/python3
"""The alerts and the dashboard of config/: promtool (Debian package prometheus) accepts them, each alert fires for the series it is about
and is silent for a healthy group, and every series they name exists."""
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request

from kit import ROOT, SLOW, Skip, Task, digits_job, free_ports, main, test, workdir

ALERTS = os.path.join(ROOT, "config", "prometheus-alerts.yml")
DASHBOARD = os.path.join(ROOT, "config", "grafana-dashboard.json")
TASK = 'job="trainerd",instance="a"'
# The series of a task that trains well, for two hours: (series, values in promtool's notation).
HEALTHY = {
    "up{%s}": "1x120",
    "trainerd_steps_total{%s}": "0+60x120",
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
    "TrainerdFewDescriptors": ("process_open_fds{%s}", "100x80 900x40"),
}


def promtool(*args, **more):
    program = shutil.which("promtool")
    if program is None:
        raise Skip("promtool is not installed (Debian package prometheus)")
    return subprocess.run([program, *args], capture_output=True, text=True, timeout=60 * SLOW, **more)


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
    path = os.path.join(workdir(), "alerts.test.yml")
    with open(path, "w") as f:
        f.write("rule_files: [%s]\nevaluation_interval: 1m\ntests:\n%s\n" % (ALERTS, "\n".join(cases)))
    p = promtool("test", "rules", path)
    assert p.returncode == 0, (p.stdout + p.stderr)[:4000]


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
    missing, end = named, time.monotonic() + 30 * SLOW
    while missing and time.monotonic() < end:  # a series appears with its first value
        with urllib.request.urlopen("http://127.0.0.1:%d/metrics" % port, timeout=10 * SLOW) as r:
            text = r.read().decode()
        missing = named - set(re.findall(r"^(\w+)(?:\{.*\})? \S+$", text, re.M)) - names_of_gpus() - {"up"}
        time.sleep(0.05)
    assert len(named) > 30 and not missing, missing
    p = promtool("check", "metrics", input=text)
    assert p.returncode == 0, p.stdout + p.stderr


if __name__ == "__main__":
    main()
