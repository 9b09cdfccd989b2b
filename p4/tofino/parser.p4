// Parses what may be for this switch. Lanes are parsed if the datagram has the length of those that this program serves:
// a parser has too few match registers to look at the whole header. What it says is checked by tables. What stands in front
// of a frame from a loopback port is the switch's own; the control plane says which ports are, and nobody else can.

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(intrinsic);
        meta.from = port_metadata_unpack<port_t>(packet);
        meta.address = 0;
        meta.port = 0;
        meta.place = PLACE_NONE;
        meta.index = 0;
        meta.so_far = COMPLETE_BEFORE;
        meta.fragment = 0;
        meta.bad_checksum = false;
        hdr.bridge.setValid();
        transition select(meta.from.loopback) {
            0 : ethernet;
            default : carried;
        }
    }

    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_ARP : arp;
            ETHERTYPE_IPV4 : ipv4;
            default : accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        meta.address = hdr.arp.target;
        transition accept;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.bad_checksum = ipv4_checksum.verify();
        meta.address = hdr.ipv4.destination;
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& 1, 0, PROTOCOL_ICMP) : icmp;
            (4, 5, 0 &&& 1, 0, PROTOCOL_UDP) : udp;
            (4, 5, _, _, PROTOCOL_UDP) : fragment;
            default : accept;
        }
    }

    state fragment {
        meta.fragment = 1;
        transition accept;
    }

    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        meta.port = hdr.udp.destination;
        transition select(hdr.udp.length) {
            ALL_HEADERS + 1 * CHUNK : first_0;
            ALL_HEADERS + 2 * CHUNK : first_1;
            ALL_HEADERS + 3 * CHUNK : first_2;
            ALL_HEADERS + 4 * CHUNK : first_3;
            0 &&& 0xFFE0 : accept;  // less than 32 bytes, so no inagg header
            default : inagg;
        }
    }

    state inagg {
        packet.extract(hdr.inagg);
        transition accept;
    }

    // The first pass, which begins with the last chunk. Those before it stay as they are.
#define FIRST(chunk, next) \
    state first_##chunk { \
        packet.extract(hdr.inagg); \
        meta.place = PLACE_FIRST | chunk; \
        meta.index = hdr.inagg.slot[15:0]; \
        transition next; \
    }
    FIRST(0, lanes)
    FIRST(1, ahead_1)
    FIRST(2, ahead_2)
    FIRST(3, ahead_3)

    // A later one. What the first has looked at is not looked at again.
    state carried {
        packet.extract(hdr.carry);
        packet.extract(hdr.coded);
        meta.place = hdr.carry.place;
        meta.so_far = hdr.carry.complete;
        meta.index = hdr.carry.index;
        transition select(hdr.carry.place) {
            PLACE_LATER | 0 : later_0;
            PLACE_LATER | 1 : later_1;
            PLACE_LATER | 2 : later_2;
        }
    }
#define LATER(chunk, next) \
    state later_##chunk { \
        packet.extract(hdr.ethernet); \
        packet.extract(hdr.ipv4); \
        packet.extract(hdr.udp); \
        packet.extract(hdr.inagg); \
        meta.address = hdr.ipv4.destination; \
        meta.port = hdr.udp.destination; \
        transition next; \
    }
    LATER(0, lanes)
    LATER(1, ahead_1)
    LATER(2, ahead_2)

    state ahead_3 {
        packet.extract(hdr.ahead_3);
        transition ahead_2;
    }

    state ahead_2 {
        packet.extract(hdr.ahead_2);
        transition ahead_1;
    }

    state ahead_1 {
        packet.extract(hdr.ahead_1);
        transition lanes;
    }

    state lanes {
        packet.extract(hdr.late);
        packet.extract(hdr.early);
        transition accept;
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t intrinsic) {
    apply {
        packet.emit(hdr);
    }
}

// The egress looks into what this switch made alone: all else goes out with the bytes with which it came.
parser EgressParser(packet_in packet, out headers_t hdr, out egress_metadata_t meta,
                    out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        transition select(hdr.bridge.made) {
            MADE_RESULT : result;
            MADE_PASS : pass;
            MADE_NOTICE : notice;
            default : accept;
        }
    }

    state result {
        packet.extract(hdr.noise);
        packet.extract(hdr.sums);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.inagg);
        hdr.late.setValid();
        transition accept;
    }

    state pass {
        packet.extract(hdr.carry);
        packet.extract(hdr.noise);
        packet.extract(hdr.sums);
        hdr.late.setValid();
        transition accept;
    }

    state notice {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control EgressDeparser(packet_out packet, inout headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t intrinsic) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update({
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination
            });
        }
        packet.emit(hdr.carry);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.inagg);
        packet.emit(hdr.late);
    }
}
