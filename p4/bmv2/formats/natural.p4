// Natural formats: levels are 0 and powers of two; sums are rounded to powers of two.

// The integer of a level: 0, 1, 2, 4, ... A level beyond `levels` names none, and counts as 0. `negative`: 0 or 1.
// `valid`: the bits of the integers of levels; 0 if this is not the code of a contribution to a sum.
bit<32> natural_integer(in bit<8> level, in bit<32> negative, in bit<32> valid) {
    return ((32w1 << level) >> 1 & valid ^ 0 - negative) + negative;
}
bit<32> natural_wrong(in bit<8> level, in bit<32> levels) {  // 1 or 0
    return levels - (bit<32>)level >> 31;
}
#define VALID (32w1 << (bit<8>)member.levels) - 1

#define LEADING_ONE(k) 32w1 << k &&& ~((32w1 << k) - 1) : at(k);

// Natural compression of a sum (Horvath et al. 2019, definition 2, eq. 5): with k the position of the leading one of |sum|,
// or of the lowest level if that is higher, the low k bits of the noise are added. That carries the leading one up by
// one place at most. `lowest`: 1 << shift. `sign`: the code's sign bit.
control Encode(in bit<32> sum, in bit<8> shift, in bit<32> lowest, in bit<32> noise, in bit<32> sign,
               out bit<32> code) {
    bit<32> negative = 0 - (sum >> 31);  // all ones or 0
    bit<32> magnitude;
    bit<32> at_least_lowest;

    action at(bit<8> k) {
        bit<32> rounded = magnitude + (noise & (32w1 << k) - 1);
        code = (bit<32>)(k - shift) + (rounded >> k) | negative & SIGN_OF(rounded);
    }

    @hidden
    table leading_one {
        key = { at_least_lowest : lpm; }
        actions = { at; @defaultonly NoAction; }
        const default_action = NoAction();  // never: the key is not 0, and sums are at most 2^30
        const entries = {
            LEADING_ONE(30) LEADING_ONE(29) LEADING_ONE(28) LEADING_ONE(27) LEADING_ONE(26)
            LEADING_ONE(25) LEADING_ONE(24) LEADING_ONE(23) LEADING_ONE(22) LEADING_ONE(21) LEADING_ONE(20)
            LEADING_ONE(19) LEADING_ONE(18) LEADING_ONE(17) LEADING_ONE(16) LEADING_ONE(15) LEADING_ONE(14)
            LEADING_ONE(13) LEADING_ONE(12) LEADING_ONE(11) LEADING_ONE(10) LEADING_ONE(9) LEADING_ONE(8)
            LEADING_ONE(7) LEADING_ONE(6) LEADING_ONE(5) LEADING_ONE(4) LEADING_ONE(3) LEADING_ONE(2)
            LEADING_ONE(1) LEADING_ONE(0)
        }
    }

    apply {
        magnitude = (sum ^ negative) - negative;
        at_least_lowest = magnitude | lowest;
        leading_one.apply();
    }
}
