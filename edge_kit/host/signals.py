"""Stop signals, for all commands.

A Python handler runs between any two instructions of the main thread. It must take no lock, since
the code that it interrupts may hold that very lock: ``threading.Event.set()`` in a handler hangs.
The handlers here take none. What a stop has to do runs on a thread of its own, which learns of the
signal through `signal.set_wakeup_fd`.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["StopRequest", "ignore_interrupt", "signals_interrupt", "stop_requests"]

# A supervisor may signal a process and its group, and a person press twice: one request.
BURST_S = 1.0
RETRY_S = 0.05


class StopRequest:
    """Whether this process was asked to stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._lock = threading.Lock()
        self._calls: list[Callable[[], None]] = []

    def ask(self) -> None:
        """Ask for a stop; from any thread, but not from a signal handler."""
        with self._lock:
            self._asked.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def on_stop(self, call: Callable[[], None]) -> None:
        """Run `call` once when a stop is asked for, on another thread; at once if it was."""
        with self._lock:
            if not self._asked.is_set():
                self._calls.append(call)
                return
        call()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the request, at most `timeout_s` seconds; return whether it came."""
        return self._asked.wait(timeout_s)


class _Handler:
    """Note the first signal; after `BURST_S` let another one do `again`."""

    def __init__(self, first: Callable[[], None], again: Callable[[int], None]) -> None:
        self._first = first
        self._again = again
        self._since: float | None = None

    @property
    def asked(self) -> bool:
        return self._since is not None

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self._since is None:
            self._since = time.monotonic()
            self._first()
        elif time.monotonic() - self._since > BURST_S:
            self._again(number)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Turn the first SIGTERM or SIGINT into a request to stop, and a later one into the end.

    Signals within `BURST_S` of the first count as one request. After a request the handlers stay:
    the process is about to exit, and the rest of a burst must not change its exit code.

    Outside the main thread, where Python handles no signals, only `StopRequest.ask` makes one.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    numbers = (signal.SIGTERM, signal.SIGINT)
    relay = threading.Thread(
        target=_relay, args=(reading, request, numbers), name="stop signals", daemon=True
    )
    relay.start()
    handler = _Handler(lambda: None, _end_at_once)
    fd_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield request
    finally:
        if handler.asked:
            # Python takes its handlers away as the last thing, and the default would end it early.
            atexit.register(_restore, dict.fromkeys(numbers, signal.SIG_IGN))
        else:
            _restore(before)
        signal.set_wakeup_fd(fd_before)
        writing.close()
        relay.join()
        reading.close()


def _relay(reading: socket.socket, request: StopRequest, numbers: Collection[int]) -> None:
    """Pass on signal numbers until the other end is closed."""
    while received := reading.recv(64):
        if any(number in numbers for number in received):
            request.ask()


def _end_at_once(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # the first process of a container survives the line above


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does: raise KeyboardInterrupt in the main thread.

    Signals within `BURST_S` of the first are ignored, so that they do not interrupt the cleanup.
    One that was ignored before, such as SIGHUP under nohup, stays so.
    CPython drops exceptions in some callbacks, such as ``__del__``; it is then raised again.
    """
    handler = _Handler(_interrupt, lambda _number: _interrupt())
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    taken = [n for n in numbers if signal.getsignal(n) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, handler) for number in taken}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda _number, _frame: _interrupt())
    hook_before = sys.unraisablehook

    def dropped(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # A timer takes no lock, unlike a thread, and fires when this callback has returned.
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        else:
            hook_before(unraisable)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook_before
        _restore(before)


def _interrupt() -> None:
    raise KeyboardInterrupt


def ignore_interrupt() -> None:
    """Leave Ctrl-C to the parent of this process, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _restore(before: Mapping[Any, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)
