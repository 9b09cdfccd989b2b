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
#define SENT_ACK 3  // in the counter `sent`, beside notices (0), sums (1) and maxima (2)
#define SENT_UP 3   // at a leaf, which sends no acknowledgements: partial sums

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
#ifdef LEAF
#include "leaf/uplink.p4"
#include "leaf/slot.p4"
#define UPLINK_PARAMETER in uplink_t up,
#define UPLINK_ARGUMENT up,
#else
#include "slot.p4"
#define UPLINK_PARAMETER
#define UPLINK_ARGUMENT
#endif
#include "lane.p4"
#include "lanes.p4"
#include "answer.p4"
#include "aggregate.p4"

control FrameIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Reply() reply;
    Aggregate() aggregate;
    Forward() forward;
    bit<48> own_mac;
    bit<16> own_port;

    // Frames to the switch's own Ethernet address that it has no answer for.
    @name(".not_ours")
    counter(1, CounterType.packets) not_ours;

    @name(".own")
    action own(@name("mac") bit<48> mac, @name("port") bit<16> data_port) {
        own_mac = mac;
        own_port = data_port;
    }

    @name(".local")
    table local {
        key = { meta.address : exact @name("address"); }
        actions = { own; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    @name(".to_switch")
    table to_switch {
        key = { hdr.ethernet.destination : exact @name("destination"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 16;
    }

    apply {
        own_mac = 0;
        own_port = 0;
        meta.address = hdr.arp.isValid() ? hdr.arp.target : (hdr.ipv4.isValid() ? hdr.ipv4.destination : 0);
        bool done = false;
        if (local.apply().hit) {
            bool fragment = hdr.ipv4.isValid() && hdr.ipv4.protocol == PROTOCOL_UDP &&
                (hdr.ipv4.flags[0:0] == 1 || hdr.ipv4.offset != 0);
            if (fragment || hdr.udp.isValid() && hdr.udp.destination == own_port) {
                aggregate.apply(hdr, meta, standard, own_mac);
                done = true;
            } else {
                reply.apply(hdr, own_mac, done);
                if (done) {
                    standard.egress_spec = standard.ingress_port;
                }
            }
        }
        if (!done) {
            if (to_switch.apply().hit) {  // which answers nothing else
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
    counter(4 * JOBS, CounterType.packets) sent;

    @name(".readdress")
    action readdress(@name("mac") bit<48> mac, @name("address") bit<32> address, @name("port") bit<16> port) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }

    @name(".copies")
    table copies {
        key = { standard.egress_rid : exact @name("copy"); }
        actions = { readdress; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 32 * JOBS;
    }

    apply {
        if (meta.made) {
            if (copies.apply().hit) {  // copy 0 is that to the sender, which has its address
                meta.worker = standard.egress_rid - 1;
            }
            if (hdr.inagg.kind == KIND_RESULT && hdr.inagg.owner != 0 &&
                meta.worker != meta.row * 32 + hdr.inagg.owner - 1) {
                hdr.inagg.kind = KIND_ACK;
                hdr.inagg.lanes = 0;
                hdr.udp.length = UDP_BYTES + HEADER_BYTES;
                hdr.ipv4.total_length = IPV4_BYTES + hdr.udp.length;
                meta.sent = meta.row * 4 + SENT_ACK;
            }
            sent.count((bit<32>)meta.sent);
            truncate(14 + (bit<32>)hdr.ipv4.total_length);
        } else if (meta.flooded && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);
        }
    }
}

V1Switch(FrameParser(), FrameVerify(), FrameIngress(), FrameEgress(), FrameChecksum(), FrameDeparser()) main;
