// What a leaf must know of the switch above it: where it is, and which of its datagrams are results.

struct uplink_t {
    bit<8> format;      // of partial sums
    bit<32> delta;      // slot there less slot here
    bit<9> port;        // the way to it
    bit<48> mac;
    bit<32> address;
    bit<16> udp;
    bit<32> key_0;      // of the noise of partial sums
    bit<32> key_1;
}

control Results(in inagg_t h, in bit<9> ingress_port, in bit<32> source, in bit<16> source_port, inout member_t member,
                inout bit<8> reason) {
    @name(".result")
    action take(bit<16> row, bit<32> full, bit<32> epoch, bit<32> generation, bit<32> first_slot, bit<8> result_format,
                bit<16> group) {
        member = { row, 0, 0, full, 0, epoch, generation, first_slot, 0, 0, 0, result_format, group };
    }

    @name(".refuse_result")
    action refuse(@name("reason") bit<8> why) {
        reason = why;
    }

    // As `binding`: the order of checks is the order of priorities.
    @name(".results_below")
    table from_above {
        key = {
            h.job : ternary @name("job");
            ingress_port : ternary @name("ingress_port");
            source : ternary @name("source");
            source_port : ternary @name("source_port");
            h.token : ternary @name("token");
            h.kind : ternary @name("kind");
            h.op : ternary @name("op");
            h.format : ternary @name("format");
            h.lanes : ternary @name("lanes");
            h.slot : ternary @name("slot");
        }
        actions = { take; refuse; }
        const default_action = refuse(REASON_WRONG_KIND);
        size = 16 * JOBS;
    }

    apply {
        from_above.apply();
    }
}

control Above(in bit<16> row, out uplink_t up) {
    @name(".parent")
    action parent(@name("format") bit<8> partial_format, bit<32> delta, bit<9> port, bit<48> mac, bit<32> address,
                  bit<16> udp, bit<32> key_0, bit<32> key_1) {
        up = { partial_format, delta, port, mac, address, udp, key_0, key_1 };
    }

    @name(".above")
    table above {
        key = { row : exact @name("row"); }
        actions = { parent; @defaultonly NoAction; }
        const default_action = NoAction();
        size = JOBS;
    }

    apply {
        up = { 0, 0, 0, 0, 0, 0, 0, 0 };
        above.apply();
    }
}

// A partial sum starts on its way up. Of what stood in the header of the contribution, owner and op stay.
control Ascend(inout headers_t hdr, in uplink_t up) {
    apply {
        hdr.ethernet.destination = up.mac;
        hdr.ipv4.destination = up.address;
        hdr.udp.destination = up.udp;
        hdr.inagg.slot = hdr.inagg.slot + up.delta;
    }
}
