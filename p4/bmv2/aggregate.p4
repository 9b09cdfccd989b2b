// A datagram to the switch's data port, or a fragment that may be of one: all of its checks, then the slot, the lanes, and what goes back.

// A counter can only add one, and a datagram may have many invalid codes: cell 16 * row + i counts datagrams whose number
// of them has bit i set.
#define COUNT_INVALID_BIT(i) \
    if (invalid[i:i] == 1) { invalid_codes.count((bit<32>)(member.row * 16 + i)); }

control Aggregate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard, in bit<48> own_mac) {
    Check() check;
    Binding() binding;
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

        if (standard.checksum_error == 1) {
            reason = LINK_IP_CHECKSUM;
        } else if (!hdr.udp.isValid()) {
            reason = LINK_FRAGMENT;
        } else if (standard.parser_error != error.NoError || hdr.udp.length < UDP_BYTES ||
                   hdr.udp.length > hdr.ipv4.total_length - IPV4_BYTES) {
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
                    reason = REASON_WRONG_KIND;
                } else {
                    binding.apply(hdr.inagg, standard.ingress_port, hdr.ipv4.source, hdr.udp.source, member, reason);
                    bit<16> owner = hdr.inagg.owner - 1;
                    if (reason == REASON_NONE && hdr.inagg.owner != 0 &&
                        (owner >= 32 || member.owners >> (bit<8>)owner & 1 == 0)) {
                        reason = REASON_WRONG_OWNER;
                    }
                }
            }
        }

        if (reason == REASON_NONE) {
            admitted.count((bit<32>)member.worker);
            slot.apply(hdr.inagg, member, reason, contributes, first, complete);
            if (reason == REASON_STALE) {
                stale.count((bit<32>)member.worker);
            } else if (reason == REASON_DUPLICATE) {
                duplicates.count((bit<32>)member.worker);
            }
        }

        if (reason != REASON_NONE) {
            refused.count((bit<32>)reason);
            if (reason >= REASON_WRONG_TOKEN && reason <= REASON_SLOT_OUTSIDE_LEASE || reason == REASON_WRONG_OP ||
                reason == REASON_OUTSIDE_WINDOW) {
                answer.apply(hdr, own_mac, KIND_NOTICE, hdr.inagg.format, reason);
                meta.made = true;
                meta.sent = 0;
                standard.egress_spec = standard.ingress_port;
            } else {
                mark_to_drop(standard);
            }
        } else {
            bit<32> invalid;
            lanes.apply(hdr, member, contributes, first, complete, invalid);
            if (contributes) {
                contributions.count((bit<32>)member.worker);
                if (invalid != 0) {
                    COUNT_INVALID_BIT(0) COUNT_INVALID_BIT(1) COUNT_INVALID_BIT(2) COUNT_INVALID_BIT(3)
                    COUNT_INVALID_BIT(4) COUNT_INVALID_BIT(5) COUNT_INVALID_BIT(6) COUNT_INVALID_BIT(7)
                    COUNT_INVALID_BIT(8)
                }
            }
            if (complete) {
                answer.apply(hdr, own_mac, KIND_RESULT, member.result_format, REASON_NONE);
                meta.made = true;
                meta.sent = member.row * 4 + (bit<16>)hdr.inagg.op;
                meta.row = member.row;
                meta.worker = member.worker;
                if (contributes) {
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
