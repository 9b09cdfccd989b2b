// The lanes of a datagram: codes to integers, into the accumulators, and sums to codes when the sum is complete.

#define MAKE_LANE(c, j) Lane() lane_##c##_##j; Encode() encode_##c##_##j;
#define MAKE_LANES(c) LANES_8(MAKE_LANE, c)

#define ADD_LANE(c, j) { \
    bit<16> wrong; \
    bit<32> value = decode(hdr.UP[c].l##j, member.levels, wrong); \
    value = !contributes ? 0 : (maximum ? (bit<32>)hdr.bytes[c].l##j : value); \
    invalid = invalid + (!contributes || maximum ? 0 : wrong); \
    lane_##c##_##j.apply(hdr.inagg.slot, first, maximum, value, sum_##j); \
}
#define ENCODE_LANE(c, j) \
    encode_##c##_##j.apply(sum_##j, maximum, member.shift, noise ^ NOISE_GROUP(2 * c + j / 4), SIGN, code_##j);
#define PUT_LANE(stack, c, bits, j) hdr.stack[c].l##j = (bit<bits>)code_##j;
#define PUT(stack, c, bits) hdr.stack[c].setValid(); \
    PUT_LANE(stack, c, bits, 0) PUT_LANE(stack, c, bits, 1) PUT_LANE(stack, c, bits, 2) PUT_LANE(stack, c, bits, 3) \
    PUT_LANE(stack, c, bits, 4) PUT_LANE(stack, c, bits, 5) PUT_LANE(stack, c, bits, 6) PUT_LANE(stack, c, bits, 7)

#define CHUNK_OF_LANES(c) if (hdr.UP[c].isValid() || hdr.bytes[c].isValid()) { \
    bit<32> sum_0; bit<32> sum_1; bit<32> sum_2; bit<32> sum_3; \
    bit<32> sum_4; bit<32> sum_5; bit<32> sum_6; bit<32> sum_7; \
    LANES_8(ADD_LANE, c) \
    if (complete) { \
        bit<32> code_0; bit<32> code_1; bit<32> code_2; bit<32> code_3; \
        bit<32> code_4; bit<32> code_5; bit<32> code_6; bit<32> code_7; \
        LANES_8(ENCODE_LANE, c) \
        RESULT(c) \
    } \
}

control Lanes(inout headers_t hdr, in member_t member, in bool contributes, in bool first, in bool complete,
              out bit<16> invalid) {
    EACH_CHUNK(MAKE_LANES)

    apply {
        bool maximum = hdr.inagg.op == OP_MAX;
        bit<32> noise = 0;
        if (complete) {
            hash(noise, HashAlgorithm.crc32, 64w0,
                 { member.seed, hdr.inagg.slot, hdr.inagg.generation, 16w0 }, 64w0x100000000);
        }
        invalid = 0;
        EACH_CHUNK(CHUNK_OF_LANES)
    }
}
