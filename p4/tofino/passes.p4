// Passes: a datagram of 32k lanes meets the program k times, by way of loopback ports, and each pass adds up one chunk of 32
// lanes, the last chunk first.
//
// Each pass is the whole protocol for its own lanes: it has a tag, members and accumulators of its own (the index of all
// registers is `pass ++ slot`), whether it runs in a pipe of its own or in that of the pass before. Nothing that one pass
// decides about its sums is taken over by the next. So nothing has to be true of the way between two passes, on which the
// traffic manager may drop a datagram or let it overtake another:
//
// - A datagram reads or changes in each pass the generation that it names, or it ends there as stale. A worker sends
//   generation g + 1 of a slot when all have the result of g, so when all passes are complete in g. So no pass takes up
//   g + 1 while another one still waits for g, and what a pass drops as stale nobody waits for.
// - A complete sum does not change, so the codes of a pass that is complete for a datagram are those of the result, whenever
//   the other passes become so. The last pass answers if all were complete, each at its time: what it sends is the result.
// - It sends it to all if one of them became complete by this datagram, else to the worker alone, who has repeated itself.
//   A loss or an overtaking may leave all sums complete and no datagram that saw all of them so: then nobody gets a result,
//   the timers of workers make them repeat themselves, and a repeated contribution reads in each pass that has it, adds in
//   those that lack it, and is answered as soon as all are complete. Who gets a result twice drops it, as any duplicate.
//
// tests/p4/test_tofino_passes.py plays losses and overtakings between passes.

control Onward(in inagg_t h, inout metadata_t meta) {
    action pass(bit<8> place, bit<9> port) {
        meta.next_place = place;
        meta.next_port = port;
    }

    // What is not in it has no next pass. By the low bits of the slot, so that several ports share the load, and the
    // datagrams of a slot one queue.
    table onward {
        key = {
            meta.place : exact @name("place");
            h.slot[3:0] : exact @name("slot");
        }
        actions = { pass; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 128;
    }

    apply {
        onward.apply();
    }
}

// What a pass does with a contribution that has got to its slot, from whether the sums are complete: those of the passes
// before, and those of this one.
control Decide(inout metadata_t meta) {
    action nothing() {
        meta.answer = ANSWER_NOTHING;
    }
    action to_one() {
        meta.answer = ANSWER_ONE;
    }
    action to_all() {
        meta.answer = ANSWER_ALL;
    }
    action pass(bit<8> complete) {
        meta.answer = ANSWER_PASS;
        meta.so_far = complete;
    }

// If there is a next pass, whose place is never 0: it is a later one.
#define PASS_ON(reason, so_far, here, complete) (reason, _, PLACE_LATER &&& PLACE_LATER, so_far, here) : pass(complete);
// In the last pass, that of chunk 0.
#define LAST_PASS(so_far, here, action) (REASON_NONE, 0 &&& 3, _, so_far, here) : action();

    @hidden
    table decide {
        key = {
            meta.reason : ternary;
            meta.place : ternary;
            meta.next_place : ternary;
            meta.so_far : ternary;
            meta.complete : ternary;
        }
        actions = { to_one; to_all; pass; nothing; }
        const default_action = nothing();
        const entries = {
            PASS_ON(REASON_DUPLICATE, _, _, COMPLETE_NOT)
            PASS_ON(REASON_NONE, COMPLETE_NOT, _, COMPLETE_NOT)
            PASS_ON(REASON_NONE, _, COMPLETE_NOT, COMPLETE_NOT)
            PASS_ON(REASON_NONE, COMPLETE_NOW, _, COMPLETE_NOW)
            PASS_ON(REASON_NONE, _, COMPLETE_NOW, COMPLETE_NOW)
            PASS_ON(REASON_NONE, _, _, COMPLETE_BEFORE)
            LAST_PASS(COMPLETE_NOT, _, nothing)
            LAST_PASS(_, COMPLETE_NOT, nothing)
            LAST_PASS(COMPLETE_NOW, _, to_all)
            LAST_PASS(_, COMPLETE_NOW, to_all)
            LAST_PASS(_, _, to_one)
        }
    }

    apply {
        decide.apply();
    }
}
