// Why a datagram does not get to a slot, in the order of the reasons.

control Verdict(inout headers_t hdr, inout metadata_t meta) {
    action wants_same() {
        meta.wants = hdr.inagg.lanes;
    }
    action wants_double() {
        meta.wants = hdr.inagg.lanes << 1;
    }
    action wants_fourfold() {
        meta.wants = hdr.inagg.lanes << 2;
    }
    action wants_more_than_there_can_be() {
        meta.wants = 0xFFFF;
    }
    action wants_half() {
        meta.wants = hdr.inagg.lanes >> 1;
    }
    action wants_quarter() {
        meta.wants = hdr.inagg.lanes >> 2;
    }

    @hidden
    table payload {
        key = {
            hdr.inagg.format : ternary;
            hdr.inagg.lanes : ternary;
        }
        actions = { wants_more_than_there_can_be; wants_same; wants_double; wants_fourfold; wants_half; wants_quarter; }
        const default_action = wants_same();
        const entries = {
            (FORMAT_NAT4, _) : wants_half();
            (FORMAT_TERN, _) : wants_quarter();
            (FORMAT_FIX32, 0x8000 &&& 0x8000) : wants_more_than_there_can_be();
            (FORMAT_FIX32, 0x4000 &&& 0x4000) : wants_more_than_there_can_be();
            (FORMAT_FIX32, _) : wants_fourfold();
            (FORMAT_INT4, _) : wants_half();
            (FORMAT_INT16, 0x8000 &&& 0x8000) : wants_more_than_there_can_be();
            (FORMAT_INT16, _) : wants_double();
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
            meta.member : ternary;
        }
        actions = { is; is_malformed; is_refused; }
        const default_action = is(REASON_TRAILING_BYTES);
        const entries = {
            (true, _, _, _, _, _, _) : is(LINK_IP_CHECKSUM);
            (_, false, _, _, _, _, _) : is(LINK_FRAGMENT);
            (_, _, false, _, _, _, _) : is(REASON_TOO_SHORT);
            (_, _, _, 0x08 &&& 0x08, _, _, _) : is_malformed();
            (_, _, _, 0x04 &&& 0x04, _, _, _) : is_malformed();
            (_, _, _, 0x02 &&& 0x02, _, _, _) : is_malformed();
            (_, _, _, 0x01 &&& 0x01, _, _, _) : is_malformed();
            // 32 bytes are the headers of UDP and inagg
            (_, _, _, _, 0 &&& 0xFFE0, _, _) : is(REASON_TRUNCATED);
            (_, _, _, _, 32, KIND_CONTRIBUTION, 1) : is(REASON_WRONG_OWNER);  // as all else is right
            (_, _, _, _, 32, KIND_CONTRIBUTION, _) : is_refused();
            (_, _, _, _, 32, _, _) : is(REASON_WRONG_KIND);
        }
    }

    apply {
        payload.apply();
        meta.beyond = hdr.udp.length |-| meta.wants;
        verdict.apply();
    }
}
