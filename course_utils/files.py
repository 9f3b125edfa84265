"""Files that are there whole: one way to write them, for all rooms of the package."""

import os
import secrets
import stat
from pathlib import Path


def write_whole(path: Path, data: str | bytes, mode: int | None = None) -> None:
    """Write a file in one step: a reader, also after a power cut, finds the old or the new one whole.

    data: text is written as UTF-8, its line ends as they are. mode: permission bits, less the
    umask's; by default those of the file that is replaced, and of a new one what `open` would give.
    Folders are made. A link is replaced, not followed. Raises OSError, and UnicodeEncodeError for
    what UTF-8 cannot say; then the file is as it was, and nothing is left beside it.
    """
    content = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = _bits(path) if mode is None else None
    bits = next(bits for bits in (mode, kept, 0o666) if bits is not None)
    # In the same folder, since only within a file system a file moves in one step; of a name that no
    # other process or thread draws, and that is never too long.
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, bits)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # else the new name may reach the disk before the content
        if kept is not None and _bits(part) != kept:
            part.chmod(kept)
        os.replace(part, path)
    except BaseException:  # an interrupt, too
        part.unlink(missing_ok=True)
        raise


def _bits(path: Path) -> int | None:
    """The permission bits of a plain file; None where there is none."""
    try:
        found = path.lstat().st_mode
    except FileNotFoundError:
        return None
    return stat.S_IMODE(found) if stat.S_ISREG(found) else None
