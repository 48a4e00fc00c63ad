"""Certificates, keys and requests, by the program ``openssl``. Standard library only.

A private key is named to it by its file and never read here.
"""

from __future__ import annotations

import re
import ssl
import tempfile
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from boards.onboard.programs import Run

__all__ = [
    "Certificate",
    "CertificateError",
    "make_key",
    "make_request",
    "public_key",
    "read_pem",
    "read_pkcs7",
    "renewal_request",
    "request_key",
    "trusted_chain",
    "utc",
]

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
_PUBLIC = re.compile(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.S)
# A server's clock may be ahead of ours: a certificate made "now" is valid already.
SKEW_S = 300.0


class CertificateError(ValueError):
    """A certificate, key or answer that cannot be used; the text says why."""


@dataclass(frozen=True)
class Certificate:
    """One certificate.

    Attributes:
        pem: Its text.
        subject: As RFC 2253 writes it.
        issuer: Likewise.
        public_key: PEM text.
        not_before: Unix time, seconds.
        not_after: Unix time, seconds.
    """

    pem: str
    subject: str
    issuer: str
    public_key: str
    not_before: float
    not_after: float

    def is_due(self, now: float) -> bool:
        """Tell whether less than a third of its life is left."""
        return now > self.not_after - (self.not_after - self.not_before) / 3


def read_pem(text: str, run: Run) -> list[Certificate]:
    """Return the certificates in PEM text, in order.

    Raises:
        CertificateError: One of them is damaged.
    """
    return [_read(pem, run) for pem in _PEM.findall(text)]


def _read(pem: str, run: Run) -> Certificate:
    asked = ("-subject", "-issuer", "-startdate", "-enddate", "-pubkey", "-nameopt", "RFC2253")
    try:
        told = run("openssl", "x509", "-noout", *asked, stdin=pem)
        facts = dict(re.findall(r"^(subject|issuer|notBefore|notAfter)=(.*)$", told, re.M))
        public = _PUBLIC.search(told)
        return Certificate(
            pem,
            facts["subject"],
            facts["issuer"],
            public[0] if public else "",
            ssl.cert_time_to_seconds(facts["notBefore"]),
            ssl.cert_time_to_seconds(facts["notAfter"]),
        )
    except (OSError, KeyError, ValueError) as error:
        raise CertificateError(f"a certificate cannot be read: {error}") from None


def read_pkcs7(base64: str, run: Run) -> list[Certificate]:
    """Return the certificates of a certs-only PKCS#7 message (RFC 7030, section 4.1.3).

    Args:
        base64: The message in Base64; line breaks anywhere (RFC 8951).
        run: Runs openssl.

    Raises:
        CertificateError: It is not such a message, or has no certificate.
    """
    packed = "".join(base64.split())
    if not re.fullmatch("[A-Za-z0-9+/]+={0,2}", packed):
        raise CertificateError("the answer is not Base64")
    lines = "\n".join(textwrap.wrap(packed, 64))
    armoured = f"-----BEGIN PKCS7-----\n{lines}\n-----END PKCS7-----\n"
    try:
        found = read_pem(run("openssl", "pkcs7", "-print_certs", stdin=armoured), run)
    except OSError:
        raise CertificateError("the answer is not a PKCS#7 message") from None
    if not found:
        raise CertificateError("the answer has no certificate")
    return found


def make_key(path: Path, run: Run) -> None:
    """Make a private key (P-256); the file is the caller's to protect."""
    curve = "ec_paramgen_curve:P-256"
    run("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", curve, "-out", path)


def public_key(key: Path, run: Run) -> str:
    """Return the public half of a private key, PEM text.

    Raises:
        CertificateError: It is not a usable private key.
    """
    try:
        # An encrypted key must fail, not ask on a terminal.
        return run("openssl", "pkey", "-in", key, "-pubout", "-passin", "pass:").strip()
    except OSError as error:
        raise CertificateError(f"the key {key} cannot be used: {error}") from None


def make_request(key: Path, name: str, run: Run) -> str:
    """Return a request (PKCS#10, PEM text) for a certificate of this common name."""
    return run("openssl", "req", "-new", "-key", key, "-subj", f"/CN={name}")


def renewal_request(key: Path, certificate: Path, run: Run) -> str:
    """Return a request with subject and alternative names as they are (RFC 7030, 4.2.2)."""
    words = ("-x509toreq", "-copy_extensions", "copy", "-in", certificate, "-key", key)
    told = run("openssl", "x509", *words)
    return told[told.index("-----BEGIN") :]


def request_key(request: str, run: Run) -> str:
    """Return the public key of a request; empty when it cannot be read."""
    try:
        found = _PUBLIC.search(run("openssl", "req", "-noout", "-pubkey", stdin=request))
    except OSError:
        return ""
    return found[0] if found else ""


def trusted_chain(
    found: Sequence[Certificate],
    own_key: str,
    anchors: Iterable[Certificate],
    now: float,
    run: Run,
) -> list[Certificate]:
    """Return the certificate of a key and, in order, what leads from it to an anchor.

    Args:
        found: All certificates that came.
        own_key: The device's public key.
        anchors: Authorities that are trusted; also looked through for intermediates.
        now: Unix time, seconds.
        run: Runs openssl.

    Raises:
        CertificateError: None of them is for this key and valid now, or it does not lead to an
            anchor, or may not be used by a client.
    """
    anchors = list(anchors)
    mine = [c for c in found if c.public_key == own_key]
    if not mine:
        raise CertificateError("the certificate is for another key than this device's")
    leaf = max(mine, key=lambda c: c.not_after)
    if leaf.not_after <= now:
        raise CertificateError(f"the certificate expired on {utc(leaf.not_after)}")
    if leaf.not_before > now + SKEW_S:
        raise CertificateError(
            f"the certificate is not valid before {utc(leaf.not_before)}, now is {utc(now)}"
        )
    chain = [leaf]
    known = {c.subject: c for c in [*anchors, *found] if c.subject != c.issuer}
    while (above := known.pop(chain[-1].issuer, None)) is not None:
        chain.append(above)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, certificates in (("anchors", anchors), ("chain", chain[1:]), ("leaf", [leaf])):
            (folder / file).write_text("".join(f"{c.pem}\n" for c in certificates))
        words = ["openssl", "verify", "-purpose", "sslclient", "-no-CApath", "-no-CAstore"]
        # An authority that signs devices may be known without the root above it.
        words += ["-partial_chain", "-CAfile", str(folder / "anchors")]
        if chain[1:]:
            words += ["-untrusted", str(folder / "chain")]
        words += ["-attime", str(int(max(now, leaf.not_before))), str(folder / "leaf")]
        try:
            run(*words)
        except OSError as error:
            why = re.search("lookup: *(.*)", str(error))
            raise CertificateError(
                f"the certificate is not trusted: {why[1] if why else error}"
            ) from None
    return chain


def utc(seconds: float) -> str:
    """Return a Unix time as text."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
