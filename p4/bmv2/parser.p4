// Parses whatever may be for this switch; lanes only if they are all there and this program has a place for each.

parser FrameParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_ARP : arp;
            ETHERTYPE_IPV4 : ipv4;
            default : accept;
        }
    }

    state arp {
        packet.extract(hdr.arp);
        transition accept;
    }

    state ipv4 {
        packet.extract(hdr.ipv4);
        // options, other versions and fragments are not looked into; flags: reserved, don't fragment, more fragments
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
        meta.payload = hdr.udp.length - UDP_BYTES - HEADER_BYTES;
        transition select(hdr.udp.length) {
            0 &&& 0xFFE0 : accept;  // less than 32 bytes, so no inagg header
            default : inagg;
        }
    }

    state inagg {
        packet.extract(hdr.inagg);
        meta.chunks = hdr.inagg.lanes >> 3;
        transition select(hdr.inagg.magic, hdr.inagg.version, hdr.inagg.kind, hdr.inagg.op, hdr.inagg.format,
                          hdr.inagg.lanes) {
            (MAGIC, VERSION, KIND_CONTRIBUTION, OP_SUM, FORMAT_UP, 0 &&& 7) : sum;
            (MAGIC, VERSION, KIND_CONTRIBUTION, OP_MAX, FORMAT_SCALE8, 0 &&& 7) : max;
#ifdef LEAF
            (MAGIC, VERSION, KIND_RESULT, OP_SUM, FORMAT_NAT8, 0 &&& 7) : max;  // a byte a lane
            (MAGIC, VERSION, KIND_RESULT, OP_MAX, FORMAT_SCALE8, 0 &&& 7) : max;
#endif
            default : accept;
        }
    }

    state sum {
        meta.payload_ok = (bit<1>)(meta.chunks != 0 && meta.chunks <= CHUNKS && meta.payload == meta.chunks * UP_BITS);
        transition select(meta.payload_ok) {
            1 : sum_chunk;
            default : accept;
        }
    }

    state sum_chunk {
        packet.extract(hdr.UP.next);
        meta.chunks = meta.chunks - 1;
        transition select(meta.chunks) {
            0 : accept;
            default : sum_chunk;
        }
    }

    state max {
        meta.payload_ok = (bit<1>)(meta.chunks != 0 && meta.chunks <= CHUNKS && meta.payload == meta.chunks * 8);
        transition select(meta.payload_ok) {
            1 : max_chunk;
            default : accept;
        }
    }

    state max_chunk {
        packet.extract(hdr.bytes.next);
        meta.chunks = meta.chunks - 1;
        transition select(meta.chunks) {
            0 : accept;
            default : max_chunk;
        }
    }
}

control FrameDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

control FrameVerify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5,
            {
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination
            },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FrameChecksum(inout headers_t hdr, inout metadata_t meta) {
    // Only of what this switch made: a forwarded packet keeps its bytes, wrong ones too.
    apply {
        update_checksum(meta.made,
            {
                hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_length, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination
            },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
