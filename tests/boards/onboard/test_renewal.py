"""The board renews its certificate: a real EST server over TLS, real openssl."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from boards.onboard.certificates import CertificateError, read_pem
from boards.onboard.enroll import Enrolment, until_done
from boards.onboard.est import EstError
from boards.onboard.programs import call
from edge_kit.telemetry.certificate import read_certificate
from tests.support.boards.enrolling import RESTART, Board
from tests.support.boards.estserver import PASSWORD, USER, openssl


def days_later(days: float) -> Callable[[], float]:
    now = time.time() + days * 86400
    return lambda: now


def test_certificate_is_renewed_in_the_last_third_of_its_life(board, server):
    board.step()
    first = board.certificate.read_text()
    key = (board.tls / "device.key").read_bytes()
    board.ran.clear()
    board.clock = days_later(19.9)
    assert "is good until" in board.step() and server.asked[2:] == []
    board.clock = days_later(20.1)
    server.days = 60
    assert "is in force" in board.step()
    assert server.asked[2:] == [("cacerts", ""), ("simplereenroll", "tls")]
    assert board.certificate.read_text() != first and board.ran.count(RESTART) == 1
    assert (board.tls / "device.key").read_bytes() == key
    assert read_pem(board.certificate.read_text(), call)[0].subject == "CN=cam-7"
    assert "is good until" in board.step()


def test_renewal_asks_for_the_same_names(board, server):
    board.step()
    # The server had put names of its own into the certificate.
    (server.root / "names").write_text("subjectAltName=DNS:cam-7.example,IP:10.0.0.7\n")
    issuer = server.authority / "issuer"
    openssl(server.root, "req", "-new", "-key", board.tls / "device.key", "-subj",
            "/O=Acme/CN=cam seven", "-out", "n.csr")  # fmt: skip
    openssl(server.root, "x509", "-req", "-in", "n.csr", "-CA", f"{issuer}.pem", "-CAkey",
            f"{issuer}.key", "-set_serial", 5, "-days", 30, "-extfile", "names", "-out",
            board.certificate)  # fmt: skip
    board.clock = days_later(25)
    board.step()
    text = openssl(server.root, "x509", "-in", board.certificate, "-noout", "-subject", "-ext",
                   "subjectAltName").decode()  # fmt: skip
    assert "O = Acme, CN = cam seven" in text
    assert "DNS:cam-7.example" in text and "IP Address:10.0.0.7" in text


def test_each_try_is_noted_for_the_device_with_the_last_success(board, server):
    until_done(Enrolment(board.root, board.run, board.clock), lambda _asked: 0.0)
    file = board.tls / "renewal.json"
    first = json.loads(file.read_text())
    assert first["error"] == "" and first["succeeded_at"] is not None
    assert file.stat().st_mode & 0o777 == 0o644 and "chgrp" in board.ran[-1]

    board.clock = days_later(25)
    server.script, server.days = ["503"], 60
    failed: list[dict] = []
    until_done(
        Enrolment(board.root, board.run, board.clock),
        lambda _asked: failed.append(json.loads(file.read_text())) or 0.0,
    )
    assert "busy signing" in failed[0]["error"]
    assert failed[0]["succeeded_at"] == first["succeeded_at"] < failed[0]["tried_at"]
    last = json.loads(file.read_text())
    assert last["error"] == "" and last["succeeded_at"] > first["succeeded_at"]
    assert PASSWORD not in file.read_text()
    # And the device's side understands it.
    told = read_certificate(board.certificate, last["succeeded_at"])
    assert told.renewed_at == last["succeeded_at"] and told.problem == ""


def test_note_that_cannot_be_written_ends_nothing(board, tmp_path, caplog):
    board.tls.rename(tmp_path / "elsewhere")
    board.tls.write_text("")
    Enrolment(board.root, board.run).note("why")
    assert "renewal.json cannot be written" in caplog.text


def test_failed_renewal_keeps_the_certificate(board, server):
    board.step()
    before = board.certificate.read_bytes()
    board.ran.clear()
    board.clock = days_later(25)
    for what in ("other-key", "garbage", "503"):
        server.script = [what]
        with pytest.raises((EstError, CertificateError)):
            board.step()
        assert board.certificate.read_bytes() == before and RESTART not in board.ran
        assert board.config["tls_cert"]


def test_expired_certificate_is_replaced_by_a_new_password(board, server, caplog):
    board.step()
    server.used = False
    board.clock = days_later(31)
    with pytest.raises(EstError, match=r"refuses .*give others"):
        board.step()
    assert "the old certificate is not valid now" in caplog.text
    text = board.boot_file.read_text() + (
        f'\n[secrets]\nenroll_user = "{USER}"\nenroll_password = "{PASSWORD}"\n'
    )
    board.boot_file.write_text(text)
    board.boot()
    server.days = 90
    assert "is in force" in board.step() and not board.secret.exists()
    assert PASSWORD not in board.boot_file.read_text()


def test_refused_password_does_not_prevent_a_renewal(board, server, caplog):
    board.step()
    first = board.certificate.read_text()
    text = '\n[secrets]\nenroll_user = "x"\nenroll_password = "wrong"\n'
    board.boot_file.write_text(board.boot_file.read_text() + text)
    board.boot()
    with pytest.raises(EstError, match="refuses"):
        board.step()
    assert board.certificate.read_text() == first and board.secret.exists()
    board.clock = days_later(25)
    server.days = 60
    assert "is in force" in board.step() and "renewing by the certificate" in caplog.text
    assert board.certificate.read_text() != first and "wrong" not in caplog.text


def test_certificate_of_the_settings_is_renewed_and_not_put_back(server, authority, tmp_path):
    board = Board(tmp_path / "b", server.url, authority / "root.pem")
    board.step()
    given, key = board.certificate.read_text(), (board.tls / "device.key").read_text()
    other = Board(tmp_path / "o", server.url, authority / "root.pem", secrets=False)
    text = other.boot_file.read_text().replace(
        "[tls]", f"[tls]\ncertificate = '''{given}'''\nkey = '''{key}'''"
    )
    other.boot_file.write_text(text)
    other.boot()
    assert other.config["tls_cert"] and "is good until" in other.step()
    other.clock = days_later(25)
    server.days = 60
    other.step()
    renewed = other.certificate.read_text()
    assert renewed != given
    other.boot_file.write_text(other.boot_file.read_text() + "\n# edited\n")
    other.boot()
    assert other.certificate.read_text() == renewed
