// A datagram to the switch's data port, or a fragment that may be of one.

control Aggregate(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Validate() validate;
    Take() take;
    Respond() respond;
    Refuse() refuse;

    @name(".refused")
    counter(REASONS, CounterType.packets) refused;

    apply {
        bit<8> reason = REASON_NONE;
        bool from_parent;
        member_t member = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
        uplink_t uplink = { 0, 0, 0, 0, 0, 0, 0, 0 };
        effect_t effect = { false, false, false, false, false, false, false };

        validate.apply(hdr, meta.payload, standard, member, from_parent, reason);
        if (reason == REASON_NONE) {
            take.apply(hdr.inagg, member, from_parent, uplink, reason, effect);
        }
        if (reason != REASON_NONE) {
            refused.count((bit<32>)reason);
        }
        if (reason == REASON_NONE || effect.repeat_up) {
            respond.apply(hdr, meta, standard, member, uplink, effect);
        } else {
            refuse.apply(hdr, meta, standard, !from_parent, reason);
        }
    }
}
