"""The Chromium that the suite drives: finds one, or says how to get it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Arguments for a headless run that asks nobody for anything."""

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
ADVICE = (
    "Install Chromium or Chrome (Debian, Ubuntu: sudo apt-get install chromium; macOS: brew install --cask chromium), "
    "or name one in CHROMIUM."
)


def find() -> str | None:
    """Path of a Chromium or Chrome: CHROMIUM, the PATH, the Mac's applications, Playwright's own; or None."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    found = found or next((path for path in MAC if Path(path).exists()), None)
    return found or _playwrights_own()


def _playwrights_own() -> str | None:
    """Playwright's download, where `playwright install chromium` has put one."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def ensure() -> str:
    """Path of a Chromium, downloaded by Playwright if there is none.

    Raises RuntimeError with what to do where that does not work.
    """
    path = find()
    if path is None:
        subprocess.run(
            [sys.executable, "-m", "playwright", "install", "chromium"],
            stdout=sys.stderr,
            check=False,
        )
        path = find()
    if path is None:
        raise RuntimeError(f"The suite needs a browser and found none. {ADVICE}")
    return path


if __name__ == "__main__":
    try:
        print(ensure())
    except RuntimeError as error:
        sys.exit(str(error))
