// Contributions and results in fix32.

#define FORMAT_UP FORMAT_FIX32
#define UP words
#define UP_BITS 32
#define FORMAT_STACKS lanes32_t[CHUNKS] words;

#include "linear.p4"

#define INTEGER(code, valid) linear_integer(code, member.levels, valid)
#define WRONG(code) linear_wrong(code, member.levels)

#define RESULT(c) PUT(words, c, 32)
