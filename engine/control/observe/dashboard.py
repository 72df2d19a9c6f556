#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Makes dashboard.h from the files of the folder dashboard/: the page as an array, with its style and
its scripts in it, and its Content-Security-Policy with the hashes of both.

    dashboard.py FOLDER OUTPUT.h
"""
import base64
import hashlib
import os
import sys

STYLE = "page.css"
SCRIPTS = ["figures.js", "plots.js", "tiles.js", "cluster.js", "page.js"]
BYTES_MAX = 150 << 10


def read(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        return file.read()


def fill(html, tag, text):
    """The page with `text` in its one empty element `tag`, and the hash of that text."""
    empty = f"<{tag}></{tag}>"
    if html.count(f"<{tag}") != 1 or html.count(empty) != 1:
        sys.exit(f"page.html: not exactly one {empty}")
    if f"</{tag}" in text:
        sys.exit(f"</{tag} in the text of <{tag}>")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return html.replace(empty, f"<{tag}>{text}</{tag}>"), digest


def make(folder):
    """The page, in bytes, and its Content-Security-Policy."""
    html = read(folder, "page.html")
    html, style = fill(html, "style", read(folder, STYLE))
    scripts = "".join(read(folder, name) for name in SCRIPTS)
    html, script = fill(html, "script", '"use strict";\n' + scripts)
    policy = ("default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
              "connect-src 'self'; img-src data:; "
              f"style-src 'sha256-{style}'; script-src 'sha256-{script}'")
    page = html.encode()
    if len(page) > BYTES_MAX:
        sys.exit(f"{folder}: {len(page)} bytes, at most {BYTES_MAX}")
    return page, policy


def main():
    folder, target = sys.argv[1:]
    page, policy = make(folder)
    rows = [", ".join(str(byte) for byte in page[i:i + 24]) for i in range(0, len(page), 24)]
    with open(target, "w", encoding="ascii") as file:
        file.write("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by dashboard.py. */\n"
                   f'#define DASHBOARD_CSP "{policy}"\n'
                   "static const unsigned char dashboard_text[] = {\n"
                   + ",\n".join(rows) + "};\n"
                   "static const unsigned dashboard_bytes = sizeof(dashboard_text);\n")


if __name__ == "__main__":
    main()
