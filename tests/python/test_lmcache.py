# SPDX-License-Identifier: Apache-2.0
"""LMCache's own tools and its server over peercache.lmcache, with the lines of LMCACHE.md.

Exit 77: PyPI has no LMCache. The environment is that of test_mooncake_engines.py.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

from test_mooncake_engines import LMCACHE, PACKAGE, ROOT, VLLM, WITHOUT, environment, harness

NEWER = "lmcache==0.5.7rc2"
SIZES = ((32, 256), (4, 32768), (2, 102400))  # keys, KiB: chunks of 33 MB and, in parts, of 100 MB
ADAPTER = re.compile(r"--l2-adapter '\{.*?\}'", re.S)


class LMCache(harness.ClusterTest):
    python = None

    def lines(self):
        """The commands of the page, on one line each."""
        with open(os.path.join(ROOT, "engine/client/python/LMCACHE.md"), encoding="utf-8") as file:
            text = file.read()
        [first] = re.findall(r"lmcache server .*?}}'", text, re.S)
        spec = json.loads(ADAPTER.search(first)[0].split("'")[1])
        self.assertEqual(sorted(spec), ["adapter_params", "class_name", "module_path", "type"])
        return spec, [re.sub(r"\s+", " ", first),
                      *re.findall(r"^    (.*'\{\.\.\.\}')$", text, re.M)]

    def command(self, line, spec, socket, prefix):
        """A line of the page as a command that attaches to the engine at the socket."""
        spec = {**spec, "adapter_params": {
            "engine_start": False, "engine_socket": socket, "prefix": prefix,
            "timeout_ms": 60000, "exists_timeout_ms": 60000}}
        program, *words = ADAPTER.sub("", line).split()
        return [self.python if program == "python3" else
                os.path.join(os.path.dirname(self.python), program), *words,
                "--l2-adapter", json.dumps(spec)]

    def tool(self, command, path, said):
        """The output of a command, which must have this text."""
        done = harness.run(command, 400, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, env={**os.environ, "PYTHONPATH": path})
        self.assertEqual(done.returncode, 0, done.stdout[-3000:])
        for text in said:
            self.assertIn(text, done.stdout)
        return done.stdout

    def test_the_tools_of_two_versions(self):
        engines = self.start(1, pool_bytes="2GiB")
        spec, (_, bench, check) = self.lines()
        with tempfile.TemporaryDirectory(prefix="peercache-") as folder:
            harness.run([self.python, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                         folder, NEWER], 300, check=True)
            for path in (PACKAGE, PACKAGE + os.pathsep + folder):
                if path != PACKAGE:
                    check = check.replace("lmcache.v1.", "lmcache.inprocess.v1.")
                for keys, kib in SIZES:
                    said = self.tool(
                        [*self.command(bench, spec, engines.sockets[0], f"{path}{kib}"),
                         "--num-keys", str(keys), "--data-size-kb", str(kib),
                         "--lookup-max-hit-rate", "1"], path, ["[Verify] All"])
                    self.assertEqual(re.findall(r"Total success: +(\d+)", said), [str(keys)] * 3)
                    print(keys, kib, re.findall(r"Throughput avg.* ([\d.]+)", said))
                said = self.tool(self.command(check, spec, engines.sockets[0], path), path, [])
                self.assertEqual(re.findall(r"Validation[^:]*: (\S+)", said), ["5/5"] * 4)

    def test_its_server_starts_with_the_line_of_the_page(self):
        engines = self.start(1, pool_bytes="256MiB")
        spec, (server, _, _) = self.lines()
        command = self.command(server.replace("--l1-size-gb 60", "--l1-size-gb 0.1"), spec,
                               engines.sockets[0], "server")
        ports = [word for name, port in zip(("--port", "--http-port"),
                                            harness.cluster.free_ports(2))
                 for word in (name, str(port))]
        with tempfile.TemporaryFile("w+") as said, subprocess.Popen(
                [*command, *ports, "--disable-observability", "--supported-transfer-mode",
                 "engine_driven"], stdout=said, stderr=said,
                env={**os.environ, "PYTHONPATH": PACKAGE}) as running:
            def ready():
                said.seek(0)
                text = said.read()
                self.assertIsNone(running.poll(), text[-3000:])
                return "Created native plugin L2 adapter: peercache.lmcache.Client" in text
            try:
                harness.wait_for(ready, 200, "LMCache's server has the adapter")
            finally:
                running.kill()


def main():
    try:
        LMCache.python = environment.make_other("vllm", VLLM, alone=LMCACHE, without=WITHOUT)
    except environment.Missing as why:
        print(f"skipped: {why}")
        return 77
    harness.unittest.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
