// The state of a slot but for its lanes, and what a contribution, or at a leaf the parent's result, does to it. Reasons 39
// to 42.
//
// A generation is over when its result is here: as soon as its sum is complete, or at a leaf when the parent has answered.

control Slot(in inagg_t h, in member_t member, in bool from_parent, inout bit<8> reason, inout effect_t effect) {
    RepeatUp() repeat_up;

    @name(".slot_epoch")
    register<bit<32>>(SLOTS) slot_epoch;
    @name(".slot_tag")
    register<bit<32>>(SLOTS) slot_tag;    // the generation
    @name(".slot_seen")
    register<bit<32>>(SLOTS) slot_seen;   // who is in its sum
    @name(".slot_op")
    register<bit<8>>(SLOTS) slot_op;
    @name(".slot_here")
    register<bit<8>>(SLOTS) slot_here;    // 1: its result is here; at a leaf the accumulators are its codes

    apply {
        bit<32> epoch;
        bit<32> tag;
        bit<32> seen;
        bit<8> op;
        bit<8> here;
        slot_epoch.read(epoch, h.slot);
        slot_tag.read(tag, h.slot);
        slot_seen.read(seen, h.slot);
        slot_op.read(op, h.slot);
        slot_here.read(here, h.slot);
        if (epoch != member.epoch) {  // a new binding cleared the slot: done when it is first used
            tag = member.generation;
            if (h.slot < member.first_slot) {
                tag = tag + 1;
            }
            seen = 0;
            here = 0;
        }

        if (IS_LEAF && from_parent) {
            if (h.generation < tag) {
                reason = REASON_STALE;
            } else if (h.generation > tag || seen != member.full) {
                reason = REASON_OUTSIDE_WINDOW;
            } else if (op != h.op) {
                reason = REASON_WRONG_OP;
            } else if (here == 1) {
                reason = REASON_DUPLICATE;
            } else {
                slot_here.write(h.slot, 1);
                effect.complete = true;
                effect.from_parent_result = true;
            }
        } else {
            bool outside = false;
            if (h.generation > tag) {  // lazy reset between generations
                outside = here == 0 || h.generation != tag + 1;
                seen = 0;
            }
            bool asks = false;
            if (h.generation < tag) {
                reason = REASON_STALE;
            } else if (outside) {
                reason = REASON_OUTSIDE_WINDOW;
            } else if (seen != 0 && op != h.op) {
                reason = REASON_WRONG_OP;
            } else if (seen & member.worker_bit == 0) {
                bit<32> joined = seen | member.worker_bit;
                effect.contributes = true;
                effect.first = seen == 0;
                effect.complete = joined == member.full;
                effect.up = IS_LEAF && effect.complete;
                slot_epoch.write(h.slot, member.epoch);
                slot_tag.write(h.slot, h.generation);
                slot_seen.write(h.slot, joined);
                slot_op.write(h.slot, h.op);
                slot_here.write(h.slot, effect.complete && !IS_LEAF ? 8w1 : 0);
            } else if (here == 1) {
                effect.complete = true;
                effect.resend = true;
            } else {
                reason = REASON_DUPLICATE;
                asks = seen == member.full;
            }
            if (IS_LEAF) {
                repeat_up.apply(h.slot, member.worker_bit, effect.contributes, asks, effect.repeat_up);
                effect.complete = effect.complete || effect.repeat_up;
                effect.up = effect.up || effect.repeat_up;
            }
        }
    }
}
