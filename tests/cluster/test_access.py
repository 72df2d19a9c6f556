# SPDX-License-Identifier: Apache-2.0
"""Which processes may attach: users and groups of the settings, also across user namespaces. A
refused client and the engine's log say what was compared."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile

import harness

USER, GROUP, OTHER = "64123", "64124", "64125"


def become(user, *groups):
    """A command that runs another one as a user with that group and supplementary groups."""
    more = ["--groups", ",".join(groups)] if groups else ["--clear-groups"]
    return ["setpriv", "--reuid", user, "--regid", user, *more]


class Access(harness.ClusterTest):
    def setUp(self):
        if os.geteuid() or not shutil.which("setpriv") or not shutil.which("unshare"):
            self.skipTest("skipped: needs root, setpriv and unshare")
        self.folder = tempfile.mkdtemp(prefix="peercache-access-")
        self.addCleanup(harness.remove_folder, self.folder)
        os.chmod(self.folder, 0o755)
        self.socket, self.log = (os.path.join(self.folder, name) for name in ("e.sock", "log"))
        # other users may not see the build, but they see this folder
        names = [harness.program("tools/peercachectl"), *self.libraries()]
        self.ctl = [shutil.copy(name, self.folder) for name in names][0]

    def libraries(self):
        folder = os.path.join(harness.BUILD, "engine", "client")
        return [os.path.join(folder, name) for name in os.listdir(folder)
                if name.startswith("libpeercache.so.") and not name.endswith(".p")]

    def serve(self, *settings, inside=()):
        """Starts an engine, below the command `inside`; returns when root is served."""
        command = [*inside, harness.program("engine/peercache-engine")]
        for value in (f"engine.socket={self.socket}", "engine.pool_bytes=16MiB",
                      "engine.huge_pages=no", "metrics.port=0", "rail.polling=adaptive",
                      f"cluster.port={harness.cluster.free_port()}", *settings):
            command += ["--set", value]
        with open(self.log, "w", encoding="utf-8") as log:
            engine = subprocess.Popen(command, stdout=log, stderr=log)
        self.addCleanup(engine.wait)
        self.addCleanup(engine.terminate)
        harness.wait_for(lambda: self.client() is None or engine.poll() is not None, 60,
                         "root is served: " + self.logged())
        self.assertIsNone(engine.poll(), self.logged())

    def logged(self):
        with open(self.log, encoding="utf-8") as file:
            return file.read()

    def client(self, *command, what=("status",)):
        """None: a client that this command starts is served; else what it prints."""
        done = harness.run([*command, self.ctl, "--socket", self.socket, *what],
                           capture_output=True, text=True,
                           env={**os.environ, "LD_LIBRARY_PATH": self.folder})
        return None if done.returncode == 0 else done.stdout + done.stderr

    def assert_refused(self, said, *words):
        self.assertIsNotNone(said, "it was served")
        for word in words:
            self.assertIn(word, said)
            self.assertIn(word, self.logged())

    def test_root_and_named_users_may_attach(self):
        self.serve(f"engine.allowed_users=daemon, {USER}")
        self.assertIsNone(self.client(*become(USER)))
        self.assertIsNone(self.client(*become("1")))
        said = self.client(*become(OTHER))
        self.assert_refused(said, f"user {OTHER}, group {OTHER} and 0 more groups are not",
                            f"allowed are user 0, root, engine.allowed_users = daemon, {USER} and "
                            "engine.allowed_groups = none")
        self.assertIn(f"which is user {OTHER} and group {OTHER}", said)

    def test_who_does_not_administer_clears_groups_only_and_is_named(self):
        self.serve(f"engine.allowed_users={USER}", f"engine.admin_groups={GROUP}")
        record = tempfile.mktemp(prefix="peercache-keys-")
        for what in (["clear"], ["clear", "--cluster"],
                     ["keys", "--record", record, "--seconds", "1"]):
            said = self.client(*become(USER), what=what)
            self.assertRegex(said, "engine.admin_users")
            for user in (USER, OTHER):
                self.assertIsNone(self.client(*become(user, GROUP), what=what))
                with contextlib.suppress(FileNotFoundError):
                    os.remove(record)
        self.assertIsNone(self.client(*become(USER), what=["clear", "--namespace", "a"]))
        self.assertIsNone(self.client(*become(USER),
                                      what=["clear", "--cluster", "--namespace", "a"]))
        self.assertRegex(self.logged(), rf"a request of process \d+, user {USER}, is refused: it "
                         "clears all pages, which only administrators may")
        report = harness.run([self.ctl, "--socket", self.socket, "status", "--json"],
                             capture_output=True, text=True,
                             env={**os.environ, "LD_LIBRARY_PATH": self.folder}).stdout
        report = json.loads(report)
        self.assertEqual(report["counters"]["clients_denied"], 3)
        self.assertIn("client_denied", [f["id"] for f in report["health"]["findings"]])

    def test_without_settings_only_root_and_the_engine_s_user_may(self):
        self.serve()
        self.assert_refused(self.client(*become(USER)), "engine.allowed_users = none")

    def test_groups_may_attach_and_supplementary_ones_count(self):
        self.serve(f"engine.allowed_groups={GROUP}")
        self.assertIsNone(self.client(*become(GROUP)))
        self.assertIsNone(self.client(*become(USER, "7", GROUP, "8")))
        said = self.client(*become(USER, "7", "8"))
        self.assert_refused(said, "2 more groups", f"engine.allowed_groups = {GROUP}")

    def test_a_user_of_another_namespace_is_the_one_that_the_engine_sees(self):
        self.serve(f"engine.allowed_users={USER}")
        inside = ["unshare", "--user", "--map-root-user"]
        self.assertIsNone(self.client(*become(USER), *inside))
        said = self.client(*become(OTHER), *inside)
        self.assertIn("which is user 0 and group 0 in its own user namespace", said)
        self.assert_refused(said, f"user {OTHER}, group {OTHER} and")

    def test_a_user_that_the_engine_s_namespace_lacks_is_no_named_one(self):
        """The kernel shows all of them as the user 65534 and the group 65534."""
        self.serve("engine.allowed_users=65534", "engine.allowed_groups=65534",
                   inside=["unshare", "--user", "--map-root-user"])
        self.assert_refused(self.client(*become(USER)), "does not exist in the engine's user "
                            "namespace, where it is seen as 65534")

    def test_names_that_the_host_lacks_are_found_by_the_check(self):
        for value in ("allowed_users=root,peercash", "allowed_groups=peercash",
                      "allowed_users=4294967295", "allowed_users=99999999999999999999",
                      "allowed_users=" + ",".join(map(str, range(33)))):
            done = harness.run([harness.program("engine/peercache-engine"), "--check", "--set",
                                "engine." + value, "--set", f"engine.socket={self.socket}"],
                               capture_output=True, text=True)
            self.assertNotEqual(done.returncode, 0, value)
            self.assertIn("engine." + value.split("=")[0], done.stderr)

    def test_a_group_of_any_length_is_found(self):
        names = os.path.join(self.folder, "group")
        with open("/etc/group", encoding="utf-8") as file:
            text = file.read()
        members = ",".join(f"member{i:05}" for i in range(20000))
        with open(names, "w", encoding="utf-8") as file:
            file.write(f"{text}\npeercash:x:{GROUP}:{members}\n")
        done = harness.run(["unshare", "--mount", "sh", "-c",
                            'mount --bind "$0" /etc/group && exec "$@"', names,
                            harness.program("engine/peercache-engine"), "--check",
                            "--set", "engine.allowed_groups=peercash", "--set", "rail.devices=soft",
                            "--set", f"engine.socket={self.socket}"],
                           capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    harness.main()
