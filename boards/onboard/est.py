"""Enrolment over Secure Transport (RFC 7030): ask a server for this device's certificate.

Only what a device needs: ``cacerts``, ``simpleenroll`` and ``simplereenroll``, over TLS whose
server is verified, proving who we are by HTTP Basic, by a certificate that we hold, or by both.
Standard library only.
"""

from __future__ import annotations

import base64
import http.client
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

__all__ = ["PATH", "Est", "EstError"]

PATH = "/.well-known/est"
TIMEOUT_S = 60.0
MAX_ANSWER = 1 << 20
# What a server may ask us to wait for at most: a week.
LONGEST_WAIT_S = 7 * 86400.0

_STATUS = {
    401: "refuses this user, password or certificate; give others in [secrets]",
    403: "does not let this device enrol",
    404: "has no such path; check the address and the label in it",
}


class EstError(Exception):
    """No answer, or none that can be used; the text says why.

    Attributes:
        wait_s: What the server asks us to wait for before trying again; None when it says nothing.
    """

    def __init__(self, what: str, wait_s: float | None = None) -> None:
        super().__init__(what)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Est:
    """One server, and how to prove who we are to it.

    Attributes:
        url: ``https://HOST[:PORT]/.well-known/est[/LABEL]``.
        ca: PEM file of the authorities that the server's certificate is judged against; None for
            the system's.
        user: For HTTP Basic; empty for none.
        password: Likewise.
        certificate: PEM file of a certificate that we hold; None for none.
        key: PEM file of its key.
    """

    url: str
    ca: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    certificate: Path | None = None
    key: Path | None = None

    def authorities(self) -> str:
        """Return the server's authorities: PKCS#7 in Base64.

        Raises:
            EstError: See the class.
        """
        return self._ask("GET", "cacerts")

    def enroll(self, request: str, *, renew: bool = False) -> str:
        """Return the certificate for a request: PKCS#7 in Base64.

        Args:
            request: PKCS#10, PEM text.
            renew: The held certificate is to be renewed.

        Raises:
            EstError: See the class. Also when the server has not decided yet (202): ask again,
                with the same request.
        """
        body = "".join(re.sub("-----[^-]*-----", "", request).split())
        return self._ask("POST", "simplereenroll" if renew else "simpleenroll", body)

    def _ask(self, method: str, operation: str, body: str | None = None) -> str:
        parts = urlsplit(self.url)
        headers = {"Accept": "application/pkcs7-mime", "User-Agent": "edge-kit"}
        if body is not None:
            headers |= {
                "Content-Type": "application/pkcs10",
                "Content-Transfer-Encoding": "base64",
            }
            if self.user:
                pair = base64.b64encode(f"{self.user}:{self.password}".encode())
                headers["Authorization"] = f"Basic {pair.decode()}"
        # No redirects and no proxies: the password is for this server alone.
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=self._context()
        )
        try:
            connection.request(method, f"{parts.path}/{operation}", body, headers)
            answer = connection.getresponse()
            text = answer.read(MAX_ANSWER).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise EstError(f"{self._who}: {_reason(error)}") from None
        finally:
            connection.close()
        return self._judge(answer, text, operation)

    def _judge(self, answer: http.client.HTTPResponse, text: str, operation: str) -> str:
        status = answer.status
        wait = _retry_after(answer.headers.get("Retry-After", ""))
        if status == 200:
            return text
        if status == 202:
            raise EstError(f"{self._who} has the request and has not decided yet", wait)
        if 300 <= status < 400:
            place = answer.headers.get("Location", "elsewhere")
            raise EstError(f"{self._who} sends us to {place[:200]!r}; put that into the settings")
        what = _STATUS.get(status, f"answers {operation} with {status} {answer.reason}")
        raise EstError(f"{self._who} {what}{_said(answer, text)}", wait)

    @property
    def _who(self) -> str:
        return f"the enrolment server {urlsplit(self.url).netloc}"

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.ca) if self.ca else None)
        except OSError as error:
            raise EstError(f"the authorities in {self.ca} cannot be used: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate is not None:
            try:
                context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
            except OSError as error:
                raise EstError(f"{self.certificate} or its key cannot be used: {error}") from None
        return context


def _retry_after(value: str) -> float | None:
    """Return seconds; None where the header gives none."""
    return min(LONGEST_WAIT_S, max(1.0, float(value))) if value.isdecimal() else None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted: {error.verify_message}"
    return str(error) or type(error).__name__


def _said(answer: http.client.HTTPResponse, text: str) -> str:
    """Return the server's own words, where they are for people and printable."""
    words = " ".join(text.split())[:200]
    plain = answer.headers.get_content_type() == "text/plain"
    return f" ({words})" if plain and words and words.isprintable() else ""
