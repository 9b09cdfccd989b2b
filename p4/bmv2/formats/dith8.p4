// Contributions in dith8; results in dith8, or exact sums in int16 (job format dith8-exact).

#define FORMAT_UP FORMAT_DITH8
#define UP bytes
#define UP_BITS 8
#define FORMAT_STACKS lanes16_t[CHUNKS] words;

#include "linear.p4"

bit<32> decode(in bit<8> code, in bit<32> levels, out bit<16> wrong) {
    return linear_integer((bit<32>)(int<32>)(int<8>)code, levels, wrong);
}

#define RESULT(c) \
    if (member.result_format == FORMAT_INT16) { hdr.bytes[c].setInvalid(); PUT(words, c, 16) } \
    else { PUT(bytes, c, 8) }
