// The root of a tree whose trunks are exact: contributions are partial sums in fix32; results in nat8.

#define FORMAT_UP FORMAT_FIX32
#define UP words
#define UP_BITS 32
#define FORMAT_STACKS lanes32_t[CHUNKS] words;

#define SIGN_OF(rounded) sign

#include "natural.p4"
#include "integers.p4"

#undef VALID
#define VALID 0xFFFFFFFF

#define INTEGER(code, valid) linear_integer(code, member.levels, valid)
#define WRONG(code) linear_wrong(code, member.levels)

#define SIGN 0x80
#define RESULT(c) hdr.words[c].setInvalid(); PUT(bytes, c, 8)
