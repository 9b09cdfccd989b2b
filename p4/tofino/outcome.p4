// What becomes of a contribution in a pass, from the state of its slot there.

#define EACH_RANK(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11) M(12) M(13) M(14) M(15) \
    M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23) M(24) M(25) M(26) M(27) M(28) M(29) M(30)
#define LAST(w) (SLOT_SAME, w, NOBODY | 1 << w, OP_SUM) : complete(LANES_ADD); \
    (SLOT_SAME, w, NOBODY | 1 << w, OP_MAX) : complete(LANES_MAX);
#define MISSES(w) (SLOT_SAME, w, 1 << w &&& 1 << w, OP_SUM) : absorb(LANES_ADD); \
    (SLOT_SAME, w, 1 << w &&& 1 << w, OP_MAX) : absorb(LANES_MAX);

control Outcome(in inagg_t h, inout metadata_t meta) {
    action complete(bit<8> lanes) {
        meta.lanes = lanes;
        meta.complete = COMPLETE_NOW;
        meta.outcome = OUTCOME_COMPLETED;
    }
    action absorb(bit<8> lanes) {
        meta.lanes = lanes;
        meta.complete = COMPLETE_NOT;
        meta.outcome = OUTCOME_ABSORBED;
    }
    action repeat() {
        meta.lanes = LANES_READ;
        meta.complete = COMPLETE_BEFORE;
        meta.outcome = OUTCOME_REPEATED;
    }
    action refuse(bit<8> reason, bit<3> outcome) {
        meta.reason = reason;
        meta.complete = COMPLETE_NOT;
        meta.outcome = outcome;
    }

    @hidden
    table outcome {
        key = {
            meta.slot_state : ternary;
            meta.rank : ternary;
            meta.missing : ternary;
            h.op : ternary;
        }
        actions = { complete; absorb; repeat; refuse; @defaultonly NoAction; }
        const default_action = NoAction();
        const entries = {
            (SLOT_STALE, _, _, _) : refuse(REASON_STALE, OUTCOME_STALE);
            (SLOT_NEW, _, NOBODY, _) : complete(LANES_START);
            (SLOT_NEW, _, _, _) : absorb(LANES_START);
            (SLOT_SAME, _, 0, _) : refuse(REASON_WRONG_OP, OUTCOME_WRONG_OP);
            (SLOT_SAME, _, NOBODY, _) : repeat();
            EACH_RANK(LAST)
            EACH_RANK(MISSES)
            (SLOT_SAME, _, _, _) : refuse(REASON_DUPLICATE, OUTCOME_DUPLICATE);
        }
    }

    apply {
        outcome.apply();
    }
}
