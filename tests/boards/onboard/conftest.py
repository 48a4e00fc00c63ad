from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.boards.enrolling import Board
from tests.support.boards.estserver import EstServer, make_authority


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
