"""A switch for all tests of this folder, and ranks of Gloo beside it."""

from tests.host.torch.conftest import beside, make_world, switch

__all__ = ["beside", "make_world", "switch"]
