// Linear formats: a code is an integer in two's complement. One whose magnitude is beyond `levels` counts as 0.

bit<32> linear_integer(in bit<32> integer, in bit<32> levels, out bit<16> wrong) {
    bit<32> magnitude = integer[31:31] == 1 ? -integer : integer;
    wrong = magnitude > levels ? 16w1 : 0;
    return magnitude > levels ? 0 : integer;
}

// A sum in units of 2^shift: itself for shift 0, else rounded to one of its neighbours by the low bits of the noise.
// With maximum, the code is the sum itself.
control Encode(in bit<32> sum, in bool maximum, in bit<8> shift, in bit<32> noise, in bit<32> sign, out bit<32> code) {
    apply {
        bool negative = sum[31:31] == 1;
        bit<32> magnitude = negative ? -sum : sum;
        bit<32> rounded = magnitude + (noise & (32w1 << shift) - 1) >> shift;
        code = maximum ? sum : (negative ? -rounded : rounded);
    }
}

#define SIGN 0  // there is no sign bit of its own
