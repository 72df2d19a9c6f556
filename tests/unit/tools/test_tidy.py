# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/tidy.py: every rule is shown something bad and something good."""

import os
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import tidy  # noqa: E402

TOP = "/* SPDX-License-Identifier: Apache-2.0 */\n/*\n * Owns a thing; any thread.\n */\n"
LONG = "static int f(void)\n{\n%s\treturn 0;\n}\n"
LINE = "struct s {\n\t%salignas(64) int a;\n};\n%s"
OK_LINE = LINE % ("/* owner: rail */\n\t", 'static_assert(sizeof(struct s) == 64, "line");\n')

COLD = "/* cold: runs once per session */\n"

BAD = [  # path, text, the rule that must fire
    ("config/a.h", TOP + '#include "numa/pin.h"\n', "include"),
    ("numa/a.c", TOP + '#include "dv/setup.h"\n', "include"),
    ("numa/a.c", TOP + '#include "pin.h"\n', "include"),
    ("engine/client/a.h", TOP + '#include "peercache.h"\n', "include"),
    ("numa/a.c", TOP + '#include "../numa/pin.h"\n', "include"),
    ("numa/a.c", TOP + '#include "numa/../dv/setup.h"\n', "include"),
    ("numa/a.c", TOP + "#include <numa/pin.h>\n", "include"),
    ("engine/rail/run.c", TOP + '#include "dv/setup.h"\n', "include"),
    ("engine/rail/rail.h", TOP + '#include "dv/layout.h"\n', "include"),
    ("engine/rail/peer.c", TOP + '#include "engine/control/loop.h"\n', "include"),
    ("engine/control/a.c", TOP + '#include "dv/hot.h"\n', "include"),
    ("engine/control/a.c", TOP + '#include "engine/rail/run.h"\n', "include"),
    ("engine/control/a.c", TOP + '#include "engine/control/pages/pool_inner.h"\n', "include"),
    ("engine/control/members/a.c", TOP + '#include "engine/control/pages/pages.h"\n', "include"),
    ("engine/control/members/a.c", TOP + '#include "engine/control/loop.h"\n', "include"),
    ("engine/control/pages/a.c", TOP + '#include "engine/control/members/placement.h"\n',
     "include"),
    ("engine/control/net/a.h", TOP + '#include "engine/control/members/members.h"\n', "include"),
    ("engine/control/base/a.h", TOP + '#include "engine/control/net/net.h"\n', "include"),
    ("engine/control/observe/a.c", TOP + '#include "dv/hot.h"\n', "include"),
    ("engine/control/attic/a.c", TOP + '#include "engine/control/net/net.h"\n', "include"),
    ("engine/client/a.c", TOP + '#include "engine/rail/rail.h"\n', "include"),
    ("engine/client/a.c", TOP + '#include "engine/control/loop.h"\n', "include"),
    ("engine/client/a.c", TOP + '#include "dv/setup.h"\n', "include"),
    ("engine/client/a.c", TOP + '#include "numa/clock.h"\n', "include"),
    ("engine/abi/a.h", TOP + '#include "engine/rail/rail.h"\n', "include"),
    ("engine/disk/a.c", TOP + '#include "engine/control/pages/pages.h"\n', "include"),
    ("engine/main.c", TOP + '#include "dv/soft/nic.h"\n', "include"),
    ("engine/main.c", TOP + '#include "tests/fake.h"\n', "include"),
    ("engine/rail/open.c", TOP + '#include "dv/soft/nic.h"\n', "include"),
    ("tools/a.c", TOP + '#include "engine/rail/rail.h"\n', "include"),
    ("tests/a.c", TOP + '#include "perf/a.h"\n', "include"),
    ("numa/a.c", TOP + "/* " + "x" * 100 + " */\n", "columns"),
    ("numa/a.c", TOP + "\t" * 12 + "/* x */\n", "columns"),
    ("tools/a.py", "# SPDX-License-Identifier: Apache-2.0\n# " + "x" * 100 + "\n", "columns"),
    ("numa/a.c", TOP + '\tlog_warn("x"); /* ' + "x" * 90 + " */\n", "columns"),
    ("tools/a.py", '# SPDX-License-Identifier: Apache-2.0\na = "' + "x" * 100 + '"\n', "columns"),
    ("numa/a.c", TOP + "int a;\n" * 1000, "file-length"),
    ("numa/a.c", TOP + LONG % ("\tg();\n" * 68), "function-length"),
    ("numa/a.c", TOP + "static int\nf(void)\n{\n" + "\tg();\n" * 67 + "}\n", "function-length"),
    ("numa/a.c", TOP + "int f(void) {\n" + "\tg();\n" * 70 + "}\n", "function-length"),
    ("dv/hot.h", TOP + LONG % ("\tg();\n" * 38), "function-length"),
    ("engine/rail/wqe.h", TOP + "int a = errno;\n", "hot-path"),
    ("engine/rail/run.c", TOP + "\tp = malloc(8);\n", "hot-path"),
    ("engine/rail/run_post.c", TOP + "\tp = calloc(1, 8);\n", "hot-path"),
    ("engine/rail/step.c", TOP + "\tfree(p);\n", "hot-path"),
    ("dv/hot.h", TOP + "\tpthread_mutex_lock(&m);\n", "hot-path"),
    ("dv/hot.h", TOP + '\tlog_warn("x");\n', "hot-path"),
    ("dv/hot.h", TOP + '\tfprintf(stderr, "x");\n', "hot-path"),
    ("engine/abi/ring.h", TOP + "\twrite(fd, p, 8);\n", "hot-path"),
    ("engine/abi/ring.h", TOP + "\tusleep(1);\n", "hot-path"),
    ("engine/abi/ring.h", TOP + "\tfutex_wait(w);\n", "hot-path"),
    ("engine/rail/step.c", TOP + "\tlog_warn(w);\n", "hot-path"),
    ("engine/rail/intake.c", TOP + "\tfree(p);\n", "hot-path"),
    ("engine/client/rings/submit.c", TOP + LONG % "\twrite(fd, p, 8);\n", "hot-path"),
    ("engine/client/read/runs.c", TOP + "\tp = malloc(8);\n", "hot-path"),
    ("engine/client/write/set.c", TOP + "\tmadvise(p, 8, 9);\n", "hot-path"),
    ("engine/client/lookup/look.c", TOP + LONG % ("\tg();\n" * 38), "function-length"),
    ("engine/rail/run.c", TOP + "\tp = malloc(8);\n", "hot-path"),
    ("engine/client/read/runs.c", TOP + "\tfree(p);\n", "hot-path"),
    ("dv/hot.h", TOP + COLD + LONG % ("\tg();\n" * 68), "function-length"),
    ("dv/hot.h", TOP + COLD + LONG % "\tfree(p);\n" + "\nvoid h(void)\n{\n\tfree(p);\n}\n",
     "hot-path"),
    ("dv/hot.h", TOP + COLD + "\n" + LONG % "\tfree(p);\n", "hot-path"),
    ("dv/hot.h", TOP + COLD + "\n" + LONG % "\tfree(p);\n", "cold-mark"),
    ("dv/hot.h", TOP + COLD + LONG % "\tg();\n", "cold-mark"),
    ("dv/hot.h", TOP + "/* cold: */\n" + LONG % "\tfree(p);\n", "cold-mark"),
    ("numa/a.c", TOP + COLD + LONG % "\tfree(p);\n", "cold-mark"),
    ("engine/abi/a.h", TOP + LINE % ("", 'static_assert(sizeof(struct s) == 64, "");\n'), "owner"),
    ("engine/abi/a.h", TOP + LINE % ("/* the line */\n\t", ""), "owner"),
    ("engine/abi/a.h", TOP + LINE % ("/* owner: rail */\n\tint b;\n\t", ""), "owner"),
    ("engine/abi/a.h", TOP + LINE % ("int b; /* owner: rail */\n\t", ""), "owner"),
    ("engine/abi/a.h", TOP + LINE % ("/* owner: rail */\n\t", ""), "layout-assert"),
    ("engine/abi/a.h", TOP + LINE % ("/* owner: rail */\n\t",
     'static_assert(sizeof(struct other) == 64, "");\n'), "layout-assert"),
    ("numa/a.c", TOP + "\t__atomic_load_n(p, 0);\n", "ordering"),
    ("numa/a.c", TOP + "\t__sync_synchronize();\n", "ordering"),
    ("numa/a.c", TOP + "static atomic_int a;\n", "ordering"),
    ("numa/a.c", TOP + "#include <stdatomic.h>\n", "ordering"),
    ("engine/rail/a.c", TOP + '\t__asm__ volatile("pause");\n', "ordering"),
    ("engine/rail/a.c", TOP + '\tasm("nop");\n', "ordering"),
    ("engine/client/a.c", TOP + "\t_mm_sfence();\n", "ordering"),
    ("engine/client/a.c", TOP + "\t__builtin_ia32_mfence();\n", "ordering"),
    ("numa/a.c", "/* Owns a thing; any thread. */\n", "spdx"),
    ("config/a.def", "A(b)\n", "spdx"),
    ("tools/a.py", "import os\n", "spdx"),
    ("tools/run", "#!/bin/sh\ntrue\n", "spdx"),
    ("dv/meson.build", "x = 1\n", "spdx"),
    ("numa/a.c", "/* SPDX-License-Identifier: Apache-2.0 */\n#include <stdio.h>\n", "top-comment"),
    ("numa/a.h", "/* SPDX-License-Identifier: Apache-2.0 */\n/* */\n", "top-comment"),
    ("numa/a.c", TOP + "int a; \n", "whitespace"),
    ("numa/a.c", TOP + "int a;\r\n", "whitespace"),
    ("numa/a.c", TOP + "int a;", "whitespace"),
    ("tools/a.py", "# SPDX-License-Identifier: Apache-2.0\nif a:\n\tb()\n", "tabs"),
]
PROSE = [  # path, text, the lines with a word that prose does without
    ("numa/a.c", "/* %s */\n" % words, [1]) for words in (
        "Somebody waits", "nobody", "for anybody", "whoever asks", "by whom", "whomever",
        "to reckon", "reckoned", "reckoning", "it reckons", "is dealt with", "deal with it",
        "it deals with it", "gone through", "is borne", "on its way", "on their way", "under way",
        "is spoken", "was heard of", "it hears of it", "to hear of", "is asked for", "so many",
        "so much", "as ever", "such a page", "such", "such.", "(nobody)")
] + [
    ("numa/a.c", 'void f(void)\n{\n\tlog_warn("nobody");\n}\n', [3]),
    ("config/a.def", 'A(b, "what nobody needs")\n', [1]),
    ("tools/a.py", '"""What is asked\n\nfor."""\n', [1]),
    ("tools/run", "#!/usr/bin/env bash\n# What nobody needs.\n", [2]),
    ("README.md", "# A\n\nPages that nobody reads.\n```\nnobody waits\n```\n", [3]),
    ("numa/a.c", "int nobody, such; /* such as `nobody`, p->such, such(), a.such */\n", []),
    ("numa/a.c", "/* many, much; for which it asked; ways; unspoken; reckoner; no-such */\n", []),
    ("numa/a.c", 'open("/such/nobody");\n/* see engine/such/nobody.c */\n', []),
    ("tests/unit/a/test_a.c", 'assert_says("a.conf: No such file or directory");\n', []),
    ("README.md", "Text with `nobody` and [a link](such/nobody.md).\n", []),
]
SUBJECTS = [  # subject, whether it is refused
    ("rail: say in plain words what each limit bounds", False),
    ("perf/saturate, tools: report client ns per page", False),
    ("Merge branch 'rail'", False),
    ("rail: " + "x" * 66, False),
    ("rail: " + "x" * 67, True),
    ("say in plain words what each limit bounds", True),
    ("rail:no space", True),
    ("rail: a page that nobody holds", True),
    ("rail: rename `nobody` to idle_count", False),
]

GOOD = [  # nothing fires
    ("dv/device.c", TOP + '#include "dv/soft/nic.h"\n#include "numa/pin.h"\n#include <errno.h>\n'),
    ("engine/rail/open.c", TOP + '#include "dv/setup.h"\n#include "engine/rail/rail.h"\n'),
    ("engine/control/a.c", TOP + '#include "engine/rail/inbox.h"\n#include "dv/setup.h"\n'),
    ("engine/control/a.c", TOP + '#include "engine/control/loop.h"\n'
     '#include "engine/control/pages/pages.h"\n#include "engine/control/base/work.h"\n'),
    ("engine/control/conns/a.c", TOP + '#include "engine/control/conns/conns_inner.h"\n'
     '#include "engine/control/members/members.h"\n#include "engine/control/net/rpc.h"\n'
     '#include "engine/rail/inbox.h"\n#include "engine/control/base/control.h"\n'),
    ("engine/main.c", TOP + '#include "engine/control/loop.h"\n#include "numa/plan.h"\n'),
    ("tests/a.c", TOP + '#include "dv/soft/nic.h"\n#include "dv/qp.c"\n\t__sync_synchronize();\n'),
    ("numa/a.c", TOP + '/* #include "pin.h" asm malloc */\n'),
    ("dv/hot.h", TOP + "/* no errno, malloc() or read() */\n\tn = dv_poll(cq);\n\tread_done(1);\n"),
    ("dv/hot.h", TOP + LONG % ("\tg();\n" * 36)),
    ("dv/hot.h", TOP + COLD + LONG % "\tfree(p);\n"),
    ("dv/hot.h", TOP + COLD + LONG % ("\tg();\n" * 66)),
    ("dv/hot.h", TOP + COLD + "/* What it does. */\n" + LONG % "\tfree(p);\n"),
    ("dv/hot.h", TOP + "/*\n * What it does.\n * cold: runs once per session\n */\n"
     + LONG % "\tfree(p);\n"),
    ("numa/a.c", TOP + '\tlog_warn("' + "x" * 100 + '", a);\n'),
    ("numa/a.c", TOP + LONG % ("\tg();\n" * 66) + "\n" + LONG % ("\tg();\n" * 66)),
    ("dv/order.h", TOP + "\t__atomic_thread_fence(0);\n"),
    ("engine/abi/a.h", TOP + OK_LINE),
    ("engine/abi/a.h", TOP + "struct s {\n\t/* owner: rails, a line each */\n\tstruct {\n"
     "\t\talignas(64) int a;\n\t} rail[4];\n};\n"
     'static_assert(offsetof(struct s, rail) == 0, "");\n'),
    ("dv/qp.c", TOP + "\tattr.max_rd_atomic = attr.atomic_cap;\n\tsig_atomic_t a;\n"),
    ("config/a.def", "/* SPDX-License-Identifier: Apache-2.0 */\n/* " + "x" * 200 + " */\n"),
    ("tools/run", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\ntrue\n"),
]

TREE = (sorted(tidy.TOP_REQUIRED - set(tidy.OURS))
        + [folder + "/README.md" for folder in tidy.README_FOLDERS])

PAGES = [  # path, bytes, the rules that fire
    ("numa/README.md", tidy.README_MAX, set()),
    ("numa/README.md", tidy.README_MAX + 1, {"page-length"}),
    ("engine/control/net/README.md", tidy.ROOM_README_MAX + 1, {"page-length"}),
    ("engine/control/README.md", tidy.ROOM_README_MAX, set()),
    ("engine/control/pages/A.md", tidy.PAGE_MAX, set()),
    ("engine/control/pages/A.md", tidy.PAGE_MAX + 1, {"page-length"}),
    ("perf/README.md", tidy.README_MAX + 1, {"page-length"}), ("README.md", tidy.PAGE_MAX, set()),
    ("config/pages/zh/a.md", tidy.PAGE_MAX + 1, {"page-length"}),
    ("engine/METRICS.md", 99999, set()), (".github/CHANGELOG.md", 99999, set()),
]

MENTIONS = [  # a page beside engine/a/pool.c, and the number of findings
    ("`pool_take()` of `a/pool.c` and `pool.c`; NAME: `NAME.c`; `make()` no\n", 1),
    ("[pool](a/pool.c), [folder](a), [far](https://b.c/d)\n", 0),
    ("`pool_gone()`, `a/index.c`\n\n[index](a/index.c#top)\n", 3),
    ("## The `life` of a get\n[a](#the-life-of-a-get) [b](README.md#the-life-of-a-get)\n", 0),
    ("## Life\n```sh\n# no heading\n```\n[a](#no-heading) [b](README.md#live) [c](#life)\n", 2),
    ("# A\n# A\n[a](#a) [b](#a-1) [c](#a-2)\n", 1),
]


def rules(check, *arguments):
    """The rules that the arguments of a check break."""
    found = tidy.Findings()
    check(*arguments, found)
    return found.rules()


class Rules(unittest.TestCase):
    def test_every_rule_fires_on_what_is_bad(self):
        for path, text, rule in BAD:
            with self.subTest(path=path, text=text[len(TOP):][:60]):
                self.assertIn(rule, rules(tidy.check_file, path, text))

    def test_none_fires_on_what_is_good(self):
        for path, text in GOOD:
            with self.subTest(path=path, text=text[len(TOP):][:60]):
                self.assertEqual(rules(tidy.check_file, path, text), set())

    def test_the_tree_has_the_folders_of_the_design_and_their_readmes(self):
        room = ["engine/control/README.md", "engine/control/net/a.c"]
        for paths, broken in (
                (TREE, set()), (TREE + ["LICENSE", ".gitignore", ".ci/run"], set()),
                (TREE + ["src/a.c"], {"top-level"}), (TREE + ["notes.txt"], {"top-level"}),
                ([p for p in TREE if p != "README.md"], {"top-level"}),
                ([p for p in TREE if not p.startswith("perf/")], {"top-level"}),
                ([p for p in TREE if p != "dv/README.md"] + ["dv/a.c"], {"readme"}),
                (TREE + room, {"readme"}), (TREE + room[:1] + ["engine/control/net/README.md"],
                                            set())):
            with self.subTest(last=paths[-1]):
                self.assertEqual(rules(tidy.check_tree, paths), broken)

    def test_pages_have_limits(self):
        for path, size, broken in PAGES:
            with self.subTest(path=path, size=size):
                self.assertEqual(rules(tidy.check_page, path, size), broken)

    def test_the_list_of_hot_files_names_files(self):
        self.assertEqual(rules(tidy.check_hot, tidy.HOT | {"a.c"}), set())
        self.assertEqual(rules(tidy.check_hot, tidy.HOT - {"engine/client/read/runs.c"}),
                         {"hot-list"})

    def test_what_pages_mention_exists(self):
        for text, count in MENTIONS:
            with self.subTest(text=text):
                found = tidy.Findings()
                tidy.check_mentions({"engine/README.md": text}, {"pool_take"},
                                    {"engine/a/pool.c", "engine/README.md"}, found)
                self.assertEqual([row[2] for row in found.rows], ["mention"] * count)

    def test_words_that_prose_does_without_are_found(self):
        for path, text, lines in PROSE:
            with self.subTest(path=path, text=text):
                found = tidy.Findings()
                tidy.check_prose(path, text, found)
                self.assertEqual([row[1] for row in found.rows], lines)
        self.assertTrue(tidy.has_prose("tools/run", "#!/bin/sh\n"))
        self.assertFalse(tidy.has_prose("LICENSE", ""))

    def test_subjects_of_commits_have_an_area_and_a_length(self):
        for subject, refused in SUBJECTS:
            with self.subTest(subject=subject):
                self.assertEqual(bool(list(tidy.subject_faults(subject))), refused)


if __name__ == "__main__":
    unittest.main()
