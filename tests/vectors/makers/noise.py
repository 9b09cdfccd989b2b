"""noise.json: block keys, the hosts' noise words, the switch's noise words."""

from __future__ import annotations

from struct import pack

from inagg_wire.noise import host_words, switch_word
from inagg_wire.noise_keys import BlockKey, block_key

from .common import Vector, words_hex

MEANING = (
    "`block_keys`: (seed, worker, block) to the key k0, k1; block is 64 bits. `host_words`: noise word `index` of"
    " lanes 0, 1, 2, ... under a key. `switch_words`: the CRC-32 of `bytes`, which are seed, slot, generation and"
    " group."
)

KEYS = (
    ("all zero", 0, 0, 0),
    ("the seed enters", 1, 0, 0),
    ("the worker enters", 0, 1, 0),
    ("the block enters", 0, 0, 1),
    ("seed 1 worker 0 is not seed 0 worker 1 a block later", 1, 1, 1),
    ("any numbers", 0x5EED5EED, 31, 123456789),
    ("the largest seed", 0xFFFFFFFF, 31, 0xFFFFFFFF),
    ("a block beyond 32 bits", 0x12345678, 3, 1 << 32),
    ("the largest block", 0x12345678, 3, (1 << 64) - 1),
)
LANES = 40
"""Four vectors of eight lanes that share a hash, and the first lanes of the next four."""
WORDS = (
    ("a zero key", BlockKey(0, 0), 0),
    ("k0 is added to the counter", BlockKey(1, 0), 0),
    ("k1 is added between the multiplications", BlockKey(0, 1), 0),
    ("any key", BlockKey(0x89ABCDEF, 0x01234567), 0),
    ("the second word of each lane", BlockKey(0x89ABCDEF, 0x01234567), 1),
    ("the third word of each lane", BlockKey(0x89ABCDEF, 0x01234567), 2),
    ("k0 + counter wraps", BlockKey(0xFFFFFFFC, 0xFFFFFFFF), 0),
)
SWITCH = (
    ("all zero but the generation", 0, 0, 1, 0),
    ("the seed enters", 1, 0, 1, 0),
    ("the slot enters", 0, 1, 1, 0),
    ("the generation enters", 0, 0, 2, 0),
    ("the group enters: lanes 4 to 7", 0, 0, 1, 1),
    ("the last group of 1448 lanes", 0xDEADBEEF, 0x00123456, 0x0ABCDEF0, 361),
    ("the largest of every number", 0xFFFFFFFF, 0x00FFFFFF, 0x7FFFFFFF, 0x3FFD),
)


def make() -> Vector:
    """The content of noise.json."""
    keys = []
    for what, seed, worker, block in KEYS:
        key = block_key(seed, worker, block)
        numbers = {"seed": seed, "worker": worker, "block": f"{block:016x}"}
        keys.append({"what": what, **numbers, "k0": f"{key.k0:08x}", "k1": f"{key.k1:08x}"})
    words = []
    for what, key, i in WORDS:
        keyed = {"what": what, "k0": f"{key.k0:08x}", "k1": f"{key.k1:08x}", "index": i}
        words.append(keyed | {"words": words_hex(host_words(key, LANES, i))})
    switch = []
    for what, seed, slot, generation, group in SWITCH:
        numbers = {"seed": seed, "slot": slot, "generation": generation, "group": group}
        hashed = pack(">IIIH", seed, slot, generation, group).hex()
        word = f"{switch_word(seed, slot, generation, group):08x}"
        switch.append({"what": what, **numbers, "bytes": hashed, "word": word})
    return {"meaning": MEANING, "block_keys": keys, "host_words": words, "switch_words": switch}
