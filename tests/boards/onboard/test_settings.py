"""``edge-kit.toml``: what is taken, what is refused, and that it survives its own writing."""

from __future__ import annotations

import tomllib

import pytest

from boards.onboard.settings import Settings, SettingsError, dump
from tests.support.boards.freshboard import KEY, PEM, TEXT


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[system", "not valid TOML"),
        ("[sytem]\n", "unknown table"),
        ("[system]\nhostname = 'Bad_Name'", "system.hostname .* must be small letters"),
        ("[system]\nhostname = 3", "must be a text"),
        ("[system]\nssh_keys = ['hello']", "must hold public keys"),
        ("[system]\nssh_keys = [3]", "must be a list of texts"),
        ("[system]\ntimezone = '../etc/shadow'", "not a valid time zone"),
        ("[wifi]\nssid = 'a'\npassword = 'short'\ncountry = 'DE'", "8 to 63"),
        ("[wifi]\nssid = 'a'", "two capital letters"),
        ("[tls]\nca = 'ca.pem'", "is not PEM text"),
        ("[tls]\nenroll = 'http://est.lan/.well-known/est'", "must be an address such as"),
        ("[tls]\nenroll = 'https://u:p@est.lan/.well-known/est'", "must be an address such as"),
        ("[tls]\nenroll = 'https://est.lan/est'", "must be an address such as"),
        ("[tls]\nenroll = 'https://est.lan:port/.well-known/est'", "must be an address such as"),
        ('[tls]\nenroll = "https://est.lan/.well-known/est\\n"', "must be an address such as"),
        ("[secrets]\nenroll_user = 'u'\nenroll_password = 'p'", "names no server"),
        ("[tls]\nenroll = 'https://e/.well-known/est'\n[secrets]\nenroll_user = 'u'", "together"),
        ("[tls]\nenroll = 'https://e/.well-known/est'\n[run]\nbroker = 'mqtt://b'", "mqtts"),
        ("[system]\nntp = ['a b']", "not a valid host name or address"),
        ("[run]\npassword = 'x'", "set by the first boot"),
        ("[run]\nfps = {a = 1}", "must be a text"),
        ("run = 3", "run must be a table"),
        ('[system]\nhostname = "cam\\n"', "system.hostname .* must be small letters"),
        ('[system]\ntimezone = "UTC\\n"', "not a valid time zone"),
        ('[system]\nntp = ["ntp.lan\\n"]', "not a valid host name or address"),
        (f'[system]\nssh_keys = ["{KEY}\\u0000"]', "must hold public keys"),
        ('[wifi]\nssid = "a"\ncountry = "DE"\npassword = "s3cret-1\\nkey-mgmt=none"', "line break"),
        (f"[wifi]\nssid = 'a'\ncountry = 'DE'\npassword = '{'x' * 64}'", "hexadecimal"),
        ("[run]\ndevice_id = 'a/O=b'", "must be 1 to 64"),
        ("[run]\ndevice_id = 7", "must be 1 to 64"),
        ("[run]\n'a b' = 1", "is not a key of"),
    ],
)
def test_invalid_setting_is_named(text, word):
    with pytest.raises(SettingsError, match=word):
        Settings.parse(text)


def test_error_in_a_secret_does_not_show_it():
    with pytest.raises(SettingsError) as caught:
        Settings.parse('[wifi]\nssid = "a"\ncountry = "DE"\npassword = "s3cret-1\\n"')
    assert "s3cret" not in str(caught.value)


def test_file_of_a_windows_editor_is_read():
    text = "\ufeff" + TEXT.replace("\n", "\r\n")
    assert Settings.parse(text).ssid == "Werk; Halle 2"
    pem = Settings.parse(text).ca
    assert pem == PEM


def test_settings_survive_encoding():
    settings = Settings.parse(TEXT)
    assert Settings.parse(settings.whole()) == settings
    assert "geheim" not in settings.public() and "geheim" not in repr(settings)
    odd = {"a": 'q"\\\n\t\x7fä', "b": [1, "x"], "c": True, "d": 0.5}
    assert tomllib.loads(dump({"": odd})) == odd
