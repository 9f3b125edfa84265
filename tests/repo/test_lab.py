"""`make lab`, in a real browser: the chapter is open, nothing pops up, the kernel is the course's own."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from playwright.sync_api import Page, sync_playwright

from course_utils import lab
from course_utils.authoring import browser
from course_utils.authoring.counts import count

ROOT = Path(__file__).parents[2]
CHAPTER = "notebooks/01_tensors.ipynb"
POP_UPS = ".Toastify__toast, .jp-toast-button, .jp-Dialog"

SHADOW = {
    "argv": ["false", "-f", "{connection_file}"],
    "display_name": "Python 3 of somebody else",
    "language": "python",
}
"""A kernel called python3 that would never start, where Jupyter looks first by default."""

ASK_KERNEL = """async (code) => {
    const kernel = window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
    const future = kernel.requestExecute({code});
    let text = "";
    future.onIOPub = (message) => { text += message.content.text ?? ""; };
    await future.done;
    return text.trim();
}"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """JupyterLab as `make lab` starts it, on a copy of the chapter, for a user with kernels of their own."""
    home = tmp_path_factory.mktemp("home")
    (home / "notebooks").mkdir()
    shutil.copy(ROOT / CHAPTER, home / CHAPTER)
    for folder in ("data", "jupyter-path"):
        kernel = home / folder / "kernels" / "python3" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        kernel.write_text(json.dumps(SHADOW))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("JUPYTER_DATA_DIR", str(home / "data"))
        patch.setenv("JUPYTER_PATH", str(home / "jupyter-path"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        patch.setenv("JUPYTER_CONFIG_DIR", str(home / "config"))
        environment = lab.environment()
    for_test = [
        "--no-browser",
        f"--ServerApp.port={free_port()}",
        "--ip=127.0.0.1",
        "--expose-app-in-browser",
    ]
    log = home / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            lab.command([CHAPTER, *for_test]),
            cwd=home,
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    try:
        address = what_the_browser_opens(home / "runtime", process, log)
        yield SimpleNamespace(address=address, log=log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def what_the_browser_opens(runtime: Path, process: subprocess.Popen, log: Path) -> str:
    """The address in the page that Jupyter would open, once its server answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        for page in runtime.glob("jpserver-file-to-run-*-open.html"):
            found = re.search(r'url=([^"]+)"', page.read_text())
            if found and "is running at" in log.read_text():
                return found[1].replace("&amp;", "&")
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


@pytest.fixture
def page(server: SimpleNamespace) -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=browser.find(), args=list(browser.ARGUMENTS)
        )
        page = chromium.new_page()
        page.requested = []
        page.on("request", lambda request: page.requested.append(request.url))
        page.goto(server.address)
        yield page
        chromium.close()


def test_the_first_chapter_opens_ready_to_run(page: Page, server: SimpleNamespace) -> None:
    assert f"/lab/tree/{Path(CHAPTER).name}?" in server.address
    page.locator(".jp-NotebookPanel .jp-Cell").first.wait_for(timeout=60_000)
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.context?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=60_000,
    )
    page.wait_for_timeout(3_000)  # pop-ups come a moment after the rest
    assert page.locator(POP_UPS).all_inner_texts() == []
    assert page.evaluate(ASK_KERNEL, "import sys; print(sys.executable)") == sys.executable
    assert page.evaluate(ASK_KERNEL, "import course_utils; print(course_utils.__name__)")
    here = server.address.split("/lab")[0]
    elsewhere = [url for url in page.requested if not url.startswith((here, "data:", "blob:"))]
    assert elsewhere == []
    count("browser checks")


def test_settings_are_merged_not_replaced(tmp_path: Path) -> None:
    path = lab.settings_file(tmp_path)
    path.parent.mkdir(parents=True)
    own = {
        "@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Dark"},
        "@jupyterlab/apputils-extension:notification": {"doNotDisturbMode": True},
    }
    path.write_text(json.dumps(own))
    lab.write_settings(tmp_path)
    merged = json.loads(path.read_text())
    assert merged["@jupyterlab/apputils-extension:themes"] == {"theme": "JupyterLab Dark"}
    assert merged["@jupyterlab/apputils-extension:notification"] == {
        "doNotDisturbMode": True,
        "fetchNews": "false",
        "checkForUpdates": False,
    }


def test_settings_name_what_this_jupyterlab_knows() -> None:
    for name, chosen in lab.SETTINGS.items():
        extension, _, plugin = name.rpartition(":")
        schema = Path(sys.prefix, "share/jupyter/lab/schemas", extension, f"{plugin}.json")
        assert chosen.keys() <= json.loads(schema.read_text())["properties"].keys()


def test_other_peoples_kernels_do_not_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "/somewhere")
    environment = lab.environment()
    assert environment["JUPYTER_PREFER_ENV_PATH"] == "1"
    assert "JUPYTER_PATH" not in environment
    assert os.environ["JUPYTER_PATH"] == "/somewhere"
