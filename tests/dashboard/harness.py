# SPDX-License-Identifier: Apache-2.0
"""What the dashboard's tests share: a browser for each class of tests, pages, what is sound."""

import itertools
import os
import sys
import time
import unittest

import answers
import browser

SLOW = float(os.environ.get("PEERCACHE_SLOW", "1"))
SIZES = {360: 740, 768: 1024, 1440: 900}
THEMES = ["light", "dark"]
FIRST_S = 30 * SLOW  # until the first figures
GONE = ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"]


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = browser.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def fake(self, *arguments, **changes):
        """A server with fabricated answers: see answers.Fake."""
        fake = answers.Fake(*arguments)
        for name, value in changes.items():
            setattr(fake, name, value)
        self.addCleanup(fake.close)
        return fake

    def open(self, served, state="live", **options):
        page = self.browser.open(served.url, **options)
        self.addCleanup(page.close)
        page.wait(f"document.body.dataset.state === '{state}'", FIRST_S, f"state {state}")
        page.first_s = time.monotonic() - page.opened
        return page

    def open_all(self, fake, sizes=SIZES):
        """A page of each size and theme, all open at once: (width, theme, page)."""
        return [(width, theme, self.open(fake, width=width, height=SIZES[width], theme=theme))
                for width, theme in itertools.product(sizes, THEMES)]

    def assert_sound(self, page, fake, errors=()):
        """No scroll sideways, no error, no request elsewhere, little shift, axe finds nothing."""
        if not page.real:
            page.elapse(100)  # the browser tells of shifts a little later
        self.assertLessEqual(page.size()["width"], page.width, "the page scrolls sideways")
        # Up to 0.1 counts as good; a busy browser paints a large cluster's rows in more steps.
        self.assertLessEqual(page.js("window.shifts"), 0.1, "parts of the page move")
        self.assertEqual([e for e in page.errors if not any(allowed in e for allowed in errors)],
                         [], "errors in the console")
        own = {fake.url, *(fake.url + "api/" + path for path in ("status", "history", "cluster"))}
        self.assertLessEqual({r for r in page.requests if not r.startswith("data:")}, own)
        self.assertEqual(page.dialogs, [])
        self.assertEqual(page.axe(), [])


def main():
    if browser.missing():
        print("skipped:", browser.missing())
        sys.exit(77)
    unittest.main(verbosity=2)
