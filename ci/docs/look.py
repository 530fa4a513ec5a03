"""Look at the built site in a real browser: every page, on a wide and on a narrow screen.

    python ci/docs/look.py SITE SCREENSHOTS [--junit FILE]

A page fails if a link or an anchor in it leads nowhere, if it fetches anything from outside, if the browser's console
has an error, if something is wider than the page and cannot be scrolled, or if a formula is not drawn. Needs Playwright
(`pip install '.[docs]'`) and Chromium (Debian's package `chromium`); without a browser every page counts as skipped.
"""

import argparse
import contextlib
import shutil
import sys
import threading
import xml.etree.ElementTree as ET
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 400)
NO_BROWSER = "no browser: install Chromium (Debian's package chromium) to look at the site"
# every link as it was resolved, and every place that a link may name
READ = """() => ({
  links: [...document.querySelectorAll('a[href]')].map(a => a.href),
  ids: [...document.querySelectorAll('[id], a[name]')].map(e => e.id || e.name),
})"""
# what stands out to the right, and lies in nothing that scrolls or hides it
WIDER = """() => {
  const inside = e => {
    for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
      if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(p).overflowX)) return true;
    return false;
  };
  const seen = e => { const s = getComputedStyle(e); return s.visibility !== 'hidden' && s.display !== 'none'; };
  const wide = [...document.querySelectorAll('.md-content *')]
    .filter(e => seen(e) && e.getBoundingClientRect().right > innerWidth + 1 && !inside(e))
    .map(e => e.tagName.toLowerCase() + ': ' + e.textContent.trim().slice(0, 60));
  if (document.documentElement.scrollWidth > innerWidth + 1) wide.push('the page itself scrolls sideways');
  return wide;
}"""
# TeX that was left as text, or a formula without a size
NOT_DRAWN = r"""() => {
  const content = document.querySelector('.md-content').cloneNode(true);
  content.querySelectorAll('code, pre, math').forEach(e => e.remove());
  const raw = content.textContent.match(/\\[a-zA-Z]{2,}|\\[()\[\]]|\$[^$\n]+\$/g) || [];
  const empty = [...document.querySelectorAll('math')]
    .filter(e => e.querySelector('merror') || e.getBoundingClientRect().width < 1).map(e => e.textContent);
  const inside = [...document.querySelectorAll('math')]
    .filter(e => e.textContent.includes('\\')).map(e => e.textContent);
  return [...raw, ...empty, ...inside];
}"""


def browser_here():
    """Return the path of a Chromium, or None."""
    return next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing of requests."""


@contextlib.contextmanager
def served(site):
    """Serve a folder on this machine alone; gives its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def look(site, screens, chromium):
    """Return what is wrong with each page, by its name."""
    wrong, read = {}, {}
    with served(site) as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for path in sorted(site.rglob("*.html")):
            name = path.relative_to(site).as_posix()
            if name == "404.html":  # made for a server: its links start at the root
                continue
            found = wrong[name] = []
            page = browser.new_page()
            page.on(
                "console", lambda m, f=found: m.type == "error" and f.append(f"console: {m.text}")
            )
            page.on("pageerror", lambda e, f=found: f.append(f"script: {e}"))
            page.on(
                "request", lambda r, f=found: r.url.startswith(home) or f.append(f"fetches {r.url}")
            )
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                page.goto(home + name, wait_until="load")
                found += [
                    f"{width} px, wider than the page: {what}" for what in page.evaluate(WIDER)
                ]
                file = screens / f"{name.removesuffix('.html').replace('/', '-')}-{width}.png"
                page.screenshot(path=file, full_page=True)
            found += [f"not drawn: {what}" for what in page.evaluate(NOT_DRAWN)]
            read[name] = page.evaluate(READ)
            page.close()
        browser.close()
    for name, page in read.items():
        links = {link.removeprefix(home) for link in page["links"] if link.startswith(home)}
        wrong[name] += sorted(
            f"leads nowhere: {link}" for link in links if not leads(link, site, read)
        )
    return wrong


def leads(link, site, read):
    """Return whether a page of the site, or another file, is there, and the anchor in it."""
    name, _, anchor = unquote(link).partition("#")
    name = name or "index.html"
    return (not anchor or anchor in read[name]["ids"]) if name in read else (site / name).is_file()


def write_junit(file, site, wrong):
    """Write one test case per page; all of them skipped if nobody could look."""
    suite = ET.Element("testsuite", name="site")
    names = sorted(wrong) if wrong is not None else [p.name for p in sorted(site.rglob("*.html"))]
    for name in names:
        case = ET.SubElement(suite, "testcase", classname="site", name=name)
        if wrong is None:
            ET.SubElement(case, "skipped", message=NO_BROWSER)
        elif wrong[name]:
            ET.SubElement(case, "failure", message="; ".join(wrong[name]))
    ET.ElementTree(suite).write(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path)
    parser.add_argument("screens", type=Path)
    parser.add_argument("--junit", type=Path)
    options = parser.parse_args()
    options.screens.mkdir(parents=True, exist_ok=True)
    chromium = browser_here()
    wrong = look(options.site, options.screens, chromium) if chromium else None
    if options.junit:
        write_junit(options.junit, options.site, wrong)
    if wrong is None:
        print(f"SKIPPED, nobody looked at the site: {NO_BROWSER}")
        return 0
    for name, found in wrong.items():
        for what in found:
            print(f"{name}: {what}")
    n_wrong = sum(map(bool, wrong.values()))
    print(
        f"{len(wrong)} pages at {' and '.join(map(str, WIDTHS))} px, {n_wrong} of them with something wrong"
    )
    return int(n_wrong > 0 or not wrong)


if __name__ == "__main__":
    sys.exit(main())
