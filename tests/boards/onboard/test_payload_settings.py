"""``edge-kit.toml``: what is taken, what is refused, and that it survives its own writing."""

from __future__ import annotations

import tomllib

import pytest

from boards.onboard.settings import Settings, SettingsError, dump
from tests.boards.onboard.test_payload import KEY, PEM, TEXT


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[system", "no TOML"),
        ("[sytem]\n", "unknown table"),
        ("[system]\nhostname = 'Bad_Name'", "no host name"),
        ("[system]\nhostname = 3", "should be str"),
        ("[system]\nssh_keys = ['hello']", "no public key"),
        ("[system]\nssh_keys = [3]", "should hold texts"),
        ("[system]\ntimezone = '../etc/shadow'", "no time zone"),
        ("[wifi]\nssid = 'a'\npassword = 'short'\ncountry = 'DE'", "8 to 63"),
        ("[wifi]\nssid = 'a'", "two capital letters"),
        ("[tls]\nca = 'ca.pem'", "no PEM"),
        ("[tls]\nenroll = 'http://est.lan/.well-known/est'", "no address such as"),
        ("[tls]\nenroll = 'https://u:p@est.lan/.well-known/est'", "no address such as"),
        ("[tls]\nenroll = 'https://est.lan/est'", "no address such as"),
        ("[tls]\nenroll = 'https://est.lan:port/.well-known/est'", "no address such as"),
        ('[tls]\nenroll = "https://est.lan/.well-known/est\\n"', "no address such as"),
        ("[secrets]\nenroll_user = 'u'\nenroll_password = 'p'", "names no server"),
        ("[tls]\nenroll = 'https://e/.well-known/est'\n[secrets]\nenroll_user = 'u'", "together"),
        ("[tls]\nenroll = 'https://e/.well-known/est'\n[run]\nbroker = 'mqtt://b'", "mqtts"),
        ("[system]\nntp = ['a b']", "no host name and no address"),
        ("[run]\npassword = 'x'", "set by the first boot"),
        ("[run]\nfps = {a = 1}", "should be a text"),
        ("run = 3", "run is no table"),
        ('[system]\nhostname = "cam\\n"', "no host name"),
        ('[system]\ntimezone = "UTC\\n"', "no time zone"),
        ('[system]\nntp = ["ntp.lan\\n"]', "no host name and no address"),
        (f'[system]\nssh_keys = ["{KEY}\\u0000"]', "no public key"),
        ('[wifi]\nssid = "a"\ncountry = "DE"\npassword = "s3cret-1\\nkey-mgmt=none"', "line break"),
        (f"[wifi]\nssid = 'a'\ncountry = 'DE'\npassword = '{'x' * 64}'", "hexadecimal"),
        ("[run]\ndevice_id = 'a/O=b'", "must be 1 to 64"),
        ("[run]\ndevice_id = 7", "must be 1 to 64"),
        ("[run]\n'a b' = 1", "no key of"),
    ],
)
def test_settings_that_make_no_sense_say_which(text, word):
    with pytest.raises(SettingsError, match=word):
        Settings.parse(text)


def test_a_mistake_in_a_secret_is_told_without_it():
    with pytest.raises(SettingsError) as caught:
        Settings.parse('[wifi]\nssid = "a"\ncountry = "DE"\npassword = "s3cret-1\\n"')
    assert "s3cret" not in str(caught.value)


def test_what_editors_on_windows_write_is_read():
    text = "\ufeff" + TEXT.replace("\n", "\r\n")
    assert Settings.parse(text).ssid == "Werk; Halle 2"
    pem = Settings.parse(text).ca
    assert pem == PEM


def test_settings_survive_their_own_writing():
    settings = Settings.parse(TEXT)
    assert Settings.parse(settings.whole()) == settings
    assert "geheim" not in settings.public() and "geheim" not in repr(settings)
    odd = {"a": 'q"\\\n\t\x7fä', "b": [1, "x"], "c": True, "d": 0.5}
    assert tomllib.loads(dump({"": odd})) == odd
