// Contributions in nat4; results in nat4, or in nat8 (job format nat4-nat8).

#define FORMAT_UP FORMAT_NAT4
#define UP nibbles
#define UP_BITS 4
#define FORMAT_STACKS lanes4_t[CHUNKS] nibbles;

// What is below the lowest level has level 0, and level 0 no sign.
#define SIGN_OF(rounded) sign & (rounded - lowest >> 31) - 1

#include "natural.p4"

#define INTEGER(code, valid) natural_integer((bit<8>)(code)[2:0], (bit<32>)(code)[3:3], valid)
#define WRONG(code) natural_wrong((bit<8>)(code)[2:0], member.levels)

#define SIGN (member.result_format == FORMAT_NAT4 ? 32w8 : 0x80)
#define RESULT(c) \
    if (member.result_format == FORMAT_NAT4) { PUT(nibbles, c, 4) } \
    else { hdr.nibbles[c].setInvalid(); PUT(bytes, c, 8) }
