"""Profiles of real networks: how large their gradients are, in which order they come, and how much work a step is.

    profile("resnet50").buckets()

Torch is imported when a profile is made, not before.
"""

from __future__ import annotations

from functools import cache

from .profile import Bucket, Gradient, Profile, make_buckets

__all__ = ["NAMES", "Bucket", "Gradient", "Profile", "make_buckets", "profile"]

NAMES = ("alexnet", "vgg11", "resnet50", "resnet110", "gpt2")


@cache
def profile(name: str) -> Profile:
    """The profile of one of `NAMES`. Raises KeyError for another name."""
    from .trace import make_profile
    from .zoo import ZOO

    entry = ZOO[name]
    return make_profile(entry.batch, entry.make, lambda: entry.inputs(1))
