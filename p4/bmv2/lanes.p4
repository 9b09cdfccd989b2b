// The lanes of a datagram: codes to integers, into the accumulators, and sums to codes when the sum is complete.

#define MAKE_LANE(c, j) Lane() lane_##c##_##j; Encode() encode_##c##_##j;
#define MAKE_LANES(c) LANES_8(MAKE_LANE, c)

#define ADD_LANE(c, j) lane_##c##_##j.apply(hdr.inagg.slot, keep, INTEGER(hdr.UP[c].l##j, valid), \
    (bit<32>)hdr.bytes[c].l##j & maximized, sum_##j);
#define WRONG_LANE(c, j) + WRONG(hdr.UP[c].l##j)
#define ENCODE_LANE(c, j) encode_##c##_##j.apply( \
    sum_##j, member.shift, lowest, NOISE_OF(c, j), sign, code_##j);
#define COPY_LANE(c, j) code_##j = sum_##j;
#define PUT_LANE(stack, c, bits, j) hdr.stack[c].l##j = (bit<bits>)code_##j;
#define PUT(stack, c, bits) hdr.stack[c].setValid(); \
    PUT_LANE(stack, c, bits, 0) PUT_LANE(stack, c, bits, 1) PUT_LANE(stack, c, bits, 2) PUT_LANE(stack, c, bits, 3) \
    PUT_LANE(stack, c, bits, 4) PUT_LANE(stack, c, bits, 5) PUT_LANE(stack, c, bits, 6) PUT_LANE(stack, c, bits, 7)

#ifndef NOISE_OF
#define NOISE_OF(c, j) noise ^ NOISE_GROUP(2 * c + j / 4)
#endif
#ifndef EXACT  // a leaf's way to send sums as they are
#define EXACT(c)
#endif

#define CHUNK_OF_LANES(c) if (hdr.UP[c].isValid() || hdr.bytes[c].isValid()) { \
    bit<32> sum_0; bit<32> sum_1; bit<32> sum_2; bit<32> sum_3; \
    bit<32> sum_4; bit<32> sum_5; bit<32> sum_6; bit<32> sum_7; \
    invalid = invalid LANES_8(WRONG_LANE, c); \
    LANES_8(ADD_LANE, c) \
    if (complete) { \
        bit<32> code_0; bit<32> code_1; bit<32> code_2; bit<32> code_3; \
        bit<32> code_4; bit<32> code_5; bit<32> code_6; bit<32> code_7; \
        if (as_is) { LANES_8(COPY_LANE, c) PUT(bytes, c, 8) } EXACT(c) \
        else { LANES_8(ENCODE_LANE, c) RESULT(c) } \
    } \
}

control Lanes(inout headers_t hdr, in member_t member, in uplink_t uplink, in effect_t effect, out bit<32> invalid) {
    EACH_CHUNK(MAKE_LANES)

    apply {
        bool complete = effect.complete;
        // What the accumulators hold are bytes, and go out as they are: maxima, and at a leaf what the parent has sent.
        bool as_is = hdr.inagg.op == OP_MAX || effect.from_parent_result || IS_LEAF && effect.resend;
        // Masks: which of the two ways to read a lane counts, and whether the accumulator does.
        bit<32> valid = 0;
        bit<32> maximized = 0;
        bit<32> keep = 0;
        if (effect.contributes && hdr.inagg.op == OP_SUM) {
            valid = VALID;
        } else if (effect.contributes || effect.from_parent_result) {
            maximized = 0xFFFFFFFF;
        }
        if (!effect.first && !effect.from_parent_result) {
            keep = 0xFFFFFFFF;
        }
        bit<32> noise = 0;
        bit<32> sign = SIGN;
        bit<32> lowest = 32w1 << member.shift;
        if (complete) {
            hash(noise, HashAlgorithm.crc32, 64w0,
                 { member.seed, hdr.inagg.slot, hdr.inagg.generation, 16w0 }, 64w0x100000000);
        }
        invalid = 0;
        EACH_CHUNK(CHUNK_OF_LANES)
        if (valid == 0) {
            invalid = 0;  // these were no codes of a sum, or have been counted before
        }
    }
}
