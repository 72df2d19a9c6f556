# SPDX-License-Identifier: Apache-2.0
"""`meson install` into a temporary directory: what is there, and whether it works from there.

    test_installed.py BUILD native|cross man|no-man

Exit 77: the build is sanitized or for another architecture (its library cannot be linked with or
run by plain programs of this machine), or pkg-config, a compiler or the build's meson is missing.
"""

import glob
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import pages  # noqa: E402

PROGRAMS = ["peercache-bench", "peercache-engine", "peercache-keeper", "peercachectl"]
EXAMPLES = ["eight-rails.conf", "minimal.conf", "soft-two-nodes.conf"]
OTHERS = ["RUNBOOK.md", "peercache-alerts.yml", "peercache-grafana.json",
          "peercache-prometheus.yml"]
HEADERS = ["peercache.h"]
NEEDED = ["pkg-config", "gcc", "g++", "ldd", "readelf"]
LANGUAGES = {"c": ["gcc", "-std=c99"], "cc": ["g++", "-std=c++11"]}
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
# No engine serves this socket: pc_open() fails and pc_error() says so.
PROGRAM = """
#include <%s>
#include <stdio.h>
#include <string.h>

int main(void)
{
    struct pc_options options;
    struct pc *pc = NULL;

    memset(&options, 0, sizeof(options));
    options.socket = "/nonexistent/peercache.sock";
    if (pc_open(&options, &pc) == 0 || !strstr(pc_error(), options.socket))
        return 1;
    printf("%%s %%s\\n", pc_version(), pc_result_name(PC_HIT));
    return 0;
}
"""


def information(build, name):
    with open(os.path.join(build, "meson-info", name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def find_meson(build):
    """The meson of the version that configured the build, or None."""
    version = information(build, "meson-info")["meson_version"]["full"]
    for meson in ("/usr/bin/meson", shutil.which("meson")):
        if meson and os.access(meson, os.X_OK) and run(meson, "--version").strip() == version:
            return meson
    return None


def run(*command, **variables):
    """Standard output; an error has the command's whole output."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, "LC_ALL": "C", **variables})
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}:\n"
                             f"{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


class Installed(unittest.TestCase):
    build = meson = ""
    man = False

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="peercache-")
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = os.path.join(cls.folder.name, "root")
        run(cls.meson, "install", "-C", cls.build, "--no-rebuild", "--destdir", cls.root)
        options = {o["name"]: o["value"] for o in information(cls.build, "intro-buildoptions")}
        cls.version = information(cls.build, "intro-projectinfo")["version"]
        cls.prefix = options["prefix"]
        cls.verbs = options["verbs"] != "disabled"
        cls.place = {name: os.path.join(cls.prefix, options[name])
                     for name in ("bindir", "libdir", "includedir", "datadir", "mandir")}
        cls.library = cls.root + cls.place["libdir"]
        cls.pkg_config = {"PKG_CONFIG_SYSROOT_DIR": cls.root,
                          "PKG_CONFIG_PATH": cls.library + "/pkgconfig"}

    def path(self, place, *names):
        return os.path.join(self.root + self.place[place], *names)

    def flags(self, *options):
        return run("pkg-config", *options, "peercache", **self.pkg_config).split()

    def test_everything_public_and_nothing_private_is_installed(self):
        doc = "doc/peercache-engine"
        expected = [self.path("bindir", name) for name in [*PROGRAMS, "peercache-setup-host"]]
        expected += [self.root + os.path.join(self.prefix, "lib", name) for name in (
            "systemd/system/peercache-engine.service", "sysusers.d/peercache.conf")]
        expected += [self.path("libdir", name) for name in (
            "libpeercache.so", "libpeercache.so.0",
            "libpeercache.so." + self.version.split(".dev")[0],
            "pkgconfig/peercache.pc")]
        if self.verbs:
            expected.append(self.path("libdir", "peercache", "peercache-verbs.so"))
        expected += [self.path("includedir", "peercache", name) for name in HEADERS]
        self.assertLessEqual({"README.md", "pages/getting-started.md", "pages/zh/deployment.md"} |
                             {"examples/" + name for name in EXAMPLES + OTHERS},
                             set(pages.places().values()))
        expected += [self.path("datadir", doc, name) for name in pages.places().values()]
        if self.man:
            expected += [self.path("mandir", "man1", name + ".1") for name in PROGRAMS]
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.root)
                 for name in names]
        package = [path for path in found if path.endswith((".py", ".abi3.so", "/trace-stalls"))
                   and "-packages/peercache/" in path]
        if package:
            expected += [self.path("bindir", name)
                         for name in ("peercache-as-mooncake", "peercache-meta",
                                      "peercache-routers", "peercache-storage-server")]
        self.assertEqual(sorted(set(found) - set(package)), sorted(expected))
        if package:  # the build has Python's headers
            sources = glob.glob("**/*.py", recursive=True, root_dir=os.path.join(
                ROOT, "engine/client/python/peercache"))
            self.assertEqual(sorted(path.split("-packages/peercache/")[1] for path in package),
                             sorted([*sources, "_peercache.abi3.so", "trial/trace-stalls"]))

    def test_no_link_of_an_installed_page_is_dead(self):
        """Each page, the target of each of its links, and no link to a file that is not there."""
        doc = self.path("datadir", "doc", "peercache-engine")
        self.assertEqual(pages.lacks(doc), [])
        self.assertGreater(len(list(pages.links(doc))), 60)

    def test_help_names_the_folder_of_the_pages(self):
        said = run(self.path("bindir", "peercachectl"), "--help", LD_LIBRARY_PATH=self.library)
        self.assertIn(f"\n  {self.path('datadir', 'doc', 'peercache-engine')}/\n", said)

    def test_programs_find_their_libraries(self):
        files = [self.path("bindir", name) for name in PROGRAMS]
        for path in [*files, self.path("libdir", "libpeercache.so")]:
            with self.subTest(path=path):
                self.assertNotIn("not found", run("ldd", path, LD_LIBRARY_PATH=self.library))
                dynamic = run("readelf", "-d", path)
                self.assertNotIn("RPATH", dynamic)
                self.assertNotIn("RUNPATH", dynamic)

    def test_programs_say_the_version_of_the_project(self):
        for name in PROGRAMS:
            with self.subTest(program=name):
                said = run(self.path("bindir", name), "--version", LD_LIBRARY_PATH=self.library)
                self.assertEqual(said, f"{name} {self.version}\n")
        self.assertEqual(self.flags("--modversion"), [self.version])

    def test_the_engine_accepts_the_example_settings(self):
        engine = self.path("bindir", "peercache-engine")
        for name in EXAMPLES:
            with self.subTest(example=name):
                example = self.path("datadir", "doc/peercache-engine/examples", name)
                # NICs, addresses and sizes are those of other hosts
                run(engine, "--config", example, "--set", "rail.devices=soft",
                    "--set", "cluster.address=127.0.0.1", "--set", "engine.pool_bytes=64MiB",
                    "--check")

    def test_the_unit_starts_the_installed_engine(self):
        with open(self.root + os.path.join(self.prefix, "lib/systemd/system",
                                           "peercache-engine.service"), encoding="utf-8") as unit:
            self.assertIn("\nExecStart=" + os.path.join(self.place["bindir"], "peercache-engine "),
                          unit.read())

    def test_python_looks_where_the_package_is(self):
        found = glob.glob(self.root + "/**/peercache/_peercache.abi3.so", recursive=True)
        looked = [self.root + folder + "/peercache" for folder in site.getsitepackages()
                  if folder.startswith(self.prefix + "/lib")]
        if not found or not looked:
            self.skipTest("skipped: no package, or this Python looks nowhere below the prefix")
        self.assertIn(os.path.dirname(found[0]), looked)

    def test_each_header_compiles_alone_in_c_and_in_cxx(self):
        for header in HEADERS:
            for suffix, compiler in LANGUAGES.items():
                with self.subTest(header=header, language=suffix):
                    source = os.path.join(self.folder.name, "alone." + suffix)
                    with open(source, "w", encoding="ascii") as file:
                        file.write(f"#include <{header}>\n")
                    run(*compiler, *STRICT, "-fsyntax-only", source, *self.flags("--cflags"))

    def test_a_program_in_c_and_in_cxx_compiles_links_and_runs(self):
        for header in HEADERS:
            for suffix, compiler in LANGUAGES.items():
                with self.subTest(header=header, language=suffix):
                    source = os.path.join(self.folder.name, "program." + suffix)
                    binary = os.path.join(self.folder.name, "program")
                    with open(source, "w", encoding="ascii") as file:
                        file.write(PROGRAM % header)
                    run(*compiler, *STRICT, source, "-o", binary,
                        *self.flags("--cflags", "--libs"))
                    self.assertEqual(run(binary, LD_LIBRARY_PATH=self.library),
                                     f"{self.version} hit\n")


def missing(build, kind):
    """Why the test cannot run here, or None."""
    if kind == "cross":
        return "the build is for another architecture"
    for option in information(build, "intro-buildoptions"):
        if option["name"] == "b_sanitize" and option["value"] != "none":
            return f"the build is sanitized ({option['value']})"
    absent = [name for name in NEEDED if not shutil.which(name)]
    if absent:
        return "not installed: " + ", ".join(absent)
    return None if find_meson(build) else "the meson that configured the build is not installed"


if __name__ == "__main__":
    Installed.build, kind, man = sys.argv[1:4]
    Installed.man = man == "man"
    del sys.argv[1:]
    reason = missing(Installed.build, kind)
    if reason:
        print("skipped:", reason)
        sys.exit(77)
    Installed.meson = find_meson(Installed.build)
    unittest.main(verbosity=2)
