"""Take secrets off the boot partition, safe against power cuts. Standard library only.

The old file is overwritten in place: a deleted file of FAT stays readable. Nor is another
one renamed to its name: Linux writes a name of FAT and the clusters that it leads to at different
times, and QEMU has shown a power cut in between that left an empty file. So that no cut costs the
board its settings, what anyone may read is on the card first, under a name of its own, and stays
until the file holds the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from boards.onboard.wholefile import remove_whole, write_whole

__all__ = ["finish_redaction", "redact"]

_READY = "edge-kit-public.toml"
_FILLER = b"#"
# A sector, which a card writes whole: once it is overwritten, the rest may be, too.
_MARK = 512


def redact(file: Path, public: str) -> None:
    """Overwrite a file with another text, filled up with comment signs to the old size.

    Args:
        file: Which.
        public: What it will hold: TOML, or what else may end with a line of ``#``.

    Raises:
        OSError: The partition is full or cannot be written; then the file is as it was, or
            `finish_redaction` completes it.
    """
    missing = file.stat().st_size - len(public.encode())
    write_whole(file.with_name(_READY), public + "#" * missing, 0o644)
    _overwrite(file)


def finish_redaction(file: Path) -> None:
    """Finish what a power cut interrupted in `redact`; usually nothing.

    Raises:
        OSError: The partition cannot be written. The file must not be read then.
    """
    ready = file.with_name(_READY)
    if not ready.exists():
        return
    if file.read_bytes()[:_MARK].strip(_FILLER):
        # Finished; or not begun, and perhaps edited since.
        remove_whole(ready)
    else:
        _overwrite(file)


def _overwrite(file: Path) -> None:
    ready = file.with_name(_READY)
    text = ready.read_bytes()
    with file.open("r+b") as old:
        for at, piece in ((0, _FILLER * _MARK), (_MARK, text[_MARK:]), (0, text[:_MARK])):
            old.seek(at)
            old.write(piece)
            old.flush()
            os.fsync(old.fileno())
        # Only a text shorter than the mark is shorter than the old one.
        old.truncate(len(text))
        os.fsync(old.fileno())
    remove_whole(ready)
