"""browser.py - drives a headless Chromium through its debugging pipe: JSON messages that end with a NUL byte, on descriptors
3 and 4 of the browser. No package is needed."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile

from kit import GUARD, await_process, wait_until



class Browser:
    """A browser with one page. Use as a context manager: it ends the browser and removes its profile."""

    def __init__(self, program):
        self.number = 0
        self.buffer = b""
        self.events = []
        self.profile = tempfile.mkdtemp(prefix="trainerd-browser-")
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        # The shell gives the pipes the numbers that the browser expects.
        command = 'exec "$0" "$@" 3<&%d 4>&%d' % (to_browser, from_browser)
        self.p = subprocess.Popen(["bash", "-c", command, program, "--headless", "--no-sandbox", "--disable-gpu",
                                   "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                                   "--disable-background-networking", "--remote-debugging-pipe",
                                   "--user-data-dir=" + self.profile, "about:blank"],
                                  pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.out)  # the browser ends when its pipe closes
        os.close(self.inp)
        try:
            await_process(self.p)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self):
        while b"\0" not in self.buffer:
            if not select.select([self.inp], [], [], GUARD)[0]:
                raise AssertionError("the browser did not answer in time")
            data = os.read(self.inp, 1 << 20)
            if not data:
                raise AssertionError("the browser ended: exit %s" % self.p.poll())
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if hasattr(self, "session"):
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError("%s: %s" % (method, answer["error"]))
                return answer["result"]
            self.events.append(answer)

    def open(self, url, width, scheme, height=844):
        """Opens a page; scheme: "light" or "dark"."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise AssertionError("%s: %s" % (expression, r["exceptionDetails"]))
        return r["result"].get("value")

    def until(self, expression):
        """Waits until the expression is true."""
        wait_until(lambda: self.evaluate(expression),
                   lambda: "%s; the page: %s" % (expression, self.evaluate("document.body.innerText")[:2000]))

    def screenshot(self, path):
        """The whole page, also what is below the window."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))

    def problems(self):
        """Errors of scripts, of the console (the content security policy reports there) and of loads, so far."""
        self.call("Runtime.evaluate", expression="1")  # collects the events that have arrived
        out = []
        for e in self.events:
            p = e.get("params", {})
            if e.get("method") == "Runtime.exceptionThrown":
                out.append(str(p["exceptionDetails"]))
            elif e.get("method") == "Log.entryAdded" and p["entry"]["level"] == "error" and \
                    not p["entry"].get("url", "").endswith("/favicon.ico"):
                out.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        return out

    def loaded(self):
        """The addresses of all requests so far."""
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
