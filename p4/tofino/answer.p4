// What goes out for a datagram: to the next pass, a result, an error notice, or nothing. Results and notices start on their
// way to the sender; the egress gives the copies of a multicast result the addresses of the other workers.

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
    action sums() {
        hdr.noise.setValid();
        hdr.noise.op = hdr.inagg.op;
        hdr.sums.setValid();
        hdr.late.setInvalid();  // the egress makes new ones
    }
    action result() {  // as long as the contribution
        back();
        sums();
        hdr.ipv4.total_length = hdr.udp.length + IPV4_BYTES;
        hdr.inagg.kind = KIND_RESULT;
        hdr.carry.setInvalid();
        hdr.bridge.made = MADE_RESULT;
    }
    action result_to_one() {
        result();
        traffic.ucast_egress_port = meta.asker;
    }
    action result_to_all() {
        result();
        traffic.mcast_grp_a = meta.group;
    }
    action pass() {
        sums();
        hdr.carry.setValid();
        hdr.carry.place = meta.next_place;
        hdr.carry.complete = meta.so_far;
        hdr.carry.index = meta.index + (1 << SLOT_BITS - 2);
        hdr.bridge.made = MADE_PASS;
        traffic.ucast_egress_port = meta.next_port;
    }
    action notice() {
        back();
        hdr.ipv4.total_length = IPV4_BYTES + UDP_BYTES + HEADER_BYTES;
        hdr.udp.length = UDP_BYTES + HEADER_BYTES;
        hdr.inagg.kind = KIND_NOTICE;
        hdr.inagg.lanes = 0;
        hdr.inagg.owner = (bit<16>)meta.reason;
        hdr.ahead_3.setInvalid();
        hdr.ahead_2.setInvalid();
        hdr.ahead_1.setInvalid();
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
            meta.answer : exact;
        }
        actions = { result_to_one; result_to_all; pass; notice; nothing; }
        const default_action = nothing();
        const entries = {
            (REASON_NONE, ANSWER_ONE) : result_to_one();
            (REASON_NONE, ANSWER_ALL) : result_to_all();
            (REASON_NONE, ANSWER_PASS) : pass();
            (REASON_DUPLICATE, ANSWER_PASS) : pass();
            // Of the first pass alone: in a later one the binding refuses strangers and nobody else, and a generation
            // has the op in each pass with which it began in the first.
            (REASON_WRONG_TOKEN, ANSWER_NOTHING) : notice();
            (REASON_WRONG_FORMAT, ANSWER_NOTHING) : notice();
            (REASON_WRONG_LANES, ANSWER_NOTHING) : notice();
            (REASON_SLOT_OUTSIDE_LEASE, ANSWER_NOTHING) : notice();
            (REASON_WRONG_OP, ANSWER_NOTHING) : notice();
        }
    }

    apply {
        answer.apply();
    }
}
