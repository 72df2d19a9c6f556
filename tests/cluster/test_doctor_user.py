# SPDX-License-Identifier: Apache-2.0
"""The user for which --check and the doctor answer, and the process whose limits they read.

A program in $PATH plays systemctl, so that the host has a unit, which runs or not.
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import unittest

import harness
from test_doctor import Cases, doctor, settings, small
from test_limits import Group

USER = "daemon"  # of the unit: every Debian has it


class Played(Cases):
    def setUp(self):
        if os.geteuid():
            self.skipTest("becoming another user needs root")
        self.bin = self.folder()
        os.chmod(self.bin, 0o755)
        self.unit()

    def unit(self, **values):
        """The host has the unit from now on, with these values."""
        shown = {"LoadState": "loaded", "User": USER, "RuntimeDirectory": "peercache",
                 "MainPID": 0, **values}
        path = os.path.join(self.bin, "systemctl")
        with open(path, "w", encoding="ascii") as file:
            file.write("#!/bin/sh\ncat <<END\n" + "".join(
                f"{name}={value}\n" for name, value in shown.items()) + "END\n")
        os.chmod(path, 0o755)

    def environment(self):
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}

    def check(self, *words, before=()):
        return harness.run([*before, harness.program("engine/peercache-engine"), "--check",
                            *words], capture_output=True, text=True, env=self.environment())

    def doctor(self, *words, before=()):
        return doctor("doctor", *words, before=before, env=self.environment())[0]

    def stranger(self):
        """A command that becomes what follows it, as a user that is not root."""
        before = ["unshare", "--user"]
        if subprocess.run([*before, "true"], check=False).returncode:
            self.skipTest("no user namespaces here")
        return before

    def private(self, owner=0):
        """A folder that only root and its owner enter."""
        folder = self.folder()
        os.chmod(folder, 0o700)
        os.chown(folder, owner, owner)
        return folder


class Users(Played):
    def test_root_checks_as_the_user_of_the_unit(self):
        words = small(f"engine.socket={self.private()}/e.sock")
        done = self.check(*words)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertRegex(done.stderr, r"engine.socket = .*: Permission denied")
        self.named(self.doctor(*words), "settings", "settings", r"--check")
        self.unit(LoadState="not-found")
        self.assertEqual(self.check(*words).returncode, 0, "root may, and there is no unit")

    def test_a_user_that_is_named_counts_more_than_the_unit(self):
        words = small(f"engine.socket={self.private()}/e.sock")
        done = self.check("--user", "root", *words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("the settings are valid for user root", done.stdout)
        self.unit(LoadState="not-found")
        self.assertEqual(self.check("--user", USER, *words).returncode, 2)
        states = {f["state"] for f in self.doctor("--user", USER, *words)
                  if f["check"] == "settings"}
        self.assertEqual(states, {"found"})

    def test_the_user_of_the_unit_reads_the_file_of_settings(self):
        path = os.path.join(self.private(), "engine.conf")
        with open(path, "w", encoding="ascii") as file:
            file.write("[engine]\npool_bytes = 16MiB\n")
        done = self.check("--config", path)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("Permission denied", done.stderr)
        said = [f["text"] for f in self.doctor("--config", path) if f["check"] == "settings"]
        self.assertIn("Permission denied", " ".join(said))

    def test_the_user_of_the_unit_reads_the_file_of_seeds(self):
        path = os.path.join(self.private(), "seeds")
        with open(path, "w", encoding="ascii") as file:
            file.write("127.0.0.1:1\n")
        words = small(f"cluster.seeds_file={path}")
        for user, where, state, said in ((None, path, "found", "Permission denied"),
                                         ("root", "127.0.0.1:1", "unknown", "no engine listens")):
            findings = self.doctor(*words, *(("--user", user) if user else ()))
            seeds, = (f for f in findings if f["check"] == "seeds")
            self.assertEqual((seeds["where"], seeds["state"]), (where, state), seeds)
            self.assertIn(said, seeds["text"])
        findings = self.doctor(*words, before=self.stranger())
        self.named(findings, "seeds", path, r"as root", "unknown")

    def test_a_folder_that_systemd_makes_is_no_fault_of_the_host(self):
        for folder, status in (("peercache-test-none", 0), ("peercache-test-other", 2)):
            self.unit(RuntimeDirectory="a peercache-test-none")
            done = self.check(*small(f"engine.socket=/run/{folder}/e.sock"))
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)

    def test_a_state_directory_is_made_by_the_first_start(self):
        few = ("disk.bytes=64MiB", "disk.segment_bytes=8MiB")
        self.unit(StateDirectory="a peercache-test-none", ProtectSystem="strict")
        for folder, status in (("none", 0), ("none/", 0), ("none/below", 2), ("other", 2)):
            path = f"/var/lib/peercache-test-{folder}"
            done = self.check(*small(f"disk.paths={path}", *few))
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
            if status:
                self.assertIn(f"disk.paths: {path}: No such file", done.stderr)
        path = "/var/lib/peercache-test-none"
        findings = self.doctor(*small(f"disk.paths={path}", *few))
        self.named(findings, "disk", path, "", "unknown")
        self.assertNotIn("found", {f["state"] for f in findings if f["check"] == "settings"})

    def test_a_path_that_the_unit_sees_read_only_is_found(self):
        disk = self.private(pwd.getpwnam(USER).pw_uid)
        words = small(f"disk.paths={disk}", "disk.bytes=64MiB", "disk.segment_bytes=8MiB")
        strict = {"StateDirectory": "peercache", "ProtectSystem": "strict"}
        parent = os.path.dirname(disk)
        for values, status in (
                ({}, 2), ({"ReadWritePaths": f"/a -{disk}/"}, 0), ({"ReadWritePaths": parent}, 0),
                ({"ReadWritePaths": f"{disk}-other"}, 2), ({"ReadWritePaths": disk[:-1]}, 2),
                ({"ReadWritePaths": "/"}, 0),
                ({"ReadWritePaths": f"{disk}/below"}, 2), ({"BindPaths": "/a:/b:rbind"}, 0),
                ({"ReadWritePaths": "/" + "a" * 2000}, 0), ({"ProtectSystem": "full"}, 0)):
            self.unit(**{**strict, **values})
            done = self.check(*words)
            self.assertEqual(done.returncode, status, (values, done.stdout + done.stderr))
            if status:
                self.assertIn(f"ReadWritePaths={disk} in a drop-in", done.stderr)
        self.assertEqual(self.check("--user", "root", *words).returncode, 0, "it is not the unit")

    def test_what_another_user_sees_is_unknown(self):
        words = small(f"engine.socket={self.private(pwd.getpwnam(USER).pw_uid)}/e.sock")
        findings = self.doctor(*words, before=self.stranger())
        self.named(findings, "settings", "engine.socket", rf"as root or as {USER}; --user",
                   "unknown")
        self.assertNotIn("found", {f["state"] for f in findings if f["check"] == "settings"})
        done = self.check(*words, before=self.stranger())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("files and folders were not checked", done.stdout)
        # what needs no file is examined nevertheless
        findings = self.doctor(*words, *settings("cluster.address=192.0.2.77"),
                               before=self.stranger())
        self.named(findings, "settings", "settings", r"--check")

    def test_files_of_a_disk_that_cannot_be_seen_are_not_called_absent(self):
        disk = self.private(pwd.getpwnam(USER).pw_uid)
        room = os.statvfs(disk)
        more = (room.f_blocks * room.f_frsize >> 20) + 1024
        words = small(f"disk.paths={disk}", f"disk.bytes={more}MiB")
        findings = self.doctor(*words, before=self.stranger())
        if any("the file system is" in f["text"] for f in findings if f["check"] == "disk"):
            self.skipTest("the temporary folder is on no disk")
        self.named(findings, "disk", disk, "as root or as the engine's user", "unknown")
        self.assertNotIn("found", {f["state"] for f in findings if f["where"] == disk})
        self.named(self.doctor(*words), "disk", disk, r"lower disk\.bytes")

    def test_a_user_that_is_not_there_is_refused(self):
        done = self.check("--user", "peercache-test-none", *small())
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("no user of that name", done.stderr)
        findings = self.doctor("--user", "peercache-test-none", *small())
        self.named(findings, "settings", "user", "--user NAME", "unknown")
        self.unit(User="peercache-test-none")
        self.named(self.doctor(*small()), "settings", "user", "systemd-sysusers")

    def test_a_user_that_cannot_be_looked_up_is_unknown(self):
        """The names are in a file that this process must not read."""
        folder = self.folder()
        for name, text, mode in (("passwd", "", 0), ("nsswitch.conf", "passwd: files\n", 0o644)):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
            os.chmod(path, mode)
        findings = self.doctor(*small(), before=[
            "unshare", "--mount", "sh", "-c",
            'mount --bind "$0/nsswitch.conf" /etc/nsswitch.conf && '
            'mount --bind "$0/passwd" /etc/passwd && exec "$@"', folder, *self.stranger()])
        self.named(findings, "settings", "user", "--user NAME", "unknown")
        self.assertIn("cannot be looked up: Permission denied",
                      [f["text"] for f in findings if f["where"] == "user"][0])

    def test_a_user_without_a_check_is_wrong_usage(self):
        done = harness.run([harness.program("engine/peercache-engine"), "--user", "root",
                            "--plan"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("--user goes with --check", done.stderr)


class Silent(Played):
    """systemctl hangs: whether there is a unit, and of which user, is not known."""

    def setUp(self):
        super().setUp()
        for name, script in (("systemctl", "exec sleep 1000"),
                             ("timeout", f"shift\nexec {shutil.which('timeout')} 0.1 \"$@\"")):
            path = os.path.join(self.bin, name)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"#!/bin/sh\n{script}\n")
            os.chmod(path, 0o755)
        self.words = small(f"engine.socket={self.bin}/e.sock")

    def test_a_check_tells_that_the_user_is_not_known(self):
        done = self.check(*self.words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("files and folders were not checked; give --user NAME", done.stdout)
        done = self.check("--user", "root", *self.words)
        self.assertIn("valid for user root", done.stdout)
        self.assertNotIn("systemctl has not answered", done.stdout)

    def test_the_doctor_examines_no_other_process_and_user(self):
        findings = self.doctor(*self.words)
        self.named(findings, "settings", "user", "--user NAME", "unknown")
        for check in "limits", "cgroup":
            self.assertEqual({f["state"] for f in findings if f["check"] == check}, {"unknown"},
                             check)


class Processes(Played):
    def states(self, findings, check):
        return {(f["state"], f["where"]) for f in findings if f["check"] == check}

    def look(self, **options):
        return self.doctor(*small(f"engine.socket={self.bin}/e.sock"), **options)

    def test_limits_of_a_unit_that_does_not_run_are_unknown(self):
        findings = self.look()
        self.named(findings, "limits", "limits", r"systemctl show", "unknown")
        self.named(findings, "cgroup", "cgroup", r"systemctl show .*TasksMax", "unknown")
        self.unit(LoadState="not-found")
        findings = self.look()
        self.assertNotIn("unknown", {s for s, _ in self.states(findings, "limits")})
        self.assertIn("/proc/self/limits", {w for _, w in self.states(findings, "limits")})

    def test_the_cgroup_of_a_unit_that_runs_is_read(self):
        group = Group("pids", 20)
        self.addCleanup(harness.wait_for, group.close, 20, "the group is empty")
        with subprocess.Popen(group.inside("sleep", "1000")) as process, \
                contextlib.ExitStack() as ends:
            ends.callback(process.kill)
            harness.wait_for(lambda: group.used() and open(
                f"/proc/{process.pid}/comm", encoding="ascii").read() == "sleep\n", 20, "started")
            self.unit(MainPID=process.pid)
            findings = self.look()
            self.named(findings, "cgroup", "pids.max", r"TasksMax=")
            self.assertIn(f"/proc/{process.pid}/limits",
                          {w for _, w in self.states(findings, "limits")})
            # the caller's own group does not count
            self.unit(MainPID=os.getpid())
            self.assertNotIn("found", {s for s, _ in self.states(
                self.look(before=group.inside("env")), "cgroup")})


if __name__ == "__main__":
    assert pwd.getpwnam(USER)
    harness.main()
