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

from test_mooncake_engines import BLOCK, PACKAGE, PROMPTS, ROOT, Served, harness, main

NEWER = "lmcache==0.5.7rc2"
SIZES = ((32, 256), (4, 32768), (2, 102400))  # keys, KiB: chunks of 33 MB and, in parts, of 100 MB
ADAPTER = re.compile(r"--l2-adapter '\{.*?\}'", re.S)


class LMCache(Served):
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

    def start_server(self, engines, node, prefix, *more):
        """Starts LMCache's server with the line of the page. Returns its port."""
        spec, (line, _, _) = self.lines()
        command = self.command(line.replace("--l1-size-gb 60", "--l1-size-gb 0.1"), spec,
                               engines.sockets[node], prefix)
        port, http = harness.cluster.free_ports(2)
        said = tempfile.TemporaryFile("w+")
        running = subprocess.Popen(
            [*command, "--port", str(port), "--http-port", str(http), "--disable-observability",
             "--supported-transfer-mode", "engine_driven", *more], stdout=said, stderr=said,
            env={**os.environ, "PYTHONPATH": PACKAGE})
        self.addCleanup(said.close)
        self.addCleanup(running.wait)
        self.addCleanup(running.kill)

        def ready():
            said.seek(0)
            text = said.read()
            self.assertIsNone(running.poll(), text[-3000:])
            return "Created native plugin L2 adapter: peercache.lmcache.Client" in text
        harness.wait_for(ready, 200, "LMCache's server has the adapter")
        return port

    def test_its_server_starts_with_the_line_of_the_page(self):
        self.start_server(self.start(1, pool_bytes="256MiB"), 0, "server")

    def test_vllm_finds_in_l2_what_another_host_has_stored(self):
        def mode(engines, node):
            """With a server whose L1 is empty."""
            return json.dumps({
                "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both",
                "kv_connector_extra_config": {"lmcache.mp.port": self.start_server(
                    engines, node, "l2", "--chunk-size", str(BLOCK))}})
        self.check_two_hosts(mode, sum(PROMPTS.values()) // BLOCK, [192, 1023])


if __name__ == "__main__":
    sys.exit(main(LMCache))
