# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/prose.py: every rule is shown prose that breaks it, and prose that does not."""

import os
import shutil
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(ROOT, "tools"))
import prose  # noqa: E402

# prose: rows begin
PY = "# SPDX-License-Identifier: Apache-2.0\n"
BAD = [  # path, text, the rule that must fire, in which line
    ("numa/a.c", "/* %s */\n" % words, "prose", 1) for words in (
        "Somebody waits", "nobody", "for anybody", "whoever asks", "by whom", "whomever",
        "to reckon", "reckoned", "reckoning", "it reckons", "is dealt with", "deal with it",
        "it deals with it", "gone through", "is borne", "on its way", "on their way", "under way",
        "is spoken", "was heard of", "it hears of it", "to hear of", "is asked for", "so many",
        "so much", "as ever", "such a page", "such", "such.", "(nobody)")
] + [
    ("numa/a.c", "/*\n * A page that is asked\n * for twice.\n */\n", "prose", 2),
    ("numa/a.c", "int a; // one\n// that is on its\n// way\n", "prose", 2),
    ("numa/a.c", 'void f(void)\n{\n\tlog_warn("nobody");\n}\n', "prose", 3),
    ("numa/a.c", 'const char *a = "pages asked for: %u\\n";\n', "prose", 1),
    ("numa/a.c", 'engine_abort("%u too many, such\\n", n);\n', "prose", 1),
    ("dv/a.c", 'return dv_fail(e, "borne");\n', "prose", 1),
    ("config/a.def", 'A(b, "what nobody needs")\n', "prose", 1),
    ("engine/abi/a.proto", "// What nobody needs.\n", "prose", 1),
    ("tools/a.py", PY + '"""What nobody\nneeds."""\n', "prose", 2),
    ("tools/a.py", PY + "# What is asked\n# for.\n", "prose", 2),
    ("tools/a.py", PY + "a = 1  # borne\n", "prose", 2),
    ("tools/a.py", PY + 'print("nobody")\n', "prose", 2),
    ("tools/a.py", PY + 'a = f"{b} is asked for"\n', "prose", 2),
    ("tools/run", "#!/usr/bin/env bash\n# What nobody needs.\n", "prose", 2),
    ("tools/run", "#!/usr/bin/env bash\nsay \"nobody is there: $a\"\n", "prose", 2),
    ("tools/run", "#!/usr/bin/env python3\n# What nobody needs.\n", "prose", 2),
    ("dv/meson.build", "# Who may include whom.\n", "prose", 1),
    ("tests/meson.build", "test('so_many pages', a)\n", "prose", 1),
    ("tests/unit/a/test_a.c", "static void a_page_asked_for_twice(void **state)\n", "prose", 1),
    ("tests/unit/a/test_a.c", "\tcmocka_unit_test(read_nobody),\n", "prose", 1),
    ("tests/python/test_a.py", PY + "def test_nobody_waits(self):\n    pass\n", "prose", 2),
    ("tests/unit/a/test_such.c", "int a;\n", "prose", 1),
    ("README.md", "# A\n\nPages that nobody reads.\n", "prose", 3),
    ("README.md", "| a |\n|---|\n| asked\nfor |\n", "prose", 3),
    ("README.md", "A list:\n    that is borne by this line\n", "prose", 2),
    ("tools/man/a.1", ".SH NAME\nwhat nobody needs\n", "prose", 2),
    ("numa/a.c", "/* tidy: allow nobody */\n/* nobody */\n", "prose-allow", 1),
    ("numa/a.c", "/* tidy: allow nobody: */\n/* nobody */\n", "prose-allow", 1),
    ("numa/a.c", "/* tidy: allow nobody: ok */\n/* nobody */\n", "prose-allow", 1),
    ("numa/a.c", "/* tidy: allow nobody: the Unix user */\n", "prose-allow", 1),
    ("numa/a.c", "/* tidy: allow nobody: the Unix user */\nint a;\n/* nobody */\n", "prose", 3),
    ("numa/a.c", "/* tidy: allow such: the Unix user */\n/* nobody */\n", "prose", 2),
    ("README.md", "<!-- tidy: allow nobody -->\nThe user nobody.\n", "prose-allow", 1),
    ("numa/a.c", "/* as was said */\n", "advice", 1),
]
GOOD = [
    ("numa/a.c", "int nobody, such; /* such as `nobody`, nobody_waits, p->such, such(), "
     "a.such */\n"),
    ("numa/a.c", '#include "numa/such.h"\nstatic int asked_for = 1;\n'),
    ("numa/a.c", "/* many, much; for which it asked; ways; unspoken; reckoner; no-such */\n"),
    ("numa/a.c", 'open("/such/nobody");\n/* see engine/such/nobody.c */\n'),
    ("numa/a.c", "/* tidy: allow nobody: the Unix user */\n/* nobody */\n"),
    ("numa/a.c", '\tlog_warn("nobody"); /* tidy: allow nobody: the Unix user */\n'),
    ("numa/a.c", "/* tidy: allow asked for: quotes the PRM */\n/* what is asked for */\n"),
    ("tools/a.py", PY + "# tidy: allow nobody: the Unix user\nprint('nobody')\n"),
    ("tools/a.py", PY + "nobody = 'nobody'\n"),
    ("tests/unit/a/test_a.c", 'assert_says("a.conf: No such file or directory");\n'),
    ("tools/run", "#!/bin/sh\n# SPDX\nsu nobody -c true # tidy is not asked\n"),
    ("README.md", "Text with `nobody` and [a link](such/nobody.md).\n\n    nobody waits\n"),
    ("README.md", "```\nnobody waits\n```\n"),
    ("README.md", "<!-- tidy: allow nobody: the Unix user -->\nThe user nobody.\n"),
    ("README.md", "Write `tidy: allow WORD: REASON` in a comment.\n"),
    ("tests/unit/a/test_a.c", "static void nobody(int state)\n"),
    ("LICENSE", "nobody\n"),
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
# prose: rows end


def found_in(path, text):
    rows = []
    if prose.wants(path, text):
        prose.check(path, text, lambda line, rule, message: rows.append((rule, line)))
    return rows


def subjects_found(root):
    rows = []
    prose.check_subjects(root, lambda commit, rule, text: rows.append(text.rsplit(": ", 1)[1]))
    return rows


class Rules(unittest.TestCase):
    def test_every_rule_fires_on_what_is_bad(self):
        for path, text, rule, line in BAD:
            with self.subTest(path=path, text=text):
                self.assertIn((rule, line), found_in(path, text))

    def test_none_fires_on_what_is_good(self):
        for path, text in GOOD:
            with self.subTest(path=path, text=text):
                self.assertEqual([row for row in found_in(path, text) if row[0] != "advice"], [])

    def test_subjects_of_commits_have_an_area_and_a_length(self):
        for subject, refused in SUBJECTS:
            with self.subTest(subject=subject):
                self.assertEqual(bool(list(prose.subject_faults(subject))), refused)

    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_only_commits_after_the_rule_are_looked_at(self):
        """In a repository of its own, a shallow clone and a plain folder."""
        with tempfile.TemporaryDirectory() as top:
            root = os.path.join(top, "tree")
            author = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
            commit = author + ("commit", "-q", "--allow-empty", "-m")

            def git(*arguments):
                prose.git(root, *arguments)

            os.makedirs(os.path.join(root, "tools"))
            self.assertEqual(subjects_found(root), [], "a plain folder")
            git("init", "-q", "-b", "main")
            self.assertEqual(subjects_found(root), [], "no commit")
            git(*commit, "no area before the rule")
            git("branch", "beside")
            with open(os.path.join(root, "tools", "prose.py"), "w", encoding="ascii") as file:
                file.write("#\n")
            git("add", ".")
            git(*commit, "no area with the rule")
            self.assertEqual(subjects_found(root), [], "the rule itself")
            git(*commit, "no area after it, one")
            git("checkout", "-q", "beside")
            git(*commit, "no area on a branch without the rule")
            git("checkout", "-q", "main")
            git(*author, "merge", "-q", "--no-ff", "-m", "Merge branch 'beside'", "beside")
            git(*commit, "a: good")
            self.assertEqual(subjects_found(root), ["no area after it, one"], "a merge")
            prose.git(top, "clone", "-q", "--depth", "1", "file://" + root, "shallow")
            self.assertEqual(subjects_found(os.path.join(top, "shallow")), [], "a shallow clone")


if __name__ == "__main__":
    unittest.main()
