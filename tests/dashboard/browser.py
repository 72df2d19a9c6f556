# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven over two pipes with its DevTools protocol, and axe-core inside it.

Both come with `tools/install --browser`. missing() says in one line what is not there; "" if
nothing is.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from cluster import clock  # noqa: E402

PROGRAMS = ["chromium-headless-shell", "chromium"]
AXE = os.path.join(ROOT, "build", "browser", "axe.min.js")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
           "--no-first-run", "--disable-background-networking", "--disable-component-update",
           "--disable-extensions", "--disable-sync", "--hide-scrollbars",
           "--force-color-profile=srgb", "--remote-debugging-pipe"]
HANG_S = 600  # no answer for so long: the browser hangs, however busy the machine is
STEP_MS = 20  # of virtual time between two looks at a condition
# Sums layout shifts as the browser reports them; none of them follows an input here.
SHIFTS = """
window.shifts = 0;
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) window.shifts += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""
# Runs axe-core. The rule about contrast takes a millisecond for each element, so it leaves out rows
# of tables that look like an earlier row of their table: the same elements, colours and fonts. All
# other rules see the whole page.
RUN_AXE = """
(async () => {
  const seen = new Set(), looks = ["color", "backgroundColor", "backgroundImage", "opacity",
    "fontSize", "fontWeight", "textShadow", "visibility", "display", "position"];
  const all = row => [row, ...row.querySelectorAll("*")];
  const look = node => {
    const style = getComputedStyle(node);
    return [node.tagName, ...looks.map(name => style[name])].join();
  };
  const alike = [...document.querySelectorAll("tbody tr")].filter(row => {
    const text = [row.closest("table").id, ...all(row).map(look)].join(";");
    return seen.has(text) || !seen.add(text);
  }).flatMap(all);
  alike.forEach(node => node.setAttribute("data-alike", ""));
  axe.configure({rules: [{id: "color-contrast", selector: "*:not([data-alike])"}]});
  const found = await axe.run(document, {resultTypes: ["violations"]});
  alike.forEach(node => node.removeAttribute("data-alike"));
  return found.violations;
})()
"""


def program():
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def missing():
    if not program():
        return "no Chromium (" + " or ".join(PROGRAMS) + "); run tools/install --browser"
    if not os.path.exists(AXE):
        return f"no axe-core at {AXE}; run tools/install --browser"
    return ""


class Failure(Exception):
    """The browser, or a script in it, answered with an error."""


class Browser:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="dashboard-")
        to_read, self.to_write = os.pipe()
        self.from_read, from_write = os.pipe()
        command = [program(), *OPTIONS, f"--user-data-dir={self.folder}", "about:blank"]
        # The browser reads commands at descriptor 3 and writes answers at 4.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *command],
            pass_fds=(to_read, from_write), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_read)
        os.close(from_write)
        self.received, self.number, self.answers, self.pages = b"", 0, {}, {}

    def close(self):
        """Ends the browser with all its processes: they are a process group of their own."""
        os.close(self.to_write)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.from_read)
        shutil.rmtree(self.folder, ignore_errors=True)

    def receive(self, seconds):
        """Takes what the browser wrote; waits at most `seconds` for it."""
        if not select.select([self.from_read], [], [], seconds)[0]:
            return
        got = os.read(self.from_read, 1 << 20)
        if not got:
            raise Failure("the browser ended")
        self.received += got
        *messages, self.received = self.received.split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            elif message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].event(message["method"], message["params"])

    def call(self, method, session=None, seconds=HANG_S, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self.to_write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + seconds
        while self.number not in self.answers:
            if time.monotonic() > end:
                raise Failure(f"{method}: no answer within {seconds} s")
            self.receive(0.1)
        answer = self.answers.pop(self.number)
        if "error" in answer:
            raise Failure(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url, width=1440, height=900, theme="light", **options):
        return Page(self, url, width, height, theme, **options)


class Page:
    """One tab with a profile of its own; what went wrong in it is in `errors`.

    Once it is loaded, its time is virtual: timers and clocks stand still until wait() or elapse()
    lets them go on, and while a request is in flight. So a busy machine delays nothing in it, and
    nothing is waited for. With `real`, its time is that of the machine. `script` runs in the page
    before the page's own.
    """

    def __init__(self, browser, url, width, height, theme, real=False, script=""):
        self.browser, self.errors, self.requests, self.dialogs = browser, [], [], []
        self.width, self.real, self.elapsed = width, real, False
        self.context = browser.call("Target.createBrowserContext")["browserContextId"]
        self.target = browser.call("Target.createTarget", url="about:blank",
                                   browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target,
                                    flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.addScriptToEvaluateOnNewDocument", source=SHIFTS + script)
        self.requests.clear()
        self.opened = time.monotonic()
        self.call("Page.navigate", url=url)
        while self.js("document.URL === 'about:blank' || document.readyState === 'loading'"):
            self.browser.receive(0.005)
        if not real:
            self.call("Emulation.setVirtualTimePolicy", policy="pause")

    def close(self):
        if self.browser.pages.pop(self.session, None):
            self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def event(self, method, parameters):
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", details).get("description", str(details)))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
        elif method == "Emulation.virtualTimeBudgetExpired":
            self.elapsed = True

    def elapse(self, ms):
        """Lets this many milliseconds of virtual time go by."""
        self.elapsed = False
        self.call("Emulation.setVirtualTimePolicy", policy="pauseIfNetworkFetchesPending",
                  budget=ms)
        end = time.monotonic() + HANG_S
        while not self.elapsed:
            if time.monotonic() > end:
                raise Failure(f"{ms} ms of virtual time did not go by within {HANG_S} s")
            self.browser.receive(0.1)

    def js(self, expression):
        got = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                        awaitPromise=True)
        if "exceptionDetails" in got:
            raise Failure(f"{expression[:200]}: {got['exceptionDetails']}")
        return got["result"].get("value")

    def text(self, selector):
        """The text as a reader has it: `&nbsp;` is a space; hidden elements have none."""
        return self.js(f"document.querySelector({json.dumps(selector)}).innerText"
                       ".replaceAll('\\u00a0', ' ')")

    def wait(self, expression, seconds, what, step_ms=STEP_MS):
        """Until the expression is true; returns how many seconds of the page that took."""
        start, spent = clock(), 0.0
        while not self.js(expression):
            if spent > seconds:
                raise AssertionError(f"not within {seconds} s: {what}; the page says: " +
                                     self.text("#health") + " | " + self.text("#freshness"))
            if self.real:
                self.browser.receive(0.02)
                spent = clock() - start
            else:
                self.elapse(step_ms)
                spent += step_ms / 1000
        return spent

    def wait_text(self, selector, words, seconds):
        return self.wait(f"document.querySelector({json.dumps(selector)}).innerText"
                         f".includes({json.dumps(words)})", seconds, f"{selector} says {words!r}")

    def note(self, selector):
        """From now on keeps every text that the element has: a short one is not missed."""
        self.js(f"""window.noted = [];
            new MutationObserver(() => {{
                noted.push(document.querySelector({json.dumps(selector)}).textContent);
            }}).observe(document.querySelector({json.dumps(selector)}),
                {{childList: true, characterData: true, subtree: true}})""")

    def wait_noted(self, words, seconds):
        return self.wait(f"noted.some(text => text.includes({json.dumps(words)}))", seconds,
                         f"{words!r} was shown")

    def axe(self):
        """Serious and critical findings of axe-core, a line for each."""
        with open(AXE, encoding="utf-8") as file:
            self.js(file.read() + "; 0")
        if self.real:
            found = self.js(RUN_AXE)
        else:  # axe-core needs timers, of no length
            self.js(f"window.axeFound = null; {RUN_AXE.strip()}.then(found => axeFound = found,"
                    "why => axeFound = String(why)); 0")
            self.wait("axeFound !== null", HANG_S, "axe-core is done", step_ms=1)
            found = self.js("axeFound")
            if isinstance(found, str):
                raise Failure(found)
        return [f"{v['impact']} {v['id']}: {node['target']} {node['failureSummary']}"
                for v in found if v["impact"] in ("serious", "critical") for node in v["nodes"]]

    def screenshot(self, path, whole=False):
        with open(path, "wb") as file:
            clip = {"clip": {**self.size(), "x": 0, "y": 0, "scale": 1}} if whole else {}
            got = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **clip)
            file.write(base64.b64decode(got["data"]))

    def size(self):
        return self.js("({width: document.documentElement.scrollWidth, "
                       "height: document.documentElement.scrollHeight})")
