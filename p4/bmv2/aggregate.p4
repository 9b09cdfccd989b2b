// A datagram to the switch's data port, or a fragment that may be of one: all of its checks, then the slot, the lanes, and what goes back.

// A counter can only add one, and a datagram may have many invalid codes: cell 16 * row + i counts datagrams whose number
// of them has bit i set.
#define COUNT_INVALID_BIT(i) \
    if (invalid[i:i] == 1) { invalid_codes.count((bit<32>)(member.row * 16 + i)); }

control Aggregate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard, in bit<48> own_mac) {
    Check() check;
    Binding() binding;
#ifdef LEAF
    Results() results_below;
    Above() above;
    Ascend() ascend;
    // Partial sums that went up: by row, whether they had before, and op.
    @name(".partials")
    counter(4 * JOBS, CounterType.packets) partials;
#endif
    Slot() slot;
    Lanes() lanes;
    Answer() answer;

    @name(".refused")
    counter(64, CounterType.packets) refused;
    @name(".datagrams_in")
    counter(1, CounterType.packets_and_bytes) datagrams_in;
    @name(".admitted")
    counter(32 * JOBS, CounterType.packets_and_bytes) admitted;
    @name(".contributions")
    counter(32 * JOBS, CounterType.packets) contributions;
    @name(".duplicates")
    counter(32 * JOBS, CounterType.packets) duplicates;
    @name(".resends")
    counter(32 * JOBS, CounterType.packets) resends;
    @name(".stale")
    counter(32 * JOBS, CounterType.packets) stale;
    @name(".results")
    counter(JOBS, CounterType.packets) results;
    @name(".invalid_codes")
    counter(16 * JOBS, CounterType.packets) invalid_codes;

    apply {
        bit<8> reason = REASON_NONE;
        member_t member = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
        bool contributes = false;
        bool first = false;
        bool complete = false;
        bool from_parent = false;
        way_t way = { false, false, false, false };
#ifdef LEAF
        uplink_t up = { 0, 0, 0, 0, 0, 0, 0, 0 };
#endif

        if (standard.checksum_error == 1) {
            reason = LINK_IP_CHECKSUM;
        } else if (!hdr.udp.isValid()) {
            reason = LINK_FRAGMENT;
        } else if (standard.parser_error != error.NoError || hdr.udp.length < UDP_BYTES ||
                   hdr.udp.length > hdr.ipv4.total_length |-| IPV4_BYTES) {
            reason = LINK_MALFORMED;
        } else {
            datagrams_in.count(0);
            if (!hdr.inagg.isValid()) {
                reason = REASON_TOO_SHORT;
            } else {
                check.apply(hdr.inagg, reason);
                bit<32> wanted = payload_bytes(hdr.inagg.format, hdr.inagg.lanes);
                if (reason != REASON_NONE) {
                } else if ((bit<32>)meta.payload < wanted) {
                    reason = REASON_TRUNCATED;
                } else if ((bit<32>)meta.payload > wanted) {
                    reason = REASON_TRAILING_BYTES;
                } else if (hdr.inagg.kind != KIND_CONTRIBUTION) {
#ifdef LEAF
                    from_parent = true;
                    results_below.apply(hdr.inagg, standard.ingress_port, hdr.ipv4.source, hdr.udp.source, member, reason);
#else
                    reason = REASON_WRONG_KIND;
#endif
                } else {
                    binding.apply(hdr.inagg, standard.ingress_port, hdr.ipv4.source, hdr.udp.source, member, reason);
                }
                bit<16> owner = hdr.inagg.owner - 1;
                if (reason == REASON_NONE && hdr.inagg.owner != 0 &&
                    (owner >= 32 || member.owners >> (bit<8>)owner & 1 == 0)) {
                    reason = REASON_WRONG_OWNER;
                }
            }
        }

        if (reason == REASON_NONE) {
#ifdef LEAF
            above.apply(member.row, up);
            if (from_parent) {
                hdr.inagg.slot = hdr.inagg.slot - up.delta;
            }
#endif
            if (!from_parent) {
                admitted.count((bit<32>)member.worker);
            }
            slot.apply(hdr.inagg, member, from_parent, reason, contributes, first, complete, way);
            if (from_parent) {
                // the parent is no worker, of which there are counters
            } else if (reason == REASON_STALE) {
                stale.count((bit<32>)member.worker);
            } else if (reason == REASON_DUPLICATE) {
                duplicates.count((bit<32>)member.worker);
            }
#ifdef LEAF
            if (way.asked) {
                refused.count((bit<32>)reason);
                reason = REASON_NONE;
            }
#endif
        }

        if (reason != REASON_NONE) {
            refused.count((bit<32>)reason);
            if (!from_parent && (reason >= REASON_WRONG_TOKEN && reason <= REASON_SLOT_OUTSIDE_LEASE ||
                                 reason == REASON_WRONG_OP || reason == REASON_OUTSIDE_WINDOW)) {
                answer.apply(hdr, own_mac, KIND_NOTICE, hdr.inagg.format, reason);
                meta.made = true;
                meta.sent = 0;
                standard.egress_spec = standard.ingress_port;
            } else {
                mark_to_drop(standard);
            }
        } else {
            bit<32> invalid;
            bool as_is = hdr.inagg.op == OP_MAX || way.again || way.taken;
            lanes.apply(hdr, member, UPLINK_ARGUMENT contributes, way.taken, first, complete, as_is, invalid);
            if (contributes) {
                contributions.count((bit<32>)member.worker);
                if (invalid != 0) {
                    COUNT_INVALID_BIT(0) COUNT_INVALID_BIT(1) COUNT_INVALID_BIT(2) COUNT_INVALID_BIT(3)
                    COUNT_INVALID_BIT(4) COUNT_INVALID_BIT(5) COUNT_INVALID_BIT(6) COUNT_INVALID_BIT(7)
                    COUNT_INVALID_BIT(8)
                }
            }
            meta.row = member.row;
            meta.worker = member.worker;
#ifdef LEAF
            if (way.up) {
                bit<8> format = hdr.inagg.op == OP_MAX ? FORMAT_SCALE8 : up.format;
                answer.apply(hdr, own_mac, KIND_CONTRIBUTION, format, REASON_NONE);
                ascend.apply(hdr, up);
                partials.count((bit<32>)(member.row * 4 + (way.asked ? 16w2 : 0) + (bit<16>)hdr.inagg.op - 1));
                meta.made = true;
                meta.sent = member.row * 4 + SENT_UP;
                standard.egress_spec = up.port;
            } else
#endif
            if (complete) {
                answer.apply(hdr, own_mac, KIND_RESULT, member.result_format, REASON_NONE);
                meta.made = true;
                meta.sent = member.row * 4 + (bit<16>)hdr.inagg.op;
                if (contributes || way.taken) {
                    results.count((bit<32>)member.row);
                    standard.mcast_grp = member.group;
                } else {
                    resends.count((bit<32>)member.worker);
                    standard.egress_spec = standard.ingress_port;
                }
            } else {
                mark_to_drop(standard);
            }
        }
    }
}
