"""Keep converters and runtimes quiet, so that an export's own lines are all that a user reads."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars, notes and warnings; exceptions pass.

    C++ parts write to file descriptor 2 whatever Python says, so that is redirected too.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    muted = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        Path(os.devnull).open("wb") as null,
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            logging.disable(muted)
