"""NetworkManager's connection to the Wi-Fi of the settings, in its keyfile format.

Standard library only.
"""

from __future__ import annotations

import re
import uuid

from boards.onboard.settings import Settings

__all__ = ["connection", "password_of"]


def connection(settings: Settings, password: str) -> str:
    """Return the keyfile; an open network's without a password.

    Args:
        settings: Name the network.
        password: Its passphrase, escaped as keyfiles want it; empty for none.
    """
    name = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{settings.ssid}.wifi.edge-kit"))
    lines = ["[connection]", "id=edge-kit-wifi", f"uuid={name}", "type=wifi"]
    lines += ["", "[wifi]", "mode=infrastructure", f"ssid={_bytes(settings.ssid)}"]
    if password:
        lines += ["", "[wifi-security]", "key-mgmt=wpa-psk", f"psk={password}"]
    return "\n".join([*lines, "", "[ipv4]", "method=auto", "", "[ipv6]", "method=auto", ""])


def password_of(settings: Settings, held: str) -> str:
    """Return the passphrase for `connection`.

    Args:
        settings: May hold one, or none since it was removed from the boot partition.
        held: The keyfile that is in force, or nothing.
    """
    if settings.wifi_password:
        # Keyfiles strip leading spaces, unless escaped.
        return re.sub("^ ", r"\\s", settings.wifi_password.replace("\\", "\\\\"))
    kept = re.search("^psk=(.*)$", held, re.M)
    return kept[1] if kept and f"\nssid={_bytes(settings.ssid)}\n" in held else ""


def _bytes(text: str) -> str:
    """Return a network's name as NetworkManager's list of bytes, which needs no escapes."""
    return ";".join(str(byte) for byte in text.encode()) + ";"
