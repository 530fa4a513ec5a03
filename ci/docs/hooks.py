"""Hooks of `.mkdocs.yml`: pages made of other files, the command line's own help, and formulas as MathML."""

import contextlib
import html
import io
import itertools
import logging
import os
import re
from pathlib import Path

from latex2mathml.converter import convert
from markdown.extensions.toc import slugify
from mkdocs.structure.files import File

from dpgb_dask.cli import main

ROOT = Path(__file__).parents[2]
LOG = logging.getLogger("mkdocs.hooks")  # a warning there ends a strict build
MADE_OF = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
# of |x| and ‖x‖; they open and close in turn
BAR = re.compile(r"<mo(?: stretchy=\"false\")?(>&#x0(?:007C|2016);)")
CITED = re.compile(r"\bdocs/([\w-]+)\.md (P|§)(\d+)(?![^<]*</code>)")
PATH = re.compile(r"(?<=<code>)[\w/.:]+(?=</code>)")  # may break after a slash, not inside a name


def moved(text):
    """Change links of a page at the top of the repository to what they are on the site."""
    for page, source in MADE_OF.items():
        text = text.replace(f"]({source}", f"]({page}")
    text = text.replace("](docs/", "](")
    # code, licence: not here
    return re.sub(r"\[([^\]]*)\]\((?!http|#|[\w-]+\.md)[^)]*\)", r"\1", text)


def helped(words):
    """Return what a command says of itself with --help, and the names of its own commands."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    text = printed.getvalue()
    return text, re.findall(r"^    ([a-z]+) ", text, re.MULTILINE) if "COMMAND" in text else []


def command_line(words=()):
    """Yield the page of a command, and of the commands below it."""
    text, below = helped(words)
    title = " ".join(["dpgb-dask", *words])
    yield f"{'##' if words else '#'} {'`' + title + '`' if words else 'Command line'}\n\n```text\n{text}```\n"
    for name in below:
        yield from command_line((*words, name))


def on_files(files, config):
    """Add the pages that are no file of docs/."""
    for page, source in MADE_OF.items():
        text = moved((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    os.environ["COLUMNS"] = "88"  # the width that argparse writes for
    files.append(File.generated(config, "cli.md", content="\n".join(command_line())))
    return files


def linked(found, page):
    """Return a citation of a docstring, `docs/privacy.md P4`, as a link to the section."""
    name, kind, number = found.groups()
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    title = re.search(rf"^## {kind.strip('§')}{number}\. .*$", text, re.MULTILINE)[0].removeprefix(
        "## "
    )
    anchor = slugify(title, "-")
    return f'<a href="{"../" * page.url.count("/")}{name}.html#{anchor}">{found[0]}</a>'


def on_page_content(content, page, **_):
    """Draw formulas as MathML: browsers know it, so no script is loaded; link citations; long paths may break."""

    def drawn(found):
        display = "block" if found[2] == "[" else "inline"
        mathml = convert(html.unescape(found[3]).strip(), display=display)
        if "\\" in re.sub("<[^>]*>", "", mathml):
            LOG.warning(
                "%s: a command of this formula is not known: %s", page.file.src_uri, found[3]
            )
        # else a bar has the space of an operator between two terms
        forms = itertools.cycle(("prefix", "postfix"))
        return BAR.sub(lambda bar: f'<mo fence="true" form="{next(forms)}"{bar[1]}', mathml)

    content = FORMULA.sub(drawn, content)
    content = CITED.sub(lambda found: linked(found, page), content)
    return PATH.sub(lambda found: re.sub("(::|/)", r"\1<wbr>", found[0]), content)
