from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from edge_kit.host import signals
from edge_kit.host.signals import StopRequest, signals_interrupt, stop_requests

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)
TIMEOUT = 20.0


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Default handlers for each test, whatever the shell that started the tests ignores."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int, times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), number)


def run_child(body: str) -> subprocess.Popen[str]:
    code = "from edge_kit.host.signals import *\nimport os, signal, sys, time\n" + body
    command = ["env", "--default-signal=INT,TERM,HUP", sys.executable, "-c", code]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_runs_the_call_on_another_thread(number):
    threads = []
    with stop_requests() as stop:
        stop.on_stop(lambda: threads.append(threading.current_thread()))
        send(number)
        assert stop.wait(TIMEOUT)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_call_that_is_registered_after_the_signal_still_runs():
    calls = []
    with stop_requests() as stop:
        send(signal.SIGTERM)
        assert stop.wait(TIMEOUT)
        stop.on_stop(lambda: calls.append("late"))
    assert calls == ["late"]


def test_burst_while_the_main_thread_holds_a_lock_stops_once():
    calls, lock = [], threading.Lock()

    def stop_with_lock() -> None:
        with lock:
            calls.append("stop")

    with stop_requests() as stop:
        stop.on_stop(stop_with_lock)
        with lock:
            send(signal.SIGTERM, 50)
            assert stop.wait(TIMEOUT)
        send(signal.SIGINT, 50)
    assert calls == ["stop"]


def test_handlers_without_a_request_are_restored():
    before = [signal.getsignal(number) for number in NUMBERS]
    with stop_requests() as stop:
        assert not stop.wait(0)
    assert [signal.getsignal(number) for number in NUMBERS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_rest_of_a_burst_after_the_block_is_ignored():
    with stop_requests() as stop:
        send(signal.SIGTERM)
        assert stop.wait(TIMEOUT)
    send(signal.SIGTERM, 5)


def test_later_second_signal_ends_the_process():
    child = run_child(
        "with stop_requests() as stop:\n"
        " print('ready', flush=True); stop.wait(); print('stopping', flush=True); time.sleep(60)"
    )
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "stopping\n"
    time.sleep(signals.BURST_S + 0.2)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=TIMEOUT)
    assert child.returncode == -signal.SIGINT


def test_outside_the_main_thread_only_ask_stops():
    seen = []

    def work() -> None:
        with stop_requests() as stop:
            stop.on_stop(lambda: seen.append("stop"))
            stop.ask()
            stop.ask()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(TIMEOUT)
    assert seen == ["stop"]


def test_on_stop_before_and_after_ask():
    stop, calls = StopRequest(), []
    stop.on_stop(lambda: calls.append(1))
    assert calls == []
    stop.ask()
    stop.on_stop(lambda: calls.append(2))
    assert calls == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_becomes_an_interrupt_and_handlers_are_restored(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        send(number)
    assert signal.getsignal(number) is before


def test_burst_does_not_interrupt_the_cleanup():
    cleaned = []
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        try:
            send(signal.SIGTERM)
        finally:
            send(signal.SIGTERM, 50)
            cleaned.append(True)
    assert cleaned == [True]


def test_ignored_hang_up_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals_interrupt():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_interrupt_that_a_destructor_drops_is_raised_again():
    class Dropping:
        def __del__(self) -> None:
            send(signal.SIGINT)
            for _ in range(3):  # a place for the handler to run
                pass

    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        thing = Dropping()
        del thing
        time.sleep(TIMEOUT)
