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
NEXT_CHAPTER = "notebooks/02_strides.ipynb"
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
    for chapter in (CHAPTER, NEXT_CHAPTER):
        shutil.copy(ROOT / chapter, home / chapter)
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
    until = time.monotonic() + 300
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


RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
ERRORS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .flatMap(cell => cell.model.type === "code" ? cell.model.outputs.toJSON() : [])
    .filter(output => output.output_type === "error").map(output => output.traceback.join(" "))"""
CELL_WITH = """(text) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    return notebook.widgets.findIndex(
        ({ model }) => model.type === "code" && model.sharedModel.getSource().startsWith(text));
}"""
OPEN_CELL = """(index) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = index;
    notebook.scrollToItem(index);
    notebook.mode = "edit";
}"""
EXECUTION_COUNT = (
    "() => window.jupyterapp.shell.currentWidget.content.activeCell.model.executionCount"
)
STUB = """@exercise("tensors.sequence_lengths")
def sequence_lengths(ids, pad_id):
    return """


READY = """(name) => {
    const open = window.jupyterapp?.shell.currentWidget;
    return open?.title.label === name && open.context?.sessionContext?.session?.kernel?.status === "idle";
}"""


def run_all(page: Page, chapter: str = CHAPTER) -> None:
    """*Run All* of the notebook as the student gets it, to its end."""
    page.wait_for_function(READY, arg=Path(chapter).name, timeout=60_000)
    ended = page.evaluate(RUN_ALL)
    assert ended is not False, f"a cell raises: {page.evaluate(ERRORS)}"


def answer(page: Page, source: str) -> str:
    """Type an answer over the stub as a student would, run the cell, and read the verdict."""
    page.evaluate(OPEN_CELL, page.evaluate(CELL_WITH, STUB.splitlines()[0]))
    cell = page.locator(".jp-Cell.jp-mod-active")
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)
    before = page.evaluate(EXECUTION_COUNT)
    page.keyboard.press("Control+Enter")
    done = f"(before) => ![before, null].includes(({EXECUTION_COUNT})())"
    page.wait_for_function(done, arg=before, timeout=60_000)
    return cell.locator(".course-verdict:not(.course-not-attempted)").inner_text()


def test_a_student_solves_the_first_exercise(page: Page) -> None:
    """From the page's opening to the first passed check; wrong answers on the way."""
    run_all(page)
    text = answer(page, STUB + "(ids == pad_id).sum(dim=1)")
    assert "sequence_lengths · failed" in text
    assert "you" in text and "expected" in text
    text = answer(page, STUB + "ids.nosuch()")
    assert "your code raised AttributeError" in text and "line 3" in text
    text = answer(page, STUB + "(ids != pad_id).sum(dim=1)")
    assert "✓ sequence_lengths · passed" in text
    count("browser checks", 3)


def test_the_stride_explorer_works_in_jupyterlab(page: Page, server: SimpleNamespace) -> None:
    page.errors = []
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.goto(server.address.replace(Path(CHAPTER).name, Path(NEXT_CHAPTER).name))
    run_all(page, NEXT_CHAPTER)
    page.evaluate(OPEN_CELL, page.evaluate(CELL_WITH, "stride_explorer("))
    figure = page.locator('[data-s2s-figure="stride_explorer"]')
    figure.wait_for(timeout=60_000)
    figure.get_by_role("button", name="Apply .transpose(0, 1)").focus()
    page.keyboard.press("Enter")
    figure.get_by_text("no: row-major order needs stride (3, 1)").wait_for(timeout=60_000)
    assert page.errors == []
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
