// Contributions in dith8; results in dith8, or exact sums in int16 (job format dith8-exact).

#define FORMAT_UP FORMAT_DITH8
#define UP bytes
#define UP_BITS 8
#define FORMAT_STACKS lanes16_t[CHUNKS] words;

#include "linear.p4"

#define WIDE(code) (bit<32>)(int<32>)(int<8>)(code)
#define INTEGER(code, valid) linear_integer(WIDE(code), member.levels, valid)
#define WRONG(code) linear_wrong(WIDE(code), member.levels)

#define RESULT(c) \
    if (member.result_format == FORMAT_INT16) { hdr.bytes[c].setInvalid(); PUT(words, c, 16) } \
    else { PUT(bytes, c, 8) }
