# SPDX-License-Identifier: Apache-2.0
"""tools/pages.py makes a site whose search finds what the pages say, and that loads nothing from
other servers. MkDocs comes from PyPI.

Exit status 77: no PyPI.
"""

import functools
import glob
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import unittest

from commands import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "dashboard"))
import browser  # noqa: E402

SITE = os.path.join(ROOT, "build", "site", "html")
LOADED = re.compile(r"<(?:script|img|link)\b[^>]*(?:src|href)=\"?(https?:[^\">\s]*)")
FOUND = "[...document.querySelectorAll('.md-search-result__item a')].map(a => a.href)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Site(unittest.TestCase):
    def test_every_page_is_in_the_index_of_the_search(self):
        with open(os.path.join(SITE, "search", "search_index.json"), encoding="utf-8") as file:
            index = json.load(file)["docs"]
        indexed = {entry["location"].split("#")[0] for entry in index}
        built = {os.path.relpath(path, SITE) for path in
                 glob.glob(os.path.join(SITE, "**", "*.html"), recursive=True)}
        self.assertGreater(len(built), 15)
        self.assertEqual(built - indexed - {"404.html", "index.html"}, set())
        self.assertTrue(any("seeds_unmet" in entry["text"] for entry in index))

    def test_nothing_is_loaded_from_other_servers(self):
        for path in glob.glob(os.path.join(SITE, "**", "*.html"), recursive=True):
            with open(path, encoding="utf-8") as file:
                loaded = re.findall(LOADED, file.read())
            self.assertEqual(loaded, [], path)

    @unittest.skipUnless(browser.program(), "no Chromium; run tools/install --browser")
    def test_a_search_in_a_browser_finds_the_page(self):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = browser.Browser()
        self.addCleanup(chromium.close)
        for words, wanted in (("seeds_unmet", "pages/troubleshooting.html"),
                              ("防火墙", "pages/zh/troubleshooting.html")):
            tab = chromium.open(f"http://127.0.0.1:{server.server_port}/index.html?q={words}",
                                real=True)
            tab.wait(f"{FOUND}.some(url => url.includes('{wanted}'))", 60, f"{words} is found")
            self.assertEqual(tab.errors, [])
            tab.close()


def main():
    done = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "pages.py")],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode and re.search(r"pip.*install", done.stderr.split("\n")[0]):
        print("skipped: no PyPI:", done.stderr[-500:])
        return 77
    if done.returncode:
        print(done.stderr)
        return 1
    unittest.main(verbosity=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
