from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from edge_kit.telemetry.certificate import DAY_S, RENEWAL_SILENT_S, read_certificate


@pytest.fixture
def certificate(certificates, tmp_path) -> Path:
    """A certificate of two days."""
    path = tmp_path / "device.crt"
    path.write_bytes((certificates / "client.pem").read_bytes())
    return path


def note(certificate: Path, **notes) -> None:
    certificate.with_name("renewal.json").write_text(json.dumps(notes))


def test_certificate_without_renewal_tells_its_days_left(certificate):
    found = read_certificate(certificate)
    assert found is not None and found.problem == ""
    assert found.to_json() == {
        "days_left": pytest.approx(2, abs=0.1), "renewed_at": None, "error": "",
    }  # fmt: skip


def test_chain_tells_the_days_of_its_first_certificate(certificate, certificates):
    with certificate.open("ab") as file:
        file.write((certificates / "expired.pem").read_bytes())
    assert read_certificate(certificate).days_left > 1


def test_renewal_that_works_is_told(certificate):
    note(certificate, tried_at=time.time(), succeeded_at=time.time(), error="")
    found = read_certificate(certificate)
    assert found.renewed_at == pytest.approx(time.time(), abs=60) and found.problem == ""


def test_renewal_that_failed_is_told_and_is_a_problem_after_three_days(certificate):
    start = time.time() - 2 * DAY_S
    note(certificate, tried_at=start, succeeded_at=start, error="no route to the server")
    found = read_certificate(certificate)
    assert (found.error, found.problem) == ("no route to the server", "")
    note(certificate, tried_at=start, succeeded_at=start - RENEWAL_SILENT_S, error="no route")
    problem = read_certificate(certificate).problem
    assert "has not worked for three days" in problem and "no route" in problem


def test_renewal_that_never_worked_is_a_problem(certificate):
    note(certificate, tried_at=time.time(), succeeded_at=None, error="wrong password")
    assert "wrong password" in read_certificate(certificate).problem


def test_certificate_near_its_end_is_a_problem_with_the_reason(certificate):
    note(certificate, tried_at=time.time(), succeeded_at=time.time(), error="no route")
    problem = read_certificate(certificate, time.time() + 1.9 * DAY_S).problem
    assert "expires in 0.1 days" in problem and "its renewal failed: no route" in problem


@pytest.mark.parametrize("notes", ["", "[1]", "{"])
def test_unreadable_notes_count_as_none(certificate, notes):
    certificate.with_name("renewal.json").write_text(notes)
    assert read_certificate(certificate).renewed_at is None


def test_missing_certificate_is_none(tmp_path):
    assert read_certificate(tmp_path / "none.crt") is None
