// A valid datagram gets to its slot: counted, and at a leaf with the slot that this switch has for what the parent names.

control Take(inout inagg_t h, in member_t member, in bool from_parent, inout uplink_t uplink, inout bit<8> reason,
             inout effect_t effect) {
    Uplink() find_uplink;
    Slot() slot;

    // By worker: what the binding took, and what became of it but for contributions and resends (respond.p4). Tofino has
    // `outcomes` and `answers` for all of these.
    @name(".admitted")
    counter(CHILDREN_MAX * JOBS, CounterType.packets_and_bytes) admitted;
    @name(".duplicates")
    counter(CHILDREN_MAX * JOBS, CounterType.packets) duplicates;
    @name(".stale")
    counter(CHILDREN_MAX * JOBS, CounterType.packets) stale;

    apply {
        if (IS_LEAF) {
            find_uplink.apply(member.row, uplink);
        }
        if (from_parent) {  // which is no worker, of which there are counters
            h.slot = h.slot - uplink.slot_delta;
        } else {
            admitted.count((bit<32>)member.worker);
        }
        slot.apply(h, member, from_parent, reason, effect);
        if (!from_parent) {
            if (reason == REASON_STALE) {
                stale.count((bit<32>)member.worker);
            } else if (reason == REASON_DUPLICATE) {
                duplicates.count((bit<32>)member.worker);
            }
        }
    }
}
