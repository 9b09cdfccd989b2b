"""What ranks that join a job tell each other in the store of their process group."""

from __future__ import annotations

from typing import Any

from torch._C._distributed_c10d import HashStore
from torch.distributed import DistNetworkError

from inagg_host.torch.failure_channel import StoreFailureChannel


def test_a_rank_that_gives_up_tells_the_others() -> None:
    store, gives_up = HashStore(), list[str]()
    one = StoreFailureChannel(store, 0, lambda: gives_up[0] if gives_up else None)
    other = StoreFailureChannel(store, 1, lambda: None)
    assert one.poll() is None
    assert other.poll() is None
    gives_up.append("its job was closed")
    said = "rank 0 cannot join: its job was closed"
    assert one.poll() == said
    assert other.poll() == said


class Gone:
    """A store whose process has ended."""

    def __getattr__(self, name: str) -> Any:
        raise DistNetworkError("Broken pipe")


def test_where_the_store_is_gone_so_is_who_had_it_and_nothing_is_raised() -> None:
    store: Any = Gone()
    channel = StoreFailureChannel(store, 0, lambda: None)
    channel.publish("it cannot")
    assert "the store of the process group is gone" in str(channel.poll())
