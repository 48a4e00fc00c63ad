"""``cloud-kit`` as a child process, and its JSON lines as events."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.messages import TIMEOUT

CLI = str(Path(sys.executable).parent / "cloud-kit")


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CLI, *args], capture_output=True, text=True, timeout=TIMEOUT, env=os.environ | env
    )


class Process:
    """A command whose JSON lines can be waited for."""

    def __init__(self, *args: str, **env: str) -> None:
        self.events: queue.Queue[dict | None] = queue.Queue()
        self.process = subprocess.Popen(
            [CLI, *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | env,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.events.put(json.loads(line))
        self.events.put(None)

    def wait_for(self, kind: str) -> dict:
        while (event := self.events.get(timeout=TIMEOUT)) is not None:
            if event["event"] == kind:
                return event
        raise AssertionError(f"ended before {kind!r}: {self.process.stderr.read()}")

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(TIMEOUT)
        self._close()
        return code

    def _close(self) -> None:
        self._reader.join(TIMEOUT)
        self.process.stdout.close()
        self.process.stderr.close()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT)
        self._close()


@contextmanager
def process(*args: str, **env: str) -> Iterator[Process]:
    made = Process(*args, **env)
    try:
        yield made
    finally:
        made.kill()
