#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the compiled code has its barriers, on x86-64 and arm64, and that each mutant of
mutants.py is detected: it removes one, makes it weaker, or moves it behind its neighbour.

    tests/order/test_assembly.py BUILD      exit 77: no compiler for either processor

Compiles with the commands of BUILD/compile_commands.json, for the other processor with Debian's
cross compiler, and reads the output of objdump. Orderings that x86-64 guarantees by itself have no
instruction there: their mutants are detected on arm64.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, HERE)
import mutants  # noqa: E402

BUILD = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else
                        os.path.join(ROOT, "build", "gcc"))
ARCHES = [arch for arch in ("x86_64", "aarch64") if shutil.which(f"{arch}-linux-gnu-gcc")]
FAST_PATH = "tests/order/fast_path.c"
CCACHE = ["ccache"] if shutil.which("ccache") else []
# The mutated sources have the same place in each run, so that ccache knows them.
FOLDER = os.path.join(BUILD, "tests", "order", "assembly")

FENCE = {"x86_64": r"lock or[lq]? |mfence", "aarch64": r"dmb\s+ish$"}
# shm_fence_clock(): what it has and the fences between stores, of which pool.c has more, have not
CLOCK_FENCE = {"x86_64": r"mfence", "aarch64": r"dsb\s+osh$"}

# source: the functions that have one of these fences each; no other function of the source has one
FENCES = {
    "engine/client/rings/submit.c": {"wake_told", "submit_ctl_flush"},
    "engine/client/call/wait.c": {"sleep_until"},
    "engine/rail/poll_core.c": {"poll_wake", "poll_sleep"},
    "engine/rail/open.c": {"rail_command_send"},
    "engine/client/write/set.c": {"slot_enter"},
    "engine/control/clients/ctl.c": {"ctl_flush", "ctl_channel_close"},
    "engine/control/copies/copies.c": {"read_kick", "copies_turn"},
    "engine/control/loop.c": {"loop_sleep_or_work"},
    "engine/control/pages/pool.c": {"pool_rest"},
    "engine/control/pages/warm.c": {"channel_end"},
}
# header: the source that shows its orderings; those of other headers are in FAST_PATH
CALLER = {"engine/rail/core.h": "engine/rail/lone_page.c"}
# Keeps the functions of a source separate, so that a fence is found where it was written.
APART = ["-fno-inline-functions", "-fno-inline-functions-called-once",
         "-fno-inline-small-functions", "-fno-partial-inlining", "-fno-ipa-sra", "-fno-ipa-cp"]

# source: its functions in SEQUENCES; those of fast_path.c are all others
SOURCES = {
    "engine/client/call/call.c": {"asked_note"},
    "engine/client/call/channel.c": {"wait_until_drained", "channel_listen"},
    "engine/client/lookup/map.c": {"map_refresh"},
    "engine/client/read/fetch.c": {"fetch_copy"},
    "engine/client/lookup/look.c": {"look_all"},
    "engine/client/page/page.c": {"local_get"},
    "engine/client/write/set.c": {"slot_enter", "slot_leave"},
    "engine/client/rings/submit.c": {"wake_told", "submit_ctl_flush"},
    "engine/client/call/wait.c": {"sleep_until"},
    "engine/control/clients/client_channel.c": {"channel_asked_take", "client_channel_returned"},
    "engine/control/clients/ctl.c": {"ctl_flush", "ctl_channel_close", "ctl_channel_release"},
    "engine/control/copies/copies.c": {"read_kick", "copies_turn"},
    "engine/control/loop.c": {"loop_copies_drain", "loop_sleep_or_work"},
    "engine/control/pages/pool.c": {"pool_rest"},
    "engine/control/pages/shard.c": {"cell_store", "change_begin", "change_end"},
    "engine/client/page/key.c": {"channel_epoch"},
    "engine/control/directory/epochs.c": {"epoch_store"},
    "engine/control/members/member_map.c": {"number_bind", "word_store", "members_publish"},
    "engine/control/observe/snapshot_buffer.c": {"snapshots_publish", "snapshots_newest"},
    "engine/control/pages/warm.c": {"left_release", "channel_end"},
    "engine/rail/lone_page.c": {"lone_decide", "lone_lease_holds"},
    "engine/rail/open.c": {"rail_command_send"},
    "engine/rail/poll_core.c": {"poll_wake", "poll_sleep", "channel_wake_client"},
}

# function: processor: instructions that must occur in this order
SEQUENCES = {
    # the last copies, the slot's name, the fence; is the channel stopped?
    "slot_enter": {
        "x86_64": [r"sfence", r"mov\s+%r\w+,0x80\(", r"lock or|mfence", r"mov\s+0xc0\("],
        "aarch64": [r"dmb\s+osh$", r"str\s+x", r"dmb\s+ish$", r"ldr\s+w"]},
    # the last copies, the end of the copies
    "slot_leave": {
        "x86_64": [r"sfence", r"movq\s+\$0x0,0x80\("], "aarch64": [r"dmb\s+osh$", r"stlr\s+xzr"]},
    "ctl_channel_close": {
        "x86_64": [r"movl\s+\$0x1,0xc0\(", r"lock or|mfence", r"mov\s+0x80\("],
        "aarch64": [r"str\s+w", r"dmb\s+ish$", r"ldap?r\s+x", r"bl\s.*<ctl_give_back>"]},
    "ctl_channel_release": {"aarch64": [r"ldap?r\s+x", r"bl\s.*<ctl_give_back>"]},
    "left_release": {"aarch64": [r"ldap?r\s+x", r"bl\s.*<owner_slots_return>"]},
    "channel_end": {
        "x86_64": [r"movl\s+\$0x1,0xc0\(", r"lock or|mfence"],
        "aarch64": [r"str\s+w\d+, \[x\d+\]", r"dmb\s+ish$"]},
    "wait_until_drained": {"aarch64": [r"ldap?r\s+w"]},
    # is there room, the keys, they are written
    "asked_note": {"aarch64": [r"ldap?r\s+x", r"str\s+x", r"stlr\s+x", r"str\s+w"]},
    # the keys are written; they are taken; their copy, which gcc has put behind that
    "channel_asked_take": {
        "aarch64": [r"ldap?r\s+x", r"stlr\s+x", r"ret", r"bl\s.*<writev", r"b\s"]},
    "client_channel_returned": {"aarch64": [r"stlr\s+w", r"bl\s.*<send>"]},
    # the copy, the page head, the copy for other cores
    "local_get": {
        "x86_64": [r"call", r"sfence"],
        "aarch64": [r"bl\s.*<local_copy", r"dmb\s+ishld", r"ld[rp]\s", r"dmb\s+osh$"]},
    "fetch_copy": {
        "x86_64": [r"call", r"sfence"], "aarch64": [r"bl\s.*<copy_scatter", r"dmb\s+osh$"]},
    # epoch, word of the slot, its first owner, its other ones, the word again
    "look_all": {"aarch64": [r"ldap?r\s+w", *4 * [r"ldap?r\s+x"]]},
    "order_map_owners_load": {"aarch64": [r"ldap?r\s+w", *3 * [r"ldap?r\s+x"]]},
    # the number of members, each of them
    "channel_epoch": {"aarch64": [r"ldap?r\s+w"]},
    "epoch_store": {"aarch64": [r"stlr\s+w"]},
    "map_refresh": {"aarch64": [r"ldap?r\s+w"]},
    "number_bind": {"aarch64": [r"stlr\s+x"]},
    "word_store": {"aarch64": [r"stlr\s+x"]},
    # is there an address; it was taken
    # was the last address taken; the next one, there is one
    "members_publish": {"aarch64": [r"str\s+x", r"stlr\s+w"]},
    "snapshots_publish": {"x86_64": [r"xchg\s+"], "aarch64": [r"ldaxr\s+w", r"stlxr\s+w"]},
    "snapshots_newest": {"x86_64": [r"xchg\s+"], "aarch64": [r"ldaxr\s+w", r"stlxr\s+w"]},
    "order_bucket_load": {"aarch64": [r"dmb\s+ishld", r"dmb\s+ishld"]},
    # the head that a READ brought: its key is compared; run->leased, T1
    "lone_decide": {
        "aarch64": [r"orr\s+x", r"ldr\s+w\d+, \[x\d+, #116\]", r"bl\s.*<lone_lease_holds>"]},
    # the heads that a READ brought, T1
    "lone_lease_holds": {"aarch64": [r"dsb\s+oshld$", r"isb", r"bl\s.*<clock_raw_ns>"]},
    # of a change of the shard: it is busy, the change, it is not
    "change_begin": {"aarch64": [r"str\s+w", r"dmb\s+oshst"]},
    "change_end": {"aarch64": [r"str\s+x", r"dmb\s+oshst", r"str\s+wzr"]},
    # The sleep protocol. Sleeper: flag, fence, one more look. Waker: publication, fence, flag.
    "sleep_until": {"aarch64": [r"str\s+w", r"dmb\s+ish$", r"bl\s.*<wait_answered>"]},
    "channel_listen": {"aarch64": [r"str\s+w", r"dmb\s+ish$", r"bl\s.*<wait_answered>"]},
    "poll_sleep": {
        "aarch64": [r"bl\s.*<poll_raise_flags>", r"dmb\s+ish$", r"bl\s.*<poll_core_turn>"]},
    "loop_copies_drain": {"x86_64": [r"xchg\s+"], "aarch64": [r"ldaxr\s+w", r"stlxr\s+w"]},
    "loop_sleep_or_work": {"aarch64": [r"str\s+w", r"dmb\s+ish$", r"bl\s.*<loop_turn>"]},
    "submit_ctl_flush": {
        "aarch64": [r"bl\s.*<submit_ctl_publish>", r"dmb\s+ish$", r"bl?\s.*<submit_ctl_wake>"]},
    "wake_told": {"aarch64": [r"dmb\s+ish$", r"bl\s.*<submit_wake_rail>"]},
    "poll_wake": {"aarch64": [r"dmb\s+ish$", r"bl\s.*<rail_wake>"]},
    "rail_command_send": {"aarch64": [r"stlr\s+x", r"dmb\s+ish$", r"ldr\s+w"]},
    "read_kick": {"aarch64": [r"dmb\s+ish$", r"ldr\s+w"]},
    "copies_turn": {"aarch64": [r"str\s+w", r"dmb\s+ish$", r"bl\s"]},
    "ctl_flush": {"aarch64": [r"dmb\s+ish$", r"ldr\s+w", r"ldaxr\s+w"]},
    "channel_wake_client": {"aarch64": [r"ldaxr\s+w", r"stlxr\s+w"]},
    # the generation, then the clock that limbo begins with
    "pool_rest": {
        "x86_64": [r"mfence", r"lfence", r"call"], "aarch64": [r"dsb\s+osh$", r"isb", r"blr"]},
    "order_ring_publish": {"aarch64": [r"str\s+x", r"stlr\s+x"]},
    "order_ring_look": {"aarch64": [r"ldap?r\s+x"]},
    "order_ring_ready_now": {"aarch64": [r"ldap?r\s+x"]},
    "order_ring_release": {"aarch64": [r"stlr\s+w"]},
    "order_ring_room": {"aarch64": [r"ldap?r\s+w"]},
    "order_page_head_retire": {
        "x86_64": [r"mov\s+%e\w+,0x10\(", r"movq\s+\$0x0,(0x8)?\("],
        "aarch64": [r"str\s+w\d+,", r"dmb\s+oshst", r"str\s+xzr", r"str\s+xzr"]},
    # order: length, generation
    "order_page_head_length": {"aarch64": [r"ldr\s+w", r"dmb\s+ishld", r"ldr\s+w"]},
    "order_page_head_publish": {
        "aarch64": [r"dmb\s+oshst", r"str\s+w\d+,", r"str\s+x"]},
    # order: earlier entries, the test for an old tag; empty tag, place, tag
    "cell_store": {
        "aarch64": [r"dmb\s+oshst", r"cbn?z\s", r"str\s+xzr", r"dmb\s+oshst", r"str\s+x",
                    r"dmb\s+oshst", r"str\s+x"]},
    # order: odd sequence, words, even sequence
    "order_statistics_write": {
        "aarch64": [r"str\s+w", r"dmb\s+oshst", r"str\s+x", r"stlr\s+w"]},
    "order_statistics_read": {
        "aarch64": [r"ldap?r\s+w", r"ldr\s+x", r"dmb\s+ishld", r"ldr\s+w"]},
    "order_shm_exchange": {"x86_64": [r"xchg\s+"], "aarch64": [r"ldaxr\s+w", r"stlxr\s+w"]},
    # order: stores, the counter that the clock reads
    "order_shm_fence_clock": {
        "x86_64": [r"mfence", r"lfence"], "aarch64": [r"dsb\s+osh$", r"isb"]},
    # order: loads, the counter that the clock reads
    "order_shm_fence_lease": {
        "x86_64": [r"lfence"], "aarch64": [r"dsb\s+oshld$", r"isb"]},
    # order: doorbell record, doorbell register
    "order_dv_ring": {
        "x86_64": [r"mov\s+%e\w+,", r"sfence", r"mov\s+%r\w+,\(", r"sfence"],
        "aarch64": [r"dmb\s+oshst", r"str\s+w", r"dsb\s+st", r"str\s+x", r"dsb\s+st"]},
    # order: owner bit, the rest of the CQE; the last CQE, doorbell record
    "order_dv_poll": {"aarch64": [r"ldrb", r"dmb\s+oshld", r"ldr", r"dmb\s+oshld", r"str\s+w"]},
}

# The processors on which a mutant is visible; the other one orders these accesses by itself.
SEEN_ON = {name: ["aarch64"] for name in (
    "owner_before_cqe", "wqe_before_record", "cqe_before_record", "fence_clock_arm",
    "fence_lease_arm")}
SEEN_ON["fence_clock_x86"] = SEEN_ON["fence_lease_x86"] = ["x86_64"]


# The compiler arguments to keep: those that affect the code and that gcc shares with clang.
KEPT = ("-I", "-isystem", "-D", "-O", "-std=", "-fno-strict-aliasing", "-fno-omit-frame-pointer")


def commands():
    """Returns for each source, relative to the root, its compiler arguments without files."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
        words, kept = shlex.split(entry["command"]), []
        while words:
            word = words.pop(0)
            if word in ("-I", "-isystem"):
                kept += [word, words.pop(0)]
            elif word.startswith(KEPT):
                kept.append(word)
        found[path] = kept
    found[FAST_PATH] = found["engine/rail/poll_core.c"]
    return found


def compile_for(arch, source, arguments, overlay, to):
    compiler = f"{arch}-linux-gnu-gcc"
    extra = APART if source in FENCES or source in SOURCES else []
    if arch == "aarch64":
        extra = [*extra, "-mno-outline-atomics"]  # instructions, not a call of libgcc
    if arch != os.uname().machine:
        # headers of libraries; the C library's headers are the cross compiler's own
        extra = [*extra, "-idirafter", "/usr/include",
                 "-idirafter", f"/usr/include/{os.uname().machine}-linux-gnu"]
    if overlay:
        extra = [*extra, "-iquote", overlay]
        if os.path.exists(os.path.join(overlay, source)):
            source = os.path.join(overlay, source)
    # A mutated copy of a source also finds the files beside the original.
    subprocess.run([*CCACHE, compiler, *arguments, *extra, "-iquote", ROOT, "-w", "-c", "-o", to,
                    os.path.join(ROOT, source)], cwd=BUILD, check=True)


def functions(arch, path):
    """Returns the instructions of each function, without addresses."""
    text = subprocess.run([f"{arch}-linux-gnu-objdump", "-d", "--no-show-raw-insn", path],
                          capture_output=True, text=True, check=True).stdout
    found, lines = {}, []
    for line in text.splitlines():
        name = re.match(r"\w+ <([\w.]+)>:$", line)
        if name:
            lines = found.setdefault(name[1], [])
        elif "\t" in line:
            lines.append(line.split("\t", 1)[1].strip())
    return found


def missing(arch, source, found):
    """Returns what is wrong with the object of a source; an empty list: it has its barriers."""
    wrong = []
    if source in FENCES:
        fence = (CLOCK_FENCE if source == "engine/control/pages/pool.c" else FENCE)[arch]
        fences = sorted(name for name, lines in found.items()
                        for line in lines if re.search(fence, line))
        if fences != sorted(FENCES[source]):
            wrong.append(f"{arch} {source}: full fences in {fences}, "
                         f"not in {sorted(FENCES[source])}")
    elsewhere = {name for names in SOURCES.values() for name in names}
    for function in SOURCES.get(source, SEQUENCES.keys() - elsewhere):
        wanted = SEQUENCES[function]
        lines = iter(found[function])
        for pattern in wanted.get(arch, []):
            if not any(re.match(pattern, line) for line in lines):
                wrong.append(f"{arch} {function}(): no {pattern} at its place in sequence:\n    "
                             + "\n    ".join(found[function]))
                break
    return wrong


def source_of(mutant):
    path = mutants.MUTANTS[mutant][0]
    return path if path in SOURCES else FAST_PATH


def with_orderings():
    """Returns the sources and headers of the engine that call an ordering, with their mutants."""
    paths = [os.path.relpath(os.path.join(folder, name), ROOT)
             for folder, _, names in os.walk(os.path.join(ROOT, "engine"))
             for name in names if name.endswith((".c", ".h"))]
    found = {}
    for path in sorted(paths):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            found[path] = mutants.each(file.read())
    return {path: made for path, made in found.items() if made}


class Assembly(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        self.commands = commands()
        self.pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self.addCleanup(self.pool.shutdown)

    def check(self, arch, source, mutant=None, changed=None):
        """Returns the future of what missing() says. changed: path and text of a mutant."""
        return self.pool.submit(self.compile_and_look, arch, source, mutant, changed)

    def compile_and_look(self, arch, source, mutant, changed):
        folder = os.path.join(FOLDER, arch, mutant or source)
        overlay = os.path.join(folder, "overlay") if mutant else None
        if changed:
            to = os.path.join(overlay, changed[0])
            os.makedirs(os.path.dirname(to), exist_ok=True)
            with open(to, "w", encoding="utf-8") as file:
                file.write(changed[1])
        elif mutant:
            mutants.write(mutant, ROOT, overlay)
        os.makedirs(folder, exist_ok=True)
        to = os.path.join(folder, "object.o")
        compile_for(arch, source, self.commands[source], overlay, to)
        return missing(arch, source, functions(arch, to))

    def test_every_barrier_is_in_the_compiled_code(self):
        checks = [(arch, source, self.check(arch, source))
                  for arch in ARCHES for source in [*FENCES, *SOURCES, FAST_PATH]]
        for arch, source, found in checks:
            with self.subTest(arch=arch, source=source):
                self.assertEqual(found.result(), [])

    @unittest.skipUnless("aarch64" in ARCHES, "no compiler for arm64")
    def test_every_ordering_is_seen_when_it_is_weaker_or_at_another_place(self):
        """On arm64, whose code shows all of them. A new source with an ordering is found, too."""
        checks = []
        for path, made in with_orderings().items():
            if path.endswith(".c"):
                self.assertIn(path, SOURCES)
            source = CALLER.get(path, path if path.endswith(".c") else FAST_PATH)
            checks += [(path, name, self.check("aarch64", source, f"{path} {name}", (path, text)))
                       for name, text in made.items()]
        for path, mutant, found in checks:
            with self.subTest(path=path, mutant=mutant):
                self.assertTrue(found.result(), f"{path}: {mutant} is not detected")

    def test_every_mutant_lacks_a_barrier(self):
        checks = [(mutant, arch, self.check(arch, source_of(mutant), mutant))
                  for mutant in mutants.MUTANTS
                  for arch in set(SEEN_ON.get(mutant, ARCHES)) & set(ARCHES)]
        for mutant, arch, found in checks:
            with self.subTest(mutant=mutant, arch=arch):
                self.assertTrue(found.result(),
                                f"{mutant} is not detected in the code for {arch}")


if __name__ == "__main__":
    if not ARCHES:
        print("skipped: neither x86_64-linux-gnu-gcc nor aarch64-linux-gnu-gcc found")
        sys.exit(77)
    print("processors:", ", ".join(ARCHES))
    unittest.main(verbosity=2)
