// The aggregation on Tofino 1 (tna): nat8, 16 lanes in one pass of one pipe.
//
//     p4c --target tofino --arch tna -o out p4/tofino/inagg.p4         (p4/tofino/fit.py does this and reports)
//
// SLOT_BITS: 2^SLOT_BITS slots. BINDINGS: entries of the binding table, 8 for each worker and 1 for each job.
//
// Stages of the ingress: checks of the header, binding, addresses; tag of the slot; who is missing; outcome; accumulators,
// four lanes a stage. Lanes 4 to 15 come first and are encoded in the stages after theirs; lanes 0 to 3 in the egress.

#include <core.p4>
#include <tna.p4>

#ifndef SLOT_BITS
#define SLOT_BITS 14
#endif
#ifndef BINDINGS
#define BINDINGS 1024
#endif
#define FORWARD_ENTRIES 1024
#define FLOOD_GROUP 1

#include "../include/layout.p4"
#include "../include/headers.p4"
#include "packet.p4"
#include "../include/check.p4"
#include "../include/noise.p4"
#include "../include/forward.p4"
#include "../include/reply.p4"
#include "parser.p4"
#include "binding.p4"
#include "slot.p4"
#include "outcome.p4"
#include "verdict.p4"
#include "lane.p4"
#include "encode.p4"
#include "answer.p4"

#define MAKE_LANE(i) Decode() decode_##i; Lane() lane_##i;
#define DECODE_LATE(i) decode_##i.apply(hdr.late.l##i, meta.mode, hdr.sums.l##i);
#define DECODE_EARLY(i) decode_##i.apply(hdr.early.l##i, meta.mode, meta.l##i);
#define ADD_LATE(i) lane_##i.apply(meta.lanes, hdr.inagg.slot, hdr.sums.l##i);
#define ADD_EARLY(i) lane_##i.apply(meta.lanes, hdr.inagg.slot, meta.l##i);

// Encoding of lane i with the noise of its group g, in ingress and egress.
#define MAKE_CODE(i, g) Rounding() rounding_##i; Code() code_##i; bit<32> by_##i;
#define ROUND_EARLY(i, g) rounding_##i.apply(meta.l##i, noise_##g, by_##i);
#define SHIFT_EARLY(i, g) meta.l##i = meta.l##i + by_##i;
#define CODE_EARLY(i, g) code_##i.apply(meta.l##i, hdr.inagg.op, hdr.early.l##i);
#define ROUND_LATE(i, g) rounding_##i.apply(hdr.sums.l##i, noise_##g, by_##i);
#define SHIFT_LATE(i, g) hdr.sums.l##i = hdr.sums.l##i + by_##i;
#define CODE_LATE(i, g) code_##i.apply(hdr.sums.l##i, hdr.inagg.op, hdr.late.l##i);
#define EACH_LATE_IN_GROUPS(M) M(0, 0) M(1, 0) M(2, 0) M(3, 0)
#define EACH_EARLY_IN_GROUPS(M) M(4, 1) M(5, 1) M(6, 1) M(7, 1) M(8, 2) M(9, 2) M(10, 2) M(11, 2) \
    M(12, 3) M(13, 3) M(14, 3) M(15, 3)
#define EACH_EARLY_GROUP(M) M(1) M(2) M(3)
#define MAKE_NOISE(g) Hash<bit<32>>(HashAlgorithm_t.CRC32) hash_##g; bit<32> noise_##g;
#define NOISE(g) if (meta.mode == MODE_MAX) { noise_##g = 0; } \
    else { noise_##g = hash_##g.get({ meta.seed, hdr.inagg.slot, hdr.inagg.generation, 16w##g }); }

control Ingress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t deparser,
                inout ingress_intrinsic_metadata_for_tm_t traffic) {
    Reply() reply;
    Forward() forward;
    Check() check;
    Binding() binding;
    SlotTag() slot_tag;
    SlotMembers() slot_members;
    Outcome() outcome;
    Verdict() verdict;
    Answer() answer;
    EACH_LANE(MAKE_LANE)
    EACH_EARLY_IN_GROUPS(MAKE_CODE)
    EACH_EARLY_GROUP(MAKE_NOISE)
    Hash<bit<32>>(HashAlgorithm_t.CRC32) hash_0;

    // By worker and OUTCOME_: what became of admitted contributions. Frames and bytes.
    Counter<bit<64>, bit<13>>(8192, CounterType_t.PACKETS_AND_BYTES) outcomes;
    // By reason.
    Counter<bit<64>, bit<8>>(64, CounterType_t.PACKETS_AND_BYTES) refused;
    // Datagrams to the data port.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS_AND_BYTES) datagrams_in;

    action own(bit<48> mac, bit<8> to) {
        meta.own_mac = mac;
        meta.to = to;
    }

    table local {
        key = {
            meta.address : ternary @name("address");
            meta.port : ternary @name("port");
        }
        actions = { own; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply {
        meta.to = TO_NOBODY;
        meta.malformed = REASON_NONE;
        meta.refusal = REASON_NONE;
        meta.reason = REASON_NONE;
        meta.member = 0;
        meta.made = MADE_NOTHING;
        meta.multicast = false;
        meta.lanes = LANES_NOTHING;
        meta.slot_state = SLOT_UNTOUCHED;
        hdr.bridge.made = MADE_NOTHING;
        hdr.bridge.ingress_port = intrinsic.ingress_port;

        local.apply();
        if (hdr.inagg.isValid()) {
            check.apply(hdr.inagg, meta.malformed);
            binding.apply(hdr, intrinsic.ingress_port, meta);
        }
        if (meta.to == TO_DATA_PORT) {
            datagrams_in.count(0);
            if (hdr.late.isValid() && hdr.inagg.kind == KIND_CONTRIBUTION && meta.malformed == REASON_NONE &&
                meta.member == 1 && !meta.bad_checksum) {
                slot_tag.apply(hdr.inagg, meta.slot_state);
                slot_members.apply(hdr.inagg.slot, meta.slot_state, meta.others, meta.op, meta.missing);
                outcome.apply(hdr.inagg, meta);
                EACH_LATE(DECODE_LATE)
                EACH_EARLY(DECODE_EARLY)
                EACH_EARLY(ADD_EARLY)
                EACH_LATE(ADD_LATE)
                // One table each: a table gets 32 bits of hash at most.
                if (meta.mode == MODE_MAX) {
                    hdr.noise.group_0 = 0;
                } else {
                    hdr.noise.group_0 = hash_0.get({ meta.seed, hdr.inagg.slot, hdr.inagg.generation, 16w0 });
                }
                EACH_EARLY_GROUP(NOISE)
                EACH_EARLY_IN_GROUPS(ROUND_EARLY)
                EACH_EARLY_IN_GROUPS(SHIFT_EARLY)
                EACH_EARLY_IN_GROUPS(CODE_EARLY)
                outcomes.count(meta.worker ++ meta.outcome);
            } else {
                verdict.apply(hdr, meta);
            }
            answer.apply(hdr, meta, intrinsic.ingress_port, deparser, traffic);
            if (meta.reason != REASON_NONE) {
                refused.count(meta.reason);
            }
        } else {
            bool replied = false;
            if (meta.to == TO_SWITCH) {
                reply.apply(hdr, meta.own_mac, replied);
            }
            if (replied) {
                traffic.ucast_egress_port = intrinsic.ingress_port;
            } else {
                bit<9> port;
                bool flooded;
                forward.apply(hdr.ethernet.destination, port, flooded);
                if (flooded) {
                    traffic.mcast_grp_a = FLOOD_GROUP;
                    hdr.bridge.made = MADE_FLOOD;
                } else {
                    traffic.ucast_egress_port = port;
                }
            }
        }
    }
}

control Egress(inout headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t deparser,
               inout egress_intrinsic_metadata_for_output_port_t output_port) {
    EACH_LATE_IN_GROUPS(MAKE_CODE)

    action readdress(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }

    table copies {
        key = { intrinsic.egress_rid : exact @name("copy"); }
        actions = { readdress; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 1024;
    }

    apply {
        if (hdr.bridge.made == MADE_RESULT) {
            bit<32> noise_0 = hdr.noise.group_0;
            EACH_LATE_IN_GROUPS(ROUND_LATE)
            EACH_LATE_IN_GROUPS(SHIFT_LATE)
            EACH_LATE_IN_GROUPS(CODE_LATE)
            copies.apply();
        } else if (hdr.bridge.made == MADE_FLOOD && hdr.bridge.ingress_port == intrinsic.egress_port) {
            deparser.drop_ctl = 1;
        }
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;

Switch(pipe) main;
