// One lane's accumulators, one for each slot.

control Lane(in bit<32> slot, in bool first, in bool maximum, in bit<32> value, out bit<32> sum) {
    // A value of 0 that is not the first leaves the accumulator as it is, with SUM and with MAX.
    @hidden
    register<bit<32>>(SLOTS) acc;

    apply {
        acc.read(sum, slot);
        sum = first ? value : (maximum ? (value > sum ? value : sum) : sum + value);
        acc.write(slot, sum);
    }
}
