"""A small EST server (RFC 7030) over TLS, with a real authority made by openssl; for tests."""

from __future__ import annotations

import base64
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, PASSWORD = "board", "once-only"
BASE = "/.well-known/est"


def openssl(root: Path, *words: object, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["openssl", *map(str, words)], cwd=root, input=stdin, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def make_authority(root: Path) -> Path:
    """Write a root, an authority below it that signs devices, and the server's certificates.

    ``root.pem``, ``issuer.pem``, ``est.pem`` (127.0.0.1 and 10.0.2.2, signed by the root),
    ``late.pem`` (the same, expired), ``other-root.pem``; each with a ``.key``.
    """
    root.mkdir(parents=True, exist_ok=True)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("root", "other-root"):
        openssl(root, "req", "-x509", *curve, "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-subj", f"/O=Test/CN={name}", "-days", 3650)  # fmt: skip
    for name, days, extra in (
        ("issuer", 3650, "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n"),
        # 10.0.2.2 is what loopback is called in an emulated board.
        ("est", 3650, "subjectAltName=IP:127.0.0.1,IP:10.0.2.2\n"),
        ("late", -1, "subjectAltName=IP:127.0.0.1\n"),
    ):
        openssl(root, "req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/O=Test/CN={name}")  # fmt: skip
        (root / f"{name}.ext").write_text(extra)
        openssl(root, "x509", "-req", "-in", f"{name}.csr", "-CA", "root.pem", "-CAkey",
                "root.key", "-days", days, "-extfile", f"{name}.ext",
                "-out", f"{name}.pem")  # fmt: skip
    return root


class EstServer:
    """One server.

    Args:
        authority: Made by `make_authority`.
        root: A directory for its files.
        certificate: Which of the authority's it shows.

    Attributes:
        asked: Operations that were asked for, in order, with who asked: ``basic``, ``tls`` or
            nothing.
        requests: The bodies of the requests.
        script: What the next POSTs do instead of answering; taken from the front.
        days: How long certificates last.
        usage: Extended key usage of certificates; empty for none.
        one_time: The password works once.
    """

    def __init__(self, authority: Path, root: Path, certificate: str = "est") -> None:
        self.asked: list[tuple[str, str]] = []
        self.requests: list[str] = []
        self.script: list[str] = []
        self.days = 30
        self.usage = "clientAuth"
        self.one_time = True
        self.used = False
        self.authority = authority
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority / f"{certificate}.pem", authority / f"{certificate}.key")
        context.load_verify_locations(authority / "root.pem")
        context.load_verify_locations(authority / "issuer.pem")
        context.verify_mode = ssl.CERT_OPTIONAL
        server = self

        class Handler(BaseHTTPRequestHandler):
            def setup(self) -> None:
                # Here, on the connection's own thread: a handshake that fails ends only itself.
                self.request.settimeout(30)
                try:
                    self.request = context.wrap_socket(self.request, server_side=True)
                    self.encrypted = True
                except OSError:
                    self.encrypted = False
                super().setup()

            def handle(self) -> None:
                if self.encrypted:
                    super().handle()

            def finish(self) -> None:
                super().finish()
                if self.encrypted:
                    self.request.close()

            def do_GET(self) -> None:
                server.get(self)

            def do_POST(self) -> None:
                server.post(self)

            def log_message(self, *_words: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = False
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._http.server_address[1]}{BASE}"

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(30)

    def get(self, http: BaseHTTPRequestHandler) -> None:
        self.asked.append((http.path.removeprefix(f"{BASE}/"), ""))
        if http.path != f"{BASE}/cacerts":
            reply(http, 404)
            return
        reply(http, 200, self.packed("root.pem", "issuer.pem"))

    def post(self, http: BaseHTTPRequestHandler) -> None:
        operation = http.path.removeprefix(f"{BASE}/")
        body = http.rfile.read(int(http.headers["Content-Length"])).decode()
        who = self.who(http, operation)
        self.asked.append((operation, who))
        self.requests.append(body)
        assert http.headers["Content-Type"] == "application/pkcs10"
        what = self.script.pop(0) if self.script else ""
        if what.startswith("202"):
            reply(http, 202, headers={"Retry-After": what[4:]} if what[4:] else {})
        elif what == "503":
            reply(http, 503, b"busy signing\n", {"Content-Type": "text/plain"})
        elif what == "302":
            reply(http, 302, headers={"Location": "https://elsewhere.example/"})
        elif what == "garbage":
            reply(http, 200, b"!?" * 30)
        elif what == "no-pkcs7":
            reply(http, 200, base64.b64encode(b"something else"))
        elif what == "cut":
            http.send_response(200)
            http.send_header("Content-Length", "5000")
            http.end_headers()
            http.wfile.write(b"MIIB")
            http.close_connection = True
        elif what == "huge":
            reply(http, 200, b"A" * (3 << 20))
        elif not who:
            reply(http, 401, headers={"WWW-Authenticate": 'Basic realm="est"'})
        else:
            self.used = self.used or who == "basic"
            reply(http, 200, self.sign(body, what))

    def who(self, http: BaseHTTPRequestHandler, operation: str) -> str:
        """Return how this client proved who it is; empty when it did not."""
        pair = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if http.headers["Authorization"] == f"Basic {pair}":
            return "" if self.one_time and self.used else "basic"
        return "tls" if http.request.getpeercert() and operation == "simplereenroll" else ""

    def sign(self, body: str, what: str = "") -> bytes:
        """Return a signed certificate as the protocol wants it, or one that is wrong in a way."""
        (self.root / "asked.der").write_bytes(base64.b64decode(body))
        request, issuer, days = "asked.der", "issuer", self.days
        form = ["-inform", "DER"]
        if what == "other-key":
            openssl(self.root, "req", "-new", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "x.key", "-outform", "DER",
                    "-out", "x.der", "-subj", "/CN=x")  # fmt: skip
            request = "x.der"
        if what == "untrusted":
            issuer = "other-root"
        if what == "expired":
            days = -1
        usage = "serverAuth" if what == "not-for-clients" else self.usage
        (self.root / "ext").write_text(f"extendedKeyUsage={usage}\n" if usage else "")
        openssl(self.root, "x509", "-req", *form, "-in", request, "-CA",
                self.authority / f"{issuer}.pem", "-CAkey", self.authority / f"{issuer}.key",
                "-set_serial", len(self.asked) + 100, "-days", days, "-extfile", "ext",
                "-copy_extensions", "copy", "-out", "new.pem")  # fmt: skip
        return self.packed(self.root / "new.pem")

    def packed(self, *files: str | Path) -> bytes:
        """Return certificates as PKCS#7, Base64 in lines."""
        words = [word for file in files for word in ("-certfile", self.authority / file)]
        der = openssl(self.root, "crl2pkcs7", "-nocrl", *words, "-outform", "DER")
        return base64.encodebytes(der)


def reply(
    http: BaseHTTPRequestHandler,
    status: int,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> None:
    http.send_response(status)
    for name, value in (headers or {}).items():
        http.send_header(name, value)
    http.send_header("Content-Length", str(len(body)))
    http.end_headers()
    http.wfile.write(body)
