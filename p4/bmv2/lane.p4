// One lane's accumulators, one for each slot.
//
// Here and in the formats there are masks (all ones or 0) instead of branches, of which bmv2 makes a table each; and values
// are used once if they can be, since the compiler puts an expression wherever the variable stands that it was given to.

control Lane(in bit<32> slot, in bit<32> keep, in bit<32> more, in bit<32> most, out bit<32> sum) {
    // `keep`: the accumulator counts, this is not the first contribution. It gets `more`, and is at least `most`; both
    // are 0 for the other op, or if the contribution is in it already.
    @hidden
    register<bit<32>>(SLOTS) acc;

    apply {
        bit<32> before;
        acc.read(before, slot);
        acc.write(slot, (before & keep) + more + (most |-| (before & keep)));
        acc.read(sum, slot);
    }
}
