"""Take secrets off the boot partition, whatever is cut off meanwhile. Standard library only.

The old file is overwritten before it goes, since a deleted file of FAT stays readable. So that a
power cut in between does not cost the board its settings, what anyone may read is on the card
first, under a name of its own; the next boot then finishes what was begun.
"""

from __future__ import annotations

import os
from pathlib import Path

from boards.payload.wholefile import remove_whole, sync_folder, write_whole

__all__ = ["finish_redaction", "redact"]

_READY = "edge-kit-public.toml"
_FILLER = b"#"
# A sector, which a card writes whole: who finds it overwritten knows that the rest may be, too.
_MARK = 512


def redact(file: Path, public: str) -> None:
    """Overwrite a file, and put another text in its place.

    Args:
        file: Which.
        public: What it will hold.

    Raises:
        OSError: The partition is full or cannot be written; then the file is as it was, or
            `finish_redaction` completes it.
    """
    write_whole(file.with_name(_READY), public, 0o644)
    _overwrite(file)


def finish_redaction(file: Path) -> None:
    """Do what `redact` was kept from; mostly nothing.

    Raises:
        OSError: The partition cannot be written. The file must not be read then.
    """
    ready = file.with_name(_READY)
    if not ready.exists():
        return
    try:
        begin = file.read_bytes()[:_MARK] if file.exists() else b""
    except OSError:
        # FAT frees clusters and writes names in any order: the last step, cut off, leaves a name
        # that leads to nothing. What was there has been overwritten by then.
        remove_whole(file)
        begin = b""
    if begin.strip(_FILLER):
        # Not begun, and perhaps edited since: all of it is still to be done.
        remove_whole(ready)
    else:
        _overwrite(file)


def _overwrite(file: Path) -> None:
    if file.exists():
        size = file.stat().st_size
        with file.open("r+b") as old:
            for count in (min(size, _MARK), size):
                old.seek(0)
                old.write(_FILLER * count)
                old.flush()
                os.fsync(old.fileno())
    file.with_name(_READY).replace(file)
    sync_folder(file.parent)
