"""Drives a headless Chromium: one process for all pages of a test, each page in a profile of its own.

    with Browser() as browser:
        value = browser.open(url, size=(1280, 800), value="document.title")
        browser.open(url, picture=pathlib.Path("page.png"))

Commands and answers are JSON, ended by a NUL, on the browser's file descriptors 3 and 4 (--remote-debugging-pipe).
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

SECONDS = 120


def find_browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    raise AssertionError("no chromium on PATH: install Debian's package chromium (scripts/bootstrap does)")


class Browser:
    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.log = open(os.path.join(self.profile.name, "log"), "w+")
        read, self.commands = os.pipe()
        self.answers, write = os.pipe()
        command = [find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--disable-sync",
                   "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
                   f"--user-data-dir={self.profile.name}"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{read} 4>&{write}', "bash", *command],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        pass_fds=(read, write), env={**os.environ, "HOME": self.profile.name})
        os.close(read)
        os.close(write)
        self.last, self.unread, self.events = 0, b"", []
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.commands)
        os.close(self.answers)
        self.log.close()
        self.profile.cleanup()

    def receive(self, deadline):
        """The next message."""
        while b"\0" not in self.unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise AssertionError(f"the browser did not answer within {SECONDS} s")
            data = os.read(self.answers, 1 << 20)
            if not data:
                self.log.seek(0)
                raise AssertionError(f"the browser has ended:\n{self.log.read()[-2000:]}")
            self.unread += data
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def call(self, method, deadline, session=None, **parameters):
        """Sends a command and returns its result; events that come before it are kept in self.events."""
        self.last += 1
        message = {"id": self.last, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive(deadline)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def open(self, url, size=(1440, 900), value=None, picture=None):
        """Opens a page and waits until it has loaded. Returns what the JavaScript expression `value` is, once that is not
        empty, and writes a picture. What the page says on its console, such as an error or something that it may not load, is
        a failure."""
        deadline = time.monotonic() + SECONDS
        self.events = []
        context = self.call("Target.createBrowserContext", deadline)["browserContextId"]
        target = self.call("Target.createTarget", deadline, url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", deadline, targetId=target, flatten=True)["sessionId"]

        def call(method, **parameters):
            return self.call(method, deadline, session, **parameters)

        for domain in ("Page", "Runtime", "Log"):
            call(f"{domain}.enable")
        call("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)
        call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive(deadline))
        found = None
        while value is not None and not found:
            found = call("Runtime.evaluate", expression=value, returnByValue=True, awaitPromise=True)["result"].get("value")
            if not found:
                time.sleep(0.01)
                if time.monotonic() > deadline:
                    raise AssertionError(f"{url}: {value} stayed empty for {SECONDS} s")
        # Two frames, so that what the page's scripts changed is painted.
        call("Runtime.evaluate", awaitPromise=True,
             expression="new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        if picture is not None:
            picture.write_bytes(base64.b64decode(call("Page.captureScreenshot", format="png")["data"]))
        said = [event["params"] for event in self.events
                if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")]
        self.call("Target.disposeBrowserContext", deadline, browserContextId=context)
        if said:
            raise AssertionError(f"{url}: on the console:\n{json.dumps(said, indent=1)}")
        return found
