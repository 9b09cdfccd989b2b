// Natural formats: levels are 0 and powers of two; sums are rounded to powers of two.

// The integer of a level: 0, 1, 2, 4, ... A level beyond `levels` names none, and counts as 0.
bit<32> natural_integer(in bit<32> level, in bool negative, in bit<32> levels, out bit<16> wrong) {
    bit<32> magnitude = level > levels ? 0 : (32w1 << (bit<8>)level) >> 1;
    wrong = level > levels ? 16w1 : 0;
    return negative ? -magnitude : magnitude;
}

#define LEADING_ONE(k) 32w1 << k &&& ~((32w1 << k) - 1) : at(k);

// Natural compression of a sum (Horvath et al. 2019, definition 2, eq. 5): with k the position of the leading one of |sum|,
// or of the lowest level if that is higher, the low k bits of the noise are added, which may carry the leading one up by
// one place. With maximum, the code is the sum itself.
control Encode(in bit<32> sum, in bool maximum, in bit<8> shift, in bit<32> noise, in bit<32> sign, out bit<32> code) {
    bool negative;
    bit<32> magnitude;
    bit<32> at_least_lowest;

    action at(bit<8> k) {
        bit<32> rounded = magnitude + (noise & (32w1 << k) - 1);
        bit<32> level = rounded >> shift == 0 ? 0 : (bit<32>)(k - shift) + 1 + (rounded >> k + 1);
        code = maximum ? sum : (negative && level != 0 ? level | sign : level);
    }

    @hidden
    table leading_one {
        key = { at_least_lowest : lpm; }
        actions = { at; }
        const default_action = at(0);
        const entries = {
            LEADING_ONE(31) LEADING_ONE(30) LEADING_ONE(29) LEADING_ONE(28) LEADING_ONE(27) LEADING_ONE(26)
            LEADING_ONE(25) LEADING_ONE(24) LEADING_ONE(23) LEADING_ONE(22) LEADING_ONE(21) LEADING_ONE(20)
            LEADING_ONE(19) LEADING_ONE(18) LEADING_ONE(17) LEADING_ONE(16) LEADING_ONE(15) LEADING_ONE(14)
            LEADING_ONE(13) LEADING_ONE(12) LEADING_ONE(11) LEADING_ONE(10) LEADING_ONE(9) LEADING_ONE(8)
            LEADING_ONE(7) LEADING_ONE(6) LEADING_ONE(5) LEADING_ONE(4) LEADING_ONE(3) LEADING_ONE(2)
            LEADING_ONE(1)
        }
    }

    apply {
        negative = sum[31:31] == 1;
        magnitude = negative ? -sum : sum;
        at_least_lowest = magnitude | 32w1 << shift;
        leading_one.apply();
    }
}
