// Contributions in nat8; results in nat8.

#define FORMAT_UP FORMAT_NAT8
#define UP bytes
#define UP_BITS 8
#define FORMAT_STACKS

#include "natural.p4"

bit<32> decode(in bit<8> code, in bit<32> levels, out bit<16> wrong) {
    return natural_integer((bit<32>)code[6:0], code[7:7] == 1, levels, wrong);
}

#define SIGN 0x80
#define RESULT(c) PUT(bytes, c, 8)
