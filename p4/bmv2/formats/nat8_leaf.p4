// A leaf of a tree: contributions and results in nat8; partial sums in nat8 (job format nat8-reencode), or in fix32.

#include "nat8.p4"

#undef FORMAT_STACKS
#define FORMAT_STACKS lanes32_t[CHUNKS] words;

#define EXACT(c) else if (uplink.partial_format == FORMAT_FIX32) { \
    LANES_8(COPY_LANE, c) hdr.bytes[c].setInvalid(); PUT(words, c, 32) \
}

const bit<32> MULTIPLIER_1 = 0x7FEB352D;
const bit<32> MULTIPLIER_2 = 0x846CA68B;

// inagg_wire.noise.hashes of a switch's noise word: errors of switches whose words are alike would add up.
bit<32> mixed(in bit<32> word, in bit<32> key_0, in bit<32> key_1) {
    bit<32> x = word + key_0;
    x = (x ^ x >> 16) * MULTIPLIER_1;
    x = ((x ^ x >> 15) + key_1) * MULTIPLIER_2;
    return x ^ x >> 16;
}
#define NOISE_OF(c, j) mixed(noise ^ NOISE_GROUP(2 * c + j / 4), uplink.key_0, uplink.key_1)
