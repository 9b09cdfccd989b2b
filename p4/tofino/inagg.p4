// The aggregation on Tofino 1 (tna): nat8, 32 lanes in one pass of one pipe; up to 128 in four passes (passes.p4).
//
//     p4c --target tofino --arch tna -o out p4/tofino/inagg.p4         (p4/tofino/fit.py does this and reports)
//
// SLOT_BITS: 2^SLOT_BITS slots, of jobs of several passes a quarter. BINDINGS: entries of the binding table, 8 for each
// worker, or 10 with several passes, and 1 for each job.
//
// Stages of the ingress: 0 checks of the header, binding, addresses; 1 tag of the slot; 2 who is missing; 3 outcome; 4 to 11
// accumulators, four lanes a stage. Lanes 12 to 31 come first and are encoded in the three stages after theirs; lanes 0 to 11
// in the egress.

#include <core.p4>
#include <tna.p4>

#ifndef SLOT_BITS
#define SLOT_BITS 14
#endif
#ifndef BINDINGS
#define BINDINGS 1024
#endif
#define WORKERS 1024  // of all jobs: row * CHILDREN_MAX + rank
#define OWN_ADDRESSES 16
#define FORWARD_ENTRIES 1024
#define FLOOD_GROUP 1

#include "../include/layout.p4"
#include "../include/headers.p4"
#include "packet.p4"
#include "../include/check.p4"
#include "../include/noise.p4"
#include "../include/forward.p4"
#include "reply.p4"
#include "parser.p4"
#include "binding.p4"
#include "slot.p4"
#include "outcome.p4"
#include "passes.p4"
#include "verdict.p4"
#include "noise.p4"
#include "lanes.p4"
#include "answer.p4"

EACH_EARLY(PIN_EARLY)
EACH_LATE(PIN_LATE)
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
    Onward() onward;
    Decide() decide;
    Verdict() verdict;
    Answer() answer;
    EACH_LANE(MAKE_LANE)
    EACH_EARLY(MAKE_CODE)
    Noise(0) noise_late;
    Noise(3) noise_a;
    Noise(3) noise_b;

    // In the first pass: what became of admitted contributions there, by worker and OUTCOME_. bmv2: `admitted` is the sum of
    // a worker's cells, `contributions` that of ABSORBED and COMPLETED, `duplicates` and `stale` one each.
    Counter<bit<64>, bit<13>>(WORKERS * OUTCOME_CELLS, CounterType_t.PACKETS_AND_BYTES) outcomes;
    // In each pass: what it did, by worker and ANSWER_. Those of the last pass are bmv2's `resends` (ONE) and, added up over
    // the workers of a job, `results` (ALL).
    Counter<bit<64>, bit<12>>(WORKERS * ANSWER_CELLS, CounterType_t.PACKETS_AND_BYTES) answers;
    // In the first pass, as on bmv2: by reason; datagrams to the data port.
    Counter<bit<64>, bit<8>>(REASONS, CounterType_t.PACKETS_AND_BYTES) refused;
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS_AND_BYTES) datagrams_in;
    // Frames to the switch's own Ethernet address that it has no answer for.
    Counter<bit<64>, bit<1>>(1, CounterType_t.PACKETS_AND_BYTES) not_ours;

    action own(bit<48> mac, bit<8> to) {
        meta.own_mac = mac;
        meta.to = to;
    }

    table local {
        key = {
            meta.address : ternary @name("address");
            meta.port : ternary @name("port");
            meta.fragment : ternary @name("fragment");
        }
        actions = { own; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    action ours() {
        meta.ours = 1;
    }

    table to_switch {
        key = { hdr.ethernet.destination : exact @name("destination"); }
        actions = { ours; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    apply {
        meta.to = TO_NOBODY;
        meta.ours = 0;
        meta.malformed = REASON_NONE;
        meta.refusal = REASON_NONE;
        meta.reason = REASON_NONE;
        meta.member = 0;
        meta.complete = COMPLETE_NOT;
        meta.answer = ANSWER_NOTHING;
        meta.next_place = PLACE_NONE;
        meta.lanes = LANES_NOTHING;
        meta.slot_state = SLOT_UNTOUCHED;
        hdr.bridge.made = MADE_NOTHING;
        hdr.bridge.ingress_port = intrinsic.ingress_port;

        local.apply();
        to_switch.apply();
        if (hdr.inagg.isValid()) {
            check.apply(hdr.inagg, meta.malformed);
            binding.apply(hdr, intrinsic.ingress_port, meta);
            onward.apply(hdr.inagg, meta);
        }
        if (meta.to == TO_DATA_PORT) {
            if (IS_FIRST(meta.place) && hdr.udp.isValid() && !meta.bad_checksum) {
                datagrams_in.count(0);
            }
            // A member's datagram has a length that is one of PLACE_FIRST, so it has lanes.
            if (hdr.inagg.kind == KIND_CONTRIBUTION && meta.malformed == REASON_NONE && meta.member == 1 &&
                hdr.inagg.owner == 0 && !meta.bad_checksum) {
                slot_tag.apply(hdr.inagg, meta.index, meta.slot_state);
                slot_members.apply(meta.index, meta.slot_state, meta.others, meta.op, meta.missing);
                outcome.apply(hdr.inagg, meta);
                decide.apply(meta);
                EACH_LATE(DECODE_LATE)
                EACH_EARLY(DECODE_EARLY)
                EACH_EARLY(ADD_EARLY)
                EACH_LATE(ADD_LATE)
                noise_late.apply(hdr.inagg, meta.seed, meta.place, hdr.noise.group);
                noise_a.apply(hdr.inagg, meta.seed, meta.place, meta.odd_a);
                noise_b.apply(hdr.inagg, meta.seed, meta.place, meta.odd_b);
                meta.even_a = meta.odd_a ^ (NOISE_GROUP(3 ^ 4));
                meta.even_b = meta.odd_b ^ (NOISE_GROUP(3 ^ 4));
                ENCODE_EARLY(12, 13, 14, 15, 3, odd)
                ENCODE_EARLY(16, 17, 18, 19, 4, even)
                ENCODE_EARLY(20, 21, 22, 23, 5, odd)
                ENCODE_EARLY(24, 25, 26, 27, 6, even)
                ENCODE_EARLY(28, 29, 30, 31, 7, odd)
                if (IS_FIRST(meta.place)) {
                    outcomes.count(meta.worker ++ meta.outcome);
                }
                answers.count(meta.worker ++ meta.answer);
            } else {
                verdict.apply(hdr, meta);
            }
            answer.apply(hdr, meta, intrinsic.ingress_port, deparser, traffic);
            if (meta.reason != REASON_NONE && IS_FIRST(meta.place)) {
                refused.count(meta.reason);
            }
        } else {
            bool replied = false;
            if (meta.to == TO_SWITCH) {
                reply.apply(hdr, meta.own_mac, replied);
            }
            if (replied) {
                traffic.ucast_egress_port = intrinsic.ingress_port;
            } else if (meta.ours == 1) {  // the switch answers nothing else
                not_ours.count(0);
                deparser.drop_ctl = 1;
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
    EACH_LATE(MAKE_CODE)

    action readdress(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }

    table copies {
        key = { intrinsic.egress_rid : exact @name("copy"); }
        actions = { readdress; @defaultonly NoAction; }
        const default_action = NoAction();
        size = WORKERS;
    }

    apply {
        if (hdr.sums.isValid()) {
            bit<32> addend_0;
            bit<32> addend_1;
            ENCODE_LATE(0, 1, 2, 3, 0)
            ENCODE_LATE(4, 5, 6, 7, 1)
            ENCODE_LATE(8, 9, 10, 11, 2)
            copies.apply();
        } else if (hdr.bridge.made == MADE_FLOOD && hdr.bridge.ingress_port == intrinsic.egress_port) {
            deparser.drop_ctl = 1;
        }
    }
}

Pipeline(IngressParser(), Ingress(), IngressDeparser(), EgressParser(), Egress(), EgressDeparser()) pipe;

Switch(pipe) main;
