// Linear formats: a code is an integer in two's complement. One whose magnitude is beyond `levels` counts as 0.

// `valid`: all ones; 0 if this is not the code of a contribution to a sum.
bit<32> linear_wrong(in bit<32> integer, in bit<32> levels) {  // 1 or 0
    return (bit<32>)((bit<33>)(levels << 1) - (bit<33>)(integer + levels) >> 32);
}
bit<32> linear_integer(in bit<32> integer, in bit<32> levels, in bit<32> valid) {
    return integer & linear_wrong(integer, levels) - 1 & valid;
}
#define VALID 0xFFFFFFFF

// A sum in units of 2^shift: itself for shift 0, else rounded to one of its neighbours by the low bits of the noise.
control Encode(in bit<32> sum, in bit<8> shift, in bit<32> lowest, in bit<32> noise, in bit<32> sign, out bit<32> code) {
    apply {
        bit<32> negative = 0 - (sum >> 31);
        bit<32> rounded = (sum ^ negative) - negative + (noise & lowest - 1) >> shift;
        code = (rounded ^ negative) - negative;
    }
}

#define SIGN 0  // there is no sign bit of its own
