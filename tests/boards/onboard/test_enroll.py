"""The board asks for its certificate: a real EST server over TLS, real openssl."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from boards.onboard.certificates import CertificateError, read_pem
from boards.onboard.enroll import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    Enrolment,
    pauses,
    until_done,
    wait_for_clock,
)
from boards.onboard.est import LONGEST_WAIT_S, EstError
from boards.onboard.firstboot import DATA
from boards.onboard.programs import call
from boards.onboard.settings import Settings
from edge_kit.host.clock import ClockWait
from tests.support.boards.enrolling import RESTART, Board, Killed
from tests.support.boards.estserver import PASSWORD, USER, openssl
from tests.support.mosquitto import free_port


def test_first_boot_prepares_the_enrolment(board, server):
    left = board.boot_file.read_text()
    assert PASSWORD not in left and USER not in left
    assert Settings.parse(left).enroll == server.url
    assert PASSWORD in board.secret.read_text() and board.secret.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE KEY" in (board.tls / "device.key").read_text()
    assert not (board.boot_file.parent / "edge-kit-request.csr").exists()
    # Until then it runs without a certificate, and neither clock nor refusal ends it.
    config = board.config
    assert "tls_cert" not in config and config["wait_for_clock"] and config["keep_trying"]


def test_board_enrols_with_its_one_time_password(board, server):
    key = (board.tls / "device.key").read_bytes()
    assert "CN=cam-7 is in force" in board.step()
    assert server.asked == [("cacerts", ""), ("simpleenroll", "basic")]
    chain = read_pem(board.certificate.read_text(), call)
    # The answer holds the device's alone; what leads to the root comes from the authorities.
    assert [c.subject for c in chain] == ["CN=cam-7", "CN=issuer,O=Test"]
    assert (board.tls / "device.key").read_bytes() == key
    assert not board.secret.exists()
    assert PASSWORD.encode() not in b"".join(
        p.read_bytes() for p in board.root.rglob("*") if p.is_file()
    )
    assert board.config["tls_cert"] == f"/{DATA}/tls/device.crt"
    assert board.config["tls_key"] == f"/{DATA}/tls/device.key"
    assert board.config["device_id"] == "cam-7"  # and all else as it was
    assert board.ran.count(RESTART) == 1
    left = {p.name for p in board.tls.iterdir()}
    assert left == {"ca.pem", "device.key", "device.crt"}
    context = ssl.create_default_context()
    context.load_cert_chain(board.certificate, board.tls / "device.key")


def test_request_is_signed_by_the_key_of_the_board(board, server):
    board.step()
    told = openssl(board.root, "req", "-verify", "-noout", "-pubkey", "-subject", stdin=(
        "-----BEGIN CERTIFICATE REQUEST-----\n"
        + "\n".join(re.findall(".{1,64}", server.requests[0]))
        + "\n-----END CERTIFICATE REQUEST-----\n"
    ).encode()).decode()  # fmt: skip
    own = openssl(board.root, "pkey", "-in", board.tls / "device.key", "-pubout").decode()
    assert own in told and "CN = cam-7" in told


def test_certificate_with_enough_life_left_is_kept(board, server):
    board.step()
    board.ran.clear()
    before = board.certificate.stat().st_mtime_ns
    server.asked.clear()
    assert "is good until" in board.step()
    assert server.asked == [] and RESTART not in board.ran
    assert board.certificate.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("garbage", "not Base64"),
        ("no-pkcs7", "not a PKCS#7 message"),
        ("cut", "not a PKCS#7 message"),
        ("huge", "not a PKCS#7 message"),
        ("other-key", "for another key"),
        ("expired", "certificate expired on"),
        ("untrusted", "not trusted: unable to get local issuer"),
        ("not-for-clients", "not trusted: unsuitable certificate purpose"),
        ("503", r"answers simpleenroll with 503 .*\(busy signing\)"),
        ("302", "sends us to 'https://elsewhere.example/'"),
    ],
)
def test_unusable_answer_changes_nothing(board, server, what, words):
    server.script = [what]
    with pytest.raises((EstError, CertificateError), match=words):
        board.step()
    assert board.is_untouched()
    server.used = False
    assert "is in force" in board.step()  # and the next try is a fresh one


def test_wrong_password_is_reported_and_kept(board, server):
    server.used = True
    with pytest.raises(EstError, match="refuses this user, password or certificate") as error:
        board.step()
    assert board.is_untouched() and PASSWORD not in str(error.value)


def test_board_without_password_and_certificate_asks_anyway(server, authority, tmp_path):
    board = Board(tmp_path / "b", server.url, authority / "root.pem", secrets=False)
    with pytest.raises(EstError, match="refuses"):
        board.step()
    assert server.asked[-1] == ("simpleenroll", "")


@pytest.mark.parametrize(
    ("certificate", "words"),
    [("est", "self-signed|unable to get local issuer"), ("late", "has expired")],
)
def test_untrusted_server_gets_no_password(serve, authority, tmp_path, certificate, words):
    server = serve(certificate)
    ca = authority / ("other-root.pem" if certificate == "est" else "root.pem")
    board = Board(tmp_path / "b", server.url, ca)
    with pytest.raises(EstError, match=f"certificate cannot be trusted: .*({words})"):
        board.step()
    assert board.is_untouched() and server.asked == []


def test_server_is_judged_by_the_systems_authorities_without_a_ca(server, tmp_path):
    board = Board(tmp_path / "b", server.url, None)
    with pytest.raises(EstError, match="cannot be trusted"):
        board.step()
    assert server.asked == []


def test_missing_server_is_an_error(authority, tmp_path):
    url = f"https://127.0.0.1:{free_port()}/.well-known/est"
    board = Board(tmp_path / "b", url, authority / "root.pem")
    with pytest.raises(EstError, match="Connection refused"):
        board.step()
    assert board.is_untouched()


def test_server_without_tls_is_an_error(authority, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/.well-known/est"
        board = Board(tmp_path / "b", url, authority / "root.pem")
        child = subprocess.Popen(
            [sys.executable, "-c",
             "import socket,sys\ns=socket.socket(fileno=int(sys.argv[1]))\n"
             "c,_=s.accept()\nc.recv(1)\nc.sendall(b'220 hello\\r\\n'*9)\nc.close()",
             str(listener.fileno())],
            pass_fds=[listener.fileno()],
        )  # fmt: skip
        with pytest.raises(EstError, match=r"SSL|reset|Broken pipe"):
            board.step()
        child.wait(30)


def test_undecided_server_is_asked_again_with_the_same_request(board, server, caplog):
    caplog.set_level(logging.INFO)
    server.script = ["202 77", "202", "202 9999999", "503"]
    slept: list[float] = []
    enrolment = Enrolment(board.root, board.run, board.clock)
    until_done(enrolment, pauses(random.Random(1)), slept.append)
    assert len(set(server.requests)) == 1 and len(server.requests) == 5
    assert 77 <= slept[0] <= 85  # the server's word
    assert FIRST_PAUSE_S * 2 / 2 <= slept[1] <= FIRST_PAUSE_S * 2  # none, so ours
    assert LONGEST_WAIT_S <= slept[2] <= LONGEST_WAIT_S * 1.1
    assert "has not decided yet; trying again in" in caplog.text
    assert "busy signing" in caplog.text and "is in force" in caplog.text
    assert board.certificate.exists() and PASSWORD not in caplog.text


def test_pauses_grow_to_an_hour():
    pause = pauses(random.Random(1))
    waits = [pause(None) for _ in range(3000)]
    for n, wait in enumerate(waits):
        full = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(n, 30))
        assert full / 2 <= wait <= full
    assert pause(30.0) < 40


def test_power_cut_anywhere_ends_with_one_certificate_and_no_secret(
    server, authority, tmp_path, monkeypatch
):
    """Let every write, every removal and every command be the last one, in turn."""
    server.one_time = False
    fresh = Board(tmp_path / "fresh", server.url, authority / "root.pem")
    done = False
    for cut in range(200):
        board = fresh.copy(tmp_path / f"b{cut}")
        left = cut

        def count(real: Callable[..., object]) -> Callable[..., object]:
            def counted(*args: object, **kwargs: object) -> object:
                nonlocal left
                if args[0] == "openssl":
                    return real(*args, **kwargs)  # it changes nothing here
                if left == 0:
                    raise Killed
                left -= 1
                return real(*args, **kwargs)

            return counted

        with monkeypatch.context() as patch:
            for name in ("replace", "unlink"):
                patch.setattr(Path, name, count(getattr(Path, name)))
            patch.setattr(board, "run", count(board.run))
            try:
                board.step()
                done = True
            except Killed:
                pass
        # Whatever is there is whole: the file in force is none or a good one.
        if board.certificate.exists():
            assert read_pem(board.certificate.read_text(), call)[0].subject == "CN=cam-7"
        asked = len(server.asked)
        pending = (board.tls / "device.crt.pending").exists()
        board.step()
        if pending:
            assert len(server.asked) == asked, "a certificate that had come was asked for again"
        assert board.config["tls_cert"] and not board.secret.exists()
        assert board.ran.count(RESTART) >= 1
        assert {p.name for p in board.tls.iterdir()} == {"ca.pem", "device.key", "device.crt"}
        if done:
            return
    raise AssertionError("it never came to its end")


def test_damaged_pending_file_is_dropped(board, server):
    (board.tls / "device.crt.pending").write_text("half a certif")
    assert "is in force" in board.step()
    assert server.asked[-1] == ("simpleenroll", "basic")


def test_program_enrols_and_stops_on_sigterm_while_waiting(board, server, authority, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("chgrp", "systemctl"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    (board.root / "run/systemd/timesync").mkdir(parents=True)
    (board.root / "run/systemd/timesync/synchronized").touch()
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "boards.onboard.enroll", str(board.root)]
    server.script = ["202 3600"]
    child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    assert "has not decided yet; trying again in" in child.stderr.readline()
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=30)
    assert board.is_untouched()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "is in force" in done.stderr
    assert board.certificate.exists() and not board.secret.exists()
    assert json.loads(json.dumps(board.config))["tls_key"]


def test_enrolment_waits_until_the_clock_is_set(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    synchronized = tmp_path / "synchronized"
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            synchronized.touch()

    wait_for_clock(ClockWait(synchronized=synchronized, kernel=lambda: None), sleep)
    assert len(slept) == 3
    assert [r.message.partition(" (")[0].partition(":")[0] for r in caplog.records] == [
        "waiting until the clock is set", "the clock is set"
    ]  # fmt: skip
