// What goes out for a datagram: a result, an error notice, or nothing. Results and notices start on their way to the
// sender; the egress gives the copies of a multicast result the addresses of the other workers.

control Answer(inout headers_t hdr, inout metadata_t meta, in bit<9> ingress_port,
               inout ingress_intrinsic_metadata_for_deparser_t deparser,
               inout ingress_intrinsic_metadata_for_tm_t traffic) {
    action back() {
        bit<48> mac = hdr.ethernet.destination;
        hdr.ethernet.destination = hdr.ethernet.source;
        hdr.ethernet.source = mac;
        bit<32> address = hdr.ipv4.destination;
        hdr.ipv4.destination = hdr.ipv4.source;
        hdr.ipv4.source = address;
        bit<16> port = hdr.udp.destination;
        hdr.udp.destination = hdr.udp.source;
        hdr.udp.source = port;
        hdr.udp.checksum = 0;  // none, which IPv4 allows: see p4/README.md
        hdr.ipv4.tos = 0;
        hdr.ipv4.identification = 0;
        hdr.ipv4.flags = 2;  // don't fragment
        hdr.ipv4.ttl = 64;
    }
    action result() {  // as long as the contribution
        back();
        hdr.ipv4.total_length = IPV4_BYTES + UDP_BYTES + HEADER_BYTES + LANES;
        hdr.inagg.kind = KIND_RESULT;
        hdr.noise.setValid();
        hdr.bridge.made = MADE_RESULT;
    }
    action result_to_one() {
        result();
        traffic.ucast_egress_port = ingress_port;
    }
    action result_to_all() {
        result();
        traffic.mcast_grp_a = meta.group;
    }
    action notice() {
        back();
        hdr.ipv4.total_length = IPV4_BYTES + UDP_BYTES + HEADER_BYTES;
        hdr.udp.length = UDP_BYTES + HEADER_BYTES;
        hdr.inagg.kind = KIND_NOTICE;
        hdr.inagg.lanes = 0;
        hdr.inagg.owner = (bit<16>)meta.reason;
        hdr.sums.setInvalid();
        hdr.late.setInvalid();
        hdr.early.setInvalid();
        hdr.bridge.made = MADE_NOTICE;
        traffic.ucast_egress_port = ingress_port;
    }
    action nothing() {
        deparser.drop_ctl = 1;
    }

    @hidden
    table answer {
        key = {
            meta.reason : exact;
            meta.made : exact;
            meta.multicast : exact;
        }
        actions = { result_to_one; result_to_all; notice; nothing; }
        const default_action = nothing();
        const entries = {
            (REASON_NONE, MADE_RESULT, false) : result_to_one();
            (REASON_NONE, MADE_RESULT, true) : result_to_all();
            (REASON_WRONG_TOKEN, MADE_NOTHING, false) : notice();
            (REASON_WRONG_FORMAT, MADE_NOTHING, false) : notice();
            (REASON_WRONG_LANES, MADE_NOTHING, false) : notice();
            (REASON_SLOT_OUTSIDE_LEASE, MADE_NOTHING, false) : notice();
            (REASON_WRONG_OP, MADE_NOTHING, false) : notice();
        }
    }

    apply {
        answer.apply();
    }
}
