# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that is driven by its DevTools protocol over two pipes, without a library."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time

OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--mute-audio",
)


class Browser:
    """Chromium with one page. What the page writes to the console, and its errors, are in said."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        requests_out, self.requests = os.pipe()
        self.replies, replies_in = os.pipe()
        options = [*OPTIONS, f"--user-data-dir={self.folder}"]
        if os.geteuid() == 0:  # its sandbox refuses root
            options.append("--no-sandbox")
        # Chromium reads from descriptor 3, and writes to 4.
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{requests_out} 4>&{replies_in}', "sh"]
            + ["chromium", *options, "about:blank"],
            pass_fds=(requests_out, replies_in),
            env={**os.environ, "HOME": self.folder, "XDG_RUNTIME_DIR": self.folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(requests_out)
        os.close(replies_in)
        self.bytes = b""
        self.n = 0
        self.session = None
        self.said = []
        self.timeout_s = 60
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.requests)  # it ends
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.replies)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, end):
        """The next message of Chromium."""
        while b"\0" not in self.bytes:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.replies], [], [], left)[0]:
                raise TimeoutError("chromium does not answer")
            more = os.read(self.replies, 1 << 20)
            if not more:
                raise ConnectionError("chromium has ended")
            self.bytes += more
        text, self.bytes = self.bytes.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        """Calls a method, notes what happened meanwhile, and returns the result."""
        self.n += 1
        request = {"id": self.n, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.requests, json.dumps(request).encode() + b"\0")
        end = time.monotonic() + self.timeout_s
        while True:
            m = self.message(end)
            if m.get("id") == self.n:
                if "error" in m:
                    raise RuntimeError(f"{method}: {m['error']}")
                return m["result"]
            self.note(m)

    def note(self, m):
        p = m.get("params", {})
        if m.get("method") == "Runtime.exceptionThrown":
            details = p["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description") or details["text"])
        elif m.get("method") == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(a.get("value")) for a in p["args"]))
        elif m.get("method") == "Log.entryAdded":
            self.said.append(f"{p['entry']['source']}: {p['entry']['text']}")
        elif m.get("method") == "Page.javascriptDialogOpening":
            self.said.append(f"dialog: {p['message']}")
            self.call("Page.handleJavaScriptDialog", accept=True)

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script, timeout_s=30):
        """Waits until the expression is true, and returns its value."""
        end = time.monotonic() + timeout_s
        while not (value := self.run(script)):
            if time.monotonic() > end:
                text = self.run("document.body.innerText")
                raise AssertionError(f"not within {timeout_s} s: {script}\n{text}\n{self.said}")
            time.sleep(0.05)  # lint-allow: sleep: before the next look
        return value

    def open(self, url):
        # An address that differs behind '#' alone would not be loaded again.
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.call("Page.navigate", url=url)
        self.until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def size(self, width, height=900, mobile=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def scheme(self, name):
        """Prefers the page to be "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path):
        import base64

        self.call("Emulation.setScrollbarsHidden", hidden=True)  # else they cut the right edge off
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))
