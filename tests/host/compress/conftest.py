"""A switch for all tests of this folder."""

from tests.host.pytorch.conftest import switch

__all__ = ["switch"]
