// A leaf's uplink: where the switch above it is, which of its datagrams are results, and what goes up.

struct uplink_t {
    bit<8> partial_format;
    bit<32> slot_delta;     // slot there less slot here
    bit<9> port;            // the way to it
    bit<48> mac;
    bit<32> address;
    bit<16> udp;
    bit<32> key_0;          // of the noise of partial sums
    bit<32> key_1;
}

control ParentResults(in inagg_t h, in bit<9> ingress_port, in bit<32> source, in bit<16> source_port,
                      inout member_t member, inout bit<8> refusal) {
    @name(".bind_parent")
    action bind_parent(bit<16> row, bit<32> full, bit<32> epoch, bit<32> generation, bit<32> first_slot,
                       bit<8> result_format, bit<16> group) {
        member = { row, 0, 0, full, 0, epoch, generation, first_slot, 0, 0, 0, result_format, group };
    }

    @name(".refuse_parent")
    action refuse_parent(bit<8> reason) {
        refusal = reason;
    }

    // As `binding`: the order of checks is the order of priorities.
    @name(".parent_results")
    table parent_results {
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
        actions = { bind_parent; refuse_parent; }
        const default_action = refuse_parent(REASON_WRONG_KIND);
        size = PARENT_BINDINGS;
    }

    apply {
        parent_results.apply();
    }
}

control Uplink(in bit<16> row, inout uplink_t found) {
    @name(".set_uplink")
    action set_uplink(bit<8> partial_format, bit<32> slot_delta, bit<9> port, bit<48> mac, bit<32> address,
                      bit<16> udp, bit<32> key_0, bit<32> key_1) {
        found = { partial_format, slot_delta, port, mac, address, udp, key_0, key_1 };
    }

    @name(".uplink")
    table uplink {
        key = { row : exact @name("row"); }
        actions = { set_uplink; @defaultonly NoAction; }
        const default_action = NoAction();
        size = JOBS;
    }

    apply {
        uplink.apply();
    }
}

// Whether a repeated contribution goes up again, as the sum is complete and the parent has not answered. Once in a round of
// time-outs, however many children there are: for the first that asks since the sum went up last, and for one that asks
// twice.
control RepeatUp(in bit<32> slot, in bit<32> worker_bit, in bool contributes, in bool asks, out bool repeat_up) {
    @name(".slot_asked")
    register<bit<32>>(SLOTS) slot_asked;  // who has asked since then

    apply {
        bit<32> asked;
        slot_asked.read(asked, slot);
        repeat_up = asks && (asked == 0 || asked & worker_bit != 0);
        if (contributes) {
            slot_asked.write(slot, 0);
        } else if (repeat_up) {
            slot_asked.write(slot, worker_bit);
        } else if (asks) {
            slot_asked.write(slot, asked | worker_bit);
        }
    }
}

// A contribution becomes the partial sum that goes up for it. Of its header, owner and op stay.
control SendUp(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard,
               in bit<16> row, in uplink_t uplink, in bool again) {
    Rewrite() rewrite;

    @name(".partials")
    counter(PARTIAL_CELLS * JOBS, CounterType.packets) partials;

    apply {
        bit<8> format = hdr.inagg.op == OP_MAX ? FORMAT_SCALE8 : uplink.partial_format;
        rewrite.apply(hdr, meta.own_mac, KIND_CONTRIBUTION, format);
        hdr.ethernet.destination = uplink.mac;
        hdr.ipv4.destination = uplink.address;
        hdr.udp.destination = uplink.udp;
        hdr.inagg.slot = hdr.inagg.slot + uplink.slot_delta;
        partials.count((bit<32>)(row * PARTIAL_CELLS + (again ? 16w2 : 0) + (bit<16>)hdr.inagg.op - 1));
        meta.sent = row * SENT_CELLS + SENT_PARTIAL;
        standard.egress_spec = uplink.port;
    }
}
