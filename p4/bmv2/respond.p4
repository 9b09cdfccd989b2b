// What goes out for a datagram: for one that got to its slot a result, or at a leaf a partial sum, once the sum is complete;
// for one that was refused an error notice, if its reason has one.

// A counter can only add one, and a datagram may have many invalid codes: cell i of a job counts datagrams whose number of
// them has bit i set.
#define COUNT_INVALID_BIT(i) \
    if (invalid[i:i] == 1) { invalid_codes.count((bit<32>)(member.row * INVALID_CELLS + i)); }

control Respond(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard,
                in member_t member, in uplink_t uplink, in effect_t effect) {
    Lanes() lanes;
    Rewrite() rewrite;
    SendUp() send_up;

    // By worker; Tofino: cells of `outcomes` and `answers`.
    @name(".contributions")
    counter(CHILDREN_MAX * JOBS, CounterType.packets) contributions;
    @name(".resends")
    counter(CHILDREN_MAX * JOBS, CounterType.packets) resends;
    // By job; Tofino: the sum of a cell of `answers` over its workers.
    @name(".results")
    counter(JOBS, CounterType.packets) results;
    // Tofino does not count them.
    @name(".invalid_codes")
    counter(INVALID_CELLS * JOBS, CounterType.packets) invalid_codes;

    apply {
        bit<32> invalid;
        lanes.apply(hdr, member, uplink, effect, invalid);
        if (effect.contributes) {
            contributions.count((bit<32>)member.worker);
            if (invalid != 0) {
                COUNT_INVALID_BIT(0) COUNT_INVALID_BIT(1) COUNT_INVALID_BIT(2) COUNT_INVALID_BIT(3)
                COUNT_INVALID_BIT(4) COUNT_INVALID_BIT(5) COUNT_INVALID_BIT(6) COUNT_INVALID_BIT(7)
                COUNT_INVALID_BIT(8)
            }
        }
        meta.row = member.row;
        meta.worker = member.worker;
        meta.made = effect.complete;
        if (IS_LEAF && effect.up) {
            send_up.apply(hdr, meta, standard, member.row, uplink, effect.repeat_up);
        } else if (effect.complete) {
            rewrite.apply(hdr, meta.own_mac, KIND_RESULT, member.result_format);
            meta.sent = member.row * SENT_CELLS + (bit<16>)hdr.inagg.op;
            if (effect.resend) {
                resends.count((bit<32>)member.worker);
                standard.egress_spec = standard.ingress_port;
            } else {
                results.count((bit<32>)member.row);
                standard.mcast_grp = member.group;
            }
        } else {
            mark_to_drop(standard);
        }
    }
}

// `noticed`: the sender is a worker, so a notice can help.
control Refuse(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard,
               in bool noticed, in bit<8> reason) {
    Rewrite() rewrite;

    apply {
        if (noticed && (reason >= REASON_WRONG_TOKEN && reason <= REASON_SLOT_OUTSIDE_LEASE ||
                        reason == REASON_WRONG_OP || reason == REASON_OUTSIDE_WINDOW)) {
            hdr.inagg.lanes = 0;
            hdr.inagg.owner = (bit<16>)reason;
            rewrite.apply(hdr, meta.own_mac, KIND_NOTICE, hdr.inagg.format);
            meta.made = true;
            meta.sent = SENT_NOTICE;
            standard.egress_spec = standard.ingress_port;
        } else {
            mark_to_drop(standard);
        }
    }
}
