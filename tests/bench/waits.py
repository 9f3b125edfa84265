"""What people wait for besides a verdict: the command line's help, ranks, a comparison of 200 answers, pages."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

HERE = Path(__file__).parent
ROUNDS = 5
NOTHING = "<!doctype html><title>Nothing</title><p>Nothing.</p>"


def seconds(action: Callable[[], object]) -> float:
    """The median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        start = perf_counter()
        action()
        times.append(perf_counter() - start)
    return median(times)


def tell(what: str, milliseconds: float) -> None:
    print(f"{what:<60}{milliseconds:>10.0f} ms")


def start_ranks() -> None:
    from course_utils.ranks import Ranks

    with Ranks(4) as ranks:
        ranks.start()


def compare_two_hundred() -> None:
    sys.path.insert(0, str(HERE.parent / "classroom"))
    import test_similarity

    from course_utils.classroom.reports.similarity import similar

    sources = test_similarity.class_of(200)
    tell("similar answers among 200", 1000 * seconds(lambda: similar(sources)))


def paint_pages() -> None:
    """The largest paint of each page of `make book`, and of one with nothing on it, in turns."""
    html = HERE.parents[1] / "_build" / "html"
    if not (html / "index.html").exists():
        print("pages: there is no site to visit; `make book` builds it")
        return
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(HERE.parent / "site"))
    from site_build import ROOT, pages_of
    from site_visit import served, visiting

    from course_utils.authoring.browser import ARGUMENTS, ensure

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=ensure(), args=ARGUMENTS)
        (Path(folder) / "plain").mkdir()
        (Path(folder) / "plain" / "index.html").write_text(NOTHING)

        def paint(site: str, path: str) -> float:
            with visiting(browser, site, path) as visit:
                return visit.paints["paint"]

        (Path(folder) / "www").mkdir()
        with served(html, Path(folder) / "www") as site:
            root = site.rsplit("/", 2)[0]
            (Path(folder) / "www" / "plain").symlink_to(Path(folder) / "plain")
            plain = median(paint(f"{root}/", "plain/index.html") for _ in range(ROUNDS))
            tell("largest paint of a page with nothing on it", plain)
            for page in pages_of(ROOT):
                found = median(paint(site, f"{page}.html") for _ in range(ROUNDS))
                tell(f"largest paint of {page}", found)


def main() -> None:
    show_help = [sys.executable, "-m", "course_utils.cli", "--help"]
    run = lambda: subprocess.run(show_help, check=True, capture_output=True)  # noqa: E731
    tell("course --help", 1000 * seconds(run))
    start_ranks()
    tell("4 ranks, once torch is loaded for the first ones", 1000 * seconds(start_ranks))
    compare_two_hundred()
    paint_pages()


if __name__ == "__main__":
    main()
