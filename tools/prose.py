# SPDX-License-Identifier: Apache-2.0
"""
The house rule on language: which words the prose of this tree does without. tools/tidy.py calls it.

Prose is: comments and docstrings; strings of two words or more and what is passed to calls that
print; READMEs and manual pages, without their code; test names, whose underscores separate words;
subjects of commits. Names of code are not prose: whole words only, and nothing in `code spans`,
before a parenthesis or behind an arrow or a dot.

One word may stand where a comment on that line or the line before gives the reason:

    /* tidy: allow WORD: REASON */      # tidy: allow WORD: REASON      <!-- in markdown -->

`wants(path, text)` says whether a file has prose; `check(path, text, add)` calls add(line, rule,
message) for each finding; `check_subjects(root, add)` does it for commits. Rules: `prose`,
`prose-allow`, `subject` and `advice`, which never fails. Python 3.9, no packages.
"""
import io
import os
import re
import subprocess
import tokenize

SUBJECT_MAX = 72

# prose: words begin
FATAL = [  # word classes: what matches, what to write
    (r"somebody|nobody|anybody|whoever", "name the component"),
    (r"whom|whomever", "name the component"),
    (r"reckon(?:ed|ing|s)?", "write compute, estimate or count"),
    (r"dealt with|deals? with", "write handled, processed or answered"),
    (r"gone through", "write scanned or visited"),
    (r"borne", "write limited by or allowed"),
    (r"on its way|on their way|under way", "write in flight, in progress or running"),
    (r"spoken", "name the protocol and the sender"),
    (r"heard of|hears? of", "write learns, receives or is notified"),
    (r"asked for", "write requested"),
    (r"so many|so much", "write the number, the unit or the variable"),
    (r"as ever", "write unchanged"),
    (r"such(?! as\b)(?! file\b)", "name the thing; `such as` may stay"),  # strerror(ENOENT)
]
ADVICE = [
    (r"said|path|claim|claims|everybody|everyone|anyone|someone", "is there a plainer word?"),
]
# prose: words end


def compiled(rows):
    return [(re.compile(r"(?<![\w-])(?:%s)(?![\w-])" % words.replace(" ", r"[\s_]+"), re.I), remedy)
            for words, remedy in rows]


FATAL_RE, ADVICE_RE = compiled(FATAL), compiled(ADVICE)
ALLOW = re.compile(r"tidy: allow\b[ \t]*([A-Za-z][A-Za-z ]*)?(?::[ \t]*([^\n]*))?")
CODE_NAMES = re.compile(r"`[^`\n]*`|->\w+|\b\w+\.\w+(?:\.\w+)*|\b\w+\(|[\w.-]*/[\w./*-]+")
FORMATS = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|j|z|t|L)?[A-Za-z]|\\.")
PRINTS = re.compile(r"\b(?:log_\w+|\w*printf|\w*puts|perror|die|print|say|echo|refuse|give_up|fail|"
                    r"raise \w+|engine_abort|dv_fail|\w*error|\w*_abort)\s*[\(\"' ]")
NO_PROSE = re.compile(r"# prose: (\w+) begin.*?# prose: \1 end", re.S)

C_LIKE = (".c", ".h", ".def", ".proto", ".pml", ".bt")
HASHES = (".sh", ".conf", ".toml", ".yml", ".yaml", ".service")
MARKDOWN = (".md",)
MANUALS = tuple(".%d" % n for n in range(1, 9))


class Span:
    """Prose that starts in `line`: `text` keeps its line breaks."""

    def __init__(self, line, text, comment=False):
        self.line, self.text, self.comment = line, text, comment


def keep_lines(text):
    return re.sub(r"[^\n]", " ", text)


def line_at(text, at):
    return text.count("\n", 0, at) + 1


def is_script(path, text):
    return text.startswith("#!") and "." not in os.path.basename(path)


def wants(path, text):
    return (path.endswith(C_LIKE + HASHES + MARKDOWN + MANUALS + (".py",))
            or os.path.basename(path) == "meson.build" or is_script(path, text))


def is_phrase(literal):
    return len(re.findall(r"[A-Za-z]{2,}", literal)) > 1 and " " in literal.strip()


# ---- where prose is ---------------------------------------------------------------------------

C_PIECES = re.compile(r'(?P<string>"(?:\\.|[^"\\\n])*")|\'(?:\\.|[^\'\\\n])*\''
                      r"|(?P<line>(?://[^\n]*(?:\n[ \t]*(?=//))?)+)|(?P<block>/\*.*?\*/)", re.S)


def c_spans(text):
    for match in C_PIECES.finditer(text):
        piece = match.group(0)
        line = line_at(text, match.start())
        if match.group("block"):
            yield Span(line, re.sub(r"(?m)^[ \t]*\*(?!/)", "", piece[2:-2]), True)
        elif match.group("line"):
            yield Span(line, piece.replace("//", "  "), True)
        elif match.group("string"):
            before = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
            if is_phrase(piece) or PRINTS.search(before):
                yield Span(line, FORMATS.sub(" % ", piece[1:-1]))


def hash_blocks(comments):
    """Joins comments of adjacent lines, so that a phrase is found across a line break."""
    block = None
    for line, alone, text in comments:
        if block and alone and line == block.line + block.text.count("\n") + 1:
            block.text += "\n" + text
        else:
            if block:
                yield block
            block = Span(line, text, True)
    if block:
        yield block


def python_spans(text):
    comments = []
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        line = token.start[0]
        if kind == "COMMENT":
            comments.append((line, not token.line[:token.start[1]].strip(),
                             token.string.lstrip("#")))
        elif kind in ("STRING", "FSTRING_MIDDLE"):
            if is_phrase(token.string) or PRINTS.search(token.line[:token.start[1]]):
                yield Span(line, FORMATS.sub(" % ", re.sub(r"\{[^{}\n]*\}", " ", token.string)))
    yield from hash_blocks(comments)


SHELL_PIECES = re.compile(r"\\.|\"(?:\\.|[^\"\\])*\"|'[^']*'|(?:(?<=\s)|^)#.*$")


def hash_spans(text):
    """Shell, Meson and settings: what is quoted ends in its line."""
    comments = []
    for line, row in enumerate(text.split("\n"), 1):
        for match in SHELL_PIECES.finditer(row):
            piece = match.group(0)
            if piece[0] == "#":
                comments.append((line, not row[:match.start()].strip(), piece.lstrip("#")))
            elif piece[0] in "\"'" and (is_phrase(piece) or PRINTS.search(row[:match.start()])):
                yield Span(line, re.sub(r"\$\{[^{}]*\}|\$\w+", " ", FORMATS.sub(" % ", piece)))
    yield from hash_blocks(comments)


def markdown_spans(text):
    blanked = re.sub(r"(?ms)^(```|~~~).*?^\1[^\n]*$", lambda m: keep_lines(m.group(0)), text)
    for match in re.finditer(r"<!--(.*?)-->", blanked, re.S):
        yield Span(line_at(text, match.start()), match.group(1), True)
    blanked = re.sub(r"<!--.*?-->", lambda m: keep_lines(m.group(0)), blanked, flags=re.S)
    blanked = re.sub(r"`[^`]*`", lambda m: keep_lines(m.group(0)), blanked)
    blanked = re.sub(r"\]\([^)\s]*\)", lambda m: "]" + " " * (len(m.group(0)) - 1), blanked)
    rows, code, after_blank = [], False, True
    for row in blanked.split("\n"):
        code = row.startswith(("    ", "\t")) and (code or after_blank)
        after_blank = not row.strip()
        rows.append("" if code else row)
    yield Span(1, "\n".join(rows))


def manual_spans(text):
    rows = [(n, True, row[3:]) for n, row in enumerate(text.split("\n"), 1)
            if row.startswith('.\\"')]
    yield from hash_blocks(rows)
    text = re.sub(r'(?m)^\.\\".*$', "", text)
    yield Span(1, re.sub(r"\\f[A-Z]|\\.", " ", text))


def test_names(path, text):
    """(line, name) of what a test's log calls a test; underscores separate words."""
    base = os.path.basename(path)
    if path.endswith(".c"):
        pattern = r"\bcmocka_unit_test\w*\(\s*(\w+)|^(?:static )?void (\w+)\(void \*\*"
    elif path.endswith(".py"):
        pattern = r"^\s*def (test\w+)"
    elif base == "meson.build":
        pattern = r"\b(?:test|benchmark)\(\s*'([^']+)'"
    else:
        return
    if base.startswith("test_"):
        yield 1, base
    for match in re.finditer(pattern, text, re.M):
        yield line_at(text, match.start(match.lastindex)), match.group(match.lastindex)


def spans(path, text):
    if path in ("tools/prose.py", "tests/unit/tools/test_prose.py"):
        text = NO_PROSE.sub(lambda m: keep_lines(m.group(0)), text)
    if path.endswith(C_LIKE):
        return c_spans(text)
    if path.endswith(".py") or "python" in text.split("\n", 1)[0] and is_script(path, text):
        return python_spans(text)
    if path.endswith(MARKDOWN):
        return markdown_spans(text)
    if path.endswith(MANUALS):
        return manual_spans(text)
    return hash_spans(text)


# ---- the checks -------------------------------------------------------------------------------

def matches(text, rows):
    """(offset, words, remedy) of each banned word in `text`; code is blanked before."""
    for pattern, remedy in rows:
        for match in pattern.finditer(text):
            yield match.start(), re.sub(r"[\s_]+", " ", match.group(0)).lower(), remedy


class Allowed:
    """The exemptions of one file."""

    def __init__(self):
        self.rows = []  # [line, words, reason, used]

    def read(self, span):
        """Takes the exemptions out of a comment; returns the rest of its text."""
        for match in ALLOW.finditer(span.text):
            words, reason = (match.group(1) or "").strip().lower(), match.group(2) or ""
            self.rows.append([span.line + span.text.count("\n", 0, match.start()), words,
                              reason.strip(), False])
        return ALLOW.sub(lambda m: keep_lines(m.group(0)), span.text)

    def covers(self, line, words):
        found = False
        for row in self.rows:
            if row[0] in (line, line - 1) and row[1] == words:
                row[3] = found = True
        return found

    def report(self, add):
        for line, words, reason, used in self.rows:
            if len(re.findall(r"[A-Za-z]{2,}", reason)) < 2:
                add(line, "prose-allow", "an exemption without a reason: "
                    "write \"tidy: allow %s: REASON\"" % (words or "WORD"))
            elif not used:
                add(line, "prose-allow", "nothing to exempt: no \"%s\" on this line or the next"
                    % words)


def check(path, text, add):
    """Findings of one file, in the order of its lines."""
    allowed, places, found = Allowed(), [], []
    for span in spans(path, text):
        body = allowed.read(span) if span.comment else span.text
        body = CODE_NAMES.sub(lambda m: keep_lines(m.group(0)), body)
        places += [(span.line, body)]
    if path.startswith("tests/"):
        places += [(line, name.replace("_", " ")) for line, name in test_names(path, text)]
    for first, body in places:
        for rule, rows in (("prose", FATAL_RE), ("advice", ADVICE_RE)):
            for at, words, remedy in matches(body, rows):
                line = first + body.count("\n", 0, at)
                if not allowed.covers(line, words):
                    found.append((line, rule, "\"%s\": %s" % (words, remedy)))
    for finding in sorted(set(found)):
        add(*finding)
    allowed.report(add)


def git(root, *arguments):
    try:
        return subprocess.run(("git", "-C", root) + arguments, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, check=True).stdout.decode(
                                  "utf-8", "replace").strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def subject_faults(subject):
    """What is wrong with one commit's subject."""
    if re.match(r"Merge |Revert \"", subject):
        return
    if len(subject) > SUBJECT_MAX:
        yield "%d characters, at most %d" % (len(subject), SUBJECT_MAX)
    if not re.match(r"[\w.,/{}*+ -]+: \S", subject):
        yield "is not \"area: what changed\""
    body = CODE_NAMES.sub(lambda m: keep_lines(m.group(0)), subject)
    for _, words, remedy in matches(body, FATAL_RE):
        yield "\"%s\": %s" % (words, remedy)


def check_subjects(root, add):
    """The commits that come after the one that brought this file. A shallow clone has fewer of
    them, an unpacked archive none."""
    if not git(root, "rev-parse", "--git-dir") or git(root, "rev-parse", "--show-prefix"):
        return
    added = git(root, "log", "--format=%H", "--diff-filter=A", "--", "tools/prose.py").split()
    if not added:
        return
    log = git(root, "log", "--no-merges", "--ancestry-path", "--format=%h %s", added[-1] + "..HEAD")
    for row in filter(None, log.split("\n")):
        commit, _, subject = row.partition(" ")
        for fault in subject_faults(subject):
            add("commit " + commit, "subject", "%s: %s" % (fault, subject))
