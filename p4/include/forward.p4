// A switch stays a switch: what is not for the aggregation goes on by its Ethernet address.

#ifndef INAGG_FORWARD
#define INAGG_FORWARD

control Forward(in bit<48> destination, out bit<9> egress_port, out bool flooded) {
    @name(".to_port")
    action to_port(bit<9> port) {
        egress_port = port;
        flooded = false;
    }

    @name(".flood")
    action flood() {
        egress_port = 0;
        flooded = true;
    }

    @name(".forward")
    table forward {
        key = { destination : exact @name("destination"); }
        actions = { to_port; @defaultonly flood; }
        const default_action = flood();
        size = FORWARD_ENTRIES;
    }

    apply {
        forward.apply();
    }
}

#endif
