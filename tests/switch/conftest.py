"""What tests of several parts of the switch need."""

from __future__ import annotations

import pytest
from tests.switch.service.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs certificates."""
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs certificates, too, but nobody trusts it."""
    return Authority(tmp_path_factory.mktemp("tls"), "stranger")
