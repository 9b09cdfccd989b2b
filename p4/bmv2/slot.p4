// The state of a slot but for its lanes, and what a contribution does to it. Reasons 39 to 42.

control Slot(in inagg_t h, in member_t member, in bool from_parent, inout bit<8> reason, out bool contributes,
             out bool first, out bool complete, inout way_t way) {
    @name(".slot_epoch")
    register<bit<32>>(SLOTS) epochs;
    @name(".slot_tag")
    register<bit<32>>(SLOTS) tags;
    @name(".slot_seen")
    register<bit<32>>(SLOTS) seens;
    @name(".slot_op")
    register<bit<8>>(SLOTS) ops;

    apply {
        bit<32> its_epoch;
        bit<32> tag;
        bit<32> before;
        bit<8> op;
        epochs.read(its_epoch, h.slot);
        tags.read(tag, h.slot);
        seens.read(before, h.slot);
        ops.read(op, h.slot);
        if (its_epoch != member.epoch) {  // a new binding cleared the slot: done when it is first used
            tag = member.generation;
            if (h.slot < member.first_slot) {
                tag = tag + 1;
            }
            before = 0;
        }
        bool outside = false;
        if (h.generation > tag) {  // lazy reset between generations
            outside = before != member.full || h.generation != tag + 1;
            before = 0;
        }
        contributes = false;
        first = before == 0;
        complete = false;
        if (h.generation < tag) {
            reason = REASON_STALE;
        } else if (outside) {
            reason = REASON_OUTSIDE_WINDOW;
        } else if (before != 0 && op != h.op) {
            reason = REASON_WRONG_OP;
        } else if (before & member.worker_bit == 0) {
            contributes = true;
            complete = before | member.worker_bit == member.full;
            epochs.write(h.slot, member.epoch);
            tags.write(h.slot, h.generation);
            seens.write(h.slot, before | member.worker_bit);
            ops.write(h.slot, h.op);
        } else if (before == member.full) {
            complete = true;  // the result again, for this worker
        } else {
            reason = REASON_DUPLICATE;
        }
    }
}
