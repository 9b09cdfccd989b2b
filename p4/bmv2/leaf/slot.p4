// The state of a slot but for its lanes, at a leaf, and what a contribution or a result does to it. Reasons 39 to 42.
//
// A slot whose sum is complete waits for the parent's result, and is done when that is here.

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
    @name(".slot_here")
    register<bit<8>>(SLOTS) heres;    // 1: the result is, and the lanes' accumulators are its codes
    @name(".slot_asked")
    register<bit<32>>(SLOTS) askeds;  // who has repeated a contribution since the sum went up last

    apply {
        bit<32> its_epoch;
        bit<32> tag;
        bit<32> before;
        bit<8> op;
        bit<8> here;
        bit<32> asked;
        epochs.read(its_epoch, h.slot);
        tags.read(tag, h.slot);
        seens.read(before, h.slot);
        ops.read(op, h.slot);
        heres.read(here, h.slot);
        askeds.read(asked, h.slot);
        if (its_epoch != member.epoch) {  // a new binding cleared the slot: done when it is first used
            tag = member.generation;
            if (h.slot < member.first_slot) {
                tag = tag + 1;
            }
            before = 0;
        }
        contributes = false;
        first = false;
        complete = false;
        if (from_parent) {
            if (h.generation < tag) {
                reason = REASON_STALE;
            } else if (h.generation > tag || before != member.full) {
                reason = REASON_OUTSIDE_WINDOW;
            } else if (op != h.op) {
                reason = REASON_WRONG_OP;
            } else if (here == 1) {
                reason = REASON_DUPLICATE;
            } else {
                heres.write(h.slot, 1);
                complete = true;
                way.taken = true;
            }
        } else {
            bool outside = false;
            if (h.generation > tag) {  // lazy reset between generations
                outside = before != member.full || here == 0 || h.generation != tag + 1;
                before = 0;
            }
            first = before == 0;
            if (h.generation < tag) {
                reason = REASON_STALE;
            } else if (outside) {
                reason = REASON_OUTSIDE_WINDOW;
            } else if (before != 0 && op != h.op) {
                reason = REASON_WRONG_OP;
            } else if (before & member.worker_bit == 0) {
                contributes = true;
                complete = before | member.worker_bit == member.full;
                way.up = complete;
                epochs.write(h.slot, member.epoch);
                tags.write(h.slot, h.generation);
                seens.write(h.slot, before | member.worker_bit);
                ops.write(h.slot, h.op);
                heres.write(h.slot, 0);
                askeds.write(h.slot, 0);
            } else if (before != member.full) {
                reason = REASON_DUPLICATE;
            } else if (here == 1) {
                complete = true;  // the result again, for this worker
                way.again = true;
            } else {
                // Once in a round of time-outs, however many children there are: for the first that asks since the sum
                // went up last, and for one that asks twice.
                reason = REASON_DUPLICATE;
                if (asked == 0 || asked & member.worker_bit != 0) {
                    askeds.write(h.slot, member.worker_bit);
                    complete = true;
                    way.up = true;
                    way.asked = true;
                } else {
                    askeds.write(h.slot, asked | member.worker_bit);
                }
            }
        }
    }
}
