"""Commands of this distribution as child processes whose JSON lines arrive as events."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from edge_kit.host.child_process import ChildError, end_child, end_with_parent, last_words

__all__ = ["Child"]

STOP_TIMEOUT_S = 15.0


class Child:
    """A running command; leaving its ``with`` block ends it, in whatever state it is.

    It runs in a session of its own, so that Ctrl-C on a terminal reaches only the parent, which
    then stops its children in the right order.

    Args:
        title: What it is, for messages.
        arguments: The command line.
        log: Where its stderr goes; the last line of it explains a failure.
        env: Environment; the parent's by default.
    """

    def __init__(
        self, title: str, arguments: Sequence[str], log: Path, env: dict[str, str] | None = None
    ) -> None:
        self.title = title
        self._log = log
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=env,
                start_new_session=True,
                preexec_fn=end_with_parent(),
            )
        self._reader = threading.Thread(target=self._read, name=f"{title} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def events(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Yield its JSON lines until it closes its output.

        Args:
            timeout_s: Longest silence, seconds.

        Raises:
            ChildError: It was silent for longer, or ended with a failure.
        """
        while (event := self._next(timeout_s)) is not None:
            yield event
        code = self._process.wait(STOP_TIMEOUT_S)
        if code != 0:
            raise ChildError(f"{self.title} failed: {self._last_words()}", _own_code(code))

    def wait_for(self, event: str, timeout_s: float) -> dict[str, Any]:
        """Return the first line whose ``event`` is this one; skip those before it.

        Raises:
            ChildError: It ended before, or `timeout_s` passed.
        """
        until = time.monotonic() + timeout_s
        while (said := self._next(max(0.0, until - time.monotonic()))) is not None:
            if said.get("event") == event:
                return said
        code = self._process.wait(STOP_TIMEOUT_S)
        raise ChildError(f"{self.title} did not start: {self._last_words()}", _own_code(code))

    def stop(self) -> int:
        """End it: SIGTERM, then, after a while, SIGKILL. Return the exit code."""
        code = end_child(self._process, STOP_TIMEOUT_S)
        self._reader.join(STOP_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _next(self, timeout_s: float) -> dict[str, Any] | None:
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            raise ChildError(
                f"{self.title} said nothing for {timeout_s:.0f} s: {self._last_words()}"
            ) from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    self._events.put(event)
        self._events.put(None)

    def _last_words(self) -> str:
        return last_words(self._log.read_bytes())


def _own_code(code: int) -> int:
    """Turn a child's exit code into one for us: a signal has none of its own."""
    return code if code > 0 else 1
