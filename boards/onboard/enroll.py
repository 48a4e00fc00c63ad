"""Ask for this device's certificate, and renew it, by `edge-kit-enroll.service`, as root.

One step does whatever is due: finish what was interrupted, enrol, renew, or nothing. A certificate
that was received and checked is first written as *pending*; only then is the one-time secret
deleted, the certificate put in force, the service's configuration changed and the service
restarted, and last the pending file removed. What is interrupted in between is done again from the
pending file, which needs no server. The key is made by the first boot and never leaves the board.

After each try ``renewal.json`` beside the certificate says how it went; the device and `edge-kit
doctor` read it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from boards.onboard.certificates import (
    Certificate,
    CertificateError,
    make_request,
    public_key,
    read_pem,
    read_pkcs7,
    renewal_request,
    request_key,
    trusted_chain,
    utc,
)
from boards.onboard.est import Est, EstError
from boards.onboard.firstboot import DATA, ENROLL, ENROLL_SECRET, ETC, USER
from boards.onboard.programs import Run, call
from boards.onboard.settings import dump
from boards.onboard.wholefile import remove_whole, write_whole
from edge_kit.host.clock import SYNCHRONIZED, ClockWait

__all__ = ["Enrolment", "main", "pauses", "until_done", "wait_for_clock"]

_log = logging.getLogger("edge-kit-enroll")

FIRST_PAUSE_S = 10.0
LAST_PAUSE_S = 3600.0
CLOCK_EVERY_S = 2.0


class Enrolment:
    """What the first boot prepared, on one file system.

    Args:
        root: The system's root; another directory in tests.
        run: Runs a program.
        now: Unix time, seconds.
    """

    def __init__(self, root: Path, run: Run, now: Callable[[], float] = time.time) -> None:
        self._root = root
        self._run = run
        self._now = now
        self._tls = root / DATA / "tls"
        self._key = self._tls / "device.key"
        self._certificate = self._tls / "device.crt"
        self._pending = self._tls / "device.crt.pending"
        self._notes = self._tls / "renewal.json"
        self._config = root / ETC / "device.toml"

    @property
    def _ca(self) -> Path | None:
        file = self._tls / "ca.pem"
        return file if file.exists() else None

    def step(self) -> str:
        """Do what is due; return what was done.

        Raises:
            EstError: No certificate came; try again.
            CertificateError: The new or the held one cannot be used; try again.
            OSError: A file or a program failed; try again.
        """
        if self._pending.exists() and (done := self._finish()):
            return done
        server, name = self._target()
        user, password = self._secret()
        key = public_key(self._key, self._run)
        held = self._held(key)
        now = self._now()
        if held is not None and not user and not held.is_due(now):
            self._put_in_force(restart=False)
            return f"the certificate is good until {utc(held.not_after)}"
        try:
            chain = self._ask(server, name, key, held, user, password)
        except EstError as error:
            if not user or held is None or not held.is_due(now):
                raise
            _log.warning("%s; renewing by the certificate that is held", error)
            chain = self._ask(server, name, key, held, "", "")
        text = "".join(f"{c.pem}\n" for c in chain)
        write_whole(self._pending, text, 0o644, self._own)
        return self._finish() or "the certificate could not be read back"

    def note(self, error: str = "") -> None:
        """Write how the last try went, for the device to read; failing to do so ends nothing.

        Args:
            error: Why it failed; empty when it did not.
        """
        now = self._now()
        try:
            succeeded_at = json.loads(self._notes.read_text(encoding="utf-8"))["succeeded_at"]
        except (OSError, ValueError, KeyError, TypeError):
            succeeded_at = None
        notes = {"tried_at": now, "succeeded_at": succeeded_at if error else now, "error": error}
        try:
            write_whole(self._notes, json.dumps(notes), 0o644, self._own)
        except (OSError, subprocess.SubprocessError) as problem:
            _log.warning("%s cannot be written: %s", self._notes, problem)

    def _ask(
        self,
        server: str,
        name: str,
        key: str,
        held: Certificate | None,
        user: str,
        password: str,
    ) -> list[Certificate]:
        """Return a new certificate and its chain; a renewal when there is one and no user."""
        now = self._now()
        valid = held is not None and held.not_before <= now < held.not_after
        est = Est(
            server,
            ca=self._ca,
            user=user,
            password=password,
            certificate=self._certificate if valid else None,
            key=self._key if valid else None,
        )
        renew = held is not None and not user
        anchors = self._anchors(est)
        if held is not None and not (valid or user):
            _log.warning("the old certificate is not valid now (until %s)", utc(held.not_after))
        answer = est.enroll(self._request(key, name, renew=renew), renew=renew)
        return trusted_chain(read_pkcs7(answer, self._run), key, anchors, now, self._run)

    def _target(self) -> tuple[str, str]:
        data = tomllib.loads((self._root / ENROLL).read_text(encoding="utf-8"))
        return str(data["server"]), str(data["name"])

    def _secret(self) -> tuple[str, str]:
        """Return user and password of an enrolment that is asked for; empty when none is."""
        file = self._root / ENROLL_SECRET
        if not file.exists():
            return "", ""
        data = json.loads(file.read_text(encoding="utf-8"))
        return str(data["user"]), str(data["password"])

    def _held(self, key: str) -> Certificate | None:
        """Return the certificate in force; None when there is none that fits the key."""
        if not self._certificate.exists():
            return None
        try:
            chain = read_pem(self._certificate.read_text(encoding="utf-8"), self._run)
        except (CertificateError, UnicodeDecodeError):
            return None
        return chain[0] if chain and chain[0].public_key == key else None

    def _anchors(self, est: Est) -> list[Certificate]:
        """Return whom a new certificate must lead to: the server's authorities, and ``tls.ca``."""
        anchors = read_pkcs7(est.authorities(), self._run)
        if self._ca is not None:
            anchors += read_pem(self._ca.read_text(encoding="utf-8"), self._run)
        return anchors

    def _request(self, key: str, name: str, *, renew: bool) -> str:
        """Return a request; the same one each time, as RFC 7030 wants it after a 202."""
        file = self._tls / ("renew.csr" if renew else "enroll.csr")
        if file.exists():
            text = file.read_text(encoding="ascii", errors="replace")
            if request_key(text, self._run) == key:
                return text
        if renew:
            text = renewal_request(self._key, self._certificate, self._run)
        else:
            text = make_request(self._key, name, self._run)
        write_whole(file, text, 0o644)
        return text

    def _finish(self) -> str:
        """Put the pending certificate in force; return nothing when it cannot be used."""
        text = self._pending.read_text(encoding="utf-8", errors="replace")
        try:
            (new, *_above) = read_pem(text, self._run)
            fits = new.public_key == public_key(self._key, self._run)
        except ValueError:
            fits = False
        if not fits:
            remove_whole(self._pending)
            return ""
        if (self._root / ENROLL_SECRET).exists():
            remove_whole(self._root / ENROLL_SECRET)
        write_whole(self._certificate, text, 0o644, self._own)
        for request in ("enroll.csr", "renew.csr"):
            (self._tls / request).unlink(missing_ok=True)
        self._put_in_force(restart=True)
        remove_whole(self._pending)
        return f"a certificate for {new.subject} is in force, good until {utc(new.not_after)}"

    def _put_in_force(self, *, restart: bool) -> None:
        """Name certificate and key in the service's configuration; start the service again.

        Args:
            restart: Also when the configuration names them already.
        """
        text = self._config.read_text(encoding="utf-8")
        there = tomllib.loads(text)
        wanted = {"tls_cert": f"/{DATA}/tls/device.crt", "tls_key": f"/{DATA}/tls/device.key"}
        if {key: there.get(key) for key in wanted} != wanted:
            write_whole(self._config, dump({"": there | wanted}), 0o640, self._own)
            restart = True
        if restart:
            # Does not start what somebody stopped, and does not wait.
            self._run("systemctl", "--no-block", "try-restart", "edge-kit.service")

    def _own(self, path: Path) -> None:
        self._run("chgrp", USER, path)


def pauses(rng: random.Random) -> Callable[[float | None], float]:
    """Return a function that tells how long to wait after each failure in a row.

    From ten seconds to an hour, doubling, half of it jitter, since a fleet that lost its server
    would come back as one. It is given what the server asks for, which is waited for at least.
    """
    failures = 0

    def pause(asked: float | None) -> float:
        nonlocal failures
        full = min(LAST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures, 20))
        failures += 1
        if asked is not None:
            return asked * rng.uniform(1.0, 1.1)
        return full * rng.uniform(0.5, 1.0)

    return pause


def until_done(
    enrolment: Enrolment,
    pause: Callable[[float | None], float],
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Take steps until one succeeds, for ever, and tell the journal why."""
    while True:
        asked = None
        try:
            _log.info("%s", enrolment.step())
            enrolment.note()
            return
        except EstError as error:
            why, asked = str(error), error.wait_s
        except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            why = str(error) or type(error).__name__
        enrolment.note(why)
        wait = pause(asked)
        _log.warning("%s; trying again in %.0f s", why, wait)
        sleep(wait)


def wait_for_clock(wait: ClockWait, sleep: Callable[[float], object] = time.sleep) -> None:
    """Return once the clock can be trusted to judge certificates."""
    while True:
        if said := wait.look():
            _log.info("%s", said)
        if wait.over:
            return
        sleep(CLOCK_EVERY_S)


def main(arguments: Sequence[str] = ()) -> int:
    """Run on this machine, or on another root directory."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    root = Path(arguments[0]) if arguments else Path("/")
    os.umask(0o077)
    if shutil.which("openssl") is None:
        _log.error("the program openssl is missing; install the package openssl")
        return 1
    wait_for_clock(ClockWait(synchronized=root / SYNCHRONIZED.relative_to("/")))
    until_done(Enrolment(root, call), pauses(random.Random()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
