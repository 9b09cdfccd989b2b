// Contributions in nat8; results in nat8.

#define FORMAT_UP FORMAT_NAT8
#define UP bytes
#define UP_BITS 8
#define FORMAT_STACKS

// The lowest level is 1, so no negative sum has level 0.
#define SIGN_OF(rounded) sign

#include "natural.p4"

#define INTEGER(code, valid) natural_integer((bit<8>)(code)[6:0], (bit<32>)(code)[7:7], valid)
#define WRONG(code) natural_wrong((bit<8>)(code)[6:0], member.levels)

#define SIGN 0x80
#define RESULT(c) PUT(bytes, c, 8)
