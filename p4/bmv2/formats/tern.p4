// Contributions in tern; results are exact sums, in int4 for up to 7 workers, else in int8.

#define FORMAT_UP FORMAT_TERN
#define UP pairs
#define UP_BITS 2
#define FORMAT_STACKS lanes2_t[CHUNKS] pairs; lanes4_t[CHUNKS] nibbles;

#include "linear.p4"

#define WIDE(code) (bit<32>)(int<32>)(int<2>)(code)
#define INTEGER(code, valid) linear_integer(WIDE(code), member.levels, valid)
#define WRONG(code) linear_wrong(WIDE(code), member.levels)

#define RESULT(c) \
    hdr.pairs[c].setInvalid(); \
    if (member.result_format == FORMAT_INT4) { PUT(nibbles, c, 4) } else { PUT(bytes, c, 8) }
