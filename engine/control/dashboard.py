#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Makes dashboard.h from dashboard.html: the page as an array, and its Content-Security-Policy with
the hashes of its one <style> and its one <script>.

    dashboard.py INPUT.html OUTPUT.h
"""
import base64
import hashlib
import re
import sys


def digest(html, tag):
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
    if len(found) != 1:
        sys.exit(f"{sys.argv[1]}: {len(found)} elements <{tag}> without attributes, 1 expected")
    return base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()


def main():
    source, target = sys.argv[1:]
    with open(source, encoding="utf-8", newline="") as file:
        html = file.read()
    policy = ("default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
              "connect-src 'self'; img-src data:; "
              f"style-src 'sha256-{digest(html, 'style')}'; "
              f"script-src 'sha256-{digest(html, 'script')}'")
    page = html.encode()
    if len(page) > 150 << 10:
        sys.exit(f"{source}: {len(page)} bytes, at most {150 << 10}")
    rows = [", ".join(str(byte) for byte in page[i:i + 24]) for i in range(0, len(page), 24)]
    with open(target, "w", encoding="ascii") as file:
        file.write("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by dashboard.py. */\n"
                   f'#define DASHBOARD_CSP "{policy}"\n'
                   "static const unsigned char dashboard_text[] = {\n"
                   + ",\n".join(rows) + "};\n"
                   "static const unsigned dashboard_bytes = sizeof(dashboard_text);\n")


if __name__ == "__main__":
    main()
