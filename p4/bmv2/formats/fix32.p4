// Contributions and results in fix32.

#define FORMAT_UP FORMAT_FIX32
#define UP words
#define UP_BITS 32
#define FORMAT_STACKS lanes32_t[CHUNKS] words;

#include "linear.p4"

bit<32> decode(in bit<32> code, in bit<32> levels, out bit<16> wrong) {
    return linear_integer(code, levels, wrong);
}

#define RESULT(c) if (maximum) { PUT(bytes, c, 8) } else { PUT(words, c, 32) }
