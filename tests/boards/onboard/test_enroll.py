"""The board asks for its certificate: a real EST server over TLS, real openssl."""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from boards.onboard.certificates import CertificateError, read_pem
from boards.onboard.clock import wait_for_clock
from boards.onboard.enroll import FIRST_PAUSE_S, LAST_PAUSE_S, Enrolment, pauses, until_done
from boards.onboard.est import LONGEST_WAIT_S, Est, EstError
from boards.onboard.firstboot import DATA, ENROLL_SECRET, FirstBoot
from boards.onboard.programs import call
from boards.onboard.settings import FILE, Settings
from tests.edge_kit.host.test_clock import SET, UNSET
from tests.support.estserver import PASSWORD, USER, EstServer, make_authority, openssl
from tests.support.mosquitto import free_port
from tests.support.rig import Clock

RESTART = "systemctl --no-block try-restart edge-kit.service"


class Killed(BaseException):
    """The power is cut here."""


class Board:
    """A root directory after its first boot. openssl runs for real; systemctl is only noted."""

    def __init__(self, root: Path, server: str, ca: Path | None, *, secrets: bool = True) -> None:
        self.root = root
        self.ran: list[str] = []
        self.dies_at = ""
        self.clock: Callable[[], float] = time.time
        self.boot_file = root / "boot/firmware" / FILE
        lines = ["[tls]", f'enroll = "{server}/"']
        if ca is not None:
            lines.append(f"ca = '''{ca.read_text()}'''")
        lines += ["[run]", 'broker = "mqtts://broker.example"', 'device_id = "cam-7"']
        if secrets:
            lines += ["[secrets]", f'enroll_user = "{USER}"', f'enroll_password = "{PASSWORD}"']
        self.boot_file.parent.mkdir(parents=True)
        self.boot_file.write_text("\n".join(lines) + "\n")
        (root / "etc").mkdir()
        (root / "etc/machine-id").write_text("1" * 32)
        self.boot()

    def boot(self) -> None:
        first = FirstBoot(self.root, self.run)
        assert first() and first.failed == []
        self.ran.clear()

    def copy(self, root: Path) -> Board:
        shutil.copytree(self.root, root)
        other = copy.copy(self)
        other.root, other.ran = root, []
        return other

    def run(self, *words: object, stdin: str | None = None) -> str:
        line = " ".join(map(str, words))
        self.ran.append(line)
        if self.dies_at and self.dies_at in line:
            raise Killed
        return call(*words, stdin=stdin) if words[0] == "openssl" else ""

    def step(self) -> str:
        return Enrolment(self.root, self.run, self.clock).step()

    @property
    def tls(self) -> Path:
        return self.root / DATA / "tls"

    @property
    def certificate(self) -> Path:
        return self.tls / "device.crt"

    @property
    def secret(self) -> Path:
        return self.root / ENROLL_SECRET

    @property
    def config(self) -> dict[str, object]:
        return tomllib.loads((self.root / "etc/edge-kit/device.toml").read_text())

    def is_untouched(self) -> bool:
        """No certificate, the secret still there, nothing half-written, no restart."""
        odd = [p for p in (*self.tls.iterdir(), *(self.root / "etc/edge-kit").iterdir())
               if ".new" in p.name or "pending" in p.name]  # fmt: skip
        return (
            not self.certificate.exists()
            and self.secret.exists()
            and "tls_cert" not in self.config
            and odd == []
            and RESTART not in self.ran
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Path:
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def serve(authority, tmp_path) -> Iterator[Callable[..., EstServer]]:
    servers: list[EstServer] = []

    def start(certificate: str = "est") -> EstServer:
        servers.append(EstServer(authority, tmp_path / f"est{len(servers)}", certificate))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server(serve) -> EstServer:
    return serve()


@pytest.fixture
def board(server, authority, tmp_path) -> Board:
    return Board(tmp_path / "board", server.url, authority / "root.pem")


# enrolment


def test_the_first_boot_prepares_and_the_secret_leaves_the_fat_partition(board, server):
    left = board.boot_file.read_text()
    assert PASSWORD not in left and USER not in left
    assert Settings.parse(left).enroll == server.url
    assert PASSWORD in board.secret.read_text() and board.secret.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE KEY" in (board.tls / "device.key").read_text()
    assert not (board.boot_file.parent / "edge-kit-request.csr").exists()
    # Until then it runs without a certificate, and neither clock nor refusal ends it.
    config = board.config
    assert "tls_cert" not in config and config["wait_for_clock"] and config["keep_trying"]


def test_a_board_enrols_with_its_one_time_password(board, server):
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


def test_the_key_never_leaves_and_the_request_is_signed_by_it(board, server):
    board.step()
    told = openssl(board.root, "req", "-verify", "-noout", "-pubkey", "-subject", stdin=(
        "-----BEGIN CERTIFICATE REQUEST-----\n"
        + "\n".join(re.findall(".{1,64}", server.requests[0]))
        + "\n-----END CERTIFICATE REQUEST-----\n"
    ).encode()).decode()  # fmt: skip
    own = openssl(board.root, "pkey", "-in", board.tls / "device.key", "-pubout").decode()
    assert own in told and "CN = cam-7" in told


def test_a_held_certificate_with_life_left_is_let_be(board, server):
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
        ("no-pkcs7", "no PKCS#7 message"),
        ("cut", "in the middle of its answer"),
        ("huge", "more than 1 MiB"),
        ("other-key", "for another key"),
        ("expired", "certificate expired on"),
        ("untrusted", "not trusted: unable to get local issuer"),
        ("not-for-clients", "not trusted: unsuitable certificate purpose"),
        ("503", r"answers simpleenroll with 503 .*\(busy signing\)"),
        ("302", "sends us to 'https://elsewhere.example/'"),
    ],
)
def test_an_answer_that_cannot_be_used_changes_nothing(board, server, what, words):
    server.script = [what]
    with pytest.raises((EstError, CertificateError), match=words):
        board.step()
    assert board.is_untouched()
    server.used = False
    assert "is in force" in board.step()  # and the next try is a fresh one


def test_a_wrong_password_is_told_and_kept_for_the_next_try(board, server):
    server.used = True
    with pytest.raises(EstError, match="refuses this user, password or certificate") as error:
        board.step()
    assert board.is_untouched() and PASSWORD not in str(error.value)


def test_no_password_and_no_certificate_asks_all_the_same(server, authority, tmp_path):
    board = Board(tmp_path / "b", server.url, authority / "root.pem", secrets=False)
    with pytest.raises(EstError, match="refuses"):
        board.step()
    assert server.asked[-1] == ("simpleenroll", "")


@pytest.mark.parametrize(
    ("certificate", "words"),
    [("est", "self-signed|unable to get local issuer"), ("late", "has expired")],
)
def test_an_untrusted_server_gets_no_password(serve, authority, tmp_path, certificate, words):
    server = serve(certificate)
    ca = authority / ("other-root.pem" if certificate == "est" else "root.pem")
    board = Board(tmp_path / "b", server.url, ca)
    with pytest.raises(EstError, match=f"certificate cannot be trusted: .*({words})"):
        board.step()
    assert board.is_untouched() and server.asked == []


def test_without_a_ca_the_systems_authorities_judge(server, tmp_path):
    board = Board(tmp_path / "b", server.url, None)
    with pytest.raises(EstError, match="cannot be trusted"):
        board.step()
    assert server.asked == []


def test_no_server_at_all_is_a_sentence(authority, tmp_path):
    url = f"https://127.0.0.1:{free_port()}/.well-known/est"
    board = Board(tmp_path / "b", url, authority / "root.pem")
    with pytest.raises(EstError, match="nothing listens there"):
        board.step()
    assert board.is_untouched()


def test_a_server_that_speaks_no_tls_or_hangs_up_is_a_sentence(authority, tmp_path):
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
        with pytest.raises(EstError, match=r"TLS fails|reset|Broken pipe"):
            board.step()
        child.wait(30)


# waiting


def test_a_server_that_has_not_decided_is_asked_again_with_the_same_request(board, server, caplog):
    caplog.set_level(logging.INFO)
    server.script = ["202 77", "202", "202 Fri, 31 Dec 2049 23:59:59 GMT", "503"]
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


def test_failures_are_retried_for_ever_further_and_further_apart():
    pause = pauses(random.Random(1))
    waits = [pause(None) for _ in range(3000)]
    for n, wait in enumerate(waits):
        full = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(n, 30))
        assert full / 2 <= wait <= full
    assert pause(30.0) < 40


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120), ("0", 1), ("-5", 1), ("9" * 400, LONGEST_WAIT_S), ("soon", None), ("", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90), ("Thu, 01 Jan 1970 00:00:00 GMT", 1), (None, None),
    ],
)  # fmt: skip
def test_what_a_server_asks_us_to_wait_is_bounded(value, seconds):
    assert Est("https://x/.well-known/est", now=lambda: 10.0)._retry_after(value) == seconds


def test_it_waits_for_the_clock_and_says_so(tmp_path):
    synchronized = tmp_path / "run/systemd/timesync/synchronized"
    synchronized.parent.mkdir(parents=True)
    said: list[str] = []
    mono = Clock()

    def sleep(seconds: float) -> None:
        mono.now += seconds
        if mono.now > 1000 + 2 * 3600 and synchronized.parent.exists():
            synchronized.touch()

    def wait(kernel: bool, wall: float) -> list[str]:
        said.clear()
        wait_for_clock(
            tmp_path, said.append, kernel=lambda: kernel,
            wall=lambda: wall, monotonic=mono, sleep=sleep,
        )  # fmt: skip
        return said.copy()

    assert wait(True, UNSET) == []  # set already
    waits = ["waiting until the clock is set; system.ntp names time servers"] * 3
    assert wait(False, SET) == [*waits, "the clock is set"]
    synchronized.unlink()
    synchronized.parent.rmdir()  # no time service
    assert wait(False, SET) == [waits[0], "no time service runs here: the clock is taken as right"]


# renewal


def days_later(days: float) -> Callable[[], float]:
    now = time.time() + days * 86400
    return lambda: now


def test_a_certificate_is_renewed_in_the_last_third_of_its_life(board, server):
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


def test_a_renewal_asks_for_the_same_names(board, server):
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


def test_a_renewal_that_fails_leaves_the_certificate_that_is_held(board, server):
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


def test_a_certificate_that_has_expired_says_what_helps_and_a_new_password_does(board, server):
    board.step()
    server.used = False
    board.clock = days_later(31)
    with pytest.raises(EstError, match=r"not valid now \(until .*refuses .*give others"):
        board.step()
    text = board.boot_file.read_text() + (
        f'\n[secrets]\nenroll_user = "{USER}"\nenroll_password = "{PASSWORD}"\n'
    )
    board.boot_file.write_text(text)
    board.boot()
    server.days = 90
    assert "is in force" in board.step() and not board.secret.exists()
    assert PASSWORD not in board.boot_file.read_text()


def test_a_new_password_that_is_refused_does_not_hinder_a_renewal(board, server, caplog):
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


def test_a_first_boot_that_never_succeeds_does_not_bring_a_used_password_back(
    server, authority, tmp_path
):
    board = Board(tmp_path / "b", server.url, authority / "root.pem", secrets=False)
    text = board.boot_file.read_text() + '[system]\ntimezone = "Atlantis/Capital"\n'
    text += f'[secrets]\nenroll_user = "{USER}"\nenroll_password = "{PASSWORD}"\n'
    board.boot_file.write_text(text)
    for _ in range(2):
        first = FirstBoot(board.root, board.run)
        assert not first() and first.failed == ["set the time zone"]
        assert PASSWORD in board.boot_file.read_text()  # as long as it has not all worked
        board.step()
        assert not board.secret.exists() and board.certificate.exists()
    assert [operation for operation, _who in server.asked].count("simpleenroll") == 1


def test_a_certificate_given_in_the_settings_is_renewed_and_not_put_back(
    server, authority, tmp_path
):
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


# interruption


def test_cut_off_anywhere_it_ends_with_one_certificate_and_no_secret(
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


def test_a_pending_file_that_makes_no_sense_is_dropped(board, server):
    (board.tls / "device.crt.pending").write_text("half a certif")
    assert "is in force" in board.step()
    assert server.asked[-1] == ("simpleenroll", "basic")


def test_a_link_in_place_of_the_directory_is_refused(board, tmp_path):
    board.tls.rename(tmp_path / "away")
    board.tls.symlink_to(tmp_path / "away")
    with pytest.raises(OSError, match="is a link"):
        board.step()


def test_the_program_itself_enrols_and_ends_by_a_signal_while_it_waits(
    board, server, authority, tmp_path
):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("chgrp", "systemctl"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    (board.root / "run/systemd/timesync").mkdir(parents=True)
    (board.root / "run/systemd/timesync/synchronized").touch()
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-S", "-m", "boards.onboard.enroll", str(board.root)]
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
