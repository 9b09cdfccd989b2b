// Why a datagram does not get to a slot, in the order of the reasons.

control Verdict(inout headers_t hdr, inout metadata_t meta) {
    action wants_same() {
        meta.wants = (bit<32>)hdr.inagg.lanes;
    }
    action wants_double() {
        meta.wants = (bit<32>)hdr.inagg.lanes << 1;
    }
    action wants_fourfold() {
        meta.wants = (bit<32>)hdr.inagg.lanes << 2;
    }
    action wants_half() {
        meta.wants = (bit<32>)hdr.inagg.lanes >> 1;
    }
    action wants_quarter() {
        meta.wants = (bit<32>)hdr.inagg.lanes >> 2;
    }

    @hidden
    table payload {
        key = { hdr.inagg.format : exact; }
        actions = { wants_same; wants_double; wants_fourfold; wants_half; wants_quarter; }
        const default_action = wants_same();
        const entries = {
            FORMAT_NAT4 : wants_half();
            FORMAT_TERN : wants_quarter();
            FORMAT_FIX32 : wants_fourfold();
            FORMAT_INT4 : wants_half();
            FORMAT_INT16 : wants_double();
        }
    }

    action is(bit<8> reason) {
        meta.reason = reason;
    }
    action is_malformed() {
        meta.reason = meta.malformed;
    }
    action is_refused() {
        meta.reason = meta.refusal;
    }

    @hidden
    table verdict {
        key = {
            meta.bad_checksum : ternary;
            hdr.udp.isValid() : ternary;
            hdr.inagg.isValid() : ternary;
            meta.malformed : ternary;
            meta.beyond : ternary;
            hdr.inagg.kind : ternary;
        }
        actions = { is; is_malformed; is_refused; }
        const default_action = is(REASON_TRAILING_BYTES);
        const entries = {
            (true, _, _, _, _, _) : is(LINK_IP_CHECKSUM);
            (_, false, _, _, _, _) : is(LINK_FRAGMENT);
            (_, _, false, _, _, _) : is(REASON_TOO_SHORT);
            (_, _, _, 0x08 &&& 0x08, _, _) : is_malformed();
            (_, _, _, 0x04 &&& 0x04, _, _) : is_malformed();
            (_, _, _, 0x02 &&& 0x02, _, _) : is_malformed();
            (_, _, _, 0x01 &&& 0x01, _, _) : is_malformed();
            (_, _, _, _, 0x80000000 &&& 0x80000000, _) : is(REASON_TRUNCATED);
            (_, _, _, _, 0, KIND_CONTRIBUTION) : is_refused();
            (_, _, _, _, 0, _) : is(REASON_WRONG_KIND);
        }
    }

    apply {
        meta.has = (bit<32>)hdr.udp.length - 32;
        payload.apply();
        meta.beyond = meta.has - meta.wants;
        verdict.apply();
    }
}
