#!/usr/bin/python3
"""The status page and its data: /api/v1/ agrees with `trainerctl status --json` and with the log; the page, in a headless
Chromium, shows them at 390 and 1280 pixels in light and dark, loads nothing from elsewhere, and shows hostile text as text."""
import http.client
import json
import os
import re
import socket
import subprocess
import urllib.error
import urllib.request

import browser
from kit import (GUARD, TRAINERCTL, Task, digits_job, expect_codes, free_ports, main, need_program, test, tf_config, wait_until,
                 workdir)

SLOWER = {"TRAINERD_FAULT": "train.forward=delay:2@1+"}


def get(port, path):
    with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=GUARD) as r:
        return r.read().decode()


def api(port, name):
    return json.loads(get(port, "/api/v1/" + name))


def start(folder, n, **changes):
    """Returns n tasks with their HTTP ports; a lost task is not awaited."""
    job = digits_job(folder, **{"train": {"epochs": 100000, "lanes": 6, "global_batch_size": 60},
                                "checkpoint": {"every_steps": 100}, "elastic": {"min_world": 1, "rejoin_seconds": 0.5}, "detection": {"stuck_factor": 0},
                                **changes})
    ports, http = free_ports(n), free_ports(n)
    tasks = []
    for i in range(n):
        tasks.append(Task(job, tf_config(ports, i), ("--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % http[i]), SLOWER,
                          "worker %d" % i))
        tasks[i].port, tasks[i].http, tasks[i].job = ports[i], http[i], job
    return tasks


@test
def status_leader_has_step_time_lanes_checkpoints_and_causes():
    tasks = start(workdir(), 3)
    tasks[0].until_step(150)
    s = wait_until(lambda: (lambda d: d if len(d["view"]) == 3 and all(t["step_time"] for t in d["tasks"]) and
                       d["checkpoints"] else None)(api(tasks[0].http, "status")))
    for t in s["tasks"]:
        parts = t["step_time"]
        assert abs(sum(parts[k] for k in ("data", "compute", "reduce", "checkpoint")) - 1) < 1e-6, parts
        assert parts["seconds"] > 0.002 and t["n_devices"] == 1 and t["lanes"] == 2, t
    assert s["lanes"] == 6 and s["global_batch"] == 60 and s["devices"] == "cpu"
    assert s["checkpoints"][-1]["state"] == "verified" and s["checkpoints"][-1]["step"] % 100 == 0
    assert os.path.isdir(s["checkpoints"][-1]["path"])
    remote = json.loads(subprocess.run([TRAINERCTL, "status", "--json", "127.0.0.1:%d" % tasks[0].port], check=True,
                                       capture_output=True, text=True).stdout)
    assert set(remote) == set(s) and set(remote["tasks"][1]) == set(s["tasks"][1]), set(remote) ^ set(s)
    assert remote["job"] == s["job"] and remote["checkpoints"][0] == s["checkpoints"][0]
    tasks[2].kill()
    wait_until(lambda: len(api(tasks[0].http, "status")["view"]) == 2)
    s = wait_until(lambda: (lambda d: d if d["generation"] >= 2 and d["tasks"][2]["state"] == "missing" else None)(
        api(tasks[0].http, "status")))
    assert sum(t["lanes"] for t in s["tasks"]) == 6 and s["tasks"][2]["step_time"] is None, s["tasks"]
    views = [r for r in api(tasks[0].http, "events")["records"] if r["event"] == "view"]
    assert any("3 of 3 tasks" in v["message"] for v in views) and "worker 2" in views[-1]["message"] and "lost" in views[-1]["message"]
    assert not [r for r in api(tasks[0].http, "events")["records"] if r["event"] == "step"]


@test
def curve_holds_the_losses_of_the_log():
    task = Task(digits_job(workdir(), train={"epochs": 4, "log_every_steps": 1}), args=(
        "--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % (port := free_ports(1)[0])), env=SLOWER)
    task.until_step(40)
    curve = api(port, "curve")
    task.until(lambda t: max(t.steps()) >= curve["step"][-1])
    assert curve["stride"] == 1 and curve["step"] == list(range(1, len(curve["step"]) + 1))
    for k, loss, rate in zip(curve["step"], curve["loss"], curve["learning_rate"]):
        r = task.steps()[k]
        assert abs(loss - r["loss"]) <= 1e-6 * abs(r["loss"]) and abs(rate - r["learning_rate"]) <= 1e-6, (k, loss, r)
    assert all(x["step"] in (22, 44) and 0 < x["metrics"]["accuracy"] <= 1 for x in curve["evaluations"]), curve["evaluations"]
    expect_codes([task], [0])


@test
def speed_is_zero_while_waiting_and_unknown_series_are_absent():
    ports, http = free_ports(2), free_ports(1)[0]
    job = digits_job(workdir(), train={"epochs": 100000})
    task = Task(job, tf_config(ports, 0), ("--devices", "cpu:1", "--metrics", "127.0.0.1:%d" % http))
    wait_until(lambda: task.events("group"))
    text = wait_until(lambda: (lambda t: t if 'trainerd_phase{phase="waiting"} 1' in t else None)(get(http, "/metrics")))
    lines = text.splitlines()
    for line in ("trainerd_samples_per_second 0", "trainerd_members 0", "trainerd_tasks 2", "trainerd_steps_total 0",
                 'trainerd_task_present{task="worker 1"} 0'):
        assert line in lines, (line, text)
    for name in ("trainerd_loss", "trainerd_step", "trainerd_checkpoint_step", "trainerd_generation", "trainerd_eval_loss",
                 "trainerd_step_seconds_count", "trainerd_task_step_seconds"):
        assert name not in text.replace("{", " ").split(), name
    with open("/proc/%d/status" % task.p.pid) as f:
        assert int(re.search(r"^RssAnon:\s+(\d+) kB$", f.read(), re.M).group(1)) < 16 * 1024  # its own memory, without libraries
    s = api(http, "status")
    assert s["phase"] == "waiting" and s["samples_per_second"] == 0 and s["evaluation"] is None and s["checkpoints"] == []
    Task(job, tf_config(ports, 1), ("--devices", "cpu:1"), name="worker 1")
    task.until_step(10)
    text = wait_until(lambda: (lambda t: t if "trainerd_generation 1" in t.splitlines() else None)(get(http, "/metrics")))
    assert "trainerd_members 2" in text and 'trainerd_task_restarts_total{task="worker 1"} 0' in text


@test
def restart_of_a_task_is_counted():
    tasks = start(workdir(), 2)
    tasks[0].until_step(50)
    wait_until(lambda: 'trainerd_task_restarts_total{task="worker 1"} 0' in get(tasks[0].http, "/metrics"))
    tasks[1].kill()
    Task(tasks[0].job, tf_config([t.port for t in tasks], 1), ("--devices", "cpu:1"), SLOWER, "worker 1")
    text = wait_until(lambda: (lambda t: t if 'trainerd_task_restarts_total{task="worker 1"} 1' in t else None)(
        get(tasks[0].http, "/metrics")))
    assert 'trainerd_task_restarts_total{task="worker 0"} 0' in text


@test
def http_is_read_only_and_a_stalled_client_delays_no_other():
    tasks = start(workdir(), 1, elastic=None)
    tasks[0].until_step(10)
    before = api(tasks[0].http, "status")["step"]
    for method in ("POST", "PUT", "DELETE"):
        c = http.client.HTTPConnection("127.0.0.1", tasks[0].http, timeout=GUARD)
        c.request(method, "/api/v1/status", body=b"x")
        assert c.getresponse().status == 405
        c.close()
    for path in ("/api/v1/", "/api/v1/stop", "/page.html", "/../etc/passwd"):
        try:
            get(tasks[0].http, path)
            raise AssertionError(path + " exists")
        except urllib.error.HTTPError as e:
            assert e.code == 404, path
    stalled = [socket.create_connection(("127.0.0.1", tasks[0].http)) for _ in range(8)]
    for s in stalled:
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
    huge = socket.create_connection(("127.0.0.1", tasks[0].http))
    huge.settimeout(10)
    huge.sendall(b"GET /api/v1/status HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 65536 + b"\r\n\r\n")
    try:
        assert huge.recv(64).split(b" ")[1] in (b"413", b"414", b"431"), "a header of 64 KiB was accepted"
    except ConnectionResetError:
        pass
    wait_until(lambda: api(tasks[0].http, "status")["step"] > before)
    for s in stalled + [huge]:
        s.close()


@test
def page_in_a_browser_is_legible_on_a_phone_and_a_desk_in_light_and_dark():
    program = need_program("chromium-headless-shell")
    tasks = start(workdir(), 3)
    tasks[0].until_step(150)
    wait_until(lambda: len(api(tasks[0].http, "status")["view"]) == 3)
    tasks[2].kill()
    wait_until(lambda: api(tasks[0].http, "status")["generation"] >= 2 and len(api(tasks[0].http, "status")["view"]) == 2)
    tasks[0].until(lambda t: t.events("checkpoint"))
    shots = os.environ.get("TRAINERD_SCREENSHOTS")
    address = "http://127.0.0.1:%d/" % tasks[0].http
    colors = set()
    with browser.Browser(program) as b:
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                b.open(address, width, scheme)
                b.until("document.body && document.body.dataset.ready === '1'")
                text = b.evaluate("document.body.innerText")
                for words in ("digits", "worker 0", "worker 1", "worker 2", "missing", ": 2 of 3 tasks, led by worker 0",
                              "was lost", "verified", "all-reduce", "Warnings and errors"):
                    assert words in text, (words, text)
                assert b.evaluate("document.documentElement.scrollWidth") <= width, (width, scheme)
                assert b.evaluate("document.querySelectorAll('#chart-loss path.curve').length") == 1
                assert b.evaluate("Math.min(...[...document.querySelectorAll('body *')].filter(e => e.innerText)"
                                  ".map(e => parseFloat(getComputedStyle(e).fontSize)))") >= 12
                assert contrast(b) >= 4.5, (width, scheme)
                colors.add((scheme, b.evaluate("getComputedStyle(document.body).backgroundColor")))
                if shots:
                    b.screenshot(os.path.join(shots, "page-%d-%s.png" % (width, scheme)))
        assert len(colors) == 2 and len({c for _, c in colors}) == 2, colors
        step = b.evaluate("document.title")
        b.until("document.title !== %s || document.querySelector('#figures dd').innerText" % json.dumps(step))
        assert not b.problems(), b.problems()
        assert all(url.startswith((address, "about:")) for url in b.loaded()), b.loaded()
        tasks[0].kill()
        b.until("!document.getElementById('offline').hidden")


def contrast(b):
    """The lowest contrast (WCAG) of a text to the nearest background."""
    return b.evaluate("""(() => {
      const rgb = (c) => c.match(/[\\d.]+/g).map(Number);
      const light = (c) => { const [r, g, bl] = rgb(c).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * bl; };
      const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (rgb(c)[3] !== 0) return c; } return "rgb(255,255,255)"; };
      return Math.min(...[...document.querySelectorAll("body *")]
        .filter((e) => !e.closest("svg") && !e.closest("[hidden]") && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()))
        .map((e) => { const a = light(getComputedStyle(e).color), c = light(back(e));
          return (Math.max(a, c) + 0.05) / (Math.min(a, c) + 0.05); }));
    })()""")


@test
def page_shows_hostile_text_as_text():
    program = need_program("chromium-headless-shell")
    name = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    folder = workdir()
    os.mkdir(os.path.join(folder, "<b id=bold>"))
    tasks = start(folder, 1, elastic=None, name=name, checkpoint={"every_steps": 20, "directory": "<b id=bold>/checkpoints"})
    tasks[0].until(lambda t: t.events("checkpoint"))
    with browser.Browser(program) as b:
        b.open("http://127.0.0.1:%d/" % tasks[0].http, 1280, "light")
        b.until("document.body && document.body.dataset.ready === '1'")
        assert b.evaluate("document.getElementById('job').textContent") == name
        assert b.evaluate("document.querySelectorAll('#bold, main img, main script').length") == 0
        assert b.evaluate("document.title").startswith(name) and not b.problems(), b.problems()
        assert "<b id=bold>" in b.evaluate("document.getElementById('checkpoints').innerText")


if __name__ == "__main__":
    main()
