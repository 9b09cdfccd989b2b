// Linear formats: a code is an integer, and so is a result.

#include "integers.p4"

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
