#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
The pages for those who run engines, without the rest of the tree.

    tools/pages.py                one static site with search, build/site/html, made by MkDocs and
                                 its theme Material of PyPI as config/pages/mkdocs.yml says
    tools/pages.py --stage DIR    only the files, as they are installed, whose places are printed;
                                 a relative DIR is below $MESON_INSTALL_DESTDIR_PREFIX, if set

FILES says which files these are, and their places there. Links between them are rewritten. A link
to any other file of the tree becomes its text and the path of that file in the source tree.
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
FOLDER = os.path.join(ROOT, "build", "site")
PACKAGES = ["mkdocs==1.6.1", "mkdocs-material==9.5.50"]
# Source -> place; the last part may be a pattern, which keeps its names.
FILES = {
    "README.md": "README.md", ".github/README.zh.md": "README.zh.md",
    ".github/CHANGELOG.md": "CHANGELOG.md", "LICENSE": "LICENSE",
    "config/pages/*.md": "pages", "config/pages/zh/*.md": "pages/zh",
    "config/SETTINGS.md": "SETTINGS.md", "config/MIGRATION.md": "MIGRATION.md",
    "config/examples/*": "examples",
    "engine/METRICS.md": "METRICS.md", "engine/TRUST.md": "TRUST.md",
    "engine/control/SECURITY.md": "THREATS.md", ".github/SECURITY.md": "SECURITY.md",
    "engine/client/python/README.md": "SGLANG.md",
    "engine/client/python/MOONCAKE.md": "MOONCAKE.md",
    "engine/client/python/LINKER.md": "LINKER.md", "engine/client/python/LMCACHE.md": "LMCACHE.md",
    "engine/client/python/ROUTERS.md": "ROUTERS.md",
    "engine/client/python/VLLM.md": "VLLM.md",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]*)(#[^)\s]*)?\)")


def places():
    """{path in the tree: place}."""
    found = {}
    for pattern, place in FILES.items():
        paths = sorted(glob.glob(os.path.join(ROOT, pattern)))
        assert paths, f"there is no {pattern}"
        for path in paths:
            path = os.path.relpath(path, ROOT)
            found[path] = os.path.join(place, os.path.basename(path)) if "*" in pattern else place
    return found


def relink(text, source, where):
    """The text of a page for its place. where: places()."""
    def link(match):
        image, label, path, anchor = match.groups()
        if not path:
            return match[0]
        target = os.path.normpath(os.path.join(os.path.dirname(source), path))
        if target in where:
            at = os.path.relpath(where[target], os.path.dirname(where[source]))
            return f"{image}[{label}]({at}{anchor or ''})"
        plain = label.strip("`")
        return label if plain in (target, os.path.basename(target)) else f"{label} (`{target}`)"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.M | re.S)  # code stays as it is
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


def absolute(text, source, repository):
    """The text of a page with links to the files of a repository on the web."""
    def link(match):
        image, label, path, anchor = match.groups()
        target = os.path.normpath(os.path.join(os.path.dirname(source), path)) if path else source
        return f"{image}[{label}]({repository}/blob/main/{target}{anchor or ''})"

    return LINK.sub(link, text)


def stage(folder):
    where = places()
    for source, place in where.items():
        target = os.path.join(folder, place)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if source.endswith(".md"):
            with open(os.path.join(ROOT, source), encoding="utf-8") as file:
                text = relink(file.read(), source, where)
            with open(target, "w", encoding="utf-8") as file:
                file.write(text)
        else:
            shutil.copyfile(os.path.join(ROOT, source), target)
        os.chmod(target, 0o644)


def links(folder):
    """(page, target, whether it is a file of the folder) of each link of the pages in a folder."""
    for path in glob.glob(os.path.join(glob.escape(folder), "**", "*.md"), recursive=True):
        with open(path, encoding="utf-8") as file:
            targets = re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", file.read())
        for target in targets:
            at = os.path.normpath(os.path.join(os.path.dirname(path), target))
            yield path, target, os.path.isfile(at) and at.startswith(folder)


def lacks(folder, *without):
    """What a folder with the installed files lacks: files but `without`, and targets of links."""
    files = [place for place in places().values()
             if place not in without and not os.path.isfile(os.path.join(folder, place))]
    return files + [f"{target} of {path}" for path, target, there in links(folder) if not there]


def run(*command):
    """Runs a command; its output is shown only if it fails, which ends this program."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"pages: {' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}")


def make_mkdocs():
    """A virtual environment with MkDocs. Returns its program."""
    venv = os.path.join(FOLDER, "venv")
    wanted = os.path.join(venv, "wanted")
    names = "\n".join(PACKAGES)
    if not os.path.exists(wanted) or open(wanted, encoding="ascii").read() != names:
        shutil.rmtree(venv, ignore_errors=True)
        run(sys.executable, "-m", "venv", venv)
        run(os.path.join(venv, "bin", "pip"), "install", "--quiet", *PACKAGES)
        with open(wanted, "w", encoding="ascii") as file:
            file.write(names)
    return os.path.join(venv, "bin", "mkdocs")


def make_site():
    os.makedirs(FOLDER, exist_ok=True)
    mkdocs = make_mkdocs()
    pages = os.path.join(FOLDER, "pages")
    shutil.rmtree(pages, ignore_errors=True)
    stage(pages)
    shutil.copy(os.path.join(ROOT, "config", "pages", "site.css"), pages)
    run(mkdocs, "build", "--strict", "--clean", "--config-file",
        os.path.join(ROOT, "config", "pages", "mkdocs.yml"))
    print(os.path.join(FOLDER, "html", "index.html"))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", metavar="DIR")
    options = parser.parse_args()
    if options.stage:
        stage(os.path.join(os.environ.get("MESON_INSTALL_DESTDIR_PREFIX", ""), options.stage))
        print(*places().values(), sep="\n")
    else:
        make_site()


if __name__ == "__main__":
    main()
