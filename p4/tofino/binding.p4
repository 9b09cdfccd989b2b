// The binding table: who may take part in which job, with which numbers. Reasons 33 to 38, by priority, as on bmv2.
//
// `place` says in how many passes the datagram's length is that of the job (32k lanes begin with chunk k - 1). A later pass
// has an entry of its own, without the port: the first one has looked at it.

control Binding(inout headers_t hdr, in bit<9> ingress_port, inout metadata_t meta) {
    action bind(bit<10> worker, bit<8> rank, bit<32> others, bit<32> op, bit<8> mode, bit<32> seed, bit<16> group,
                bit<9> asker) {
        meta.member = 1;
        meta.worker = worker;
        meta.rank = rank;
        meta.others = others;
        meta.op = op;
        meta.mode = mode;
        meta.seed = seed;
        meta.group = group;
        meta.asker = asker;
    }

    action refuse(bit<8> reason) {
        meta.refusal = reason;
    }

    table binding {
        key = {
            hdr.inagg.job : ternary @name("job");
            ingress_port : ternary @name("ingress_port");
            hdr.ipv4.source : ternary @name("source");
            hdr.udp.source : ternary @name("source_port");
            hdr.inagg.token : ternary @name("token");
            hdr.inagg.op : ternary @name("op");
            hdr.inagg.format : ternary @name("format");
            hdr.inagg.lanes : ternary @name("lanes");
            hdr.inagg.slot : ternary @name("slot");
            meta.place : ternary @name("place");
        }
        actions = { bind; refuse; }
        const default_action = refuse(REASON_UNKNOWN_JOB);
        size = BINDINGS;
    }

    apply {
        binding.apply();
    }
}
