// The rounding noise of the lanes' groups of four. r = CRC-32(seed, slot, generation, group); a CRC is linear, so the r of
// group g is that of group 0, XOR a constant that depends on the bits of g alone. tests/p4/test_layout.py checks them.

#ifndef INAGG_NOISE
#define INAGG_NOISE

const bit<32> NOISE_1 = 0x77073096;
const bit<32> NOISE_2 = 0xEE0E612C;
const bit<32> NOISE_4 = 0x076DC419;
const bit<32> NOISE_8 = 0x0EDB8832;
const bit<32> NOISE_16 = 0x1DB71064;
const bit<32> NOISE_32 = 0x3B6E20C8;

// What to XOR to the r of group 0 for that of group g < 64, a constant.
#define NOISE_GROUP(g) (((g) & 1) * NOISE_1 ^ ((g) >> 1 & 1) * NOISE_2 ^ ((g) >> 2 & 1) * NOISE_4 ^ \
    ((g) >> 3 & 1) * NOISE_8 ^ ((g) >> 4 & 1) * NOISE_16 ^ ((g) >> 5 & 1) * NOISE_32)

#endif
