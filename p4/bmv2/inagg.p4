// The aggregation on bmv2 (v1model, simple_switch_grpc).
//
//     p4c-bm2-ss -D NAT8 -D LANES=32 p4/bmv2/inagg.p4
//
// NAT8, NAT4, TERN, DITH8 or FIX32: how contributions are encoded. Beside NAT8: LEAF, for a leaf of a tree of switches, or
// ROOT, for the root of one whose trunks carry exact sums. LANES: the most lanes of a job (8, 32, 64, 128, 256).
// SLOTS: how many slots this switch has. JOBS: how many jobs at once.

#define V1MODEL_VERSION 20180101
#include <core.p4>
#include <v1model.p4>

#ifndef SLOTS
#define SLOTS 1024
#endif
#ifndef JOBS
#define JOBS 32
#endif
#define FORWARD_ENTRIES 1024
#define FLOOD_GROUP 1
#define OWN_ADDRESSES 16
#define BINDINGS ((8 * CHILDREN_MAX + 1) * JOBS)  // 8 for each worker, 1 for each job
#define PARENT_BINDINGS (16 * JOBS)
#ifdef LEAF
const bool IS_LEAF = true;  // of a tree of switches: there is a parent
#else
const bool IS_LEAF = false;
#endif

#include "../include/layout.p4"
#include "../include/headers.p4"
#include "../include/noise.p4"
#include "repeat.p4"
#if defined(NAT8) && defined(LEAF)
#include "formats/nat8_leaf.p4"
#elif defined(NAT8) && defined(ROOT)
#include "formats/nat8_root.p4"
#elif defined(NAT8)
#include "formats/nat8.p4"
#elif defined(NAT4)
#include "formats/nat4.p4"
#elif defined(TERN)
#include "formats/tern.p4"
#elif defined(DITH8)
#include "formats/dith8.p4"
#elif defined(FIX32)
#include "formats/fix32.p4"
#else
#error "define NAT8, NAT4, TERN, DITH8 or FIX32"
#endif
#include "packet.p4"
#include "parser.p4"
#include "../include/check.p4"
#include "../include/forward.p4"
#include "reply.p4"
#include "binding.p4"
#include "rewrite.p4"
#include "leaf/uplink.p4"
#include "slot.p4"
#include "lane.p4"
#include "lanes.p4"
#include "validate.p4"
#include "take.p4"
#include "respond.p4"
#include "aggregate.p4"

control FrameIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Reply() reply;
    Aggregate() aggregate;
    Forward() forward;

    // Frames to the switch's own Ethernet address that it has no answer for.
    @name(".not_ours")
    counter(1, CounterType.packets) not_ours;

    @name(".own")
    action own(bit<48> mac, bit<8> to) {
        meta.own_mac = mac;
        meta.to = to;
    }

    @name(".local")
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

    @name(".ours")
    action ours() {
        meta.ours = 1;
    }

    @name(".to_switch")
    table to_switch {
        key = { hdr.ethernet.destination : exact @name("destination"); }
        actions = { ours; @defaultonly NoAction; }
        const default_action = NoAction();
        size = OWN_ADDRESSES;
    }

    apply {
        meta.to = TO_NOBODY;
        meta.ours = 0;
        meta.address = hdr.arp.isValid() ? hdr.arp.target : (hdr.ipv4.isValid() ? hdr.ipv4.destination : 0);
        meta.port = hdr.udp.isValid() ? hdr.udp.destination : 0;
        bool fragment = hdr.ipv4.isValid() && hdr.ipv4.protocol == PROTOCOL_UDP &&
            (hdr.ipv4.flags[0:0] == 1 || hdr.ipv4.offset != 0);
        meta.fragment = fragment ? 8w1 : 0;
        local.apply();
        bool done = false;
        if (meta.to == TO_DATA_PORT) {
            aggregate.apply(hdr, meta, standard);
            done = true;
        } else if (meta.to == TO_SWITCH) {
            reply.apply(hdr, meta.own_mac, done);
            if (done) {
                standard.egress_spec = standard.ingress_port;
            }
        }
        if (!done) {
            to_switch.apply();
            if (meta.ours == 1) {  // the switch answers nothing else
                not_ours.count(0);
                mark_to_drop(standard);
            } else {
                bit<9> port;
                forward.apply(hdr.ethernet.destination, port, meta.flooded);
                if (meta.flooded) {
                    standard.mcast_grp = FLOOD_GROUP;
                } else {
                    standard.egress_spec = port;
                }
            }
        }
    }
}

control FrameEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    @name(".sent")
    counter(SENT_CELLS * JOBS, CounterType.packets) sent;

    @name(".readdress")
    action readdress(bit<48> mac, bit<32> address, bit<16> port) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }

    @name(".copies")
    table copies {
        key = { standard.egress_rid : exact @name("copy"); }
        actions = { readdress; @defaultonly NoAction; }
        const default_action = NoAction();
        size = CHILDREN_MAX * JOBS;
    }

    apply {
        if (meta.made) {
            if (copies.apply().hit) {  // copy 0 is that to the sender, which has its address
                meta.worker = standard.egress_rid - 1;
            }
            if (hdr.inagg.kind == KIND_RESULT && hdr.inagg.owner != 0 &&
                meta.worker != meta.row * CHILDREN_MAX + hdr.inagg.owner - 1) {
                hdr.inagg.kind = KIND_ACK;
                hdr.inagg.lanes = 0;
                hdr.udp.length = UDP_BYTES + HEADER_BYTES;
                hdr.ipv4.total_length = IPV4_BYTES + hdr.udp.length;
                meta.sent = meta.row * SENT_CELLS + SENT_ACK;
            }
            sent.count((bit<32>)meta.sent);
            truncate(ETHERNET_BYTES + (bit<32>)hdr.ipv4.total_length);
        } else if (meta.flooded && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        }
    }
}

V1Switch(FrameParser(), FrameVerify(), FrameIngress(), FrameEgress(), FrameChecksum(), FrameDeparser()) main;
