"""Files are written whole or not at all."""

import os
import stat
import threading
from pathlib import Path

import pytest

from course_utils.files import write_whole


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def bits(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask():
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


@pytest.mark.parametrize(
    ("data", "content"),
    [("", b""), ("é\r\n\n", b"\xc3\xa9\r\n\n"), (b"\x00\xff\r\n", b"\x00\xff\r\n")],
)
def test_what_is_written_is_there_and_nothing_else(tmp_path, data, content):
    path = tmp_path / "a" / "b" / "file.json"
    for _ in range(2):
        write_whole(path, data)
        assert path.read_bytes() == content
        assert names(path.parent) == ["file.json"]


def test_a_name_may_be_as_long_as_the_file_system_lets_it(tmp_path):
    path = tmp_path / ("n" * 255)
    write_whole(path, "x")
    assert names(tmp_path) == [path.name]


def test_permissions_of_a_new_file_are_those_that_open_gives(tmp_path, umask):
    write_whole(tmp_path / "ours", "x")
    (tmp_path / "opened").write_text("x")
    assert bits(tmp_path / "ours") == bits(tmp_path / "opened") == 0o640


@pytest.mark.parametrize("kept", [0o600, 0o664, 0o755, 0o444])
def test_a_file_keeps_its_permissions(tmp_path, umask, kept):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(kept)
    write_whole(path, "new")
    assert (path.read_text(), bits(path)) == ("new", kept)


def test_permissions_can_be_asked_for(tmp_path, umask):
    path = tmp_path / "secret"
    for before in (None, 0o644):
        if before:
            path.chmod(before)
        write_whole(path, "x", mode=0o600)
        assert bits(path) == 0o600
    write_whole(path, "x", mode=0o666)
    assert bits(path) == 0o640


def test_a_secret_is_never_open_to_others(tmp_path, monkeypatch):
    """Not even while it is written."""
    seen = []
    really = os.fsync

    def look(number):
        seen.append(stat.S_IMODE(os.fstat(number).st_mode))
        really(number)

    monkeypatch.setattr(os, "fsync", look)
    write_whole(tmp_path / "secret", "x", mode=0o600)
    assert seen == [0o600]


def test_the_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    path, done = tmp_path / "file", []
    path.write_text("old")
    fsync, replace = os.fsync, os.replace

    def synced(number):
        done.append(("synced", os.fstat(number).st_size, path.read_text()))
        fsync(number)

    def replaced(source, target):
        done.append(("replaced", Path(source).parent, Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_whole(path, "newer")
    assert done == [("synced", 5, "old"), ("replaced", tmp_path, path)]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_after_a_failure_the_old_file_is_there_and_nothing_else(tmp_path, monkeypatch, step, error):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)):
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_text_that_is_no_text_changes_nothing(tmp_path):
    path = tmp_path / "folder" / "file"
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert names(tmp_path) == []


def test_a_link_is_replaced_and_what_it_shows_is_left_alone(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert (target.read_text(), link.read_text(), link.is_symlink()) == ("old", "new", False)


def test_a_folder_is_not_replaced(tmp_path):
    (tmp_path / "place").mkdir()
    with pytest.raises(OSError):
        write_whole(tmp_path / "place", "x")
    assert names(tmp_path) == ["place"]


def test_many_writers_leave_one_whole_file(tmp_path):
    """Threads and forked processes: none meets another's part, and each reader sees a whole file."""
    path, rounds = tmp_path / "file", 40
    texts = {letter: letter * 200_000 for letter in "abcd"}
    write_whole(path, texts["a"])
    read, failed = [], []

    def write(letter):
        try:
            for _ in range(rounds):
                write_whole(path, texts[letter])
        except OSError as error:
            failed.append(error)

    child = os.fork()
    if not child:
        status = 1
        try:
            write("d")
            status = len(failed)
        finally:
            os._exit(status)
    threads = [threading.Thread(target=write, args=letter) for letter in "abc"]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        read.append(path.read_text())
    for thread in threads:
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
    assert not failed
    assert read and set(read) <= set(texts.values())
    assert names(tmp_path) == ["file"]
