// The state of a slot but for its lanes: which generation it serves, who is missing in its sum, and the sum's op.
// The index of all registers is the pass and the slot (passes.p4).

// A register action compares twice, so two things are told apart beside all the rest, which counts as stale: what the
// reference calls outside of the window, too. Whether the generation before is complete is known a stage later.

control SlotTag(in inagg_t h, in bit<16> index, out bit<8> state) {
    Register<bit<32>, bit<SLOT_BITS>>(1 << SLOT_BITS, 0) tags;
    RegisterAction<bit<32>, bit<SLOT_BITS>, bit<8>>(tags) compare = {
        void apply(inout bit<32> tag, out bit<8> what) {
            what = this.predicate(h.generation == tag + 1, h.generation == tag);
            if (h.generation == tag + 1) {
                tag = h.generation;
            }
        }
    };

    apply {
        state = compare.execute(index[SLOT_BITS - 1:0]);
    }
}

struct members_t {
    bit<32> missing;  // workers that are not in the sum, and bit 31: never 0 once used, never all ones
    bit<32> op;
}

control SlotMembers(in bit<16> index, in bit<8> state, in bit<32> others, in bit<32> op, out bit<32> missing) {
    Register<members_t, bit<SLOT_BITS>>(1 << SLOT_BITS, { 0, 0 }) members;

    // Lazy reset between generations; who is missing now.
    RegisterAction<members_t, bit<SLOT_BITS>, bit<32>>(members) start = {
        void apply(inout members_t held, out bit<32> who) {
            held.missing = others;
            held.op = op;
            who = held.missing;
        }
    };
    // Who was missing before; 0 if the op is another one. As nobody is missing but workers, AND with the others takes
    // this worker away.
    RegisterAction<members_t, bit<SLOT_BITS>, bit<32>>(members) join = {
        void apply(inout members_t held, out bit<32> who) {
            if (held.op == op) {
                who = held.missing;
                held.missing = held.missing & others;
            } else {
                who = 0;
            }
        }
    };

    action do_start() {
        missing = start.execute(index[SLOT_BITS - 1:0]);
    }
    action do_join() {
        missing = join.execute(index[SLOT_BITS - 1:0]);
    }
    action nothing() {
        missing = 0;
    }

    @hidden
    table by_state {
        key = { state : exact; }
        actions = { do_start; do_join; nothing; }
        const default_action = nothing();
        const entries = {
            SLOT_NEW : do_start();
            SLOT_SAME : do_join();
        }
    }

    apply {
        by_state.apply();
    }
}
