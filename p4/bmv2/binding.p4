// The binding table: who may take part in which job, with which numbers. Reasons 33 to 38.

struct member_t {
    bit<16> row;            // the job's row in counters
    bit<16> worker;         // row * CHILDREN_MAX + rank
    bit<32> worker_bit;     // 1 << rank
    bit<32> full;           // the bits of all workers
    bit<32> owners;         // of those to whom a result can go alone
    bit<32> epoch;          // number of this binding, never 0; slots of another one are clear
    bit<32> generation;     // that they serve then
    bit<32> first_slot;     // below it: the next one
    bit<32> seed;           // of the rounding noise
    bit<32> levels;         // natural formats: the highest level; linear ones: the largest magnitude
    bit<8> shift;           // result shift z
    bit<8> result_format;
    bit<16> group;          // multicast group of the workers
}

control Binding(in inagg_t h, in bit<9> ingress_port, in bit<32> source, in bit<16> source_port, inout member_t member,
                inout bit<8> refusal) {
    @name(".bind")
    action bind(bit<16> row, bit<16> worker, bit<32> worker_bit, bit<32> full, bit<32> owners, bit<32> epoch,
                bit<32> generation, bit<32> first_slot, bit<32> seed, bit<32> levels, bit<8> shift,
                bit<8> result_format, bit<16> group) {
        member = {
            row, worker, worker_bit, full, owners, epoch, generation, first_slot, seed, levels, shift, result_format,
            group
        };
    }

    @name(".refuse")
    action refuse(bit<8> reason) {
        refusal = reason;
    }

    // One entry for the workers' datagrams that fit, and below it in priority, with fewer and fewer of the keys, one
    // for each reason why others do not: the order of checks is the order of priorities.
    @name(".binding")
    table binding {
        key = {
            h.job : ternary @name("job");
            ingress_port : ternary @name("ingress_port");
            source : ternary @name("source");
            source_port : ternary @name("source_port");
            h.token : ternary @name("token");
            h.op : ternary @name("op");
            h.format : ternary @name("format");
            h.lanes : ternary @name("lanes");
            h.slot : ternary @name("slot");
        }
        actions = { bind; refuse; }
        const default_action = refuse(REASON_UNKNOWN_JOB);
        size = BINDINGS;
    }

    apply {
        binding.apply();
    }
}
