// Whether a datagram may get to a slot, and as whose: all reasons but 39 to 42, in their order.

control Validate(in headers_t hdr, in bit<16> payload, in standard_metadata_t standard, inout member_t member,
                 out bool from_parent, inout bit<8> reason) {
    Check() check;
    Binding() binding;
    ParentResults() parent_results;

    // Datagrams to the data port that the link has brought in one piece.
    @name(".datagrams_in")
    counter(1, CounterType.packets_and_bytes) datagrams_in;

    apply {
        from_parent = false;
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
            }
        }

        if (reason == REASON_NONE) {
            bit<32> wanted = payload_bytes(hdr.inagg.format, hdr.inagg.lanes);
            if ((bit<32>)payload < wanted) {
                reason = REASON_TRUNCATED;
            } else if ((bit<32>)payload > wanted) {
                reason = REASON_TRAILING_BYTES;
            } else if (hdr.inagg.kind == KIND_CONTRIBUTION) {
                binding.apply(hdr.inagg, standard.ingress_port, hdr.ipv4.source, hdr.udp.source, member, reason);
            } else if (IS_LEAF) {
                from_parent = true;
                parent_results.apply(hdr.inagg, standard.ingress_port, hdr.ipv4.source, hdr.udp.source, member, reason);
            } else {
                reason = REASON_WRONG_KIND;
            }
        }

        bit<16> owner = hdr.inagg.owner - 1;
        if (reason == REASON_NONE && hdr.inagg.owner != 0 &&
            (owner >= CHILDREN_MAX || member.owners >> (bit<8>)owner & 1 == 0)) {
            reason = REASON_WRONG_OWNER;
        }
    }
}
