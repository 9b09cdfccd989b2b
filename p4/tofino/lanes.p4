// The lanes: their controls, and what each does in ingress and egress.

#include "decode.p4"
#include "encode.p4"

// An annotation takes no parameter, so there is a control for each stage.
#define JOIN(a, b) a##b
#define LANE_AT(stage) JOIN(Lane_, stage)
#define CODE_AT(stage) JOIN(Code_, stage)
#define STAGE 2
#include "code.p4"
#undef STAGE
#define STAGE 3
#include "code.p4"
#undef STAGE
#define STAGE 4
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 5
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 6
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 7
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 8
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 9
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 10
#include "code.p4"
#include "lane.p4"
#undef STAGE
#define STAGE 11
#include "code.p4"
#include "lane.p4"
#undef STAGE

// i: the lane. adds, codes: the stages of packet.p4.
#define MAKE_LANE(i, adds, codes) Decode() decode_##i; Lane_##adds() lane_##i;
#define DECODE_LATE(i, adds, codes) decode_##i.apply(hdr.late.l##i, meta.mode, hdr.sums.l##i);
#define DECODE_EARLY(i, adds, codes) decode_##i.apply(hdr.early.l##i, meta.mode, meta.l##i);
#define ADD_LATE(i, adds, codes) lane_##i.apply(meta.lanes, meta.index, hdr.sums.l##i);
#define ADD_EARLY(i, adds, codes) lane_##i.apply(meta.lanes, meta.index, meta.l##i);
#define MAKE_CODE(i, adds, codes) Rounding() rounding_##i; Code_##codes() code_##i;

// The container of a code: tables write the codes of one stage at once, which they can only into containers of their own.
#define PIN(gress, field) @pa_container_size(gress, #field, 8)
#define PIN_EARLY(i, adds, codes) PIN("ingress", hdr.early.l##i)
#define PIN_LATE(i, adds, codes) PIN("egress", hdr.late.l##i)

// Encoding of the four lanes of group g. What an operation takes must stand in one group of 16 containers, so the early lanes
// are of two clusters, a and b, each with noise of its own and two words for what is to be added, which its lanes use in
// turn. `noise` is that of odd or of even groups: the addition makes it the noise of group g + 2, as a CRC is linear.
#define ROUND_EARLY(i, noise, addend) rounding_##i.apply(meta.l##i, hdr.inagg.op, noise, addend);
#define CODE_EARLY(i) code_##i.apply(meta.l##i, hdr.inagg.op, hdr.early.l##i);
#define ENCODE_EARLY(i, j, k, m, g, noise) \
    ROUND_EARLY(i, meta.noise##_a, meta.addend_a0) ROUND_EARLY(j, meta.noise##_a, meta.addend_a1) \
    ROUND_EARLY(k, meta.noise##_b, meta.addend_b0) ROUND_EARLY(m, meta.noise##_b, meta.addend_b1) \
    meta.noise##_a = meta.noise##_a ^ (NOISE_GROUP((g) ^ (g + 2))); \
    meta.noise##_b = meta.noise##_b ^ (NOISE_GROUP((g) ^ (g + 2))); \
    meta.l##i = meta.l##i + meta.addend_a0; \
    meta.l##j = meta.l##j + meta.addend_a1; \
    meta.l##k = meta.l##k + meta.addend_b0; \
    meta.l##m = meta.l##m + meta.addend_b1; \
    CODE_EARLY(i) CODE_EARLY(j) CODE_EARLY(k) CODE_EARLY(m)

// The late lanes are one cluster of the egress, which has room for two words for what is to be added, and one of noise.
#define ROUND_LATE(i, addend) rounding_##i.apply(hdr.sums.l##i, hdr.noise.op, hdr.noise.group, addend);
#define CODE_LATE(i) code_##i.apply(hdr.sums.l##i, hdr.noise.op, hdr.late.l##i);
#define ENCODE_TWO(i, j) \
    ROUND_LATE(i, addend_0) ROUND_LATE(j, addend_1) \
    hdr.sums.l##i = hdr.sums.l##i + addend_0; \
    hdr.sums.l##j = hdr.sums.l##j + addend_1; \
    CODE_LATE(i) CODE_LATE(j)
#define ENCODE_LATE(i, j, k, m, g) \
    ENCODE_TWO(i, j) \
    ENCODE_TWO(k, m) \
    hdr.noise.group = hdr.noise.group ^ (NOISE_GROUP((g) ^ (g + 1)));
