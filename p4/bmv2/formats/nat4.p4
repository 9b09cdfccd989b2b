// Contributions in nat4; results in nat4, or in nat8 (job format nat4-nat8).

#define FORMAT_UP FORMAT_NAT4
#define UP nibbles
#define UP_BITS 4
#define FORMAT_STACKS lanes4_t[CHUNKS] nibbles;

#include "natural.p4"

bit<32> decode(in bit<4> code, in bit<32> levels, out bit<16> wrong) {
    return natural_integer((bit<32>)code[2:0], code[3:3] == 1, levels, wrong);
}

#define SIGN (member.result_format == FORMAT_NAT4 ? 32w8 : 0x80)
#define RESULT(c) \
    if (member.result_format == FORMAT_NAT4) { PUT(nibbles, c, 4) } \
    else { hdr.nibbles[c].setInvalid(); PUT(bytes, c, 8) }
