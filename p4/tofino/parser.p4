// Parses what may be for this switch. Lanes are parsed if the datagram has the length of those that this program serves:
// a parser has too few match registers to look at the whole header. What it says is checked by tables.

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta, out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.address = 0;
        meta.port = 0;
        meta.bad_checksum = false;
        hdr.bridge.setValid();
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
            default : accept;
        }
    }

    state icmp {
        packet.extract(hdr.icmp);
        transition accept;
    }

    state udp {
        packet.extract(hdr.udp);
        meta.port = hdr.udp.destination;
        transition select(hdr.udp.length) {
            UDP_BYTES + HEADER_BYTES + LANES : whole;
            0 &&& 0xFFE0 : accept;  // less than 32 bytes, so no inagg header
            default : inagg;
        }
    }

    state inagg {
        packet.extract(hdr.inagg);
        transition accept;
    }

    state whole {
        packet.extract(hdr.inagg);
        transition lanes;
    }

    state lanes {
        packet.extract(hdr.late);
        packet.extract(hdr.early);
        hdr.sums.setValid();
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
        packet.extract(hdr.late);
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
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.inagg);
        packet.emit(hdr.late);
    }
}
