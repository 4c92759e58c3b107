#!/usr/bin/python3
"""The status page and its data: /api/v1/ agrees with `trainerctl status --json` and with the log; the page, in a headless
Chromium, shows them at 390 and 1280 pixels in light and dark, loads nothing from elsewhere, and shows hostile text as text."""
import copy
import http.client
import http.server
import json
import os
import re
import socket
import subprocess
import threading
import urllib.error
import urllib.request

import browser
import clicks
from kit import (GUARD, ROOT, TRAINERCTL, Gate, Task, digits_job, expect_codes, free_ports, main, need_program, test, tf_config,
                 wait_until, workdir)

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
    for host, code in (("attacker.example", 421), ("localhost:1", 200), ("%s:1" % socket.gethostname(), 200)):
        c = http.client.HTTPConnection("127.0.0.1", tasks[0].http, timeout=GUARD)
        c.request("GET", "/api/v1/status", headers={"Host": host})
        assert c.getresponse().status == code, host
        c.close()
    stalled = [socket.create_connection(("127.0.0.1", tasks[0].http)) for _ in range(40)]
    for s in stalled:
        try:
            s.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
        except ConnectionError:
            pass  # a newer one has taken its place
    huge = socket.create_connection(("127.0.0.1", tasks[0].http))
    huge.settimeout(GUARD)
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


def keep_picture(b, name):
    if os.environ.get("TRAINERD_SCREENSHOTS"):
        b.screenshot(os.path.join(os.environ["TRAINERD_SCREENSHOTS"], name + ".png"))


def open_page(b, port, width=1280, scheme="light"):
    b.open("http://127.0.0.1:%d/" % port, width, scheme)
    b.until("document.body && document.body.dataset.ready === '1'")


@test
def page_of_a_complete_job_states_its_last_step_on_every_task():
    program = need_program("chromium-headless-shell")
    gate = Gate()
    job = digits_job(workdir(), train={"steps": 40, "epochs": None}, checkpoint={"every_steps": 20})
    ports, http_ports = free_ports(2), free_ports(2)
    tasks = [Task(job, tf_config(ports, i), ("--devices", "cpu:1", "--metrics", str(http_ports[i])), {"TRAINERD_FAULT": gate.fault("train.forward", 40)},
                  "worker %d" % i) for i in range(2)]
    tasks[0].until(lambda t: t.events("step"))
    with browser.Browser(program) as b, browser.Browser(program) as other:
        open_page(b, http_ports[0])
        open_page(other, http_ports[1])
        gate.open()
        expect_codes(tasks, [0, 0])
        for page in (b, other):
            page.until("document.getElementById('updated').innerText.includes('The process has ended')")
            text = page.evaluate("document.body.innerText")
            assert "The job is complete. Its last step is 40." in text and "40\nof 40" in text, text
            assert "missing" not in text and "waiting" not in text and "does not answer" not in text, text
            assert page.evaluate("document.getElementById('state').className") == "badge good"
            assert contrast(page) >= 4.5 and page.evaluate("document.getElementById('done').style.width") == "100%"
        keep_picture(b, "complete")


@test
def page_of_a_task_that_fails_states_the_reason():
    program = need_program("chromium-headless-shell")
    gate, port = Gate(), free_ports(1)[0]
    failing = Task(digits_job(workdir(), train={"epochs": 100000}), args=("--devices", "cpu:1", "--metrics", str(port)), env={
        "TRAINERD_FAULT": gate.fault("train.forward", 20) + ",train.update=fail@20"})
    failing.until(lambda t: t.events("page"))
    with browser.Browser(program) as b:
        open_page(b, port)
        gate.open()
        assert failing.wait() == 138, failing.log()
        b.until("document.getElementById('updated').innerText.includes('The process has ended')")
        assert failing.final_message().split(": ", 1)[1] in b.evaluate("document.getElementById('end').innerText")
        keep_picture(b, "failed")


@test
def page_of_a_ps_task_shows_its_rows_and_that_of_a_follower_leads_to_the_leader():
    program = need_program("chromium-headless-shell")
    folder = workdir()
    job = clicks.job_file(folder, clicks.make_data(os.path.join(folder, "data")), train={"epochs": 100000},
                          parameter_server={"tables": "auto", "min_shard_bytes": 1024, "replicas": 1})
    roles = ("chief", "worker", "ps", "evaluator")
    cluster = {role: ["127.0.0.1:%d" % port] for role, port in zip(roles, free_ports(len(roles)))}
    http_ports = dict(zip(roles, free_ports(len(roles))))
    tasks = {role: Task(job, {"cluster": cluster, "task": {"type": role, "index": 0}}, ("--devices", "cpu:1", "--metrics", str(http_ports[role])),
                        SLOWER, role + " 0") for role in roles}
    tasks["evaluator"].until(lambda t: t.events("eval"))
    with browser.Browser(program) as b:
        server = wait_until(lambda: (lambda s: s if s and s["rows_updated"] > 0 else None)(api(http_ports["ps"], "status")["server"]))
        open_page(b, http_ports["ps"])
        text = b.evaluate("document.body.innerText")
        for words in ("Rows after step", "Shards", "{:,}".format(server["shards"]), "Gradients of rows", "serve"):
            assert words in text, (words, text)
        for words in ("No step yet", "no step is made", "Samples/s", "Learning rate"):
            assert words not in text, (words, text)
        assert int(b.evaluate("document.querySelectorAll('#figures dd')[4].firstChild.data").replace(",", "")) >= server["rows_updated"]
        keep_picture(b, "ps")
        open_page(b, http_ports["evaluator"])
        assert "No step yet" not in b.evaluate("document.body.innerText")
        keep_picture(b, "evaluator")
        leader = next(role for role in roles[:2] if api(http_ports[role], "status")["state"] == "leading")
        open_page(b, http_ports["worker" if leader == "chief" else "chief"])
        b.until("document.querySelector('#hint a') !== null")
        keep_picture(b, "follower")
        assert b.evaluate("document.querySelector('#hint a').href") == "http://127.0.0.1:%d/" % http_ports[leader]
        open_page(b, http_ports[leader])
        assert b.evaluate("document.getElementById('hint').hidden")
        keep_picture(b, "leader")


class Imitation:
    """Serves the files of the page with documents of the test. Use as a context manager."""

    def __init__(self, status, curve, events):
        documents = {"/page.json": status, "/api/v1/curve": curve, "/api/v1/events": events}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = {"/": "page.html"}.get(self.path, self.path[1:])
                if self.path in documents:
                    body, kind = json.dumps(documents[self.path]).encode(), "application/json"
                elif name in ("page.html", "page.css", "page.js", "charts.js"):
                    with open(os.path.join(ROOT, "daemon", "page", name), "rb") as f:
                        body, kind = f.read(), {"html": "text/html", "css": "text/css", "js": "text/javascript"}[name.split(".")[1]]
                else:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def recorded_documents():
    """Returns status, curve and events of a task that trains alone."""
    port = free_ports(1)[0]
    task = Task(digits_job(workdir(), train={"epochs": 100000, "log_every_steps": 1}), args=("--devices", "cpu:1", "--metrics", str(port)), env=SLOWER)
    documents = wait_until(lambda: (lambda s, c: (s, c) if s["tasks"][0]["step_time"] and c["evaluations"] else None)(
        api(port, "status"), api(port, "curve")) if task.events("eval") else None)
    documents += (api(port, "events"),)
    task.kill()
    return documents


CUT_LABELS = """[...document.querySelectorAll("svg text")].filter((t) => { const a = t.getBoundingClientRect(), b = t.closest("svg").getBoundingClientRect();
  return a.left < b.left - 0.5 || a.right > b.right + 0.5; }).map((t) => t.textContent)"""
EQUAL_LABELS = """[...document.querySelectorAll("svg")].filter((s) => { const names = [...s.querySelectorAll("text")].map((t) => t.textContent + t.getAttribute("text-anchor"));
  return new Set(names).size < names.length; }).map((s) => s.textContent)"""


def press(b, key):
    for kind in ("keyDown", "keyUp"):
        b.call("Input.dispatchKeyEvent", type=kind, key=key)


@test
def charts_have_whole_labels_and_are_read_by_pointer_and_by_keyboard():
    program = need_program("chromium-headless-shell")
    status, curve, events = recorded_documents()
    columns = ("step", "time_us", "loss", "learning_rate", "gradient_norm", "samples_per_second")

    def made(n, loss, rate, first=1):
        out = {**curve, "step": [first + k for k in range(n)], "loss": [loss(k) for k in range(n)], "learning_rate": [rate(k) for k in range(n)]}
        for name in set(columns) - {"step", "loss", "learning_rate"}:
            out[name] = [curve[name][0]] * n
        return {**out, "evaluations": curve["evaluations"][:1]}
    cases = {
        "small": made(50, lambda k: 1.2e-5 + 1e-8 * k, lambda k: 2e-6 * (1 + k / 100)),
        "near": made(50, lambda k: 0.98312 + 1e-6 * k, lambda k: -1234.5 - k / 1000, first=1234000),
        "wide": made(50, lambda k: 10.0 ** (6 - k / 4), lambda k: 1e9 + k),
        "one": made(1, lambda k: 0.25, lambda k: 0.1),
    }
    with browser.Browser(program) as b:
        for name, values in cases.items():
            with Imitation(status, values, events) as page:
                for width in (390, 1280):
                    open_page(b, page.port, width)
                    b.until("document.querySelectorAll('.plot svg').length === 4")
                    assert b.evaluate(CUT_LABELS) == [], (name, width, b.evaluate(CUT_LABELS))
                    assert b.evaluate(EQUAL_LABELS) == [], (name, width, b.evaluate(EQUAL_LABELS))
                    # a point alone is drawn, also an evaluation
                    assert b.evaluate("document.querySelectorAll('#chart-measure circle.dot').length") == 1
                    assert b.evaluate("document.querySelectorAll('#chart-rate circle.dot').length") == (1 if name == "one" else 0)
                    keep_picture(b, "labels-%s-%d" % (name, width))
        with Imitation(status, cases["small"], events) as page:
            open_page(b, page.port)
            b.until("document.querySelector('#chart-loss svg') !== null")
            read = "document.querySelector('#chart-loss .chart-head span').innerText"
            assert b.evaluate(read).startswith("step 50: "), b.evaluate(read)
            box = b.evaluate("(() => { const r = document.querySelector('#chart-loss svg').getBoundingClientRect(); return [r.left, r.top, r.width]; })()")
            b.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + box[2] / 2, y=box[1] + 50)
            assert 15 <= int(re.match(r"step (\d+): ", b.evaluate(read)).group(1)) <= 35, b.evaluate(read)
            keep_picture(b, "pointer")
            b.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
            b.evaluate("document.querySelector('#chart-loss .plot').focus()")
            for key, step in (("Home", 1), ("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2), ("PageDown", 1), ("End", 50), ("ArrowRight", 50), ("ArrowLeft", 49)):
                press(b, key)
                assert b.evaluate(read).startswith("step %d: " % step), (key, b.evaluate(read))
            slider = "document.querySelector('#chart-loss .plot')"
            assert b.evaluate(slider + ".getAttribute('aria-valuetext')").startswith("step 49: ") and b.evaluate(slider + ".getAttribute('aria-valuenow')") == "49"
            b.evaluate("drawCharts()")  # as every few seconds
            assert b.evaluate("document.activeElement === " + slider) and b.evaluate(read).startswith("step 49: ")
            keep_picture(b, "keyboard")


@test
def page_of_64_tasks_is_compact_and_shows_the_bad_one_first():
    program = need_program("chromium-headless-shell")
    status, curve, events = recorded_documents()
    model, time = status["tasks"][0], status["tasks"][0]["step_time"]
    tasks = []
    for i in range(64):
        t = copy.deepcopy(model)
        t.update(task={"type": "worker", "index": i, "address": "node-%02d.example:2222" % i}, state="active", heard_ms=i, lanes=2, last_error="", last_trouble="",
                 location="z1/rack%d/node-%02d" % (i // 16, i), step_time={**time, "seconds": 0.01, "reduce": 0.2, "data": 0.1, "compute": 0.7, "checkpoint": 0})
        tasks.append(t)
    tasks[41].update(state="missing", present=False, step_time=None, last_error="no heartbeat for 5.0 s")
    tasks[50]["step_time"].update(reduce=0, compute=0.9, seconds=0.02)
    tasks[12]["last_trouble"] = "checkpoint of step 100: No space left on device"
    status["advice"] = [{"time_us": status["time_us"], "kind": "lane_spread", "value": 2, "limit": 1.2, "culprit": "worker 50",
                         "text": "worker 50 is late by 10 ms", "remedy": "see its host"}]
    status.update(tasks=tasks, task=tasks[0]["task"], leader=tasks[0]["task"], state="leading", generation=3, view=[t["task"] for t in tasks if t["state"] == "active"])
    names = "[...document.querySelectorAll('#tasks .task b, #cells b')].map((e) => e.innerText)"
    with browser.Browser(program) as b, Imitation(status, curve, events) as page:
        for width, most in ((1280, 2600), (390, 6000)):
            open_page(b, page.port, width)
            found = b.evaluate(names)
            assert len(found) == 64 and found[:3] == ["worker 41", "worker 12", "worker 50"], found[:4]
            assert b.evaluate("document.querySelectorAll('#tasks .task').length") == 3
            assert b.evaluate("document.querySelector('#tasks .task').className") == "task bad"
            b.until("document.getElementById('warnings').innerText.includes('lane_spread: worker 50 is late by 10 ms; see its host')")
            assert "63 of 64\nmissing: worker 41" in b.evaluate("document.getElementById('figures').innerText")
            assert b.evaluate("document.documentElement.scrollHeight") < most, b.evaluate("document.documentElement.scrollHeight")
            assert b.evaluate("document.documentElement.scrollWidth") <= width and contrast(b) >= 4.5
            keep_picture(b, "many-%d" % width)
        choose = "(() => { const e = document.getElementById(%s); e.%s = %s; e.dispatchEvent(new Event('input')); })()"
        b.evaluate(choose % ("'filter'", "value", "'RACK2 active'"))
        assert b.evaluate(names) == ["worker %d" % i for i in range(32, 48) if i != 41], b.evaluate(names)
        b.evaluate(choose % ("'filter'", "value", "''"))
        b.evaluate(choose % ("'order'", "value", "'slow'"))
        assert b.evaluate(names)[0] == "worker 50"
        b.evaluate(choose % ("'order'", "value", "'silent'"))
        assert b.evaluate(names)[0] == "worker 63"
        b.evaluate(choose % ("'details'", "checked", "true"))
        assert b.evaluate("document.querySelectorAll('#tasks .task').length") == 64


if __name__ == "__main__":
    main()
