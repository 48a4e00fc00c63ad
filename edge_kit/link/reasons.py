"""Turn what goes wrong between a client and a broker into sentences, and say if trying again helps.

Numbers are MQTT 5 reason codes (section 2.4) and OpenSSL verification results (``x509_vfy.h``).
"""

from __future__ import annotations

import socket
import ssl

from edge_kit.errors import LinkError
from edge_kit.link.address import BrokerAddress

__all__ = [
    "connect_error",
    "disconnect_error",
    "no_answer",
    "publish_error",
    "refusal_error",
    "subscribe_error",
    "tls_alert",
    "tls_context",
]

_SESSION_TAKEN_OVER = 0x8E
_PACKET_TOO_LARGE = 0x95

# Reason code of a refused CONNECT: sentence, hint, fatal.
_CONNACK: dict[int, tuple[str, str, bool]] = {
    0x84: ("does not speak MQTT 5", "use a broker with MQTT 5, such as mosquitto 2", True),
    0x85: ("does not accept this client id", "choose another device id", True),
    0x86: ("refuses this user or password", "check the user and the password", True),
    0x87: (
        "does not let this client in: wrong user or password, or not authorized",
        "check the user, the password and the broker's access list",
        True,
    ),
    0x88: ("is unavailable", "trying again", False),
    0x89: ("is busy", "trying again", False),
    0x8A: ("has banned this client", "ask whoever runs the broker", True),
    0x8C: ("wants another way to authenticate", "use a user and password or certificates", True),
    0x97: ("says that a quota is used up", "trying again", False),
    0x9F: ("says that clients connect too fast", "trying again", False),
}

_UNTRUSTED = {18, 19, 20, 21}
_WRONG_NAME = {62, 64}


def connect_error(address: BrokerAddress, error: OSError | ValueError) -> tuple[LinkError, bool]:
    """Explain why no connection came up; the flag is True when trying again cannot help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_error(address, error)
    if isinstance(error, ssl.SSLError):
        return tls_alert(address, error.reason or str(error)), _is_alert(error.reason or str(error))
    if isinstance(error, socket.gaierror):
        return LinkError(
            f"the name of the broker {address.host!r} cannot be resolved",
            "check the name and this machine's DNS",
        ), False
    if isinstance(error, ConnectionRefusedError):
        return LinkError(
            f"nothing listens at {address.url}", "check the port and that the broker runs"
        ), False
    if isinstance(error, TimeoutError):
        return LinkError(
            f"{address.url} does not answer", "check the address, the network and firewalls"
        ), False
    if address.tls and isinstance(error, ConnectionResetError):
        return LinkError(
            f"{address.url} ends the connection during the TLS handshake",
            "check that this port speaks TLS",
        ), False
    return LinkError(f"cannot connect to {address.url}: {error}", "check the network"), False


def no_answer(address: BrokerAddress) -> LinkError:
    """Explain a connection that ended before a single MQTT answer came."""
    hint = "check that an MQTT broker listens on this port"
    if not address.tls:
        hint += ", and whether it wants mqtts://"
    return LinkError(f"{address.url} does not answer as an MQTT broker", hint)


def _certificate_error(
    address: BrokerAddress, error: ssl.SSLCertVerificationError
) -> tuple[LinkError, bool]:
    who = f"the certificate of {address.url}"
    code = error.verify_code
    if code in _UNTRUSTED:
        hint = "name the file of the authority that signed it"
        return LinkError(f"{who} is not signed by a trusted authority", hint), True
    if code in _WRONG_NAME:
        hint = "use the name that the certificate was made for"
        return LinkError(f"{who} was made for another host name", hint), True
    if code == 10:
        return LinkError(f"{who} has expired", "renew it, or check this machine's clock"), True
    if code == 9:
        # A board without a battery clock comes up in the past; its time service will mend that.
        return LinkError(f"{who} is not valid yet", "check this machine's clock"), False
    return LinkError(f"{who} cannot be trusted: {error.verify_message}", "check the CA file"), True


def _is_alert(text: str) -> bool:
    return "ALERT" in text.upper()


def tls_alert(address: BrokerAddress, text: str) -> LinkError:
    """Explain a TLS failure that is not about the broker's certificate."""
    upper = text.upper().replace(" ", "_")
    if "CERTIFICATE_REQUIRED" in upper or "HANDSHAKE_FAILURE" in upper:
        return LinkError(
            f"{address.url} wants a client certificate",
            "name one, and its key",
        )
    if "ALERT" in upper and ("UNKNOWN_CA" in upper or "CERTIFICATE" in upper):
        return LinkError(
            f"{address.url} does not accept this client's certificate",
            "use one that is valid and signed by the broker's authority",
        )
    if "WRONG_VERSION_NUMBER" in upper or "RECORD_LAYER" in upper:
        return LinkError(
            f"{address.url} does not speak TLS on this port", "check the port, or use mqtt://"
        )
    return LinkError(f"TLS with {address.url} fails: {text}", "check the port and the certificates")


def refusal_error(address: BrokerAddress, code: int, name: str) -> tuple[LinkError, bool]:
    """Explain a CONNACK whose reason `code` says no."""
    what, hint, fatal = _CONNACK.get(code, (f"refuses the connection ({name})", "", code >= 0x9C))
    return LinkError(f"the broker {address.url} {what}", hint), fatal


def subscribe_error(address: BrokerAddress, topic: str, name: str) -> LinkError:
    """Explain a refused subscription."""
    return LinkError(
        f"the broker {address.url} refuses the subscription to {topic} ({name})",
        "check the broker's access list for this user",
    )


def publish_error(topic: str, name: str) -> LinkError:
    """Explain a PUBACK whose reason, by its name, is a failure."""
    reason = name.partition(":")[0]
    denied = "authorized" in name.lower()
    hint = "check the broker's access list for this user" if denied else ""
    return LinkError(f"the broker refuses messages on {topic} ({reason})", hint)


def disconnect_error(
    address: BrokerAddress, code: int, name: str, client_id: str, by_broker: bool
) -> tuple[LinkError, bool]:
    """Explain an unwanted end of a connection."""
    if by_broker and code == _SESSION_TAKEN_OVER:
        return LinkError(
            f"another client connected to {address.url} with the id {client_id!r}",
            "give each device its own --device-id; two with one id disconnect each other",
        ), True
    if by_broker and code == _PACKET_TOO_LARGE:
        return LinkError(f"the broker {address.url} does not take messages this large"), False
    if by_broker:
        return LinkError(f"the broker {address.url} ended the connection ({name})"), False
    return LinkError(f"the connection to {address.url} was lost"), False


class _Socket(ssl.SSLSocket):
    """Closes itself when the handshake fails; paho would leave it to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def tls_context(address: BrokerAddress) -> ssl.SSLContext:
    """Return a client context that verifies the broker's certificate and its host name.

    Raises:
        LinkError: A certificate or key file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=str(address.ca) if address.ca else None)
    except OSError as error:
        raise LinkError(
            f"the CA file {address.ca} cannot be used: {error}", "it must hold PEM certificates"
        ) from None
    context.sslsocket_class = _Socket
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if address.cert:
        try:
            # An encrypted key must fail here; OpenSSL would ask on the terminal instead.
            context.load_cert_chain(address.cert, address.key, password=lambda: b"")
        except OSError as error:
            raise LinkError(
                f"the client certificate {address.cert} cannot be used: {error}",
                "it must be PEM, with the key that belongs to it, not encrypted",
            ) from None
    return context
