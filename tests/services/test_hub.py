"""A user of a real JupyterHub (`ci/services/hub`) runs notebook 05 on the gateway behind it, in a real browser."""

import json
import os
import shutil
from pathlib import Path

import pytest
from waiting import LONGEST

from dpgb_dask import Ledger

if "DPGB_HUB" not in os.environ:
    pytest.skip("NO JUPYTERHUB: ci/services/hub starts it", allow_module_level=True)
browsers = pytest.importorskip(
    "playwright.sync_api", reason="NO PLAYWRIGHT: its package is missing"
)

pytestmark = pytest.mark.services
NAME = "05-on-a-gateway.ipynb"
MOST = 1000 * LONGEST  # milliseconds
OFFLINE = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
# all cells wait when they are asked to run; after one that fails the others do not run
ENDED = """() => {
  const prompts = [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputArea-prompt')];
  return /[0-9]/.test(prompts[0].textContent) && !prompts.some(p => p.textContent.includes('*'));
}"""


@pytest.fixture
def pictures(tmp_path):
    """The folder that pictures of the browser go to: ``DPGB_PICTURES``, or a temporary one."""
    folder = Path(os.environ.get("DPGB_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def page(tmp_path):
    """A page of a headless Chromium that has never been used."""
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path / "browser",
            executable_path=shutil.which("chromium"),
            args=OFFLINE,
            chromium_sandbox=os.getuid() != 0,
            viewport={"width": 1280, "height": 900},
        )
        browser.set_default_timeout(MOST)
        yield browser.pages[0]
        browser.close()


def log_in(page, user):
    page.goto(f"{os.environ['DPGB_HUB']}/hub/login")
    page.fill("input[name=username]", user)
    page.fill("input[name=password]", os.environ["DPGB_HUB_PASSWORD"])
    page.click("input[type=submit]")
    page.wait_for_selector("#jp-main-dock-panel")


def run_all(page):
    """Run all cells of the notebook that is open."""
    page.click("#jp-MainMenu >> text=Run")
    page.click(".lm-Menu-itemLabel:text-is('Run All Cells')")
    page.wait_for_function(ENDED, timeout=2 * MOST)


def outputs_of(path):
    """Return the outputs of every cell of code of a notebook."""
    cells = json.loads(path.read_text())["cells"]
    return [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]


def test_a_user_runs_the_notebook_in_the_hub(page, pictures, record_property):
    log_in(page, "ana")
    page.screenshot(path=pictures / "1-lab.png")
    page.goto(f"{os.environ['DPGB_HUB']}/user/ana/lab/tree/{NAME}?reset")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    page.wait_for_selector("#jp-main-statusbar >> text=/\\| Idle$/")  # the kernel runs
    page.screenshot(path=pictures / "2-opened.png")
    run_all(page)
    for k, cell in enumerate(page.query_selector_all(".jp-Notebook .jp-CodeCell"), 3):
        cell.scroll_into_view_if_needed()
        cell.screenshot(path=pictures / f"{k}-cell.png")
    page.keyboard.press("Control+s")
    page.wait_for_selector(".jp-mod-dirty", state="detached")
    page.screenshot(path=pictures / "last.png")

    ran = Path(os.environ["DPGB_HUB_HOME"], "ana", NAME)
    shutil.copy(ran, pictures)
    outputs = outputs_of(ran)
    failed = [out for cell in outputs for out in cell if out["output_type"] == "error"]
    assert not failed
    text = "".join(
        "".join(out.get("text", ()))
        for cell in outputs
        for out in cell
        if out["output_type"] == "stream"
    )
    assert "can be resumed" in text
    assert "charged: 1 fit" in text
    ledger = Ledger(os.environ["DPGB_HUB_LEDGER"])
    charged = [e for e in ledger.history("people-2026") if e.kind == "RESERVED"]
    assert [e.body["who"].split("@")[0] for e in charged] == ["ana"]
    ledger.verify()
    record_property(
        "saw", f"{len(outputs)} cells of code, 1 cluster lost, 1 fit, 1 charge; {pictures}"
    )
